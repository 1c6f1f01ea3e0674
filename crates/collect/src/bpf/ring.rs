//! The ring of exact records: drained at every tick, without wakeups.

use std::cell::RefCell;
use std::rc::Rc;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use super::layout::from_bytes;

/// The reading end of the kernel's ring.
pub(super) struct Ring {
    ring: RingBuffer<'static>,
    staged: Rc<RefCell<Staged>>,
}

/// Records copied out of the ring until they are handed out: the length, then the bytes.
#[derive(Debug, Default)]
struct Staged {
    bytes: Vec<u8>,
    limit: usize,
}

impl Ring {
    /// Reads the ring `map` of `ring_bytes`.
    ///
    /// # Errors
    /// libbpf's.
    pub fn new(map: &MapHandle, ring_bytes: u32) -> Result<Ring, libbpf_rs::Error> {
        // One drain may copy as much as the ring holds; what is written meanwhile waits for the
        // next one, so that a fast writer cannot keep us here.
        let limit = ring_bytes as usize;
        let staged = Rc::new(RefCell::new(Staged { bytes: Vec::new(), limit }));
        let into = Rc::clone(&staged);
        let mut builder = RingBufferBuilder::new();
        builder.add(map, move |record| into.borrow_mut().push(record))?;
        Ok(Ring { ring: builder.build()?, staged })
    }

    /// Moves the records that lie in the ring to `into`, up to one ring's worth; [`records`] walks
    /// them.
    pub fn drain(&self, into: &mut Vec<u8>) {
        std::mem::swap(&mut self.staged.borrow_mut().bytes, into);
        self.ring.consume_raw();
        std::mem::swap(&mut self.staged.borrow_mut().bytes, into);
    }
}

impl Staged {
    fn push(&mut self, record: &[u8]) -> i32 {
        self.bytes.extend_from_slice(&(record.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(record);
        if self.bytes.len() >= self.limit { -libc::EAGAIN } else { 0 }
    }
}

/// The records that [`super::Bpf::drain`] moved.
pub(crate) fn records(mut staged: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = from_bytes::<u32>(staged)? as usize;
        let record = staged.get(4..4 + len)?;
        staged = &staged[4 + len..];
        Some(record)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_records_come_back_and_a_torn_end_is_left() {
        let mut staged = Staged { bytes: Vec::new(), limit: 16 };
        assert_eq!(staged.push(b"first"), 0);
        assert_eq!(staged.push(b"second"), -libc::EAGAIN, "enough for one drain");
        let all: Vec<&[u8]> = records(&staged.bytes).collect();
        assert_eq!(all, [&b"first"[..], b"second"]);
        for cut in 0..staged.bytes.len() {
            assert!(records(&staged.bytes[..cut]).count() < 2);
        }
    }
}
