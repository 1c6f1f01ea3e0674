//! Rings between processes: C programs, forks, kills, stops, and consumers that come and go.

use std::collections::HashMap;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use gpuwhy_wire::layout::{self, Header, NameEntry, Slot};
use gpuwhy_wire::{Consumer, Drained, ENV, Error, Event, Options, Producer, Record, Ring};

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn ring(dir: &tempfile::TempDir, slots: u32) -> (Ring, PathBuf) {
    let path = dir.path().join("ring");
    (Ring::create(&path, slots).unwrap(), path)
}

/// Everything in the ring, as text without times.
fn read(consumer: &mut Consumer) -> (Vec<String>, Drained) {
    let mut seen = Vec::new();
    let drained = consumer.drain(usize::MAX, |record| seen.push(describe(&record.event)));
    (seen, drained)
}

fn describe(event: &Event<&Arc<str>>) -> String {
    match event {
        Event::StepOpen { name, seq, size, rank, .. } => {
            format!("open {name} {seq} size {size:?} rank {rank:?}")
        }
        Event::Step { name, seq, size, rank, .. } => {
            format!("step {name} {seq} size {size:?} rank {rank:?}")
        }
        Event::Phase { name, step, .. } => format!("phase {name} of {step:?}"),
        Event::Mark { name, value, .. } => format!("mark {name} {value:?}"),
        Event::Counter { name, unit, device, value, .. } => {
            format!("counter {name} {value} {unit} of {device:?}")
        }
        Event::Launch { name, device, stream, correlation, dur, .. } => {
            format!("launch {name} {device}/{stream} {correlation} {dur} ns")
        }
        Event::Kernel { name, device, stream, correlation, dur, .. } => {
            format!("kernel {name} {device}/{stream} {correlation} {dur} ns")
        }
        Event::Batch { name, step, digest, tokens, requests, .. } => {
            format!("batch {name} {step} {digest} {tokens}/{requests}")
        }
        Event::BatchWork { step, prefill_tokens, prefill_requests, context, .. } => {
            format!("work {step} {prefill_tokens}/{prefill_requests} {context}")
        }
        Event::BatchChange { step, new, cached_tokens, preempted, drafts, .. } => {
            format!("change {step} {new}/{cached_tokens} {preempted}/{drafts}")
        }
        Event::BatchQueue { step, running, waiting, cache_ppm, allocate_ns, .. } => {
            format!("queue {step} {running}/{waiting} {cache_ppm}/{allocate_ns}")
        }
        Event::BatchOutput { step, padded, output_tokens, accepted, proposed, .. } => {
            format!("output {step} {padded}/{output_tokens} {accepted}/{proposed}")
        }
        other => format!("{other:?}"),
    }
}

// ---- layout and C ----

fn compile(dir: &Path, compiler: &str, flags: &[&str], sources: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join(format!("{}-{compiler}", sources[0]));
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(flags)
        .arg("-I")
        .arg(root.join("include"))
        .args(sources.iter().map(|s| root.join("tests/c").join(s)))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|e| panic!("cannot run {compiler}: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn layout_in_rust() -> String {
    let mut text = String::new();
    let _ = writeln!(text, "magic {:#x} version {}", layout::MAGIC, layout::VERSION);
    macro_rules! fields {
        ($name:literal $type:ident: $($field:ident)*) => {
            $(let _ = writeln!(text, "{}.{} {}", $name, stringify!($field), offset_of!($type, $field));)*
        };
    }
    fields!("header" Header: magic version slot_bytes slots names name_bytes total_bytes created
        head lost late names_lost tail lost_reported records torn abandoned);
    let _ = writeln!(text, "header {}", size_of::<Header>());
    let _ = writeln!(text, "names at {}", layout::HEADER_BYTES);
    fields!("slot" Slot: sequence words);
    let _ = writeln!(text, "slot {}", size_of::<Slot>());
    fields!("name_entry" NameEntry: state text);
    let _ = writeln!(text, "name_entry {}", size_of::<NameEntry>());
    let words = [1 << 32 | 99, 2, 3, 4, 5, 6, 7];
    let [a, b] = [0, 1].map(|position| layout::check(&words, position));
    let _ = writeln!(text, "check {a:#x} {b:#x}");
    text
}

#[test]
fn rust_and_c_lay_out_the_same_bytes() {
    let golden = include_str!("layout.txt");
    assert_eq!(layout_in_rust(), golden, "a changed layout needs a new layout::VERSION");
    let dir = dir();
    let program = compile(dir.path(), "cc", &["-std=gnu11"], &["layout.c"]);
    let output = Command::new(program).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), golden);
}

fn run(program: &Path, ring: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.env_remove(ENV);
    if let Some(ring) = ring {
        command.env(ENV, ring);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn marks_of(compiler: &str, flags: &[&str]) {
    let dir = dir();
    let (_ring, path) = ring(&dir, 64);
    let program = compile(dir.path(), compiler, flags, &["marks.c", "other.c"]);
    let output = run(&program, Some(&path));
    let mut consumer = Consumer::open(&path).unwrap();
    let (mut seen, mut writers) = (Vec::new(), Vec::new());
    let drained = consumer.drain(usize::MAX, |record| {
        seen.push(describe(&record.event));
        writers.push((record.pid, record.tid));
    });
    assert_eq!(drained, Drained { records: seen.len() as u64, ..Drained::default() });
    assert_eq!(
        seen,
        [
            "open step 0 size Some(4096) rank Some(3)",
            "phase load of Some(0)",
            "phase apart of None",
            "mark begun None",
            "mark loss Some(0.25)",
            "mark nan None",
            "counter sm_clock 1410 MHz of Some(1)",
            "counter queue 7 1 of None",
            "launch gemm 1/7 42 5 ns",
            "kernel gemm 1/7 42 20 ns",
            "batch mine engine 0 77 20/3",
            "work 0 18/1 8589934592",
            "change 0 1/16 2/4",
            "queue 0 5/6 500000/900",
            "output 0 32/3 1/7",
            "step step 0 size Some(4096) rank Some(3)",
            "step step 1 size None rank None",
            "step child 0 size None rank None",
        ]
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (child, parent): (u32, u32) =
        (lines[0].parse().unwrap(), lines[1].strip_suffix(" 1").unwrap().parse().unwrap());
    writers.dedup();
    assert_eq!(writers, [(parent, parent), (child, child)]);

    let silent = run(&program, None);
    assert!(String::from_utf8_lossy(&silent.stdout).ends_with(" 0\n"));
    let nowhere = run(&program, Some(Path::new("/nonexistent/ring")));
    assert!(String::from_utf8_lossy(&nowhere.stdout).ends_with(" 0\n"));
}

#[test]
fn a_c_program_marks_its_steps_and_so_does_its_child() {
    marks_of("cc", &["-std=gnu11"]);
}

#[test]
fn a_cpp_program_marks_its_steps_and_so_does_its_child() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: there is no c++ here");
        return;
    }
    marks_of("c++", &["-std=c++11", "-x", "c++"]);
}

/// The C compiler's sanitizers look at the client in a program that does all that it can, and in
/// one of many threads and some children.
#[test]
fn c_programs_under_sanitizers_do_nothing_wrong() {
    for compiler in ["gcc", "clang", "clang-14"] {
        if Command::new(compiler).arg("--version").output().is_err() {
            continue;
        }
        for sanitizers in ["address,undefined", "thread"] {
            let dir = dir();
            let asked = format!("-fsanitize={sanitizers}");
            let flags = ["-std=gnu11", "-g", "-fno-sanitize-recover=all", &*asked];
            // A program that does nothing shows whether there is such a sanitizer here.
            let empty = dir.path().join("empty");
            std::fs::write(empty.with_extension("c"), "int main(void) { return 0; }").unwrap();
            let made = Command::new(compiler)
                .args(flags)
                .arg("-o")
                .args([&empty, &empty.with_extension("c")])
                .output()
                .unwrap();
            if !made.status.success() || !Command::new(&empty).output().unwrap().status.success() {
                println!("skipped: {compiler} {asked} does not work here");
                continue;
            }
            let (_ring, path) = ring(&dir, 64);
            run(&compile(dir.path(), compiler, &flags, &["marks.c", "other.c"]), Some(&path));
            let path = dir.path().join("small");
            let _small = Ring::create(&path, 1024).unwrap();
            let mut consumer = Consumer::open(&path).unwrap();
            let program = compile(dir.path(), compiler, &flags, &["threads.c"]);
            // A child of a fork has no threads of its parent's, and is blamed for not joining them.
            let mut child = Command::new(program)
                .env(ENV, &path)
                .env("TSAN_OPTIONS", "report_thread_leaks=0")
                .env_remove("ASAN_OPTIONS")
                .spawn()
                .unwrap();
            let mut total = Drained::default();
            let status = loop {
                let ended = child.try_wait().unwrap();
                let drained = consumer.drain(usize::MAX, |record| _ = number_of(&record));
                total.records += drained.records;
                total.torn += drained.torn;
                if let Some(status) = ended {
                    break status;
                }
            };
            assert!(status.success(), "{compiler} {asked}: {status}");
            assert!(total.records > 0 && total.torn == 0, "{compiler} {asked}: {total:?}");
            println!("{compiler} {asked}: nothing found, {} records", total.records);
        }
    }
}

#[test]
fn the_clock_of_c_programs_agrees_with_the_systems() {
    let dir = dir();
    let program = compile(dir.path(), "cc", &["-std=gnu11"], &["clock.c"]);
    let output = run(&program, None);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 outside, 0 back\n");
}

// ---- files and consumers ----

#[test]
fn names_and_place_outlive_a_consumer() {
    let dir = dir();
    let (_ring, path) = ring(&dir, 8);
    let producer = Producer::open(&path).unwrap();
    producer.mark("first", None);
    producer.mark("second", Some(2.0));
    let mut consumer = Consumer::open(&path).unwrap();
    assert!(matches!(Consumer::open(&path), Err(Error::Busy { .. })));
    let mut seen = Vec::new();
    consumer.drain(1, |record| seen.push(describe(&record.event)));
    drop(consumer);
    producer.mark("third", Some(f64::NAN));
    let (rest, drained) = read(&mut Consumer::open(&path).unwrap());
    seen.extend(rest);
    assert_eq!(seen, ["mark first None", "mark second Some(2.0)", "mark third None"]);
    assert_eq!(drained.records, 2);
}

#[test]
fn counters_are_written_with_unit_and_device_unless_they_are_no_numbers() {
    let dir = dir();
    let (_ring, path) = ring(&dir, 8);
    let producer = Producer::open(&path).unwrap();
    producer.counter("power", "W", Some(1), 250.5);
    producer.counter("queue", "1", None, 0.0);
    producer.counter("power", "W", None, f64::INFINITY);
    let (seen, _) = read(&mut Consumer::open(&path).unwrap());
    assert_eq!(seen, ["counter power 250.5 W of Some(1)", "counter queue 0 1 of None"]);
}

/// Not a test of its own: says what it makes of its environment.
#[test]
fn says_whether_it_is_off() {
    if std::env::var_os("GPUWHY_TEST_SAYS_OFF").is_some() {
        println!("off: {}", gpuwhy_wire::is_off());
    }
}

#[test]
fn one_variable_turns_all_off_in_a_process() {
    for (value, off) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "says_whether_it_is_off", "--nocapture"]);
        command.env("GPUWHY_TEST_SAYS_OFF", "1").env_remove(gpuwhy_wire::OFF_ENV);
        command.envs(value.map(|value| (gpuwhy_wire::OFF_ENV, value)));
        let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(printed.contains(&format!("off: {off}\n")), "{value:?}: {printed}");
    }
}

#[test]
fn a_full_ring_loses_what_came_last_and_says_so_once() {
    let dir = dir();
    let (_ring, path) = ring(&dir, 4);
    let producer = Producer::open(&path).unwrap();
    for i in 0..10 {
        producer.mark("m", Some(i as f64));
    }
    let mut consumer = Consumer::open(&path).unwrap();
    let (seen, drained) = read(&mut consumer);
    assert_eq!(seen.last().unwrap(), "mark m Some(3.0)");
    assert_eq!((drained.records, drained.lost), (4, 6));
    assert_eq!(read(&mut consumer), (vec![], Drained::default()));
    drop(consumer);
    // Another consumer does not get the same loss again.
    assert_eq!(read(&mut Consumer::open(&path).unwrap()).1.lost, 0);
}

#[test]
fn a_memfd_is_found_by_its_path_and_cannot_be_cut() {
    let ring = Ring::memfd(Options { slots: 5, ..Options::default() }).unwrap();
    assert_eq!(ring.slots(), 8);
    let producer = Producer::open(ring.path()).unwrap();
    producer.mark("here", None);
    let (seen, _) = read(&mut Consumer::open(ring.path()).unwrap());
    assert_eq!(seen, ["mark here None"]);
    // SAFETY: numbers only.
    let cut = unsafe { libc::ftruncate(ring.as_fd().as_raw_fd(), 0) };
    assert_eq!(cut, -1);
}

#[test]
fn a_file_that_is_not_a_ring_is_refused_with_the_reason() {
    let dir = dir();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let (made, path) = ring(&dir, 4);
    let whole = std::fs::read(&path).unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);

    for (path, reason) in [
        (file("empty", b""), "it has 0 bytes, but the ring needs 4096"),
        (file("cut", &whole[..whole.len() - 1]), "bytes, but the ring needs"),
        (file("text", &[b'x'; 8192]), "it begins with 0x7878787878787878 and not as a ring"),
        (file("newer", &changed(8, 3)), "it is a ring of version 3, this program needs 2"),
        (file("odd", &changed(16, 3)), "its header has the invalid size slots = 3"),
        (file("huge", &changed(19, 0x80)), "its header has the invalid size slots = "),
        (file("wide", &changed(12, 65)), "its header has the invalid size slot_bytes = 65"),
        (fifo, "it has 0 bytes, but the ring needs 4096"),
        (dir.path().to_owned(), "Is a directory"),
        (dir.path().join("none"), "No such file"),
    ] {
        let error = Producer::open(&path).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains(reason), "{}: {cause}", path.display());
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    let again = Ring::create(&path, 4).unwrap_err();
    assert!(matches!(again, Error::Io { tried: "create", .. }), "{again:?}");
    assert!(matches!(Ring::create(dir.path().join("big"), 1 << 23), Err(Error::Bad { .. })));
    made.remove().unwrap();
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("ring") || name.contains("big"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

// ---- threads, forks, kills ----

#[test]
fn every_thread_has_its_own_tid_and_counts_its_own_steps() {
    let dir = dir();
    let (_ring, path) = ring(&dir, 64);
    let producer = Producer::open(&path).unwrap();
    for _ in 0..3 {
        let producer = producer.clone();
        std::thread::spawn(move || {
            for _ in 0..2 {
                let step = producer.step("step");
                step.phase("load").end();
            }
        })
        .join()
        .unwrap();
    }
    let mut seen = Vec::new();
    Consumer::open(&path).unwrap().drain(usize::MAX, |record| {
        assert_eq!(record.pid, std::process::id());
        if let Event::Step { seq, .. } = record.event {
            seen.push((record.tid, seq));
        }
    });
    let seqs: Vec<u64> = seen.iter().map(|(_, seq)| *seq).collect();
    assert_eq!(seqs, [0, 1, 0, 1, 0, 1]);
    seen.dedup_by_key(|(tid, _)| *tid);
    assert_eq!(seen.len(), 3);
}

/// Runs `work` in a child of this process, made by `make`, and gives the child's pid.
fn in_child(make: impl FnOnce() -> libc::pid_t, work: impl FnOnce()) -> u32 {
    match make() {
        0 => {
            work();
            // SAFETY: ends the child at once, without running what belongs to the parent.
            unsafe { libc::_exit(0) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: the status is a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            child as u32
        }
    }
}

#[test]
fn children_write_as_themselves_however_they_were_made() {
    let dir = dir();
    let (_ring, path) = ring(&dir, 64);
    let producer = Producer::open(&path).unwrap();
    producer.step("parent").end();
    let write = || producer.step("child").end();
    // SAFETY: the child writes to the ring, which allocates nothing and takes no lock, and exits.
    let forked = in_child(|| unsafe { libc::fork() }, write);
    // A bare system call, of which the C library and its fork handlers do not know.
    let cloned = in_child(
        // SAFETY: as a fork: the flags share nothing, and the child does what is said above.
        || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
        write,
    );
    producer.step("parent").end();
    let mut seen = Vec::new();
    Consumer::open(&path).unwrap().drain(usize::MAX, |record| {
        if let Event::Step { name, seq, .. } = record.event {
            seen.push((name.to_string(), record.pid, seq, record.tid == record.pid));
        }
    });
    let me = std::process::id();
    let step = |name: &str, pid, seq, main| (name.to_owned(), pid, seq, main);
    assert_eq!(
        seen,
        [
            step("parent", me, 0, false),
            step("child", forked, 0, true),
            step("child", cloned, 0, true),
            step("parent", me, 1, false),
        ]
    );
}

/// A record whose fields all follow from one number, as tests/c/storm.c writes them.
fn storm(i: u64) -> (u16, u32, u64, u64, u64) {
    (i as u16, (i as u32).wrapping_mul(3), i, i.wrapping_mul(5), i.wrapping_mul(7))
}

fn number_of(record: &Record<&Arc<str>>) -> u64 {
    let Event::Kernel { name, device, stream, correlation, start, dur, .. } = record.event else {
        panic!("no producer wrote {record:?}");
    };
    assert_eq!(&**name, "storm");
    assert_eq!((device, stream, correlation, start, dur), storm(correlation));
    correlation
}

#[test]
fn what_threads_write_is_delivered_whole_or_counted() {
    // A patience of nothing takes slots from producers all the time; one of a second never.
    for (slots, patience) in [(2, 0), (8, 0), (8, 1_000_000_000), (256, 1_000_000_000)] {
        let ring = Ring::memfd(Options { slots, ..Options::default() }).unwrap();
        let mut consumer = Consumer::open_with(ring.path(), patience).unwrap();
        let producer = Producer::open(ring.path()).unwrap();
        let (threads, each) = (4u64, 30_000u64);
        let (mut total, mut last) = (Drained::default(), HashMap::new());
        let mut drain = |total: &mut Drained, now: u64| {
            let drained = consumer.drain_at(now, usize::MAX, |record| {
                let number = number_of(&record);
                let before = last.insert(record.tid, number).unwrap_or(0);
                assert!(number > before, "{number} after {before}");
            });
            total.records += drained.records;
            total.lost += drained.lost;
            total.torn += drained.torn;
            total.abandoned += drained.abandoned;
            drained.records + drained.torn + drained.abandoned
        };
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|_| {
                    let producer = producer.clone();
                    scope.spawn(move || {
                        for i in 1..=each {
                            let (device, stream, correlation, start, dur) = storm(i);
                            let stream = producer.stream(device, stream);
                            stream.kernel("storm", correlation, start, start + dur);
                        }
                    })
                })
                .collect();
            while !writers.iter().all(|w| w.is_finished()) {
                drain(&mut total, gpuwhy_wire::now());
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
        while drain(&mut total, u64::MAX) > 0 {}
        let sum = total.records + total.lost + total.torn + total.abandoned;
        assert_eq!(sum, threads * each, "{slots} slots, patience {patience}: {total:?}");
        assert!(total.records > 0);
        if patience > 0 {
            assert_eq!((total.torn, total.abandoned), (0, 0), "no producer was late");
        }
    }
}

/// Not a test of its own: the process that the next one starts many times.
#[test]
fn child_storm() {
    if std::env::var_os("GPUWHY_TEST_STORM").is_none() {
        return;
    }
    let producer = Producer::from_env();
    assert!(producer.is_on());
    for i in 1.. {
        let (device, stream, correlation, start, dur) = storm(i);
        producer.stream(device, stream).kernel("storm", correlation, start, start + dur);
    }
}

#[test]
fn producers_that_are_killed_and_stopped_at_any_moment_harm_no_one_else() {
    // The small ring is full most of the time; in the large one a producer is often killed
    // between reserve and publish.
    kill_and_stop(16);
    kill_and_stop(1 << 16);
}

fn kill_and_stop(slots: u32) {
    let dir = dir();
    let (_ring, path) = ring(&dir, slots);
    let in_c = compile(dir.path(), "cc", &["-std=gnu11"], &["storm.c"]);
    let spawn = |i: u32| -> Child {
        let mut command = if i.is_multiple_of(2) {
            Command::new(&in_c)
        } else {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child_storm"]).env("GPUWHY_TEST_STORM", "1");
            command
        };
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(|| {
                // A test that fails leaves no process behind.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command.env(ENV, &path).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..4).map(spawn).collect();
    let mut consumer = Consumer::open_with(&path, 1_000_000).unwrap();
    let (mut last, mut total) = (HashMap::<u32, u64>::new(), Drained::default());
    let mut seed = 7u64;
    let mut random = |n: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for round in 0..60 {
        for _ in 0..1 + random(2) {
            let drained = consumer.drain(usize::MAX, |record| {
                let number = number_of(&record);
                let before = last.insert(record.pid, number).unwrap_or(0);
                assert!(number > before, "{number} after {before} of {}", record.pid);
            });
            total.records += drained.records;
            total.torn += drained.torn;
            total.abandoned += drained.abandoned;
            // The writers' turn, however few CPUs there are; not always at a record's end.
            std::thread::sleep(Duration::from_micros(random(500)));
        }
        let victim = random(4) as usize;
        let pid = children[victim].id() as libc::pid_t;
        // SAFETY: signals to a child that has not been waited for.
        unsafe {
            match round % 3 {
                0 => drop(libc::kill(pid, libc::SIGSTOP)),
                1 => drop(children.iter().map(|c| libc::kill(c.id() as i32, libc::SIGCONT)).max()),
                _ => {
                    libc::kill(pid, libc::SIGKILL);
                    children[victim].wait().unwrap();
                    children[victim] = spawn(round);
                }
            }
        }
        if round % 20 == 0 {
            drop(consumer);
            consumer = Consumer::open_with(&path, 1_000_000).unwrap();
        }
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Whatever state they left, the ring works.
    let patience = Instant::now() + Duration::from_secs(30);
    while consumer.drain(usize::MAX, |_| {}).records > 0 || consumer.drain(1, |_| {}).waiting {
        assert!(Instant::now() < patience, "the ring does not come to rest");
        std::thread::sleep(Duration::from_millis(1));
    }
    let producer = Producer::open(&path).unwrap();
    for i in 0..40 {
        producer.mark("after", Some(i as f64));
        assert_eq!(read(&mut consumer).0, [format!("mark after Some({i}.0)")]);
    }
    assert!(total.records > 0, "{total:?}");
    eprintln!("{slots} slots: {total:?}, {} writers", last.len());
}

/// A process that may write to the ring may write anything, at any time.
#[test]
fn a_ring_that_is_overwritten_all_the_time_is_survived() {
    let ring = Ring::memfd(Options { slots: 16, names: 16, ..Options::default() }).unwrap();
    let mut consumer = Consumer::open(ring.path()).unwrap();
    let producer = Producer::open(ring.path()).unwrap();
    let bytes = layout::total_bytes(16, 16);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vandal = std::fs::File::options().write(true).open(ring.path()).unwrap();
        let stop = &stop;
        let vandal = scope.spawn(move || {
            use std::os::unix::fs::FileExt;
            let mut seed = 1u64;
            while !stop.load(Relaxed) {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (seed >> 20) % (bytes as u64 / 8) * 8;
                let value = if seed & 1 == 0 { seed } else { seed >> 58 };
                let _ = vandal.write_all_at(&value.to_le_bytes(), at);
            }
        });
        let mut now = 0;
        for i in 0..20_000 {
            let text = format!("name {}", i % 40);
            producer.mark(&*text, Some(i as f64));
            now += Consumer::PATIENCE_NS / 2;
            let drained = consumer.drain_at(now, usize::MAX, |_| {});
            assert!(drained.records + drained.torn + drained.abandoned <= 16);
        }
        stop.store(true, Relaxed);
        vandal.join().unwrap();
    });
    // The vandal is gone: within a lap, all is well again.
    let mut now = u64::MAX / 2;
    for _ in 0..64 {
        producer.mark("mending", None);
        consumer.drain_at(now, usize::MAX, |_| {});
        now += Consumer::PATIENCE_NS;
    }
    for i in 0..40 {
        producer.mark("after", Some(i as f64));
        let mut whole = 0;
        consumer.drain_at(now, usize::MAX, |record| {
            whole +=
                matches!(record.event, Event::Mark { value, .. } if value == Some(i as f64)) as u32;
        });
        assert_eq!(whole, 1, "record {i}");
    }
}

#[test]
fn without_a_ring_nothing_happens() {
    let none = Producer::none();
    let step = none.step("step").size(1).rank(2).open();
    step.phase("load").end();
    assert_eq!(step.start(), 0);
    step.end();
    none.mark("m", Some(1.0));
    none.counter("c", "1", None, 1.0);
    none.stream(0, 0).kernel("k", 1, 2, 3);
    assert!(!none.is_on());
}
