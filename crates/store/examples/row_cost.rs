//! What writing and reading a trace cost in CPU time, a row: `cargo run --release --example row_cost`.
//!
//! Rows as a recorder has them: states, spans with an id and a parent, wakeups, counters, in the
//! order of their end. CPU time is the process's own, from `/proc/self/stat` (10 ms ticks).

use std::error::Error;

use gpuwhy_schema::*;
use gpuwhy_store::{Options, Trace, Writer, validate};

/// User and system time of this process, in ns.
fn cpu() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks * 1e7)
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: i64 = std::env::args().nth(1).map_or(Ok(200), |n| n.parse())?;
    let tmp = tempfile::tempdir()?;
    let path = tmp.path().join("t");
    let (mut lanes, mut ids) = (Lanes::default(), Ids::of_shard(1));
    let source = lanes.source("bpf:run_queue", "cost", "1", "");
    let host = lanes.entity(EntityKind::Host, "h", |_| {});
    let threads: Vec<_> = (0..20)
        .map(|i| {
            let thread =
                lanes.entity(EntityKind::Thread, &format!("{i}"), |e| e.parent = Some(host));
            let lane = |l| (thread, l);
            [
                lane(Lane::states(names::THREAD_STATE, Discipline::Sparse)),
                lane(Lane::spans(names::STEPS, Discipline::Nested)),
                lane(Lane::marks(names::WAKEUPS)),
                lane(Lane::counter(names::RECLAIM, "ns", Measure::Delta)),
            ]
            .map(|(e, l)| (e, lanes.track(e, None, l, source)))
        })
        .collect();
    let batches: Vec<Rows> = (0..seconds)
        .map(|second| {
            let mut rows = Rows::default();
            for tick in 0..250 {
                let ts = Ns::secs(second) + Ns::millis(tick * 4);
                for (i, [state, span, mark, counter]) in threads.iter().enumerate() {
                    let ts = ts + Ns(i as i64 * 1000 + (tick * 7919) % 997);
                    rows.state.push(State {
                        ts,
                        dur: Some(Ns::millis(2)),
                        track: state.1,
                        value: 1 + tick % 4,
                        arg: Some(0),
                    });
                    rows.state.push(State {
                        ts: ts + Ns::millis(2),
                        dur: Some(Ns(1_900_000)),
                        track: state.1,
                        value: 4,
                        arg: Some(-1),
                    });
                    let id = ids.next_id();
                    rows.mark.push(Mark {
                        id,
                        ts,
                        track: mark.1,
                        name: "wakeup".into(),
                        value: None,
                    });
                    rows.wakeup.push(Wakeup {
                        id,
                        ts,
                        woken: mark.0,
                        waker: Some(host),
                        context: WakeContext::Task,
                        cpu: (i % 2) as u32,
                    });
                    if tick % 10 == 0 {
                        rows.span.push(Span {
                            id: ids.next_id(),
                            ts,
                            dur: Some(Ns::millis(3)),
                            track: span.1,
                            parent: None,
                            name: "step".into(),
                        });
                        rows.counter.push(Counter { ts, track: counter.1, value: tick as f64 });
                    }
                }
            }
            lanes.update_source(source, |s| s.recorded += rows.len() as u64);
            lanes.drain(&mut rows);
            rows
        })
        .collect();
    let rows: usize = batches.iter().map(Rows::len).sum();
    let a_row = |from: f64, to: f64| (to - from) / rows as f64;

    let begin = cpu()?;
    let mut writer = Writer::create(&path, Options { seal_bytes: 1 << 40, ..Options::default() })?;
    for mut rows in batches {
        writer.append(&mut rows)?;
        writer.flush_journal()?;
    }
    let journaled = cpu()?;
    let journal = writer.written().journal_bytes;
    writer.finish()?;
    let sealed = cpu()?;
    let trace = Trace::open(&path)?;
    let read = trace.rows(Ns::MIN..Ns::MAX)?;
    let all = cpu()?;
    assert_eq!(read.state.len() + read.mark.len(), rows_of(&trace, &["state", "mark"]));
    drop(read);
    let before = cpu()?;
    let report = validate(&trace);
    let validated = cpu()?;
    assert!(report.is_valid(), "{report}");
    let bytes: u64 = trace.summary().tables.iter().map(|t| t.bytes).sum();
    println!("{rows} rows in {seconds} s of trace, ns of CPU a row:");
    println!(
        "  append and journal {:6.1}   {:.1} bytes",
        a_row(begin, journaled),
        journal as f64 / rows as f64
    );
    println!(
        "  seal               {:6.1}   {:.1} bytes",
        a_row(journaled, sealed),
        bytes as f64 / rows as f64
    );
    println!("  read               {:6.1}", a_row(sealed, all));
    println!("  validate           {:6.1}", a_row(before, validated));
    Ok(())
}

fn rows_of(trace: &Trace, tables: &[&str]) -> usize {
    let summary = trace.summary();
    summary.tables.iter().filter(|t| tables.contains(&t.table)).map(|t| t.rows as usize).sum()
}
