//! A warp: which lanes are where, how they part and how they meet again.
//!
//! A *path* is a set of lanes at one instruction of one frame. Where lanes part at a branch, a
//! *join* is put at the branch's immediate post-dominator and the path becomes several. A path that
//! reaches its join parks its lanes there; once all lanes that the join expects have come, they go
//! on as one path. A call is a join too: at the instruction behind it, for those that return.

use super::facts::WarpFacts;
use super::memory::Bytes;

/// After so many instructions another path of the warp has its turn.
const TURN: u32 = 512;
/// After so many instructions of one path, lanes that wait at a join go on without it: whoever spins
/// may be waiting for them (a lock that a parked lane holds).
const PATIENCE: u32 = 16 * TURN;

/// What a path waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    /// A barrier of the block.
    Barrier(u32),
    /// The lanes of the mask at an operation of the whole warp.
    Lanes(u32),
}

/// Lanes that are at one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) at: u32,
    pub(crate) frame: usize,
    pub(crate) mask: u32,
    pub(crate) join: Option<usize>,
    pub(crate) wait: Wait,
    /// When it began to wait.
    pub(crate) since: u64,
    /// Its lanes that take part in what it waits for.
    pub(crate) acting: u32,
}

#[derive(Debug, Clone, Copy)]
struct Join {
    at: u32,
    frame: usize,
    expected: u32,
    arrived: u32,
    outer: Option<usize>,
    /// The frame that ends when those who return have come.
    call: Option<usize>,
}

/// What a call of a function has: registers, parameters, a part of local memory.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(crate) function: usize,
    /// Register by register, 32 lanes each.
    pub(crate) registers: Vec<[u64; 32]>,
    /// The lanes that wrote each.
    pub(crate) written: Vec<u32>,
    /// Parameters, for each lane.
    pub(crate) parameters: Vec<Bytes>,
    pub(crate) local: u32,
    pub(crate) depth: u32,
    /// The join of those who return; none in the kernel's own frame.
    pub(crate) back: Option<usize>,
    /// Where results go: the caller's frame and its call.
    pub(crate) caller: Option<(usize, u32)>,
}

/// A copy that was begun by `cp.async`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u32,
    /// How many of them are read; the others are zero.
    pub(crate) read: u32,
    /// The instruction's address of this copy, for what goes wrong later.
    pub(crate) lane: u32,
}

/// The warp.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub(crate) index: u32,
    /// Lanes that have not ended.
    pub(crate) live: u32,
    pub(crate) paths: Vec<Path>,
    joins: Vec<Option<Join>>,
    pub(crate) frames: Vec<Option<Frame>>,
    pub(crate) local: Vec<Bytes>,
    /// The carry of each lane.
    pub(crate) carry: u32,
    /// Copies of each lane: groups that were committed, and what is begun.
    pub(crate) groups: Vec<std::collections::VecDeque<Vec<Copy>>>,
    pub(crate) begun: Vec<Vec<Copy>>,
    /// When it may issue again.
    pub(crate) ready: u64,
    /// When it issued last, to take turns.
    pub(crate) issued: u64,
    current: usize,
    streak: u32,
    patience: u32,
    pub(crate) facts: WarpFacts,
}

fn keep<T>(slots: &mut Vec<Option<T>>, value: T) -> usize {
    match slots.iter().position(Option::is_none) {
        Some(at) => {
            slots[at] = Some(value);
            at
        }
        None => {
            slots.push(Some(value));
            slots.len() - 1
        }
    }
}

impl Warp {
    /// A warp whose lanes of `mask` begin in `frame`.
    pub(crate) fn new(index: u32, mask: u32, frame: Frame) -> Self {
        let path =
            Path { at: 0, frame: 0, mask, join: None, wait: Wait::Nothing, since: 0, acting: 0 };
        Self {
            index,
            live: mask,
            paths: vec![path],
            frames: vec![Some(frame)],
            groups: vec![Default::default(); 32],
            begun: vec![Vec::new(); 32],
            ..Self::default()
        }
    }

    /// The frame of a path.
    pub(crate) fn frame(&self, at: usize) -> Option<&Frame> {
        self.frames.get(at)?.as_ref()
    }

    pub(crate) fn frame_mut(&mut self, at: usize) -> Option<&mut Frame> {
        self.frames.get_mut(at)?.as_mut()
    }

    /// Whether some path can go on.
    pub(crate) fn runnable(&self) -> bool {
        self.paths.iter().any(|path| path.wait == Wait::Nothing)
    }

    /// The path whose turn it is.
    pub(crate) fn pick(&mut self) -> Option<usize> {
        self.patience += 1;
        if self.patience > PATIENCE {
            self.patience = 0;
            self.release_parked();
        }
        let can = |at: &usize| self.paths.get(*at).is_some_and(|path| path.wait == Wait::Nothing);
        self.streak += 1;
        if self.streak <= TURN && can(&self.current) {
            return Some(self.current);
        }
        self.streak = 0;
        let count = self.paths.len();
        let next = (1..=count).map(|step| (self.current + step) % count.max(1)).find(can)?;
        self.current = next;
        Some(next)
    }

    /// Lanes that wait at the innermost join become a path of their own; whether there were any.
    pub(crate) fn release_parked(&mut self) -> bool {
        for at in (0..self.joins.len()).rev() {
            let Some(join) = self.joins[at].as_mut() else { continue };
            if join.arrived == 0 || join.call.is_some() {
                continue;
            }
            let mask = std::mem::take(&mut join.arrived);
            join.expected &= !mask;
            let (to, frame, outer) = (join.at, join.frame, join.outer);
            let wait = Wait::Nothing;
            self.paths.push(Path { at: to, frame, mask, join: outer, wait, since: 0, acting: 0 });
            return true;
        }
        false
    }

    /// Path `path` goes to several places at once; those that are at `meet` wait there.
    pub(crate) fn part(&mut self, path: usize, groups: &[(u32, u32)], meet: u32, end: u32) {
        let whole = self.paths[path];
        if let [(to, _)] = groups[..] {
            return self.go(path, to);
        }
        self.facts.counts.divergent_branches += 1;
        let here = whole.join.and_then(|at| self.joins[at]);
        let same = here.is_some_and(|j| j.at == meet && j.frame == whole.frame && j.call.is_none());
        let join = if meet >= end || same {
            whole.join
        } else {
            let (frame, expected, outer) = (whole.frame, whole.mask, whole.join);
            let join = Join { at: meet, frame, expected, arrived: 0, outer, call: None };
            Some(keep(&mut self.joins, join))
        };
        let first = self.paths.len();
        let mut paths = groups.iter().map(|&(at, mask)| Path { at, mask, join, ..whole });
        if let Some(stays) = paths.next() {
            self.paths[path] = stays;
        }
        self.paths.extend(paths);
        for at in (first..self.paths.len()).rev() {
            self.arrive(at);
        }
        self.arrive(path);
    }

    /// Path `path` goes to `to`.
    pub(crate) fn go(&mut self, path: usize, to: u32) {
        self.paths[path].at = to;
        if self.paths[path].join.is_some() {
            self.arrive(path);
        }
    }

    /// Parks path `path` where it stands at its join.
    fn arrive(&mut self, path: usize) {
        let Path { at, frame, mask, join, .. } = self.paths[path];
        let Some(number) = join else { return };
        let Some(join) = self.joins[number].as_mut() else { return };
        if join.at != at || join.frame != frame || join.call.is_some() {
            return;
        }
        join.arrived |= mask;
        self.remove(path);
        self.settle(number);
    }

    fn remove(&mut self, path: usize) {
        self.paths.remove(path);
        if self.current > path {
            self.current -= 1;
        }
    }

    /// Lets those go on who wait at a join for nobody any more.
    fn settle(&mut self, number: usize) {
        let Some(join) = self.joins[number] else { return };
        if join.arrived != join.expected {
            return;
        }
        self.joins[number] = None;
        if let Some(frame) = join.call {
            self.frames[frame] = None;
        }
        if join.arrived == 0 {
            return;
        }
        let Join { at, frame, arrived: mask, outer, .. } = join;
        let wait = Wait::Nothing;
        let path = Path { at, frame, mask, join: outer, wait, since: 0, acting: 0 };
        let place = self.current.min(self.paths.len());
        self.paths.insert(place, path);
        self.patience = 0;
        self.arrive(place);
    }

    /// Takes `mask` out of what joins expect, from `from` outward up to `until`.
    fn leave(&mut self, from: Option<usize>, until: Option<usize>, mask: u32) {
        let mut chain = Vec::new();
        let mut next = from;
        while let Some(at) = next.filter(|_| next != until) {
            let Some(join) = self.joins[at].as_mut() else { break };
            join.expected &= !mask;
            next = join.outer;
            chain.push(at);
        }
        for at in chain {
            self.settle(at);
        }
    }

    /// The lanes of `mask` of path `path` end; the path goes on behind the instruction with those
    /// that are left.
    pub(crate) fn exit(&mut self, path: usize, mask: u32) {
        self.live &= !mask;
        let whole = self.paths[path];
        self.shrink(path, mask);
        self.leave(whole.join, None, mask);
        // Whoever waits for lanes of this warp looks again.
        for path in &mut self.paths {
            if matches!(path.wait, Wait::Lanes(_)) {
                path.wait = Wait::Nothing;
            }
        }
    }

    fn shrink(&mut self, path: usize, mask: u32) {
        let whole = &mut self.paths[path];
        whole.mask &= !mask;
        whole.at += 1;
        if whole.mask == 0 {
            self.remove(path);
        }
    }

    /// Path `path` enters `frame`; those who return meet behind the call.
    pub(crate) fn call(&mut self, path: usize, mut frame: Frame, mask: u32) {
        let whole = self.paths[path];
        let back = whole.at + 1;
        frame.caller = Some((whole.frame, whole.at));
        let number = keep(&mut self.frames, frame);
        let join = Join {
            at: back,
            frame: whole.frame,
            expected: whole.mask,
            arrived: whole.mask & !mask,
            outer: whole.join,
            call: Some(number),
        };
        let join = keep(&mut self.joins, join);
        if let Some(frame) = self.frame_mut(number) {
            frame.back = Some(join);
        }
        let path = &mut self.paths[path];
        (path.at, path.frame, path.mask, path.join) = (0, number, mask, Some(join));
    }

    /// The lanes of `mask` of path `path` return from its frame; false where it is the kernel's.
    pub(crate) fn give_back(&mut self, path: usize, mask: u32) -> bool {
        let whole = self.paths[path];
        let Some(back) = self.frame(whole.frame).and_then(|frame| frame.back) else {
            return false;
        };
        self.shrink(path, mask);
        if let Some(join) = self.joins[back].as_mut() {
            join.arrived |= mask;
        }
        self.leave(whole.join, Some(back), mask);
        self.settle(back);
        true
    }
}
