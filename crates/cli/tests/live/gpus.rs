//! A program on a GPU is recorded, something happens to the GPU, and the verdict says what; and
//! what CUPTI does wrong is said. The GPU is the stand-ins' scripted one; the library inside the
//! program, the driver's interfaces and the way to the verdict are the real ones.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use gpuwhy_testkit::gpu::{self, Defect, Environment, Machine};
use gpuwhy_testkit::gpufault::{self, Kind};
use gpuwhy_testkit::gpuloop::{self, Label};
use gpuwhy_testkit::{eventually, helper};
use serde_json::{Value, json};

use crate::watching::{Running, event, lines};
use crate::{alone, built, folder, gpuwhy, may_record, said};

/// A machine with a scripted GPU, and the libraries that show it.
struct Bench {
    _keep: tempfile::TempDir,
    folder: PathBuf,
    machine: PathBuf,
    libraries: PathBuf,
    /// Which CUDA the stand-ins are.
    env: Vec<(&'static str, &'static str)>,
    _alone: MutexGuard<'static, ()>,
}

impl Bench {
    /// Alone on this machine; `None`, and says why, where nothing can be recorded.
    fn new() -> Option<Bench> {
        if !may_record() {
            return None;
        }
        let _alone = alone();
        helper::set_program(built("gpuwhy-bench"));
        let (keep, folder) = folder();
        let (machine, libraries) = (folder.join("machine"), folder.join("libraries"));
        std::fs::create_dir(&machine).unwrap();
        gpu::link_libraries(&libraries, &built("libgpuwhy_standin.so")).unwrap();
        Some(Bench { _keep: keep, folder, machine, libraries, env: Vec::new(), _alone })
    }

    fn environment(&self) -> Environment {
        let (machine, libraries) = (Some(self.machine.clone()), Some(self.libraries.clone()));
        Environment { machine, libraries, ..Environment::default() }
    }

    fn trace(&self) -> PathBuf {
        self.folder.join("t.trace")
    }

    /// Records a command under the stand-ins, or watches it.
    fn start(&self, how: &str, options: &[&str], command: &[&str]) -> Child {
        // What gpuwhy says comes on the standard output that it shares with the command.
        let place = if how == "watch" { "--events" } else { "--summary" };
        Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
            .envs(self.env.iter().copied())
            .args([how, "--json", place, "-", "-o"])
            .arg(self.trace())
            .arg("--inject-library")
            .arg(built("libgpuwhy_inject.so"))
            .args(options)
            .arg("--")
            .args(command)
            .env("GPUWHY_STANDIN", &self.machine)
            .env("LD_LIBRARY_PATH", &self.libraries)
            .env("GPUWHY_NVML", self.libraries.join("libnvidia-ml.so.1"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Records the workload, or watches it, and returns when it uses its GPU.
    fn begun(&self, how: &str, options: &[&str], workload: Value) -> Child {
        let workload = workload.to_string();
        let bench = built("gpuwhy-bench");
        let gpuloop = [bench.to_str().unwrap(), "__testkit", "gpuloop", &workload];
        let machine = Machine::open(&self.machine, 1).unwrap();
        let child = self.start(how, options, &gpuloop);
        // A machine that has much else to do starts programs late.
        eventually("the workload uses its GPU", || machine.gpu(0).unwrap().busy() > 0);
        child
    }

    /// Records the workload, and what happens meanwhile; what the recording said of itself.
    fn recorded(&self, options: &[&str], workload: Value, meanwhile: impl FnOnce()) -> Value {
        let record = self.begun("record", options, workload);
        meanwhile();
        let output = record.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        // The workload says its own line first.
        let at = text.find("{\n").unwrap_or_else(|| panic!("no document in {text}"));
        serde_json::from_str(&text[at..]).unwrap()
    }

    /// Records a workload of so many seconds beside which another process uses the GPU from one second on, for some; what the
    /// recording said of itself, and that process.
    fn beside_a_competitor(
        &self,
        options: &[&str],
        seconds: f64,
        (from, lasts): (u64, f64),
    ) -> (Value, Label) {
        let mut label = None;
        let told = self.recorded(options, workload(seconds, &[]), || {
            std::thread::sleep(Duration::from_secs(from));
            let environment = self.environment();
            let hog =
                gpuloop::Hog { seconds: Some(lasts), kernel_us: 3000, device: 0, environment };
            label = Some(gpuloop::start_hog(&hog).unwrap().finish().unwrap());
        });
        (told, label.unwrap())
    }

    /// The finding that lost most, of a trace in which every invariant holds.
    fn finding(&self) -> Value {
        finding(&self.trace())
    }
}

fn finding(trace: &Path) -> Value {
    let valid = gpuwhy(&["validate", trace.to_str().unwrap()]);
    assert!(valid.status.success(), "{}", said(&valid));
    let output = gpuwhy(&["diagnose", "--json", trace.to_str().unwrap()]);
    if !output.status.success() {
        // Nothing was found, or nothing decided; people are told which in a line.
        panic!("{}", said(&gpuwhy(&["diagnose", trace.to_str().unwrap()])));
    }
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["findings"][0].clone()
}

/// A workload of so many seconds; `more` replaces what is usual.
fn workload(seconds: f64, more: &[(&str, Value)]) -> Value {
    let config = gpuloop::Config { seconds: Some(seconds), ..gpuloop::Config::default() };
    let mut workload = serde_json::to_value(config).unwrap();
    for (key, value) in more {
        workload[*key] = value.clone();
    }
    workload
}

fn evidence(finding: &Value) -> String {
    let list = finding["causes"][0]["evidence_for"].as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|e| e["says"].as_str()).collect::<Vec<_>>().join("\n")
}

/// Something happens to the GPU for three seconds of ten.
fn happens(kind: Kind, more: &[(&str, Value)], says: &[&str]) {
    let Some(bench) = Bench::new() else { return };
    let mut label = None;
    bench.recorded(&[], workload(10.0, more), || {
        std::thread::sleep(Duration::from_secs(5));
        let spec = gpufault::Spec {
            kind,
            seconds: Some(3.0),
            gpu: 0,
            pid: 0,
            environment: bench.environment(),
        };
        label = Some(gpufault::start(&spec).unwrap().finish().unwrap());
    });
    let label: Label = label.unwrap();
    let finding = bench.finding();
    assert_eq!(finding["class"].as_str(), label.class.as_deref(), "{finding:#}");
    let culprit = finding["culprit"]["name"].as_str().unwrap_or_default();
    assert!(culprit.starts_with("gpu 0"), "{finding:#}");
    let all = evidence(&finding);
    for said in says {
        assert!(all.contains(said), "no `{said}` in:\n{all}");
    }
    // Noise of a busy machine right before it is part of the same incident.
    let from = finding["from_ns"].as_i64().unwrap() - label.from_ns as i64;
    assert!((-2_500_000_000..1_000_000_000).contains(&from), "dated {from} ns after it began");
}

#[test]
fn root_a_gpu_held_back_by_its_power_cap_is_told() {
    happens(Kind::Throttle, &[], &["its clock was 990 MHz", "held down by its power cap"]);
}

#[test]
fn root_a_program_that_marks_no_steps_is_judged_by_its_waits() {
    let unmarked = [("unmarked", json!(true))];
    happens(Kind::Throttle, &unmarked, &["its clock was 990 MHz", "held down by its power cap"]);
}

#[test]
fn root_a_watched_program_that_marks_no_steps_is_judged_while_its_gpu_is_held_back() {
    let Some(bench) = Bench::new() else { return };
    let workload = workload(25.0, &[("unmarked", json!(true))]);
    let mut watch = bench.begun("watch", &["--max-cpu", "50"], workload);
    let documents = lines(watch.stdout.take().unwrap());
    let _watch = Running(watch);
    std::thread::sleep(Duration::from_secs(10));
    let environment = bench.environment();
    let spec =
        gpufault::Spec { kind: Kind::Throttle, seconds: Some(4.0), gpu: 0, pid: 0, environment };
    let label: Label = gpufault::start(&spec).unwrap().finish().unwrap();
    // A busy machine may be told of before.
    loop {
        let finding = event(&documents, "over")["finding"].clone();
        if finding["class"].as_str() == label.class.as_deref() {
            assert!(finding["to_ns"].as_i64().unwrap() > label.from_ns as i64, "{finding:#}");
            break;
        }
    }
    event(&documents, "ended");
    // Its rounds are steps in the trace: what was kept is judged alike.
    assert_eq!(bench.finding()["class"].as_str(), label.class.as_deref());
}

#[test]
fn root_a_link_that_sends_packets_again_is_told() {
    happens(Kind::PcieReplay, &[("batch_mib", json!(48))], &["packets were sent again over PCIe"]);
}

#[test]
fn root_a_gpu_that_stands_still_after_an_xid_is_told() {
    happens(Kind::XidStall, &[], &["Xid 74"]);
}

#[test]
fn root_a_process_that_competes_for_the_gpu_is_named() {
    let Some(bench) = Bench::new() else { return };
    let (_, label) = bench.beside_a_competitor(&[], 10.0, (5, 3.0));
    let finding = bench.finding();
    assert_eq!(finding["class"], "gpu_contention", "{finding:#}");
    assert_eq!(finding["culprit"]["pid"].as_i64(), label.pid.map(i64::from), "{finding:#}");
}

/// What is said of a workload beside which another process uses the GPU, where neither its driver's readings nor anything
/// inside that process tells of it.
fn beside_one_that_is_not_told_of(bench: &Bench, options: &[&str]) -> Label {
    let options: Vec<&str> = ["--off", "nvml"].into_iter().chain(options.iter().copied()).collect();
    let (told, label) = bench.beside_a_competitor(&options, 10.0, (5, 3.0));
    assert!(!told["degraded"].to_string().contains("gpu_switches"), "{told:#}");
    label
}

#[test]
fn root_a_process_of_which_only_context_switches_tell_is_named() {
    let Some(mut bench) = Bench::new() else { return };
    let label = beside_one_that_is_not_told_of(&bench, &[]);
    // It is nowhere in what is said: the kernels got longer, and nothing says why.
    let output = gpuwhy(&["diagnose", "--json", bench.trace().to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let pid = format!("\"pid\": {}", label.pid.unwrap());
    assert!(text.contains("\"findings\"") && !text.contains(&pid), "{text}");

    std::fs::remove_dir_all(bench.trace()).unwrap();
    let driver = built("examples/libnvidiactl.so").into_os_string().into_string().unwrap();
    bench.env.push(("LD_PRELOAD", driver.leak()));
    let label = beside_one_that_is_not_told_of(&bench, &["--gpu-switches"]);
    let finding = bench.finding();
    assert_eq!(finding["class"], "gpu_contention", "{finding:#}");
    assert_eq!(finding["culprit"]["pid"].as_i64(), label.pid.map(i64::from), "{finding:#}");
    let all = evidence(&finding);
    assert!(all.contains("had it for") && all.contains("% of the time, 0 % before"), "{all}");

    // How much each had, without anything inside them.
    let output = gpuwhy(&["vgpu", bench.trace().to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counted = report["counted"].as_array().unwrap();
    let pid = label.pid.unwrap().to_string();
    let hog = counted.iter().find(|one| one["process"].as_str().unwrap().contains(&pid)).unwrap();
    // It has kernels at all times, and every second turn.
    let busy = hog["busy_ms"].as_f64().unwrap();
    let lasted = (label.to_ns - label.from_ns) as f64 / 1e6;
    assert!(busy > 0.4 * lasted && busy < lasted, "{busy} ms of {lasted} ms: {report:#}");
    assert_eq!(counted.len(), 2, "{report:#}");
}

#[test]
fn root_a_process_of_which_only_context_switches_tell_is_named_while_it_disturbs() {
    let Some(mut bench) = Bench::new() else { return };
    let driver = built("examples/libnvidiactl.so").into_os_string().into_string().unwrap();
    bench.env.push(("LD_PRELOAD", driver.leak()));
    let options = ["--max-cpu", "50", "--off", "nvml", "--gpu-switches"];
    let mut watch = bench.begun("watch", &options, workload(25.0, &[]));
    let documents = lines(watch.stdout.take().unwrap());
    let _watch = Running(watch);
    std::thread::sleep(Duration::from_secs(10));
    let environment = bench.environment();
    let hog = gpuloop::Hog { seconds: Some(5.0), kernel_us: 3000, device: 0, environment };
    let label = gpuloop::start_hog(&hog).unwrap().finish().unwrap();
    // A busy machine may be told of before.
    loop {
        let finding = event(&documents, "over")["finding"].clone();
        if finding["to_ns"].as_i64().unwrap() > label.from_ns as i64 {
            assert_eq!(finding["class"], "gpu_contention", "{finding:#}");
            assert_eq!(finding["culprit"]["pid"].as_i64(), label.pid.map(i64::from), "{finding:#}");
            break;
        }
    }
    let ended = event(&documents, "ended");
    assert!(!ended.to_string().contains("gpu_switches"), "{ended:#}");
    assert_eq!(bench.finding()["culprit"]["pid"].as_i64(), label.pid.map(i64::from));
}

#[test]
fn root_context_switches_that_the_driver_does_not_log_are_an_error_that_says_why() {
    let Some(bench) = Bench::new() else { return };
    let driver = built("examples/libnvidiactl.so");
    let refused = |variables: &[(&str, &str)]| {
        let trace = bench.trace();
        let output = Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
            .args(["record", "--gpu-switches", "--for", "1s", "-o", trace.to_str().unwrap()])
            .env("GPUWHY_STANDIN", &bench.machine)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{}", said(&output));
        said(&output)
    };
    let preload = ("LD_PRELOAD", driver.to_str().unwrap());
    let text = refused(&[]);
    assert!(text.contains("NVIDIA's driver is not here: /proc/driver/nvidia/version"), "{text}");
    let text = refused(&[preload, ("GPUWHY_STANDIN_DRIVER", "470.256.02")]);
    assert!(text.contains("470.256.02") && text.contains("from 535 on"), "{text}");
    let text = refused(&[preload, ("GPUWHY_STANDIN_REASON", "5")]);
    assert!(text.contains("not given the right to be profiled"), "{text}");
}

#[test]
fn root_what_virtual_functions_of_an_amd_gpu_had_is_counted() {
    let Some(bench) = Bench::new() else { return };
    let had = bench.folder.join("had");
    std::fs::write(&had, "5000\n200\n").unwrap();
    let recording = Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
        .args(["record", "--json", "--for", "5s", "-o"])
        .arg(bench.trace())
        .env("GPUWHY_AMDSMI", built("examples/libamdsmi.so"))
        .env("GPUWHY_STANDIN_AMDSMI", &had)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&had, "6500\n700\n").unwrap();
    let output = recording.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let output = gpuwhy(&["vgpu", bench.trace().to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counted = report["counted"].as_array().unwrap().iter();
    let busy =
        counted.map(|one| (one["process"].as_str().unwrap(), one["busy_ms"].as_f64().unwrap()));
    let busy: Vec<(&str, f64)> = busy.collect();
    let both = [("virtual function (1)", 1500.0), ("virtual function (2)", 500.0)];
    assert_eq!(busy, both, "{report:#}");
    assert_eq!(report["counted"][0]["gpu"], "gim 0000:03:00.0", "{report:#}");
    let sharing = &report["sharing"][0]["scheme"];
    assert_eq!(sharing, "virtual functions (SR-IOV)", "{report:#}");
}

#[test]
fn root_what_virtual_gpus_of_an_nvidia_host_had_is_counted_by_the_log_of_its_scheduler() {
    let Some(mut bench) = Bench::new() else { return };
    bench.env.push(("GPUWHY_STANDIN_VGPUS", "1"));
    let (_, label) = bench.beside_a_competitor(&[], 8.0, (2, 4.0));
    let output = gpuwhy(&["vgpu", bench.trace().to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sharing = &report["sharing"][0]["scheme"];
    assert_eq!(sharing, "virtual GPUs of NVIDIA's driver (vGPU)", "{report:#}");
    let runlist = format!("software runlist ({})", label.pid.unwrap());
    let mut counted = report["counted"].as_array().unwrap().iter();
    let hog = counted.find(|one| one["process"].as_str().unwrap().contains(&runlist));
    let busy = hog.unwrap_or_else(|| panic!("{report:#}"))["busy_ms"].as_f64().unwrap();
    let lasted = (label.to_ns - label.from_ns) as f64 / 1e6;
    // It has kernels at all times, and every second turn.
    assert!(busy > 0.4 * lasted && busy < lasted, "{busy} ms of {lasted} ms: {report:#}");
}

/// Where `scripts/nccl.sh` leaves the libraries.
fn libnccl(version: &str) -> Option<PathBuf> {
    let named = std::env::var_os("GPUWHY_NCCL_LIBS").map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = named.or_else(|| Some(cache.or(home)?.join("gpuwhy/nccl")))?;
    Some(folder.join(version).join("libnccl.so.2")).filter(|path| path.is_file())
}

#[test]
fn root_a_rank_that_comes_late_into_collectives_is_named() {
    a_rank_comes_late("");
}

#[test]
fn root_a_rank_that_comes_late_is_named_where_nobody_marks_steps() {
    a_rank_comes_late("unset GPUWHY_RING;");
}

/// A rank comes late into 500 of its collectives; the ranks are started by a shell, after `first`.
fn a_rank_comes_late(first: &str) {
    let Some(bench) = Bench::new() else { return };
    let Some(library) = libnccl("2.32.3") else {
        println!("skipped: there is no libnccl 2.32.3; `scripts/nccl.sh` fetches it");
        return;
    };
    let own = std::env::current_exe().unwrap();
    let driver = own.ancestors().nth(2).unwrap().join("examples/nccl_driver");
    if !driver.is_file() {
        println!("skipped: `cargo build -p gpuwhy-inject --examples` makes {}", driver.display());
        return;
    }
    let barrier = bench.folder.join("barrier");
    let play = format!(
        "{} {} $NCCL_PROFILER_PLUGIN straggler --ranks 2 --steps 2200 --barrier {}",
        driver.display(),
        library.display(),
        barrier.display()
    );
    let late = "--late-us 3000 --late-from 1200 --late-until 1700";
    let script = format!("{first} {play} --rank 0 & {play} --rank 1 {late} & echo late $!; wait");
    let record = bench.start("record", &["--collectives", "phases"], &["sh", "-c", &script]);
    let output = record.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    let late: i64 = text
        .lines()
        .find_map(|line| line.strip_prefix("late ")?.parse().ok())
        .unwrap_or_else(|| panic!("no pid in {text}"));
    let finding = bench.finding();
    assert_eq!(finding["class"], "collective_straggler", "{finding:#}");
    assert_eq!(finding["culprit"]["pid"].as_i64(), Some(late), "{finding:#}");
}

/// With a defect of CUPTI, what the recording says of itself.
fn with_defect(defect: Defect, options: &[&str], more: &[(&str, Value)], says: &str) {
    let Some(bench) = Bench::new() else { return };
    let machine = Machine::open(&bench.machine, 1).unwrap();
    if defect == Defect::GraphGrowth {
        machine.set_defect_growth(4 << 30);
        machine.set_defect_after(u64::MAX);
    }
    let told = bench.recorded(options, workload(8.0, more), || {
        std::thread::sleep(Duration::from_secs(2));
        machine.set_defect(defect, true);
    });
    let degraded = told["degraded"].to_string();
    assert!(degraded.contains(says), "no `{says}` in {degraded}");
    let valid = gpuwhy(&["validate", bench.trace().to_str().unwrap()]);
    assert!(valid.status.success(), "{}", said(&valid));
}

#[test]
fn root_records_without_times_are_noticed() {
    with_defect(Defect::ZeroTimestamps, &[], &[], "records without times");
}

#[test]
fn root_gpu_memory_that_grows_while_nodes_of_graphs_are_told_is_noticed() {
    let graph = [("graph", json!(true))];
    with_defect(Defect::GraphGrowth, &["--kernels", "nodes"], &graph, "its GPU memory grew by");
}

#[test]
fn root_callbacks_that_somebody_replaced_are_noticed() {
    with_defect(Defect::CallbacksReplaced, &[], &[], "CUPTI reports nothing any more");
}

// Which of the two is said depends on how fast buffers run out: that none is free, or that nothing
// is told any more.
#[test]
fn root_buffers_that_do_not_come_back_are_noticed() {
    with_defect(Defect::LostBuffers, &[], &[], "CUPTI");
}

#[test]
fn root_another_profiler_is_left_alone() {
    let Some(bench) = Bench::new() else { return };
    Machine::open(&bench.machine, 1).unwrap().set_defect(Defect::SubscriberRefused, true);
    let told = bench.recorded(&[], workload(2.0, &[]), || {});
    let degraded = told["degraded"].to_string();
    assert!(degraded.contains("another profiler uses CUPTI"), "{degraded}");
}

/// How many kernels a trace has, and how many of them begin within a step.
fn kernels_within_steps(trace: &Path) -> (usize, usize) {
    let trace = gpuwhy_store::Trace::open(trace).unwrap();
    let ever = gpuwhy_schema::Ns::MIN..gpuwhy_schema::Ns::MAX;
    let spans: Vec<gpuwhy_schema::Span> =
        trace.read(ever.clone()).flat_map(|rows| rows.unwrap()).collect();
    let kernels: std::collections::HashSet<_> = trace
        .read::<gpuwhy_schema::Kernel>(ever)
        .flat_map(|rows| rows.unwrap())
        .map(|kernel| kernel.id)
        .collect();
    let steps = spans.iter().filter(|s| &*s.name == "step");
    let steps: Vec<_> = steps.map(|s| (s.ts, s.ts + s.dur.unwrap())).collect();
    let all = spans.iter().filter(|s| kernels.contains(&s.id));
    let inside =
        |s: &&gpuwhy_schema::Span| steps.iter().any(|(from, to)| *from <= s.ts && s.ts < *to);
    (all.clone().count(), all.filter(inside).count())
}

#[test]
fn root_kernels_lie_within_their_steps_whatever_cuda_it_is_and_whosever_the_clock() {
    for (cuda, cupti, own_clock) in
        [("12080", "26", false), ("13000", "130001", true), ("13000", "130501", false)]
    {
        let Some(mut bench) = Bench::new() else { return };
        bench.env = vec![("GPUWHY_STANDIN_CUDA", cuda), ("GPUWHY_STANDIN_CUPTI", cupti)];
        let machine = Machine::open(&bench.machine, 1).unwrap();
        machine.set_defect(Defect::NoTimestampCallback, own_clock);
        bench.recorded(&[], workload(2.0, &[]), || {});
        let (all, within) = kernels_within_steps(&bench.trace());
        let said = format!("CUDA {cuda}, CUPTI {cupti}: {within} of {all}");
        assert!(all > 800 && within * 100 >= all * 98, "{said}");
    }
}
