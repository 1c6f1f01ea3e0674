//! A file that is written for somebody at a path that they chose: a page, an export, a stream of events.
//!
//! *Why it matters.* `sudo gpuwhy diagnose --html ~user/page.html` writes where the user may place a link at
//! any time. Opened by its path, `page.html` may be `/etc/shadow` by then. So the folder is looked up once, as
//! that of a trace is; the file is made in it under a name that nobody has, and gets its own name by a rename,
//! which replaces what lies there and never writes through it. Whatever a reader finds under the name is whole.
//!
//! *What fools it.* Nothing here tells a file of somebody else's that lies in the place from one of ours: it
//! is replaced, as the owner of the folder could do. A file that is mounted by itself cannot be replaced.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath::{euid, folder_and_name};
use crate::{Error, Result};

/// Names that are tried for a file before it has its own.
const TRIES: usize = 100;

/// A file on its way to its place; dropped before that, it goes without a trace.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    /// What it is called until it is put in its place; `None` for a device, which is there already.
    fresh: Option<String>,
    file: File,
}

impl Output {
    /// Begins the file that is to lie at `path`. Root follows no link on the way that another user made.
    ///
    /// # Errors
    /// Something else than a file or a character device (`/dev/null`) lies there, a link too; or nothing can
    /// be made in its folder.
    pub fn create(path: impl AsRef<Path>) -> Result<Output> {
        let path = path.as_ref();
        Output::begin(path).map_err(Error::io("write", path))
    }

    fn begin(path: &Path) -> io::Result<Output> {
        let (folder, name) = folder_and_name(path)?;
        let name = name.to_owned();
        let path = path.to_owned();
        match lies_there(&folder, &name)? {
            There::Device => {
                let file = open_device(&folder, &name)?;
                Ok(Output { path, folder, name, fresh: None, file })
            }
            There::Nothing | There::File(None) => {
                let (file, fresh) = make(&folder)?;
                Ok(Output { path, folder, name, fresh: Some(fresh), file })
            }
            There::File(Some(mode)) => {
                let (file, fresh) = make(&folder)?;
                let made = Output { path, folder, name, fresh: Some(fresh), file };
                // Who was kept from reading it is kept from reading the next one.
                fs::fchmod(&made.file, mode)?;
                Ok(made)
            }
        }
    }

    /// Puts it in its place, whole.
    ///
    /// # Errors
    /// It cannot be written to the disk or renamed; then it is gone, and what lay in the place still does.
    pub fn finish(mut self) -> Result<()> {
        if self.fresh.is_some() {
            self.file.sync_all().map_err(Error::io("write", &self.path))?;
        }
        self.put().map_err(Error::io("write", &self.path))
    }

    /// Puts it in its place at once, to be read while it is written.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn live(mut self) -> Result<File> {
        self.put().map_err(Error::io("write", &self.path))?;
        self.file.try_clone().map_err(Error::io("write", &self.path))
    }

    fn put(&mut self) -> io::Result<()> {
        if let Some(fresh) = &self.fresh {
            fs::renameat(&self.folder, fresh.as_str(), &self.folder, &self.name)?;
            self.fresh = None;
        }
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(fresh) = &self.fresh {
            let _ = fs::unlinkat(&self.folder, fresh.as_str(), AtFlags::empty());
        }
    }
}

/// Writes a whole file at `path`.
///
/// # Errors
/// Those of [`Output::create`] and [`Output::finish`].
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let mut output = Output::create(path)?;
    output.write_all(bytes).map_err(Error::io("write", path))?;
    output.finish()
}

/// What lies where a file is to be written.
enum There {
    Nothing,
    /// A file, and its mode if it is ours.
    File(Option<Mode>),
    Device,
}

fn lies_there(folder: &OwnedFd, name: &OsStr) -> io::Result<There> {
    let found = match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(There::Nothing),
        Err(e) => return Err(e.into()),
    };
    let what = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {
            let is_ours = found.st_uid == euid();
            return Ok(There::File(is_ours.then(|| Mode::from_raw_mode(found.st_mode & 0o777))));
        }
        // Nobody but root makes those, and nothing in them can be overwritten.
        FileType::CharacterDevice => return Ok(There::Device),
        FileType::Symlink => "a symbolic link lies there; name the file that it leads to",
        FileType::Fifo => "a pipe lies there; only files are replaced",
        FileType::Directory => "a directory lies there",
        _ => "something that is no file lies there",
    };
    Err(io::Error::other(what))
}

/// Makes a file under a name that nobody has.
fn make(folder: &OwnedFd) -> io::Result<(File, String)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut last = Errno::EXIST;
    for _ in 0..TRIES {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let fresh = format!(".gpuwhy-{}-{number}.tmp", std::process::id());
        match fs::openat(folder, fresh.as_str(), flags, Mode::from_raw_mode(0o666)) {
            Ok(fd) => return Ok((File::from(fd), fresh)),
            Err(Errno::EXIST) => {}
            Err(e) => {
                last = e;
                break;
            }
        }
    }
    Err(last.into())
}

fn open_device(folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    // Somebody may have put a pipe in its place, which would have us wait.
    let flags =
        OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let device = fs::openat(folder, name, flags, Mode::empty())?;
    if !FileType::from_raw_mode(fs::fstat(&device)?.st_mode).is_char_device() {
        return Err(io::Error::other("it changes while it is opened"));
    }
    fs::fcntl_setfl(&device, OFlags::empty())?;
    Ok(File::from(device))
}
