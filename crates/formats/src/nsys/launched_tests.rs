//! What programs are called, and what waits keep of what they wait for.

use std::collections::BTreeMap;
use std::path::Path;

use gpuwhy_schema::{EntityKind, Rows};

use super::report::Report;
use super::tests::rows;
use crate::sqlite::Value::{self, Int, Null, Text};
use crate::sqlite::build::Builder;

const PROGRAM: i64 = 1 << 48 | 500 << 24;
const LAUNCHER: i64 = 1 << 48 | 499 << 24;
const SHELL: i64 = 1 << 48 | 498 << 24;

/// A table of these rows.
fn table(out: &mut Builder, sql: &str, rows: &[Vec<Value<'_>>]) {
    let name = sql.split_whitespace().nth(2).unwrap();
    out.table_of(name, sql, rows).unwrap();
}

/// A report whose process list has what these processes were called when it was made; `more` says what was
/// launched.
fn report(path: &Path, more: &[(&str, &str)], streams: &[i64]) -> Report {
    let mut out = Builder::create(path).unwrap();
    let sql = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
    table(&mut out, sql, &[vec![Null, Text(b"poll")]]);
    let called = |process, name: &'static [u8]| vec![Int(process), Text(name)];
    table(
        &mut out,
        "CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT)",
        &[
            called(PROGRAM, b"/opt/nsight/nsys-launcher"),
            called(LAUNCHER, b"nsys-launcher"),
            called(SHELL, b"bash"),
        ],
    );
    let more: Vec<_> =
        more.iter().map(|(k, v)| vec![Text(k.as_bytes()), Text(v.as_bytes())]).collect();
    table(&mut out, "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)", &more);
    let streams: Vec<_> = streams.iter().map(|process| vec![Int(*process)]).collect();
    table(&mut out, "CREATE TABLE ProcessStreams (globalPid INTEGER)", &streams);
    let call = |process: i64| vec![Int(10), Int(20), Int(process | 7), Int(1)];
    table(
        &mut out,
        "CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER)",
        &[call(PROGRAM), call(LAUNCHER), call(SHELL)],
    );
    out.finish().unwrap();
    Report::open(path).unwrap()
}

/// What the processes of pid 498, 499 and 500 are called.
fn called(more: &[(&str, &str)], streams: &[i64]) -> [String; 3] {
    let dir = tempfile::tempdir().unwrap();
    let (rows, _) = rows(&[report(&dir.path().join("x.sqlite"), more, streams)]);
    let of = |pid: i64| {
        let is =
            |e: &&gpuwhy_schema::Entity| e.kind == EntityKind::Process && e.number == Some(pid);
        rows.entity.iter().rev().find(is).unwrap().name.to_string()
    };
    [of(498), of(499), of(500)]
}

#[test]
fn a_process_is_called_by_the_program_that_was_launched_and_not_by_its_launcher() {
    let launch = ("PROCESS_0:HOW_TO_ATTACH", "LaunchAnother");
    let command = ("PROCESS_0:COMMAND", "./build/jacobi");
    assert_eq!(called(&[launch, command], &[PROGRAM]), ["bash", "nsys-launcher", "jacobi"]);
    // Nothing says which of the two became the program, or which program that is.
    let unknown = ["bash", "nsys-launcher", "nsys-launcher"];
    assert_eq!(called(&[launch, command], &[]), unknown);
    assert_eq!(called(&[], &[PROGRAM]), unknown);
    let other = ("PROCESS_1:COMMAND", "python3");
    assert_eq!(called(&[launch, command, other], &[PROGRAM]), unknown);
    let attach = ("PROCESS_0:HOW_TO_ATTACH", "AttachByPid");
    assert_eq!(called(&[attach, command], &[PROGRAM]), unknown);
}

#[test]
fn the_ranks_of_jacobi_are_called_by_their_program() {
    let Some(data) = crate::shared_data() else { return };
    // The row of PROCESSES is `nsys-launcher`, META_DATA_CAPTURE has `./jacobi`, by SQLite itself.
    let report = Report::open(data.join("nsys/jacobi_mpi8/rank3.sqlite")).unwrap();
    let (rows, _) = rows(&[report]);
    let is = |e: &&gpuwhy_schema::Entity| e.kind == EntityKind::Process && e.number == Some(32938);
    assert_eq!(&*rows.entity.iter().rev().find(is).unwrap().name, "jacobi");
}

/// The attributes of each wait, by its begin.
fn waits(rows: &Rows) -> Vec<String> {
    let mut by_span: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for attr in &rows.attr {
        by_span.entry(attr.id.0).or_default().push(format!("{}={}", attr.key, attr.value));
    }
    let waits = rows
        .span
        .iter()
        .filter(|span| span.name.contains("synchronize") || span.name.contains("wait"));
    let one = |span: &gpuwhy_schema::Span| {
        let mut of = by_span.remove(&span.id.0).unwrap_or_default();
        of.sort();
        format!("{} {}: {}", span.ts.0, span.name, of.join(" "))
    };
    waits.map(one).collect()
}

#[test]
fn a_wait_keeps_the_stream_the_event_and_the_call_that_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    let mut out = Builder::create(&path).unwrap();
    let sql = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)";
    table(&mut out, sql, &[]);
    let none = i64::from(u32::MAX);
    let row = |values: [i64; 8]| values.map(Int).to_vec();
    table(
        &mut out,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, globalPid INTEGER, \
         syncType INTEGER, deviceId INTEGER, streamId INTEGER, eventId INTEGER, correlationId INTEGER)",
        &[
            row([10, 20, PROGRAM, 1, 0, none, 7, 100]),
            row([30, 40, PROGRAM, 2, 0, 13, 8, 101]),
            row([50, 60, PROGRAM, 3, 0, 14, none, 102]),
            vec![Int(70), Int(80), Int(PROGRAM), Int(4), Null, Null, Null, Null],
        ],
    );
    out.finish().unwrap();
    let (rows, _) = rows(&[Report::open(&path).unwrap()]);
    let is_gpu = |e: &&gpuwhy_schema::Entity| e.kind == EntityKind::Gpu;
    let gpu = rows.entity.iter().find(is_gpu).unwrap().id.0;
    assert_eq!(
        waits(&rows),
        [
            format!("10 event_synchronize: correlation=100 cuda_event=7 gpu={gpu}"),
            format!("30 stream_wait_event: correlation=101 cuda_event=8 cuda_stream=13 gpu={gpu}"),
            format!("50 stream_synchronize: correlation=102 cuda_stream=14 gpu={gpu}"),
            "70 context_synchronize: ".to_owned(),
        ]
    );
}
