//! How late launches began: the calls of the host beside what the device tells of each launch by its number.
//!
//! A launch's number grows in the order of the launches of its context (PTX ISA, `%gridid`), also where the launches begin
//! in another order, on several streams. So the launches of a kernel, by their numbers, are its calls in their order. As
//! long as some have not begun, that is clear only where all that wait are of one stream, which begins them in order; else
//! they are matched when all of them have begun. So nothing is guessed.
//!
//! *What fools it.* Launches of graphs have no call of their own: of kernels that were captured, none is told. A call that
//! two threads make at the same moment may have the other one's time. Where launches were lost (so many that they were
//! overwritten before they were read), calls are matched again after a moment in which nothing was launched.

use std::collections::{BTreeMap, HashMap, VecDeque};

use gpuwhy_wire::images::{Late, Launches, State};

use crate::calls::{Call, Kind};
use crate::tail::Tails;

/// Shorter times in which nothing ran are not told, ns.
const LEAST_NS: u64 = 1_000_000;
/// The most calls of a kernel, and the most of its launches, that wait for each other.
const WAITING: usize = 1 << 14;

/// A launch was under way and nothing of the program ran, by our clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
    /// The site where the launch's kernel begins.
    pub site: u64,
}

/// A launch as the device tells it.
#[derive(Clone, Copy, Debug)]
struct Begun {
    site: u64,
    /// By the device's clock, ns.
    begin: u64,
    /// Since when nothing had run, by the same clock; `None` where something did, or before that is known.
    idle: Option<u64>,
    /// Whether that is known.
    placed: bool,
}

#[derive(Debug, Default)]
struct Kernel {
    /// Calls and their streams.
    calls: VecDeque<(u64, u64)>,
    begun: BTreeMap<u64, Begun>,
    /// It is part of a graph.
    captured: bool,
    late: Late,
    changed: bool,
}

/// The launches of an image's kernels in one context.
#[derive(Debug)]
pub struct Lateness {
    launches: Launches,
    kernels: Vec<Kernel>,
    by_site: HashMap<u64, usize>,
    /// The number that each slot had when it was last read.
    seen: Vec<u64>,
    newest: u64,
    /// The last begin whose idle time is known.
    last: u64,
    /// Some were lost, and nothing is matched until nothing is launched.
    lost: bool,
    /// Lost on the device and on the host: how often.
    losses: [u64; 2],
    called: bool,
}

/// By how much the clock of the device is off: what is to be added for ours, ns, and how wrong that may be, ns.
#[derive(Clone, Copy, Debug)]
pub struct Offset {
    pub add: u64,
    pub wrong: u64,
}

impl Lateness {
    /// `kernels` are hashes of names and the sites where they begin.
    pub fn new(launches: Launches, kernels: &[(u64, u64)]) -> Lateness {
        // Several programs may begin at one kernel: that is one kernel.
        let first = |name| kernels.iter().position(|(other, _)| *other == name);
        Lateness {
            launches,
            kernels: kernels.iter().map(|_| Kernel::default()).collect(),
            by_site: kernels
                .iter()
                .filter_map(|(name, site)| Some((*site, first(*name)?)))
                .collect(),
            seen: vec![0; launches.slots as usize],
            newest: 0,
            last: 0,
            lost: false,
            losses: [0; 2],
            called: false,
        }
    }

    /// A kernel was launched.
    pub fn call(&mut self, kernel: usize, call: Call) {
        self.called = true;
        let Some(kernel) = self.kernels.get_mut(kernel) else { return };
        match call.kind {
            Kind::Captured => kernel.captured = true,
            Kind::Launch if self.lost => kernel.unknown(1),
            Kind::Launch if kernel.calls.len() >= WAITING => {
                kernel.unknown(1);
                self.losses[1] += 1;
                self.lose();
            }
            Kind::Launch => kernel.calls.push_back((call.at, call.stream)),
            Kind::Refused => {
                let is = |(at, stream): &(u64, u64)| (*at, *stream) == (call.at, call.stream);
                if let Some(place) = kernel.calls.iter().rposition(is) {
                    kernel.calls.remove(place);
                }
            }
        }
    }

    /// Calls were lost.
    pub fn calls_lost(&mut self) {
        self.losses[1] += 1;
        self.lose();
    }

    fn lose(&mut self) {
        self.lost = true;
        for kernel in &mut self.kernels {
            kernel.forget();
        }
    }

    /// Reads what the device has written; `slot` is what a word of a slot holds. `whole`: every call that was made
    /// before it was read was told ([`Lateness::call`]). The gaps that are known now.
    pub fn read(
        &mut self,
        whole: bool,
        tails: Option<&Tails>,
        offset: Offset,
        slot: impl Fn(u32, u32) -> u64,
    ) -> Vec<Gap> {
        let before = self.newest;
        let mut anything = core::mem::take(&mut self.called);
        for at in 0..self.launches.slots {
            let number = slot(at, 0);
            if number == 0 || number == self.seen[at as usize] {
                continue;
            }
            anything = true;
            self.seen[at as usize] = number;
            self.newest = self.newest.max(number);
            let (site, begin) = (slot(at, 1), slot(at, 2));
            let Some(kernel) = self.by_site.get(&site).map(|n| &mut self.kernels[*n]) else {
                continue;
            };
            if self.lost || kernel.captured || kernel.begun.len() >= WAITING {
                kernel.unknown(1);
            } else {
                let placed = tails.is_none();
                kernel.begun.insert(number, Begun { site, begin, idle: None, placed });
            }
        }
        if before > 0 && self.newest - before > self.launches.slots.into() && !self.lost {
            self.losses[0] += 1;
            self.lose();
        }
        if self.lost && !anything {
            self.lost = false;
        }
        if let Some(tails) = tails {
            self.place(tails);
        }
        let mut gaps = Vec::new();
        // A call that is missing may be that of any launch.
        if whole {
            self.kernels.iter_mut().for_each(|kernel| kernel.matched(offset, &mut gaps));
        }
        gaps.sort_unstable_by_key(|gap| gap.from);
        gaps
    }

    /// For launches that began before the last bin that was read: since when nothing had run.
    fn place(&mut self, tails: &Tails) {
        let known = tails.known_until();
        let new = |begun: &&mut Begun| !begun.placed && begun.begin < known;
        let mut all: Vec<&mut Begun> =
            self.kernels.iter_mut().flat_map(|k| k.begun.values_mut()).filter(new).collect();
        all.sort_unstable_by_key(|begun| begun.begin);
        for begun in all {
            // Launches that are shorter than a bin are seen by their begins alone.
            begun.idle = tails.idle_before(begun.begin).map(|since| since.max(self.last));
            begun.placed = true;
            self.last = self.last.max(begun.begin);
        }
    }

    /// Nothing more comes: what waits is not known. Of the last launches it is not asked what ran before.
    pub fn finish(&mut self, offset: Offset) {
        for kernel in &mut self.kernels {
            kernel.begun.values_mut().for_each(|begun| begun.placed = true);
            kernel.matched(offset, &mut Vec::new());
            kernel.forget();
        }
    }

    /// Shows what was counted; maps have so many bytes.
    pub fn tell(&mut self, state: &State, maps: u64) {
        for (number, kernel) in self.kernels.iter_mut().enumerate() {
            if core::mem::take(&mut kernel.changed) {
                state.tell_late(maps, number, &kernel.late);
            }
        }
        state.tell_lost_launches(maps, self.losses);
    }
}

impl Kernel {
    fn unknown(&mut self, launches: usize) {
        self.late.unknown += launches as u64;
        self.changed |= launches > 0;
    }

    /// Calls without a launch, or launches without a call: the same ones, as far as they go.
    fn forget(&mut self) {
        self.unknown(self.calls.len().max(self.begun.len()));
        self.calls.clear();
        self.begun.clear();
    }

    /// Calls and launches that belong together.
    fn matched(&mut self, offset: Offset, gaps: &mut Vec<Gap>) {
        if self.captured {
            self.forget();
            return;
        }
        let mut streams = self.calls.iter().map(|(_, stream)| stream);
        let first = streams.next();
        let in_order = first.is_some_and(|first| streams.all(|stream| stream == first));
        if !in_order && self.calls.len() != self.begun.len() {
            return;
        }
        while let (Some((called, _)), Some(entry)) = (self.calls.front(), self.begun.first_entry())
        {
            let (called, number, begun) = (*called, *entry.key(), *entry.get());
            if !begun.placed {
                break;
            }
            entry.remove();
            let begin = begun.begin.wrapping_add(offset.add);
            if begin.saturating_add(offset.wrong) < called {
                // It began before the call: it has none that we know.
                self.unknown(1);
                continue;
            }
            self.calls.pop_front();
            self.late.count(number - 1, begin.saturating_sub(called));
            self.changed = true;
            let idle = begun.idle.map(|since| since.wrapping_add(offset.add).max(called));
            if let Some(from) = idle.filter(|from| begin.saturating_sub(*from) >= LEAST_NS) {
                gaps.push(Gap { from, to: begin, site: begun.site });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_wire::images::Running;

    use super::*;

    const SLOTS: u32 = 64;
    const BIN: u64 = 1 << 16;
    const MS: u64 = 1_000_000;
    /// The device's clock is so much ahead of ours.
    const AHEAD: u64 = 1 << 40;

    /// A program that launches kernels (numbers) on streams, and what its device tells.
    struct Scene {
        late: Lateness,
        slots: [[u64; 3]; SLOTS as usize],
        bins: Vec<u64>,
        tails: Tails,
        number: u64,
        gaps: Vec<(u64, u64, u64)>,
    }

    impl Scene {
        fn new() -> Scene {
            let launches = Launches { at: 0, slots: SLOTS };
            let running = Running { at: 0, bins: 8192, shift: 16, ends: 0 };
            Scene {
                late: Lateness::new(launches, &[(11, 1), (22, 5), (11, 0)]),
                slots: [[0; 3]; SLOTS as usize],
                bins: vec![0; 8192],
                tails: Tails::new(running, AHEAD),
                number: 100,
                gaps: Vec::new(),
            }
        }

        /// A call at so many ns, and the launch's number.
        fn call(&mut self, kernel: usize, stream: u64, at: u64) -> u64 {
            let call = Call { context: 1, function: 2, stream, at, kind: Kind::Launch };
            self.late.call(kernel, call);
            self.number += 1;
            self.number
        }

        /// A launch runs from one time to another, ns of our clock.
        fn run(&mut self, number: u64, site: u64, from: u64, to: u64) {
            let slot = (number % u64::from(SLOTS)) as usize;
            self.slots[slot] = [number + 1, site, from + AHEAD];
            let bin = |at: u64| ((at + AHEAD) / BIN % 8192) as usize;
            self.bins[bin(from)] = self.bins[bin(from)].wrapping_add(1);
            self.bins[bin(to)] = self.bins[bin(to)].wrapping_sub(1);
        }

        fn read(&mut self, until: u64) {
            self.read_with(until, true);
        }

        fn read_with(&mut self, until: u64, whole: bool) {
            self.tails.read(until + AHEAD, |bin| self.bins[bin as usize], |_| 0);
            let offset = Offset { add: AHEAD.wrapping_neg(), wrong: 1000 };
            let slots = self.slots;
            let slot = |slot: u32, word: u32| slots[slot as usize][word as usize];
            let gaps = self.late.read(whole, Some(&self.tails), offset, slot);
            self.gaps.extend(gaps.iter().map(|gap| (gap.from / MS, gap.to / MS, gap.site)));
        }

        /// Known, unknown, longest and its number.
        fn late(&self, kernel: usize) -> [u64; 4] {
            let late = &self.late.kernels[kernel].late;
            [late.known, late.unknown, late.longest, late.longest_number]
        }
    }

    /// One time of launch, which the next launch overwrites, would give each of them 10 us.
    #[test]
    fn launches_that_queue_are_late_by_what_runs_before_them_and_leave_no_gap() {
        let mut scene = Scene::new();
        let numbers: Vec<u64> = (0..20).map(|n| scene.call(0, 1, 10_000 * n)).collect();
        for (n, number) in (0..).zip(numbers) {
            scene.run(number, 0, 200_000 + 2 * MS * n, 200_000 + 2 * MS * (n + 1) - 1000);
            if n == 7 {
                scene.read(15 * MS);
                assert_eq!(scene.late(0)[0], 8);
            }
        }
        scene.read(60 * MS);
        assert_eq!(scene.late(0), [20, 0, 200_000 + 19 * (2 * MS - 10_000), 120]);
        assert_eq!((scene.gaps, scene.late.losses), (vec![], [0, 0]));
    }

    /// The second kernel's launch overtakes the first one's, which waits on another stream; so do launches of one kernel.
    #[test]
    fn launches_that_begin_in_another_order_keep_their_calls() {
        let mut scene = Scene::new();
        let waits = scene.call(0, 1, 0);
        let other = scene.call(1, 2, 100);
        let passes = scene.call(0, 2, 1000);
        scene.run(other, 5, 300, 400);
        scene.run(passes, 0, 5000, 6000);
        scene.read(10 * MS);
        assert_eq!((scene.late(0)[0], scene.late(1)), (0, [1, 0, 200, other]));
        scene.run(waits, 0, 11 * MS, 12 * MS);
        scene.read(20 * MS);
        assert_eq!(scene.late(0), [2, 0, 11 * MS, waits]);
        assert_eq!(scene.late.kernels[0].late.total, 11 * MS + 4000);
    }

    #[test]
    fn a_device_without_work_while_a_launch_is_under_way_is_a_gap() {
        let mut scene = Scene::new();
        let first = scene.call(0, 1, MS);
        scene.run(first, 0, MS + 20_000, 3 * MS);
        // Called while the first one runs; 7 ms of its 9 nothing runs.
        let second = scene.call(0, 1, 2 * MS);
        scene.run(second, 0, 11 * MS, 12 * MS);
        // The program has not called for 20 ms.
        let third = scene.call(0, 1, 32 * MS);
        scene.run(third, 0, 32 * MS + 900_000, 33 * MS);
        scene.read(60 * MS);
        assert_eq!((scene.late(0)[0], scene.gaps), (3, vec![(3, 11, 0)]));
    }

    /// Kernels that are shorter than a bin leave nothing in it.
    #[test]
    fn short_launches_one_after_the_other_are_no_gap() {
        let mut scene = Scene::new();
        let numbers: Vec<u64> = (0..50).map(|_| scene.call(1, 1, 0)).collect();
        for (n, number) in (0..).zip(numbers) {
            scene.run(number, 5, 100_000 * (n + 1), 100_000 * (n + 1) + 500);
        }
        scene.read(20 * MS);
        assert_eq!((scene.late(1), scene.gaps), ([50, 0, 5 * MS, 150], vec![]));
    }

    #[test]
    fn calls_that_are_not_all_told_yet_are_not_matched_and_refused_ones_never() {
        let mut scene = Scene::new();
        let number = scene.call(0, 1, 5000);
        scene.run(number, 0, 6000, 7000);
        scene.read_with(MS, false);
        assert_eq!(scene.late(0)[0], 0);
        let refused = Call { context: 1, function: 2, stream: 1, at: 8000, kind: Kind::Refused };
        scene.call(0, 1, 8000);
        scene.late.call(0, refused);
        let number = scene.call(0, 1, 9000);
        scene.run(number, 0, 9100, 9200);
        scene.read(2 * MS);
        assert_eq!(scene.late(0), [2, 0, 1000, 101]);
    }

    #[test]
    fn of_graphs_of_what_began_before_its_call_and_of_what_never_began_nothing_is_said() {
        let mut scene = Scene::new();
        scene
            .late
            .call(1, Call { context: 1, function: 2, stream: 1, at: 5, kind: Kind::Captured });
        scene.run(300, 5, 1000, 2000);
        scene.run(301, 5, 3000, 4000);
        // Somebody else's launch of the first kernel, of which nobody told.
        scene.run(302, 0, 5000, 6000);
        scene.call(0, 1, 50_000);
        scene.run(303, 0, 60_000, 61_000);
        scene.call(0, 1, 70_000);
        scene.read(MS);
        assert_eq!((scene.late(0), scene.late(1)), ([1, 1, 10_000, 303], [0, 2, 0, 0]));
        scene.late.finish(Offset { add: 0, wrong: 0 });
        assert_eq!(scene.late(0)[1], 2);
    }

    #[test]
    fn where_launches_were_overwritten_nothing_is_told_until_a_quiet_moment() {
        let mut scene = Scene::new();
        let number = scene.call(0, 1, 100);
        scene.run(number, 0, 200, 300);
        scene.read(MS);
        for n in 0..100 {
            let number = scene.call(0, 1, MS + 1000 * n);
            scene.run(number, 0, MS + 1000 * n + 500, MS + 1000 * n + 600);
        }
        scene.read(2 * MS);
        assert_eq!((scene.late(0)[..2].to_vec(), scene.late.losses), (vec![1, 100], [1, 0]));
        scene.read(3 * MS);
        let number = scene.call(0, 1, 4 * MS);
        scene.run(number, 0, 4 * MS + 700, 4 * MS + 800);
        scene.read(5 * MS);
        assert_eq!(scene.late(0), [2, 100, 700, 202]);
        scene.late.calls_lost();
        assert_eq!(scene.late.losses, [1, 1]);
    }
}
