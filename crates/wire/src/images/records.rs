//! Records of rings on their way to the controller: a queue behind the maps of a [`State`], written by the program's end
//! and read by the controller.

use super::state::State;

/// Bytes of the queue, a power of two.
const ROOM: u64 = 4 << 20;
/// Bytes before it: what was written so far, what was read, and how many records found no room at the end.
const HEAD: u64 = 24;
/// Bytes of a record before what it holds.
const BEFORE: u64 = 16;
/// The largest record, bytes.
const MOST: u64 = 4096;

/// The queue of a state; one thread writes and one reads.
#[derive(Debug)]
pub struct Records<'a> {
    state: &'a State,
    at: u64,
}

impl<'a> Records<'a> {
    /// Bytes of it.
    pub const BYTES: u64 = HEAD + ROOM;

    /// The queue that begins so many bytes behind the beginning of the maps.
    pub fn new(state: &'a State, at: u64) -> Self {
        Self { state, at }
    }

    /// The offset of a word, so many bytes behind a place that is counted from the beginning of all records.
    fn word(&self, place: u64, behind: u64) -> u64 {
        self.at + HEAD + place.wrapping_add(behind) % ROOM
    }

    /// Adds a record of a map from an SM; `word` is what it holds, 8 bytes at a time. Whether there was room.
    pub fn push(&self, map: u32, sm: u32, bytes: u32, word: impl Fn(u32) -> u64) -> bool {
        let (written, read) = (self.state.number(self.at), self.state.number(self.at + 8));
        let whole = BEFORE + u64::from(bytes).next_multiple_of(8);
        if written.wrapping_sub(read).saturating_add(whole) > ROOM {
            return false;
        }
        self.state.put(self.word(written, 0), u64::from(map) << 32 | u64::from(bytes));
        self.state.put(self.word(written, 8), sm.into());
        for number in 0..bytes.div_ceil(8) {
            self.state.put(self.word(written, BEFORE + 8 * u64::from(number)), word(number));
        }
        self.state.put(self.at, written.wrapping_add(whole));
        true
    }

    /// Says how many records found no room when nothing more came.
    pub fn tell_left(&self, count: u64) {
        self.state.put(self.at + 16, count);
    }

    /// How many records found no room when nothing more came.
    pub fn left(&self) -> u64 {
        self.state.number(self.at + 16)
    }

    /// Takes all records: map, SM and bytes. Whether they were right; what is behind one that is not is lost.
    pub fn take(&self, mut each: impl FnMut(u32, u32, Vec<u8>)) -> bool {
        let (written, mut read) = (self.state.number(self.at), self.state.number(self.at + 8));
        let mut right = written.wrapping_sub(read) <= ROOM;
        while right && read != written {
            let (first, sm) =
                (self.state.number(self.word(read, 0)), self.state.number(self.word(read, 8)));
            let bytes = first & u64::from(u32::MAX);
            let whole = BEFORE + bytes.next_multiple_of(8);
            right = bytes <= MOST && whole <= written.wrapping_sub(read);
            if right {
                let words = (0..bytes.div_ceil(8))
                    .map(|n| self.state.number(self.word(read, BEFORE + 8 * n)));
                let mut record: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                record.truncate(bytes as usize);
                each((first >> 32) as u32, sm as u32, record);
                read = read.wrapping_add(whole);
            }
        }
        self.state.put(self.at + 8, written);
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_in_order_and_what_finds_no_room_is_told() {
        let state = State::new(Records::BYTES + 64).unwrap();
        let records = Records::new(&state, 64);
        let taken = || {
            let mut all = Vec::new();
            let right = records.take(|map, sm, bytes| all.push((map, sm, bytes)));
            (all, right)
        };
        assert!(records.push(3, 7, 12, |n| 0x0807_0605_0403_0201 + u64::from(n)));
        assert!(records.push(4, 8, 8, |_| u64::MAX));
        records.tell_left(9);
        assert_eq!(records.left(), 9);
        let (all, right) = taken();
        let first = [1, 2, 3, 4, 5, 6, 7, 8, 2, 2, 3, 4].to_vec();
        assert_eq!((all, right), (vec![(3, 7, first), (4, 8, vec![255; 8])], true));
        // A few turns around.
        let mut sent = 0_u64;
        for _ in 0..5 {
            let begin = sent;
            while records.push(1, 0, 4096, |_| sent) {
                sent += 1;
            }
            assert_eq!(sent - begin, ROOM / 4112);
            let (all, right) = taken();
            assert!(right && all.len() as u64 == sent - begin);
            assert!((begin..).zip(&all).all(|(n, (_, _, bytes))| bytes[..8] == n.to_le_bytes()));
        }
    }

    /// The program may write anything there.
    #[test]
    fn a_queue_that_is_not_right_ends_without_harm() {
        let state = State::new(Records::BYTES).unwrap();
        let records = Records::new(&state, 0);
        for (written, first) in
            [(u64::MAX, 8), (ROOM + 8, 8), (8, 8), (64, 5000), (24, u64::MAX), (16, 0)]
        {
            state.put(0, written);
            state.put(8, 0);
            state.put(HEAD, first);
            let mut count = 0;
            let right = records.take(|_, _, _| count += 1);
            assert_eq!(
                (right, count),
                if written == 16 { (true, 1) } else { (false, 0) },
                "{written}"
            );
            assert!(records.push(1, 1, 8, |_| 7), "it goes on");
        }
    }
}
