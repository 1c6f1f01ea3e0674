//! How a command ends, and that it ends for itself.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{Kept, Try};

/// What a program that hangs is given.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it wrote to standard output, if that was piped.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error, if that was piped.
    pub stderr: Vec<u8>,
}

impl Finished {
    /// Fails if the exit status is another one.
    ///
    /// # Errors
    /// The status and all that was written.
    pub fn exits_with(&self, code: i32) -> Kept {
        match self.status.code() {
            Some(found) if found == code => Ok(()),
            _ => Err(format!("{} instead of {code}: {}", self.status, self.said())),
        }
    }

    /// What it wrote.
    pub fn said(&self) -> String {
        let text =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned();
        format!("{} / {}", text(&self.stdout), text(&self.stderr))
    }
}

/// Starts a program whose outputs are piped.
///
/// # Errors
/// It cannot be started.
pub fn spawn(command: &mut Command) -> Result<Child, String> {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("{command:?}: {error}"))
}

/// Waits until it has ended; kills it if it hangs.
///
/// # Errors
/// It hung.
pub fn finish(mut child: Child) -> Result<Finished, String> {
    let read = |pipe: Option<Box<dyn std::io::Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let by = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < by => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it hung".into());
            }
        }
    };
    let joined = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
    Ok(Finished { status, stdout: joined(stdout), stderr: joined(stderr) })
}

/// Starts a program and waits until it has ended.
///
/// # Errors
/// It cannot be started, or hung.
pub fn run(command: &mut Command) -> Result<Finished, String> {
    finish(spawn(command.stdin(Stdio::null()))?)
}

/// Waits for the first line on a pipe.
pub(super) fn first_line(child: &mut Child) -> Result<String, String> {
    let out = child.stdout.as_mut().ok_or("no output is piped")?;
    let mut line = Vec::new();
    let mut byte = [0];
    while matches!(out.read(&mut byte), Ok(1)) && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Waits for a file; what is in it.
pub(super) fn file_appears(path: &std::path::Path) -> Result<String, String> {
    let by = Instant::now() + PATIENCE;
    loop {
        match std::fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return Ok(text),
            _ if Instant::now() > by => return Err(format!("`{}` did not appear", path.display())),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

pub(super) fn exits(this: &Try<'_>) -> Kept {
    let code = this.draw(0, 256) as i32;
    run(&mut this.shell(&format!("exit {code}")))?.exits_with(code)
}

pub(super) fn is_ended_by_a_signal(this: &Try<'_>) -> Kept {
    let all = [libc::SIGINT, libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV];
    let signal = all[this.draw(0, all.len() as u64) as usize];
    let script = format!("ulimit -c 0; kill -{signal} $$; exit 99");
    run(&mut this.shell(&script))?.exits_with(128 + signal)
}

pub(super) fn cannot_be_started(this: &Try<'_>) -> Kept {
    let (program, code) = if this.draw(0, 2) == 0 {
        (this.folder.join("nosuch"), 127)
    } else {
        let text = this.folder.join("text");
        std::fs::write(&text, "words\n").map_err(|error| error.to_string())?;
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&text, mode).map_err(|error| error.to_string())?;
        (text, 126)
    };
    let program = program.display().to_string();
    let ran = run(&mut this.wrapper.command(&this.trace(), &[&program]))?;
    ran.exits_with(code)?;
    match String::from_utf8_lossy(&ran.stderr).contains(&program) {
        true => Ok(()),
        false => Err(format!("nothing was said of `{program}`: {}", ran.said())),
    }
}

pub(super) fn recorder_killed(this: &Try<'_>) -> Kept {
    let result = this.folder.join("result");
    let code = this.draw(0, 256);
    let script = format!(
        "echo ready; sleep 0.4; (exit {code}); echo $? > {0}.tmp; mv {0}.tmp {0}",
        result.display()
    );
    let mut child = spawn(&mut this.shell(&script))?;
    if first_line(&mut child)? != "ready" {
        return Err("the command did not begin".into());
    }
    std::thread::sleep(Duration::from_millis(this.draw(1, 300)));
    child.kill().map_err(|error| error.to_string())?;
    let ended = child.wait().map_err(|error| error.to_string())?;
    if ended.signal() != Some(libc::SIGKILL) {
        return Err(format!("gpuwhy ended by itself before it was killed: {ended}"));
    }
    match file_appears(&result)?.trim() == code.to_string() {
        true => Ok(()),
        false => Err("the command did not come to its own end".into()),
    }
}

pub(super) fn recorder_killed_early(this: &Try<'_>) -> Kept {
    let (began, result) = (this.folder.join("began"), this.folder.join("result"));
    let script = format!(
        "echo $$ > {}; sleep 0.1; echo 7 > {1}.tmp; mv {1}.tmp {1}",
        began.display(),
        result.display()
    );
    let mut child = spawn(&mut this.shell(&script))?;
    std::thread::sleep(Duration::from_micros(this.draw(0, 800_000)));
    child.kill().map_err(|error| error.to_string())?;
    let _ = child.wait();
    // Either it has begun, and comes to its end, or it never begins.
    let by = Instant::now() + Duration::from_millis(300);
    while Instant::now() < by && !began.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    if began.exists() {
        return file_appears(&result).map(|_| ());
    }
    let waits = waiting_at_a_gate(this.folder);
    if waits.is_empty() { Ok(()) } else { Err(format!("{waits:?} wait for ever")) }
}

/// Processes that wait to become a command which names this folder.
fn waiting_at_a_gate(folder: &std::path::Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let command = |entry: std::fs::DirEntry| {
        let text = std::fs::read(entry.path().join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        (text.contains("__exec") && text.contains(&folder)).then_some(text)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(command).collect()
}

pub(super) fn unwritable(this: &Try<'_>) -> Kept {
    // Not even root may make a folder here.
    let places = ["/proc/t.trace", "/sys/kernel/t.trace", "/dev/null/t.trace"];
    let place = places[this.draw(0, places.len() as u64) as usize];
    let began = this.folder.join("began");
    let script = format!("touch {}", began.display());
    let ran = run(&mut this.wrapper.command(place.as_ref(), &["sh", "-c", &script]))?;
    ran.exits_with(1)?;
    if began.exists() {
        return Err("the command ran".into());
    }
    match String::from_utf8_lossy(&ran.stderr).contains(place) {
        true => Ok(()),
        false => Err(format!("nothing was said of `{place}`: {}", ran.said())),
    }
}
