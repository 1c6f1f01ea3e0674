//! What a command reads, writes and inherits.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::process::{Finished, finish, run, spawn};
use super::{Kept, Try};

/// What `sh` tells of what it inherited: its descriptors but for the folder that is listed, the signals that
/// are blocked and ignored, its folder, umask, priority and limits.
const INHERITED: &str = "cd /proc/self/fd 2>/dev/null; for fd in *; do echo $fd $(readlink /proc/$$/fd/$fd); \
    done; cd - >/dev/null; grep -E '^Sig(Blk|Ign)|^Seccomp:|^NoNewPrivs' /proc/self/status; pwd; umask; ulimit -a; \
    cut -d' ' -f 5,18,19 /proc/$$/stat; cat /proc/$$/oom_score_adj; exit 0";

fn same(what: &str, found: &[u8], wanted: &[u8]) -> Kept {
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(wanted).position(|(a, b)| a != b);
    let at = at.unwrap_or(found.len().min(wanted.len()));
    Err(format!("{what}: {} of {} bytes, other from byte {at} on", found.len(), wanted.len()))
}

pub(super) fn reads(this: &Try<'_>) -> Kept {
    let bytes = this.bytes(1 + this.draw(0, 4 << 20) as usize);
    let mut child = spawn(this.wrapper.command(&this.trace(), &["cat"]).stdin(Stdio::piped()))?;
    let mut pipe = child.stdin.take().ok_or("no input is piped")?;
    let given = bytes.clone();
    // The command ends when it has read all.
    let write = std::thread::spawn(move || pipe.write_all(&given));
    let ran = finish(child)?;
    let _ = write.join();
    ran.exits_with(0)?;
    same("standard input", &ran.stdout, &bytes)
}

fn printed(this: &Try<'_>, to: &str) -> Result<(Finished, Vec<u8>), String> {
    let bytes = this.bytes(1 + this.draw(0, 1 << 20) as usize);
    let path = this.folder.join("bytes");
    std::fs::write(&path, &bytes).map_err(|error| error.to_string())?;
    let ran = run(&mut this.shell(&format!("cat {} {to}; exit 9", path.display())))?;
    ran.exits_with(9)?;
    Ok((ran, bytes))
}

pub(super) fn writes_output(this: &Try<'_>) -> Kept {
    let (ran, bytes) = printed(this, "")?;
    same("standard output", &ran.stdout, &bytes)
}

/// What gpuwhy has to say comes behind.
pub(super) fn writes_error(this: &Try<'_>) -> Kept {
    let (ran, bytes) = printed(this, ">&2")?;
    same("standard error", ran.stderr.get(..bytes.len()).unwrap_or(&ran.stderr), &bytes)?;
    same("standard output", &ran.stdout, b"")
}

/// Under callers that have some signals ignored or blocked, descriptors open, and other limits.
pub(super) fn inherits_the_same(this: &Try<'_>) -> Kept {
    let ignored = ["HUP", "INT", "PIPE", "CHLD", "USR1", "TSTP"];
    let ignored = ignored[this.draw(0, ignored.len() as u64) as usize];
    let descriptor = 3 + this.draw(1, 6);
    let nice = this.draw(2, 5);
    // `env` sets what a shell could not: that SIGPIPE and SIGCHLD are ignored.
    let caller = |command: &[String]| {
        let mut quoted: Vec<String> = vec!["exec".into()];
        quoted.extend(command.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))));
        let script =
            format!("umask 027; ulimit -n 500; {} {descriptor}</dev/null", quoted.join(" "));
        let mut out = Command::new("env");
        out.arg(format!("--ignore-signal={ignored}")).args([
            "nice",
            "-n",
            &nice.to_string(),
            "sh",
            "-c",
            &script,
        ]);
        out
    };
    let command: Vec<String> = ["sh", "-c", INHERITED].map(str::to_owned).into();
    let alone = run(&mut caller(&command))?;
    let behind = run(&mut caller(&[this.wrapper.bare_front(&this.trace()), command].concat()))?;
    alone.exits_with(0)?;
    behind.exits_with(0)?;
    let text = |ran: &Finished| {
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        text.lines().map(without_internal).collect::<Vec<_>>()
    };
    let (alone, behind) = (text(&alone), text(&behind));
    let differs = alone.iter().zip(&behind).find(|(a, b)| a != b);
    match differs {
        None if alone.len() == behind.len() => Ok(()),
        _ => Err(format!("{ignored} ignored: {differs:?} of {alone:?} and {behind:?}")),
    }
}

/// Pipes have other numbers each time. And glibc ignores its own two signals, 32 and 33, in every program
/// that a program with threads starts; it has them handled anew where it uses them.
fn without_internal(line: &str) -> String {
    if let Some(mask) = line.strip_prefix("SigIgn:\t") {
        let mask = u64::from_str_radix(mask, 16).unwrap_or(0) & !(3 << 31);
        return format!("SigIgn:\t{mask:016x}");
    }
    line.split("pipe:[").next().unwrap_or(line).to_owned()
}
