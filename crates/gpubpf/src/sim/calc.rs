//! One lane's result of a computation.

use std::cmp::Ordering;

use super::code::{self, Space};
use super::floats;
use super::integers::{self, number};
use super::ops::{Calc, Fun};
use super::soft::{Real, Round};
use super::types::{Kind, Ty, mask};

/// Computes; of comparisons bit 0 is the result and bit 1 its complement, both joined.
pub(crate) fn compute(calc: &Calc, v: [u64; 4]) -> Result<u64, &'static str> {
    Ok(match calc.fun {
        Fun::Mov => v[0],
        Fun::Selp => {
            if v[2] & 1 == 1 {
                v[0]
            } else {
                v[1]
            }
        }
        Fun::Slct => {
            let positive = match calc.from.float() {
                Some(format) => {
                    let zero_or_more = floats::order(format, v[2], 0, calc.ftz);
                    zero_or_more.is_some_and(Ordering::is_ge)
                }
                None => number(v[2], calc.from) >= 0,
            };
            if positive { v[0] } else { v[1] }
        }
        Fun::Setp => setp(calc, v),
        Fun::Set => set(calc, v),
        Fun::Testp(what) => match calc.from.float() {
            Some(format) => u64::from(floats::test(what, format, v[0])),
            None => 0,
        },
        Fun::Cvt => convert(calc, v[0]),
        Fun::CvtPack => {
            let half = Calc { fun: Fun::Cvt, ty: Ty { packed: false, ..calc.ty }, ..calc.clone() };
            let bits = calc.ty.bits;
            let low = mask(convert(&half, v[1]), bits);
            mask(convert(&half, v[0]), bits) << bits | low
        }
        Fun::IsSpace(space) => u64::from(code::space_of(v[0]) == space),
        Fun::Cvta(space, to_space) => cvta(space, to_space, v[0])?,
        _ => match calc.ty.float() {
            Some(format) => floats::compute(calc, format, v),
            None => integers::compute(calc, v)?,
        },
    })
}

fn cvta(space: Space, to_space: bool, address: u64) -> Result<u64, &'static str> {
    if !to_space {
        return Ok(code::generic(space, address));
    }
    if code::space_of(address) != space {
        return Err("an address that is not of the space that it is converted to");
    }
    Ok(address.wrapping_sub(code::generic(space, 0)))
}

fn ordering(calc: &Calc, a: u64, b: u64) -> Option<Ordering> {
    match calc.from.float() {
        Some(format) => floats::order(format, a, b, calc.ftz),
        None => Some(number(a, calc.from).cmp(&number(b, calc.from))),
    }
}

fn setp(calc: &Calc, v: [u64; 4]) -> u64 {
    let with = v[2] & 1 == 1;
    let join = |holds| u64::from(floats::joined(calc.join, holds, with));
    if calc.from.packed {
        // The halves have a predicate each.
        let half = |at: u32| {
            let (a, b) = (v[0] >> at & 0xffff, v[1] >> at & 0xffff);
            floats::holds(calc, ordering(calc, a, b))
        };
        return join(half(0)) | join(half(16)) << 1;
    }
    let holds = floats::holds(calc, ordering(calc, v[0], v[1]));
    join(holds) | join(!holds) << 1
}

fn set(calc: &Calc, v: [u64; 4]) -> u64 {
    let with = v[2] & 1 == 1;
    let element = Ty { packed: false, ..calc.ty };
    let (yes, one) = match element.float() {
        Some(format) => (format.pack(Real::integer(false, 1), Round::Nearest, false), element.bits),
        None => (mask(u64::MAX, element.bits), element.bits),
    };
    let half = |at: u32, bits: u32| {
        let order = ordering(calc, mask(v[0] >> at, bits), mask(v[1] >> at, bits));
        let holds = floats::joined(calc.join, floats::holds(calc, order), with);
        if holds { yes } else { 0 }
    };
    if calc.from.packed && calc.ty.width() == 32 {
        let (yes_low, yes_high) = (half(0, 16), half(16, 16));
        let cut = if calc.ty.packed { one } else { 16 };
        return mask(yes_low, cut) | mask(yes_high, cut) << 16;
    }
    half(0, calc.from.bits)
}

fn convert(calc: &Calc, value: u64) -> u64 {
    let (to, from) = (calc.ty, calc.from);
    if to.packed
        && from.packed
        && let (Some(to_format), Some(from_format)) = (to.float(), from.float())
    {
        let part = |at: u32| {
            let real = from_format.unpack(mask(value >> (at * from.bits), from.bits));
            mask(to_format.pack(real, calc.round, calc.finite), to.bits)
        };
        return part(0) | part(1) << to.bits;
    }
    let value = mask(value, from.bits);
    match (from.float(), to.float()) {
        (None, None) => {
            let value = number(value, from);
            if calc.sat { integers::clamp(value, to) } else { value as u64 }
        }
        (None, Some(format)) => {
            let value = number(value, from);
            let real = Real::integer(value < 0, value.unsigned_abs());
            floats::compute(&plain(calc), format, [format.pack(real, calc.round, false), 0, 0, 0])
        }
        (Some(format), None) => {
            let value = if calc.ftz { format.flush(value) } else { value };
            match format.unpack(value).whole(calc.round) {
                Real::Nan => 0,
                Real::Infinite(true) => integers::clamp(i128::MIN, to),
                Real::Infinite(false) => integers::clamp(i128::MAX, to),
                Real::Number { negative, man, exp } => {
                    let large = exp > 0 && man != 0 && exp + 128 - man.leading_zeros() as i32 > 100;
                    let size = if large { i128::MAX } else { (man << exp.max(0)) as i128 };
                    integers::clamp(if negative { -size } else { size }, to)
                }
            }
        }
        (Some(from), Some(format)) => {
            let value = if calc.ftz { from.flush(value) } else { value };
            let mut real = from.unpack(value);
            if calc.whole {
                real = real.whole(calc.round);
            }
            let packed = format.pack(real, calc.round, calc.finite);
            floats::compute(&plain(calc), format, [packed, 0, 0, 0])
        }
    }
}

/// What is left to do once a value has its format: flushing, saturation.
fn plain(calc: &Calc) -> Calc {
    let ty = Ty { packed: false, ..calc.ty };
    Calc { fun: Fun::Identity, ty, ..calc.clone() }
}

/// Whether `ty` is one of numbers that are compared with their sign.
pub(crate) fn ordered(ty: Ty, a: u64, b: u64) -> Ordering {
    match ty.kind {
        Kind::Float(format) => floats::order(format, a, b, false).unwrap_or(Ordering::Equal),
        _ => number(a, ty).cmp(&number(b, ty)),
    }
}
