//! `mma.sync`: products of small matrices whose elements are spread over the lanes of a warp.
//!
//! Which lane holds which element is said in NVIDIA's PTX ISA reference, section "Matrix Fragments
//! for mma": lane `l` belongs to group `l / 4` and is member `l % 4` of it. All shapes of 16 rows
//! follow one rule, by how many elements a register holds. Sums of floating-point products are
//! computed in 64 bits and rounded once; the hardware's order and rounding are not documented.

use super::code::Mma;
use super::floats::{from_f64, to_f64};
use super::integers::{clamp, number};
use super::types::{Kind, Ty, mask};

/// Values of one register in all lanes.
pub(crate) type Lanes = [u64; 32];

/// Whether a shape is one whose layout is known here.
pub(crate) fn known(m: usize, n: usize, k: usize, a: Ty, b: Ty) -> bool {
    let float = |ty: Ty| matches!(ty.kind, Kind::Float(_));
    match (m, n, k, a.bits, b.bits) {
        (16, 8, 8 | 16, 16, 16) => float(a) && a == b,
        (16, 8, 4 | 8, 32, 32) => float(a) && a == b,
        (16, 8, 16 | 32, 8, 8) => float(a) == float(b) && a.kind != Kind::Bits,
        (8, 8, 4, 64, 64) => float(a) && a == b,
        _ => false,
    }
}

/// How many registers a lane has for `a`, `b`, `c` and `d`.
pub(crate) fn registers(mma: &Mma) -> [usize; 4] {
    let per = |ty: Ty| (ty.bits.max(32) / ty.bits) as usize;
    let results = |ty: Ty| mma.m * mma.n / 32 / per(ty);
    let steps = mma.k / (4 * per(mma.a));
    [steps * (mma.m / 8), steps, results(mma.c), results(mma.d)]
}

/// The product of `a` and `b` with `c` added, as registers of `d`.
pub(crate) fn product(mma: &Mma, a: &[Lanes], b: &[Lanes], c: &[Lanes]) -> Vec<Lanes> {
    let left = |row: usize, k: usize| {
        let per = (mma.a.bits.max(32) / mma.a.bits) as usize;
        let (lane, within) = (row % 8 * 4 + k / per % 4, k % per);
        let register = k / (4 * per) * (mma.m / 8) + row / 8;
        element(a, register, lane, within, mma.a)
    };
    let right = |k: usize, column: usize| {
        let per = (mma.b.bits.max(32) / mma.b.bits) as usize;
        element(b, k / (4 * per), column * 4 + k / per % 4, k % per, mma.b)
    };
    let per = (mma.d.bits.max(32) / mma.d.bits) as usize;
    let mut d = vec![[0; 32]; registers(mma)[3]];
    for row in 0..mma.m {
        for column in 0..mma.n {
            let (lane, at) = (row % 8 * 4 + column / 2, row / 8 * 2 + column % 2);
            let old = place(c, lane, at, mma.c);
            let value = match (mma.a.float(), mma.b.float(), mma.c.float(), mma.d.float()) {
                (Some(fa), Some(fb), Some(fc), Some(fd)) => {
                    let mut sum = to_f64(fc, old);
                    for k in 0..mma.k {
                        sum += to_f64(fa, left(row, k)) * to_f64(fb, right(k, column));
                    }
                    from_f64(fd, sum)
                }
                _ => {
                    let products = (0..mma.k)
                        .map(|k| number(left(row, k), mma.a) * number(right(k, column), mma.b));
                    let sum = number(old, mma.c) + products.sum::<i128>();
                    if mma.sat { clamp(sum, mma.d) } else { mask(sum as u64, mma.d.bits) }
                }
            };
            d[at / per][lane] |= value << (at % per * mma.d.bits as usize);
        }
    }
    d
}

fn element(registers: &[Lanes], register: usize, lane: usize, within: usize, ty: Ty) -> u64 {
    let word = registers.get(register).map_or(0, |lanes| lanes[lane]);
    mask(word >> (within * ty.bits as usize), ty.bits)
}

/// Element `at` of the results that `lane` holds.
fn place(registers: &[Lanes], lane: usize, at: usize, ty: Ty) -> u64 {
    let per = (ty.bits.max(32) / ty.bits) as usize;
    element(registers, at / per, lane, at % per, ty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mma(m: usize, n: usize, k: usize, ty: &str, c: &str) -> Mma {
        let (a, c) = (Ty::parse(ty).unwrap(), Ty::parse(c).unwrap());
        let src = [Vec::new(), Vec::new(), Vec::new()];
        Mma { m, n, k, a, b: a, c, d: c, sat: false, dst: Vec::new(), src }
    }

    /// The layout of m16n8k16 as the reference draws it: a row, b column, c rows.
    #[test]
    fn halves_lie_where_the_reference_draws_them() {
        let shape = mma(16, 8, 16, "f16", "f32");
        assert_eq!(registers(&shape), [4, 2, 4, 4]);
        // a[9][10] = 2 lies in lane 5 (group 1, member 1), register a3, lower half.
        let mut a = vec![[0; 32]; 4];
        a[3][5] = 0x4000;
        // b[10][4] = 3 lies in lane 17 (group 4, member 1), register b1, lower half.
        let mut b = vec![[0; 32]; 2];
        b[1][17] = 0x4200;
        let mut c = vec![[0; 32]; 4];
        // c[9][4] is c2 of lane 6 (group 1, member 2).
        c[2][6] = u64::from(0.5f32.to_bits());
        let d = product(&shape, &a, &b, &c);
        assert_eq!(d[2][6], u64::from(6.5f32.to_bits()));
        let others = d.iter().flatten().filter(|&&value| value != 0).count();
        assert_eq!(others, 1);
    }

    #[test]
    fn bytes_and_doubles_lie_where_the_reference_draws_them() {
        let shape = mma(16, 8, 32, "s8", "s32");
        assert_eq!(registers(&shape), [4, 2, 4, 4]);
        // a[0][17] = -2: lane 0, register a2, byte 1. b[17][1] = 5: lane 4, register b1, byte 1.
        let (mut a, mut b) = (vec![[0; 32]; 4], vec![[0; 32]; 2]);
        a[2][0] = 0xfe00;
        b[1][4] = 0x0500;
        let d = product(&shape, &a, &b, &vec![[0; 32]; 4]);
        assert_eq!(d[1][0], u64::from(-10_i32 as u32));
        let shape = mma(8, 8, 4, "f64", "f64");
        assert_eq!(registers(&shape), [1, 1, 2, 2]);
        let (mut a, mut b) = (vec![[0; 32]; 1], vec![[0; 32]; 1]);
        a[0][7 * 4 + 3] = 2f64.to_bits();
        b[0][5 * 4 + 3] = 4f64.to_bits();
        let d = product(&shape, &a, &b, &vec![[0; 32]; 2]);
        assert_eq!(d[1][7 * 4 + 2], 8f64.to_bits());
        assert!(!known(16, 8, 64, Ty::parse("s8").unwrap(), Ty::parse("s8").unwrap()));
    }
}
