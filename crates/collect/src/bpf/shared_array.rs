//! Array maps of others that are pinned in a BPF file system: read, and added to, in place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle, MapType};

use crate::error::CollectError;

/// Bytes of the numbers that values consist of.
const WORD: usize = size_of::<u64>();

/// An array map of the kernel in our own memory, whose values are numbers of 64 bits.
///
/// Programs of the kernel and others that have mapped it change it at the same time. Each number is read
/// and added to atomically; several numbers are of different moments.
#[derive(Debug)]
pub struct SharedArray {
    memory: NonNull<AtomicU64>,
    words: usize,
    map: MapHandle,
}

// SAFETY: what it points to is a mapping of the process, not of a thread, and is changed by atomics only.
unsafe impl Send for SharedArray {}
// SAFETY: as above.
unsafe impl Sync for SharedArray {}

impl SharedArray {
    /// The map that is pinned at `path`: an array with `BPF_F_MMAPABLE` whose values are whole numbers of
    /// 64 bits.
    ///
    /// # Errors
    /// It is no such map, or may not be read and written.
    pub fn open(path: &Path) -> Result<SharedArray, CollectError> {
        let failed = |what: &str, source| CollectError::System {
            action: format!("{what} the BPF map `{}`", path.display()),
            source,
        };
        let map = MapHandle::from_pinned_path(path)
            .map_err(|error| failed("open", io::Error::other(error)))?;
        let value = map.value_size() as usize;
        if map.map_type() != MapType::Array || value == 0 || !value.is_multiple_of(WORD) {
            return Err(CollectError::Unsupported {
                missing: format!(
                    "the BPF map `{}` is no array of numbers of 64 bits: {:?} with values of {value} bytes",
                    path.display(),
                    map.map_type()
                ),
                fix: "declare it as BPF_MAP_TYPE_ARRAY with values of __u64".into(),
            });
        }
        let words = value / WORD * map.max_entries() as usize;
        // SAFETY: a new shared mapping at an address of the kernel's choice; the descriptor is open during the
        // call and the mapping outlives it by itself.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                words * WORD,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            return Err(failed("map into memory (BPF_F_MMAPABLE makes that possible)", source));
        }
        let memory = NonNull::new(memory.cast()).expect("a mapping is never at address 0");
        Ok(SharedArray { memory, words, map })
    }

    /// All numbers, value by value.
    pub fn numbers(&self) -> Vec<u64> {
        self.words().iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Adds to each number what a copy of it has become more; nothing behind the end. Who counts in the array
    /// meanwhile loses nothing.
    pub fn add_growth(&self, before: &[u64], after: &[u64]) {
        for ((word, before), after) in self.words().iter().zip(before).zip(after) {
            if after != before {
                word.fetch_add(after.wrapping_sub(*before), Ordering::Relaxed);
            }
        }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, has this many words, and lives until drop; whoever else
        // writes there is seen through atomics only, for which all bytes are valid.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.words) }
    }
}

/// The map's descriptor: whoever gets it may map the array too.
impl AsFd for SharedArray {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for SharedArray {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `open`, and nothing borrows from it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.words * WORD) };
    }
}
