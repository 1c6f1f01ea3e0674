//! Writes databases from beginning to end: for tests, fuzzing and benchmarks, whose inputs must be made
//! in seconds and be the same on every machine.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{MAGIC, Value};
use crate::{Error, Result};

const PAGE: usize = 4096;

/// Writes a database, table after table.
#[derive(Debug)]
pub struct Builder {
    out: BufWriter<File>,
    path: PathBuf,
    /// The number of the next page.
    next: u32,
    /// Rows of the schema table: name, root page, definition.
    tables: Vec<(String, u32, String)>,
}

/// A child node: its page, and the greatest rowid in it.
type Child = (u32, i64);

fn put_varint(out: &mut Vec<u8>, n: u64) {
    if n > u64::MAX >> 8 {
        // Nine bytes: eight of seven bits, and one of eight.
        out.extend((0..8).map(|i| (n >> (57 - 7 * i)) as u8 | 0x80));
        out.push(n as u8);
        return;
    }
    let groups = (64 - n.leading_zeros()).div_ceil(7).max(1);
    for i in (0..groups).rev() {
        let more = if i > 0 { 0x80 } else { 0 };
        out.push((n >> (7 * i)) as u8 & 0x7f | more);
    }
}

/// The record of a row.
fn record(values: &[Value<'_>], out: &mut Vec<u8>) {
    let (mut kinds, mut body) = (Vec::with_capacity(values.len()), Vec::new());
    for value in values {
        match *value {
            Value::Null => put_varint(&mut kinds, 0),
            Value::Int(0) => put_varint(&mut kinds, 8),
            Value::Int(1) => put_varint(&mut kinds, 9),
            Value::Int(n) => {
                let bytes = n.to_be_bytes();
                let fits = |size: usize| {
                    let shift = 64 - 8 * size as u32;
                    n << shift >> shift == n
                };
                let sizes = [(1, 1), (2, 2), (3, 3), (4, 4), (6, 5), (8, 6)];
                let (size, kind) = sizes.into_iter().find(|s| fits(s.0)).unwrap_or((8, 6));
                put_varint(&mut kinds, kind);
                body.extend_from_slice(&bytes[8 - size..]);
            }
            Value::Real(n) => {
                put_varint(&mut kinds, 7);
                body.extend_from_slice(&n.to_be_bytes());
            }
            Value::Text(text) => {
                put_varint(&mut kinds, 13 + 2 * text.len() as u64);
                body.extend_from_slice(text);
            }
            Value::Blob(bytes) => {
                put_varint(&mut kinds, 12 + 2 * bytes.len() as u64);
                body.extend_from_slice(bytes);
            }
        }
    }
    out.clear();
    // The header counts its own length: one byte, or two where the types take more than 126.
    let own = if kinds.len() < 127 { 1 } else { 2 };
    put_varint(out, (kinds.len() + own) as u64);
    out.append(&mut kinds);
    out.append(&mut body);
}

/// A leaf that is being filled.
struct Leaf {
    cells: Vec<u8>,
    places: Vec<usize>,
    head: usize,
    last: i64,
}

impl Leaf {
    fn new(head: usize) -> Leaf {
        Leaf { cells: Vec::with_capacity(PAGE), places: Vec::new(), head, last: 0 }
    }

    fn fits(&self, cell: usize) -> bool {
        self.head + 8 + 2 * (self.places.len() + 1) + self.cells.len() + cell <= PAGE
    }

    fn put(&mut self, cell: &[u8], rowid: i64) {
        self.places.push(self.cells.len());
        self.cells.extend_from_slice(cell);
        self.last = rowid;
    }

    fn page(&self) -> Vec<u8> {
        page(13, self.head, &self.cells, &self.places, None)
    }
}

/// A node of a b-tree, with its cells at its end.
fn page(kind: u8, head: usize, cells: &[u8], places: &[usize], right: Option<u32>) -> Vec<u8> {
    let mut out = vec![0; PAGE];
    let content = PAGE - cells.len();
    out[head] = kind;
    out[head + 3..head + 5].copy_from_slice(&(places.len() as u16).to_be_bytes());
    out[head + 5..head + 7].copy_from_slice(&(content as u16).to_be_bytes());
    let mut array = head + 8;
    if let Some(right) = right {
        out[array..array + 4].copy_from_slice(&right.to_be_bytes());
        array += 4;
    }
    for (i, place) in places.iter().enumerate() {
        let at = array + 2 * i;
        out[at..at + 2].copy_from_slice(&((content + place) as u16).to_be_bytes());
    }
    out[content..].copy_from_slice(cells);
    out
}

impl Builder {
    /// Creates a database at `path`; replaces a file that exists there.
    pub fn create(path: impl AsRef<Path>) -> Result<Builder> {
        let path = path.as_ref().to_path_buf();
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let mut builder =
            Builder { out: BufWriter::with_capacity(1 << 20, file), path, next: 1, tables: vec![] };
        // The first page is written last, when all roots are known.
        builder.write(&vec![0; PAGE])?;
        Ok(builder)
    }

    fn write(&mut self, page: &[u8]) -> Result<u32> {
        self.out.write_all(page).map_err(Error::io("write", &self.path))?;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Writes a table with this definition. `next` supplies its rows until it returns false; their rowids
    /// count from 1.
    pub fn table(
        &mut self,
        name: &str,
        sql: &str,
        mut next: impl FnMut(&mut dyn FnMut(&[Value<'_>])) -> bool,
    ) -> Result<()> {
        let (mut leaf, mut children) = (Leaf::new(0), Vec::new());
        let (mut bytes, mut cell, mut rowid) = (Vec::new(), Vec::new(), 0i64);
        loop {
            let mut given = false;
            let more = next(&mut |values| {
                record(values, &mut bytes);
                given = true;
            });
            if given {
                rowid += 1;
                self.cell(&bytes, rowid, &mut cell)?;
                if !leaf.fits(cell.len()) {
                    children.push((self.write(&leaf.page())?, leaf.last));
                    leaf = Leaf::new(0);
                }
                leaf.put(&cell, rowid);
            }
            if !more {
                break;
            }
        }
        children.push((self.write(&leaf.page())?, leaf.last));
        let root = self.tree(children)?;
        self.tables.push((name.into(), root, sql.into()));
        Ok(())
    }

    /// Writes a table with this definition and these rows.
    pub fn table_of(&mut self, name: &str, sql: &str, rows: &[Vec<Value<'_>>]) -> Result<()> {
        let mut rows = rows.iter();
        self.table(name, sql, |put| match rows.next() {
            Some(row) => {
                put(row);
                true
            }
            None => false,
        })
    }

    /// The cell of a record; the rest of a long record goes to overflow pages.
    fn cell(&mut self, record: &[u8], rowid: i64, cell: &mut Vec<u8>) -> Result<()> {
        cell.clear();
        put_varint(cell, record.len() as u64);
        put_varint(cell, rowid as u64);
        let most = PAGE - 35;
        if record.len() <= most {
            cell.extend_from_slice(record);
            return Ok(());
        }
        let least = (PAGE - 12) * 32 / 255 - 23;
        let fits = least + (record.len() - least) % (PAGE - 4);
        let local = if fits <= most { fits } else { least };
        cell.extend_from_slice(&record[..local]);
        cell.extend_from_slice(&self.next.to_be_bytes());
        let mut chunks = record[local..].chunks(PAGE - 4).peekable();
        while let Some(chunk) = chunks.next() {
            let mut out = vec![0; PAGE];
            let next = if chunks.peek().is_some() { self.next + 1 } else { 0 };
            out[..4].copy_from_slice(&next.to_be_bytes());
            out[4..4 + chunk.len()].copy_from_slice(chunk);
            self.write(&out)?;
        }
        Ok(())
    }

    /// Writes the levels above these nodes, and returns the root page.
    fn tree(&mut self, mut children: Vec<Child>) -> Result<u32> {
        while children.len() > 1 {
            let mut above = Vec::new();
            for group in groups(&children, 0) {
                above.push((self.write(&interior(group, 0))?, group[group.len() - 1].1));
            }
            children = above;
        }
        Ok(children[0].0)
    }

    /// Writes the schema and the header.
    pub fn finish(mut self) -> Result<()> {
        let rows: Vec<Vec<u8>> = self
            .tables
            .iter()
            .map(|(name, root, sql)| {
                let (name, sql) = (name.as_bytes(), sql.as_bytes());
                let (text, root) = (Value::Text, Value::Int(i64::from(*root)));
                let mut bytes = Vec::new();
                record(&[text(b"table"), text(name), text(name), root, text(sql)], &mut bytes);
                bytes
            })
            .collect();
        let (mut leaf, mut children, mut cell) = (Leaf::new(100), Vec::new(), Vec::new());
        for (i, row) in rows.iter().enumerate() {
            let rowid = i as i64 + 1;
            self.cell(row, rowid, &mut cell)?;
            if !leaf.fits(cell.len()) {
                children.push(leaf);
                leaf = Leaf::new(100);
            }
            leaf.put(&cell, rowid);
        }
        let mut first = if children.is_empty() {
            leaf.page()
        } else {
            children.push(leaf);
            let mut below = Vec::new();
            for mut leaf in children {
                leaf.head = 0;
                below.push((self.write(&leaf.page())?, leaf.last));
            }
            interior(&below, 100)
        };
        let pages = self.next - 1;
        first[..16].copy_from_slice(MAGIC);
        first[16..18].copy_from_slice(&(PAGE as u16).to_be_bytes());
        // File format versions 1: a rollback journal. Then the payload fractions, fixed by the format.
        first[18..24].copy_from_slice(&[1, 1, 0, 64, 32, 32]);
        // The change counter, and the change for which the page count is valid.
        first[24..28].copy_from_slice(&1u32.to_be_bytes());
        first[28..32].copy_from_slice(&pages.to_be_bytes());
        // Schema cookie, schema format 4, UTF-8.
        first[40..44].copy_from_slice(&1u32.to_be_bytes());
        first[44..48].copy_from_slice(&4u32.to_be_bytes());
        first[56..60].copy_from_slice(&1u32.to_be_bytes());
        first[92..96].copy_from_slice(&1u32.to_be_bytes());
        first[96..100].copy_from_slice(&3_046_000u32.to_be_bytes());
        let path = &self.path;
        self.out.seek(SeekFrom::Start(0)).map_err(Error::io("write", path))?;
        self.out.write_all(&first).map_err(Error::io("write", path))?;
        self.out.flush().map_err(Error::io("write", path))
    }
}

/// Groups children into interior nodes, with as many in each as certainly fit.
fn groups(children: &[Child], head: usize) -> impl Iterator<Item = &[Child]> {
    // A cell takes up to 13 bytes, and two for its offset.
    let most = (PAGE - head - 12) / 15;
    // No node may have a single child.
    let count = children.len().div_ceil(most);
    children.chunks(children.len().div_ceil(count.max(1)).max(2))
}

fn interior(children: &[Child], head: usize) -> Vec<u8> {
    let (mut cells, mut places) = (Vec::new(), Vec::new());
    let (right, others) = children.split_last().expect("a node has children");
    for (page, greatest) in others {
        places.push(cells.len());
        cells.extend_from_slice(&page.to_be_bytes());
        put_varint(&mut cells, *greatest as u64);
    }
    page(5, head, &cells, &places, Some(right.0))
}
