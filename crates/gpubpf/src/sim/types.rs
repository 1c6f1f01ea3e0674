//! The types that opcodes name.

use super::soft::Format;

/// How the bits of a value are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pred,
    Bits,
    Unsigned,
    Signed,
    Float(Format),
}

/// A type: one value, or two of 16 (or 8) bits side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ty {
    pub(crate) kind: Kind,
    /// Bits of one element.
    pub(crate) bits: u32,
    pub(crate) packed: bool,
}

pub(crate) const B32: Ty = Ty { kind: Kind::Bits, bits: 32, packed: false };
pub(crate) const B64: Ty = Ty { kind: Kind::Bits, bits: 64, packed: false };
pub(crate) const U32: Ty = Ty { kind: Kind::Unsigned, bits: 32, packed: false };
pub(crate) const S32: Ty = Ty { kind: Kind::Signed, bits: 32, packed: false };
pub(crate) const PRED: Ty = Ty { kind: Kind::Pred, bits: 1, packed: false };

impl Ty {
    /// The type that a part of an opcode (`s32`, `f16x2`) names.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        let of = |kind, bits, packed| Some(Self { kind, bits, packed });
        let float = |format, packed| of(Kind::Float(format), Format::bits(format), packed);
        match word {
            "pred" => return Some(PRED),
            "f16" => return float(Format::F16, false),
            "f16x2" => return float(Format::F16, true),
            "bf16" => return float(Format::Bf16, false),
            "bf16x2" => return float(Format::Bf16, true),
            "tf32" => return float(Format::Tf32, false),
            "f32" => return float(Format::F32, false),
            "f64" => return float(Format::F64, false),
            "e4m3" => return float(Format::E4m3, false),
            "e4m3x2" => return float(Format::E4m3, true),
            "e5m2" => return float(Format::E5m2, false),
            "e5m2x2" => return float(Format::E5m2, true),
            "u16x2" => return of(Kind::Unsigned, 16, true),
            "s16x2" => return of(Kind::Signed, 16, true),
            _ => {}
        }
        let kind = match word.as_bytes().first()? {
            b'b' => Kind::Bits,
            b'u' => Kind::Unsigned,
            b's' => Kind::Signed,
            _ => return None,
        };
        match &word[1..] {
            "8" => of(kind, 8, false),
            "16" => of(kind, 16, false),
            "32" => of(kind, 32, false),
            "64" => of(kind, 64, false),
            "128" => of(kind, 128, false),
            _ => None,
        }
    }

    pub(crate) fn float(self) -> Option<Format> {
        match self.kind {
            Kind::Float(format) => Some(format),
            _ => None,
        }
    }

    pub(crate) fn signed(self) -> bool {
        self.kind == Kind::Signed
    }

    /// Bits of the whole value.
    pub(crate) fn width(self) -> u32 {
        if self.packed { self.bits * 2 } else { self.bits }
    }

    pub(crate) fn bytes(self) -> u32 {
        self.width().div_ceil(8)
    }
}

/// The lower `bits` of `value`.
pub(crate) fn mask(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// `value` of `bits` bits with its sign extended.
pub(crate) fn extend(value: u64, bits: u32) -> i64 {
    if bits == 0 || bits >= 64 {
        return value as i64;
    }
    ((value << (64 - bits)) as i64) >> (64 - bits)
}
