//! The recent past is held, and a stretch of it is written out when it turns out to matter.

use gpuwhy_schema::*;
use gpuwhy_store::{Keep, Ring, Trace, validate};

use crate::sim::{Sim, create};

const ALL: std::ops::Range<Ns> = Ns::MIN..Ns::MAX;

fn seconds(from: i64, to: i64) -> std::ops::Range<Ns> {
    Ns::secs(from)..Ns::secs(to)
}

#[test]
fn a_stretch_around_a_finding_is_written_with_all_that_belongs_to_it() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(30) });
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for second in 0..100 {
        ring.push(&mut sim.second());
        if second == 50 {
            ring.retain(seconds(48, 50), &mut writer).unwrap();
        }
    }
    assert_eq!(ring.extent().end, Ns::secs(100));
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    let rows = trace.rows(ALL).unwrap();
    let truth = Sim::truth(1, "a", 100);
    let overlapping = |s: &&Span| s.ts < Ns::secs(50) && s.end() > Some(Ns::secs(48));
    assert_eq!(rows.span, truth.span.iter().filter(overlapping).cloned().collect::<Vec<_>>());
    assert_eq!((rows.step.len(), rows.part.len(), rows.attr.len()), (20, 60, 20));
    assert_eq!((rows.entity, rows.track), (truth.entity, truth.track));
}

#[test]
fn findings_that_lie_close_together_write_each_row_once() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("t");
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(30) });
    let mut writer = create(&path);
    let mut sim = Sim::new(1, "a");
    for second in 0..20 {
        ring.push(&mut sim.second());
        if second % 3 == 2 {
            ring.retain(seconds(second - 6, second - 1), &mut writer).unwrap();
        }
    }
    // What arrived since the last time, and nothing else.
    let rest = ring.retain(seconds(0, 20), &mut writer).unwrap();
    assert!(rest > 0);
    assert_eq!(ring.retain(seconds(0, 20), &mut writer).unwrap(), 11, "only the lanes");
    writer.finish().unwrap();
    let trace = Trace::open(&path).unwrap();
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    let rows = trace.rows(ALL).unwrap();
    let truth = Sim::truth(1, "a", 20);
    assert_eq!(rows.span, truth.span);
    assert_eq!(rows.counter[..19], truth.counter[..19]);
    assert_eq!(rows.part.len(), truth.part.len());
}

#[test]
fn about_how_many_rows_a_stretch_has_is_known_without_reading_them() {
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(1000) });
    let mut sim = Sim::new(1, "a");
    (0..100).for_each(|_| ring.push(&mut sim.second()));
    let of = |from, to| ring.about(&seconds(from, to)) as f64 / ring.len() as f64;
    assert!((0.95..=1.0).contains(&of(0, 100)), "{}", of(0, 100));
    assert!((0.15..0.35).contains(&of(30, 55)), "{}", of(30, 55));
    assert_eq!(of(200, 300), 0.0);
}

#[test]
fn memory_is_bounded_by_bytes_and_by_age() {
    let mut small = Ring::new(Keep { bytes: 600 << 10, duration: Ns::secs(1_000_000) });
    let mut young = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(60) });
    let (mut a, mut b) = (Sim::new(1, "a"), Sim::new(1, "a"));
    for second in 0..500 {
        small.push(&mut a.second());
        young.push(&mut b.second());
        assert!(small.bytes() <= 600 << 10);
        assert!(young.extent().end == Ns::secs(second + 1));
    }
    assert!(small.evicted() > 0 && young.evicted() > 0);
    assert!(small.len() > 2000, "{}", small.len());
    // A chunk goes when all of it is old.
    let held = young.extent();
    assert!(held.start <= Ns::secs(440) && held.start > Ns::secs(400), "{held:?}");
    let rows = young.rows(seconds(450, 452));
    assert_eq!(rows.step.len(), 20);
}

#[test]
fn who_has_slept_since_before_the_ring_begins_is_known_to_sleep() {
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(5) });
    let sleep = State { ts: Ns(7), dur: None, track: TrackId(1), value: 4, arg: None };
    ring.push(&mut Rows { state: vec![sleep.clone()], ..Rows::default() });
    let tick = |second| Counter { ts: Ns::secs(second), track: TrackId(2), value: 0.0 };
    for second in 0..40 {
        let mut rows = Rows { counter: vec![tick(second); 3000], ..Rows::default() };
        ring.push(&mut rows);
    }
    assert!(ring.evicted() > 0);
    assert_eq!(ring.rows(seconds(38, 39)).state, [sleep]);
    let run = State { ts: Ns::secs(39), dur: Some(Ns(1)), track: TrackId(1), value: 1, arg: None };
    ring.push(&mut Rows { state: vec![run.clone()], ..Rows::default() });
    assert_eq!(ring.rows(seconds(38, 41)).state, [run]);
}

#[test]
fn what_was_open_and_has_ended_since_is_there_once_as_it_ended() {
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(60) });
    let state = |dur| State { ts: Ns::secs(2), dur, track: TrackId(1), value: 4, arg: None };
    let other = State { ts: Ns::secs(3), dur: None, track: TrackId(2), value: 4, arg: None };
    // Rows of four seconds at least lie between the two, and each lies in a chunk of its own.
    let filler = |second| Rows {
        counter: vec![Counter { ts: Ns::secs(second), track: TrackId(9), value: 0.0 }; 20_000],
        ..Rows::default()
    };
    ring.push(&mut Rows { state: vec![state(None), other.clone()], ..Rows::default() });
    ring.push(&mut filler(2));
    assert_eq!(ring.rows(seconds(5, 6)).state, [state(None), other.clone()]);
    ring.push(&mut filler(8));
    ring.push(&mut Rows {
        state: vec![state(Some(Ns::secs(1))), other.clone()],
        ..Rows::default()
    });
    assert_eq!(
        ring.rows(seconds(5, 6)).state,
        std::slice::from_ref(&other),
        "it had ended by then"
    );
    assert_eq!(ring.rows(seconds(2, 6)).state, [state(Some(Ns::secs(1))), other]);
}

#[test]
fn single_rows_of_a_stretch_are_had_without_the_others() {
    let mut ring = Ring::new(Keep { bytes: 1 << 30, duration: Ns::secs(60) });
    let mut sim = Sim::new(1, "a");
    for _ in 0..10 {
        ring.push(&mut sim.second());
    }
    let (all, held) = (Sim::truth(1, "a", 10), ring.rows(seconds(3, 5)));
    let track = all.counter[0].track;
    let counters: Vec<Counter> =
        held.counter.iter().filter(|row| row.track == track).cloned().collect();
    assert!(!counters.is_empty() && counters.len() < all.counter.len());
    assert_eq!(ring.counters(seconds(3, 5), |row| row.track == track), counters);
    assert_eq!(ring.marks(seconds(3, 5), |_| true), held.mark);
    assert_eq!(ring.lanes().entity, held.entity);
    assert_eq!(ring.lanes().track, held.track);
}
