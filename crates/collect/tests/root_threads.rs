//! Real threads that run, wake each other, are stopped and are throttled. Each test compares the
//! recorded rows with what the threads did.
//!
//! All tests load BPF programs, which needs root or CAP_BPF with CAP_PERFMON. Without them each test
//! prints why it was skipped.

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

/// One recording at a time: two would contend for the CPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The environment variable with the path of the compiled `actor.c`, for a test that runs as a user
/// who cannot read the target folder.
const ACTOR: &str = "GPUWHY_TEST_ACTOR";

/// A process of `actor.c`, killed when it is dropped.
struct Actor(Child);

/// A command line run by `sh`: its built-in `kill` works where no program `kill` is installed.
fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}

impl Actor {
    fn new(args: &[&str]) -> Actor {
        let child = Command::new(Actor::program())
            .args(args)
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
            let status = Command::new("cc")
                .args(["-O1", "-g", "-pthread", "-o"])
                .args([&program, &source])
                .status()
                .expect("rustc links with cc, so it is installed");
            assert!(status.success(), "actor.c compiles");
            program
        };
        PROGRAM.get_or_init(|| env::var_os(ACTOR).map_or_else(compile, PathBuf::from)).clone()
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn send(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, name: &str) {
        let status = shell(&format!("kill {name} {}", self.pid())).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether BPF programs can be loaded here; prints what is missing if not.
fn privileged() -> bool {
    static MISSING: OnceLock<Option<host::Check>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| host::checks().into_iter().find(|c| c.needed && !c.ok));
    if let Some(check) = missing {
        println!("skipped: {}: {}; {}", check.name, check.found, check.fix);
    }
    missing.is_none()
}

fn targets(pids: &[i32]) -> Config {
    Config { targets: pids.iter().map(|&p| Target::Pid(p)).collect(), ..Config::default() }
}

/// Records for some time.
fn record(config: Config, millis: u64) -> Trace {
    let mut recorder = Recorder::start(config).unwrap();
    let mut rows = Rows::default();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(millis) {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
    }
    let watched = |process: &&Entity| recorder.is_watched(process.id);
    let watched = rows.entity.iter().filter(watched).map(|process| process.id).collect();
    rows.append(&mut recorder.finish());
    let trace = Trace { rows, watched };
    trace.check();
    trace
}

/// The recorded rows, and which processes were watched at the end.
struct Trace {
    rows: Rows,
    watched: Vec<EntityId>,
}

impl Trace {
    fn entity(&self, id: EntityId) -> &Entity {
        self.rows.entity.iter().rev().find(|e| e.id == id).expect("entities are declared")
    }

    /// The thread of this name that was declared last.
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

    /// For how long a thread waited for CPU 0, and who had it meanwhile, by the number of the thread.
    fn occupants(&self, thread: EntityId) -> (Ns, BTreeMap<i64, Ns>) {
        let track = self.track(self.cpu(0), names::OCCUPANT).expect("CPU 0 has occupants").id;
        let mut occupied: BTreeMap<i64, Ns> = BTreeMap::new();
        for (state, wait) in self.states(thread) {
            if state != ThreadState::Runnable {
                continue;
            }
            assert_eq!(wait.arg, Some(0), "the thread is pinned to CPU 0");
            let end = wait.ts + wait.dur.unwrap_or(Ns::ZERO);
            for row in self.rows.state.iter().filter(|s| s.track == track) {
                let time = Ns::overlap(wait.ts, end, row.ts, row.ts + row.dur.unwrap());
                *occupied.entry(row.value).or_default() += time;
            }
        }
        (self.time_in(thread, ThreadState::Runnable), occupied)
    }

    fn source(&self, kind: &str) -> &Source {
        self.rows.source.iter().rev().find(|s| &*s.kind == kind).unwrap()
    }

    /// Checks what holds in every recording: the states of a thread or CPU do not overlap, and the
    /// states of a target have no gap unless records were lost.
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
                    // The wakers of a target are recorded for a limited time only.
                    assert!(gap > Ns::secs(9), "{gap} between {:?} and {:?}", pair[0], pair[1]);
                }
            }
        }
        for wakeup in &self.rows.wakeup {
            let task = wakeup.context == WakeContext::Task;
            assert!(task || wakeup.waker.is_none(), "{wakeup:?} names an interrupted thread");
        }
    }
}

#[test]
fn root_the_thread_that_occupies_the_cpu_of_a_waiting_thread_is_named() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let _spinner = Actor::new(&["spin", "0"]);
    let pacer = Actor::new(&["pace", "0"]);
    let trace = record(targets(&[pacer.pid()]), 1500);

    let pacer = trace.thread("pacer").id;
    let spinner = trace.thread("spinner").id;
    let (waited, occupied) = trace.occupants(pacer);
    assert!(waited > Ns::millis(100), "waited only {waited}");
    let known: Ns = occupied.values().copied().sum();
    assert!(known.0 * 100 >= waited.0 * 95, "of {waited} only {known} is accounted for");
    let most = occupied.iter().max_by_key(|(_, time)| **time).unwrap().0;
    assert_eq!(*most, i64::from(spinner.0), "{occupied:?}");
}

#[test]
fn root_threads_that_yield_to_each_other_all_the_time_are_recorded_without_loss() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let yielder = Actor::new(&["yield", "0"]);
    let trace = record(targets(&[yielder.pid()]), 1000);
    let source = trace.source("bpf:run_queue");
    assert_eq!(source.dropped, 0);
    assert!(source.recorded < 8_000, "{} records in a second", source.recorded);
    let threads = [trace.thread("yielder").id, trace.thread("yields too").id];
    let times = threads.map(|thread| {
        let states = trace.states(thread);
        let (first, last) = (states[0].1.ts, states.last().unwrap().1.ts);
        let [ran, waited] = [ThreadState::Running, ThreadState::Runnable]
            .map(|state| trace.time_in(thread, state).0 as f64 / (last - first).0 as f64);
        assert!((0.95..1.05).contains(&(ran + waited)), "{ran} {waited}");
        ran
    });
    let both = times[0] + times[1];
    assert!((0.85..1.1).contains(&both), "they ran on one CPU: {times:?}");
}

#[test]
fn root_who_had_the_cpu_that_a_yielding_thread_did_not_get_back_is_named() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let _spinner = Actor::new(&["spin", "0"]);
    let yielder = Actor::new(&["yield", "0"]);
    let trace = record(targets(&[yielder.pid()]), 1000);
    let spinner = trace.thread("spinner").id;
    for name in ["yielder", "yields too"] {
        let (waited, occupied) = trace.occupants(trace.thread(name).id);
        assert!(waited > Ns::millis(300), "{name} waited only {waited}");
        let by_spinner = occupied.get(&i64::from(spinner.0)).copied().unwrap_or_default();
        assert!(by_spinner.0 * 100 >= waited.0 * 80, "{name}: {occupied:?} of {waited}");
    }
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
    // The thread sleeps in futex(2), which is number 202 on x86-64 and 98 on arm64.
    let futex = if cfg!(target_arch = "x86_64") { 202 } else { 98 };
    let states = trace.states(asker.id);
    let sleeps: Vec<_> = states.iter().filter(|(s, _)| *s == ThreadState::Sleep).collect();
    let in_futex = sleeps.iter().filter(|(_, row)| row.arg == Some(futex)).count();
    assert!(in_futex * 10 >= sleeps.len() * 9, "{in_futex} of {}", sleeps.len());
}

#[test]
fn root_a_thread_that_a_timer_wakes_has_no_waker() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["nap"]);
    // Without spinners the CPUs are idle when the timer fires; with them an unrelated thread is the
    // current one, which a naive recorder would call the waker.
    let _spinners = [Actor::new(&["spin", "0"]), Actor::new(&["spin", "1"])];
    let trace = record(targets(&[actor.pid()]), 800);
    let napper = trace.thread("napper").id;
    let wakeups: Vec<_> = trace.rows.wakeup.iter().filter(|w| w.woken == napper).collect();
    assert!(wakeups.len() > 20, "{} wakeups", wakeups.len());
    for wakeup in wakeups {
        assert_eq!((wakeup.context, wakeup.waker), (WakeContext::Hardirq, None), "{wakeup:?}");
    }
    let sleep = trace.time_in(napper, ThreadState::Sleep);
    assert!(sleep > Ns::millis(400), "the napper sleeps most of the time: {sleep}");
}

#[test]
fn root_who_holds_a_lock_of_a_file_that_is_tried_in_vain_is_named() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    for how in ["fcntl", "flock"] {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tried.{how}"));
        let file = file.to_str().unwrap();
        let mut holder = Actor::new(&["hold", file, how]);
        assert_eq!(holder.read_line(), "held");
        let trier = Actor::new(&["try", file, how]);
        let trace = record(targets(&[trier.pid()]), 800);
        let track = trace.track(trace.thread("trier").id, names::FILE_LOCK_HOLDER);
        let track = track.unwrap_or_else(|| panic!("no try by {how} was seen")).id;
        let rows: Vec<_> = trace.rows.state.iter().filter(|s| s.track == track).collect();
        assert!(rows.len() > 50, "{} tries in vain", rows.len());
        let holder = i64::from(holder.pid());
        for row in &rows {
            let named = trace.entity(EntityId(row.value as u32));
            assert_eq!((named.kind, named.number), (EntityKind::Thread, Some(holder)));
        }
        let waited: Ns = rows.iter().filter_map(|row| row.dur).sum();
        assert!(waited > Ns::millis(400), "it waits most of the time: {waited}");
    }
}

#[test]
fn root_packets_over_loopback_are_softirq_time() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["flood", "0"]);
    let trace = record(targets(&[actor.pid()]), 800);
    let track = trace.track(trace.cpu(0), "softirq.NET_RX").expect("CPU 0 received packets").id;
    let net: f64 = trace.rows.counter.iter().filter(|c| c.track == track).map(|c| c.value).sum();
    assert!(net > 50e6, "{net} ns of NET_RX");
    let flooder = trace.thread("flooder").id;
    let softirq = trace.time_in(flooder, ThreadState::Softirq);
    assert!(softirq > Ns::millis(50), "only {softirq} in the flooder's own slices");
    let states = trace.states(flooder);
    let net_rx =
        states.iter().filter(|(s, row)| *s == ThreadState::Softirq && row.arg == Some(3)).count();
    assert!(net_rx > 0, "NET_RX took most of a slice");
    assert!(softirq.0 as f64 <= net * 1.1 + 20e6, "{softirq} in one thread, {net} on its CPU");
}

#[test]
fn root_child_processes_are_recorded_and_named_by_the_program_they_execute() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let actor = Actor::new(&["fork"]);
    let trace = record(targets(&[actor.pid()]), 1000);
    let child = trace.thread("napper");
    assert!(trace.states(child.id).len() > 50, "the child's states are recorded");
    let process = trace.entity(child.parent.unwrap());
    assert_ne!(process.number, Some(i64::from(actor.pid())), "the child is another process");
    assert_eq!(&*process.name, "napper", "named by the program it executes");
    assert!(trace.watched.contains(&process.id), "it descends from a target");
    let parent = trace.thread("parent").id;
    let last = trace.states(parent).pop().expect("the parent has states");
    assert_eq!((last.0, last.1.dur), (ThreadState::Sleep, None), "the parent still sleeps");
}

#[test]
fn root_wakers_of_wakers_are_recorded_as_far_as_hops_allow() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let mut actor = Actor::new(&["chain"]);
    let first: i32 = actor.read_line().parse().unwrap();
    let record = |hops| record(Config { hops, ..targets(&[first]) }, 700);

    let trace = record(2);
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
    let is_watched = |name| trace.watched.contains(&trace.thread(name).parent.unwrap());
    assert_eq!(["first", "second", "third"].map(is_watched), [true, false, false]);
    assert!(woken_by("first", "third") > 20);
    assert!(woken_by("third", "second") > 20);

    let trace = record(0);
    let first = trace.thread("first").id;
    assert!(!trace.states(first).is_empty());
    let others = trace
        .rows
        .track
        .iter()
        .filter(|t| &*t.name == names::THREAD_STATE && t.entity != first)
        .count();
    assert_eq!(others, 0, "without hops only the target is recorded");
}

#[test]
fn root_records_lost_in_a_full_ring_are_counted_and_the_others_are_consistent() {
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
fn root_the_sender_of_a_stop_signal_is_recorded() {
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
        Trace { rows, watched: Vec::new() }
    };
    trace.check();
    let napper = trace.thread("napper");
    let states = trace.states(napper.id);
    let stopped: Vec<_> = states.iter().filter(|(s, _)| *s == ThreadState::Stopped).collect();
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    assert!(stopped[0].1.dur.unwrap() > Ns::millis(50));
    assert_eq!(stopped[0].1.arg, Some(sender));
    let process = napper.parent.unwrap();
    let track = trace.track(process, names::SIGNALS).expect("two signals were sent").id;
    let marks: Vec<_> = trace.rows.mark.iter().filter(|m| m.track == track).collect();
    let names: Vec<&str> = marks.iter().map(|m| &*m.name).collect();
    assert_eq!(names, ["SIGSTOP", "SIGCONT"]);
    assert_eq!(marks[0].value, Some(sender as f64));
}

#[test]
fn root_a_thread_that_sleeps_during_the_whole_recording_has_one_sleep_state() {
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
    actor.send("go\n");
    for _ in 0..60 {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
    }
    assert_eq!(actor.read_line(), "100", "it called each function 100 times");
    rows.append(&mut recorder.finish());
    let trace = Trace { rows, watched: Vec::new() };
    trace.check();

    let spans = |name: &str| -> Vec<&gpuwhy_schema::Span> {
        trace.rows.span.iter().filter(|s| &*s.name == name).collect()
    };
    let serve = spans("serve");
    assert_eq!(serve.len(), 100, "a recursive call is no step");
    assert!(serve.iter().all(|s| s.dur.unwrap() > Ns::millis(2)), "each sleeps for 2 ms");
    let leap = spans("leap");
    assert_eq!(leap.len(), 90, "a call left by longjmp has no end and is no step");
    let lost = trace.source("bpf:steps").dropped;
    // A call left by longjmp is noticed at the next call, and the last of the 10 has one after it.
    assert_eq!(lost, 10);

    let server = trace.thread("server").id;
    let (steps, waits): (Vec<_>, Vec<_>) = (trace.rows.step.iter())
        .filter(|s| s.thread == server)
        .partition(|step| serve.iter().chain(&leap).any(|span| span.id == step.id));
    assert_eq!(steps.len(), 190);
    // What a call waited for a CPU before it began is a step of its own, under its own name.
    for wait in &waits {
        let span = trace.rows.span.iter().find(|span| span.id == wait.id).expect("its span");
        assert!(matches!(&*span.name, "wait before serve" | "wait before leap"), "{}", span.name);
    }
    let mut seq: Vec<u64> =
        serve.iter().map(|s| steps.iter().find(|t| t.id == s.id).unwrap().seq).collect();
    seq.sort_unstable();
    assert_eq!(seq, (0..100).collect::<Vec<_>>());
    // A process with steps becomes a target: its thread states cover each step.
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
    assert_eq!(inside, whole, "every ns of a step has a thread state");
}

#[test]
fn root_a_missing_function_is_refused_with_similar_names() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let step = UprobeStep { binary: Actor::program(), symbol: "serv".into() };
    let error = Recorder::start(Config { steps: vec![step], ..Config::default() })
        .err()
        .expect("the actor has no such function");
    let text = error.to_string();
    assert!(text.starts_with("no function `serv` in `"), "{text}");
    assert!(text.ends_with("; similar names are serve"), "{text}");
}

#[test]
fn root_throttled_time_of_a_thread_agrees_with_its_cgroup() {
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
    // Small enough to be used up on a busy machine too.
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
    let (before, begin) = (throttled(), gpuwhy_collect::now());
    while gpuwhy_collect::now() < begin + Ns::millis(2000) {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
    }
    let (by_group, end) = (throttled() - before, gpuwhy_collect::now());
    rows.append(&mut recorder.finish());
    let trace = Trace { rows, watched: Vec::new() };
    trace.check();
    let by_states: Ns = trace
        .states(trace.thread("spinner").id)
        .iter()
        .filter(|(state, _)| *state == ThreadState::Throttled)
        .map(|(_, row)| Ns::overlap(begin, end, row.ts, row.ts + row.dur.unwrap_or(Ns::ZERO)))
        .sum();
    drop(spinner);
    while fs::remove_dir(group).is_err() && group.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("throttled: {by_states} by thread states, {} by cpu.stat", Ns(by_group));
    assert!(by_states > Ns::millis(500), "throttled for only {by_states}");
    // The cgroup counts a throttling when it ends, so that one of 45 ms may be missing or added at
    // each end of the measured time.
    let difference = (by_states.0 - by_group).abs();
    assert!(difference < by_group / 50 + 90_000_000, "{by_states}, {}", Ns(by_group));
}

#[test]
fn root_a_disabled_probe_is_noted_and_without_interrupts_wakers_are_unknown() {
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
    // Other users cannot read root's folders, so that they run copies of this test and of the actor.
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
fn root_stacks_are_sampled_while_detail_is_on_each_time() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if !privileged() {
        return;
    }
    let mut recorder = Recorder::start(Config::default()).unwrap();
    let samples = |recorder: &mut Recorder, detail: bool| {
        recorder.detail(detail).unwrap();
        let begin = Instant::now();
        let (mut n, mut x) = (0, 1u64);
        // With detail on, wait for samples: on a busy machine this thread gets little CPU time.
        let (enough, ms) = if detail { (6, 30_000) } else { (usize::MAX, 400) };
        while n < enough && begin.elapsed() < Duration::from_millis(ms) {
            let busy = Instant::now() + Duration::from_millis(20);
            while Instant::now() < busy {
                x = std::hint::black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1));
            }
            n += recorder.poll(Duration::from_millis(1)).unwrap().sample.len();
        }
        n
    };
    // Twice: attaching again must not reuse the perf events that were closed.
    for _ in 0..2 {
        assert!(samples(&mut recorder, true) > 5, "this busy thread is sampled");
        samples(&mut recorder, false);
        assert_eq!(samples(&mut recorder, false), 0);
    }
}
