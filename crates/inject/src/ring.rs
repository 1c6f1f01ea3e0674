//! The ring that this process writes to while an agent is connected.
//!
//! *Writers never wait* ([`Published`]): they find the ring or none. A withdrawn ring stays mapped
//! until no writer can be using it any more.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use gpuwhy_wire::{Event, NameId, Producer};

use crate::published::{LINES, Published, Withdrawn};

/// A ring to write to.
#[derive(Debug)]
pub struct Ring {
    producer: Producer,
    /// Counts the rings that this process has had. Names have other numbers in another ring, so caches
    /// of name numbers are valid for one generation only.
    pub generation: u64,
}

impl Ring {
    /// The number of a name in this ring.
    #[inline]
    pub fn name(&self, name: &str) -> NameId {
        self.producer.name(name)
    }

    /// Writes one event of the calling thread; a full ring counts it as lost.
    #[inline]
    pub fn write(&self, event: Event) {
        self.producer.write(event);
    }

    /// Writes one event of another thread of this process.
    #[inline]
    pub fn write_as(&self, tid: u32, event: Event) {
        self.producer.write_as(tid, event);
    }
}

static RING: Published<Ring> = Published::new();
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The calling thread's counter of readers.
fn my_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static LINE: Cell<usize> = const { Cell::new(usize::MAX) }; }
    // A thread that is being torn down has no cell any more, and uses the first counter.
    let line = LINE.try_with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(NEXT.fetch_add(1, Relaxed) % LINES);
        }
        cell.get()
    });
    line.unwrap_or(0)
}

/// Calls `f` with the ring, if an agent is connected. Never waits.
#[inline]
pub fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    if !RING.is_there() {
        return None;
    }
    RING.with(my_line(), f)
}

/// Makes the ring of `producer` the one that is written to. Returns the ring that it replaces.
pub(crate) fn publish(producer: Producer) -> Option<Withdrawn<Ring>> {
    let generation = GENERATION.fetch_add(1, Relaxed) + 1;
    RING.publish(Box::new(Ring { producer, generation }))
}

/// From now on nothing is written.
pub(crate) fn withdraw() -> Option<Withdrawn<Ring>> {
    RING.withdraw()
}

/// Unmaps withdrawn rings, if no writer can be using them.
pub(crate) fn release(withdrawn: &mut Vec<Withdrawn<Ring>>) {
    RING.release(withdrawn);
}

/// In a forked child: the ring is the parent's.
pub(crate) fn forget_after_fork() {
    RING.forget_after_fork();
}
