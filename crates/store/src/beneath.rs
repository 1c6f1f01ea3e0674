//! A directory by its descriptor, and what is done to files beneath it.
//!
//! A trace may lie where somebody else may rename and replace: `sudo gpuwhy record -o ~user/run.trace`. A
//! path that is looked up again with every call would lead, between two calls, through a link to /etc. So
//! the directory is opened once, and everything happens relative to its descriptor: no link is followed, no
//! name has `..`, nothing that exists is truncated or written into, and what is opened for reading is a
//! regular file (not a pipe that never answers).
//!
//! Everything that changes the directory passes through here and can be watched ([`Tap`]): so tests replay
//! every prefix of it, as a power cut would leave it.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Links that one path may lead through.
const MAX_LINKS: usize = 40;
/// Folders in folders of what is removed; each is held open meanwhile.
const MAX_DEPTH: usize = 32;

/// What is about to be done to a directory. Paths are relative to it; the directory itself is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A folder is made.
    Folder(String),
    /// An empty file is made.
    Create(String),
    /// Bytes are written into a file.
    Write {
        /// The file.
        path: String,
        /// Where in it.
        at: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A file is cut to this length.
    Cut(String, u64),
    /// A file is flushed to the disk.
    SyncFile(String),
    /// The names in a folder are flushed to the disk.
    SyncFolder(String),
    /// A file gets another name, in whose place nothing or another file lies.
    Rename(String, String),
    /// A file is removed.
    Remove(String),
    /// An empty folder is removed.
    RemoveFolder(String),
}

/// Called before each [`Op`]; an error is the answer in place of the system's.
type Watching = dyn Fn(Op) -> io::Result<()> + Send + Sync;

/// Is told what a writer does to its directory, before it does it; an error of it is taken for one of the
/// disk. For tests of power cuts and failing disks.
#[derive(Clone)]
pub struct Tap(Arc<Watching>);

impl Tap {
    /// A tap that calls `watch`.
    pub fn new(watch: impl Fn(Op) -> io::Result<()> + Send + Sync + 'static) -> Tap {
        Tap(Arc::new(watch))
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// A directory.
#[derive(Clone, Debug)]
pub(crate) struct Beneath {
    fd: Arc<OwnedFd>,
    tap: Option<Tap>,
}

/// Whether the kernel lacks `openat2` (before 5.6), or a filter of system calls refuses it.
static LACKS_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Who we are to the file system.
pub(crate) fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Beneath {
    /// The directory at `path`, for reading: links on the way may be anybody's, since nothing is written.
    pub fn open(path: &Path) -> io::Result<Beneath> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Beneath::of(fs::open(path, flags, Mode::empty())?, None))
    }

    /// The directory at `path`, for writing. Root follows links of its own only.
    pub fn open_to_write(path: &Path, tap: Option<Tap>) -> io::Result<Beneath> {
        let fd = lead(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Beneath::of(fs::openat(&fd, ".", flags, Mode::empty())?, tap))
    }

    /// The directory at `path`, which is made if nothing lies there, and the one in which it lies.
    pub fn make(path: &Path, tap: Option<Tap>) -> io::Result<(Beneath, Option<Beneath>)> {
        // Without a name (`.`, `/`) there is nothing to make.
        let Some(name) = path.file_name() else {
            return Ok((Beneath::open_to_write(path, tap)?, None));
        };
        let parent = Beneath::open_to_write(parent(path), None)?;
        match fs::mkdirat(&parent.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let fd = fs::openat(&parent.fd, name, flags, Mode::empty())?;
                Ok((Beneath::of(fd, tap), Some(parent)))
            }
            Err(Errno::EXIST) => Ok((Beneath::open_to_write(path, tap)?, Some(parent))),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether `other` is this very directory.
    fn is(&self, other: &OwnedFd) -> io::Result<bool> {
        let (ours, theirs) = (fs::fstat(&*self.fd)?, fs::fstat(other)?);
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    /// Removes this directory, which lies at `path`, with all that is in it. Where a link lies at `path` by
    /// now, that goes and nothing else.
    pub fn remove_all(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = folder_and_name(path)?;
        let found = fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(found.st_mode).is_symlink() {
            return Ok(fs::unlinkat(&folder, name, AtFlags::empty())?);
        }
        let there = open_folder(&folder, name)?;
        if !self.is(&there)? {
            return Err(io::Error::other("another directory lies there by now"));
        }
        empty(there, MAX_DEPTH)?;
        Ok(fs::unlinkat(&folder, name, AtFlags::REMOVEDIR)?)
    }

    fn of(fd: OwnedFd, tap: Option<Tap>) -> Beneath {
        Beneath { fd: Arc::new(fd), tap }
    }

    /// Why it is not ours alone to bring into order, if it is not.
    pub fn is_others(&self) -> io::Result<Option<String>> {
        let found = fs::fstat(&*self.fd)?;
        Ok(match (found.st_uid, found.st_mode & 0o002) {
            (uid, _) if uid != euid() => Some(format!("it belongs to user {uid}")),
            (_, 0) => None,
            _ => Some("everybody may write into it".into()),
        })
    }

    fn tell(&self, op: impl FnOnce() -> Op) -> io::Result<()> {
        match &self.tap {
            Some(Tap(watch)) => watch(op()),
            None => Ok(()),
        }
    }

    /// Opens what `relative` names, through no link.
    fn at(&self, relative: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let (folder, name) = parts(relative)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if !LACKS_OPENAT2.load(Ordering::Relaxed) {
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match fs::openat2(&*self.fd, relative, flags, mode, resolve) {
                Err(Errno::NOSYS) => LACKS_OPENAT2.store(true, Ordering::Relaxed),
                // A filter of system calls, perhaps; or a race with a rename, which is told apart below.
                Err(Errno::PERM | Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(linked(e)),
                Ok(fd) => return Ok(fd),
            }
        }
        self.step_by_step(folder, name, flags, mode)
    }

    /// The same without `openat2`: a step for each part.
    fn step_by_step(
        &self,
        folder: Option<&str>,
        name: &str,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<OwnedFd> {
        let Some(folder) = folder else {
            return fs::openat(&*self.fd, name, flags, mode).map_err(linked);
        };
        let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = fs::openat(&*self.fd, folder, through, Mode::empty()).map_err(linked)?;
        fs::openat(&folder, name, flags, mode).map_err(linked)
    }

    /// The folder of `relative`, to name something in it, and that name.
    fn within<'a>(&self, relative: &'a str) -> io::Result<(Arc<OwnedFd>, &'a str)> {
        match parts(relative)? {
            (None, name) => Ok((Arc::clone(&self.fd), name)),
            (Some(folder), name) => {
                let fd = self.at(folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
                Ok((Arc::new(fd), name))
            }
        }
    }

    /// Opens a regular file for reading. It never waits.
    pub fn file(&self, relative: &str) -> io::Result<File> {
        // Without NONBLOCK a pipe would wait for somebody to write.
        let fd = self.at(relative, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        regular(File::from(fd))
    }

    /// Makes a file where nothing lies.
    pub fn create(&self, relative: &str) -> io::Result<Written> {
        self.tell(|| Op::Create(relative.into()))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let fd = self.at(relative, flags, Mode::from_raw_mode(0o644))?;
        let (file, root, path) = (File::from(fd), self.clone(), relative.to_owned());
        Ok(Written { file, root, path, end: 0 })
    }

    /// Opens a file that is there, or makes it; for a lock, which holds nothing.
    pub fn open_or_create(&self, relative: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        regular(File::from(self.at(relative, flags, Mode::from_raw_mode(0o644))?))
    }

    /// What lies under a name, if something does; a link is a link.
    pub fn stat(&self, relative: &str) -> io::Result<Option<Stat>> {
        let found = self
            .within(relative)
            .and_then(|(folder, name)| Ok(fs::statat(&*folder, name, AtFlags::SYMLINK_NOFOLLOW)?));
        match found {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes a folder, unless it is there; says whether it was made.
    pub fn folder(&self, name: &str) -> io::Result<bool> {
        if self.stat(name)?.is_some_and(|s| FileType::from_raw_mode(s.st_mode).is_dir()) {
            return Ok(false);
        }
        self.tell(|| Op::Folder(name.into()))?;
        let (within, name) = self.within(name)?;
        match fs::mkdirat(&*within, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => Ok(true),
            // Somebody was faster, or something else lies there; whoever goes into it will see.
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives a file another name, in place of what lies there.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((old, old_name), (new, new_name)) = (self.within(from)?, self.within(to)?);
        self.tell(|| Op::Rename(from.into(), to.into()))?;
        Ok(fs::renameat(&*old, old_name, &*new, new_name)?)
    }

    /// Removes a file or a link.
    pub fn remove(&self, relative: &str) -> io::Result<()> {
        let (folder, name) = self.within(relative)?;
        self.tell(|| Op::Remove(relative.into()))?;
        Ok(fs::unlinkat(&*folder, name, AtFlags::empty())?)
    }

    /// The same, and it may be gone already.
    pub fn remove_if_there(&self, relative: &str) -> io::Result<()> {
        match self.stat(relative)? {
            None => Ok(()),
            Some(_) => self.remove(relative).or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            }),
        }
    }

    /// Removes an empty folder.
    pub fn remove_folder(&self, name: &str) -> io::Result<()> {
        let (folder, name) = self.within(name)?;
        self.tell(|| Op::RemoveFolder(name.into()))?;
        Ok(fs::unlinkat(&*folder, name, AtFlags::REMOVEDIR)?)
    }

    /// What lies in a folder, in the order of names; `None` for the directory itself.
    pub fn list(&self, folder: Option<&str>) -> io::Result<Vec<(OsString, FileType)>> {
        let fd = match folder {
            Some(folder) => self.at(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?,
            None => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                fs::openat(&*self.fd, ".", flags, Mode::empty())?
            }
        };
        let mut found = Vec::new();
        for entry in fs::Dir::new(fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => match folder {
                    None => fs::statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
                        .map_or(FileType::Unknown, |s| FileType::from_raw_mode(s.st_mode)),
                    Some(_) => FileType::Unknown,
                },
                known => known,
            };
            found.push((name.to_owned(), kind));
        }
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Flushes the names in a folder to the disk; `None` for the directory itself.
    pub fn sync_folder(&self, folder: Option<&str>) -> io::Result<()> {
        self.tell(|| Op::SyncFolder(folder.unwrap_or_default().into()))?;
        match folder {
            // What a descriptor of mode PATH names cannot be flushed.
            Some(folder) => {
                let fd = self.at(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                Ok(fs::fsync(fd)?)
            }
            None => Ok(fs::fsync(&*self.fd)?),
        }
    }

    /// Flushes a file to the disk that was written before.
    pub fn sync_file(&self, relative: &str) -> io::Result<()> {
        let file = self.file(relative)?;
        self.tell(|| Op::SyncFile(relative.into()))?;
        file.sync_all()
    }
}

/// A file that was made here, and is written.
#[derive(Debug)]
pub(crate) struct Written {
    file: File,
    root: Beneath,
    path: String,
    /// Where the next write goes.
    end: u64,
}

impl Written {
    /// Writes all of `bytes` at a place.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.root.tell(|| Op::Write { path: self.path.clone(), at, bytes: bytes.into() })?;
        self.file.write_all_at(bytes, at)
    }

    /// Cuts it to a length.
    pub fn cut(&self, length: u64) -> io::Result<()> {
        self.root.tell(|| Op::Cut(self.path.clone(), length))?;
        self.file.set_len(length)
    }

    /// Flushes it to the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.root.tell(|| Op::SyncFile(self.path.clone()))?;
        self.file.sync_all()
    }

    /// How much was written one after the other.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// The file, for reading what was written.
    pub fn into_file(self) -> File {
        self.file
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Folder and name: a path of ours has one or two parts.
fn parts(relative: &str) -> io::Result<(Option<&str>, &str)> {
    let (folder, name) = match relative.split_once('/') {
        Some((folder, name)) => (Some(folder), name),
        None => (None, relative),
    };
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['/', '\0']);
    if is_name(name) && folder.is_none_or(is_name) {
        return Ok((folder, name));
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "no file of a trace is called so"))
}

/// Says of an error by which a link is refused that it is one.
fn linked(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::other("it is a symbolic link, which no trace has"),
        e => e.into(),
    }
}

fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Where a path leads, part by part. For root every link on the way must have been made by root: another
/// user's link, once it stands where root writes, is that user's choice of what root overwrites. For
/// others the kernel's rule applies (`fs.protected_symlinks`).
fn lead(path: &Path) -> io::Result<OwnedFd> {
    let through = OFlags::PATH | OFlags::CLOEXEC;
    let us = euid();
    if us != 0 {
        return Ok(fs::open(path, through | OFlags::DIRECTORY, Mode::empty())?);
    }
    let mut at = fs::open(if path.is_absolute() { "/" } else { "." }, through, Mode::empty())?;
    let mut left: Vec<OsString> = reversed(path);
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == "/" {
            at = fs::open("/", through, Mode::empty())?;
            continue;
        }
        let next = fs::openat(&at, &part, through | OFlags::NOFOLLOW, Mode::empty())?;
        let found = fs::fstat(&next)?;
        if !FileType::from_raw_mode(found.st_mode).is_symlink() {
            at = next;
            continue;
        }
        if found.st_uid != us {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "`{}` is a symbolic link of user {}, which root does not follow to write; name \
                     the directory that it leads to",
                    Path::new(&part).display(),
                    found.st_uid
                ),
            ));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = fs::readlinkat(next.as_fd(), "", Vec::new())?;
        left.extend(reversed(&PathBuf::from(OsString::from_vec(target.into_bytes()))));
    }
    Ok(at)
}

/// Where the last part of a path lies, as [`lead`] finds it, and that part.
pub(crate) fn folder_and_name(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    Ok((lead(parent(path))?, name))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn open_folder(at: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(at, name, flags, Mode::empty()).map_err(linked)
}

/// Removes all that lies in a folder; links go, and what they lead to stays.
fn empty(folder: OwnedFd, depth: usize) -> io::Result<()> {
    if depth == 0 {
        return Err(io::Error::other("folders lie in it deeper than in any trace"));
    }
    let mut entries = fs::Dir::read_from(&folder)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        match fs::unlinkat(&folder, name, AtFlags::empty()) {
            // The kernel says ISDIR, POSIX PERM.
            Err(Errno::ISDIR | Errno::PERM) => {
                empty(open_folder(&folder, name)?, depth - 1)?;
                fs::unlinkat(&folder, name, AtFlags::REMOVEDIR)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

/// The parts of a path, the first one last.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let mut parts: Vec<OsString> = parts.map(|part| part.as_os_str().to_owned()).collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The same with and without the newer system call.
    fn both(check: impl Fn(&Beneath, &dyn Fn(&str) -> io::Result<OwnedFd>)) {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir(tmp.path().join("span")).unwrap();
        std::fs::write(tmp.path().join("span/a"), "a").unwrap();
        std::fs::write(tmp.path().join("victim"), "v").unwrap();
        symlink("span", tmp.path().join("linked")).unwrap();
        symlink("../victim", tmp.path().join("span/link")).unwrap();
        let root = Beneath::open(tmp.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        check(&root, &|path| root.at(path, OFlags::RDONLY, Mode::empty()));
        check(&root, &|path| {
            let (folder, name) = parts(path)?;
            root.step_by_step(folder, name, flags, Mode::empty())
        });
    }

    #[test]
    fn nothing_is_reached_through_a_link_or_upward() {
        both(|root, open| {
            open("span/a").unwrap();
            for path in ["linked/a", "span/link"] {
                let error = open(path).unwrap_err();
                // Of a link in the middle the older call says that it is no folder.
                let said = error.to_string();
                assert!(said.contains("symbolic link") || said.contains("directory"), "{said}");
            }
            for path in ["..", "../x", "span/../victim", "/etc/passwd", "span//a", "", ".", "a\0"] {
                assert!(open(path).is_err(), "{path}");
                assert!(root.create(path).is_err(), "{path}");
                assert!(root.remove(path).is_err(), "{path}");
            }
        });
    }

    #[test]
    fn nothing_that_exists_is_written_into() {
        both(|root, _| {
            for path in ["span/a", "span/link", "victim"] {
                assert!(root.create(path).is_err(), "{path}");
            }
            assert_eq!(io::read_to_string(root.file("victim").unwrap()).unwrap(), "v");
            // A pipe does not hold us up.
            assert!(root.file("span").is_err());
        });
    }

    #[test]
    fn root_a_link_of_another_user_is_not_followed_to_write() {
        if euid() != 0 {
            println!("skipped: another user's link needs root to be made");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        std::fs::create_dir(tmp.path().join("victim")).unwrap();
        let (own, others) = (tmp.path().join("own"), tmp.path().join("others"));
        symlink("victim", &own).unwrap();
        symlink("victim", &others).unwrap();
        std::os::unix::fs::lchown(&others, Some(65_534), Some(65_534)).unwrap();
        Beneath::make(&own.join("t"), None).unwrap();
        let refused = Beneath::make(&others.join("t"), None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert!(refused.to_string().contains("user 65534"), "{refused}");
        assert!(Beneath::open_to_write(&others, None).is_err());
        // To read what lies there harms nobody.
        Beneath::open(&others).unwrap();
    }
}
