//! The journal: rows as they come, in one append-only file a segment, until they are sealed.
//!
//! A file header, then frames: a fixed frame header that says table, rows, length and checksums,
//! then one uncompressed record batch as an Arrow IPC message (without its schema, which the
//! table's name and the version in the file header stand for). Each commit is one `write(2)`. The bytes
//! lie in the page cache from then on and outlive the process, however it dies; they are not
//! flushed to the disk. An fsync each second on the disk of the workload would disturb the very
//! thing that is being measured, and what it would save is the last seconds before a power cut,
//! which end the workload too. What is sealed is flushed (see [`crate::Durability`]).
//!
//! A reader takes nothing on trust: a frame counts if both of its checksums hold, and what lies
//! between such frames is torn.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use gpuwhy_guard::guarded;
use gpuwhy_schema::{TABLES, Table, VERSION};

use crate::{Error, Result};

const FILE_MAGIC: &[u8; 8] = b"gpuwhyJ1";
const FILE_HEADER: usize = 16;
const FRAME_MAGIC: &[u8; 4] = b"\xffGWf";
const FRAME_HEADER: usize = 36;
const NAME: usize = 16;
/// What stands before the message in a payload.
const LEAD: usize = 8;
/// Of the message's body in its payload, and of the buffers in the body.
const ALIGNMENT: usize = 8;
/// A frame's payload is never longer; the writer cuts its batches far below this.
const MAX_PAYLOAD: u32 = 64 << 20;
/// Rows of one frame.
pub(crate) const FRAME_ROWS: usize = 64 * 1024;
/// After this many frames with a whole header but a broken payload, the rest of a journal is
/// given up: each costs a checksum over its length, and a hostile file is made of nothing else.
const MAX_BROKEN: usize = 64;

/// One frame of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Index in [`TABLES`].
    pub table: u8,
    /// How many rows it holds.
    pub rows: u32,
    /// Where its payload begins in the file.
    pub offset: u64,
    /// Bytes of its payload.
    pub length: u32,
    payload_crc: u32,
}

impl Frame {
    /// Whether its rows are of table `T`.
    pub fn is_of<T: Table>(&self) -> bool {
        TABLES.get(usize::from(self.table)) == Some(&T::NAME)
    }
}

/// The journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Its file.
    pub path: PathBuf,
    /// How much of it is whole.
    pub length: u64,
    /// Its committed frames, in the order of the file.
    pub frames: Vec<Frame>,
    encoder: Encoder,
    /// What the next commit will write.
    buffer: Vec<u8>,
    buffered: Vec<Frame>,
}

impl Journal {
    /// An empty journal with its header; an older file at `path` is overwritten.
    pub fn create(path: PathBuf, segment: u32) -> Result<Journal> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        if let Err(e) = file.write_all(&file_header(segment)) {
            let _ = std::fs::remove_file(&path);
            return Err(Error::io("write", &path)(e));
        }
        Ok(Journal {
            file,
            path,
            length: FILE_HEADER as u64,
            frames: Vec::new(),
            encoder: Encoder::new(),
            buffer: Vec::new(),
            buffered: Vec::new(),
        })
    }

    /// Puts rows into the next commit.
    pub fn put<T: Table>(&mut self, rows: &[T]) {
        for rows in rows.chunks(FRAME_ROWS) {
            self.put_batch::<T>(&T::batch(rows));
        }
    }

    /// Puts a batch of at most [`FRAME_ROWS`] rows into the next commit.
    pub fn put_batch<T: Table>(&mut self, batch: &RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        let at = self.buffer.len();
        self.encoder.encode::<T>(batch, &mut self.buffer);
        let length = (self.buffer.len() - at - FRAME_HEADER) as u32;
        if length > MAX_PAYLOAD && batch.num_rows() > 1 {
            // Very long names: cut in half until it fits.
            self.buffer.truncate(at);
            let half = batch.num_rows() / 2;
            self.put_batch::<T>(&batch.slice(0, half));
            self.put_batch::<T>(&batch.slice(half, batch.num_rows() - half));
            return;
        }
        let header = &self.buffer[at..at + FRAME_HEADER];
        let payload_crc = u32_at(header, 28);
        self.buffered.push(Frame {
            table: table_index(T::NAME),
            rows: batch.num_rows() as u32,
            offset: self.length + (at + FRAME_HEADER) as u64,
            length,
            payload_crc,
        });
    }

    /// Writes what was put since the last commit, all or nothing.
    pub fn commit(&mut self) -> Result<()> {
        let written = self.file.write_all_at(&self.buffer, self.length);
        let bytes = self.buffer.len() as u64;
        self.buffer.clear();
        if self.buffer.capacity() > 8 << 20 {
            self.buffer = Vec::new();
        }
        let frames = std::mem::take(&mut self.buffered);
        if let Err(e) = written {
            // A full disk takes a part of a write. What is left of it would be a torn tail; the
            // caller keeps the rows and tries again, so it must not stay.
            let _ = self.file.set_len(self.length);
            return Err(Error::io("append to", &self.path)(e));
        }
        self.length += bytes;
        self.frames.extend(frames);
        Ok(())
    }
}

impl Journal {
    /// What was committed, for reading.
    pub fn into_found(self) -> Found {
        Found { file: self.file, path: self.path, frames: self.frames, torn: Vec::new() }
    }
}

fn file_header(segment: u32) -> [u8; FILE_HEADER] {
    let mut header = [0; FILE_HEADER];
    header[..8].copy_from_slice(FILE_MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&segment.to_le_bytes());
    header
}

fn table_index(name: &str) -> u8 {
    TABLES.iter().position(|&t| t == name).map_or(u8::MAX, |i| i as u8)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Makes frames; keeps what can be used again for the next one.
struct Encoder {
    generator: IpcDataGenerator,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}

impl Encoder {
    fn new() -> Encoder {
        Encoder {
            generator: IpcDataGenerator::default(),
            options: IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)
                .expect("8 is an alignment that IPC allows"),
            context: IpcWriteContext::default(),
        }
    }

    /// Appends a frame: magic 4, table 16 (padded with zeros), rows 4, length 4, CRC-32 of the
    /// payload 4, CRC-32 of the header so far 4; all little-endian. The payload: length of the IPC
    /// message 4, zeros 4, the message, padding to 8, the message's body.
    fn encode<T: Table>(&mut self, batch: &RecordBatch, out: &mut Vec<u8>) {
        let at = out.len();
        let body = at + FRAME_HEADER;
        out.resize(body + LEAD, 0);
        let mut tracker = DictionaryTracker::new(false);
        let (_, encoded) = self
            .generator
            .encode(batch, &mut tracker, &self.options, &mut self.context)
            .expect("plain columns without compression can always be encoded");
        out[body..body + 4].copy_from_slice(&(encoded.ipc_message.len() as u32).to_le_bytes());
        out.extend_from_slice(&encoded.ipc_message);
        out.resize(body + (out.len() - body).next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(&encoded.arrow_data);
        seal_header(T::NAME, batch.num_rows() as u32, &mut out[at..]);
    }
}

/// Fills in the header of the frame that `frame` is.
fn seal_header(table: &str, rows: u32, frame: &mut [u8]) {
    let (header, payload) = frame.split_at_mut(FRAME_HEADER);
    header[..4].copy_from_slice(FRAME_MAGIC);
    header[4..4 + table.len()].copy_from_slice(table.as_bytes());
    header[20..24].copy_from_slice(&rows.to_le_bytes());
    header[24..28].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[28..32].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let header_crc = crc32fast::hash(&header[..32]);
    header[32..36].copy_from_slice(&header_crc.to_le_bytes());
}

/// A journal of one frame with this payload and sound checksums: what the fuzz target needs to
/// come past these.
pub(crate) fn wrap(table: &str, rows: u32, payload: &[u8]) -> Vec<u8> {
    let mut journal = file_header(0).to_vec();
    let at = journal.len();
    journal.resize(at + FRAME_HEADER, 0);
    journal.extend_from_slice(payload);
    seal_header(table, rows, &mut journal[at..]);
    journal
}

/// The frame whose header stands at the start of `bytes`, which lie at `offset` of the file.
fn frame_at(bytes: &[u8], offset: u64) -> Option<Frame> {
    let header = bytes.get(..FRAME_HEADER)?;
    if &header[..4] != FRAME_MAGIC || crc32fast::hash(&header[..32]) != u32_at(header, 32) {
        return None;
    }
    let name = &header[4..4 + NAME];
    let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(NAME)];
    let table = TABLES.iter().position(|t| t.as_bytes() == name)? as u8;
    let length = u32_at(header, 24);
    (length <= MAX_PAYLOAD).then_some(Frame {
        table,
        rows: u32_at(header, 20),
        offset: offset + FRAME_HEADER as u64,
        length,
        payload_crc: u32_at(header, 28),
    })
}

/// A journal as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The file, open for reading.
    pub file: File,
    /// Its path, for errors.
    pub path: PathBuf,
    /// The frames whose checksums hold.
    pub frames: Vec<Frame>,
    /// The stretches of the file that no frame accounts for.
    pub torn: Vec<Range<u64>>,
}

impl Found {
    /// Looks through a journal; memory is bounded by one frame and the list of frames.
    pub fn scan(path: &Path) -> Result<Found> {
        // Before it is opened: a pipe would wait for somebody to write.
        let what = std::fs::symlink_metadata(path).map_err(Error::io("open", path))?;
        if !what.is_file() {
            return Err(Error::damaged(path, "it is not a regular file"));
        }
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("measure", path))?.len();
        let (frames, torn) = scan(&file, length).map_err(Error::io("read", path))?;
        Ok(Found { file, path: path.into(), frames, torn })
    }

    /// The frames of a table, decoded one by one.
    pub fn batches<'a, T: Table>(&'a self) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
        let frames = self.frames.iter().filter(|f| f.is_of::<T>());
        frames.map(|frame| read_frame::<T>(&self.file, &self.path, frame))
    }

    /// How many bytes lie outside of sound frames.
    pub fn torn_bytes(&self) -> u64 {
        self.torn.iter().map(|t| t.end - t.start).sum()
    }
}

type Scanned = (Vec<Frame>, Vec<Range<u64>>);

fn scan(file: &File, length: u64) -> std::io::Result<Scanned> {
    let (mut frames, mut torn) = (Vec::<Frame>::new(), Vec::<Range<u64>>::new());
    let mut tear = |from: u64, to: u64| match torn.last_mut() {
        _ if from >= to => {}
        Some(last) if last.end == from => last.end = to,
        _ => torn.push(from..to),
    };
    let mut header = [0; FILE_HEADER];
    let have = read_up_to(file, &mut header, 0)?;
    let mut at = 0;
    if have == FILE_HEADER && &header[..8] == FILE_MAGIC && u32_at(&header, 8) == VERSION {
        at = FILE_HEADER as u64;
    }
    let mut broken = 0;
    let mut window = vec![0; 1 << 16];
    while at < length {
        let have = read_up_to(file, &mut window[..FRAME_HEADER], at)?;
        if let Some(frame) = frame_at(&window[..have], at) {
            let end = frame.offset + u64::from(frame.length);
            if end <= length && checksum(file, &frame)? == frame.payload_crc {
                frames.push(frame);
                at = end;
                continue;
            }
            broken += 1;
            if broken >= MAX_BROKEN {
                break;
            }
        }
        if have < FRAME_HEADER {
            break;
        }
        let have = read_up_to(file, &mut window, at)?;
        // Not a frame: on to the next place where one could begin. The last bytes of the window
        // might be the first of a header, so they are looked at again with the next window.
        let next = window[..have]
            .windows(FRAME_MAGIC.len())
            .skip(1)
            .position(|w| w == FRAME_MAGIC)
            .map(|i| i + 1)
            .unwrap_or_else(|| have.saturating_sub(FRAME_MAGIC.len() - 1).max(1));
        let to = (at + next as u64).min(length);
        tear(at, to);
        at = to;
    }
    tear(at, length);
    Ok((frames, torn))
}

fn read_up_to(file: &File, buffer: &mut [u8], mut offset: u64) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match file.read_at(&mut buffer[have..], offset) {
            Ok(0) => break,
            Ok(n) => {
                have += n;
                offset += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

fn checksum(file: &File, frame: &Frame) -> std::io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; (1 << 16).min(frame.length as usize)];
    let (mut at, mut left) = (frame.offset, frame.length as usize);
    while left > 0 {
        let want = left.min(buffer.len());
        let have = read_up_to(file, &mut buffer[..want], at)?;
        if have == 0 {
            break;
        }
        hasher.update(&buffer[..have]);
        at += have as u64;
        left -= have;
    }
    Ok(hasher.finalize())
}

/// Decodes one frame.
pub(crate) fn read_frame<T: Table>(file: &File, path: &Path, frame: &Frame) -> Result<RecordBatch> {
    let mut payload = vec![0; frame.length as usize];
    file.read_exact_at(&mut payload, frame.offset).map_err(Error::io("read", path))?;
    if crc32fast::hash(&payload) != frame.payload_crc {
        return Err(Error::damaged(path, format!("the frame at byte {} changed", frame.offset)));
    }
    decode::<T>(payload, frame.rows)
        .map_err(|what| Error::damaged(path, format!("the frame at byte {}: {what}", frame.offset)))
}

/// The batch in a payload, which must hold exactly `rows` rows.
///
/// Not through `StreamReader`: that allocates whatever body length the message claims, and a
/// claim of 2^60 bytes ends the process. Here the body is what is left of the payload.
fn decode<T: Table>(payload: Vec<u8>, rows: u32) -> Result<RecordBatch, String> {
    let lead = payload.get(..LEAD).ok_or("its payload is cut off")?;
    let message_end = LEAD.saturating_add(u32_at(lead, 0) as usize);
    let body_start = message_end.next_multiple_of(ALIGNMENT);
    if body_start > payload.len() {
        return Err("its message is cut off".into());
    }
    let payload = Buffer::from_vec(payload);
    let body = payload.slice(body_start);
    let batch = guarded(|| {
        let message = arrow_ipc::root_as_message(&payload[LEAD..message_end])
            .map_err(|e| format!("its message is malformed: {e}"))?;
        let header = message.header_as_record_batch().ok_or("its message is not a record batch")?;
        if header.compression().is_some() {
            return Err("its message is compressed, which a journal never is".to_string());
        }
        if header.length() != i64::from(rows) {
            return Err(format!("it holds {} rows and says {rows}", header.length()));
        }
        let (schema, none) = (gpuwhy_schema::schema::<T>(), HashMap::new());
        arrow_ipc::reader::read_record_batch(&body, header, schema, &none, None, &message.version())
            .map_err(|e| e.to_string())
    })??;
    match batch.num_rows() {
        n if n == rows as usize => Ok(batch),
        n => Err(format!("it holds {n} rows and says {rows}")),
    }
}
