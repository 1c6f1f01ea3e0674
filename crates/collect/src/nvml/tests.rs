//! Made-up readings, and the rows that must follow from them.

use std::fmt::Write as _;

use gpuwhy_schema::Rows;

use super::readings::which;
use super::*;

fn gpu(index: u32) -> Arc<Unit> {
    Arc::new(Unit {
        kind: UnitKind::Gpu,
        uuid: format!("GPU-{index}"),
        name: format!("gpu {index}: Test"),
        index,
        parent: None,
    })
}

/// A recording of made-up readings.
struct Made {
    book: Book,
    cx: Context,
    source: SourceId,
    /// Lanes that were looked at on the way.
    lanes: Rows,
}

fn book() -> Made {
    let mut cx = crate::recorder::context();
    let source = cx.lanes.source("nvml", "gpuwhy", "0", "");
    let mut book = Book::new(source);
    book.take(Told::Began { driver: "580.1".into(), gpus: 2 }, &mut cx);
    Made { book, cx, source, lanes: Rows::default() }
}

impl Made {
    /// A call that took 2 ms around `ms`.
    fn read(&mut self, unit: &Arc<Unit>, ms: i64, what: What) {
        let reading = Reading { before: Ns::millis(ms - 1), after: Ns::millis(ms + 1), what };
        self.book.take(Told::Read(Arc::clone(unit), vec![reading]), &mut self.cx);
    }

    fn value(&mut self, unit: &Arc<Unit>, ms: i64, name: &str, value: f64) {
        self.read(unit, ms, What::Values(vec![(which(name).unwrap(), value)]));
    }

    fn finish(mut self, ms: i64) -> Rows {
        self.book.finish(Ns::millis(ms), &mut self.cx);
        let mut rows = self.lanes;
        self.cx.lanes.drain(&mut rows);
        assert_eq!(self.book.rows as usize, self.cx.rows.counter.len() + self.cx.rows.mark.len());
        rows.append(&mut self.cx.rows);
        rows
    }

    fn state(&mut self) -> String {
        self.cx.lanes.drain(&mut self.lanes);
        let rows = &self.lanes;
        let source = rows.source.iter().rev().find(|s| s.id == self.source).expect("it was told");
        format!("{}: {}", source.state, source.note.as_deref().unwrap_or(""))
    }
}

/// `ms=value` of each row of a track, with `whose` before it where there are several.
fn series(rows: &Rows, name: &str) -> String {
    let mut text = String::new();
    for track in rows.track.iter().filter(|t| &*t.name == name) {
        let whose = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
        let _ = write!(text, "{}:", whose.key);
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
        let whose = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
        assert_eq!(&*track.name, names::GPU_EVENTS);
        let _ = write!(text, "{} {} {}", mark.ts.as_millis_f64(), whose.key, mark.name);
        text.push_str(&mark.value.map_or(String::new(), |v| format!(" {v}")));
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[test]
fn a_total_is_written_at_its_ends_and_where_it_moves() {
    let (mut told, gpu) = (book(), gpu(0));
    for (ms, held) in [(0, 50.0), (100, 50.0), (200, 50.0), (300, 90.0), (400, 90.0), (500, 90.0)] {
        told.value(&gpu, ms, names::THROTTLED_POWER, held);
    }
    let rows = told.finish(600);
    // What was held down between 200 and 300 ms is not spread over the time before.
    let expected = "GPU-0: 0=50 200=50 300=90 500=90";
    assert_eq!(series(&rows, names::THROTTLED_POWER), expected);
    let track = rows.track.iter().find(|t| &*t.name == names::THROTTLED_POWER).unwrap();
    assert_eq!((track.unit.as_deref(), track.measure), (Some("ns"), Some(Measure::Total)));
}

#[test]
fn a_gauge_that_moves_is_written_each_time_and_a_fact_when_it_changes() {
    let (mut told, gpu) = (book(), gpu(0));
    for (ms, mhz, width) in [(0, 1980.0, 16.0), (100, 1980.0, 16.0), (200, 1200.0, 8.0)] {
        told.value(&gpu, ms, names::SM_CLOCK, mhz);
        told.value(&gpu, ms, names::PCIE_LINK_WIDTH, width);
    }
    let rows = told.finish(300);
    assert_eq!(series(&rows, names::SM_CLOCK), "GPU-0: 0=1980 100=1980 200=1200");
    assert_eq!(series(&rows, names::PCIE_LINK_WIDTH), "GPU-0: 0=16 100=16 200=8");
    let entity = rows.entity.iter().rev().find(|e| &*e.key == "GPU-0").unwrap();
    assert_eq!(
        (entity.kind, &*entity.name, entity.number),
        (EntityKind::Gpu, "gpu 0: Test", Some(0))
    );
}

#[test]
fn what_the_driver_had_kept_goes_forward_only() {
    let (mut told, gpu) = (book(), gpu(0));
    let power = which(names::GPU_POWER).unwrap();
    let kept = |list: &[(i64, f64)]| {
        What::Kept(power, list.iter().map(|&(ms, watts)| (Ns::millis(ms), watts)).collect())
    };
    told.read(&gpu, 100, kept(&[(40, 300.0), (60, 310.0), (80, 320.0)]));
    told.read(&gpu, 200, kept(&[(80, 320.0), (100, 330.0)]));
    // The buffer gave out and the moment's value was asked for; then it came back.
    told.value(&gpu, 300, names::GPU_POWER, 400.0);
    told.read(&gpu, 400, kept(&[(290, 395.0), (310, 405.0)]));
    let rows = told.finish(500);
    let expected = "GPU-0: 40=300 60=310 80=320 100=330 300=400 310=405";
    assert_eq!(series(&rows, names::GPU_POWER), expected);
}

#[test]
fn processes_belong_to_the_gpu_by_their_tracks_and_leave_with_nothing() {
    let (mut told, gpu) = (book(), gpu(0));
    let (me, other) = (std::process::id(), 1);
    told.value(&gpu, 0, names::GPU_MEMORY_USED, 9e9);
    told.read(&gpu, 0, What::Memory(vec![(other, 1 << 30), (me, 2 << 30)]));
    told.read(&gpu, 1000, What::Busy(vec![(me, Ns::millis(900), 70.0)]));
    told.read(&gpu, 1000, What::Memory(vec![(other, 1 << 30), (me, 3 << 30)]));
    told.read(&gpu, 2000, What::Memory(vec![(other, 1 << 30)]));
    let rows = told.finish(3000);
    let of = |name: &str, pid: u32| {
        let track = rows.track.iter().find(|t| {
            let whose = rows.entity.iter().rev().find(|e| e.id == t.entity).unwrap();
            &*t.name == name && whose.number == Some(i64::from(pid))
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
    let (mut told, zero, one) = (book(), gpu(0), gpu(1));
    for unit in [&zero, &one] {
        told.value(unit, 0, names::SM_CLOCK, 1980.0);
    }
    told.read(&one, 100, What::Mark("xid", Some(79.0)));
    told.read(&one, 100, What::Lost("fell off the bus".into()));
    assert_eq!(told.state(), "degraded: gpu 1: Test does not answer: fell off the bus");
    told.value(&zero, 200, names::SM_CLOCK, 1970.0);
    told.read(&one, 5100, What::Back);
    assert_eq!(told.state(), "ok: ");
    told.value(&one, 5100, names::SM_CLOCK, 1500.0);
    let rows = told.finish(6000);
    let clocks = "GPU-0: 0=1980 200=1970\nGPU-1: 0=1980 5100=1500";
    assert_eq!(series(&rows, names::SM_CLOCK), clocks);
    assert_eq!(marks(&rows), "101 GPU-1 xid 79\n101 GPU-1 gpu lost\n5101 GPU-1 gpu back");
}

#[test]
fn slices_hang_below_their_gpu_whoever_is_told_first() {
    let (mut told, whole) = (book(), gpu(0));
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
    told.value(&slice, 0, names::GPU_MEMORY_USED, 1.0);
    told.value(&whole, 0, names::GPU_MEMORY_USED, 3.0);
    told.value(&own, 0, names::GPU_MEMORY_USED, 2.0);
    let rows = told.finish(10);
    let entity = |key: &str| rows.entity.iter().rev().find(|e| &*e.key == key).unwrap();
    let gpu = entity("GPU-0");
    assert_eq!((gpu.kind, &*gpu.name), (EntityKind::Gpu, "gpu 0: Test"));
    assert_eq!((entity("MIG-1").kind, entity("MIG-1").parent), (EntityKind::Gpu, Some(gpu.id)));
    assert_eq!((entity("VGPU-1").kind, entity("VGPU-1").parent), (EntityKind::Vgpu, Some(gpu.id)));
}

#[test]
fn times_say_how_far_off_they_may_be() {
    let (mut told, gpu) = (book(), gpu(0));
    told.value(&gpu, 500, names::SM_CLOCK, 1980.0);
    told.book.tell_uncertainty(Ns::millis(1500), &mut told.cx);
    told.book.tell_uncertainty(Ns::millis(1600), &mut told.cx);
    let rows = told.finish(1700);
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

/// The probe as it starts with this sampler, and what its source says then.
fn begun(sampler: Sampler, patience: Duration) -> (Result<NvmlProbe, CollectError>, Context) {
    let mut cx = crate::recorder::context();
    let source = cx.lanes.source("nvml", "gpuwhy", "0", "");
    let kernel = std::rc::Rc::new(kernel::Kernel::new(4096));
    let config = crate::Config::default();
    let start = Start { kernel: &kernel, config: &config, cx: &mut cx, source };
    (begin(sampler, patience, start), cx)
}

fn state(cx: &mut Context) -> (SourceState, Option<String>) {
    let mut rows = Rows::default();
    cx.lanes.drain(&mut rows);
    let source = rows.source.last().expect("it was told");
    (source.state, source.note.as_deref().map(str::to_owned))
}

#[test]
fn a_host_without_nvml_is_told_what_to_install() {
    let sampler = Sampler::begin(vec!["/nowhere/libnvidia-ml.so.1".into()]).unwrap();
    let (probe, _) = begun(sampler, Duration::from_secs(60));
    let text = crate::story(&probe.err().unwrap());
    assert!(text.starts_with("NVML cannot be used: "), "{text}");
    assert!(text.contains("/nowhere/libnvidia-ml.so.1") && text.contains("GPUWHY_NVML"), "{text}");
}

#[test]
fn a_library_that_is_slow_to_start_is_waited_for_while_recording() {
    let (go, gate) = std::sync::mpsc::channel();
    let sampler = Sampler::run(move |tell| {
        gate.recv().unwrap();
        tell(Told::Began { driver: "580.1".into(), gpus: 0 });
    });
    let (probe, mut cx) = begun(sampler.unwrap(), Duration::ZERO);
    let mut probe = probe.ok().unwrap();
    let note = Some("NVML has not answered yet".to_owned());
    assert_eq!(state(&mut cx), (SourceState::Degraded, note));
    go.send(()).unwrap();
    let told = probe.sampler.wait(Duration::from_secs(60)).unwrap();
    probe.book.take(told, &mut cx);
    assert_eq!(state(&mut cx), (SourceState::Ok, None));
}

#[test]
fn gpus_that_never_answered_are_named_and_slices_that_were_joined_end() {
    let (mut told, whole) = (book(), gpu(0));
    let silent = Told::Silent(vec![(1, "fell off the bus".into())]);
    told.book.take(silent, &mut told.cx);
    let note = "degraded: no answer from the beginning: gpu 1 (fell off the bus)";
    assert_eq!(told.state(), note);
    told.book.take(Told::Silent(Vec::new()), &mut told.cx);
    assert_eq!(told.state(), "ok: ");
    let slice = Unit { kind: UnitKind::Slice, uuid: "MIG-1".into(), ..Unit::clone(&whole) };
    let slice = Arc::new(slice);
    told.value(&slice, 0, names::GPU_MEMORY_USED, 1.0);
    told.read(&slice, 100, What::Ended);
    let rows = told.finish(200);
    let entity = rows.entity.iter().rev().find(|e| &*e.key == "MIG-1").unwrap();
    assert_eq!(entity.to, Some(Ns::millis(101)));
}

#[test]
fn a_library_that_hangs_is_named_and_nobody_waits_for_it() {
    let mut cx = crate::recorder::context();
    let source = cx.lanes.source("nvml", "gpuwhy", "0", "");
    let hanging = |tell: &dyn Fn(Told)| {
        tell(Told::Began { driver: "580.1".into(), gpus: 1 });
        let value = What::Values(vec![(which(names::SM_CLOCK).unwrap(), 1980.0)]);
        let reading = Reading { before: Ns(1), after: Ns(1001), what: value };
        tell(Told::Read(gpu(0), vec![reading]));
        loop {
            std::thread::park();
        }
    };
    let sampler = Sampler::run(hanging).unwrap();
    let mut book = Book::new(source);
    for _ in 0..2 {
        book.take(sampler.wait(Duration::from_secs(10)).unwrap(), &mut cx);
    }
    let mut probe = NvmlProbe { sampler, book, heard: Ns::ZERO, hangs: false };
    probe.tick(Ns::secs(1), &mut cx).unwrap();
    assert!(!probe.hangs);
    probe.tick(Ns::secs(4), &mut cx).unwrap();
    assert!(probe.hangs);
    probe.finish(Ns::secs(5), &mut cx);
    let mut rows = Rows::default();
    cx.lanes.drain(&mut rows);
    let source = rows.source.last().unwrap();
    let note = "NVML was asked about gpu 0: Test and has not answered since";
    assert_eq!((source.state, source.note.as_deref()), (SourceState::Degraded, Some(note)));
    assert_eq!(cx.rows.counter.len(), 2, "the clock, and how far off it may be");
}
