//! Ranks and culprits as processes: this program, started again in another role.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::marker::PhantomData;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpuloop::Place;
use crate::sys::{self, Ended, Waiter};

const MARKER: &str = "__testkit";
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Plays a role and does not return, if this process was started for one. Must come first in the
/// `main` of every program that uses this crate, before it starts a thread.
pub fn dispatch() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_none_or(|marker| marker != MARKER) {
        return;
    }
    let (role, spec) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    sys::unblock_signals();
    let code = match play(role, spec) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("gpuwhy-testkit: {error:#}");
            1
        }
    };
    std::process::exit(code);
}

/// Has roles played by another program than this one: for tests, whose own `main` is not theirs.
/// The first call counts.
pub fn set_program(program: impl AsRef<Path>) {
    let _ = PROGRAM.set(program.as_ref().to_owned());
}

fn play(role: OsString, spec: OsString) -> Result<()> {
    let (role, spec) = (role.to_string_lossy(), spec.to_string_lossy());
    match &*role {
        "steploop" => crate::steploop::supervise(parse(&spec)?),
        "rank" => crate::steploop::rank::run(parse(&spec)?),
        "inject" => crate::inject::act(parse(&spec)?),
        "gpuloop" => crate::gpuloop::run(parse(&spec)?),
        "gpuhog" => crate::gpuloop::hog(parse(&spec)?),
        "gpu-fault" => crate::gpufault::run(parse(&spec)?),
        _ => bail!("no role is called `{role}`"),
    }
}

fn parse<T: DeserializeOwned>(spec: &str) -> Result<T> {
    serde_json::from_str(spec).context("cannot read what this role should do")
}

/// The command that plays a role; killed by `signal` when the calling thread ends.
pub(crate) fn command(role: &str, spec: &impl Serialize, signal: i32) -> Result<Command> {
    let spec = serde_json::to_string(spec).context("cannot write what a role should do")?;
    // By this link the program is found even when it was built anew since it was started.
    let mut command = match PROGRAM.get() {
        Some(program) => Command::new(program),
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(std::env::current_exe().unwrap_or_else(|_| "gpuwhy-testkit".into()));
            command
        }
    };
    command.arg(MARKER).arg(role).arg(spec);
    sys::die_with_parent(&mut command, signal);
    Ok(command)
}

/// A line of JSON on stdout, at once.
pub(crate) fn say(value: &impl Serialize) {
    println!("{}", serde_json::to_string(value).unwrap_or_default());
    let _ = std::io::stdout().flush();
}

/// A role that is played in a process of its own and ends with a line of JSON, a `T`. Dropping it
/// ends it and waits until it has put everything back.
pub struct Played<T> {
    role: &'static str,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    over: bool,
    undo: Option<Box<dyn FnOnce() + Send>>,
    says: PhantomData<T>,
}

impl<T> std::fmt::Debug for Played<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.role, self.child.id())
    }
}

impl<T: DeserializeOwned> Played<T> {
    pub(crate) fn start(
        role: &'static str,
        spec: &impl Serialize,
        place: &Place,
    ) -> Result<Played<T>> {
        let mut command = command(role, spec, libc::SIGTERM)?;
        if let Some(machine) = &place.machine {
            command.env(crate::gpu::ENV, machine);
        }
        if let Some(libraries) = &place.libraries {
            let old = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let all = [libraries.clone()].into_iter().chain(std::env::split_paths(&old));
            let all = std::env::join_paths(all).context("a directory's name has a colon")?;
            command.env("LD_LIBRARY_PATH", all);
        }
        command.envs(place.env.iter().map(|(name, value)| (name, value)));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {role}"))?;
        let stdout = child.stdout.take().with_context(|| format!("{role} has no stdout"))?;
        let lines = BufReader::new(stdout).lines();
        Ok(Played { role, child, lines, over: false, undo: None, says: PhantomData })
    }

    /// Does this if the role does not end in order, as when it is killed.
    pub(crate) fn or_undo(mut self, undo: impl FnOnce() + Send + 'static) -> Played<T> {
        self.undo = Some(Box::new(undo));
        self
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If it cannot be asked for.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until it says that it has begun, for roles that say so; CLOCK_MONOTONIC ns.
    ///
    /// # Errors
    /// If it could not begin; the reason is on stderr.
    pub fn begun(&mut self) -> Result<u64> {
        let begun: serde_json::Value = self.hear()?;
        begun["from_ns"].as_u64().with_context(|| format!("{} did not say when", self.role))
    }

    /// Waits until its time is over.
    ///
    /// # Errors
    /// If it failed or was killed; the reason is on stderr.
    pub fn finish(mut self) -> Result<T> {
        // What says when it began is no `T`.
        let last = loop {
            let value: serde_json::Value = self.hear()?;
            if let Ok(last) = serde_json::from_value(value) {
                break last;
            }
        };
        let status = self.child.wait().context("cannot wait for a role")?;
        if !status.success() {
            bail!("{} failed: {status}", self.role);
        }
        self.over = true;
        Ok(last)
    }

    /// Ends it before its time.
    ///
    /// # Errors
    /// As [`Played::finish`].
    pub fn stop(self) -> Result<T> {
        sys::kill(self.pid(), libc::SIGTERM)
            .with_context(|| format!("cannot ask {} to end", self.role))?;
        self.finish()
    }

    /// Waits until its time is over, or until this process is asked to end, and then asks it to
    /// end too. For the `main` of a program, before which no thread was started.
    ///
    /// # Errors
    /// As [`Played::finish`].
    pub fn finish_or_interrupt(self, waiter: &Waiter) -> Result<T> {
        loop {
            // Nothing of what it says is lost: it is read from the pipe when it has ended.
            let soon = sys::now() + 50_000_000;
            if waiter.until(Some(soon), None) == Ended::Signal {
                return self.stop();
            }
            if sys::has_ended(self.pid()) {
                return self.finish();
            }
        }
    }

    fn hear<V: DeserializeOwned>(&mut self) -> Result<V> {
        match self.lines.next() {
            Some(line) => {
                let line = line.with_context(|| format!("cannot read from {}", self.role))?;
                serde_json::from_str(&line)
                    .with_context(|| format!("cannot understand {}", self.role))
            }
            None => bail!("{} has ended before its time; its message is above", self.role),
        }
    }
}

impl<T> Drop for Played<T> {
    fn drop(&mut self) {
        if !self.over {
            // A child that was waited for is not asked: its number may be another's.
            if matches!(self.child.try_wait(), Ok(None)) {
                let _ = sys::kill(self.child.id() as i32, libc::SIGTERM);
                let _ = self.child.wait();
            }
            if let Some(undo) = self.undo.take() {
                undo();
            }
        }
    }
}
