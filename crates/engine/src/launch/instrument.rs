//! How a program is observed from inside: the library that the CUDA driver and NCCL load into it, the
//! agent socket that the library connects to, and the environment variables that name both.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use gpuwhy_collect::SocketConfig;
use gpuwhy_wire::{Collectives, DEFAULT_SOCKET, Kernels, Settings};

use super::run_dir::RunDir;
use super::user::RunAs;
use crate::error::{Error, Result};

/// The group whose members may connect to a socket that is not a command's own, if there is one.
const GROUP: &str = "gpuwhy";
/// The rights of such a socket: connecting takes the right to write.
const MODE: u32 = 0o660;

/// The library's file name.
const LIBRARY: &str = "libgpuwhy_inject.so";

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct InstrumentOptions {
    /// What is recorded inside processes.
    pub settings: Settings,
    /// The agent socket; `None` for one of the recording's own, or the host's.
    pub socket: Option<PathBuf>,
    /// The socket's rights, if not those of its kind.
    pub socket_mode: Option<u32>,
    /// The group of the socket's file, by name or number.
    pub socket_group: Option<String>,
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
    /// A library or group that was named is not there, or no private folder can be made.
    pub fn prepare(options: &InstrumentOptions, command: bool) -> Result<Instrumentation> {
        if let Some(named) = options.library.as_deref().filter(|path| !path.is_file()) {
            return Err(Error::NoLibrary { path: named.into() });
        }
        let settings = options.settings;
        let mut prepared = Instrumentation::none();
        if settings == Settings::default() {
            return Ok(prepared);
        }
        let Some((socket, is_own)) = prepared.choose_socket(options, command)? else {
            return Ok(prepared);
        };
        let group = prepared.choose_group(options, &socket, is_own)?;
        let mode = options.socket_mode.unwrap_or(if is_own { 0o600 } else { MODE });
        if command {
            prepared.set_environment(library(options.library.as_deref()), &socket, settings);
        }
        // Nobody asked for the host's socket by name: another recorder may have taken it just now.
        let required = command || options.socket.is_some();
        prepared.socket = Some(SocketConfig { socket, mode, group, settings, required });
        Ok(prepared)
    }

    /// Lets a user connect to the agent socket, which is listened at by now.
    ///
    /// # Errors
    /// Only root may.
    pub fn give_to(&self, user: &RunAs) -> Result<()> {
        let (Some(folder), Some(socket)) = (&self.folder, &self.socket) else { return Ok(()) };
        folder.let_through()?;
        user.give(&socket.socket)
    }

    /// The group of the socket's file; `None` for our own. A socket that is not a command's own is there
    /// for others, and who they are should be known.
    fn choose_group(
        &mut self,
        options: &InstrumentOptions,
        socket: &Path,
        is_own: bool,
    ) -> Result<Option<u32>> {
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        if let Some(name) = &options.socket_group {
            let found = group_number(&groups, name);
            return found.map(Some).ok_or_else(|| Error::NoGroup { name: name.clone() });
        }
        if is_own {
            return Ok(None);
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let group = group_number(&groups, GROUP).filter(|group| may_give(&status, *group));
        if group.is_none() && options.socket_mode.is_none() {
            self.notes.push(format!(
                "only processes of this user and group may connect to {}: to admit others, make a \
                 group `{GROUP}` and put them into it, or name theirs with --socket-group",
                socket.display()
            ));
        }
        Ok(group)
    }

    /// The socket's path, and whether it is the command's own; `None` if there is none to listen at.
    fn choose_socket(
        &mut self,
        options: &InstrumentOptions,
        command: bool,
    ) -> Result<Option<(PathBuf, bool)>> {
        if let Some(path) = &options.socket {
            return Ok(Some((path.clone(), false)));
        }
        if command {
            let folder = RunDir::make(["/run", "/dev/shm"])?;
            let socket = folder.join("agent.sock");
            self.folder = Some(folder);
            return Ok(Some((socket, true)));
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
        Ok(Some((path, false)))
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

/// The number of a group, by its name in the text of an `/etc/group`, or as it was given.
fn group_number(groups: &str, name: &str) -> Option<u32> {
    let line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    };
    groups.lines().find_map(line).or_else(|| name.parse().ok())
}

/// Whether a process with this `/proc/self/status` may give a file of its own to a group: root, and who
/// is in it.
fn may_give(status: &str, group: u32) -> bool {
    let numbers = |field: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("");
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    // Real, effective, saved and of the file system.
    numbers("Uid:").get(1) == Some(&0)
        || numbers("Gid:").contains(&group)
        || numbers("Groups:").contains(&group)
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
    fn a_socket_for_others_is_for_a_group_and_never_for_everybody() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let options = InstrumentOptions {
            settings: Settings::USUAL,
            socket: Some(socket),
            ..InstrumentOptions::default()
        };
        let prepared = Instrumentation::prepare(&options, false).unwrap();
        let config = prepared.socket.unwrap();
        assert_eq!(config.mode, 0o660);
        assert!(config.group.is_some() || prepared.notes[0].contains("--socket-group"));
        let named = InstrumentOptions {
            socket_mode: Some(0o620),
            socket_group: Some("12".into()),
            ..options.clone()
        };
        let config = Instrumentation::prepare(&named, false).unwrap().socket.unwrap();
        assert_eq!((config.mode, config.group), (0o620, Some(12)));
        let unknown = InstrumentOptions { socket_group: Some("no such group".into()), ..options };
        let error = Instrumentation::prepare(&unknown, false).err().unwrap().to_string();
        assert!(error.contains("no such group"), "{error}");
        // That of a command is its user's alone.
        let own = InstrumentOptions { settings: Settings::USUAL, ..InstrumentOptions::default() };
        let config = Instrumentation::prepare(&own, true).unwrap().socket.unwrap();
        assert_eq!((config.mode, config.group), (0o600, None));
    }

    #[test]
    fn a_group_is_known_by_name_or_number() {
        let groups = "root:x:0:\ngpuwhy:x:991:alice,bob\nbroken\n";
        assert_eq!(group_number(groups, "gpuwhy"), Some(991));
        assert_eq!(group_number(groups, "42"), Some(42));
        assert_eq!(group_number(groups, "alice"), None);
        let status = |uid, groups| format!("Uid:\t0\t{uid}\t0\t0\nGid:\t5\t5\nGroups:\t{groups}\n");
        assert!(may_give(&status(0, ""), 991) && may_give(&status(7, "4 991"), 991));
        assert!(may_give(&status(7, ""), 5) && !may_give(&status(7, "4"), 991));
    }

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
