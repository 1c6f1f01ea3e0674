//! Memory of this process.

/// Gives freed memory back to the system that the allocator would keep for later: worth it after
/// work that took much memory for a moment.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a plain number, and touches only memory that is free.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has all threads take their memory from one place. The allocator would else keep what each thread has freed for
/// that thread: a recording's sealing threads are many, and none of them lives long.
pub(crate) fn share_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes plain numbers, and may be called at any time; what was allocated before stays valid.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> u64 {
    // SAFETY: takes a plain number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
