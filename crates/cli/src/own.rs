//! A folder of a recording's own, in memory where there is such a place, for what its command is to
//! find: the ring, the gate, the socket. It goes away with the recording. What a killed recording has
//! left is removed by the next one: whoever lives holds a lock on his folder.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

const PREFIX: &str = "gpuwhy.";
/// So old is a folder at least that nobody has locked and that is removed: its owner may only just
/// have made it.
const LEFT_FOR: Duration = Duration::from_secs(10);

/// The folder.
pub struct OwnFolder {
    dir: TempDir,
    /// That its owner lives.
    _lock: File,
}

impl OwnFolder {
    /// Makes one in the first of these places that may be written to, else where temporary files go.
    ///
    /// # Errors
    /// If none may.
    pub fn make(places: [&str; 2]) -> Result<OwnFolder> {
        let within = |place: &Path| OwnFolder::within(place, LEFT_FOR);
        if let Some(folder) = places.iter().find_map(|place| within(Path::new(place)).ok()) {
            return Ok(folder);
        }
        let last = std::env::temp_dir();
        within(&last)
            .with_context(|| format!("cannot make a folder of our own in `{}`", last.display()))
    }

    fn within(place: &Path, left_for: Duration) -> io::Result<OwnFolder> {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let lock = File::open(dir.path())?;
        lock.try_lock().map_err(io::Error::from)?;
        sweep(place, dir.path(), left_for);
        Ok(OwnFolder { dir, _lock: lock })
    }

    /// A path in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Removes what our own dead have left; what cannot be removed stays.
fn sweep(place: &Path, own: &Path, left_for: Duration) {
    let Ok(me) = own.symlink_metadata() else { return };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(meta) = path.symlink_metadata() else { continue };
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        let left = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && meta.is_dir()
            && meta.uid() == me.uid()
            && age >= left_for;
        if left && File::open(&path).is_ok_and(|dir| dir.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_have_left_goes_and_what_the_living_hold_stays() {
        let place = tempfile::tempdir().unwrap();
        let lives = OwnFolder::within(place.path(), Duration::ZERO).unwrap();
        std::fs::write(lives.join("ring"), "x").unwrap();
        let dead = place.path().join("gpuwhy.dead");
        let strange = place.path().join("strange");
        for folder in [&dead, &strange] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("ring"), "x").unwrap();
        }
        let young = OwnFolder::within(place.path(), LEFT_FOR).unwrap();
        assert!(dead.exists(), "somebody may have made it just now");
        let _next = OwnFolder::within(place.path(), Duration::ZERO).unwrap();
        assert!(!dead.exists() && strange.exists());
        assert!(lives.join("ring").exists() && young.join("").exists());
        let path = lives.join("");
        drop(lives);
        assert!(!path.exists());
    }
}
