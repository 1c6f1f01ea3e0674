//! The ring of records that NVIDIA's driver writes of a GPU's context switches (`cl90cd.h`, `cl90cdfecs.h`).
//!
//! Its header says up to where the driver has written; where it was read up to, the reader says itself. A record holds the
//! tag of its event, the process, the partition of MIG, the context, and the time on the GPU's clock.
//!
//! # What fools it
//! A full ring drops what is new. Records are numbered by 16 bits, also those that were dropped, so that up to 65,535 lost
//! ones in a row are counted.

use crate::sys::Mapped;

/// Records of a ring: seconds of a GPU whose processes take turns by the millisecond.
pub(super) const RECORDS: u32 = 8192;
/// Bytes of a record: `NV_EVENT_BUFFER_RECORD_HEADER` and `NV_EVENT_BUFFER_FECS_RECORD_V2`.
pub(super) const RECORD: u32 = 32;
/// Bytes of a ring's header (`NV_EVENT_BUFFER_HEADER`).
pub(super) const HEADER: u64 = 32;
/// `NV_EVENT_BUFFER_RECORD_TYPE_FECS_CTX_SWITCH_V2`.
const SWITCH: u64 = 2;
/// `NV_EVENT_BUFFER_FECS_CTXSWTAG_*` that say that a context has the engine, and that it has it no more. What is recorded of
/// processes that are no kernel's has the simple ones; a driver for developers may write all.
const BEGINS: [u8; 2] = [0x05, 0x06];
const ENDS: [u8; 2] = [0x03, 0x07];
/// `NV_EVENT_BUFFER_KERNEL_PID` and `NV_EVENT_BUFFER_HIDDEN_PID`: whose it is, is not told.
const NOT_TOLD: [u32; 2] = [u32::MAX, 0];
/// `NV_EVENT_BUFFER_INVALID_MIG_GI`: the GPU has no partitions. Those of the kernel's and of hidden processes are 254 and 253.
const PARTITIONS: u8 = 253;

/// A context began or ceased to have the engine of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch {
    /// Whether it has it now.
    pub begins: bool,
    /// The process; none if the driver does not tell.
    pub pid: Option<u32>,
    /// The number of its context.
    pub context: u32,
    /// The GPU instance and compute instance of MIG, if the GPU is partitioned.
    pub partition: Option<(u8, u8)>,
    /// On the GPU's clock, ns.
    pub at: u64,
}

/// Words at offsets of memory that somebody else writes.
pub(super) trait Words {
    /// 32 bits; none beyond the end.
    fn u32(&self, at: usize) -> Option<u32>;
    /// 64 bits.
    fn u64(&self, at: usize) -> Option<u64>;
}

impl Words for Mapped {
    fn u32(&self, at: usize) -> Option<u32> {
        Mapped::u32(self, at)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Mapped::u64(self, at)
    }
}

/// How far a ring was read.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// The next record.
    pub next: u32,
    /// Its number, if none is lost.
    number: u16,
    /// Records that were lost.
    pub lost: u64,
    /// Records of another kind.
    pub other: u64,
}

impl Ring {
    /// What was written since the last call; none if the ring says what cannot be.
    pub fn read(&mut self, header: &impl Words, records: &impl Words) -> Option<Vec<Switch>> {
        // recordPut; what it stands behind was written before it.
        let end = header.u32(4).filter(|end| *end < RECORDS)?;
        let mut out = Vec::new();
        while self.next != end {
            let at = (self.next * RECORD) as usize;
            let [head, first, second, time] = [0, 8, 16, 24].map(|word| records.u64(at + word));
            self.next = (self.next + 1) % RECORDS;
            if head? & 0xffff != SWITCH {
                self.other += 1;
                continue;
            }
            let [tag, _, low, high, context @ ..] = first?.to_le_bytes();
            let number = u16::from_le_bytes([low, high]);
            self.lost += u64::from(number.wrapping_sub(self.number));
            self.number = number.wrapping_add(1);
            let begins = BEGINS.contains(&tag);
            if !begins && !ENDS.contains(&tag) {
                self.other += 1;
                continue;
            }
            let [pid @ .., _, _, gpu_instance, compute_instance] = second?.to_le_bytes();
            let pid = Some(u32::from_le_bytes(pid)).filter(|pid| !NOT_TOLD.contains(pid));
            let partition = (gpu_instance, compute_instance);
            out.push(Switch {
                begins,
                pid,
                context: u32::from_le_bytes(context),
                partition: Some(partition).filter(|(gpu, _)| *gpu < PARTITIONS),
                at: time?,
            });
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring as the driver writes it.
    pub(super) struct Written {
        header: Vec<u8>,
        records: Vec<u8>,
        put: u32,
        number: u16,
    }

    impl Words for Vec<u8> {
        fn u32(&self, at: usize) -> Option<u32> {
            self.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
        }

        fn u64(&self, at: usize) -> Option<u64> {
            self.get(at..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
        }
    }

    impl Written {
        fn new() -> Written {
            let records = vec![0; (RECORD * RECORDS) as usize];
            Written { header: vec![0; HEADER as usize], records, put: 0, number: 0 }
        }

        fn put(&mut self, tag: u8, pid: u32, partition: (u8, u8), at: u64) {
            let place = (self.put * RECORD) as usize;
            let record = &mut self.records[place..place + RECORD as usize];
            record[..8].copy_from_slice(&SWITCH.to_le_bytes());
            record[8] = tag;
            record[10..12].copy_from_slice(&self.number.to_le_bytes());
            record[12..16].copy_from_slice(&77_u32.to_le_bytes());
            record[16..20].copy_from_slice(&pid.to_le_bytes());
            (record[22], record[23]) = partition;
            record[24..].copy_from_slice(&at.to_le_bytes());
            self.put = (self.put + 1) % RECORDS;
            self.number = self.number.wrapping_add(1);
            self.header[4..8].copy_from_slice(&self.put.to_le_bytes());
        }
    }

    /// Values of [`Written::put`] where the GPU has no partitions.
    const WHOLE: (u8, u8) = (0xff, 0xff);

    #[test]
    fn records_say_who_had_the_engine_and_when() {
        let (mut written, mut ring) = (Written::new(), Ring::default());
        assert_eq!(ring.read(&written.header, &written.records), Some(vec![]));
        written.put(6, 4711, WHOLE, 1_000);
        written.put(7, 4711, WHOLE, 3_000);
        written.put(6, u32::MAX, (2, 1), 3_010);
        let told = ring.read(&written.header, &written.records).unwrap();
        let switch =
            |begins, pid, partition, at| Switch { begins, pid, context: 77, partition, at };
        assert_eq!(
            told,
            [
                switch(true, Some(4711), None, 1_000),
                switch(false, Some(4711), None, 3_000),
                switch(true, None, Some((2, 1)), 3_010),
            ]
        );
        assert_eq!(ring.read(&written.header, &written.records), Some(vec![]));
        assert_eq!((ring.lost, ring.other), (0, 0));
    }

    #[test]
    fn records_beyond_the_end_of_the_ring_go_on_at_its_beginning() {
        let (mut written, mut ring) = (Written::new(), Ring::default());
        for round in 0..3 {
            for at in 0..u64::from(RECORDS) - 1 {
                written.put(6, 1, WHOLE, at);
            }
            let told = ring.read(&written.header, &written.records).unwrap();
            assert_eq!(told.len(), RECORDS as usize - 1, "round {round}");
            assert_eq!(told[17].at, 17, "round {round}");
        }
        assert_eq!(ring.lost, 0);
    }

    #[test]
    fn records_that_the_driver_dropped_are_counted_by_their_numbers() {
        let (mut written, mut ring) = (Written::new(), Ring::default());
        written.put(6, 1, WHOLE, 1);
        written.number += 5;
        written.put(7, 1, WHOLE, 2);
        ring.read(&written.header, &written.records).unwrap();
        assert_eq!(ring.lost, 5);
        written.number = u16::MAX;
        written.put(6, 1, WHOLE, 3);
        written.put(7, 1, WHOLE, 4);
        ring.read(&written.header, &written.records).unwrap();
        assert_eq!(ring.lost, 5 + u64::from(u16::MAX) - 7);
    }

    #[test]
    fn a_ring_that_says_what_cannot_be_is_not_followed() {
        let (mut written, mut ring) = (Written::new(), Ring::default());
        written.header[4..8].copy_from_slice(&RECORDS.to_le_bytes());
        assert_eq!(ring.read(&written.header, &written.records), None);
        // Records that are missing.
        written.header[4..8].copy_from_slice(&4_u32.to_le_bytes());
        assert_eq!(ring.read(&written.header, &vec![0; 40]), None);
    }

    #[test]
    fn records_of_other_kinds_are_counted() {
        let (mut written, mut ring) = (Written::new(), Ring::default());
        // NV_EVENT_BUFFER_FECS_CTXSWTAG_RESTORE_START.
        written.put(4, 1, WHOLE, 1);
        written.put(6, 1, WHOLE, 2);
        written.records[RECORD as usize] = 1;
        assert_eq!(ring.read(&written.header, &written.records), Some(vec![]));
        assert_eq!((ring.other, ring.lost), (2, 0));
    }
}
