//! Every event of real recordings against the text of perf itself, where that is installed; compressed anew, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::build::zipped;
use super::import::PerfFeed;
use crate::kernel::rows::KernelRows;
use gpuwhy_tracepoint::{Format, RawEvent};

fn data() -> Option<PathBuf> {
    crate::shared_data().map(|data| data.join("kernel/perf"))
}

/// Who, where, when, which and with which values, as perf prints it.
fn printed(event: &RawEvent, format: &Format) -> String {
    let field = |wanted: &str| {
        let place = format.fields.iter().position(|field| &*field.name == wanted);
        let place = place.unwrap_or_else(|| panic!("{} has {wanted}", format.name));
        event.shown(place).unwrap()
    };
    let (system, values) = match &*format.name {
        "sched_switch" => {
            let bits: u64 = field("prev_state").parse().unwrap();
            let letters = "SDTtXZPI".chars().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
            let letters: Vec<String> = letters.map(|(_, letter)| letter.into()).collect();
            let state = if letters.is_empty() { "R".to_owned() } else { letters.join("|") };
            let taken = if bits & 0x100 != 0 { "+" } else { "" };
            let of = |which: &str| {
                let of =
                    |what: &str| format!("{which}_{what}={}", field(&format!("{which}_{what}")));
                format!("{} {} {}", of("comm"), of("pid"), of("prio"))
            };
            ("sched", format!("{} prev_state={state}{taken} ==> {}", of("prev"), of("next")))
        }
        "kvm_fpu" => ("kvm", if field("load") == "0" { "unload" } else { "load" }.to_owned()),
        "kvm_userspace_exit" => {
            assert_eq!(field("reason"), "2");
            ("kvm", "reason KVM_EXIT_IO (2)".to_owned())
        }
        "kvm_pio" => {
            let hex = |wanted: &str| format!("{:#x}", field(wanted).parse::<u64>().unwrap());
            let way = if field("rw") == "0" { "read" } else { "write" };
            let (size, count) = (field("size"), field("count"));
            let (port, value) = (hex("port"), hex("val"));
            ("kvm", format!("pio_{way} at {port} size {size} count {count} val {value}"))
        }
        other => panic!("{other} is in none of the files"),
    };
    let (seconds, ns) = (event.time / 1_000_000_000, event.time % 1_000_000_000);
    let (tid, cpu) = (event.tid.unwrap_or(-1), event.cpu.unwrap());
    format!("{tid} [{cpu:03}] {seconds}.{ns:09}: {system}:{}: {values}", format.name)
}

/// Calls `see` with each event and the format of its type.
pub(crate) fn each(path: &Path, see: impl FnMut(&RawEvent, &Format)) {
    let mut kernel = KernelRows::default();
    let mut feed = PerfFeed::open(&[path.to_path_buf()], &mut kernel).unwrap();
    feed.each(&mut kernel, see).unwrap();
}

/// All events, as they would be printed.
fn ours(path: &Path) -> Vec<String> {
    let (mut lines, mut last) = (Vec::new(), i64::MIN);
    each(path, |event, format| {
        assert!(event.time >= last, "{} after {last}", event.time);
        last = event.time;
        lines.push(plain(&printed(event, format)));
    });
    lines
}

/// With one space where there are any.
fn plain(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The records compressed in parts, with what comes after them moved.
fn recompressed(bytes: &[u8]) -> Vec<u8> {
    let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (from, size) = (eight(40) as usize, eight(48) as usize);
    let packed = zipped(false, &bytes[from..from + size], 30_000);
    let mut out = [&bytes[..from], &packed, &bytes[from + size..]].concat();
    out[48..56].copy_from_slice(&(packed.len() as u64).to_le_bytes());
    let features: u32 = (0..4).map(|word| eight(72 + 8 * word).count_ones()).sum();
    for feature in 0..features as usize {
        let (was, is) = (from + size + 16 * feature, from + packed.len() + 16 * feature);
        let moved = eight(was) - size as u64 + packed.len() as u64;
        out[is..is + 8].copy_from_slice(&moved.to_le_bytes());
    }
    out
}

#[test]
fn every_event_is_as_perf_prints_it_and_the_same_when_it_is_compressed() {
    let Some(data) = data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let has_perf = Command::new("perf").arg("--version").output().is_ok();
    if !has_perf {
        println!("skipped: there is no perf (Debian package `linux-perf`)");
    }
    for (name, events) in [("perf.data", 15_288), ("before.data", 9_336), ("after.data", 4_995)] {
        let path = data.join(name);
        let ours_are = ours(&path);
        assert_eq!(ours_are.len(), events, "{name}");
        let again = dir.path().join(name);
        std::fs::write(&again, recompressed(&std::fs::read(&path).unwrap())).unwrap();
        assert!(ours(&again) == ours_are, "{name}, compressed");
        if !has_perf {
            continue;
        }
        let args = ["script", "--ns", "-F", "tid,cpu,time,event,trace", "-i"];
        let output = Command::new("perf").args(args).arg(&path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut theirs: Vec<String> = text.lines().map(plain).collect();
        // Those of one time come in any order.
        let mut ours = ours_are;
        theirs.sort_unstable();
        ours.sort_unstable();
        let other = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert_eq!(other, None, "{name}");
        assert_eq!(ours.len(), theirs.len(), "{name}");
    }
}
