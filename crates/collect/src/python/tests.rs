//! Real interpreters, read as the kernel side reads them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::python::layout::NONE;

const SCRIPT: &str = "\
import sys, threading, time

def inner():
    print('ready', flush=True)
    time.sleep(
        1000)

class Outer:
    def method(self):
        return [inner() for _ in range(1)]

def übung():
    Outer().method()

threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
übung()
";

/// Ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This machine's interpreter, and those that `GPUWHY_PYTHONS` lists.
fn interpreters() -> Vec<String> {
    let more = std::env::var("GPUWHY_PYTHONS").unwrap_or_default();
    let listed = more.split(':').filter(|path| !path.is_empty()).map(str::to_owned);
    std::iter::once("/usr/bin/python3".to_owned()).chain(listed).collect()
}

/// The stack of the thread that began the process, as `bpf/python.h` follows it.
fn stack(pid: u32, interpreter: &Interpreter) -> Vec<String> {
    let layout = interpreter.layout.as_ref().unwrap();
    let (walk, memory) = (&layout.walk, Memory::of(pid).unwrap());
    let word = |at: u64, offset: u32| memory.word(at + u64::from(offset)).unwrap();
    let first = word(word(interpreter.runtime.0, walk.interpreters), walk.threads);
    let threads = std::iter::successors(Some(first), |thread| {
        Some(word(*thread, walk.next_thread)).filter(|next| *next != 0)
    });
    let threads: Vec<u64> = threads.collect();
    assert_eq!(threads.len(), 2, "both threads");
    // Glibc's thread descriptor points to itself at 16.
    for thread in &threads {
        let id = word(*thread, walk.thread_id);
        assert_eq!(memory.word(id + 16), Some(id), "pthread_self() of 3.{}", interpreter.minor);
    }
    let mut frame = word(*threads.last().unwrap(), walk.frame);
    if walk.in_between != NONE {
        frame = word(frame, walk.in_between);
    }
    let (mut codes, mut out) = (CodeObjects::default(), Vec::new());
    while frame != 0 {
        let owner = if walk.owner == NONE { 0 } else { word(frame, walk.owner) & 0xff };
        let (code, instruction) = (word(frame, walk.code) & !7, word(frame, walk.instruction));
        if owner < 3 {
            let place = codes.place(pid, PythonFrame { code, instruction });
            let place = place.unwrap_or_else(|| panic!("code at {code:x} after {out:?}"));
            out.push(format!("{}:{}", place.function, place.line.unwrap()));
            assert_eq!(&*place.file, "<string>");
        }
        frame = word(frame, walk.previous);
    }
    out
}

#[test]
fn root_stacks_of_real_interpreters_have_the_functions_and_lines_of_their_program() {
    if std::fs::read_dir("/proc/1/map_files").is_err() {
        return eprintln!("not tested: this takes root");
    }
    for path in interpreters() {
        let mut command = Command::new(&path);
        let child = command.args(["-c", SCRIPT]).stdout(Stdio::piped()).spawn();
        let Ok(child) = child else {
            eprintln!("not tested: there is no {path}");
            continue;
        };
        let mut child = Running(child);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        std::thread::sleep(std::time::Duration::from_millis(100));
        let found = interpreter(child.0.id()).unwrap_or_else(|| panic!("no interpreter in {path}"));
        assert!(found.runtime.1 > found.runtime.0 + 1000, "{found:?}");
        let said = stack(child.0.id(), &found);
        // Since 3.12 comprehensions are no functions; before 3.11 functions are called without what is around them.
        let expected: &[&str] = match found.minor {
            10 => &["inner:5", "<listcomp>:10", "method:10", "übung:13", "<module>:16"],
            11 => &[
                "inner:5",
                "Outer.method.<locals>.<listcomp>:10",
                "Outer.method:10",
                "übung:13",
                "<module>:16",
            ],
            _ => &["inner:5", "Outer.method:10", "übung:13", "<module>:16"],
        };
        assert_eq!(said, expected, "{path}");
    }
}

#[test]
fn versions_are_in_names_of_files() {
    for (path, minor) in [
        ("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", Some(11)),
        ("/opt/python3.9", Some(9)),
        ("/usr/bin/python3", None),
        ("/usr/bin/python3.x", None),
    ] {
        assert_eq!(minor_of_name(path), minor, "{path}");
    }
}
