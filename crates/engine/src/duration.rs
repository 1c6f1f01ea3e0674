//! Lengths of time as users write them.

use std::str::FromStr;
use std::time::Duration;

/// `30s`, `500ms`, `5m`, `2h`, or a number of seconds.
///
/// # Errors
/// What is wrong with `text`, and how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a duration; write it like `30s`"))?;
    let seconds = match unit {
        "" | "s" => number,
        "ms" => number / 1e3,
        "us" | "µs" | "μs" => number / 1e6,
        "ns" => number / 1e9,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(format!("`{unit}` is not a unit of time; use ns, us, ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` is too long"))
}

/// `200/10000`: 200 ms out of every 10 s.
///
/// # Errors
/// How to write it.
pub fn share_of_time(text: &str) -> Result<(u32, u32), String> {
    let parse = || {
        let (on, every) = text.split_once('/')?;
        let (on, every): (u32, u32) = (on.trim().parse().ok()?, every.trim().parse().ok()?);
        (on > 0 && on <= every).then_some((on, every))
    };
    parse().ok_or_else(|| "write ON/EVERY in ms, such as 200/10000".into())
}

/// What may take how long: `ttft=500ms`.
pub(crate) fn what_and_time<T: FromStr<Err = String>>(text: &str) -> Result<(T, Duration), String> {
    let (what, most) = text.split_once('=').ok_or("ttft=500ms is how it is written")?;
    Ok((what.parse()?, parse_duration(most)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_errors_say_which() {
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("20"), Ok(Duration::from_secs(20)));
        assert!(parse_duration("20 parsecs").unwrap_err().contains("ms, s, m or h"));
        assert_eq!(parse_duration("100us"), Ok(Duration::from_micros(100)));
        // Both letters that look like this are in use: the micro sign and the Greek one.
        assert_eq!(parse_duration("2.5µs"), Ok(Duration::from_nanos(2500)));
        assert_eq!(parse_duration("2.5μs"), Ok(Duration::from_nanos(2500)));
        assert_eq!(parse_duration("700ns"), Ok(Duration::from_nanos(700)));
        assert!(parse_duration("1e99h").is_err());
    }

    #[test]
    fn a_share_of_time_is_on_of_every() {
        assert_eq!(share_of_time("200/10000"), Ok((200, 10_000)));
        for bad in ["", "200", "0/10", "20/10", "a/b", "-1/5"] {
            assert!(share_of_time(bad).is_err(), "{bad}");
        }
    }
}
