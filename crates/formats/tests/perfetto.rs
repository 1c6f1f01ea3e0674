//! A small trace with every shape, as Perfetto sees it.
//!
//! Twice: the bytes as text, and what Perfetto's own trace processor answers in SQL. The second
//! needs node and one npm package (scripts/perfetto-oracle); where these cannot be had it says
//! so and passes, unless `GPUWHY_REQUIRE_ORACLE` is set, as `make test` does.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuwhy_formats::perfetto::{self, Options, Stats};
use gpuwhy_schema::*;

/// A rank that launches a kernel and is kept off its CPU by a hog, and a disk that serves both.
struct Scene {
    rows: Rows,
    lanes: Lanes,
    ids: Ids,
}

fn ms(n: i64) -> Ns {
    Ns::secs(1_000) + Ns::millis(n)
}

impl Scene {
    fn span(&mut self, track: TrackId, from: i64, to: i64, name: &str) -> Id {
        let id = self.ids.next_id();
        let dur = Some(Ns::millis(to - from));
        self.rows.span.push(Span { id, ts: ms(from), dur, track, parent: None, name: name.into() });
        id
    }

    fn mark(&mut self, track: TrackId, at: i64, name: &str) -> Id {
        let id = self.ids.next_id();
        self.rows.mark.push(Mark { id, ts: ms(at), track, name: name.into(), value: None });
        id
    }

    fn state(&mut self, track: TrackId, from: i64, to: Option<i64>, value: i64, arg: Option<i64>) {
        let dur = to.map(|to| Ns::millis(to - from));
        self.rows.state.push(State { ts: ms(from), dur, track, value, arg });
    }

    fn counters(&mut self, track: TrackId, values: &[(i64, f64)]) {
        for &(at, value) in values {
            self.rows.counter.push(Counter { ts: ms(at), track, value });
        }
    }

    fn thread(&mut self, pid: i64, tid: i64, name: &str) -> EntityId {
        let process = self.lanes.entity(EntityKind::Process, &format!("{pid}@1"), |e| {
            e.name = name.into();
            e.number = Some(pid);
        });
        self.lanes.entity(EntityKind::Thread, &format!("{tid}@1"), |e| {
            e.name = name.into();
            e.number = Some(tid);
            e.parent = Some(process);
        })
    }
}

fn scene() -> Rows {
    let mut s = Scene { rows: Rows::default(), lanes: Lanes::default(), ids: Ids::of_shard(1) };
    let source = s.lanes.source("bpf:run_queue", "gpuwhy", "0.1.0", "hz=100");
    s.lanes.update_source(source, |s| {
        s.recorded = 40;
        s.dropped = 2;
    });
    let host = s.lanes.entity(EntityKind::Host, "h", |e| e.name = "node1".into());
    let rank = s.thread(100, 101, "steploop");
    let hog = s.thread(200, 200, "hog\u{202e}\"'<b>");
    let hog_process = s.lanes.get(hog).and_then(|e| e.parent);
    let cpu = s.lanes.entity(EntityKind::Cpu, "0", |e| e.number = Some(0));
    let disk = s.lanes.entity(EntityKind::Disk, "sda", |_| {});
    let nic = s.lanes.entity(EntityKind::Nic, "eth0", |_| {});
    let gpu = s.lanes.entity(EntityKind::Gpu, "GPU-1", |e| e.name = "gpu 0".into());
    let stream = s.lanes.entity(EntityKind::Stream, "GPU-1/7", |e| {
        e.name = "stream 7".into();
        e.parent = Some(gpu);
    });

    // Steps with phases, and a block of each.
    let lane = Lane::spans(names::STEPS, Discipline::Nested);
    let steps = s.lanes.track(rank, None, lane, source);
    let mut first_step = None;
    for (seq, (from, to)) in [(0, 10), (10, 20), (20, 45)].into_iter().enumerate() {
        let id = s.span(steps, from, to, "step");
        first_step.get_or_insert(id);
        s.span(steps, from, from + 4, "load");
        s.span(steps, from + 4, to, "allreduce");
        s.rows.step.push(Step {
            id,
            ts: ms(from),
            thread: rank,
            seq: seq as u64,
            size: Some(1 << 20),
            rank: Some(0),
        });
    }
    let slow = s.rows.step.last().map(|s| s.id).unwrap_or_default();

    // The thread's states: the last has not ended, the one before was cut by it.
    let lane = Lane::states(names::THREAD_STATE, Discipline::Sparse);
    let states = s.lanes.track(rank, None, lane, source);
    s.state(states, 0, Some(20), ThreadState::Running.code(), Some(0));
    s.state(states, 20, Some(40), ThreadState::Runnable.code(), Some(0));
    s.state(states, 40, None, ThreadState::Sleep.code(), Some(202));
    s.state(states, 42, None, ThreadState::Running.code(), Some(0));
    let occupant =
        s.lanes.track(cpu, None, Lane::states(names::OCCUPANT, Discipline::Sparse), source);
    s.state(occupant, 20, Some(38), i64::from(hog.0), None);
    s.state(occupant, 38, Some(40), 0, None);

    // Two requests at once, and one within another, on a disk.
    let io = s.lanes.track(disk, None, Lane::spans(names::IO, Discipline::Overlap), source);
    for (from, to, thread) in [(1, 5, rank), (3, 9, hog), (4, 5, hog), (9, 12, rank)] {
        let id = s.span(io, from, to, "read");
        s.rows.io.push(Io {
            id,
            ts: ms(from),
            disk,
            thread,
            op: IoOp::Read,
            sync: true,
            bytes: 4096,
            sector: 8 * from as u64,
            issued: Some(ms(from + 1)),
            issuer: Some(thread),
        });
    }

    // A delta with its zeros left out, a gauge in a unit of its own, one track below another.
    let delta = |name| Lane::counter(name, "ns", Measure::Delta);
    let wait = s.lanes.track(host, None, delta(names::RUNQ_WAIT), source);
    s.counters(wait, &[(10, 5e6), (20, 0.0), (50, 7e6), (60, 0.0)]);
    let clock = Lane::counter(names::SM_CLOCK, "MHz", Measure::Gauge);
    let clock = s.lanes.track(gpu, None, clock, source);
    s.counters(clock, &[(0, 1980.0), (30, 1200.5)]);
    let bytes = Lane::counter(names::NIC_TX_BYTES, "By", Measure::Total);
    let whole = s.lanes.track(nic, None, bytes, source);
    let own = s.lanes.track(hog_process.unwrap_or_default(), Some(whole), bytes, source);
    s.counters(whole, &[(0, 100.0), (10, 300.0)]);
    s.counters(own, &[(0, 90.0), (10, 280.0)]);

    // A launch and its kernel; a wakeup that is to be believed and one that is not.
    let launches = s.lanes.track(rank, None, Lane::marks(names::LAUNCHES), source);
    let kernels =
        s.lanes.track(stream, None, Lane::spans(names::STREAM, Discipline::Serial), source);
    let launch = s.mark(launches, 6, "cudaLaunchKernel");
    let kernel = s.span(kernels, 6, 8, "gemm");
    s.rows.kernel.push(Kernel {
        id: kernel,
        ts: ms(6),
        gpu,
        process: None,
        correlation: Some(7),
        grid_x: 108,
        grid_y: 1,
        grid_z: 1,
        block_x: 256,
        block_y: 1,
        block_z: 1,
        registers: Some(64),
        shared_bytes: None,
        graph_node: None,
    });
    s.rows.link.push(Link { ts: ms(6), from: launch, to: kernel, kind: LinkKind::Launch });
    s.rows.link.push(Link { ts: ms(6), from: Id::new(9, 9), to: kernel, kind: LinkKind::Same });
    let wakeups = s.lanes.track(rank, None, Lane::marks(names::WAKEUPS), source);
    for (at, context) in [(40, WakeContext::Task), (42, WakeContext::Softirq)] {
        let id = s.mark(wakeups, at, "wakeup");
        s.rows.wakeup.push(Wakeup {
            id,
            ts: ms(at),
            woken: rank,
            waker: Some(hog),
            context,
            cpu: 0,
        });
    }
    s.rows.attr.push(Attr { id: launch, key: "queue".into(), value: "3".into() });

    // A sample of a Python stack.
    let lane = Lane { shape: Shape::Sample, ..Lane::marks("python") };
    let python = s.lanes.track(rank, None, lane, source);
    for (id, name) in [(1, "main"), (2, "forward")] {
        let file = None;
        s.rows.frame.push(Frame { id, name: name.into(), module: None, file, line: None });
        s.rows.stack.push(Stack { id, parent: (id > 1).then_some(1), frame: id });
    }
    s.rows.sample.push(Sample {
        ts: ms(3),
        track: python,
        stack: Some(2),
        state: None,
        weight: 1e7,
    });

    // What gpuwhy concluded.
    for (from, dur, kind, blame) in
        [(20, 20, PartKind::Runnable, Some(hog)), (40, 5, PartKind::Run, None)]
    {
        let (ts, dur) = (ms(from), Ns::millis(dur));
        s.rows.part.push(Part { step: slow, ts, dur, kind, thread: rank, blame, hops: 0 });
    }
    let finding = s.ids.next_id();
    s.rows.finding.push(Finding {
        id: finding,
        ts: ms(20),
        dur: Ns::millis(25),
        track: steps,
        detector: "excess".into(),
        score: 4.5,
        baseline: "{\"median_ms\":10}".into(),
    });
    for (rank, class, culprit, excess, confidence) in
        [(2, Class::BlockIo, None, 1, 0.05), (1, Class::CpuContention, hog_process, 15, 0.93)]
    {
        s.rows.cause.push(Cause {
            finding,
            rank,
            class,
            culprit,
            excess_ns: Ns::millis(excess),
            confidence,
            evidence: "[]".into(),
        });
    }
    s.rows.clock.push(Clock {
        host,
        clock: "realtime".into(),
        ts_source: 1_760_000_000_000_000_000,
        ts_trace: ms(0),
        error_ns: Ns(200),
    });
    s.lanes.drain(&mut s.rows);
    s.rows
}

fn export(rows: &Rows, options: Options) -> (Vec<u8>, Stats) {
    let mut bytes = Vec::new();
    let stats = perfetto::write(rows, &mut bytes, options).unwrap();
    assert_eq!(stats.bytes, bytes.len() as u64);
    (bytes, stats)
}

#[test]
fn the_bytes_read_as_expected() {
    let (bytes, stats) = export(&scene(), Options::default());
    // For a look in the viewer: GPUWHY_PFTRACE_OUT=/some/file.pftrace cargo test -p gpuwhy-formats
    if let Some(path) = std::env::var_os("GPUWHY_PFTRACE_OUT") {
        std::fs::write(path, &bytes).unwrap();
    }
    insta::assert_snapshot!(format!("{}\n{stats:#?}", perfetto::text(&bytes).unwrap()));
}

#[test]
fn a_range_takes_the_rows_that_reach_into_it_whole() {
    let range = Some(ms(12)..ms(13));
    let (bytes, stats) = export(&scene(), Options { range, ..Options::default() });
    let text = perfetto::text(&bytes).unwrap();
    let begins: Vec<&str> = text.lines().filter(|l| l.contains(" begin ")).collect();
    assert_eq!(begins.len(), 3, "step, load, running: {begins:#?}");
    assert!(stats.outside > 0);
}

#[test]
fn rows_in_pieces_make_the_same_slices() {
    let mut rows = scene();
    let mut late = Rows {
        span: rows.span.extract_if(.., |s| s.ts >= ms(20)).collect(),
        state: rows.state.extract_if(.., |s| s.ts >= ms(20)).collect(),
        mark: rows.mark.extract_if(.., |m| m.ts >= ms(20)).collect(),
        counter: rows.counter.extract_if(.., |c| c.ts >= ms(20)).collect(),
        ..Rows::default()
    };
    late.wakeup = std::mem::take(&mut rows.wakeup);
    let mut writer = perfetto::Writer::new(Vec::new(), Options::default());
    writer.rows(&rows).unwrap();
    writer.rows(&late).unwrap();
    let (_, pieces) = writer.finish().unwrap();
    let (_, whole) = export(&scene(), Options::default());
    assert_eq!(
        (pieces.slices, pieces.instants, pieces.counters, pieces.flows, pieces.tracks),
        (whole.slices, whole.instants, whole.counters, whole.flows, whole.tracks),
    );
}

#[test]
fn a_disk_that_takes_no_more_is_named_with_the_place() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
            }
            self.0 = self.0.saturating_sub(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut rows = scene();
    let counter = rows.counter[0].clone();
    rows.counter.extend((0..10_000).map(|i| Counter { ts: ms(i), ..counter.clone() }));
    let error = perfetto::write(&rows, Full(1), Options::default()).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot write the Perfetto trace beyond byte 65"),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn rows_that_lie_make_no_trouble() {
    let mut rows = scene();
    // Parents in a circle, tracks in a circle, times before the clock, tracks that are not there.
    for entity in &mut rows.entity {
        entity.parent = Some(EntityId(entity.id.0 % 4 + 1));
    }
    for track in &mut rows.track {
        track.parent = Some(TrackId(track.id.0 % 3 + 1));
    }
    rows.span[0].ts = Ns::MIN;
    rows.span[1].dur = Some(Ns::MAX);
    rows.span[2].dur = Some(Ns(-5));
    rows.mark[0].track = TrackId(9999);
    rows.state[0].dur = Some(Ns::MIN);
    rows.counter[0].value = f64::NAN;
    rows.stack[0].parent = Some(2);
    rows.entity[0].number = Some(i64::MAX);
    let (bytes, stats) = export(&rows, Options { max_flows: 1, max_parallel: 1, range: None });
    assert!(stats.misplaced >= 2 && stats.crowded >= 1 && stats.loose_flows >= 1, "{stats:?}");
    perfetto::text(&bytes).unwrap();
}

// --- the oracle --------------------------------------------------------------------------------

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/perfetto-oracle")
}

/// The folder of the trace processor, or `None` with the reason printed.
fn oracle() -> Option<PathBuf> {
    let output = Command::new(scripts().join("install.sh")).output();
    let reason = match output {
        Ok(output) if output.status.success() => {
            return Some(String::from_utf8_lossy(&output.stdout).trim().into());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    assert!(std::env::var_os("GPUWHY_REQUIRE_ORACLE").is_none(), "no oracle: {reason}");
    eprintln!("skipped: Perfetto's trace processor is not to be had: {reason}");
    None
}

/// What the trace processor answers: one line a row, cells with `|` between.
fn ask<const N: usize>(package: &Path, bytes: &[u8], queries: [&str; N]) -> [String; N] {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.pftrace");
    std::fs::write(&file, bytes).unwrap();
    let output = Command::new("node")
        .arg(scripts().join("query.mjs"))
        .arg(package)
        .arg(&file)
        .args(queries)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    queries.map(|query| {
        let at = queries.iter().position(|q| *q == query).unwrap();
        let rows = answers[at]["rows"].as_array().unwrap();
        let cell = |cell: &serde_json::Value| match cell {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let line = |row: &serde_json::Value| -> String {
            row.as_array().unwrap().iter().map(cell).collect::<Vec<_>>().join("|")
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

const ERRORS: &str =
    "select name, value from stats where value > 0 and severity in ('error', 'data_loss')";

#[test]
fn the_real_trace_processor_reads_what_we_wrote() {
    let Some(package) = oracle() else { return };
    let (bytes, stats) = export(&scene(), Options::default());
    let [errors, totals, slices, threads, states, counters, flows, finding, args, bounds, when] =
        ask(
            &package,
            &bytes,
            [
                ERRORS,
                "select (select count(*) from slice where dur != 0),
                    (select count(*) from slice where dur = 0),
                    (select count(*) from counter), (select count(*) from flow)",
                "select name, count(*), sum(dur) / 1000000, max(depth) from slice
             where category = 'span' group by name order by name",
                "select s.name, count(*), t.tid, t.name, p.pid, p.name
             from slice s join thread_track k on s.track_id = k.id join thread t using (utid)
             join process p using (upid)
             where s.name = 'step' group by s.name, t.tid",
                "select s.name, s.ts / 1000000 - 1000000, s.dur / 1000000, k.name
             from slice s join track k on s.track_id = k.id
             where s.category = 'state' order by k.name, s.ts",
                "select t.name, t.unit, c.ts / 1000000 - 1000000, c.value
             from counter c join counter_track t on c.track_id = t.id order by t.name, c.ts",
                "select a.name, b.name, ka.name, kb.name from flow f
             join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
             join track ka on a.track_id = ka.id join track kb on b.track_id = kb.id
             order by a.ts",
                "select s.name, s.dur / 1000000, k.name, a.key, a.string_value, a.real_value
             from slice s join track k on s.track_id = k.id join args a using (arg_set_id)
             where s.category = 'finding' order by a.key",
                "select a.key, coalesce(a.string_value, a.int_value) from slice s
             join args a using (arg_set_id) where s.name = 'gemm' order by a.key",
                "select (start_ts - 1000000000000) / 1000000, (end_ts - start_ts) / 1000000
             from trace_bounds",
                "select clock_name, ts, clock_value from clock_snapshot order by ts, clock_name",
            ],
        );
    assert_eq!(errors, "");
    insta::assert_snapshot!(
        [
            ("slices, instants, counters, flows", &totals),
            ("spans: name, count, ms, depth", &slices),
            ("steps by thread", &threads),
            ("states: name, at ms, ms, track", &states),
            ("counters: name, unit, at ms, value", &counters),
            ("flows: from, to, from track, to track", &flows),
            ("finding", &finding),
            ("kernel", &args),
            ("bounds: begin at ms, ms", &bounds),
            ("clocks", &when),
        ]
        .map(|(title, answer)| format!("# {title}\n{answer}\n"))
        .join("\n")
    );
    let expected =
        format!("{}|{}|{}|{}", stats.slices, stats.instants, stats.counters, stats.flows);
    assert_eq!(totals, expected, "the reader counts what the writer counted");
}

/// Spans that touch, nest, cross and take no time, on tracks of each discipline: Perfetto keeps
/// one stack a track and ends whatever is on top, so a wrong lane shows as a wrong duration.
#[test]
fn every_span_comes_back_with_its_own_duration() {
    let Some(package) = oracle() else { return };
    let mut lanes = Lanes::default();
    let mut rows = Rows::default();
    let mut ids = Ids::of_shard(1);
    let source = lanes.source("file", "test", "0", "");
    let gpu = lanes.entity(EntityKind::Gpu, "g", |_| {});
    let thread = {
        let process = lanes.entity(EntityKind::Process, "7", |e| e.number = Some(7));
        lanes.entity(EntityKind::Thread, "7", |e| {
            e.number = Some(7);
            e.parent = Some(process);
        })
    };
    let tracks = [Discipline::Nested, Discipline::Serial, Discipline::Overlap].map(|discipline| {
        lanes.track(gpu, None, Lane::spans(discipline.as_str(), discipline), source)
    });
    let steps = lanes.track(thread, None, Lane::spans(names::STEPS, Discipline::Nested), source);
    lanes.drain(&mut rows);
    let mut random = 1_u64;
    let mut below = |n: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    for _ in 0..3_000 {
        let track = [tracks[0], tracks[1], tracks[2], steps][below(4) as usize];
        let ts = Ns(1_000_000 + below(2_000) as i64);
        let longest = if below(4) == 0 { 200 } else { 8 };
        let dur = Some(Ns(below(longest) as i64));
        let id = ids.next_id();
        let name = id.sequence().to_string().into();
        rows.span.push(Span { id, ts, dur, track, parent: None, name });
    }
    let (bytes, stats) = export(&rows, Options { max_parallel: 2_000, ..Options::default() });
    assert_eq!((stats.slices, stats.crowded), (3_000, 0));
    let [errors, found] =
        ask(&package, &bytes, [ERRORS, "select name, ts, dur from slice where category = 'span'"]);
    assert_eq!(errors, "");
    let line = |s: &Span| format!("{}|{}|{}", s.name, s.ts.0, s.dur.unwrap_or_default().0);
    let mut expected: Vec<String> = rows.span.iter().map(line).collect();
    let mut found: Vec<&str> = found.lines().collect();
    expected.sort();
    found.sort();
    let wrong: Vec<_> = expected.iter().zip(&found).filter(|(e, f)| e != f).take(5).collect();
    assert!(wrong.is_empty() && expected.len() == found.len(), "{wrong:?}");
}
