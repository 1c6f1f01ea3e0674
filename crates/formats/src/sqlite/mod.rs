//! Reads SQLite databases table by table, according to the documentation of the file format
//! (<https://www.sqlite.org/fileformat2.html>).
//!
//! # Why not SQLite itself
//! An import reads a profiler's database once, from beginning to end, and only a few columns of each
//! row. The library would run its virtual machine for every row and return one cell at a time, with one
//! thread for a connection, and the import would spend most of its time there. Here a table is a list of
//! leaf pages that threads divide among themselves, and a row is decoded up to its last wanted column.
//! No byte of the file is trusted: a page number, length or offset that leads out of the file is an error
//! that names the page.
//!
//! Indexes, WITHOUT ROWID tables, UTF-16 databases and write-ahead logs are not read.

pub mod build;
mod ddl;
mod record;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub use record::Value;

use crate::importer::LFS_POINTER;
use crate::{Error, Result};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// How many consecutive pages are read at once: 256 KiB of pages of the usual size.
const AHEAD: usize = 64;
/// The most levels of a b-tree: one with more would not fit on any disk.
const LEVELS: usize = 20;
/// How many bytes are read of one row: longer texts are cut off.
const MAX_ROW: usize = 1 << 20;
/// A database with more tables is damaged.
const MAX_TABLES: usize = 1 << 16;

/// A database, open for reading.
#[derive(Debug)]
pub struct Database {
    file: File,
    path: PathBuf,
    page_size: usize,
    /// Bytes of a page that are not reserved for extensions.
    usable: usize,
    pages: u32,
    tables: BTreeMap<String, TableDef>,
    /// What has the name of a table and is none, and what it is.
    others: BTreeMap<String, &'static str>,
}

/// The definition of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDef {
    /// Its name.
    pub name: String,
    /// The names of its columns, in the order of a row's values.
    pub columns: Vec<String>,
    root: u32,
    /// The column that is an alias of the rowid, whose value is not in the record.
    rowid: Option<usize>,
    /// The columns that have no value in a record, because they are computed when they are read.
    computed: Vec<usize>,
    without_rowid: bool,
}

impl TableDef {
    /// A table that is a file of its own.
    pub(crate) fn plain(name: &str, columns: Vec<String>) -> TableDef {
        TableDef {
            name: name.into(),
            columns,
            root: 0,
            rowid: None,
            computed: Vec::new(),
            without_rowid: false,
        }
    }

    /// The index of a column.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.eq_ignore_ascii_case(name))
    }

    /// The place of a column in a record; `None` if it is computed.
    fn place(&self, column: usize) -> Option<usize> {
        let before = self.computed.iter().filter(|computed| **computed < column).count();
        (!self.computed.contains(&column)).then(|| column - before)
    }
}

fn be16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Whether a file with these first bytes is a database.
pub fn is_database(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

impl Database {
    /// Opens the database at `path` and reads the definitions of its tables.
    ///
    /// # Errors
    /// It cannot be read, is no database, is damaged, or has changes that are not written into it yet.
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let metadata = file.metadata().map_err(Error::io("measure", path))?;
        let not =
            |why: String| Error::NotThis { path: path.into(), format: "an SQLite database", why };
        if !metadata.is_file() {
            return Err(not("it is not a regular file".into()));
        }
        let mut head = Vec::with_capacity(100);
        (&mut file).take(100).read_to_end(&mut head).map_err(Error::io("read", path))?;
        if head.starts_with(LFS_POINTER) {
            return Err(not(
                "it is a Git LFS pointer; `git lfs pull` brings the file itself".into()
            ));
        }
        if !is_database(&head) {
            return Err(not("it does not begin with `SQLite format 3`".into()));
        }
        if head.len() < 100 {
            return Err(Error::damaged(path, "its header", "it is cut off"));
        }
        let bad = |what: String| Error::damaged(path, "its header", what);
        let page_size = match be16(&head, 16) {
            1 => 65536,
            size if size >= 512 && size.is_power_of_two() => size,
            size => {
                return Err(bad(format!(
                    "its page size of {size} bytes is not a power of two from 512 to 65536"
                )));
            }
        };
        let usable = page_size - usize::from(head[20]);
        if usable < 480 {
            return Err(bad(format!("only {usable} bytes of a page are usable")));
        }
        match be32(&head, 56) {
            0 | 1 => {}
            encoding => {
                let why = format!(
                    "its texts are in UTF-16 (encoding {encoding}); only UTF-8 is supported"
                );
                return Err(Error::Unreadable { path: path.into(), why });
            }
        }
        let length = metadata.len();
        let there = length / page_size as u64;
        // The page count in the header is valid only if the last writer updated it.
        let count = u64::from(be32(&head, 28));
        let count = if be32(&head, 24) == be32(&head, 92) && count > 0 { count } else { there };
        if there < count {
            return Err(Error::damaged(
                path,
                format!("byte {length}"),
                format!("it is cut off after {there} of {count} pages"),
            ));
        }
        let Ok(pages) = u32::try_from(count) else {
            return Err(bad(format!("{count} pages are more than the format allows")));
        };
        let mut database = Database {
            file,
            path: path.into(),
            page_size,
            usable,
            pages,
            tables: BTreeMap::new(),
            others: BTreeMap::new(),
        };
        database.check_sidecars()?;
        database.read_definitions()?;
        Ok(database)
    }

    /// Refuses a database with changes in a log or journal beside it, which are not in the file.
    fn check_sidecars(&self) -> Result<()> {
        let beside = |suffix: &str| {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            let length = std::fs::metadata(&path).map_or(0, |m| m.len());
            (length > 0).then_some(PathBuf::from(path))
        };
        let name = self.path.display();
        let why = if let Some(log) = beside("-wal") {
            format!(
                "its latest changes are in `{}`; `sqlite3 {name} 'pragma wal_checkpoint(truncate)'` \
                 writes them into the database",
                log.display()
            )
        } else if let Some(journal) = beside("-journal") {
            format!(
                "its last change was not finished, as `{}` shows; `sqlite3 {name} .tables` rolls it back",
                journal.display()
            )
        } else {
            return Ok(());
        };
        Err(Error::Unreadable { path: self.path.clone(), why })
    }

    fn read_definitions(&mut self) -> Result<()> {
        // The schema table is read like any other; its definition is fixed by the format.
        let schema = TableDef {
            name: "sqlite_schema".into(),
            columns: ["type", "name", "tbl_name", "rootpage", "sql"].map(String::from).into(),
            root: 1,
            rowid: None,
            computed: Vec::new(),
            without_rowid: false,
        };
        let mut others = BTreeMap::new();
        let mut tables = BTreeMap::new();
        let leaves = self.leaves(&schema)?;
        self.scan(&schema, &leaves, [Some(0), Some(1), Some(3), Some(4)], |_, values| {
            let [kind, name, root, sql] = values;
            let (Some(kind @ ("table" | "view")), Some(name), Some(sql)) =
                (kind.text(), name.text(), sql.text())
            else {
                return Ok(());
            };
            if tables.len() + others.len() >= MAX_TABLES {
                return Err(Error::damaged(&self.path, "its schema", "too many tables"));
            }
            // Virtual tables have no pages.
            let root =
                root.int().and_then(|root| u32::try_from(root).ok()).filter(|root| *root > 0);
            let Some(root) = root.filter(|_| kind == "table") else {
                let what = if kind == "view" { "a view" } else { "a virtual table" };
                others.insert(name.to_ascii_lowercase(), what);
                return Ok(());
            };
            let Some(ddl) = ddl::parse(sql) else {
                let what = format!("the definition of table {name:?} cannot be parsed");
                return Err(Error::damaged(&self.path, "its schema", what));
            };
            let def = TableDef {
                name: name.to_owned(),
                columns: ddl.columns,
                root,
                rowid: ddl.rowid,
                computed: ddl.computed,
                without_rowid: ddl.without_rowid,
            };
            tables.insert(name.to_ascii_lowercase(), def);
            Ok(())
        })?;
        (self.tables, self.others) = (tables, others);
        Ok(())
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of its pages, bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * self.page_size as u64
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = &TableDef> {
        self.tables.values()
    }

    /// The table of that name, in any case of letters.
    pub fn table(&self, name: &str) -> Option<&TableDef> {
        self.tables.get(&name.to_ascii_lowercase())
    }

    /// What else has this name, if it is no table whose rows lie in the file: `a view`.
    pub fn not_a_table(&self, name: &str) -> Option<&'static str> {
        self.others.get(&name.to_ascii_lowercase()).copied()
    }

    fn damaged(&self, page: u32, what: impl Into<String>) -> Error {
        Error::damaged(&self.path, format!("page {page}"), what)
    }

    /// The leaf pages of a table, in the order of its rows. Reads only its interior pages: all leaves of a
    /// b-tree are on the same level.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, or the table is WITHOUT ROWID.
    pub fn leaves(&self, table: &TableDef) -> Result<Vec<u32>> {
        if table.without_rowid {
            let why =
                format!("table {:?} is a WITHOUT ROWID table, which is not supported", table.name);
            return Err(Error::Unreadable { path: self.path.clone(), why });
        }
        let mut pages = Pages::new(self);
        let mut level = vec![table.root];
        let mut seen = vec![0u64; self.pages as usize / 64 + 1];
        for _ in 0..LEVELS {
            let Some(&first) = level.first() else { return Ok(level) };
            match pages.node(first)?.kind()? {
                Kind::Leaf => return Ok(level),
                Kind::Interior => {}
            }
            let mut below = Vec::new();
            for &page in &level {
                let node = pages.node(page)?;
                if node.kind()? != Kind::Interior {
                    return Err(self.damaged(page, "a leaf is on a higher level than its siblings"));
                }
                node.children(&mut below)?;
            }
            for &child in &below {
                let (word, bit) = (child as usize / 64, 1 << (child % 64));
                if child == 0 || child > self.pages {
                    let what = format!("it refers to page {child} of {}", self.pages);
                    return Err(self.damaged(first, what));
                }
                if seen[word] & bit != 0 {
                    return Err(self.damaged(child, "two pages refer to it"));
                }
                seen[word] |= bit;
            }
            level = below;
        }
        Err(self.damaged(
            table.root,
            format!("the b-tree of table {:?} has too many levels", table.name),
        ))
    }

    /// How many rows lie on these leaves, by what the pages say; no row is looked at.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn count(&self, leaves: &[u32]) -> Result<u64> {
        let mut pages = Pages::new(self);
        let mut rows = 0;
        each_run(leaves, |first, run| {
            pages.read(first, run.len())?;
            for &page in run {
                let node = pages.held(page)?;
                if node.kind()? != Kind::Leaf {
                    return Err(self.damaged(page, "it is not a leaf of a table"));
                }
                rows += node.cells() as u64;
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// Calls `each` with the rowid and the `wanted` columns of every row on these leaves. A column that the
    /// table lacks (`None`), or that was added after the row, is null.
    ///
    /// # Errors
    /// The file cannot be read or is damaged, a wanted column is computed, or `each` fails.
    pub fn scan<const N: usize>(
        &self,
        table: &TableDef,
        leaves: &[u32],
        wanted: [Option<usize>; N],
        mut each: impl FnMut(i64, [Value<'_>; N]) -> Result<()>,
    ) -> Result<()> {
        let mut places = wanted;
        for (place, column) in places.iter_mut().zip(wanted) {
            let Some(column) = column else { continue };
            *place = table.place(column);
            if place.is_none() {
                let why = format!(
                    "column {:?} of table {:?} is computed (a virtual generated column), and its values \
                     are not in the file; copy the table with `CREATE TABLE … AS SELECT`",
                    table.columns[column], table.name
                );
                return Err(Error::Unreadable { path: self.path.clone(), why });
            }
        }
        let rowid = table.rowid.and_then(|rowid| table.place(rowid));
        let want = record::Want::new(places, rowid);
        let mut pages = Pages::new(self);
        let mut long = Pages::new(self);
        let mut whole = Vec::new();
        each_run(leaves, |first, run| {
            pages.read(first, run.len())?;
            for &page in run {
                let node = pages.held(page)?;
                if node.kind()? != Kind::Leaf {
                    return Err(self.damaged(page, "it is not a leaf of a table"));
                }
                for cell in 0..node.cells() {
                    let cell = node.leaf_cell(cell)?;
                    let bad = |what| {
                        let row = cell.rowid;
                        self.damaged(page, format!("row {row} of {:?}: {what}", table.name))
                    };
                    let values = match want.decode(cell.local, cell.rowid, cell.is_whole()) {
                        Ok(Some(values)) => values,
                        Err(what) => return Err(bad(what)),
                        Ok(None) => {
                            long.gather(&cell, page, &mut whole)?;
                            let all = whole.len() as u64 == cell.length;
                            match want.decode_cut(&whole, cell.rowid, all) {
                                Ok(values) => values,
                                Err(what) => return Err(bad(what)),
                            }
                        }
                    };
                    each(cell.rowid, values)?;
                }
            }
            Ok(())
        })
    }
}

/// Calls `each` with pages that lie one behind the other, some at a time, and with the first of them.
fn each_run(pages: &[u32], mut each: impl FnMut(u32, &[u32]) -> Result<()>) -> Result<()> {
    let mut rest = pages;
    while let Some(&first) = rest.first() {
        let next = |i: usize| first.checked_add(i as u32);
        let run = rest.iter().enumerate().take(AHEAD).take_while(|(i, p)| Some(**p) == next(*i));
        let (run, later) = rest.split_at(run.count());
        each(first, run)?;
        rest = later;
    }
    Ok(())
}

/// The kinds of pages of a table's b-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Interior,
    Leaf,
}

/// Some consecutive pages in memory.
struct Pages<'a> {
    database: &'a Database,
    buffer: Vec<u8>,
    first: u32,
}

impl<'a> Pages<'a> {
    fn new(database: &'a Database) -> Pages<'a> {
        Pages { database, buffer: Vec::new(), first: 0 }
    }

    /// Reads `count` pages from `first` on.
    fn read(&mut self, first: u32, count: usize) -> Result<()> {
        let database = self.database;
        let last = first as usize + count.max(1) - 1;
        if first == 0 || last > database.pages as usize {
            return Err(database.damaged(first, format!("there are {} pages", database.pages)));
        }
        self.buffer.resize(count * database.page_size, 0);
        self.first = first;
        let at = (u64::from(first) - 1) * database.page_size as u64;
        database.file.read_exact_at(&mut self.buffer, at).map_err(Error::io("read", &database.path))
    }

    /// One of the pages in memory.
    fn held(&self, page: u32) -> Result<Node<'_>> {
        let size = self.database.page_size;
        let from = (page - self.first) as usize * size;
        let bytes = &self.buffer[from..from + size];
        // The first page begins with the header of the file.
        let head = if page == 1 { 100 } else { 0 };
        let node = Node { database: self.database, page, bytes, head };
        let array = node.array() + 2 * node.cells();
        if array > self.database.usable {
            return Err(self.database.damaged(page, "it lists more rows than fit on it"));
        }
        Ok(node)
    }

    fn node(&mut self, page: u32) -> Result<Node<'_>> {
        self.read(page, 1)?;
        self.held(page)
    }

    /// Assembles a row from its page and its overflow pages, up to [`MAX_ROW`] bytes.
    fn gather(&mut self, cell: &Cell<'_>, page: u32, whole: &mut Vec<u8>) -> Result<()> {
        let database = self.database;
        let wanted = cell.length.min(MAX_ROW as u64) as usize;
        whole.clear();
        whole.extend_from_slice(cell.local);
        let mut next = cell.overflow;
        // A circle of pages ends, too: every page adds to a bounded length.
        while whole.len() < wanted {
            if next == 0 {
                let what = format!("row {} ends after {} bytes", cell.rowid, whole.len());
                return Err(database.damaged(page, what));
            }
            self.read(next, 1)?;
            let content = &self.buffer[4..database.usable];
            whole.extend_from_slice(&content[..content.len().min(wanted - whole.len())]);
            next = be32(&self.buffer, 0);
        }
        Ok(())
    }
}

/// One page of a b-tree.
struct Node<'a> {
    database: &'a Database,
    page: u32,
    bytes: &'a [u8],
    /// Where its header begins.
    head: usize,
}

/// A row on its page.
struct Cell<'a> {
    rowid: i64,
    /// The length of its record.
    length: u64,
    /// The part of the record that lies on the page.
    local: &'a [u8],
    /// The first overflow page; 0 if there is none.
    overflow: u32,
}

impl Cell<'_> {
    fn is_whole(&self) -> bool {
        self.local.len() as u64 == self.length
    }
}

impl<'a> Node<'a> {
    fn kind(&self) -> Result<Kind> {
        match self.bytes[self.head] {
            5 => Ok(Kind::Interior),
            13 => Ok(Kind::Leaf),
            other => Err(self
                .database
                .damaged(self.page, format!("it is a page of kind {other}, not of a table"))),
        }
    }

    fn cells(&self) -> usize {
        be16(self.bytes, self.head + 3)
    }

    /// The offset of its array of cell offsets.
    fn array(&self) -> usize {
        self.head + if self.bytes[self.head] == 5 { 12 } else { 8 }
    }

    fn cell(&self, i: usize) -> Result<&'a [u8]> {
        let at = be16(self.bytes, self.array() + 2 * i);
        let cell = self.bytes.get(at..self.database.usable).filter(|cell| cell.len() >= 4);
        cell.ok_or_else(|| self.bad_cell(i))
    }

    fn bad_cell(&self, i: usize) -> Error {
        self.database.damaged(self.page, format!("its cell {i} lies outside of the page"))
    }

    /// The child pages, left to right.
    fn children(&self, out: &mut Vec<u32>) -> Result<()> {
        for i in 0..self.cells() {
            out.push(be32(self.cell(i)?, 0));
        }
        out.push(be32(self.bytes, self.head + 8));
        Ok(())
    }

    fn leaf_cell(&self, i: usize) -> Result<Cell<'a>> {
        let cell = self.cell(i)?;
        let bad = || self.bad_cell(i);
        let (length, a) = record::varint(cell, 0).ok_or_else(bad)?;
        let (rowid, from) = record::varint(cell, a).ok_or_else(bad)?;
        // How many bytes of a long record stay on its page: section 1.6 of the file format.
        let usable = self.database.usable as u64;
        let most = usable - 35;
        let local = if length <= most {
            length
        } else {
            let least = (usable - 12) * 32 / 255 - 23;
            let fits = least + (length - least) % (usable - 4);
            if fits <= most { fits } else { least }
        };
        let to = from + local as usize;
        let local = cell.get(from..to).ok_or_else(bad)?;
        let overflow = match local.len() as u64 == length {
            true => 0,
            false => be32(cell.get(to..to + 4).ok_or_else(bad)?, 0),
        };
        Ok(Cell { rowid: rowid as i64, length, local, overflow })
    }
}

#[cfg(test)]
mod tests;
