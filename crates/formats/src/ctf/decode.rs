//! From bits to values: fields of any size at any bit, in both byte orders (CTF 1.8.3, section 4).
//!
//! # How
//! A packet is decoded from a window of its bytes. A field that lies beyond the window stops the decoder with
//! [`Stop::More`]; whoever holds the file moves the window and decodes again. What comes out goes to a [`Sink`],
//! which makes of it what it needs.
//!
//! # What fools it
//! A length may be any number: arrays end with the packet, and elements that take no bits are counted against
//! [`ELEMENTS`], so that a few bytes cannot ask for hours.

use gpuwhy_schema::Name;

use super::ast::{Ranges, Role};
use super::build::{Class, Field, Int, Len, NO_SLOT};

/// Values that one event may consist of.
const ELEMENTS: u64 = 1 << 22;
/// Bytes of one text or blob.
const TEXT: u64 = 1 << 26;

/// Why decoding stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The window ends before the field does.
    More,
    /// The content of the packet ends before the field does.
    End,
    /// A value that cannot be.
    Bad(String),
}

/// Takes what was decoded.
pub(super) trait Sink {
    /// The next value is a member of this name.
    fn field(&mut self, name: &Name);
    /// The next value is this element of an array.
    fn element(&mut self, index: u64);
    /// A structure or, with the number of its elements, an array begins.
    fn begin(&mut self, elements: Option<u64>);
    /// It ends.
    fn end(&mut self, is_array: bool);
    /// A variant: the next value is this choice.
    fn choice(&mut self, name: &Name);
    /// The choice has ended.
    fn end_choice(&mut self);
    /// An integer as its 64 bits, a negative one with its sign.
    fn integer(&mut self, bits: u64, class: &Int);
    /// A floating-point number; `is_double` if it has 64 bits.
    fn float(&mut self, value: f64, is_double: bool);
    /// A text without what follows its first zero byte.
    fn text(&mut self, text: &[u8]);
    /// Bytes.
    fn blob(&mut self, bytes: &[u8]);
    /// An optional field that is not there.
    fn absent(&mut self);
}

/// Takes nothing.
pub(super) struct Nothing;

impl Sink for Nothing {
    fn field(&mut self, _: &Name) {}
    fn element(&mut self, _: u64) {}
    fn begin(&mut self, _: Option<u64>) {}
    fn end(&mut self, _: bool) {}
    fn choice(&mut self, _: &Name) {}
    fn end_choice(&mut self) {}
    fn integer(&mut self, _: u64, _: &Int) {}
    fn float(&mut self, _: f64, _: bool) {}
    fn text(&mut self, _: &[u8]) {}
    fn blob(&mut self, _: &[u8]) {}
    fn absent(&mut self) {}
}

/// A window of a packet, and where in the packet the decoder is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits<'a> {
    /// The bytes of the window.
    pub window: &'a [u8],
    /// Which byte of the packet its first one is.
    pub from: u64,
    /// The bit of the packet that is decoded next.
    pub at: u64,
    /// The bit at which the packet's content ends.
    pub end: u64,
}

impl<'a> Bits<'a> {
    /// Goes on to the next multiple of `align` bits, which metadata let be powers of two only.
    #[inline]
    fn align(&mut self, align: u32) {
        debug_assert!(align.is_power_of_two(), "{align}");
        let below = u64::from(align) - 1;
        self.at = (self.at + below) & !below;
    }

    /// The next bytes, which begin at a whole byte.
    fn bytes(&mut self, count: u64) -> Result<&'a [u8], Stop> {
        let bits = count.checked_mul(8).ok_or(Stop::End)?;
        let end = self.at.checked_add(bits).filter(|end| *end <= self.end).ok_or(Stop::End)?;
        let start = (self.at / 8 - self.from) as usize;
        let bytes = self.window.get(start..start + count as usize).ok_or(Stop::More)?;
        self.at = end;
        Ok(bytes)
    }

    /// An unsigned integer of 1 to 64 bits.
    #[inline]
    fn unsigned(&mut self, size: u32, is_big: bool) -> Result<u64, Stop> {
        let end = self.at + u64::from(size);
        if end > self.end {
            return Err(Stop::End);
        }
        let start = (self.at / 8 - self.from) as usize;
        let shift = (self.at % 8) as u32;
        // Most lie within the next eight bytes, which are read at once.
        if shift + size <= 64
            && let Some(word) = self.window.get(start..).and_then(<[u8]>::first_chunk)
        {
            self.at = end;
            return Ok(if is_big {
                u64::from_be_bytes(*word) << shift >> (64 - size)
            } else {
                u64::from_le_bytes(*word) >> shift & u64::MAX >> (64 - size)
            });
        }
        self.late(size, is_big)
    }

    /// The same of one that lies in nine bytes or near the end of the window.
    #[cold]
    fn late(&mut self, size: u32, is_big: bool) -> Result<u64, Stop> {
        let end = self.at + u64::from(size);
        let start = (self.at / 8 - self.from) as usize;
        let shift = (self.at % 8) as u32;
        let count = (shift + size).div_ceil(8) as usize;
        let bytes = self.window.get(start..start + count).ok_or(Stop::More)?;
        self.at = end;
        let mask = u64::MAX >> (64 - size);
        if count > 8 {
            let mut wide = [0; 16];
            wide[..count].copy_from_slice(bytes);
            let value = if is_big {
                u128::from_be_bytes(wide) << shift >> (128 - size)
            } else {
                u128::from_le_bytes(wide) >> shift
            };
            return Ok(value as u64 & mask);
        }
        let mut word = [0; 8];
        word[..count].copy_from_slice(bytes);
        let value = if is_big {
            u64::from_be_bytes(word) << shift >> (64 - size)
        } else {
            u64::from_le_bytes(word) >> shift
        };
        Ok(value & mask)
    }

    /// An integer of any length: seven bits a byte, the least significant first (LEB128).
    fn variable(&mut self, signed: bool) -> Result<u64, Stop> {
        self.align(8);
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.bytes(1)?[0];
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has one bit left; the others of a negative number repeat its sign.
            let fits = match shift {
                0..=56 => true,
                63 if signed => bits == 0 || bits == 0x7f,
                63 => bits <= 1,
                _ => false,
            };
            if !fits {
                return Err(Stop::Bad("an integer of more than 64 bits".into()));
            }
            value |= bits << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                if signed && shift < 64 && byte & 0x40 != 0 {
                    value |= u64::MAX << shift;
                }
                return Ok(value);
            }
        }
    }

    /// A text up to its zero byte.
    fn terminated(&mut self) -> Result<&'a [u8], Stop> {
        self.align(8);
        if self.at >= self.end {
            return Err(Stop::End);
        }
        let start = (self.at / 8 - self.from) as usize;
        let rest = self.window.get(start..).ok_or(Stop::More)?;
        let most = ((self.end - self.at) / 8) as usize;
        let within = &rest[..rest.len().min(most)];
        match memchr::memchr(0, within) {
            Some(length) => {
                self.at += 8 * (length as u64 + 1);
                Ok(&within[..length])
            }
            None if rest.len() >= most => Err(Stop::End),
            None => Err(Stop::More),
        }
    }
}

/// What fields said that have roles: of a packet, and of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub magic: Option<u64>,
    pub uuid: Option<[u8; 16]>,
    pub stream: Option<u64>,
    pub instance: Option<u64>,
    pub packet_size: Option<u64>,
    pub content_size: Option<u64>,
    pub begin: Option<u64>,
    pub end: Option<u64>,
    /// With the number of bits that it is counted in.
    pub discarded: Option<(u64, u32)>,
    pub sequence: Option<(u64, u32)>,
    pub cpu: Option<u64>,
    pub event: Option<u64>,
}

/// What the decoder remembers from field to field.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Values that others refer to.
    slots: Vec<i128>,
    /// The clock of the stream, in cycles.
    pub clock: u64,
    pub found: Found,
    elements: u64,
}

impl State {
    /// With so many slots.
    pub fn new(slots: usize) -> State {
        State { slots: vec![0; slots], ..State::default() }
    }

    /// Another packet or event begins.
    pub fn begin(&mut self) {
        self.elements = 0;
    }

    /// Decodes a field.
    pub fn decode(
        &mut self,
        class: &Class,
        bits: &mut Bits<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        self.elements += 1;
        if self.elements > ELEMENTS {
            return Err(Stop::Bad(format!("an event of more than {ELEMENTS} values")));
        }
        match class {
            Class::Int(int) => self.integer(int, bits, sink)?,
            Class::Float { is_double, align, is_big } => {
                bits.align(*align);
                let value = match is_double {
                    true => f64::from_bits(bits.unsigned(64, *is_big)?),
                    false => f64::from(f32::from_bits(bits.unsigned(32, *is_big)? as u32)),
                };
                sink.float(value, *is_double);
            }
            Class::Text(Len::Terminated) => sink.text(bits.terminated()?),
            Class::Text(len) => {
                let bytes = self.bytes(*len, bits)?;
                let length = memchr::memchr(0, bytes).unwrap_or(bytes.len());
                sink.text(&bytes[..length]);
            }
            Class::Blob(len, role) => {
                let bytes = self.bytes(*len, bits)?;
                if *role == Some(Role::Uuid) {
                    self.found.uuid = bytes.try_into().ok();
                }
                sink.blob(bytes);
            }
            Class::Struct { fields, align } => {
                bits.align(*align);
                sink.begin(None);
                self.members(fields, bits, sink)?;
                sink.end(false);
            }
            Class::Array { element, len, align } => {
                let count = self.length(*len)?;
                bits.align(*align);
                sink.begin(Some(count));
                for index in 0..count {
                    sink.element(index);
                    self.decode(element, bits, sink)?;
                }
                sink.end(true);
            }
            Class::Variant { slot, choices } => {
                let value = self.slot(*slot);
                let chosen = choices.iter().find(|(_, ranges, _)| holds(ranges, value));
                let Some((name, _, class)) = chosen else {
                    return Err(Stop::Bad(format!("{value} selects no choice of a variant")));
                };
                sink.choice(name);
                self.decode(class, bits, sink)?;
                sink.end_choice();
            }
            Class::Optional { slot, ranges, class } => {
                if holds(ranges, self.slot(*slot)) {
                    self.decode(class, bits, sink)?;
                } else {
                    sink.absent();
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn members(
        &mut self,
        fields: &[Field],
        bits: &mut Bits<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        for field in fields {
            sink.field(&field.name);
            match &field.class {
                // Most members are integers, which need no call of `decode` for each.
                Class::Int(int) if self.elements < ELEMENTS => {
                    self.elements += 1;
                    self.integer(int, bits, sink)?;
                }
                class => self.decode(class, bits, sink)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn integer(
        &mut self,
        int: &Int,
        bits: &mut Bits<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Stop> {
        let value = if int.is_variable {
            bits.variable(int.signed)?
        } else {
            bits.align(int.align);
            let value = bits.unsigned(int.size, int.is_big)?;
            let unused = 64 - int.size;
            if int.signed { ((value << unused) as i64 >> unused) as u64 } else { value }
        };
        if int.slot != NO_SLOT
            && let Some(slot) = self.slots.get_mut(int.slot as usize)
        {
            *slot = if int.signed { i128::from(value as i64) } else { i128::from(value) };
        }
        if int.is_special {
            self.special(int, value);
        }
        sink.integer(value, int);
        Ok(())
    }

    fn special(&mut self, int: &Int, value: u64) {
        if int.is_time {
            self.move_clock(int, value);
        }
        let found = &mut self.found;
        // As many bits as an integer of any length may have.
        let size = if int.is_variable { 64 } else { int.size };
        match int.role {
            None | Some(Role::Timestamp | Role::Uuid) => {}
            Some(Role::Magic) => found.magic = Some(value),
            Some(Role::StreamClass) => found.stream = Some(value),
            Some(Role::StreamInstance) => found.instance = Some(value),
            Some(Role::PacketSize) => found.packet_size = Some(value),
            Some(Role::ContentSize) => found.content_size = Some(value),
            Some(Role::Begin) => found.begin = Some(value),
            Some(Role::End) => found.end = Some(value),
            Some(Role::Discarded) => found.discarded = Some((value, size)),
            Some(Role::Sequence) => found.sequence = Some((value, size)),
            Some(Role::Cpu) => found.cpu = Some(value),
            Some(Role::EventClass) => found.event = Some(value),
        }
    }

    /// A clock that is written with fewer than 64 bits has run over where it would go back.
    fn move_clock(&mut self, int: &Int, value: u64) {
        if int.is_variable || int.size == 64 {
            self.clock = value;
            return;
        }
        let mask = (1u64 << int.size) - 1;
        let mut clock = self.clock & !mask | value;
        if value < self.clock & mask {
            clock = clock.wrapping_add(mask + 1);
        }
        self.clock = clock;
    }

    fn slot(&self, slot: u32) -> i128 {
        self.slots.get(slot as usize).copied().unwrap_or(0)
    }

    fn length(&self, len: Len) -> Result<u64, Stop> {
        match len {
            Len::Fixed(n) => Ok(n),
            Len::Slot(slot) => {
                let value = self.slot(slot);
                u64::try_from(value).map_err(|_| Stop::Bad(format!("a length of {value}")))
            }
            Len::Terminated => Ok(0),
        }
    }

    fn bytes<'a>(&self, len: Len, bits: &mut Bits<'a>) -> Result<&'a [u8], Stop> {
        let count = self.length(len)?;
        bits.align(8);
        if count > TEXT && count <= bits.end.saturating_sub(bits.at) / 8 {
            return Err(Stop::Bad(format!("{count} bytes in one field; up to {TEXT} are read")));
        }
        bits.bytes(count)
    }
}

fn holds(ranges: &Ranges, value: i128) -> bool {
    ranges.iter().any(|(from, to)| (*from..=*to).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(window: &[u8]) -> Bits<'_> {
        Bits { window, from: 0, at: 0, end: 8 * window.len() as u64 }
    }

    #[test]
    fn integers_of_any_size_lie_at_any_bit_in_both_byte_orders() {
        // Written bit by bit, the first bit being the lowest of a byte or the highest.
        let values: [(u32, u64); 9] = [
            (3, 5),
            (12, 0xabc),
            (64, 0x0123_4567_89ab_cdef),
            (1, 1),
            (35, 0x6_dead_beef),
            (17, 0x1_2345),
            (64, u64::MAX - 1),
            (63, 1 << 62),
            (5, 31),
        ];
        for is_big in [false, true] {
            let mut bytes = vec![0u8; 40];
            let mut at = 0;
            for (size, value) in values {
                for i in 0..size {
                    let bit = if is_big { value >> (size - 1 - i) } else { value >> i } as u8 & 1;
                    bytes[at / 8] |= if is_big { bit << (7 - at % 8) } else { bit << (at % 8) };
                    at += 1;
                }
            }
            let mut bits = bits(&bytes);
            for (size, value) in values {
                assert_eq!(bits.unsigned(size, is_big), Ok(value), "{size} bits, big {is_big}");
            }
        }
    }

    #[test]
    fn integers_of_any_length_end_with_a_byte_below_128() {
        let read = |bytes: &[u8], signed| bits(bytes).variable(signed);
        assert_eq!(read(&[0x7f], false), Ok(127));
        assert_eq!(read(&[0xe5, 0x8e, 0x26], false), Ok(624_485));
        assert_eq!(read(&[0x7f], true), Ok(u64::MAX));
        assert_eq!(read(&[0xc0, 0xbb, 0x78], true), Ok(-123_456i64 as u64));
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read(&most, false), Ok(u64::MAX));
        let least = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f];
        assert_eq!(read(&least, true), Ok(i64::MIN as u64));
        assert!(matches!(read(&[0xff; 11], false), Err(Stop::Bad(_))));
        assert_eq!(read(&[0x80], false), Err(Stop::End));
    }

    #[test]
    fn what_lies_beyond_the_window_is_asked_for_and_beyond_the_packet_is_not() {
        let mut narrow = Bits { window: &[1, 2, 3], from: 10, at: 88, end: 400 };
        assert_eq!(narrow.unsigned(16, false), Ok(0x0302));
        assert_eq!(narrow.unsigned(8, false), Err(Stop::More));
        assert_eq!(narrow.terminated(), Err(Stop::More));
        narrow.end = 104;
        assert_eq!(narrow.unsigned(8, false), Err(Stop::End));
        assert_eq!(narrow.terminated(), Err(Stop::End));
        assert_eq!(narrow.bytes(u64::MAX), Err(Stop::End));
    }

    #[test]
    fn a_text_may_be_large_and_no_larger() {
        let state = State::default();
        let mut bits = Bits { window: &[0; 8], from: 0, at: 0, end: 16 * TEXT };
        assert_eq!(state.bytes(Len::Fixed(TEXT), &mut bits), Err(Stop::More));
        let too_large = state.bytes(Len::Fixed(TEXT + 1), &mut bits);
        assert!(
            matches!(&too_large, Err(Stop::Bad(says)) if says.contains("67108865 bytes")),
            "{too_large:?}"
        );
        // One that the packet does not hold is cut off, however large it says it is.
        assert_eq!(state.bytes(Len::Fixed(4 * TEXT), &mut bits), Err(Stop::End));
    }

    #[test]
    fn a_clock_of_few_bits_runs_over_and_never_goes_back() {
        let int = |size| Int {
            size,
            align: 1,
            signed: false,
            base: 10,
            is_big: false,
            is_variable: false,
            slot: NO_SLOT,
            is_special: true,
            role: Some(Role::Timestamp),
            is_time: true,
            names: None,
        };
        let mut state = State { clock: 0x1_0000_00f0, ..State::default() };
        for (size, value, clock) in [
            (8, 0xf8, 0x1_0000_00f8),
            (8, 0x02, 0x1_0000_0102),
            (8, 0x02, 0x1_0000_0102),
            (27, 0, 0x1_0800_0000),
            (64, 5, 5),
        ] {
            state.special(&int(size), value);
            assert_eq!(state.clock, clock, "{size} bits, {value}");
        }
    }
}
