//! What lets a program be seen from inside: the library, the socket that it knocks at, and the
//! environment in which the CUDA driver and NCCL load it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use gpuwhy_collect::DoorConfig;
use gpuwhy_wire::{Collectives, DEFAULT_DOOR, Kernels, Settings};

use crate::args::{CollectiveDetail, Inside, KernelDetail};
use crate::own::OwnFolder;

/// What the library's file is called.
const LIBRARY: &str = "libgpuwhy_inject.so";

/// The socket, and the environment of a command that is started to be seen from inside.
pub struct Doors {
    /// What to listen at, and what to ask; none if nothing is asked.
    pub config: Option<DoorConfig>,
    /// What the command gets.
    pub environment: Vec<(OsString, OsString)>,
    /// What will not be seen, and why.
    pub notes: Vec<String>,
    folder: Option<OwnFolder>,
}

impl Doors {
    /// Nothing is seen from inside.
    pub fn none() -> Doors {
        Doors { config: None, environment: Vec::new(), notes: Vec::new(), folder: None }
    }

    /// As the user has said it. A command gets a socket of its own unless one is named; processes
    /// that run already knock at the host's.
    pub fn prepare(args: &Inside, command: bool) -> Result<Doors> {
        let settings = settings(args);
        if settings == Settings::default() {
            return Ok(Doors::none());
        }
        let mut doors = Doors::none();
        let (socket, mode) = match (&args.door, command) {
            (Some(path), _) => (path.clone(), 0o666),
            (None, true) => {
                let folder = OwnFolder::make(["/run", "/dev/shm"])?;
                let socket = folder.join("door");
                doors.folder = Some(folder);
                (socket, 0o600)
            }
            (None, false) => {
                let path = PathBuf::from(DEFAULT_DOOR);
                let folder = path.parent().unwrap_or(Path::new("/"));
                if std::fs::create_dir_all(folder).is_err() || !writable(folder) {
                    // Whoever may not write there has asked for nothing in particular.
                    return Ok(Doors::none());
                }
                if is_listened_to(&path) {
                    doors.notes.push(format!(
                        "another collector listens at {DEFAULT_DOOR}: what libraries tell goes there"
                    ));
                    return Ok(doors);
                }
                (path, 0o666)
            }
        };
        if command {
            let library = library(args.inject_library.as_deref());
            doors.environment(library, &socket, settings);
        }
        // The host's own is nobody's in particular: another recorder may have taken it just now.
        let needed = command || args.door.is_some();
        doors.config = Some(DoorConfig { socket, mode, settings, needed });
        Ok(doors)
    }

    fn environment(&mut self, library: Option<PathBuf>, socket: &Path, settings: Settings) {
        let Some(library) = library else {
            self.notes.push(format!(
                "{LIBRARY} lies neither beside gpuwhy nor where GPUWHY_INJECT says: kernels and \
                 collectives are not seen from inside"
            ));
            return;
        };
        let theirs = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        self.environment.push((gpuwhy_wire::DOOR_ENV.into(), socket.into()));
        if settings.kernels != Kernels::Off {
            match theirs("CUDA_INJECTION64_PATH") {
                // The driver loads one library; whoever came first keeps his place.
                Some(other) if other != library => self.notes.push(format!(
                    "CUDA_INJECTION64_PATH names another profiler ({}): kernels are not seen",
                    other.to_string_lossy()
                )),
                _ => {
                    self.environment.push(("CUDA_INJECTION64_PATH".into(), library.clone().into()));
                }
            }
        }
        if settings.collectives != Collectives::Off {
            // NCCL too loads one; ours calls the user's.
            if let Some(other) = theirs("NCCL_PROFILER_PLUGIN").filter(|other| *other != library) {
                self.environment.push(("GPUWHY_NCCL_NEXT".into(), other));
            }
            self.environment.push(("NCCL_PROFILER_PLUGIN".into(), library.into()));
        }
    }
}

fn settings(args: &Inside) -> Settings {
    let (nodes_for_ms, nodes_every_ms) = args.graph_nodes.unwrap_or((0, 0));
    Settings {
        kernels: match args.kernels {
            KernelDetail::Off => Kernels::Off,
            KernelDetail::Graphs => Kernels::Graphs,
            KernelDetail::Nodes => Kernels::Nodes,
        },
        launches: args.launches,
        collectives: match args.collectives {
            CollectiveDetail::Off => Collectives::Off,
            CollectiveDetail::Calls => Collectives::Calls,
            CollectiveDetail::Phases => Collectives::Phases,
            CollectiveDetail::Network => Collectives::Network,
        },
        nodes_every_ms,
        nodes_for_ms,
    }
}

/// `200/10000`: of every 10 s, 200 ms.
pub fn share(text: &str) -> Result<(u32, u32), String> {
    let parse = || {
        let (on, every) = text.split_once('/')?;
        let (on, every): (u32, u32) = (on.trim().parse().ok()?, every.trim().parse().ok()?);
        (on > 0 && on <= every).then_some((on, every))
    };
    parse().ok_or_else(|| "write ON/EVERY in ms, as in 200/10000".into())
}

/// Where the library lies: as named, as GPUWHY_INJECT says, beside this program, or in the `lib`
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

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".gpuwhy-{}", std::process::id()));
    let made = std::fs::File::create_new(&probe).is_ok();
    let _ = std::fs::remove_file(&probe);
    made
}

/// Whether another collector has the host's socket.
fn is_listened_to(socket: &Path) -> bool {
    gpuwhy_wire::Visit::knock(socket).is_ok()
}

/// Refuses a library that was named and is not there.
pub fn check(args: &Inside) -> Result<()> {
    if let Some(named) = args.inject_library.as_deref()
        && !named.is_file()
    {
        bail!("there is no library `{}`", named.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_time_is_on_of_every() {
        assert_eq!(share("200/10000"), Ok((200, 10_000)));
        for bad in ["", "200", "0/10", "20/10", "a/b", "-1/5"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_the_user_has_set_is_kept() {
        let mut doors = Doors::none();
        let socket = Path::new("/run/door");
        doors.environment(Some("/lib/ours.so".into()), socket, Settings::USUAL);
        let get = |name: &str| {
            let found = doors.environment.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.to_string_lossy().into_owned())
        };
        assert_eq!(get("CUDA_INJECTION64_PATH").as_deref(), Some("/lib/ours.so"));
        assert_eq!(get("NCCL_PROFILER_PLUGIN").as_deref(), Some("/lib/ours.so"));
        assert_eq!(get("GPUWHY_DOOR").as_deref(), Some("/run/door"));

        let mut doors = Doors::none();
        doors.environment(None, socket, Settings::USUAL);
        assert!(doors.environment.is_empty() && doors.notes.len() == 1);
    }
}
