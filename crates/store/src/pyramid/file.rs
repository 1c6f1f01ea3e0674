//! The file of a pyramid: chunks, an index of them, and where the index lies.
//!
//! The index says which rows the pyramid was made of ([`Stamp`]); every chunk and the index have a checksum. Nothing
//! that it says is believed beyond what the file can hold.

use crate::manifest::{File, Manifest};

use super::rows::TABLES;

/// Where it lies in a trace.
pub(crate) const PATH: &str = "pyramid/levels.bin";
/// The folder that it lies in.
pub(crate) const FOLDER: &str = "pyramid";
/// What it begins and ends with; the last byte is the version.
const MAGIC: [u8; 8] = *b"gpuwhyP\x01";
/// At the end: where the index begins, its length, its checksum.
const TRAILER: usize = 8 + 8 + 4 + MAGIC.len();
/// Of a chunk in the index.
const RECORD: usize = 4 + 4 + 8 + 8 + 8 + 8;
/// Of the stamp, at the head of the index.
const STAMP: usize = 4 + 8 + 8;
/// Bytes of a chunk at most.
pub(super) const MAX_CHUNK: u64 = 256 << 20;
/// Bytes of an index at most: some 25 million chunks.
const MAX_INDEX: u64 = 1 << 30;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holds {
    /// Cells of a level; the extent is of buckets.
    Cells(u32),
    /// Rows that are too long for cells; the extent is of ns.
    Long,
    /// Rows that have not ended.
    Open,
}

/// The coarsest level: a bucket is 146 years.
pub(super) const COARSEST: u32 = 62;
const LONG: u32 = 100;
const OPEN: u32 = 101;

/// A chunk, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub holds: Holds,
    /// The first and the last bucket, or ns.
    pub extent: (i64, i64),
    pub at: u64,
    pub bytes: u64,
    pub crc: u32,
}

/// Of which files a pyramid was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    crc: u32,
    rows: u64,
    bytes: u64,
}

impl Stamp {
    /// Of the files that a manifest names. A file is never written a second time under its name with other rows, and
    /// its length is checked when it is read.
    pub fn of(manifest: &Manifest) -> Stamp {
        let mut crc = crc32fast::Hasher::new();
        let mut stamp = Stamp::default();
        for file in manifest.file.iter().filter(|file| is_drawn(file)) {
            crc.update(format!("{} {} {}\n", file.path, file.rows, file.bytes).as_bytes());
            stamp.rows = stamp.rows.saturating_add(file.rows);
            stamp.bytes = stamp.bytes.saturating_add(file.bytes);
        }
        stamp.crc = crc.finalize();
        stamp
    }

    /// How many rows the files have.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// Whether rows of a file are drawn.
pub(super) fn is_drawn(file: &File) -> bool {
    TABLES.contains(&file.table.as_str()) && !file.is_head()
}

/// Takes fields off the front of bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }
}

/// What stands at the beginning of a file.
pub(super) fn head() -> &'static [u8] {
    &MAGIC
}

/// What follows the chunks, which end at `at`.
pub(super) fn tail(stamp: Stamp, chunks: &[Chunk], at: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(STAMP + chunks.len() * RECORD + TRAILER);
    out.extend(stamp.crc.to_le_bytes());
    out.extend(stamp.rows.to_le_bytes());
    out.extend(stamp.bytes.to_le_bytes());
    for chunk in chunks {
        let holds = match chunk.holds {
            Holds::Cells(level) => level,
            Holds::Long => LONG,
            Holds::Open => OPEN,
        };
        out.extend(holds.to_le_bytes());
        out.extend(chunk.crc.to_le_bytes());
        out.extend(chunk.extent.0.to_le_bytes());
        out.extend(chunk.extent.1.to_le_bytes());
        out.extend(chunk.at.to_le_bytes());
        out.extend(chunk.bytes.to_le_bytes());
    }
    let (bytes, crc) = (out.len() as u64, crc32fast::hash(&out));
    out.extend(at.to_le_bytes());
    out.extend(bytes.to_le_bytes());
    out.extend(crc.to_le_bytes());
    out.extend(MAGIC);
    out
}

/// The stamp and the chunks of a file of so many bytes, of which `read` reads some from a place on; `None` if it is
/// not whole, of another version or garbled.
pub(super) fn parse(
    length: u64,
    read: impl Fn(u64, u64) -> Option<Vec<u8>>,
) -> Option<(Stamp, Vec<Chunk>)> {
    let head = MAGIC.len() as u64;
    let end = length.checked_sub(TRAILER as u64).filter(|end| *end >= head)?;
    let trailer = read(end, TRAILER as u64)?;
    let mut fields = Fields(&trailer);
    let (at, bytes, crc) = (fields.u64()?, fields.u64()?, fields.u32()?);
    if fields.0 != MAGIC || read(0, head)? != MAGIC {
        return None;
    }
    if at < head || bytes > MAX_INDEX || at.checked_add(bytes) != Some(end) {
        return None;
    }
    let index = read(at, bytes)?;
    if crc32fast::hash(&index) != crc {
        return None;
    }
    let mut fields = Fields(&index);
    let stamp = Stamp { crc: fields.u32()?, rows: fields.u64()?, bytes: fields.u64()? };
    let mut chunks = Vec::with_capacity(fields.0.len() / RECORD);
    while !fields.0.is_empty() {
        let holds = match fields.u32()? {
            LONG => Holds::Long,
            OPEN => Holds::Open,
            level if level <= COARSEST => Holds::Cells(level),
            _ => return None,
        };
        let crc = fields.u32()?;
        let extent = (fields.i64()?, fields.i64()?);
        let chunk = Chunk { holds, extent, at: fields.u64()?, bytes: fields.u64()?, crc };
        let lies_in_file = chunk.at.checked_add(chunk.bytes).is_some_and(|end| end <= at);
        let is_time = match holds {
            // Its buckets begin and end in the time that there is.
            Holds::Cells(level) => i64::MIN >> level <= extent.0 && extent.1 <= i64::MAX >> level,
            Holds::Long | Holds::Open => true,
        };
        if !lies_in_file || !is_time || extent.0 > extent.1 || chunk.bytes > MAX_CHUNK {
            return None;
        }
        chunks.push(chunk);
    }
    Some((stamp, chunks))
}
