//! Functions for SQL: the same code that `gpuwhy variability` computes with.
//!
//! A plan refers to functions by name, and the process that executes it looks them up. Client, scheduler
//! and executors therefore all get their functions from [`register`] and [`all`].

mod device_interval;
mod durations;
mod time_shard;

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BinaryArray};
use datafusion::arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::scalar::ScalarStructBuilder;
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{
    Accumulator, AccumulatorFactoryFunction, AggregateUDF, ColumnarValue, ScalarUDF,
    SimpleAggregateUDF, Volatility, create_udf,
};
use gpuwhy_derive::Partial;

/// The documentation of a function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name and arguments.
    pub call: &'static str,
    /// What it returns.
    pub returns: &'static str,
}

/// The documentation of all functions.
pub const FUNCTIONS: &[Function] = &[
    Function {
        call: "time_shard(ts, origin, width)",
        returns: "Number of the interval of `width` ns, counted from `origin`, that contains `ts`.",
    },
    Function {
        call: "time_shards(ts, dur, origin, width)",
        returns: "Numbers of all intervals that `[ts, ts + dur)` touches, at most 65,536, as a list for \
               `unnest`.",
    },
    Function {
        call: "duration_stats(dur)",
        returns: "Aggregate: a struct of `count`, `sum`, `mean`, `min`, `max`, `std` (of a sample), `p50`, \
               `p95`, `p99`, `exact` (whether the quantiles are exact; above 4,096 values they are \
               within 0.4 %), and `sum_part` and `quantiles_part` (the mergeable state, as bytes).",
    },
    Function {
        call: "duration_quantile(dur, q)",
        returns: "Aggregate: the `q`-quantile, exact up to 4,096 values and within 0.4 % above.",
    },
    Function {
        call: "duration_stretches(interval, dur)",
        returns: "Aggregate: statistics over at most 16 stretches of intervals, as mergeable bytes; \
               `gpuwhy variability` finds shifts of kernels with it.",
    },
    Function {
        call: "device_interval(copy_kind, ts, dur, bytes, origin, width)",
        returns: "Aggregate: the activity of one device in the interval that begins at `origin`; \
               `copy_kind` is null for kernels. A struct of `kernel_ns`, `copy_ns`, `exposed_ns` (copy \
               and no kernel), `overlapped_ns`, `idle_ns`; `kernels` and `copies` that began in it, with \
               `_sum_ns`, `_mean_ns`, `_min_ns`, `_max_ns`, `_std_ns`; `exposed_h2d_ns` and so on \
               by kind of copy; and `part` (the mergeable state).",
    },
];

/// All functions.
pub fn all() -> (Vec<Arc<ScalarUDF>>, Vec<Arc<AggregateUDF>>) {
    use DataType::{Binary, Float64, Int64, Struct, Utf8};
    let field = |name: &str, of: DataType| Field::new(name, of, true);
    let part = |name: &str| field(name, Binary);
    let numbers = DataType::new_list(Int64, true);
    let scalars = vec![
        scalar("time_shard", vec![Int64; 3], Int64, time_shard::time_shard),
        scalar("time_shards", vec![Int64; 4], numbers, time_shard::time_shards),
    ];
    let aggregates = vec![
        aggregate::<durations::Stats>(
            "duration_stats",
            vec![Int64],
            Struct(durations::fields()),
            vec![part("sum"), part("quantiles")],
        ),
        aggregate::<durations::Quantile>(
            "duration_quantile",
            vec![Int64, Float64],
            Float64,
            vec![part("quantiles"), field("q", Float64)],
        ),
        aggregate::<durations::OverTime>(
            "duration_stretches",
            vec![Int64; 2],
            Binary,
            vec![part("stretches")],
        ),
        aggregate::<device_interval::Interval>(
            "device_interval",
            vec![Utf8, Int64, Int64, Int64, Int64, Int64],
            Struct(device_interval::fields()),
            vec![part("tally")],
        ),
    ];
    (scalars, aggregates)
}

fn scalar(
    name: &str,
    arguments: Vec<DataType>,
    returns: DataType,
    compute: fn(&[ColumnarValue]) -> Result<ColumnarValue>,
) -> Arc<ScalarUDF> {
    Arc::new(create_udf(name, arguments, returns, Volatility::Immutable, Arc::new(compute)))
}

/// An aggregate whose state between processes has these fields.
fn aggregate<A: Accumulator + Default + 'static>(
    name: &str,
    arguments: Vec<DataType>,
    returns: DataType,
    state: Vec<Field>,
) -> Arc<AggregateUDF> {
    let state = state.into_iter().map(Arc::new).collect();
    let new: AccumulatorFactoryFunction = Arc::new(|_| Ok(Box::<A>::default()));
    let volatility = Volatility::Immutable;
    let function = SimpleAggregateUDF::new(name, arguments, returns, volatility, new, state);
    Arc::new(AggregateUDF::from(function))
}

/// Registers all functions.
///
/// # Errors
/// The registry refuses one.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    let (scalars, aggregates) = all();
    for function in scalars {
        registry.register_udf(function)?;
    }
    for function in aggregates {
        registry.register_udaf(function)?;
    }
    Ok(())
}

/// A part of a result, as a value.
fn part_value(part: &impl Partial) -> ScalarValue {
    ScalarValue::Binary(Some(part.to_bytes()))
}

/// The parts of a column, without nulls.
fn parts_of<P: Partial>(column: &ArrayRef) -> Result<Vec<P>> {
    let parts = column.as_any().downcast_ref::<BinaryArray>().ok_or_else(|| {
        DataFusionError::Internal(format!(
            "a partial result has type {}, not binary",
            column.data_type()
        ))
    })?;
    let read = |bytes| P::from_bytes(bytes).map_err(|e| DataFusionError::External(Box::new(e)));
    parts.iter().flatten().map(read).collect()
}

/// A struct of these values.
fn structure(
    fields: &Fields,
    values: impl IntoIterator<Item = ScalarValue>,
) -> Result<ScalarValue> {
    let mut build = ScalarStructBuilder::new();
    for (field, value) in fields.iter().zip(values) {
        build = build.with_scalar(Arc::clone(field), value);
    }
    build.build()
}
