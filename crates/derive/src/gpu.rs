//! What GPUs did for a process while it waited, and why that took as long.
//!
//! # What it sees
//! Kernels, copies and stages of collectives, each with its process; clocks, users and errors of
//! GPUs as their driver reports them. A time in which a kernel of the process ran is split:
//!
//! - in a collective, the first wait for the other ranks (`initial_sync`) beyond that of the rank
//!   that waited least is time spent waiting for that one, who came last;
//! - from an error of the GPU (Xid) until it got on again, it stood still;
//! - while the context of another process had the GPU, by the driver's log of context switches, it was that one's turn; where
//!   there is no log, while another process had kernels on the same GPU, or its driver says that another had a share of its
//!   multiprocessors, that share went there;
//! - at a clock below its highest, a part as large as the clock is lower is what that cost;
//! - the rest is the process's own work.
//!
//! Copies count only where no kernel ran.
//!
//! # Why it matters
//! A GPU that is slower, shared or waiting for a rank looks the same from the host: a longer wait.
//!
//! # What fools it
//! Kernels that memory holds up do not get slower as their clock does, so that the clock's part is
//! an upper limit; since the usual steps are split in the same way, it is blamed only where the
//! waits did get longer. A driver's readings of users are up to a second old, and at times leave out a
//! busy one. Processes that share by MPS run side by side and not in turns. An Xid is recorded up to a
//! tenth of a second late.

mod index;

use foldhash::{HashMap, HashMapExt as _, HashSet};
use gpuwhy_schema::{EntityId, Id, Ns};

use crate::intervals::{Interval, clip, subtract, union};

/// How far a reading may be from the time that it is about: the driver's readings of users are
/// averages over up to a second.
const USERS_WITHIN: Ns = Ns::secs(1);
/// The same of clocks, which are polled ten times a second.
const CLOCK_WITHIN: Ns = Ns::millis(400);
/// How far the record of an error may be from the error.
const FAULT_WITHIN: Ns = Ns::millis(200);
/// Shares of users below this are noise.
const LEAST_SHARE: f64 = 0.05;

/// What a piece of a wait was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its own work.
    Work,
    /// Its own work at a lowered clock.
    Throttled(EntityId),
    /// Somebody else's work.
    Others(EntityId),
    /// Nothing, after an error.
    Fault(EntityId),
    /// A rank's process came late.
    Late(EntityId),
    /// A copy: beside another process's, or over the link of this GPU.
    Copy(EntityId),
}

/// Work that began before a window is looked for this far back; work that lasts longer is missed.
const LONGEST: Ns = Ns::secs(60);

/// A piece of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// When it began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// What the GPU did.
    pub doing: Doing,
}

/// Work of a GPU.
#[derive(Clone, Copy, Debug)]
struct Busy {
    from: Ns,
    to: Ns,
    gpu: EntityId,
}

/// What GPUs did for one process.
#[derive(Debug, Default)]
struct Work {
    kernels: Vec<Busy>,
    copies: Vec<Busy>,
    /// Waits for a rank that came late.
    late: Vec<(Ns, Ns, EntityId)>,
    /// While it waited for its devices.
    waits: Vec<Interval>,
    queued: Vec<Interval>,
}

/// What one GPU was like.
#[derive(Debug, Default)]
struct Gpu {
    clock: Vec<(Ns, f64)>,
    best: f64,
    users: HashMap<EntityId, Vec<(Ns, f64)>>,
    faults: Vec<Ns>,
    kernels: Vec<(Ns, Ns, EntityId)>,
    copies: Vec<(Ns, Ns, EntityId)>,
    /// The processes whose kernels were recorded.
    seen: HashSet<EntityId>,
    /// Whose context had it, by the driver's log of context switches; an unknown one's is of entity 0.
    owners: Vec<(Ns, Ns, EntityId)>,
}

impl Gpu {
    /// Kernels of others than `process` that reach into the window, as they begin.
    fn others_kernels(
        &self,
        process: EntityId,
        window: Interval,
    ) -> impl Iterator<Item = (Ns, Ns, EntityId)> {
        let first = self.kernels.partition_point(|k| k.0 < window.0.saturating_sub(LONGEST));
        let near = self.kernels[first..].iter().take_while(move |k| k.0 < window.1);
        near.filter(move |k| k.2 != process && k.1 > window.0).copied()
    }

    /// How long the contexts of others than `process` had it in the window, the longest first; none where no switch is known
    /// near it.
    fn owners(&self, process: EntityId, window: Interval) -> Option<Vec<(EntityId, Ns)>> {
        let mut had: HashMap<EntityId, Ns> = HashMap::new();
        let mut any = false;
        for (from, to, who) in self.turns(window) {
            any = true;
            if who != process {
                *had.entry(who).or_default() += to - from;
            }
        }
        let mut had: Vec<(EntityId, Ns)> = had.into_iter().collect();
        had.sort_unstable_by_key(|(who, ns)| (std::cmp::Reverse(*ns), *who));
        any.then_some(had)
    }

    /// Whose turn it was in the window, by time.
    fn turns(&self, window: Interval) -> impl Iterator<Item = (Ns, Ns, EntityId)> {
        let first = self.owners.partition_point(|turn| turn.1 <= window.0);
        let within = self.owners[first..].iter().take_while(move |turn| turn.0 < window.1);
        within.map(move |&(from, to, who)| (from.max(window.0), to.min(window.1), who))
    }

    /// The same by kernels that were recorded, or else by the driver's readings: who had most of it.
    fn most_of_others(&self, process: EntityId, window: Interval) -> Option<(EntityId, Ns)> {
        let mut seen: HashMap<EntityId, Vec<Interval>> = HashMap::new();
        for (from, to, who) in self.others_kernels(process, window) {
            seen.entry(who).or_default().push((from, to));
        }
        if !seen.is_empty() {
            // They take turns, so that each of n gets a share of one in n.
            let most = seen.into_iter().map(|(who, list)| {
                let both: Ns =
                    clip(&union(list), window).iter().map(|(from, to)| *to - *from).sum();
                (who, Ns(both.0 / 2))
            });
            return most.max_by_key(|(who, ns)| (*ns, *who)).filter(|(_, ns)| *ns > Ns::ZERO);
        }
        // Where kernel spans of a process exist, the driver's coarser readings of it are ignored: it ran
        // nothing here.
        let (who, theirs) =
            self.most_using(window, |who| who != process && !self.seen.contains(&who))?;
        let own = self.users.get(&process).and_then(|u| mean(u, readings_around(window)));
        let own = own.unwrap_or(0.0);
        let share = if own > 0.0 { theirs / (own + theirs) } else { theirs / 100.0 };
        let share = share.clamp(0.0, 1.0);
        let ns = Ns(((window.1 - window.0).0 as f64 * share) as i64);
        (share >= LEAST_SHARE).then_some((who, ns))
    }

    /// Which of these processes used it most around the window, and how much in percent, by the driver's
    /// readings.
    fn most_using(
        &self,
        window: Interval,
        of: impl Fn(EntityId) -> bool,
    ) -> Option<(EntityId, f64)> {
        let users = self.users.iter().filter(|(who, _)| of(**who));
        users
            .filter_map(|(who, list)| Some((*who, mean(list, readings_around(window))?)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
    }
}

/// What was recorded of GPUs, by process and by GPU.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    processes: HashMap<EntityId, Work>,
    gpus: HashMap<EntityId, Gpu>,
}

/// When each piece of work was launched, and by which process.
type Launched = HashMap<Id, (Ns, EntityId)>;

impl Gpus {
    /// When `process` waited for its devices, as the library inside it reports: a thread that runs
    /// meanwhile spins.
    pub fn waits(&self, process: EntityId) -> &[Interval] {
        self.processes.get(&process).map_or(&[], |work| &work.waits)
    }

    /// When GPUs copied for `process` in the window, by the begin, and which.
    pub fn copies(&self, process: EntityId, window: Interval) -> Vec<(Interval, EntityId)> {
        let Some(work) = self.processes.get(&process) else { return Vec::new() };
        near(&work.copies, window).map(|copy| ((copy.from, copy.to), copy.gpu)).collect()
    }

    /// What GPUs did for `process` in the window: disjoint pieces by their time. Where there is
    /// none, they did nothing for it that was seen.
    pub fn pieces(&self, process: EntityId, window: Interval) -> Vec<Piece> {
        let Some(work) = self.processes.get(&process) else { return Vec::new() };
        let mut out = Vec::new();
        let stalls = self.stalls(work, window);
        let mut at = window.0;
        let mut busy = Vec::new();
        for kernel in near(&work.kernels, window) {
            let (from, to) = (kernel.from.max(at), kernel.to.min(window.1));
            if from < to {
                busy.push((from, to));
                self.split(process, work, &stalls, (from, to), kernel.gpu, &mut out);
                at = to;
            }
        }
        let busy = union(busy);
        let mut taken = self.queued_in(process, work, window, &busy, &mut out);
        // After an error there may be no kernel at all until the device gets on.
        let before = taken.clone();
        for &(stall, gpu) in &stalls {
            let within = (stall.0.max(window.0), stall.1.min(window.1));
            for (from, to) in subtract(within, &before) {
                out.push(Piece { from, to, doing: Doing::Fault(gpu) });
                taken.push((from, to));
            }
        }
        let taken = union(taken);
        let mut at = window.0;
        for copy in near(&work.copies, window) {
            let piece = (copy.from.max(at), copy.to.min(window.1));
            if piece.0 >= piece.1 {
                continue;
            }
            at = piece.1;
            for (from, to) in subtract(piece, &taken) {
                let beside = self.beside(copy.gpu, process, (from, to)).unwrap_or(copy.gpu);
                out.push(Piece { from, to, doing: Doing::Copy(beside) });
            }
        }
        out.sort_unstable_by_key(|p| p.from);
        out
    }

    /// A thread that waits all the time launches nothing, so that a kernel that begins meanwhile had
    /// been launched before: the time until then it was queued, behind somebody if anybody else
    /// used the device. Says what is taken, the kernels' own time included.
    fn queued_in(
        &self,
        process: EntityId,
        work: &Work,
        window: Interval,
        busy: &[Interval],
        out: &mut Vec<Piece>,
    ) -> Vec<Interval> {
        let mut taken = busy.to_vec();
        let mut at = window.0;
        for &(from, to) in busy {
            let gap = (at, from);
            at = to;
            if gap.0 >= gap.1 {
                continue;
            }
            let Some(gpu) = near(&work.kernels, (from, to)).next().map(|k| k.gpu) else { continue };
            // Its own copies may be what it waited for; they are accounted for as copies.
            let copies = union(near(&work.copies, gap).map(|c| (c.from, c.to)).collect());
            for (from, to, who) in self.ahead(gpu, process, gap) {
                for (from, to) in subtract((from, to), &copies) {
                    out.push(Piece { from, to, doing: Doing::Others(who) });
                    taken.push((from, to));
                }
            }
        }
        union(taken)
    }

    /// A time in which a kernel of the process ran.
    fn split(
        &self,
        process: EntityId,
        work: &Work,
        stalls: &[(Interval, EntityId)],
        window: Interval,
        gpu: EntityId,
        out: &mut Vec<Piece>,
    ) {
        let late = work.late.iter().map(|&(from, to, who)| ((from, to), Doing::Late(who)));
        let stalled = stalls.iter().map(|&(window, gpu)| (window, Doing::Fault(gpu)));
        let mut rest = Vec::new();
        for left in cut_out(window, late, out) {
            rest.extend(cut_out(left, stalled.clone(), out));
        }
        for (from, to) in rest {
            let others = self.others(gpu, process, (from, to));
            let theirs: Ns = others.iter().map(|(_, ns)| *ns).sum();
            let ours = to - theirs.min(to - from);
            let lost = self.slowed(gpu, (from, ours));
            put(out, from, ours - lost, Doing::Work);
            put(out, ours - lost, ours, Doing::Throttled(gpu));
            let mut at = ours;
            for (who, ns) in others {
                let end = at.saturating_add(ns).min(to);
                put(out, at, end, Doing::Others(who));
                at = end;
            }
        }
    }

    /// Of a kernel's time, how much went to which other processes.
    fn others(&self, gpu: EntityId, process: EntityId, window: Interval) -> Vec<(EntityId, Ns)> {
        let Some(gpu) = self.gpus.get(&gpu) else { return Vec::new() };
        if let Some(owners) = gpu.owners(process, window) {
            return owners;
        }
        gpu.most_of_others(process, window).into_iter().collect()
    }

    /// Of a kernel's time, what a lowered clock cost.
    fn slowed(&self, gpu: EntityId, (from, to): Interval) -> Ns {
        let Some(gpu) = self.gpus.get(&gpu).filter(|g| g.best > 0.0) else { return Ns::ZERO };
        let mid = Ns(from.0 + (to - from).0 / 2);
        let after = gpu.clock.partition_point(|c| c.0 < mid);
        let both = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let nearest = both.filter_map(|i| gpu.clock.get(i)).min_by_key(|c| (c.0 - mid).0.abs());
        let Some(&(at, clock)) = nearest else { return Ns::ZERO };
        if (at - mid).0.abs() > CLOCK_WITHIN.0.max((to - from).0) {
            return Ns::ZERO;
        }
        let lost = 1.0 - (clock / gpu.best).clamp(0.0, 1.0);
        Ns(((to - from).0 as f64 * lost) as i64)
    }

    /// Which processes used the GPU while work of `process` was queued, and when: by the log of context switches, by their
    /// kernels, or else for the share of the time that the driver reports, put at its end.
    fn ahead(&self, gpu: EntityId, process: EntityId, window: Interval) -> Vec<(Ns, Ns, EntityId)> {
        let Some(gpu) = self.gpus.get(&gpu) else { return Vec::new() };
        let turns: Vec<_> = gpu.turns(window).collect();
        if !turns.is_empty() {
            return turns.into_iter().filter(|turn| turn.2 != process).collect();
        }
        let mut out = Vec::new();
        let mut at = window.0;
        for (from, to, who) in gpu.others_kernels(process, window) {
            let (from, to) = (from.max(at), to.min(window.1));
            if from < to {
                out.push((from, to, who));
                at = to;
            }
        }
        if !out.is_empty() {
            return out;
        }
        let most = gpu.most_using(window, |who| who != process);
        let most = most.map(|(who, percent)| (who, (percent / 100.0).clamp(0.0, 1.0)));
        if let Some((who, share)) = most.filter(|(_, share)| *share >= LEAST_SHARE) {
            let ns = Ns(((window.1 - window.0).0 as f64 * share) as i64);
            out.push((window.1 - ns, window.1, who));
        }
        out
    }

    /// From an error to when the device got on: the longest time around it, of a kernel or of
    /// none.
    fn stalls(&self, work: &Work, window: Interval) -> Vec<(Interval, EntityId)> {
        let mut out = Vec::new();
        // Few devices ever have one, and kernels are many.
        for (&id, gpu) in self.gpus.iter().filter(|(_, gpu)| !gpu.faults.is_empty()) {
            if !work.kernels.iter().any(|k| k.gpu == id) {
                continue;
            }
            for &at in &gpu.faults {
                let around = (at.saturating_sub(FAULT_WITHIN), at.saturating_add(FAULT_WITHIN));
                if around.0 >= window.1 {
                    continue;
                }
                let ours: Vec<Interval> =
                    work.kernels.iter().filter(|k| k.gpu == id).map(|k| (k.from, k.to)).collect();
                let running = ours.iter().filter(|k| k.0 < around.1 && k.1 > around.0).copied();
                let before = ours.iter().filter(|k| k.0 < at).map(|k| k.1).max();
                let next = ours.iter().map(|k| k.0).find(|from| *from >= at).unwrap_or(Ns::MAX);
                let idle = before.filter(|end| *end < around.1);
                let idle = idle.map(|end| (end.max(around.0), next));
                let longest = running.chain(idle).max_by_key(|(from, to)| to.saturating_sub(*from));
                if let Some((from, to)) = longest.filter(|(from, to)| from < to) {
                    out.push(((from.max(around.0), to), id));
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Who else copied on that GPU, most.
    fn beside(&self, gpu: EntityId, process: EntityId, window: Interval) -> Option<EntityId> {
        let gpu = self.gpus.get(&gpu)?;
        let mut weight: HashMap<EntityId, Ns> = HashMap::new();
        for &(from, to, who) in gpu.copies.iter().take_while(|c| c.0 < window.1) {
            let both = Ns::overlap(from, to, window.0, window.1);
            if who != process && both > Ns::ZERO {
                *weight.entry(who).or_default() += both;
            }
        }
        weight.into_iter().max_by_key(|(who, ns)| (*ns, *who)).map(|(who, _)| who)
    }

    /// When work of `process` had been launched but had not begun, behind kernels of others on the
    /// same GPUs, in the window.
    pub fn behind(&self, process: EntityId, window: Interval) -> Vec<(Ns, Ns, EntityId)> {
        let Some(work) = self.processes.get(&process) else { return Vec::new() };
        let mut out = Vec::new();
        for gpu in self.gpus.values().filter(|g| g.seen.contains(&process)) {
            for (from, to, who) in gpu.others_kernels(process, window) {
                let both = (from.max(window.0), to.min(window.1));
                let queued = clip(&work.queued, both);
                out.extend(queued.into_iter().map(|(from, to)| (from, to, who)));
            }
        }
        out.sort_unstable();
        out
    }
}

fn put(out: &mut Vec<Piece>, from: Ns, to: Ns, doing: Doing) {
    if from < to {
        out.push(Piece { from, to, doing });
    }
}

/// Takes each of `parts`, as they begin, out of the window, and returns what is left.
fn cut_out(
    window: Interval,
    parts: impl Iterator<Item = (Interval, Doing)>,
    out: &mut Vec<Piece>,
) -> Vec<Interval> {
    let (mut left, mut at) = (Vec::new(), window.0);
    for ((from, to), doing) in parts {
        let (from, to) = (from.max(at), to.min(window.1));
        if from < to {
            left.push((at, from));
            out.push(Piece { from, to, doing });
            at = to;
        }
    }
    left.push((at, window.1));
    left.retain(|(from, to)| from < to);
    left
}

/// The time whose readings say something of a window.
fn readings_around(window: Interval) -> Interval {
    (window.0.saturating_sub(USERS_WITHIN), window.1.saturating_add(USERS_WITHIN))
}

/// Those that may lie in the window; the list is sorted by their begins.
fn near(list: &[Busy], window: Interval) -> impl Iterator<Item = &Busy> {
    let first = list.partition_point(|b| b.from < window.0.saturating_sub(LONGEST));
    list[first..].iter().take_while(move |b| b.from < window.1).filter(move |b| b.to > window.0)
}

/// Mean of the readings in a stretch of time.
fn mean(readings: &[(Ns, f64)], (from, to): Interval) -> Option<f64> {
    let first = readings.partition_point(|r| r.0 < from);
    let within: Vec<f64> =
        readings[first..].iter().take_while(|r| r.0 <= to).map(|r| r.1).collect();
    (!within.is_empty()).then(|| within.iter().sum::<f64>() / within.len() as f64)
}

#[cfg(test)]
mod tests;
