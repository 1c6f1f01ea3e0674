//! What can be said of a recording without steps: where the time of its busy threads went, for whom they waited,
//! which commands took the CPUs, and when that changed.
//!
//! *What it sees:* the states of the busiest threads, and what each process used of the CPUs. The recording is cut
//! into windows; each thread's share of a window that it spent on something is compared with the recording's own
//! usual (`diagnose::change`).
//! *What fools it:* nothing here is a verdict. A thread that waits for work waits, and nothing is wrong with that.

mod busy;
mod cpu_time;
mod table;
mod text;

use std::collections::{BTreeMap, HashMap};

use gpuwhy_derive::sweep::Cut;
use gpuwhy_derive::threads::{Doing, OTHERS_TOGETHER, TimeOfThread, TimeOfThreads};
use gpuwhy_diagnose::change::{self, Changes, LEAST_WINDOWS, Stretch};
use gpuwhy_schema::{Entity, EntityId, EntityKind, Message, Ns, Rows, State, Wakeup};
use serde::Serialize;

use crate::error::Result;
use crate::source::{TraceSource, all};

pub use busy::{Busy, BusyThread, doing, state_tracks};
use cpu_time::Commands;
pub use cpu_time::Taken;

/// Threads that are told, at most.
const THREADS: usize = 16;
/// A thread that had less to do than this share of the recording is not told.
const BUSY: f64 = 0.01;
/// Changes that are told, at most: those that moved most time.
const CHANGES: usize = 24;
/// Those for whom a thread waited that are told, at most,
const WHOM: usize = 4;
/// each for this share of its time or more.
const WAITED: f64 = 0.01;
/// What changed by less than this share of the time is not told of a change.
const CHANGED: f64 = 0.05;
/// Windows are at least this long,
const WINDOW: Ns = Ns::millis(250);
/// and not more than this many.
const WINDOWS: i64 = 240;
/// Rows are read for this long at a time,
const STRETCH: Ns = Ns::secs(4);
/// and so much later: what ended a wait that timed out and was taken up again, and the bytes that ended one.
const MARGIN: Ns = Ns::secs(1);

/// What can be said of a recording without steps.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Threads {
    /// When the recording begins, ns on the trace clock.
    pub from_ns: i64,
    /// When it ends.
    pub to_ns: i64,
    /// How long each window is that is compared with the others.
    pub window_ms: f64,
    /// The busiest threads, those with most to do first.
    pub threads: Vec<ThreadTime>,
    /// What commands took of the CPUs, most first.
    pub cpus: Vec<Taken>,
    /// When any of that was not as usual, in the order of time.
    pub changes: Vec<Change>,
    /// What comes and goes, and is therefore no change.
    pub comes_and_goes: Vec<String>,
    /// Whether the recording is long enough to be compared with itself.
    pub compared: bool,
    /// What is not known, and why.
    pub not_known: Vec<String>,
    /// The threads that are told, for a picture.
    #[serde(skip)]
    pub entities: Vec<EntityId>,
}

/// Where the time of a thread went.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadTime {
    /// Its name.
    pub thread: String,
    /// Its tid.
    pub tid: Option<i64>,
    /// Its process's name.
    pub process: String,
    /// Its process's pid.
    pub pid: Option<i64>,
    /// Shares of the time in which it was recorded, by what it did.
    pub shares: BTreeMap<&'static str, f64>,
    /// Of how much of the recording it is known what it did, as a share.
    pub seen: f64,
    /// For whom it waited, longest first.
    pub waited_for: Vec<WaitedFor>,
}

/// For whom a thread waited.
#[derive(Clone, Debug, Serialize)]
pub struct WaitedFor {
    /// What it waited in: `runnable` behind a process, else for a thread.
    pub doing: &'static str,
    /// For whom.
    pub whom: String,
    /// As a share of the time in which it was recorded.
    pub share: f64,
    /// How often.
    pub times: u64,
}

/// A time in which something was not as usual.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Of whom.
    pub who: String,
    /// When it begins, ns on the trace clock.
    pub from_ns: i64,
    /// When it ends.
    pub to_ns: i64,
    /// What was more or less than usual, the largest difference first.
    pub what: Vec<Changed>,
    /// For whom it waited more than else, most first: shares of this time, and of the rest.
    pub waited_for: Vec<Changed>,
}

/// What changed, as a share of the time; of a command, in CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    /// What, or for whom.
    pub what: String,
    /// What is usual of it.
    pub usual: f64,
    /// What it was then.
    pub then: f64,
}

impl Changed {
    fn by(&self) -> f64 {
        (self.then - self.usual).abs()
    }
}

/// Names of entities.
struct Names<'a>(HashMap<EntityId, &'a Entity>);

impl Names<'_> {
    fn of(&self, id: EntityId) -> String {
        match self.0.get(&id) {
            None if id == OTHERS_TOGETHER => "others".into(),
            None => format!("entity {}", id.0),
            Some(e) => match (e.kind, e.number) {
                (EntityKind::Thread, Some(tid)) => format!("{} (tid {tid})", e.name),
                (EntityKind::Process, Some(pid)) => format!("{} (pid {pid})", e.name),
                _ => e.name.to_string(),
            },
        }
    }
}

/// What can be said of the threads of a trace; `None` if neither their states nor what they used was recorded.
///
/// # Errors
/// It cannot be read.
pub fn of_trace(source: &TraceSource, busy: &Busy) -> Result<Option<Threads>> {
    let Some((from, to)) = busy.range.filter(|(from, to)| to > from) else { return Ok(None) };
    let length = (to - from).0;
    let widths = [1, 2, 4, 8, 20, 40, 80, 240, 480, 1200, 2400, 14_400].map(|n| n * WINDOW.0);
    let width = widths.into_iter().find(|w| length / w <= WINDOWS).unwrap_or(length / WINDOWS);
    let Some(cut) = Cut::of(from.0..to.0, width, WINDOWS as usize + 1) else { return Ok(None) };
    let is_told = |t: &&BusyThread| t.busy.0 as f64 >= BUSY * length as f64;
    let told: Vec<BusyThread> =
        busy.threads.iter().filter(is_told).take(THREADS).copied().collect();
    let times = times(source, cut, (from, to), &told)?;
    let Commands { taken, since, uncounted } = cpu_time::of_trace(source, cut)?;
    if told.is_empty() && taken.is_empty() {
        return Ok(None);
    }
    let entities = &source.entities_and_tracks().entity;
    let names = Names(entities.iter().map(|e| (e.id, e)).collect());
    let mut out = Threads {
        from_ns: from.0,
        to_ns: to.0,
        window_ms: width as f64 / 1e6,
        compared: whole(cut, (from, to)).len() >= LEAST_WINDOWS,
        entities: told.iter().map(|t| t.id).collect(),
        ..Threads::default()
    };
    for thread in &told {
        let Some(time) = times.of(thread.id) else { continue };
        out.threads.push(time_of(thread, time, &names, length));
        out.of_thread(thread, time, cut, &names);
    }
    out.of_commands(&taken, since.unwrap_or(from), cut);
    out.cpus = taken.into_iter().take(THREADS).collect();
    out.not_known = not_known(source, busy, &out);
    if uncounted > 0 {
        let most = cpu_time::COMMANDS;
        out.not_known.push(format!(
            "what {uncounted} readings of commands took of the CPUs: only {most} commands are told apart"
        ));
    }
    out.most_changed();
    Ok(Some(out))
}

/// What these threads did: the trace is read a few seconds at a time.
fn times(
    source: &TraceSource,
    cut: Cut,
    (from, to): (Ns, Ns),
    told: &[BusyThread],
) -> Result<TimeOfThreads> {
    let mut times = TimeOfThreads::new(cut, told.iter().map(|t| t.id));
    if told.is_empty() {
        return Ok(times);
    }
    let catalog = source.entities_and_tracks();
    let (trace, mut at) = (source.trace(), from);
    while at < to {
        let until = at.saturating_add(STRETCH);
        let range = at..until.saturating_add(MARGIN);
        let rows = Rows {
            entity: catalog.entity.clone(),
            track: catalog.track.clone(),
            state: all::<State>(trace, range.clone())?,
            wakeup: all::<Wakeup>(trace, range.clone())?,
            message: all::<Message>(trace, range)?,
            ..Rows::default()
        };
        let first = if at == from { Ns::MIN } else { at };
        times.add(&rows, first..if until >= to { Ns::MAX } else { until });
        at = until;
    }
    Ok(times)
}

/// Where the time of a thread went, over all of the recording.
fn time_of(thread: &BusyThread, time: &TimeOfThread, names: &Names<'_>, length: i64) -> ThreadTime {
    let seen = (thread.seen.0 as f64).max(1.0);
    let sum = |ns: &[i64]| ns.iter().sum::<i64>() as f64 / seen;
    let each = Doing::ALL.into_iter().map(|doing| (doing.as_str(), sum(time.spent_on(doing))));
    let mut waited_for: Vec<WaitedFor> = time
        .waited_for()
        .map(|(doing, whom, waited)| WaitedFor {
            doing: doing.as_str(),
            whom: names.of(whom),
            share: sum(&waited.ns),
            times: waited.times,
        })
        .filter(|waited| waited.share >= WAITED)
        .collect();
    waited_for.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.whom.cmp(&b.whom)));
    waited_for.truncate(WHOM);
    let name = |id| names.0.get(&id).map_or(String::new(), |e| e.name.to_string());
    let number = |id| names.0.get(&id).and_then(|e| e.number);
    ThreadTime {
        thread: name(thread.id),
        tid: number(thread.id),
        process: name(thread.process),
        pid: number(thread.process),
        shares: each.filter(|(_, share)| *share > 0.0).collect(),
        seen: (seen / length.max(1) as f64).min(1.0),
        waited_for,
    }
}

/// The windows of a cut that lie in `range` as a whole.
fn whole(cut: Cut, (from, to): (Ns, Ns)) -> std::ops::Range<usize> {
    let (from, to) = (from.0.saturating_sub(cut.origin), to.0.saturating_sub(cut.origin));
    let first = usize::try_from((from.max(0) + cut.width - 1) / cut.width).unwrap_or(0);
    let behind = usize::try_from(to.max(0) / cut.width).unwrap_or(0).min(cut.count);
    first.min(behind)..behind
}

impl Threads {
    /// When a thread's time was not spent as usual.
    fn of_thread(&mut self, thread: &BusyThread, time: &TimeOfThread, cut: Cut, names: &Names<'_>) {
        let who = names.of(thread.id);
        let windows = whole(cut, (thread.first, thread.last));
        let share =
            |ns: &[i64], n: usize| ns.get(n).map_or(0.0, |ns| *ns as f64 / cut.width as f64);
        let mut series: Vec<(Doing, Vec<f64>)> = Vec::new();
        let mut stretches: Vec<(usize, usize)> = Vec::new();
        for doing in Doing::ALL {
            let ns = time.spent_on(doing);
            let shares: Vec<f64> = windows.clone().map(|n| share(ns, n)).collect();
            match change::changes(&shares) {
                Changes::At(_, found) => stretches.extend(found.iter().map(|s| (s.from, s.to))),
                Changes::ComesAndGoes(_, times) => self.comes_and_goes.push(format!(
                    "{who}: {} is more or less than usual {times} times",
                    text::words(doing.as_str())
                )),
                Changes::TooFew => {}
            }
            series.push((doing, shares));
        }
        for (from, to) in joined(stretches) {
            let changed = |(doing, shares): &(Doing, Vec<f64>)| Changed {
                what: doing.as_str().to_owned(),
                usual: change::usual(shares).map_or(0.0, |usual| usual.level),
                then: mean(&shares[from..to]),
            };
            let what = largest(series.iter().map(changed).collect());
            let first = windows.start;
            let waited = time.waited_for().map(|(doing, whom, waited)| {
                let shares: Vec<f64> = windows.clone().map(|n| share(&waited.ns, n)).collect();
                let (inside, outside) =
                    (&shares[from..to], [&shares[..from], &shares[to..]].concat());
                let what = format!("{} {}", text::waiting(doing.as_str()), names.of(whom));
                Changed { what, usual: mean(&outside), then: mean(inside) }
            });
            let mut waited_for = largest(waited.filter(|w| w.then > w.usual).collect());
            waited_for.truncate(WHOM);
            let (from_ns, to_ns) = times_of(cut, (first + from, first + to));
            self.changes.push(Change { who: who.clone(), from_ns, to_ns, what, waited_for });
        }
    }

    /// When commands took more or less of the CPUs than usual.
    fn of_commands(&mut self, taken: &[Taken], since: Ns, cut: Cut) {
        let windows = whole(cut, (since, Ns(self.to_ns)));
        for command in taken {
            let cpus: Vec<f64> = windows.clone().map(|n| command.windows[n]).collect();
            let (usual, found): (change::Usual, Vec<Stretch>) = match change::changes(&cpus) {
                Changes::At(usual, found) => (usual, found),
                Changes::ComesAndGoes(_, times) => {
                    self.comes_and_goes.push(format!(
                        "{}: takes more or less of the CPUs than usual {times} times",
                        command.name()
                    ));
                    continue;
                }
                Changes::TooFew => continue,
            };
            for stretch in found {
                let (from_ns, to_ns) =
                    times_of(cut, (windows.start + stretch.from, windows.start + stretch.to));
                let what =
                    vec![Changed { what: "CPUs".into(), usual: usual.level, then: stretch.then }];
                let (who, waited_for) = (command.name(), Vec::new());
                self.changes.push(Change { who, from_ns, to_ns, what, waited_for });
            }
        }
    }

    /// Keeps the changes that moved most time, and counts the others.
    fn most_changed(&mut self) {
        let weight = |c: &Change| {
            let by = c.what.first().map_or(0.0, Changed::by);
            by * c.to_ns.saturating_sub(c.from_ns) as f64
        };
        self.changes.retain(|change| !change.what.is_empty());
        self.changes.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let left = self.changes.len().saturating_sub(CHANGES);
        self.changes.truncate(CHANGES);
        self.changes.sort_by(|a, b| (a.from_ns, &a.who).cmp(&(b.from_ns, &b.who)));
        if left > 0 {
            self.not_known.push(format!("{left} changes that moved less time are not told"));
        }
    }
}

/// When windows begin and end, ns on the trace clock.
fn times_of(cut: Cut, (from, to): (usize, usize)) -> (i64, i64) {
    let at = |n: usize| cut.origin.saturating_add(cut.width.saturating_mul(n as i64));
    (at(from), at(to))
}

fn mean(values: &[f64]) -> f64 {
    gpuwhy_diagnose::stats::mean(values)
}

/// What changed by enough, most first.
fn largest(mut all: Vec<Changed>) -> Vec<Changed> {
    all.retain(|changed| changed.by() >= CHANGED);
    all.sort_by(|a, b| b.by().total_cmp(&a.by()).then(a.what.cmp(&b.what)));
    all
}

/// Stretches that overlap or touch, as one.
fn joined(mut stretches: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    stretches.sort_unstable();
    let mut out: Vec<(usize, usize)> = Vec::new();
    for (from, to) in stretches {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// What is not known of this recording.
fn not_known(source: &TraceSource, busy: &Busy, told: &Threads) -> Vec<String> {
    let mut out = Vec::new();
    let (threads, length) = (busy.threads.len(), (told.to_ns - told.from_ns) as f64 / 1e9);
    if threads == 0 {
        out.push(
            "what threads did: their states are recorded of the processes that are named (-p PID) or started \
             (-- CMD), and there was none"
                .into(),
        );
    } else if threads > told.threads.len() {
        out.push(format!(
            "{} of {threads} threads are not told: they had less to do",
            threads - told.threads.len() + busy.not_looked_at
        ));
    }
    if !told.compared {
        out.push(format!(
            "whether anything changed: the recording is {length:.1} s long, and {:.0} s are needed",
            LEAST_WINDOWS as f64 * WINDOW.0 as f64 / 1e9
        ));
    } else {
        out.push(
            "which times are the sound ones: without steps the recording is compared with itself, so that what \
             holds for most of it is its usual, and a slow drift is no change"
                .into(),
        );
    }
    for of in source.entities_and_tracks().source.iter().filter(|s| s.dropped > 0) {
        out.push(format!(
            "{} of {} rows of {} were lost",
            of.dropped,
            of.dropped + of.recorded,
            of.kind
        ));
    }
    out
}
