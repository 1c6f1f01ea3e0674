use gpuwhy_schema::{
    Collective, Copy, CopyKind, Counter, Discipline, EntityKind, Kernel, Lane, Lanes, Mark,
    Measure, Rows, SourceId, Span, State, Track, TrackId, names,
};

use super::*;

/// A host with two GPUs and three processes; times in ms.
struct Scene {
    lanes: Lanes,
    rows: Rows,
    source: SourceId,
    gpus: Vec<EntityId>,
    processes: Vec<EntityId>,
    spans: u64,
}

fn ms(n: i64) -> Ns {
    Ns::millis(n)
}

impl Scene {
    fn new() -> Scene {
        let mut lanes = Lanes::default();
        let source = lanes.source("test", "test", "0", "");
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        let mut many = |kind, name: &str, n| -> Vec<EntityId> {
            let one = |i| lanes.entity(kind, &format!("{name}{i}"), |e| e.parent = Some(host));
            (0..n).map(one).collect()
        };
        let gpus = many(EntityKind::Gpu, "gpu", 2);
        let processes = many(EntityKind::Process, "process", 3);
        Scene { lanes, rows: Rows::default(), source, gpus, processes, spans: 0 }
    }

    fn span(&mut self, track: TrackId, name: &str, from: i64, to: i64) -> Id {
        self.spans += 1;
        let id = Id(self.spans);
        let (ts, dur, parent) = (ms(from), Some(ms(to - from)), None);
        self.rows.span.push(Span { id, ts, dur, track, parent, name: name.into() });
        id
    }

    fn stream(&mut self, process: usize, gpu: usize) -> TrackId {
        let on = self.gpus[gpu];
        let key = format!("{process}:{gpu}");
        let stream = self.lanes.entity(EntityKind::Stream, &key, |e| e.parent = Some(on));
        let lane = Lane::spans(names::STREAM, Discipline::Overlap);
        self.lanes.track(stream, None, lane, self.source)
    }

    fn kernel(mut self, process: usize, from: i64, to: i64) -> Scene {
        let track = self.stream(process, 0);
        let id = self.span(track, "gemm", from, to);
        self.rows.kernel.push(Kernel {
            process: Some(self.processes[process]),
            ..Kernel::bare(id, ms(from), self.gpus[0])
        });
        self
    }

    fn copy(mut self, process: usize, from: i64, to: i64) -> Scene {
        let track = self.stream(process, 0);
        let id = self.span(track, "copy", from, to);
        self.rows.copy.push(Copy {
            id,
            ts: ms(from),
            kind: CopyKind::HostToDevice,
            bytes: 1,
            from: None,
            to: Some(self.gpus[0]),
            pinned: None,
            process: Some(self.processes[process]),
            correlation: None,
        });
        self
    }

    fn counter(mut self, name: &str, readings: &[(i64, f64)]) -> Scene {
        let lane = Lane::counter(name, "MHz", Measure::Gauge);
        let track = self.lanes.track(self.gpus[0], None, lane, self.source);
        let rows = readings.iter().map(|&(at, value)| Counter { ts: ms(at), track, value });
        self.rows.counter.extend(rows);
        self
    }

    fn user(mut self, process: usize, readings: &[(i64, f64)]) -> Scene {
        let lane = Lane::counter(names::GPU_UTILIZATION, "%", Measure::Gauge);
        let gpu = self.lanes.track(self.gpus[0], None, lane, self.source);
        let lane = Lane::counter(names::PROCESS_SM_UTILIZATION, "%", Measure::Gauge);
        let track = self.lanes.track(self.processes[process], Some(gpu), lane, self.source);
        let rows = readings.iter().map(|&(at, value)| Counter { ts: ms(at), track, value });
        self.rows.counter.extend(rows);
        self
    }

    /// Whose turn it was: process, from and to.
    fn turns(mut self, turns: &[(usize, i64, i64)]) -> Scene {
        let on = self.gpus[0];
        let engine = self.lanes.entity(EntityKind::Engine, "gpu0/kernels", |e| e.parent = Some(on));
        let lane = Lane::states(names::ENGINE_OWNER, Discipline::Sparse);
        let track = self.lanes.track(engine, None, lane, self.source);
        for &(process, from, to) in turns {
            let value = self.processes[process].0.into();
            let (ts, dur) = (ms(from), Some(ms(to - from)));
            self.rows.state.push(State { ts, dur, track, value, arg: None });
        }
        self
    }

    fn xid(mut self, at: i64) -> Scene {
        let lane = Lane::marks(names::GPU_EVENTS);
        let track = self.lanes.track(self.gpus[0], None, lane, self.source);
        let (id, value) = (Id(1_000_000), Some(79.0));
        self.rows.mark.push(Mark { id, ts: ms(at), track, name: "xid".into(), value });
        self
    }

    /// An all-reduce: when each rank came, how long it waited, and how long it computed.
    fn all_reduce(mut self, seq: u64, ranks: &[(i64, i64, i64)]) -> Scene {
        for (rank, &(from, waited, computed)) in ranks.iter().enumerate() {
            let process = self.processes[rank];
            let key = format!("rank{rank}");
            let entity = self.lanes.entity(EntityKind::Rank, &key, |e| e.parent = Some(process));
            let lane = Lane::spans(names::COLLECTIVES, Discipline::Overlap);
            let whole = self.lanes.track(entity, None, lane, self.source);
            let lane = Lane::spans(names::COLLECTIVE_STAGES, Discipline::Overlap);
            let stages = self.lanes.track(entity, Some(whole), lane, self.source);
            let id = self.span(whole, "AllReduce", from, from + waited + computed);
            self.span(stages, "initial_sync", from, from + waited);
            self.span(stages, "compute", from + waited, from + waited + computed);
            let n = self.rows.span.len();
            self.rows.span[n - 2].parent = Some(id);
            self.rows.span[n - 1].parent = Some(id);
            self.rows.collective.push(Collective {
                id,
                ts: ms(from),
                communicator: 7,
                seq,
                op: "AllReduce".into(),
                bytes: 1,
                rank: rank as u32,
                ranks: ranks.len() as u32,
                peer: None,
                algorithm: None,
                protocol: None,
                channels: None,
            });
        }
        self
    }

    /// What a process's wait was, ms.
    fn check(mut self, process: usize, window: (i64, i64), expected: &[&str]) {
        self.lanes.drain(&mut self.rows);
        let tracks: HashMap<TrackId, &Track> = self.rows.track.iter().map(|t| (t.id, t)).collect();
        let entities: HashMap<EntityId, &gpuwhy_schema::Entity> =
            self.rows.entity.iter().map(|e| (e.id, e)).collect();
        let above = |id: EntityId| entities.get(&id).and_then(|e| e.parent);
        let gpus = Gpus::new(&self.rows, &tracks, above, &HashMap::new());
        let pieces = gpus.pieces(self.processes[process], (ms(window.0), ms(window.1)));
        let name = |id: EntityId| &*entities[&id].key;
        let said: Vec<String> = pieces
            .iter()
            .map(|p| {
                let what = match p.doing {
                    Doing::Work => "work".to_string(),
                    Doing::Throttled(gpu) => format!("throttled {}", name(gpu)),
                    Doing::Others(who) => format!("others {}", name(who)),
                    Doing::Fault(gpu) => format!("fault {}", name(gpu)),
                    Doing::Late(who) => format!("late {}", name(who)),
                    Doing::Copy(who) => format!("copy {}", name(who)),
                };
                format!("{}..{} {what}", p.from.0 as f64 / 1e6, p.to.0 as f64 / 1e6)
            })
            .collect();
        assert_eq!(said, expected);
        assert!(pieces.windows(2).all(|w| w[0].to <= w[1].from), "{said:?}");
    }
}

#[test]
fn kernels_and_copies_of_the_process_itself() {
    Scene::new().kernel(0, 10, 20).kernel(0, 15, 30).copy(0, 25, 40).kernel(0, 50, 60).check(
        0,
        (12, 55),
        &["12..20 work", "20..30 work", "30..40 copy gpu0", "50..55 work"],
    );
}

#[test]
fn a_clock_at_three_quarters_costs_a_quarter() {
    Scene::new()
        .counter(names::SM_CLOCK_MAX, &[(0, 2000.0)])
        .counter(names::SM_CLOCK, &[(0, 2000.0), (500, 1500.0), (2000, 2000.0)])
        .kernel(0, 450, 550)
        .kernel(0, 2000, 2010)
        .check(0, (0, 3000), &["450..525 work", "525..550 throttled gpu0", "2000..2010 work"]);
}

#[test]
fn a_clock_that_was_not_read_says_nothing() {
    Scene::new()
        .counter(names::SM_CLOCK, &[(0, 2000.0), (10, 1000.0)])
        .kernel(0, 5000, 5010)
        .check(0, (0, 6000), &["5000..5010 work"]);
}

#[test]
fn kernels_of_another_on_the_same_gpu_take_turns_with_ours() {
    Scene::new().kernel(0, 10, 30).kernel(1, 20, 40).check(
        0,
        (0, 100),
        &["10..25 work", "25..30 others process1"],
    );
}

#[test]
fn a_process_that_only_the_driver_reports_has_its_share() {
    let s = 1000;
    Scene::new()
        .user(0, &[(s, 60.0), (2 * s, 60.0)])
        .user(1, &[(s, 20.0), (2 * s, 20.0)])
        .kernel(0, 1400, 1500)
        .check(
            0,
            (1390, 3000),
            &["1398..1400 others process1", "1400..1475 work", "1475..1500 others process1"],
        );
}

#[test]
fn a_log_of_context_switches_says_whose_turn_it_was_whatever_else_is_known() {
    let turns = [(0, 0, 30), (1, 30, 70), (0, 70, 90), (2, 90, 120)];
    // By kernels, process 1 would have half of its 60 ms; by readings, process 2 most of it.
    Scene::new()
        .turns(&turns)
        .kernel(0, 10, 100)
        .kernel(1, 20, 80)
        .user(2, &[(0, 90.0), (500, 90.0)])
        .check(0, (0, 200), &["10..50 work", "50..90 others process1", "90..100 others process2"]);
    // While a kernel was queued, others had the GPU; its own context was there before it began.
    Scene::new().turns(&turns).kernel(0, 0, 5).kernel(0, 80, 85).check(
        0,
        (0, 200),
        &["0..5 work", "30..70 others process1", "80..85 work"],
    );
}

#[test]
fn where_the_log_has_no_turn_kernels_and_readings_say_who_used_the_gpu() {
    Scene::new().turns(&[(0, 0, 5), (1, 50, 60)]).kernel(0, 10, 30).kernel(1, 20, 40).check(
        0,
        (0, 40),
        &["10..25 work", "25..30 others process1"],
    );
}

#[test]
fn a_kernel_that_began_during_a_sleep_was_queued_behind_others() {
    Scene::new().kernel(0, 10, 12).kernel(1, 12, 20).kernel(0, 20, 22).check(
        0,
        (0, 100),
        &["10..12 work", "12..20 others process1", "20..22 work"],
    );
    // Nobody else was there, so nothing is said of the time between.
    Scene::new().kernel(0, 10, 12).kernel(0, 20, 22).check(
        0,
        (0, 100),
        &["10..12 work", "20..22 work"],
    );
}

#[test]
fn a_device_stands_still_from_an_error_until_its_next_work() {
    // In the middle of a kernel: the error is recorded a little late.
    Scene::new().kernel(0, 1000, 3000).xid(1300).check(
        0,
        (0, 4000),
        &["1000..1100 work", "1100..3000 fault gpu0"],
    );
    // Between kernels.
    Scene::new().kernel(0, 1000, 1010).xid(1200).kernel(0, 3000, 3010).check(
        0,
        (0, 4000),
        &["1000..1010 work", "1010..3000 fault gpu0", "3000..3010 work"],
    );
}

#[test]
fn the_rank_that_waited_least_is_the_one_that_was_late() {
    let scene = || Scene::new().all_reduce(1, &[(10, 90, 20), (98, 2, 20), (60, 40, 20)]);
    scene().check(0, (0, 200), &["10..98 late process1", "98..100 work", "100..120 work"]);
    scene().check(1, (0, 200), &["98..100 work", "100..120 work"]);
    scene().check(2, (0, 200), &["60..98 late process1", "98..100 work", "100..120 work"]);
}
