//! The same as the page's lanes as a trace for Perfetto, whole: with every request, and arrows from tenants to engines.

use std::path::Path;

use gpuwhy_derive::vgpu::Request;
use gpuwhy_derive::vgpu::vcpu::{self, Party};
use gpuwhy_formats::perfetto;
use gpuwhy_schema::{
    Attr, Counter, Discipline, EntityId, EntityKind, Id, Lane, Lanes, Link, LinkKind, Measure, Ns,
    Rows, SourceId, Span, TrackId,
};

use super::lanes::{PHASES, STAGES, stages, waiting};
use super::turns::Owned;
use super::{Vgpu, order};
use crate::error::Result;
use crate::view::export;

/// Rows that the requests of a tenant are spread over; more than so many at once lie on the last one.
const ROWS: usize = 64;

impl Vgpu {
    /// Writes a trace for Perfetto.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn perfetto(&self, path: &Path) -> Result<perfetto::Stats> {
        export::write_rows(&self.rows(), path, Default::default())
    }

    /// What the file holds.
    pub(super) fn rows(&self) -> Rows {
        let mut out = Draw::new(self.window);
        for tenant in order::tenants(&self.model) {
            out.tenant(self, tenant);
        }
        for engine in order::engines(&self.model) {
            out.engine(self, engine);
        }
        for owned in &self.owned {
            out.owned(owned);
        }
        out.machines(self);
        out.findings(self);
        out.lanes.drain(&mut out.rows);
        out.rows
    }
}

struct Draw {
    window: (i64, i64),
    lanes: Lanes,
    rows: Rows,
    source: SourceId,
    host: EntityId,
    last: u64,
}

impl Draw {
    fn new(window: (i64, i64)) -> Draw {
        let mut lanes = Lanes::default();
        let source = lanes.source("vgpu", "gpuwhy", env!("CARGO_PKG_VERSION"), "");
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        Draw { window, lanes, rows: Rows::default(), source, host, last: 0 }
    }

    /// The id of what belongs to a request.
    fn of_request(at: usize) -> Id {
        Id::new(1, at as u64)
    }

    fn overlaps(&self, from: i64, to: i64) -> bool {
        from < self.window.1 && to > self.window.0
    }

    fn entity(&mut self, kind: EntityKind, name: &str, parent: EntityId) -> EntityId {
        self.lanes.entity(kind, name, |e| e.parent = Some(parent))
    }

    fn spans(&mut self, of: EntityId, name: &str) -> TrackId {
        self.lanes.track(of, None, Lane::spans(name, Discipline::Nested), self.source)
    }

    fn gauge(&mut self, of: EntityId, name: &str, unit: &str, values: &[(i64, f64)]) {
        if values.is_empty() {
            return;
        }
        let lane = Lane::counter(name, unit, Measure::Gauge);
        let track = self.lanes.track(of, None, lane, self.source);
        let row = |&(ts, value): &(i64, f64)| Counter { ts: Ns(ts), track, value };
        self.rows.counter.extend(values.iter().map(row));
    }

    fn span(&mut self, track: TrackId, (from, to): (i64, i64), name: &str) -> Id {
        self.last += 1;
        let id = Id::new(2, self.last);
        self.span_of(id, track, (from, to), name);
        id
    }

    fn span_of(&mut self, id: Id, track: TrackId, (from, to): (i64, i64), name: &str) {
        let dur = Some(Ns((to - from).max(0)));
        let name = name.into();
        self.rows.span.push(Span { id, ts: Ns(from), dur, track, parent: None, name });
    }

    /// How many requests wait, what is left of its slice, and its requests with their stages.
    fn tenant(&mut self, of: &Vgpu, tenant: usize) {
        let known = &of.model.tenants[tenant];
        let own: Vec<(usize, &Request)> =
            of.requests.iter().enumerate().filter(|(_, one)| one.tenant == tenant).collect();
        let name = format!("{} (device {})", known.name, known.device);
        let entity = self.entity(EntityKind::Vgpu, &name, self.host);
        let queue = waiting(own.iter().map(|(_, one)| *one), self.window);
        let queue: Vec<(i64, f64)> = queue.into_iter().map(|(at, n)| (at, n as f64)).collect();
        self.gauge(entity, "requests that wait", "{request}", &queue);
        let slices = of.model.slices.iter().filter(|slice| slice.tenant == tenant);
        let inside = slices.filter(|slice| self.overlaps(slice.at, slice.at + 1));
        let left: Vec<(i64, f64)> = inside.map(|one| (one.at, one.left as f64 / 1e6)).collect();
        self.gauge(entity, "slice left (below 0: debt)", "ms", &left);
        let mut rows: Vec<i64> = Vec::new();
        for (at, request) in own {
            let Some(from) = request.queued().or(request.began()) else { continue };
            let to = request.ended().unwrap_or(of.window.1);
            if !self.overlaps(from, to) {
                continue;
            }
            let row = rows.iter().position(|until| *until <= from);
            let row = row.unwrap_or(rows.len().min(ROWS - 1));
            if row == rows.len() {
                rows.push(to);
            }
            rows[row] = rows[row].max(to);
            let track = self.spans(entity, &format!("requests, row {}", row + 1));
            let id = Draw::of_request(at);
            let engine = &of.model.engines[request.engine].name;
            self.span_of(id, track, (from, to), &format!("request to {engine}"));
            let numbers = [("context", request.context), ("sequence", request.sequence)];
            self.rows.attr.extend(numbers.map(|(key, value)| Attr {
                id,
                key: key.into(),
                value: value.to_string().as_str().into(),
            }));
            for (from, to, stage) in stages(request, to) {
                self.span(track, (from, to), STAGES[stage as usize]);
            }
        }
    }

    /// Who has it when; an arrow leads from each request to its executions.
    fn engine(&mut self, of: &Vgpu, engine: usize) {
        let known = &of.model.engines[engine];
        let device = format!("device {}", known.device);
        let gpu = self.entity(EntityKind::Gpu, &device, self.host);
        let entity = self.entity(EntityKind::Engine, &format!("{device} {}", known.name), gpu);
        let track = self.spans(entity, "who has it");
        let own = of.requests.iter().enumerate().filter(|(_, one)| one.engine == engine);
        let mut runs: Vec<_> =
            own.flat_map(|(at, one)| one.executions.iter().map(move |e| (*e, at, one))).collect();
        runs.sort_unstable_by_key(|(e, at, _)| (e.from, e.to, *at));
        for (execution, at, request) in runs {
            if !self.overlaps(execution.from, execution.to) {
                continue;
            }
            let tenant = &of.model.tenants[request.tenant].name;
            let name = match execution.preempted {
                true => format!("{tenant}, preempted"),
                false => tenant.clone(),
            };
            let to = self.span(track, (execution.from, execution.to), &name);
            let (ts, from, kind) = (Ns(execution.from), Draw::of_request(at), LinkKind::Queued);
            self.rows.link.push(Link { ts, from, to, kind });
        }
    }

    /// Whose turn it was.
    fn owned(&mut self, owned: &Owned) {
        let gpu = self.entity(EntityKind::Gpu, &owned.gpu, self.host);
        let name = format!("{} {}", owned.gpu, owned.name);
        let entity = self.entity(EntityKind::Engine, &name, gpu);
        let track = self.spans(entity, "whose turn it is");
        for &(from, to, who) in &owned.turns {
            self.span(track, (from, to), &owned.names[who]);
        }
    }

    /// Virtual CPUs: what they do, and who has their CPU meanwhile.
    fn machines(&mut self, of: &Vgpu) {
        let Some(on_cpus) = &of.on_cpus else { return };
        for (machine, number, states) in on_cpus.vcpus() {
            let name = on_cpus.name(Party::Machine(machine)).to_owned();
            let vm = self.entity(EntityKind::Vm, &format!("{name} on the host's CPUs"), self.host);
            let track = self.spans(vm, &format!("virtual CPU {number}"));
            let others = self.spans(vm, &format!("who has the CPU of {number}"));
            for (phase, one) in vcpu::phases(states) {
                if !self.overlaps(one.from, one.to) {
                    continue;
                }
                self.span(track, (one.from, one.to), PHASES[phase as usize]);
                for (from, to, by) in on_cpus.meanwhile(phase, &one) {
                    if from < to {
                        self.span(others, (from, to), by);
                    }
                }
            }
        }
    }

    /// What was found, over the whole window: a finding is about all of a tenant's time.
    fn findings(&mut self, of: &Vgpu) {
        for (row, one) in of.report.findings.iter().enumerate() {
            let track = self.spans(self.host, &format!("findings, row {}", row + 1));
            self.span(track, of.window, &format!("{}: {}", one.rule, one.says));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::super::world::World;
    use super::*;

    /// A request of one virtual GPU that waits behind one of another.
    const TWO: &str = "
        100 gvt_workload_queue dev=0 vgpu_id=1 ring_id=0 workload=0xa0
        150 gvt_workload_queue dev=0 vgpu_id=2 ring_id=0 workload=0xb0
        200 gvt_workload_submit dev=0 vgpu_id=1 ring_id=0 workload=0xa0 ctx=17 seqno=1
        210 i915_gem_request_add dev=0 ctx=17 ring=0 seqno=1 global=0
        230 i915_gem_request_in dev=0 ctx=17 ring=0 seqno=1 global_seqno=5 port=0
        400 i915_gem_request_out dev=0 ctx=17 ring=0 seqno=1 global=5
        410 gvt_workload_complete dev=0 vgpu_id=1 ring_id=0 workload=0xa0
        420 gvt_sched_switch dev=0 vgpu_id=1 left_ts=-2000000
        430 gvt_workload_submit dev=0 vgpu_id=2 ring_id=0 workload=0xb0 ctx=22 seqno=1
        440 i915_gem_request_add dev=0 ctx=22 ring=0 seqno=1 global=0
        450 i915_gem_request_in dev=0 ctx=22 ring=0 seqno=1 global_seqno=6 port=0
        900 i915_gem_request_out dev=0 ctx=22 ring=0 seqno=1 global=6
        910 gvt_workload_complete dev=0 vgpu_id=2 ring_id=0 workload=0xb0";

    fn told(window: Option<std::ops::Range<i64>>) -> Vgpu {
        let mut world = World::new();
        let kernel = world.process("gvt", 9);
        world.events(kernel, TWO);
        world.told(&Options { window, ..Options::default() })
    }

    /// The spans of a track, by the names of its entity and its own.
    fn drawn(rows: &Rows) -> Vec<String> {
        let name = |track: TrackId| {
            let track = rows.track.iter().find(|one| one.id == track).unwrap();
            let entity = rows.entity.iter().rev().find(|one| one.id == track.entity).unwrap();
            format!("{}, {}", entity.name, track.name)
        };
        let of = |span: &Span| {
            let to = span.ts.0 + span.dur.unwrap().0;
            format!("{}: {} {}..{to}", name(span.track), span.name, span.ts.0)
        };
        rows.span.iter().map(of).collect()
    }

    #[test]
    fn requests_lie_on_their_tenants_and_arrows_lead_to_their_executions() {
        let told = told(None);
        let rows = told.rows();
        assert_eq!(
            drawn(&rows),
            [
                "vGPU 1 (device 0), requests, row 1: request to render0 100..400",
                "vGPU 1 (device 0), requests, row 1: queued in vGPU 100..200",
                "vGPU 1 (device 0), requests, row 1: queued in host 200..230",
                "vGPU 1 (device 0), requests, row 1: on an engine 230..400",
                "vGPU 2 (device 0), requests, row 1: request to render0 150..900",
                "vGPU 2 (device 0), requests, row 1: queued in vGPU 150..430",
                "vGPU 2 (device 0), requests, row 1: queued in host 430..450",
                "vGPU 2 (device 0), requests, row 1: on an engine 450..900",
                "device 0 render0, who has it: vGPU 1 230..400",
                "device 0 render0, who has it: vGPU 2 450..900",
            ]
        );
        let ends: Vec<(i64, i64)> = rows
            .link
            .iter()
            .map(|link| {
                let from = |id: Id| rows.span.iter().find(|span| span.id == id).unwrap().ts.0;
                (from(link.from), from(link.to))
            })
            .collect();
        assert_eq!(ends, [(100, 230), (150, 450)]);
        let debt = rows.counter.iter().find(|row| row.value < 0.0).unwrap();
        assert_eq!((debt.ts, debt.value), (Ns(420), -2.0));

        let folder = tempfile::tempdir().unwrap();
        let written = told.perfetto(&folder.path().join("t.pftrace")).unwrap();
        assert_eq!((written.slices, written.flows, written.misplaced), (10, 2, 0), "{written:?}");
    }

    #[test]
    fn a_window_draws_what_overlaps_it() {
        let rows = told(Some(410..1000)).rows();
        let of_first = drawn(&rows).iter().filter(|line| line.contains("vGPU 1 ")).count();
        assert_eq!((of_first, rows.link.len()), (0, 1), "{:#?}", drawn(&rows));
    }

    #[test]
    fn requests_at_the_same_time_lie_on_rows_of_their_own() {
        let mut world = World::new();
        let a = world.process("a", 9);
        let mut text = String::new();
        for n in 1..=3 {
            text += &format!(
                "{n}0 drm_sched_job_queue name=gfx client_id=1 fence_context=1 fence_seqno={n}\n"
            );
        }
        for n in 1..=3 {
            text += &format!(
                "{n}00 drm_sched_job_run name=gfx client_id=1 fence_context=1 fence_seqno={n}\n"
            );
            text += &format!("{n}50 drm_sched_job_done fence_context=1 fence_seqno={n}\n");
        }
        world.events(a, &text);
        let told = world.told(&Options::default());
        let whole: Vec<String> =
            drawn(&told.rows()).into_iter().filter(|line| line.contains("request to")).collect();
        let rows: Vec<&str> = whole.iter().map(|l| &l[l.find("row").unwrap()..][..5]).collect();
        assert_eq!(rows, ["row 1", "row 2", "row 3"], "{whole:#?}");
    }
}
