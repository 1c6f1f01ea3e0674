//! Verdicts while it happens, on one host and over several.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gpuwhy_testkit::eventually;
use serde_json::{Value, json};

use crate::{alone, folder, gpuwhy, may_record, said};

/// A command that is ended with its test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own() -> Command {
    Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
}

pub fn lines(out: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// The next document that is this event, of those that come within 30 s.
pub fn event(documents: &Receiver<String>, wanted: &str) -> Value {
    let by = Instant::now() + Duration::from_secs(30);
    let mut others = Vec::new();
    loop {
        let left = by.saturating_duration_since(Instant::now());
        let Ok(line) = documents.recv_timeout(left) else {
            panic!("no `{wanted}` came after:\n{}", others.join("\n"));
        };
        let value: Value = serde_json::from_str(&line).unwrap();
        if value["event"] == wanted {
            return value;
        }
        others.push(line);
    }
}

/// `watch` over a steploop that runs this long, and its documents. It has begun.
fn watched_steploop(trace: &Path, work: &Path, lasts: &str) -> (Running, Receiver<String>) {
    let mut watch = own();
    watch.args(["watch", "--json", "--events", "-", "-o", trace.to_str().unwrap()]);
    watch.args(["--max-cpu", "50", "--"]);
    watch.arg(env!("CARGO_BIN_EXE_gpuwhy")).args(["steploop", "--for", lasts, "--work-dir"]);
    let mut watch = watch.arg(work).stdout(Stdio::piped()).spawn().unwrap();
    let documents = lines(watch.stdout.take().unwrap());
    let watch = Running(watch);
    eventually("the workload has begun", || work.join("ready.json").is_file());
    (watch, documents)
}

#[test]
fn root_a_watched_program_is_judged_while_it_is_disturbed() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (_keep, folder) = folder();
    let (trace, work) = (folder.join("watch.trace"), folder.join("work"));
    let (_watch, documents) = watched_steploop(&trace, &work, "20s");
    std::thread::sleep(Duration::from_secs(10));
    // So strong that it stands out on a machine that has much else to do.
    let inject = ["inject", "sigstop", "--for", "3s", "--intensity", "4", "--work-dir"];
    let output = gpuwhy(&[&inject[..], &[work.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let label: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (onset, end) = (label["onset_ns"].as_i64().unwrap(), label["end_ns"].as_i64().unwrap());

    // Other incidents may come before it on a machine that has other things to do.
    loop {
        let over = event(&documents, "over");
        let ns = |what: &str| over["finding"][what].as_i64().unwrap();
        let causes = over["finding"]["causes"].as_array().unwrap();
        let mut classes = causes.iter().filter_map(|c| c["class"].as_str());
        if ns("to_ns") > onset
            && ns("from_ns") < end
            && classes.any(|c| c == "collective_straggler")
        {
            break;
        }
    }
    event(&documents, "ended");

    // What lay around it is in the trace, and what led up to it.
    let output = gpuwhy(&["validate", trace.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    for table in ["finding", "part", "state", "step"] {
        assert!(trace.join(table).is_dir(), "no rows of {table}");
    }
    let output = gpuwhy(&["diagnose", "--json", trace.to_str().unwrap()]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["steps"].as_u64().unwrap() > 100, "{document}");
    assert!(!document["findings"].as_array().unwrap().is_empty(), "{document}");
}

/// A server and its client for half a minute: while the file that is named is there, the server sleeps for each answer.
const SERVER: &str = r#"
import os, socket, sys, time
here, there = socket.socketpair()
until = time.monotonic() + 32
if os.fork() == 0:
    while time.monotonic() < until:
        here.send(b"?")
        here.recv(1)
        time.sleep(0.005)
    os._exit(0)
here.close()
with open(sys.argv[1] + ".pid", "w") as out:
    out.write(str(os.getpid()))
while there.recv(1):
    begun = time.monotonic()
    while time.monotonic() < begun + 0.001:
        pass
    if os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    there.send(b"!")
"#;

const SECOND: i64 = 1_000_000_000;

/// A server that was watched, and what was told of it.
struct Disturbed {
    pid: String,
    told: Vec<Value>,
}

/// Watches a server from its start to its end; in between, for four seconds the file exists that it is given, beside which
/// it writes its pid. Beside it, this command runs meanwhile.
fn disturbed(python: &str, script: &str, beside: &[&str]) -> Disturbed {
    let (_keep, folder) = folder();
    let (trace, flag) = (folder.join("watch.trace"), folder.join("disturbed"));
    let mut watch = own();
    watch.args(["watch", "--json", "--events", "-", "--max-cpu", "50", "-o"]).arg(&trace);
    watch.args(["--", python, "-c", script]).arg(&flag);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let documents = lines(watch.stdout.take().unwrap());
    let _watch = Running(watch);
    let pid_file = folder.join("disturbed.pid");
    eventually("the server has begun", || pid_file.is_file());
    std::thread::sleep(Duration::from_secs(21));
    std::fs::write(&flag, "").unwrap();
    let beside = beside
        .split_first()
        .map(|(command, words)| Running(Command::new(command).args(words).spawn().unwrap()));
    std::thread::sleep(Duration::from_secs(4));
    drop(beside);
    std::fs::remove_file(&flag).unwrap();
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    let told: Vec<Value> = documents.iter().map(|l| serde_json::from_str(&l).unwrap()).collect();
    assert_eq!(told.last().unwrap()["event"], "ended");
    Disturbed { pid, told }
}

/// What was told when a disturbance of this class was over, and all else of that server. On a machine that has much else
/// to do, a first disturbance may be judged together with others.
fn told_of(class: &str, python: &str, script: &str, beside: &[&str]) -> (Value, Disturbed) {
    for _ in 0..2 {
        let server = disturbed(python, script, beside);
        let is_it = |told: &&Value| {
            let finding = &told["finding"];
            let ns = |what: &str| finding[what].as_i64().unwrap();
            told["event"] == "over"
                && finding["outcome"] == "decided"
                && finding["class"] == class
                && ns("to_ns") - ns("from_ns") > SECOND
        };
        if let Some(over) = server.told.iter().find(is_it) {
            return (over.clone(), server);
        }
        eprintln!("no {class} in:");
        server.told.iter().for_each(|told| eprintln!("{told}"));
    }
    panic!("{class} was told neither time");
}

#[test]
fn root_a_server_of_which_nobody_named_a_step_is_judged_by_what_it_waits_for() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (over, server) = told_of("own_sleep", "python3", SERVER, &[]);
    let finding = &over["finding"];
    assert_eq!(finding["culprit"]["pid"].to_string(), server.pid, "{finding}");
    assert_eq!(finding["series"][0]["name"], "busy period", "{finding}");
    assert_eq!(server.told.last().unwrap()["units"], "busy periods");
}

/// Computes on one CPU and waits for nothing.
const SOLVER: &str = r#"
import os, sys, time
os.sched_setaffinity(0, {0})
until = time.monotonic() + 32
with open(sys.argv[1] + ".pid", "w") as out:
    out.write(str(os.getpid()))
while time.monotonic() < until:
    sum(range(100_000))
"#;

#[test]
fn root_a_program_that_only_computes_is_judged_by_its_cpu_time() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let hog = ["taskset", "-c", "0", "sh", "-c", "while :; do :; done"];
    let (over, solver) = told_of("cpu_contention", "python3", SOLVER, &hog);
    let finding = &over["finding"];
    assert_eq!(finding["culprit"]["comm"], "sh", "{finding}");
    assert_eq!(finding["series"][0]["name"], "10 ms of CPU time", "{finding}");
    assert_eq!(solver.told.last().unwrap()["units"], "work quanta");
}

/// Answers requests; while the file exists, another thread of it computes.
const THREADS: &str = r#"
import os, socket, sys, threading, time
here, there = socket.socketpair()
until = time.monotonic() + 30
if os.fork() == 0:
    while time.monotonic() < until:
        here.send(b"?")
        here.recv(1)
        time.sleep(0.005)
    os._exit(0)
here.close()
with open(sys.argv[1] + ".pid", "w") as out:
    out.write(str(os.getpid()))

def sums_up_numbers():
    total = 0
    for n in range(1_000_000):
        total += n

def computes():
    while True:
        sums_up_numbers() if os.path.exists(sys.argv[1]) else time.sleep(0.02)

threading.Thread(target=computes, daemon=True).start()
while there.recv(1):
    begun = time.monotonic()
    while time.monotonic() < begun + 0.001:
        pass
    there.send(b"!")
"#;

#[test]
fn root_a_thread_that_has_pythons_interpreter_lock_is_named_with_the_function_that_it_is_in() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (over, server) = told_of("gil_contention", "/usr/bin/python3", THREADS, &[]);
    assert_eq!(over["finding"]["culprit"]["pid"].to_string(), server.pid, "{over:#}");
    let first = |places: &str| over[places][0][0].as_str().unwrap_or_default().to_owned();
    let (was_in, waited) = (first("culprit_was_in"), first("steps_were_in"));
    assert!(was_in.contains("computes (<string>:22) > sums_up_numbers (<string>:1"), "{over:#}");
    assert!(waited.contains("<module> (<string>:"), "{over:#}");
}

#[test]
fn root_a_step_that_hangs_is_told_before_it_ends() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (_keep, folder) = folder();
    let (trace, work) = (folder.join("watch.trace"), folder.join("work"));
    let (_watch, documents) = watched_steploop(&trace, &work, "25s");
    std::thread::sleep(Duration::from_secs(10));
    let ready = std::fs::read_to_string(work.join("ready.json")).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let stopped = ready["ranks"][1]["pid"].as_i64().unwrap();
    // The shell's own: a bare Debian has no program of that name.
    let signal = |name: &str| {
        let kill = format!("kill -{name} {stopped}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    };
    signal("STOP");
    // It is still stopped when this comes. A rank that a busy machine makes late comes before it.
    let of_hang = |finding: &Value| {
        finding["culprit"]["pid"] == stopped && finding["slow_ms"].as_f64().unwrap() > 500.0
    };
    let finding = loop {
        let verdict = event(&documents, "verdict");
        if of_hang(&verdict["finding"]) {
            break verdict["finding"].clone();
        }
    };
    signal("CONT");
    assert_eq!(finding["class"], "collective_straggler", "{finding}");
    let over = loop {
        let over = event(&documents, "over");
        if over["finding"]["to_ns"].as_i64() > finding["from_ns"].as_i64() {
            break over["finding"].clone();
        }
    };
    // What it was, was told while it lasted; judged once more, with all that was slow around it,
    // no less time was lost.
    let lost = over["excess_ms"].as_f64().unwrap() * over["slow_steps"].as_f64().unwrap();
    assert!(lost > 1000.0, "{over}");
}

/// A node that is not one: what it says is what the test says.
struct Node {
    stream: TcpStream,
    asked: Receiver<String>,
}

impl Node {
    fn join(address: &str, name: &str) -> Node {
        let mut stream = TcpStream::connect(address).unwrap();
        let hello = json!({ "says": "hello", "version": 2, "node": name, "session": name });
        writeln!(stream, "{hello}").unwrap();
        let asked = lines(stream.try_clone().unwrap());
        let welcome = asked.recv_timeout(Duration::from_secs(10)).expect("an answer to hello");
        assert!(welcome.contains("welcome"), "{welcome}");
        Node { stream, asked }
    }

    fn say(&mut self, what: &Value) {
        writeln!(self.stream, "{what}").unwrap();
    }
}

/// A step of one rank, whose own work takes `own` ms and the slowest rank's `slowest` ms.
fn step(rank: u32, seq: u64, own: f64, slowest: f64) -> Value {
    let ns = |ms: f64| (ms * 1e6) as i64;
    json!({
        "rank": rank, "seq": seq, "name": "step", "size": null,
        "dur_ns": ns(slowest + 1.0), "waited_ns": ns(slowest - own + 1.0),
        "phases": [["load", ns(own)]],
    })
}

#[test]
fn the_rank_that_waits_least_is_asked_why_and_rubbish_is_hung_up_on() {
    let _alone = alone();
    let mut center = own()
        .args(["watch", "--json", "--join", "127.0.0.1:0", "--for", "60s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = lines(center.stdout.take().unwrap());
    let complaints = lines(center.stderr.take().unwrap());
    let _center = Running(center);
    let greeting = complaints.recv_timeout(Duration::from_secs(10)).unwrap();
    let address = greeting.rsplit(' ').next().unwrap().to_owned();

    let mut nodes: Vec<Node> = (0..3).map(|n| Node::join(&address, &format!("node{n}"))).collect();
    for _ in 0..3 {
        event(&told, "joined");
    }
    // Somebody who talks nonsense, and somebody from another time, do not disturb the others.
    let mut rubbish = TcpStream::connect(&address).unwrap();
    writeln!(rubbish, "GET / HTTP/1.1").unwrap();
    let mut older = TcpStream::connect(&address).unwrap();
    let hello = json!({ "says": "hello", "version": 99, "node": "x", "session": "x" });
    writeln!(older, "{hello}").unwrap();

    let mut random = 1u64;
    for seq in 0..700u64 {
        // Rank 1 is 8 ms late from step 600 on.
        let late = if seq >= 600 { 8.0 } else { 0.0 };
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        let noise = (random >> 40) as f64 / (1u64 << 24) as f64 / 4.0;
        let own = [9.0, 9.0 + late + noise, 9.0];
        for (rank, node) in nodes.iter_mut().enumerate() {
            let steps = [step(rank as u32, seq, own[rank], own[1])];
            let job = "default";
            node.say(&json!({ "says": "steps", "job": job, "steps": steps, "dropped": 0 }));
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    let straggler = event(&told, "straggler");
    assert_eq!((&straggler["rank"], &straggler["node"]), (&json!(1), &json!("node1")));

    let ask = loop {
        let line = nodes[1].asked.recv_timeout(Duration::from_secs(10)).expect("node1 is asked");
        let said: Value = serde_json::from_str(&line).unwrap();
        if said["says"] == "question" {
            break said;
        }
    };
    assert_eq!(ask["rank"], 1);
    assert!(ask["last_seq"].as_u64().unwrap() >= 600, "{ask}");
    nodes[1].say(&json!({
        "says": "answer", "id": ask["id"],
        "finding": { "outcome": "decided", "class": "block_io", "summary": "a disk, it seems" },
    }));
    let cause = event(&told, "cause");
    assert_eq!((&cause["rank"], &cause["slowness"]), (&json!(1), &json!("host-interfered")));
    assert_eq!(cause["finding"]["class"], "block_io");
    let others = nodes[0].asked.try_iter().all(|line| !line.contains("question"));
    assert!(others, "only the late rank's node is asked");
    let complaint = complaints.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(complaint.contains("not understood") || complaint.contains("version"), "{complaint}");
}
