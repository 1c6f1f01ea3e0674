//! When kernels and copies run: how processes share a GPU.
//!
//! Work is scheduled when it is launched and does not move afterwards, so the end of a launch is
//! known at once and no thread has to run for it.
//!
//! - A kernel of `n` ns takes `n` ns at the nominal clock, and longer by nominal ÷ present clock if
//!   the clock is low when it is launched.
//! - Kernels of one process run one after the other. A kernel starts when it was launched, or when
//!   what its stream waits for has ended, or when the process's last kernel has ended.
//! - While other processes have work queued, time is cut into slices of [`SLICE_NS`] which the
//!   processes take in turn, as on a GPU without MPS: a short kernel waits for the next slice of
//!   its process, a long one is stretched over several.
//! - Work is scheduled as if the other processes launched nothing more. If another process then
//!   takes part of that time, the next kernel of the first one is longer by as much, so the sum of
//!   what runs never exceeds the time that has passed.
//! - Copies of each direction run one after the other at the present bandwidth and share nothing
//!   with kernels.
//!
//! What it does not model: kernels of one process side by side, memory bandwidth, and a clock that
//! changes within a kernel.

use std::sync::atomic::Ordering::Relaxed;

use super::layout::{Gpu, PROCESSES, ProcessCell, TURNS};
use super::quantity::Quantity;
use super::windows::{PROCESS_UTILISATION_NS, UTILISATION_NS, add_busy};
use crate::sys;

/// Length of the slices in which processes take turns, ns.
pub const SLICE_NS: u64 = 2_000_000;

/// Longer work is cut to this, so that scheduling a launch never walks through too many slices.
pub(super) const LONGEST_NS: u64 = 60_000_000_000;

/// When something runs on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When it starts.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// A stretch in which kernels of a process were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The process.
    pub pid: u32,
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// Follows whose turns there are on a GPU: they are given out ahead of their time, and a later one takes what it covers from
/// those before it.
#[derive(Debug, Default)]
pub struct Turns {
    known: u64,
    /// Those that are not taken out, by their begin; none overlaps another.
    pub ahead: Vec<Turn>,
}

impl Turns {
    /// Of a GPU, from the next turn on that it gives out.
    pub fn from_now(gpu: &Gpu) -> Turns {
        Turns { known: gpu.turns_since(u64::MAX).1, ahead: Vec::new() }
    }

    /// Takes what was given out since. What lies before the present does not change any more.
    pub fn follow(&mut self, gpu: &Gpu) {
        let (new, known) = gpu.turns_since(self.known);
        self.known = known;
        for turn in new {
            let mut left = Vec::new();
            for old in self.ahead.drain(..) {
                let parts =
                    [(old.start, old.end.min(turn.start)), (old.start.max(turn.end), old.end)];
                let parts = parts.into_iter().filter(|(start, end)| start < end);
                left.extend(parts.map(|(start, end)| Turn { start, end, ..old }));
            }
            left.push(turn);
            self.ahead = left;
        }
        self.ahead.sort_by_key(|turn| turn.start);
    }
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host; the GPU receives.
    ToDevice,
    /// To the host; the GPU sends.
    ToHost,
    /// Within the device, without PCIe.
    Within,
}

impl Gpu {
    /// Schedules a kernel of `work` ns at the nominal clock, launched `now` by a process on a
    /// stream whose earlier work ends at `after`.
    pub fn launch(&self, now: u64, after: u64, pid: u32, work: u64) -> Run {
        let _guard = self.lock();
        let clock = self.get(Quantity::SmClock).max(1) as u128;
        let nominal = self.get(Quantity::SmClockMax).max(1) as u128;
        let work = (work.min(LONGEST_NS) as u128 * nominal / clock).min(LONGEST_NS as u128) as u64;
        let me = self.cell(pid, now);
        let mine = &self.processes[me];
        let mut left = work + mine.owed.swap(0, Relaxed).min(LONGEST_NS);
        let mut at = now.max(after).max(mine.until.load(Relaxed));
        let mut start = None;
        let mut whole_from = at;
        loop {
            let others: Vec<usize> = (0..PROCESSES)
                .filter(|i| *i != me && self.processes[*i].until.load(Relaxed) > at)
                .collect();
            let slice_ends = (at / SLICE_NS + 1) * SLICE_NS;
            let next = match others.iter().map(|i| self.processes[*i].until.load(Relaxed)).min() {
                None => u64::MAX,
                Some(changes) => changes.min(slice_ends),
            };
            let rank = others.iter().filter(|i| **i < me).count();
            let turn = (at / SLICE_NS) as usize % (others.len() + 1);
            if turn == rank {
                if start.is_none() {
                    start = Some(at);
                }
                let piece = left.min(next - at);
                self.count_busy(mine, at, at + piece);
                self.give_turn(Turn { pid, start: at, end: at + piece });
                for other in others {
                    self.take_from(&self.processes[other], at, at + piece);
                }
                left -= piece;
                at += piece;
                if left == 0 {
                    break;
                }
            } else {
                whole_from = next;
                at = next;
            }
        }
        if whole_from != mine.until.load(Relaxed) {
            mine.whole_from.store(whole_from, Relaxed);
        }
        mine.until.store(at, Relaxed);
        Run { start: start.unwrap_or(at), end: at }
    }

    /// Schedules a copy, by the same arguments as [`Gpu::launch`], and counts its bytes.
    pub fn copy(&self, now: u64, after: u64, pid: u32, bytes: u64, to: Direction) -> Run {
        let _guard = self.lock();
        self.cell(pid, now);
        let per_second = match to {
            // About what HBM3 reaches in a copy, which reads and writes.
            Direction::Within => 1_300_000_000_000,
            _ => self.bandwidth(),
        };
        let takes = (u128::from(bytes) * 1_000_000_000 / u128::from(per_second)) as u64;
        // A copy of no bytes still takes about a microsecond.
        let takes = takes.clamp(1_000, LONGEST_NS);
        let engine = match to {
            Direction::ToDevice => {
                self.add(Quantity::PcieRx, bytes);
                Some(&self.copies_until[0])
            }
            Direction::ToHost => {
                self.add(Quantity::PcieTx, bytes);
                Some(&self.copies_until[1])
            }
            Direction::Within => None,
        };
        if engine.is_some() && self.get(Quantity::PcieReplaying) != 0 {
            self.add(Quantity::PcieReplays, bytes.div_ceil(1_000_000));
            self.add(Quantity::PcieCorrectable, bytes.div_ceil(1_000_000));
        }
        let start = now.max(after).max(engine.map_or(0, |e| e.load(Relaxed)));
        if let Some(engine) = engine {
            engine.store(start + takes, Relaxed);
        }
        Run { start, end: start + takes }
    }

    /// Turns that were given out since there were `known`, in that order, and how many there are now. A turn takes what it
    /// covers from those before it. Of many, the last ones are kept.
    pub fn turns_since(&self, known: u64) -> (Vec<Turn>, u64) {
        let _guard = self.lock();
        let count = self.turn_count.load(Relaxed);
        let first = known.max(count.saturating_sub(TURNS as u64));
        let turn = |number: u64| {
            let cell = &self.turns[number as usize % TURNS];
            let (pid, start) = (cell.pid.load(Relaxed) as u32, cell.start.load(Relaxed));
            Turn { pid, start, end: cell.end.load(Relaxed) }
        };
        ((first..count).map(turn).collect(), count)
    }

    /// The caller holds the lock.
    fn give_turn(&self, turn: Turn) {
        let cell = &self.turns[self.turn_count.fetch_add(1, Relaxed) as usize % TURNS];
        cell.pid.store(turn.pid.into(), Relaxed);
        cell.start.store(turn.start, Relaxed);
        cell.end.store(turn.end, Relaxed);
    }

    /// Allocates device memory for a process; false if there is not enough.
    pub fn allocate(&self, pid: u32, bytes: u64, now: u64) -> bool {
        let _guard = self.lock();
        let free = self.get(Quantity::MemoryTotal).saturating_sub(self.memory_used());
        let fits = bytes <= free;
        if fits {
            self.processes[self.cell(pid, now)].memory.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// Frees device memory of a process.
    pub fn release(&self, pid: u32, bytes: u64) {
        let _guard = self.lock();
        if let Some(cell) = self.processes.iter().find(|c| c.pid.load(Relaxed) == u64::from(pid)) {
            let left = cell.memory.load(Relaxed).saturating_sub(bytes);
            cell.memory.store(left, Relaxed);
        }
    }

    /// Removes a process from the GPU.
    pub fn leave(&self, pid: u32) {
        let _guard = self.lock();
        for cell in self.processes.iter().filter(|c| c.pid.load(Relaxed) == u64::from(pid)) {
            cell.clear(0);
        }
    }

    /// The cell of a process; the caller holds the lock. If live processes have all cells, the last
    /// cell is shared: its processes run one after the other and their numbers are summed.
    fn cell(&self, pid: u32, now: u64) -> usize {
        let pid = u64::from(pid);
        let found = self.processes.iter().position(|c| c.pid.load(Relaxed) == pid);
        let index = found.or_else(|| {
            let free = self.processes.iter().position(|c| {
                let taken = c.pid.load(Relaxed);
                taken == 0 || !sys::is_alive(taken as i32)
            })?;
            self.processes[free].clear(pid);
            Some(free)
        });
        let index = index.unwrap_or(PROCESSES - 1);
        self.processes[index].seen.store(now, Relaxed);
        index
    }

    /// Takes `[start, end)` from the time that a process was scheduled for as if it were alone, and
    /// adds what was taken to its next kernel.
    fn take_from(&self, process: &ProcessCell, start: u64, end: u64) {
        let from = process.whole_from.load(Relaxed).max(start);
        let to = process.until.load(Relaxed).min(end);
        let taken = to.saturating_sub(from);
        process.owed.fetch_add(taken, Relaxed);
        for busy in [&self.busy, &process.busy] {
            busy.fetch_sub(taken, Relaxed);
        }
    }

    /// Counts `[start, end)` as busy time of a process and of the GPU.
    fn count_busy(&self, process: &ProcessCell, start: u64, end: u64) {
        self.busy.fetch_add(end - start, Relaxed);
        process.busy.fetch_add(end - start, Relaxed);
        add_busy(&self.windows, UTILISATION_NS, start, end);
        add_busy(&process.windows, PROCESS_UTILISATION_NS, start, end);
    }
}
