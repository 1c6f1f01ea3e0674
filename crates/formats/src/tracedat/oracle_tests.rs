//! Every field of real traces against the text of trace-cmd, an independent reader: its dump that was kept, and where
//! trace-cmd is installed its raw fields, of conversions to version 7, too.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::import::DatFeed;
use crate::kernel::rows::KernelRows;
use gpuwhy_tracepoint::{Format, RawEvent, Value};

fn data() -> Option<PathBuf> {
    crate::shared_data().map(|data| data.join("kernel/tracecmd"))
}

/// The text of a gzip file.
fn gunzip(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The first file of a zip archive (PKWARE's APPNOTE, 4.3.7).
fn unzip(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let two = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let packed = &bytes[30 + two(26) + two(28)..];
    let mut out = Vec::new();
    flate2::read::DeflateDecoder::new(packed).read_to_end(&mut out).unwrap();
    out
}

/// Calls `see` with each event: its type's name and format, and the event.
pub(crate) fn each(path: &Path, see: impl FnMut(&RawEvent, &str, &Format)) -> u64 {
    let mut kernel = KernelRows::default();
    let mut feed = DatFeed::open(&[path.to_path_buf()], &mut kernel).unwrap();
    let mut see = see;
    let mut events = 0;
    let mut last = i64::MIN;
    feed.each(|event, name, format| {
        assert!(event.time >= last, "{} after {last}", event.time);
        last = event.time;
        events += 1;
        see(event, name, format);
    })
    .unwrap();
    events
}

/// `pid [cpu] time: name:` of a line of trace-cmd, and what comes after it. The name of the thread, which may hold
/// anything, is before the last `-`.
fn parsed(line: &str) -> (String, &str) {
    let at = line.find(": ").unwrap();
    let (head, rest) = (&line[..at], line[at + 2..].trim_start());
    let cpu = head.rfind('[').unwrap();
    let pid = head[..cpu].trim().rsplit('-').next().unwrap();
    // Some runs of trace-cmd 3.1 forget that the clock counts nanoseconds and print their plain number, unspaced.
    let time = head[cpu + 5..].trim();
    let time = match time.len().checked_sub(9) {
        Some(seconds) if !time.contains('.') => {
            format!("{}.{}", &time[..seconds], &time[seconds..])
        }
        _ => time.to_owned(),
    };
    let (name, rest) = rest.split_once(':').unwrap();
    (format!("{pid} {} {time} {name}", &head[cpu + 1..cpu + 4]), rest.trim())
}

/// The same of an event of ours.
fn head(event: &RawEvent, name: &str) -> String {
    let (seconds, ns) = (event.time / 1_000_000_000, event.time % 1_000_000_000);
    format!("{} {:03} {seconds}.{ns:09} {name}", event.tid.unwrap(), event.cpu.unwrap())
}

/// What trace-cmd 3.1 prints of the types in the file from a desktop with an AMD GPU, by their `print fmt`.
fn printed(event: &RawEvent, name: &str, format: &Format) -> String {
    let field = |wanted: &str| {
        let place = format.fields.iter().position(|field| &*field.name == wanted);
        event.shown(place.unwrap_or_else(|| panic!("{name} has {wanted}"))).unwrap()
    };
    let hex = |wanted: &str| format!("{:x}", field(wanted).parse::<u64>().unwrap());
    match name {
        "sched_switch" => {
            let bits: u64 = field("prev_state").parse().unwrap();
            // Its plugin; the states of Linux 4.11.
            let state: String = match bits & 0x7ff {
                0 => "R".into(),
                bits => "SDTtZXxKWPN"
                    .chars()
                    .enumerate()
                    .filter(|(i, _)| bits >> i & 1 == 1)
                    .map(|(_, c)| c)
                    .collect(),
            };
            let of = |which: &str| {
                let field = |name: &str| field(&format!("{which}_{name}"));
                format!("{}:{} [{}]", field("comm"), field("pid"), field("prio"))
            };
            format!("{} {state} ==> {}", of("prev"), of("next"))
        }
        "print" => format!("0x{}: {}", hex("ip"), field("buf").trim_end()),
        "dma_fence_signaled" => format!(
            "driver={} timeline={} context={} seqno={}",
            field("driver"),
            field("timeline"),
            field("context"),
            field("seqno")
        ),
        "amdgpu_cs_ioctl" | "amdgpu_sched_run_job" => format!(
            "sched_job={}, timeline={}, context={}, seqno={}, ring_name={}, num_ibs={}",
            field("sched_job_id"),
            field("timeline"),
            field("context"),
            field("seqno"),
            hex("ring_name"),
            field("num_ibs")
        ),
        "drm_vblank_event" => format!("crtc={}, seq={}", field("crtc"), field("seq")),
        "amdgpu_ttm_bo_move" => format!(
            "bo=0x{}, from={}, to={}, size={}",
            hex("bo"),
            field("old_placement"),
            field("new_placement"),
            field("bo_size")
        ),
        "amdgpu_vm_flush" => {
            format!("ring={}, id={}, pd_addr={:0>10}", field("ring"), field("id"), hex("pd_addr"))
        }
        other => panic!("{other} is not in the dump"),
    }
}

#[test]
fn the_dump_that_was_kept_holds_the_same_events_with_the_same_fields() {
    let Some(data) = data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dump = String::from_utf8(gunzip(&data.join("amdgpu_report.txt.gz"))).unwrap();
    let theirs: Vec<&str> = dump.lines().skip(1).collect();
    // As it was recorded, with an option whose number another fork uses, and with that number changed.
    for (name, bytes) in [
        ("original", unzip(&data.join("amdgpu_trace.zip"))),
        ("patched", gunzip(&data.join("amdgpu_patched.dat.gz"))),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let mut lines = theirs.iter();
        let events = each(&path, |event, name, format| {
            let theirs = parsed(lines.next().unwrap());
            assert_eq!((head(event, name), &*printed(event, name, format)), theirs);
        });
        assert_eq!(events, 53_507, "{name}");
        assert!(lines.next().is_none());
    }
}

/// Whether a value of ours is what trace-cmd prints of it with `-R`.
fn same(value: &Value, shown: &str, theirs: &str) -> bool {
    let digits = theirs.strip_prefix("0x").unwrap_or(theirs);
    match value {
        Value::Unsigned(number) => {
            theirs == shown || u64::from_str_radix(digits, 16).ok() == Some(*number)
        }
        // 32 bits of a negative number, as hexadecimal.
        Value::Signed(number) => {
            theirs == shown || u64::from_str_radix(digits, 16).ok() == Some(*number as u64)
        }
        _ => {
            let text =
                theirs.trim_end() == shown.trim_end() || theirs == "(null)" && shown.is_empty();
            text || numbers(theirs) == numbers(shown) && !numbers(shown).is_empty()
        }
    }
}

/// The numbers of `ARRAY[01, 0a]`, in hexadecimal, or of `[1, 10]`.
fn numbers(text: &str) -> Vec<u64> {
    let (radix, list) = match text.strip_prefix("ARRAY[") {
        Some(list) => (16, list),
        None => (10, text.strip_prefix('[').unwrap_or_default()),
    };
    list.trim_end_matches(']')
        .split(", ")
        .filter_map(|n| u64::from_str_radix(n, radix).ok())
        .collect()
}

/// Compares all events with `trace-cmd report -R`.
fn compare(path: &Path) -> u64 {
    let output = Command::new("trace-cmd").args(["report", "-R", "-t", "-i"]).arg(path).output();
    let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let mut lines = text.lines().filter(|line| line.contains("]") && line.contains(": "));
    // Those of one time come in any order.
    let mut held: Vec<(String, String)> = Vec::new();
    let mut unmatched = 0u64;
    let events = each(path, |event, name, format| {
        let ours = head(event, name);
        if held.is_empty() {
            let (head, rest) = parsed(lines.next().unwrap());
            held.push((head, rest.to_owned()));
        }
        let place = loop {
            if let Some(place) = held
                .iter()
                .position(|(head, rest)| *head == ours && fields_are_same(event, format, rest))
            {
                break place;
            }
            assert!(held.len() < 20, "{ours}: none of {held:#?}");
            let Some(line) = lines.next() else { panic!("{ours}: none of {held:#?}") };
            let (head, rest) = parsed(line);
            held.push((head, rest.to_owned()));
        };
        held.remove(place);
        unmatched = unmatched.max(held.len() as u64);
    });
    assert!(held.is_empty() && lines.next().is_none(), "{held:#?}");
    events
}

fn fields_are_same(event: &RawEvent, format: &Format, theirs: &str) -> bool {
    let mut rest = theirs;
    for (place, field) in format.fields.iter().enumerate() {
        let Some(after) = rest.trim_start().strip_prefix(&*field.name) else { return false };
        let Some(after) = after.strip_prefix('=') else { return false };
        let to = match format.fields.get(place + 1) {
            Some(next) => after.find(&format!(" {}=", next.name)).unwrap_or(after.len()),
            None => after.len(),
        };
        let shown = event.shown(place).unwrap_or_default();
        // The kernel's address of a function by its name: there are no other texts where a number is.
        let is_symbol =
            &*field.name == "ip" && after[..to].starts_with(|c: char| c.is_ascii_lowercase());
        if !is_symbol && !same(&event.values[place], &shown, &after[..to]) {
            return false;
        }
        rest = &after[to..];
    }
    true
}

/// Packs the pages and sections of a file of version 7 that is packed by zstd anew, by zlib.
fn recompressed(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let two = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let repack = |packed: &[u8]| {
        let raw = zstd::stream::decode_all(packed).unwrap();
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&raw).unwrap();
        encoder.finish().unwrap()
    };
    let at = bytes.windows(11).position(|w| w == b"zstd\x001.5.4\0").unwrap();
    let mut out = bytes[..at].to_vec();
    out.extend(b"zlib\x001.2.3\0");
    let options = out.len();
    out.extend([0; 8]);
    let mut placed = std::collections::BTreeMap::new();
    // Sections other than those of options, which refer to them.
    let mut next = eight(at + 11);
    let mut all: Vec<(u16, Vec<u8>)> = Vec::new();
    while next != 0 {
        let (mut here, size) = (next + 16, eight(next + 8));
        let end = here + size;
        next = 0;
        while here < end {
            let (id, size) = (two(here), four(here + 2));
            let data = bytes[here + 6..here + 6 + size].to_vec();
            if id == 0 {
                next = eight(here + 6);
            } else {
                all.push((id as u16, data));
            }
            here += 6 + size;
        }
    }
    let mut fixed = Vec::new();
    for (id, mut data) in all {
        let reference = |data: &[u8], at: usize| eight_of(data, at);
        if (16..=21).contains(&id) {
            let from = reference(&data, 0);
            let to = *placed.entry(from).or_insert_with(|| {
                let (flags, to) = (two(from + 2), out.len());
                if flags & 1 == 0 {
                    out.extend(&bytes[from..from + 16 + eight(from + 8)]);
                } else {
                    let (packed, size) = (four(from + 16), four(from + 20));
                    let new = repack(&bytes[from + 24..from + 24 + packed]);
                    out.extend(&bytes[from..from + 8]);
                    out.extend((new.len() as u64 + 8).to_le_bytes());
                    out.extend((new.len() as u32).to_le_bytes());
                    out.extend((size as u32).to_le_bytes());
                    out.extend(new);
                }
                to
            });
            data[..8].copy_from_slice(&(to as u64).to_le_bytes());
        } else if id == 3 {
            let from = reference(&data, 0);
            data[..8].copy_from_slice(&(out.len() as u64).to_le_bytes());
            out.extend(&bytes[from..from + 16]);
            let name = data[8..].iter().position(|b| *b == 0).unwrap() + 9;
            let clock = data[name..].iter().position(|b| *b == 0).unwrap() + 1;
            let mut entry =
                name + clock + if (data.len() - name - clock) % 20 == 8 { 8 } else { 4 };
            while entry < data.len() {
                let from = reference(&data, entry + 4);
                let to = out.len();
                let chunks = if eight_of(&data, entry + 12) == 0 { 0 } else { four(from) };
                if chunks > 0 {
                    out.extend((chunks as u32).to_le_bytes());
                }
                let mut here = from + 4;
                for _ in 0..chunks {
                    let (packed, size) = (four(here), four(here + 4));
                    let new = repack(&bytes[here + 8..here + 8 + packed]);
                    out.extend((new.len() as u32).to_le_bytes());
                    out.extend((size as u32).to_le_bytes());
                    out.extend(new);
                    here += 8 + packed;
                }
                data[entry + 4..entry + 12].copy_from_slice(&(to as u64).to_le_bytes());
                let size = (out.len() - to) as u64;
                data[entry + 12..entry + 20].copy_from_slice(&size.to_le_bytes());
                entry += 20;
            }
        }
        fixed.push((id, data));
    }
    let section = out.len() as u64;
    out[options..options + 8].copy_from_slice(&section.to_le_bytes());
    fixed.push((0, vec![0; 8]));
    let size: usize = fixed.iter().map(|(_, data)| 6 + data.len()).sum();
    out.extend([0; 8]);
    out.extend((size as u64).to_le_bytes());
    for (id, data) in fixed {
        out.extend(id.to_le_bytes());
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    out
}

fn eight_of(data: &[u8], at: usize) -> usize {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap()) as usize
}

#[test]
fn every_field_of_every_version_and_packing_is_as_trace_cmd_prints_it() {
    let Some(data) = data() else { return };
    let is_there = Command::new("trace-cmd").arg("--help").output().is_ok();
    if !is_there {
        println!("skipped: there is no trace-cmd (Debian package `trace-cmd`)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let amdgpu = dir.path().join("amdgpu.dat");
    std::fs::write(&amdgpu, gunzip(&data.join("amdgpu_patched.dat.gz"))).unwrap();
    for (path, events) in [(data.join("sched_load_trace.dat"), 3_724), (amdgpu, 53_507)] {
        assert_eq!(compare(&path), events, "{}", path.display());
        for packing in ["none", "zstd"] {
            let converted = dir.path().join(packing);
            let made = Command::new("trace-cmd")
                .args(["convert", "--compression", packing, "-i"])
                .arg(&path)
                .arg("-o")
                .arg(&converted)
                .output();
            let made = made.unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            assert_eq!(compare(&converted), events, "{} as {packing}", path.display());
            if packing == "zstd" {
                let zlib = dir.path().join("zlib");
                std::fs::write(&zlib, recompressed(&std::fs::read(&converted).unwrap())).unwrap();
                let lines = |path: &Path| {
                    let mut lines = Vec::new();
                    each(path, |event, name, _| lines.push(format!("{name} {event:?}")));
                    lines
                };
                assert!(lines(&zlib) == lines(&converted), "{}", path.display());
            }
        }
    }
}

#[test]
fn a_time_in_plain_nanoseconds_is_the_same_time() {
    let usual = parsed("  steam-25475 [003] 630659.115986157: sched_switch:  prev_comm=steam");
    let plain = parsed("  steam-25475 [003]630659115986157: sched_switch:  prev_comm=steam");
    assert_eq!(usual, ("25475 003 630659.115986157 sched_switch".to_owned(), "prev_comm=steam"));
    assert_eq!(plain, usual);
}
