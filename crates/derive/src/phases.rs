//! Phases of a program: set-up, the stretches of its work, what lies between them, its end.
//!
//! # What it sees
//! When which calls and kernels of a program come, by their names, and the outermost ranges that it marks
//! (NVTX). If it marks a few ranges that hold most of its time, these are its phases. Else a name that comes
//! again and again is *active* from its first to its last time, unless it pauses for long; where the set of
//! active names changes, a phase ends. What lies before, between and behind such phases is set-up, `between`
//! and `end`.
//!
//! # Why it matters
//! A program allocates, copies its input and waits for its ranks before it computes, and again between two
//! solvers. Compared with rounds of the work, that looks like a fault.
//!
//! # What fools it
//! A program whose work always uses other kernels. A pause in the middle of the work is part of the work, since
//! the same names are active on both sides. Phases are told to 1/4096 of the recording.

use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_schema::{Name, Ns};

use crate::intervals::Interval;

/// Times are told apart by this many bins of the whole recording.
const BINS: usize = 4096;
/// Names that are followed; those that come later are not.
const NAMES: usize = 512;
/// A name that comes less often is a single event.
const OFTEN: u32 = 8;
/// A name pauses if it is away for this many times as long as it usually is, and for at least
/// [`SHORT`] of the recording.
const PAUSE: usize = 8;
/// A phase of less than this many bins is none: 1 % of the recording.
const SHORT: usize = BINS / 100;
/// A stretch of less than this many bins that does what its neighbour does, or a part of that, is no phase of its
/// own: a program does not end all that it does at once.
const FRINGE: usize = BINS / 20;
/// What share of the names of a fringe its neighbour has.
const OF_NEIGHBOUR: f64 = 0.8;
/// Sets of names that have this share of all their names in common are one phase's.
const ALIKE: f64 = 0.6;
/// A program with more phases than this has none.
const MOST: usize = 24;
/// Marked ranges are phases if they hold this share of the program's time,
const HELD: f64 = 0.3;
/// and one that holds more than this says nothing: it is the program.
const WHOLE: f64 = 0.9;
/// Ranges of one name that come at least as often are iterations, whatever lies between them.
const ITERATIONS: usize = 3;

/// What a phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// Before the work.
    SetUp,
    /// The same things come again and again.
    Work,
    /// Between two stretches of work.
    Between,
    /// After the work.
    End,
}

/// A phase of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// What it is.
    pub kind: PhaseKind,
    /// What it is called: as the program calls it, or `set-up`, `work 1`, `between`, `end`.
    pub name: String,
    /// When it begins.
    pub from: Ns,
    /// When it ends.
    pub to: Ns,
    /// Phases with the same number do the same: they are iterations that the program marks by one name.
    pub series: usize,
}

/// Ranges of one name, one behind the other.
#[derive(Clone, Debug)]
struct Marked {
    /// Without a number at its end.
    name: Name,
    from: Ns,
    to: Ns,
    count: usize,
    /// The whole names of the first and the last of them.
    first: Name,
    last: Name,
}

impl Marked {
    /// What the program calls it; `None` if it gives no numbers, which leaves several without a name of their own.
    fn numbered(&self) -> Option<String> {
        let own = self.first != self.name && self.last != self.name;
        own.then(|| match self.count {
            1 => self.first.to_string(),
            _ => format!("{} to {}", self.first, self.last),
        })
    }
}

/// What an event of a program is. The work of a program is made of the last kind of these that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A call that prepares work.
    Call,
    /// A copy, or an exchange with other ranks.
    Exchange,
    /// A kernel.
    Kernel,
}

/// When a name came.
#[derive(Clone, Debug)]
struct Came {
    bins: Vec<u64>,
    count: u32,
    of: Kind,
}

impl Came {
    /// The bin behind the last in which it came.
    fn end(&self) -> usize {
        let last = self.bins.iter().rposition(|word| *word != 0);
        last.map_or(0, |word| 64 * word + 64 - self.bins[word].leading_zeros() as usize)
    }
}

/// What a program did when, as far as its phases need it. Its size does not grow with the recording.
#[derive(Clone, Debug)]
pub struct Activity {
    recording: Interval,
    came: BTreeMap<Name, Came>,
    /// From its first event to its last.
    extent: Option<Interval>,
    marked: Vec<Marked>,
    /// Too many ranges for phases.
    too_many: bool,
}

/// A stretch of work, which is a phase.
struct Worked {
    name: String,
    from: Ns,
    to: Ns,
    /// As [`Phase::series`], below [`MOST`].
    series: usize,
}

/// A stretch of bins in which the same names are active.
#[derive(Clone, Debug)]
struct Stretch {
    from: usize,
    to: usize,
    names: BTreeSet<Name>,
    works: bool,
}

impl Activity {
    /// Of a program in a recording of this extent.
    pub fn new(recording: Interval) -> Activity {
        let (came, marked) = (BTreeMap::new(), Vec::new());
        Activity { recording, came, extent: None, marked, too_many: false }
    }

    /// A call, or work of a device.
    pub fn add(&mut self, name: &Name, (from, to): Interval, of: Kind) {
        self.reach((from, to));
        let (first, last) = (self.bin(from), self.bin(to.max(from)));
        if !self.came.contains_key(name) && self.came.len() >= NAMES {
            return;
        }
        let new = || Came { bins: vec![0; BINS / 64], count: 0, of };
        let came = self.came.entry(name.clone()).or_insert_with(new);
        came.count = came.count.saturating_add(1);
        for bin in first..=last {
            came.bins[bin / 64] |= 1 << (bin % 64);
        }
    }

    /// An outermost range that the program marks. They come by their begin.
    pub fn mark(&mut self, name: &Name, (from, to): Interval) {
        // `step 17` and `ProfilerStep#17` are iterations.
        let whole = name.clone();
        let name: Name = match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "" => name.clone(),
            base if base.len() == name.len() => name.clone(),
            base => base.trim_end_matches([' ', '#', '_', ':']).into(),
        };
        self.reach((from, to));
        let room = self.marked.len() < ITERATIONS * NAMES;
        match self.marked.last_mut() {
            Some(last) if last.name == name && last.count >= ITERATIONS => {
                (last.to, last.count) = (last.to.max(to), last.count + 1);
                last.last = whole;
            }
            _ if !room => self.too_many = true,
            _ => {
                let (first, last) = (whole.clone(), whole);
                self.marked.push(Marked { name, from, to, count: 1, first, last });
            }
        }
        self.iterate();
    }

    /// Joins the last ranges if they are iterations.
    fn iterate(&mut self) {
        let n = self.marked.len();
        let Some(last) = self.marked.get(n.wrapping_sub(ITERATIONS)..) else { return };
        if last.iter().all(|m| m.name == last[0].name && m.count == 1) {
            let to = last.iter().map(|m| m.to).max().unwrap_or_default();
            let newest = last[ITERATIONS - 1].last.clone();
            let joined = Marked { to, count: ITERATIONS, last: newest, ..last[0].clone() };
            self.marked.truncate(n - ITERATIONS);
            self.marked.push(joined);
        }
    }

    fn reach(&mut self, (from, to): Interval) {
        let (a, b) = self.extent.unwrap_or((from, to));
        self.extent = Some((a.min(from), b.max(to).min(self.recording.1.max(b))));
    }

    fn bin(&self, at: Ns) -> usize {
        let (from, to) = self.recording;
        let whole = i128::from(to.0) - i128::from(from.0);
        let at = i128::from(at.0) - i128::from(from.0);
        ((at * BINS as i128) / whole.max(1)).clamp(0, BINS as i128 - 1) as usize
    }

    fn time(&self, bin: usize) -> Ns {
        let (from, to) = self.recording;
        let whole = i128::from(to.0) - i128::from(from.0);
        Ns((i128::from(from.0) + (whole * bin as i128 + BINS as i128 - 1) / BINS as i128) as i64)
    }

    /// From the program's first event to its last.
    pub fn extent(&self) -> Option<Interval> {
        self.extent
    }

    /// The program's phases, one behind the other from its first event to its last; none if it has no work.
    pub fn phases(&self) -> Vec<Phase> {
        let Some(extent) = self.extent.filter(|(from, to)| from < to) else { return Vec::new() };
        let worked = self.marked_phases(extent).unwrap_or_else(|| self.changes());
        if worked.is_empty() || worked.len() > MOST {
            return Vec::new();
        }
        let least = Ns((extent.1 - extent.0).0 / 100);
        let mut out: Vec<Phase> = Vec::new();
        let mut at = extent.0;
        let last = worked.len() - 1;
        let mut series = 0;
        let mut next = || {
            series += 1;
            series - 1 + MOST
        };
        for (i, Worked { name, from, to, series }) in worked.into_iter().enumerate() {
            let (from, to) = (from.clamp(at, extent.1), to.clamp(at, extent.1));
            let (kind, before) = match i {
                0 => (PhaseKind::SetUp, "set-up"),
                _ => (PhaseKind::Between, "between"),
            };
            // A gap too short for a phase belongs to the work behind it.
            let begin = if from.saturating_sub(at) >= least { from } else { at };
            if at < begin {
                out.push(Phase { kind, name: before.into(), from: at, to: begin, series: next() });
            }
            let to = if i == last && extent.1.saturating_sub(to) < least { extent.1 } else { to };
            if begin < to {
                out.push(Phase { kind: PhaseKind::Work, name, from: begin, to, series });
                at = to;
            }
            if i == last && at < extent.1 {
                out.push(Phase {
                    kind: PhaseKind::End,
                    name: "end".into(),
                    from: at,
                    to: extent.1,
                    series: next(),
                });
            }
        }
        out
    }

    /// The ranges that the program marks, if they are few and hold most of its time.
    fn marked_phases(&self, extent: Interval) -> Option<Vec<Worked>> {
        let whole = (extent.1 - extent.0).0 as f64;
        let held: i64 = self.marked.iter().map(|m| (m.to - m.from).0).sum();
        let longest = self.marked.iter().map(|m| (m.to - m.from).0).max()?;
        let says_nothing = self.marked.len() == 1 && longest as f64 > WHOLE * whole;
        if self.too_many || self.marked.len() > MOST || (held as f64) < HELD * whole || says_nothing
        {
            return None;
        }
        let mut count: BTreeMap<&Name, (usize, usize, usize)> = BTreeMap::new();
        for (at, m) in self.marked.iter().enumerate() {
            count.entry(&m.name).or_insert((0, 0, at)).0 += 1;
        }
        let mut out = Vec::new();
        for m in &self.marked {
            let (all, number, series) = count.get_mut(&m.name)?;
            *number += 1;
            let name = match m.numbered() {
                Some(own) if *all > 1 || m.count == 1 => own,
                _ if *all > 1 => format!("{} {number}", m.name),
                _ => m.name.to_string(),
            };
            out.push(Worked { name, from: m.from, to: m.to, series: *series });
        }
        Some(out)
    }

    /// Stretches of work between changes of what the program does.
    fn changes(&self) -> Vec<Worked> {
        let mut worked = joined(self.stretches());
        worked.retain(|stretch| stretch.works && stretch.to - stretch.from >= SHORT);
        let mut worked = joined(worked);
        // A program does not end all its work at once, and the last of it may come but a few times.
        if let Some(last) = worked.last_mut() {
            let work = self.came.values().map(|came| came.of).max();
            let ends = self.came.values().filter(|came| Some(came.of) == work).map(Came::end);
            last.to = ends
                .filter(|end| *end < last.to + FRINGE)
                .max()
                .map_or(last.to, |end| end.max(last.to));
        }
        let several = worked.len() > 1;
        let named = |(i, stretch): (usize, &Stretch)| {
            let name = if several { format!("work {}", i + 1) } else { "work".to_owned() };
            Worked { name, from: self.time(stretch.from), to: self.time(stretch.to), series: i }
        };
        worked.iter().enumerate().map(named).collect()
    }

    /// Stretches of at least [`SHORT`] bins in which the same names are active; those in which none is are
    /// left out.
    fn stretches(&self) -> Vec<Stretch> {
        let mut runs: Vec<(usize, usize, &Name, Kind)> = Vec::new();
        for (name, came) in self.came.iter().filter(|(_, came)| came.count >= OFTEN) {
            runs.extend(active(&came.bins).into_iter().map(|(from, to)| (from, to, name, came.of)));
        }
        let work = runs.iter().map(|run| run.3).max().unwrap_or(Kind::Call);
        let ends = runs.iter().flat_map(|run| [run.0, run.1]);
        let edges: BTreeSet<usize> = ends.collect();
        let edges: Vec<usize> = edges.into_iter().collect();
        let mut out: Vec<Stretch> = Vec::new();
        for pair in edges.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let here = || runs.iter().filter(|run| run.0 <= from && run.1 >= to);
            let names: BTreeSet<Name> = here().map(|run| run.2.clone()).collect();
            let works = here().any(|run| run.3 == work && work > Kind::Call);
            if !names.is_empty() {
                out.push(Stretch { from, to, names, works });
            }
        }
        absorbed(out)
    }
}

/// Without those that last too short to be phases: they belong to a neighbour.
fn absorbed(mut all: Vec<Stretch>) -> Vec<Stretch> {
    let is_short = |all: &[Stretch], i: usize| {
        let (short, long) = (&all[i], all[i].to - all[i].from);
        let like = |at: usize| {
            let near = &all[at];
            near.to - near.from > long && within(&short.names, &near.names) >= OF_NEIGHBOUR
        };
        let last = i + 1 == all.len();
        // Work does not belong to what is none.
        let mut near = neighbours(all, i).filter(|at| all[*at].works || !short.works);
        let some = near.clone().next().is_some();
        let fringe = near.any(|at| last || like(at));
        (some || !short.works) && (long < SHORT || (long < FRINGE && fringe))
    };
    while let Some(i) = (0..all.len()).find(|i| is_short(&all, *i)) {
        let short = all[i].clone();
        let like = |at: &usize| alike(&all[*at].names, &short.names);
        let near = neighbours(&all, i).filter(|at| all[*at].works);
        let to = near.max_by(|a, b| like(a).total_cmp(&like(b)));
        if let Some(to) = to.filter(|_| short.works) {
            let neighbour = &mut all[to];
            neighbour.from = neighbour.from.min(short.from);
            neighbour.to = neighbour.to.max(short.to);
        }
        all.remove(i);
    }
    all
}

/// The stretches that touch the one at `i`.
fn neighbours(all: &[Stretch], i: usize) -> impl Iterator<Item = usize> + Clone + use<> {
    let here = (all[i].from, all[i].to);
    let before = i.checked_sub(1).filter(|at| all[*at].to == here.0);
    let behind = Some(i + 1).filter(|at| all.get(*at).is_some_and(|next| next.from == here.1));
    before.into_iter().chain(behind)
}

/// The share of the names of `a` that `b` has.
fn within(a: &BTreeSet<Name>, b: &BTreeSet<Name>) -> f64 {
    a.intersection(b).count() as f64 / a.len().max(1) as f64
}

/// Neighbours that do the same are one.
fn joined(stretches: Vec<Stretch>) -> Vec<Stretch> {
    let mut out: Vec<Stretch> = Vec::new();
    for stretch in stretches {
        match out.last_mut() {
            Some(last) if alike(&last.names, &stretch.names) >= ALIKE => {
                last.to = stretch.to;
                last.works |= stretch.works;
                last.names.extend(stretch.names);
            }
            _ => out.push(stretch),
        }
    }
    out
}

/// The share of all names that both have.
fn alike(a: &BTreeSet<Name>, b: &BTreeSet<Name>) -> f64 {
    a.intersection(b).count() as f64 / a.union(b).count().max(1) as f64
}

/// From which bin to which a name is active.
fn active(bins: &[u64]) -> Vec<(usize, usize)> {
    let set: Vec<usize> = (0..BINS).filter(|bin| bins[bin / 64] & (1 << (bin % 64)) != 0).collect();
    let mut gaps: Vec<usize> = set.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    let usual = gaps.get(gaps.len() * 9 / 10).copied().unwrap_or(1);
    let pause = (usual * PAUSE).max(SHORT);
    let mut out: Vec<(usize, usize)> = Vec::new();
    for bin in set {
        match out.last_mut() {
            Some((_, to)) if bin < *to + pause => *to = bin + 1,
            _ => out.push((bin, bin + 1)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// A program of one second; `(name, from, to, every, what)` in ms.
    fn program(does: &[(&str, i64, i64, i64, Kind)]) -> Activity {
        let mut activity = Activity::new((Ns(0), Ns(1000 * MS)));
        for (name, from, to, every, of) in does {
            let mut at = *from;
            while at < *to {
                activity.add(&(*name).into(), (Ns(at * MS), Ns(at * MS + MS / 2)), *of);
                at += every;
            }
        }
        activity
    }

    fn told(activity: &Activity) -> String {
        let phases = activity.phases();
        let each = phases.iter().map(|p| {
            let ms = |ns: Ns| (ns.0 as f64 / MS as f64).round();
            format!("{} {}-{}", p.name, ms(p.from), ms(p.to))
        });
        each.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn set_up_lies_before_the_work_and_what_is_done_once_at_the_end_behind_it() {
        let activity = program(&[
            ("cudaMalloc", 0, 40, 4, Kind::Call),
            ("cudaLaunchKernel", 100, 900, 2, Kind::Call),
            ("gemm", 100, 900, 2, Kind::Kernel),
            ("cudaMemcpy", 950, 951, 1, Kind::Exchange),
        ]);
        assert_eq!(told(&activity), "set-up 0-100, work 100-899, end 899-951");
    }

    #[test]
    fn two_solvers_are_two_phases_and_a_pause_in_one_of_them_is_none() {
        let activity = program(&[
            ("solve_a", 100, 400, 2, Kind::Kernel),
            ("cudaMemcpy", 100, 400, 2, Kind::Exchange),
            ("solve_b", 500, 650, 2, Kind::Kernel),
            ("solve_b", 750, 1000, 2, Kind::Kernel),
            ("MPI_Allreduce", 500, 650, 2, Kind::Exchange),
            ("MPI_Allreduce", 750, 1000, 2, Kind::Exchange),
        ]);
        assert_eq!(told(&activity), "work 1 100-399, between 399-500, work 2 500-999");
    }

    #[test]
    fn ranges_that_a_program_marks_are_its_phases_and_iterations_are_one() {
        let mut activity = program(&[("gemm", 100, 900, 2, Kind::Kernel)]);
        let mut mark = |name: &str, from: i64, to: i64| {
            activity.mark(&name.into(), (Ns(from * MS), Ns(to * MS)));
        };
        mark("load", 100, 200);
        (0..10).for_each(|i| mark(&format!("step {i}"), 200 + 40 * i, 240 + 40 * i));
        mark("evaluate", 700, 880);
        assert_eq!(
            told(&activity),
            "load 100-200, step 200-600, between 600-700, evaluate 700-880, end 880-899"
        );
    }

    #[test]
    fn steps_keep_the_numbers_that_the_profiler_gave_them() {
        let mut activity = program(&[("gemm", 100, 900, 2, Kind::Kernel)]);
        let mut mark = |name: &str, from: i64, to: i64| {
            activity.mark(&name.into(), (Ns(from * MS), Ns(to * MS)));
        };
        // Something of another name lies between them, so they are phases one by one.
        for i in 0..3 {
            mark(&format!("ProfilerStep#{}", 12 + i), 100 + 250 * i, 300 + 250 * i);
            mark("save", 300 + 250 * i, 350 + 250 * i);
        }
        assert_eq!(
            told(&activity),
            "ProfilerStep#12 100-300, save 1 300-350, ProfilerStep#13 350-550, save 2 550-600, \
             ProfilerStep#14 600-800, save 3 800-850, end 850-899"
        );
        let series: Vec<usize> = activity.phases().iter().map(|p| p.series).collect();
        assert_eq!((series[0], series[1]), (series[2], series[3]));
        assert!(series[0] != series[1] && series[6] != series[0]);
    }

    #[test]
    fn two_rounds_of_iterations_say_which_each_holds() {
        let mut activity = program(&[("gemm", 100, 900, 2, Kind::Kernel)]);
        let mut mark = |name: &str, from: i64, to: i64| {
            activity.mark(&name.into(), (Ns(from * MS), Ns(to * MS)));
        };
        (0..3).for_each(|i| mark(&format!("step {i}"), 100 + 100 * i, 200 + 100 * i));
        mark("evaluate", 400, 500);
        (3..7).for_each(|i| mark(&format!("step {i}"), 200 + 100 * i, 300 + 100 * i));
        assert_eq!(
            told(&activity),
            "step 0 to step 2 100-400, evaluate 400-500, step 3 to step 6 500-900"
        );
    }

    #[test]
    fn ranges_that_hold_little_of_the_time_or_all_of_it_are_no_phases() {
        let marked = |ranges: &[(i64, i64)]| {
            let mut activity = program(&[("gemm", 100, 900, 2, Kind::Kernel)]);
            for (i, (from, to)) in ranges.iter().enumerate() {
                let name = ["load", "train", "save"][i];
                activity.mark(&name.into(), (Ns(from * MS), Ns(to * MS)));
            }
            told(&activity)
        };
        assert_eq!(marked(&[(100, 150), (300, 350)]), "work 100-899");
        assert_eq!(marked(&[(100, 890)]), "work 100-899");
        assert_eq!(marked(&[(200, 700)]), "set-up 100-200, load 200-700, end 700-899");
    }

    #[test]
    fn a_program_without_work_has_no_phases() {
        assert_eq!(told(&program(&[("cudaMalloc", 0, 40, 4, Kind::Call)])), "");
        assert_eq!(told(&program(&[])), "");
    }
}
