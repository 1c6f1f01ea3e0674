//! Files that several processes map as one value, and a lock that lies in such a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::check_errno;

/// A type that may lie in memory which other processes change.
///
/// # Safety
/// Zeroed bytes, and whatever other processes write, must be a valid value, and the type must
/// expect to be changed by them: atomics, or cells with a lock of their own.
pub unsafe trait InSharedMemory: Sync {
    /// Completes a new value of zeroed bytes, before another process sees it.
    ///
    /// # Errors
    /// If a lock in it cannot be initialised.
    fn initialise(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file mapped shared as one value.
pub struct Shared<T> {
    at: *mut T,
}

// SAFETY: only a shared reference to `T` is given out, and `T` may be shared between threads.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T: InSharedMemory> Shared<T> {
    /// Gives an empty file the size of a `T`, maps it and initialises the value. No other process
    /// may map the file before this returns.
    ///
    /// # Errors
    /// If the file cannot grow or be mapped, or as [`InSharedMemory::initialise`].
    pub fn create(file: &File) -> io::Result<Shared<T>> {
        file.set_len(size_of::<T>() as u64)?;
        let shared: Shared<T> = Shared::map(file)?;
        // SAFETY: mapped with this size and page-aligned; `T` may lie in such memory. No other code
        // has this mapping yet, and the file is new.
        unsafe { &mut *shared.at }.initialise()?;
        Ok(shared)
    }

    /// Maps a file that [`Shared::create`] has made.
    ///
    /// # Errors
    /// If the file is shorter than a `T` or cannot be mapped.
    pub fn open(file: &File) -> io::Result<Shared<T>> {
        if file.metadata()?.len() < size_of::<T>() as u64 {
            return Err(io::Error::other("the file is too short"));
        }
        Shared::map(file)
    }

    fn map(file: &File) -> io::Result<Shared<T>> {
        // SAFETY: a new mapping of a file touches no memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { at: at.cast() })
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with this size, page-aligned; only `create` and `open` make one, whose
        // types are valid in memory that others change.
        unsafe { &*self.at }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping.
        unsafe { libc::munmap(self.at.cast(), size_of::<T>()) };
    }
}

/// A lock between processes, in shared memory; a futex underneath. If its holder dies, the next
/// process that waits for it gets it.
#[repr(C)]
pub struct SharedMutex {
    mutex: std::cell::UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: the cell is used by the pthread calls only, which are made for this.
unsafe impl Sync for SharedMutex {}

/// Holds a [`SharedMutex`] until dropped.
pub struct SharedMutexGuard<'a>(&'a SharedMutex);

impl SharedMutex {
    /// Makes zeroed bytes a mutex.
    ///
    /// # Errors
    /// If the C library refuses an attribute.
    pub fn initialise(&mut self) -> io::Result<()> {
        // SAFETY: the attribute is initialised before it is used and destroyed afterwards; the
        // mutex is borrowed exclusively, so no thread holds it.
        unsafe {
            let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
            check_errno(libc::pthread_mutexattr_init(&mut attr))?;
            check_errno(libc::pthread_mutexattr_setpshared(
                &mut attr,
                libc::PTHREAD_PROCESS_SHARED,
            ))?;
            check_errno(libc::pthread_mutexattr_setrobust(&mut attr, libc::PTHREAD_MUTEX_ROBUST))?;
            check_errno(libc::pthread_mutex_init(self.mutex.get(), &attr))?;
            check_errno(libc::pthread_mutexattr_destroy(&mut attr))
        }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> SharedMutexGuard<'_> {
        // SAFETY: the process that created the file has made it a mutex before others could map it.
        if unsafe { libc::pthread_mutex_lock(self.mutex.get()) } == libc::EOWNERDEAD {
            // SAFETY: we hold the mutex. What it guards is a number, consistent at all times.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get()) };
        }
        SharedMutexGuard(self)
    }
}

impl Drop for SharedMutexGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}
