//! Several traces become one.

use gpuwhy_schema::*;
use gpuwhy_store::{Shards, Trace, merge, validate};

use crate::sim::{Sim, create, scratch};

const ALL: std::ops::Range<Ns> = Ns::MIN..Ns::MAX;

fn write(path: &std::path::Path, mut sim: Sim, seconds: i64) -> Trace {
    let mut writer = create(path);
    for _ in 0..seconds {
        writer.append(&mut sim.second()).unwrap();
        writer.seal().unwrap();
    }
    writer.finish().unwrap();
    Trace::open(path).unwrap()
}

#[test]
fn two_hosts_become_one_trace_and_keep_their_rows_apart() {
    let tmp = tempfile::tempdir().unwrap();
    // Both gave out their ids as shard 1.
    let a = write(&tmp.path().join("a"), Sim::new(1, "a"), 4);
    let b = write(&tmp.path().join("b"), Sim::new(1, "b"), 6);
    let both = tmp.path().join("both");
    let merged = merge(&[a, b], &both, scratch(), Shards::Independent).unwrap();
    assert_eq!((merged.shared_entities, merged.renumbered_shards), (0, 1));
    let trace = Trace::open(&both).unwrap();
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    assert_eq!(trace.manifest().hosts, ["a", "b"]);
    assert_eq!(trace.manifest().shards, [0, 1]);
    let rows = trace.rows(ALL).unwrap();
    assert_eq!((rows.entity.len(), rows.track.len(), rows.source.len()), (10, 10, 2));
    let (a, b) = (Sim::truth(1, "a", 4), Sim::truth(1, "b", 6));
    assert_eq!(rows.span.len(), a.span.len() + b.span.len());
    assert_eq!(rows.state.len(), a.state.len() + b.state.len());
    // What was concluded from one is not concluded from both.
    assert_eq!((rows.part.len(), merged.left_out), (0, (a.part.len() + b.part.len()) as u64));
    let host_of = |thread: EntityId| {
        let find = |id| rows.entity.iter().find(|e| e.id == id).unwrap();
        find(find(find(thread).parent.unwrap()).parent.unwrap()).key.to_string()
    };
    let steps = |host: &str| rows.step.iter().filter(|s| host_of(s.thread) == host).count();
    assert_eq!((steps("a"), steps("b")), (40, 60));
}

#[test]
fn shards_of_one_import_share_their_lanes() {
    let tmp = tempfile::tempdir().unwrap();
    // The same import in two halves: the second second is in another trace than the first.
    let whole = Sim::truth(1, "a", 2);
    let mut halves = Vec::new();
    for half in 0..2 {
        let path = tmp.path().join(format!("{half}"));
        let mut writer = create(&path);
        let mut sim = Sim::new(1 + half as u16, "a");
        for second in 0..2 {
            let mut rows = sim.second();
            if second != half {
                let lanes = rows.clone();
                rows = Rows {
                    entity: lanes.entity,
                    track: lanes.track,
                    source: lanes.source,
                    ..Rows::default()
                };
            }
            writer.append(&mut rows).unwrap();
        }
        writer.finish().unwrap();
        halves.push(Trace::open(&path).unwrap());
    }
    let path = tmp.path().join("whole");
    let merged = merge(&halves, &path, scratch(), Shards::OfOne).unwrap();
    assert_eq!((merged.shared_entities, merged.renumbered_shards), (5, 0));
    let trace = Trace::open(&path).unwrap();
    let report = validate(&trace);
    assert!(report.is_valid(), "{report}");
    let rows = trace.rows(ALL).unwrap();
    assert_eq!((rows.entity, rows.track), (whole.entity, whole.track));
    assert_eq!((rows.state, rows.step.len()), (whole.state, whole.step.len()));
    assert_eq!(rows.source.len(), 1);
}

#[test]
fn who_occupied_a_cpu_is_still_the_same_after_a_merge() {
    let tmp = tempfile::tempdir().unwrap();
    let mut traces = Vec::new();
    for host in ["a", "b"] {
        let path = tmp.path().join(host);
        let mut lanes = Lanes::default();
        let source = lanes.source("bpf:run_queue", "sim", "1", "");
        let h = lanes.entity(EntityKind::Host, host, |_| {});
        let cpu = lanes.entity(EntityKind::Cpu, &format!("{host}/0"), |e| e.parent = Some(h));
        let hog = lanes.entity(EntityKind::Thread, &format!("{host}/hog"), |e| e.parent = Some(h));
        let lane = Lane::states(names::OCCUPANT, Discipline::Sparse);
        let track = lanes.track(cpu, None, lane, source);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        let state = |ts, value| State { ts: Ns(ts), dur: Some(Ns(5)), track, value, arg: None };
        rows.state = vec![state(0, i64::from(hog.0)), state(5, 0)];
        let mut writer = create(&path);
        writer.append(&mut rows).unwrap();
        writer.finish().unwrap();
        traces.push(Trace::open(&path).unwrap());
    }
    let path = tmp.path().join("both");
    merge(&traces, &path, scratch(), Shards::Independent).unwrap();
    let rows = Trace::open(&path).unwrap().rows(ALL).unwrap();
    let occupants: Vec<String> = rows
        .state
        .iter()
        .map(|s| match rows.entity.iter().find(|e| i64::from(e.id.0) == s.value) {
            Some(e) => e.key.to_string(),
            None => s.value.to_string(),
        })
        .collect();
    assert_eq!(occupants, ["a/hog", "b/hog", "0", "0"]);
}
