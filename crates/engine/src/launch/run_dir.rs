//! A recording's private folder, in memory where the host has such a place, for what its command must
//! find: the ring, the gate, the agent socket.
//!
//! It is removed when the recording ends. A recording that is killed leaves its folder; the next
//! recording removes it. A running recording holds a lock on its folder, so it is never taken for
//! one that was left.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Error, Result};

const PREFIX: &str = "gpuwhy.";
/// An unlocked folder is removed when it is at least this old: a younger one may have been made just
/// now and be locked in a moment.
const LEFT_FOR: Duration = Duration::from_secs(10);

/// The folder, removed with the value.
pub struct RunDir {
    dir: TempDir,
    /// Held as long as the recording runs.
    _lock: File,
}

impl RunDir {
    /// Makes one in the first of these places that can be written to, else in the folder for temporary
    /// files.
    ///
    /// # Errors
    /// None of them can be written to.
    pub fn make(places: [&str; 2]) -> Result<RunDir> {
        let within = |place: &Path| RunDir::within(place, LEFT_FOR);
        if let Some(folder) = places.iter().find_map(|place| within(Path::new(place)).ok()) {
            return Ok(folder);
        }
        let last = std::env::temp_dir();
        within(&last).map_err(Error::io("make a private folder in", &last))
    }

    fn within(place: &Path, left_for: Duration) -> io::Result<RunDir> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let lock = File::open(dir.path())?;
        lock.try_lock().map_err(io::Error::from)?;
        sweep(place, dir.path(), left_for);
        Ok(RunDir { dir, _lock: lock })
    }

    /// Lets everybody through to what lies in it by a name that they know; they cannot list it.
    ///
    /// # Errors
    /// Its mode cannot be changed.
    pub fn let_through(&self) -> Result<()> {
        let path = self.dir.path();
        std::fs::set_permissions(path, Permissions::from_mode(0o711))
            .map_err(Error::io("open", path))
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Removes the folders of this user's recordings that were killed; what cannot be removed stays.
fn sweep(place: &Path, own: &Path, left_for: Duration) {
    let Ok(me) = own.symlink_metadata() else { return };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = path.symlink_metadata() else { continue };
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        let was_left = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && meta.is_dir()
            && meta.uid() == me.uid()
            && age >= left_for;
        if was_left && File::open(&path).is_ok_and(|dir| dir.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_recordings_are_removed_and_those_of_running_ones_stay() {
        let place = tempfile::tempdir().unwrap();
        let running = RunDir::within(place.path(), Duration::ZERO).unwrap();
        std::fs::write(running.join("ring"), "x").unwrap();
        let killed = place.path().join("gpuwhy.killed");
        let strange = place.path().join("strange");
        for folder in [&killed, &strange] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("ring"), "x").unwrap();
        }
        let young = RunDir::within(place.path(), LEFT_FOR).unwrap();
        assert!(killed.exists(), "it may have been made just now");
        let _next = RunDir::within(place.path(), Duration::ZERO).unwrap();
        assert!(!killed.exists() && strange.exists());
        assert!(running.join("ring").exists() && young.join("").exists());
        let path = running.join("");
        drop(running);
        assert!(!path.exists());
    }
}
