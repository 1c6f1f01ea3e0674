//! Pages of the kernel's ring buffer (kernel/trace/ring_buffer.c), as trace-cmd keeps them.
//!
//! # How
//! A page begins with a time and with how many bytes of it are used. An event begins with a word of five bits for its
//! kind or length and 27 for the time since the event before; longer times and absolute ones are entries of their own.
//!
//! # What fools it
//! A page that follows lost events says so, and how many they were only where the kernel had room to write it.

use std::ops::Range;

use gpuwhy_tracepoint::{Field, Machine};

/// The bits of a page's length that say that events before it were lost, and that their number follows the events.
const MISSED: u64 = 1 << 31;
const MISSED_COUNT: u64 = 1 << 30;
const LENGTH: u64 = (1 << 27) - 1;
/// An absolute time has so many bits; the others are those of the time before.
const STAMP_BITS: u32 = 59;

/// Where the parts of a page lie: the file `header_page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageLayout {
    commit: (usize, usize),
    data: usize,
}

impl PageLayout {
    /// Reads `header_page`.
    ///
    /// # Errors
    /// It does not say where the length and the events lie.
    pub fn parse(text: &str, machine: Machine) -> Result<PageLayout, String> {
        let (mut commit, mut data) = (None, None);
        for line in text.lines().map(str::trim).filter(|line| line.starts_with("field:")) {
            let field = Field::parse(line, machine)?;
            match &*field.name {
                "commit" => commit = Some((field.offset, field.size)),
                "data" => data = Some(field.offset),
                _ => {}
            }
        }
        let (commit, data) = commit.zip(data).ok_or("no `commit` and `data` in header_page")?;
        let fits = matches!(commit.1, 4 | 8) && commit.0 >= 8 && data >= commit.0 + commit.1;
        if !fits || data > 4096 {
            return Err(format!("a page whose events begin at byte {data} cannot be"));
        }
        Ok(PageLayout { commit, data })
    }
}

/// Where one is in a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    at: usize,
    end: usize,
    /// The time of the event that was returned last, as the kernel's clock counts.
    pub time: u64,
}

/// What a page says of events before it that were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// None were.
    None,
    /// So many.
    Some(u64),
    /// How many is not known.
    Unknown,
}

impl Place {
    /// Begins a page.
    ///
    /// # Errors
    /// It says that it is longer than it is.
    pub fn begin(
        page: &[u8],
        layout: PageLayout,
        machine: Machine,
    ) -> Result<(Place, Missed), String> {
        let Some(head) = page.get(..layout.data) else {
            return Err(format!("a page of {} bytes", page.len()));
        };
        let time = machine.unsigned(&head[..8]);
        let (at, size) = layout.commit;
        let commit = machine.unsigned(&head[at..at + size]);
        let length = (commit & LENGTH) as usize;
        let end = layout.data + length;
        if end > page.len() {
            return Err(format!("{length} bytes of events in a page of {} bytes", page.len()));
        }
        let missed = match (commit & MISSED != 0, commit & MISSED_COUNT != 0) {
            (false, _) => Missed::None,
            (true, true) if end + machine.long <= page.len() => {
                Missed::Some(machine.unsigned(&page[end..end + machine.long]))
            }
            (true, _) => Missed::Unknown,
        };
        Ok((Place { at: layout.data, end, time }, missed))
    }

    /// The byte of the page that is read next.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes on to the next event: where its bytes lie; `None` at the end of the page.
    ///
    /// # Errors
    /// An event ends after the page's content.
    pub fn next(&mut self, page: &[u8], machine: Machine) -> Result<Option<Range<usize>>, String> {
        while self.at + 4 <= self.end {
            let word = |at: usize| {
                let bytes = page.get(at..at + 4).filter(|_| at + 4 <= self.end);
                bytes.map(|bytes| machine.unsigned(bytes)).ok_or("an entry that is cut off")
            };
            let head = word(self.at)?;
            let (kind, delta) =
                if machine.is_big { (head >> 27, head & LENGTH) } else { (head & 0x1f, head >> 5) };
            let after = self.at + 4;
            match kind {
                29 if delta == 0 => {
                    self.at = self.end;
                    return Ok(None);
                }
                29 => {
                    let length = word(after)? as usize;
                    self.time = self.time.wrapping_add(delta);
                    self.at = self.checked(after, length)?;
                }
                30 => {
                    let high = word(after)? << 27;
                    self.time = self.time.wrapping_add(high.wrapping_add(delta));
                    self.at = after + 4;
                }
                31 => {
                    let stamp = (word(after)? << 27).wrapping_add(delta);
                    self.time = absolute(stamp, self.time);
                    self.at = after + 4;
                }
                kind => {
                    let (from, length) = match kind {
                        0 => {
                            let length = word(after)? as usize;
                            (after + 4, length.checked_sub(4).ok_or("an event without a length")?)
                        }
                        words => (after, 4 * words as usize),
                    };
                    self.time = self.time.wrapping_add(delta);
                    let to = self.checked(from, length)?;
                    // The next one begins at a whole word.
                    self.at = to.next_multiple_of(4);
                    return Ok(Some(from..to));
                }
            }
        }
        self.at = self.end;
        Ok(None)
    }

    fn checked(&self, from: usize, length: usize) -> Result<usize, String> {
        let to = from.checked_add(length).filter(|to| *to <= self.end);
        to.ok_or_else(|| format!("an event of {length} bytes that ends after its page's content"))
    }
}

/// An absolute time with the bits that it lacks.
fn absolute(stamp: u64, before: u64) -> u64 {
    let mask = (1u64 << STAMP_BITS) - 1;
    let mut time = stamp & mask | before & !mask;
    // The bits that are there have run over since the last time.
    if before & !mask != 0 && time < before {
        time = time.wrapping_add(mask + 1);
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

    fn machine(is_big: bool) -> Machine {
        Machine { is_big, long: 8 }
    }

    fn put(bytes: &mut Vec<u8>, is_big: bool, value: u64, size: usize) {
        let all = if is_big { value.to_be_bytes() } else { value.to_le_bytes() };
        bytes.extend_from_slice(if is_big { &all[8 - size..] } else { &all[..size] });
    }

    fn page(is_big: bool, time: u64, flags: u64, words: &[u64]) -> Vec<u8> {
        let mut page = Vec::new();
        put(&mut page, is_big, time, 8);
        put(&mut page, is_big, flags | (4 * words.len() as u64), 8);
        words.iter().for_each(|word| put(&mut page, is_big, *word, 4));
        page
    }

    fn head(is_big: bool, kind: u64, delta: u64) -> u64 {
        if is_big { kind << 27 | delta } else { delta << 5 | kind }
    }

    #[test]
    fn times_and_lengths_of_all_kinds_of_entries_are_read_in_both_byte_orders() {
        for is_big in [false, true] {
            let machine = machine(is_big);
            let layout = PageLayout::parse(HEADER_PAGE, machine).unwrap();
            let head = |kind, delta| head(is_big, kind, delta);
            let words = [
                &[head(2, 5), 1, 2][..],
                &[head(30, 3), 2],
                &[head(0, 1), 9, 1, 0x0101_0101],
                &[head(29, 7), 8, 0, 0][..3],
                &[head(31, 9), 1 << 20],
                &[head(1, 0), 3],
                &[head(29, 0), 0],
            ]
            .concat();
            let page = page(is_big, 1000, 0, &words);
            let (mut place, missed) = Place::begin(&page, layout, machine).unwrap();
            assert_eq!(missed, Missed::None);
            let mut events = Vec::new();
            while let Some(range) = place.next(&page, machine).unwrap() {
                events.push((place.time, range.len()));
            }
            let extended = 1005 + (2 << 27) + 3;
            assert_eq!(events, [(1005, 8), (extended + 1, 5), ((1 << 47) + 9, 4)]);
        }
    }

    #[test]
    fn a_page_says_what_was_lost_before_it() {
        let layout = PageLayout::parse(HEADER_PAGE, machine(false)).unwrap();
        let missed = |page: &[u8]| Place::begin(page, layout, machine(false)).unwrap().1;
        let words = [head(false, 1, 0), 7];
        assert_eq!(missed(&page(false, 0, MISSED, &words)), Missed::Unknown);
        let mut counted = page(false, 0, MISSED | MISSED_COUNT, &words);
        assert_eq!(missed(&counted), Missed::Unknown, "there is no room for the number");
        put(&mut counted, false, 12, 8);
        assert_eq!(missed(&counted), Missed::Some(12));
    }

    #[test]
    fn pages_and_events_that_are_longer_than_they_can_be_are_refused() {
        let layout = PageLayout::parse(HEADER_PAGE, machine(false)).unwrap();
        let long = page(false, 0, 4096, &[0]);
        assert!(Place::begin(&long, layout, machine(false)).unwrap_err().contains("4100 bytes"));
        assert!(Place::begin(&[0; 5], layout, machine(false)).is_err());
        for words in
            [[head(false, 5, 0), 1], [head(false, 0, 0), 3], [head(false, 0, 0), u32::MAX.into()]]
        {
            let page = page(false, 0, 0, &words);
            let (mut place, _) = Place::begin(&page, layout, machine(false)).unwrap();
            assert!(place.next(&page, machine(false)).is_err(), "{words:x?}");
        }
        assert!(
            PageLayout::parse("field: u64 timestamp; offset:0; size:8;", machine(false)).is_err()
        );
    }

    #[test]
    fn absolute_times_take_the_bits_that_they_lack_from_the_time_before() {
        assert_eq!(absolute(5, 3), 5);
        let high = 3u64 << 59;
        assert_eq!(absolute(5, high | 3), high | 5);
        assert_eq!(absolute(5, high | 9), (4 << 59) | 5);
    }
}
