//! Writes a trace for ever, as fast as it can, and says on standard output what it has committed:
//! the number of the last second whose rows were flushed. The crash test kills it.

use std::io::Write;

use gpuwhy_schema::{Counter, Discipline, EntityKind, Ids, Lane, Lanes, Measure, Ns, Rows, Span};
use gpuwhy_store::{Options, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: journal_writer PATH")?;
    let mut writer = Writer::create(path, Options { seal_bytes: 200_000, ..Options::default() })?;
    let (mut lanes, mut ids) = (Lanes::default(), Ids::of_shard(3));
    let source = lanes.source("sim", "journal_writer", "1", "");
    let host = lanes.entity(EntityKind::Host, "h", |_| {});
    let spans = lanes.track(host, None, Lane::spans("work", Discipline::Serial), source);
    let ticks = lanes.track(host, None, Lane::counter("ticks", "1", Measure::Total), source);
    #[expect(clippy::disallowed_methods, reason = "numbers, for the test that started it")]
    let mut out = std::io::stdout();
    for second in 0.. {
        let mut rows = Rows::default();
        for i in 0..200 {
            rows.span.push(Span {
                id: ids.next_id(),
                ts: Ns::secs(second) + Ns::millis(5 * i),
                dur: Some(Ns::millis(4)),
                track: spans,
                parent: None,
                name: "work".into(),
            });
        }
        rows.counter.push(Counter { ts: Ns::secs(second), track: ticks, value: second as f64 });
        lanes.update_source(source, |s| s.recorded += 201);
        lanes.drain(&mut rows);
        writer.append(&mut rows)?;
        writer.flush_journal()?;
        writeln!(out, "{second}")?;
        out.flush()?;
    }
    Ok(())
}
