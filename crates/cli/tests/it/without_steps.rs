//! Recordings of a host in which no program marks steps.

use std::path::Path;

use gpuwhy_schema::{
    Counter, Discipline, EntityId, EntityKind, Id, Lane, Lanes, Mark, Measure, Ns, Rows, SourceId,
    Span, State, Step, ThreadState, TrackId, WakeContext, Wakeup, names,
};
use gpuwhy_store::{Options, Writer};
use serde_json::Value;

use crate::{folder, gpuwhy, said};

const MS: i64 = 1_000_000;
const FUTEX: i64 = 202;
const EPOLL: i64 = 232;
const SLEEP: i64 = 230;

/// A host on which one thread of a server is recorded, its helper, and a neighbour on the same CPU.
struct Host {
    lanes: Lanes,
    rows: Rows,
    source: SourceId,
    main: EntityId,
    helper: EntityId,
    neighbour: EntityId,
    states: TrackId,
    occupants: TrackId,
    wakeups: TrackId,
    at: i64,
    ids: u64,
    random: u64,
}

impl Host {
    fn new() -> Host {
        let mut lanes = Lanes::default();
        let source = lanes.source("bpf:run_queue", "gpuwhy", "1", "");
        let mut process = |name: &str, pid: i64| {
            lanes.entity(EntityKind::Process, name, |e| {
                (e.name, e.number) = (name.into(), Some(pid));
            })
        };
        let (server, fio) = (process("server", 10), process("fio", 20));
        let mut thread = |name: &str, tid: i64, parent| {
            lanes.entity(EntityKind::Thread, &tid.to_string(), |e| {
                (e.name, e.number, e.parent) = (name.into(), Some(tid), Some(parent));
            })
        };
        let (main, helper) = (thread("server", 10, server), thread("helper", 11, server));
        let neighbour = thread("fio", 20, fio);
        let cpu = lanes.entity(EntityKind::Cpu, "0", |e| e.number = Some(0));
        let sparse = |name| Lane::states(name, Discipline::Sparse);
        let states = lanes.track(main, None, sparse(names::THREAD_STATE), source);
        let wakeups = lanes.track(main, None, Lane::marks(names::WAKEUPS), source);
        let occupants = lanes.track(cpu, None, sparse(names::OCCUPANT), source);
        Host {
            lanes,
            rows: Rows::default(),
            source,
            main,
            helper,
            neighbour,
            states,
            occupants,
            wakeups,
            at: 0,
            ids: 0,
            random: 1,
        }
    }

    /// From 1 to `most`, the same in every run.
    fn any(&mut self, most: i64) -> i64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.random >> 33) as i64 % most + 1
    }

    fn state(&mut self, state: ThreadState, arg: i64, ns: i64) {
        let (ts, dur, value) = (Ns(self.at), Some(Ns(ns)), state.code());
        self.rows.state.push(State { ts, dur, track: self.states, value, arg: Some(arg) });
        self.at += ns;
    }

    fn run(&mut self, ns: i64) {
        self.state(ThreadState::Running, 0, ns);
    }

    /// Ready to run, while the neighbour has the CPU.
    fn behind(&mut self, ns: i64) {
        let (ts, dur, value) = (Ns(self.at), Some(Ns(ns)), self.neighbour.0.into());
        self.rows.state.push(State { ts, dur, track: self.occupants, value, arg: None });
        self.state(ThreadState::Runnable, 0, ns);
    }

    /// Asleep in a system call, until somebody wakes it.
    fn sleep(&mut self, call: i64, ns: i64, waker: Option<EntityId>) {
        self.state(ThreadState::Sleep, call, ns);
        self.ids += 1;
        let (id, ts, woken) = (Id::new(0, self.ids), Ns(self.at), self.main);
        let context = if waker.is_some() { WakeContext::Task } else { WakeContext::Hardirq };
        let (track, name) = (self.wakeups, "wakeup".into());
        self.rows.mark.push(Mark { id, ts, track, name, value: None });
        self.rows.wakeup.push(Wakeup { id, ts, woken, waker, context, cpu: 0 });
    }

    /// What a process took of the CPUs, ten times a second from `from` to `to`, in s.
    fn took(&mut self, thread: EntityId, (from, to): (i64, i64), cpus: f64) {
        let process = self.lanes.get(thread).unwrap().parent.unwrap();
        let lane = Lane::counter(names::CPU_TIME, "ns", Measure::Delta);
        let track = self.lanes.track(process, None, lane, self.source);
        for tick in from * 10 + 1..=to * 10 {
            let (ts, value) = (Ns(tick * 100 * MS), cpus * 1e8);
            self.rows.counter.push(Counter { ts, track, value });
        }
    }

    /// Each time that the server runs, it calls a function that was named as a step, for as long as `took` says of how long it runs.
    fn calls(&mut self, took: impl Fn(i64) -> i64) {
        let source = self.lanes.source("bpf:steps", "gpuwhy", "1", "");
        let lane = Lane::spans(names::STEPS, Discipline::Overlap);
        let track = self.lanes.track(self.main, None, lane, source);
        let runs = self.rows.state.iter().filter(|state| {
            state.track == self.states && state.value == ThreadState::Running.code()
        });
        for (seq, run) in runs.enumerate() {
            self.ids += 1;
            let (id, ts, dur) = (Id::new(0, self.ids), run.ts, run.dur.map(|ns| Ns(took(ns.0))));
            let (name, thread) = ("processCommand".into(), self.main);
            self.rows.span.push(Span { id, ts, dur, track, parent: None, name });
            let (seq, size, rank) = (seq as u64, None, None);
            self.rows.step.push(Step { id, ts, thread, seq, size, rank });
        }
    }

    fn judged(mut self, folder: &Path) -> (String, Value, String) {
        self.lanes.drain(&mut self.rows);
        let path = folder.join("made.trace");
        let mut writer = Writer::create(&path, Options::default()).unwrap();
        writer.append(&mut self.rows).unwrap();
        writer.finish().unwrap();
        let (path, page) = (path.to_str().unwrap(), folder.join("page.html"));
        let output = gpuwhy(&["validate", path]);
        assert!(output.status.success(), "{}", said(&output));
        let text = gpuwhy(&["diagnose", path, "--html", page.to_str().unwrap()]);
        let json = gpuwhy(&["diagnose", path, "--json"]);
        let document = serde_json::from_slice(&json.stdout).unwrap();
        let text = String::from_utf8(text.stdout).unwrap();
        (text, document, std::fs::read_to_string(page).unwrap())
    }
}

/// Requests of any size at any time, of which the helper does some; from 12 s to 18 s a neighbour takes the CPU for
/// two thirds of each.
fn a_server_without_rhythm() -> Host {
    let mut host = Host::new();
    let helper = host.helper;
    while host.at < 40_000 * MS {
        let work = host.any(20) * MS;
        host.run(work);
        if (12_000 * MS..18_000 * MS).contains(&host.at) {
            host.behind(2 * work);
        }
        match host.any(3) {
            1 => host.sleep(FUTEX, work / 2, Some(helper)),
            _ => {
                let until_next = host.any(30) * MS / 3;
                host.sleep(EPOLL, until_next, None);
            }
        }
    }
    let (main, neighbour) = (host.main, host.neighbour);
    host.took(main, (0, 40), 0.5);
    host.took(neighbour, (0, 12), 0.01);
    host.took(neighbour, (12, 18), 0.6);
    host.took(neighbour, (18, 40), 0.01);
    host
}

#[test]
fn the_busy_periods_of_a_server_are_judged_and_it_is_told_where_the_time_went_and_who_waited_for_whom()
 {
    let (_keep, folder) = folder();
    let (text, document, page) = a_server_without_rhythm().judged(&folder);
    assert_eq!(document["rounds"][0]["of"], "busy_periods", "{document:#}");
    assert_eq!(document["verdict"], "found", "{document:#}");
    let finding = &document["findings"][0];
    assert_eq!(finding["class"], "cpu_contention", "{text}");
    assert_eq!(finding["culprit"]["pid"], 20, "{text}");
    let near = |at: &str, s: f64| (finding[at].as_i64().unwrap() as f64 / 1e9 - s).abs() <= 1.5;
    assert!(near("from_ns", 12.0) && near("to_ns", 18.0), "{finding:#}");
    assert!(text.contains("busy periods of its threads, from one wait for work to the next"));
    let threads = &document["threads"];
    let first = &threads["threads"][0];
    assert_eq!((&first["tid"], &first["pid"]), (&10.into(), &10.into()), "{threads:#}");
    let shares: f64 =
        first["shares"].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 0.01, "{first:#}");
    let waited = first["waited_for"].as_array().unwrap();
    let whom: Vec<(&str, &str)> = waited
        .iter()
        .map(|w| (w["doing"].as_str().unwrap(), w["whom"].as_str().unwrap()))
        .collect();
    assert!(whom.contains(&("futex", "helper (tid 11)")), "{whom:?}");
    assert!(whom.contains(&("runnable", "fio (pid 20)")), "{whom:?}");

    let changes = threads["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{changes:#?}");
    for change in changes {
        let near = |at: &str, s: f64| (change[at].as_i64().unwrap() as f64 / 1e9 - s).abs() <= 0.5;
        assert!(near("from_ns", 12.0) && near("to_ns", 18.0), "{change:#}");
    }
    let of = |who: &str| changes.iter().find(|c| c["who"].as_str() == Some(who)).unwrap();
    let server = of("server (tid 10)");
    assert_eq!(server["what"][0]["what"], "runnable", "{server:#}");
    assert_eq!(server["waited_for"][0]["what"], "for a CPU behind fio (pid 20)", "{server:#}");
    let fio = of("fio (pid 20)");
    assert_eq!(fio["what"][0]["what"], "CPUs", "{fio:#}");
    assert!((fio["what"][0]["then"].as_f64().unwrap() - 0.6).abs() < 0.05, "{fio:#}");

    for part in [
        "Where the time of the busiest threads went, in 40.0 s",
        "server (tid 10): running ",
        "in a futex for helper (tid 11)",
        "fio (pid 20): took 0.60 CPUs instead of 0.01",
        "not known: which times are the sound ones",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for id in ["threads", "changes", "cpus"] {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    assert!(page.contains("for a CPU behind fio (pid 20)"));
}

#[test]
fn the_rhythm_of_a_busy_threads_waits_stands_in_for_steps_and_its_slow_rounds_are_explained() {
    let (_keep, folder) = folder();
    let mut host = Host::new();
    let helper = host.helper;
    while host.at < 40_000 * MS {
        host.run(8 * MS);
        if (25_000 * MS..30_000 * MS).contains(&host.at) {
            host.behind(6 * MS);
        }
        let noise = host.any(400) * 1000;
        host.sleep(FUTEX, 2 * MS + noise, Some(helper));
    }
    let (text, document, _) = host.judged(&folder);
    let rounds = &document["rounds"][0];
    assert_eq!((&rounds["of"], &rounds["each"]), (&"futex_waits".into(), &1.into()), "{text}");
    assert_eq!(document["verdict"], "found", "{text}");
    let finding = &document["findings"][0];
    assert_eq!(finding["class"], "cpu_contention", "{text}");
    assert_eq!(finding["culprit"]["pid"], 20, "{text}");
    assert!((finding["excess_ms"].as_f64().unwrap() - 6.0).abs() < 0.3, "{text}");
    assert!(text.contains("from one wait for another thread to the next"), "{text}");
}

#[test]
fn a_thread_that_does_next_to_nothing_has_no_rounds_however_regularly_it_does_it() {
    let (_keep, folder) = folder();
    let mut host = Host::new();
    let helper = host.helper;
    while host.at < 40_000 * MS {
        host.run(2 * MS);
        host.sleep(FUTEX, 98 * MS, Some(helper));
    }
    let (text, document, _) = host.judged(&folder);
    assert_eq!(document["verdict"], "no_steps", "{text}");
    assert!(text.contains("in a futex 98 %, running 2 %"), "{text}");
    assert!(text.contains("Nothing changed by much for long"), "{text}");
}

/// A solver, from which a neighbour takes half of its CPU for some seconds.
#[test]
fn a_thread_that_only_computes_is_judged_by_its_cpu_time() {
    let (_keep, folder) = folder();
    let mut host = Host::new();
    while host.at < 40_000 * MS {
        let ran = host.any(4) * MS;
        host.run(ran);
        if (25_000 * MS..30_000 * MS).contains(&host.at) {
            host.behind(ran);
        }
    }
    let neighbour = host.neighbour;
    host.took(neighbour, (0, 25), 0.01);
    host.took(neighbour, (25, 30), 0.5);
    host.took(neighbour, (30, 40), 0.01);
    let (text, document, page) = host.judged(&folder);
    assert_eq!(document["rounds"][0]["of"], "work_quanta", "{text}");
    assert_eq!(document["verdict"], "found", "{text}");
    let finding = &document["findings"][0];
    assert_eq!(finding["class"], "cpu_contention", "{text}");
    assert_eq!(finding["culprit"]["pid"], 20, "{text}");
    let near = |at: &str, s: f64| (finding[at].as_i64().unwrap() as f64 / 1e9 - s).abs() <= 0.1;
    assert!(near("from_ns", 25.0) && near("to_ns", 30.0), "{finding:#}");
    assert!((finding["excess_ms"].as_f64().unwrap() - 10.0).abs() < 1.0, "{text}");
    assert!(
        text.contains("times 10 ms of CPU time of its threads, which hardly ever wait"),
        "{text}"
    );
    assert!(page.contains("10 ms of CPU time took"), "{text}");
}

/// It does something and sleeps, as long as it likes; for some seconds a neighbour has the CPU when it wakes up.
#[test]
fn a_thread_that_paces_itself_is_judged_from_one_sleep_to_the_next() {
    let (_keep, folder) = folder();
    let mut host = Host::new();
    while host.at < 40_000 * MS {
        let pause = host.any(30) * MS;
        host.sleep(SLEEP, pause, None);
        if (25_000 * MS..30_000 * MS).contains(&host.at) {
            host.behind(3 * MS);
        }
        let ran = MS + host.any(300) * 1000;
        host.run(ran);
    }
    let (text, document, _) = host.judged(&folder);
    assert_eq!(document["rounds"][0]["of"], "busy_periods", "{text}");
    let finding = &document["findings"][0];
    assert_eq!(
        (&finding["class"], &finding["culprit"]["pid"]),
        (&"cpu_contention".into(), &20.into()),
        "{text}"
    );
}

#[test]
fn of_a_short_recording_the_time_is_told_and_that_no_change_can_be() {
    let (_keep, folder) = folder();
    let mut host = Host::new();
    while host.at < 2_000 * MS {
        let work = host.any(20) * MS;
        host.run(work);
        let pause = host.any(30) * MS;
        host.sleep(EPOLL, pause, None);
    }
    let (text, document, page) = host.judged(&folder);
    assert_eq!(document["threads"]["compared"], false, "{text}");
    let why = "whether anything changed: the recording is 2.0 s long, and 5 s are needed";
    assert!(text.contains(why) && page.contains(why), "{text}");
}

/// A function that runs for a quarter of a millisecond of each request, and one that does all of it but wait.
#[test]
fn busy_periods_are_judged_beside_calls_of_a_function_that_does_the_least_of_the_work() {
    let (_keep, folder) = folder();
    let mut host = a_server_without_rhythm();
    host.calls(|_| MS / 4);
    let (text, document, page) = host.judged(&folder);
    let finding = &document["findings"][0];
    assert_eq!(finding["class"], "cpu_contention", "{text}");
    assert_eq!(finding["culprit"]["pid"], 20, "{text}");
    assert_eq!(finding["series"][0]["name"], "busy period", "{finding:#}");
    assert_eq!(document["rounds"][0]["of"], "busy_periods", "{document:#}");
    for of in [&text, &page] {
        assert!(of.contains("do the least of what their processes do"), "{of}");
    }
    let (_keep, folder) = crate::folder();
    let mut host = a_server_without_rhythm();
    host.calls(|ran| ran);
    let (text, document, _) = host.judged(&folder);
    assert!(document["rounds"].is_null(), "{text}");
}
