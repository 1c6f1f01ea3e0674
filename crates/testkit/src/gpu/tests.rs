use super::layout::Layout;
use super::*;
use std::sync::Mutex;

const MS: u64 = 1_000_000;
/// A time after boot at which a slice of the first of two processes starts, and a window.
const T: u64 = 1_002_000 * MS;

fn machine(gpus: usize) -> (tempfile::TempDir, Machine) {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::open(dir.path(), gpus).unwrap();
    (dir, machine)
}

/// Two processes that are alive during the test.
fn pids() -> (u32, u32) {
    (std::process::id(), 1)
}

#[test]
fn all_openers_share_one_machine_and_other_files_are_refused() {
    let (dir, machine) = machine(3);
    let again = Machine::open(dir.path(), 1).unwrap();
    assert_eq!(again.count(), 3);
    machine.gpu(2).unwrap().set(Quantity::Temperature, 77);
    assert_eq!(again.gpu(2).unwrap().get(Quantity::Temperature), 77);
    assert!(again.gpu(3).is_none());
    let text = again.gpu(0).unwrap().uuid_text();
    assert_eq!((text.len(), text.matches('-').count()), (40, 5), "{text}");
    assert_ne!(text, again.gpu(1).unwrap().uuid_text());
    assert_eq!(again.gpu(1).unwrap().bus_text(), "00000000:2A:00.0");

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join(FILE), [7; 100]).unwrap();
    let error = format!("{:#}", Machine::open(other.path(), 1).unwrap_err());
    assert!(error.contains("100 bytes"), "{error}");
    std::fs::write(other.path().join(FILE), vec![7; size_of::<Layout>()]).unwrap();
    let error = format!("{:#}", Machine::open(other.path(), 1).unwrap_err());
    assert!(error.contains("no machine of version"), "{error}");
    assert!(Machine::open(tempfile::tempdir().unwrap().path(), 9).is_err());
}

#[test]
fn kernels_queue_and_a_throttle_stretches_them() {
    let (_dir, machine) = machine(1);
    let (me, _) = pids();
    let gpu = machine.gpu(0).unwrap();
    assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T, end: T + MS });
    assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T + MS, end: T + 2 * MS });
    gpu.throttle(reason::HW_THERMAL | reason::HW_SLOWDOWN, 990, T);
    assert_eq!(gpu.launch(T, 0, me, MS), Run { start: T + 2 * MS, end: T + 4 * MS });
    gpu.heal(T + 5 * MS);
    let after = T + 10 * MS;
    assert_eq!(gpu.launch(T, after, me, MS), Run { start: after, end: after + MS });
    assert_eq!(gpu.processes()[0].busy, 5 * MS);
}

#[test]
fn cumulative_counters_grow_while_throttled_and_stay_afterwards() {
    let (_dir, machine) = machine(1);
    let gpu = machine.gpu(0).unwrap();
    let read = |now| ThrottleTime::ALL.map(|h| gpu.throttle_time(h, now) / MS);
    assert_eq!(read(T), [0; 6]);
    gpu.throttle(reason::SW_POWER_CAP, 1200, T);
    assert_eq!(read(T + 5 * MS), [5, 0, 0, 0, 0, 0]);
    gpu.throttle(reason::SW_POWER_CAP | reason::SW_THERMAL, 1000, T + 10 * MS);
    assert_eq!(read(T + 13 * MS), [13, 3, 0, 3, 0, 0]);
    gpu.heal(T + 20 * MS);
    assert_eq!(read(T + 99 * MS), [20, 10, 0, 10, 0, 0]);
    gpu.throttle(reason::POWER_BRAKE, 1000, T + 100 * MS);
    assert_eq!(read(T + 101 * MS), [20, 10, 0, 10, 0, 1]);
}

#[test]
fn two_processes_take_turns_in_slices() {
    let (_dir, machine) = machine(1);
    let (me, other) = pids();
    let gpu = machine.gpu(0).unwrap();
    // The other process launches first and is given 10 ms.
    assert_eq!(gpu.launch(T, 0, other, 10 * MS), Run { start: T, end: T + 10 * MS });
    // Slices: 0-2 the other's, 2-4 mine, and so on; mine waits and runs in 2-4 and 6-7.
    let mine = gpu.launch(T + MS, 0, me, 3 * MS);
    assert_eq!(mine, Run { start: T + 2 * MS, end: T + 7 * MS });
    // The other's next kernel is longer by the 3 ms that mine took.
    let next = gpu.launch(T + 10 * MS, 0, other, MS);
    assert_eq!(next, Run { start: T + 10 * MS, end: T + 14 * MS });
    // Now nothing is owed.
    assert_eq!(gpu.launch(T + 20 * MS, 0, other, MS).end, T + 21 * MS);
}

#[test]
fn a_competitor_with_a_full_queue_halves_the_share() {
    let (_dir, machine) = machine(1);
    let (me, other) = pids();
    let gpu = machine.gpu(0).unwrap();
    let (mut mine, mut theirs) = (T, T);
    let mut work = 0;
    while mine < T + 1000 * MS {
        while theirs <= mine + 4 * MS {
            theirs = gpu.launch(mine, 0, other, 4 * MS).end;
        }
        mine = gpu.launch(mine, 0, me, MS).end;
        work += 1;
    }
    // Alone it would be 1000.
    assert!((450..=560).contains(&work), "{work} kernels of 1 ms in a second");
    let busy: u64 = gpu.processes().iter().map(|p| p.busy).sum();
    assert!(busy <= theirs.max(mine) - T, "more ran than time passed: {busy}");
}

#[test]
fn copies_slow_down_when_they_are_replayed_and_when_the_link_is_narrow() {
    let (_dir, machine) = machine(1);
    let (me, _) = pids();
    let gpu = machine.gpu(0).unwrap();
    let takes = |at| {
        let run = gpu.copy(at, 0, me, 50_000_000, Direction::ToDevice);
        assert_eq!(run.start, at);
        (run.end - run.start) / MS
    };
    assert_eq!(takes(T), 1);
    assert_eq!(gpu.get(Quantity::PcieReplays), 0);
    gpu.pcie_replay(true);
    assert_eq!(takes(T + 100 * MS), 4);
    assert_eq!(gpu.get(Quantity::PcieReplays), 50);
    gpu.heal(T);
    gpu.pcie_link(3, 8);
    assert_eq!(takes(T + 200 * MS), 8);
    // Kernels and copies in the other direction do not wait for it.
    let back = gpu.copy(T + 200 * MS, 0, me, 50, Direction::ToHost);
    assert_eq!(back.start, T + 200 * MS);
    assert_eq!(gpu.launch(T + 200 * MS, 0, me, 1).start, T + 200 * MS);
    let moved = [Quantity::PcieRx, Quantity::PcieTx].map(|q| gpu.get(q));
    assert_eq!(moved, [150_000_000, 50]);
}

#[test]
fn utilisation_lags_by_a_window() {
    let (_dir, machine) = machine(1);
    let (me, _) = pids();
    let gpu = machine.gpu(0).unwrap();
    let window = T / UTILISATION_NS * UTILISATION_NS + UTILISATION_NS;
    gpu.launch(window, 0, me, UTILISATION_NS / 2);
    assert_eq!(gpu.utilisation(window + UTILISATION_NS - 1), 0, "the window is not over");
    assert_eq!(gpu.utilisation(window + UTILISATION_NS), 50);
    assert_eq!(gpu.reasons(window + UTILISATION_NS), 0);
    assert_eq!(gpu.utilisation(window + 2 * UTILISATION_NS), 0);
    assert_eq!(gpu.reasons(window + 2 * UTILISATION_NS), reason::IDLE);
    let samples = gpu.utilisation_samples(window, window + 2 * UTILISATION_NS);
    assert_eq!(samples, [(window + UTILISATION_NS, 50), (window + 2 * UTILISATION_NS, 0)]);
    let seen = gpu.process_utilisation(T, window + 2 * PROCESS_UTILISATION_NS);
    assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [me], "{seen:?}");
}

#[test]
fn memory_is_counted_by_process_and_xids_are_kept() {
    let (_dir, machine) = machine(1);
    let (me, other) = pids();
    let gpu = machine.gpu(0).unwrap();
    assert!(gpu.allocate(me, 1 << 30, T) && gpu.allocate(other, 2 << 30, T));
    assert!(!gpu.allocate(me, 80 << 30, T), "more than the device has");
    assert_eq!(gpu.memory_used(), (3 << 30) + RESERVED_BYTES);
    gpu.release(other, 1 << 30);
    gpu.leave(me);
    assert_eq!(gpu.processes().iter().map(|p| p.memory).collect::<Vec<_>>(), [1 << 30]);

    gpu.xid(31, 4242, T);
    gpu.fall_off_bus(T + 1);
    assert!(!gpu.present());
    assert!(gpu.has_failed(4242) && !gpu.has_failed(4243));
    let numbers: Vec<u64> = (0..9).map_while(|i| gpu.xid_at(i)).map(|x| x.number).collect();
    assert_eq!(numbers, [31, 79]);
    gpu.heal(T);
    assert!(gpu.present());
}

#[test]
fn kernels_of_threads_that_launch_at_once_do_not_overlap() {
    let (_dir, machine) = machine(1);
    let (me, _) = pids();
    let gpu = machine.gpu(0).unwrap();
    let runs = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine: Vec<Run> = (0..500).map(|_| gpu.launch(T, 0, me, 1000)).collect();
                runs.lock().unwrap().extend(mine);
            });
        }
    });
    let mut runs = runs.into_inner().unwrap();
    runs.sort_by_key(|run| run.start);
    assert!(runs.windows(2).all(|two| two[0].end == two[1].start));
    assert_eq!((runs.len(), gpu.busy()), (2000, 2_000_000));
}

#[test]
fn turns_say_which_process_was_scheduled_and_a_later_one_takes_from_those_before() {
    let (_dir, machine) = machine(1);
    let (first, second) = pids();
    let gpu = machine.gpu(0).unwrap();
    let (_, before) = gpu.turns_since(0);
    // Alone, until another one comes, whose turn is every second slice.
    gpu.launch(T, 0, first, 10 * MS);
    gpu.launch(T + MS, 0, second, 2 * MS);
    let (turns, now) = gpu.turns_since(before);
    let turn = |pid, start, end| Turn { pid, start, end };
    let (whole, theirs) = (turn(first, T, T + 10 * MS), turn(second, T + 2 * MS, T + 4 * MS));
    assert_eq!((turns, now), (vec![whole, theirs], before + 2));
    assert_eq!(gpu.turns_since(now), (vec![], now));
    let mut turns = Turns::default();
    turns.follow(gpu);
    let rest = turn(first, T + 4 * MS, T + 10 * MS);
    assert_eq!(turns.ahead, [turn(first, T, T + 2 * MS), theirs, rest]);
    assert_eq!(Turns::from_now(gpu).ahead, []);
}
