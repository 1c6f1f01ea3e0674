//! Where the fields of a record lie, and how each type of field is stored there.

use super::{BadRecord, NameId};
use crate::layout::RECORD_WORDS;

/// The fields as they lie in the bytes, unchecked.
#[derive(Clone, Copy, Default)]
pub struct Fields {
    /// The kind of record.
    pub kind: u8,
    /// Which of the places that have a flag hold a value.
    pub flags: u8,
    device: u16,
    name: u32,
    extra: u32,
    /// CLOCK_MONOTONIC, ns.
    pub start: u64,
    /// ns.
    pub dur: u64,
    a: u64,
    b: u64,
}

impl Fields {
    /// The words of a record, without a checksum.
    #[inline]
    pub fn words(&self, pid: u32, tid: u32) -> [u64; RECORD_WORDS] {
        let (kind, flags, device) = (self.kind as u64, self.flags as u64, self.device as u64);
        [
            kind << 32 | flags << 40 | device << 48,
            self.name as u64 | (self.extra as u64) << 32,
            pid as u64 | (tid as u64) << 32,
            self.start,
            self.dur,
            self.a,
            self.b,
        ]
    }

    /// Reads the words, but for pid and tid.
    pub fn of(words: &[u64; RECORD_WORDS]) -> Fields {
        Fields {
            kind: (words[0] >> 32) as u8,
            flags: (words[0] >> 40) as u8,
            device: (words[0] >> 48) as u16,
            name: words[1] as u32,
            extra: (words[1] >> 32) as u32,
            start: words[3],
            dur: words[4],
            a: words[5],
            b: words[6],
        }
    }
}

/// A place in a record.
pub trait Place {
    /// What it holds.
    type Raw: Default;
    /// The flag that says whether it holds something; 0 for places that always do.
    const FLAG: u8;
    /// Writes it, but for the flag.
    fn set(fields: &mut Fields, raw: Self::Raw);
    /// Reads it, whatever the flag.
    fn get(fields: &Fields) -> Self::Raw;
    /// Any number, cut to one that is valid here.
    #[cfg(any(test, feature = "std"))]
    fn cut(any: u64) -> u64 {
        any
    }
}

/// The places; see the table in [`super`].
pub mod places {
    use super::{Fields, Place};

    macro_rules! places {
        ($($(#[$doc:meta])* $place:ident: $raw:ty = $field:ident, $flag:literal $(, $cut:literal)?;)*) => {$(
            $(#[$doc])*
            pub enum $place {}

            impl Place for $place {
                type Raw = $raw;
                const FLAG: u8 = $flag;

                #[inline]
                fn set(fields: &mut Fields, raw: $raw) {
                    fields.$field = raw;
                }

                #[inline]
                fn get(fields: &Fields) -> $raw {
                    fields.$field
                }

                $(
                    #[cfg(any(test, feature = "std"))]
                    fn cut(any: u64) -> u64 {
                        any >> $cut
                    }
                )?
            }
        )*};
    }

    places! {
        Device: u16 = device, 8;
        Name: u32 = name, 0;
        Extra: u32 = extra, 4;
        // The end must fit 63 bits.
        Start: u64 = start, 0, 2;
        Dur: u64 = dur, 0, 2;
        A: u64 = a, 1;
        B: u64 = b, 2;
    }

    macro_rules! halves {
        ($($(#[$doc:meta])* $place:ident = $shift:literal of $field:ident, $flag:literal;)*) => {$(
            $(#[$doc])*
            pub enum $place {}

            impl Place for $place {
                type Raw = u32;
                const FLAG: u8 = $flag;

                #[inline]
                fn set(fields: &mut Fields, raw: u32) {
                    let others = fields.$field & !(0xffff_ffff << $shift);
                    fields.$field = others | u64::from(raw) << $shift;
                }

                #[inline]
                fn get(fields: &Fields) -> u32 {
                    (fields.$field >> $shift) as u32
                }
            }
        )*};
    }

    halves! {
        /// The lower half of `A`. Halves have no flags of their own: a kind has both or neither.
        A0 = 0 of a, 1;
        /// The upper half of `A`.
        A1 = 32 of a, 1;
        /// The lower half of `B`.
        B0 = 0 of b, 2;
        /// The upper half of `B`.
        B1 = 32 of b, 2;
    }

    /// A flag that is a value itself.
    pub enum OnGpu {}

    impl Place for OnGpu {
        type Raw = ();
        const FLAG: u8 = 16;

        fn set(_: &mut Fields, (): ()) {}

        fn get(_: &Fields) {}
    }
}

/// A type of field that can be stored in a place of `Raw`.
pub trait Value<Raw>: Sized {
    /// Whether the place may be empty.
    const OPTIONAL: bool;
    /// What is stored; `None` leaves the place empty.
    fn store(self) -> Option<Raw>;
    /// Reads it; `None` from an empty place.
    fn load(raw: Option<Raw>) -> Result<Self, BadRecord>;
    /// A valid value made of any number.
    #[cfg(any(test, feature = "std"))]
    fn example(any: u64) -> Self;
}

/// Types that always fill their place: type, place, and how each becomes the other.
macro_rules! values {
    ($($type:ty: $raw:ty, $store:expr, $load:expr, $example:expr;)*) => {$(
        impl Value<$raw> for $type {
            const OPTIONAL: bool = false;

            #[inline]
            fn store(self) -> Option<$raw> {
                let store: fn($type) -> $raw = $store;
                Some(store(self))
            }

            #[inline]
            fn load(raw: Option<$raw>) -> Result<$type, BadRecord> {
                let load: fn($raw) -> Result<$type, BadRecord> = $load;
                load(raw.unwrap_or_default())
            }

            #[cfg(any(test, feature = "std"))]
            fn example(any: u64) -> $type {
                let example: fn(u64) -> $type = $example;
                example(any)
            }
        }
    )*};
}

values! {
    u16: u16, |v| v, Ok, |any| any as u16;
    u32: u32, |v| v, Ok, |any| any as u32;
    NameId: u32, |v| v.0, |raw| Ok(NameId(raw)), |any| NameId(any as u32);
    u64: u64, |v| v, Ok, |any| any;
    i64: u64, |v| v as u64, |raw| Ok(raw as i64), |any| any as i64;
    f64: u64, f64::to_bits, finite, |any| finite(any).unwrap_or(any as f64);
    u32: u64, u64::from, small, |any| any as u32;
    NameId: u64, |v| v.0.into(), |raw| small(raw).map(NameId), |any| NameId(any as u32);
}

fn finite(raw: u64) -> Result<f64, BadRecord> {
    let value = f64::from_bits(raw);
    if value.is_finite() { Ok(value) } else { Err(BadRecord::Value) }
}

fn small(raw: u64) -> Result<u32, BadRecord> {
    u32::try_from(raw).map_err(|_| BadRecord::Number(raw))
}

impl<Raw, T: Value<Raw>> Value<Raw> for Option<T> {
    const OPTIONAL: bool = true;

    #[inline]
    fn store(self) -> Option<Raw> {
        self.and_then(T::store)
    }

    #[inline]
    fn load(raw: Option<Raw>) -> Result<Option<T>, BadRecord> {
        raw.map(|raw| T::load(Some(raw))).transpose()
    }

    #[cfg(any(test, feature = "std"))]
    fn example(any: u64) -> Option<T> {
        any.is_multiple_of(2).then(|| T::example(any))
    }
}

impl Value<()> for bool {
    const OPTIONAL: bool = true;

    #[inline]
    fn store(self) -> Option<()> {
        self.then_some(())
    }

    #[inline]
    fn load(raw: Option<()>) -> Result<bool, BadRecord> {
        Ok(raw.is_some())
    }

    #[cfg(any(test, feature = "std"))]
    fn example(any: u64) -> bool {
        any.is_multiple_of(2)
    }
}

/// Stores a value in its place.
#[inline]
pub fn put<P: Place, V: Value<P::Raw>>(fields: &mut Fields, value: V) {
    if let Some(raw) = value.store() {
        P::set(fields, raw);
        fields.flags |= P::FLAG;
    }
}

/// Reads a value from its place.
#[inline]
pub fn get<P: Place, V: Value<P::Raw>>(fields: &Fields) -> Result<V, BadRecord> {
    let is_there = fields.flags & P::FLAG == P::FLAG;
    V::load(is_there.then(|| P::get(fields)))
}

/// A valid value for this place made of any number.
#[cfg(any(test, feature = "std"))]
pub fn example<P: Place, V: Value<P::Raw>>(any: u64) -> V {
    V::example(P::cut(any))
}

/// The flags of a kind of record: those that it must have, and those that it may have.
#[derive(Clone, Copy)]
pub struct Flags {
    must: u8,
    may: u8,
}

impl Flags {
    /// None at all.
    pub const NONE: Flags = Flags { must: 0, may: 0 };

    /// Both.
    pub const fn and(self, other: Flags) -> Flags {
        Flags { must: self.must | other.must, may: self.may | other.may }
    }

    /// Whether a record may have these.
    pub fn allow(self, flags: u8) -> bool {
        flags & self.must == self.must && flags & !(self.must | self.may) == 0
    }
}

/// The flags of a record with a field of this type at this place.
pub const fn flags<P: Place, V: Value<P::Raw>>() -> Flags {
    if V::OPTIONAL { Flags { must: 0, may: P::FLAG } } else { Flags { must: P::FLAG, may: 0 } }
}
