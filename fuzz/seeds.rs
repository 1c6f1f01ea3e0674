//! Makes the seeds in `corpus/`: small sound inputs of each target, from which it departs.
//!
//! They are committed, so that a run begins where the last one of anybody did; run this again
//! after a change of the formats.

use std::path::Path;

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Writer};
use gpuwhy_wire::{encode, seal};
use object::write::{Object, StandardSection, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope};

fn rows() -> Rows {
    let mut lanes = Lanes::default();
    let source = lanes.source("proc:psi", "seeds", "1", "");
    let host = lanes.entity(EntityKind::Host, "h", |_| {});
    let track = lanes.track(host, None, Lane::spans("steps", Discipline::Nested), source);
    let mut rows = Rows::default();
    lanes.drain(&mut rows);
    let id = Id::new(1, 1);
    for i in 0..20 {
        rows.span.push(Span {
            id: Id::new(1, i),
            ts: Ns(i as i64 * 1000),
            dur: (i != 7).then_some(Ns(900)),
            track,
            parent: (i % 5 == 4).then_some(id),
            name: if i % 3 == 0 { "step" } else { "all-reduce" }.into(),
        });
        rows.counter.push(Counter { ts: Ns(i as i64), track, value: i as f64 / 3.0 });
        rows.state.push(State { ts: Ns(i as i64), dur: None, track, value: 1, arg: Some(2) });
    }
    rows.attr.extend((0..9).map(|i| Attr {
        id: Id(i),
        key: "k".into(),
        value: if i % 2 == 0 { "gemm" } else { "copy" }.into(),
    }));
    rows.io.push(Io {
        id,
        ts: Ns(1000),
        disk: host,
        thread: host,
        op: IoOp::Write,
        sync: true,
        bytes: 4096,
        sector: 8,
        issued: Some(Ns(1001)),
        issuer: None,
    });
    rows
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let tmp = tempfile::tempdir()?;
    let path = tmp.path().join("t");
    let write = |target: &str, name: &str, bytes: &[u8]| -> std::io::Result<()> {
        std::fs::create_dir_all(corpus.join(target))?;
        std::fs::write(corpus.join(target).join(name), bytes)
    };

    let mut writer = Writer::create(&path, Options { tool: "seeds".into(), ..Options::default() })?;
    writer.append(&mut rows())?;
    writer.flush_journal()?;
    let journal = std::fs::read(path.join("journal/00000.journal"))?;
    write("journal", "file", &[&[0], &*journal].concat())?;
    // The payload of each frame: its header of 36 bytes says its length.
    let mut at = 16;
    while at + 36 <= journal.len() {
        let word = |i: usize| u32::from_le_bytes(journal[at + i..at + i + 4].try_into().unwrap());
        let name: Vec<u8> = journal[at + 4..at + 20].iter().copied().filter(|b| *b != 0).collect();
        let name = String::from_utf8(name)?;
        let table = TABLES.iter().position(|t| *t == name).unwrap_or(0) as u8;
        let end = at + 36 + word(24) as usize;
        let frame = [&[1, table, word(20) as u8], &journal[at + 36..end]].concat();
        write("journal", &format!("frame-{name}"), &frame)?;
        at = end;
    }

    // A lane of states: 5 ns of the value 1 in the first bucket of 1,024 ns, then two buckets of it.
    let cells = [12, 2, 1, 2, 5, 8, 2, 2];
    write("pyramid_file", "cells", &[&[10, 0, 1], &cells[..]].concat())?;
    // A span of 7 ns.
    write("pyramid_file", "rows", &[100, 0, 1, 13, 4, 7, 0, 0])?;
    let file = gpuwhy_store::fuzzing::pyramid_of(10, 0, 5, &cells);
    write("pyramid_file", "file", &[&[0xff], &*file].concat())?;

    writer.finish()?;
    // Attributes have an id and a value, as strings of a report do.
    write(
        "nsys_directory",
        "parquet",
        &[&[0], &*std::fs::read(path.join("attr/00000.parquet"))?].concat(),
    )?;
    let batch = Attr::batch(&rows().attr);
    let mut arrow = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch.schema())?;
    arrow.write(&batch)?;
    write("nsys_directory", "arrow", &[&[1], &*arrow.into_inner()?].concat())?;
    let mut arrow = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema())?;
    arrow.write(&batch)?;
    write("nsys_directory", "arrow-stream", &[&[1], &*arrow.into_inner()?].concat())?;
    write("trace_toml", "whole", &std::fs::read(path.join("trace.toml"))?)?;
    write(
        "trace_toml",
        "empty",
        b"format = \"gpuwhy-trace\"\nschema_version = 1\ntool = \"\"\n\
        complete = false\nnext_segment = 0\n",
    )?;
    for (number, table) in TABLES.iter().enumerate() {
        let Ok(file) = std::fs::read(path.join(table).join("00000.parquet")) else { continue };
        write("parquet_reader", table, &[&[number as u8], &*file].concat())?;
    }

    for (file, record) in gpuwhy_wire::fuzzing::valid_records() {
        let mut words = encode(&record);
        seal(&mut words, 3);
        let record: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        write("wire_record", &file, &[&3u64.to_le_bytes()[..], &[0], &record].concat())?;
    }

    let [hello, settings] = gpuwhy_wire::fuzzing::valid_messages();
    write("agent_socket", "client", &[&[0, 64], &*hello, b"more"].concat())?;
    write("agent_socket", "client-twice", &[&[0, 64], &*hello, &*hello].concat())?;
    write("agent_socket", "agent", &[&[128, 1, 64], &*settings, &*settings].concat())?;
    write("agent_socket", "agent-two-rings", &[&[128, 3, 64], &*settings, &*settings].concat())?;
    write("agent_socket", "agent-no-ring", &[&[128, 0, 64], &*settings, b"?"].concat())?;

    let [plan, record] = gpuwhy_wire::fuzzing::valid_images();
    write("probe_images", "plan", &plan)?;
    write("probe_images", "record", &record)?;

    correlator_lines(&write)?;
    let report = tmp.path().join("report.sqlite");
    nsys_report(&report)?;
    write("nsys_report", "report", &std::fs::read(&report)?)?;
    let event = r#"{"ph": "X", "cat": "kernel", "name": "g\u00e4", "pid": 0, "tid": 7, "ts": 1.5,
        "dur": 2, "args": {"device": 0, "stream": 7, "correlation": 9, "grid": [1, 2, 3]}}"#;
    let call = r#"{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "42",
        "tid": "43", "ts": "1", "dur": 1, "args": {"correlation": 9}}"#;
    let whole = format!(
        r#"{{"deviceProperties": [{{"id": 0, "name": "H100"}}], "distributedInfo": {{"rank": 3}},
        "traceEvents": [{event}, {call}], "baseTimeNanoseconds": 1751410836000000000}}"#
    );
    write("kineto_trace", "object", whole.as_bytes())?;
    write("kineto_trace", "array", format!("[{call}, {event}]").as_bytes())?;
    let tsdl = include_str!("fuzz_targets/ctf_packets.tsdl").replace("ORDER", "le");
    write("ctf_metadata", "tsdl", tsdl.as_bytes())?;
    let json = concat!(
        "\u{1e}{\"type\": \"preamble\", \"version\": 2}\u{1e}{\"type\": \"trace-class\"}",
        "\u{1e}{\"type\": \"data-stream-class\"}\u{1e}{\"type\": \"event-record-class\", \"name\": \"e\", ",
        "\"payload-field-class\": {\"type\": \"structure\", \"member-classes\": [",
        "{\"name\": \"n\", \"field-class\": {\"type\": \"variable-length-unsigned-integer\"}}, ",
        "{\"name\": \"b\", \"field-class\": {\"type\": \"dynamic-length-blob\", \"length-field-location\": ",
        "{\"origin\": \"event-record-payload\", \"path\": [\"n\"]}}}]}}"
    );
    write("ctf_metadata", "json", json.as_bytes())?;
    // Packets of 64 bytes with a switch, an interrupt and an event of the clock's long form.
    for (name, big) in [("little", 0u8), ("big", 1)] {
        let (magic, size) = (0xc1fc_1fc1u32, 512u16);
        let (magic, size) = match big {
            0 => (magic.to_le_bytes(), size.to_le_bytes()),
            _ => (magic.to_be_bytes(), size.to_be_bytes()),
        };
        let mut packet = [&[big], &magic[..], &[1], &size, &size, &[0, 1, 2]].concat();
        let header = |id: u8| if big == 0 { [id, 8] } else { [id << 5, 8] };
        packet.extend([&header(0)[..], b"a\0\x05\x01b\0\x06", &header(2), b"\x09x\0"].concat());
        packet.extend([&header(3)[..], b"\x09"].concat());
        packet.resize(65, 0);
        write("ctf_packets", name, &packet)?;
    }
    for (name, format) in [("elf64", Architecture::X86_64), ("elf32", Architecture::I386)] {
        write("elf_symbols", name, &[&[0], &*elf(format)?].concat())?;
    }
    write("terminal_text", "controls", "a\x1b[2J\u{9b}\u{202e}\nb\0\u{e0041}".as_bytes())?;
    write("terminal_text", "bytes", b"\xff\xf0\x9f\x98")?;
    Ok(())
}

/// A small object file with two functions.
fn elf(architecture: Architecture) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut file = Object::new(BinaryFormat::Elf, architecture, Endianness::Little);
    let text = file.section_id(StandardSection::Text);
    for name in ["main", "step_all"] {
        let symbol = file.add_symbol(Symbol {
            name: name.into(),
            value: 0,
            size: 0,
            kind: SymbolKind::Text,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        });
        file.add_symbol_data(symbol, text, &[0x90; 16], 16);
    }
    Ok(file.write()?)
}

/// Connections of a correlator, and of a node: see the target for the instructions.
fn correlator_lines(
    write: &impl Fn(&str, &str, &[u8]) -> std::io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    // Three nodes say hello; their ranks make steps, which become slow; one finds something and one answers.
    let mut run = vec![0, 12, 13 + 64, 14 + 96];
    for first in (0..208).step_by(16) {
        for node in 0..3 {
            run.extend([16 + node, first, if first < 160 { 10 } else { 40 }]);
        }
        run.extend([24, 40]);
    }
    for line in [
        r#"{"says":"finding","finding":{"outcome":"decided","summary":"s\u001b"}}"#,
        r#"{"says":"answer","id":"00000000000000000000000000000001","finding":{"class":"block_io"}}"#,
        r#"{"says":"alive"}"#,
    ] {
        run.extend([1, line.len() as u8 + 1]);
        run.extend(line.bytes());
        run.push(b'\n');
    }
    write("correlator_lines", "run", &run)?;
    let restart = [&run[..], &[5 << 2, 12], &run[1..]].concat();
    write("correlator_lines", "restart", &restart)?;
    let mut node = vec![128];
    for line in [
        r#"{"says":"welcome","version":2}"#,
        r#"{"says":"question","id":"1","job":"j","rank":0,"first_seq":3,"last_seq":9}"#,
        r#"{"says":"refused","why":"\u001b"}"#,
    ] {
        let padded = format!("{line:<width$}\n", width = line.len().next_multiple_of(16) - 1);
        node.push((padded.len() / 16) as u8 * 16 + 1);
        node.extend(padded.bytes());
    }
    write("correlator_lines", "node", &node).map_err(Into::into)
}

/// A small report of Nsight Systems.
fn nsys_report(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    use gpuwhy_formats::sqlite::Value::{Int, Null, Text};
    use gpuwhy_formats::sqlite::build::Builder;
    let mut builder = Builder::create(path)?;
    builder.table_of(
        "StringIds",
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
        &[vec![Null, Text(b"gemm")], vec![Null, Text(b"cudaLaunchKernel_v7000")]],
    )?;
    let process = 1 << 48 | 4242 << 24;
    builder.table_of(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, \
         streamId INTEGER, correlationId INTEGER, globalPid INTEGER, shortName INTEGER)",
        &[vec![Int(10), Int(20), Int(0), Int(7), Int(1), Int(process), Int(1)]],
    )?;
    builder.table_of(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, \
         correlationId INTEGER, nameId INTEGER)",
        &[vec![Int(5), Int(9), Int(process | 4243), Int(1), Int(2)]],
    )?;
    builder.table_of(
        "NVTX_EVENTS",
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, \
         globalTid INTEGER, domainId INTEGER)",
        &[vec![Int(1), Null, Int(59), Text(b"step"), Int(process | 4243), Int(0)]],
    )?;
    builder.table_of(
        "SCHED_EVENTS",
        "CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER)",
        &[
            vec![Int(3), Int(1), Int(1), Int(process | 4243)],
            vec![Int(8), Int(1), Int(0), Int(process | 4243)],
        ],
    )?;
    builder.finish()?;
    Ok(())
}
