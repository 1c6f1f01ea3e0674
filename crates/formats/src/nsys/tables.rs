//! Where the tables of a report lie: in a database, or in a directory with a file for each.

use std::path::Path;

use super::directory::Directory;
use crate::Result;
use crate::sqlite::{Database, TableDef, Value};

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
