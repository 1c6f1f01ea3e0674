//! What looking at NCCL's calls costs whoever makes them: `nccl_cost ACTOR LIBRARY`, where ACTOR is
//! `tests/nccl_actor.c`, compiled (`cc -O1 -pthread -o ACTOR ... -ldl`), and LIBRARY a libnccl.so.2.
//!
//! ns of CPU time of a call, the least and the median of 200 bursts of 100: first with nobody looking,
//! then with the recorder attached; a burst is short enough that every call is told. For
//! `ncclGroupStart` it is that of two calls, with `ncclGroupEnd`.

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
    let mut says = BufReader::new(child.stdout.take().expect("it has one"));
    let mut hears = child.stdin.take().expect("it has one");
    let mut line = String::new();
    says.read_line(&mut line).expect("it is ready");

    let pid = child.id() as i32;
    let mut measure = |recorder: Option<Recorder>| {
        let mut recorder = recorder;
        for call in CALLS {
            hears.write_all(format!("{call}\n").as_bytes()).expect("it listens");
            let until = Instant::now() + Duration::from_secs(4);
            let mut rows = 0;
            while let Some(recorder) = &mut recorder
                && Instant::now() < until
            {
                let told: Rows = recorder.poll(Duration::from_millis(10)).expect("it goes on");
                rows += told.span.len();
            }
            let mut line = String::new();
            says.read_line(&mut line).expect("it answers");
            println!("  {call}: {} ns (least, median), {rows} spans", line.trim());
        }
    };
    println!("{library}\n nobody looks");
    measure(None);
    let targets = vec![Target::Pid(pid)];
    // A function that begins with no push, for comparison.
    let (binary, symbol) = (library.into(), "ncclGetErrorString".into());
    let step = UprobeStep { binary, symbol };
    // One recorder for all calls, and nothing else on, so that only this is measured.
    let only = Config::only(&["nccl_calls", "steps"]);
    let mut recorder =
        Recorder::start(Config { targets, steps: vec![step], ..only }).expect("it starts");
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < Duration::from_secs(3) {
        let before = gpuwhy_collect::thread_time();
        recorder.poll(Duration::from_millis(10)).expect("it goes on");
        let took = gpuwhy_collect::thread_time() - before;
        longest = longest.max(Duration::from_nanos(took.0.unsigned_abs()));
    }
    println!(" attached; the longest tick, which attached, took {longest:?} of CPU");
    measure(Some(recorder));
    let _ = child.kill();
    let _ = child.wait();
}
