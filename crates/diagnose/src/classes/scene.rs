//! A scene for tests of classes: one GPU, and an incident from 10 to 12 s.

use std::collections::BTreeMap;

use gpuwhy_schema::{
    Class, Counter, EntityId, EntityKind, Id, Lane, Lanes, Mark, Measure, Ns, Rows, SourceId, names,
};

use super::Incident;
use crate::evidence::{Evidence, Statements};
use crate::gpu::Readings;
use crate::on_cpu::OnCpu;

pub(super) struct Scene {
    lanes: Lanes,
    rows: Rows,
    gpu: EntityId,
    source: SourceId,
}

impl Scene {
    pub fn new() -> Scene {
        let mut lanes = Lanes::default();
        let source = lanes.source("nvml", "test", "0", "");
        let gpu = lanes.entity(EntityKind::Gpu, "GPU-1", |e| e.name = "gpu 0".into());
        Scene { lanes, rows: Rows::default(), gpu, source }
    }

    /// Readings of the GPU, in seconds.
    pub fn counter(mut self, name: &str, measure: Measure, readings: &[(i64, f64)]) -> Scene {
        let lane = Lane::counter(name, "1", measure);
        let track = self.lanes.track(self.gpu, None, lane, self.source);
        let rows = readings.iter().map(|&(s, value)| Counter { ts: Ns::secs(s), track, value });
        self.rows.counter.extend(rows);
        self
    }

    /// How long a process had the GPU since the reading before, in seconds and ns.
    pub fn turns(mut self, pid: i64, readings: &[(i64, f64)]) -> Scene {
        let gpu = self.gpu;
        let engine =
            self.lanes.entity(EntityKind::Engine, "GPU-1/kernels", |e| e.parent = Some(gpu));
        let process = self.lanes.entity(EntityKind::Process, &format!("{pid}"), |e| {
            e.name = "gpuhog".into();
            e.number = Some(pid);
        });
        let lane = Lane::counter(names::ENGINE_TIME, "ns", Measure::Delta);
        let parent = self.lanes.track(engine, None, lane, self.source);
        let lane = Lane::counter(names::PROCESS_ENGINE_TIME, "ns", Measure::Delta);
        let track = self.lanes.track(process, Some(parent), lane, self.source);
        let rows = readings.iter().map(|&(s, value)| Counter { ts: Ns::secs(s), track, value });
        self.rows.counter.extend(rows);
        self
    }

    /// An event of the GPU.
    pub fn event(mut self, ms: i64, name: &str, value: Option<f64>) -> Scene {
        let lane = Lane::marks(names::GPU_EVENTS);
        let track = self.lanes.track(self.gpu, None, lane, self.source);
        let ts = Ns::millis(ms);
        self.rows.mark.push(Mark { id: Id(1), ts, track, name: name.into(), value });
        self
    }

    pub fn readings(mut self) -> Readings {
        self.lanes.drain(&mut self.rows);
        let Rows { entity, track, counter, mark, .. } = &self.rows;
        Readings::new(entity, track, super::reads, counter, mark)
    }

    /// What supports and what contradicts a class.
    pub fn check(self, class: Class, supporting: &[&str], contradicting: &[&str]) {
        let readings = self.readings();
        let incident = Incident {
            from: Ns::secs(10),
            to: Ns::secs(12),
            readings: &readings,
            kinds: &BTreeMap::new(),
            sleeps: Default::default(),
            on_cpu: &OnCpu::default(),
            excess: 1.0,
        };
        let mut found = Statements::default();
        (super::of(class).statements)(&incident, &mut found);
        let text = |list: &[Evidence]| list.iter().map(|e| e.says.clone()).collect::<Vec<_>>();
        assert_eq!(text(&found.supporting), supporting);
        assert_eq!(text(&found.contradicting), contradicting);
    }
}
