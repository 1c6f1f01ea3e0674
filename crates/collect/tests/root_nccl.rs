//! NCCL seen from outside: a child process calls the real library, or a stand-in that succeeds, and
//! the rows must say what it called.
//!
//! Needs root or CAP_BPF with CAP_PERFMON, and for the real library one in `$GPUWHY_NCCL_LIBS` or where
//! `scripts/nccl.sh` puts it; without, each test says why it did nothing.

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

/// As long as a machine may take that has much else to do.
const PATIENCE: Duration = Duration::from_secs(30);

fn privileged() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !root {
        println!("skipped: loading BPF programs needs root");
    }
    root
}

/// Compiles a C file of this folder.
fn compiled(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new("cc")
        .args(["-O1", "-pthread"])
        .args(flags)
        .arg("-o")
        .args([&made, &source])
        .arg("-ldl")
        .status()
        .expect("cc is there: rustc links with it");
    assert!(status.success(), "{} compiles", source.display());
    made
}

fn actor() -> &'static Path {
    static ACTOR: OnceLock<PathBuf> = OnceLock::new();
    ACTOR.get_or_init(|| compiled("nccl_actor.c", "nccl_actor", &[]))
}

/// Where real libraries lie, a folder for each version.
fn libraries() -> Vec<PathBuf> {
    let home = |name: &str| env::var_os(name).map(PathBuf::from);
    let folder = home("GPUWHY_NCCL_LIBS").unwrap_or_else(|| {
        let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")));
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
    /// Started, with the library loaded; `under` makes it the child of a shell.
    fn new(library: &Path, under: bool) -> Caller {
        let mut command = match under {
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

/// What was recorded of `caller` when `enough` of its calls were, or at the end of all patience.
/// It begins to call `before` it is looked at, or `after` half a second.
fn record(caller: &mut Caller, begins: Begins, enough: usize) -> Told {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    if begins == Begins::Before {
        caller.go();
        std::thread::sleep(Duration::from_millis(200));
    }
    let targets = vec![Target::Pid(caller.0.id() as i32)];
    let mut recorder = Recorder::start(Config { targets, ..Config::default() }).unwrap();
    let (begun, mut rows, mut gone) = (Instant::now(), Rows::default(), false);
    while begun.elapsed() < PATIENCE {
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
        if begins == Begins::After && !gone && begun.elapsed() > Duration::from_secs(3) {
            gone = true;
            caller.go();
        }
        if Told::calls(&rows).count() >= enough {
            break;
        }
    }
    rows.append(&mut recorder.finish());
    Told { rows }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// Before anybody looks: what it makes then is not seen.
    Before,
    /// After it was found to have NCCL.
    After,
}

struct Told {
    rows: Rows,
}

impl Told {
    fn calls(rows: &Rows) -> impl Iterator<Item = &Span> {
        let is_calls = |span: &&Span| {
            rows.track.iter().any(|t| t.id == span.track && &*t.name == names::NCCL_CALLS)
        };
        rows.span.iter().filter(is_calls)
    }

    /// Every call of this name with what is known of it, each line once.
    fn of(&self, name: &str) -> Vec<String> {
        let pid = |text: &str| match text.split_once(" of pid ") {
            Some((_, _)) => "an address".to_owned(),
            None => text.to_owned(),
        };
        let mut lines = Vec::new();
        for span in Told::calls(&self.rows).filter(|s| &*s.name == name) {
            let mut words = Vec::new();
            for c in self.rows.collective.iter().filter(|c| c.id == span.id) {
                words.push(format!(
                    "{} {} By {}/{} of {:x}{}",
                    c.op,
                    c.bytes,
                    c.rank,
                    c.ranks,
                    c.communicator,
                    c.peer.map(|p| format!(" peer {p}")).unwrap_or_default()
                ));
            }
            for a in self.rows.attr.iter().filter(|a| a.id == span.id && &*a.key != "seq") {
                words.push(format!("{}={}", a.key, pid(&a.value)));
            }
            lines.push(words.join(" "));
        }
        lines.sort();
        lines.dedup();
        lines
    }

    /// Whether the numbers of this operation go up by one.
    fn is_counted(&self, op: &str) -> bool {
        let mut numbers: Vec<u64> =
            self.rows.collective.iter().filter(|c| &*c.op == op).map(|c| c.seq).collect();
        numbers.sort_unstable();
        !numbers.is_empty() && numbers.windows(2).all(|w| w[1] == w[0] + 1)
    }

    fn check(&self) {
        let source = self.rows.source.iter().rev().find(|s| &*s.kind == "bpf:nccl_calls").unwrap();
        assert_eq!((source.state, source.dropped), (SourceState::Ok, 0), "{source:?}");
        assert!(source.recorded > 0);
        for span in Told::calls(&self.rows) {
            assert!(span.dur.unwrap().0 >= 0);
        }
        // Calls from inside the library are not told: a group of one round, the library's own two.
        let count = |name: &str| Told::calls(&self.rows).filter(|s| &*s.name == name).count();
        let (rounds, groups) = (count("ncclAllReduce"), count("ncclGroupStart"));
        assert!(groups.abs_diff(rounds) <= 1, "{groups} groups in {rounds} rounds");
    }
}

#[test]
fn root_calls_of_the_real_library_are_seen_in_a_process_that_runs() {
    if !privileged() {
        return;
    }
    for library in libraries() {
        let mut caller = Caller::new(&library, true);
        let told = record(&mut caller, Begins::Before, 50);
        println!("{}: {} calls", library.display(), Told::calls(&told.rows).count());
        told.check();
        assert_eq!(told.of("ncclAllReduce"), ["result=invalid argument"]);
        assert_eq!(told.of("ncclReduce"), ["result=invalid argument"]);
        assert_eq!(told.of("ncclSend"), ["result=invalid argument"]);
        assert!(!told.of("ncclGroupEnd").is_empty());
    }
}

#[test]
fn root_a_communicator_whose_making_was_seen_has_ranks_and_numbers() {
    if !privileged() {
        return;
    }
    let standin = compiled("nccl_standin.c", "libnccl.so.2", &["-shared", "-fPIC"]);
    let mut caller = Caller::new(&standin, false);
    let told = record(&mut caller, Begins::After, 50);
    told.check();
    // As NCCL would call it, see `functions`.
    let of = "1/4 of 6afe1cc17717e1f4";
    assert_eq!(told.of("ncclAllReduce"), [format!("AllReduce 4096 By {of}")]);
    assert_eq!(told.of("ncclReduce"), [format!("Reduce 128 By {of} peer 2")]);
    assert_eq!(told.of("ncclSend"), [format!("Send 99 By {of} peer 3")]);
    assert_eq!(told.of("ncclCommInitRank"), [""]);
    assert!(told.is_counted("AllReduce") && told.is_counted("Send"));

    let mut caller = Caller::new(&standin, false);
    let told = record(&mut caller, Begins::Before, 50);
    told.check();
    let of = "communicator=an address bytes";
    assert_eq!(told.of("ncclAllReduce"), [format!("{of}=4096")]);
    assert_eq!(told.of("ncclReduce"), [format!("{of}=128 peer=2")]);
}
