//! What rows must be to each other.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gpuwhy_schema::{
    Attr, Cause, Counter, Discipline, EachTable, EntityId, Finding, Gthread, Id, Link, LinkKind,
    Mark, Message, Ns, Part, Rows, Sample, Span, State, Table, ThreadState, TrackId, Wakeup, names,
};

use super::lanes::Lanes;
use super::{Findings, Rule};
use crate::Trace;
use crate::ids::IdSet;
use crate::read::{Origin, Place, Read};

const ALL: Range<Ns> = Ns::MIN..Ns::MAX;
/// Links whose ends are looked up in one pass over spans and marks.
const LINKS_A_PASS: usize = 1 << 20;
/// Spans within spans, on one track.
const MAX_NESTING: usize = 4096;
/// References to what was not seen yet.
const MAX_AHEAD: usize = 1 << 20;

/// The rows of a table in order, with where each stands.
struct Placed<'a, T> {
    trace: &'a Trace,
    places: Vec<Place>,
    read: Read<T>,
    batch: std::vec::IntoIter<(Origin, T)>,
}

impl<'a, T: Table> Placed<'a, T> {
    fn new(trace: &'a Trace) -> Self {
        let places = trace.places::<T>(&ALL);
        let read = Read::new(trace.dir(), places.clone(), ALL);
        Placed { trace, places, read, batch: Vec::new().into_iter() }
    }

    /// The next row; what cannot be read is noted, and ends the table.
    fn next(&mut self, findings: &mut Findings) -> Option<(Origin, T)> {
        loop {
            if let Some(row) = self.batch.next() {
                return Some(row);
            }
            match self.read.next_placed()? {
                Ok(rows) => self.batch = rows.into_iter(),
                // The pass over files has said so already.
                Err(e) if findings.has_unreadable(T::NAME) => drop(e),
                Err(e) => findings.unreadable(T::NAME, &e),
            }
        }
    }

    fn place(&self, origin: Origin) -> String {
        place(self.trace, &self.places, origin)
    }
}

fn place(trace: &Trace, places: &[Place], origin: Origin) -> String {
    match places.get(origin.source as usize) {
        Some(Place::Sealed(file)) => format!("{} row {}", file.path, origin.row),
        Some(Place::Journal(found)) => {
            let path = found.path.strip_prefix(trace.path()).unwrap_or(&found.path);
            path.display().to_string()
        }
        None => String::new(),
    }
}

/// The ids that were given out.
#[derive(Default)]
struct Given {
    spans: IdSet,
    marks: IdSet,
    findings: IdSet,
}

impl Given {
    fn has(&self, id: Id) -> bool {
        self.spans.contains(id) || self.marks.contains(id)
    }
}

pub(super) fn check(trace: &Trace, lanes: &Lanes, findings: &mut Findings) {
    let mut given = Given::default();
    let parts = parts(trace, findings);
    spans(trace, lanes, &mut given, &parts, findings);
    states(trace, lanes, findings);
    counters(trace, findings);
    marks(trace, &mut given, findings);
    samples(trace, lanes, findings);
    conclusions(trace, &mut given, findings);
    links(trace, lanes, &given, findings);
    let mut in_order: Vec<(Id, Tiles)> = parts.into_iter().collect();
    in_order.sort_unstable_by_key(|(_, tiles)| tiles.start);
    for (step, part) in in_order {
        if !given.spans.contains(step) {
            findings.missing(Part::NAME, || part.place, || format!("there is no step {step}"));
        }
    }
    let Ok(()) = Rows::default().each(&mut Details { trace, lanes, given: &given, findings });
}

/// What is known of the parts of a step before the step itself is seen.
struct Tiles {
    start: Ns,
    /// Where the next part has to begin.
    next: Ns,
    place: String,
}

fn parts(trace: &Trace, findings: &mut Findings) -> HashMap<Id, Tiles> {
    let mut steps: HashMap<Id, Tiles> = HashMap::new();
    let mut rows = Placed::<Part>::new(trace);
    while let Some((origin, part)) = rows.next(findings) {
        let end = part.ts.saturating_add(part.dur);
        if part.dur < Ns::ZERO {
            findings.note(
                Rule::Value,
                Part::NAME,
                || rows.place(origin),
                || format!("it lasts {} ns", part.dur.0),
            );
        }
        match steps.get_mut(&part.step) {
            None => {
                let place = rows.place(origin);
                steps.insert(part.step, Tiles { start: part.ts, next: end, place });
            }
            // Nothing long lies anywhere within; it may have been sorted before or after.
            Some(tiles) if part.dur == Ns::ZERO && part.ts <= tiles.next => {}
            Some(tiles) => {
                if part.ts != tiles.next {
                    findings.note(
                        Rule::Parts,
                        Part::NAME,
                        || rows.place(origin),
                        || {
                            let gap = part.ts.saturating_sub(tiles.next);
                            match gap > Ns::ZERO {
                                true => format!(
                                    "{gap} before it belong to no part of step {}",
                                    part.step
                                ),
                                false => format!(
                                    "it overlaps another part of step {} by {}",
                                    part.step,
                                    Ns(gap.0.saturating_neg())
                                ),
                            }
                        },
                    );
                }
                tiles.next = tiles.next.max(end);
            }
        }
    }
    steps
}

fn spans(
    trace: &Trace,
    lanes: &Lanes,
    given: &mut Given,
    parts: &HashMap<Id, Tiles>,
    findings: &mut Findings,
) {
    let mut open: HashMap<TrackId, Vec<Ns>> = HashMap::new();
    let mut ahead: BTreeMap<Id, String> = BTreeMap::new();
    let mut rows = Placed::<Span>::new(trace);
    while let Some((origin, span)) = rows.next(findings) {
        if !given.spans.insert(span.id) {
            findings.note(
                Rule::Unique,
                Span::NAME,
                || rows.place(origin),
                || format!("id {} was given out before", span.id),
            );
        }
        ahead.remove(&span.id);
        if let Some(parent) = span.parent.filter(|p| !given.spans.contains(*p)) {
            // Sources may clock a child a little before its parent.
            if ahead.len() < MAX_AHEAD {
                ahead.entry(parent).or_insert_with(|| rows.place(origin));
            }
        }
        if let (Some(tiles), Some(dur)) = (parts.get(&span.id), span.dur) {
            let end = span.ts.saturating_add(dur);
            if (tiles.start, tiles.next) != (span.ts, end) {
                findings.note(Rule::Parts, Part::NAME, || tiles.place.clone(), || {
                    let sum = tiles.next.saturating_sub(tiles.start);
                    format!(
                        "the parts of step {} lie in [{}, {}) and sum to {sum}, the step in [{}, {end}) for {dur}",
                        span.id, tiles.start.0, tiles.next.0, span.ts.0, end = end.0
                    )
                });
            }
        }
        let track = lanes.tracks.get(&span.track);
        let end = span.end().unwrap_or(Ns::MAX);
        let ends = open.entry(span.track).or_default();
        let what = match track.and_then(|t| t.discipline) {
            Some(Discipline::Nested) => {
                while ends.last().is_some_and(|&e| e <= span.ts) {
                    ends.pop();
                }
                let crossed = ends.last().copied().filter(|&e| e < end);
                if ends.len() < MAX_NESTING {
                    ends.push(end);
                }
                crossed.map(|e| {
                    format!("it outlasts the span that contains it by {}", end.saturating_sub(e))
                })
            }
            Some(Discipline::Serial) => {
                let before = ends.last().copied().filter(|&e| e > span.ts);
                ends.clear();
                ends.push(before.unwrap_or(end).max(end));
                before
                    .map(|e| format!("the span before it ends {} later", e.saturating_sub(span.ts)))
            }
            _ => None,
        };
        if let Some(what) = what {
            findings.note(
                Rule::Discipline,
                Span::NAME,
                || rows.place(origin),
                || {
                    let name = track.map_or("", |t| &t.name);
                    format!("`{}` on track {} `{name}`: {what}", span.name, span.track)
                },
            );
        }
    }
    for (parent, place) in ahead {
        findings.missing(Span::NAME, || place, || format!("its parent {parent} is not there"));
    }
}

fn states(trace: &Trace, lanes: &Lanes, findings: &mut Findings) {
    // Among the rows that a full disk cost may be the end of a state, or all of it.
    let lossy = trace.manifest().lost_rows > 0;
    let mut ends: HashMap<TrackId, Ns> = HashMap::new();
    let mut rows = Placed::<State>::new(trace);
    while let Some((origin, state)) = rows.next(findings) {
        let end = state.end().unwrap_or(Ns::MAX);
        let before = ends.insert(state.track, end);
        let Some(track) = lanes.tracks.get(&state.track) else { continue };
        let what = match before {
            Some(Ns::MAX) if lossy => None,
            Some(before) if before == Ns::MAX => Some("the state before it has no end".to_string()),
            Some(before) if before > state.ts => {
                ends.insert(state.track, before.max(end));
                Some(format!(
                    "it begins {} before the state before it ends",
                    before.saturating_sub(state.ts)
                ))
            }
            Some(before)
                if before < state.ts && !lossy && track.discipline == Some(Discipline::Tiled) =>
            {
                Some(format!(
                    "nothing is known of the {} before it",
                    state.ts.saturating_sub(before)
                ))
            }
            _ => None,
        };
        if let Some(what) = what {
            findings.note(
                Rule::Tiling,
                State::NAME,
                || rows.place(origin),
                || format!("track {} `{}`: {what}", state.track, track.name),
            );
        }
        let unknown = match &*track.name {
            names::THREAD_STATE => ThreadState::from_code(state.value).is_none(),
            names::OCCUPANT => {
                state.value != 0
                    && !u32::try_from(state.value)
                        .is_ok_and(|id| lanes.entities.contains_key(&EntityId(id)))
            }
            _ => false,
        };
        if unknown {
            findings.note(
                Rule::Value,
                State::NAME,
                || rows.place(origin),
                || format!("{} is no value of `{}`", state.value, track.name),
            );
        }
    }
}

fn counters(trace: &Trace, findings: &mut Findings) {
    let mut rows = Placed::<Counter>::new(trace);
    while let Some((origin, counter)) = rows.next(findings) {
        if !counter.value.is_finite() {
            findings.note(
                Rule::Value,
                Counter::NAME,
                || rows.place(origin),
                || format!("{} is not a measurement", counter.value),
            );
        }
    }
}

fn marks(trace: &Trace, given: &mut Given, findings: &mut Findings) {
    let mut rows = Placed::<Mark>::new(trace);
    while let Some((origin, mark)) = rows.next(findings) {
        if given.spans.contains(mark.id) || !given.marks.insert(mark.id) {
            findings.note(
                Rule::Unique,
                Mark::NAME,
                || rows.place(origin),
                || format!("id {} was given out before", mark.id),
            );
        }
    }
}

fn samples(trace: &Trace, lanes: &Lanes, findings: &mut Findings) {
    let mut rows = Placed::<Sample>::new(trace);
    while let Some((origin, sample)) = rows.next(findings) {
        if let Some(stack) = sample.stack.filter(|s| !lanes.stacks.contains(s)) {
            findings.note(
                Rule::Reference,
                Sample::NAME,
                || rows.place(origin),
                || format!("there is no stack {stack}"),
            );
        }
    }
}

fn conclusions(trace: &Trace, given: &mut Given, findings: &mut Findings) {
    let mut rows = Placed::<Finding>::new(trace);
    while let Some((origin, finding)) = rows.next(findings) {
        if given.has(finding.id) || !given.findings.insert(finding.id) {
            findings.note(
                Rule::Unique,
                Finding::NAME,
                || rows.place(origin),
                || format!("id {} was given out before", finding.id),
            );
        }
    }
    let mut rows = Placed::<Cause>::new(trace);
    while let Some((origin, cause)) = rows.next(findings) {
        if !given.findings.contains(cause.finding) {
            findings.missing(
                Cause::NAME,
                || rows.place(origin),
                || format!("there is no finding {}", cause.finding),
            );
        }
        if !(0.0..=1.0).contains(&cause.confidence) {
            findings.note(
                Rule::Value,
                Cause::NAME,
                || rows.place(origin),
                || format!("{} is no confidence", cause.confidence),
            );
        }
    }
}

fn links(trace: &Trace, lanes: &Lanes, given: &Given, findings: &mut Findings) {
    let mut rows = Placed::<Link>::new(trace);
    loop {
        let mut links = Vec::new();
        while links.len() < LINKS_A_PASS
            && let Some(link) = rows.next(findings)
        {
            links.push(link);
        }
        if links.is_empty() {
            return;
        }
        let mut ends: HashMap<Id, Option<(Ns, TrackId)>> =
            links.iter().flat_map(|(_, l)| [(l.from, None), (l.to, None)]).collect();
        let mut spans = Placed::<Span>::new(trace);
        while let Some((_, span)) = spans.next(findings) {
            if let Some(end) = ends.get_mut(&span.id) {
                *end = Some((span.ts, span.track));
            }
        }
        let mut marks = Placed::<Mark>::new(trace);
        while let Some((_, mark)) = marks.next(findings) {
            if let Some(end) = ends.get_mut(&mark.id) {
                *end = Some((mark.ts, mark.track));
            }
        }
        for (origin, link) in links {
            for id in [link.from, link.to] {
                if !given.has(id) {
                    findings.missing(
                        Link::NAME,
                        || rows.place(origin),
                        || format!("there is no span or mark {id}"),
                    );
                }
            }
            let end = |id| ends.get(&id).copied().flatten();
            let (Some((from, cause)), Some((to, effect))) = (end(link.from), end(link.to)) else {
                continue;
            };
            if link.ts != from.max(to) {
                findings.note(
                    Rule::Link,
                    Link::NAME,
                    || rows.place(origin),
                    || {
                        format!(
                            "it lies at {}, the later of its ends begins at {}",
                            link.ts.0,
                            from.max(to).0
                        )
                    },
                );
            }
            let causal = matches!(link.kind, LinkKind::Launch | LinkKind::Queued | LinkKind::Wakes);
            let error = lanes.error(cause, effect);
            if causal && to < from.saturating_sub(error) {
                findings.note(Rule::Link, Link::NAME, || rows.place(origin), || {
                    let early = from.saturating_sub(to);
                    format!("`{}`: the effect begins {early} before its cause, the clocks are off by {error} at most", link.kind)
                });
            }
        }
    }
}

/// Detail tables: at most one row an id, and it lies at the start of its span or mark.
struct Details<'a> {
    trace: &'a Trace,
    lanes: &'a Lanes,
    given: &'a Given,
    findings: &'a mut Findings,
}

impl EachTable for Details<'_> {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<(), Self::Error> {
        if T::GROUP != Attr::GROUP {
            return Ok(());
        }
        let mut rows = Placed::<T>::new(self.trace);
        if rows.places.is_empty() {
            return Ok(());
        }
        let of_mark = matches!(T::NAME, Wakeup::NAME | Message::NAME);
        let of_either = matches!(T::NAME, Gthread::NAME | Attr::NAME);
        let (mut spans, mut marks) = (AtStart::new(self.trace), AtStart::new(self.trace));
        let mut seen = IdSet::default();
        while let Some((origin, row)) = rows.next(self.findings) {
            let Some(id) = row.id() else { continue };
            let there = match () {
                () if of_either => self.given.has(id),
                () if of_mark => self.given.marks.contains(id),
                () => self.given.spans.contains(id),
            };
            if !there {
                self.findings.missing(
                    T::NAME,
                    || rows.place(origin),
                    || format!("there is no {} {id}", if of_mark { "mark" } else { "span" }),
                );
                continue;
            }
            let Some(ts) = row.start() else { continue };
            if !seen.insert(id) {
                self.findings.note(
                    Rule::Unique,
                    T::NAME,
                    || rows.place(origin),
                    || format!("{id} has a row already"),
                );
            }
            let on_span = match of_mark {
                true => None,
                false => spans.find(ts, id, |s: &Span| s.track, self.findings),
            };
            let track = match on_span {
                None if of_mark || of_either => {
                    marks.find(ts, id, |m: &Mark| m.track, self.findings)
                }
                found => found,
            };
            let Some(track) = track else {
                self.findings.note(
                    Rule::Detail,
                    T::NAME,
                    || rows.place(origin),
                    || format!("it lies at {}, and {id} does not begin there", ts.0),
                );
                continue;
            };
            if let Some(wakeup) = (&row as &dyn Any).downcast_ref::<Wakeup>() {
                let track = self.lanes.tracks.get(&track);
                let owner = track.filter(|t| &*t.name == names::WAKEUPS).map(|t| t.entity);
                if track.is_some() && owner != Some(wakeup.woken) {
                    self.findings.note(
                        Rule::Wakeup,
                        T::NAME,
                        || rows.place(origin),
                        || {
                            format!(
                                "mark {id} is not on the `wakeups` track of thread {}",
                                wakeup.woken
                            )
                        },
                    );
                }
            }
        }
        Ok(())
    }
}

/// The ids that begin at a time, which only moves forwards.
struct AtStart<'a, T> {
    rows: Placed<'a, T>,
    next: Option<T>,
    now: Option<Ns>,
    here: HashMap<Id, TrackId>,
    begun: bool,
}

impl<'a, T: Table> AtStart<'a, T> {
    fn new(trace: &'a Trace) -> Self {
        AtStart {
            rows: Placed::new(trace),
            next: None,
            now: None,
            here: HashMap::new(),
            begun: false,
        }
    }

    /// The track of `id`, if it begins at `ts`.
    fn find(
        &mut self,
        ts: Ns,
        id: Id,
        track: fn(&T) -> TrackId,
        findings: &mut Findings,
    ) -> Option<TrackId> {
        if !self.begun {
            self.next = self.rows.next(findings).map(|(_, row)| row);
            self.begun = true;
        }
        if self.now != Some(ts) {
            self.here.clear();
            self.now = Some(ts);
            while let Some(row) = self.next.take_if(|row| row.start() <= Some(ts)) {
                if let Some(id) = row.id().filter(|_| row.start() == Some(ts)) {
                    self.here.insert(id, track(&row));
                }
                self.next = self.rows.next(findings).map(|(_, row)| row);
            }
        }
        self.here.get(&id).copied()
    }
}
