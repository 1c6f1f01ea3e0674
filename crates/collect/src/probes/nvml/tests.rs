//! Simulated readings, and the rows that must follow.

use std::fmt::Write as _;

use gpuwhy_schema::Rows;

use super::*;
use crate::bpf::Bpf;
use crate::config::Config;
use crate::error::error_chain;

fn gpu(index: u32) -> Arc<Unit> {
    Arc::new(Unit {
        kind: UnitKind::Gpu,
        uuid: format!("GPU-{index}"),
        name: format!("gpu {index}: Test"),
        index,
        parent: None,
    })
}

/// A recording of simulated readings.
struct Scene {
    gpu_rows: GpuRows,
    cx: Context,
    source: SourceId,
    /// Declarations that were taken before the end.
    declared: Rows,
}

fn scene() -> Scene {
    let mut cx = Context::new();
    let source = cx.catalog.source("nvml", "gpuwhy", "0", "");
    let mut gpu_rows = GpuRows::new(source);
    gpu_rows.take(Message::Started { driver: "580.1".into(), gpus: 2 }, &mut cx);
    Scene { gpu_rows, cx, source, declared: Rows::default() }
}

impl Scene {
    /// A call that took 2 ms around `ms`.
    fn read(&mut self, unit: &Arc<Unit>, ms: i64, observed: Observed) {
        let (before, after) = (Ns::millis(ms - 1), Ns::millis(ms + 1));
        let readings = vec![Reading { before, after, observed }];
        self.gpu_rows.take(Message::Readings(Arc::clone(unit), readings), &mut self.cx);
    }

    fn value(&mut self, unit: &Arc<Unit>, ms: i64, name: &str, value: f64) {
        self.read(unit, ms, Observed::Values(vec![(metric_named(name).unwrap(), value)]));
    }

    fn finish(mut self, ms: i64) -> Rows {
        self.gpu_rows.finish(Ns::millis(ms), &mut self.cx);
        let mut rows = self.declared;
        self.cx.catalog.drain(&mut rows);
        let written = self.cx.rows.counter.len() + self.cx.rows.mark.len();
        assert_eq!(self.gpu_rows.written as usize, written);
        rows.append(&mut self.cx.rows);
        rows
    }

    fn state(&mut self) -> String {
        self.cx.catalog.drain(&mut self.declared);
        let rows = &self.declared;
        let source = rows.source.iter().rev().find(|s| s.id == self.source).unwrap();
        format!("{}: {}", source.state, source.note.as_deref().unwrap_or(""))
    }
}

/// `ms=value` of each row of the tracks of this name, behind the key of their entity.
fn series(rows: &Rows, name: &str) -> String {
    let mut text = String::new();
    for track in rows.track.iter().filter(|t| &*t.name == name) {
        let entity = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
        let _ = write!(text, "{}:", entity.key);
        for row in rows.counter.iter().filter(|c| c.track == track.id) {
            let _ = write!(text, " {}={}", row.ts.as_millis_f64(), row.value);
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

fn marks(rows: &Rows) -> String {
    let mut text = String::new();
    for mark in &rows.mark {
        let track = rows.track.iter().find(|t| t.id == mark.track).unwrap();
        let entity = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
        assert_eq!(&*track.name, names::GPU_EVENTS);
        let _ = write!(text, "{} {} {}", mark.ts.as_millis_f64(), entity.key, mark.name);
        text.push_str(&mark.value.map_or(String::new(), |v| format!(" {v}")));
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[test]
fn a_total_is_written_at_its_ends_and_where_it_changes() {
    let (mut scene, gpu) = (scene(), gpu(0));
    for (ms, held) in [(0, 50.0), (100, 50.0), (200, 50.0), (300, 90.0), (400, 90.0), (500, 90.0)] {
        scene.value(&gpu, ms, names::THROTTLED_POWER, held);
    }
    let rows = scene.finish(600);
    // The throttling between 200 and 300 ms is not spread over the time before.
    let expected = "GPU-0: 0=50 200=50 300=90 500=90";
    assert_eq!(series(&rows, names::THROTTLED_POWER), expected);
    let track = rows.track.iter().find(|t| &*t.name == names::THROTTLED_POWER).unwrap();
    assert_eq!((track.unit.as_deref(), track.measure), (Some("ns"), Some(Measure::Total)));
}

#[test]
fn a_gauge_is_written_each_time_and_a_constant_when_it_changes() {
    let (mut scene, gpu) = (scene(), gpu(0));
    for (ms, mhz, width) in [(0, 1980.0, 16.0), (100, 1980.0, 16.0), (200, 1200.0, 8.0)] {
        scene.value(&gpu, ms, names::SM_CLOCK, mhz);
        scene.value(&gpu, ms, names::PCIE_LINK_WIDTH, width);
    }
    let rows = scene.finish(300);
    assert_eq!(series(&rows, names::SM_CLOCK), "GPU-0: 0=1980 100=1980 200=1200");
    assert_eq!(series(&rows, names::PCIE_LINK_WIDTH), "GPU-0: 0=16 100=16 200=8");
    let entity = rows.entity.iter().rev().find(|e| &*e.key == "GPU-0").unwrap();
    assert_eq!(
        (entity.kind, &*entity.name, entity.number),
        (EntityKind::Gpu, "gpu 0: Test", Some(0))
    );
}

#[test]
fn buffered_samples_only_go_forward_in_time() {
    let (mut scene, gpu) = (scene(), gpu(0));
    let power = metric_named(names::GPU_POWER).unwrap();
    let buffered = |list: &[(i64, f64)]| {
        Observed::Buffered(power, list.iter().map(|&(ms, watts)| (Ns::millis(ms), watts)).collect())
    };
    scene.read(&gpu, 100, buffered(&[(40, 300.0), (60, 310.0), (80, 320.0)]));
    scene.read(&gpu, 200, buffered(&[(80, 320.0), (100, 330.0)]));
    // The buffer had no samples and the present value was read; then it had some again.
    scene.value(&gpu, 300, names::GPU_POWER, 400.0);
    scene.read(&gpu, 400, buffered(&[(290, 395.0), (310, 405.0)]));
    let rows = scene.finish(500);
    let expected = "GPU-0: 40=300 60=310 80=320 100=330 300=400 310=405";
    assert_eq!(series(&rows, names::GPU_POWER), expected);
}

#[test]
fn tracks_of_processes_belong_to_the_gpus_tracks_and_end_with_zero() {
    let (mut scene, gpu) = (scene(), gpu(0));
    let (me, other) = (std::process::id(), 1);
    scene.value(&gpu, 0, names::GPU_MEMORY_USED, 9e9);
    scene.read(&gpu, 0, Observed::ProcessMemory(vec![(other, 1 << 30), (me, 2 << 30)]));
    scene.read(&gpu, 1000, Observed::ProcessUse(vec![(me, Ns::millis(900), 70.0)]));
    scene.read(&gpu, 1000, Observed::ProcessMemory(vec![(other, 1 << 30), (me, 3 << 30)]));
    scene.read(&gpu, 2000, Observed::ProcessMemory(vec![(other, 1 << 30)]));
    let rows = scene.finish(3000);
    let of = |name: &str, pid: u32| {
        let track = rows.track.iter().find(|t| {
            let entity = rows.entity.iter().rev().find(|e| e.id == t.entity).unwrap();
            &*t.name == name && entity.number == Some(i64::from(pid))
        });
        let track = track.unwrap();
        let parent = rows.track.iter().find(|t| Some(t.id) == track.parent).unwrap();
        let values: Vec<f64> =
            rows.counter.iter().filter(|c| c.track == track.id).map(|c| c.value).collect();
        (parent.name.to_string(), values)
    };
    let gib = f64::from(1 << 30);
    let memory =
        |list: &[f64]| ("gpu_memory_used".to_owned(), list.iter().map(|n| n * gib).collect());
    assert_eq!(of(names::PROCESS_GPU_MEMORY, me), memory(&[2.0, 3.0, 0.0]));
    assert_eq!(of(names::PROCESS_GPU_MEMORY, other), memory(&[1.0, 1.0, 1.0]));
    assert_eq!(of(names::PROCESS_SM_UTILIZATION, me), ("gpu_utilization".into(), vec![70.0, 0.0]));
}

#[test]
fn a_gpu_that_falls_off_the_bus_is_named_and_the_other_goes_on() {
    let (mut scene, zero, one) = (scene(), gpu(0), gpu(1));
    for unit in [&zero, &one] {
        scene.value(unit, 0, names::SM_CLOCK, 1980.0);
    }
    scene.read(&one, 100, Observed::Event("xid", Some(79.0)));
    scene.read(&one, 100, Observed::Lost("fell off the bus".into()));
    assert_eq!(scene.state(), "degraded: gpu 1: Test does not answer: fell off the bus");
    scene.value(&zero, 200, names::SM_CLOCK, 1970.0);
    scene.read(&one, 5100, Observed::Returned);
    assert_eq!(scene.state(), "ok: ");
    scene.value(&one, 5100, names::SM_CLOCK, 1500.0);
    let rows = scene.finish(6000);
    let clocks = "GPU-0: 0=1980 200=1970\nGPU-1: 0=1980 5100=1500";
    assert_eq!(series(&rows, names::SM_CLOCK), clocks);
    assert_eq!(marks(&rows), "101 GPU-1 xid 79\n101 GPU-1 gpu lost\n5101 GPU-1 gpu back");
}

#[test]
fn slices_belong_to_their_gpu_whichever_is_read_first() {
    let (mut scene, whole) = (scene(), gpu(0));
    let part = |kind, uuid: &str| {
        Arc::new(Unit {
            kind,
            uuid: uuid.into(),
            name: uuid.into(),
            index: 0,
            parent: Some("GPU-0".into()),
        })
    };
    let (slice, own) = (part(UnitKind::Slice, "MIG-1"), part(UnitKind::Virtual, "VGPU-1"));
    scene.value(&slice, 0, names::GPU_MEMORY_USED, 1.0);
    scene.value(&whole, 0, names::GPU_MEMORY_USED, 3.0);
    scene.value(&own, 0, names::GPU_MEMORY_USED, 2.0);
    let rows = scene.finish(10);
    let entity = |key: &str| rows.entity.iter().rev().find(|e| &*e.key == key).unwrap();
    let gpu = entity("GPU-0");
    assert_eq!((gpu.kind, &*gpu.name), (EntityKind::Gpu, "gpu 0: Test"));
    assert_eq!((entity("MIG-1").kind, entity("MIG-1").parent), (EntityKind::Gpu, Some(gpu.id)));
    assert_eq!((entity("VGPU-1").kind, entity("VGPU-1").parent), (EntityKind::Vgpu, Some(gpu.id)));
}

#[test]
fn runlists_of_virtual_gpus_have_their_time_on_the_engine() {
    let (mut scene, gpu) = (scene(), gpu(0));
    scene.read(&gpu, 1000, Observed::Event("vGPU scheduler: fixed share", Some(2e6)));
    scene.read(&gpu, 1000, Observed::RunlistTime(vec![(3, 200), (4, 0)]));
    scene.read(&gpu, 2000, Observed::RunlistTime(vec![(3, 0), (4, 700)]));
    let rows = scene.finish(3000);
    let entity = |id| rows.entity.iter().rev().find(|e| e.id == id).unwrap();
    let mut told = String::new();
    for one in &rows.counter {
        let track = rows.track.iter().find(|track| track.id == one.track).unwrap();
        if &*track.name == names::PROCESS_ENGINE_TIME {
            let runlist = entity(track.entity);
            let parent = rows.track.iter().find(|other| Some(other.id) == track.parent).unwrap();
            let engine = entity(parent.entity);
            let (ms, number) = (one.ts.0 / 1_000_000, runlist.number.unwrap());
            let _ =
                write!(told, "{ms}: {} {number} on {} {}; ", runlist.name, engine.name, one.value);
            assert_eq!((runlist.parent, engine.parent), (engine.parent, runlist.parent));
        }
    }
    assert_eq!(
        told,
        "1000: software runlist 3 on graphics 200; 2000: software runlist 3 on graphics 0; 2000: software runlist 4 on \
         graphics 700; "
    );
    let mark = rows.mark.iter().find(|mark| &*mark.name == "vGPU scheduler: fixed share").unwrap();
    assert_eq!(mark.value, Some(2e6));
}

#[test]
fn the_uncertainty_of_times_is_written() {
    let (mut scene, gpu) = (scene(), gpu(0));
    scene.value(&gpu, 500, names::SM_CLOCK, 1980.0);
    scene.gpu_rows.write_uncertainty(Ns::millis(1500), &mut scene.cx);
    scene.gpu_rows.write_uncertainty(Ns::millis(1600), &mut scene.cx);
    let rows = scene.finish(1700);
    let text = series(&rows, names::NVML_UNCERTAINTY);
    assert!(text.ends_with(": 1500=1000000"), "{text}");
    let source = rows.source.last().unwrap();
    assert_eq!(&*source.config, " driver=580.1 gpus=2");
    let note = source.note.as_deref().unwrap();
    assert!(
        note.starts_with("1 of ") && note.ends_with("readings are offered by these GPUs"),
        "{note}"
    );
}

/// The probe started with this sampler.
fn started(sampler: Sampler, timeout: Duration) -> (Result<NvmlProbe, CollectError>, Context) {
    let mut cx = Context::new();
    let source = cx.catalog.source("nvml", "gpuwhy", "0", "");
    let bpf = std::rc::Rc::new(Bpf::new(4096));
    let config = Config::default();
    let start = Start { bpf: &bpf, config: &config, cx: &mut cx, source };
    (start_with(sampler, timeout, start), cx)
}

fn state(cx: &mut Context) -> (SourceState, Option<String>) {
    let mut rows = Rows::default();
    cx.catalog.drain(&mut rows);
    let source = rows.source.last().unwrap();
    (source.state, source.note.as_deref().map(str::to_owned))
}

#[test]
fn the_error_on_a_host_without_nvml_says_what_to_install() {
    let sampler = Sampler::start(vec!["/nowhere/libnvidia-ml.so.1".into()]).unwrap();
    let (probe, _) = started(sampler, Duration::from_secs(60));
    let text = error_chain(&probe.err().unwrap());
    assert!(text.starts_with("NVML cannot be used: "), "{text}");
    assert!(text.contains("/nowhere/libnvidia-ml.so.1") && text.contains("GPUWHY_NVML"), "{text}");
}

#[test]
fn a_library_that_is_slow_to_start_is_waited_for_while_recording() {
    let (go, gate) = std::sync::mpsc::channel();
    let sampler = Sampler::simulated(move |send| {
        gate.recv().unwrap();
        send(Message::Started { driver: "580.1".into(), gpus: 0 });
    });
    let (probe, mut cx) = started(sampler.unwrap(), Duration::ZERO);
    let mut probe = probe.ok().unwrap();
    let note = Some("NVML has not answered yet".to_owned());
    assert_eq!(state(&mut cx), (SourceState::Degraded, note));
    go.send(()).unwrap();
    let message = probe.sampler.wait(Duration::from_secs(60)).unwrap();
    probe.rows.take(message, &mut cx);
    assert_eq!(state(&mut cx), (SourceState::Ok, None));
}

#[test]
fn gpus_that_never_answered_are_named_and_slices_that_were_joined_end() {
    let (mut scene, whole) = (scene(), gpu(0));
    let unresponsive = Message::Unresponsive(vec![(1, "fell off the bus".into())]);
    scene.gpu_rows.take(unresponsive, &mut scene.cx);
    let note = "degraded: no answer from the beginning: gpu 1 (fell off the bus)";
    assert_eq!(scene.state(), note);
    scene.gpu_rows.take(Message::Unresponsive(Vec::new()), &mut scene.cx);
    assert_eq!(scene.state(), "ok: ");
    let slice = Unit { kind: UnitKind::Slice, uuid: "MIG-1".into(), ..Unit::clone(&whole) };
    let slice = Arc::new(slice);
    scene.value(&slice, 0, names::GPU_MEMORY_USED, 1.0);
    scene.read(&slice, 100, Observed::Ended);
    let rows = scene.finish(200);
    let entity = rows.entity.iter().rev().find(|e| &*e.key == "MIG-1").unwrap();
    assert_eq!(entity.to, Some(Ns::millis(101)));
}

#[test]
fn a_library_that_hangs_is_noted_and_not_waited_for() {
    let mut cx = Context::new();
    let source = cx.catalog.source("nvml", "gpuwhy", "0", "");
    let hanging = |send: &dyn Fn(Message)| {
        send(Message::Started { driver: "580.1".into(), gpus: 1 });
        let observed = Observed::Values(vec![(metric_named(names::SM_CLOCK).unwrap(), 1980.0)]);
        let reading = Reading { before: Ns(1), after: Ns(1001), observed };
        send(Message::Readings(gpu(0), vec![reading]));
        loop {
            std::thread::park();
        }
    };
    let sampler = Sampler::simulated(hanging).unwrap();
    let mut gpu_rows = GpuRows::new(source);
    for _ in 0..2 {
        gpu_rows.take(sampler.wait(Duration::from_secs(10)).unwrap(), &mut cx);
    }
    let mut probe = NvmlProbe { sampler, rows: gpu_rows, last_message: Ns::ZERO, hangs: false };
    probe.tick(Ns::secs(1), &mut cx).unwrap();
    assert!(!probe.hangs);
    probe.tick(Ns::secs(4), &mut cx).unwrap();
    assert!(probe.hangs);
    probe.finish(Ns::secs(5), &mut cx);
    let mut rows = Rows::default();
    cx.catalog.drain(&mut rows);
    let source = rows.source.last().unwrap();
    let note = "NVML was asked about gpu 0: Test and has not answered since";
    assert_eq!((source.state, source.note.as_deref()), (SourceState::Degraded, Some(note)));
    assert_eq!(cx.rows.counter.len(), 2, "the clock, and how far off it may be");
}
