//! Floating-point numbers of every format and rounding that PTX has, in integers.
//!
//! A number is taken apart into an exact value, an operation gives an exact value or one with a
//! sticky bit far below the last place of any format, and that is rounded once.

/// How a number is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    F16,
    Bf16,
    /// The upper 19 bits of a word of 32.
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
}

/// Where a number between two neighbours goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    /// To the nearest, half away from zero (`.rna`).
    Away,
    Zero,
    Down,
    Up,
}

impl Format {
    /// Bits of a value in memory.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Format::F64 => 64,
            Format::F32 | Format::Tf32 => 32,
            Format::F16 | Format::Bf16 => 16,
            Format::E4m3 | Format::E5m2 => 8,
        }
    }

    /// Bits of the exponent and of the fraction.
    fn layout(self) -> (u32, u32) {
        match self {
            Format::F64 => (11, 52),
            Format::F32 => (8, 23),
            Format::Tf32 => (8, 10),
            Format::Bf16 => (8, 7),
            Format::F16 => (5, 10),
            Format::E4m3 => (4, 3),
            Format::E5m2 => (5, 2),
        }
    }

    /// Bits below the fraction.
    fn unused(self) -> u32 {
        if self == Format::Tf32 { 13 } else { 0 }
    }

    fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// What a result that is no number looks like.
    pub(crate) fn nan(self) -> u64 {
        match self {
            Format::F64 => 0x7ff8_0000_0000_0000,
            Format::F32 | Format::Tf32 => 0x7fff_ffff,
            Format::F16 | Format::Bf16 => 0x7fff,
            Format::E4m3 | Format::E5m2 => 0x7f,
        }
    }

    fn infinity(self) -> u64 {
        let (exponent, fraction) = self.layout();
        if self == Format::E4m3 {
            return 0x7f;
        }
        ((1 << exponent) - 1) << fraction << self.unused()
    }

    fn largest(self) -> u64 {
        if self == Format::E4m3 {
            return 0x7e;
        }
        (self.infinity() >> self.unused()).wrapping_sub(1) << self.unused()
    }

    pub(crate) fn is_nan(self, value: u64) -> bool {
        matches!(self.unpack(value), Real::Nan)
    }

    /// A subnormal number becomes zero of its sign.
    pub(crate) fn flush(self, value: u64) -> u64 {
        let (exponent, fraction) = self.layout();
        let field = value >> (fraction + self.unused()) & ((1 << exponent) - 1);
        if field == 0 { value & self.sign() } else { value }
    }

    pub(crate) fn unpack(self, value: u64) -> Real {
        let (exponent, fraction) = self.layout();
        let value_at = value >> self.unused();
        let negative = value & self.sign() != 0;
        let (full, bias) = ((1_u64 << exponent) - 1, (1_i32 << (exponent - 1)) - 1);
        let field = value_at >> fraction & full;
        let man = value_at & ((1 << fraction) - 1);
        if self == Format::E4m3 {
            if field == full && man == 7 {
                return Real::Nan;
            }
        } else if field == full {
            return if man == 0 { Real::Infinite(negative) } else { Real::Nan };
        }
        let (man, field) = if field == 0 { (man, 1) } else { (man | 1 << fraction, field) };
        Real::Number { negative, man: u128::from(man), exp: field as i32 - bias - fraction as i32 }
    }

    /// The number of this format that `real` is rounded to; beyond the largest it stays the largest
    /// where `finite` says so.
    pub(crate) fn pack(self, real: Real, round: Round, finite: bool) -> u64 {
        let (exponent, fraction) = self.layout();
        let bias = (1_i32 << (exponent - 1)) - 1;
        let signed = |negative: bool, bits: u64| bits | if negative { self.sign() } else { 0 };
        let (negative, man, exp) = match real {
            Real::Nan => return self.nan(),
            Real::Infinite(negative) if finite => return signed(negative, self.largest()),
            Real::Infinite(negative) => return signed(negative, self.infinity()),
            Real::Number { negative, man: 0, .. } => return signed(negative, 0),
            Real::Number { negative, man, exp } => (negative, man, exp),
        };
        let top = exp + 127 - man.leading_zeros() as i32;
        let mut unit = top.max(1 - bias) - fraction as i32;
        let mut kept = rounded(man, unit - exp, negative, round) as u64;
        if kept >> (fraction + 1) != 0 {
            kept >>= 1;
            unit += 1;
        }
        let field = unit + fraction as i32 + bias;
        let highest = (1 << exponent) - if self == Format::E4m3 { 1 } else { 2 };
        let beyond = field > highest || self == Format::E4m3 && field == highest && kept == 0b1111;
        if beyond {
            let inward = match round {
                Round::Zero => true,
                Round::Down => !negative,
                Round::Up => negative,
                Round::Nearest | Round::Away => false,
            };
            let end = if inward || finite { self.largest() } else { self.infinity() };
            return signed(negative, end);
        }
        let field = if kept >> fraction == 0 { 0 } else { field as u64 };
        let bits = field << fraction | kept & ((1 << fraction) - 1);
        signed(negative, bits << self.unused())
    }
}

/// `man / 2^shift`, rounded.
fn rounded(man: u128, shift: i32, negative: bool, round: Round) -> u128 {
    if shift <= 0 {
        return man << (-shift).min(127);
    }
    if shift > 127 {
        let up = matches!((round, negative), (Round::Down, true) | (Round::Up, false));
        return u128::from(up);
    }
    let kept = man >> shift;
    let rest = man & ((1 << shift) - 1);
    let half = 1_u128 << (shift - 1);
    let up = match round {
        Round::Nearest => rest > half || rest == half && kept & 1 == 1,
        Round::Away => rest >= half,
        Round::Zero => false,
        Round::Down => negative && rest != 0,
        Round::Up => !negative && rest != 0,
    };
    kept + u128::from(up)
}

/// A value: `man * 2^exp`, or what is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Real {
    Nan,
    Infinite(bool),
    Number { negative: bool, man: u128, exp: i32 },
}

impl Real {
    pub(crate) fn integer(negative: bool, magnitude: u128) -> Self {
        Real::Number { negative, man: magnitude, exp: 0 }
    }

    pub(crate) fn negated(self) -> Self {
        match self {
            Real::Nan => Real::Nan,
            Real::Infinite(negative) => Real::Infinite(!negative),
            Real::Number { negative, man, exp } => Real::Number { negative: !negative, man, exp },
        }
    }

    /// The nearest whole number in the direction of `round`, with its sign.
    pub(crate) fn whole(self, round: Round) -> Self {
        match self {
            Real::Number { negative, man, exp } if exp < 0 => {
                Real::Number { negative, man: rounded(man, -exp, negative, round), exp: 0 }
            }
            other => other,
        }
    }

    pub(crate) fn mul(self, other: Self) -> Self {
        match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) => Real::Nan,
            (Real::Infinite(a), Real::Infinite(b)) => Real::Infinite(a != b),
            (Real::Infinite(a), Real::Number { negative, man, .. })
            | (Real::Number { negative, man, .. }, Real::Infinite(a)) => {
                if man == 0 {
                    Real::Nan
                } else {
                    Real::Infinite(a != negative)
                }
            }
            (
                Real::Number { negative: a, man, exp },
                Real::Number { negative: b, man: other, exp: by },
            ) => Real::Number { negative: a != b, man: man * other, exp: exp + by },
        }
    }

    /// The sum; of two values that cancel it is zero, negative where `round` is downward.
    pub(crate) fn add(self, other: Self, round: Round) -> Self {
        let (a, b) = match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) => return Real::Nan,
            (Real::Infinite(a), Real::Infinite(b)) => {
                return if a == b { Real::Infinite(a) } else { Real::Nan };
            }
            (Real::Infinite(a), _) | (_, Real::Infinite(a)) => return Real::Infinite(a),
            (
                Real::Number { negative: a, man: 0, .. },
                Real::Number { negative: b, man: 0, .. },
            ) => {
                let negative = if a == b { a } else { round == Round::Down };
                return Real::Number { negative, man: 0, exp: 0 };
            }
            (zero @ Real::Number { man: 0, .. }, number)
            | (number, zero @ Real::Number { man: 0, .. }) => {
                let _ = zero;
                return number;
            }
            (a, b) => (a.normal(), b.normal()),
        };
        let (large, small) = if b.1.1 > a.1.1 { (b, a) } else { (a, b) };
        let ((big_sign, (big, exp)), (small_sign, (little, from))) = (large, small);
        let little = jam(little, (exp - from) as u32);
        // Their tops are at bit 125, so a sum has room.
        if big_sign == small_sign {
            return Real::Number { negative: big_sign, man: big + little, exp };
        }
        let (negative, man) = match big.cmp(&little) {
            std::cmp::Ordering::Equal => (round == Round::Down, 0),
            std::cmp::Ordering::Greater => (big_sign, big - little),
            std::cmp::Ordering::Less => (small_sign, little - big),
        };
        Real::Number { negative, man, exp }
    }

    /// The sign, and the value with its top at bit 125.
    fn normal(self) -> (bool, (u128, i32)) {
        match self {
            Real::Number { negative, man, exp } if man != 0 => {
                let up = man.leading_zeros() as i32 - 2;
                let man = if up >= 0 { man << up } else { jam(man, (-up) as u32) };
                (negative, (man, exp - up))
            }
            _ => (false, (0, i32::MIN / 2)),
        }
    }

    pub(crate) fn div(self, other: Self) -> Self {
        match (self, other) {
            (Real::Nan, _) | (_, Real::Nan) | (Real::Infinite(_), Real::Infinite(_)) => Real::Nan,
            (Real::Infinite(a), Real::Number { negative, .. }) => Real::Infinite(a != negative),
            (Real::Number { negative, .. }, Real::Infinite(b)) => {
                Real::Number { negative: negative != b, man: 0, exp: 0 }
            }
            (
                Real::Number { negative: a, man, exp },
                Real::Number { negative: b, man: by, exp: below },
            ) => match (man, by) {
                (0, 0) => Real::Nan,
                (_, 0) => Real::Infinite(a != b),
                (0, _) => Real::Number { negative: a != b, man: 0, exp: 0 },
                _ => {
                    let up = man.leading_zeros() - 1;
                    let man = man << up;
                    // A divisor has at most 53 bits, so the quotient has more than 70.
                    let sticky = u128::from(!man.is_multiple_of(by));
                    let man = (man / by) << 1 | sticky;
                    Real::Number { negative: a != b, man, exp: exp - up as i32 - below - 1 }
                }
            },
        }
    }

    pub(crate) fn sqrt(self) -> Self {
        match self {
            Real::Number { man: 0, .. } | Real::Infinite(false) => self,
            Real::Number { negative: false, man, exp } => {
                let mut up = man.leading_zeros() as i32 - 2;
                if (exp - up) % 2 != 0 {
                    up -= 1;
                }
                let man = man << up;
                let root = man.isqrt();
                let sticky = u128::from(root * root != man);
                Real::Number { negative: false, man: root << 1 | sticky, exp: (exp - up) / 2 - 1 }
            }
            _ => Real::Nan,
        }
    }
}

/// `man >> by`, with what falls off kept as a last bit.
fn jam(man: u128, by: u32) -> u128 {
    if by == 0 {
        return man;
    }
    if by > 127 {
        return u128::from(man != 0);
    }
    man >> by | u128::from(man & ((1 << by) - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut z = *state;
        z = (z ^ (z >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        z ^ (z >> 33)
    }

    /// The processor rounds to nearest; what it computes is what comes out here, subnormal numbers,
    /// infinities and cancellation included.
    #[test]
    fn rounded_to_nearest_it_agrees_with_the_processor() {
        let mut state = 1;
        let near = |f: Format, r: Real| f.pack(r, Round::Nearest, false);
        for n in 0..200_000 {
            let (mut a, mut b, c) = (random(&mut state), random(&mut state), random(&mut state));
            if n % 4 == 1 {
                // Exponents close to each other.
                b = a & 0xfff0_0000_0000_0000 ^ b & 0x801f_ffff_ffff_ffff;
            }
            if n % 4 == 2 {
                a &= 0x801f_ffff_ffff_ffff;
            }
            let (fa, fb, fc) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
            let [ra, rb, rc] = [a, b, c].map(|v| Format::F64.unpack(v));
            let fused = ra.mul(rb).add(rc, Round::Nearest);
            for (ours, theirs) in [
                (ra.add(rb, Round::Nearest), fa + fb),
                (ra.mul(rb), fa * fb),
                (fused, fa.mul_add(fb, fc)),
                (ra.div(rb), fa / fb),
                (ra.sqrt(), fa.sqrt()),
            ] {
                let ours = near(Format::F64, ours);
                assert!(
                    ours == theirs.to_bits() || theirs.is_nan() && Format::F64.is_nan(ours),
                    "{fa:e} {fb:e} {fc:e}: {:e}, not {theirs:e}",
                    f64::from_bits(ours)
                );
            }
            let narrow = near(Format::F32, ra);
            assert!(narrow == u64::from((fa as f32).to_bits()) || fa.is_nan());
            let (ga, gb) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let [ra, rb] = [a, b].map(|v| Format::F32.unpack(v & 0xffff_ffff));
            let sum = near(Format::F32, ra.add(rb, Round::Nearest));
            assert!(sum == u64::from((ga + gb).to_bits()) || (ga + gb).is_nan());
        }
    }

    #[test]
    fn directed_rounding_encloses_the_nearest() {
        let mut state = 7;
        for _ in 0..100_000 {
            let a = Format::F32.unpack(random(&mut state) & 0xffff_ffff);
            let b = Format::F32.unpack(random(&mut state) & 0xffff_ffff);
            let product = a.mul(b);
            let at = |round| f32::from_bits(Format::F32.pack(product, round, false) as u32);
            let (down, near, up) = (at(Round::Down), at(Round::Nearest), at(Round::Up));
            if near.is_nan() {
                continue;
            }
            assert!(down <= near && near <= up, "{down:e} {near:e} {up:e}");
            assert!(at(Round::Zero) == if near.is_sign_negative() { up } else { down });
            let next = if down == up { up } else { down.next_up() };
            assert!(next == up || up.is_infinite(), "{down:e} {up:e} are no neighbours");
        }
    }

    /// Values from the formats' definitions (OCP FP8, IEEE binary16, bfloat16).
    #[test]
    fn small_formats_have_their_largest_and_smallest_numbers() {
        let of = |x: f64| Format::F64.unpack(x.to_bits());
        let pack = |f: Format, x: f64, finite| f.pack(of(x), Round::Nearest, finite);
        assert_eq!(pack(Format::F16, 65504.0, false), 0x7bff);
        assert_eq!(pack(Format::F16, 65520.0, false), 0x7c00);
        assert_eq!(pack(Format::F16, 2f64.powi(-24), false), 1);
        assert_eq!(pack(Format::F16, 2f64.powi(-25), false), 0);
        assert_eq!(pack(Format::Bf16, 1.0, false), 0x3f80);
        assert_eq!(pack(Format::Bf16, 3.4e38, false), 0x7f80);
        assert_eq!(pack(Format::E4m3, 448.0, true), 0x7e);
        assert_eq!(pack(Format::E4m3, 1e6, true), 0x7e);
        assert_eq!(pack(Format::E4m3, -0.001953125, true), 0x81);
        assert_eq!(pack(Format::E5m2, 57344.0, true), 0x7b);
        assert_eq!(pack(Format::E5m2, 1e9, false), 0x7c);
        assert_eq!(pack(Format::Tf32, 1.0 + 2f64.powi(-11), false), 0x3f80_0000);
        let away = Format::Tf32.pack(of(1.0 + 2f64.powi(-11)), Round::Away, false);
        assert_eq!(away, 0x3f80_2000);
        for bits in 0..=0xffff_u64 {
            for format in [Format::F16, Format::Bf16] {
                let real = format.unpack(bits);
                let back = format.pack(real, Round::Zero, false);
                assert!(back == bits || real == Real::Nan, "{bits:#x}");
            }
        }
    }
}
