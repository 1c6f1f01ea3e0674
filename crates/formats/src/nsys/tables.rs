//! Where the tables of a report lie: in a database, or in a directory with a file for each.

use std::path::Path;

use super::directory::Directory;
use crate::sqlite::{Database, TableDef, Value};
use crate::{Error, Result};

/// What is read of a table that is not imported, to count its rows.
const COUNTED_BYTES: u64 = 1 << 30;
/// The same in pages of the usual size.
const COUNTED: usize = (COUNTED_BYTES >> 12) as usize;

/// Where a report's tables lie.
#[derive(Debug)]
pub(super) enum Tables {
    /// In an SQLite database.
    Database(Database),
    /// In a directory of Parquet or Arrow files.
    Directory(Directory),
}

/// Does the same with a database or a directory.
macro_rules! either {
    ($tables:expr, $it:ident => $do:expr) => {
        match $tables {
            Tables::Database($it) => $do,
            Tables::Directory($it) => $do,
        }
    };
}

impl Tables {
    /// Opens the database or directory at `path`.
    pub fn open(path: &Path) -> Result<Tables> {
        if path.is_dir() {
            return Ok(Tables::Directory(Directory::open(path)?));
        }
        Ok(Tables::Database(Database::open(path)?))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        either!(self, it => it.path())
    }

    /// The definitions of all tables.
    pub fn definitions(&self) -> Vec<&TableDef> {
        either!(self, it => it.tables().collect())
    }

    /// The definition of the table of this name, in any case of letters.
    pub fn table(&self, name: &str) -> Option<&TableDef> {
        either!(self, it => it.table(name))
    }

    /// Refuses a report in which something else has the name of a table, whose rows are not there.
    ///
    /// # Errors
    /// It is a view or a virtual table.
    pub fn check_is_table(&self, name: &str) -> Result<()> {
        let Tables::Database(database) = self else { return Ok(()) };
        let Some(what) = database.not_a_table(name) else { return Ok(()) };
        let why = format!(
            "{name} is {what}, and its rows are not in the file; copy it with `CREATE TABLE … AS SELECT`"
        );
        Err(Error::Unreadable { path: self.path().into(), why })
    }

    /// Whether a table has rows; also if that cannot be found out.
    pub fn has_rows(&self, table: &TableDef) -> bool {
        let Ok(leaves) = self.leaves(table) else { return true };
        let mut any = leaves.len() > 1;
        let each = |_, _: [Value<'_>; 1]| {
            any = true;
            Ok(())
        };
        leaves.len() == 1 && self.scan(table, &leaves, [None], each).is_err() || any
    }

    /// How many rows a table has, by what its pages or its footer say; `None` if it is too large to look at for
    /// that, is damaged, or its rows must be decoded to be counted.
    pub fn rows(&self, table: &TableDef) -> Option<u64> {
        match self {
            Tables::Database(database) => {
                let leaves = database.leaves(table).ok()?;
                if leaves.len() > COUNTED {
                    return None;
                }
                database.count(&leaves).ok()
            }
            Tables::Directory(directory) => directory.rows(table, COUNTED_BYTES),
        }
    }

    /// The leaf pages of a table, or the stretches of rows that stand for them in a file.
    pub fn leaves(&self, table: &TableDef) -> Result<Vec<u32>> {
        either!(self, it => it.leaves(table))
    }

    /// How many leaves one thread reads at a time, where `usual` suits a database.
    pub fn leaves_at_a_time(&self, table: &TableDef, usual: usize) -> usize {
        match self {
            Tables::Database(_) => usual,
            Tables::Directory(directory) => directory.leaves_at_a_time(table, usual),
        }
    }

    /// Calls `each` with the row's number and the `wanted` columns of every row of these leaves.
    pub fn scan<const N: usize>(
        &self,
        table: &TableDef,
        leaves: &[u32],
        wanted: [Option<usize>; N],
        each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        either!(self, it => it.scan(table, leaves, wanted, each))
    }
}
