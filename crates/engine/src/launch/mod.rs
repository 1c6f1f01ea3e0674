//! Starting a command that is recorded from its first instruction, and what it needs to be observed.
//!
//! [`GatedCommand`] starts the command as a waiting process, so that its pid is known to the recorder
//! before it runs; the [`Gate`] lets it go when recording has begun. [`MarkRing`] is the
//! shared-memory ring that marked programs write to, [`Instrumentation`] what lets GPU programs be
//! observed from inside, and [`RunDir`] the private folder in which all of these lie.

mod instrument;
mod run_dir;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpuwhy_collect::{Target, WIRE_RING_SLOTS};

pub use instrument::{InstrumentOptions, Instrumentation, library};
pub use run_dir::RunDir;

use crate::error::{Error, Result};

/// A ring for marked programs.
pub struct MarkRing {
    _ring: Option<gpuwhy_wire::Ring>,
    path: PathBuf,
    _folder: Option<RunDir>,
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
        Ok(MarkRing { _ring: ring, path, _folder: folder })
    }

    /// The value of GPUWHY_RING for programs that write to it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A command that waits until recording has begun.
pub struct GatedCommand {
    /// The process, which becomes the command.
    pub child: Child,
    gate: Gate,
}

/// The file whose appearance lets a waiting command begin; it is removed with its last holder.
#[derive(Clone)]
pub struct Gate(Arc<RunDir>);

impl Gate {
    fn path(&self) -> PathBuf {
        self.0.join("gate")
    }

    /// Lets the command begin.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(&self) -> Result<()> {
        let path = self.path();
        std::fs::write(&path, b"go").map_err(Error::io("write", &path))
    }
}

impl GatedCommand {
    /// Starts `launcher __exec GATE -- command`, which waits at the gate and then becomes the command
    /// ([`exec_when_open`]), with GPUWHY_RING set to `ring` and the variables of `instrumentation`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(
        launcher: &Path,
        command: &[String],
        ring: &Path,
        instrumentation: &Instrumentation,
        output: Stdio,
    ) -> Result<GatedCommand> {
        let gate = Gate(Arc::new(RunDir::make(["/dev/shm", "/run"])?));
        let child = Command::new(launcher)
            .arg("__exec")
            .arg(gate.path())
            .arg("--")
            .args(command)
            .env("GPUWHY_RING", ring)
            .envs(instrumentation.environment.iter().map(|(name, value)| (name, value)))
            .stdout(output)
            .spawn()
            .map_err(|source| cannot_run(command, source))?;
        Ok(GatedCommand { child, gate })
    }

    /// What lets it become the command.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
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

fn cannot_run(command: &[String], source: std::io::Error) -> Error {
    let program = command.first().cloned().unwrap_or_default();
    Error::Run { program, hint: "", source }
}

/// Waits until the gate opens, then becomes the command.
///
/// # Errors
/// The recorder has ended, or the command cannot be run.
pub fn exec_when_open(gate: &Path, command: &[String]) -> Result<std::convert::Infallible> {
    let parent = std::os::unix::process::parent_id();
    while !gate.exists() {
        if std::os::unix::process::parent_id() != parent {
            return Err(Error::RecorderGone);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let source = Command::new(&command[0]).args(&command[1..]).exec();
    Err(cannot_run(command, source))
}

/// The processes that are recorded exactly: `pids`, and the command that was started.
pub fn targets(pids: &[i32], command: Option<&GatedCommand>) -> Vec<Target> {
    let started = command.map(|gated| gated.child.id() as i32);
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

/// Removes the trace at `path` to make a new one there, but never anything else.
///
/// # Errors
/// Something lies there that may not be replaced, or it cannot be removed.
pub fn make_room(path: &Path, force: bool) -> Result<()> {
    if !is_replaced(path, force)? {
        return Ok(());
    }
    std::fs::remove_dir_all(path).map_err(Error::io("remove", path))
}
