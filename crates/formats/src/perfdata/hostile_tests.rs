//! Small files that the tests write themselves: sound ones, cut-off ones, and ones that ask for too much.

use gpuwhy_schema::{Entity, EntityKind, Rows};

use super::build::{Form, file};
use crate::Result;
use crate::imported::import;
use crate::importer::Summary;

fn imported(bytes: &[u8]) -> Result<(Rows, Summary)> {
    crate::imported::imported("perf.data", bytes)
}

/// The error, with the place and without the directory.
fn error(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    std::fs::write(&path, bytes).unwrap();
    import(&path).expect_err("an error").to_string().replace(&*dir.path().to_string_lossy(), "…")
}

/// All forms of the same recording.
fn forms() -> Vec<Vec<u8>> {
    let forms = [Form::File, Form::Pipe, Form::Zipped];
    [false, true].iter().flat_map(|is_big| forms.map(|form| file(*is_big, form))).collect()
}

#[test]
fn files_pipes_and_compressed_ones_of_both_byte_orders_hold_the_same_rows() {
    let mut first: Option<String> = None;
    for bytes in forms() {
        let (rows, summary) = imported(&bytes).unwrap();
        let shown = format!("{:?} {:?} {:?} {:?}", rows.state, rows.span, rows.mark, rows.attr);
        assert_eq!(*first.get_or_insert_with(|| shown.clone()), shown);
        let source = rows.source.last().unwrap();
        // Three that perf lost, and one of a type that is not described.
        assert_eq!((source.recorded, source.dropped), (5, 4), "{:?}", source.note);
        assert_eq!(summary.left_out[0].left_out.lost(), 4);
        assert_eq!(summary.about["files"][0]["host"], "box");
        assert_eq!(summary.about["files"][0]["rounds"], 3);
    }
}

#[test]
fn samples_come_in_the_order_of_time_with_their_threads_and_what_was_lost_is_said() {
    let (rows, summary) = imported(&file(false, Form::File)).unwrap();
    let marks: Vec<(&str, i64)> = rows.mark.iter().map(|mark| (&*mark.name, mark.ts.0)).collect();
    assert_eq!(marks, [("perf:cpu-clock:u", 2_500), ("perf:cpu-clock:u", 3_000)]);
    let states: Vec<(i64, i64)> =
        rows.state.iter().map(|state| (state.ts.0, state.dur.unwrap().0)).collect();
    assert!(states.contains(&(1_000, 3_000)), "{states:?}");
    // The thread's process is that which the kernel said when it was forked.
    let thread = rows.entity.iter().rfind(|e| e.number == Some(7)).unwrap();
    let is_process = |e: &&Entity| e.kind == EntityKind::Process && e.number == Some(6);
    let process = rows.entity.iter().rfind(is_process).unwrap();
    assert_eq!(thread.parent, Some(process.id), "{:#?}", rows.entity);
    assert_eq!(&*process.name, "trainer");
    let file = summary.left_out[0].file.clone();
    insta::assert_snapshot!(summary.left_out[0].to_string().replace(&file, "…"));
}

#[test]
fn a_file_that_is_cut_off_is_refused_with_the_byte() {
    for (form, bytes) in forms().into_iter().enumerate() {
        let mut refused = 0;
        let lengths = (8..bytes.len()).step_by(7);
        let all = lengths.len();
        for length in lengths {
            match imported(&bytes[..length]) {
                Ok(_) => {}
                Err(e) => {
                    let said = e.to_string();
                    let is_clear = said.contains("is damaged, ") || said.contains("cannot be read");
                    assert!(is_clear, "{said}");
                    refused += 1;
                }
            }
        }
        // A pipe has no length: it may end after any record.
        let is_pipe = form % 3 == 1;
        assert!(refused == all || is_pipe && refused > all / 2, "{form}: {refused} of {all}");
    }
}

/// Replaces the first place of these bytes.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

/// With eight bytes of the header replaced by a number.
fn with(bytes: &[u8], at: usize, number: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn files_that_cannot_be_are_refused_with_the_place() {
    let whole = file(false, Form::File);
    let zipped = file(false, Form::Zipped);
    let pipe = file(false, Form::Pipe);
    let records = u64::from_le_bytes(whole[40..48].try_into().unwrap()) as usize;
    let mut lines = Vec::new();
    for bytes in [
        // The size of an event, of all events, of the records; a recorder that did not close its file.
        with(&whole, 16, 8),
        with(&whole, 32, u64::MAX),
        with(&whole, 40, u64::MAX),
        with(&whole, 48, 1 << 40),
        with(&whole, 48, 0),
        // The numbers of an event elsewhere.
        with(&whole, 104 + 48 + 128, u64::MAX),
        // A record of no bytes, and one that is longer than the file.
        [&whole[..records + 6], &[0, 0], &whole[records + 8..]].concat(),
        [&whole[..records + 6], &[255, 255], &whole[records + 8..]].concat(),
        replaced(&whole, b"tracing0.6", b"trading0.6"),
        replaced(&whole, b"header_page", b"header_pack"),
        replaced(&zipped, &[0x28, 0xb5, 0x2f, 0xfd], &[0x28, 0xb5, 0x2f, 0xfe]),
        replaced(&pipe, b"tracing0.6", b"trading0.6"),
        [&pipe[..16], &[64, 0, 0, 0, 0, 0, 16, 0], &pipe[16..24]].concat(),
    ] {
        match imported(&bytes) {
            Ok(_) => lines.push("it is read".to_owned()),
            Err(_) => lines.push(error(&bytes)),
        }
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_compressed_part_that_becomes_too_much_is_refused() {
    let bytes = vec![0u8; 200 << 20];
    let packed = zstd::stream::encode_all(&bytes[..], 1).unwrap();
    let mut file = file(false, Form::Pipe);
    for part in packed.chunks(60_000) {
        file.extend(81u32.to_le_bytes());
        file.extend([0, 0]);
        file.extend((8 + part.len() as u16).to_le_bytes());
        file.extend(part);
    }
    assert!(error(&file).contains("a compressed record"), "{}", error(&file));
}

#[test]
fn seeds_of_the_fuzz_target_are_these_files() {
    let seeds: [(&[u8], Vec<u8>); 4] = [
        (include_bytes!("../../../../fuzz/corpus/perf_data/little"), file(false, Form::File)),
        (include_bytes!("../../../../fuzz/corpus/perf_data/big"), file(true, Form::File)),
        (include_bytes!("../../../../fuzz/corpus/perf_data/pipe"), file(false, Form::Pipe)),
        (include_bytes!("../../../../fuzz/corpus/perf_data/zipped"), file(false, Form::Zipped)),
    ];
    for (seed, built) in seeds {
        assert!(seed == built, "a seed of {} bytes is not what is built", seed.len());
    }
}

#[test]
fn garbled_bytes_are_refused_or_read_and_break_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let mut state = 13u64;
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
