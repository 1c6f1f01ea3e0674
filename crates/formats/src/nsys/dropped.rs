//! Rows of a report that do not come into the trace, counted by table and reason.

use std::collections::BTreeMap;

use crate::sqlite::Value;

/// Times of a report lie within this of its beginning, ns: 146 years. What lies beyond is damage, and
/// sums and differences of times could not be told any more.
const FARTHEST: i64 = 1 << 62;

/// Why a row is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// Its start is missing, or no number.
    NoTime,
    /// Its end is no number.
    NoEnd,
    /// Its start or end lies too far away.
    Far,
    /// It ends before it begins.
    Reversed,
    /// It does not say of what it is: of which thread, sample or metric.
    OfNothing,
    /// It is of a kind that is not known.
    UnknownKind,
    /// The call chain is too deep.
    DeepChain,
    /// The trace has too many different call chains already.
    ManyChains,
    /// Another report says it of the same thread.
    ToldTwice,
}

impl Why {
    /// As it is said after the name of the table.
    fn says(self) -> &'static str {
        match self {
            Why::NoTime => "without a time",
            Why::NoEnd => "whose end is no number",
            Why::Far => "with a time that is more than 146 years away",
            Why::Reversed => "that end before they begin",
            Why::OfNothing => "that do not say of which thread, sample or metric they are",
            Why::UnknownKind => "of a kind that is not known",
            Why::DeepChain => "of call chains of more than 1024 functions",
            Why::ManyChains => "of call chains beyond the limit of 4194304 different ones",
            Why::ToldTwice => "of threads whose states another report holds",
        }
    }
}

/// A time of a row.
pub(super) fn time(value: Value<'_>) -> Result<i64, Why> {
    match value {
        Value::Int(n) if n.unsigned_abs() <= FARTHEST as u64 => Ok(n),
        Value::Int(_) => Err(Why::Far),
        // 2^63 in an SQLite column is a floating-point number.
        Value::Real(n) if n.is_finite() && n.abs() >= 9e15 => Err(Why::Far),
        other => other.int().ok_or(Why::NoTime),
    }
}

/// The end of a row; `None` if it has none.
pub(super) fn end(value: Value<'_>) -> Result<Option<i64>, Why> {
    match value {
        Value::Null => Ok(None),
        value => {
            time(value).map(Some).map_err(|why| if why == Why::NoTime { Why::NoEnd } else { why })
        }
    }
}

/// How many rows of each table are left out, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped(BTreeMap<(&'static str, Why), u64>);

impl Dropped {
    /// Counts rows of a table.
    pub fn add(&mut self, table: &'static str, why: Why, rows: u64) {
        if rows > 0 {
            *self.0.entry((table, why)).or_default() += rows;
        }
    }

    /// Adds what was counted elsewhere.
    pub fn merge(&mut self, other: Dropped) {
        for ((table, why), rows) in other.0 {
            self.add(table, why, rows);
        }
    }

    /// Calls `each` with every reason and how many rows are left out for it.
    pub fn each(&self, mut each: impl FnMut(String, u64)) {
        for ((table, why), rows) in &self.0 {
            each(format!("{table} {}", why.says()), *rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_within_146_years() {
        assert_eq!(time(Value::Int(-5)), Ok(-5));
        assert_eq!(time(Value::Real(7.0)), Ok(7));
        assert_eq!(time(Value::Int(1 << 62)), Ok(1 << 62));
        for far in
            [Value::Int(i64::MIN), Value::Int(i64::MAX), Value::Real(9_223_372_036_854_775_808.0)]
        {
            assert_eq!(time(far), Err(Why::Far), "{far:?}");
        }
        for none in [Value::Null, Value::Text(b"5"), Value::Real(0.5), Value::Real(f64::NAN)] {
            assert_eq!(time(none), Err(Why::NoTime), "{none:?}");
        }
        assert_eq!(end(Value::Null), Ok(None));
        assert_eq!(end(Value::Text(b"x")), Err(Why::NoEnd));
    }
}
