//! Traces of tests.

use gpuwhy_schema::{
    Attr, Counter, Discipline, EntityId, EntityKind, Id, Lane, Lanes, Mark, Measure, Ns, Rows,
    SourceId, State, names,
};
use gpuwhy_store::Writer;

use super::{Options, Vgpu, vgpu};

/// A trace in the making.
pub(super) struct World {
    pub lanes: Lanes,
    pub rows: Rows,
    pub source: SourceId,
    last: u64,
}

impl World {
    pub fn new() -> World {
        let mut lanes = Lanes::default();
        let source = lanes.source("drm_clients", "test", "0", "");
        World { lanes, rows: Rows::default(), source, last: 100 }
    }

    pub fn process(&mut self, name: &str, pid: i64) -> EntityId {
        self.lanes.entity(EntityKind::Process, &format!("{pid}@1"), |e| {
            e.name = name.into();
            e.number = Some(pid);
        })
    }

    pub fn gpu(&mut self, name: &str) -> EntityId {
        self.lanes.entity(EntityKind::Gpu, name, |_| {})
    }

    pub fn part(&mut self, kind: EntityKind, name: &str, of: EntityId) -> EntityId {
        self.lanes.entity(kind, name, |e| e.parent = Some(of))
    }

    /// An engine, so many alike.
    pub fn engine(&mut self, gpu: EntityId, name: &str, capacity: i64) -> EntityId {
        self.lanes.entity(EntityKind::Engine, name, |e| {
            e.parent = Some(gpu);
            e.number = Some(capacity);
        })
    }

    pub fn readings(
        &mut self,
        of: EntityId,
        on: EntityId,
        (under, name, measure): (&str, &str, Measure),
        readings: &[(f64, f64)],
    ) {
        let lane = |name| Lane::counter(name, "1", measure);
        let parent = self.lanes.track(on, None, lane(under), self.source);
        let track = self.lanes.track(of, Some(parent), lane(name), self.source);
        for (s, value) in readings {
            let ts = Ns((s * 1e9) as i64);
            self.rows.counter.push(Counter { ts, track, value: *value });
        }
    }

    /// Milliseconds on an engine at each second.
    pub fn counts(&mut self, of: EntityId, on: EntityId, ms: &[(f64, f64)]) {
        let kind = (names::ENGINE_TIME, names::PROCESS_ENGINE_TIME, Measure::Delta);
        let ns: Vec<(f64, f64)> = ms.iter().map(|(s, ms)| (*s, ms * 1e6)).collect();
        self.readings(of, on, kind, &ns);
    }

    /// Whose turn it was on an engine, from and to in ms; nobody is known for none.
    pub fn turns(&mut self, on: EntityId, turns: &[(Option<EntityId>, i64, i64)]) {
        let lane = Lane::states(names::ENGINE_OWNER, Discipline::Sparse);
        let track = self.lanes.track(on, None, lane, self.source);
        for &(who, from, to) in turns {
            let value = who.map_or(0, |who| who.0.into());
            let (ts, dur) = (Ns::millis(from), Some(Ns::millis(to - from)));
            self.rows.state.push(State { ts, dur, track, value, arg: None });
        }
    }

    pub fn samples(&mut self, of: EntityId, on: EntityId, percent: &[(f64, f64)]) {
        let kind = (names::GPU_UTILIZATION, names::PROCESS_SM_UTILIZATION, Measure::Gauge);
        self.readings(of, on, kind, percent);
    }

    pub fn told(mut self, options: &Options) -> Vgpu {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        let mut writer = Writer::create(&path, Default::default()).unwrap();
        self.lanes.drain(&mut self.rows);
        writer.append(&mut self.rows).unwrap();
        writer.finish().unwrap();
        vgpu(&path, options).unwrap()
    }

    /// Marks of tracepoints on a process, as `TIME NAME KEY=VALUE…` in lines.
    pub fn events(&mut self, of: EntityId, text: &str) {
        let track = self.lanes.track(of, None, Lane::marks("kernel"), self.source);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let mut words = line.split_whitespace();
            let ts = Ns(words.next().unwrap().parse().unwrap());
            let name = words.next().unwrap().into();
            self.last += 1;
            let id = Id(self.last);
            self.rows.mark.push(Mark { id, ts, track, name, value: None });
            self.rows.attr.extend(words.map(|word| {
                let (key, value) = word.split_once('=').unwrap();
                Attr { id, key: key.into(), value: value.into() }
            }));
        }
    }
}
