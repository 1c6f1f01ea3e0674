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
        // Rows come and go by some hundred KiB: to ask the system for each of these, and to give it back, costs
        // a clearing of every page.
        libc::mallopt(libc::M_TOP_PAD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
    }
}

/// When freed memory is worth giving back, and what is resident then.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// What was resident after it was given back last.
    resident: u64,
}

impl Spare {
    /// Growth for which it is worth it; memory that is given back and soon needed again is cleared anew.
    const GROWN: u64 = 16 << 20;

    /// Whether so much more is resident than last time that some of it may be free.
    pub fn is_due(&self, resident: u64) -> bool {
        resident > self.resident.saturating_add(Spare::GROWN)
    }

    /// So much is resident after it was given back.
    pub fn given_back(&mut self, resident: u64) {
        self.resident = resident;
    }
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> u64 {
    // SAFETY: takes a plain number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_will_be_needed_again_is_not_given_back() {
        let mut spare = Spare::default();
        assert!(spare.is_due(40 << 20), "the start takes much");
        spare.given_back(22 << 20);
        assert!(!spare.is_due(23 << 20) && !spare.is_due(38 << 20));
        assert!(spare.is_due(39 << 20));
        // It is in use, as it turns out.
        spare.given_back(39 << 20);
        assert!(!spare.is_due(39 << 20));
    }
}
