//! What one device did in one interval, from its work in any order.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Fields, Int64Type};
use datafusion::common::scalar::ScalarStructBuilder;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::Accumulator;
use gpuwhy_derive::Sum;
use gpuwhy_derive::sweep::{ALL_KINDS, is_copy};
use gpuwhy_derive::tally::{Tally, work_of};

use super::{part_value, parts_of};

/// The fields of the struct.
pub fn fields() -> Fields {
    let mut names: Vec<String> =
        ["kernel_ns", "copy_ns", "exposed_ns", "overlapped_ns", "idle_ns"].map(Into::into).into();
    let mut types = vec![DataType::Int64; names.len()];
    for kind in ["kernel", "copy"] {
        names.push(if kind == "kernel" { "kernels".into() } else { "copies".into() });
        types.push(DataType::UInt64);
        for (of, data) in [
            ("sum", DataType::Int64),
            ("mean", DataType::Float64),
            ("min", DataType::Int64),
            ("max", DataType::Int64),
            ("std", DataType::Float64),
        ] {
            names.push(format!("{kind}_{of}_ns"));
            types.push(data);
        }
    }
    for kind in ALL_KINDS.into_iter().filter(|kind| is_copy(*kind)) {
        names.push(format!("exposed_{}_ns", kind.as_str()));
        types.push(DataType::Int64);
    }
    names.push("part".into());
    types.push(DataType::Binary);
    names.into_iter().zip(types).map(|(name, data)| Field::new(name, data, true)).collect()
}

/// `device_interval(copy_kind, ts, dur, bytes, origin, width)`: the interval comes with every row.
#[derive(Debug, Default)]
pub struct Interval(Option<Tally>);

fn same(tally: &Tally, window: &std::ops::Range<i64>) -> Result<()> {
    if tally.window() == *window {
        return Ok(());
    }
    exec_err!(
        "device_interval: rows of the intervals at {} and {} are in one group; group by interval",
        tally.window().start,
        window.start
    )
}

impl Accumulator for Interval {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let kinds: &StringArray = values[0].as_string();
        let [starts, durs, bytes, origins, widths] =
            [1, 2, 3, 4, 5].map(|i| values[i].as_primitive::<Int64Type>());
        for row in 0..kinds.len() {
            if [starts, durs, origins, widths].iter().any(|column| column.is_null(row)) {
                continue;
            }
            let (start, origin) = (starts.value(row), origins.value(row));
            let Some(end) = origin.checked_add(widths.value(row)).filter(|end| *end > origin)
            else {
                return exec_err!(
                    "device_interval: an interval at {origin} cannot be {} ns wide",
                    widths.value(row)
                );
            };
            let word = kinds.is_valid(row).then(|| kinds.value(row));
            let Some(work) = work_of(word) else {
                return exec_err!("device_interval: no copy is of kind {:?}", word.unwrap_or(""));
            };
            let tally = self.0.get_or_insert_with(|| Tally::new(origin..end));
            same(tally, &(origin..end))?;
            let moved = if bytes.is_valid(row) { bytes.value(row).max(0) as u64 } else { 0 };
            tally.push(work, start, start.saturating_add(durs.value(row)), moved);
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for part in parts_of::<Tally>(&states[0])? {
            match &mut self.0 {
                Some(tally) => {
                    same(tally, &part.window())?;
                    tally.merge(part);
                }
                None => self.0 = Some(part),
            }
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.0.as_ref().map_or(ScalarValue::Binary(None), part_value)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Some(tally) = &self.0 else { return Ok(ScalarStructBuilder::new_null(fields())) };
        let sums = tally.finish();
        let ns = |value: i64| ScalarValue::Int64(Some(value));
        let idle = tally.window().end - tally.window().start - sums.busy_ns();
        let mut values = vec![
            ns(sums.kernel_ns),
            ns(sums.copy_ns),
            ns(sums.exposed_ns),
            ns(sums.overlapped_ns()),
            ns(idle),
        ];
        let mut add = |sum: Sum| {
            // Nothing has no mean, no least and no greatest.
            let some = sum.count > 0;
            values.push(ScalarValue::UInt64(Some(sum.count)));
            values.push(ns(sum.sum));
            values.push(ScalarValue::Float64(some.then(|| sum.mean())));
            values.push(ScalarValue::Int64(some.then_some(sum.min)));
            values.push(ScalarValue::Int64(some.then_some(sum.max)));
            values.push(ScalarValue::Float64(some.then(|| sum.std())));
        };
        add(sums.kernels);
        add(sums.all_copies());
        let kinds = ALL_KINDS.into_iter().zip(sums.exposed_by);
        values.extend(kinds.filter(|(kind, _)| is_copy(*kind)).map(|(_, exposed)| ns(exposed)));
        values.push(part_value(&sums));
        super::structure(&fields(), values)
    }

    fn size(&self) -> usize {
        size_of::<Interval>() + self.0.as_ref().map_or(0, Tally::size)
    }
}
