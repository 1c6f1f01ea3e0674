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
//! A reader takes nothing on trust: a frame counts if both of its checksums hold and those of all before it
//! do, and a commit counts if all its frames do. The rest is torn. So what is read after a crash or a power
//! cut is what had been committed at some moment before it.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use gpuwhy_guard::guarded;
use gpuwhy_schema::{TABLES, Table, VERSION};

use crate::beneath::Written;
use crate::dir::{Dir, journal_name};
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
/// Where in a frame's header its mark stands: the last byte of the room for the name, which no name fills.
const MARK: usize = 4 + NAME - 1;
/// Marks: more frames of the same commit follow; it ends with this frame; the journal ends. Journals of
/// before have 0 there.
const COMMIT_GOES_ON: u8 = 1;
const COMMIT_ENDS: u8 = 2;
const JOURNAL_ENDS: u8 = 3;

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
    file: Written,
    path: PathBuf,
    /// How much of it is whole.
    pub length: u64,
    /// Its committed frames, in the order of the file.
    pub frames: Vec<Frame>,
    encoder: Encoder,
    /// What the next commit will write.
    buffer: Vec<u8>,
    buffered: Vec<Frame>,
    /// Whether a part of a failed commit still lies behind [`Journal::length`].
    torn: bool,
}

impl Journal {
    /// An empty journal with its header; an older file of that name goes.
    pub fn create(dir: &Dir, segment: u32) -> Result<Journal> {
        let name = journal_name(segment);
        let path = dir.at(&name);
        dir.folder("journal")?;
        dir.remove_if_there(&name)?;
        let file = dir.root.create(&name).map_err(Error::io("create", &path))?;
        if let Err(e) = file.write_at(&file_header(segment), 0) {
            let _ = dir.root.remove(&name);
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
            torn: false,
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
        let Some(last) = self.buffered.last() else { return Ok(()) };
        // So that a reader takes all of it or nothing: rows refer to each other.
        let header = (last.offset - self.length) as usize - FRAME_HEADER;
        self.buffer[header + MARK] = COMMIT_ENDS;
        seal_head(&mut self.buffer[header..header + FRAME_HEADER]);
        let written = self.cut_torn().and_then(|()| self.file.write_at(&self.buffer, self.length));
        let bytes = self.buffer.len() as u64;
        self.buffer.clear();
        if self.buffer.capacity() > 8 << 20 {
            self.buffer = Vec::new();
        }
        let frames = std::mem::take(&mut self.buffered);
        if let Err(e) = written {
            // A full disk takes a part of a write. What is left of it would be a torn tail; the
            // caller keeps the rows and tries again, so it must not stay.
            self.torn = true;
            let _ = self.cut_torn();
            return Err(Error::io("append to", &self.path)(e));
        }
        self.length += bytes;
        self.frames.extend(frames);
        Ok(())
    }

    /// Says at its end that it has come to its end: of what a later journal says, nothing can be missing
    /// in between. A disk that is full has no room for that; it is no loss but after a power cut.
    pub fn close(&mut self) {
        let mut end = [0; FRAME_HEADER];
        end[..4].copy_from_slice(FRAME_MAGIC);
        end[MARK] = JOURNAL_ENDS;
        seal_head(&mut end);
        if self.cut_torn().and_then(|()| self.file.write_at(&end, self.length)).is_err() {
            self.torn = true;
            let _ = self.cut_torn();
        }
    }

    /// Removes what a failed commit left. Whole frames may be among it, whose rows will come again.
    fn cut_torn(&mut self) -> std::io::Result<()> {
        if self.torn {
            self.file.cut(self.length)?;
            self.torn = false;
        }
        Ok(())
    }
}

impl Journal {
    /// What was committed, for reading.
    pub fn into_found(self) -> Found {
        let file = self.file.into_file();
        let (path, frames) = (self.path, self.frames);
        Found { file, path, frames, torn: None, is_closed: true, is_believed: true }
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
    header[MARK] = COMMIT_GOES_ON;
    seal_head(header);
}

/// Makes the checksum of a frame's header right.
fn seal_head(header: &mut [u8]) {
    let crc = crc32fast::hash(&header[..32]);
    header[32..36].copy_from_slice(&crc.to_le_bytes());
}

/// A journal of one frame with this payload and sound checksums: what the fuzz target needs to
/// come past these.
pub(crate) fn wrap(table: &str, rows: u32, payload: &[u8]) -> Vec<u8> {
    let mut journal = file_header(0).to_vec();
    let at = journal.len();
    journal.resize(at + FRAME_HEADER, 0);
    journal.extend_from_slice(payload);
    seal_header(table, rows, &mut journal[at..]);
    journal[at + MARK] = COMMIT_ENDS;
    seal_head(&mut journal[at..at + FRAME_HEADER]);
    journal
}

/// What a header says that stands at `offset` of the file.
enum Head {
    Frame(Frame, u8),
    End,
}

fn head_at(header: &[u8], offset: u64) -> Option<Head> {
    let header = header.get(..FRAME_HEADER)?;
    if &header[..4] != FRAME_MAGIC || crc32fast::hash(&header[..32]) != u32_at(header, 32) {
        return None;
    }
    let name = &header[4..4 + NAME];
    let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(NAME)];
    if name.is_empty() && header[MARK] == JOURNAL_ENDS {
        return Some(Head::End);
    }
    let table = TABLES.iter().position(|t| t.as_bytes() == name)? as u8;
    let length = u32_at(header, 24);
    let frame = Frame {
        table,
        rows: u32_at(header, 20),
        offset: offset + FRAME_HEADER as u64,
        length,
        payload_crc: u32_at(header, 28),
    };
    (length <= MAX_PAYLOAD).then_some(Head::Frame(frame, header[MARK]))
}

/// A journal as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// The file, open for reading.
    pub file: File,
    /// Its path, for errors.
    pub path: PathBuf,
    /// The frames of whole commits, up to the first that is not whole.
    pub frames: Vec<Frame>,
    /// From where on it is torn, if it is.
    pub torn: Option<Range<u64>>,
    /// Whether nothing was to follow: of a journal that says so, or that is too old to say it.
    pub is_closed: bool,
    /// Whether all that it refers to is there.
    pub is_believed: bool,
}

impl Found {
    /// Looks through a journal; memory is bounded by one frame and the list of frames.
    pub fn scan(dir: &Dir, name: &str) -> Result<Found> {
        Found::of_file(dir.file(name)?, dir.at(name))
    }

    /// Looks through a journal that is open.
    pub fn of_file(file: File, path: PathBuf) -> Result<Found> {
        let length = file.metadata().map_err(Error::io("measure", &path))?.len();
        let scanned = scan(&file, length).map_err(Error::io("read", &path))?;
        let Scanned { frames, whole, is_closed } = scanned;
        let torn = (whole < length).then_some(whole..length);
        Ok(Found { file, path, frames, torn, is_closed, is_believed: true })
    }

    /// Gives up all of it: what it refers to was in a journal that is torn.
    pub fn give_up(&mut self) {
        let length = self.file.metadata().map_or(0, |m| m.len());
        self.is_believed = false;
        self.frames.clear();
        self.torn = (length > 0).then_some(0..length);
    }

    /// Whether rows of it are missing, or what was written after them.
    pub fn is_cut(&self) -> bool {
        self.torn.is_some() || !self.is_closed
    }

    /// The frames of a table, decoded one by one.
    pub fn batches<'a, T: Table>(&'a self) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
        let frames = self.frames.iter().filter(|f| f.is_of::<T>());
        frames.map(|frame| read_frame::<T>(&self.file, &self.path, frame))
    }

    /// How many bytes lie outside of whole commits.
    pub fn torn_bytes(&self) -> u64 {
        self.torn.as_ref().map_or(0, |t| t.end - t.start)
    }
}

/// What the whole commits of a journal are.
struct Scanned {
    frames: Vec<Frame>,
    /// Where the last of them ends.
    whole: u64,
    is_closed: bool,
}

/// Reads headers and checksums up to the first that does not hold. What follows it is not looked for: rows
/// refer to what was written before them, so that after a power cut, which takes any pages of the end, only
/// a beginning is a trace.
fn scan(file: &File, length: u64) -> std::io::Result<Scanned> {
    let mut header = [0; FRAME_HEADER];
    let have = read_up_to(file, &mut header[..FILE_HEADER], 0)?;
    let mut found = Scanned { frames: Vec::new(), whole: 0, is_closed: false };
    if have < FILE_HEADER || &header[..8] != FILE_MAGIC || u32_at(&header, 8) != VERSION {
        return Ok(found);
    }
    let mut at = FILE_HEADER as u64;
    found.whole = at;
    let mut commit = Vec::new();
    let mut is_old = false;
    while at < length {
        let have = read_up_to(file, &mut header, at)?;
        match head_at(&header[..have], at) {
            None => break,
            Some(Head::End) => {
                found.is_closed = true;
                if commit.is_empty() {
                    found.whole = at + FRAME_HEADER as u64;
                }
                break;
            }
            Some(Head::Frame(frame, mark)) => {
                let end = frame.offset + u64::from(frame.length);
                if end > length || checksum(file, &frame)? != frame.payload_crc {
                    break;
                }
                commit.push(frame);
                at = end;
                // Before commits were marked, each frame stood for itself.
                is_old |= mark == 0;
                if mark != COMMIT_GOES_ON {
                    found.frames.append(&mut commit);
                    found.whole = at;
                }
            }
        }
    }
    found.is_closed |= is_old;
    Ok(found)
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
