//! The NVML source on a scripted machine: each test makes something happen to its GPUs and checks the
//! recorded rows.
//!
//! The library is the stand-in of `crates/standin`, which finds its machine by environment variables.
//! So each test starts itself again with these variables, and that second process records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder};
use gpuwhy_schema::{Counter, Entity, EntityKind, Rows, Source, SourceState, Track, names};
use gpuwhy_testkit::gpu::{self, Machine, Quantity, ThrottleTime, reason};

/// The environment variable with the path of the library.
const LIBRARY: &str = "GPUWHY_NVML";

/// The stand-in's object, which cargo builds for this test.
fn standin() -> PathBuf {
    gpu::find_standin().expect("cargo builds the stand-in for this test")
}

/// Runs `situation` on a machine with `gpus` GPUs in a second process, which runs only `test`.
fn on_a_machine(test: &str, gpus: usize, situation: impl FnOnce(&Machine)) {
    if std::env::var_os(gpu::ENV).is_some() {
        return situation(&Machine::from_env().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let links = folder.path().join("lib");
    gpu::link_libraries(&links, &standin()).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(gpu::ENV, folder.path())
        .env(gpu::ENV_GPUS, gpus.to_string())
        .env(LIBRARY, links.join("libnvidia-ml.so.1"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{error}");
}

/// A recording of NVML alone.
struct Recording {
    recorder: Recorder,
    rows: Rows,
}

impl Recording {
    fn start() -> Recording {
        let recorder = Recorder::start(Config::only(&["nvml"])).unwrap();
        Recording { recorder, rows: Rows::default() }
    }

    fn record_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.rows.append(&mut self.recorder.poll(Duration::from_millis(10)).unwrap());
        }
    }

    /// Records until `is_reached`; fails after 20 s.
    fn until(&mut self, what: &str, is_reached: impl Fn(&Trace) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_reached(&Trace { rows: &self.rows }) {
            assert!(Instant::now() < end, "not recorded within 20 s: {what}");
            self.record_for(Duration::from_millis(50));
        }
    }

    fn finish(mut self) -> Rows {
        self.rows.append(&mut self.recorder.finish());
        self.rows
    }
}

/// The recorded rows.
struct Trace<'r> {
    rows: &'r Rows,
}

impl<'r> Trace<'r> {
    fn source(&self) -> &'r Source {
        self.rows.source.iter().rev().find(|s| &*s.kind == "nvml").expect("NVML is a source")
    }

    fn entities(&self) -> BTreeMap<u32, &'r Entity> {
        self.rows.entity.iter().map(|e| (e.id.0, e)).collect()
    }

    fn track(&self, gpu: usize, name: &str) -> Option<&'r Track> {
        let entities = self.entities();
        self.rows.track.iter().find(|t| {
            let entity = entities[&t.entity.0];
            entity.kind == EntityKind::Gpu && entity.number == Some(gpu as i64) && &*t.name == name
        })
    }

    fn counters(&self, gpu: usize, name: &str) -> Vec<&'r Counter> {
        let Some(track) = self.track(gpu, name) else { return Vec::new() };
        self.rows.counter.iter().filter(|c| c.track == track.id).collect()
    }

    fn values(&self, gpu: usize, name: &str) -> Vec<f64> {
        self.counters(gpu, name).iter().map(|c| c.value).collect()
    }

    /// Values without repetitions.
    fn changes(&self, gpu: usize, name: &str) -> Vec<f64> {
        let mut values = self.values(gpu, name);
        values.dedup();
        values
    }

    /// `name value` of each mark of a GPU.
    fn marks(&self, gpu: usize) -> Vec<String> {
        let Some(track) = self.track(gpu, names::GPU_EVENTS) else { return Vec::new() };
        let marks = self.rows.mark.iter().filter(|m| m.track == track.id);
        marks.map(|m| m.value.map_or(m.name.to_string(), |v| format!("{} {v}", m.name))).collect()
    }

    /// Values of a track of a process, and the parent of that track.
    fn of_process(&self, pid: u32, name: &str) -> (Vec<f64>, Option<&'r Track>) {
        let entities = self.entities();
        let track = self.rows.track.iter().find(|t| {
            let entity = entities[&t.entity.0];
            entity.number == Some(i64::from(pid)) && &*t.name == name
        });
        let Some(track) = track else { return (Vec::new(), None) };
        let values = self.rows.counter.iter().filter(|c| c.track == track.id).map(|c| c.value);
        let parent = self.rows.track.iter().find(|t| Some(t.id) == track.parent);
        (values.collect(), parent)
    }
}

fn now() -> u64 {
    gpuwhy_collect::now().0 as u64
}

/// Some periods of the sampler.
const A_FEW_SAMPLES: Duration = Duration::from_millis(350);

#[test]
fn a_power_cap_lowers_the_clock_and_is_recorded_as_its_reason() {
    on_a_machine("a_power_cap_lowers_the_clock_and_is_recorded_as_its_reason", 1, |machine| {
        let gpu = machine.gpu(0).unwrap();
        let full = gpu.get(Quantity::SmClockMax) as f64;
        let mut recording = Recording::start();
        let clock = |trace: &Trace<'_>, mhz: f64| {
            trace.values(0, names::SM_CLOCK).last() == Some(&mhz)
                && trace.values(0, names::THROTTLED_POWER).len() > usize::from(mhz < full)
        };
        recording.until("the full clock", |trace| clock(trace, full));
        gpu.throttle(reason::SW_POWER_CAP, 1200, now());
        recording.until("the lower clock", |trace| clock(trace, 1200.0));
        gpu.heal(now());
        recording.until("the full clock again", |trace| clock(trace, full));
        recording.record_for(A_FEW_SAMPLES);
        let rows = recording.finish();
        let trace = Trace { rows: &rows };
        assert_eq!(trace.changes(0, names::SM_CLOCK), [full, 1200.0, full]);
        let reasons = trace.changes(0, names::CLOCK_EVENT_REASONS);
        let capped = |bits: &f64| *bits as u64 & reason::SW_POWER_CAP != 0;
        assert_eq!(reasons.iter().filter(|bits| capped(bits)).count(), 1, "{reasons:?}");
        assert!(!capped(&reasons[0]) && !capped(reasons.last().unwrap()), "{reasons:?}");
        let held = trace.values(0, names::THROTTLED_POWER);
        assert_eq!(held[0], 0.0);
        assert_eq!(*held.last().unwrap() as u64, gpu.throttle_time(ThrottleTime::Power, now()));
        assert_eq!(trace.changes(0, names::THROTTLED_HW_THERMAL), [0.0]);
        let source = trace.source();
        assert_eq!(source.state, SourceState::Ok, "{source:?}");
        assert!(source.recorded > 0 && source.dropped == 0, "{source:?}");
        assert!(source.config.contains("driver=") && source.config.contains("gpus=1"));
        let gpu = rows.entity.iter().rev().find(|e| e.kind == EntityKind::Gpu).unwrap();
        assert_eq!(&*gpu.key, machine.gpu(0).unwrap().uuid_text());
        assert!(gpu.name.starts_with("gpu 0: NVIDIA"), "{}", gpu.name);
    });
}

#[test]
fn throttling_between_two_samples_is_in_the_totals_at_its_time() {
    on_a_machine("throttling_between_two_samples_is_in_the_totals_at_its_time", 1, |machine| {
        let gpu = machine.gpu(0).unwrap();
        let mut recording = Recording::start();
        recording.record_for(2 * A_FEW_SAMPLES);
        let begin = now();
        gpu.throttle(reason::HW_THERMAL | reason::HW_SLOWDOWN, 345, begin);
        let end = now().max(begin + 3_000_000);
        gpu.heal(end);
        recording.until("the total", |trace| {
            trace.values(0, names::THROTTLED_HW_THERMAL).last() > Some(&0.0)
        });
        recording.record_for(A_FEW_SAMPLES);
        let rows = recording.finish();
        let trace = Trace { rows: &rows };
        let held = trace.counters(0, names::THROTTLED_HW_THERMAL);
        let grown = held.iter().position(|c| c.value > 0.0).expect("the total grows");
        assert_eq!(held[grown].value as u64, end - begin);
        // The growth lies between the last sample before and the first one after it.
        assert!(grown > 0 && held[grown - 1].value == 0.0);
        assert!(held[grown - 1].ts.0 as u64 <= end && held[grown].ts.0 as u64 >= begin);
        let apart = held[grown].ts - held[grown - 1].ts;
        assert!(
            apart < held.last().unwrap().ts - held[0].ts,
            "the growth has a time within the recording"
        );
    });
}

#[test]
fn an_xid_is_a_mark_with_its_number_and_replays_are_counted() {
    on_a_machine("an_xid_is_a_mark_with_its_number_and_replays_are_counted", 1, |machine| {
        let gpu = machine.gpu(0).unwrap();
        let mut recording = Recording::start();
        recording.until("the width", |trace| !trace.changes(0, names::PCIE_LINK_WIDTH).is_empty());
        gpu.xid(31, u64::from(std::process::id()), now());
        gpu.add(Quantity::PcieReplays, 5);
        gpu.set(Quantity::PcieWidth, 8);
        recording.until("the width", |trace| trace.changes(0, names::PCIE_LINK_WIDTH).len() == 2);
        let rows = recording.finish();
        let trace = Trace { rows: &rows };
        assert_eq!(trace.marks(0), ["xid 31"]);
        assert_eq!(trace.changes(0, names::PCIE_REPLAY), [0.0, 5.0]);
        assert_eq!(trace.changes(0, names::PCIE_LINK_WIDTH), [16.0, 8.0]);
    });
}

#[test]
fn one_gpu_falls_off_the_bus_and_returns_while_the_other_is_sampled() {
    on_a_machine(
        "one_gpu_falls_off_the_bus_and_returns_while_the_other_is_sampled",
        2,
        |machine| {
            let (zero, one) = (machine.gpu(0).unwrap(), machine.gpu(1).unwrap());
            let mut recording = Recording::start();
            recording.until("both", |trace| {
                [0, 1].iter().all(|&i| !trace.values(i, names::SM_CLOCK).is_empty())
            });
            one.fall_off_bus(now());
            recording.until("gpu lost", |trace| trace.marks(1).contains(&"gpu lost".to_owned()));
            zero.set(Quantity::SmClock, 1000);
            recording.until("the other GPU is sampled", |trace| {
                trace.values(0, names::SM_CLOCK).last() == Some(&1000.0)
            });
            {
                let trace = Trace { rows: &recording.rows };
                let note = trace.source().note.clone().unwrap();
                assert_eq!(trace.source().state, SourceState::Degraded);
                assert!(note.starts_with("gpu 1: NVIDIA") && note.contains("not answer"), "{note}");
                assert!(trace.marks(0).is_empty());
            }
            one.heal(now());
            one.set(Quantity::SmClock, 900);
            recording.until("gpu back", |trace| {
                trace.marks(1).last().is_some_and(|mark| mark == "gpu back")
                    && trace.values(1, names::SM_CLOCK).last() == Some(&900.0)
            });
            one.xid(13, 0, now());
            recording.until("an event after the return", |trace| {
                trace.marks(1).last().is_some_and(|mark| mark == "xid 13")
            });
            let rows = recording.finish();
            let trace = Trace { rows: &rows };
            let marks = trace.marks(1);
            let lost = marks.iter().position(|mark| mark == "gpu lost").unwrap();
            assert!(marks[..lost].contains(&"xid 79".to_owned()), "why it was lost: {marks:?}");
            assert_eq!(marks[lost..], ["gpu lost", "gpu back", "xid 13"]);
            assert_eq!(trace.source().state, SourceState::Ok);
        },
    );
}

#[test]
fn a_gpu_lost_before_the_recording_is_noted_and_the_other_is_recorded() {
    on_a_machine(
        "a_gpu_lost_before_the_recording_is_noted_and_the_other_is_recorded",
        2,
        |machine| {
            machine.gpu(1).unwrap().fall_off_bus(now());
            let mut recording = Recording::start();
            recording.until("a clock", |trace| !trace.values(0, names::SM_CLOCK).is_empty());
            let rows = recording.finish();
            let source = Trace { rows: &rows }.source();
            let note = source.note.as_deref().unwrap();
            assert_eq!(source.state, SourceState::Degraded);
            assert!(note.starts_with("no answer from the beginning: gpu 1 ("), "{note}");
        },
    );
}

/// A process that runs until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn processes_on_a_gpu_have_their_memory_and_their_share() {
    on_a_machine("processes_on_a_gpu_have_their_memory_and_their_share", 1, |machine| {
        let gpu = machine.gpu(0).unwrap();
        let sleeper = Sleeper::start();
        let pid = sleeper.0.id();
        let mut recording = Recording::start();
        recording.record_for(A_FEW_SAMPLES);
        assert!(gpu.allocate(pid, 3 << 30, now()));
        gpu.launch(now(), 0, pid, 2_500_000_000);
        recording.until("memory and share", |trace| {
            !trace.of_process(pid, names::PROCESS_GPU_MEMORY).0.is_empty()
                && !trace.of_process(pid, names::PROCESS_SM_UTILIZATION).0.is_empty()
        });
        gpu.leave(pid);
        recording.until("it leaves", |trace| {
            trace.of_process(pid, names::PROCESS_GPU_MEMORY).0.last() == Some(&0.0)
        });
        drop(sleeper);
        let rows = recording.finish();
        let trace = Trace { rows: &rows };
        let (memory, parent) = trace.of_process(pid, names::PROCESS_GPU_MEMORY);
        assert_eq!(memory[0], (3_u64 << 30) as f64);
        let parent = parent.unwrap();
        assert_eq!(Some(parent.id), trace.track(0, names::GPU_MEMORY_USED).map(|t| t.id));
        let (share, parent) = trace.of_process(pid, names::PROCESS_SM_UTILIZATION);
        assert!(share[0] > 0.0 && share[0] <= 100.0, "{share:?}");
        assert_eq!(parent.map(|t| &*t.name), Some(names::GPU_UTILIZATION));
        let used = trace.values(0, names::GPU_MEMORY_USED);
        assert!(used.iter().any(|&bytes| bytes >= (3_u64 << 30) as f64), "{used:?}");
        let busy = trace.counters(0, names::GPU_UTILIZATION);
        assert!(
            busy.iter().any(|c| c.value > 50.0),
            "{:?}",
            trace.values(0, names::GPU_UTILIZATION)
        );
        assert!(busy.windows(2).all(|two| two[0].ts < two[1].ts), "times increase");
        let process = rows.entity.iter().rev().find(|e| e.number == Some(i64::from(pid))).unwrap();
        assert_eq!((process.kind, &*process.name), (EntityKind::Process, "sleep"));
    });
}

#[test]
fn the_mig_slices_of_a_gpu_are_its_children() {
    on_a_machine("the_mig_slices_of_a_gpu_are_its_children", 1, |machine| {
        machine.gpu(0).unwrap().set_mig(2);
        let mut recording = Recording::start();
        recording.until("two slices with their memory", |trace| {
            let slices = trace.rows.entity.iter().filter(|e| e.key.starts_with("MIG-")).count();
            let memory = trace.rows.track.iter().filter(|t| &*t.name == names::GPU_MEMORY_USED);
            slices >= 2 && memory.count() >= 2
        });
        let rows = recording.finish();
        let last = Trace { rows: &rows }.entities();
        let gpus: Vec<&&Entity> = last.values().filter(|e| e.kind == EntityKind::Gpu).collect();
        let whole = gpus.iter().find(|e| e.key.starts_with("GPU-")).unwrap();
        let slices: Vec<_> = gpus.iter().filter(|e| e.parent == Some(whole.id)).collect();
        assert_eq!(slices.len(), 2, "{gpus:?}");
        assert!(slices.iter().all(|e| e.key.starts_with("MIG-")), "{slices:?}");
        assert!(whole.name.ends_with(", split"), "{}", whole.name);
    });
}

#[test]
fn on_a_host_without_a_gpu_missing_nvml_is_no_source() {
    let there = ["/proc/driver/nvidia", "/dev/nvidiactl"].iter().any(|p| Path::new(p).exists());
    if there || std::env::var_os(LIBRARY).is_some() {
        println!("skipped: this host has an NVIDIA GPU");
        return;
    }
    let mut recording = Recording::start();
    recording.record_for(Duration::from_millis(50));
    let rows = recording.finish();
    assert!(rows.source.iter().all(|s| &*s.kind != "nvml"));
}
