//! A folder of its own for a try, on a real disk, removed with the value.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// The folder.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one; `what` is a part of its name.
    pub fn new(what: &str) -> Result<Folder> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpuwhy-{what}-{}-{number}", std::process::id());
        let path = Path::new("/var/tmp").join(name);
        std::fs::create_dir(&path).with_context(|| format!("cannot make `{}`", path.display()))?;
        Ok(Folder(path))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
