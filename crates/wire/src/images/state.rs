//! What the maps of an image hold on one device, and when that was true.

use core::sync::atomic::Ordering::Acquire;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::memory::Memory;

/// Bytes before the maps.
const HEADER_BYTES: usize = 4096;
/// Programs that can be switched on and off while the program runs; further ones are always on.
const MAX_SWITCHES: usize = 256;

// Words of the header.
const SEQUENCE: usize = 0;
const DRAINS: usize = 8;
const DRAINED: usize = 16;
const FAILED: usize = 24;
const CLOSED: usize = 32;
const SWITCHES: usize = 1024;

/// Memory in which the program's end shows what the maps hold. A sequence number tells whether it was written to
/// meanwhile: it is odd while it is.
#[derive(Debug)]
pub struct State(Memory);

impl State {
    /// For maps of so many bytes, with all programs on.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn new(bytes: u64) -> io::Result<State> {
        let bytes = usize::try_from(bytes).ok().and_then(|b| b.checked_add(HEADER_BYTES));
        let state = State(Memory::new(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?);
        (0..MAX_SWITCHES).for_each(|program| state.switch(program, true));
        Ok(state)
    }

    /// What was received, for maps of so many bytes.
    ///
    /// # Errors
    /// It is too small.
    pub fn of(fd: OwnedFd, bytes: u64) -> io::Result<State> {
        let memory = Memory::of(fd)?;
        let room = memory.len().checked_sub(HEADER_BYTES);
        if room.is_none_or(|room| (room as u64) < bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(State(memory))
    }

    /// Where the maps begin in this process: at the beginning of a page.
    pub fn address(&self) -> *mut u8 {
        self.0.address().wrapping_add(HEADER_BYTES)
    }

    /// Calls `copy` with the address to which the maps are to be copied, and says that they were at `now`
    /// (CLOCK_MONOTONIC, ns), or that it failed.
    pub fn drain(&self, now: u64, copy: impl FnOnce(*mut u8) -> bool) {
        self.0.add(SEQUENCE, 1);
        let copied = copy(self.address());
        if copied {
            self.0.add(DRAINS, 1);
            self.0.set(DRAINED, now);
        } else {
            self.0.add(FAILED, 1);
        }
        self.0.add(SEQUENCE, 1);
    }

    /// Says that nothing more comes: what is there is all.
    pub fn close(&self) {
        self.0.set(CLOSED, 1);
    }

    /// Whether nothing more comes.
    pub fn is_closed(&self) -> bool {
        self.0.get(CLOSED) == 1
    }

    /// How often the maps were copied, when the last time (CLOCK_MONOTONIC, ns), and how often that failed.
    pub fn drained(&self) -> (u64, u64, u64) {
        (self.0.get(DRAINS), self.0.get(DRAINED), self.0.get(FAILED))
    }

    /// What the maps hold, if it was not written to meanwhile.
    pub fn maps(&self, bytes: u64) -> Option<Vec<u8>> {
        self.part(0, bytes)
    }

    /// A part of what the maps hold, if it was not written to meanwhile.
    pub fn part(&self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let before = self.sequence();
        if before % 2 == 1 {
            return None;
        }
        let at = usize::try_from(at).ok()?.checked_add(HEADER_BYTES)?;
        let part = self.0.read(at, usize::try_from(bytes).ok()?);
        core::sync::atomic::fence(Acquire);
        (self.sequence() == before && part.len() as u64 == bytes).then_some(part)
    }

    /// A number of 64 bits in the maps, by its offset there; 0 beyond their end.
    pub fn number(&self, at: u64) -> u64 {
        let at = usize::try_from(at).ok().and_then(|at| at.checked_add(HEADER_BYTES));
        at.map_or(0, |at| self.0.get(at))
    }

    /// Writes a number of 64 bits, by its offset from the beginning of the maps; nothing beyond the end.
    pub(crate) fn put(&self, at: u64, value: u64) {
        let at = usize::try_from(at).ok().and_then(|at| at.checked_add(HEADER_BYTES));
        if let Some(at) = at {
            self.0.set(at, value);
        }
    }

    /// As [`State::maps`], whatever happens meanwhile.
    pub fn torn(&self, bytes: u64) -> Vec<u8> {
        self.0.read(HEADER_BYTES, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Turns a program on or off.
    pub fn switch(&self, program: usize, on: bool) {
        if program < MAX_SWITCHES {
            self.0.set(SWITCHES + 8 * program, on.into());
        }
    }

    /// Whether a program is to be on.
    pub fn is_on(&self, program: usize) -> bool {
        program >= MAX_SWITCHES || self.0.get(SWITCHES + 8 * program) != 0
    }

    fn sequence(&self) -> u64 {
        self.0.word(SEQUENCE).map_or(1, |word| word.load(Acquire))
    }
}

impl AsFd for State {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drained_is_seen_at_the_other_end_and_never_in_halves() {
        let ours = State::new(24).unwrap();
        let fd = || ours.as_fd().try_clone_to_owned().unwrap();
        let theirs = State::of(fd(), 24).unwrap();
        assert!(State::of(fd(), 5000).is_err(), "too small");
        theirs.drain(99, |to| {
            assert_eq!(ours.maps(24), None, "it is being written");
            // SAFETY: the memory behind the header has a page, and nobody else writes to it.
            unsafe { to.cast::<u64>().write(5) };
            true
        });
        assert_eq!(
            ours.maps(24).map(|maps| maps[..9].to_vec()),
            Some(vec![5, 0, 0, 0, 0, 0, 0, 0, 0])
        );
        assert_eq!((ours.part(0, 1), ours.part(8, 2)), (Some(vec![5]), Some(vec![0, 0])));
        assert_eq!((ours.part(1 << 20, 1), ours.part(u64::MAX, 1)), (None, None));
        theirs.drain(100, |_| false);
        assert_eq!((ours.drained(), ours.is_closed()), ((1, 99, 1), false));
        theirs.close();
        assert!(ours.is_closed());
    }

    #[test]
    fn programs_are_on_until_they_are_switched_off() {
        let state = State::new(8).unwrap();
        assert!(state.is_on(0) && state.is_on(MAX_SWITCHES - 1) && state.is_on(MAX_SWITCHES));
        state.switch(1, false);
        assert!(state.is_on(0) && !state.is_on(1));
    }
}
