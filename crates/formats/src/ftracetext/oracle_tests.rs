//! Texts of trace-cmd and perf against the files that they were made from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::import::TextFeed;
use crate::kernel::feed::Feed as _;
use crate::kernel::rows::KernelRows;
use crate::{importers, shared_data};
use gpuwhy_tracepoint::{EventType, RawEvent, Value};

/// An event: when, where, by whom, which, and its fields.
type Event = (i64, Option<u32>, Option<i64>, String, BTreeMap<String, Value>);

/// An event with its texts in its values.
fn event(raw: &RawEvent, kind: &EventType) -> (Event, Vec<u8>) {
    let fields = kind.fields.iter().map(ToString::to_string).zip(raw.values.iter().cloned());
    let name = kind.short_name().to_owned();
    ((raw.time, raw.cpu, raw.tid, name, fields.collect()), raw.text.clone())
}

fn of_text(path: &Path) -> Vec<(Event, Vec<u8>)> {
    let mut kernel = KernelRows::default();
    let mut feed = TextFeed::open(&[path.to_path_buf()], &mut kernel).unwrap();
    let mut all = Vec::new();
    feed.each(&mut kernel, |raw, kind| all.push(event(raw, kind))).unwrap();
    let about = feed.finish(&mut kernel);
    assert!(about.left_out.is_empty(), "{:?}", about.left_out);
    all
}

fn of_dat(path: &Path) -> Vec<(Event, Vec<u8>)> {
    let mut all = Vec::new();
    crate::tracedat::oracle_tests::each(path, |raw, name, format| {
        let fields = format.fields.iter().map(|field| field.name.clone()).collect();
        all.push(event(raw, &EventType { name: name.into(), fields }));
    });
    all
}

fn of_perf(path: &Path) -> Vec<(Event, Vec<u8>)> {
    let mut all = Vec::new();
    crate::perfdata::oracle_tests::each(path, |raw, format| {
        let fields = format.fields.iter().map(|field| field.name.clone()).collect();
        all.push(event(raw, &EventType { name: format.name.as_str().into(), fields }));
    });
    all
}

/// A value as it is shown.
fn shown(value: &Value, text: &[u8]) -> String {
    let raw = RawEvent { values: vec![value.clone()], text: text.to_vec(), ..RawEvent::default() };
    raw.shown(0).unwrap_or_default()
}

/// Compares events of a text with those of its file: whole times if the text has ns, else rounded to µs; and how many
/// fields were compared.
fn compare(text: &[(Event, Vec<u8>)], dat: &[(Event, Vec<u8>)], in_ns: bool) -> u64 {
    assert_eq!(text.len(), dat.len());
    let mut compared = 0;
    for (number, ((ours, our_text), (theirs, their_text))) in text.iter().zip(dat).enumerate() {
        let time = if in_ns { theirs.0 } else { (theirs.0 + 500) / 1000 * 1000 };
        assert_eq!(
            (ours.0, ours.1, ours.2, &ours.3),
            (time, theirs.1, theirs.2, &theirs.3),
            "{number}"
        );
        for (name, value) in &ours.4 {
            let Some(their) = theirs.4.get(name) else { continue };
            let (ours_is, theirs_is) = (shown(value, our_text), shown(their, their_text));
            if name == "prev_state" {
                // Letters are those of all kernels; the bits above `t` have moved.
                let bits = |shown: &str| shown.parse::<u32>().unwrap();
                let (ours, theirs) = (bits(&ours_is), bits(&theirs_is));
                let is_end = |bits: u32| bits & 0xf0 != 0;
                assert_eq!((ours & 0xf, is_end(ours)), (theirs & 0xf, is_end(theirs)), "{number}");
                compared += 1;
                continue;
            }
            // An address as the name of its function.
            let is_named = name == "ip" && ours_is.parse::<u64>().is_err();
            // Ten digits, of which nothing says that they are hexadecimal.
            if is_named || name == "pd_addr" {
                continue;
            }
            // trace-cmd prints signed what the field says has no sign, and ends no text with a new line.
            let ours_bits = ours_is.parse::<i64>().map(|n| n as u32);
            let same_bits = ours_bits.is_ok_and(|n| Ok(n) == theirs_is.parse::<u32>());
            let is_same = ours_is == theirs_is || ours_is == theirs_is.trim_end() || same_bits;
            assert!(is_same, "{number} {name}: {ours:?} {ours_is:?} {theirs_is:?}");
            compared += 1;
        }
    }
    compared
}

fn data() -> Option<PathBuf> {
    shared_data().map(|data| data.join("kernel"))
}

#[test]
fn a_dump_of_trace_cmd_becomes_the_events_of_its_file() {
    let Some(data) = data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dat = dir.path().join("a.dat");
    let packed = std::fs::read(data.join("tracecmd/amdgpu_patched.dat.gz")).unwrap();
    let mut unpacked = flate2::read::MultiGzDecoder::new(&packed[..]);
    std::io::copy(&mut unpacked, &mut std::fs::File::create(&dat).unwrap()).unwrap();
    let path = data.join("tracecmd/amdgpu_report.txt.gz");
    assert_eq!(importers::recognise(&path).unwrap().unwrap().name(), "ftrace text");
    let text = of_text(&path);
    assert_eq!(text.len(), 53_507);
    let compared = compare(&text, &of_dat(&dat), true);
    // Seven of each switch alone.
    assert!(compared > 7 * 43_806, "{compared}");
}

#[test]
fn what_trace_cmd_prints_anew_becomes_the_events_of_its_file() {
    let Some(data) = data() else { return };
    let dat = data.join("tracecmd/sched_load_trace.dat");
    let Ok(output) = Command::new("trace-cmd").arg("report").arg(&dat).output() else {
        println!("skipped: there is no trace-cmd");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.txt");
    std::fs::write(&path, output.stdout).unwrap();
    let compared = compare(&of_text(&path), &of_dat(&dat), false);
    assert!(compared > 15_000, "{compared}");
}

#[test]
fn what_perf_prints_becomes_the_events_of_its_file() {
    let Some(data) = data() else { return };
    if Command::new("perf").arg("--version").output().is_err() {
        println!("skipped: there is no perf (Debian package `linux-perf`)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["perf.data", "before.data", "after.data"] {
        let file = data.join("perf").join(name);
        let output = Command::new("perf").args(["script", "--ns", "-i"]).arg(&file).output();
        let path = dir.path().join("script.txt");
        std::fs::write(&path, output.unwrap().stdout).unwrap();
        let text = of_text(&path);
        // Those of one time come in any order.
        let sorted = |mut all: Vec<(Event, Vec<u8>)>| {
            all.sort_by_key(|(one, _)| (one.0, one.1, one.3.clone()));
            all
        };
        let compared = compare(&sorted(text), &sorted(of_perf(&file)), true);
        assert!(compared > 7 * 100, "{name}: {compared}");
    }
}
