//! Memory that the program and the controller have mapped.

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The most that is mapped, bytes.
const MOST: usize = 4 << 30;

/// A memfd that cannot shrink, mapped for reading and writing, unmapped at the end. Others may change it at any time,
/// so that it is read and written by words, each of which is whole.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    file: File,
}

// SAFETY: shared memory that is only touched through atomics, or by the driver at an address that it was given.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `of` made this mapping, and references to it live no longer than this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl Memory {
    /// New memory of at least so many bytes, all zero.
    ///
    /// # Errors
    /// The system gives none, or it is more than 4 GiB.
    pub fn new(bytes: usize) -> io::Result<Memory> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        let file = memfd(c"gpuwhy-probes")?;
        file.set_len(bytes as u64)?;
        seal(&file)?;
        Memory::of(file.into())
    }

    /// Memory that was received.
    ///
    /// # Errors
    /// It can shrink, is empty, or is more than 4 GiB.
    pub fn of(fd: OwnedFd) -> io::Result<Memory> {
        let file = File::from(fd);
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || bytes == 0 || bytes > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Memory::map(file, bytes)
    }

    /// An array map of the kernel that may be mapped (`BPF_F_MMAPABLE`) and has so many bytes.
    ///
    /// # Errors
    /// It is none, is smaller, or is more than 4 GiB.
    pub fn of_kernel_map(fd: OwnedFd, bytes: u64) -> io::Result<Memory> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| (1..=MOST).contains(bytes));
        let bytes = bytes.ok_or(io::ErrorKind::InvalidData)?.next_multiple_of(4096);
        let file = File::from(fd);
        // What is no such map can shrink, or has a size of its own.
        let named = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if named.as_os_str() != "anon_inode:bpf-map" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Memory::map(file, bytes)
    }

    /// The kernel refuses to map more than an array has.
    fn map(file: File, bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new mapping touches no memory of ours; nothing can shrink below it.
        let base = unsafe {
            let (read, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(core::ptr::null_mut(), bytes, read, shared, file.as_raw_fd(), 0)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(at) if base != libc::MAP_FAILED => Ok(Memory { base: at, bytes, file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its size.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never: memory has at least a page.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it lies in this process, for a driver to copy to.
    pub fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The word at an offset; `None` if the offset is no multiple of 8, or lies beyond the end.
    pub fn word(&self, at: usize) -> Option<&AtomicU64> {
        let fits = at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.bytes);
        // SAFETY: within the mapping, which is aligned to pages and lives as long as this; others write to it by
        // whole words as well, or through the driver.
        fits.then(|| unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() })
    }

    /// The word at an offset, 0 where there is none; what was written before it was set is seen.
    pub fn get(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Acquire))
    }

    /// Sets the word at an offset, if there is one, after all that was written before.
    pub fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Release);
        }
    }

    /// Adds to the word at an offset, if there is one.
    pub fn add(&self, at: usize, more: u64) {
        if let Some(word) = self.word(at) {
            word.fetch_add(more, AcqRel);
        }
    }

    /// A copy of a part; shorter if it does not lie inside.
    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let end = at.saturating_add(bytes).min(self.bytes);
        let mut out = Vec::with_capacity(end.saturating_sub(at) + 8);
        let mut word = at / 8 * 8;
        while word < end {
            let Some(value) = self.word(word) else { break };
            out.extend_from_slice(&value.load(Relaxed).to_le_bytes());
            word += 8;
        }
        out.drain(..(at % 8).min(out.len()));
        out.truncate(end.saturating_sub(at));
        out
    }

    /// Writes bytes at an offset that is a multiple of 8, the last word filled up with zeros. What does not fit is
    /// not written, and the answer is no.
    pub fn write(&self, at: usize, bytes: &[u8]) -> bool {
        bytes.chunks(8).enumerate().all(|(number, part)| {
            let mut eight = [0; 8];
            eight[..part.len()].copy_from_slice(part);
            let word = at.checked_add(number * 8).and_then(|at| self.word(at));
            word.map(|word| word.store(u64::from_le_bytes(eight), Relaxed)).is_some()
        })
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A file in memory, empty, whose size may be sealed.
pub(crate) fn memfd(name: &CStr) -> io::Result<File> {
    // SAFETY: the name is a C string.
    let fd =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just opened and that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Its size stays as it is.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_writes_the_other_reads() {
        let ours = Memory::new(5000).unwrap();
        let theirs = Memory::of(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((ours.len(), theirs.len()), (8192, 8192));
        assert!(ours.write(16, b"a text of 21 letters."));
        assert_eq!(theirs.read(18, 4), b"text");
        assert_eq!(theirs.read(16, 24), b"a text of 21 letters.\0\0\0");
        assert_eq!(theirs.read(8190, 100), [0, 0]);
        assert!(theirs.read(9000, 8).is_empty());
        assert!(!ours.write(8184, &[1; 9]) && ours.word(8192).is_none() && ours.word(4).is_none());
        assert!(ours.word(usize::MAX - 7).is_none());
    }

    #[test]
    fn memory_that_may_shrink_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        assert!(Memory::of(file.into()).is_err());
        let unsealed = memfd(c"unsealed").unwrap();
        unsealed.set_len(4096).unwrap();
        assert!(Memory::of(unsealed.into()).is_err());
    }
}
