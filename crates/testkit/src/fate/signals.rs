//! Signals that are sent to gpuwhy, and gpuwhy as the first process of a container.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use super::process::{file_appears, finish, first_line, run, spawn};
use super::{Kept, Try};
use crate::sys::kill;

/// What `sh` can trap of what may be sent: names and numbers.
const NAMES: &[(&str, i32)] = &[
    ("INT", libc::SIGINT),
    ("TERM", libc::SIGTERM),
    ("HUP", libc::SIGHUP),
    ("QUIT", libc::SIGQUIT),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("ALRM", libc::SIGALRM),
    ("CONT", libc::SIGCONT),
];

/// A script that counts a signal and, some time after the first, writes how many came.
pub(super) fn counting(name: &str, code: u64) -> String {
    format!(
        "n=0; trap 'n=$((n+1))' {name}; echo ready; i=0; while [ $n = 0 ] && [ $i -lt 2000 ]; do \
         sleep 0.01; i=$((i+1)); done; sleep 0.1; sleep 0.1; echo came $n; exit {code}"
    )
}

fn begun(this: &Try<'_>, script: &str) -> Result<Child, String> {
    let mut child = spawn(&mut this.shell(script))?;
    let line = first_line(&mut child)?;
    if line == "ready" {
        return Ok(child);
    }
    Err(format!("the command did not begin: {line} {}", finish(child)?.said()))
}

pub(super) fn is_passed_on(this: &Try<'_>) -> Kept {
    // A command that runs is not sent SIGCONT: it would change nothing.
    let (name, signal) = NAMES[this.draw(0, NAMES.len() as u64 - 1) as usize];
    let code = this.draw(1, 256);
    let child = begun(this, &counting(name, code))?;
    kill(child.id() as i32, signal).map_err(|error| error.to_string())?;
    let ran = finish(child)?;
    ran.exits_with(code as i32)?;
    match String::from_utf8_lossy(&ran.stdout).contains("came 1\n") {
        true => Ok(()),
        false => Err(format!("{name} once: {}", ran.said())),
    }
}

pub(super) fn is_ignored(this: &Try<'_>) -> Kept {
    let (name, signal) = NAMES[this.draw(0, NAMES.len() as u64) as usize];
    let code = this.draw(1, 256);
    let child =
        begun(this, &format!("trap '' {name}; echo ready; sleep 0.3; echo end; exit {code}"))?;
    for _ in 0..3 {
        kill(child.id() as i32, signal).map_err(|error| error.to_string())?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let ran = finish(child)?;
    ran.exits_with(code as i32)?;
    match ran.stdout.ends_with(b"end\n") {
        true => Ok(()),
        false => Err(format!("{name}: {}", ran.said())),
    }
}

pub(super) fn stop_and_continue(this: &Try<'_>) -> Kept {
    let code = this.draw(0, 256);
    let result = this.folder.join("result");
    let script =
        format!("echo ready; sleep 0.2; echo 1 > {}; sleep 0.2; exit {code}", result.display());
    let child = begun(this, &script)?;
    std::thread::sleep(Duration::from_millis(this.draw(1, 150)));
    kill(child.id() as i32, libc::SIGSTOP).map_err(|error| error.to_string())?;
    // The command goes on meanwhile, and may come to its end.
    file_appears(&result)?;
    std::thread::sleep(Duration::from_millis(this.draw(2, 400)));
    kill(child.id() as i32, libc::SIGCONT).map_err(|error| error.to_string())?;
    finish(child)?.exits_with(code as i32)
}

/// In a pid namespace of its own. It leaves orphans, which somebody has to wait for, and is ended by
/// a signal from outside, which the kernel keeps from a first process that does not ask for it.
pub(super) fn first_process(this: &Try<'_>) -> Kept {
    let front = this.wrapper.front(&this.trace());
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        // Who is not root is it in a user namespace.
        if !std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0) {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).args(arguments);
        command
    };
    if !run(&mut unshare(&["true"]))?.status.success() {
        return Err("skipped: no pid namespace can be made here".into());
    }
    let code = this.draw(0, 255) + 1;
    let (orphans, ready) = (this.folder.join("orphans"), this.folder.join("ready"));
    let script = format!(
        "trap 'exit {code}' TERM; i=0; while [ $i -lt 20 ]; do (sleep 0.05 & ) ; i=$((i+1)); done; sleep 0.5; \
         grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l > {0}.tmp; mv {0}.tmp {0}; \
         echo $PPID > {1}; i=0; while [ $i -lt 2000 ]; do sleep 0.01; i=$((i+1)); done",
        orphans.display(),
        ready.display()
    );
    let mut arguments: Vec<&str> = front.iter().map(String::as_str).collect();
    arguments.extend(["sh", "-c", &script]);
    let child = spawn(&mut unshare(&arguments))?;
    if file_appears(&ready)?.trim() != "1" {
        return Err("gpuwhy is not the first process".into());
    }
    let left = file_appears(&orphans)?;
    let first = first_child(child.id()).ok_or("unshare has no child")?;
    kill(first, libc::SIGTERM).map_err(|error| error.to_string())?;
    finish(child)?.exits_with(code as i32)?;
    match left.trim() {
        "0" => Ok(()),
        n => Err(format!("{n} orphans were not waited for")),
    }
}

/// The child of `unshare`, by its pid outside.
fn first_child(parent: u32) -> Option<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    std::fs::read_to_string(path).ok()?.split_whitespace().next()?.parse().ok()
}
