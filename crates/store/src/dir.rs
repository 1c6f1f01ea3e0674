//! The directory itself: names, the lock, and the commit protocol.
//!
//! A file comes into being as `*.tmp`, is made durable, is renamed, and then its directory is
//! made durable: after a crash it is there whole or not at all. The manifest goes last and in the
//! same way, so that a trace moves from one state to the next in one rename.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::manifest::{MANIFEST, Manifest};
use crate::{Error, Result};

/// What a trace must survive without losing what was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// The loss of power: sealed files and the manifest are flushed to the disk.
    #[default]
    PowerLoss,
    /// The death of the writing process only. Nothing is flushed; for tests and scratch traces.
    ProcessDeath,
}

/// A trace directory and what it must survive.
#[derive(Clone, Debug)]
pub(crate) struct Dir {
    /// Where it lies.
    pub path: PathBuf,
    /// What must not lose committed rows.
    pub durability: Durability,
}

/// Held by the one process that writes; the kernel lets go of it when that process dies.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it is what releases it")] File);

/// What came of trying to become the writer.
pub(crate) enum Locking {
    /// This process is the writer now.
    Taken(Lock),
    /// Another process writes.
    Busy,
    /// We may not write here (rights, a read-only file system).
    Barred(io::Error),
}

impl Dir {
    /// Tries to become the one writer; never waits.
    pub fn lock(&self) -> Locking {
        let path = self.path.join("lock");
        // A writer that finishes removes its lock file. Whoever opened it before that holds a
        // lock on a file that nobody else can find, and has to look again.
        for _ in 0..16 {
            if std::fs::symlink_metadata(&path).is_ok_and(|m| !m.is_file()) {
                return Locking::Barred(io::Error::other("`lock` is not a regular file"));
            }
            let mut barred = None;
            let opened = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            let file = match opened.or_else(|e| {
                // Who may not write can still tell whether somebody does.
                barred = Some(e);
                File::open(&path)
            }) {
                Ok(file) => file,
                Err(e) => return Locking::Barred(barred.unwrap_or(e)),
            };
            match file.try_lock() {
                Ok(()) => {
                    if let Some(e) = barred {
                        return Locking::Barred(e);
                    }
                }
                Err(TryLockError::WouldBlock) => return Locking::Busy,
                Err(TryLockError::Error(e)) => return Locking::Barred(e),
            }
            let same = file.metadata().ok().zip(std::fs::metadata(&path).ok());
            if same.is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino())) {
                return Locking::Taken(Lock(file));
            }
        }
        Locking::Busy
    }

    /// Removes the lock file and lets go of the lock.
    pub fn unlock(&self, lock: Lock) {
        // The lock is what counts, the file is only its name: a failure leaves a stray empty file.
        let _ = std::fs::remove_file(self.path.join("lock"));
        drop(lock);
    }

    /// Writes a file by the commit protocol; what `fill` returns comes back with its length.
    pub fn commit<T>(
        &self,
        relative: &str,
        fill: impl FnOnce(&mut File, &Path) -> Result<T>,
    ) -> Result<(T, u64)> {
        let path = self.path.join(relative);
        let parent = path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let tmp = path.with_added_extension("tmp");
        let write = || {
            // What a crash left; anything else of that name, a link even, is not written through.
            match std::fs::remove_file(&tmp) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &tmp)(e));
                }
                _ => {}
            }
            let mut file = File::create_new(&tmp).map_err(Error::io("create", &tmp))?;
            let filled = fill(&mut file, &tmp)?;
            if self.durability == Durability::PowerLoss {
                file.sync_all().map_err(Error::io("flush", &tmp))?;
            }
            let bytes = file.metadata().map_err(Error::io("measure", &tmp))?.len();
            std::fs::rename(&tmp, &path).map_err(Error::io("rename to its place", &tmp))?;
            Ok((filled, bytes))
        };
        let written = write().inspect_err(|_| {
            // Leave no half of a file behind on a disk that may be full.
            let _ = std::fs::remove_file(&tmp);
        })?;
        self.sync_folder(parent)?;
        Ok(written)
    }

    /// Flushes a folder's entries to disk, if the trace is to survive a loss of power.
    pub fn sync_folder(&self, folder: &Path) -> Result<()> {
        if self.durability == Durability::PowerLoss {
            File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("flush", folder))?;
        }
        Ok(())
    }

    /// Makes `manifest` the truth.
    pub fn commit_manifest(&self, manifest: &Manifest) -> Result<()> {
        self.commit(MANIFEST, |file, path| {
            file.write_all(manifest.to_toml().as_bytes()).map_err(Error::io("write", path))
        })?;
        Ok(())
    }

    /// Refuses a directory whose folders lead elsewhere, before anything is written into them.
    pub fn refuse_links(&self) -> Result<()> {
        let entries = std::fs::read_dir(&self.path).map_err(Error::io("list", &self.path))?;
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &self.path))?;
            if entry.file_type().is_ok_and(|t| t.is_symlink()) {
                return Err(Error::damaged(
                    &entry.path(),
                    "it is a symbolic link, which no trace has",
                ));
            }
        }
        Ok(())
    }

    /// The file of the journal that becomes segment `segment`.
    pub fn journal_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("journal/{segment:05}.journal"))
    }

    /// The numbers of the journals that lie there, ascending.
    pub fn journals(&self) -> Result<Vec<u32>> {
        let folder = self.path.join("journal");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("list", &folder)(e)),
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &folder))?;
            let name = entry.file_name();
            let number: Option<u32> =
                name.to_str().and_then(|n| n.strip_suffix(".journal")?.parse().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
