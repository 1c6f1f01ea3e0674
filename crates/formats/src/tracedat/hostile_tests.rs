//! Small files that the tests write themselves: sound ones, cut-off ones, and ones that ask for too much.

use gpuwhy_schema::Rows;

use super::build::{version_6, version_7};
use super::pack::Packing;
use crate::Result;
use crate::imported::import;
use crate::importer::Summary;

fn imported(bytes: &[u8]) -> Result<(Rows, Summary)> {
    crate::imported::imported("trace.dat", bytes)
}

/// The error, with the place and without the directory.
fn error(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.dat");
    std::fs::write(&path, bytes).unwrap();
    import(&path).expect_err("an error").to_string().replace(&*dir.path().to_string_lossy(), "…")
}

/// All forms of the same trace.
fn forms() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for is_big in [false, true] {
        all.push(version_6(is_big));
        all.extend([Packing::None, Packing::Zlib, Packing::Zstd].map(|p| version_7(is_big, p)));
    }
    all
}

#[test]
fn all_versions_packings_and_byte_orders_hold_the_same_rows() {
    let mut first: Option<String> = None;
    for bytes in forms() {
        let (rows, summary) = imported(&bytes).unwrap();
        let shown = format!("{:?} {:?} {:?} {:?}", rows.state, rows.span, rows.mark, rows.attr);
        assert_eq!(*first.get_or_insert_with(|| shown.clone()), shown);
        let source = rows.source.last().unwrap();
        // The event of the unknown type, and those that the CPU's statistics count.
        assert_eq!((source.recorded, source.dropped), (5, 4));
        assert_eq!(summary.left_out[0].left_out.lost(), 4);
        assert_eq!(summary.about["files"][0]["host"], "box");
        let names: Vec<&str> = rows.entity.iter().map(|entity| &*entity.name).collect();
        assert!(names.contains(&"python"), "{names:?}");
    }
}

#[test]
fn a_trace_becomes_states_spans_and_marks_and_says_what_was_lost() {
    let (rows, summary) = imported(&version_6(false)).unwrap();
    let spans: Vec<(&str, i64, Option<i64>)> =
        rows.span.iter().map(|s| (&*s.name, s.ts.0, s.dur.map(|d| d.0))).collect();
    assert_eq!(spans, [("irq 30 gpu", 600, Some(50))]);
    // The clock's 2²⁷ ns and the offset of −500 ns.
    let switched = 5000 + (1 << 27) + 1000 + 1 - 500;
    let states: Vec<(i64, i64)> =
        rows.state.iter().map(|state| (state.ts.0, state.dur.unwrap().0)).collect();
    assert!(states.contains(&(500, switched - 500)), "{states:?}");
    let marks: Vec<(&str, i64)> = rows.mark.iter().map(|mark| (&*mark.name, mark.ts.0)).collect();
    assert_eq!(marks, [("ftrace:print", (7 << 27) + 5000 + 3 - 500)]);
    // The thread's process is that which the fork of trace-cmd says.
    let thread = rows.entity.iter().rfind(|e| e.number == Some(7)).unwrap();
    let process = rows.entity.iter().find(|e| e.number == Some(6)).unwrap();
    assert_eq!(thread.parent, Some(process.id));
    let file = summary.left_out[0].file.clone();
    insta::assert_snapshot!(summary.lines.join("\n").replace(&file, "…"));
    insta::assert_snapshot!(summary.left_out[0].to_string().replace(&file, "…"));
}

#[test]
fn a_file_that_is_cut_off_is_refused_with_the_byte() {
    for bytes in forms() {
        // The last bytes of version 6 are those of a page that is not full.
        for length in (13..bytes.len()).step_by(7) {
            let error = error(&bytes[..length]);
            assert!(error.contains("is damaged, ") || error.contains("cannot be read"), "{error}");
        }
    }
}

/// Replaces the first place of these bytes.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

#[test]
fn files_that_cannot_be_are_refused_with_the_place() {
    let six = version_6(false);
    let seven = version_7(false, Packing::Zstd);
    let mut lines = Vec::new();
    let mut long_page = six.clone();
    let at = six.len() - 3 * 256 + 8;
    long_page[at] = 0xff;
    long_page[at + 1] = 0xff;
    let mut long_event = six.clone();
    long_event[at + 8] = 28;
    long_event[at + 8 + 148] = 0;
    for bytes in [
        replaced(&six, b"tracing6", b"tracing8"),
        replaced(&six, b"header_page", b"header_pack"),
        replaced(&six, b"commit", b"cummit"),
        replaced(&six, b"flyrecord", b"flyrecard"),
        replaced(&six, b"flyrecord", b"latency  "),
        replaced(&six, &[0, 1, 0, 0, b'h'], &[0, 0, 0, 0xff, b'h']),
        long_page,
        replaced(&seven, b"zstd", b"lzma"),
        replaced(&seven, b"zstd\x001.5\0", b"zlib\x001.5\0"),
        replaced(&seven, &[0x28, 0xb5, 0x2f, 0xfd], &[0x28, 0xb5, 0x2f, 0xfe]),
    ] {
        match imported(&bytes) {
            Ok(_) => lines.push("it is read".to_owned()),
            Err(_) => lines.push(error(&bytes)),
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn seeds_of_the_fuzz_target_are_these_files() {
    let seeds: [(&[u8], Vec<u8>); 3] = [
        (include_bytes!("../../../../fuzz/corpus/trace_dat/little_6"), version_6(false)),
        (include_bytes!("../../../../fuzz/corpus/trace_dat/big_6"), version_6(true)),
        (
            include_bytes!("../../../../fuzz/corpus/trace_dat/little_7"),
            version_7(false, Packing::None),
        ),
    ];
    for (seed, built) in seeds {
        assert!(seed == built, "a seed of {} bytes is not what is built", seed.len());
    }
}

#[test]
fn garbled_bytes_are_refused_or_read_and_break_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.dat");
    let mut state = 11u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let forms = forms();
    let mut refused = 0;
    for round in 0..3000 {
        let mut garbled = forms[round % forms.len()].clone();
        for _ in 0..1 + random(4) {
            let at = random(garbled.len());
            match random(5) {
                0 => garbled.truncate(at.max(1)),
                1 => garbled.insert(at, random(256) as u8),
                2 => drop(garbled.remove(at)),
                _ => garbled[at] = random(256) as u8,
            }
            if garbled.is_empty() {
                garbled.push(0);
            }
        }
        std::fs::write(&path, garbled).unwrap();
        refused += u32::from(import(&path).is_err());
    }
    assert!((300..3000).contains(&refused), "{refused} of 3000 are refused");
}
