//! What a number can be: an interval of unsigned 64-bit numbers, and what instructions make of it.
//!
//! *What it knows:* of two constants everything; of intervals what stays one interval. Signed comparisons and
//! shifts see the same interval as signed numbers, unless it reaches over the sign. *What it gives up:* results
//! that would be two intervals, and relations between registers, become all numbers of their width.

use crate::insn::{AluOp, ByteOrder, Compare, Width};

/// All numbers from `min` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) min: u64,
    pub(crate) max: u64,
}

/// The largest number of a width.
fn limit(width: Width) -> u64 {
    match width {
        Width::W32 => u32::MAX.into(),
        Width::W64 => u64::MAX,
    }
}

/// A number of a width as a signed one.
fn signed(width: Width, value: u64) -> i64 {
    match width {
        Width::W32 => i64::from(value as u32 as i32),
        Width::W64 => value as i64,
    }
}

/// The number of ones that covers `value`.
fn ones(value: u64) -> u64 {
    u64::MAX.checked_shr(value.leading_zeros()).unwrap_or(0)
}

/// What an instruction makes of two numbers of its width (RFC 9669, section 4.1).
fn exact(op: AluOp, width: Width, a: u64, c: u64) -> u64 {
    let shift = c & (u64::from(width.bits()) - 1);
    let (x, y) = (signed(width, a), signed(width, c));
    let value = match op {
        AluOp::Mov => c,
        AluOp::Add => a.wrapping_add(c),
        AluOp::Sub => a.wrapping_sub(c),
        AluOp::Mul => a.wrapping_mul(c),
        AluOp::Div => a.checked_div(c).unwrap_or(0),
        AluOp::Mod => a.checked_rem(c).unwrap_or(a),
        AluOp::SignedDiv if y == 0 => 0,
        AluOp::SignedDiv => x.wrapping_div(y) as u64,
        AluOp::SignedMod if y == 0 => a,
        AluOp::SignedMod => x.wrapping_rem(y) as u64,
        AluOp::Or => a | c,
        AluOp::And => a & c,
        AluOp::Xor => a ^ c,
        AluOp::Lsh => a << shift,
        AluOp::Rsh => a >> shift,
        AluOp::Arsh => (x >> shift) as u64,
    };
    value & limit(width)
}

impl Interval {
    /// Every number.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self { min: 0, max: u64::MAX };

    /// One number.
    pub(crate) fn constant(value: u64) -> Self {
        Self { min: value, max: value }
    }

    /// Every number of so many bits, 1 to 64.
    pub(crate) fn of_bits(bits: u32) -> Self {
        Self { min: 0, max: u64::MAX >> (64 - bits.clamp(1, 64)) }
    }

    /// The number, if it is one.
    fn only(self) -> Option<u64> {
        (self.min == self.max).then_some(self.min)
    }

    /// The numbers in both.
    fn and(self, min: u64, max: u64) -> Option<Self> {
        let both = Self { min: self.min.max(min), max: self.max.min(max) };
        (both.min <= both.max).then_some(both)
    }

    /// The lower `bits` of these numbers.
    pub(crate) fn lower(self, bits: u32) -> Self {
        let all = Self::of_bits(bits);
        // What is above them; nothing is above all 64.
        let upper = |value: u64| value.checked_shr(bits).unwrap_or(0);
        match upper(self.min) == upper(self.max) {
            true => Self { min: self.min & all.max, max: self.max & all.max },
            false => all,
        }
    }

    /// Whether it holds numbers that are negative at this width and others that are not.
    fn reaches_over_the_sign(self, width: Width) -> bool {
        let most = limit(width) >> 1;
        self.min <= most && self.max > most
    }

    /// What an instruction makes of these numbers and those on its right.
    pub(crate) fn arithmetic(self, op: AluOp, width: Width, right: Self) -> Self {
        let (left, right) = (self.lower(width.bits()), right.lower(width.bits()));
        if let (Some(a), Some(c)) = (left.only(), right.only()) {
            return Self::constant(exact(op, width, a, c));
        }
        let all = Self::of_bits(width.bits());
        let (Self { min: a, max: b }, Self { min: c, max: d }) = (left, right);
        let most = i128::from(all.max);
        // Where both bounds leave the width, they come back on its other side.
        let wrapped = |min: i128, max: i128| -> Option<(u64, u64)> {
            let by = match (min < 0 || min > most, max < 0 || max > most) {
                (false, false) => 0,
                (true, true) if max < 0 => most + 1,
                (true, true) if min > most => -most - 1,
                _ => return None,
            };
            Some(((min + by) as u64, (max + by) as u64))
        };
        let wide = |value: u64| i128::from(value);
        let count = right.only().map(|c| c & (u64::from(width.bits()) - 1));
        let not_negative = b <= all.max >> 1 && d <= all.max >> 1;
        let bounds = match op {
            AluOp::Mov => Some((c, d)),
            AluOp::Add => wrapped(wide(a) + wide(c), wide(b) + wide(d)),
            AluOp::Sub => wrapped(wide(a) - wide(d), wide(b) - wide(c)),
            AluOp::Mul => b.checked_mul(d).filter(|max| *max <= all.max).map(|max| (a * c, max)),
            AluOp::And => Some((0, b.min(d))),
            AluOp::Or => Some((a.max(c), ones(b | d))),
            AluOp::Xor => Some((0, ones(b | d))),
            AluOp::Rsh => Some(count.map_or((0, b), |count| (a >> count, b >> count))),
            AluOp::Lsh => {
                count.filter(|count| wide(b) << count <= most).map(|count| (a << count, b << count))
            }
            AluOp::Arsh if left.reaches_over_the_sign(width) => None,
            AluOp::Arsh => {
                count.map(|count| (exact(op, width, a, count), exact(op, width, b, count)))
            }
            AluOp::SignedDiv | AluOp::SignedMod if !not_negative => None,
            // By zero it gives 0.
            AluOp::Div | AluOp::SignedDiv => Some((if c > 0 { a / d } else { 0 }, b / c.max(1))),
            // By zero it leaves what was there.
            AluOp::Mod | AluOp::SignedMod => Some(remainder(left, right)),
        };
        bounds.map_or(all, |(min, max)| Self { min, max })
    }

    /// These numbers with the other sign.
    pub(crate) fn negated(self, width: Width) -> Self {
        Self::constant(0).arithmetic(AluOp::Sub, width, self)
    }

    /// The lower `bits`, sign-extended to a width.
    pub(crate) fn extended(self, bits: u32, width: Width) -> Self {
        let (low, most) = (self.lower(bits), Self::of_bits(bits).max);
        let upper = limit(width) & !most;
        if low.max <= most >> 1 {
            low
        } else if low.min > most >> 1 {
            Self { min: low.min | upper, max: low.max | upper }
        } else {
            Self::of_bits(width.bits())
        }
    }

    /// The lower `bits` in another order of bytes; the rest becomes 0.
    pub(crate) fn reordered(self, order: ByteOrder, bits: u32) -> Self {
        let low = self.lower(bits);
        match (order, low.only()) {
            (ByteOrder::Little, _) => low,
            (_, Some(value)) => Self::constant(value.swap_bytes() >> (64 - bits)),
            (_, None) => Self::of_bits(bits),
        }
    }

    /// What is left of these numbers where a comparison with those on its right holds, or where it does not; `None`
    /// where that cannot be.
    pub(crate) fn narrowed(
        self,
        compare: Compare,
        width: Width,
        right: Self,
        holds: bool,
    ) -> Option<Self> {
        let (left, right) = (self.lower(width.bits()), right.lower(width.bits()));
        let narrowed = left.within(compare, width, right, holds)?;
        // Bounds of the lower half are bounds of the whole where nothing is above it.
        Some(if left == self { narrowed } else { self })
    }

    fn within(self, compare: Compare, width: Width, right: Self, holds: bool) -> Option<Self> {
        let Self { min: c, max: d } = right;
        let all = limit(width);
        match (compare, holds) {
            (Compare::Eq, true) | (Compare::Ne, false) => self.and(c, d),
            (Compare::Eq, false) | (Compare::Ne, true) => match right.only() {
                Some(c) => {
                    let min = if self.min == c { c.checked_add(1)? } else { self.min };
                    let max = if self.max == c { c.checked_sub(1)? } else { self.max };
                    self.and(min, max)
                }
                None => Some(self),
            },
            (Compare::Set, true) if d == 0 => None,
            (Compare::Set, _) => match (self.only(), right.only()) {
                (Some(a), Some(c)) => (((a & c) != 0) == holds).then_some(self),
                _ if holds => self.and(1, all),
                _ => Some(self),
            },
            (Compare::Gt, true) | (Compare::Le, false) => self.and(c.checked_add(1)?, all),
            (Compare::Ge, true) | (Compare::Lt, false) => self.and(c, all),
            (Compare::Lt, true) | (Compare::Ge, false) => self.and(0, d.checked_sub(1)?),
            (Compare::Le, true) | (Compare::Gt, false) => self.and(0, d),
            (Compare::Sgt, true) | (Compare::Sle, false) => {
                self.at_least(right.signed_bounds(width).0.checked_add(1)?, width)
            }
            (Compare::Sge, true) | (Compare::Slt, false) => {
                self.at_least(right.signed_bounds(width).0, width)
            }
            (Compare::Slt, true) | (Compare::Sge, false) => {
                self.at_most(right.signed_bounds(width).1.checked_sub(1)?, width)
            }
            (Compare::Sle, true) | (Compare::Sgt, false) => {
                self.at_most(right.signed_bounds(width).1, width)
            }
        }
    }

    /// The least and the greatest of these numbers as signed ones.
    fn signed_bounds(self, width: Width) -> (i64, i64) {
        let most = limit(width) >> 1;
        match self.reaches_over_the_sign(width) {
            true => (signed(width, most + 1), signed(width, most)),
            false => (signed(width, self.min), signed(width, self.max)),
        }
    }

    /// Those that are at least `least` as signed numbers.
    fn at_least(self, least: i64, width: Width) -> Option<Self> {
        let most = (limit(width) >> 1) as i64;
        self.between(least, most, width)
    }

    /// Those that are at most `most` as signed numbers.
    fn at_most(self, most: i64, width: Width) -> Option<Self> {
        let least = -((limit(width) >> 1) as i64) - 1;
        self.between(least, most, width)
    }

    fn between(self, least: i64, most: i64, width: Width) -> Option<Self> {
        let (from, to) = self.signed_bounds(width);
        let (least, most) = (least.max(from), most.min(to));
        let at_width = |value: i64| value as u64 & limit(width);
        match (least <= most, least >= 0, most < 0) {
            (false, ..) => None,
            // Negative numbers follow those that are not.
            (true, true, _) | (true, _, true) => self.and(at_width(least), at_width(most)),
            _ => Some(self),
        }
    }
}

/// Bounds of an unsigned remainder.
fn remainder(left: Interval, right: Interval) -> (u64, u64) {
    let (Interval { min: a, max: b }, Interval { min: c, max: d }) = (left, right);
    match c {
        _ if b < c => (a, b),
        0 => (0, b),
        _ => (0, b.min(d - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 11 ^ *state << 40
    }

    /// An interval with a number in it; edges come often.
    fn interval(state: &mut u64) -> (Interval, u64) {
        let edge = |state: &mut u64| match next(state) % 6 {
            0 => next(state) % 9,
            1 => u64::MAX - next(state) % 9,
            2 => (1 << 31) - 4 + next(state) % 9,
            3 => (1 << 32) - 4 + next(state) % 9,
            4 => (1 << 63) - 4 + next(state) % 9,
            _ => next(state) >> (next(state) % 64),
        };
        let (a, b) =
            (edge(state), if next(state).is_multiple_of(3) { None } else { Some(edge(state)) });
        let (min, max) = (a.min(b.unwrap_or(a)), a.max(b.unwrap_or(a)));
        let inside = match next(state) % 3 {
            0 => min,
            1 => max,
            _ => min + next(state) % (max - min).saturating_add(1).max(1),
        };
        (Interval { min, max }, inside)
    }

    fn holds(interval: Interval, value: u64) -> bool {
        (interval.min..=interval.max).contains(&value)
    }

    /// Each instruction by the definition of its result, and not by [`exact`].
    #[test]
    fn what_arithmetic_gives_lies_within_the_interval_that_is_computed() {
        let state = &mut 1;
        let ops = [
            AluOp::Add,
            AluOp::Sub,
            AluOp::Mul,
            AluOp::Div,
            AluOp::Or,
            AluOp::And,
            AluOp::Lsh,
            AluOp::Rsh,
            AluOp::Mod,
            AluOp::Xor,
            AluOp::Mov,
            AluOp::Arsh,
            AluOp::SignedDiv,
            AluOp::SignedMod,
        ];
        for _ in 0..300_000 {
            let ((left, a), (right, b)) = (interval(state), interval(state));
            let op = ops[(next(state) % 14) as usize];
            for width in [Width::W64, Width::W32] {
                let narrow = |v: u64| if width == Width::W32 { v & 0xffff_ffff } else { v };
                let (x, y, bits) = (narrow(a), narrow(b), u64::from(width.bits()) - 1);
                let value = narrow(match op {
                    AluOp::Add => x.wrapping_add(y),
                    AluOp::Sub => x.wrapping_sub(y),
                    AluOp::Mul => x.wrapping_mul(y),
                    AluOp::Div => x.checked_div(y).unwrap_or(0),
                    AluOp::Mod => x.checked_rem(y).unwrap_or(x),
                    AluOp::Or => x | y,
                    AluOp::And => x & y,
                    AluOp::Xor => x ^ y,
                    AluOp::Lsh => x << (y & bits),
                    AluOp::Rsh => x >> (y & bits),
                    AluOp::Arsh if width == Width::W64 => (x as i64 >> (y & bits)) as u64,
                    AluOp::Arsh => (x as i32 >> (y & bits)) as u32 as u64,
                    AluOp::SignedDiv | AluOp::SignedMod if y == 0 => {
                        if op == AluOp::SignedDiv {
                            0
                        } else {
                            x
                        }
                    }
                    AluOp::SignedDiv if width == Width::W64 => {
                        (x as i64).overflowing_div(y as i64).0 as u64
                    }
                    AluOp::SignedDiv => (x as i32).overflowing_div(y as i32).0 as u32 as u64,
                    AluOp::SignedMod if width == Width::W64 => {
                        (x as i64).overflowing_rem(y as i64).0 as u64
                    }
                    AluOp::SignedMod => (x as i32).overflowing_rem(y as i32).0 as u32 as u64,
                    AluOp::Mov => y,
                });
                let found = left.arithmetic(op, width, right);
                assert!(
                    holds(found, value),
                    "{op:?} {width:?} {left:?} {right:?}: {a} {b} {value} {found:?}"
                );
            }
        }
    }

    #[test]
    fn signs_and_byte_orders_lie_within_their_intervals() {
        let state = &mut 3;
        for _ in 0..100_000 {
            let (held, a) = interval(state);
            for (width, value) in
                [(Width::W64, a.wrapping_neg()), (Width::W32, u64::from((a as u32).wrapping_neg()))]
            {
                assert!(holds(held.negated(width), value), "-{held:?} {width:?}: {a} {value}");
            }
            for (bits, value) in
                [(8, a as i8 as i64), (16, i64::from(a as i16)), (32, i64::from(a as i32))]
            {
                let found = held.extended(bits, Width::W64);
                assert!(holds(found, value as u64), "{bits} of {held:?}: {a} {value} {found:?}");
                if bits < 32 {
                    let (found, value) = (held.extended(bits, Width::W32), value as u32);
                    assert!(holds(found, value.into()), "{bits} of {held:?}: {a} {found:?}");
                }
            }
            for (bits, swapped, low) in [
                (16, u64::from((a as u16).swap_bytes()), a & 0xffff),
                (32, u64::from((a as u32).swap_bytes()), a & 0xffff_ffff),
                (64, a.swap_bytes(), a),
            ] {
                for (order, value) in [
                    (ByteOrder::Big, swapped),
                    (ByteOrder::Swap, swapped),
                    (ByteOrder::Little, low),
                ] {
                    let found = held.reordered(order, bits);
                    assert!(
                        holds(found, value),
                        "{order:?} {bits} {held:?}: {a} {value} {found:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_branch_never_excludes_a_number_that_takes_it() {
        let state = &mut 7;
        let compares = [
            Compare::Eq,
            Compare::Ne,
            Compare::Set,
            Compare::Gt,
            Compare::Ge,
            Compare::Lt,
            Compare::Le,
            Compare::Sgt,
            Compare::Sge,
            Compare::Slt,
            Compare::Sle,
        ];
        for _ in 0..300_000 {
            let ((left, a), (right, b)) = (interval(state), interval(state));
            let compare = compares[(next(state) % 11) as usize];
            for width in [Width::W64, Width::W32] {
                let (mut x, mut y) = (a, b);
                let (mut sx, mut sy) = (a as i64, b as i64);
                if width == Width::W32 {
                    (x, y) = (x & 0xffff_ffff, y & 0xffff_ffff);
                    (sx, sy) = (i64::from(a as i32), i64::from(b as i32));
                }
                let taken = match compare {
                    Compare::Eq => x == y,
                    Compare::Ne => x != y,
                    Compare::Set => x & y != 0,
                    Compare::Gt => x > y,
                    Compare::Ge => x >= y,
                    Compare::Lt => x < y,
                    Compare::Le => x <= y,
                    Compare::Sgt => sx > sy,
                    Compare::Sge => sx >= sy,
                    Compare::Slt => sx < sy,
                    Compare::Sle => sx <= sy,
                };
                let found = left.narrowed(compare, width, right, taken);
                assert!(
                    found.is_some_and(|found| holds(found, a)),
                    "{compare:?} {width:?} {taken} {left:?} {right:?}: {a} {b} {found:?}"
                );
            }
        }
    }

    /// What is left of an interval where a comparison holds.
    #[test]
    fn comparisons_with_a_sign_narrow_what_lies_on_one_side_of_it() {
        let (w, all) = (Width::W64, Interval::ALL);
        let of = |min: i64, max: i64| Interval { min: min as u64, max: max as u64 };
        let zero = Interval::constant(0);
        assert_eq!(all.narrowed(Compare::Sgt, w, zero, true), Some(of(1, i64::MAX)));
        assert_eq!(all.narrowed(Compare::Slt, w, zero, true), Some(of(i64::MIN, -1)));
        assert_eq!(of(-4, -1).narrowed(Compare::Sgt, w, of(-3, -3), true), Some(of(-2, -1)));
        assert_eq!(of(-4, -1).narrowed(Compare::Sgt, w, zero, true), None);
        assert_eq!(of(3, 9).narrowed(Compare::Sge, w, of(-1, -1), false), None);
        assert_eq!(of(3, 9).arithmetic(AluOp::Sub, w, of(10, 10)), of(-7, -1));
    }
}
