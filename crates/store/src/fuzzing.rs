//! What the fuzz targets call: the readers of untrusted bytes, without a trace around them.
//!
//! Not part of the interface.

use std::path::Path;

use gpuwhy_schema::{EachTable, Rows, TABLES, Table};

use crate::journal::{self, Found};
use crate::manifest::Manifest;
use crate::{Error, Result, segment};

/// Reads `text` as a manifest.
pub fn manifest(text: &str) -> Result<()> {
    let manifest = Manifest::parse(text, Path::new("trace.toml"))?;
    // What we accept, we can write and read again.
    let again = Manifest::parse(&manifest.to_toml(), Path::new("trace.toml"))?;
    assert_eq!(again, manifest);
    Ok(())
}

/// Reads the file at `path` as the Parquet file of table number `table`.
pub fn parquet(path: &Path, table: u8) -> Result<u64> {
    struct Reading<'a>(&'a Path, &'static str, u64);
    impl EachTable for Reading<'_> {
        type Error = Error;
        fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<()> {
            if T::NAME == self.1 {
                self.2 = segment::read_file::<T>(self.0)?;
            }
            Ok(())
        }
    }
    let mut reading = Reading(path, TABLES[usize::from(table) % TABLES.len()], 0);
    Rows::default().each(&mut reading)?;
    Ok(reading.2)
}

/// Reads the file at `path` as a journal, and says how many rows its frames gave.
pub fn journal(path: &Path) -> Result<u64> {
    struct Reading<'a>(&'a Found, u64);
    impl EachTable for Reading<'_> {
        type Error = Error;
        fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<()> {
            for batch in self.0.batches::<T>().flatten() {
                self.1 += T::rows(&batch).map_or(0, |rows| rows.len() as u64);
            }
            Ok(())
        }
    }
    let file = std::fs::File::open(path).map_err(Error::io("open", path))?;
    let found = Found::of_file(file, path.into())?;
    let length = std::fs::metadata(path).map_err(Error::io("measure", path))?.len();
    assert!(found.torn_bytes() <= length, "more is torn than there is");
    let mut reading = Reading(&found, 0);
    Rows::default().each(&mut reading)?;
    Ok(reading.1)
}

/// A journal of one frame of table number `table` with this payload and sound checksums.
pub fn journal_of(table: u8, rows: u32, payload: &[u8]) -> Vec<u8> {
    journal::wrap(TABLES[usize::from(table) % TABLES.len()], rows, payload)
}

/// Reads bytes as the file of a pyramid, and says how many cells and rows its chunks have; garbled ones end it.
pub fn pyramid(bytes: &[u8]) -> u64 {
    crate::pyramid::read_all(bytes)
}

/// The file of a pyramid of one chunk with this payload and sound checksums: cells of level `level` up to 62, or rows.
pub fn pyramid_of(level: u32, from: i64, to: i64, payload: &[u8]) -> Vec<u8> {
    crate::pyramid::wrap(level, (from, to), payload)
}
