//! Gives out entities, tracks and sources, each once, and keeps the rows that declare them.

use std::collections::HashMap;

use crate::cell::Name;
use crate::{Discipline, Entity, EntityId, EntityKind, Measure, Ns, Rows, Shape};
use crate::{Source, SourceId, SourceState, Track, TrackId};

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

/// The lanes of one trace as they come up. Rows that declare or change one gather in
/// [`Lanes::drain`].
#[derive(Debug, Default)]
pub struct Lanes {
    entities: HashMap<(EntityKind, Name), EntityId>,
    by_id: Vec<Entity>,
    tracks: HashMap<(EntityId, Option<TrackId>, Name), TrackId>,
    tracks_by_id: Vec<Track>,
    sources: Vec<Source>,
    fresh: Rows,
}

impl Lanes {
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
        let id = EntityId(self.by_id.len() as u32 + 1);
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
        self.by_id.push(entity.clone());
        self.fresh.entity.push(entity);
        id
    }

    /// The entity as last declared.
    pub fn get(&self, id: EntityId) -> Option<&Entity> {
        self.by_id.get((id.0 as usize).checked_sub(1)?)
    }

    /// Changes what is known of an entity; a row is written only if something did change.
    pub fn update(&mut self, id: EntityId, change: impl FnOnce(&mut Entity)) {
        let Some(entity) = (id.0 as usize).checked_sub(1).and_then(|i| self.by_id.get_mut(i))
        else {
            return;
        };
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
        let id = TrackId(self.tracks_by_id.len() as u32 + 1);
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
        self.tracks_by_id.push(track);
        id
    }

    /// Changes what is known of a track; a row is written only if something did change.
    pub fn update_track(&mut self, id: TrackId, change: impl FnOnce(&mut Track)) {
        let Some(track) = (id.0 as usize).checked_sub(1).and_then(|i| self.tracks_by_id.get_mut(i))
        else {
            return;
        };
        let before = track.clone();
        change(track);
        track.id = id;
        if *track != before {
            self.fresh.track.push(track.clone());
        }
    }

    /// A new source that runs as asked until told otherwise.
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
