//! Timestamps and durations: decimal microseconds, with up to three digits after the point.
//!
//! They count from `baseTimeNanoseconds` (ns since 1970), which newer versions of PyTorch write beside the
//! events. The files of one job count from the earliest base of them; `import.rs` shifts the others.

use crate::left_out::{NO_TIME, OUT_OF_RANGE};

/// Times from here on, 146 years from where they count, are garbage. Differences of times below fit 64 bits.
const LIMIT: i64 = 1 << 62;

/// A time or duration, as an event has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Time {
    /// The event has none.
    #[default]
    Missing,
    /// In ns.
    Ns(i64),
    /// It is not a number: NaN, null, a text.
    NotANumber,
    /// It is a number that no time has: 1e999.
    OutOfRange,
}

impl Time {
    /// Of the text of a number of microseconds.
    pub fn of(text: &[u8]) -> Time {
        match nanoseconds(text) {
            Some(ns) if ns.unsigned_abs() < LIMIT.unsigned_abs() => Time::Ns(ns),
            Some(_) => Time::OutOfRange,
            None => match std::str::from_utf8(text).map(str::parse::<f64>) {
                Ok(Ok(_)) => Time::OutOfRange,
                _ => Time::NotANumber,
            },
        }
    }

    /// In ns, moved by `shift`.
    ///
    /// # Errors
    /// Why it is no time.
    pub fn moved(self, shift: i64) -> Result<i64, &'static str> {
        let moved = |ns: i64| ns.checked_add(shift).filter(|ns| (-LIMIT..LIMIT).contains(ns));
        match self {
            Time::Ns(ns) => moved(ns).ok_or(OUT_OF_RANGE),
            Time::Missing => Err(NO_TIME),
            Time::NotANumber => Err("time is not a number"),
            Time::OutOfRange => Err(OUT_OF_RANGE),
        }
    }

    /// As a duration.
    ///
    /// # Errors
    /// Why it is none.
    pub fn duration(self) -> Result<i64, &'static str> {
        match self {
            Time::Ns(ns) if ns >= 0 => Ok(ns),
            Time::Ns(_) => Err("negative duration"),
            Time::Missing => Err("no duration"),
            Time::NotANumber => Err("duration is not a number"),
            Time::OutOfRange => Err("duration out of range"),
        }
    }
}

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
