//! Makes the seeds in `corpus/`: small sound inputs of each target, from which it departs.
//!
//! They are committed, so that a run begins where the last one of anybody did; run this again
//! after a change of the formats.

use std::path::Path;

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Writer};
use gpuwhy_wire::{Event, NameId, Record, encode, seal};

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

    writer.finish()?;
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

    let (pid, tid, name) = (42, 43, NameId(1));
    let events = [
        ("step", Event::Step { name, seq: 7, size: Some(-1), rank: Some(3), start: 10, dur: 5 }),
        ("phase", Event::Phase { name, step: None, start: 10, dur: 5 }),
        ("mark", Event::Mark { name, at: 10, value: Some(0.5) }),
        ("counter", Event::Counter { name, unit: name, device: Some(1), at: 10, value: 2.0 }),
    ];
    for (file, event) in events {
        let mut words = encode(&Record { pid, tid, event });
        seal(&mut words, 3);
        let record: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        write("wire_record", file, &[&3u64.to_le_bytes()[..], &[0], &record].concat())?;
    }
    Ok(())
}
