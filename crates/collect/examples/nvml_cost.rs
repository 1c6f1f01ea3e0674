//! What the NVML source costs: `nvml_cost [SECONDS]` prints the CPU time of its thread and of the
//! whole process per minute. Without a GPU, set `GPUWHY_NVML` to the path of a stand-in library.

use std::fs;
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, cpu_time};
use gpuwhy_schema::Rows;

/// CPU time of the thread of this name in this process, in s; 0 if there is none.
fn thread_seconds(name: &str) -> f64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ours = tasks
        .map(|task| task.path())
        .find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name));
    let Some(path) = ours else { return 0.0 };
    let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(60);
    let mut recorder = Recorder::start(Config::only(&["nvml"])).expect("it starts");
    let (mut rows, mut count) = (Rows::default(), 0);
    let mut run = |time: Duration, count: &mut usize| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            rows.append(&mut recorder.poll(Duration::from_millis(10)).expect("it records"));
            *count += rows.len();
            rows = Rows::default();
        }
    };
    run(Duration::from_secs(3), &mut 0);
    let (thread, process, began) = (thread_seconds("gpuwhy-nvml"), cpu_time(), Instant::now());
    run(Duration::from_secs(seconds), &mut count);
    let took = began.elapsed().as_secs_f64();
    let minutes = took / 60.0;
    println!(
        "{took:.0} s: the thread {:.3} CPU s/min, the process {:.3}, {:.0} rows/s",
        (thread_seconds("gpuwhy-nvml") - thread) / minutes,
        (cpu_time() - process).as_secs_f64() / minutes,
        count as f64 / took
    );
}
