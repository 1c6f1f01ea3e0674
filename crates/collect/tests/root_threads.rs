//! Real threads: the kernel is made to run, wake, stop and throttle them, and the rows must say
//! what happened.
//!
//! Everything here loads BPF programs and so needs root or CAP_BPF with CAP_PERFMON; without, each
//! test says why it did nothing.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Target, UprobeStep, host};
use gpuwhy_schema::{
    Entity, EntityId, EntityKind, Ns, Rows, Source, SourceState, State, ThreadState, Track,
    WakeContext, names,
};

/// One recording at a time: they would contend for the CPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Names the compiled `actor.c` to a test that may not look into the target folder.
const ACTOR: &str = "GPUWHY_TEST_ACTOR";

/// A process of `actor.c`, killed when it is dropped.
struct Actor(Child);

/// A command of the shell's own: a bare machine may lack the program `kill`.
fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}

impl Actor {
    fn new(words: &[&str]) -> Actor {
        let child = Command::new(Actor::program())
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Actor(child)
    }

    /// The compiled `actor.c`.
    fn program() -> PathBuf {
        static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
        let compile = || {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/actor.c");
            let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("actor");
            let made = Command::new("cc")
                .args(["-O1", "-g", "-pthread", "-o"])
                .args([&program, &source])
                .status()
                .expect("cc is there: rustc links with it");
            assert!(made.success(), "actor.c compiles");
            program
        };
        PROGRAM.get_or_init(|| env::var_os(ACTOR).map_or_else(compile, PathBuf::from)).clone()
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn say(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, name: &str) {
        let done = shell(&format!("kill {name} {}", self.pid())).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether BPF programs can be loaded here; says why not.
fn privileged() -> bool {
    static MISSING: OnceLock<Option<host::Check>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| host::facts().into_iter().find(|c| c.needed && !c.ok));
    if let Some(check) = missing {
        println!("skipped: {}: {}; {}", check.name, check.found, check.fix);
    }
    missing.is_none()
}

fn targets(pids: &[i32]) -> Config {
    Config { targets: pids.iter().map(|&p| Target::Pid(p)).collect(), ..Config::default() }
}

/// Records for some time, with a word in between.
fn record_with(config: Config, millis: u64, mut halfway: impl FnMut(&mut Recorder)) -> Trace {
    let mut recorder = Recorder::start(config).unwrap();
    let mut rows = Rows::default();
    let begun = Instant::now();
    let mut told = false;
    while begun.elapsed() < Duration::from_millis(millis) {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
        if !told && begun.elapsed() > Duration::from_millis(millis / 2) {
            halfway(&mut recorder);
            told = true;
        }
    }
    rows.append(&mut recorder.finish());
    let trace = Trace { rows };
    trace.check();
    trace
}

fn record(config: Config, millis: u64) -> Trace {
    record_with(config, millis, |_| {})
}

struct Trace {
    rows: Rows,
}

impl Trace {
    fn entity(&self, id: EntityId) -> &Entity {
        self.rows.entity.iter().rev().find(|e| e.id == id).expect("entities are declared")
    }

    /// The last thread of this name that was declared.
    fn thread(&self, name: &str) -> &Entity {
        let found = self
            .rows
            .entity
            .iter()
            .rev()
            .find(|e| e.kind == EntityKind::Thread && &*e.name == name);
        found.unwrap_or_else(|| panic!("no thread `{name}`"))
    }

    fn track(&self, entity: EntityId, name: &str) -> Option<&Track> {
        self.rows.track.iter().find(|t| t.entity == entity && &*t.name == name)
    }

    fn cpu(&self, number: i64) -> EntityId {
        let cpu = |e: &&Entity| e.kind == EntityKind::Cpu && e.number == Some(number);
        self.rows.entity.iter().find(cpu).unwrap().id
    }

    /// The states of a thread, in order.
    fn states(&self, thread: EntityId) -> Vec<(ThreadState, &State)> {
        let Some(track) = self.track(thread, names::THREAD_STATE) else { return Vec::new() };
        let mut rows: Vec<&State> =
            self.rows.state.iter().filter(|s| s.track == track.id).collect();
        rows.sort_by_key(|s| s.ts);
        rows.into_iter().map(|s| (ThreadState::from_code(s.value).unwrap(), s)).collect()
    }

    fn time_in(&self, thread: EntityId, state: ThreadState) -> Ns {
        let rows = self.states(thread);
        rows.iter().filter(|(s, _)| *s == state).filter_map(|(_, row)| row.dur).sum()
    }

    fn source(&self, kind: &str) -> &Source {
        self.rows.source.iter().rev().find(|s| &*s.kind == kind).unwrap()
    }

    /// What no recording may violate: the rows of a thread or CPU follow each other, and without
    /// loss the targets' states leave no gap.
    fn check(&self) {
        let lost = self.source("bpf:run_queue").dropped > 0;
        for track in &self.rows.track {
            let occupant = &*track.name == names::OCCUPANT;
            if &*track.name != names::THREAD_STATE && !occupant {
                continue;
            }
            let mut rows: Vec<&State> =
                self.rows.state.iter().filter(|s| s.track == track.id).collect();
            rows.sort_by_key(|s| s.ts);
            for pair in rows.windows(2) {
                let end = pair[0].ts + pair[0].dur.expect("only the last one is open");
                assert!(pair[0].dur.unwrap() > Ns::ZERO);
                assert!(end <= pair[1].ts, "{:?} overlaps {:?}", pair[0], pair[1]);
                let target = self.entity(track.entity).from.is_some() && !occupant;
                if target && !lost && end < pair[1].ts {
                    let gap = pair[1].ts - end;
                    // Wakers are of interest for a time only.
                    assert!(gap > Ns::secs(9), "{gap} between {:?} and {:?}", pair[0], pair[1]);
                }
            }
        }
        for wakeup in &self.rows.wakeup {
            let believed = wakeup.context == WakeContext::Task;
            assert!(believed || wakeup.waker.is_none(), "{wakeup:?} believes an interrupt");
        }
    }
}

#[test]
fn root_who_waits_for_a_cpu_learns_who_had_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let _spinner = Actor::new(&["spin", "0"]);
    let pacer = Actor::new(&["pace", "0"]);
    let trace = record(targets(&[pacer.pid()]), 1500);

    let pacer = trace.thread("pacer").id;
    let spinner = trace.thread("spinner").id;
    let waited = trace.time_in(pacer, ThreadState::Runnable);
    assert!(waited > Ns::millis(100), "waited only {waited}");
    let track = trace.track(trace.cpu(0), names::OCCUPANT).expect("somebody had it").id;
    let mut had: BTreeMap<i64, Ns> = BTreeMap::new();
    for (state, wait) in trace.states(pacer) {
        if state != ThreadState::Runnable {
            continue;
        }
        assert_eq!(wait.arg, Some(0), "it is pinned to CPU 0");
        let end = wait.ts + wait.dur.unwrap_or(Ns::ZERO);
        for row in trace.rows.state.iter().filter(|s| s.track == track) {
            let time = Ns::overlap(wait.ts, end, row.ts, row.ts + row.dur.unwrap());
            *had.entry(row.value).or_default() += time;
        }
    }
    let known: Ns = had.values().copied().sum();
    assert!(known.0 * 100 >= waited.0 * 95, "of {waited} only {known} is accounted for");
    let most = had.iter().max_by_key(|(_, time)| **time).unwrap().0;
    assert_eq!(*most, i64::from(spinner.0), "{had:?}");
}

#[test]
fn root_a_thread_that_wakes_another_is_named() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["pingpong"]);
    let trace = record(targets(&[actor.pid()]), 800);
    let (asker, answerer) = (trace.thread("asker"), trace.thread("answerer"));
    assert_eq!(asker.parent, answerer.parent, "threads of one process");
    let by_task: Vec<_> = trace
        .rows
        .wakeup
        .iter()
        .filter(|w| w.woken == asker.id && w.context == WakeContext::Task)
        .collect();
    let by_answerer = by_task.iter().filter(|w| w.waker == Some(answerer.id)).count();
    assert!(by_task.len() > 50, "{} wakeups", by_task.len());
    assert!(by_answerer * 10 >= by_task.len() * 9, "{by_answerer} of {}", by_task.len());
    // It sleeps in futex(2), number 202 on x86-64 and 98 on arm64.
    let futex = if cfg!(target_arch = "x86_64") { 202 } else { 98 };
    let states = trace.states(asker.id);
    let sleeps: Vec<_> = states.iter().filter(|(s, _)| *s == ThreadState::Sleep).collect();
    let in_futex = sleeps.iter().filter(|(_, row)| row.arg == Some(futex)).count();
    assert!(in_futex * 10 >= sleeps.len() * 9, "{in_futex} of {}", sleeps.len());
}

#[test]
fn root_a_timer_wakes_in_interrupt_context_and_nobody_is_believed() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["nap"]);
    // Without it the CPUs are idle when the timer fires; with it an innocent thread is current.
    let _spinners = [Actor::new(&["spin", "0"]), Actor::new(&["spin", "1"])];
    let trace = record(targets(&[actor.pid()]), 800);
    let napper = trace.thread("napper").id;
    let wakeups: Vec<_> = trace.rows.wakeup.iter().filter(|w| w.woken == napper).collect();
    assert!(wakeups.len() > 20, "{} wakeups", wakeups.len());
    for wakeup in wakeups {
        assert_eq!((wakeup.context, wakeup.waker), (WakeContext::Hardirq, None), "{wakeup:?}");
    }
    let sleep = trace.time_in(napper, ThreadState::Sleep);
    assert!(sleep > Ns::millis(400), "it sleeps most of the time: {sleep}");
}

#[test]
fn root_a_flood_over_loopback_shows_as_softirq_time() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["flood", "0"]);
    let trace = record(targets(&[actor.pid()]), 800);
    let track = trace.track(trace.cpu(0), "softirq.NET_RX").expect("packets were received").id;
    let net: f64 = trace.rows.counter.iter().filter(|c| c.track == track).map(|c| c.value).sum();
    assert!(net > 50e6, "{net} ns of NET_RX");
    let flooder = trace.thread("flooder").id;
    let softirq = trace.time_in(flooder, ThreadState::Softirq);
    assert!(softirq > Ns::millis(50), "only {softirq} in the flooder's own slices");
    let vector = |row: &State| row.arg;
    let most: Vec<_> = trace.states(flooder);
    let net_rx =
        most.iter().filter(|(s, row)| *s == ThreadState::Softirq && vector(row) == Some(3)).count();
    assert!(net_rx > 0, "NET_RX took most of a slice");
    assert!(softirq.0 as f64 <= net * 1.1 + 20e6, "{softirq} in one thread, {net} on its CPU");
}

#[test]
fn root_children_and_what_they_execute_are_recorded_too() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["family"]);
    let trace = record(targets(&[actor.pid()]), 1000);
    let child = trace.thread("napper");
    assert!(trace.states(child.id).len() > 50, "the child's states are there");
    let process = trace.entity(child.parent.unwrap());
    assert_ne!(process.number, Some(i64::from(actor.pid())), "a process of its own");
    assert_eq!(&*process.name, "napper", "called as what it executes");
    let parent = trace.thread("parent").id;
    let last = trace.states(parent).pop().expect("the parent has states");
    assert_eq!((last.0, last.1.dur), (ThreadState::Sleep, None), "it still sleeps");
}

#[test]
fn root_wakers_of_wakers_are_followed() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let mut actor = Actor::new(&["chain"]);
    let first: i32 = actor.line().parse().unwrap();
    let watched = |hops| record(Config { hops, ..targets(&[first]) }, 700);

    let trace = watched(2);
    for name in ["first", "second", "third"] {
        let thread = trace.thread(name).id;
        let ran = trace.time_in(thread, ThreadState::Running);
        let slept = trace.time_in(thread, ThreadState::Sleep);
        assert!(ran > Ns::ZERO && slept > Ns::ZERO, "{name}: ran {ran}, slept {slept}");
    }
    let woken_by = |woken: &str, waker: &str| {
        let (woken, waker) = (trace.thread(woken).id, trace.thread(waker).id);
        let by = |w: &&gpuwhy_schema::Wakeup| w.woken == woken && w.waker == Some(waker);
        trace.rows.wakeup.iter().filter(by).count()
    };
    assert!(woken_by("first", "third") > 20);
    assert!(woken_by("third", "second") > 20);

    let trace = watched(0);
    let first = trace.thread("first").id;
    assert!(!trace.states(first).is_empty());
    let others = trace
        .rows
        .track
        .iter()
        .filter(|t| &*t.name == names::THREAD_STATE && t.entity != first)
        .count();
    assert_eq!(others, 0, "without hops nobody else is recorded");
}

#[test]
fn root_a_full_ring_is_counted_and_what_came_through_still_fits() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["storm"]);
    let config = Config { ring_bytes: 4096, hz: 20, ..targets(&[actor.pid()]) };
    let trace = record(config, 700);
    let source = trace.source("bpf:run_queue");
    assert!(source.dropped > 100, "{source:?}");
    assert!(source.recorded > 100, "{source:?}");
}

#[test]
fn root_a_stopped_process_says_who_stopped_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["nap"]);
    let mut sender = 0;
    let trace = {
        let mut recorder = Recorder::start(targets(&[actor.pid()])).unwrap();
        let mut rows = Rows::default();
        for tick in 0..60 {
            rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
            if tick == 20 {
                let mut kill = shell(&format!("kill -STOP {}", actor.pid())).spawn().unwrap();
                sender = i64::from(kill.id());
                kill.wait().unwrap();
            }
            if tick == 40 {
                actor.signal("-CONT");
            }
        }
        rows.append(&mut recorder.finish());
        Trace { rows }
    };
    trace.check();
    let napper = trace.thread("napper");
    let states = trace.states(napper.id);
    let stopped: Vec<_> = states.iter().filter(|(s, _)| *s == ThreadState::Stopped).collect();
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    assert!(stopped[0].1.dur.unwrap() > Ns::millis(50));
    assert_eq!(stopped[0].1.arg, Some(sender));
    let process = napper.parent.unwrap();
    let track = trace.track(process, names::SIGNALS).expect("signals were sent").id;
    let marks: Vec<_> = trace.rows.mark.iter().filter(|m| m.track == track).collect();
    let names: Vec<&str> = marks.iter().map(|m| &*m.name).collect();
    assert_eq!(names, ["SIGSTOP", "SIGCONT"]);
    assert_eq!(marks[0].value, Some(sender as f64));
}

#[test]
fn root_who_sleeps_from_before_to_after_the_recording_is_seen_to_sleep() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["sleep"]);
    while !fs::read_to_string(format!("/proc/{}/wchan", actor.pid()))
        .is_ok_and(|s| !s.is_empty() && s != "0")
        && fs::read_to_string(format!("/proc/{}/comm", actor.pid())).unwrap().trim() != "sleeper"
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    let trace = record(targets(&[actor.pid()]), 300);
    let states = trace.states(trace.thread("sleeper").id);
    assert_eq!(states.len(), 1, "{states:?}");
    assert_eq!((states[0].0, states[0].1.dur), (ThreadState::Sleep, None));
}

#[test]
fn root_calls_of_a_named_function_are_steps() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let mut actor = Actor::new(&["serve", "100"]);
    let step = |symbol: &str| UprobeStep { binary: Actor::program(), symbol: symbol.into() };
    let config = Config { steps: vec![step("serve"), step("leap")], ..Config::default() };
    let mut recorder = Recorder::start(config).unwrap();
    let mut rows = Rows::default();
    actor.say("go\n");
    for _ in 0..60 {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
    }
    assert_eq!(actor.line(), "100", "it has called each function so often");
    rows.append(&mut recorder.finish());
    let trace = Trace { rows };
    trace.check();

    let spans = |name: &str| -> Vec<&gpuwhy_schema::Span> {
        trace.rows.span.iter().filter(|s| &*s.name == name).collect()
    };
    let serve = spans("serve");
    assert_eq!(serve.len(), 100, "recursion makes no steps of its own");
    assert!(serve.iter().all(|s| s.dur.unwrap() > Ns::millis(2)), "each sleeps for 2 ms");
    let leap = spans("leap");
    assert_eq!(leap.len(), 90, "a call that is left by a jump never returns");
    let lost = trace.source("bpf:steps").dropped;
    // The last jump is noticed at the next call, and there is one after it.
    assert_eq!(lost, 10);

    let server = trace.thread("server").id;
    let steps: Vec<_> = trace.rows.step.iter().filter(|s| s.thread == server).collect();
    assert_eq!(steps.len(), 190);
    let mut seq: Vec<u64> =
        serve.iter().map(|s| steps.iter().find(|t| t.id == s.id).unwrap().seq).collect();
    seq.sort_unstable();
    assert_eq!(seq, (0..100).collect::<Vec<_>>());
    // Whoever takes steps has become a target: its states lie under them.
    let inside: Ns = serve
        .iter()
        .skip(20)
        .map(|step| {
            let end = step.ts + step.dur.unwrap();
            let rows = trace.states(server);
            rows.iter()
                .map(|(_, s)| Ns::overlap(step.ts, end, s.ts, s.dur.map_or(Ns::MAX, |d| s.ts + d)))
                .sum()
        })
        .sum();
    let whole: Ns = serve.iter().skip(20).map(|s| s.dur.unwrap()).sum();
    assert_eq!(inside, whole, "every ns of a step has a state");
}

#[test]
fn root_a_function_that_is_not_there_is_answered_with_names_near_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let step = UprobeStep { binary: Actor::program(), symbol: "serv".into() };
    let error = Recorder::start(Config { steps: vec![step], ..Config::default() })
        .err()
        .expect("there is no such function");
    let text = error.to_string();
    assert!(text.starts_with("no function `serv` in `"), "{text}");
    assert!(text.ends_with("; near it are serve"), "{text}");
}

#[test]
fn root_out_of_quota_is_throttled_as_long_as_the_group_says() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let group = Path::new("/sys/fs/cgroup/cpu/gpuwhy-test-quota");
    let _ = fs::remove_dir(group);
    if let Err(error) = fs::create_dir(group) {
        println!("skipped: no cgroup v1 CPU controller to set a quota with: {error}");
        return;
    }
    let spinner = Actor::new(&["spin", "0"]);
    let write = |file: &str, text: String| fs::write(group.join(file), text).unwrap();
    write("cpu.cfs_period_us", "50000".into());
    // So little that it is used up on a busy machine too.
    write("cpu.cfs_quota_us", "5000".into());
    write("cpu.shares", "262144".into());
    write("cgroup.procs", spinner.pid().to_string());
    let throttled = || -> i64 {
        let stat = fs::read_to_string(group.join("cpu.stat")).unwrap();
        let line = stat.lines().find_map(|l| l.strip_prefix("throttled_time ")).unwrap();
        line.parse().unwrap()
    };
    let mut recorder = Recorder::start(targets(&[spinner.pid()])).unwrap();
    let mut rows = recorder.poll(Duration::from_millis(20)).unwrap();
    let (before, begun) = (throttled(), gpuwhy_collect::now());
    while gpuwhy_collect::now() < begun + Ns::millis(2000) {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
    }
    let (by_group, ended) = (throttled() - before, gpuwhy_collect::now());
    rows.append(&mut recorder.finish());
    let trace = Trace { rows };
    trace.check();
    let ours: Ns = trace
        .states(trace.thread("spinner").id)
        .iter()
        .filter(|(state, _)| *state == ThreadState::Throttled)
        .map(|(_, row)| Ns::overlap(begun, ended, row.ts, row.ts + row.dur.unwrap_or(Ns::ZERO)))
        .sum();
    drop(spinner);
    while fs::remove_dir(group).is_err() && group.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("throttled: {ours} by thread states, {} by cpu.stat", Ns(by_group));
    assert!(ours > Ns::millis(500), "throttled for only {ours}");
    // The group counts a throttling when it ends: one of 45 ms may lie at each edge.
    assert!((ours.0 - by_group).abs() < by_group / 50 + 90_000_000, "{ours}, {}", Ns(by_group));
}

#[test]
fn root_a_probe_that_is_off_says_so_and_wakers_are_unknown_without_interrupts() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["nap"]);
    let config = Config { off: vec!["interrupts".into()], ..targets(&[actor.pid()]) };
    let trace = record(config, 300);
    let source = trace.source("bpf:interrupts");
    assert_eq!(source.state, SourceState::Unavailable);
    assert_eq!(source.note.as_deref(), Some("switched off"));
    assert_eq!(trace.source("bpf:run_queue").state, SourceState::Degraded);
    assert!(!trace.rows.wakeup.is_empty());
    assert!(trace.rows.wakeup.iter().all(|w| w.context == WakeContext::Unknown));
}

#[test]
fn root_two_capabilities_suffice() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    // Nobody may look into root's folders: copies of this test and of the actor lie elsewhere.
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir();
    let dir = dir.unwrap();
    let (test, actor) = (dir.path().join("test"), dir.path().join("actor"));
    fs::copy(env::current_exe().unwrap(), &test).unwrap();
    fs::copy(Actor::program(), &actor).unwrap();
    let run = |capabilities: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
            .arg(format!("--inh-caps=-all{capabilities}"))
            .arg(format!("--ambient-caps=-all{capabilities}"))
            .arg(&test)
            .args(["--exact", "root_a_thread_that_wakes_another_is_named", "--nocapture"])
            .env(ACTOR, &actor)
            .output()
            .expect("setpriv is part of util-linux");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    };
    let (ok, text) = run(",+bpf,+perfmon");
    assert!(ok && !text.contains("skipped"), "{text}");
    for too_few in [",+bpf", ",+perfmon", ""] {
        let (ok, text) = run(too_few);
        assert!(ok && text.contains("skipped: ") && text.contains("capabilities"), "{text}");
    }
}

#[test]
fn root_stacks_are_sampled_only_while_detail_is_wanted_however_often_it_is() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let mut recorder = Recorder::start(Config::default()).unwrap();
    let samples = |recorder: &mut Recorder, wanted: bool| {
        recorder.detail(wanted).unwrap();
        let begun = std::time::Instant::now();
        let (mut n, mut x) = (0, 1u64);
        // Those that are wanted are waited for: this thread may not get a CPU for itself.
        let (enough, ms) = if wanted { (6, 30_000) } else { (usize::MAX, 400) };
        while n < enough && begun.elapsed() < Duration::from_millis(ms) {
            let busy = std::time::Instant::now() + Duration::from_millis(20);
            while std::time::Instant::now() < busy {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
            n += recorder.poll(Duration::from_millis(1)).unwrap().sample.len();
        }
        n
    };
    // Twice: what is attached again must not hold what was given up before.
    for _ in 0..2 {
        assert!(samples(&mut recorder, true) > 5, "this thread is busy, and is sampled");
        samples(&mut recorder, false);
        assert_eq!(samples(&mut recorder, false), 0);
    }
}
