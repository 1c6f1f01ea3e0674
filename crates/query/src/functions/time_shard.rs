//! Which intervals of equal width a time lies in, and a duration touches.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, Int64Array, Int64Builder, ListBuilder};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::ColumnarValue;

/// Intervals that one row may touch; a row that touches more was not meant.
const MOST: i64 = 1 << 16;

/// The columns of the arguments, as whole numbers.
fn columns(args: &[ColumnarValue]) -> Result<Vec<Int64Array>> {
    let arrays = ColumnarValue::values_to_arrays(args)?;
    Ok(arrays.iter().map(|array| array.as_primitive::<Int64Type>().clone()).collect())
}

/// The number of the interval; an error if there is none.
fn shard(ts: i64, origin: i64, width: i64) -> Result<i64> {
    if width <= 0 {
        return exec_err!("intervals are {width} ns wide; they must be wider than 0");
    }
    match ts.checked_sub(origin) {
        Some(since) => Ok(since.div_euclid(width)),
        None => exec_err!("from {origin} to {ts} is more than 292 years"),
    }
}

fn given<const N: usize>(columns: &[Int64Array], row: usize) -> Option<[i64; N]> {
    let mut values = [0; N];
    for (value, column) in values.iter_mut().zip(columns) {
        *value = column.is_valid(row).then(|| column.value(row))?;
    }
    Some(values)
}

/// `time_shard(ts, origin, width)`.
pub fn time_shard(args: &[ColumnarValue]) -> Result<ColumnarValue> {
    let columns = columns(args)?;
    let mut out = Int64Builder::with_capacity(columns[0].len());
    for row in 0..columns[0].len() {
        let number = match given(&columns, row) {
            Some([ts, origin, width]) => Some(shard(ts, origin, width)?),
            None => None,
        };
        out.append_option(number);
    }
    Ok(ColumnarValue::Array(Arc::new(out.finish())))
}

/// `time_shards(ts, dur, origin, width)`.
pub fn time_shards(args: &[ColumnarValue]) -> Result<ColumnarValue> {
    let columns = columns(args)?;
    let mut out = ListBuilder::new(Int64Builder::with_capacity(columns[0].len()));
    for row in 0..columns[0].len() {
        let Some([ts, dur, origin, width]) = given(&columns, row) else {
            out.append_null();
            continue;
        };
        let first = shard(ts, origin, width)?;
        // What takes no time lies where it begins.
        let last = shard(ts.saturating_add((dur - 1).max(0)), origin, width)?;
        if last - first >= MOST {
            return exec_err!(
                "{dur} ns from {ts} touch {} intervals of {width} ns; {MOST} are the most",
                last - first + 1
            );
        }
        (first..=last).for_each(|number| out.values().append_value(number));
        out.append(true);
    }
    Ok(ColumnarValue::Array(Arc::new(out.finish())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_origin_lie_in_intervals_of_negative_number() {
        let shards: Vec<i64> = [-11, -10, -1, 0, 9, 10].map(|ts| shard(ts, 0, 10).unwrap()).into();
        assert_eq!(shards, [-2, -1, -1, 0, 0, 1]);
        assert!(shard(1, 0, 0).unwrap_err().to_string().contains("0 ns wide"));
        assert!(shard(i64::MIN, 1, 10).unwrap_err().to_string().contains("292 years"));
    }
}
