//! Events of programs, and the rows that must follow.

use gpuwhy_schema::Rows;

use super::*;

/// The rows that follow from the events of one thread of one process, and how many were dropped.
fn rows_of(events: &[Event<&str>]) -> (Rows, u64) {
    let mut cx = Context::new();
    let source = cx.catalog.source("wire", "test", "0", "");
    let mut event_rows = EventRows::new(source, Devices::Simulated);
    for &event in events {
        let (pid, tid) = (4_000_000_000, 4_000_000_001);
        let record = Record { pid, tid, event };
        let mut names: HashMap<&str, Name> = HashMap::new();
        record.named(|name| names.insert(name, name.into()));
        event_rows.record(&record.named(|name| &names[name]), &mut cx);
    }
    event_rows.finish(&mut cx);
    (cx.take_rows(), event_rows.dropped)
}

fn step(seq: u64, start: u64, dur: u64) -> Event<&'static str> {
    Event::Step { name: "step", seq, size: Some(64), rank: Some(1), start, dur }
}

#[test]
fn phases_are_children_of_their_step_which_is_written_after_them() {
    let phase = |name, start, dur| Event::Phase { name, step: Some(7), start, dur };
    let (rows, dropped) =
        rows_of(&[phase("load", 10, 5), phase("sync", 15, 10), step(7, 10, 20), step(8, 30, 5)]);
    let ids: Vec<_> = rows.span.iter().map(|s| (&*s.name, s.id, s.parent)).collect();
    let whole = ids[2].1;
    assert_eq!((ids[0].0, ids[0].2), ("load", Some(whole)));
    assert_eq!((ids[1].0, ids[1].2), ("sync", Some(whole)));
    assert_eq!((ids[2].0, ids[2].2), ("step", None));
    let steps: Vec<_> = rows.step.iter().map(|s| (s.id, s.seq, s.size, s.rank)).collect();
    assert_eq!(steps, [(whole, 7, Some(64), Some(1)), (ids[3].1, 8, Some(64), Some(1))]);
    assert_eq!(dropped, 0);
}

#[test]
fn a_phase_of_a_step_that_never_arrived_has_no_parent() {
    let phase = |name, start, dur| Event::Phase { name, step: Some(7), start, dur };
    let (rows, dropped) = rows_of(&[phase("load", 10, 5), phase("sync", 15, 10)]);
    let spans: Vec<_> = rows.span.iter().map(|s| (&*s.name, s.parent)).collect();
    assert_eq!(spans, [("load", None), ("sync", None)]);
    assert_eq!(dropped, 0);
}

#[test]
fn a_step_that_never_ends_is_open() {
    let open = |seq, start| Event::StepOpen { name: "step", seq, size: None, rank: None, start };
    let (rows, _) = rows_of(&[open(0, 10), step(0, 10, 5), open(1, 20)]);
    let spans: Vec<_> = rows.span.iter().map(|s| (s.ts.0, s.dur.map(|d| d.0))).collect();
    assert_eq!(spans, [(10, Some(5)), (20, None)]);
    assert_eq!(rows.step.len(), 2);
}

#[test]
fn the_step_that_began_last_is_open_while_its_thread_lives() {
    let mut event_rows = EventRows::new(SourceId(0), Devices::Simulated);
    let mut cx = Context::new();
    let name: Name = "step".into();
    let open = |seq, start| Record {
        pid: 4_000_000_000,
        tid: 4_000_000_001,
        event: Event::StepOpen { name: &name, seq, size: Some(8), rank: Some(1), start },
    };
    event_rows.record(&open(3, 10), &mut cx);
    event_rows.record(&open(4, 20), &mut cx);
    let open = event_rows.open_steps(Ns(50), |_, _| true);
    assert_eq!(open.iter().map(|s| (s.seq, s.ts.0)).collect::<Vec<_>>(), [(4, 20)]);
    assert!(event_rows.open_steps(Ns(15), |_, _| true).is_empty(), "it began later");
    assert!(event_rows.open_steps(Ns(50), |_, _| false).is_empty(), "the process has ended");
}

#[test]
fn a_launch_is_linked_with_its_kernel_in_either_order() {
    let launch = |correlation, start| Event::Launch {
        name: "launch",
        device: 0,
        stream: 1,
        correlation,
        start,
        dur: 3,
    };
    let kernel = |correlation, start| Event::Kernel {
        name: "gemm",
        device: 0,
        stream: 1,
        correlation,
        graph: None,
        start,
        dur: 50,
    };
    let (rows, dropped) =
        rows_of(&[launch(1, 10), kernel(1, 20), kernel(2, 70), launch(2, 12), kernel(3, 90)]);
    let links: Vec<_> = rows
        .link
        .iter()
        .map(|l| {
            let mark = rows.mark.iter().find(|m| m.id == l.from).unwrap();
            let span = rows.span.iter().find(|s| s.id == l.to).unwrap();
            (mark.ts.0, span.ts.0, l.ts.0)
        })
        .collect();
    assert_eq!(links, [(10, 20, 20), (12, 70, 70)]);
    assert_eq!(dropped, 1, "the third kernel overlaps the second on its stream");
    let stream = rows.entity.iter().find(|e| e.kind == EntityKind::Stream).unwrap();
    let gpu = rows.entity.iter().find(|e| Some(e.id) == stream.parent).unwrap();
    assert_eq!(&*gpu.key, "sim:4000000000:0");
    assert!(rows.kernel.iter().all(|k| k.gpu == gpu.id));
}

#[test]
fn counters_belong_to_their_device_or_else_to_their_process() {
    let counter = |name, device| Event::Counter { name, unit: "MHz", device, at: 5, value: 1980.0 };
    let (rows, _) = rows_of(&[counter("sm_clock", Some(2)), counter("queue", None)]);
    let owner = |name: &str| {
        let track = rows.track.iter().find(|t| &*t.name == name).unwrap();
        rows.entity.iter().find(|e| e.id == track.entity).unwrap().kind
    };
    assert_eq!(owner("sm_clock"), EntityKind::Gpu);
    assert_eq!(owner("queue"), EntityKind::Process);
}
