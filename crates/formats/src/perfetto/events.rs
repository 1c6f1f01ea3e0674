//! Each shape of row as an event of Perfetto.

use std::collections::BTreeSet;
use std::io::Write;

use gpuwhy_schema::{
    Cause, Counter, EntityId, Finding, Mark, Measure, Ns, Part, Sample, Source, SourceId, Span,
    State, Table, ThreadState, WakeContext, names,
};

use super::args::Details;
use super::packets::{Args, Event, Value};
use super::writer::{Delta, Writer};
use super::{Error, proto};

/// The tick of a source until it shows a shorter one: 100 Hz.
const TICK: Ns = Ns::millis(10);
/// Frames of a stack that are written; deeper stacks are mostly recursion.
const STACK_DEPTH: usize = 128;

/// The track of findings, at the top level.
const FINDINGS: &str = "gpuwhy findings";
/// The track of sources, at the top level.
const SOURCES: &str = "gpuwhy sources";
/// The track of a thread for the parts of its steps.
const PARTS: &str = "where the time went";
/// The track of a thread for the threads that it woke.
const WAKES: &str = "wakes";
/// The entity of tracks at the top level: no entity has the id 0.
const TOP_LEVEL: EntityId = EntityId(0);

impl<W: Write> Writer<W> {
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

    pub(super) fn span(&mut self, span: &Span, details: &Details<'_>) -> Result<(), Error> {
        let end = span.dur.map(|dur| span.ts.saturating_add(dur.max(Ns::ZERO)));
        if !self.wanted(span.ts, end.unwrap_or(Ns::MAX)) || !self.known(span.track) {
            return Ok(());
        }
        let track =
            self.tree.span(span.track, span.ts, end.unwrap_or(Ns::MAX), &mut self.packets)?;
        let Some(track) = track else {
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

    /// Holds a state back until the next one of its track begins, which ends it where its own end is
    /// missing or too late.
    pub(super) fn state(&mut self, state: &State) -> Result<(), Error> {
        if !self.wanted(state.ts, state.end().unwrap_or(Ns::MAX)) || !self.known(state.track) {
            return Ok(());
        }
        let Some(mut last) = self.states.insert(state.track, state.clone()) else {
            return Ok(());
        };
        if last.ts == state.ts && last.value == state.value {
            return Ok(()); // Repeated at the head of a segment; the later row is more complete.
        }
        let until = state.ts.saturating_sub(last.ts);
        last.dur = Some(last.dur.map_or(until, |dur| dur.min(until)));
        self.write_state(&last)
    }

    pub(super) fn write_state(&mut self, state: &State) -> Result<(), Error> {
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

    pub(super) fn counter(&mut self, row: &Counter) -> Result<(), Error> {
        if !self.wanted(row.ts, row.ts) || !self.known(row.track) {
            return Ok(());
        }
        let declared = self.tree.tracks.get(&row.track);
        let delta = declared.is_some_and(|t| t.measure == Some(Measure::Delta));
        let source = declared.map_or(SourceId(0), |t| t.source);
        let track = self.tree.track(row.track, &mut self.packets)?;
        let ts = if delta { self.begin_of_tick(row, source) } else { row.ts };
        self.stats.counters += 1;
        self.packets.counter(ts, track, row.value)
    }

    /// The begin of the time over which a delta counted: the row before; after a zero, one tick before,
    /// since sources leave out the zeros of a pause.
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

    pub(super) fn mark(&mut self, mark: &Mark, details: &Details<'_>) -> Result<(), Error> {
        if !self.wanted(mark.ts, mark.ts) || !self.known(mark.track) {
            return Ok(());
        }
        let mut flows = self.flows_of(mark.id);
        if let Some(wakeup) = details.wakeup(mark.id)
            && wakeup.context == WakeContext::Task
            && let Some(waker) = wakeup.waker.filter(|&w| w != wakeup.woken)
        {
            // The waker's end first: readers keep the order of events at one time.
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

    pub(super) fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        if !self.wanted(sample.ts, sample.ts) || !self.known(sample.track) {
            return Ok(());
        }
        // Innermost first; a damaged trace may have a circle of callers.
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

    pub(super) fn part(&mut self, part: &Part, owner: EntityId) -> Result<(), Error> {
        let end = part.ts.saturating_add(part.dur.max(Ns::ZERO));
        if !self.wanted(part.ts, end) {
            return Ok(());
        }
        let track = self.tree.own(owner, PARTS, (part.ts, end), &mut self.packets)?;
        let Some(track) = track else {
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

    pub(super) fn finding(&mut self, finding: &Finding, causes: &[&Cause]) -> Result<(), Error> {
        let end = finding.ts.saturating_add(finding.dur.max(Ns::ZERO));
        if !self.wanted(finding.ts, end) {
            return Ok(());
        }
        let track = self.tree.own(TOP_LEVEL, FINDINGS, (finding.ts, end), &mut self.packets)?;
        let Some(track) = track else {
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
                    Some(culprit) => format!("{}: {culprit}", cause.class),
                    None => cause.class.to_string(),
                };
                args.push(("class", Value::Text(cause.class.to_string())));
                args.extend(culprit.map(|culprit| ("culprit", Value::Text(culprit))));
                args.push(("excess_ms", Value::Double(cause.excess_ns.as_millis_f64())));
                args.push(("confidence", Value::Double(cause.confidence)));
                args.push(("evidence", Value::Text(cause.evidence.to_string())));
            } else {
                let by = culprit.map(|culprit| format!(" by {culprit}")).unwrap_or_default();
                args.push((
                    "also",
                    Value::Text(format!(
                        "{}{by}: {}, confidence {:.2}",
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

    pub(super) fn write_sources(&mut self) -> Result<(), Error> {
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
            let track = self.tree.own_points(TOP_LEVEL, SOURCES, &mut self.packets)?;
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
