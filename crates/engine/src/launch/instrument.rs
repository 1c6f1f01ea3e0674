//! How a program is observed from inside: the library that the CUDA driver and NCCL load into it, the
//! agent socket that the library connects to, and the environment variables that name both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gpuwhy_collect::SocketConfig;
use gpuwhy_wire::{Collectives, DEFAULT_SOCKET, Kernels, Settings};

use super::run_dir::RunDir;
use crate::error::{Error, Result};

/// The library's file name.
const LIBRARY: &str = "libgpuwhy_inject.so";

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct InstrumentOptions {
    /// What is recorded inside processes.
    pub settings: Settings,
    /// The agent socket; `None` for one of the recording's own, or the host's.
    pub socket: Option<PathBuf>,
    /// The library, if not the one beside this program.
    pub library: Option<PathBuf>,
}

/// The agent socket, and the environment of a command that is observed from inside.
pub struct Instrumentation {
    /// Where to listen, and what to ask of libraries that connect; `None` to listen nowhere.
    pub socket: Option<SocketConfig>,
    /// Environment variables of the command.
    pub environment: Vec<(OsString, OsString)>,
    /// What will not be observed, and why.
    pub notes: Vec<String>,
    folder: Option<RunDir>,
}

impl Instrumentation {
    /// Nothing is observed from inside.
    pub fn none() -> Instrumentation {
        Instrumentation { socket: None, environment: Vec::new(), notes: Vec::new(), folder: None }
    }

    /// As `options` say. A command gets a socket of its own unless one is named; processes that run
    /// already connect to the host's.
    ///
    /// # Errors
    /// A library that was named is not there, or no private folder can be made.
    pub fn prepare(options: &InstrumentOptions, command: bool) -> Result<Instrumentation> {
        if let Some(named) = options.library.as_deref().filter(|path| !path.is_file()) {
            return Err(Error::NoLibrary { path: named.into() });
        }
        let settings = options.settings;
        let mut prepared = Instrumentation::none();
        if settings == Settings::default() {
            return Ok(prepared);
        }
        let Some((socket, mode)) = prepared.choose_socket(options, command)? else {
            return Ok(prepared);
        };
        if command {
            prepared.set_environment(library(options.library.as_deref()), &socket, settings);
        }
        // Nobody asked for the host's socket by name: another recorder may have taken it just now.
        let required = command || options.socket.is_some();
        prepared.socket = Some(SocketConfig { socket, mode, settings, required });
        Ok(prepared)
    }

    /// The socket's path and permissions; `None` if there is none to listen at.
    fn choose_socket(
        &mut self,
        options: &InstrumentOptions,
        command: bool,
    ) -> Result<Option<(PathBuf, u32)>> {
        if let Some(path) = &options.socket {
            return Ok(Some((path.clone(), 0o666)));
        }
        if command {
            let folder = RunDir::make(["/run", "/dev/shm"])?;
            let socket = folder.join("agent.sock");
            self.folder = Some(folder);
            return Ok(Some((socket, 0o600)));
        }
        let path = PathBuf::from(DEFAULT_SOCKET);
        let folder = path.parent().unwrap_or(Path::new("/"));
        if std::fs::create_dir_all(folder).is_err() || !is_writable(folder) {
            // A user who may not write there has not asked for the host's socket.
            return Ok(None);
        }
        if is_served(&path) {
            self.notes.push(format!(
                "another recorder listens at {DEFAULT_SOCKET}; libraries inside processes report to it"
            ));
            return Ok(None);
        }
        Ok(Some((path, 0o666)))
    }

    fn set_environment(&mut self, library: Option<PathBuf>, socket: &Path, settings: Settings) {
        let Some(library) = library else {
            self.notes.push(format!(
                "{LIBRARY} is neither beside gpuwhy nor where GPUWHY_INJECT points: kernels and \
                 collectives are not recorded from inside"
            ));
            return;
        };
        let set_by_user = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        self.environment.push((gpuwhy_wire::SOCKET_ENV.into(), socket.into()));
        if settings.kernels != Kernels::Off {
            match set_by_user("CUDA_INJECTION64_PATH") {
                // The driver loads one library only; the user's own profiler keeps its place.
                Some(other) if other != library => self.notes.push(format!(
                    "CUDA_INJECTION64_PATH names another profiler ({}): kernels are not recorded",
                    other.to_string_lossy()
                )),
                _ => {
                    self.environment.push(("CUDA_INJECTION64_PATH".into(), library.clone().into()));
                }
            }
        }
        if settings.collectives != Collectives::Off {
            // NCCL loads one plug-in too; ours calls the user's.
            if let Some(other) =
                set_by_user("NCCL_PROFILER_PLUGIN").filter(|other| *other != library)
            {
                self.environment.push(("GPUWHY_NCCL_NEXT".into(), other));
            }
            self.environment.push(("NCCL_PROFILER_PLUGIN".into(), library.into()));
        }
    }
}

/// Where the library is: as named, as GPUWHY_INJECT says, beside this program, or in the `lib` folder
/// beside its `bin`.
pub fn library(named: Option<&Path>) -> Option<PathBuf> {
    if let Some(named) = named {
        return Some(named.to_path_buf());
    }
    if let Some(said) = std::env::var_os("GPUWHY_INJECT").filter(|v| !v.is_empty()) {
        return Some(said.into());
    }
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let beside = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    beside.into_iter().find(|p| p.is_file()).and_then(|p| p.canonicalize().ok())
}

fn is_writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".gpuwhy-{}", std::process::id()));
    let made = std::fs::File::create_new(&probe).is_ok();
    let _ = std::fs::remove_file(&probe);
    made
}

/// Whether another recorder listens at a socket.
fn is_served(socket: &Path) -> bool {
    gpuwhy_wire::Client::connect(socket).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_the_user_set_are_kept() {
        let mut prepared = Instrumentation::none();
        let socket = Path::new("/run/agent.sock");
        prepared.set_environment(Some("/lib/ours.so".into()), socket, Settings::USUAL);
        let get = |name: &str| {
            let found = prepared.environment.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.to_string_lossy().into_owned())
        };
        assert_eq!(get("CUDA_INJECTION64_PATH").as_deref(), Some("/lib/ours.so"));
        assert_eq!(get("NCCL_PROFILER_PLUGIN").as_deref(), Some("/lib/ours.so"));
        assert_eq!(get("GPUWHY_SOCKET").as_deref(), Some("/run/agent.sock"));

        let mut prepared = Instrumentation::none();
        prepared.set_environment(None, socket, Settings::USUAL);
        assert!(prepared.environment.is_empty() && prepared.notes.len() == 1);
    }
}
