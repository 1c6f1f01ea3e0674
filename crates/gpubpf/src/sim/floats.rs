//! Floating-point arithmetic and comparisons of every format.

use std::cmp::Ordering;

use super::ops::{Calc, Compare, Fun, Join, Test};
use super::soft::{Format, Real, Round};
use super::types::Ty;

/// One floating-point instruction. Packed values are done half by half.
pub(crate) fn compute(calc: &Calc, format: Format, v: [u64; 4]) -> u64 {
    if calc.ty.packed {
        let half = Calc { ty: Ty { packed: false, ..calc.ty }, ..calc.clone() };
        let low = compute(&half, format, v.map(|v| v & 0xffff));
        let high = compute(&half, format, v.map(|v| v >> 16 & 0xffff));
        return low & 0xffff | high << 16;
    }
    let flush = |v: u64| if calc.ftz { format.flush(v) } else { v };
    let [a, b, c, _] = v.map(flush);
    let sign = 1_u64 << (format.bits() - 1);
    let result = match calc.fun {
        Fun::Identity => a,
        Fun::Abs => a & !sign,
        Fun::Neg => a ^ sign,
        Fun::Copysign => b & !sign | a & sign,
        Fun::Min | Fun::Max => extreme(calc, format, a, b),
        Fun::Add
        | Fun::Sub
        | Fun::Mul(_)
        | Fun::Fma
        | Fun::Mad(_)
        | Fun::Div
        | Fun::Rcp
        | Fun::Sqrt => arithmetic(calc, format, [a, b, c]),
        _ => approximate(calc.fun, format, a),
    };
    // The sign of NaN is nobody's.
    if matches!(calc.fun, Fun::Abs | Fun::Neg | Fun::Copysign) && format.is_nan(a) {
        return if calc.fun == Fun::Copysign { result } else { format.nan() };
    }
    finish(calc, format, flush(result))
}

/// Saturation to [0, 1], and `.relu`.
fn finish(calc: &Calc, format: Format, result: u64) -> u64 {
    let sign = 1_u64 << (format.bits() - 1);
    if calc.sat {
        let one = format.pack(Real::integer(false, 1), Round::Nearest, false);
        if format.is_nan(result) || result & sign != 0 {
            return 0;
        }
        return result.min(one);
    }
    if calc.relu && result & sign != 0 && !format.is_nan(result) {
        return 0;
    }
    result
}

fn arithmetic(calc: &Calc, format: Format, v: [u64; 3]) -> u64 {
    if calc.round == Round::Nearest {
        match format {
            Format::F32 => {
                let [a, b, c] = v.map(|v| f32::from_bits(v as u32));
                let result = match calc.fun {
                    Fun::Add => a + b,
                    Fun::Sub => a - b,
                    Fun::Mul(_) => a * b,
                    Fun::Div => a / b,
                    Fun::Rcp => 1.0 / a,
                    Fun::Sqrt => a.sqrt(),
                    _ => a.mul_add(b, c),
                };
                return if result.is_nan() { format.nan() } else { result.to_bits().into() };
            }
            Format::F64 => {
                let [a, b, c] = v.map(f64::from_bits);
                let result = match calc.fun {
                    Fun::Add => a + b,
                    Fun::Sub => a - b,
                    Fun::Mul(_) => a * b,
                    Fun::Div => a / b,
                    Fun::Rcp => 1.0 / a,
                    Fun::Sqrt => a.sqrt(),
                    _ => a.mul_add(b, c),
                };
                return if result.is_nan() { format.nan() } else { result.to_bits() };
            }
            _ => {}
        }
    }
    let [a, b, c] = v.map(|v| format.unpack(v));
    let result = match calc.fun {
        Fun::Add => a.add(b, calc.round),
        Fun::Sub => a.add(b.negated(), calc.round),
        Fun::Mul(_) => a.mul(b),
        Fun::Div => a.div(b),
        Fun::Rcp => Real::integer(false, 1).div(a),
        Fun::Sqrt => a.sqrt(),
        _ => a.mul(b).add(c, calc.round),
    };
    format.pack(result, calc.round, calc.finite)
}

/// What the hardware approximates, computed in 64 bits and rounded: closer than its error bounds.
fn approximate(fun: Fun, format: Format, a: u64) -> u64 {
    let x = to_f64(format, a);
    let y = match fun {
        Fun::Rsqrt => 1.0 / x.sqrt(),
        Fun::Sin => x.sin(),
        Fun::Cos => x.cos(),
        Fun::Lg2 => x.log2(),
        Fun::Ex2 => x.exp2(),
        _ => x.tanh(),
    };
    from_f64(format, y)
}

pub(crate) fn to_f64(format: Format, value: u64) -> f64 {
    match format {
        Format::F64 => f64::from_bits(value),
        Format::F32 => f64::from(f32::from_bits(value as u32)),
        _ => f64::from_bits(Format::F64.pack(format.unpack(value), Round::Nearest, false)),
    }
}

pub(crate) fn from_f64(format: Format, value: f64) -> u64 {
    match format {
        Format::F64 => value.to_bits(),
        Format::F32 if value.is_nan() => format.nan(),
        Format::F32 => u64::from((value as f32).to_bits()),
        _ => format.pack(Format::F64.unpack(value.to_bits()), Round::Nearest, false),
    }
}

fn extreme(calc: &Calc, format: Format, a: u64, b: u64) -> u64 {
    let sign = 1_u64 << (format.bits() - 1);
    let flip = if calc.xorsign { (a ^ b) & sign } else { 0 };
    let (a, b) = if calc.xorsign { (a & !sign, b & !sign) } else { (a, b) };
    let result = match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => return format.nan(),
        (true, false) | (false, true) if calc.nan => return format.nan(),
        (true, false) => b,
        (false, true) => a,
        // -0 is less than +0.
        (false, false) => {
            let a_first = to_f64(format, a).total_cmp(&to_f64(format, b)).is_le();
            if a_first == (calc.fun == Fun::Min) { a } else { b }
        }
    };
    result | flip
}

/// The order of two numbers; `None` where one is NaN.
pub(crate) fn order(format: Format, a: u64, b: u64, ftz: bool) -> Option<Ordering> {
    let flush = |v: u64| if ftz { format.flush(v) } else { v };
    to_f64(format, flush(a)).partial_cmp(&to_f64(format, flush(b)))
}

/// Whether the comparison of `calc` holds for what was found.
pub(crate) fn holds(calc: &Calc, order: Option<Ordering>) -> bool {
    let Some(order) = order else {
        return match calc.compare {
            Compare::Numbers => false,
            Compare::NotNumbers => true,
            Compare::Ne | Compare::Eq | Compare::Lt | Compare::Le | Compare::Gt | Compare::Ge => {
                calc.unordered
            }
        };
    };
    match calc.compare {
        Compare::Eq => order.is_eq(),
        Compare::Ne => order.is_ne(),
        Compare::Lt => order.is_lt(),
        Compare::Le => order.is_le(),
        Compare::Gt => order.is_gt(),
        Compare::Ge => order.is_ge(),
        Compare::Numbers => true,
        Compare::NotNumbers => false,
    }
}

pub(crate) fn joined(join: Option<Join>, a: bool, b: bool) -> bool {
    match join {
        None => a,
        Some(Join::And) => a & b,
        Some(Join::Or) => a | b,
        Some(Join::Xor) => a ^ b,
    }
}

pub(crate) fn test(what: Test, format: Format, value: u64) -> bool {
    let subnormal = format.flush(value) != value;
    match (what, format.unpack(value)) {
        (Test::NotANumber, real) => real == Real::Nan,
        (Test::Number, real) => real != Real::Nan,
        (Test::Infinite, real) => matches!(real, Real::Infinite(_)),
        (Test::Finite, real) => matches!(real, Real::Number { .. }),
        (Test::Subnormal, _) => subnormal,
        (Test::Normal, Real::Number { man, .. }) => man != 0 && !subnormal,
        (Test::Normal, _) => false,
    }
}
