//! Making and mapping rings.

use core::fmt;
use core::ptr::NonNull;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::images::memory::{memfd, seal};
use crate::layout::total_bytes;
use crate::ring::{BadRing, RawRing};

/// Why a ring could not be made or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    Io {
        /// What was tried: `create`, `map`.
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not a ring.
    Bad {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: BadRing,
    },
    /// Another consumer has the ring.
    Busy {
        /// The ring.
        path: PathBuf,
    },
    /// Another agent listens on the socket.
    Listening {
        /// The socket.
        path: PathBuf,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { tried, path, .. } => write!(f, "cannot {tried} `{}`", path.display()),
            Error::Bad { path, .. } => write!(f, "`{}` is not a ring", path.display()),
            Error::Busy { path } => {
                write!(f, "`{}` already has a consumer", path.display())
            }
            Error::Listening { path } => {
                write!(f, "another agent listens on `{}`", path.display())
            }
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Bad { source, .. } => Some(source),
            Error::Busy { .. } | Error::Listening { .. } => None,
        }
    }
}

/// How to make a ring.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Records it can hold, rounded up to a power of two; 64 bytes each.
    pub slots: u32,
    /// Names it can hold, rounded up to a power of two; 128 bytes each.
    pub names: u32,
    /// Permissions of the file. Every process that may write to it may write records, and garbage.
    pub mode: u32,
}

impl Default for Options {
    /// 16,384 records, 1,024 names (1.1 MiB), for processes of the same user.
    fn default() -> Options {
        Options { slots: 1 << 14, names: 1 << 10, mode: 0o600 }
    }
}

/// A mapping of a ring, unmapped at the end.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) raw: RawRing,
    base: NonNull<u8>,
    bytes: usize,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

// SAFETY: the mapping is shared memory that is only touched through `RawRing`'s atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping, and all copies of `raw` live within owners of this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Map {
    pub(crate) fn open(path: &Path) -> Result<Map, Error> {
        let error = |tried, source| Error::Io { tried, path: path.to_owned(), source };
        // Not blocking, so that a FIFO in the ring's place is refused and not waited for.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(|e| error("open", e))?;
        let meta = file.metadata().map_err(|e| error("stat", e))?;
        if !meta.is_file() {
            let source = BadRing::Short { have: 0, want: crate::layout::HEADER_BYTES as u64 };
            return Err(Error::Bad { path: path.to_owned(), source });
        }
        // Never more than the largest ring, whatever the file.
        let most = total_bytes(crate::layout::MAX_SLOTS, crate::layout::MAX_NAMES) as u64;
        let bytes = meta.len().min(most) as usize;
        if bytes < crate::layout::HEADER_BYTES {
            let want = crate::layout::HEADER_BYTES as u64;
            let source = BadRing::Short { have: bytes, want };
            return Err(Error::Bad { path: path.to_owned(), source });
        }
        Map::with(file, path, bytes, |base, bytes| {
            // SAFETY: `with` has mapped these bytes, page-aligned, for as long as the `Map` lives.
            unsafe { RawRing::open(base, bytes) }
        })
    }

    /// A ring that was received as a memfd, sealed as [`Ring::memfd`] seals it.
    pub(crate) fn of(fd: std::os::fd::OwnedFd) -> Result<Map, Error> {
        let path = PathBuf::from("memfd:gpuwhy-ring");
        let error = |tried, source| Error::Io { tried, path: path.clone(), source };
        let file = File::from(fd);
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            // It could be truncated later, and then writing to it would kill the process (SIGBUS).
            return Err(error("use the unsealed ring", io::ErrorKind::InvalidData.into()));
        }
        let meta = file.metadata().map_err(|e| error("stat", e))?;
        let most = total_bytes(crate::layout::MAX_SLOTS, crate::layout::MAX_NAMES) as u64;
        let bytes = meta.len().min(most) as usize;
        if bytes < crate::layout::HEADER_BYTES {
            let want = crate::layout::HEADER_BYTES as u64;
            return Err(Error::Bad { path, source: BadRing::Short { have: bytes, want } });
        }
        Map::with(file, &path, bytes, |base, bytes| {
            // SAFETY: `with` has mapped these bytes, page-aligned, for as long as the `Map` lives.
            unsafe { RawRing::open(base, bytes) }
        })
    }

    fn with(
        file: File,
        path: &Path,
        bytes: usize,
        open: impl FnOnce(NonNull<u8>, usize) -> Result<RawRing, BadRing>,
    ) -> Result<Map, Error> {
        // SAFETY: a new mapping of a file touches no memory of ours. The file may be truncated by others
        // later, and then access ends by SIGBUS: memfds are sealed against that, files rely on
        // their permissions.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let base = NonNull::new(base.cast::<u8>()).filter(|_| base != libc::MAP_FAILED);
        let Some(base) = base else {
            let source = io::Error::last_os_error();
            return Err(Error::Io { tried: "map", path: path.to_owned(), source });
        };
        let raw = open(base, bytes).map_err(|source| {
            // SAFETY: nothing else uses the mapping yet.
            unsafe { libc::munmap(base.as_ptr().cast(), bytes) };
            Error::Bad { path: path.to_owned(), source }
        })?;
        Ok(Map { raw, base, bytes, file, path: path.to_owned() })
    }

    fn init(file: File, path: &Path, options: Options) -> Result<Map, Error> {
        let error = |tried, source| Error::Io { tried, path: path.to_owned(), source };
        let slots = power(options.slots).max(crate::layout::MIN_SLOTS);
        let names = power(options.names).max(crate::layout::MIN_NAMES);
        if slots > crate::layout::MAX_SLOTS || names > crate::layout::MAX_NAMES {
            let (what, value) =
                if slots > crate::layout::MAX_SLOTS { ("slots", slots) } else { ("names", names) };
            let source = BadRing::Size { what, value: value as u64 };
            return Err(Error::Bad { path: path.to_owned(), source });
        }
        let bytes = total_bytes(slots, names);
        // All pages exist from the start: a full tmpfs is an error here and not a SIGBUS in another
        // program.
        // SAFETY: the descriptor is open.
        let failed = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
        if failed != 0 {
            return Err(error("allocate", io::Error::from_raw_os_error(failed)));
        }
        Map::with(file, path, bytes, |base, bytes| {
            // SAFETY: `with` has mapped these bytes, page-aligned, for as long as the `Map` lives;
            // a new file is zeroed.
            unsafe { RawRing::init(base, bytes, slots, names, crate::clock::now()) }
        })
    }
}

fn power(n: u32) -> u32 {
    n.checked_next_power_of_two().unwrap_or(u32::MAX)
}

/// A ring that this process made. Dropping it leaves a file where it is; a memfd lives as long as a
/// process has it open or mapped.
#[derive(Debug)]
pub struct Ring {
    map: Map,
}

impl Ring {
    /// Makes a ring for `slots` records as a new file, readable and writable by its owner.
    ///
    /// # Errors
    /// [`Error::Io`] if the file exists already or cannot be made, [`Error::Bad`] for more slots
    /// than [`crate::layout::MAX_SLOTS`].
    pub fn create(path: impl AsRef<Path>, slots: u32) -> Result<Ring, Error> {
        Ring::create_with(path, Options { slots, ..Options::default() })
    }

    /// Makes a ring as a new file. It appears under its name when it is complete.
    ///
    /// # Errors
    /// As [`Ring::create`].
    pub fn create_with(path: impl AsRef<Path>, options: Options) -> Result<Ring, Error> {
        let path = path.as_ref();
        let error = |tried, source| Error::Io { tried, path: path.to_owned(), source };
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let unfinished = PathBuf::from(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(options.mode)
            .open(&unfinished)
            .map_err(|e| error("create", e))?;
        let made = file
            .set_permissions(std::fs::Permissions::from_mode(options.mode))
            .map_err(|e| error("set permissions of", e))
            .and_then(|()| Map::init(file, path, options))
            .and_then(|map| {
                // A link fails where a rename would overwrite a ring that is in use.
                std::fs::hard_link(&unfinished, path).map_err(|e| error("create", e))?;
                Ok(Ring { map })
            });
        let _ = std::fs::remove_file(&unfinished);
        made
    }

    /// Makes a ring without a file; others open it by [`Ring::path`] while this process lives, or
    /// by the descriptor if they inherit it. Its size is sealed, so that it cannot be truncated.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives no memory, [`Error::Bad`] for sizes out of bounds.
    pub fn memfd(options: Options) -> Result<Ring, Error> {
        let path = PathBuf::from("memfd:gpuwhy-ring");
        let error = |tried, source| Error::Io { tried, path: path.clone(), source };
        let file = memfd(c"gpuwhy-ring").map_err(|source| error("create", source))?;
        let mut map = Map::init(file, &path, options)?;
        seal(&map.file).map_err(|source| error("seal", source))?;
        let fd = map.file.as_raw_fd();
        map.path = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        Ok(Ring { map })
    }

    /// Where other processes find the ring: the value for [`crate::ENV`].
    pub fn path(&self) -> &Path {
        &self.map.path
    }

    pub(crate) fn into_map(self) -> Map {
        self.map
    }

    /// Records that it can hold.
    pub fn slots(&self) -> u32 {
        self.map.raw.slots()
    }

    /// Removes the ring's file. Processes that have it open keep it.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no such file.
    pub fn remove(self) -> Result<(), Error> {
        let path = &self.map.path;
        std::fs::remove_file(path).map_err(|source| Error::Io {
            tried: "remove",
            path: path.clone(),
            source,
        })?;
        Ok(())
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.file.as_fd()
    }
}
