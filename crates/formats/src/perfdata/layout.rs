//! How samples and other records of an event lie (include/uapi/linux/perf_event.h).

use std::ops::Range;

use gpuwhy_tracepoint::Machine;

/// Bits of `sample_type`, in the order in which a sample has them.
const IP: u64 = 1;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM: u64 = 1 << 9;
const RAW: u64 = 1 << 10;
const IDENTIFIER: u64 = 1 << 16;

/// The type of an event that is a tracepoint.
pub(super) const TRACEPOINT: u64 = 2;

/// An event that was recorded, as far as it matters here: `perf_event_attr`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attr {
    pub kind: u64,
    pub config: u64,
    pub sample_type: u64,
    read_format: u64,
    /// Whether records that are no samples end with whose they are.
    pub has_trailer: bool,
    pub name: String,
}

/// What a sample says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub ip: Option<u64>,
    pub pid: Option<i64>,
    pub tid: Option<i64>,
    pub time: Option<u64>,
    pub cpu: Option<u32>,
    pub period: Option<u64>,
    /// Where the tracepoint's own bytes lie in the record.
    pub raw: Option<Range<usize>>,
}

/// Reads a record from its front.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    machine: Machine,
}

impl Cursor<'_> {
    fn take(&mut self, size: usize) -> Option<u64> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(size)?)?;
        self.at += size;
        Some(self.machine.unsigned(bytes))
    }

    fn skip(&mut self, words: u64) -> Option<()> {
        let bytes = usize::try_from(words.checked_mul(8)?).ok()?;
        self.at = self.at.checked_add(bytes).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }
}

impl Attr {
    /// Reads an attribute; `None` if there are too few bytes.
    pub fn read(bytes: &[u8], machine: Machine) -> Option<Attr> {
        let mut cursor = Cursor { bytes, at: 0, machine };
        let kind = cursor.take(4)?;
        cursor.take(4)?;
        let config = cursor.take(8)?;
        cursor.take(8)?;
        let (sample_type, read_format, flags) = (cursor.take(8)?, cursor.take(8)?, cursor.take(8)?);
        // Bit fields begin at the other end on big-endian machines.
        let bit = if machine.is_big { 63 - 18 } else { 18 };
        let has_trailer = flags >> bit & 1 != 0;
        Some(Attr { kind, config, sample_type, read_format, has_trailer, name: String::new() })
    }

    fn has(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    /// The number of the event that a record is of. All attributes of a file have it at the same place.
    pub fn id(&self, record: &[u8], is_sample: bool, machine: Machine) -> Option<u64> {
        let bits = |bits: &[u64]| bits.iter().filter(|bit| self.has(**bit)).count();
        let place = if is_sample && self.has(IDENTIFIER) {
            8
        } else if is_sample && self.has(ID) {
            8 + 8 * bits(&[IP, TID, TIME, ADDR])
        } else if !is_sample && self.has_trailer && self.has(IDENTIFIER) {
            record.len().checked_sub(8)?
        } else if !is_sample && self.has_trailer && self.has(ID) {
            record.len().checked_sub(8 + 8 * bits(&[STREAM, CPU, IDENTIFIER]))?
        } else {
            return None;
        };
        Cursor { bytes: record, at: place, machine }.take(8)
    }

    /// Reads a sample with its header; `None` if its fields do not fit into it.
    pub fn sample(&self, record: &[u8], machine: Machine) -> Option<Sample> {
        let mut cursor = Cursor { bytes: record, at: 8, machine };
        let mut sample = Sample::default();
        if self.has(IDENTIFIER) {
            cursor.take(8)?;
        }
        if self.has(IP) {
            sample.ip = Some(cursor.take(8)?);
        }
        if self.has(TID) {
            sample.pid = Some(i64::from(cursor.take(4)? as i32));
            sample.tid = Some(i64::from(cursor.take(4)? as i32));
        }
        if self.has(TIME) {
            sample.time = Some(cursor.take(8)?);
        }
        for bit in [ADDR, ID, STREAM] {
            if self.has(bit) {
                cursor.take(8)?;
            }
        }
        if self.has(CPU) {
            sample.cpu = Some(cursor.take(4)? as u32);
            cursor.take(4)?;
        }
        if self.has(PERIOD) {
            sample.period = Some(cursor.take(8)?);
        }
        if self.has(READ) {
            self.skip_read(&mut cursor)?;
        }
        if self.has(CALLCHAIN) {
            let entries = cursor.take(8)?;
            cursor.skip(entries)?;
        }
        if self.has(RAW) {
            let size = cursor.take(4)? as usize;
            let to = cursor.at.checked_add(size).filter(|to| *to <= record.len())?;
            sample.raw = Some(cursor.at..to);
        }
        Some(sample)
    }

    /// Passes over the values of counters.
    fn skip_read(&self, cursor: &mut Cursor<'_>) -> Option<()> {
        let has = |bit: u64| u64::from(self.read_format & bit != 0);
        let (times, of_each) = (has(1) + has(2), has(4) + has(16));
        if has(8) == 0 {
            return cursor.skip(1 + times + of_each);
        }
        let counters = cursor.take(8)?;
        cursor.skip(times)?;
        cursor.skip(counters.checked_mul(1 + of_each)?)
    }

    /// The time that a record ends with that is no sample.
    pub fn trailing_time(&self, record: &[u8], machine: Machine) -> Option<u64> {
        if !self.has_trailer || !self.has(TIME) {
            return None;
        }
        let after = [ID, STREAM, CPU, IDENTIFIER].iter().filter(|bit| self.has(**bit)).count();
        let at = record.len().checked_sub(8 + 8 * after).filter(|at| *at >= 8)?;
        Cursor { bytes: record, at, machine }.take(8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Machine = Machine { is_big: false, long: 8 };

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn attr(sample_type: u64, read_format: u64) -> Attr {
        let flags = 1 << 18;
        Attr::read(&words(&[2, 7, 1, sample_type, read_format, flags]), LITTLE).unwrap()
    }

    #[test]
    fn a_sample_has_the_fields_of_its_type_in_the_order_of_the_kernel() {
        let all = IP | TID | TIME | ADDR | READ | CALLCHAIN | ID | CPU | PERIOD | STREAM | RAW;
        let mut record = words(&[9, 0x10, 5 | 6 << 32, 1000, 0xaddd, 77, 78, 3, 1]);
        // A group of two counters with a time and their numbers, and a chain of two calls.
        record.extend(words(&[2, 50, 1, 11, 2, 12, 2, 0xa, 0xb]));
        record.extend([4, 0, 0, 0, 1, 2, 3, 4]);
        let attr = attr(all, 1 | 4 | 8);
        let sample = attr.sample(&record, LITTLE).unwrap();
        assert_eq!((sample.pid, sample.tid, sample.time), (Some(5), Some(6), Some(1000)));
        assert_eq!((sample.cpu, sample.period, sample.ip), (Some(3), Some(1), Some(0x10)));
        assert_eq!(&record[sample.raw.unwrap()], [1, 2, 3, 4]);
        assert_eq!(attr.id(&record, true, LITTLE), Some(77));
        for length in 8..record.len() {
            assert_eq!(attr.sample(&record[..length], LITTLE), None, "{length}");
        }
    }

    #[test]
    fn other_records_end_with_whose_they_are_and_when() {
        let attr = attr(TID | TIME | CPU | IDENTIFIER, 0);
        let record = words(&[3, 0xffff, 6, 1000, 2, 99]);
        assert_eq!(attr.id(&record, false, LITTLE), Some(99));
        assert_eq!(attr.trailing_time(&record, LITTLE), Some(1000));
        assert_eq!(attr.trailing_time(&record[..16], LITTLE), None);
    }
}
