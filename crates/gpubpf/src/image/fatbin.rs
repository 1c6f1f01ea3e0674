//! Fat binaries: a header, then images one after the other, each with its own header.

use std::io::{self, Read};

use super::{Arch, Variant};

/// The largest image that is read, in bytes after decompression. The largest of PyTorch's have some tens of MiB.
pub const MAX_IMAGE: u64 = 1 << 30;

/// The first bytes of a fat binary.
pub const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// Bytes of the shortest header of a fat binary, and of an image.
const CONTAINER: usize = 16;
const HEADER: usize = 64;

/// The longest header of an image: its name and options stand in there.
const MAX_HEADER: u32 = 1 << 20;

const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
const SPECIFIC: u64 = 0x10_0000;
/// The first is what CUDA 13.0's `fatbinary` sets for `sm_100f`; the second has been seen as well.
const FAMILY: u64 = 0x20_0000 | 0x100_0000;

/// What an image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// PTX text.
    Ptx,
    /// Machine code: an ELF object for one architecture.
    Cubin,
    /// Something else, by its number.
    Other(u16),
}

/// An image, decompressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What it holds.
    pub content: Content,
    /// For what it was compiled.
    pub arch: Arch,
    /// The source file, where it is said.
    pub name: String,
    /// Options of ptxas, where they are said.
    pub options: String,
    /// Where its header begins, in bytes from where reading began.
    pub at: u64,
    /// Bytes that it takes in the file.
    pub stored: u64,
    /// PTX without the zero at its end, or the ELF object.
    pub bytes: Vec<u8>,
    /// Number of the container that it stands in, from 0: one for each translation unit.
    pub unit: usize,
}

/// Why images cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum ImageFault {
    /// Reading failed.
    #[error("cannot read at byte {at}")]
    Read {
        /// Where.
        at: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bytes are no fat binary or a damaged one.
    #[error("byte {at}: {reason}")]
    Damaged {
        /// Where the container or the image begins.
        at: u64,
        /// What is wrong.
        reason: String,
    },
}

impl ImageFault {
    fn damaged(at: u64, reason: impl Into<String>) -> Self {
        Self::Damaged { at, reason: reason.into() }
    }
}

/// Reads the images of one fat binary after the other. Ends at the first fault.
pub struct Images<R> {
    source: R,
    /// Bytes that were read.
    at: u64,
    /// Where the container ends that is being read.
    end: u64,
    /// Containers that were begun.
    units: usize,
    over: bool,
}

/// Little-endian numbers of a header; its length was checked.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl<R: Read> Images<R> {
    /// Reads from where `source` stands: a file `.fatbin`, or a section `.nv_fatbin`.
    pub fn new(source: R) -> Self {
        Self { source, at: 0, end: 0, units: 0, over: false }
    }

    /// The next `length` bytes; fewer where the source ends. What is claimed to be there takes no memory.
    fn take(&mut self, length: u64) -> Result<Vec<u8>, ImageFault> {
        let mut bytes = Vec::new();
        let read = self.source.by_ref().take(length).read_to_end(&mut bytes);
        read.map_err(|source| ImageFault::Read { at: self.at, source })?;
        self.at += bytes.len() as u64;
        Ok(bytes)
    }

    /// The next `length` bytes, or that what begins at `start` is cut off.
    fn all(&mut self, length: u64, start: u64) -> Result<Vec<u8>, ImageFault> {
        let bytes = self.take(length)?;
        if (bytes.len() as u64) < length {
            let missing = length - bytes.len() as u64;
            return Err(ImageFault::damaged(
                start,
                format!("cut off: {missing} bytes are missing"),
            ));
        }
        Ok(bytes)
    }

    /// Begins the next container; false at the end. Containers are aligned with zeros between them.
    fn container(&mut self) -> Result<bool, ImageFault> {
        loop {
            let start = self.at;
            let word = self.take(8)?;
            if word.iter().all(|byte| *byte == 0) {
                if word.len() < 8 {
                    return Ok(false);
                }
                continue;
            }
            if word.len() < 8 || !word.starts_with(&FATBIN_MAGIC) {
                return Err(ImageFault::damaged(start, "no fat binary begins here (ba55ed50)"));
            }
            let (version, header) = (u16_at(&word, 4), u16_at(&word, 6));
            if version != 1 || usize::from(header) < CONTAINER {
                let reason =
                    format!("a fat binary of version {version} with a header of {header} bytes");
                return Err(ImageFault::damaged(start, reason));
            }
            let rest = self.all(u64::from(header) - 8, start)?;
            let size = u64_at(&rest, 0);
            self.end = self
                .at
                .checked_add(size)
                .ok_or_else(|| ImageFault::damaged(start, format!("a size of {size} bytes")))?;
            self.units += 1;
            return Ok(true);
        }
    }

    fn image(&mut self) -> Result<Option<Image>, ImageFault> {
        while self.at >= self.end {
            if !self.container()? {
                return Ok(None);
            }
        }
        let at = self.at;
        let head = self.all(HEADER as u64, at)?;
        let length = u32_at(&head, 4);
        let stored = u64_at(&head, 8);
        if !(HEADER as u32..=MAX_HEADER).contains(&length) {
            return Err(ImageFault::damaged(at, format!("an image's header of {length} bytes")));
        }
        let inside = (at + u64::from(length)).checked_add(stored).is_some_and(|e| e <= self.end);
        if !inside || stored > MAX_IMAGE {
            let reason =
                format!("an image of {stored} bytes; its fat binary ends at byte {}", self.end);
            return Err(ImageFault::damaged(at, reason));
        }
        let mut header = head;
        header.extend(self.all(u64::from(length) - HEADER as u64, at)?);
        let payload = self.all(stored, at)?;
        let bytes = unpacked(&header, payload).map_err(|r| ImageFault::damaged(at, r))?;
        let flags = u64_at(&header, 40);
        let variant = match flags {
            _ if flags & SPECIFIC != 0 => Variant::Specific,
            _ if flags & FAMILY != 0 => Variant::Family,
            _ => Variant::Plain,
        };
        let content = match u16_at(&header, 0) {
            1 => Content::Ptx,
            2 => Content::Cubin,
            other => Content::Other(other),
        };
        let text = |from: usize| said(&header, u32_at(&header, from), u32_at(&header, from + 4));
        let options = match u32_at(&header, 20) as usize {
            0 => String::new(),
            place if place + 8 <= header.len() => text(place),
            place => {
                let reason = format!("options at byte {place} of a header of {length} bytes");
                return Err(ImageFault::damaged(at, reason));
            }
        };
        Ok(Some(Image {
            content,
            arch: Arch { number: u32_at(&header, 28), variant },
            name: text(32),
            options,
            at,
            stored,
            bytes: without_end(bytes, content),
            unit: self.units - 1,
        }))
    }
}

/// A text within a header; nothing where it lies outside.
fn said(header: &[u8], at: u32, length: u32) -> String {
    let end = (at as usize).saturating_add(length as usize);
    let bytes = header.get(at as usize..end).unwrap_or_default();
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// PTX ends with a zero and is padded with more of them.
fn without_end(mut bytes: Vec<u8>, content: Content) -> Vec<u8> {
    if content == Content::Ptx {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end);
    }
    bytes
}

/// A payload as it was before it was compressed and padded.
fn unpacked(header: &[u8], mut payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let (compressed, whole) = (u32_at(header, 16) as usize, u64_at(header, 56));
    let flags = u64_at(header, 40);
    if flags & (LZ4 | ZSTD) == 0 {
        return Ok(payload);
    }
    if compressed > payload.len() {
        return Err(format!("{compressed} compressed bytes in {}", payload.len()));
    }
    if whole > MAX_IMAGE {
        return Err(format!("an image of {whole} bytes; at most {MAX_IMAGE} are read"));
    }
    payload.truncate(compressed);
    let bytes = if flags & ZSTD != 0 {
        let mut bytes = Vec::new();
        let read = zstd::stream::read::Decoder::with_buffer(payload.as_slice())
            .and_then(|decoder| decoder.take(whole + 1).read_to_end(&mut bytes));
        read.map_err(|error| format!("zstd: {error}"))?;
        bytes
    } else {
        // A byte of LZ4 becomes 255 at most; a greater claim takes no memory.
        if whole > 255 * payload.len() as u64 + 16 {
            return Err(format!("{compressed} bytes of LZ4 cannot hold {whole}"));
        }
        lz4_flex::block::decompress(&payload, whole as usize).map_err(|e| format!("LZ4: {e}"))?
    };
    if bytes.len() as u64 != whole {
        return Err(format!("{whole} bytes are said to be there, {} are", bytes.len()));
    }
    Ok(bytes)
}

impl<R: Read> Iterator for Images<R> {
    type Item = Result<Image, ImageFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.image().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}
