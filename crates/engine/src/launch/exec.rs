//! What stands between the recorder and the command: a process of ours that waits until recording has
//! begun, gives up what was granted to the recorder, and becomes the command.
//!
//! The command gets what it would have got without us: the same descriptors, signal mask, ignored signals and
//! environment, and besides only the variables by which it is observed. It does *not* get the capabilities
//! that were lent to the recorder: the ambient and the inheritable set are empty when it begins.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::time::Duration;

use gpuwhy_collect::{set_ignored, sigpipe_was_ignored};
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use super::user::RunAs;
use crate::error::{Error, Result};

const SIGPIPE: i32 = signal_hook::consts::SIGPIPE;
const SIGCHLD: i32 = signal_hook::consts::SIGCHLD;

/// What the waiting process is told, as one argument.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Launch {
    /// The file whose appearance lets the command begin.
    gate: PathBuf,
    /// The pid of the recorder.
    recorder: u32,
    /// As whom the command runs, if not as the recorder.
    user: Option<RunAs>,
    /// Whether these were ignored when the recorder was started.
    sigpipe_ignored: bool,
    sigchld_ignored: bool,
}

impl Launch {
    /// A launch by this process.
    pub fn new(gate: PathBuf, user: Option<RunAs>) -> Launch {
        let sigchld_ignored = is_ignored(SIGCHLD);
        // The kernel would not keep the status of a child whose parent ignores that it ends.
        if sigchld_ignored {
            set_ignored(SIGCHLD, false);
        }
        let (recorder, sigpipe_ignored) = (std::process::id(), sigpipe_was_ignored());
        Launch { gate, recorder, user, sigpipe_ignored, sigchld_ignored }
    }

    /// As the argument of `__exec`.
    pub fn argument(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn wait(&self) -> Result<()> {
        let parent = std::os::unix::process::parent_id();
        // In a new pid namespace the recorder's pid is 0.
        if parent != self.recorder && parent != 0 {
            return Err(Error::RecorderGone);
        }
        while !self.gate.exists() {
            if std::os::unix::process::parent_id() != parent {
                return Err(Error::RecorderGone);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Waits until the gate opens, then becomes the command.
///
/// # Errors
/// The recorder has ended, or the command cannot be run; [`Error::exit_code`] says which status shells
/// have for that.
pub fn exec_when_open(launch: &str, command: &[OsString]) -> Result<Infallible> {
    let launch: Launch = serde_json::from_str(launch).map_err(|_| Error::RecorderGone)?;
    launch.wait()?;
    let mut environment = environment();
    if let Some(user) = &launch.user {
        user.become_user()?;
        user.set_variables(&mut environment);
    }
    give_up_capabilities()?;
    set_ignored(SIGPIPE, launch.sigpipe_ignored);
    set_ignored(SIGCHLD, launch.sigchld_ignored);
    let strings = |all: Vec<Vec<u8>>| -> Vec<CString> {
        all.into_iter().filter_map(|one| CString::new(one).ok()).collect()
    };
    let arguments = strings(command.iter().map(|one| one.as_bytes().to_vec()).collect());
    let variables = environment
        .into_iter()
        .map(|(name, value)| [name.into_vec(), b"=".to_vec(), value.into_vec()].concat());
    let Some(program) = arguments.first() else { return Err(Error::RecorderGone) };
    let Err(error) = nix::unistd::execvpe(program, &arguments, &strings(variables.collect()));
    Err(cannot_run(command.first().map_or(OsStr::new(""), |p| p), error.into()))
}

/// The environment that this process was started with. The loader of a program with capabilities of its
/// own takes `LD_LIBRARY_PATH` and its like out of what the program sees; the command has none, and gets
/// all of them.
pub(super) fn environment() -> Vec<(OsString, OsString)> {
    let path = "/proc/self/environ";
    let read = std::fs::read(path).or_else(|error| {
        // The file of such a program is root's until it says that its memory holds no secrets. To
        // trace it still takes the capabilities that it has.
        let before = dumpable_behavior()?;
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        let read = std::fs::read(path);
        set_dumpable_behavior(before)?;
        read.or(Err(error))
    });
    let Ok(bytes) = read else { return std::env::vars_os().collect() };
    let variable = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&line[..at]).into(), OsStr::from_bytes(&line[at + 1..]).into()))
    };
    bytes.split(|byte| *byte == 0).filter_map(variable).collect()
}

/// Empties the sets from which programs inherit capabilities. What a program that belongs to root has by
/// that stays: it is not lent.
fn give_up_capabilities() -> Result<()> {
    let failed = |source: rustix::io::Errno| Error::Capabilities { source: source.into() };
    rustix::thread::clear_ambient_capability_set().map_err(failed)?;
    let sets = rustix::thread::capabilities(None).map_err(failed)?;
    if sets.inheritable.is_empty() {
        return Ok(());
    }
    let sets = CapabilitySets { inheritable: CapabilitySet::empty(), ..sets };
    rustix::thread::set_capabilities(None, sets).map_err(failed)
}

/// Whether a signal is ignored by this process.
pub(super) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

pub(super) fn cannot_run(program: &OsStr, source: std::io::Error) -> Error {
    Error::Run { program: program.to_string_lossy().into_owned(), hint: "", source }
}
