//! NVIDIA's library names as links to the stand-in, and the environment in which programs find
//! them.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::ENV;

/// Where a process finds the machine and the libraries, if not where this process does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Environment {
    /// The directory of the machine, [`ENV`].
    pub machine: Option<PathBuf>,
    /// A directory made by [`link_libraries`], put first in `LD_LIBRARY_PATH`.
    pub libraries: Option<PathBuf>,
    /// Further environment variables.
    pub variables: Vec<(String, String)>,
}

impl Environment {
    /// Sets the variables of a command.
    ///
    /// # Errors
    /// If the name of a library directory contains a colon.
    pub fn apply(&self, command: &mut Command) -> Result<()> {
        if let Some(machine) = &self.machine {
            command.env(ENV, machine);
        }
        if let Some(libraries) = &self.libraries {
            let old = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let all = [libraries.clone()].into_iter().chain(std::env::split_paths(&old));
            let all = std::env::join_paths(all).with_context(|| {
                format!("cannot put `{}` into LD_LIBRARY_PATH", libraries.display())
            })?;
            command.env("LD_LIBRARY_PATH", all);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(())
    }
}

/// The names under which programs look for the four libraries.
pub const LIBRARY_NAMES: [&str; 10] = [
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
    "libcuda.so.1",
    "libcuda.so",
    "libcupti.so.13",
    "libcupti.so.13.0",
    "libcupti.so.12",
    "libcupti.so.11.8",
    "libcupti.so",
    "libsanitizer-public.so",
];

/// Makes a directory for `LD_LIBRARY_PATH` with links to the stand-in under [`LIBRARY_NAMES`]. All
/// names of CUPTI are links too: the version that it reports is set by the environment, not by the
/// name.
///
/// # Errors
/// If the stand-in does not exist, or a link cannot be made.
pub fn link_libraries(dir: &Path, object: &Path) -> Result<()> {
    let object: PathBuf = object.canonicalize().with_context(|| {
        format!(
            "cannot find the stand-in `{}`; build it: cargo build -p gpuwhy-standin",
            object.display()
        )
    })?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    for name in LIBRARY_NAMES {
        let link = dir.join(name);
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace `{}`", link.display()));
            }
            _ => {}
        }
        symlink(&object, &link).with_context(|| format!("cannot link `{}`", link.display()))?;
    }
    Ok(())
}

/// The stand-in that cargo has built beside this program: in the program's directory or the one
/// above; the newest, if there are several.
pub fn find_standin() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let near = program.ancestors().skip(1).take(2);
    let found = near.map(|dir| dir.join("libgpuwhy_standin.so"));
    found
        .filter(|path| path.exists())
        .max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linking_twice_gives_the_same_links() {
        let dir = tempfile::tempdir().unwrap();
        let object = dir.path().join("object.so");
        std::fs::write(&object, "elf").unwrap();
        let links = dir.path().join("links");
        for _ in 0..2 {
            link_libraries(&links, &object).unwrap();
        }
        assert_eq!(std::fs::read_to_string(links.join("libcuda.so.1")).unwrap(), "elf");
        assert!(link_libraries(&links, &dir.path().join("none")).is_err());
    }
}
