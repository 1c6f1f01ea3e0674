//! Rows of `attr` that are made column by column.
//!
//! An import of a kernel's trace has several times as many of them as of all other rows. As [`Attr`]s, each would be two
//! shared texts, which are looked up, counted and copied into columns at the end; here a text is copied once.

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::builder::{StringBuilder, UInt64Builder};

use crate::{Attr, Id, schema};

/// Rows of `attr`, as columns.
#[derive(Default)]
pub struct AttrColumns {
    ids: UInt64Builder,
    keys: StringBuilder,
    values: StringBuilder,
    rows: usize,
}

impl AttrColumns {
    /// Adds a row.
    pub fn push(&mut self, id: Id, key: &str, value: &str) {
        self.ids.append_value(id.0);
        self.keys.append_value(key);
        self.values.append_value(value);
        self.rows += 1;
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Takes all rows out; `None` if there are none.
    pub fn take(&mut self) -> Option<RecordBatch> {
        if self.rows == 0 {
            return None;
        }
        let rows = std::mem::take(&mut self.rows);
        // The next ones will be about as many.
        let texts = |of: &mut StringBuilder| {
            let bytes = of.values_slice().len();
            std::mem::replace(of, StringBuilder::with_capacity(rows, bytes)).finish()
        };
        let (keys, values) = (texts(&mut self.keys), texts(&mut self.values));
        let ids = std::mem::replace(&mut self.ids, UInt64Builder::with_capacity(rows)).finish();
        let columns = vec![Arc::new(ids) as _, Arc::new(keys) as _, Arc::new(values) as _];
        let batch = RecordBatch::try_new(schema::<Attr>(), columns);
        Some(batch.expect("the columns are those of the table, one value a row"))
    }
}

impl fmt::Debug for AttrColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttrColumns").field("rows", &self.rows).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table as _;

    #[test]
    fn columns_hold_the_same_rows_as_rows_do() {
        let mut columns = AttrColumns::default();
        let of =
            |id, key: &str, value: &str| Attr { id: Id(id), key: key.into(), value: value.into() };
        let rows = [of(7, "dev", "259"), of(7, "name", ""), of(u64::MAX, "é", "a\nb")];
        assert!(columns.take().is_none());
        for row in &rows {
            columns.push(row.id, &row.key, &row.value);
        }
        assert_eq!(columns.len(), 3);
        let batch = columns.take().unwrap();
        assert_eq!(batch, Attr::batch(&rows));
        assert_eq!(Attr::rows(&batch).unwrap(), rows);
        assert!(columns.is_empty() && columns.take().is_none());
    }
}
