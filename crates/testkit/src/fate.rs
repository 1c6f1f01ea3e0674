//! Situations in which a command must fare as it would without gpuwhy in front of it: how it ends, what
//! signals reach it, what it reads and writes, what happens when gpuwhy dies or cannot write.
//!
//! Each situation is a function that says what was not as it should be. Tests run each of them once, and the
//! benchmark `safety` a hundred times; both for `record`, for `watch`, and for a wrapper that only supervises,
//! which needs no root.

mod disk;
mod files;
mod process;
mod signals;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sys::{Random, fill};

pub use disk::{Disk, Fault, Full, strace_works};
pub use process::{Finished, finish, run, spawn};

/// What stands in front of the command.
#[derive(Clone, Debug)]
pub enum Wrapper {
    /// `gpuwhy record`.
    Record(PathBuf),
    /// `gpuwhy watch`.
    Watch(PathBuf),
    /// A program of ours that supervises and records nothing.
    Supervise(PathBuf),
}

impl Wrapper {
    /// Its name, for tables.
    pub fn name(&self) -> &'static str {
        match self {
            Wrapper::Record(_) => "record",
            Wrapper::Watch(_) => "watch",
            Wrapper::Supervise(_) => "supervise",
        }
    }

    /// Whether it writes a trace, for which it needs privileges.
    pub fn records(&self) -> bool {
        !matches!(self, Wrapper::Supervise(_))
    }

    /// The program and its arguments up to the command, where signals do what they do by default: also in a
    /// script that runs in the background, or behind `nohup`, which ignore some of them. The trace is `trace`.
    pub fn front(&self, trace: &Path) -> Vec<String> {
        let env = ["env", "--default-signal"].map(str::to_owned);
        env.into_iter().chain(self.bare_front(trace)).collect()
    }

    /// The same, where signals are ignored that the caller ignores.
    pub fn bare_front(&self, trace: &Path) -> Vec<String> {
        let trace = trace.display().to_string();
        let words = |program: &Path, rest: &[&str]| {
            let rest = rest.iter().map(|word| (*word).to_owned());
            std::iter::once(program.display().to_string()).chain(rest).collect()
        };
        match self {
            Wrapper::Record(program) => words(program, &["record", "-o", &trace, "--"]),
            Wrapper::Watch(program) => words(program, &["watch", "-o", &trace, "--"]),
            Wrapper::Supervise(program) => words(program, &["__supervise", "--"]),
        }
    }

    /// The command behind the wrapper.
    pub fn command(&self, trace: &Path, command: &[&str]) -> Command {
        let front = self.front(trace);
        let mut out = Command::new(&front[0]);
        out.args(&front[1..]).args(command);
        out
    }
}

/// One try of a situation.
pub struct Try<'a> {
    /// What stands in front.
    pub wrapper: &'a Wrapper,
    /// A folder of its own.
    pub folder: &'a Path,
    /// What is drawn is drawn from this.
    pub seed: u64,
}

impl Try<'_> {
    /// Where the trace goes.
    pub fn trace(&self) -> PathBuf {
        self.folder.join("t.trace")
    }

    /// The shell's script behind the wrapper.
    pub fn shell(&self, script: &str) -> Command {
        self.wrapper.command(&self.trace(), &["sh", "-c", script])
    }

    /// A number below `below`, another one for each `what`.
    pub fn draw(&self, what: u64, below: u64) -> u64 {
        let mut random =
            Random::new(self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(what));
        // The first numbers of neighbouring seeds resemble each other.
        (0..4).for_each(|_| _ = random.next_u64());
        random.next_u64() % below
    }

    /// So many bytes.
    pub fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        fill(&mut bytes, self.seed);
        bytes
    }
}

/// What was not as it should be.
pub type Kept = Result<(), String>;

/// A situation.
pub struct Situation {
    /// What happens, as in a table.
    pub name: &'static str,
    /// Whether it needs a recorder, and with it root.
    pub records: bool,
    /// One try.
    pub run: fn(&Try<'_>) -> Kept,
}

const fn any(name: &'static str, run: fn(&Try<'_>) -> Kept) -> Situation {
    Situation { name, records: false, run }
}

const fn recorded(name: &'static str, run: fn(&Try<'_>) -> Kept) -> Situation {
    Situation { name, records: true, run }
}

/// All of them.
pub const SITUATIONS: &[Situation] = &[
    any("it exits with a status from 0 to 255", process::exits),
    any("it is ended by a signal of its own", process::is_ended_by_a_signal),
    any("there is no such program, or it cannot be executed", process::cannot_be_started),
    any("a signal is sent to gpuwhy", signals::is_passed_on),
    any("a signal that it ignores is sent to gpuwhy", signals::is_ignored),
    any("a signal is sent to both by a terminal", terminal::interrupts_once),
    any("^Z and fg in a terminal", terminal::stops_and_goes_on),
    any("gpuwhy is stopped and goes on", signals::stop_and_continue),
    any("gpuwhy is the first process of a container", signals::first_process),
    any("it reads standard input", files::reads),
    any("it writes standard output", files::writes_output),
    any("it writes standard error", files::writes_error),
    any("descriptors, signal mask and ignored signals", files::inherits_the_same),
    any("it leaves its terminal in raw mode", terminal::raw_mode),
    any("gpuwhy is killed while it runs", process::recorder_killed),
    any("gpuwhy is killed before it begins", process::recorder_killed_early),
    recorded("the output cannot be written from the start", process::unwritable),
    recorded("the disk of the trace gets full", disk::gets_full),
    recorded("the disk of the trace fails", disk::fails),
];

/// The situation of this name.
///
/// # Panics
/// If there is none.
pub fn situation(name: &str) -> &'static Situation {
    let found = SITUATIONS.iter().find(|situation| situation.name == name);
    found.unwrap_or_else(|| panic!("there is no situation `{name}`"))
}
