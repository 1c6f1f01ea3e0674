//! The file of `attr`, whose rows an import hands over with their texts numbered.
//!
//! # How
//! The table has several times the rows of all others together, and the general writer would look each text up again
//! to find the number that it has already. Here the numbers are written as they are.

use std::borrow::Cow;

use gpuwhy_schema::{Attr, AttrBatch, Texts, schema};
use parquet::basic::{Encoding, Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescPtr;

use crate::beneath::Written;
use crate::pages::{Chunk, Out, Pages, delta, pack_numbers, put_text, write_groups};

/// Writes batches, each or several as a row group of at most `most` rows where no single one has more.
pub(crate) fn write(
    file: &mut Written,
    properties: WriterProperties,
    batches: &[AttrBatch],
    most: usize,
    pages: &mut Pages,
) -> Result<()> {
    write_groups(file, schema::<Attr>(), properties, groups(batches, most), |_, what, group| {
        chunk(pages, what, group)
    })
}

/// The batches in groups of at most `most` rows, where no single one has more; those without rows are left out.
fn groups(batches: &[AttrBatch], most: usize) -> impl Iterator<Item = &[AttrBatch]> {
    let mut rest = batches;
    let next = move || {
        let first = rest.first()?;
        let mut rows = first.len();
        let more = rest[1..].iter().take_while(|batch| {
            rows += batch.len();
            rows <= most
        });
        let (group, after) = rest.split_at(1 + more.count());
        rest = after;
        Some(group)
    };
    std::iter::from_fn(next).filter(|group| !group.iter().all(AttrBatch::is_empty))
}

fn chunk(pages: &mut Pages, column: ColumnDescPtr, group: &[AttrBatch]) -> Result<Chunk> {
    match column.name() {
        "id" => ids(pages, column, group),
        "key" => texts(pages, column, group, |batch| (&batch.keys, &batch.key_texts)),
        "value" => texts(pages, column, group, |batch| (&batch.values, &batch.value_texts)),
        other => Err(ParquetError::General(format!("no column `{other}` in `attr`"))),
    }
}

fn ids(pages: &mut Pages, column: ColumnDescPtr, group: &[AttrBatch]) -> Result<Chunk> {
    let ids: Cow<'_, [u64]> = match group {
        [batch] => Cow::Borrowed(&batch.ids),
        _ => group.iter().flat_map(|batch| &batch.ids).copied().collect(),
    };
    let (least, most) = (ids.iter().min().copied(), ids.iter().max().copied());
    let bits = |id: Option<u64>| id.map(|id| id as i64);
    let statistics = Statistics::int64(bits(least), bits(most), None, Some(0), false);
    pages.plain.clear();
    delta(&ids, &mut pages.plain);
    let mut out = Out::default();
    pages.page(&mut out, ids.len(), Encoding::DELTA_BINARY_PACKED)?;
    out.chunk(column, ids.len(), &[Encoding::DELTA_BINARY_PACKED], Some(statistics))
}

fn texts(
    pages: &mut Pages,
    column: ColumnDescPtr,
    group: &[AttrBatch],
    of: impl Fn(&AttrBatch) -> (&Vec<u32>, &Texts),
) -> Result<Chunk> {
    debug_assert_eq!(column.physical_type(), Type::BYTE_ARRAY);
    pages.plain.clear();
    let (mut numbers, mut texts): (Cow<'_, [u32]>, _) = (Cow::Borrowed(&[]), 0);
    for batch in group {
        let (of_rows, of_texts) = of(batch);
        match group.len() {
            1 => numbers = Cow::Borrowed(of_rows),
            _ => numbers.to_mut().extend(of_rows.iter().map(|number| number + texts)),
        }
        texts += of_texts.len() as u32;
        for text in of_texts.iter() {
            put_text(text.as_bytes(), &mut pages.plain);
        }
    }
    let mut out = Out::default();
    pages.dictionary(&mut out, texts)?;
    pages.plain.clear();
    pack_numbers(&numbers, texts, &mut pages.plain);
    pages.page(&mut out, numbers.len(), Encoding::RLE_DICTIONARY)?;
    let encodings = [Encoding::PLAIN, Encoding::RLE_DICTIONARY];
    out.chunk(column, numbers.len(), &encodings, None)
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Id, Ns, Table as _};

    use super::*;
    use crate::dir::{Dir, Durability};
    use crate::segment::{Batches, write_attrs};

    /// What a file holds after batches of rows have been written into it, and how many row groups it has.
    fn read_back(batches: &[Vec<Attr>]) -> Vec<Attr> {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::make(folder.path(), Durability::ProcessDeath, None).unwrap();
        let batches: Vec<AttrBatch> = batches.iter().map(|rows| AttrBatch::of(rows)).collect();
        let file =
            write_attrs(&dir, "attr/00000.parquet", 0, &batches, &mut Pages::default()).unwrap();
        let mut read = Batches::open::<Attr>(&dir, &file, &(Ns::MIN..Ns::MAX)).unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = read.next() {
            rows.extend(Attr::rows(&batch.unwrap()).unwrap());
        }
        assert_eq!(rows.len() as u64, file.rows);
        rows
    }

    fn attr(id: u64, key: &str, value: &str) -> Attr {
        Attr { id: Id(id), key: key.into(), value: value.into() }
    }

    #[test]
    fn rows_come_back_whatever_their_number() {
        for count in [1, 2, 7, 8, 9, 31, 32, 33, 34, 127, 128, 129, 130, 1000, 200_000] {
            let row = |n: u64| attr(n / 3, ["a", "b", "é"][n as usize % 3], &(n % 77).to_string());
            let rows: Vec<Attr> = (0..count).map(row).collect();
            assert_eq!(read_back(std::slice::from_ref(&rows)), rows, "{count}");
        }
    }

    #[test]
    fn batches_with_numbers_of_their_own_become_one_group_and_keep_their_texts() {
        let batch = |from: u64| {
            let texts = (from..from + 50).map(|n| attr(n, "n", &n.to_string()));
            texts.chain([attr(from, "from", "x"), attr(from, "n", "")]).collect::<Vec<_>>()
        };
        let batches = [batch(0), Vec::new(), batch(1000), batch(7)];
        assert_eq!(read_back(&batches), batches.concat());
    }

    #[test]
    fn ids_may_be_anything() {
        let ids = [u64::MAX, 0, u64::MAX / 2, 1, 1, 1 << 63, (1 << 63) - 1, 5];
        let rows: Vec<Attr> = ids.iter().map(|id| attr(*id, "k", "v")).collect();
        assert_eq!(read_back(std::slice::from_ref(&rows)), rows);
    }

    #[test]
    fn values_that_never_come_again_are_kept() {
        let rows: Vec<Attr> = (0..100_000u64)
            .map(|n| attr(n, "address", &n.wrapping_mul(0x9e37_79b9).to_string()))
            .collect();
        let batches: Vec<Vec<Attr>> = rows.chunks(30_000).map(<[Attr]>::to_vec).collect();
        assert_eq!(read_back(&batches), rows);
    }
}
