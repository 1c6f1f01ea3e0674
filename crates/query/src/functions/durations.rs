//! Statistics and quantiles of durations as aggregates whose parts merge to the last digit.

use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, Fields, Float64Type, Int64Type};
use datafusion::common::scalar::ScalarStructBuilder;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::Accumulator;
use gpuwhy_derive::{Quantiles, Stretches, Sum};

use super::{part_value, parts_of};

/// The fields of the struct of `duration_stats`.
pub fn fields() -> Fields {
    let field = |name: &str, of: DataType| Field::new(name, of, true);
    [
        field("count", DataType::UInt64),
        field("sum", DataType::Int64),
        field("mean", DataType::Float64),
        field("min", DataType::Int64),
        field("max", DataType::Int64),
        field("std", DataType::Float64),
        field("p50", DataType::Float64),
        field("p95", DataType::Float64),
        field("p99", DataType::Float64),
        field("exact", DataType::Boolean),
        field("sum_part", DataType::Binary),
        field("quantiles_part", DataType::Binary),
    ]
    .into_iter()
    .collect()
}

/// `duration_stats(dur)`.
#[derive(Debug, Default)]
pub struct Stats {
    sum: Sum,
    quantiles: Quantiles,
}

impl Accumulator for Stats {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for dur in values[0].as_primitive::<Int64Type>().iter().flatten() {
            self.sum.add(dur);
            self.quantiles.add(dur);
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        parts_of::<Sum>(&states[0])?.iter().for_each(|part| self.sum.merge(part));
        parts_of::<Quantiles>(&states[1])?.iter().for_each(|part| self.quantiles.merge(part));
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![part_value(&self.sum), part_value(&self.quantiles)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Stats { sum, quantiles } = self;
        if sum.count == 0 {
            return Ok(ScalarStructBuilder::new_null(fields()));
        }
        let quantile = |q| ScalarValue::Float64(Some(quantiles.quantile(q)));
        let values = [
            ScalarValue::UInt64(Some(sum.count)),
            ScalarValue::Int64(Some(sum.sum)),
            ScalarValue::Float64(Some(sum.mean())),
            ScalarValue::Int64(Some(sum.min)),
            ScalarValue::Int64(Some(sum.max)),
            ScalarValue::Float64(Some(sum.std())),
            quantile(0.5),
            quantile(0.95),
            quantile(0.99),
            ScalarValue::Boolean(Some(quantiles.is_exact())),
            part_value(sum),
            part_value(quantiles),
        ];
        super::structure(&fields(), values)
    }

    fn size(&self) -> usize {
        size_of::<Stats>() + self.quantiles.size()
    }
}

/// `duration_quantile(dur, q)`: the `q` comes with every row, and travels with the state.
#[derive(Debug, Default)]
pub struct Quantile {
    quantiles: Quantiles,
    q: Option<f64>,
}

impl Quantile {
    fn learn(&mut self, column: &ArrayRef) -> Result<()> {
        for q in column.as_primitive::<Float64Type>().iter().flatten() {
            if !(0.0..=1.0).contains(&q) {
                return exec_err!("a quantile lies between 0 and 1, not at {q}");
            }
            if *self.q.get_or_insert(q) != q {
                return exec_err!("the quantile that is asked for must be the same in all rows");
            }
        }
        Ok(())
    }
}

impl Accumulator for Quantile {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.learn(&values[1])?;
        let durations = values[0].as_primitive::<Int64Type>();
        durations.iter().flatten().for_each(|dur| self.quantiles.add(dur));
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.learn(&states[1])?;
        parts_of::<Quantiles>(&states[0])?.iter().for_each(|part| self.quantiles.merge(part));
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![part_value(&self.quantiles), ScalarValue::Float64(self.q)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.q.map(|q| self.quantiles.quantile(q)).filter(|value| !value.is_nan());
        Ok(ScalarValue::Float64(value))
    }

    fn size(&self) -> usize {
        size_of::<Quantile>() + self.quantiles.size()
    }
}

/// `duration_stretches(interval, dur)`.
#[derive(Debug, Default)]
pub struct OverTime(Stretches);

impl Accumulator for OverTime {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [intervals, durs] = [0, 1].map(|i| values[i].as_primitive::<Int64Type>());
        for (interval, dur) in intervals.iter().zip(durs) {
            let (Some(interval), Some(dur)) = (interval, dur) else { continue };
            match u32::try_from(interval) {
                Ok(interval) => self.0.add(interval as usize, dur),
                Err(_) => return exec_err!("there is no interval of number {interval}"),
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        parts_of::<Stretches>(&states[0])?.iter().for_each(|part| self.0.merge(part));
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![part_value(&self.0)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(part_value(&self.0))
    }

    fn size(&self) -> usize {
        size_of::<OverTime>() + gpuwhy_derive::STRETCHES * size_of::<Sum>()
    }
}
