//! Files of other processes.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Opens a regular file, read-only, by the path that process `pid` has for it. Links lead within that
/// process's root, as they would for itself, and never into ours; what is no regular file is not opened
/// at all: a pipe would wait for its writer, and a device may act.
///
/// # Errors
/// There is no such file, it is not regular, or it may not be read.
pub(crate) fn open_of_process(pid: u32, path: &str) -> io::Result<File> {
    open_within(Path::new(&format!("/proc/{pid}/root")), Path::new(path))
}

/// The same below any folder.
fn open_within(root: &Path, path: &Path) -> io::Result<File> {
    let root = open_at(None, root, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    let inside = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // Nothing happens to a file that is opened by its path only.
    let found = open_at(Some(&root), path, libc::O_PATH | libc::O_CLOEXEC, inside)?;
    open_regular(found)
}

/// Opens a regular file of a folder that others may write to, read-only; a link is not followed.
///
/// # Errors
/// There is no such file, it is not regular, or it may not be read.
pub(crate) fn open_in(folder: &Path, name: &OsStr) -> io::Result<File> {
    let folder = open_at(None, folder, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    let inside = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
    open_regular(open_at(Some(&folder), Path::new(name), libc::O_PATH | libc::O_CLOEXEC, inside)?)
}

/// Opens the file behind a link of /proc that leads straight to it, such as `/proc/PID/map_files/…`.
///
/// # Errors
/// There is no such file, it is not regular, or it may not be read.
pub(crate) fn open_behind(link: &str) -> io::Result<File> {
    open_regular(open_at(None, Path::new(link), libc::O_PATH | libc::O_CLOEXEC, 0)?)
}

/// Opens for reading what is known to be a regular file.
fn open_regular(found: OwnedFd) -> io::Result<File> {
    let found = File::from(found);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path_of(&found))
}

/// A path to an open file, for those who take paths only. Valid while the file is open.
pub(crate) fn path_of(file: &File) -> std::path::PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// `openat2`, Linux 5.6.
fn open_at(folder: Option<&OwnedFd>, path: &Path, flags: i32, resolve: u64) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all-zero bytes are a valid `open_how`: no flags.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.resolve = resolve;
    let folder = folder.map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
    // SAFETY: the path is a C string and `how` has the size that is given; both live through the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, folder, path.as_ptr(), &raw const how, size_of_val(&how))
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn text(root: &Path, path: &str) -> String {
        let mut out = String::new();
        match open_within(root, Path::new(path)) {
            Ok(mut file) => _ = file.read_to_string(&mut out),
            Err(error) => out = error.to_string(),
        }
        out
    }

    #[test]
    fn links_of_a_container_lead_into_its_own_root_and_a_pipe_holds_up_nobody() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("usr/lib")).expect("folders");
        std::fs::write(root.join("usr/lib/libnccl.so.2"), "theirs").expect("a file");
        std::fs::write(dir.path().join("libnccl.so.2"), "ours").expect("a file");
        symlink("/usr/lib/libnccl.so.2", root.join("absolute")).expect("a link");
        symlink("../libnccl.so.2", root.join("climbing")).expect("a link");
        symlink(dir.path().join("libnccl.so.2"), root.join("outside")).expect("a link");
        assert_eq!(text(&root, "/absolute"), "theirs");
        assert!(text(&root, "/climbing").contains("No such file"));
        assert!(text(&root, "/outside").contains("No such file"));

        let pipe = root.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("coreutils");
        assert!(made.success());
        // Without O_NONBLOCK and O_PATH this would wait for a writer for ever.
        assert_eq!(text(&root, "/pipe"), "it is not a regular file");
        assert_eq!(text(&root, "/usr"), "it is not a regular file");
    }

    #[test]
    fn a_file_of_this_process_is_found_by_its_own_path() {
        let own = std::env::current_exe().expect("a test has a program");
        let path = own.to_str().expect("its path is text");
        let there = open_of_process(std::process::id(), path).and_then(|file| file.metadata());
        let here = own.metadata().expect("it is there");
        assert_eq!(there.expect("it can be opened").len(), here.len());
    }
}
