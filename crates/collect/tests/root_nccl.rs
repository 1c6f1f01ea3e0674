//! NCCL calls recorded from outside the process: a child process calls the real library, or a
//! stand-in whose calls succeed, and each test compares the recorded rows with those calls.
//!
//! Needs root or CAP_BPF with CAP_PERFMON. The real library is read from `$GPUWHY_NCCL_LIBS` or from
//! where `scripts/nccl.sh` puts it. Without them each test prints why it was skipped.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Target};
use gpuwhy_schema::{Rows, SourceState, Span, names};

/// One recording at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How long a recording may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

fn privileged() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !root {
        println!("skipped: loading BPF programs needs root");
    }
    root
}

/// Compiles a C file of this folder.
fn compiled(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new("cc")
        .args(["-O1", "-pthread"])
        .args(flags)
        .arg("-o")
        .args([&binary, &source])
        .arg("-ldl")
        .status()
        .expect("rustc links with cc, so it is installed");
    assert!(status.success(), "{} compiles", source.display());
    binary
}

fn actor() -> &'static Path {
    static ACTOR: OnceLock<PathBuf> = OnceLock::new();
    ACTOR.get_or_init(|| compiled("nccl_actor.c", "nccl_actor", &[]))
}

/// The real libraries that are installed, one for each version.
fn libraries() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let folder = variable("GPUWHY_NCCL_LIBS").unwrap_or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        cache.unwrap_or_default().join("gpuwhy/nccl")
    });
    let folders = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        folders.map(|f| f.path().join("libnccl.so.2")).filter(|p| p.is_file()).collect();
    found.sort();
    if found.is_empty() {
        println!("skipped: no libnccl.so.2 in `{}`; run scripts/nccl.sh", folder.display());
    }
    found
}

/// A process that calls NCCL, killed when it is dropped.
struct Caller(Child);

impl Caller {
    /// Starts it and waits until it has loaded the library.
    fn new(library: &Path, in_a_shell: bool) -> Caller {
        let mut command = match in_a_shell {
            false => Command::new(actor()),
            true => {
                let mut shell = Command::new("sh");
                shell.args(["-c", "\"$0\" \"$@\"; true"]).arg(actor());
                shell
            }
        };
        let child = command
            .arg(library)
            .arg("calls")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut caller = Caller(child);
        let mut line = String::new();
        BufReader::new(caller.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        caller
    }

    fn go(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let pid = self.0.id();
        // The shell's child first.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        for child in children.unwrap_or_default().split_whitespace() {
            let _ = gpuwhy_collect::signal(child.parse().unwrap(), 9);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Records until `enough` calls of `caller` are recorded, or until the timeout.
fn record(caller: &mut Caller, begins: Begins, enough: usize) -> Trace {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if begins == Begins::Before {
        caller.go();
        std::thread::sleep(Duration::from_millis(200));
    }
    let targets = vec![Target::Pid(caller.0.id() as i32)];
    let mut recorder = Recorder::start(Config { targets, ..Config::default() }).unwrap();
    let (begin, mut rows, mut calling) = (Instant::now(), Rows::default(), false);
    while begin.elapsed() < TIMEOUT {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
        if begins == Begins::After && !calling && begin.elapsed() > Duration::from_secs(3) {
            calling = true;
            caller.go();
        }
        if Trace::calls(&rows).count() >= enough {
            break;
        }
    }
    rows.append(&mut recorder.finish());
    Trace { rows }
}

/// When the caller begins to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// Before the recording: the creation of its communicators is not recorded.
    Before,
    /// Three seconds into the recording, when the recorder has found its library.
    After,
}

/// The recorded rows.
struct Trace {
    rows: Rows,
}

impl Trace {
    fn calls(rows: &Rows) -> impl Iterator<Item = &Span> {
        let is_calls = |span: &&Span| {
            rows.track.iter().any(|t| t.id == span.track && &*t.name == names::NCCL_CALLS)
        };
        rows.span.iter().filter(is_calls)
    }

    /// All calls of this name as text with their attributes, without repetitions.
    fn of(&self, name: &str) -> Vec<String> {
        // An address in the process differs from run to run.
        let stable = |text: &str| match text.contains(" of pid ") {
            true => "an address".to_owned(),
            false => text.to_owned(),
        };
        let mut lines = Vec::new();
        for span in Trace::calls(&self.rows).filter(|s| &*s.name == name) {
            let mut words = Vec::new();
            for c in self.rows.collective.iter().filter(|c| c.id == span.id) {
                words.push(format!(
                    "{} {} by {}/{} of {:x}{}",
                    c.op,
                    c.bytes,
                    c.rank,
                    c.ranks,
                    c.communicator,
                    c.peer.map(|p| format!(" peer {p}")).unwrap_or_default()
                ));
            }
            for a in self.rows.attr.iter().filter(|a| a.id == span.id && &*a.key != "seq") {
                words.push(format!("{}={}", a.key, stable(&a.value)));
            }
            lines.push(words.join(" "));
        }
        lines.sort();
        lines.dedup();
        lines
    }

    /// Whether the sequence numbers of this operation increase by one.
    fn is_numbered(&self, op: &str) -> bool {
        let mut numbers: Vec<u64> =
            self.rows.collective.iter().filter(|c| &*c.op == op).map(|c| c.seq).collect();
        numbers.sort_unstable();
        !numbers.is_empty() && numbers.windows(2).all(|w| w[1] == w[0] + 1)
    }

    fn check(&self) {
        let source = self.rows.source.iter().rev().find(|s| &*s.kind == "bpf:nccl_calls").unwrap();
        assert_eq!((source.state, source.dropped), (SourceState::Ok, 0), "{source:?}");
        assert!(source.recorded > 0);
        for span in Trace::calls(&self.rows) {
            assert!(span.dur.unwrap().0 >= 0);
        }
        // Calls from inside the library are not recorded: each round has one group of the caller and
        // more that the library makes.
        let count = |name: &str| Trace::calls(&self.rows).filter(|s| &*s.name == name).count();
        let (rounds, groups) = (count("ncclAllReduce"), count("ncclGroupStart"));
        assert!(groups.abs_diff(rounds) <= 1, "{groups} groups in {rounds} rounds");
    }
}

#[test]
fn root_calls_of_the_real_library_are_recorded_in_a_running_process() {
    if !privileged() {
        return;
    }
    for library in libraries() {
        let mut caller = Caller::new(&library, true);
        let trace = record(&mut caller, Begins::Before, 50);
        println!("{}: {} calls", library.display(), Trace::calls(&trace.rows).count());
        trace.check();
        assert_eq!(trace.of("ncclAllReduce"), ["result=invalid argument"]);
        assert_eq!(trace.of("ncclReduce"), ["result=invalid argument"]);
        assert_eq!(trace.of("ncclSend"), ["result=invalid argument"]);
        assert!(!trace.of("ncclGroupEnd").is_empty());
    }
}

#[test]
fn root_a_communicator_created_during_the_recording_has_ranks_and_numbers() {
    if !privileged() {
        return;
    }
    let standin = compiled("nccl_standin.c", "libnccl.so.2", &["-shared", "-fPIC"]);
    let mut caller = Caller::new(&standin, false);
    let trace = record(&mut caller, Begins::After, 50);
    trace.check();
    // The hash that NCCL computes from this unique id, see `functions.rs`.
    let of = "1/4 of 6afe1cc17717e1f4";
    assert_eq!(trace.of("ncclAllReduce"), [format!("AllReduce 4096 by {of}")]);
    assert_eq!(trace.of("ncclReduce"), [format!("Reduce 128 by {of} peer 2")]);
    assert_eq!(trace.of("ncclSend"), [format!("Send 99 by {of} peer 3")]);
    assert_eq!(trace.of("ncclCommInitRank"), [""]);
    assert!(trace.is_numbered("AllReduce") && trace.is_numbered("Send"));

    let mut caller = Caller::new(&standin, false);
    let trace = record(&mut caller, Begins::Before, 50);
    trace.check();
    let of = "communicator=an address bytes";
    assert_eq!(trace.of("ncclAllReduce"), [format!("{of}=4096")]);
    assert_eq!(trace.of("ncclReduce"), [format!("{of}=128 peer=2")]);
}
