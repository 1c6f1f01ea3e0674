//! Gives out entities, tracks and sources, each once, and keeps the rows that declare them.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::cell::Name;
use crate::{Discipline, Entity, EntityId, EntityKind, Measure, Ns, Rows, Shape};
use crate::{Source, SourceId, SourceState, Track, TrackId};

/// Live sources declare a stack or a frame again, under a new id, after so long. What was declared
/// longer ago is not referred to by rows to come, so that memory of it can be let go.
pub const STACKS_LAST: Ns = Ns::secs(60);

/// What a track is, apart from whose.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    /// See `track.name`.
    pub name: &'a str,
    /// See `track.shape`.
    pub shape: Shape,
    /// See `track.unit`.
    pub unit: Option<&'a str>,
    /// See `track.measure`.
    pub measure: Option<Measure>,
    /// See `track.discipline`.
    pub discipline: Option<Discipline>,
}

impl<'a> Lane<'a> {
    /// A lane of spans.
    pub const fn spans(name: &'a str, discipline: Discipline) -> Lane<'a> {
        Lane { name, shape: Shape::Span, unit: None, measure: None, discipline: Some(discipline) }
    }

    /// A lane of states.
    pub const fn states(name: &'a str, discipline: Discipline) -> Lane<'a> {
        Lane { name, shape: Shape::State, unit: None, measure: None, discipline: Some(discipline) }
    }

    /// A lane of marks.
    pub const fn marks(name: &'a str) -> Lane<'a> {
        Lane { name, shape: Shape::Mark, unit: None, measure: None, discipline: None }
    }

    /// A counter in a unit.
    pub const fn counter(name: &'a str, unit: &'a str, measure: Measure) -> Lane<'a> {
        Lane {
            name,
            shape: Shape::Counter,
            unit: Some(unit),
            measure: Some(measure),
            discipline: None,
        }
    }
}

/// The entities that have not ended before `before`, and all that they belong to.
pub fn remembered(entities: &BTreeMap<EntityId, Entity>, before: Ns) -> HashSet<EntityId> {
    let mut keep: HashSet<EntityId> = HashSet::new();
    for entity in entities.values().filter(|e| e.to.is_none_or(|to| to >= before)) {
        let mut at = Some(entity.id);
        while let Some(id) = at.filter(|id| keep.insert(*id)) {
            at = entities.get(&id).and_then(|e| e.parent);
        }
    }
    keep
}

/// The lanes of one trace as they come up. Rows that declare or change one gather in
/// [`Lanes::drain`].
#[derive(Debug, Default)]
pub struct Lanes {
    entities: HashMap<(EntityKind, Name), EntityId>,
    by_id: BTreeMap<EntityId, Entity>,
    tracks: HashMap<(EntityId, Option<TrackId>, Name), TrackId>,
    tracks_by_id: BTreeMap<TrackId, Track>,
    /// The last ids given out; none is given out twice.
    last: (u32, u32),
    sources: Vec<Source>,
    fresh: Rows,
    /// Entities that have ended and to which no row will refer any more.
    retired: HashSet<EntityId>,
}

/// Retired entities that are kept at most: forgetting looks at all entities.
const RETIRED: usize = 4 * 1024;

impl Lanes {
    /// The entity of this kind and key, if it lives.
    pub fn find(&self, kind: EntityKind, key: &str) -> Option<EntityId> {
        self.entities.get(&(kind, key.into())).copied()
    }

    /// The entity of this kind and key; `make` completes it when it is new.
    pub fn entity(
        &mut self,
        kind: EntityKind,
        key: &str,
        make: impl FnOnce(&mut Entity),
    ) -> EntityId {
        // Two look-ups by a borrowed key would need a raw-entry map; lanes are few.
        let key: Name = key.into();
        if let Some(&id) = self.entities.get(&(kind, key.clone())) {
            return id;
        }
        self.last.0 += 1;
        let id = EntityId(self.last.0);
        let mut entity = Entity {
            id,
            kind,
            parent: None,
            key: key.clone(),
            name: key.clone(),
            number: None,
            from: None,
            to: None,
        };
        make(&mut entity);
        self.entities.insert((kind, key), id);
        self.by_id.insert(id, entity.clone());
        self.fresh.entity.push(entity);
        id
    }

    /// The entity as last declared.
    pub fn get(&self, id: EntityId) -> Option<&Entity> {
        self.by_id.get(&id)
    }

    /// Changes what is known of an entity; a row is written only if something did change.
    pub fn update(&mut self, id: EntityId, change: impl FnOnce(&mut Entity)) {
        let Some(entity) = self.by_id.get_mut(&id) else { return };
        let before = entity.clone();
        change(entity);
        entity.id = id;
        if *entity != before {
            self.fresh.entity.push(entity.clone());
        }
    }

    /// Ends an entity, so that its key can be given to another (pids are used again).
    pub fn end(&mut self, id: EntityId, at: Ns) {
        self.update(id, |e| e.to = Some(at));
        if let Some(entity) = self.get(id) {
            let key = (entity.kind, entity.key.clone());
            self.entities.remove(&key);
        }
    }

    /// Ends an entity that nothing belongs to and to whose tracks no row will be added: it is forgotten
    /// at the next occasion. Whoever makes entities without end is not remembered for it.
    pub fn retire(&mut self, id: EntityId, at: Ns) {
        self.end(id, at);
        self.retired.insert(id);
        if self.retired.len() >= RETIRED {
            self.forget(Ns::MIN);
        }
    }

    /// How many entities are known.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All entities that are known, living or not, in the order of their ids.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.by_id.values()
    }

    /// The entities with ids after `id` that have not ended, in the order of their ids.
    pub fn living_after(&self, id: EntityId) -> impl Iterator<Item = &Entity> {
        let after = (std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded);
        self.by_id.range(after).map(|(_, entity)| entity).filter(|e| e.to.is_none())
    }

    /// Forgets the entities that ended before `before`, and their tracks, unless others belong to
    /// them: whoever records for days meets millions. What was written of them stays written, and
    /// their ids are not given out again.
    pub fn forget(&mut self, before: Ns) {
        let retired = std::mem::take(&mut self.retired);
        self.by_id.retain(|id, _| !retired.contains(id));
        let keep = remembered(&self.by_id, before);
        self.by_id.retain(|id, _| keep.contains(id));
        self.entities.retain(|_, id| keep.contains(id));
        self.tracks_by_id.retain(|_, track| keep.contains(&track.entity));
        self.tracks.retain(|(entity, ..), _| keep.contains(entity));
    }

    /// The track of this lane of `entity`, under `parent` if given.
    pub fn track(
        &mut self,
        entity: EntityId,
        parent: Option<TrackId>,
        lane: Lane<'_>,
        source: SourceId,
    ) -> TrackId {
        let name: Name = lane.name.into();
        if let Some(&id) = self.tracks.get(&(entity, parent, name.clone())) {
            return id;
        }
        self.last.1 += 1;
        let id = TrackId(self.last.1);
        self.tracks.insert((entity, parent, name.clone()), id);
        let track = Track {
            id,
            entity,
            parent,
            shape: lane.shape,
            name,
            unit: lane.unit.map(Name::from),
            measure: lane.measure,
            discipline: lane.discipline,
            source,
        };
        self.fresh.track.push(track.clone());
        self.tracks_by_id.insert(id, track);
        id
    }

    /// Whether an entity has tracks. Looks at all of them.
    pub fn has_tracks(&self, entity: EntityId) -> bool {
        self.tracks_by_id.values().any(|track| track.entity == entity)
    }

    /// Changes what is known of a track; a row is written only if something did change.
    pub fn update_track(&mut self, id: TrackId, change: impl FnOnce(&mut Track)) {
        let Some(track) = self.tracks_by_id.get_mut(&id) else { return };
        let before = track.clone();
        change(track);
        track.id = id;
        if *track != before {
            self.fresh.track.push(track.clone());
        }
    }

    /// A new source, `ok` until its state is changed.
    pub fn source(&mut self, kind: &str, tool: &str, version: &str, config: &str) -> SourceId {
        let id = SourceId(self.sources.len() as u32 + 1);
        let source = Source {
            id,
            kind: kind.into(),
            tool: tool.into(),
            version: version.into(),
            config: config.into(),
            state: SourceState::Ok,
            note: None,
            recorded: 0,
            dropped: 0,
            one_in: 1,
        };
        self.sources.push(source.clone());
        self.fresh.source.push(source);
        id
    }

    /// Changes what is known of a source; a row is written only if something did change.
    pub fn update_source(&mut self, id: SourceId, change: impl FnOnce(&mut Source)) {
        let Some(source) = (id.0 as usize).checked_sub(1).and_then(|i| self.sources.get_mut(i))
        else {
            return;
        };
        let before = source.clone();
        change(source);
        source.id = id;
        if *source != before {
            self.fresh.source.push(source.clone());
        }
    }

    /// Moves the rows that declare or change lanes since the last call to the end of `rows`.
    pub fn drain(&mut self, rows: &mut Rows) {
        rows.append(&mut self.fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_used_again_is_another_process() {
        let mut lanes = Lanes::default();
        let first = lanes.entity(EntityKind::Process, "42", |e| e.number = Some(42));
        assert_eq!(lanes.entity(EntityKind::Process, "42", |_| {}), first);
        lanes.end(first, Ns(10));
        let second = lanes.entity(EntityKind::Process, "42", |e| e.number = Some(42));
        assert_ne!(first, second);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        let ends: Vec<_> = rows.entity.iter().map(|e| (e.id.0, e.to)).collect();
        assert_eq!(ends, [(1, None), (1, Some(Ns(10))), (2, None)]);
    }

    #[test]
    fn who_ended_is_forgotten_and_his_id_is_nobodys() {
        let mut lanes = Lanes::default();
        let source = lanes.source("s", "t", "0", "");
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        let thread = |lanes: &mut Lanes, key: &str, to: Option<i64>| {
            let id = lanes.entity(EntityKind::Thread, key, |e| e.parent = Some(host));
            let track = lanes.track(id, None, Lane::marks("signals"), source);
            if let Some(to) = to {
                lanes.end(id, Ns(to));
            }
            (id, track)
        };
        let gone = thread(&mut lanes, "gone", Some(5));
        let late = thread(&mut lanes, "late", Some(50));
        let here = thread(&mut lanes, "here", None);
        lanes.forget(Ns(10));
        assert_eq!((lanes.get(gone.0), lanes.len()), (None, 3));
        assert!(lanes.get(late.0).is_some() && lanes.get(here.0).is_some());
        let living: Vec<_> = lanes.living_after(host).map(|e| e.id).collect();
        assert_eq!(living, [here.0]);
        assert_eq!(lanes.track(here.0, None, Lane::marks("signals"), source), here.1);
        let next = thread(&mut lanes, "gone", None);
        assert!(next.0 > here.0 && next.1 > here.1, "{next:?}");
    }

    #[test]
    fn who_makes_entities_without_end_is_not_remembered_for_them() {
        let mut lanes = Lanes::default();
        let source = lanes.source("s", "t", "0", "");
        let gpu = lanes.entity(EntityKind::Gpu, "gpu", |_| {});
        let mut rows = Rows::default();
        for i in 0..100_000 {
            let key = format!("stream {i}");
            let id = lanes.entity(EntityKind::Stream, &key, |e| e.parent = Some(gpu));
            lanes.track(id, None, Lane::marks("m"), source);
            lanes.retire(id, Ns(i));
            assert!(lanes.len() <= 1 + RETIRED);
            assert_eq!(lanes.find(EntityKind::Stream, &key), None);
            lanes.drain(&mut rows);
        }
        let ends = rows.entity.iter().filter(|e| e.to.is_some()).count();
        assert_eq!(ends, 100_000, "each was written with its end");
        lanes.forget(Ns(0));
        assert_eq!((lanes.len(), lanes.find(EntityKind::Gpu, "gpu")), (1, Some(gpu)));
    }

    #[test]
    fn an_update_that_changes_nothing_writes_nothing() {
        let mut lanes = Lanes::default();
        let source = lanes.source("proc:psi", "gpuwhy", "0", "");
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        lanes.update_source(source, |s| s.dropped = 0);
        let mut more = Rows::default();
        lanes.drain(&mut more);
        assert!(more.is_empty());
        lanes.update_source(source, |s| s.dropped = 3);
        lanes.drain(&mut more);
        assert_eq!(more.source[0].dropped, 3);
    }
}
