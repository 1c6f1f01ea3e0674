//! Barriers, and operations in which the lanes of a warp see each other.

use super::code::{AtomicOp, Barrier, Dst, Op, Shuffle, Src, Vote};
use super::fault::{Fail, Trouble, fail};
use super::integers::number;
use super::machine::{BarrierState, Context, Lanes, Launched, lanes};
use super::types::{B32, PRED, Ty, U32, mask};
use super::warp::{Wait, Warp};

/// What a lane of a warp-wide operation gets.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) values: Lanes,
    pub(crate) also: Lanes,
    /// Lanes that get a value that nobody has written.
    pub(crate) missing: u32,
}

impl Context<'_, '_> {
    /// Waits until the lanes of `wanted` that have not ended are here; false where they are not yet.
    /// Then all of them are active. `anywhere`: they may wait at another instruction.
    fn converge(&mut self, wanted: u32, anywhere: bool) -> Option<Vec<u32>> {
        let need = wanted & self.warp.live;
        let here = self.warp.paths[self.path];
        let mut together = vec![here.mask];
        let mut union = self.active;
        for path in &self.warp.paths {
            let place = anywhere || (path.at, path.frame) == (here.at, here.frame);
            if path.wait == Wait::Lanes(wanted) && place && path.mask != here.mask {
                union |= path.acting;
                together.push(path.mask);
            }
        }
        if need & !union != 0 {
            let (now, active) = (self.now, self.active);
            let path = &mut self.warp.paths[self.path];
            (path.wait, path.since, path.acting) = (Wait::Lanes(wanted), now, active);
            return None;
        }
        for path in &mut self.warp.paths {
            if together.contains(&path.mask) && matches!(path.wait, Wait::Lanes(_)) {
                path.wait = Wait::Nothing;
            }
        }
        self.active = union;
        Some(together)
    }

    /// Each of the paths that were together goes on behind its instruction.
    fn advance(&mut self, together: &[u32]) {
        for &mask in together {
            let found = self.warp.paths.iter().position(|p| p.mask == mask);
            if let Some(at) = found {
                let next = self.warp.paths[at].at + 1;
                self.warp.go(at, next);
            }
        }
    }

    /// The lanes of a `.sync` operation: those that its mask names, among whom all that execute it
    /// must be; `None` where it has to wait for others.
    fn together(&mut self, wanted: Option<Src>, anywhere: bool) -> Result<Option<Vec<u32>>, Fail> {
        let Some(wanted) = wanted else {
            return Ok(Some(vec![self.warp.paths[self.path].mask]));
        };
        let masks = self.gather(wanted)?;
        let first = self.active.trailing_zeros() as usize;
        let wanted = masks[first & 31] as u32;
        if lanes(self.active).any(|lane| masks[lane] as u32 != wanted) {
            // Each of the masks has lanes of its own.
            let group = lanes(self.active).filter(|&lane| masks[lane] as u32 == wanted);
            let group = group.fold(0, |group, lane| group | 1 << lane);
            let here = self.warp.paths[self.path];
            let groups = [(here.at, group), (here.at, here.mask & !group)];
            self.warp.part(self.path, &groups, here.at + 1, u32::MAX);
            return Ok(None);
        }
        if self.active & !wanted != 0 {
            let outside = self.active & !wanted;
            let why = "a lane executes an operation of the warp whose mask does not name it";
            return Err(fail(outside, Trouble::Undefined(why)));
        }
        Ok(self.converge(wanted, anywhere))
    }

    pub(crate) fn warp_barrier(&mut self, wanted: Src) -> Result<(), Fail> {
        if let Some(together) = self.together(Some(wanted), true)? {
            self.advance(&together);
        }
        Ok(())
    }

    /// An operation of the warp: `f` gives each lane its values from those of all.
    pub(crate) fn exchange(
        &mut self,
        wanted: Option<Src>,
        outputs: (Dst, Ty, Dst, Ty),
        f: impl FnOnce(&Self) -> Result<Gathered, Fail>,
    ) -> Result<(), Fail> {
        let Some(together) = self.together(wanted, false)? else { return Ok(()) };
        let Gathered { values, also, missing } = f(self)?;
        self.write_some(outputs.0, outputs.1, &values, missing)?;
        self.write(outputs.2, outputs.3, &also)?;
        self.advance(&together);
        Ok(())
    }

    pub(crate) fn shuffle(&mut self, op: &Op) -> Result<(), Fail> {
        let Op::Shuffle { mode, dst, also, src, lane, clamp, mask } = *op else { return Ok(()) };
        self.exchange(mask, (dst, B32, also, PRED), |cx| {
            let (by, clamp) = (cx.gather(lane)?, cx.gather(clamp)?);
            let (values, unwritten) = cx.gather_any(src)?;
            let mut found = Gathered::default();
            for lane in lanes(cx.active) {
                let (from, inside) = source_lane(mode, lane as u32, by[lane] as u32, clamp[lane]);
                found.also[lane] = u64::from(inside);
                if cx.active >> from & 1 == 0 {
                    // What an inactive lane would give is not defined.
                    let why = "a lane asks for the value of a lane that takes no part";
                    if inside && cx.launched.check_undefined && cx.warp.live >> from & 1 == 1 {
                        return Err(fail(1 << lane, Trouble::Undefined(why)));
                    }
                    found.values[lane] = values[lane];
                    found.missing |= unwritten & 1 << lane;
                } else {
                    found.values[lane] = values[from as usize];
                    found.missing |= (unwritten >> from & 1) << lane;
                }
            }
            Ok(found)
        })
    }

    pub(crate) fn vote(
        &mut self,
        what: Vote,
        dst: Dst,
        src: Src,
        wanted: Option<Src>,
    ) -> Result<(), Fail> {
        let ty = if what == Vote::Ballot { B32 } else { PRED };
        self.exchange(wanted, (dst, ty, Dst::None, PRED), |cx| {
            let votes = cx.gather(src)?;
            let yes = lanes(cx.active).filter(|&lane| votes[lane] & 1 == 1);
            let yes = yes.fold(0_u32, |yes, lane| yes | 1 << lane);
            let value = match what {
                Vote::All => u64::from(yes == cx.active),
                Vote::Any => u64::from(yes != 0),
                Vote::Uniform => u64::from(yes == 0 || yes == cx.active),
                Vote::Ballot => u64::from(yes),
            };
            Ok(Gathered { values: [value; 32], ..Gathered::default() })
        })
    }

    pub(crate) fn matching(&mut self, op: &Op) -> Result<(), Fail> {
        let Op::Match { all, bits, dst, also, src, mask: wanted } = *op else { return Ok(()) };
        self.exchange(Some(wanted), (dst, B32, also, PRED), |cx| {
            let values = cx.gather(src)?;
            let mut found = Gathered::default();
            for lane in lanes(cx.active) {
                let same = lanes(cx.active)
                    .filter(|&other| mask(values[other], bits) == mask(values[lane], bits))
                    .fold(0_u32, |same, other| same | 1 << other);
                let every = same == cx.active;
                found.values[lane] = if all && !every { 0 } else { u64::from(same) };
                found.also[lane] = u64::from(every);
            }
            Ok(found)
        })
    }

    pub(crate) fn redux(
        &mut self,
        op: AtomicOp,
        ty: Ty,
        dst: Dst,
        src: Src,
        wanted: Src,
    ) -> Result<(), Fail> {
        self.exchange(Some(wanted), (dst, ty, Dst::None, PRED), |cx| {
            let values = cx.gather(src)?;
            let all = lanes(cx.active).map(|lane| values[lane]);
            let result = all.reduce(|a, b| match op {
                AtomicOp::Add => a.wrapping_add(b),
                AtomicOp::And => a & b,
                AtomicOp::Or => a | b,
                AtomicOp::Xor => a ^ b,
                AtomicOp::Min => {
                    if number(a, ty) <= number(b, ty) {
                        a
                    } else {
                        b
                    }
                }
                _ => {
                    if number(a, ty) >= number(b, ty) {
                        a
                    } else {
                        b
                    }
                }
            });
            Ok(Gathered { values: [result.unwrap_or(0); 32], ..Gathered::default() })
        })
    }

    pub(crate) fn elect(&mut self, dst: Dst, also: Dst, wanted: Src) -> Result<(), Fail> {
        self.exchange(Some(wanted), (dst, U32, also, PRED), |cx| {
            let leader = cx.active.trailing_zeros();
            let also = std::array::from_fn(|lane| u64::from(lane as u32 == leader));
            Ok(Gathered { values: [u64::from(leader); 32], also, missing: 0 })
        })
    }

    /// A barrier of the block.
    pub(crate) fn barrier(&mut self, op: &Op) -> Result<(), Fail> {
        let Op::Barrier { what, id, count, aligned, with, .. } = *op else { return Ok(()) };
        let here = self.warp.paths[self.path];
        if !aligned && self.active != here.mask {
            let groups = [(here.at, self.active), (here.at + 1, here.mask & !self.active)];
            self.warp.part(self.path, &groups, here.at + 1, u32::MAX);
            return Ok(());
        }
        let together = if aligned {
            if self.active != here.mask {
                let why = "a barrier of the block is executed by a part of the warp";
                return Err(fail(self.active, Trouble::Undefined(why)));
            }
            let live = self.warp.live;
            match self.converge(live, false) {
                Some(together) => together,
                None => return Ok(()),
            }
        } else {
            vec![here.mask]
        };
        let first = self.active.trailing_zeros() as usize & 31;
        let id = self.gather(id)?[first];
        let count = match count {
            Some(count) => Some(self.gather(count)?[first] as u32),
            None => None,
        };
        if id > 15 {
            return Err(fail(self.active, Trouble::Undefined("a barrier above 15")));
        }
        if count.is_some_and(|count| count == 0 || !count.is_multiple_of(32)) {
            let why = "a barrier for a number of threads that is no multiple of 32";
            return Err(fail(self.active, Trouble::Undefined(why)));
        }
        let votes = self.gather(with)?;
        let trues = lanes(self.active).filter(|&lane| votes[lane] & 1 == 1).count() as u32;
        let lanes_here = self.active.count_ones();
        let whole = self.active == self.warp.live;
        let state = &mut self.block.barriers[id as usize];
        state.used = true;
        state.count = count.or(state.count);
        state.trues += trues;
        state.arrived += lanes_here;
        state.threads += if whole { 32 } else { lanes_here };
        if what == Barrier::Arrive {
            self.advance(&together);
        } else {
            for path in &mut self.warp.paths {
                if together.contains(&path.mask) {
                    (path.wait, path.since) = (Wait::Barrier(id as u32), self.now);
                }
            }
        }
        self.open_barriers()
    }

    /// Opens the barriers for which nobody is missing any more.
    pub(crate) fn open_barriers(&mut self) -> Result<(), Fail> {
        for id in 0..16 {
            let state = self.block.barriers[id];
            if !state.used {
                continue;
            }
            let live: u32 = self.block.warps.iter().map(|warp| warp.live.count_ones()).sum();
            let live = live + self.warp.live.count_ones();
            let full = match state.count {
                Some(count) => state.threads >= count,
                None => state.arrived >= live,
            };
            if !full {
                continue;
            }
            self.block.barriers[id] = BarrierState::default();
            let (launched, now) = (self.launched, self.now);
            for warp in self.block.warps.iter_mut().chain([&mut self.warp]) {
                pass(warp, id as u32, state, launched, now);
            }
        }
        Ok(())
    }
}

/// Lets the paths of `warp` go on that wait at barrier `id`.
fn pass(warp: &mut Warp, id: u32, state: BarrierState, launched: &Launched, now: u64) {
    while let Some(at) = warp.paths.iter().position(|path| path.wait == Wait::Barrier(id)) {
        let path = warp.paths[at];
        let result = warp.frame(path.frame).and_then(|frame| {
            match launched.function(frame.function).code.get(path.at as usize)?.op {
                Op::Barrier { what, dst: Dst::Reg(slot, bits), .. } => Some((what, slot, bits)),
                _ => None,
            }
        });
        if let (Some((what, slot, bits)), Some(frame)) = (result, warp.frame_mut(path.frame)) {
            let value = match what {
                Barrier::Popc => u64::from(state.trues),
                Barrier::And => u64::from(state.trues == state.arrived),
                _ => u64::from(state.trues > 0),
            };
            frame.written[slot as usize] |= path.mask;
            for lane in lanes(path.mask) {
                frame.registers[slot as usize][lane] = mask(value, bits);
            }
        }
        warp.paths[at].wait = Wait::Nothing;
        warp.facts.counts.barrier_wait += now - path.since;
        warp.ready = warp.ready.max(now + 1);
        warp.go(at, path.at + 1);
    }
}

/// The lane whose value `lane` gets, and whether it is within the segment.
///
/// From the reference's pseudo-code of `shfl`: bits 8–12 of the clamp say which bits of a lane's
/// number are its segment, bits 0–4 the last or first lane of it.
fn source_lane(mode: Shuffle, lane: u32, by: u32, clamp: u64) -> (u32, bool) {
    let (by, bound, segment) = (by & 31, clamp as u32 & 31, (clamp >> 8) as u32 & 31);
    let max = lane & segment | bound & !segment;
    let min = lane & segment;
    let (from, inside) = match mode {
        Shuffle::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= max as i32),
        Shuffle::Down => (lane + by, lane + by <= max),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= max),
        Shuffle::Index => {
            let from = min | by & !segment;
            (from, from <= max)
        }
    };
    if inside { (from & 31, true) } else { (lane, false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Widths as CUDA hands them over: the clamp is `(32 - width) << 8`, with 31 in its lower bits
    /// but for `up`.
    #[test]
    fn lanes_get_values_from_within_their_segment() {
        assert_eq!(source_lane(Shuffle::Down, 3, 2, 0x1f), (5, true));
        assert_eq!(source_lane(Shuffle::Down, 31, 1, 0x1f), (31, false));
        assert_eq!(source_lane(Shuffle::Up, 0, 1, 0), (0, false));
        assert_eq!(source_lane(Shuffle::Up, 9, 4, 0), (5, true));
        let eight = (32 - 8) << 8;
        assert_eq!(source_lane(Shuffle::Down, 7, 1, eight | 0x1f), (7, false));
        assert_eq!(source_lane(Shuffle::Down, 9, 3, eight | 0x1f), (12, true));
        assert_eq!(source_lane(Shuffle::Up, 8, 1, eight), (8, false));
        assert_eq!(source_lane(Shuffle::Butterfly, 9, 4, eight | 0x1f), (13, true));
        assert_eq!(source_lane(Shuffle::Index, 9, 2, eight | 0x1f), (10, true));
        assert_eq!(source_lane(Shuffle::Index, 20, 0, 0x1f), (0, true));
    }
}
