//! C strings, read with a bound, and numbers in digits, without allocation.

use core::ffi::c_char;

use super::names::BYTES;

/// The text of a C string, cut to what a name may have; empty for null.
///
/// # Safety
/// `at` must be null or a C string; no more of it is read than `buffer` holds.
pub unsafe fn text(at: *const c_char, buffer: &mut [u8; BYTES]) -> &[u8] {
    if at.is_null() {
        return &[];
    }
    let mut n = 0;
    while n < BYTES {
        // SAFETY: within the string, whose end has not been met.
        let byte = unsafe { at.add(n).read() } as u8;
        if byte == 0 {
            break;
        }
        buffer[n] = byte;
        n += 1;
    }
    &buffer[..n]
}

/// `n` in digits.
pub fn decimal(n: u8, buffer: &mut [u8; 3]) -> &[u8] {
    let mut at = 3;
    let mut rest = n;
    while at == 3 || rest != 0 {
        at -= 1;
        buffer[at] = b'0' + rest % 10;
        rest /= 10;
    }
    &buffer[at..]
}

/// Bytes of an element: the first number in `ncclInt8`, `ncclBfloat16`, `ncclFloat8e4m3` is its size in
/// bits; 0 for types without one.
pub fn element_bytes(datatype: &[u8]) -> u64 {
    let digit = |b: &u8| b.is_ascii_digit();
    let digits = datatype.iter().skip_while(|b| !digit(b)).take_while(|b| digit(b)).take(4);
    digits.fold(0, |n, b| n * 10 + (b - b'0') as u64) / 8
}
