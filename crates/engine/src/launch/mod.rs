//! Starting a command that is recorded from its first instruction, and what it needs to be observed.
//!
//! [`GatedCommand`] starts the command as a waiting process, so that its pid is known to the recorder
//! before it runs; the [`Gate`] lets it go when recording has begun. [`Supervised`] passes signals on to
//! it and keeps its status, whatever becomes of the recording. [`MarkRing`] is the shared-memory ring
//! that marked programs write to, [`Instrumentation`] what lets GPU programs be observed from inside, and
//! [`RunDir`] the private folder in which all of these lie.

mod command;
mod exec;
mod instrument;
mod python;
mod run_dir;
mod supervise;
mod user;

use std::path::{Path, PathBuf};

use gpuwhy_collect::{Target, WIRE_RING_SLOTS};

pub use command::{Gate, GatedCommand, check_program};
pub use exec::exec_when_open;
pub use instrument::{InstrumentOptions, Instrumentation, library};
pub use python::folder as python_package;
pub use run_dir::RunDir;
pub use supervise::{CommandStatus, Supervised};
pub use user::{RunAs, root_by_sudo};

use crate::error::{Error, Result};

/// A ring for marked programs.
pub struct MarkRing {
    ring: Option<gpuwhy_wire::Ring>,
    path: PathBuf,
    folder: Option<RunDir>,
}

impl MarkRing {
    /// At `path`, or at a path of its own in a folder that is removed with it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(path: Option<&Path>) -> Result<MarkRing> {
        let (path, folder) = match path {
            Some(path) => (path.to_path_buf(), None),
            None => {
                let folder = RunDir::make(["/dev/shm", "/run"])?;
                (folder.join("ring"), Some(folder))
            }
        };
        // Programs may be writing to a ring that exists already.
        let ring = match path.exists() {
            true => None,
            false => Some(
                gpuwhy_wire::Ring::create(&path, WIRE_RING_SLOTS)
                    .map_err(|source| Error::Ring { path: path.clone(), source })?,
            ),
        };
        Ok(MarkRing { ring, path, folder })
    }

    /// Lets a user write to it, if it was made here.
    ///
    /// # Errors
    /// Only root may.
    pub fn give_to(&self, user: &RunAs) -> Result<()> {
        if self.ring.is_none() {
            return Ok(());
        }
        if let Some(folder) = &self.folder {
            folder.let_through()?;
        }
        user.give(&self.path)
    }

    /// The value of GPUWHY_RING for programs that write to it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A program of ours: as the environment variable says, or beside this program, or on the PATH.
pub fn program_beside(name: &str, variable: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
        return named.into();
    }
    let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name(name));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Processes that are there already and are to be recorded exactly: `pids`, and with `vms` those that hold virtual CPUs of
/// KVM.
///
/// # Errors
/// One of them is not there, or no virtual machine is.
pub fn recorded_pids(pids: &[i32], vms: bool) -> Result<Vec<i32>> {
    if let Some(&pid) = pids.iter().find(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
        return Err(Error::NoProcess { pid });
    }
    let mut all = pids.to_vec();
    if vms {
        let machines = gpuwhy_collect::virtual_machines();
        if machines.is_empty() {
            return Err(Error::NoMachines);
        }
        all.extend(machines);
        all.sort_unstable();
        all.dedup();
    }
    Ok(all)
}

/// The processes that are recorded exactly: `pids`, and the command that was started.
pub fn targets(pids: &[i32], command: Option<&Supervised>) -> Vec<Target> {
    let started = command.map(Supervised::pid);
    pids.iter().copied().chain(started).map(Target::Pid).collect()
}

/// Whether a trace has to be removed to make one at `path`.
///
/// # Errors
/// Something lies there that may not be replaced.
pub fn is_replaced(path: &Path, force: bool) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    if !force {
        return Err(Error::Exists { path: path.into() });
    }
    if !path.join("trace.toml").is_file() {
        return Err(Error::NotReplaceable { path: path.into() });
    }
    Ok(true)
}

/// Removes the trace at `path` to make a new one there, but never anything else, and never a trace that
/// another process writes.
///
/// # Errors
/// Something lies there that may not be replaced, or it cannot be removed.
pub fn make_room(path: &Path, force: bool) -> Result<()> {
    if !is_replaced(path, force)? {
        return Ok(());
    }
    Ok(gpuwhy_store::remove(path)?)
}
