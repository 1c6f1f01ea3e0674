//! The lanes as they are now: the last row of each entity, track, source, stack node and frame,
//! and the sync points.

use std::collections::{BTreeMap, HashSet, VecDeque};

use gpuwhy_schema::{
    Clock, Entity, EntityId, Frame, Name, Ns, Rows, STACKS_LAST, Source, SourceId, Stack, Track,
    TrackId, remembered,
};

/// An entity that ended is kept for as long after what is kept of its rows: causes can be told
/// of long after whoever caused them is gone.
const GRACE: Ns = Ns::secs(60);

/// The lanes, each once.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    entities: BTreeMap<EntityId, Entity>,
    tracks: BTreeMap<TrackId, Track>,
    sources: BTreeMap<SourceId, Source>,
    /// By host, clock and time.
    clocks: BTreeMap<(EntityId, Name, Ns), Clock>,
    stacks: BTreeMap<u32, Stack>,
    frames: BTreeMap<u32, Frame>,
    /// When stacks and frames were declared, up to which ids of each.
    declared: VecDeque<(Ns, u32, u32)>,
    /// How many there were after the last pruning.
    pruned_to: usize,
}

impl Latest {
    /// Takes the lanes out of `rows`, which came at `now`.
    pub fn take(&mut self, rows: &mut Rows, now: Ns) {
        self.entities.extend(rows.entity.drain(..).map(|e| (e.id, e)));
        self.tracks.extend(rows.track.drain(..).map(|t| (t.id, t)));
        self.sources.extend(rows.source.drain(..).map(|s| (s.id, s)));
        let clocks = rows.clock.drain(..);
        self.clocks.extend(clocks.map(|c| ((c.host, c.clock.clone(), c.ts_trace), c)));
        if !rows.stack.is_empty() || !rows.frame.is_empty() {
            let at = rows.sample.iter().map(|s| s.ts).max().map_or(now, |ts| ts.max(now));
            self.stacks.extend(rows.stack.drain(..).map(|s| (s.id, s)));
            self.frames.extend(rows.frame.drain(..).map(|f| (f.id, f)));
            let last = |ids: Option<&u32>| ids.copied().unwrap_or(0);
            let (stack, frame) = (last(self.stacks.keys().last()), last(self.frames.keys().last()));
            match self.declared.back_mut() {
                // A mark a second is near enough.
                Some(back) if at.saturating_sub(back.0) < Ns::secs(1) => {
                    (back.1, back.2) = (stack, frame);
                }
                _ => self.declared.push_back((at, stack, frame)),
            }
        }
    }

    /// All of them; of stacks and frames, those of `rows`.
    pub fn rows_for(&self, rows: &Rows) -> Rows {
        let mut stacks: BTreeMap<u32, Stack> = BTreeMap::new();
        let mut frames: BTreeMap<u32, Frame> = BTreeMap::new();
        for sample in &rows.sample {
            let mut at = sample.stack;
            while let Some(id) = at.filter(|id| !stacks.contains_key(id)) {
                let Some(node) = self.stacks.get(&id) else { break };
                stacks.insert(id, node.clone());
                if let Some(frame) = self.frames.get(&node.frame) {
                    frames.insert(frame.id, frame.clone());
                }
                at = node.parent;
            }
        }
        Rows {
            stack: stacks.into_values().collect(),
            frame: frames.into_values().collect(),
            ..self.others()
        }
    }

    /// All of them.
    pub fn rows(&self) -> Rows {
        Rows {
            stack: self.stacks.values().cloned().collect(),
            frame: self.frames.values().cloned().collect(),
            ..self.others()
        }
    }

    fn others(&self) -> Rows {
        Rows {
            entity: self.entities.values().cloned().collect(),
            track: self.tracks.values().cloned().collect(),
            source: self.sources.values().cloned().collect(),
            clock: self.clocks.values().cloned().collect(),
            ..Rows::default()
        }
    }

    fn len(&self) -> usize {
        self.entities.len()
            + self.tracks.len()
            + self.clocks.len()
            + self.stacks.len()
            + self.frames.len()
    }

    /// Forgets who ended before `since`, once there are twice as many as after the last time.
    pub fn prune_if_grown(&mut self, since: Ns) -> bool {
        let grown = self.len() >= 2 * self.pruned_to.max(512);
        if grown {
            self.prune(since);
        }
        grown
    }

    /// Whether the track was declared and is still remembered.
    pub fn has_track(&self, track: TrackId) -> bool {
        self.tracks.contains_key(&track)
    }

    /// Forgets the entities that ended [`GRACE`] before `since`, and their tracks, unless others
    /// belong to them; of the sync points before `since` all but the last of each clock; and stacks
    /// that no row after `since` refers to.
    pub fn prune(&mut self, since: Ns) {
        let before = since.saturating_sub(GRACE);
        let mut keep = remembered(&self.entities, before);
        let mut kept_tracks: HashSet<TrackId> = HashSet::new();
        for track in self.tracks.values().filter(|t| keep.contains(&t.entity)) {
            let mut at = Some(track.id);
            while let Some(id) = at.filter(|id| kept_tracks.insert(*id)) {
                at = self.tracks.get(&id).and_then(|t| t.parent);
            }
        }
        // The track that another is shown under stays, and with it whose it is.
        keep.extend(kept_tracks.iter().filter_map(|t| Some(self.tracks.get(t)?.entity)));
        self.tracks.retain(|id, _| kept_tracks.contains(id));
        self.entities.retain(|id, _| keep.contains(id));

        // A row may refer to what was declared STACKS_LAST before it; the rest is for late rows.
        let declared = since.saturating_sub(STACKS_LAST).saturating_sub(GRACE);
        let old = self.declared.partition_point(|(at, ..)| *at < declared);
        if let Some((_, stack, frame)) = self.declared.drain(..old).next_back() {
            self.stacks = self.stacks.split_off(&stack.saturating_add(1));
            self.frames = self.frames.split_off(&frame.saturating_add(1));
        }

        let mut later: Option<(EntityId, Name)> = None;
        let gone: Vec<_> = self
            .clocks
            .keys()
            .rev()
            .filter(|(host, clock, ts)| {
                let old = *ts < since;
                let first = later.as_ref().is_none_or(|(h, c)| (h, c) != (host, clock));
                if old {
                    later = Some((*host, clock.clone()));
                }
                old && !first
            })
            .cloned()
            .collect();
        gone.iter().for_each(|key| drop(self.clocks.remove(key)));
        self.pruned_to = self.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwhy_schema::{EntityKind, Lane, Lanes, Sample};

    #[test]
    fn who_ended_long_ago_is_forgotten_with_his_tracks_but_not_while_others_are_his() {
        let mut lanes = Lanes::default();
        let source = lanes.source("s", "t", "0", "");
        let mut process = |key: &str, parent, to: Option<i64>| {
            let id = lanes.entity(EntityKind::Process, key, |e| {
                e.parent = parent;
                e.to = to.map(Ns::secs);
            });
            lanes.track(id, None, Lane::marks("signals"), source);
            id
        };
        let host = process("host", None, None);
        let gone = process("gone", Some(host), Some(100));
        let parent = process("parent", Some(host), Some(100));
        process("child", Some(parent), None);
        process("just ended", Some(host), Some(950));
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        for s in [1, 2, 990, 995] {
            rows.clock.push(Clock {
                host,
                clock: "ptp".into(),
                ts_source: 0,
                ts_trace: Ns::secs(s),
                error_ns: Ns(5),
            });
        }
        let mut latest = Latest::default();
        latest.take(&mut rows, Ns::secs(1000));
        latest.prune(Ns::secs(1000 - 10));
        let rows = latest.rows();
        let keys: Vec<_> = rows.entity.iter().map(|e| &*e.key).collect();
        assert_eq!(keys, ["host", "parent", "child", "just ended"]);
        assert!(rows.track.iter().all(|t| t.entity != gone));
        assert_eq!(rows.track.len(), 4);
        let clocks: Vec<_> = rows.clock.iter().map(|c| c.ts_trace.0 / 1_000_000_000).collect();
        assert_eq!(clocks, [2, 990, 995]);
    }

    #[test]
    fn stacks_that_nobody_can_refer_to_any_more_are_forgotten() {
        let mut latest = Latest::default();
        let sample = |s: i64, stack| Sample {
            ts: Ns::secs(s),
            track: TrackId(1),
            stack: Some(stack),
            state: None,
            weight: 1.0,
        };
        let mut last = 0;
        for s in (0..1000).step_by(10) {
            let mut rows = Rows::default();
            for _ in 0..3 {
                last += 1;
                let frame =
                    Frame { id: last, name: "f".into(), module: None, file: None, line: None };
                let parent = (last % 3 != 1).then(|| last - 1);
                rows.stack.push(Stack { id: last, parent, frame: last });
                rows.frame.push(frame);
            }
            rows.sample.push(sample(s, last));
            latest.take(&mut rows, Ns::secs(s));
        }
        latest.prune(Ns::secs(990 - 30));
        // Of the 30 s that are kept, and of the two minutes before them.
        let kept = latest.rows();
        assert!((45..=51).contains(&kept.stack.len()), "{}", kept.stack.len());
        assert_eq!(kept.frame.len(), kept.stack.len());
        // A sample's stack, its callers and their functions, and no others.
        let rows = Rows { sample: vec![sample(990, last)], ..Rows::default() };
        let of_it = latest.rows_for(&rows);
        assert_eq!(
            of_it.stack.iter().map(|s| s.id).collect::<Vec<_>>(),
            [last - 2, last - 1, last]
        );
        assert_eq!(of_it.frame.len(), 3);
    }
}
