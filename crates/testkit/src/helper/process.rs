//! A helper process: the command that starts it, and what its parent knows of it.

use std::io::Write;
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::JsonChild;
use crate::gpu::Environment;
use crate::sys::{self, Ended, Waiter};

/// The first argument of a helper process.
pub(crate) const MARKER: &str = "__testkit";
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Starts helper processes from another program than this one: for tests, whose `main` is not their
/// own. Only the first call counts.
pub fn set_program(program: impl AsRef<Path>) {
    let _ = PROGRAM.set(program.as_ref().to_owned());
}

/// The command of a helper process with a role; it gets `signal` when the calling thread ends.
///
/// # Errors
/// If the task cannot be written as JSON.
pub(crate) fn command(role: &str, task: &impl Serialize, signal: i32) -> Result<Command> {
    let task = serde_json::to_string(task)
        .with_context(|| format!("cannot write the task of the helper process {role}"))?;
    // This link finds the program even if it was rebuilt after it was started.
    let mut command = match PROGRAM.get() {
        Some(program) => Command::new(program),
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(std::env::current_exe().unwrap_or_else(|_| "gpuwhy-testkit".into()));
            command
        }
    };
    command.arg(MARKER).arg(role).arg(task);
    sys::die_with_parent(&mut command, signal);
    Ok(command)
}

/// Writes a value to stdout as a line of JSON, unbuffered.
#[expect(
    clippy::disallowed_methods,
    reason = "a line of JSON of our own, for the program that started it"
)]
pub(crate) fn print_json(value: &impl Serialize) {
    let mut out = std::io::stdout().lock();
    // Nobody may be left to read it.
    let _ = writeln!(out, "{}", serde_json::to_string(value).unwrap_or_default());
    let _ = out.flush();
}

/// A helper process whose last line on stdout is JSON, a `T`. Dropping it ends the process and
/// waits until it has restored what it changed.
pub struct HelperProcess<T> {
    role: &'static str,
    child: JsonChild,
    over: bool,
    undo: Option<Box<dyn FnOnce() + Send>>,
    result: PhantomData<T>,
}

impl<T> std::fmt::Debug for HelperProcess<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.role, self.child.pid())
    }
}

impl<T: DeserializeOwned> HelperProcess<T> {
    /// Starts it.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(crate) fn start(
        role: &'static str,
        task: &impl Serialize,
        environment: &Environment,
    ) -> Result<HelperProcess<T>> {
        let mut command = command(role, task, libc::SIGTERM)?;
        environment.apply(&mut command)?;
        let child = JsonChild::spawn(role.to_owned(), &mut command, Stdio::null())?;
        Ok(HelperProcess { role, child, over: false, undo: None, result: PhantomData })
    }

    /// Calls `undo` if the process does not end in order, for instance because it is killed.
    pub(crate) fn or_undo(mut self, undo: impl FnOnce() + Send + 'static) -> HelperProcess<T> {
        self.undo = Some(Box::new(undo));
        self
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it reports that it has begun, for roles that do; when, CLOCK_MONOTONIC ns.
    ///
    /// # Errors
    /// If it could not begin.
    pub fn begun(&mut self) -> Result<u64> {
        let begun: serde_json::Value = self.child.receive()?;
        begun["from_ns"]
            .as_u64()
            .with_context(|| format!("{} did not report when it began", self.role))
    }

    /// Waits until its time is over; its result.
    ///
    /// # Errors
    /// If it failed or was killed.
    pub fn finish(mut self) -> Result<T> {
        // The line that reports its beginning is no `T`.
        let last = loop {
            let value: serde_json::Value = self.child.receive()?;
            if let Ok(last) = serde_json::from_value(value) {
                break last;
            }
        };
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed: {status}", self.role);
        }
        self.over = true;
        Ok(last)
    }

    /// Ends it before its time.
    ///
    /// # Errors
    /// As [`HelperProcess::finish`].
    pub fn stop(self) -> Result<T> {
        sys::kill(self.pid(), libc::SIGTERM)
            .with_context(|| format!("cannot send SIGTERM to {}", self.role))?;
        self.finish()
    }

    /// Waits until its time is over, or until this process gets a signal, and then ends it. For the
    /// `main` of a program that has started no threads before `waiter`.
    ///
    /// # Errors
    /// As [`HelperProcess::finish`].
    pub fn finish_or_interrupt(self, waiter: &Waiter) -> Result<T> {
        loop {
            // Nothing that it prints is lost: the pipe is read when it has ended.
            let soon = sys::now() + 50_000_000;
            if waiter.until(Some(soon), None) == Ended::Signal {
                return self.stop();
            }
            if sys::has_ended(self.pid()) {
                return self.finish();
            }
        }
    }
}

impl<T> Drop for HelperProcess<T> {
    fn drop(&mut self) {
        if !self.over {
            // No signal to a child that was waited for: its pid may belong to another process.
            if matches!(self.child.try_wait(), Ok(None)) {
                let _ = sys::kill(self.child.pid(), libc::SIGTERM);
                let _ = self.child.wait();
            }
            if let Some(undo) = self.undo.take() {
                undo();
            }
        }
    }
}
