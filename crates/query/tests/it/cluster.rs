//! A cluster: a scheduler and two executors as processes of this machine.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// A cluster, which is stopped when it is dropped.
struct Cluster {
    scheduler: Child,
    executors: Vec<(Child, PathBuf)>,
    url: String,
}

/// A free port whose next port is free, too.
fn port() -> u16 {
    (0..64)
        .find_map(|_| {
            let one = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
            TcpListener::bind(("127.0.0.1", one)).ok()?;
            TcpListener::bind(("127.0.0.1", one.checked_add(1)?)).ok()?;
            Some(one)
        })
        .expect("two free ports beside each other")
}

fn wait_for(port: u16) {
    let end = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "nobody listens at {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Cluster {
    /// Its files in `dir`; it serves the traces below `traces`.
    fn start(dir: &Path, traces: &Path) -> Cluster {
        let role = |name: &str| {
            let log = std::fs::File::create(dir.join(format!("{name}.log"))).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-query"));
            command.stdout(Stdio::null()).stderr(log);
            command
        };
        let at = port();
        let scheduler = role("scheduler")
            .args(["scheduler", "--bind", &format!("127.0.0.1:{at}"), "--executor-timeout", "5"])
            .arg("--traces")
            .arg(traces)
            .spawn()
            .unwrap();
        wait_for(at);
        let executors = (0..2).map(|number| {
            let (port, work) = (port(), dir.join(format!("work-{number}")));
            let child = role(&format!("executor-{number}"))
                .args(["executor", "--scheduler", &format!("localhost:{at}"), "--threads", "1"])
                .args(["--bind", &format!("127.0.0.1:{port}"), "--memory", "1024"])
                .arg("--traces")
                .arg(traces)
                .arg("--work-dir")
                .arg(&work)
                .spawn()
                .unwrap();
            wait_for(port);
            (child, work)
        });
        let executors = executors.collect();
        Cluster { scheduler, executors, url: format!("df://localhost:{at}") }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.executors.iter_mut().map(|(child, _)| child).chain([&mut self.scheduler])
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn report(trace: &Path, more: &[&str]) -> Command {
    let mut command = core();
    command.args(["variability", "--json", "--interval", "10ms"]).arg(trace).args(more);
    command
}

/// Whether a file lies in a directory or below it.
fn holds_files(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|e| e.path().is_file() || holds_files(&e.path()))
    })
}

#[test]
fn a_cluster_of_processes_answers_as_one_process_does() {
    let dir = tempfile::tempdir().unwrap();
    let (_kept, trace) = small_trace();
    let cluster = Cluster::start(dir.path(), &trace);
    for sql in [
        "select ts, dur, name, gpu, process from kernels order by ts",
        "select device, shard, exposed_ns from stalls order by shard",
        "select name, dur, thread from steps",
        "select duration_quantile(dur, 0.5) as q from kernels",
        "select * from request",
    ] {
        let there =
            query(&[trace.to_str().unwrap(), sql, "--format", "csv", "--cluster", &cluster.url]);
        assert_eq!(stdout(&there), csv(&trace, sql), "{sql}");
    }
}

#[test]
fn a_cluster_gives_the_report_that_threads_give_to_the_digit() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "52000", "2");
    let cluster = Cluster::start(dir.path(), dir.path());
    let ours = run(&mut report(&trace, &[])).stdout;
    let theirs = run(&mut report(&trace, &["--cluster", &cluster.url])).stdout;
    assert_eq!(String::from_utf8(theirs).unwrap(), String::from_utf8(ours).unwrap());
    assert!(cluster.executors.iter().all(|(_, work)| holds_files(work)), "both had work");
}

#[test]
fn an_executor_that_is_killed_in_the_middle_of_a_query_changes_no_digit() {
    let dir = tempfile::tempdir().unwrap();
    let trace = generated(dir.path(), "104000", "4");
    let mut cluster = Cluster::start(dir.path(), dir.path());
    let ours = run(&mut report(&trace, &[])).stdout;
    let running = report(&trace, &["--cluster", &cluster.url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first query has left intermediate results, which later tasks need.
    let end = Instant::now() + Duration::from_secs(60);
    while !holds_files(&cluster.executors[0].1) {
        assert!(Instant::now() < end, "the executor has nothing to do");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut running = running;
    assert!(running.try_wait().unwrap().is_none(), "the query ended before an executor was killed");
    cluster.executors[0].0.kill().unwrap();
    let out = running.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8(out.stdout).unwrap(), String::from_utf8(ours).unwrap());
}

#[test]
fn a_scheduler_that_is_not_there_is_named() {
    let (_dir, trace) = small_trace();
    let url = format!("df://127.0.0.1:{}", port());
    let error = stderr(&[trace.to_str().unwrap(), "select * from kernels", "--cluster", &url]);
    assert!(error.contains(&url), "{error}");
}
