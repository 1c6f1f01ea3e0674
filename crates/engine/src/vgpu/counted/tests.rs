use gpuwhy_schema::{Id, Lane, Measure};

use super::super::Options;
use super::super::world::World;
use super::*;

/// Two processes on one GPU for 10 s.
fn shared() -> World {
    let mut world = World::new();
    let (gpu, a, b) =
        (world.gpu("amdgpu 0000:03:00.0"), world.process("a", 70), world.process("b", 71));
    let (gfx, video) = (world.engine(gpu, "gfx", 1), world.engine(gpu, "video", 2));
    let every: Vec<(f64, f64)> = (0..=10).map(|s| (f64::from(s), 600.0)).collect();
    world.counts(a, gfx, &every[1..]);
    world.counts(b, gfx, &[(0.0, 0.0), (2.0, 300.0), (3.0, 0.0), (9.0, 100.0), (10.0, 0.0)]);
    world.counts(b, video, &[(5.0, 1000.0), (6.0, 0.0)]);
    world
}

#[test]
fn who_had_how_much_of_an_engine_is_what_the_driver_counted() {
    let report = shared().told(&Options::default()).report;
    let told: Vec<_> = report
        .counted
        .iter()
        .map(|one| {
            let engine = one.engine.as_deref().unwrap();
            let use_ = (one.utilisation * 10.0).round() / 10.0;
            (engine, &*one.process, use_, one.busy_ms.unwrap(), one.provenance)
        })
        .collect();
    // Of two engines a second of 10 is a twentieth.
    let expected = [
        ("gfx", "a (70)", 60.0, 6000.0, "counter"),
        ("gfx", "b (71)", 4.0, 400.0, "counter"),
        ("video", "b (71)", 5.0, 1000.0, "counter"),
    ];
    assert_eq!(told, expected);
    assert_eq!(report.counted[0].every_s, 1.0);
    assert_eq!(report.provenance, "counts and samples of drivers");
    let text = report.text().as_str().to_owned();
    assert!(
        text.contains(
            "amdgpu 0000:03:00.0 gfx: a (70) 60.00 %, 6000.000 ms; counter every 1.0 s, 10 readings"
        ),
        "{text}"
    );
    assert!(text.contains("amdgpu 0000:03:00.0: time-slicing between processes:"), "{text}");
    assert!(!text.contains("holds no event"), "{text}");
}

#[test]
fn a_window_counts_what_lies_in_it() {
    let window = Some(5_000_000_000..7_000_000_000);
    let report = shared().told(&Options { window, ..Options::default() }).report;
    let told: Vec<_> =
        report.counted.iter().map(|one| (&*one.process, one.busy_ms, one.readings)).collect();
    // Readings at 5 and 6 s; what comes at 7 s is of the next window.
    assert_eq!(told, [("a (70)", Some(1200.0), 2), ("b (71)", Some(1000.0), 2)]);
}

#[test]
fn samples_are_a_mean_over_the_time_that_they_hold() {
    let mut world = World::new();
    let (gpu, a) = (world.gpu("gpu 0: Test"), world.process("a", 70));
    // One in five seconds is missing: the reading before it does not hold for all of that time.
    world.samples(
        a,
        gpu,
        &[(0.0, 100.0), (1.0, 100.0), (2.0, 0.0), (3.0, 60.0), (8.0, 0.0), (9.0, 0.0)],
    );
    let report = world.told(&Options::default()).report;
    let one = &report.counted[0];
    assert_eq!((one.engine.as_deref(), one.busy_ms, one.provenance), (None, None, "sampled"));
    // 1, 1, 1, 2, 1 and 1 s.
    assert!((one.utilisation - 320.0 / 7.0).abs() < 0.01, "{one:?}");
}

#[test]
fn how_a_gpu_is_shared_is_told_by_its_parts_and_by_who_is_on_it() {
    let scheme = |prepare: &dyn Fn(&mut World, EntityId)| {
        let mut world = World::new();
        let gpu = world.gpu("gpu 0");
        let a = world.process("a", 70);
        world.samples(a, gpu, &[(0.0, 1.0), (1.0, 1.0)]);
        prepare(&mut world, gpu);
        let told = world.told(&Options::default()).report.sharing;
        told.iter().map(|one| format!("{}: {}", one.gpu, one.scheme)).collect::<Vec<_>>()
    };
    let also = |name: &'static str| {
        move |world: &mut World, gpu: EntityId| {
            let other = world.process(name, 71);
            world.samples(other, gpu, &[(0.0, 1.0), (1.0, 1.0)]);
        }
    };
    assert_eq!(scheme(&|_, _| {}), ["gpu 0: whole, to one process"]);
    assert_eq!(scheme(&also("b")), ["gpu 0: time-slicing between processes"]);
    assert_eq!(scheme(&also("nvidia-cuda-mps-server")), ["gpu 0: shared context (MPS)"]);
    let part = |kind: EntityKind| {
        scheme(&|world: &mut World, gpu| {
            let part = world.part(kind, "part", gpu);
            let b = world.process("b", 71);
            world.samples(b, part, &[(0.0, 1.0), (1.0, 1.0)]);
        })
    };
    assert_eq!(part(EntityKind::Gpu), ["gpu 0: slices of the hardware (MIG)"]);
    assert_eq!(part(EntityKind::Vgpu), ["gpu 0: virtual GPUs of NVIDIA's driver (vGPU)"]);
    let mut world = World::new();
    let gpu = world.gpu("drm:xe 0000:03:00.0");
    let (one, engine) = (world.part(EntityKind::Vgpu, "f1", gpu), world.engine(gpu, "rcs", 1));
    world.counts(one, engine, &[(0.0, 100.0), (1.0, 100.0)]);
    let told = world.told(&Options::default()).report.sharing;
    assert_eq!(told[0].scheme, "virtual functions (SR-IOV)");
}

#[test]
fn what_a_library_lets_a_process_have_stands_beside_what_it_had() {
    let mut world = World::new();
    let (gpu, a, b) = (world.gpu("gpu 0"), world.process("a", 70), world.process("b", 71));
    for (process, use_) in [(a, 48.0), (b, 30.0)] {
        let seconds: Vec<(f64, f64)> = (0..10).map(|s| (f64::from(s), use_)).collect();
        world.samples(process, gpu, &seconds);
    }
    let gauge = |name| (names::GPU_UTILIZATION, name, Measure::Gauge);
    world.readings(a, gpu, gauge(names::PROCESS_SM_LIMIT), &[(0.0, 100.0), (1.0, 50.0)]);
    world.readings(b, gpu, gauge(names::PROCESS_SM_LIMIT), &[(0.0, 100.0)]);
    world.readings(b, gpu, gauge(names::PROCESS_HELD_BACK), &[(0.0, 0.0), (5.0, 1.0), (10.0, 0.0)]);
    let report = world.told(&Options::default()).report;
    let limits: Vec<_> = report.counted.iter().map(|one| (&*one.process, one.limit)).collect();
    let limit = |sm, held_back| Some(LimitReport { sm, held_back });
    // Held back for 5 of 20 s: the last reading holds for 10 s.
    assert_eq!(limits, [("a (70)", limit(50.0, 0.0)), ("b (71)", limit(100.0, 25.0))]);
    assert_eq!(
        report.sharing[0].scheme,
        "time-slicing between processes with limits in each (HAMi)"
    );
    let text = report.text().as_str().to_owned();
    assert!(text.contains("a (70) 48.00 %, may have 50 %; sampled"), "{text}");
    assert!(text.contains("b (71) 30.00 %, held back 25 % of the time; sampled"), "{text}");
}

#[test]
fn the_clients_of_tracepoints_are_named_by_their_processes() {
    let mut world = World::new();
    let a = world.process("glxgears", 70);
    let source = world.source;
    let track = world.lanes.track(a, None, Lane::marks(names::DRM_CLIENTS), source);
    let met =
        Mark { id: Id(1), ts: Ns(0), track, name: "client of amdgpu".into(), value: Some(27.0) };
    world.rows.mark.push(met);
    world.events(
        a,
        "1000 drm_sched_job_queue name=gfx client_id=27 id=1 fence_context=27 fence_seqno=1
         1100 drm_sched_job_run name=gfx client_id=27 id=1 fence_context=27 fence_seqno=1
         1900 drm_sched_job_done fence_context=27 fence_seqno=1
         9000 drm_sched_job_queue name=gfx client_id=28 id=1 fence_context=28 fence_seqno=1
         9100 drm_sched_job_run name=gfx client_id=28 id=1 fence_context=28 fence_seqno=1
         9900 drm_sched_job_done fence_context=28 fence_seqno=1",
    );
    let report = world.told(&Options::default()).report;
    let names: Vec<&str> = report.tenants.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["client 28", "glxgears (70), client 27"]);
    assert_eq!(report.sharing[0].scheme, "time-slicing by the driver's scheduler");
}

#[test]
fn turns_that_are_known_are_told_in_place_of_their_sums() {
    let mut world = shared();
    let (gpu, a, b) = (world.gpu("GPU-1"), world.process("a", 70), world.process("b", 71));
    let kernels = world.engine(gpu, "kernels", 1);
    world.counts(a, kernels, &[(1.0, 999.0), (2.0, 0.0)]);
    world.counts(b, kernels, &[(4.0, 500.0), (5.0, 0.0)]);
    // A long turn in two parts, and one that nobody is known for.
    let turns = [
        (Some(a), 0, 1000),
        (Some(a), 1000, 3000),
        (Some(b), 3000, 3500),
        (None, 3500, 3600),
        (Some(a), 4000, 4250),
    ];
    world.turns(kernels, &turns);
    let told = world.told(&Options::default());
    let of_turns = told.report.counted.iter().filter_map(|one| Some((one, one.turns?)));
    let of_turns: Vec<_> = of_turns
        .map(|(one, turns)| {
            (&*one.gpu, &*one.process, one.busy_ms.unwrap(), turns.turns, turns.p50_ms)
        })
        .collect();
    let expected = [
        ("GPU-1", "a (70)", 3250.0, 2, 3000.0),
        ("GPU-1", "b (71)", 500.0, 1, 500.0),
        ("GPU-1", "not told", 100.0, 1, 100.0),
    ];
    assert_eq!(of_turns, expected);
    let counted = told.report.counted.iter().filter(|one| one.turns.is_none());
    assert!(counted.clone().count() == 3 && counted.clone().all(|one| one.gpu != "GPU-1"));
    let text = told.report.text().as_str().to_owned();
    let line = "GPU-1 kernels: a (70) 32.50 %, 3250.000 ms; context switches 2 turns of 3000.000 ms (p99 3000.000 ms)";
    assert!(text.contains(line), "{text}");
    let said = "GPU-1: time-slicing between processes, each turn logged: whose context had the GPU from when to when;";
    assert!(text.contains(said), "{text}");
    let page = told.html();
    assert!(
        page.contains("kernels, who has it") && page.contains("kernels, turns by process"),
        "{page}"
    );
}
