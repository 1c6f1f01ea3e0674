//! The order of rows in a file is no property of what happened: the same rows in another order are the
//! same trace.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gpuwhy_schema::{Discipline, EntityId, Id, Rows, Shape, ThreadState, TrackId};

use super::report::Report;
use super::tests::rows;
use crate::sqlite::build::Builder;
use crate::sqlite::{Database, TableDef, Value};

/// A value of a row, by itself.
#[derive(Clone)]
enum Cell {
    Null,
    Int(i64),
    Real(f64),
    Text(Vec<u8>),
}

fn cell(value: Value<'_>) -> Cell {
    match value {
        Value::Null => Cell::Null,
        Value::Int(n) => Cell::Int(n),
        Value::Real(n) => Cell::Real(n),
        Value::Text(bytes) | Value::Blob(bytes) => Cell::Text(bytes.to_vec()),
    }
}

fn value(cell: &Cell) -> Value<'_> {
    match cell {
        Cell::Null => Value::Null,
        Cell::Int(n) => Value::Int(*n),
        Cell::Real(n) => Value::Real(*n),
        Cell::Text(bytes) => Value::Text(bytes),
    }
}

/// All rows of a table, with all of its up to 64 columns.
fn cells(database: &Database, table: &TableDef) -> Vec<Vec<Cell>> {
    let width = table.columns.len();
    assert!(width <= 64, "{}", table.name);
    let wanted: [Option<usize>; 64] = std::array::from_fn(|i| (i < width).then_some(i));
    let mut all = Vec::new();
    let leaves = database.leaves(table).unwrap();
    database
        .scan(table, &leaves, wanted, |_, values| {
            all.push(values[..width].iter().map(|v| cell(*v)).collect());
            Ok(())
        })
        .unwrap();
    all
}

/// Copies a database; tables of events in random order.
fn shuffled(from: &Path, to: &Path) {
    let database = Database::open(from).unwrap();
    let mut builder = Builder::create(to).unwrap();
    let mut state = 11u64;
    let mut random = |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for table in database.tables() {
        let mut all = cells(&database, table);
        let timed = ["start", "timestamp", "stackDepth"].iter().any(|c| table.column(c).is_some());
        if timed {
            for i in (1..all.len()).rev() {
                all.swap(i, random(i + 1));
            }
        }
        let columns: Vec<String> = table.columns.iter().map(|c| format!("\"{c}\"")).collect();
        // Without a key: ids are values of the rows.
        let sql = format!("CREATE TABLE \"{}\" ({})", table.name, columns.join(", "));
        let mut all = all.iter();
        let next = |put: &mut dyn FnMut(&[Value<'_>])| match all.next() {
            Some(row) => {
                put(&row.iter().map(value).collect::<Vec<_>>());
                true
            }
            None => false,
        };
        builder.table(&table.name, &sql, next).unwrap();
    }
    builder.finish().unwrap();
}

/// What a trace says, without its numbers for entities, tracks, spans and stacks, and how often.
fn canonical(rows: &Rows) -> BTreeMap<String, usize> {
    let entities: HashMap<EntityId, _> = rows.entity.iter().map(|e| (e.id, e)).collect();
    let whose = |id: EntityId| format!("{:?} {}", entities[&id].kind, entities[&id].key);
    let declared: HashMap<TrackId, _> = rows.track.iter().map(|t| (t.id, t)).collect();
    let tracks: HashMap<TrackId, String> = declared
        .iter()
        .map(|(id, t)| (*id, format!("{} {} {:?}", whose(t.entity), t.name, t.discipline)))
        .collect();
    let span = |s: &gpuwhy_schema::Span| {
        format!("{} {:?} {} on {}", s.ts.0, s.dur.map(|d| d.0), s.name, tracks[&s.track])
    };
    let spans: HashMap<Id, String> = rows.span.iter().map(|s| (s.id, span(s))).collect();
    let frames: HashMap<u32, _> =
        rows.frame.iter().map(|f| (f.id, format!("{} {:?}", f.name, f.module))).collect();
    let stacks: HashMap<u32, _> = rows.stack.iter().map(|s| (s.id, (s.parent, s.frame))).collect();
    let chain = |stack: Option<u32>| {
        let mut at = stack;
        let mut names = Vec::new();
        while let Some((parent, frame)) = at.map(|at| stacks[&at]) {
            names.push(&*frames[&frame]);
            at = parent;
        }
        names.join("<")
    };
    let mut says: Vec<String> = spans.values().cloned().collect();
    says.extend(tracks.values().map(|t| format!("track {t}")));
    says.extend(entities.values().map(|e| {
        format!("entity {} {} {:?} {:?}", whose(e.id), e.name, e.number, e.parent.map(whose))
    }));
    says.extend(
        rows.mark
            .iter()
            .map(|m| format!("mark {} {} {:?} {}", m.ts.0, m.name, m.value, tracks[&m.track])),
    );
    says.extend(
        rows.counter.iter().map(|c| format!("{} {} {}", c.ts.0, c.value, tracks[&c.track])),
    );
    says.extend(rows.state.iter().map(|s| {
        let dur = s.dur.map(|d| d.0);
        format!("{} {dur:?} {} {:?} {}", s.ts.0, s.value, s.arg, tracks[&s.track])
    }));
    says.extend(
        rows.sample.iter().map(|s| format!("{} {} {}", s.ts.0, tracks[&s.track], chain(s.stack))),
    );
    says.extend(rows.stack.iter().map(|s| format!("stack {}", chain(Some(s.id)))));
    says.extend(frames.values().map(|f| format!("frame {f}")));
    says.extend(rows.kernel.iter().map(|k| {
        let (gpu, process) = (whose(k.gpu), k.process.map(whose));
        let mut k = k.clone();
        let of = spans[&k.id].clone();
        (k.id, k.gpu, k.process) = (Id(0), EntityId(0), None);
        format!("{of} {gpu} {process:?} {k:?}")
    }));
    says.extend(rows.copy.iter().map(|c| {
        let whose = [c.from, c.to, c.process].map(|id| id.map(whose));
        let mut c = c.clone();
        let of = spans[&c.id].clone();
        (c.id, c.from, c.to, c.process) = (Id(0), None, None, None);
        format!("{of} {whose:?} {c:?}")
    }));
    says.extend(rows.call.iter().map(|c| {
        let mut c = c.clone();
        let of = spans[&c.id].clone();
        c.id = Id(0);
        format!("{of} {c:?}")
    }));
    says.extend(
        rows.source.last().map(|s| format!("source {} {} {:?}", s.recorded, s.dropped, s.note)),
    );
    let mut counted = BTreeMap::new();
    for one in says {
        *counted.entry(one).or_default() += 1;
    }
    counted
}

#[test]
fn a_report_whose_rows_lie_in_random_order_is_the_same_trace() {
    let Some(data) = crate::shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    for file in [
        "gomory_rtx3090x2_r19",
        "gtls_rtx3060_p40",
        "jacc_cg_2026_2",
        "jacobi_mpi8/rank2",
        "jacobi_mpi8/rank3",
        "jacobi_mpi8/rank4",
        "jacobi_p2p_gpus03",
        "mordred_rtx6000_old",
        "nsysai_h100_2gpu_1s",
        "nsysai_mfu_2gpu_after",
        "nsysai_mfu_2gpu_before",
        "nsysai_mock",
        "nvfuser_h200_nvtx",
        "pipit_cloverleaf_a100x4",
    ] {
        let path = data.join("nsys").join(format!("{file}.sqlite"));
        let copy = dir.path().join(path.file_name().unwrap());
        shuffled(&path, &copy);
        let expected = canonical(&rows(&[Report::open(&path).unwrap()]).0);
        let found = canonical(&rows(&[Report::open(&copy).unwrap()]).0);
        let differs = |a: &BTreeMap<String, usize>, b: &BTreeMap<String, usize>| -> Vec<String> {
            a.iter().filter(|(k, n)| b.get(*k) != Some(n)).take(3).map(|(k, _)| k.clone()).collect()
        };
        let (lost, new) = (differs(&expected, &found), differs(&found, &expected));
        assert!(lost.is_empty() && new.is_empty(), "{file}: lost {lost:#?}, new {new:#?}");
        std::fs::remove_file(&copy).unwrap();
    }
}

#[test]
fn every_switch_of_real_reports_has_its_running_interval() {
    // Pairs of rows with isSchedIn = 1 and 0, sorted by thread and time, counted with SQLite itself.
    for (file, running) in [
        ("nvfuser_h200_nvtx", 5794),
        ("jacc_cg_2026_2", 5583),
        ("gomory_rtx3090x2_r19", 347),
        ("pipit_cloverleaf_a100x4", 627),
    ] {
        let Some(data) = crate::shared_data() else { return };
        let report = Report::open(data.join("nsys").join(format!("{file}.sqlite"))).unwrap();
        let (rows, _) = rows(&[report]);
        let is = |s: &&gpuwhy_schema::State| s.value == ThreadState::Running.code();
        let found: Vec<_> = rows.state.iter().filter(is).collect();
        assert_eq!(found.len(), running, "{file}");
        assert!(found.iter().all(|s| s.dur.is_some_and(|d| d.0 > 0)), "{file}");
        assert_eq!(rows.source.last().unwrap().dropped, 0, "{file}");
    }
}

/// A report with these tables: name, columns, rows.
fn report_of(tables: &[(&str, &str, &[&[i64]])]) -> (tempfile::TempDir, Report) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut builder = Builder::create(&path).unwrap();
    builder.table_of("StringIds", "CREATE TABLE StringIds (id, value)", &[]).unwrap();
    for (name, columns, rows) in tables {
        let rows: Vec<Vec<Value<'_>>> =
            rows.iter().map(|row| row.iter().copied().map(Value::Int).collect()).collect();
        builder.table_of(name, &format!("CREATE TABLE {name} ({columns})"), &rows).unwrap();
    }
    builder.finish().unwrap();
    let report = Report::open(&path).unwrap();
    (dir, report)
}

#[test]
fn a_thread_that_runs_leaves_before_it_comes_at_the_same_moment() {
    let (_dir, report) = report_of(&[(
        "SCHED_EVENTS",
        "start, cpu, isSchedIn, globalTid, threadState",
        &[
            // Moved from CPU 1 to CPU 2 at 20, and away at 30.
            &[20, 2, 1, 7, 0],
            &[30, 2, 0, 7, 2],
            &[10, 1, 1, 7, 0],
            &[20, 1, 0, 7, 1],
            // Another thread came and left at 15: it did not run, and sleeps since.
            &[15, 3, 0, 8, 2],
            &[15, 3, 1, 8, 0],
        ],
    )]);
    let (rows, _) = rows(&[report]);
    let mut states: Vec<_> = rows
        .state
        .iter()
        .map(|s| (s.ts.0, s.dur.map(|d| d.0), ThreadState::from_code(s.value), s.arg))
        .collect();
    states.sort_unstable_by_key(|s| s.0);
    use ThreadState::{Running, Sleep};
    assert_eq!(
        states,
        [
            (10, Some(10), Some(Running), Some(1)),
            (15, None, Some(Sleep), Some(-1)),
            (20, Some(10), Some(Running), Some(2)),
            (30, None, Some(Sleep), Some(-1)),
        ]
    );
    assert_eq!((rows.source.last().unwrap().recorded, rows.source.last().unwrap().dropped), (6, 0));
}

#[test]
fn calls_nest_whatever_the_order_of_their_rows() {
    let calls = |rows_: &[&[i64]]| {
        let (_dir, report) = report_of(&[("OSRT_API", "start, end, globalTid, nameId", rows_)]);
        let (rows, _) = rows(&[report]);
        let last: BTreeMap<_, _> =
            rows.track.iter().filter(|t| t.shape == Shape::Span).map(|t| (t.id, t)).collect();
        last.values().map(|t| t.discipline.unwrap()).collect::<Vec<_>>()
    };
    let (nested, overlap) = (Discipline::Nested, Discipline::Overlap);
    // The inner calls first, and of equal starts the shorter first.
    assert_eq!(calls(&[&[2, 5, 7, 1], &[6, 8, 7, 1], &[0, 1, 7, 1], &[0, 9, 7, 1]]), [nested]);
    // Two calls that cross, in either order, on the first of two threads.
    assert_eq!(calls(&[&[2, 5, 7, 1], &[4, 8, 7, 1], &[1, 2, 8, 1]]), [overlap, nested]);
    assert_eq!(calls(&[&[4, 8, 7, 1], &[2, 5, 7, 1], &[1, 2, 8, 1]]), [overlap, nested]);
}

#[test]
fn calls_of_several_tables_nest_together() {
    // MPI has a table for each kind of call; all of a thread share a track.
    let of = |other: &[i64]| {
        let columns = "start, end, globalTid, textId";
        let (_dir, report) = report_of(&[
            ("MPI_P2P_EVENTS", columns, &[&[10, 20, 7, 1], &[30, 40, 7, 1]]),
            ("MPI_COLLECTIVES_EVENTS", columns, &[other]),
        ]);
        let (rows, _) = rows(&[report]);
        rows.track.last().unwrap().discipline
    };
    assert_eq!(of(&[12, 18, 7, 1]), Some(Discipline::Nested));
    assert_eq!(of(&[15, 25, 7, 1]), Some(Discipline::Overlap));
}
