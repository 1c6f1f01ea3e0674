//! Timestamps and durations: decimal microseconds, with up to three digits after the point.
//!
//! They count from `baseTimeNanoseconds` (ns since 1970), which newer versions of PyTorch write beside the
//! events. The files of one job count from the earliest base of them; `import.rs` shifts the others.

/// A decimal number of microseconds in ns, without the errors of floating-point arithmetic; fractions of a
/// nanosecond are rounded. `None` if it is no number or out of range.
pub(super) fn nanoseconds(text: &[u8]) -> Option<i64> {
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (mut digits, mut exponent, mut point, mut any) = (0i128, 3i32, false, false);
    let mut rest = rest.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'0'..=b'9' => {
                any = true;
                if digits < i128::MAX / 16 {
                    digits = digits * 10 + i128::from(byte - b'0');
                    exponent -= i32::from(point);
                } else {
                    exponent += i32::from(!point);
                }
            }
            b'.' if !point => point = true,
            b'e' | b'E' => {
                let power = std::str::from_utf8(rest.as_slice()).ok()?;
                exponent = exponent.checked_add(power.parse().ok()?)?;
                break;
            }
            _ => return None,
        }
    }
    if !any {
        return None;
    }
    let ns = match exponent {
        0.. => digits.checked_mul(10i128.checked_pow(exponent.unsigned_abs())?)?,
        _ => {
            let scale = 10i128.checked_pow(exponent.unsigned_abs()).unwrap_or(i128::MAX);
            // Half a nanosecond is rounded up.
            digits / scale + i128::from(digits % scale >= scale - scale / 2)
        }
    };
    i64::try_from(if negative { -ns } else { ns }).ok()
}
