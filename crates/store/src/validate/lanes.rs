//! Entities, tracks, sources, clocks, stacks: what all other rows refer to.

use std::collections::{BTreeMap, HashMap, HashSet};

use gpuwhy_schema::{
    Clock, Discipline, Entity, EntityId, EntityKind, Frame, Ns, Shape, Source, SourceId,
    SourceState, Stack, Table, Track, TrackId,
};

use super::{Findings, Rule};
use crate::Trace;

/// Deeper than this no entity lies within others.
const MAX_DEPTH: usize = 64;

/// What other rows are checked against.
pub(super) struct Lanes {
    /// Entities, by id: the last row of each.
    pub entities: HashMap<EntityId, Entity>,
    /// Tracks, by id: the last row of each.
    pub tracks: HashMap<TrackId, Track>,
    /// Ids of declared sources.
    pub sources: HashSet<SourceId>,
    /// Ids of declared stacks.
    pub stacks: HashSet<u32>,
    /// The largest clock error of each host.
    errors: HashMap<EntityId, Ns>,
}

impl Lanes {
    /// The outermost entity that holds `id`: its host, in a sound trace.
    fn root(&self, id: EntityId) -> EntityId {
        let mut at = id;
        for _ in 0..MAX_DEPTH {
            match self.entities.get(&at).and_then(|e| e.parent) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        at
    }

    /// How far two tracks' times may be off against each other.
    pub fn error(&self, a: TrackId, b: TrackId) -> Ns {
        let root = |track| self.tracks.get(&track).map(|t| self.root(t.entity));
        let error = |root: Option<EntityId>| {
            root.and_then(|r| self.errors.get(&r)).copied().unwrap_or(Ns::ZERO)
        };
        let (a, b) = (root(a), root(b));
        if a == b { error(a) } else { error(a).saturating_add(error(b)) }
    }

    /// Whether a track has this shape; true if it is not declared at all.
    pub fn is_of(&self, track: TrackId, shape: Shape) -> bool {
        // A track that is not there is another rule's business.
        self.tracks.get(&track).is_none_or(|t| t.shape == shape)
    }
}

/// Where the last row of an id stands is of less use than the id.
fn row(id: impl std::fmt::Display) -> impl FnOnce() -> String {
    move || format!("id {id}")
}

pub(super) fn check(trace: &Trace, findings: &mut Findings) -> Lanes {
    let entities = trace.entities().unwrap_or_else(|e| {
        findings.unreadable(Entity::NAME, &e);
        Vec::new()
    });
    let tracks = trace.tracks().unwrap_or_else(|e| {
        findings.unreadable(Track::NAME, &e);
        Vec::new()
    });
    let sources = trace.sources().unwrap_or_else(|e| {
        findings.unreadable(Source::NAME, &e);
        Vec::new()
    });
    let mut lanes = Lanes {
        entities: entities.into_iter().map(|e| (e.id, e)).collect(),
        tracks: tracks.into_iter().map(|t| (t.id, t)).collect(),
        sources: sources.iter().map(|s| s.id).collect(),
        stacks: HashSet::new(),
        errors: HashMap::new(),
    };
    let mut in_order: Vec<&Entity> = lanes.entities.values().collect();
    in_order.sort_unstable_by_key(|e| e.id);
    for e in in_order {
        if e.id.0 == 0 {
            findings.note(Rule::Value, Entity::NAME, row(e.id), || "0 is nobody's id".into());
        }
        let mut at = e.parent;
        for depth in 0.. {
            let Some(parent) = at else { break };
            if depth == MAX_DEPTH {
                findings.note(Rule::Reference, Entity::NAME, row(e.id), || {
                    "its parents go round in a circle".into()
                });
                break;
            }
            at = lanes.entities.get(&parent).and_then(|p| p.parent);
        }
    }
    let mut in_order: Vec<&Track> = lanes.tracks.values().collect();
    in_order.sort_unstable_by_key(|t| t.id);
    in_order.into_iter().for_each(|t| track(t, findings));
    for s in &sources {
        source(s, findings);
    }
    clocks(trace, &mut lanes, findings);
    stacks(trace, &mut lanes, findings);
    lanes
}

fn track(t: &Track, findings: &mut Findings) {
    let mut bad = |rule, what: &str| {
        findings.note(rule, Track::NAME, row(t.id), || format!("`{}` {what}", t.name));
    };
    use Discipline::*;
    match (t.shape, t.discipline) {
        (Shape::Span, Some(Nested | Serial | Overlap)) | (Shape::State, Some(Tiled | Sparse)) => {}
        (Shape::Span | Shape::State, None) => bad(Rule::Shape, "has no discipline"),
        (_, None) => {}
        (shape, Some(discipline)) => {
            bad(Rule::Shape, &format!("is a {shape} track, which cannot be {discipline}"));
        }
    }
    if t.shape == Shape::Counter {
        if t.unit.is_none() {
            bad(Rule::Unit, "is a counter without a unit");
        }
        if t.measure.is_none() {
            bad(Rule::Unit, "is a counter without a measure");
        }
    }
}

fn source(s: &Source, findings: &mut Findings) {
    if s.state != SourceState::Ok && s.note.as_ref().is_none_or(|n| n.trim().is_empty()) {
        findings.note(Rule::Source, Source::NAME, row(s.id), || {
            format!("`{}` is {} and does not say why", s.kind, s.state)
        });
    }
    if s.one_in == 0 {
        findings.note(Rule::Value, Source::NAME, row(s.id), || {
            format!("`{}` looked at one event in 0", s.kind)
        });
    }
}

fn clocks(trace: &Trace, lanes: &mut Lanes, findings: &mut Findings) {
    for rows in trace.all::<Clock>() {
        let rows = match rows {
            Ok(rows) => rows,
            Err(e) => return findings.unreadable(Clock::NAME, &e),
        };
        for c in rows {
            let place = || format!("the sync point at {}", c.ts_trace.0);
            if c.error_ns < Ns::ZERO {
                findings.note(Rule::Value, Clock::NAME, place, || "its error is negative".into());
            }
            if lanes.entities.get(&c.host).is_some_and(|h| h.kind != EntityKind::Host) {
                findings.note(Rule::Reference, Clock::NAME, place, || {
                    format!("entity {} is not a host", c.host)
                });
            }
            let error = lanes.errors.entry(c.host).or_default();
            *error = (*error).max(c.error_ns);
        }
    }
}

fn stacks(trace: &Trace, lanes: &mut Lanes, findings: &mut Findings) {
    let mut frames = HashSet::new();
    for rows in trace.all::<Frame>() {
        match rows {
            Ok(rows) => frames.extend(rows.iter().map(|f| f.id)),
            Err(e) => return findings.unreadable(Frame::NAME, &e),
        }
    }
    let mut nodes: BTreeMap<u32, Stack> = BTreeMap::new();
    for rows in trace.all::<Stack>() {
        match rows {
            Ok(rows) => nodes.extend(rows.into_iter().map(|s| (s.id, s))),
            Err(e) => return findings.unreadable(Stack::NAME, &e),
        }
    }
    for s in nodes.values() {
        if !frames.contains(&s.frame) {
            findings.note(Rule::Reference, Stack::NAME, row(s.id), || {
                format!("there is no frame {}", s.frame)
            });
        }
        if let Some(parent) = s.parent.filter(|p| !nodes.contains_key(p)) {
            findings.note(Rule::Reference, Stack::NAME, row(s.id), || {
                format!("there is no caller {parent}")
            });
        }
    }
    lanes.stacks = nodes.into_keys().collect();
}
