//! Events of programs, and the rows that must follow.

use foldhash::HashMap;
use gpuwhy_schema::{Entity, EntityId, EntityKind, Rows, names};

use super::*;
use crate::attribution::Attribution;
use crate::procfs::Proc;
use crate::quota;

/// A host with a folder of processes of our own making.
struct House {
    proc: tempfile::TempDir,
    cx: Context,
    rows: EventRows,
    now: Ns,
    last: u32,
}

impl House {
    fn new(devices: Devices) -> House {
        let proc = tempfile::tempdir().unwrap();
        let mut cx = Context::new();
        cx.attribution = Attribution::of(cx.host, Proc::at(proc.path()));
        let source = cx.catalog.source("wire", "test", "0", "");
        let mut house =
            House { proc, rows: EventRows::new(source, devices), cx, now: Ns::ZERO, last: 0 };
        house.pass(Ns::secs(1000));
        house
    }

    /// A process with threads: their numbers here and in its own namespace.
    fn process(&self, pid: u32, start: u64, threads: &[(u32, u32)]) {
        let folder = self.proc.path().join(pid.to_string());
        let _ = std::fs::remove_dir_all(&folder);
        let write = |folder: &std::path::Path, tid: u32, own: u32| {
            std::fs::create_dir_all(folder).unwrap();
            let stat =
                format!("{tid} (t{own}) S 1 2 3 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 {start} 1 0");
            let inner = if own == tid { String::new() } else { format!("\t{own}") };
            std::fs::write(folder.join("stat"), stat).unwrap();
            let status = format!("Name:\tt{own}\nNSpid:\t{tid}{inner}\n");
            std::fs::write(folder.join("status"), status).unwrap();
        };
        let first = threads.iter().copied().find(|(tid, _)| *tid == pid).unwrap_or((pid, pid));
        write(&folder, pid, first.1);
        for (tid, own) in threads.iter().copied().chain([first]) {
            write(&folder.join(format!("task/{tid}")), tid, own);
        }
    }

    /// Process `pid` becomes a guest.
    fn guest(&mut self, pid: u32) -> u32 {
        let guest = self.cx.attribution.guest(&mut self.cx.catalog, pid, || true);
        self.last += 1;
        self.rows.add(self.last, guest.expect("it lives"), &mut self.cx);
        self.last
    }

    /// Somebody without a process becomes a guest.
    fn stranger(&mut self) -> u32 {
        self.last += 1;
        let key = format!("ring/7.{}", self.last);
        let guest = Guest::unverified(&mut self.cx.catalog, self.cx.host, &key, 7);
        self.rows.add(self.last, guest, &mut self.cx);
        self.last
    }

    fn write(&mut self, guest: u32, pid: u32, tid: u32, event: Event<&str>) {
        let record = Record { pid, tid, event };
        let mut names: HashMap<&str, Name> = HashMap::default();
        record.named(|name| names.insert(name, name.into()));
        self.rows.record(guest, &record.named(|name| &names[name]), &mut self.cx);
    }

    fn mark(&mut self, guest: u32, pid: u32, tid: u32) {
        self.write(guest, pid, tid, Event::Mark { name: "m", at: self.now.0 as u64, value: None });
    }

    fn pass(&mut self, time: Ns) {
        self.now += time;
        self.rows.tick(self.now, &mut self.cx);
    }

    fn entity(&self, id: EntityId) -> &Entity {
        self.cx.catalog.get(id).unwrap()
    }

    /// For each mark, the thread that it lies on: `KEY < KEY OF PROCESS`.
    fn marks(&mut self) -> Vec<String> {
        let rows = self.cx.take_rows();
        let whose = |track| {
            let track = rows.track.iter().find(|t| t.id == track).expect("declared before");
            let thread = self.entity(track.entity);
            format!("{} < {}", thread.key, self.entity(thread.parent.unwrap()).key)
        };
        rows.mark.iter().map(|mark| whose(mark.track)).collect()
    }

    fn targets(&mut self) -> Vec<i32> {
        self.cx.new_targets.take().into_iter().map(|target| target.pid()).collect()
    }
}

/// The rows that follow from the events of one thread of one process, and how many were dropped.
pub(super) fn rows_of(events: &[Event<&str>]) -> (Rows, u64) {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 0, &[(4243, 4243)]);
    let guest = house.guest(4242);
    for &event in events {
        house.write(guest, 4242, 4243, event);
    }
    house.rows.finish(&mut house.cx);
    (house.cx.take_rows(), house.rows.dropped)
}

pub(super) fn step(seq: u64, start: u64, dur: u64) -> Event<&'static str> {
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

/// A library that is asked what an engine does reports its steps; what CUPTI sees of calls are none.
#[test]
fn steps_that_a_library_reports_are_told_from_the_calls_that_it_sees() {
    let mut house = House::new(Devices::Real);
    house.process(4242, 0, &[(4243, 4243)]);
    let guest = house.guest(4242);
    let phase = |name, step, start| Event::Phase { name, step, start, dur: 5 };
    for event in [phase("cuLaunchKernel", None, 1), phase("schedule", Some(7), 10), step(7, 10, 20)]
    {
        house.write(guest, 4242, 4243, event);
    }
    house.rows.finish(&mut house.cx);
    let rows = house.cx.take_rows();
    let track_of = |span: &gpuwhy_schema::Span| {
        let track = rows.track.iter().find(|track| track.id == span.track).unwrap();
        (span.name.to_string(), track.name.to_string())
    };
    let spans: Vec<_> = rows.span.iter().map(track_of).collect();
    let of = |name: &str, track: &str| (name.to_string(), track.to_string());
    let (calls, steps) = (names::LIBRARY_CALLS, names::STEPS);
    assert_eq!(spans, [of("cuLaunchKernel", calls), of("schedule", steps), of("step", steps)]);
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
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 0, &[(4243, 4243)]);
    let guest = house.guest(4242);
    let open =
        |seq, start| Event::StepOpen { name: "step", seq, size: Some(8), rank: Some(1), start };
    house.write(guest, 4242, 4243, open(3, 10));
    house.write(guest, 4242, 4243, open(4, 20));
    let open = house.rows.open_steps(Ns(50), |pid, tid| (pid, tid) == (4242, 4243));
    assert_eq!(open.iter().map(|s| (s.seq, s.ts.0)).collect::<Vec<_>>(), [(4, 20)]);
    assert!(house.rows.open_steps(Ns(15), |_, _| true).is_empty(), "it began later");
    assert!(house.rows.open_steps(Ns(50), |_, _| false).is_empty(), "the process has ended");
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
    assert_eq!(&*gpu.key, "sim:4242@0:0.1.1");
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

#[test]
fn a_record_of_another_process_than_the_rings_owner_is_dropped() {
    let mut house = House::new(Devices::Real);
    house.process(4242, 5, &[]);
    let guest = house.guest(4242);
    house.mark(guest, 4243, 4242);
    assert_eq!((house.rows.recorded, house.rows.dropped), (0, 1));
    house.mark(guest, 4242, 4242);
    assert_eq!((house.rows.recorded, house.rows.dropped), (1, 1));
}

/// Finding 1, hostile: a guest writes the tid of a victim.
#[test]
fn a_tid_of_another_process_is_not_believed() {
    let mut house = House::new(Devices::Real);
    house.process(1, 0, &[]);
    house.process(4242, 5, &[]);
    house.process(5000, 6, &[(5001, 5001)]);
    // The victim's threads are known already, as the kernel's events have named them.
    for (tid, tgid) in [(1, 1), (5000, 5000), (5001, 5000)] {
        house.cx.thread(tid, tgid, None);
    }
    let guest = house.guest(4242);
    for tid in [1, 5000, 5001, 4242] {
        house.mark(guest, 4242, tid);
    }
    let own = |tid: u32| format!("4242@5/{tid}.1.1 < 4242@5");
    assert_eq!(house.marks(), [own(1), own(5000), own(5001), "4242@5 < 4242@5".to_string()]);
}

/// Finding 1, benign: a container's thread with the tid 7 has exited before its first record is read.
#[test]
fn a_containers_thread_that_exited_early_is_no_thread_of_the_host() {
    let mut house = House::new(Devices::Real);
    house.process(1, 0, &[]);
    house.process(7, 0, &[]);
    house.process(4242, 5, &[(4242, 1), (4250, 9)]);
    let guest = house.guest(4242);
    // It writes pids and tids of its own namespace.
    for tid in [1, 7, 9] {
        house.mark(guest, 1, tid);
    }
    let marks = house.marks();
    assert_eq!(marks[0], "4242@5 < 4242@5");
    assert_eq!(marks[1], "4242@5/7.1.1 < 4242@5");
    assert_eq!(marks[2], "4250@5 < 4242@5");
}

#[test]
fn a_number_that_was_given_to_another_process_names_that_one_from_then_on() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 5, &[]);
    let first = house.guest(4242);
    // The first one has ended, and its socket or ring is somebody else's.
    house.process(4242, 900, &[(4243, 4243)]);
    let second = house.guest(4242);
    house.mark(first, 4242, 4243);
    house.mark(second, 4242, 4243);
    house.mark(first, 4242, 4242);
    assert_eq!(
        house.marks(),
        ["4242@5/4243.1.1 < 4242@5", "4243@900 < 4242@900", "4242@5/4242.1.1 < 4242@5"]
    );
}

#[test]
fn a_tid_that_was_given_to_another_thread_is_another_thread() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 5, &[(4243, 4243)]);
    let guest = house.guest(4242);
    house.mark(guest, 4242, 4243);
    house.cx.attribution.exited(&mut house.cx.catalog, 4243, 4242, house.now);
    house.process(4242, 5, &[]);
    house.pass(Ns::millis(10));
    house.mark(guest, 4242, 4243);
    let task = house.proc.path().join("4242/task/4243");
    std::fs::create_dir_all(&task).unwrap();
    let stat = "4243 (later) S 1 2 3 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 77 1 0";
    std::fs::write(task.join("stat"), stat).unwrap();
    house.pass(Ns::millis(10));
    house.mark(guest, 4242, 4243);
    let expected = ["4243@5 < 4242@5", "4243@5 < 4242@5", "4243@77 < 4242@5"];
    assert_eq!(house.marks(), expected, "its last records are its own");
}

#[test]
fn who_cannot_be_verified_is_no_target() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 5, &[]);
    house.process(7, 3, &[]);
    house.guest(4242);
    let stranger = house.stranger();
    house.mark(stranger, 7, 7);
    assert_eq!(house.targets(), [4242]);
    assert_eq!(house.marks(), ["ring/7.2/7.1.2 < ring/7.2"]);
}

/// Finding 4: streams, ranks and devices of a process end with it, and nothing of them is remembered.
#[test]
fn what_a_guest_made_ends_with_it() {
    for devices in [Devices::Simulated, Devices::Real] {
        let mut house = House::new(devices);
        house.process(4242, 5, &[]);
        house.cx.process(4242, None);
        house.cx.thread(4242, 4242, None);
        let before = house.cx.catalog.len();
        let guest = house.guest(4242);
        let (start, dur) = (house.now.0 as u64, 0);
        for i in 0..10 {
            let kernel = |device, stream| Event::Kernel {
                name: "k",
                device,
                stream,
                correlation: 1,
                graph: None,
                start,
                dur,
            };
            house.write(guest, 4242, 4242, kernel(3, i));
            let uuid = format!("GPU-{i}");
            let gpu = Event::Device { name: uuid.as_str(), device: 4, at: start };
            house.write(guest, 4242, 4242, gpu);
            house.write(guest, 4242, 4242, kernel(4, i));
            let (communicator, id) = (i as u16 % 3, u64::from(i));
            let rank =
                Event::Communicator { name: "c", communicator, id, rank: 0, ranks: 2, at: start };
            house.write(guest, 4242, 4242, rank);
            house.mark(guest, 4242, 9000 + i);
        }
        assert_eq!(house.rows.dropped, 0);
        house.rows.end(guest, &mut house.cx);
        house.pass(Ns(1));
        house.cx.catalog.forget(house.now);
        assert_eq!(house.cx.catalog.len(), before, "{devices:?}");
        let rows = house.cx.take_rows();
        for made in rows.entity.iter().filter(|e| e.to.is_none() && e.kind != EntityKind::Process) {
            let ended = rows.entity.iter().any(|e| e.id == made.id && e.to.is_some());
            let is_ours =
                matches!(made.kind, EntityKind::Stream | EntityKind::Rank | EntityKind::Gpu);
            assert!(ended || !is_ours, "{made:?}");
        }
    }
}

#[test]
fn a_gpu_that_two_guests_named_stays_until_both_have_ended() {
    let mut house = House::new(Devices::Real);
    let at = house.now.0 as u64;
    let gpu = Event::Device { name: "GPU-1", device: 0, at };
    let guests: Vec<u32> = [4242, 4300]
        .map(|pid| (house.process(pid, 5, &[]), pid).1)
        .map(|pid| house.guest(pid))
        .into();
    for (guest, pid) in guests.iter().zip([4242, 4300]) {
        house.write(*guest, pid, pid, gpu);
    }
    let id = house.cx.catalog.find(EntityKind::Gpu, "GPU-1").unwrap();
    house.rows.end(guests[0], &mut house.cx);
    assert_eq!(house.entity(id).to, None);
    house.rows.end(guests[1], &mut house.cx);
    assert!(house.entity(id).to.is_some());
    // What the driver knows is not a guest's to end, nor to count for.
    let nvml = house.cx.catalog.entity(EntityKind::Gpu, "GPU-2", |_| {});
    house.cx.catalog.track(nvml, None, gpuwhy_schema::Lane::marks("xid"), SourceId(1));
    let guest = house.guest(4242);
    let gpu = Event::Device { name: "GPU-2", device: 0, at };
    house.write(guest, 4242, 4242, gpu);
    let clock = Event::Counter { name: "sm_clock", unit: "MHz", device: Some(0), at, value: 1.0 };
    house.write(guest, 4242, 4242, clock);
    house.rows.end(guest, &mut house.cx);
    assert_eq!(house.entity(nvml).to, None);
    let rows = house.cx.take_rows();
    let track = rows.track.iter().find(|t| t.name.starts_with("sm_clock")).unwrap();
    assert_eq!(house.entity(track.entity).kind, EntityKind::Process);
}

/// Finding 4 and the quotas: random streams, threads, names and devices, as fast as they come.
#[test]
fn a_guest_that_makes_things_without_end_costs_a_bounded_amount_and_its_neighbour_nothing() {
    let mut house = House::new(Devices::Real);
    house.process(4242, 5, &[]);
    house.process(4300, 6, &[]);
    let (hostile, honest) = (house.guest(4242), house.guest(4300));
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    let (mut seen, mut entities) = (0, 0);
    for _ in 0..200 {
        house.pass(Ns::millis(100));
        let at = house.now.0 as u64;
        for _ in 0..200 {
            let name = format!("n{}", random());
            let (device, stream) = (random() as u16, random());
            let kernel = Event::Kernel {
                name: name.as_str(),
                device,
                stream,
                correlation: 1,
                graph: None,
                start: at,
                dur: 1,
            };
            let counter =
                |device| Event::Counter { name: name.as_str(), unit: "1", device, at, value: 1.0 };
            let uuid = format!("GPU-{}", random());
            for event in [
                kernel,
                counter(Some(device)),
                counter(None),
                Event::Device { name: uuid.as_str(), device, at },
                Event::Notice { name: name.as_str(), code: 1, value: None, at },
                Event::Communicator {
                    name: name.as_str(),
                    communicator: device,
                    id: 1,
                    rank: stream,
                    ranks: 9,
                    at,
                },
                Event::Mark { name: name.as_str(), at, value: None },
            ] {
                house.write(hostile, 4242, random(), event);
            }
        }
        house.mark(honest, 4300, 4300);
        let rows = house.cx.take_rows();
        seen += rows.mark.iter().filter(|m| &*m.name == "m").count();
        entities += rows.entity.iter().filter(|e| e.to.is_none()).count();
    }
    assert_eq!(seen, 200, "the neighbour lost nothing");
    assert!(house.rows.dropped > 100_000, "{}", house.rows.dropped);
    let most = quota::NEW_ENTITIES.at_once + 20 * quota::NEW_ENTITIES.per_second;
    assert!(entities as u64 <= most + 1000, "{entities} entities in 20 s");
    // It has used up quotas, and the source says so.
    let rows = {
        house.rows.end(hostile, &mut house.cx);
        house.cx.take_rows()
    };
    let note = house.rows.notes.iter().cloned().collect::<Vec<_>>().join("; ");
    assert!(note.contains("(pid 4242): more than"), "{note}");
    assert!(!note.contains("4300"), "{note}");
    drop(rows);
    house.pass(Ns(1));
    house.cx.catalog.forget(house.now);
    assert!(house.cx.catalog.len() < 100, "{} entities are remembered", house.cx.catalog.len());
}

#[test]
fn a_guest_that_writes_too_much_loses_its_own_records_and_it_is_told_once() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 5, &[]);
    let guest = house.guest(4242);
    let most = quota::RECORDS.at_once;
    for _ in 0..most + 1000 {
        house.mark(guest, 4242, 4242);
    }
    assert_eq!((house.rows.recorded, house.rows.dropped), (most, 1000));
    assert_eq!(house.rows.allowance(guest), 0);
    house.cx.take_rows();
    for _ in 0..30 {
        house.pass(Ns::millis(100));
        (0..20_000).for_each(|_| house.mark(guest, 4242, 4242));
    }
    let told = house.cx.take_rows();
    let marks = told.mark.iter().filter(|m| m.name.starts_with("quota used up")).count();
    let notes = told.source.iter().filter(|s| s.note.is_some()).count();
    assert_eq!((marks, notes), (1, 1));
    assert!(house.rows.allowance(guest) < most as usize);
}

#[test]
fn long_names_use_up_bytes() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 5, &[]);
    let guest = house.guest(4242);
    let name = "n".repeat(120);
    for _ in 0..quota::RECORDS.at_once {
        let event = Event::Mark { name: name.as_str(), at: house.now.0 as u64, value: None };
        house.write(guest, 4242, 4242, event);
    }
    let most = quota::BYTES.at_once / (quota::RECORD_BYTES + 120);
    assert!(house.rows.recorded <= most, "{}", house.rows.recorded);
}

/// Rows of the year 2200 would move the window of what is kept for everybody.
#[test]
fn times_that_cannot_be_are_dropped() {
    let mut house = House::new(Devices::Simulated);
    house.process(4242, 95_000, &[]);
    let guest = house.guest(4242);
    let now = house.now.0.max(crate::sys::monotonic().0) as u64;
    for at in [1, now + 60_000_000_000, i64::MAX as u64] {
        house.write(guest, 4242, 4242, Event::Mark { name: "m", at, value: None });
    }
    let (start, dur) = (now - 5, 60_000_000_000);
    house.write(guest, 4242, 4242, Event::Phase { name: "p", step: None, start, dur });
    assert_eq!((house.rows.recorded, house.rows.dropped), (0, 4));
    house.mark(guest, 4242, 4242);
    assert_eq!((house.rows.recorded, house.rows.dropped), (1, 4));
}

/// A server that makes a stream for each request goes on for days.
#[test]
fn streams_that_are_not_used_any_more_end() {
    let mut house = House::new(Devices::Real);
    house.process(4242, 5, &[]);
    let guest = house.guest(4242);
    let mut rows = Rows::default();
    for request in 0..3000u32 {
        house.pass(Ns::millis(10));
        let (start, dur) = (house.now.0 as u64, 1000);
        let (device, graph) = (0, None);
        let correlation = u64::from(request);
        let kernel =
            Event::Kernel { name: "k", device, stream: request, correlation, graph, start, dur };
        house.write(guest, 4242, 4242, kernel);
        rows.append(&mut house.cx.take_rows());
    }
    assert_eq!((rows.kernel.len(), house.rows.dropped), (3000, 0));
    house.pass(quota::IDLE + Ns::secs(1));
    house.cx.catalog.forget(house.now);
    let living = house.cx.catalog.living_after(EntityId(0));
    assert_eq!(living.filter(|e| e.kind == EntityKind::Stream).count(), 0);
    assert!(house.cx.catalog.len() < 50, "{}", house.cx.catalog.len());
}
