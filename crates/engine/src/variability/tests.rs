//! Small reports of what happened, read as they are and imported, and what is said of them.

use std::path::{Path, PathBuf};

use gpuwhy_formats::importer;
use gpuwhy_formats::sqlite::Value::{self, Int, Null, Text};
use gpuwhy_formats::sqlite::build::Builder;
use gpuwhy_store::{Bulk, Options as StoreOptions};

use super::{CriticalPath, Options, Report, variability};
use crate::error::Error;

mod findings;

const MS: i64 = 1_000_000;
const PROCESS: i64 = 1 << 48 | 4242 << 24;
const THREAD: i64 = PROCESS | 4243;

/// A report of Nsight Systems that is being made up, with times in ms.
#[derive(Default)]
struct Scene {
    strings: Vec<String>,
    kernels: Vec<Vec<i64>>,
    copies: Vec<Vec<i64>>,
    faults: Vec<Vec<i64>>,
    calls: Vec<Vec<i64>>,
    mpi: Vec<Vec<i64>>,
    os: Vec<Vec<i64>>,
    correlation: i64,
    /// Blocks of the grid of kernels that are added.
    grid: i64,
    /// The host, and when the report began by its clock, ns.
    of: Option<(&'static str, Option<i64>)>,
}

fn ns(ms: f64) -> i64 {
    (ms * MS as f64).round() as i64
}

impl Scene {
    fn string(&mut self, text: &str) -> i64 {
        let found = self.strings.iter().position(|s| s == text);
        let place = found.unwrap_or_else(|| {
            self.strings.push(text.into());
            self.strings.len() - 1
        });
        place as i64 + 1
    }

    fn call(&mut self, name: &str, from: f64, to: f64) -> &mut Scene {
        let name = self.string(name);
        self.calls.push(vec![ns(from), ns(to), THREAD, self.correlation, name, 0]);
        self
    }

    fn kernel(&mut self, device: i64, name: &str, from: f64, to: f64) -> &mut Scene {
        self.correlation += 1;
        let name = self.string(name);
        let (own, grid) = (self.correlation, self.grid);
        let row = [ns(from), ns(to), device, 1, 7, own, PROCESS, name, name, grid, 1, 1];
        self.kernels.push(row.to_vec());
        self
    }

    /// A kernel that was launched then.
    fn launched(&mut self, at: f64, name: &str, from: f64, to: f64) -> &mut Scene {
        self.kernel(0, name, from, to).call("cudaLaunchKernel", at, at + 0.01)
    }

    fn copy(&mut self, device: i64, kind: i64, bytes: i64, from: f64, to: f64) -> &mut Scene {
        self.moved(device, kind, bytes, 0, from, to)
    }

    fn moved(
        &mut self,
        device: i64,
        kind: i64,
        bytes: i64,
        cause: i64,
        from: f64,
        to: f64,
    ) -> &mut Scene {
        self.correlation += 1;
        let row = [ns(from), ns(to), device, 1, 7, self.correlation, PROCESS, bytes, kind, cause];
        self.copies.push(row.to_vec());
        self
    }

    fn faults(&mut self, device: i64, count: i64, from: f64, to: f64) -> &mut Scene {
        self.faults.push(vec![ns(from), ns(to), PROCESS, device, 0x7f00_0000, count, 1]);
        self
    }

    fn mpi(&mut self, name: &str, from: f64, to: f64) -> &mut Scene {
        let name = self.string(name);
        self.mpi.push(vec![ns(from), ns(to), THREAD, name]);
        self
    }

    fn os(&mut self, thread: i64, name: &str, from: f64, to: f64) -> &mut Scene {
        let name = self.string(name);
        self.os.push(vec![ns(from), ns(to), thread, name]);
        self
    }

    fn write(&self, path: &Path) {
        let mut out = Builder::create(path).unwrap();
        let strings: Vec<Vec<Value<'_>>> =
            self.strings.iter().map(|text| vec![Null, Text(text.as_bytes())]).collect();
        let sql = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
        out.table_of("StringIds", sql, &strings).unwrap();
        let gpu = |id: i64| vec![Int(id), Text(b"H100"), Int(id)];
        let sql = "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, cuDevice INTEGER)";
        out.table_of("TARGET_INFO_GPU", sql, &[gpu(0), gpu(1)]).unwrap();
        let on_stream = "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, \
                         streamId INTEGER, correlationId INTEGER, globalPid INTEGER";
        let tables = [
            (
                "CUPTI_ACTIVITY_KIND_KERNEL",
                "demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER",
                &self.kernels,
            ),
            (
                "CUPTI_ACTIVITY_KIND_MEMCPY",
                "bytes INTEGER, copyKind INTEGER, migrationCause INTEGER",
                &self.copies,
            ),
        ];
        for (name, more, rows) in tables {
            table(&mut out, name, &format!("{on_stream}, {more}"), rows);
        }
        let columns = "start INTEGER, end INTEGER, globalPid INTEGER, deviceId INTEGER, \
                       address INTEGER, numberOfPageFaults INTEGER, faultAccessType INTEGER";
        table(&mut out, "CUDA_UM_GPU_PAGE_FAULT_EVENTS", columns, &self.faults);
        let columns = "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, \
                       nameId INTEGER, returnValue INTEGER";
        table(&mut out, "CUPTI_ACTIVITY_KIND_RUNTIME", columns, &self.calls);
        let columns = "start INTEGER, end INTEGER, globalTid INTEGER, textId INTEGER";
        table(&mut out, "MPI_OTHER_EVENTS", columns, &self.mpi);
        let columns = "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER";
        table(&mut out, "OSRT_API", columns, &self.os);
        if let Some((host, begin)) = self.of {
            let row = vec![Text(b"Hostname"), Text(host.as_bytes())];
            let sql = "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)";
            out.table_of("TARGET_INFO_SYSTEM_ENV", sql, &[row]).unwrap();
            let sql = "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)";
            let begin: Vec<_> = begin.iter().map(|ns| vec![Int(*ns)]).collect();
            out.table_of("TARGET_INFO_SESSION_START_TIME", sql, &begin).unwrap();
        }
        out.finish().unwrap();
    }

    /// What is said of the report as it is, and of the trace that it becomes.
    fn reports(&self, interval_ms: Option<u64>) -> [Report; 2] {
        let dir = tempfile::tempdir().unwrap();
        let (report, trace) = (dir.path().join("report.sqlite"), dir.path().join("t.trace"));
        self.write(&report);
        import(&report, &trace);
        [report, trace].map(|path| read(&[path], None, interval_ms))
    }
}

/// The page of the trace that a report becomes, and of the report as it is.
fn pages(scene: &Scene, against: Option<&Scene>) -> [String; 2] {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    scene.write(&path("report.sqlite"));
    import(&path("report.sqlite"), &path("t.trace"));
    let before = against.map(|scene| {
        scene.write(&path("before.sqlite"));
        path("before.sqlite")
    });
    ["t.trace", "report.sqlite"].map(|name| {
        let found = variability(&[path(name)], before.as_ref(), &options(None)).unwrap();
        found.html().unwrap()
    })
}

/// The cells of a table's rows, as text; what leads from a row to its mark is left out.
fn cells(page: &str, id: &str) -> Vec<String> {
    let section = page.split(&format!("<section id=\"{id}\">")).nth(1).unwrap_or_default();
    let body = section.split("</section>").next().unwrap_or_default();
    let body = body.split("<tbody>").nth(1).unwrap_or_default();
    let body = body.split("</tbody>").next().unwrap_or_default();
    let text = |cell: &str| -> String {
        let after_tag = cell.split_once('>').map_or("", |(_, text)| text);
        let mut text = String::new();
        let mut is_tag = false;
        for c in after_tag.chars() {
            match c {
                '<' => is_tag = true,
                '>' => is_tag = false,
                c if !is_tag => text.push(c),
                _ => {}
            }
        }
        text.trim().to_owned()
    };
    let row = |row: &str| row.split("<td").skip(1).map(text).collect::<Vec<_>>().join(" | ");
    body.split("<tr").skip(1).map(row).collect()
}

/// What is said of two reports as they are, and of the trace that they become.
fn of_two(scenes: [&Scene; 2], interval_ms: Option<u64>) -> [Report; 2] {
    let dir = tempfile::tempdir().unwrap();
    let files = ["a.sqlite", "b.sqlite"].map(|name| dir.path().join(name));
    scenes.iter().zip(&files).for_each(|(scene, file)| scene.write(file));
    let trace = dir.path().join("t.trace");
    import_all(&files, &trace);
    [files.to_vec(), vec![trace]].map(|inputs| read(&inputs, None, interval_ms))
}

fn table(out: &mut Builder, name: &str, columns: &str, rows: &[Vec<i64>]) {
    if rows.is_empty() {
        return;
    }
    let mut rows: Vec<Vec<Value<'_>>> =
        rows.iter().map(|row| row.iter().map(|n| Int(*n)).collect()).collect();
    rows.sort_by_key(|row| match row[0] {
        Int(start) => start,
        _ => 0,
    });
    out.table_of(name, &format!("CREATE TABLE {name} ({columns})"), &rows).unwrap();
}

fn import(report: &Path, trace: &Path) {
    import_all(&[report.to_path_buf()], trace);
}

fn import_all(files: &[PathBuf], trace: &Path) {
    let importer = gpuwhy_formats::importers::find(files).unwrap();
    let mut import = importer.open(files, &importer::Options { threads: 1 }).unwrap();
    let mut out = Bulk::create(trace, &StoreOptions::default(), 1 << 24).unwrap();
    while let Some(mut batch) = import.next().unwrap() {
        out.append_attrs(batch.attrs.take()).unwrap();
        out.append(&mut batch.rows).unwrap();
    }
    out.finish().unwrap();
}

fn options(interval_ms: Option<u64>) -> Options {
    let interval = interval_ms.map(std::time::Duration::from_millis);
    Options { interval, top: 5, shards: None, threads: Some(1), cluster: None }
}

fn read(inputs: &[PathBuf], against: Option<&PathBuf>, interval_ms: Option<u64>) -> Report {
    variability(inputs, against, &options(interval_ms)).unwrap().report
}

fn says(report: &Report, kind: &str) -> Vec<String> {
    report.statements.iter().filter(|s| s.kind == kind).map(|s| s.says.clone()).collect()
}

/// A kernel of 113 ms that adds up 64 MiB of managed memory.
fn managed(prefetched: bool) -> Scene {
    let mut scene = Scene::default();
    if prefetched {
        scene.call("cudaMemPrefetchAsync_v8000", 0.0, 0.2);
        // Two copies that were asked for, and the kernel, which is quick.
        scene.moved(0, 11, 32 << 20, 1, 0.2, 1.4).moved(0, 11, 32 << 20, 1, 1.4, 2.6);
        scene.launched(0.3, "add(int, float*)", 2.7, 3.2);
        return scene;
    }
    scene.launched(0.0, "add(int, float*)", 1.0, 114.0);
    for i in 0..100 {
        // The device serves faults for half a millisecond, then memory moves for another half.
        let at = 5.0 + f64::from(i);
        scene.faults(0, 16, at, at + 0.5).moved(0, 11, 1 << 20, 2, at + 0.5, at + 1.0);
    }
    scene
}

#[test]
fn a_kernel_that_waits_for_page_faults_is_told_so_and_what_it_costs() {
    for report in managed(false).reports(None) {
        assert_eq!(
            says(&report, "missing_prefetch"),
            [
                "add(int, float*) waits 100.0 ms of its 113.0 ms (1 calls) on GPU 0 H100 for managed memory: \
              1600 page faults, 104857600 bytes moved on demand; nothing asked for it ahead \
              (cudaMemPrefetchAsync)"
            ]
        );
        assert_eq!(report.devices[0].fault_stall_s, Some(0.1));
        let managed = report.managed.unwrap();
        let moved = &managed.devices[0].moved[0];
        assert_eq!((moved.cause, moved.to, moved.copies), ("page_fault", "device", 100));
    }
}

#[test]
fn memory_that_was_asked_for_ahead_is_not_blamed() {
    for report in managed(true).reports(None) {
        assert_eq!(says(&report, "missing_prefetch"), [""; 0]);
        let all = serde_json::to_string(&report.statements).unwrap();
        assert!(!all.contains("on demand") && !all.contains("was not read"), "{all}");
        let managed = report.managed.unwrap();
        let moved = &managed.devices[0].moved[0];
        assert_eq!(
            (moved.cause, moved.bytes, managed.asked_ahead),
            ("prefetch", 64 << 20, Some(true))
        );
        assert!(managed.kernels.is_empty());
    }
}

#[test]
fn only_the_process_and_the_device_that_faulted_wait() {
    let mut scene = managed(false);
    // The other device computes meanwhile.
    scene.kernel(1, "other", 1.0, 114.0);
    for report in scene.reports(None) {
        let waited: Vec<_> = report.managed.iter().flat_map(|m| &m.kernels).collect();
        assert_eq!(waited.len(), 1, "{waited:?}");
        assert_eq!(report.devices[1].fault_stall_s, None);
    }
}

#[test]
fn a_report_without_causes_is_judged_by_the_calls_of_the_program() {
    for (call, blamed) in [("cudaMalloc_v3020", 1), ("cudaMemPrefetchAsync_v8000", 0)] {
        let mut scene = Scene::default();
        scene.call(call, 0.0, 0.1).launched(0.1, "add", 1.0, 11.0);
        scene.moved(0, 11, 1 << 20, 0, 2.0, 10.0);
        for report in scene.reports(None) {
            assert_eq!(says(&report, "missing_prefetch").len(), blamed, "{call}");
        }
    }
}

#[test]
fn idle_time_and_busy_time_are_the_length_of_the_recording() {
    let mut scene = Scene::default();
    // The last interval of 100 ms has only 20 ms.
    scene.kernel(0, "a", 0.0, 100.0).copy(0, 1, 64, 200.0, 220.0).kernel(1, "b", 10.0, 20.0);
    for report in scene.reports(Some(100)) {
        assert_eq!(report.seconds, 0.22);
        assert_eq!(report.devices.iter().map(|d| d.idle_s).collect::<Vec<_>>(), [0.1, 0.21]);
    }
}

#[test]
fn intervals_suit_the_length_of_the_recording_unless_somebody_asks_for_others() {
    let mut scene = Scene::default();
    (0..299).for_each(|i| {
        scene.kernel(0, "a", f64::from(i), f64::from(i) + 0.5);
    });
    for report in scene.reports(None) {
        assert_eq!((report.interval_ms, report.interval_chosen), (2.0, true));
        assert_eq!((report.intervals, report.devices[0].rule), (150, "effect"));
    }
    for report in scene.reports(Some(100)) {
        assert_eq!((report.interval_ms, report.interval_chosen), (100.0, false));
        let device = &report.devices[0];
        assert_eq!((report.intervals, device.rule, device.anomalous), (3, "too_few", 0));
        assert!(serde_json::to_value(device).unwrap()["fence_ms"].is_null());
    }
}

#[test]
fn a_stream_that_copies_is_not_idle() {
    let mut scene = Scene::default();
    scene.launched(0.0, "a", 1.0, 2.0).copy(0, 1, 1 << 30, 2.0, 28.0).call(
        "cudaMemcpyAsync",
        1.5,
        1.6,
    );
    scene.launched(29.0, "b", 30.0, 31.0);
    let [_, report] = scene.reports(None);
    let idle = &report.launches.unwrap().idle[0];
    assert_eq!((idle.kernels, idle.host_wait_s, idle.other_s), (2, 0.002, 0.0));
}

#[test]
fn the_longest_gaps_say_what_the_launching_thread_did() {
    let mut scene = Scene::default();
    scene.launched(0.0, "a", 1.0, 2.0);
    scene.mpi("MPI_Allreduce", 2.5, 42.5).call("cudaMalloc_v3020", 50.0, 60.0);
    scene.launched(102.0, "b", 102.0, 103.0).launched(103.5, "c", 104.0, 105.0);
    scene.kernel(1, "elsewhere", 2.0, 105.0);
    let [straight, report] = scene.reports(None);
    assert!(straight.launches.is_none(), "calls are not read of a report as it is");
    let gaps = report.launches.unwrap().gaps;
    let gap = &gaps[0];
    assert_eq!((&*gap.stream, gap.from_s, gap.ms), ("GPU 0 H100, stream 7", 0.001, 100.0));
    assert_eq!((gap.cause, gap.device_idle_ms), ("host_wait", 100.0));
    let calls: Vec<_> = gap.calls.iter().map(|c| (c.of, &*c.name, c.ms)).collect();
    assert_eq!(calls, [("mpi", "MPI_Allreduce", 40.0), ("cuda", "cudaMalloc", 10.0)]);
    assert_eq!((gap.no_call_ms, gap.off_cpu_ms), (Some(50.0), None));
    assert_eq!((gaps[1].ms, gaps.len()), (1.0, 2));
}

#[test]
fn kernels_that_communicate_are_exposed_where_nothing_computes() {
    let mut scene = Scene::default();
    let nccl = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
    scene.kernel(0, "gemm", 0.0, 40.0).kernel(0, nccl, 30.0, 100.0).kernel(1, "gemm", 0.0, 100.0);
    for report in scene.reports(None) {
        let found = report.devices[0].communication.unwrap();
        assert_eq!((found.kernels, found.total_s), (1, 0.07));
        assert_eq!((found.exposed_s, found.overlapped_s), (0.06, 0.01));
        assert!((found.compute_s - 0.04).abs() < 1e-9 && report.devices[0].kernel_s == 0.1);
        assert!(report.devices[1].communication.is_none());
        assert_eq!(
            says(&report, "exposed_communication"),
            [
                "GPU 0 H100 waits 60.0 ms (60 % of the time) for communication that no computing hides: 1 \
              kernels and 0 copies between devices take 70.0 ms, 10.0 ms of it beneath computing"
            ]
        );
    }
}

#[test]
fn halos_by_way_of_the_host_are_one_finding() {
    let mut scene = Scene::default();
    for i in 0..40 {
        let at = 10.0 * f64::from(i);
        scene.copy(0, 2, 65_536, at, at + 0.1).copy(1, 1, 65_536, at + 0.2, at + 0.3);
        scene.copy(1, 2, 65_536, at + 0.4, at + 0.5).copy(0, 1, 65_536, at + 0.6, at + 0.7);
    }
    for report in scene.reports(None) {
        assert_eq!(says(&report, "ping_pong"), [""; 0]);
        let staged = says(&report, "host_staged");
        assert!(staged[0].starts_with("40 exchanges from GPU 0 H100 to GPU 1 H100"), "{staged:?}");
    }
}

#[test]
fn a_comparison_answers_whether_something_changed_whatever_else_is_remarkable() {
    let scene = |copies: i32| {
        let mut scene = managed(false);
        (0..copies).for_each(|i| {
            scene.copy(0, 1, 4096, 120.0 + f64::from(i), 120.5 + f64::from(i));
        });
        scene
    };
    let dir = tempfile::tempdir().unwrap();
    let [before, same, after] = ["before", "same", "after"].map(|name| dir.path().join(name));
    scene(10).write(&before);
    scene(10).write(&same);
    scene(50).write(&after);
    let report = read(&[same], Some(&before), None);
    assert_eq!((report.has_changed(), report.found), (Some(false), true));
    let report = read(std::slice::from_ref(&after), Some(&before), None);
    assert_eq!(report.has_changed(), Some(true));
    let first = &report.changes.as_ref().unwrap()[0];
    assert_eq!((first.what, &*first.name, first.delta_ms), ("copy", "h2d", 20.0));
    assert_eq!(read(&[after], None, None).has_changed(), None);
}

#[test]
fn a_trace_without_device_work_is_not_told_to_be_imported() {
    let dir = tempfile::tempdir().unwrap();
    let (report, trace) = (dir.path().join("r.sqlite"), dir.path().join("t.trace"));
    Scene::default().call("cudaMalloc", 0.0, 1.0).write(&report);
    import(&report, &trace);
    let why = variability(&[trace], None, &options(None)).err().unwrap();
    assert!(matches!(why, Error::NoGpuWorkInTrace { .. }));
    assert!(!why.to_string().contains("import"), "{why}");
}

/// Of a path: its length in ns, and the sums in ns of its parts, most time first.
fn parts(path: &CriticalPath) -> Vec<(&'static str, i64)> {
    path.parts.iter().map(|of| (of.part, (of.ms * 1e6).round() as i64)).collect()
}

#[test]
fn the_critical_path_of_a_report_goes_by_its_launches_and_its_waits() {
    let mut scene = Scene::default();
    scene.call("cudaMalloc_v3020", 0.0, 2.0).launched(2.5, "fill(int)", 3.0, 43.0);
    scene.launched(2.6, "solve(int)", 43.0, 103.0);
    // Beneath all of this, another device copies.
    scene.copy(1, 1, 1 << 20, 10.0, 90.0).call("cudaDeviceSynchronize_v3020", 4.0, 104.0);
    scene.launched(110.0, "fill(int)", 110.51, 120.51);
    let [straight, report] = scene.reports(None);
    assert!(straight.critical_path.is_none());
    let path = report.critical_path.unwrap();
    assert_eq!((path.from_s, path.to_s, path.ns), (-0.003, 0.11751, 120_510_000));
    assert_eq!(
        parts(&path),
        [
            ("kernel", 110_000_000),
            ("host_no_call", 6_500_000),
            ("host_allocate", 2_000_000),
            ("host_synchronise", 1_000_000),
            // 0.49 and 0.5 ms are no latency of a launch.
            ("queued", 990_000),
            ("host_launch", 20_000),
        ]
    );
    assert_eq!((path.bound_by, path.without_launch), ("gpu_compute", 0));
    let names: Vec<_> = path.names.iter().take(2).map(|n| (&*n.name, n.ms, n.pieces)).collect();
    assert_eq!(names, [("solve(int)", 60.0, 1), ("fill(int)", 50.0, 2)]);
}

#[test]
fn a_trace_without_launches_has_no_critical_path() {
    let mut scene = Scene::default();
    scene.call("cudaMalloc_v3020", 2.0, 3.0).kernel(0, "a", 0.0, 1.0);
    let [_, report] = scene.reports(None);
    assert!(report.critical_path.is_none() && report.whole);
}

/// What is said of files of other people's programs, imported together.
fn report_of(files: &[&str]) -> Option<Report> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let data = PathBuf::from(std::env::var_os("GPUWHY_TRACES").unwrap_or_else(|| beside.into()));
    if !data.is_dir() {
        println!("skipped: GPUWHY_TRACES names no directory of other tools' traces");
        return None;
    }
    let files: Vec<PathBuf> = files.iter().map(|file| data.join(file)).collect();
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("t.trace");
    import_all(&files, &trace);
    Some(read(&[trace], None, None))
}

/// Their critical path.
fn path_of(files: &[&str]) -> Option<CriticalPath> {
    report_of(files)?.critical_path
}

#[test]
fn the_critical_path_of_real_programs_is_as_long_as_they_ran() {
    // From the first call (of CUDA, of MPI, or of the system by the same threads) or work to the end of the last
    // work, by a query of each file.
    let nsys = [
        ("gomory_rtx3090x2_r19", 461_125_965),
        ("jacobi_mpi8/rank3", 10_696_669_525),
        ("mordred_rtx6000_old", 6_735_634_872),
        ("nsysai_h100_2gpu_1s", 969_447_605),
        ("nvfuser_h200_nvtx", 7_315_237_895),
        ("pipit_cloverleaf_a100x4", 797_454_899),
    ];
    let kineto = [
        ("h100__Qwen_Qwen1.5-0.5B-Chat__1016005", 49_652_832),
        ("inference__vllm_prefilldecode_piecewise__graph_execution", 307_611_189),
        ("nccl_parser_config__nccl_data", 665_761_268),
    ];
    let nsys = nsys.map(|(name, ns)| (format!("nsys/{name}.sqlite"), ns));
    let kineto = kineto.map(|(name, ns)| (format!("kineto/{name}.json.gz"), ns));
    for (file, ns) in nsys.into_iter().chain(kineto) {
        let Some(path) = path_of(&[&file]) else { return };
        assert_eq!(path.ns, ns, "{file}");
        assert_eq!(parts(&path).iter().map(|(_, ns)| ns).sum::<i64>(), ns, "{file}");
        let share: f64 = path.parts.iter().map(|part| part.share).sum();
        assert!((share - 1.0).abs() < 1e-9, "{file}: {share}");
    }
}

#[test]
fn a_program_that_waits_for_each_kernel_has_them_all_on_its_path() {
    // All but two of its 1312 kernels end while the next cudaDeviceSynchronize waits: 294395419 ns.
    let Some(path) = path_of(&["nsys/pipit_cloverleaf_a100x4.sqlite"]) else { return };
    let kernels = parts(&path).into_iter().find(|(part, _)| *part == "kernel");
    assert_eq!(kernels, Some(("kernel", 294_395_419)));
}

#[test]
fn the_path_of_a_job_of_several_ranks_crosses_them() {
    let ranks = ["nsys/jacobi_mpi8/rank2.sqlite", "nsys/jacobi_mpi8/rank3.sqlite"];
    let Some(path) = path_of(&ranks) else { return };
    assert!(path.edges.get("rank").is_some_and(|count| *count > 0), "{:?}", path.edges);
    assert_eq!(parts(&path).iter().map(|(_, ns)| ns).sum::<i64>(), path.ns);
    // Two of its eight ranks are here, so that nobody knows when all of them are in a call.
    assert!(path.parts.iter().all(|part| part.part != "mpi_transfer"));
}

#[test]
fn the_fence_that_is_said_is_the_one_that_decides() {
    let mut scene = Scene::default();
    (0..100).for_each(|i| {
        scene.kernel(0, "a", f64::from(i), f64::from(i) + 0.4);
    });
    // A stall of half an interval, and one that is less than a hundredth of an interval.
    scene.copy(0, 1, 4096, 30.4, 30.9).copy(0, 1, 64, 60.4, 60.405);
    for report in scene.reports(None) {
        let device = &report.devices[0];
        assert_eq!((device.rule, device.anomalous, device.fence_ms), ("effect", 1, 0.01));
        assert!((device.worst[0].beyond_ms - 0.49).abs() < 1e-9, "{device:?}");
    }
}

#[test]
fn a_memset_has_no_rate_since_nothing_goes_over_a_link() {
    let mut scene = Scene::default();
    scene.kernel(0, "a", 0.0, 1.0).copy(0, 1, 1 << 30, 1.0, 2.0);
    for report in scene.reports(None) {
        let mut copies = report.copies;
        assert_eq!(copies[0].gb_per_s(), Some(1073.741824));
        copies[0].kind = "memset";
        assert_eq!(copies[0].gb_per_s(), None);
    }
}

#[test]
fn the_page_shows_communication_and_where_nothing_hides_it() {
    let mut scene = Scene::default();
    let nccl = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
    scene.kernel(0, "gemm", 0.0, 40.0).kernel(0, nccl, 30.0, 100.0).kernel(1, "gemm", 0.0, 100.0);
    for page in pages(&scene, None) {
        assert_eq!(
            cells(&page, "communication"),
            ["GPU 0 H100 |  | 0.070 | 0.060 | 60.0 | 0.010 | 1 | 0 | 0.040"]
        );
        // By interval of a millisecond: forty of computing, then sixty of communicating alone.
        let parts = format!(
            "[[{}],[{}],[{}]]",
            [["100"; 40].join(","), ["0"; 60].join(",")].join(","),
            [["0"; 40].join(","), ["100"; 60].join(",")].join(","),
            ["0"; 100].join(",")
        );
        assert!(page.contains(&format!("\"parts\":{parts}")), "{page}");
    }
}

#[test]
fn the_page_shows_gaps_and_idle_by_stream_with_what_the_host_did() {
    let mut scene = Scene::default();
    scene.launched(0.0, "a", 1.0, 2.0);
    scene.mpi("MPI_Allreduce", 2.5, 42.5).call("cudaMalloc_v3020", 50.0, 60.0);
    scene.launched(102.0, "b", 102.0, 103.0).launched(103.5, "c", 104.0, 105.0);
    let [page, straight] = pages(&scene, None);
    let gaps = cells(&page, "gaps");
    assert_eq!(gaps.len(), 2);
    let first = &gaps[0];
    assert!(
        first.starts_with(
            "1 | GPU 0 H100, stream 7 | 0.001000 | 100.000 | 100.000 | nothing was launched | "
        ),
        "{first}"
    );
    assert!(
        first.ends_with(
            "MPI_Allreduce 40.000 ms (mpi), cudaMalloc 10.000 ms (cuda), in no call 50.000 ms"
        ),
        "{first}"
    );
    assert!(
        page.contains("<tr id=\"gap-1\">") && page.contains("<a href=\"#gap-1\" id=\"at-gap-1\"")
    );
    assert_eq!(
        cells(&page, "idle"),
        ["GPU 0 H100, stream 7 |  | 0.101 | 0.101 | 0.000 | 0.000 | 3"]
    );
    assert_eq!(cells(&page, "kernels").len(), 3);
    let path = cells(&page, "critical-path");
    let sum = path.iter().map(|row| row.split(" | ").nth(2).unwrap().parse::<f64>().unwrap());
    // From the first launch to the end of the last kernel.
    assert!((sum.sum::<f64>() - 105.0).abs() < 0.01, "{path:?}");
    let names = cells(&page, "critical-path-names");
    assert!(names[0].ends_with(" | MPI_Allreduce"), "{names:?}");
    assert!(cells(&straight, "gaps").is_empty());
    assert!(straight.contains("why streams were idle, the longest gaps"), "it says what it lacks");
}

#[test]
fn the_page_shows_managed_memory_and_the_kernels_that_wait_for_it() {
    for page in pages(&managed(false), None) {
        assert_eq!(
            cells(&page, "managed"),
            ["GPU 0 H100 | page fault | to the device | 50.000 | 100 | 104.858"]
        );
        assert!(page.contains("GPU 0 H100: 1600 page faults in 100 groups."), "{page}");
        assert_eq!(
            cells(&page, "managed-kernels"),
            ["GPU 0 H100 | 100.000 | 113.000 | 1 | 1600 | 104.858 | add(int, float*)"]
        );
    }
}

#[test]
fn the_page_shows_phases_of_programs_above_their_devices_and_what_they_were_spent_on() {
    let mut scene = Scene::default();
    scene.call("cudaMalloc_v3020", 0.0, 40.0);
    for i in 0..60 {
        let at = 50.0 + f64::from(i);
        scene.launched(at, "solve", at + 0.1, at + 0.6).call(
            "cudaDeviceSynchronize_v3020",
            at + 0.1,
            at + 0.7,
        );
    }
    let [page, straight] = pages(&scene, None);
    let phases = cells(&page, "phases");
    assert!(!phases.is_empty(), "{page}");
    assert!(phases.last().unwrap().contains("kernels"), "{phases:?}");
    assert!(page.contains("<a href=\"#phase-1\" id=\"at-phase-1\">"));
    assert!(cells(&straight, "phases").is_empty());
}

#[test]
fn the_page_compares_with_another_recording_and_says_what_the_signs_mean() {
    let scene = |copies: i32| {
        let mut scene = managed(false);
        (0..copies).for_each(|i| {
            scene.copy(0, 1, 4096, 120.0 + f64::from(i), 120.5 + f64::from(i));
        });
        scene
    };
    for page in pages(&scene(50), Some(&scene(10))) {
        let first = &cells(&page, "changes")[0];
        assert_eq!(
            first,
            "+20.000 | +20.000 | +0.000 | 10 | 50 | 500.000 | 500.000 | notable | copy | h2d"
        );
        assert!(page.contains("+ is time that this recording takes more, - less"));
    }
    assert!(!pages(&scene(1), None)[0].contains("id=\"changes\""));
}

#[test]
fn ten_thousand_kernels_of_long_names_make_a_page_that_can_be_opened() {
    let mut scene = Scene::default();
    for i in 0..10_000 {
        let name = format!("void kernel_{i}<{}>(float*)", "x".repeat(400));
        scene.kernel(0, &name, f64::from(i), f64::from(i) + 0.5);
    }
    for page in pages(&scene, None) {
        assert!(page.len() < 1_500_000, "{} bytes", page.len());
        assert_eq!(cells(&page, "kernels").len(), 300);
        assert!(page.contains("300 of 10000 rows; the page leaves out 9700."));
    }
}

/// A report of a host in which a device computes, but for a copy of 4 ms.
fn stalls(host: &'static str, begin: Option<i64>) -> Scene {
    let mut scene = Scene { of: Some((host, begin)), ..Scene::default() };
    for ms in 0..400 {
        let at = f64::from(ms);
        match ms {
            140..144 => scene.copy(0, 1, 1 << 20, at, at + 1.0),
            _ => scene.kernel(0, "k", at, at + 0.9),
        };
    }
    scene
}

#[test]
fn devices_of_two_files_stall_together_only_as_far_as_their_clocks_are_known() {
    let said = |begin: Option<i64>, interval| {
        let scenes = [stalls("node1", begin), stalls("node2", begin.map(|ns| ns + 1))];
        of_two([&scenes[0], &scenes[1]], Some(interval)).map(|report| {
            assert_eq!(report.devices.len(), 2);
            assert!(report.found);
            (says(&report, "shared_stalls").len(), report.not_said.join("\n"))
        })
    };
    // By the hosts' clocks alone, which may differ by a millisecond.
    for (shared, not_said) in said(Some(1 << 60), 1) {
        assert_eq!(shared, 0);
        assert_eq!(
            not_said,
            "not said whether devices of different files stall together, and what threads do meanwhile: \
             their clocks may differ by 1.000 ms, and an interval is 1.000 ms long"
        );
    }
    for (shared, not_said) in said(Some(1 << 60), 2) {
        assert_eq!((shared, &*not_said), (1, ""));
    }
    // Without a time at which they began, nothing of both can be said.
    for (shared, not_said) in said(None, 20) {
        assert_eq!(shared, 0);
        assert!(not_said.contains("by how much their clocks differ is not known"), "{not_said}");
    }
}

#[test]
fn the_page_shows_what_is_not_said_of_two_files() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["a.sqlite", "b.sqlite"].map(|name| dir.path().join(name));
    stalls("node1", None).write(&files[0]);
    stalls("node2", None).write(&files[1]);
    let page = variability(&files, None, &options(Some(4))).unwrap().html().unwrap();
    assert!(page.contains("<li>not said whether devices of different files stall together"));
}

#[test]
fn devices_of_one_file_stall_together_whatever_the_clock_of_another_file() {
    let mut two = stalls("node1", None);
    (140..144).for_each(|ms| {
        two.copy(1, 1, 1 << 20, f64::from(ms), f64::from(ms) + 1.0);
    });
    two.kernel(1, "k", 0.0, 140.0).kernel(1, "k", 144.0, 400.0);
    for report in of_two([&two, &stalls("node2", None)], Some(4)) {
        let all = says(&report, "shared_stalls");
        assert_eq!(all.len(), 1);
        assert!(all[0].contains("on several of 2 devices of one file at once"), "{all:?}");
        assert_eq!(report.not_said.len(), 1);
    }
}

#[test]
fn copies_of_two_files_are_no_exchange_where_their_clocks_do_not_carry_it() {
    let halos = |host, begin, device: f64| {
        let mut scene = Scene { of: Some((host, begin)), ..Scene::default() };
        for i in 0..40 {
            let at = 10.0 * f64::from(i) + 0.1 * device;
            scene.copy(0, 2, 65_536, at, at + 0.05).copy(0, 1, 65_536, at + 0.4, at + 0.5);
        }
        scene
    };
    for report in of_two([&halos("node1", None, 0.0), &halos("node2", None, 1.0)], Some(10)) {
        assert_eq!(says(&report, "host_staged"), [""; 0]);
        assert_eq!(says(&report, "ping_pong"), [""; 0]);
        assert_eq!(
            report.not_said,
            [
                "not said whether what leaves 2 devices goes on to a device of another file by way of the \
              host, or could have stayed: by how much their clocks differ is not known, and such a copy \
              follows within 1 ms"
            ]
        );
    }
}

#[test]
fn kernels_of_two_files_have_no_common_time_from_which_on_they_are_slower() {
    let slower = |host, begin| {
        let mut scene = Scene { of: Some((host, begin)), ..Scene::default() };
        for i in 0..120 {
            let (at, ms) = (10.0 * f64::from(i), if i < 60 { 1.0 } else { 2.0 });
            scene.kernel(0, "solve", at, at + ms + 0.001 * f64::from(i % 3));
        }
        scene
    };
    for report in
        of_two([&slower("node1", Some(1 << 60)), &slower("node2", Some(1 << 60 | 1))], Some(10))
    {
        assert_eq!((says(&report, "kernel_shift").len(), report.not_said.len()), (1, 0));
    }
    for report in of_two([&slower("node1", None), &slower("node2", None)], Some(10)) {
        assert_eq!(says(&report, "kernel_shift"), [""; 0]);
        let not_said = "not said from when on kernels take longer or less long: by how much";
        assert!(report.not_said[0].starts_with(not_said), "{:?}", report.not_said);
    }
}
