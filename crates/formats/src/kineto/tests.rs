use std::io::Read as _;
use std::path::Path;

use gpuwhy_schema::{Discipline, EntityKind, Ns, Rows, Shape, Span, TrackId};

use super::file::File;
use super::identity::Identity;
use super::job::Job;
use super::reader::{About, Counted, LONG};
use super::survey::Survey;
use super::timestamps::nanoseconds;
use crate::Result;
use crate::align::Alignment;

pub(super) fn read(path: &Path) -> Result<(Rows, About)> {
    let mut job = Job::default();
    let mut file = File::open(path, Identity::alone(path), 0, &Alignment::default())?;
    let mut all = Rows::default();
    while let Some(mut rows) = file.next(&mut job)? {
        all.append(&mut rows);
    }
    all.append(&mut job.finish());
    Ok((all, file.about().clone()))
}

fn of(text: &str) -> Result<(Rows, About)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    std::fs::write(&path, text).unwrap();
    read(&path)
}

/// The spans of a text: track, name, begin and length.
fn spans(text: &str) -> String {
    match of(text) {
        Err(e) => {
            let error = e.to_string();
            error[error.find("x.json` ").unwrap() + 8..].to_owned()
        }
        Ok((rows, _)) => {
            let track = |track: TrackId| {
                let track = rows.track.iter().rev().find(|t| t.id == track).unwrap();
                let entity = rows.entity.iter().rev().find(|e| e.id == track.entity).unwrap();
                format!("{}/{}", entity.name, track.name)
            };
            let one =
                |s: &Span| format!("{} {} {}+{}", track(s.track), s.name, s.ts.0, s.dur.unwrap().0);
            rows.span.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    }
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let ns = |text: &str| nanoseconds(text.as_bytes());
    assert_eq!(ns("1712184000123456.789"), Some(1_712_184_000_123_456_789));
    assert_eq!(ns("7"), Some(7000));
    assert_eq!(ns("0.0004"), Some(0));
    assert_eq!(ns("0.0005"), Some(1));
    assert_eq!(ns("-2.5"), Some(-2500));
    assert_eq!(ns("1.5e3"), Some(1_500_000));
    assert_eq!(ns("1e-3"), Some(1));
    assert_eq!(ns("1e99"), None);
    assert_eq!(ns("1e-99"), Some(0));
    assert_eq!(ns("123456789012345678901234567890123456789012"), None);
    assert_eq!(ns("0.12345678901234567890123456789012345678901"), Some(123));
    for bad in ["", "-", ".", "e3", "1x", "1.2.3", "1e"] {
        assert_eq!(ns(bad), None, "{bad:?}");
    }
}

#[test]
fn all_spellings_mean_the_same() {
    let new = r#"{"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2.25,
         "args": {"device": 0, "stream": 7, "correlation": 9, "grid": [2, 3, 4], "block": [32, 1, 1]}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 42, "tid": 43, "ts": "10", "dur": "1"}
    ]}"#;
    let expected = "stream 7/stream gemm 10500+2250; tid 43/operators aten::mm 10000+1000";
    assert_eq!(spans(new), expected);
    let old = r#"[
        {"ph": "X", "cat": "Kernel", "name": "gemm", "pid": 0, "tid": "7", "ts": 10.5, "dur": 2.25,
         "args": {"device": 0, "stream": "7"}},
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": "42", "tid": "43", "ts": 10, "dur": 1}
    ]"#;
    assert_eq!(spans(old), expected);
    let (rows, _) = of(new).unwrap();
    let kernel = &rows.kernel[0];
    assert_eq!((kernel.correlation, kernel.grid_z, kernel.block_x), (Some(9), 4, 32));
}

#[test]
fn what_follows_the_events_is_read_too() {
    let text = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "traceEvents": [],
        "baseTimeNanoseconds": 1751410836000000000}"#;
    let (rows, about) = of(text).unwrap();
    assert_eq!(about.rank, Some(3));
    assert_eq!(about.base, Some(1_751_410_836_000_000_000));
    assert_eq!(about.gpus, [(0, "H100".to_owned())]);
    assert!(rows.span.is_empty());
    assert_eq!(about.world, Some(8));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    std::fs::write(&path, text.replace("[],", "[{\"ph\": \"X\", \"args\": {\"a\": [\"]\"]}}],"))
        .unwrap();
    assert_eq!(Survey::of(&path).unwrap().about, about);
}

#[test]
fn control_characters_and_escapes_in_names_are_read() {
    let text = "[{\"ph\": \"X\", \"cat\": \"python_function\", \"name\": \"a\u{1}\nb\\u00e4\\ud83d\\ude00\\\"\\/\", \"pid\": 1, \"tid\": 1, \"ts\": 1, \"dur\": 1}]";
    assert_eq!(spans(text), "tid 1/python a\u{1}\nb\u{e4}\u{1f600}\"/ 1000+1000");
}

#[test]
fn names_of_threads_may_come_last() {
    let text = r#"[{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 1},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 5}},
        {"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": "CPU"}},
        {"ph": "i", "name": "mark", "pid": 1, "tid": 2, "ts": 3, "args": {"Bytes": -512}},
        {"ph": "C", "name": "memory", "pid": 1, "tid": 2, "ts": 3, "args": {"value": 7}},
        {"ph": "s", "id": 1, "ts": 3}, {"ph": "B", "ts": 4}, {"ph": "X", "ts": 5, "dur": -1}]"#;
    assert_eq!(spans(text), "worker/operators a 1000+1000");
    let (rows, _) = of(text).unwrap();
    assert_eq!(rows.mark[0].value, Some(-512.0));
    assert_eq!(rows.counter[0].value, 7.0);
    let source = rows.source.last().unwrap();
    assert_eq!((source.recorded, source.dropped), (4, 2));
    let left_out = "not imported: flow events, which repeat correlations (1 row), labels and order of tracks in \
                    viewers (2 rows)";
    assert!(source.note.as_deref().unwrap().ends_with(left_out), "{source:?}");
}

#[test]
fn a_track_whose_calls_cross_is_declared_to_overlap() {
    let call = |tid: i64, ts: i64, dur: i64| {
        format!(
            r#"{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": {tid}, "ts": {ts}, "dur": {dur}}}"#
        )
    };
    // Those of thread 1 nest, though they stand in no order; those of thread 2 cross.
    let events = [call(1, 5, 2), call(1, 0, 10), call(1, 5, 5), call(2, 0, 10), call(2, 5, 10)];
    let (rows, _) = of(&format!("[{}]", events.join(","))).unwrap();
    let last = |number: i64| {
        let entity = rows.entity.iter().rev().find(|e| e.number == Some(number)).unwrap().id;
        let of_it = |t: &&gpuwhy_schema::Track| t.entity == entity && t.shape == Shape::Span;
        rows.track.iter().rev().find(of_it).unwrap().discipline
    };
    assert_eq!(rows.entity.iter().filter(|e| e.kind == EntityKind::Thread).count(), 2);
    assert_eq!(last(2), Some(Discipline::Overlap));
    let nested = rows.track.iter().filter(|t| t.discipline == Some(Discipline::Nested));
    assert_eq!(nested.count(), 2, "both began as nested");
}

#[test]
fn errors_name_the_event_and_the_byte() {
    let event =
        r#"{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 1}"#;
    assert_eq!(
        spans(&format!("[{event}, {}", &event[..40])),
        "is damaged, event 2, byte 123 of its text: it ends in the middle"
    );
    assert_eq!(
        spans(&format!("{{\"traceEvents\": [{event} {event}]}}")),
        "is damaged, byte 99 of its text: `,` or `]` is expected here, not `{`"
    );
    assert_eq!(
        spans("hello"),
        "is not a trace of the PyTorch profiler: it begins neither as JSON nor as gzip"
    );
    assert_eq!(
        spans("{\"a\": ?}"),
        "is damaged, byte 7 of its text: a value is expected here, not `?`"
    );
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    assert!(spans(&deep).ends_with("values are nested more than 512 deep"), "{}", spans(&deep));
    assert!(
        spans(&format!("[{{\"ts\": {}}}]", "1".repeat(99)))
            .ends_with("a number has more than 64 characters")
    );
}

#[test]
fn a_gzip_that_is_cut_off_or_garbled_or_a_bomb_is_refused() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json.gz");
    let event =
        r#"{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 1}"#;
    let events: Vec<String> =
        (0..2000).map(|i| event.replace("\"ts\": 1", &format!("\"ts\": {i}"))).collect();
    let text = format!("[{}]", events.join(",\n"));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let whole = encoder.finish().unwrap();
    let outcome = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match read(&path) {
            Ok((rows, _)) => format!("{} spans", rows.span.len()),
            Err(e) => e.to_string(),
        }
    };
    assert_eq!(outcome(&whole), "2000 spans");
    assert!(
        outcome(&whole[..whole.len() / 2]).contains("incomplete deflate stream"),
        "{}",
        outcome(&whole[..whole.len() / 2])
    );
    let mut garbled = whole.clone();
    let middle = garbled.len() / 2;
    garbled[middle..middle + 64].fill(0xff);
    assert!(outcome(&garbled).contains("x.json.gz` is damaged"), "{}", outcome(&garbled));
    // Decompression stops at a bomb; here as if much had been read already.
    let mut counted =
        Counted { input: Box::new(std::io::repeat(b' ')), compressed: 1, given: LONG };
    assert!(
        counted
            .read(&mut [0; 16])
            .unwrap_err()
            .to_string()
            .ends_with("as only a decompression bomb does")
    );
}

#[test]
fn any_cut_of_a_trace_is_an_error_or_a_trace() {
    let text = r#"{"a": [1, {"b": "c\u00e4"}], "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"grid": [1, 2, 3], "x": {"y": [true, null]}}}], "z": -1e5}"#;
    assert!(of(text).is_ok());
    for end in 1..text.len() {
        assert!(of(&text[..end]).is_err(), "{}", &text[..end]);
    }
    for (at, bad) in (0..text.len()).flat_map(|at| [b'"', b'{', b']', b',', b'\\'].map(|b| (at, b)))
    {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] = bad;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        std::fs::write(&path, bytes).unwrap();
        // It may still be a trace; it must only not panic.
        let _ = read(&path);
    }
}

#[test]
fn real_traces_are_read_whole() {
    let Some(data) = crate::shared_data() else { return };
    // Kernels and copies, as their publishers count them.
    let known = [
        ("h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 1465, None),
        ("inference__sglang_prefilldecode__sglang_Qwen3-8B_prefilldecode.json.gz", 527, Some(0)),
        ("inference__vllm_prefilldecode_piecewise__graph_execution.json.gz", 413, Some(0)),
        ("ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 4350, Some(0)),
        ("nccl_parser_config__nccl_data.json.gz", 2700, Some(0)),
        ("trace_diff__control__control.json.gz", 8568, Some(3)),
        ("trace_diff__test__test.json.gz", 9876, Some(1)),
    ];
    for (file, kernels, rank) in known {
        let (rows, about) = read(&data.join("kineto").join(file)).unwrap();
        assert_eq!(rows.kernel.len(), kernels, "{file}");
        assert_eq!(about.rank, rank, "{file}");
        assert!(rows.span.iter().all(|s| s.dur.unwrap() >= Ns::ZERO));
    }
}
