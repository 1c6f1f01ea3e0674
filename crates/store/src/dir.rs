//! The directory itself: names, the lock, and the commit protocol.
//!
//! A file comes into being as `*.tmp`, is made durable, is renamed, and then its directory is
//! made durable: after a crash it is there whole or not at all. The manifest goes last and in the
//! same way, so that a trace moves from one state to the next in one rename.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::beneath::{Beneath, Tap, Written};
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
    /// Where it lay when it was opened, for messages.
    pub path: PathBuf,
    /// The directory itself, wherever it may lie by now.
    pub root: Beneath,
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
    /// The directory at `path`, to read what is there.
    pub fn open(path: &Path) -> Result<Dir> {
        let root = Beneath::open(path).map_err(|e| no_folder(path, e))?;
        Ok(Dir { path: path.into(), root, durability: Durability::PowerLoss })
    }

    /// The directory at `path`, to go on writing.
    pub fn open_to_write(path: &Path, durability: Durability, tap: Option<Tap>) -> Result<Dir> {
        let root = Beneath::open_to_write(path, tap).map_err(|e| no_folder(path, e))?;
        Ok(Dir { path: path.into(), root, durability })
    }

    /// The directory at `path`, which is made unless it is there.
    pub fn make(path: &Path, durability: Durability, tap: Option<Tap>) -> Result<Dir> {
        let (root, parent) = Beneath::make(path, tap).map_err(Error::io("create", path))?;
        if let Some(parent) = parent.filter(|_| durability == Durability::PowerLoss) {
            // A directory whose name a power cut takes away takes with it all that was flushed. Where
            // that cannot be done (a file system that does not know it), nothing is lost by trying.
            let _ = parent.sync_folder(None);
        }
        Ok(Dir { path: path.into(), root, durability })
    }

    /// Tries to become the one writer; never waits.
    pub fn lock(&self) -> Locking {
        // A writer that finishes removes its lock file. Whoever opened it before that holds a
        // lock on a file that nobody else can find, and has to look again.
        for _ in 0..16 {
            let mut barred = None;
            let file = match self.root.open_or_create(LOCK).or_else(|e| {
                // Who may not write can still tell whether somebody does.
                barred = Some(e);
                self.root.file(LOCK)
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
            let same = file.metadata().ok().zip(self.root.stat(LOCK).ok().flatten());
            if same.is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.st_dev, b.st_ino)) {
                return Locking::Taken(Lock(file));
            }
        }
        Locking::Busy
    }

    /// Whether a writer is at work, without a trace of our asking.
    pub fn is_written(&self) -> bool {
        let Ok(file) = self.root.file(LOCK) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Removes the lock file and lets go of the lock.
    pub fn unlock(&self, lock: Lock) {
        // The lock is what counts, the file is only its name: a failure leaves a stray empty file.
        let _ = self.root.remove(LOCK);
        drop(lock);
    }

    /// Opens a file of the trace for reading.
    pub fn file(&self, relative: &str) -> Result<File> {
        self.root.file(relative).map_err(|e| self.refused("open", relative, e))
    }

    /// An error of the system on a file; that it is something else than a file is damage.
    fn refused(&self, what: &'static str, relative: &str, e: io::Error) -> Error {
        let path = self.at(relative);
        match e.kind() {
            io::ErrorKind::Other => Error::damaged(&path, e.to_string()),
            _ => Error::io(what, &path)(e),
        }
    }

    /// The path of a file, for messages.
    pub fn at(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// Makes a folder of the trace, unless it is there, such that a power cut does not take it away from
    /// what is written into it.
    pub fn folder(&self, name: &str) -> Result<()> {
        let made = self.root.folder(name).map_err(Error::io("create", &self.at(name)))?;
        if made { self.sync_folder(None) } else { Ok(()) }
    }

    /// Removes a file.
    pub fn remove(&self, relative: &str) -> Result<()> {
        self.root.remove(relative).map_err(Error::io("remove", &self.at(relative)))
    }

    /// The same, and it may be gone already.
    pub fn remove_if_there(&self, relative: &str) -> Result<()> {
        self.root.remove_if_there(relative).map_err(Error::io("remove", &self.at(relative)))
    }

    /// Writes a file by the commit protocol; what `fill` returns comes back with its length.
    pub fn commit<T>(
        &self,
        relative: &str,
        fill: impl FnOnce(&mut Written, &Path) -> Result<T>,
    ) -> Result<(T, u64)> {
        let folder = relative.split_once('/').map(|(folder, _)| folder);
        if let Some(folder) = folder {
            self.folder(folder)?;
        }
        let tmp = format!("{relative}.tmp");
        let path = self.at(&tmp);
        let write = || {
            // What a crash left; anything else of that name, a link even, is not written through.
            self.remove_if_there(&tmp)?;
            let mut file = self.root.create(&tmp).map_err(Error::io("create", &path))?;
            let filled = fill(&mut file, &path)?;
            if self.durability == Durability::PowerLoss {
                file.sync().map_err(Error::io("flush", &path))?;
            }
            let bytes = file.len();
            self.root.rename(&tmp, relative).map_err(Error::io("rename to its place", &path))?;
            Ok((filled, bytes))
        };
        let written = write().inspect_err(|_| {
            // Leave no half of a file behind on a disk that may be full.
            let _ = self.root.remove_if_there(&tmp);
        })?;
        self.sync_folder(folder)?;
        Ok(written)
    }

    /// Flushes a folder's entries to disk, if the trace is to survive a loss of power.
    pub fn sync_folder(&self, folder: Option<&str>) -> Result<()> {
        if self.durability == Durability::PowerLoss {
            let path = || folder.map_or_else(|| self.path.clone(), |f| self.at(f));
            self.root.sync_folder(folder).map_err(|e| Error::io("flush", &path())(e))?;
        }
        Ok(())
    }

    /// Refuses a directory whose folders lead elsewhere, before anything is written into them.
    pub fn refuse_links(&self) -> Result<()> {
        let entries = self.root.list(None).map_err(Error::io("list", &self.path))?;
        match entries.iter().find(|(_, kind)| kind.is_symlink()) {
            None => Ok(()),
            Some((name, _)) => {
                let what = "it is a symbolic link, which no trace has";
                Err(Error::damaged(&self.path.join(name), what))
            }
        }
    }

    /// The names in a folder; none if there is no such folder.
    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        match self.root.list(Some(folder)) {
            Ok(entries) => {
                Ok(entries.into_iter().filter_map(|(name, _)| name.into_string().ok()).collect())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(self.refused("list", folder, e)),
        }
    }

    /// The numbers of the journals that lie there, ascending.
    pub fn journals(&self) -> Result<Vec<u32>> {
        let names = self.list("journal")?;
        let mut numbers: Vec<u32> =
            names.iter().filter_map(|n| n.strip_suffix(".journal")?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The file of the journal that becomes segment `segment`.
pub(crate) fn journal_name(segment: u32) -> String {
    format!("journal/{segment:05}.journal")
}

/// The name of the lock file.
const LOCK: &str = "lock";

/// Why the directory of a trace cannot be opened.
fn no_folder(path: &Path, e: io::Error) -> Error {
    if e.kind() == io::ErrorKind::NotADirectory {
        return Error::NotATrace {
            path: path.into(),
            why:
                "a trace is a directory, this is a file; `gpuwhy import` imports other tools' files"
                    .into(),
        };
    }
    Error::io("open", path)(e)
}
