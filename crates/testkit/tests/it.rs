//! Small workloads and injectors, and what they leave behind when something goes wrong.

use std::collections::BTreeMap;
use std::path::Path;

use gpuwhy_testkit::inject::{Injector, Kind, Placement, Spec};
use gpuwhy_testkit::measure::{StepRow, read_steps};
use gpuwhy_testkit::steploop::{self, Config, Control, Ready, Running};
use gpuwhy_testkit::{eventually, helper, sys};
use gpuwhy_wire::{Consumer, Event, Ring};

/// A workload of short steps, with its directory on the file system of the build.
fn small(dir: &tempfile::TempDir) -> Config {
    helper::set_program(env!("CARGO_BIN_EXE_gpuwhy-testkit"));
    Config {
        batch_bytes: 256 << 10,
        dataset_bytes: 8 << 20,
        kernel_us: 100,
        allreduce_bytes: 64 << 10,
        checkpoint_bytes: 64 << 10,
        csv: Some(dir.path().join("steps.csv")),
        work_dir: Some(dir.path().join("work")),
        ..Config::default()
    }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn is_root() -> bool {
    let root = std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.starts_with("Uid:\t0\t0\t"));
    if !root {
        eprintln!("skipped: needs root for namespaces and control groups");
    }
    root
}

fn updates(ready: &Ready) -> u64 {
    Control::open(&ready.control).unwrap().updates.load(std::sync::atomic::Ordering::Relaxed)
}

/// Waits until each rank has taken this many more steps.
fn wait_for_steps(ready: &Ready, steps: u64) {
    let until = updates(ready) + steps * ready.ranks.len() as u64;
    eventually("steps", || updates(ready) >= until);
}

fn by_rank(path: &Path) -> BTreeMap<u32, Vec<StepRow>> {
    let mut ranks: BTreeMap<u32, Vec<StepRow>> = BTreeMap::new();
    for row in read_steps(path).unwrap() {
        ranks.entry(row.rank).or_default().push(row);
    }
    ranks
}

fn spec(running: &Running, kind: Kind, seconds: f64) -> Spec {
    let (after, intensity, placement) = (0.0, 1.0, Placement::Other);
    Spec { kind, after, seconds, intensity, placement, target: running.ready.clone() }
}

fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('-')
}

#[test]
fn ranks_over_loopback_take_the_same_steps_and_report_them() {
    let dir = dir();
    let ring = dir.path().join("ring");
    let _ring = Ring::create(&ring, 1 << 14).unwrap();
    let config = Config { network: false, cgroups: false, ring: Some(ring.clone()), ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    wait_for_steps(&running.ready, 40);
    let pids: Vec<_> = running.ready.ranks.iter().map(|member| member.pid as u32).collect();
    let summary = running.stop().unwrap();

    let ranks = by_rank(config.csv.as_ref().unwrap());
    assert_eq!(ranks.len(), 2);
    for rows in ranks.values() {
        assert_eq!(rows.len() as u64, summary.steps);
        let checkpoints: Vec<_> =
            rows.iter().filter(|r| r.name == "step+ckpt").map(|r| r.seq).collect();
        assert_eq!(checkpoints[..3], [9, 19, 29]);
        assert!(rows.iter().all(|r| r.size == 256 << 10 && r.end_ns > r.start_ns));
        assert!(rows.windows(2).all(|w| w[1].start_ns >= w[0].end_ns && w[1].seq == w[0].seq + 1));
    }

    let mut reported: BTreeMap<String, u64> = BTreeMap::new();
    let mut consumer = Consumer::open(&ring).unwrap();
    let drained = consumer.drain(usize::MAX, |record| {
        assert!(pids.contains(&record.pid));
        let kind = match record.event {
            Event::Step { name, .. } | Event::Phase { name, .. } => &**name,
            Event::StepOpen { .. } => "open",
            Event::Launch { .. } => "launches",
            Event::Kernel { .. } => "kernels",
            Event::Counter { name, unit, device, value, .. } => {
                assert_eq!((&**name, &**unit, device, value), ("sm_clock", "MHz", Some(0), 1410.0));
                "sm_clock"
            }
            Event::Mark { name, .. } => name,
            other => panic!("{other:?}"),
        };
        *reported.entry(kind.to_owned()).or_default() += 1;
    });
    assert_eq!((drained.lost, drained.torn, drained.abandoned), (0, 0, 0));
    let both = 2 * summary.steps;
    let count = |kind: &str| reported.get(kind).copied().unwrap_or(0);
    assert_eq!(count("step") + count("step+ckpt"), both);
    for phase in ["open", "load", "launch", "sync", "allreduce", "update"] {
        assert_eq!(count(phase), both, "{phase}");
    }
    assert_eq!(count("checkpoint"), count("step+ckpt"));
    assert_eq!(count("launches"), both * (config.kernels as u64 + 1));
    assert_eq!(count("kernels"), count("launches"));
    assert!(count("sm_clock") >= 2);
    assert!(!config.work_dir.unwrap().exists(), "the work directory was not removed");
}

#[test]
fn more_work_reaches_all_ranks_at_the_same_step() {
    let dir = dir();
    let config = Config { network: false, cgroups: false, ranks: 3, ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    let mut injector = Injector::start(spec(&running, Kind::LoadChange, 60.0)).unwrap();
    injector.onset().unwrap();
    wait_for_steps(&running.ready, 20);
    let label = injector.stop().unwrap();
    wait_for_steps(&running.ready, 20);
    running.stop().unwrap();

    assert_eq!((label.class, label.culprit_pid), (None, None));
    let sizes: Vec<Vec<(u64, u64)>> = by_rank(config.csv.as_ref().unwrap())
        .into_values()
        .map(|rows| rows.iter().map(|r| (r.seq, r.size)).collect())
        .collect();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|of_rank| *of_rank == sizes[0]));
    let mut seen: Vec<u64> = sizes[0].iter().map(|(_, size)| *size).collect();
    seen.dedup();
    assert_eq!(seen, [256 << 10, 384 << 10, 256 << 10]);
}

#[test]
fn what_a_killed_injector_changed_is_restored_by_the_process_that_started_it() {
    let dir = dir();
    let config = Config { network: false, cgroups: false, ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    let control = Control::open(&running.ready.control).unwrap();

    let mut slowdown = Injector::start(spec(&running, Kind::DeviceSlowdown, 60.0)).unwrap();
    slowdown.onset().unwrap();
    assert_eq!(control.clock(), 0.5);
    sys::kill(slowdown.pid(), libc::SIGKILL).unwrap();
    assert!(slowdown.finish().is_err());
    assert_eq!(control.clock(), 1.0);

    let mut sigstop = Injector::start(spec(&running, Kind::Sigstop, 60.0)).unwrap();
    sigstop.onset().unwrap();
    let rank_1 = running.ready.rank(1).unwrap().pid;
    // Killed while the rank is stopped.
    eventually("rank 1 stopped", || state(rank_1) == 'T');
    sys::kill(sigstop.pid(), libc::SIGKILL).unwrap();
    drop(sigstop);
    wait_for_steps(&running.ready, 5);

    // If the holder of the lock is killed, the next process gets the lock.
    let mut holder = Injector::start(spec(&running, Kind::LockHolder, 60.0)).unwrap();
    holder.onset().unwrap();
    sys::kill(holder.pid(), libc::SIGKILL).unwrap();
    drop(holder);
    wait_for_steps(&running.ready, 5);
    running.stop().unwrap();
}

#[test]
fn an_injector_ends_on_a_signal_and_labels_what_it_did() {
    let dir = dir();
    let config = Config { network: false, cgroups: false, ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    let mut hog = Injector::start(spec(&running, Kind::CpuHog, 60.0)).unwrap();
    let (pid, onset) = (hog.pid(), hog.onset().unwrap());
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm.trim(), "cpu-hog");
    // A signal ends it, as a closed pipe does.
    sys::kill(pid, libc::SIGTERM).unwrap();
    let label = hog.finish().unwrap();
    assert_eq!(label.class.as_deref(), Some("cpu_contention"));
    assert_eq!((label.culprit_pid, label.culprit_comm.as_deref()), (Some(pid), Some("cpu-hog")));
    assert!(label.onset_ns == onset && label.end_ns > onset);

    let mut stopped = Injector::start(spec(&running, Kind::Sigstop, 60.0)).unwrap();
    stopped.onset().unwrap();
    let label = stopped.stop().unwrap();
    let rank_1 = running.ready.rank(1).unwrap();
    assert_eq!(label.culprit_pid, Some(rank_1.pid));
    assert_eq!(label.culprit_comm.as_deref(), Some("steploop-r1"));
    running.stop().unwrap();
}

#[test]
fn an_injector_without_its_prerequisites_fails() {
    let dir = dir();
    let config = Config { network: false, cgroups: false, ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    for kind in [Kind::CgroupQuota, Kind::MemoryHog, Kind::UdpBurst, Kind::LinkCap] {
        let error = Injector::start(spec(&running, kind, 1.0)).unwrap().finish().unwrap_err();
        assert!(error.to_string().contains("cannot start the disturbance"), "{error}");
    }
    running.stop().unwrap();
}

#[test]
fn a_rank_that_dies_ends_the_workload_with_an_error() {
    let dir = dir();
    let config = Config { network: false, cgroups: false, ..small(&dir) };
    let mut running = steploop::start(&config).unwrap();
    sys::kill(running.ready.rank(1).unwrap().pid, libc::SIGKILL).unwrap();
    assert!(running.wait().is_err());
    assert!(!config.work_dir.unwrap().exists());
}

#[test]
fn root_ranks_in_namespaces_and_groups_leave_nothing_behind() {
    if !is_root() {
        return;
    }
    let dir = dir();
    let config = Config { ranks: 3, ..small(&dir) };
    let running = steploop::start(&config).unwrap();
    let ready = running.ready.clone();
    assert_eq!(ready.notes, Vec::<String>::new());
    let netns = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let mut spaces: Vec<_> = ready.ranks.iter().map(|member| netns(member.pid)).collect();
    spaces.push(netns(std::process::id() as i32));
    spaces.sort();
    spaces.dedup();
    assert_eq!(spaces.len(), 4, "each rank has a network namespace of its own");
    assert_eq!(ready.rank(0).unwrap().nics.len(), 2);
    let groups = [&ready.cgroups.cpu, &ready.cgroups.memory];
    let dirs: Vec<_> = groups.iter().map(|group| group.as_ref().unwrap().dir.clone()).collect();
    for group in &dirs {
        let members = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
        assert_eq!(members.lines().count(), 3, "{}", group.display());
    }
    wait_for_steps(&ready, 5);
    sys::kill(ready.pid, libc::SIGTERM).unwrap();
    running.stop().unwrap();
    assert!(dirs.iter().all(|group| !group.exists()));
    assert!(!ready.work_dir.exists());
}

#[test]
fn root_what_injectors_change_is_restored() {
    if !is_root() {
        return;
    }
    let dir = dir();
    let running = steploop::start(&small(&dir)).unwrap();
    let group = running.ready.cgroups.cpu.clone().unwrap();
    let quota = || {
        let file = if group.dir.join("cpu.max").exists() { "cpu.max" } else { "cpu.cfs_quota_us" };
        std::fs::read_to_string(group.dir.join(file)).unwrap()
    };
    let before = quota();
    let mut injector = Injector::start(spec(&running, Kind::CgroupQuota, 60.0)).unwrap();
    injector.onset().unwrap();
    assert_ne!(quota(), before);
    let label = injector.stop().unwrap();
    assert_eq!(quota(), before);
    assert!(label.culprit_cgroup.unwrap().ends_with(&group.path));

    let rank_0 = running.ready.rank(0).unwrap().clone();
    let qdisc = || {
        let output = std::process::Command::new("nsenter")
            .args(["-t", &rank_0.pid.to_string(), "-n", "tc", "qdisc", "show", "dev", "to1"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(qdisc().contains("rate 1Gbit"), "{}", qdisc());
    for killed in [false, true] {
        let mut injector = Injector::start(spec(&running, Kind::LinkCap, 60.0)).unwrap();
        injector.onset().unwrap();
        assert!(qdisc().contains("rate 125Mbit"), "{}", qdisc());
        if killed {
            sys::kill(injector.pid(), libc::SIGKILL).unwrap();
            assert!(injector.finish().is_err());
        } else {
            injector.stop().unwrap();
        }
        assert!(qdisc().contains("rate 1Gbit"), "{}", qdisc());
    }
    running.stop().unwrap();
}

#[test]
fn root_every_injector_begins_and_ends() {
    if !is_root() {
        return;
    }
    let dir = dir();
    let running = steploop::start(&small(&dir)).unwrap();
    for kind in Kind::ALL {
        let mut injector = Injector::start(spec(&running, kind, 60.0)).unwrap();
        injector.onset().unwrap_or_else(|e| panic!("{}: {e:#}", kind.name()));
        wait_for_steps(&running.ready, 2);
        let label = injector.stop().unwrap();
        assert_eq!((label.injector, label.class.as_deref()), (kind, kind.class()));
        wait_for_steps(&running.ready, 2);
    }
    running.stop().unwrap();
}

#[test]
fn root_a_killed_supervisor_ends_its_ranks_and_the_next_one_cleans_up() {
    if !is_root() {
        return;
    }
    let (first_dir, second_dir) = (dir(), dir());
    let mut first = steploop::start(&small(&first_dir)).unwrap();
    let ready = first.ready.clone();
    sys::kill(ready.pid, libc::SIGKILL).unwrap();
    assert!(first.wait().is_err());
    for member in &ready.ranks {
        eventually("the ranks ended", || matches!(state(member.pid), '-' | 'Z' | 'X'));
    }
    let group = ready.cgroups.cpu.unwrap().dir;
    // A workload that another test starts meanwhile may remove the group before we look.
    eventually("the group empty", || match std::fs::read_to_string(group.join("cgroup.procs")) {
        Ok(procs) => procs.is_empty(),
        Err(error) => matches!(error.kind(), std::io::ErrorKind::NotFound),
    });
    steploop::start(&small(&second_dir)).unwrap().stop().unwrap();
    assert!(!group.exists());
}
