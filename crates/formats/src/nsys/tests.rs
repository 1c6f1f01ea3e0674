use std::collections::HashMap;

use gpuwhy_schema::{EntityKind, Rows};

use super::align::{Alignment, align};
use super::host_tables::call_name;
use super::ids::{pid_of, process_of, tid_of};
use super::place::Placer;
use super::report::Report;
use super::strings::{LONGEST_NAME, name_of};
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
    assert_eq!(alignment.by.as_deref(), Some("MPI_Allreduce"));
    assert_eq!(alignment.collectives, 1001);
    // By their own clocks: 0.281 us at the median, 3.457 us at p95, as others have measured.
    assert_eq!(alignment.before_p50_ns, 281);
    assert!(alignment.residual_p50_ns <= 281, "{alignment:?}");
    assert!(alignment.residual_p95_ns < 4000, "{alignment:?}");
    // A clock that is seconds off is corrected.
    let mut skewed = reports;
    skewed[2].epoch = skewed[2].epoch.map(|epoch| epoch + 5_000_000_000);
    let again = align(&skewed).unwrap();
    assert_eq!(again.residual_p50_ns, alignment.residual_p50_ns);
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
