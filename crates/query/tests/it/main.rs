//! SQL over a trace: in one process, on a cluster of processes, and from a store with the protocol of S3.

mod cluster;
mod s3;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Writer};

/// A run of `gpuwhy-query`.
fn query(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwhy-query")).args(args).output().unwrap()
}

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap()
}

fn csv(trace: &Path, sql: &str) -> String {
    stdout(&query(&[trace.to_str().unwrap(), sql, "--format", "csv"]))
}

/// The error of a query that fails.
fn stderr(args: &[&str]) -> String {
    let out = query(args);
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    String::from_utf8(out.stderr).unwrap()
}

/// The core binary, which lies beside ours after a build of the workspace.
fn core() -> Command {
    let beside = Path::new(env!("CARGO_BIN_EXE_gpuwhy-query")).with_file_name("gpuwhy");
    assert!(beside.is_file(), "`cargo build --workspace` makes `{}`", beside.display());
    let mut command = Command::new(beside);
    command.env("GPUWHY_QUERY", env!("CARGO_BIN_EXE_gpuwhy-query"));
    command
}

fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap();
    assert!(
        out.status.success() || out.status.code() == Some(3),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// A trace of generated GPU work, imported by the core binary.
fn generated(dir: &Path, kernels: &str, gpus: &str) -> PathBuf {
    let (database, trace) = (dir.join("generated.sqlite"), dir.join("generated.trace"));
    let mut make = core();
    make.args([
        "bench",
        "trace-data",
        "--kernels",
        kernels,
        "--copies",
        "2000",
        "--gpus",
        gpus,
        "-o",
    ]);
    run(make.arg(&database));
    run(core().arg("import").arg(&database).arg("-o").arg(&trace));
    trace
}

fn entity(
    id: u32,
    kind: EntityKind,
    parent: Option<u32>,
    name: &str,
    number: Option<i64>,
) -> Entity {
    Entity {
        id: EntityId(id),
        kind,
        parent: parent.map(EntityId),
        key: format!("{id}").into(),
        name: name.into(),
        number,
        from: None,
        to: None,
    }
}

/// A track of spans.
fn track(id: u32, entity: u32, name: &str) -> Track {
    Track {
        id: TrackId(id),
        entity: EntityId(entity),
        parent: None,
        shape: Shape::Span,
        name: name.into(),
        unit: None,
        measure: None,
        discipline: None,
        source: SourceId(1),
    }
}

/// Two kernels and a copy on one stream, a step that was written open and ended later, and names
/// that nobody should trust.
fn small(path: &Path) {
    let span = |n: u64, ts, dur: Option<i64>, track: u32, name: &str| Span {
        id: Id::new(1, n),
        ts: Ns(ts),
        dur: dur.map(Ns),
        track: TrackId(track),
        parent: None,
        name: name.into(),
    };
    let kernel = |n: u64, ts| Kernel {
        id: Id::new(1, n),
        ts: Ns(ts),
        gpu: EntityId(2),
        process: Some(EntityId(4)),
        correlation: Some(n),
        grid_x: 8,
        grid_y: 1,
        grid_z: 1,
        block_x: 256,
        block_y: 1,
        block_z: 1,
        registers: None,
        shared_bytes: None,
        graph_node: None,
    };
    let mut rows = Rows {
        entity: vec![
            entity(1, EntityKind::Host, None, "here", None),
            entity(2, EntityKind::Gpu, Some(1), "GPU 0", Some(0)),
            entity(3, EntityKind::Stream, Some(2), "stream 7", Some(7)),
            entity(4, EntityKind::Process, Some(1), "before", Some(70)),
            entity(5, EntityKind::Thread, Some(4), "main", Some(71)),
        ],
        track: vec![track(1, 3, "stream"), track(2, 5, "steps")],
        span: vec![
            span(1, 1_000, Some(500), 1, "it's; drop table span --"),
            span(2, 1_400, Some(300), 1, "Memcpy HtoD"),
            span(3, 2_000, Some(100), 1, "it's; drop table span --"),
            span(4, 900, None, 2, "step"),
        ],
        kernel: vec![kernel(1, 1_000), kernel(3, 2_000)],
        copy: vec![Copy {
            id: Id::new(1, 2),
            ts: Ns(1_400),
            kind: CopyKind::HostToDevice,
            bytes: 4096,
            from: None,
            to: Some(EntityId(2)),
            pinned: None,
            process: Some(EntityId(4)),
            correlation: Some(2),
        }],
        step: vec![Step {
            id: Id::new(1, 4),
            ts: Ns(900),
            thread: EntityId(5),
            seq: 0,
            size: None,
            rank: None,
        }],
        ..Rows::default()
    };
    let mut writer = Writer::create(path, Options::default()).unwrap();
    writer.append(&mut rows).unwrap();
    writer.seal().unwrap();
    // It has ended, and the process has another name.
    let mut later = Rows {
        entity: vec![entity(4, EntityKind::Process, Some(1), "train.py", Some(70))],
        span: vec![span(4, 900, Some(5_000), 2, "step")],
        ..Rows::default()
    };
    writer.append(&mut later).unwrap();
    writer.finish().unwrap();
}

fn small_trace() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("small.trace");
    small(&trace);
    (dir, trace)
}

#[test]
fn kernels_and_copies_have_names_in_place_of_ids() {
    let (_dir, trace) = small_trace();
    let sql =
        "select ts, dur, name, gpu, device, stream, process, grid, block from kernels order by ts";
    assert_eq!(
        csv(&trace, sql),
        "ts,dur,name,gpu,device,stream,process,grid,block\n\
         1000,500,it's; drop table span --,GPU 0,0,stream 7,train.py,\"8,1,1\",\"256,1,1\"\n\
         2000,100,it's; drop table span --,GPU 0,0,stream 7,train.py,\"8,1,1\",\"256,1,1\"\n"
    );
    let sql = "select kind, bytes, from_gpu, to_gpu, dur from copies";
    assert_eq!(csv(&trace, sql), "kind,bytes,from_gpu,to_gpu,dur\nh2d,4096,,GPU 0,300\n");
}

/// Two calls of two ranks: rank 1 comes 700 ns late into the first, rank 0 200 ns into the second.
fn collectives(path: &Path) {
    let mut rows = Rows {
        entity: vec![
            entity(1, EntityKind::Host, None, "here", None),
            entity(2, EntityKind::Process, Some(1), "rank0", Some(70)),
            entity(3, EntityKind::Process, Some(1), "rank1", Some(71)),
        ],
        track: (0..2)
            .flat_map(|rank| {
                [
                    track(2 * rank, rank + 2, "nccl"),
                    track(2 * rank + 1, rank + 2, names::COLLECTIVE_STAGES),
                ]
            })
            .collect(),
        ..Rows::default()
    };
    for (seq, waits) in [[750, 50], [100, 300]].into_iter().enumerate() {
        for (rank, wait) in waits.into_iter().enumerate() {
            let n = (seq * 2 + rank) as u64 * 3 + 1;
            let at = 10_000 * (seq as i64 + 1) - wait;
            let id = Id::new(1, n);
            let mut span = |n: u64, ts: i64, dur, track: usize, parent, name: &str| {
                let (id, ts, dur) = (Id::new(1, n), Ns(ts), Some(Ns(dur)));
                let track = TrackId(track as u32);
                rows.span.push(Span { id, ts, dur, track, parent, name: name.into() });
            };
            span(n, at - 100, 900 + wait, 2 * rank, None, "AllReduce");
            span(n + 1, at, wait, 2 * rank + 1, Some(id), "initial_sync");
            span(n + 2, at + wait, 500, 2 * rank + 1, Some(id), "compute");
            rows.collective.push(Collective {
                id,
                ts: Ns(at - 100),
                communicator: 9,
                seq: seq as u64,
                op: "AllReduce".into(),
                bytes: 1 << 20,
                rank: rank as u32,
                ranks: 2,
                peer: None,
                algorithm: None,
                protocol: None,
                channels: None,
            });
        }
    }
    let mut writer = Writer::create(path, Options::default()).unwrap();
    writer.append(&mut rows).unwrap();
    writer.finish().unwrap();
}

#[test]
fn stragglers_are_the_ranks_that_enter_a_collective_last() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("collectives.trace");
    collectives(&trace);
    assert_eq!(
        csv(&trace, "select * from stragglers order by seq"),
        "op,communicator,seq,ts,ranks,last_rank,last_pid,lost_ns\n\
         AllReduce,9,0,9250,2,1,71,700\n\
         AllReduce,9,1,19700,2,0,70,200\n"
    );
    let sql = "select stage, count(*) as n, sum(dur) as ns from collective_stages group by stage order by stage";
    assert_eq!(csv(&trace, sql), "stage,n,ns\ncompute,4,2000\ninitial_sync,4,1200\n");
}

#[test]
fn what_was_written_open_and_ended_later_comes_once() {
    let (_dir, trace) = small_trace();
    let rows = csv(&trace, "select name, dur, thread, tid, process, host from steps");
    assert_eq!(rows, "name,dur,thread,tid,process,host\nstep,5000,main,71,train.py,here\n");
    assert_eq!(csv(&trace, "select count(*) as n from span"), "n\n4\n");
}

#[test]
fn exposed_copy_is_split_at_the_borders_of_intervals() {
    let (_dir, trace) = small_trace();
    // Intervals of 600 ns from 1000 on; the copy is exposed from 1500 to 1700.
    let sql =
        "select shard, kernel_ns, copy_ns, exposed_ns, kernels, copies from stalls order by shard";
    let out = query(&[trace.to_str().unwrap(), sql, "--format", "csv", "--interval", "0.0006"]);
    assert_eq!(
        stdout(&out),
        "shard,kernel_ns,copy_ns,exposed_ns,kernels,copies\n0,500,200,100,1,1\n1,100,100,100,1,0\n"
    );
}

#[test]
fn quantiles_are_those_of_the_other_commands() {
    let (_dir, trace) = small_trace();
    let sql = "select \"count\", sum_ns, p50_ns, round(std_ns, 3) as std from kernel_stats";
    assert_eq!(csv(&trace, sql), "count,sum_ns,p50_ns,std\n2,600,300.0,282.843\n");
    let sql = "select duration_quantile(dur, 0.25) as q from kernels";
    assert_eq!(csv(&trace, sql), "q\n200.0\n");
}

#[test]
fn every_view_has_the_columns_that_the_docs_list() {
    let (_dir, trace) = small_trace();
    for view in gpuwhy_query::views::VIEWS {
        // CSV cannot hold a struct.
        let cast = if view.name == "device_intervals" { "device, gpu, rank, shard" } else { "*" };
        let rows = csv(&trace, &format!("select {cast} from {}", view.name));
        let columns = view.columns.iter().map(|(name, _)| *name);
        let columns: Vec<&str> = columns.filter(|name| *name != "stat").collect();
        assert_eq!(rows.lines().next().unwrap(), columns.join(","), "{}", view.name);
    }
}

#[test]
fn rows_are_written_in_every_format_and_files_are_never_incomplete() {
    let (dir, trace) = small_trace();
    let trace = trace.to_str().unwrap();
    let sql = "select ts, name from kernels order by ts";
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&query(&[trace, sql, "--format", "json"]))).unwrap();
    assert_eq!(json[1]["ts"], 2000);
    assert_eq!(stdout(&query(&[trace, sql, "--format", "ndjson"])).lines().count(), 2);
    assert!(stdout(&query(&[trace, sql])).contains("| 1000 | it's; drop table span -- |"));
    for name in ["a.parquet", "a.arrow", "a.csv"] {
        let path = dir.path().join(name);
        stdout(&query(&[trace, sql, "-o", path.to_str().unwrap()]));
        assert!(std::fs::metadata(&path).unwrap().len() > 50, "{name}");
    }
    // The second row has intervals without width.
    let path = dir.path().join("broken.csv");
    let sql = "select time_shard(ts, 0, 2000 - ts) as x from kernels order by ts";
    let error = stderr(&[trace, sql, "-o", path.to_str().unwrap()]);
    assert!(error.contains("0 ns wide"), "{error}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let remains = |name: &str| name.starts_with("broken") || name.ends_with(".tmp");
    assert!(!left.iter().any(|name| remains(&name.to_string_lossy())), "{left:?}");
}

#[test]
fn an_output_overwrites_nothing_that_a_link_leads_to() {
    let (dir, trace) = small_trace();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "kept").unwrap();
    // One where the rows are to lie, one where they lay while they were written in earlier versions.
    for (link, rows) in [("a.csv", "a.csv"), ("b.csv.tmp", "b.csv")] {
        std::os::unix::fs::symlink(&victim, dir.path().join(link)).unwrap();
        let rows = dir.path().join(rows);
        let sql = "select ts from kernels";
        query(&[trace.to_str().unwrap(), sql, "-o", rows.to_str().unwrap()]);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept", "{link}");
    }
}

#[test]
fn statements_that_change_something_are_refused() {
    let (dir, trace) = small_trace();
    let target = dir.path().join("stolen.csv");
    let copy = format!("copy (select 1) to '{}'", target.display());
    for sql in [&copy, "create table t as select 1", "drop view kernels", "set datafusion.x = 1"] {
        let error = stderr(&[trace.to_str().unwrap(), sql]);
        assert!(error.contains("not supported"), "{error}");
    }
    assert!(!target.exists());
}

#[test]
fn errors_name_what_is_wrong() {
    let (dir, trace) = small_trace();
    let named = trace.to_str().unwrap();
    let error = stderr(&[named, "select * from kernles"]);
    assert!(error.contains("kernles"), "{error}");
    let error = stderr(&[named, "select nmae from kernels"]);
    assert!(error.contains("nmae") && error.contains("name"), "{error}");
    let error = stderr(&["/there/is/nothing.trace", "select 1"]);
    assert!(error.contains("/there/is/nothing.trace"), "{error}");
    let error = stderr(&[named, "select device_interval(null, ts, dur, 0, ts, 10) from kernels"]);
    assert!(error.contains("group by interval"), "{error}");
    // A file that is cut off.
    let file = trace.join("span/00000.parquet");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let error = stderr(&[named, "select count(name) from span"]);
    assert!(error.contains("span/00000.parquet"), "{error}");
    drop(dir);
}

#[test]
fn without_a_query_views_tables_and_functions_are_listed() {
    let (_dir, trace) = small_trace();
    let list = stdout(&query(&[trace.to_str().unwrap()]));
    for line in ["  kernels", "  span, 5 rows", "  duration_stats(dur)"] {
        assert!(list.contains(line), "{line}: {list}");
    }
    assert!(!list.contains("  request,"), "tables without rows are not listed");
}

#[test]
fn the_docs_list_all_views_and_functions() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/query.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (begin, end) = ("<!-- views -->\n", "<!-- end of views -->\n");
    let from = text.find(begin).expect("docs/query.md has a line `<!-- views -->`") + begin.len();
    let to = text.find(end).expect("and a line `<!-- end of views -->`");
    let made = format!("\n{}\n", gpuwhy_query::views::markdown());
    if text[from..to] != made {
        if std::env::var_os("GPUWHY_WRITE_DOCS").is_some() {
            std::fs::write(&page, format!("{}{made}{}", &text[..from], &text[to..])).unwrap();
            return;
        }
        panic!(
            "docs/query.md is out of date; GPUWHY_WRITE_DOCS=1 cargo test -p gpuwhy-query updates it"
        );
    }
}

#[test]
fn the_engine_and_threads_compute_the_same_report_to_the_digit() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "52000", "2");
    let report = |more: &[&str]| {
        let mut command = core();
        command.args(["variability", "--json", "--interval", "10ms"]).arg(&trace).args(more);
        String::from_utf8(run(&mut command).stdout).unwrap()
    };
    let ours = report(&[]);
    assert!(ours.contains("\"worst\""), "{ours}");
    assert_eq!(report(&["--cluster", "local"]), ours);
}
