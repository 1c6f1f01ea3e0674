//! Rows as a native Perfetto trace (`.pftrace`), for <https://ui.perfetto.dev> and its SQL.
//!
//! What becomes what:
//!
//! | rows | in Perfetto |
//! |---|---|
//! | entities | processes and threads by number; a tree of named tracks for all others |
//! | spans | slices; spans that would cross get lanes of the same name, which viewers merge |
//! | steps | slices on the thread's own track |
//! | states | slices named by the state; an occupant by its comm and pid |
//! | counters | counters with their unit |
//! | marks | instants; details and attributes are arguments |
//! | wakeups in task context | a flow from an instant at the waker to one at the woken |
//! | links | flows |
//! | samples | instants named by the innermost frame, the stack as argument |
//! | parts | slices below the thread whose step it is |
//! | findings and causes | slices on `gpuwhy findings`, with class, culprit and excess |
//! | sources | instants on `gpuwhy sources`: what was recorded, what was lost, and why |
//!
//! Times stay CLOCK_MONOTONIC nanoseconds, and the file says so (`primary_trace_clock`); sync
//! points with other clocks go along. A delta is stored at the *end* of its tick while Perfetto
//! draws a value *from* its time on, so deltas are written at the begin of their tick.
//!
//! Bounded memory: rows come in pieces; kept between pieces are one open state and a lane or two
//! per track, interned names up to a limit, and flows up to a limit.

mod args;
mod packets;
mod proto;
mod text;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::ops::Range;

use gpuwhy_schema::{Cause, Counter, EntityId, Finding, Frame, Id, Mark, Measure, Ns, Part, Rows};
use gpuwhy_schema::{Sample, Source, SourceId, Span, Stack, State, Table, ThreadState, TrackId};
use gpuwhy_schema::{WakeContext, names};

pub use text::{TextError, text};

use args::Details;
use packets::{Args, Event, Packets, Value};
use tree::Tree;

/// What to write, and how much to hold in memory for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only rows that overlap `[start, end)`; they are written whole. `None` is all.
    pub range: Option<Range<Ns>>,
    /// Ends of flows that are waited for at a time; about 64 bytes each.
    pub max_flows: usize,
    /// Tracks that one track of overlapping spans may be spread over.
    pub max_lanes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { range: None, max_flows: 1_000_000, max_lanes: 256 }
    }
}

/// What was written, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slices: spans, states, parts, findings.
    pub slices: u64,
    /// Instants: marks, samples, wakers, sources.
    pub instants: u64,
    /// Values of counters.
    pub counters: u64,
    /// Flows of which both ends were written.
    pub flows: u64,
    /// Tracks, with the groups they stand in.
    pub tracks: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Rows outside the range asked for.
    pub outside: u64,
    /// Rows whose track is not declared, or that began before the clock did.
    pub misplaced: u64,
    /// Spans that overlapped more than `max_lanes` others of their track.
    pub crowded: u64,
    /// Links beyond `max_flows`, or whose ends were not both among the rows.
    pub loose_flows: u64,
}

/// Why a trace could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file did not take it.
    #[error("cannot write the Perfetto trace beyond byte {bytes}")]
    Write {
        /// Bytes that were taken.
        bytes: u64,
        /// Why no more.
        #[source]
        source: io::Error,
    },
}

/// Writes `rows` as one Perfetto trace.
pub fn write(rows: &Rows, out: impl Write, options: Options) -> Result<Stats, Error> {
    let mut writer = Writer::new(out, options);
    writer.rows(rows)?;
    Ok(writer.finish()?.1)
}

/// Writes a trace in pieces, so that it never has to be in memory as a whole.
///
/// Pieces come in order of time, and details come with their span or mark. Entities, tracks and
/// sources come with or before the first row that needs them. Links are best given before both
/// of their ends ([`Writer::links`]).
pub struct Writer<W: Write> {
    packets: Packets<W>,
    begun: bool,
    tree: Tree,
    options: Options,
    stats: Stats,
    /// The flows that a row not written yet is an end of.
    flows: HashMap<Id, Vec<u64>>,
    next_flow: u64,
    /// How many ends of each unfinished flow were not written yet.
    open_flows: HashMap<u64, u8>,
    states: HashMap<TrackId, State>,
    deltas: HashMap<TrackId, Delta>,
    ticks: HashMap<SourceId, Ns>,
    sources: HashMap<SourceId, Source>,
    stacks: HashMap<u32, Stack>,
    frames: HashMap<u32, Frame>,
    clocks: usize,
    earliest: Option<Ns>,
}

/// The last row of a delta counter.
#[derive(Clone, Copy)]
struct Delta {
    ts: Ns,
    value: f64,
}

/// A tick until a source shows a shorter one: 100 Hz.
const TICK: Ns = Ns::millis(10);
/// Frames of a stack that are written; deeper ones are recursion.
const STACK_DEPTH: usize = 128;
/// Sync points that are written; readers interpolate between them.
const CLOCKS: usize = 4096;

const FINDINGS: &str = "gpuwhy findings";
const SOURCES: &str = "gpuwhy sources";
const PARTS: &str = "where the time went";
const WAKES: &str = "wakes";
/// For lanes at the top level: id 0 is no entity.
const NOBODY: EntityId = EntityId(0);

/// The rows in order of their begin, those that contain others first.
fn in_order<T: Table>(rows: &[T]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by_key(|&i| {
        let row = &rows[i as usize];
        (row.start(), std::cmp::Reverse(row.end()))
    });
    order
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(out: W, options: Options) -> Writer<W> {
        Writer {
            packets: Packets::new(out),
            begun: false,
            tree: Tree::new(options.max_lanes),
            options,
            stats: Stats::default(),
            flows: HashMap::new(),
            next_flow: 0,
            open_flows: HashMap::new(),
            states: HashMap::new(),
            deltas: HashMap::new(),
            ticks: HashMap::new(),
            sources: HashMap::new(),
            stacks: HashMap::new(),
            frames: HashMap::new(),
            clocks: 0,
            earliest: None,
        }
    }

    /// The head of the file, once a time is known that lies in it: a viewer shows all time from
    /// there on.
    fn begin(&mut self, near: Option<Ns>) -> Result<(), Error> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let from = self.options.range.as_ref().map_or(Ns::ZERO, |r| r.start);
        self.packets.begin(near.map_or(from, |near| near.max(from)))
    }

    /// Announces links before the rows that they connect.
    pub fn links(&mut self, links: &[gpuwhy_schema::Link]) {
        for link in links {
            if self.open_flows.len() >= self.options.max_flows {
                self.stats.loose_flows += 1;
                continue;
            }
            self.next_flow += 1;
            self.open_flows.insert(self.next_flow, 2);
            for end in [link.from, link.to] {
                self.flows.entry(end).or_default().push(self.next_flow);
            }
        }
    }

    /// Writes the next piece.
    pub fn rows(&mut self, rows: &Rows) -> Result<(), Error> {
        fn first<T: Table>(rows: &[T]) -> Option<Ns> {
            rows.iter().filter_map(T::start).min()
        }
        let starts = [
            first(&rows.span),
            first(&rows.state),
            first(&rows.counter),
            first(&rows.mark),
            first(&rows.sample),
            first(&rows.finding),
        ];
        self.begin(starts.into_iter().flatten().min())?;
        self.lanes(rows);
        self.clocks(rows)?;
        self.links(&rows.link);
        let details = Details::of(rows);
        // Marks before spans: a launch stands before its kernel, and of events at one time the
        // reader keeps the order.
        for i in in_order(&rows.mark) {
            self.mark(&rows.mark[i as usize], &details)?;
        }
        for i in in_order(&rows.span) {
            self.span(&rows.span[i as usize], &details)?;
        }
        for i in in_order(&rows.state) {
            self.state(&rows.state[i as usize])?;
        }
        for i in in_order(&rows.counter) {
            self.counter(&rows.counter[i as usize])?;
        }
        for sample in &rows.sample {
            self.sample(sample)?;
        }
        let thread_of: HashMap<Id, EntityId> =
            rows.step.iter().map(|step| (step.id, step.thread)).collect();
        for i in in_order(&rows.part) {
            let part = &rows.part[i as usize];
            self.part(part, thread_of.get(&part.step).copied().unwrap_or(part.thread))?;
        }
        let mut causes: HashMap<Id, Vec<&Cause>> = HashMap::new();
        for cause in &rows.cause {
            causes.entry(cause.finding).or_default().push(cause);
        }
        for i in in_order(&rows.finding) {
            let finding = &rows.finding[i as usize];
            let mut of = causes.remove(&finding.id).unwrap_or_default();
            of.sort_by_key(|c| c.rank);
            self.finding(finding, &of)?;
        }
        Ok(())
    }

    /// Ends the file; returns what it was written to, and what was written.
    pub fn finish(mut self) -> Result<(W, Stats), Error> {
        self.begin(None)?;
        let mut pending: Vec<State> = self.states.drain().map(|(_, state)| state).collect();
        pending.sort_by_key(|s| (s.ts, s.track));
        for state in pending {
            self.write_state(&state)?;
        }
        self.write_sources()?;
        self.stats.loose_flows += self.open_flows.len() as u64;
        self.stats.tracks = self.tree.declared();
        self.stats.bytes = self.packets.bytes;
        let stats = self.stats;
        Ok((self.packets.finish()?, stats))
    }

    fn lanes(&mut self, rows: &Rows) {
        self.tree.entities.extend(rows.entity.iter().map(|e| (e.id, e.clone())));
        self.tree.tracks.extend(rows.track.iter().map(|t| (t.id, t.clone())));
        self.sources.extend(rows.source.iter().map(|s| (s.id, s.clone())));
        self.stacks.extend(rows.stack.iter().map(|s| (s.id, s.clone())));
        self.frames.extend(rows.frame.iter().map(|f| (f.id, f.clone())));
    }

    /// Sync points of the first host that has any: Perfetto's clocks belong to one machine.
    fn clocks(&mut self, rows: &Rows) -> Result<(), Error> {
        let Some(host) = rows.clock.first().map(|c| c.host) else { return Ok(()) };
        for row in rows.clock.iter().filter(|c| c.host == host) {
            let name = row.clock.to_ascii_lowercase();
            let id = match name.strip_prefix("clock_").unwrap_or(&name) {
                "realtime" => proto::clock::REALTIME,
                "boottime" => proto::clock::BOOTTIME,
                "monotonic_raw" => proto::clock::MONOTONIC_RAW,
                _ => continue,
            };
            let (Ok(ours), Ok(theirs)) =
                (u64::try_from(row.ts_trace.0), u64::try_from(row.ts_source))
            else {
                continue;
            };
            if self.clocks < CLOCKS {
                self.clocks += 1;
                self.packets.clocks(&[(proto::clock::MONOTONIC, ours), (id, theirs)])?;
            }
        }
        Ok(())
    }

    /// Whether a row is to be written; counts it where not.
    fn wanted(&mut self, start: Ns, end: Ns) -> bool {
        if let Some(range) = &self.options.range
            && (start >= range.end || end.max(start.saturating_add(Ns(1))) <= range.start)
        {
            self.stats.outside += 1;
            return false;
        }
        if start < Ns::ZERO {
            self.stats.misplaced += 1;
            return false;
        }
        self.earliest = Some(self.earliest.map_or(start, |e| e.min(start)));
        true
    }

    fn known(&mut self, track: TrackId) -> bool {
        let known = self.tree.tracks.contains_key(&track);
        self.stats.misplaced += u64::from(!known);
        known
    }

    /// The flows that end at this row, each written once.
    fn flows_of(&mut self, id: Id) -> Vec<u64> {
        let flows = self.flows.remove(&id).unwrap_or_default();
        for flow in &flows {
            if let Some(left) = self.open_flows.get_mut(flow) {
                *left -= 1;
                if *left == 0 {
                    self.open_flows.remove(flow);
                    self.stats.flows += 1;
                }
            }
        }
        flows
    }

    fn slice(&mut self, event: Event<'_>, end: Option<Ns>) -> Result<(), Error> {
        self.stats.slices += 1;
        let (track, start) = (event.track, event.ts);
        self.packets.event(event)?;
        match end {
            Some(end) => self.packets.slice_end(end.max(start), track),
            None => Ok(()),
        }
    }

    fn instant(&mut self, event: Event<'_>) -> Result<(), Error> {
        self.stats.instants += 1;
        self.packets.event(event)
    }

    fn span(&mut self, span: &Span, details: &Details<'_>) -> Result<(), Error> {
        let end = span.dur.map(|dur| span.ts.saturating_add(dur.max(Ns::ZERO)));
        if !self.wanted(span.ts, end.unwrap_or(Ns::MAX)) || !self.known(span.track) {
            return Ok(());
        }
        let lane =
            self.tree.span(span.track, span.ts, end.unwrap_or(Ns::MAX), &mut self.packets)?;
        let Some(track) = lane else {
            self.stats.crowded += 1;
            return Ok(());
        };
        let args = details.args(span.id, &self.tree);
        let flows = self.flows_of(span.id);
        let event = Event {
            ts: span.ts,
            track,
            kind: proto::event::SLICE_BEGIN,
            category: "span",
            name: &span.name,
            args,
            flows,
        };
        self.slice(event, end)
    }

    /// Holds a state back until the next of its track, which ends it where its own end was not
    /// seen, or was seen later than it can have been.
    fn state(&mut self, state: &State) -> Result<(), Error> {
        if !self.wanted(state.ts, state.end().unwrap_or(Ns::MAX)) || !self.known(state.track) {
            return Ok(());
        }
        let Some(mut last) = self.states.insert(state.track, state.clone()) else {
            return Ok(());
        };
        if last.ts == state.ts && last.value == state.value {
            return Ok(()); // Repeated at the head of a file; the later row knows more.
        }
        let until = state.ts.saturating_sub(last.ts);
        last.dur = Some(last.dur.map_or(until, |dur| dur.min(until)));
        self.write_state(&last)
    }

    fn write_state(&mut self, state: &State) -> Result<(), Error> {
        let name = self.tree.tracks.get(&state.track).map(|t| t.name.clone());
        let word = match name.as_deref() {
            Some(names::THREAD_STATE) => ThreadState::from_code(state.value).map(|s| {
                let key = match s {
                    ThreadState::Sleep | ThreadState::DiskWait | ThreadState::Uninterruptible => {
                        "syscall"
                    }
                    ThreadState::Stopped => "sender",
                    ThreadState::Softirq => "vector",
                    _ => "cpu",
                };
                (s.as_str().to_owned(), key)
            }),
            Some(names::OCCUPANT) => Some(match u32::try_from(state.value) {
                Ok(0) => ("idle".to_owned(), "arg"),
                Ok(id) => (self.tree.label(EntityId(id)), "arg"),
                Err(_) => ("unknown".to_owned(), "arg"),
            }),
            _ => None,
        };
        let (word, key) = word.unwrap_or_else(|| (state.value.to_string(), "arg"));
        let args = state.arg.map(|arg| (key, Value::Int(arg))).into_iter().collect();
        let track = self.tree.track(state.track, &mut self.packets)?;
        let event = Event {
            ts: state.ts,
            track,
            kind: proto::event::SLICE_BEGIN,
            category: "state",
            name: &word,
            args,
            flows: Vec::new(),
        };
        self.slice(event, state.dur.map(|dur| state.ts.saturating_add(dur.max(Ns::ZERO))))
    }

    fn counter(&mut self, row: &Counter) -> Result<(), Error> {
        if !self.wanted(row.ts, row.ts) || !self.known(row.track) {
            return Ok(());
        }
        let lane = self.tree.tracks.get(&row.track);
        let delta = lane.is_some_and(|t| t.measure == Some(Measure::Delta));
        let source = lane.map_or(SourceId(0), |t| t.source);
        let track = self.tree.track(row.track, &mut self.packets)?;
        let ts = if delta { self.begin_of_tick(row, source) } else { row.ts };
        self.stats.counters += 1;
        self.packets.counter(ts, track, row.value)
    }

    /// When what a delta counts began. After a value it is the row before. After a zero it is
    /// one tick back: sources leave out the zeros of a pause.
    fn begin_of_tick(&mut self, row: &Counter, source: SourceId) -> Ns {
        let tick = self.ticks.entry(source).or_insert(TICK);
        let last = self.deltas.insert(row.track, Delta { ts: row.ts, value: row.value });
        let begin = match last {
            Some(last) if last.ts < row.ts => {
                *tick = (*tick).min(row.ts.saturating_sub(last.ts));
                let back = row.ts.saturating_sub(*tick);
                if last.value == 0.0 { last.ts.max(back) } else { last.ts }
            }
            Some(_) => row.ts,
            None => row.ts.saturating_sub(*tick),
        };
        begin.max(Ns::ZERO)
    }

    fn mark(&mut self, mark: &Mark, details: &Details<'_>) -> Result<(), Error> {
        if !self.wanted(mark.ts, mark.ts) || !self.known(mark.track) {
            return Ok(());
        }
        let mut flows = self.flows_of(mark.id);
        if let Some(wakeup) = details.wakeup(mark.id)
            && wakeup.context == WakeContext::Task
            && let Some(waker) = wakeup.waker.filter(|&w| w != wakeup.woken)
        {
            // The waker's end first, for the same reason as in `rows`.
            self.next_flow += 1;
            let flow = self.next_flow;
            let track = self.tree.own_points(waker, WAKES, &mut self.packets)?;
            let name = format!("wakes {}", self.tree.label(wakeup.woken));
            self.instant(Event {
                ts: mark.ts,
                track,
                kind: proto::event::INSTANT,
                category: "wakeup",
                name: &name,
                args: Args::new(),
                flows: vec![flow],
            })?;
            self.stats.flows += 1;
            flows.push(flow);
        }
        let mut args = details.args(mark.id, &self.tree);
        args.extend(mark.value.map(|v| ("value", Value::Double(v))));
        let track = self.tree.track(mark.track, &mut self.packets)?;
        self.instant(Event {
            ts: mark.ts,
            track,
            kind: proto::event::INSTANT,
            category: "mark",
            name: &mark.name,
            args,
            flows,
        })
    }

    fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        if !self.wanted(sample.ts, sample.ts) || !self.known(sample.track) {
            return Ok(());
        }
        // Innermost first, and never round in a circle.
        let mut frames = Vec::new();
        let mut seen = BTreeSet::new();
        let mut next = sample.stack;
        while let Some(stack) = next.and_then(|id| self.stacks.get(&id)) {
            if frames.len() == STACK_DEPTH || !seen.insert(stack.id) {
                break;
            }
            let name = self.frames.get(&stack.frame).map_or("?", |f| &*f.name);
            frames.push(name.to_owned());
            next = stack.parent;
        }
        let mut args = vec![("weight", Value::Double(sample.weight))];
        args.extend(sample.state.map(|v| ("state", Value::Int(v))));
        let leaf = frames.first().cloned().unwrap_or_else(|| "sample".to_owned());
        if !frames.is_empty() {
            frames.reverse();
            args.push(("stack", Value::Text(frames.join(";"))));
        }
        let track = self.tree.track(sample.track, &mut self.packets)?;
        self.instant(Event {
            ts: sample.ts,
            track,
            kind: proto::event::INSTANT,
            category: "sample",
            name: &leaf,
            args,
            flows: Vec::new(),
        })
    }

    fn part(&mut self, part: &Part, owner: EntityId) -> Result<(), Error> {
        let end = part.ts.saturating_add(part.dur.max(Ns::ZERO));
        if !self.wanted(part.ts, end) {
            return Ok(());
        }
        let lane = self.tree.own(owner, PARTS, (part.ts, end), &mut self.packets)?;
        let Some(track) = lane else {
            self.stats.crowded += 1;
            return Ok(());
        };
        let mut args = vec![("thread", Value::Text(self.tree.label(part.thread)))];
        args.extend(part.blame.map(|b| ("blame", Value::Text(self.tree.label(b)))));
        args.push(("hops", Value::Int(i64::from(part.hops))));
        let event = Event {
            ts: part.ts,
            track,
            kind: proto::event::SLICE_BEGIN,
            category: "part",
            name: part.kind.as_str(),
            args,
            flows: Vec::new(),
        };
        self.slice(event, Some(end))
    }

    fn finding(&mut self, finding: &Finding, causes: &[&Cause]) -> Result<(), Error> {
        let end = finding.ts.saturating_add(finding.dur.max(Ns::ZERO));
        if !self.wanted(finding.ts, end) {
            return Ok(());
        }
        let lane = self.tree.own(NOBODY, FINDINGS, (finding.ts, end), &mut self.packets)?;
        let Some(track) = lane else {
            self.stats.crowded += 1;
            return Ok(());
        };
        let mut args = vec![
            ("detector", Value::Text(finding.detector.to_string())),
            ("score", Value::Double(finding.score)),
        ];
        if let Some(slow) = self.tree.tracks.get(&finding.track) {
            let of = self.tree.label(slow.entity);
            args.push(("slow", Value::Text(format!("{} of {of}", slow.name))));
        }
        args.push(("baseline", Value::Text(finding.baseline.to_string())));
        let mut name = "slower than expected".to_owned();
        for cause in causes {
            let culprit = cause.culprit.map(|c| self.tree.label(c));
            if cause.rank <= 1 {
                name = match &culprit {
                    Some(who) => format!("{}: {who}", cause.class),
                    None => cause.class.to_string(),
                };
                args.push(("class", Value::Text(cause.class.to_string())));
                args.extend(culprit.map(|who| ("culprit", Value::Text(who))));
                args.push(("excess_ms", Value::Double(cause.excess_ns.as_millis_f64())));
                args.push(("confidence", Value::Double(cause.confidence)));
                args.push(("evidence", Value::Text(cause.evidence.to_string())));
            } else {
                let who = culprit.map(|who| format!(" by {who}")).unwrap_or_default();
                args.push((
                    "also",
                    Value::Text(format!(
                        "{}{who}: {}, confidence {:.2}",
                        cause.class, cause.excess_ns, cause.confidence
                    )),
                ));
            }
        }
        let event = Event {
            ts: finding.ts,
            track,
            kind: proto::event::SLICE_BEGIN,
            category: "finding",
            name: &name,
            args,
            flows: Vec::new(),
        };
        self.slice(event, Some(end))
    }

    fn write_sources(&mut self) -> Result<(), Error> {
        let Some(ts) = self.earliest else { return Ok(()) };
        let mut sources: Vec<Source> = self.sources.values().cloned().collect();
        sources.sort_by_key(|s| s.id);
        for source in sources {
            let mut args = vec![
                ("tool", Value::Text(format!("{} {}", source.tool, source.version))),
                ("state", Value::Text(source.state.to_string())),
                ("recorded", Value::Uint(source.recorded)),
                ("dropped", Value::Uint(source.dropped)),
                ("one_in", Value::Uint(u64::from(source.one_in))),
            ];
            args.extend(source.note.as_ref().map(|n| ("note", Value::Text(n.to_string()))));
            if !source.config.is_empty() {
                args.push(("config", Value::Text(source.config.to_string())));
            }
            let track = self.tree.own_points(NOBODY, SOURCES, &mut self.packets)?;
            self.instant(Event {
                ts,
                track,
                kind: proto::event::INSTANT,
                category: "source",
                name: &source.kind,
                args,
                flows: Vec::new(),
            })?;
        }
        Ok(())
    }
}
