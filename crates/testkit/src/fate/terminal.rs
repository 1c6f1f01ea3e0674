//! A command in a terminal: keys that are signals, job control, raw mode.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::process::finish;
use super::signals::counting;
use super::{Kept, Try};
use crate::sys::Pty;

/// A terminal with a session in it, and what was written to it so far.
struct Terminal {
    pty: Pty,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a program as the leader of the terminal's session, in the foreground.
    fn start(command: &[String]) -> Result<Terminal, String> {
        let failed = |error: std::io::Error| error.to_string();
        let pty = Pty::new().map_err(failed)?;
        let slave = || std::fs::OpenOptions::new().read(true).write(true).open(&pty.path);
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .args(command)
            .stdin(Stdio::from(slave().map_err(failed)?))
            .stdout(Stdio::from(slave().map_err(failed)?))
            .stderr(Stdio::from(slave().map_err(failed)?))
            .spawn()
            .map_err(failed)?;
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut master, shared) = (pty.master.try_clone().map_err(failed)?, written.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                let mut written = shared.lock().unwrap_or_else(PoisonError::into_inner);
                written.extend_from_slice(&buffer[..count]);
            }
        });
        Ok(Terminal { pty, child, written })
    }

    fn text(&self) -> Vec<u8> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until this was written, and returns all up to its end.
    fn wait_for(&self, what: &[u8]) -> Result<Vec<u8>, String> {
        let by = Instant::now() + Duration::from_secs(30);
        loop {
            let text = self.text();
            if let Some(at) = text.windows(what.len()).position(|window| window == what) {
                return Ok(text[..at + what.len()].to_vec());
            }
            if Instant::now() > by {
                let (what, text) = (String::from_utf8_lossy(what), String::from_utf8_lossy(&text));
                return Err(format!("`{what}` was not written: {text}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn types(&mut self, keys: &[u8]) -> Kept {
        self.pty.master.write_all(keys).map_err(|error| error.to_string())
    }

    fn exits_with(self, code: i32) -> Kept {
        let text = String::from_utf8_lossy(&self.text()).into_owned();
        finish(self.child)?.exits_with(code).map_err(|error| format!("{error}: {text}"))
    }
}

fn behind(this: &Try<'_>, script: &str) -> Vec<String> {
    let mut all = this.wrapper.front(&this.trace());
    all.extend(["sh".into(), "-c".into(), script.into()]);
    all
}

pub(super) fn interrupts_once(this: &Try<'_>) -> Kept {
    let keys = [("INT", &b"\x03"[..]), ("QUIT", b"\x1c")];
    let (name, keys) = keys[this.draw(0, 2) as usize];
    let code = this.draw(1, 256);
    let script = format!("ulimit -c 0; {}", counting(name, code));
    let mut terminal = Terminal::start(&behind(this, &script))?;
    terminal.wait_for(b"ready")?;
    terminal.types(keys)?;
    terminal.wait_for(b"came 1\r\n")?;
    terminal.exits_with(code as i32)
}

/// A shell with job control takes its terminal back when the job stops, and gives it again.
pub(super) fn stops_and_goes_on(this: &Try<'_>) -> Kept {
    let code = this.draw(0, 200);
    // `$!` would be a job in the background; this one has the terminal. It starts no programs: a shell that
    // is stopped between vfork and exec of its child is not stopped itself, with gpuwhy or without.
    let script =
        format!("echo ready; i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done; exit {code}");
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    let job: Vec<String> = behind(this, &script).iter().map(quote).collect();
    let shell = format!("set -m; {}; echo stopped $?; fg; exit $?", job.join(" "));
    let mut terminal = Terminal::start(&["sh".into(), "-c".into(), shell])?;
    terminal.wait_for(b"ready")?;
    std::thread::sleep(Duration::from_millis(this.draw(1, 150)));
    terminal.types(b"\x1a")?;
    // 128 + SIGTSTP, or SIGSTOP.
    let until = terminal.wait_for(b"stopped 1")?;
    if until.is_empty() {
        return Err("the shell did not get its terminal back".into());
    }
    terminal.exits_with(code as i32)
}

/// The program draws on its terminal, byte by byte, and leaves it raw.
pub(super) fn raw_mode(this: &Try<'_>) -> Kept {
    let mark = format!("<{:016x}>", this.draw(0, u64::MAX));
    let path = this.folder.join("bytes");
    std::fs::write(&path, this.bytes(20_000)).map_err(|error| error.to_string())?;
    // Long enough for a line of status, if there were one.
    let script = format!(
        "stty raw -echo; cat {0}; sleep 1.2; cat {0}; printf '{mark}'; exit 3",
        path.display()
    );
    let run = |command: &[String]| {
        let terminal = Terminal::start(command)?;
        let bytes = terminal.wait_for(mark.as_bytes())?;
        let pty = terminal.pty.modes();
        let modes = pty.map_err(|error| error.to_string())?;
        let Terminal { pty, child, .. } = terminal;
        finish(child)?.exits_with(3)?;
        let after = pty.modes().map_err(|error| error.to_string())?;
        if after != modes {
            return Err("gpuwhy changed the terminal's modes at its end".to_owned());
        }
        Ok((bytes, after))
    };
    let alone = run(&["sh".into(), "-c".into(), script.clone()])?;
    let behind = run(&behind(this, &script))?;
    if alone.1 != behind.1 {
        return Err(format!("modes: {:?} instead of {:?}", behind.1, alone.1));
    }
    let at = alone.0.iter().zip(&behind.0).position(|(a, b)| a != b);
    match at {
        None if alone.0.len() == behind.0.len() => Ok(()),
        _ => Err(format!("{} bytes instead of {}, other at {at:?}", behind.0.len(), alone.0.len())),
    }
}
