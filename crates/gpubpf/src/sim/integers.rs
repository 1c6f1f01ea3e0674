//! Integers and bits.

use super::ops::{Calc, Fun, Half, Permute};
use super::types::{Ty, extend, mask};

/// Why PTX does not say what the result is.
pub(crate) const BY_ZERO: &str = "a division by zero, whose result PTX leaves open";
pub(crate) const OVERFLOW: &str =
    "the most negative number divided by -1, whose result PTX leaves open";

/// `value` as the number that `ty` says.
pub(crate) fn number(value: u64, ty: Ty) -> i128 {
    if ty.signed() { i128::from(extend(value, ty.bits)) } else { i128::from(mask(value, ty.bits)) }
}

/// `value` cut to the numbers that `ty` has.
pub(crate) fn clamp(value: i128, ty: Ty) -> u64 {
    let (low, high) = range(ty);
    mask(value.clamp(low, high) as u64, ty.bits)
}

fn range(ty: Ty) -> (i128, i128) {
    if ty.signed() {
        (-(1_i128 << (ty.bits - 1)), (1_i128 << (ty.bits - 1)) - 1)
    } else {
        (0, (1_i128 << ty.bits) - 1)
    }
}

/// One integer instruction. Packed values are done half by half.
pub(crate) fn compute(calc: &Calc, v: [u64; 4]) -> Result<u64, &'static str> {
    let ty = calc.ty;
    if ty.packed {
        let half = Calc { ty: Ty { packed: false, ..ty }, ..calc.clone() };
        let low = compute(&half, v.map(|v| v & 0xffff))?;
        let high = compute(&half, v.map(|v| v >> 16 & 0xffff))?;
        return Ok(low & 0xffff | high << 16);
    }
    let bits = ty.bits;
    let (a, b, c) = (mask(v[0], bits), mask(v[1], bits), mask(v[2], bits));
    let (sa, sb) = (number(a, ty), number(b, ty));
    Ok(match calc.fun {
        Fun::Add if calc.sat => clamp(sa + sb, ty),
        Fun::Sub if calc.sat => clamp(sa - sb, ty),
        Fun::Add => a.wrapping_add(b),
        Fun::Sub => a.wrapping_sub(b),
        Fun::Mul(half) => product(half, sa, sb, bits),
        Fun::Mad(Half::Wide) => product(Half::Wide, sa, sb, bits).wrapping_add(v[2]),
        Fun::Mad(half) if calc.sat => {
            let half = extend(product(half, sa, sb, bits), bits);
            clamp(i128::from(half) + number(c, ty), ty)
        }
        Fun::Mad(half) => product(half, sa, sb, bits).wrapping_add(c),
        Fun::Mul24(half) | Fun::Mad24(half) => {
            let narrow = Ty { bits: 24, ..ty };
            let whole = number(v[0], narrow) * number(v[1], narrow);
            let part = if half == Half::High { whole >> 16 } else { whole } as u64 & 0xffff_ffff;
            if matches!(calc.fun, Fun::Mad24(_)) { part.wrapping_add(c) } else { part }
        }
        Fun::Div | Fun::Rem => return divide(calc.fun == Fun::Div, sa, sb, ty),
        Fun::Abs => sa.unsigned_abs() as u64,
        Fun::Neg => a.wrapping_neg(),
        Fun::Min => {
            if sa <= sb {
                a
            } else {
                b
            }
        }
        Fun::Max => {
            let largest = if sa >= sb { a } else { b };
            if calc.relu && extend(largest, bits) < 0 { 0 } else { largest }
        }
        Fun::And => a & b,
        Fun::Or => a | b,
        Fun::Xor => a ^ b,
        Fun::Not => !a,
        Fun::Cnot => u64::from(a == 0),
        Fun::Shl => {
            if v[1] & 0xffff_ffff >= u64::from(bits) {
                0
            } else {
                a << (v[1] & 63)
            }
        }
        Fun::Shr => {
            let by = (v[1] & 0xffff_ffff).min(u64::from(bits)) as u32;
            (number(a, ty) >> by) as u64
        }
        Fun::Sad => ((sa - sb).unsigned_abs() as u64).wrapping_add(c),
        _ => bit_fields(calc, v),
    })
}

fn product(half: Half, a: i128, b: i128, bits: u32) -> u64 {
    let whole = a.wrapping_mul(b);
    match half {
        Half::Low | Half::Wide => whole as u64,
        Half::High => (whole >> bits) as u64,
    }
}

fn divide(quotient: bool, a: i128, b: i128, ty: Ty) -> Result<u64, &'static str> {
    if b == 0 {
        return Err(BY_ZERO);
    }
    if ty.signed() && b == -1 && a == range(ty).0 {
        return Err(OVERFLOW);
    }
    Ok(if quotient { a / b } else { a % b } as u64)
}

fn bit_fields(calc: &Calc, v: [u64; 4]) -> u64 {
    let (ty, bits) = (calc.ty, calc.ty.bits);
    let from = calc.from.bits;
    let a = mask(v[0], from);
    match calc.fun {
        Fun::Bfe => extract(v, ty),
        Fun::Bfi => {
            let (position, length) = ((v[2] & 0xff) as u32, (v[3] & 0xff) as u32);
            if position >= bits || length == 0 {
                return v[1];
            }
            let field = mask(u64::MAX, length) << position;
            v[1] & !field | v[0] << position & field
        }
        Fun::Bfind { shift } => {
            let value = if calc.from.signed() && extend(a, from) < 0 { mask(!a, from) } else { a };
            if value == 0 {
                return 0xffff_ffff;
            }
            let top = 63 - value.leading_zeros();
            u64::from(if shift { from - 1 - top } else { top })
        }
        Fun::Clz => u64::from(a.leading_zeros() - (64 - from)),
        Fun::Popc => u64::from(a.count_ones()),
        Fun::Brev => mask(v[0], bits).reverse_bits() >> (64 - bits),
        Fun::Fns => find_nth(v),
        Fun::Lop3 => (0..8).fold(0, |result, at| {
            let pick = |value: u64, set: bool| if set { value } else { !value };
            let term = pick(v[0], at & 4 != 0) & pick(v[1], at & 2 != 0) & pick(v[2], at & 1 != 0);
            if v[3] >> at & 1 == 1 { result | term } else { result }
        }),
        Fun::Prmt(mode) => permute(mode, v),
        Fun::Funnel { left, wrap } => {
            let pair = (v[1] & 0xffff_ffff) << 32 | v[0] & 0xffff_ffff;
            let by = if wrap { v[2] & 31 } else { (v[2] & 0xffff_ffff).min(32) };
            if left { u64::from(((u128::from(pair) << by) >> 32) as u32) } else { pair >> by }
        }
        Fun::Bmsk { wrap } => {
            let cut = |value: u64| if wrap { value & 31 } else { (value & 0xffff_ffff).min(32) };
            mask(u64::MAX, cut(v[1]) as u32) << cut(v[0])
        }
        Fun::Szext { wrap } => {
            let at = if wrap { v[1] & 31 } else { v[1] & 0xffff_ffff };
            match (at, ty.signed()) {
                (0, _) => 0,
                (32.., _) => v[0],
                (at, true) => extend(mask(v[0], at as u32), at as u32) as u64,
                (at, false) => mask(v[0], at as u32),
            }
        }
        Fun::Dp4a { a: first, b: second } => {
            let of = |value: u64, at: u32, signed: bool| byte(value >> (8 * at), signed);
            let sum: i64 = (0..4).map(|at| of(v[0], at, first) * of(v[1], at, second)).sum();
            (sum as u64).wrapping_add(v[2])
        }
        Fun::Dp2a { a: first, b: second, high } => {
            let from = if high { 2 } else { 0 };
            let sum: i64 = (0..2)
                .map(|at| {
                    let word = v[0] >> (16 * at) & 0xffff;
                    let word = if first { extend(word, 16) } else { word as i64 };
                    word * byte(v[1] >> (8 * (at + from)), second)
                })
                .sum();
            (sum as u64).wrapping_add(v[2])
        }
        _ => v[0],
    }
}

fn byte(value: u64, signed: bool) -> i64 {
    if signed { extend(value & 0xff, 8) } else { (value & 0xff) as i64 }
}

fn extract(v: [u64; 4], ty: Ty) -> u64 {
    let bits = ty.bits;
    let (position, length) = ((v[1] & 0xff) as u32, (v[2] & 0xff) as u32);
    if length == 0 {
        return 0;
    }
    let value = mask(v[0], bits);
    let last = (position + length - 1).min(bits - 1);
    let fill = ty.signed() && value >> last & 1 == 1;
    let field = if position >= bits { 0 } else { mask(value >> position, length) };
    let have = bits.saturating_sub(position).min(length);
    if fill { field | !mask(u64::MAX, have) } else { field }
}

/// The position of the n-th set bit of `v[0]` from `v[1]` on.
fn find_nth(v: [u64; 4]) -> u64 {
    let (set, base, offset) = (v[0] as u32, v[1] as u32, v[2] as u32 as i32);
    if base > 31 {
        return 0xffff_ffff;
    }
    let mut left = if offset == 0 { 1 } else { offset.unsigned_abs() };
    if offset == 0 {
        return if set >> base & 1 == 1 { u64::from(base) } else { 0xffff_ffff };
    }
    let mut at = i64::from(base);
    while (0..32).contains(&at) {
        if set >> at & 1 == 1 {
            left -= 1;
            if left == 0 {
                return at as u64;
            }
        }
        at += if offset > 0 { 1 } else { -1 };
    }
    0xffff_ffff
}

fn permute(mode: Permute, v: [u64; 4]) -> u64 {
    let pool = v[0] & 0xffff_ffff | v[1] << 32;
    let byte = |at: u64| pool >> (8 * (at & 7)) & 0xff;
    let from = v[2] & 3;
    let pick = |at: u64| match mode {
        Permute::Index => {
            let select = v[2] >> (4 * at) & 0xf;
            let value = byte(select);
            if select & 8 == 0 {
                value
            } else if value & 0x80 != 0 {
                0xff
            } else {
                0
            }
        }
        Permute::Forward4 => byte(from + at),
        Permute::Backward4 => byte((from + 8 - at) & 7),
        Permute::Replicate8 => byte(from),
        Permute::EdgeLeft => byte(at.max(from)),
        Permute::EdgeRight => byte(at.min(from)),
        Permute::Replicate16 => byte((from & 1) * 2 + (at & 1)),
    };
    (0..4).fold(0, |result, at| result | pick(at) << (8 * at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::types::{S32, U32};

    fn run(fun: Fun, ty: &str, v: [u64; 4]) -> Result<u64, &'static str> {
        let ty = Ty::parse(ty).unwrap();
        compute(&Calc { fun, ty, from: ty, ..Calc::default() }, v).map(|r| mask(r, ty.width()))
    }

    #[test]
    fn shifts_clamp_and_divisions_that_are_open_are_told() {
        assert_eq!(run(Fun::Shl, "b32", [1, 32, 0, 0]), Ok(0));
        assert_eq!(run(Fun::Shr, "s32", [0x8000_0000, 99, 0, 0]), Ok(0xffff_ffff));
        assert_eq!(run(Fun::Shr, "u64", [u64::MAX, 64, 0, 0]), Ok(0));
        assert_eq!(run(Fun::Div, "s32", [0x8000_0000, 0xffff_ffff, 0, 0]), Err(OVERFLOW));
        assert_eq!(run(Fun::Rem, "u16", [7, 0, 0, 0]), Err(BY_ZERO));
        assert_eq!(run(Fun::Div, "s32", [-7_i64 as u64, 2, 0, 0]), Ok(-3_i32 as u32 as u64));
    }

    #[test]
    fn fields_beyond_the_value_take_its_sign() {
        assert_eq!(run(Fun::Bfe, "s32", [0x8000_0000, 28, 8, 0]), Ok(0xffff_fff8));
        assert_eq!(run(Fun::Bfe, "s32", [0x8000_0000, 40, 8, 0]), Ok(0xffff_ffff));
        assert_eq!(run(Fun::Bfe, "u32", [0xf0, 4, 255, 0]), Ok(0xf));
        assert_eq!(run(Fun::Bfe, "u64", [0xf0, 4, 0, 0]), Ok(0));
        assert_eq!(run(Fun::Bfi, "b32", [0xff, 0, 28, 8]), Ok(0xf000_0000));
        assert_eq!(run(Fun::Bfi, "b32", [0xff, 5, 32, 8]), Ok(5));
    }

    #[test]
    fn bytes_are_permuted_in_every_mode() {
        let v = |select| [0x3322_1100_u64, 0x7766_5544, select, 0];
        let prmt = |mode, select| run(Fun::Prmt(mode), "b32", v(select)).unwrap();
        assert_eq!(prmt(Permute::Index, 0x7531), 0x7755_3311);
        assert_eq!(prmt(Permute::Forward4, 1), 0x4433_2211);
        assert_eq!(prmt(Permute::Backward4, 1), 0x6677_0011);
        assert_eq!(prmt(Permute::Replicate8, 2), 0x2222_2222);
        assert_eq!(prmt(Permute::EdgeLeft, 2), 0x3322_2222);
        assert_eq!(prmt(Permute::EdgeRight, 2), 0x2222_1100);
        assert_eq!(prmt(Permute::Replicate16, 1), 0x3322_3322);
        let sign = run(Fun::Prmt(Permute::Index), "b32", [0x80_00, 0, 0x9998, 0]);
        assert_eq!(sign, Ok(0xffff_ff00));
    }

    #[test]
    fn products_and_sums_keep_the_half_that_is_asked_for() {
        let u = u64::from(u32::MAX);
        assert_eq!(run(Fun::Mul(Half::High), "u32", [u, u, 0, 0]), Ok(u - 1));
        assert_eq!(run(Fun::Mul(Half::High), "s32", [u, u, 0, 0]), Ok(0));
        assert_eq!(run(Fun::Mul(Half::High), "u64", [u64::MAX, 2, 0, 0]), Ok(1));
        let wide = Calc { fun: Fun::Mul(Half::Wide), ty: S32, from: S32, ..Calc::default() };
        assert_eq!(compute(&wide, [u, 5, 0, 0]), Ok(-5_i64 as u64));
        let sat = Calc { fun: Fun::Add, ty: S32, from: S32, sat: true, ..Calc::default() };
        assert_eq!(compute(&sat, [0x7fff_ffff, 1, 0, 0]), Ok(0x7fff_ffff));
        assert_eq!(run(Fun::Lop3, "b32", [0xff, 0x0f, 0x33, 0x96]), Ok(0xff ^ 0x0f ^ 0x33));
        assert_eq!(run(Fun::Add, "u16x2", [0xffff_0001, 0x0001_ffff, 0, 0]), Ok(0));
        let dot = Fun::Dp4a { a: true, b: true };
        assert_eq!(run(dot, "s32", [0xff02_0304, 0x0101_0101, 10, 0]), Ok(18));
        assert_eq!(run(Fun::Fns, "b32", [0b1010_0110, 2, 2, 0]), Ok(5));
        let find = Calc { fun: Fun::Bfind { shift: false }, ty: U32, from: S32, ..Calc::default() };
        assert_eq!(compute(&find, [0xffff_fff0, 0, 0, 0]), Ok(3));
    }
}
