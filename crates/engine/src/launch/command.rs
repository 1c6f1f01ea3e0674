//! A command that waits until recording has begun.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::exec::{Launch, cannot_run, environment};
use super::instrument::Instrumentation;
use super::python;
use super::run_dir::RunDir;
use super::user::RunAs;
use crate::error::{Error, Result};

const ENOENT: i32 = rustix::io::Errno::NOENT.raw_os_error();
const EACCES: i32 = rustix::io::Errno::ACCESS.raw_os_error();

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
    /// Starts `launcher __exec ... -- command`, which waits at the gate and then becomes the command
    /// ([`super::exec_when_open`]) as `user` or the caller, with GPUWHY_RING set to `ring`, the variables of
    /// `instrumentation`, and the package `gpuwhy` where Python finds it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(
        launcher: &Path,
        command: &[OsString],
        ring: &Path,
        instrumentation: &Instrumentation,
        user: Option<&RunAs>,
        output: Stdio,
    ) -> Result<GatedCommand> {
        let gate = Gate(Arc::new(RunDir::make(["/dev/shm", "/run"])?));
        let launch = Launch::new(gate.path(), user.cloned());
        let environment = environment();
        let users = environment.iter().find(|(name, _)| name == python::PATH);
        let users = users.map(|(_, path)| path.as_os_str());
        let package = python::folder().map(|folder| (python::PATH, python::path(&folder, users)));
        let child = Command::new(launcher)
            .arg("__exec")
            .arg(launch.argument())
            .arg("--")
            .args(command)
            .env_clear()
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .envs(package)
            .env("GPUWHY_RING", ring)
            .envs(instrumentation.environment.iter().map(|(name, value)| (name, value)))
            .stdout(output)
            .spawn()
            .map_err(|source| cannot_run(command.first().map_or(OsStr::new(""), |p| p), source))?;
        Ok(GatedCommand { child, gate })
    }

    /// What lets it become the command.
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }
}

/// Whether a program can be started, as far as can be told before: users learn it before anything is
/// recorded.
///
/// # Errors
/// There is no such program, or it may not be executed.
pub fn check_program(program: &OsStr) -> Result<()> {
    let look = |path: &Path| match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() || meta.permissions().mode() & 0o111 == 0 => {
            Some(std::io::ErrorKind::PermissionDenied)
        }
        Ok(_) => None,
        Err(error) => Some(error.kind()),
    };
    let path = Path::new(program);
    let missing = if program.as_encoded_bytes().contains(&b'/') {
        look(path)
    } else {
        // Without a PATH the C library has one of its own.
        let Some(paths) = std::env::var_os("PATH") else { return Ok(()) };
        let mut worst = Some(std::io::ErrorKind::NotFound);
        for folder in std::env::split_paths(&paths) {
            match look(&folder.join(path)) {
                None => return Ok(()),
                Some(std::io::ErrorKind::PermissionDenied) => {
                    worst = Some(std::io::ErrorKind::PermissionDenied);
                }
                Some(_) => {}
            }
        }
        worst
    };
    missing.map_or(Ok(()), |kind| {
        // As the system says it.
        let number = if kind == std::io::ErrorKind::NotFound { ENOENT } else { EACCES };
        Err(cannot_run(program, std::io::Error::from_raw_os_error(number)))
    })
}
