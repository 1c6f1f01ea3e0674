//! A child process that exchanges lines of JSON with this one over its stdin and stdout.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The child and its pipes. Dropping it closes the pipes and neither ends nor awaits the child.
#[derive(Debug)]
pub(crate) struct JsonChild {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

/// The last line of one that failed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failed {
    pub(crate) failed: String,
}

impl JsonChild {
    /// Starts a command; `name` is for error messages.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn spawn(name: String, command: &mut Command, stdin: Stdio) -> Result<JsonChild> {
        let mut child = command
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().with_context(|| format!("{name} has no stdout"))?;
        let stdin = child.stdin.take();
        Ok(JsonChild { name, child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a message, a line of JSON.
    ///
    /// # Errors
    /// If its stdin is closed.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let failed = || format!("cannot send to {}", self.name);
        let line = serde_json::to_string(message).with_context(failed)?;
        let stdin = self.stdin.as_mut().with_context(failed)?;
        writeln!(stdin, "{line}").with_context(failed)
    }

    /// Receives a message, a line of JSON.
    ///
    /// # Errors
    /// If it failed (the error is what it says), ends without a further line, or the line is no such
    /// message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let name = &self.name;
        let Some(line) = self.lines.next() else {
            bail!("{name} has ended before its time and did not say why");
        };
        let line = line.with_context(|| format!("cannot read from {name}"))?;
        if let Ok(Failed { failed }) = serde_json::from_str(&line) {
            bail!("{name} failed: {failed}");
        }
        serde_json::from_str(&line).with_context(|| format!("cannot parse what {name} printed"))
    }

    /// Closes its stdin, on which helper processes end.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Closes its stdin and waits until it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        self.close_stdin();
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Kills it and waits until it has ended.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
