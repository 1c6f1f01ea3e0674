//! Small traces that the tests write themselves: sound ones, cut-off ones, and ones that ask for too much.

use std::path::Path;

use crate::importer::{Options, Summary};
use crate::{Error, Result, importers};
use gpuwhy_schema::Rows;

/// Metadata of packets with a header, a context and events of one class; `FIELDS` is replaced.
const METADATA: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
trace { major = 1; minor = 8; byte_order = le; packet.header := struct { uint32_t magic; }; };
env { hostname = \"box\"; tracer_name = \"test\"; };
clock { name = c; freq = 1000; offset_s = 5; };
typealias integer { size = 32; align = 8; signed = false; map = clock.c.value; } := stamp_t;
stream {
    packet.context := struct {
        uint32_t content_size; uint32_t packet_size; uint32_t events_discarded; uint32_t cpu_id;
    };
    event.header := struct { uint8_t id; stamp_t timestamp; };
};
event { id = 0; name = \"e\"; fields := struct { FIELDS }; };
";

/// A packet with these events.
fn packet(discarded: u32, events: &[u8]) -> Vec<u8> {
    let bits = 8 * (20 + events.len() as u32);
    let words = [0xc1fc_1fc1, bits, bits, discarded, 3];
    let mut packet: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
    packet.extend_from_slice(events);
    packet
}

fn event(stamp: u32, fields: &[u8]) -> Vec<u8> {
    [&[0], &stamp.to_le_bytes()[..], fields].concat()
}

fn write(dir: &Path, metadata: &str, stream: &[u8]) {
    std::fs::write(dir.join("metadata"), metadata).unwrap();
    std::fs::write(dir.join("stream_0"), stream).unwrap();
}

fn import(dir: &Path) -> Result<(Rows, Summary)> {
    let paths = [dir.to_path_buf()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    let mut all = Rows::default();
    while let Some(batch) = import.next()? {
        all.append(&mut batch.into_rows());
    }
    Ok((all, import.summary()))
}

fn imported(metadata: &str, stream: &[u8]) -> Result<(Rows, Summary)> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), metadata, stream);
    import(dir.path())
}

/// The error, with the place and without the directory.
fn error(metadata: &str, stream: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), metadata, stream);
    let error: Error = import(dir.path()).expect_err("an error");
    error.to_string().replace(&*dir.path().to_string_lossy(), "…")
}

#[test]
fn a_trace_becomes_marks_with_its_fields_and_says_what_its_tracer_lost() {
    let metadata = METADATA.replace("FIELDS", "uint8_t n; uint32_t x[n]; string s;");
    let one = event(1500, &[2, 1, 0, 0, 0, 2, 0, 0, 0, b'h', b'i', 0]);
    let two = event(2000, &[0, 0]);
    let stream = [packet(0, &one), packet(7, &two)].concat();
    let (rows, summary) = imported(&metadata, &stream).unwrap();
    let marks: Vec<(i64, &str)> = rows.mark.iter().map(|mark| (mark.ts.0, &*mark.name)).collect();
    assert_eq!(marks, [(6_500_000_000, "e"), (7_000_000_000, "e")]);
    let attrs: Vec<String> = rows.attr.iter().map(|a| format!("{}={}", a.key, a.value)).collect();
    assert_eq!(attrs, ["n=2", "x=[1, 2]", "s=hi", "n=0", "x=[]", "s="]);
    let source = rows.source.last().unwrap();
    assert_eq!((source.recorded, source.dropped), (2, 7));
    assert_eq!(&*source.tool, "test");
    assert_eq!(summary.left_out[0].left_out.lost(), 7);
    assert_eq!(summary.about["discarded_events"], 7);
    insta::assert_snapshot!(summary.lines.join("\n"));
}

#[test]
fn contexts_of_events_lie_before_their_fields() {
    let metadata = METADATA
        .replace(
            "timestamp; };\n};",
            "timestamp; };\n event.context := struct { uint8_t _vtid; };\n};",
        )
        .replace(
            "fields := struct { FIELDS };",
            "context := struct { uint8_t c; }; fields := struct { uint8_t f; };",
        );
    let stream = packet(0, &[event(1500, &[1, 2, 3]), event(2000, &[4, 5, 6])].concat());
    let (rows, _) = imported(&metadata, &stream).unwrap();
    let attrs: Vec<String> = rows.attr.iter().map(|a| format!("{}={}", a.key, a.value)).collect();
    assert_eq!(attrs, ["vtid=1", "c=2", "f=3", "vtid=4", "c=5", "f=6"]);
}

/// babeltrace2 takes cycles of a trace without a clock for ns as well.
#[test]
fn times_of_a_trace_without_a_clock_are_nanoseconds() {
    let metadata = METADATA
        .replace("clock { name = c; freq = 1000; offset_s = 5; };\n", "")
        .replace(" map = clock.c.value;", "")
        .replace("FIELDS", "uint8_t f;");
    let stream = packet(0, &[event(1500, &[1]), event(2000, &[2])].concat());
    let (rows, _) = imported(&metadata, &stream).unwrap();
    let times: Vec<i64> = rows.mark.iter().map(|mark| mark.ts.0).collect();
    assert_eq!(times, [1500, 2000]);
}

#[test]
fn fields_of_ctf_2_lie_at_multiples_of_their_alignment() {
    let text = |align: u64| {
        CTF2.replace("\n{", "\n\u{1e}{").replacen(
            r#""type": "fixed-length-floating-point-number","#,
            &format!(r#""type": "fixed-length-floating-point-number", "alignment": {align},"#),
            1,
        )
    };
    let refused = error(&text(3), &[0]);
    assert!(refused.contains("an alignment of 3 bits"), "{refused}");
    let time = [0x85, 0x01];
    let fields = [
        &[3, 0xaa, 0xbb, 0xcc][..],
        b"ab\0zxyz",
        &[1, 7, 0, 0x01, 0x02, 0xff, 0xfe, 0x81, 9],
        b"hi\0\x05\x06\x07",
    ]
    .concat();
    let last = |align, stream: &[u8]| {
        let (rows, _) = imported(&text(align), stream).unwrap();
        rows.attr.last().unwrap().value.to_string()
    };
    assert_eq!(last(8, &[&time, &fields[..], &1.5f32.to_le_bytes()].concat()), "1.5");
    // All fields begin where the one with the largest alignment may.
    let padded = |bytes: &[u8]| [bytes, &vec![0; 64 - bytes.len()]].concat();
    let stream = [&padded(&time)[..], &padded(&fields), &1.5f32.to_le_bytes()].concat();
    assert_eq!(last(512, &stream), "1.5");
}

#[test]
fn a_stream_that_is_cut_off_or_garbled_is_refused_with_the_byte() {
    let metadata = METADATA.replace("FIELDS", "uint8_t n; uint32_t x[n];");
    let whole = packet(0, &event(1, &[1, 1, 0, 0, 0]));
    let mut lines = Vec::new();
    for length in [3, 19, 20, whole.len() - 1] {
        lines.push(error(&metadata, &whole[..length]));
    }
    // A length beyond the packet.
    lines.push(error(&metadata, &packet(0, &event(1, &[200, 1, 0, 0, 0]))));
    let mut no_magic = whole.clone();
    no_magic.extend(b"no packet at all, but something else");
    lines.push(error(&metadata, &no_magic));
    let mut unknown = packet(0, &event(1, &[0]));
    unknown[20] = 9;
    lines.push(error(&metadata, &unknown));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn metadata_that_cannot_be_are_refused_with_the_place() {
    let mut lines = Vec::new();
    let fields = |text: &str| METADATA.replace("FIELDS", text);
    for metadata in [
        fields("uint16_t x;"),
        fields("uint8_t x[y];"),
        fields("string s; uint8_t x[s];"),
        fields("variant <tag> { uint8_t a; } v;"),
        fields("uint8_t tag; variant <tag> { uint8_t a; } v;"),
        fields("integer { size = 65; } x;"),
        fields("integer { size = 8; align = 3; } x;"),
        fields("uint8_t a; uint8_t a;"),
        fields("struct { uint8_t x;"),
        "/* CTF 1.8 */ nonsense { };".to_owned(),
        "/* CTF 1.8 */ event { name = e; };".to_owned(),
        fields(&"struct { ".repeat(100_000)),
        "\u{1e}{\"type\": \"preamble\", \"version\": 3}".to_owned(),
        "\u{1e}{\"type\": \"preamble\", \"version\": 2}\u{1e}{\"type\": 5".to_owned(),
        "\u{1e}{\"type\": \"preamble\", \"version\": 2}".to_owned(),
    ] {
        lines.push(error(&metadata, &packet(0, &event(1, &[0]))));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_small_file_cannot_ask_for_much_time_or_memory() {
    // Each type holds the one before twice: 2^40 fields.
    let mut doubling = "struct s0 { uint8_t a; };".to_owned();
    for i in 1..40 {
        doubling += &format!("struct s{i} {{ struct s{} a; struct s{} b; }};", i - 1, i - 1);
    }
    let metadata = METADATA
        .replace("FIELDS", "struct s39 x;")
        .replace("event {", &format!("{doubling} event {{"));
    let refused = error(&metadata, &packet(0, &event(1, &[0])));
    assert!(refused.contains("more than 1048576 fields"), "{refused}");
    // Elements that take no bits, as many as one likes.
    let metadata = METADATA.replace("FIELDS", "struct { } x[4000000000];");
    let refused = error(&metadata, &packet(0, &event(1, &[0])));
    assert!(refused.contains("more than 4194304 values"), "{refused}");
    // Events that take no bits.
    let metadata = "/* CTF 1.8 */ trace { major = 1; minor = 8; byte_order = le; }; stream { }; \
                    event { name = e; fields := struct { }; };";
    let refused = error(metadata, &[1, 2, 3]);
    assert!(refused.contains("takes no bits"), "{refused}");
}

#[test]
fn an_event_may_be_larger_than_the_window() {
    let metadata = METADATA.replace("FIELDS", "string s; uint8_t last;");
    let mut stream = Vec::new();
    for (stamp, length) in [(1, 10), (2, 3_000_000), (3, 10), (4, 300_000)] {
        let text = [vec![b'x'; length], vec![0, stamp as u8]].concat();
        stream.extend(packet(0, &[event(stamp, &text), event(stamp, &[0, 7])].concat()));
    }
    let (rows, _) = imported(&metadata, &stream).unwrap();
    let last: Vec<&str> =
        rows.attr.iter().filter(|a| &*a.key == "last").map(|a| &*a.value).collect();
    assert_eq!(last, ["1", "7", "2", "7", "3", "7", "4", "7"]);
    let lengths: Vec<usize> =
        rows.attr.iter().filter(|a| &*a.key == "s").map(|a| a.value.len()).collect();
    assert_eq!(lengths, [10, 0, 3_000_000, 0, 10, 0, 300_000, 0]);
}

#[test]
fn all_traces_below_a_directory_are_merged_by_their_clocks() {
    let dir = tempfile::tempdir().unwrap();
    for (name, host, offset, stamps) in
        [("a/kernel", "box", 5, [100, 300]), ("b/ust", "other", 4, [1200, 1250])]
    {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        let metadata = METADATA
            .replace("FIELDS", "uint8_t x;")
            .replace("offset_s = 5", &format!("offset_s = {offset}"))
            .replace("hostname = \"box\"", &format!("hostname = \"{host}\""));
        let events = stamps.map(|stamp| event(stamp, &[1])).concat();
        write(&path, &metadata, &packet(0, &events));
    }
    let (rows, _) = import(dir.path()).unwrap();
    let times: Vec<i64> = rows.mark.iter().map(|mark| mark.ts.0 / 1_000_000).collect();
    assert_eq!(times, [5100, 5200, 5250, 5300]);
    let hosts: Vec<&str> = rows
        .entity
        .iter()
        .filter(|e| e.kind == gpuwhy_schema::EntityKind::Host)
        .map(|e| &*e.name)
        .collect();
    assert_eq!(hosts, ["box", "other"]);
    // How far the clocks of two hosts are apart is not known.
    assert!(rows.source.iter().all(|source| source.config.contains("error_ns=unknown")));
}

/// Metadata of CTF 2 with all classes of fields that CTF 1.8 does not have.
const CTF2: &str = r#"
{"type": "preamble", "version": 2}
{"type": "field-class-alias", "name": "byte", "field-class":
    {"type": "fixed-length-unsigned-integer", "length": 8, "byte-order": "little-endian", "alignment": 8}}
{"type": "trace-class"}
{"type": "clock-class", "id": "c", "frequency": 1000000000, "offset-from-origin": {"seconds": 2}}
{"type": "data-stream-class", "default-clock-class-id": "c", "event-record-header-field-class":
    {"type": "structure", "member-classes": [{"name": "t", "field-class":
        {"type": "variable-length-unsigned-integer", "roles": ["default-clock-timestamp"]}}]}}
{"type": "event-record-class", "name": "e", "payload-field-class": {"type": "structure", "member-classes": [
    {"name": "n", "field-class": {"type": "variable-length-unsigned-integer"}},
    {"name": "blob", "field-class": {"type": "dynamic-length-blob",
        "length-field-location": {"origin": "event-record-payload", "path": ["n"]}}},
    {"name": "fixed", "field-class": {"type": "static-length-string", "length": 4}},
    {"name": "text", "field-class": {"type": "dynamic-length-string",
        "length-field-location": ["event-record-payload", "n"]}},
    {"name": "yes", "field-class": {"type": "fixed-length-boolean", "length": 8, "byte-order": "big-endian"}},
    {"name": "there", "field-class": {"type": "optional", "field-class": "byte",
        "selector-field-location": {"path": ["yes"]}}},
    {"name": "no", "field-class": {"type": "fixed-length-boolean", "length": 8, "byte-order": "big-endian"}},
    {"name": "absent", "field-class": {"type": "optional", "field-class": "byte",
        "selector-field-location": {"path": ["no"]}}},
    {"name": "array", "field-class": {"type": "static-length-array", "length": 2, "element-field-class":
        {"type": "fixed-length-signed-integer", "length": 16, "byte-order": "big-endian"}}},
    {"name": "map", "field-class": {"type": "fixed-length-bit-map", "length": 8, "byte-order": "little-endian",
        "flags": {"a": [[0, 0]]}}},
    {"name": "inner", "field-class": {"type": "structure", "member-classes": [
        {"name": "kind", "field-class": "byte"},
        {"name": "either", "field-class": {"type": "variant",
            "selector-field-location": {"origin": "event-record-payload", "path": ["inner", "kind"]}, "options": [
            {"selector-field-ranges": [[0, 0]], "field-class": "byte"},
            {"selector-field-ranges": [[1, 3], [9, 9]], "field-class": {"type": "null-terminated-string"}}]}},
        {"name": "list", "field-class": {"type": "dynamic-length-array", "element-field-class": "byte",
            "length-field-location": {"path": [null, "n"]}}}]}},
    {"name": "half", "field-class": {"type": "fixed-length-floating-point-number", "length": 32,
        "byte-order": "little-endian"}}
]}}
"#;

#[test]
fn all_classes_of_fields_of_ctf_2_are_read() {
    // A fragment begins where a line does that holds an object.
    let metadata = CTF2.replace("\n{", "\n\u{1e}{");
    let event = [
        &[0x85, 0x01, 3, 0xaa, 0xbb, 0xcc][..],
        b"ab\0zxyz",
        &[1, 7, 0, 0x01, 0x02, 0xff, 0xfe, 0x81, 9],
        b"hi\0\x05\x06\x07",
        &1.5f32.to_le_bytes(),
    ]
    .concat();
    let stream = [&event[..], &event].concat();
    let (rows, _) = imported(&metadata, &stream).unwrap();
    let times: Vec<i64> = rows.mark.iter().map(|mark| mark.ts.0).collect();
    assert_eq!(times, [2_000_000_133; 2]);
    let first = rows.mark[0].id;
    let attrs = rows.attr.iter().filter(|attr| attr.id == first);
    let attrs: Vec<String> = attrs.map(|attr| format!("{}={}", attr.key, attr.value)).collect();
    insta::assert_snapshot!(attrs.join("\n"));
}

/// Metadata and packets with all kinds of fields, which the fuzz targets have too.
const ALL_KINDS: &str = include_str!("../../../../fuzz/fuzz_targets/ctf_packets.tsdl");

#[test]
fn garbled_bytes_are_refused_or_read_and_break_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = 11u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let stream: &[u8] = include_bytes!("../../../../fuzz/corpus/ctf_packets/little");
    let stream = stream[1..].repeat(4);
    let metadata = ALL_KINDS.replace("ORDER", "le");
    write(dir.path(), &metadata, &stream);
    let (rows, _) = import(dir.path()).unwrap();
    assert!(rows.state.len() + rows.span.len() > 4, "the seed has switches and interrupts");
    let mut refused = 0;
    for round in 0..2000 {
        let (mut text, mut bytes) = (metadata.clone().into_bytes(), stream.clone());
        let garbled = if round % 4 == 0 { &mut text } else { &mut bytes };
        for _ in 0..1 + random(4) {
            let at = random(garbled.len());
            match random(4) {
                0 => garbled.truncate(at.max(1)),
                1 => garbled.insert(at, random(256) as u8),
                2 => drop(garbled.remove(at)),
                _ => garbled[at] = random(256) as u8,
            }
            if garbled.is_empty() {
                garbled.push(0);
            }
        }
        std::fs::write(dir.path().join("metadata"), text).unwrap();
        std::fs::write(dir.path().join("stream_0"), bytes).unwrap();
        refused += u32::from(import(dir.path()).is_err());
    }
    assert!((200..2000).contains(&refused), "{refused} of 2000 are refused");
}
