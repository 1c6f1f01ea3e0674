//! Every field of real traces against the text of babeltrace2, an independent reader.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::pretty::Pretty;
use super::trace::Traces;
use crate::Result;

/// The directory of kernel traces.
fn data() -> Option<PathBuf> {
    crate::shared_data().map(|data| data.join("kernel"))
}

/// Every event as `[seconds] name: { packet context }, { contexts }, { fields }`.
fn ours(path: &Path) -> Result<Vec<String>> {
    let mut traces = Traces::open(&[path.to_path_buf()])?;
    let (mut lines, mut pretty) = (Vec::new(), Pretty::default());
    let mut last = i64::MIN;
    while let Some(number) = traces.next()? {
        let stream = &mut traces.streams[number];
        assert!(stream.time >= last, "{}: {} after {last}", path.display(), stream.time);
        last = stream.time;
        let mut context = Pretty::default();
        stream.packet_context(&mut context)?;
        stream.body(&mut pretty, Pretty::part)?;
        let context = if context.text == "{ }" { String::new() } else { context.text };
        let mut parts = vec![context, pretty.text.clone()];
        parts.retain(|part| !part.is_empty());
        let name = &stream.event().1.name;
        let fields = parts.join(", ");
        let fields = if fields.is_empty() { String::new() } else { format!(" {fields}") };
        let time =
            if stream.has_clock() { shown_time(stream.time_by_doubles()) } else { String::new() };
        lines.push(format!("{time}{name}:{fields}"));
    }
    Ok(lines)
}

/// A time as babeltrace2 shows it in seconds.
fn shown_time(time: i64) -> String {
    let sign = if time < 0 { "-" } else { "" };
    let time = time.unsigned_abs();
    format!("[{sign}{}.{:09}] ", time / 1_000_000_000, time % 1_000_000_000)
}

/// What babeltrace2 2.0 prints of a trace; `None` where there is no such program or it fails.
fn theirs(path: &Path) -> Option<Vec<String>> {
    let options = ["--clock-seconds", "--no-delta", "--fields=callsite"];
    let output = Command::new("babeltrace2").args(options).arg(path).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| text.lines().map(|line| line.trim_end().to_owned()).collect())
}

fn has_babeltrace() -> bool {
    let found = Command::new("babeltrace2").arg("--version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("skipped: there is no babeltrace2 (Debian package `babeltrace2`)");
    }
    is_there
}

/// Compares as sets: which of two events of the same time comes first is nobody's to say.
fn compare(path: &Path, ours: &[String], theirs: &[String]) {
    assert_eq!(ours.len(), theirs.len(), "events of {}", path.display());
    let mut counts: HashMap<&str, i64> = HashMap::new();
    ours.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    theirs.iter().for_each(|line| *counts.entry(line).or_default() -= 1);
    let of = |sign: i64| {
        let lines = counts.iter().filter(move |(_, n)| n.signum() == sign);
        let mut lines: Vec<&str> =
            lines.flat_map(|(l, n)| vec![*l; n.unsigned_abs() as usize]).collect();
        lines.sort_unstable();
        lines
    };
    let (mut only_ours, mut only_theirs) = (of(1), of(-1));
    only_ours.retain(|ours| {
        let found = only_theirs.iter().position(|theirs| is_stale_text(ours, theirs));
        found.map(|at| println!("stale text: {ours} / {}", only_theirs.swap_remove(at))).is_none()
    });
    assert!(only_ours.is_empty(), "{}:\n{only_ours:#?}\n{only_theirs:#?}", path.display());
}

/// babeltrace2 2.0.4 shows the text of an earlier event in place of some empty ones: the text that it shows, followed
/// by the other fields of the event, is nowhere in the stream.
fn is_stale_text(ours: &str, theirs: &str) -> bool {
    ours.match_indices("\"\"").any(|(at, _)| {
        let (before, after) = (&ours[..=at], &ours[at + 1..]);
        let text = theirs.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        text.is_some_and(|text| !text.is_empty() && !text.contains('"'))
    })
}

/// The directories in a folder of a collection.
fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = path.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

#[test]
fn every_field_of_every_sound_trace_is_as_babeltrace2_prints_it() {
    let Some(data) = data() else { return };
    if !has_babeltrace() {
        return;
    }
    let collection = data.join("babeltrace-ctf/tests/data/ctf-traces");
    let mut paths: Vec<PathBuf> = folders(&data.join("ctf"));
    for folder in ["succeed", "intersection", "packet-seq-num"] {
        paths.extend(folders(&collection.join(folder)));
    }
    let (mut traces, mut events) = (0, 0);
    for path in paths {
        // Where it fails, counts are known: see below.
        let Some(theirs) = theirs(&path) else { continue };
        let ours = ours(&path).unwrap_or_else(|e| panic!("{e}"));
        traces += 1;
        events += ours.len();
        compare(&path, &ours, &theirs);
    }
    println!("{traces} traces with {events} events are equal");
    assert!(traces >= 50 && events >= 429_861, "{traces} traces, {events} events");
}

#[test]
fn dumps_that_were_kept_hold_the_same_events() {
    let Some(data) = data() else { return };
    for name in ["bug446190", "flipping-endianness", "many-threads", "perf-taskset2"] {
        let dump = std::fs::File::open(data.join(format!("ctf/{name}.bt2.txt.gz"))).unwrap();
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(dump).read_to_string(&mut text).unwrap();
        let path = data.join("ctf").join(name);
        let ours = ours(&path).unwrap();
        // A dump has the time of day, the time since the event before, and the host before the name.
        let fields = |line: &str| {
            let name = line.split_once(": ").map_or(line, |(before, _)| before);
            let name = name.rsplit(' ').next().unwrap_or_default().to_owned();
            let from = line.find(": {").map_or("", |at| &line[at..]);
            format!("{name}{from}")
        };
        let ours: Vec<String> = ours.iter().map(|line| fields(line)).collect();
        compare(&path, &ours, &text.lines().map(fields).collect::<Vec<_>>());
    }
}

/// The number of events, and of those that the tracer says it lost.
fn counts(path: &Path) -> (u64, u64) {
    let mut traces = Traces::open(&[path.to_path_buf()]).unwrap();
    let mut sink = super::decode::Nothing;
    while let Some(number) = traces.next().unwrap() {
        traces.streams[number].body(&mut sink, |_, _| {}).unwrap();
    }
    let counts = traces.streams.iter().map(|stream| stream.counts);
    (counts.clone().map(|c| c.events).sum(), counts.map(|c| c.discarded).sum())
}

#[test]
fn traces_have_the_published_numbers_of_events() {
    let Some(data) = data() else { return };
    // tracecompass-test-traces, the tests of its project; babeltrace2 2.0.4 refuses the first four: their times go
    // back, or their clock is beyond its range.
    for (name, events, lost) in [
        ("synctraces/scp_src", 110_771, 0),
        ("synctraces/scp_dest", 85_729, 0),
        ("funky_trace", 100_002, 0),
        // Published as 1,000,000, which counts what was lost.
        ("hello-lost", 32_300, 967_700),
        ("cyg-profile/glxgears-cyg-profile", 4_977, 0),
        ("cyg-profile/glxgears-cyg-profile-fast", 5_161, 0),
        ("bug446190", 31_556, 0),
        ("flipping-endianness", 14_310, 0),
        ("debuginfo-synth-exec", 9, 0),
        ("perf-taskset2", 1_500, 0),
        ("many-threads", 240_644, 0),
        ("context-switches/context-switches-ust", 3_934, 0),
        ("mpi_allreduce", 891, 0),
        ("dpdk_service_cores", 66_464, 0),
        ("ctf-sequence-empty", 10, 0),
        ("CTF2-vl-ints", 1, 0),
    ] {
        assert_eq!(counts(&data.join("ctf").join(name)), (events, lost), "{name}");
    }
}

#[test]
fn traces_of_ctf_2_are_equal_to_their_twins() {
    let Some(data) = data() else { return };
    let twins = data.join("babeltrace-ctf/tests/data/ctf-traces/succeed");
    for name in
        ["barectf-event-before-packet", "lttng-crash", "smalltrace", "succeed1", "trace-with-index"]
    {
        let ours = |path: PathBuf| ours(&path).unwrap_or_else(|e| panic!("{e}"));
        let of_2 = ours(data.join(format!("ctf/CTF2-7.0-{name}")));
        assert_eq!(of_2, ours(twins.join(name)), "{name}");
        assert!(!of_2.is_empty());
    }
    // Integers of any length, at the ends of each number of bytes.
    insta::assert_snapshot!(ours(&data.join("ctf/CTF2-vl-ints")).unwrap().join("\n"));
}

#[test]
fn broken_traces_are_refused_with_the_place_of_the_damage() {
    let Some(data) = data() else { return };
    let collection = data.join("babeltrace-ctf/tests/data/ctf-traces");
    let mut lines = Vec::new();
    for path in folders(&collection.join("fail"))
        .into_iter()
        .chain(folders(&collection.join("deterministic-ordering")))
    {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let result = match ours(&path) {
            Ok(events) => format!("{} events", events.len()),
            Err(e) => e.to_string().replace(&*collection.to_string_lossy(), "…"),
        };
        lines.push(format!("{name}: {result}"));
    }
    insta::assert_snapshot!(lines.join("\n"));
}
