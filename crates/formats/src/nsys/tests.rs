use std::collections::HashMap;

use gpuwhy_schema::{EntityKind, Rows};

use super::align::align;
use super::host_tables::call_name;
use super::ids::{pid_of, process_of, tid_of};
use super::place::Placer;
use super::report::Report;
use super::strings::{LONGEST_NAME, name_of};
use crate::align::Alignment;
use crate::sqlite::Value;

/// All of a report as rows.
pub(super) fn rows(reports: &[Report]) -> (Rows, Alignment) {
    let alignment = align(reports).unwrap();
    let mut placer = Placer::new(reports, &alignment);
    let mut all = Rows::default();
    for (number, report) in reports.iter().enumerate() {
        for (at, chunk) in report.chunks.iter().enumerate() {
            all.append(&mut placer.place(report, number, report.read(chunk).unwrap()).unwrap());
            if report.is_last_of_table(at) {
                placer.end_of_table(report, number, chunk.contents).unwrap();
                while let Some(mut rows) = placer.more_states(reports).unwrap() {
                    all.append(&mut rows);
                }
            }
        }
    }
    all.append(&mut placer.finish(reports, &alignment).unwrap());
    (all, alignment)
}

fn reports(files: &[&str]) -> Option<Vec<Report>> {
    let data = crate::shared_data()?;
    Some(files.iter().map(|file| Report::open(data.join("nsys").join(file)).unwrap()).collect())
}

#[test]
fn serialized_ids_hold_process_and_thread() {
    let global = 1 << 48 | 4242 << 24 | 4243;
    assert_eq!((pid_of(global), tid_of(global)), (4242, 4243));
    assert_eq!(process_of(global), 1 << 48 | 4242 << 24);
}

#[test]
fn names_of_calls_have_no_versions_of_entry_points() {
    let names = [
        "cudaMalloc_v3020",
        "cuMemAlloc_v2",
        "cudaX_v11010",
        "cudaLaunchKernel_ptsz_v7000",
        "_v12ab",
    ];
    assert_eq!(
        names.map(call_name),
        ["cudaMalloc", "cuMemAlloc_v2", "cudaX_v11010", "cudaLaunchKernel_ptsz", "_v12ab"]
    );
}

#[test]
fn long_names_are_cut_off_between_letters() {
    let long = "ä".repeat(LONGEST_NAME);
    assert_eq!(name_of(&long).len(), LONGEST_NAME);
    assert_eq!(&*name_of("short"), "short");
}

#[test]
fn the_ordinal_of_a_device_is_not_its_number() {
    // Numbers and ordinals of these nodes differ; a join on the number would name other GPUs.
    let Some(reports) = reports(&["pipit_cloverleaf_a100x4.sqlite"]) else { return };
    let bus = |ordinal| reports[0].gpu(0, ordinal).unwrap().bus.as_deref().unwrap().to_owned();
    assert_eq!(
        [0, 1, 2, 3].map(bus),
        ["0000:03:00.0", "0000:41:00.0", "0000:82:00.0", "0000:c1:00.0"]
    );
    let (rows, _) = rows(&reports);
    let streams = rows.entity.iter().filter(|e| e.kind == EntityKind::Stream).count();
    assert!(streams > 0);
}

#[test]
fn ranks_of_one_job_are_aligned_by_the_ends_of_their_collectives() {
    let files =
        ["jacobi_mpi8/rank2.sqlite", "jacobi_mpi8/rank3.sqlite", "jacobi_mpi8/rank4.sqlite"];
    let Some(reports) = reports(&files) else { return };
    assert_eq!(
        reports.iter().map(|r| r.identity.rank).collect::<Vec<_>>(),
        [Some(2), Some(3), Some(4)]
    );
    let alignment = align(&reports).unwrap();
    let compared = alignment.compared.clone().unwrap();
    assert_eq!((&*compared.what, compared.count), ("MPI_Allreduce", 1001));
    // By their own clocks: 0.281 us at the median, 3.457 us at p95, as others have measured.
    assert_eq!(compared.before_p50_ns, 281);
    assert!(compared.p50_ns <= 281, "{alignment:?}");
    assert!(compared.p95_ns < 4000, "{alignment:?}");
    // A clock that is seconds off is corrected.
    let mut skewed = reports;
    skewed[2].epoch = skewed[2].epoch.map(|epoch| epoch + 5_000_000_000);
    let again = align(&skewed).unwrap();
    assert_eq!(again.compared.unwrap().p50_ns, compared.p50_ns);
    assert_eq!(again.shifts, alignment.shifts);
}

#[test]
fn a_database_without_strings_is_refused() {
    use crate::sqlite::build::Builder;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    builder.table_of("t", "CREATE TABLE t (a)", &[]).unwrap();
    builder.finish().unwrap();
    let error = Report::open(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("it has no table StringIds; `nsys export -t sqlite` writes one"),
        "{error}"
    );
}

/// A report with one kernel table and what it needs.
fn report_of(columns: &str, rows_: &[Vec<Value<'_>>]) -> (tempfile::TempDir, Report) {
    use crate::sqlite::build::Builder;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    let strings = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
    let hostile = Value::Text(b"<script>\x00\x1b[31m\xff");
    builder
        .table_of(
            "StringIds",
            strings,
            &[vec![Value::Null, Value::Text(b"gemm")], vec![Value::Null, hostile]],
        )
        .unwrap();
    let sql = format!("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})");
    builder.table_of("CUPTI_ACTIVITY_KIND_KERNEL", &sql, rows_).unwrap();
    builder.finish().unwrap();
    let report = Report::open(&path).unwrap();
    (dir, report)
}

#[test]
fn of_a_row_only_its_start_is_required() {
    let n = Value::Int;
    let (_dir, report) = report_of(
        "start INTEGER, end INTEGER, shortName INTEGER",
        &[
            vec![n(5), n(9), n(1)],
            vec![n(6), Value::Null, n(2)],
            vec![n(9), n(7), n(1)],
            vec![Value::Null, n(7), n(1)],
            vec![n(i64::MIN), n(i64::MAX), n(77)],
        ],
    );
    let (rows, _) = rows(&[report]);
    let spans: Vec<_> =
        rows.span.iter().map(|s| (s.ts.0, s.dur.map(|d| d.0), s.name.to_string())).collect();
    assert_eq!(spans, [(5, Some(4), "gemm".into()), (6, None, "<script>\u{0}\u{1b}[31m".into())]);
    assert_eq!(rows.kernel.len(), 2);
    let source = rows.source.last().unwrap();
    assert_eq!((source.recorded, source.dropped), (2, 3));
}

/// Samples of a trace, each as `outermost>…>innermost`.
fn stacks_of_samples(rows: &Rows) -> Vec<String> {
    let stacks: HashMap<u32, (Option<u32>, u32)> =
        rows.stack.iter().map(|s| (s.id, (s.parent, s.frame))).collect();
    let frames: HashMap<u32, &str> = rows.frame.iter().map(|f| (f.id, &*f.name)).collect();
    let chain = |mut at: Option<u32>| {
        let mut names = Vec::new();
        while let Some((parent, frame)) = at.map(|at| stacks[&at]) {
            names.push(frames[&frame]);
            at = parent;
        }
        names.reverse();
        names.join(">")
    };
    rows.sample.iter().map(|s| format!("{} {}", s.ts.0, chain(s.stack))).collect()
}

#[test]
fn samples_have_the_chains_of_their_callers() {
    use crate::sqlite::build::Builder;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    let sql = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
    let names = ["main", "solve", "dot", "app"];
    let strings: Vec<_> =
        names.iter().map(|name| vec![Value::Null, Value::Text(name.as_bytes())]).collect();
    builder.table_of("StringIds", sql, &strings).unwrap();
    let sql = "CREATE TABLE SAMPLING_CALLCHAINS (id INTEGER, stackDepth INTEGER, symbol INTEGER, module INTEGER)";
    let row = |values: [i64; 4]| values.map(Value::Int).to_vec();
    let mut chains = vec![
        row([1, 0, 3, 4]),
        row([1, 1, 2, 4]),
        row([1, 2, 1, 4]),
        // In another order, and with a function that has no name.
        row([2, 2, 1, 4]),
        row([2, 0, 99, 4]),
        row([2, 1, 2, 4]),
        vec![Value::Null, Value::Int(0), Value::Int(1), Value::Int(1)],
    ];
    // A chain that is too deep.
    chains.extend((0..5000).map(|depth| row([4, depth, 1, 4])));
    builder.table_of("SAMPLING_CALLCHAINS", sql, &chains).unwrap();
    let sql = "CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, globalTid INTEGER)";
    let row = |values: [i64; 3]| values.map(Value::Int).to_vec();
    let samples = [row([1, 10, 7]), row([2, 20, 7]), row([3, 30, 8]), row([1, 40, 8])];
    builder.table_of("COMPOSITE_EVENTS", sql, &samples).unwrap();
    builder.finish().unwrap();
    let (rows, _) = rows(&[Report::open(&path).unwrap()]);
    assert_eq!(
        stacks_of_samples(&rows),
        ["10 main>solve>dot", "20 main>solve>?", "30 ", "40 main>solve>dot"],
    );
    let source = rows.source.last().unwrap();
    assert_eq!((source.recorded, source.dropped), (4, 1 + 5000 - 1024));
}

#[test]
fn every_sample_of_real_reports_has_its_whole_chain() {
    // Rows of COMPOSITE_EVENTS and of SAMPLING_CALLCHAINS, as SQLite counts them.
    for (file, samples, functions) in [
        ("jacobi_p2p_gpus03.sqlite", 39_601, 426_427),
        ("jacobi_mpi8/rank2.sqlite", 25_162, 289_190),
        ("jacc_cg_2026_2.sqlite", 5_094, 27_090),
        ("pipit_cloverleaf_a100x4.sqlite", 1_531, 7_527),
        ("gomory_rtx3090x2_r19.sqlite", 317, 1_767),
    ] {
        let Some(reports) = reports(&[file]) else { return };
        let (rows, _) = rows(&reports);
        assert_eq!(rows.sample.len(), samples, "{file}");
        let stacks: HashMap<u32, Option<u32>> =
            rows.stack.iter().map(|s| (s.id, s.parent)).collect();
        let mut depths: HashMap<Option<u32>, usize> = HashMap::from([(None, 0)]);
        let mut sum = 0;
        for sample in &rows.sample {
            let mut path = Vec::new();
            let mut at = sample.stack;
            while !depths.contains_key(&at) {
                path.push(at);
                at = at.and_then(|at| stacks[&at]);
            }
            let mut depth = depths[&at];
            for at in path.into_iter().rev() {
                depth += 1;
                depths.insert(at, depth);
            }
            sum += depths[&sample.stack];
        }
        assert_eq!(sum, functions, "{file}");
        assert!(rows.frame.len() < functions / 2, "{file}: {}", rows.frame.len());
    }
}

/// What a database of these statements is as a report: its spans and the note of its source, or the
/// error. Made by SQLite itself; `None` where there is no Python.
fn made_by_sqlite(statements: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let python = std::env::var("GPUWHY_PYTHON").unwrap_or("python3".into());
    let script = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()";
    let made =
        std::process::Command::new(python).args(["-c", script]).arg(&path).arg(statements).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: GPUWHY_PYTHON names no Python with sqlite3");
        return None;
    }
    let report = match Report::open(&path) {
        Ok(report) => report,
        Err(e) => return Some(e.to_string().replace(&*path.to_string_lossy(), "x.sqlite")),
    };
    let alignment = align(std::slice::from_ref(&report)).unwrap();
    let mut placer = Placer::new(std::slice::from_ref(&report), &alignment);
    for chunk in &report.chunks {
        match report.read(chunk) {
            Ok(piece) => _ = placer.place(&report, 0, piece).unwrap(),
            Err(e) => return Some(e.to_string().replace(&*path.to_string_lossy(), "x.sqlite")),
        }
    }
    let rows = placer.finish(&[report], &alignment).unwrap();
    let source = rows.source.last().unwrap();
    let note = source.note.as_deref().unwrap_or("nothing");
    Some(format!("{} and {}: {note}", source.recorded, source.dropped))
}

const STRINGS: &str = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);";
const HUNDRED: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)";

#[test]
fn a_column_that_is_computed_does_not_shift_the_others_and_is_refused_where_it_is_needed() {
    let table = |columns: &str| {
        let insert =
            format!("INSERT INTO OSRT_API(a, end, globalTid) {HUNDRED} SELECT i, 2 * i, 7 FROM n");
        made_by_sqlite(&format!("{STRINGS} CREATE TABLE OSRT_API ({columns}); {insert};"))
    };
    let Some(needed) = table("a, start AS (a), end, globalTid") else { return };
    assert_eq!(
        needed,
        "`x.sqlite` cannot be read: column \"start\" of table \"OSRT_API\" is computed (a virtual generated \
         column), and its values are not in the file; copy the table with `CREATE TABLE … AS SELECT`"
    );
    // One that is stored, and one that nobody needs.
    assert_eq!(table("a, start AS (a) STORED, end, globalTid").unwrap(), "100 and 0: nothing");
    let other =
        table("a, x INT GENERATED ALWAYS AS (a * 3), start INT AS (a) STORED, end, globalTid");
    assert_eq!(other.unwrap(), "100 and 0: nothing");
}

#[test]
fn a_view_in_place_of_a_table_is_refused_by_its_name() {
    let says = made_by_sqlite(&format!(
        "{STRINGS} CREATE TABLE k (start, end); INSERT INTO k VALUES (1, 2); \
         CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM k;"
    ));
    let Some(says) = says else { return };
    assert!(
        says.contains("CUPTI_ACTIVITY_KIND_KERNEL is a view, and its rows are not in the file"),
        "{says}"
    );
    let says =
        made_by_sqlite("CREATE TABLE s (id, value); CREATE VIEW StringIds AS SELECT * FROM s;");
    assert!(says.unwrap().contains("StringIds is a view"));
}

#[test]
fn what_is_left_out_is_counted_by_table_and_reason() {
    let Some(says) = made_by_sqlite(&format!(
        "{STRINGS} CREATE TABLE OSRT_API (start, end, globalTid);
         INSERT INTO OSRT_API VALUES (1, 2, 7), (NULL, 2, 7), (9223372036854775808, NULL, 7),
             (3, 9223372036854775807, 7), (4, 'x', 7), (9, 8, 7), ('', 8, 7), (5, NULL, 7);
         CREATE TABLE SCHED_EVENTS (start, cpu, isSchedIn);
         INSERT INTO SCHED_EVENTS VALUES (1, 0, 1);
         ALTER TABLE SCHED_EVENTS ADD COLUMN globalTid;
         INSERT INTO SCHED_EVENTS VALUES (2, 0, 1, NULL);
         CREATE TABLE NVTX_EVENTS (start, end, eventType);
         INSERT INTO NVTX_EVENTS VALUES (1, 2, 59), (1, 2, 75), (1, 2, 1234);
         CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT (globalPid); INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (1);
         CREATE TABLE OSRT_FILE_ACCESS_EVENTS (start);
         CREATE TABLE MPI_OTHER_EVENTS (time); INSERT INTO MPI_OTHER_EVENTS VALUES (1);"
    )) else {
        return;
    };
    assert_eq!(
        says,
        "3 and 9: NVTX_EVENTS of a kind that is not known 1, OSRT_API that end before they begin 1, \
         OSRT_API whose end is no number 1, OSRT_API with a time that is more than 146 years away 2, \
         OSRT_API without a time 2, SCHED_EVENTS that do not say of which thread, sample or metric they \
         are 2; not imported: CUPTI_ACTIVITY_KIND_CUDA_EVENT (1 row), MPI_OTHER_EVENTS (1 row)"
    );
}

#[test]
fn every_row_of_real_reports_is_in_the_trace_or_counted() {
    let Some(data) = crate::shared_data() else { return };
    // Rows of the tables that are imported, without those that name something, by SQLite itself; and the
    // tables with rows that are not imported, with how many these are, by SQLite too.
    for (file, rows_, unread) in [
        (
            "gomory_rtx3090x2_r19",
            28_574,
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT (4 rows), DIAGNOSTIC_EVENT (20 rows), OSRT_CALLCHAINS (3082 \
             rows), OSRT_FILE_ACCESS_DESCRIPTORS (67 rows), OSRT_FILE_ACCESS_EVENTS (67 rows)",
        ),
        ("gtls_rtx3060_p40", 101_012, "CUPTI_ACTIVITY_KIND_CUDA_EVENT (24 rows)"),
        (
            "nsysai_mfu_2gpu_after",
            28_868,
            "NVTX_PAYLOAD_SCHEMAS (16 rows), NVTX_PAYLOAD_SCHEMA_ENTRIES (46 rows)",
        ),
        ("nvfuser_h200_nvtx", 26_220, "DIAGNOSTIC_EVENT (58 rows)"),
    ] {
        let report = Report::open(data.join("nsys").join(format!("{file}.sqlite"))).unwrap();
        let (rows, _) = rows(&[report]);
        let source = rows.source.last().unwrap();
        assert_eq!((source.recorded, source.dropped), (rows_, 0), "{file}");
        assert_eq!(source.note.as_deref(), Some(&*format!("not imported: {unread}")), "{file}");
    }
}
