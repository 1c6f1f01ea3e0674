//! What recording NCCL's calls costs the calling process: `nccl_cost ACTOR LIBRARY`, where ACTOR is
//! `tests/nccl_actor.c`, compiled (`cc -O1 -pthread -o ACTOR ... -ldl`), and LIBRARY a libnccl.so.2.
//!
//! Prints the CPU time of a call in ns, the least and the median of 200 bursts of 100 calls: first
//! without a recorder, then with one attached. A burst is short enough that every call is recorded.
//! For `ncclGroupStart` it is the time of two calls, with `ncclGroupEnd`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Target, UprobeStep};
use gpuwhy_schema::Rows;

const CALLS: [&str; 3] = ["ncclAllReduce", "ncclGroupStart", "ncclGetErrorString"];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [actor, library] = &args[..] else { panic!("nccl_cost ACTOR LIBRARY") };
    let mut child = Command::new(actor)
        .args([library, "cost"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the actor starts");
    let mut output = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let mut input = child.stdin.take().expect("stdin is a pipe");
    let mut line = String::new();
    output.read_line(&mut line).expect("the actor is ready");

    let pid = child.id() as i32;
    let mut measure = |recorder: Option<Recorder>| {
        let mut recorder = recorder;
        for call in CALLS {
            input.write_all(format!("{call}\n").as_bytes()).expect("the actor reads");
            let until = Instant::now() + Duration::from_secs(4);
            let mut rows = 0;
            while let Some(recorder) = &mut recorder
                && Instant::now() < until
            {
                let polled: Rows = recorder.poll(Duration::from_millis(10)).expect("it records");
                rows += polled.span.len();
            }
            let mut line = String::new();
            output.read_line(&mut line).expect("the actor answers");
            println!("  {call}: {} ns (least, median), {rows} spans", line.trim());
        }
    };
    println!("{library}\n without a recorder");
    measure(None);
    let targets = vec![Target::Pid(pid)];
    // For comparison, a function whose first instruction is no push (a uprobe on it is slower).
    let (binary, symbol) = (library.into(), "ncclGetErrorString".into());
    let step = UprobeStep { binary, symbol };
    // One recorder for all calls with no other probe, so that only these are measured.
    let only = Config::only(&["nccl_calls", "steps"]);
    let mut recorder =
        Recorder::start(Config { targets, steps: vec![step], ..only }).expect("it starts");
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < Duration::from_secs(3) {
        let before = gpuwhy_collect::thread_time();
        recorder.poll(Duration::from_millis(10)).expect("it records");
        let took = gpuwhy_collect::thread_time() - before;
        longest = longest.max(Duration::from_nanos(took.0.unsigned_abs()));
    }
    println!(" with a recorder; its longest poll, which attached, took {longest:?} of CPU time");
    measure(Some(recorder));
    let _ = child.kill();
    let _ = child.wait();
}
