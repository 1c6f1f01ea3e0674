//! Files that are damaged, or not what they seem: each is refused with what is wrong, or what it lost is
//! counted. And the files of a job: whose they are, and how they are aligned.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use gpuwhy_schema::{EntityKind, Rows};
use serde_json::Value;

use super::import::KinetoImport;
use super::tests::read;
use crate::importer::{Import as _, Summary};
use crate::importers;

fn written(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// `n` kernels as a document.
fn document(n: usize) -> String {
    let kernel = |i| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{i},"dur":0.5,"args":{{"device":0,"stream":7}}}}"#
        )
    };
    format!("{{\"traceEvents\":[{}]}}", (0..n).map(kernel).collect::<Vec<_>>().join(","))
}

/// How many spans a file has, or the error, without its place in the file system.
fn outcome(name: &str, bytes: &[u8]) -> String {
    let (_dir, path) = written(name, bytes);
    let found = importers::find(std::slice::from_ref(&path)).and_then(|_| read(&path));
    match found {
        Ok((rows, _)) => format!("{} spans", rows.span.len()),
        Err(e) => e.to_string().replace(&*path.to_string_lossy(), name),
    }
}

#[test]
fn a_gzip_is_read_to_its_end_checksum_and_all_its_members() {
    let text = document(100);
    let whole = gzip(text.as_bytes());
    assert_eq!(outcome("x.json.gz", &whole), "100 spans");
    let mut bad = whole.clone();
    let crc = bad.len() - 8;
    bad[crc] ^= 0xff;
    let says = outcome("x.json.gz", &bad);
    assert!(says.contains("does not have a matching checksum"), "{says}");
    let mut longer = whole.clone();
    longer.extend_from_slice(b"garbage");
    let says = outcome("x.json.gz", &longer);
    assert!(says.contains("something else follows after them"), "{says}");
    longer.extend_from_slice(b", and more of it");
    let says = outcome("x.json.gz", &longer);
    assert!(says.contains("it cannot be decompressed: invalid gzip header"), "{says}");
    // One document in two members, as `cat` and parallel compressors make them.
    let (a, b) = text.split_at(text.len() / 2);
    assert_eq!(
        outcome("x.json.gz", &[gzip(a.as_bytes()), gzip(b.as_bytes())].concat()),
        "100 spans"
    );
    // Two documents.
    let two = [whole.clone(), whole].concat();
    let says = outcome("x.json.gz", &two);
    assert!(says.contains("a second document begins after the end of the first"), "{says}");
}

#[test]
fn nothing_may_follow_a_document_but_white_space() {
    let text = document(3);
    assert_eq!(outcome("x.json", format!("{text}\n\n").as_bytes()), "3 spans");
    let says = outcome("x.json", format!("{text}x").as_bytes());
    assert_eq!(
        says,
        format!(
            "`x.json` is damaged, byte {} of its text: `x` follows after the end of the document",
            text.len()
        )
    );
    let says = outcome("x.json", format!("{text}\n{text}").as_bytes());
    assert!(says.contains("a second document begins"), "{says}");
}

#[test]
fn a_byte_order_mark_is_skipped_and_what_is_no_json_says_what_it_is() {
    let text = document(3);
    let marked = [&b"\xef\xbb\xbf"[..], text.as_bytes()].concat();
    assert_eq!(outcome("x.json", &marked), "3 spans");
    assert_eq!(outcome("x.json.gz", &gzip(&marked)), "3 spans");
    let wide: Vec<u8> =
        std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    for (name, bytes) in [("x.json", wide.clone()), ("x", wide.clone()), ("x.json.gz", gzip(&wide))]
    {
        let says = outcome(name, &bytes);
        assert!(says.contains("UTF-16; `iconv -f UTF-16 -t UTF-8` makes"), "{name}: {says}");
    }
    assert!(outcome("x.json", b"").contains("it is empty"), "{}", outcome("x.json", b""));
    assert!(outcome("x.json.gz", &gzip(b"")).contains("it is empty after decompression"));
}

#[test]
fn a_document_without_events_is_no_trace() {
    for text in [r#"{"schemaVersion": 1}"#, r#"{"traceEvents": null}"#, r#"{"traceEvents": {}}"#] {
        let (_dir, path) = written("x.json", text.as_bytes());
        let says = outcome("x.json", text.as_bytes());
        assert!(says.contains("without `traceEvents`"), "{says}");
        let says = read(&path).err().unwrap().to_string();
        assert!(says.contains("without an array `traceEvents`"), "{says}");
    }
    assert_eq!(outcome("x.json", br#"{"traceEvents": []}"#), "0 spans");
}

#[test]
fn times_that_are_none_are_counted_and_never_become_0() {
    let event = |ts: &str, dur: &str| {
        format!(r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts},"dur":{dur}}}"#)
    };
    let events = [
        event("5", "1.5"),
        event("5", "NaN"),
        event("5", "-Infinity"),
        event("5", "1e999"),
        event("5", "-3"),
        event("NaN", "1"),
        event("null", "1"),
        event("9223372036854775.807", "1"),
        event("-9223372036854775.808", "1"),
        event("1e300", "1"),
        r#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5}"#.into(),
        r#"{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"dur":5}"#.into(),
        r#"{"ph":"B","name":"k","pid":0,"tid":7,"ts":5}"#.into(),
        r#"{"ph":"C","name":"mem","pid":0,"tid":7,"ts":5,"args":{"a":"x"}}"#.into(),
        r#"{"ph":"s","id":1,"ts":5}"#.into(),
    ];
    let (_dir, path) = written("x.json", format!("[{}]", events.join(",")).as_bytes());
    let (rows, _) = read(&path).unwrap();
    assert_eq!(rows.span.len(), 1);
    assert_eq!((rows.span[0].ts.0, rows.span[0].dur.unwrap().0), (5000, 1500));
    let source = rows.source.last().unwrap();
    assert_eq!((source.recorded, source.dropped), (1, 13));
    assert_eq!(
        source.note.as_deref().unwrap(),
        "begin or end of a span, not paired (ph B, E) 1, counter without a number 1, duration is not a \
         number 2, duration out of range 1, negative duration 1, no duration 1, no time 1, time is not a \
         number 2, time out of range 3; not imported: flow events, which repeat correlations (1 row)"
    );
}

#[test]
fn every_value_of_a_counter_is_imported() {
    let text = r#"[{"ph":"C","name":"HBM","pid":0,"tid":0,"ts":1,"args":{"read":2,"write":3.5}},
        {"ph":"C","name":"mem","pid":0,"tid":0,"ts":2,"args":{"":7}}]"#;
    let (_dir, path) = written("x.json", text.as_bytes());
    let (rows, _) = read(&path).unwrap();
    let track = |id| rows.track.iter().find(|t| t.id == id).unwrap().name.to_string();
    let all: Vec<_> = rows.counter.iter().map(|c| (track(c.track), c.value)).collect();
    assert_eq!(all, [("HBM.read".into(), 2.0), ("HBM.write".into(), 3.5), ("mem".into(), 7.0)]);
}

#[test]
fn work_of_every_accelerator_is_work_of_a_device() {
    let event = |cat: &str, name: &str| {
        format!(r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":0,"tid":1,"ts":1,"dur":1}}"#)
    };
    let events = [
        event("mtia_ccp_events", "pe_exe"),
        event("mtia_ccp_events", "dma_in"),
        event("mtia_runtime", "runFunction"),
        event("kernel", "gemm"),
        event("gcu_memcpy", "Memcpy HtoD"),
        event("gpu_memset", "Memset"),
        event("xpu_runtime", "urEnqueueKernelLaunch"),
        event("privateuse1_driver", "launch"),
        event("hpu_op", "op"),
    ];
    let (_dir, path) = written("x.json", format!("[{}]", events.join(",")).as_bytes());
    let (rows, _) = read(&path).unwrap();
    assert_eq!((rows.kernel.len(), rows.copy.len(), rows.call.len()), (2, 3, 4));
}

/// A file of a job: its rank, host, base time, and collectives that end at these times.
struct Made<'a> {
    name: &'a str,
    info: &'a str,
    base: i64,
    ends: &'a [i64],
}

fn make(dir: &Path, of: &Made<'_>) -> PathBuf {
    let kernel = |end: &i64| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce_Sum","pid":0,"tid":7,"ts":{}.{:03},"dur":1,"args":{{"device":0,"stream":7}}}}"#,
            (end - 1000) / 1000,
            (end - 1000) % 1000
        )
    };
    let events: Vec<String> = of.ends.iter().map(kernel).collect();
    let text = format!(
        r#"{{{}"deviceProperties":[{{"id":0,"name":"H100"}}],"baseTimeNanoseconds":{},"traceEvents":[{}]}}"#,
        of.info,
        of.base,
        events.join(",")
    );
    let path = dir.join(of.name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

fn imported(paths: &[PathBuf]) -> crate::Result<(Rows, Summary)> {
    let mut import = KinetoImport::open(paths)?;
    let mut all = Rows::default();
    while let Some(mut batch) = import.next()? {
        all.append(&mut batch.rows);
    }
    Ok((all, import.summary()))
}

const RANKS: [&str; 3] = [
    r#""distributedInfo":{"rank":0,"world_size":2},"#,
    r#""distributedInfo":{"rank":1,"world_size":2},"#,
    r#""distributedInfo":{"rank":1,"world_size":4},"#,
];

/// Ends of ten collectives, 1.000004 ms apart, moved by `by` ns.
fn ends(by: i64) -> Vec<i64> {
    (1..=10).map(|i| i * 1_000_000 + by + 4 * i).collect()
}

#[test]
fn clocks_of_two_hosts_are_aligned_by_the_ends_of_collectives() {
    let dir = tempfile::tempdir().unwrap();
    let ends = [ends(0), ends(300_000)];
    let made = |i: usize, name| Made { name, info: RANKS[i], base: 5_000_000, ends: &ends[i] };
    let paths = [make(dir.path(), &made(0, "a.json")), make(dir.path(), &made(1, "b.json"))];
    let (rows, summary) = imported(&paths).unwrap();
    assert_eq!(
        summary.lines,
        [
            "2 files aligned by the ends of collectives: 10 x ncclDevKernel_AllReduce_Sum end 0.000 us apart \
          at the median, 0.000 us at p95 (300.000 us by the files' own clocks); times of two files may \
          differ by 0.001 us"
        ]
    );
    let first: Vec<i64> = rows.span.iter().map(|s| s.ts.0 + 1000).collect();
    assert_eq!(first[..10], first[10..]);
    let ranks: Vec<_> = rows.entity.iter().filter(|e| e.kind == EntityKind::Rank).collect();
    assert_eq!(ranks.iter().map(|e| e.number).collect::<Vec<_>>(), [Some(0), Some(1)]);
    // In any order of arguments.
    let (again, _) = imported(&[paths[1].clone(), paths[0].clone()]).unwrap();
    let numbers = |rows: &Rows| {
        let ranks = rows.entity.iter().filter(|e| e.kind == EntityKind::Rank);
        let mut all: Vec<_> = ranks.map(|e| e.number).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(numbers(&again), numbers(&rows));
}

#[test]
fn ranks_of_one_host_keep_its_clock_and_the_residual_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let ends = [ends(0), ends(7_000)];
    let infos = [0, 1].map(|i| format!(r#""host_name":"node7",{}"#, RANKS[i]));
    let made = |i: usize, name, base| Made { name, info: &infos[i], base, ends: &ends[i] };
    // The second file counts from 2 ms later, and so its collectives from 2 ms before.
    let paths = [
        make(dir.path(), &made(0, "a.json", 5_000_000)),
        make(dir.path(), &made(1, "b.json", 5_000_000)),
    ];
    let (rows, summary) = imported(&paths).unwrap();
    assert_eq!(
        summary.lines,
        ["2 files aligned by the clock of host node7, which all 2 share: 10 x \
          ncclDevKernel_AllReduce_Sum end 7.000 us apart at the median, 7.000 us at p95 (7.000 us by the \
          files' own clocks)"]
    );
    assert!(rows.clock.iter().all(|c| c.error_ns.0 == 0));
    assert_eq!(rows.span[10].ts.0 - rows.span[0].ts.0, 7_000);
    let hosts = rows.entity.iter().filter(|e| e.kind == EntityKind::Host);
    assert_eq!(hosts.map(|e| e.name.to_string()).collect::<Vec<_>>(), ["node7"]);
}

#[test]
fn files_without_a_rank_are_called_by_their_names_and_make_no_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let ends = [ends(0), ends(1000)];
    let made = |i: usize, name| Made { name, info: "", base: 5_000_000, ends: &ends[i] };
    let paths = [make(dir.path(), &made(0, "b.json")), make(dir.path(), &made(1, "a.json"))];
    let (rows, summary) = imported(&paths).unwrap();
    assert!(rows.entity.iter().all(|e| e.kind != EntityKind::Rank));
    let gpus = rows.entity.iter().filter(|e| e.kind == EntityKind::Gpu);
    assert_eq!(
        gpus.map(|e| e.name.to_string()).collect::<Vec<_>>(),
        ["GPU 0 H100 (b.json)", "GPU 0 H100 (a.json)"]
    );
    assert!(
        summary.lines[1].ends_with("b.json: names no rank; its devices are called by the file")
    );
    // Of one name in two directories: still two.
    let paths = [make(dir.path(), &made(0, "1/x.json")), make(dir.path(), &made(1, "2/x.json"))];
    let (rows, _) = imported(&paths).unwrap();
    assert_eq!(rows.entity.iter().filter(|e| e.kind == EntityKind::Gpu).count(), 2);
    // A name that says so gives a rank, and that is told.
    let paths =
        [make(dir.path(), &made(0, "rank4.json")), make(dir.path(), &made(1, "rank-5.json"))];
    let (rows, summary) = imported(&paths).unwrap();
    let ranks = rows.entity.iter().filter(|e| e.kind == EntityKind::Rank);
    assert_eq!(ranks.map(|e| e.number).collect::<Vec<_>>(), [Some(4), Some(5)]);
    assert!(summary.lines[1].contains("rank 4, by its name"), "{:?}", summary.lines);
    assert_eq!(summary.about["files"][0]["rank_from"], Value::from("file name"));
}

#[test]
fn files_that_cannot_be_of_one_job_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ends = ends(0);
    let far: Vec<i64> = ends.iter().map(|end| end + 90_000_000_000).collect();
    let file = |name, info, ends| make(dir.path(), &Made { name, info, base: 5_000_000, ends });
    let (a, b) = (file("a.json", RANKS[0], &ends), file("b.json", RANKS[1], &ends));
    let refused = |other: &PathBuf| {
        let error = imported(&[b.clone(), other.clone()]).err().unwrap().to_string();
        error[error.find("as one trace: ").unwrap()..].to_owned()
    };
    assert!(imported(&[a.clone(), b.clone()]).is_ok());
    assert_eq!(refused(&b), "as one trace: they hold the same; import each on its own");
    let copy = file("copy.json", RANKS[1], &ends);
    assert!(refused(&copy).contains("they hold the same"));
    let again = file("again.json", RANKS[1], &far);
    assert!(refused(&again).contains("both are of rank 1 (distributedInfo)"));
    let larger = file("larger.json", RANKS[2], &ends);
    assert!(refused(&larger).contains("their jobs have 2 and 4 ranks"));
    let later = file("later.json", RANKS[0], &far);
    // From 10.00004 ms, where the first ends, to 90.000999004 s.
    assert!(
        refused(&later).contains("the first ends 89.991 s before the other begins"),
        "{}",
        refused(&later)
    );
}

#[test]
fn a_file_that_says_at_its_end_who_it_is_has_its_rank_and_models() {
    let text = r#"{"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"o","pid":42,"tid":43,"ts":1,"dur":1}],
        "deviceProperties":[{"id":0,"name":"H100"}],"distributedInfo":{"rank":"3"},"host_name":"n1"}"#;
    let (_dir, path) = written("x.json", text.as_bytes());
    let (rows, _) = read(&path).unwrap();
    let last = |kind| rows.entity.iter().rev().find(|e| e.kind == kind).unwrap();
    assert_eq!(&*last(EntityKind::Gpu).name, "GPU 0 H100");
    let rank = last(EntityKind::Rank);
    assert_eq!(rank.number, Some(3));
    assert_eq!(last(EntityKind::Process).parent, Some(rank.id));
    assert_eq!(last(EntityKind::Host).name.to_string(), "n1");
}

#[test]
fn a_file_without_work_of_a_device_says_what_it_holds() {
    let text = r#"[{"ph":"X","cat":"cpu_op","name":"o","pid":1,"tid":1,"ts":1,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"o","pid":1,"tid":1,"ts":3,"dur":1},
        {"ph":"X","cat":"weird","name":"o","pid":1,"tid":1,"ts":3,"dur":1}]"#;
    let (_dir, path) = written("x.json", text.as_bytes());
    let (_, summary) = imported(&[path]).unwrap();
    assert!(
        summary.lines[0]
            .ends_with("no kernels and no copies of a device; its spans: operators 2, weird 1"),
        "{:?}",
        summary.lines
    );
}
