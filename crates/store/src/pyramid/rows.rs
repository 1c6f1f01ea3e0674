//! The rows that are drawn, column by column: of a row no more is read than a picture needs.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, PrimitiveArray, RecordBatch};
use gpuwhy_schema::{Mark, Ns, Span, State, Table};

use super::cell::{Lane, Row};
use crate::dir::Dir;
use crate::manifest::File;
use crate::segment::Batches;
use crate::{Error, Result};

/// The tables whose rows are drawn.
pub(super) const TABLES: [&str; 3] = [State::NAME, Span::NAME, Mark::NAME];

/// What is read of a table.
fn columns<T: Table>() -> &'static [&'static str] {
    match T::NAME {
        State::NAME => &["ts", "dur", "track", "value"],
        Span::NAME => &["id", "ts", "dur", "track"],
        _ => &["ts", "track"],
    }
}

fn column<'a, A: arrow_array::ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> Option<&'a PrimitiveArray<A>> {
    batch.column_by_name(name)?.as_primitive_opt::<A>()
}

/// A row as it stands in a table.
pub(crate) enum Seen {
    /// It has ended, or is a point.
    Ended(Row),
    /// It has not.
    Open(Row),
}

/// Hands out the rows of a batch of a table that is drawn, each with what tells it from others that begin with it: the
/// id of a span. `None` if it is not such a batch.
pub(super) fn each_of<T: Table>(batch: &RecordBatch, mut see: impl FnMut(Seen, u64)) -> Option<()> {
    let starts = column::<Int64Type>(batch, "ts")?.values();
    let tracks = column::<UInt32Type>(batch, "track")?.values();
    let shape = match T::NAME {
        State::NAME => Lane::STATE,
        Span::NAME => Lane::SPAN,
        Mark::NAME => Lane::MARK,
        _ => return None,
    };
    let rows = starts.iter().zip(tracks);
    if shape == Lane::MARK {
        for (&from, &track) in rows {
            let lane = Lane::new(track, shape);
            see(Seen::Ended(Row { lane, from, to: from, value: 0 }), 0);
        }
        return Some(());
    }
    let lasting = column::<Int64Type>(batch, "dur")?;
    let values = match shape {
        Lane::STATE => Some(column::<Int64Type>(batch, "value")?.values()),
        _ => None,
    };
    let ids = match shape {
        Lane::SPAN => Some(column::<UInt64Type>(batch, "id")?.values()),
        _ => None,
    };
    let nulls = lasting.nulls().filter(|nulls| nulls.null_count() > 0);
    let lasting = lasting.values();
    for (at, (&from, &track)) in rows.enumerate() {
        let value = values.map_or(0, |values| values[at]);
        let key = ids.map_or(0, |ids| ids[at]);
        let lane = Lane::new(track, shape);
        if nulls.is_some_and(|nulls| nulls.is_null(at)) {
            see(Seen::Open(Row { lane, from, to: i64::MAX, value }), key);
        } else {
            let to = from.saturating_add(lasting[at].max(0));
            see(Seen::Ended(Row { lane, from, to, value }), key);
        }
    }
    Some(())
}

/// Hands out the rows of a file, of all its row groups that may overlap `range`.
pub(super) fn each_in<T: Table>(
    dir: &Dir,
    file: &File,
    range: &Range<Ns>,
    mut see: impl FnMut(Seen, u64),
) -> Result<()> {
    let mut batches = Batches::open_columns::<T>(dir, file, range, columns::<T>())?;
    while let Some(batch) = batches.next() {
        let rows = each_of::<T>(&batch?, &mut see);
        rows.ok_or_else(|| Error::damaged(batches.path(), "its columns are not of its table"))?;
    }
    Ok(())
}
