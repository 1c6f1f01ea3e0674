//! Packet after packet of a file (protos/perfetto/trace/trace.proto, trace_packet.proto).

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::wire::{Value, fields, varint};
use crate::{Error, Result};

/// The only field of a trace: its packets.
const PACKET: u32 = 1;
/// Of a packet: others, compressed by zlib.
const COMPRESSED: u32 = 50;
/// Bytes of a packet at most, and of what one unpacks to.
const MOST: u64 = 64 << 20;
/// Fields of a packet by their numbers, those that hold bytes and those that hold a number: enough of them to know a
/// trace by its first packets.
const BYTES: &[u32] = &[1, 2, 6, 11, 12, 33, 34, 35, 36, 43, 44, 45, 46, 50, 60, 67, 69, 89];
const NUMBERS: &[u32] = &[3, 8, 10, 13, 41, 42, 58, 79, 87, 98];

/// A file that is read.
#[derive(Debug)]
pub(super) struct Packets {
    inner: BufReader<File>,
    /// Where it lies.
    pub path: PathBuf,
    size: u64,
    at: u64,
    /// What a packet unpacked to, and how far it has been taken.
    unpacked: Vec<u8>,
    next: usize,
    packet: Vec<u8>,
}

/// Whether a file that begins like this is one of Perfetto's: its first packets have only fields that packets have.
pub(super) fn looks_like_packets(head: &[u8]) -> bool {
    let Some((10, 1)) = varint(head) else { return false };
    let Some((length, bytes)) = varint(&head[1..]) else { return false };
    let rest = &head[1 + bytes..];
    let is_whole = length <= rest.len() as u64;
    let packet = if is_whole { &rest[..length as usize] } else { rest };
    let mut known = 0;
    for field in fields(packet) {
        match field {
            Ok((number, Value::Bytes(_))) if BYTES.contains(&number) => known += 1,
            Ok((number, value)) if value.bytes().is_none() && NUMBERS.contains(&number) => {
                known += 1
            }
            // A later Perfetto may have more of them.
            Ok((number, _)) if number > 60 => {}
            Ok(_) => return false,
            // The rest lies beyond what was read of the file.
            Err(_) => return !is_whole && (known > 0 || begins_with_known_bytes(packet)),
        }
    }
    known > 0
}

/// A first field that is longer than what was read.
fn begins_with_known_bytes(packet: &[u8]) -> bool {
    varint(packet).is_some_and(|(key, _)| key & 7 == 2 && BYTES.contains(&((key >> 3) as u32)))
}

impl Packets {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Packets> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("measure", path))?.len();
        Ok(Packets {
            inner: BufReader::with_capacity(1 << 18, file),
            path: path.into(),
            size,
            at: 0,
            unpacked: Vec::new(),
            next: 0,
            packet: Vec::new(),
        })
    }

    /// About how much has been read, from 0 to 1.
    pub fn done(&self) -> f64 {
        self.at as f64 / self.size.max(1) as f64
    }

    /// The error about the packet that was read last.
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        let inside = if self.unpacked.is_empty() { "" } else { " (in compressed packets)" };
        Error::damaged(&self.path, format!("in the packet before byte {}{inside}", self.at), what)
    }

    /// Reads the next packet; false after the last.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn advance(&mut self) -> Result<bool> {
        loop {
            if self.next < self.unpacked.len() {
                return self.read_unpacked().map(|()| true);
            }
            self.unpacked.clear();
            self.next = 0;
            if !self.read_file()? {
                return Ok(false);
            }
            let compressed = fields(&self.packet).flatten().find(|field| field.0 == COMPRESSED);
            match compressed.and_then(|field| field.1.bytes()) {
                None => return Ok(true),
                Some(bytes) => self.unpacked = self.unpack(bytes)?,
            }
        }
    }

    /// The packet. Whoever takes it out gives its memory back.
    pub fn packet_mut(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }

    fn unpack(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut decoder = flate2::read::ZlibDecoder::new(bytes).take(MOST + 1);
        let read = decoder.read_to_end(&mut out);
        read.map_err(|error| self.damaged(format!("compressed packets: {error}")))?;
        if out.len() as u64 > MOST {
            return Err(self.damaged(format!("compressed packets of more than {MOST} bytes")));
        }
        Ok(out)
    }

    fn read_unpacked(&mut self) -> Result<()> {
        let rest = &self.unpacked[self.next..];
        let parts = varint(rest).zip(varint(rest.get(1..).unwrap_or_default()));
        let Some(((10, 1), (length, bytes))) = parts else {
            return Err(self.damaged("no packet begins here"));
        };
        let from = self.next + 1 + bytes;
        let to = usize::try_from(length).ok().and_then(|length| from.checked_add(length));
        let Some(packet) = to.and_then(|to| self.unpacked.get(from..to)) else {
            return Err(self.damaged(format!("{length} bytes of a packet are not there")));
        };
        self.packet.clear();
        self.packet.extend_from_slice(packet);
        self.next = from + packet.len();
        Ok(())
    }

    fn read_file(&mut self) -> Result<bool> {
        loop {
            let failed = Error::io("read", &self.path);
            if self.inner.fill_buf().map_err(failed)?.is_empty() {
                return Ok(false);
            }
            let key = self.varint()?;
            if key & 7 != 2 {
                return Err(
                    self.damaged(format!("a field of kind {} where a packet should be", key & 7))
                );
            }
            let length = self.varint()?;
            if length > MOST {
                return Err(
                    self.damaged(format!("a packet of {length} bytes; up to {MOST} are read"))
                );
            }
            self.packet.clear();
            let read = self.inner.by_ref().take(length).read_to_end(&mut self.packet);
            let read = read.map_err(Error::io("read", &self.path))? as u64;
            self.at += read;
            if read < length {
                return Err(self.damaged(format!("the file ends where {length} bytes should be")));
            }
            if key >> 3 == u64::from(PACKET) {
                return Ok(true);
            }
        }
    }

    fn varint(&mut self) -> Result<u64> {
        let mut bytes = [0; 10];
        for place in 0..bytes.len() {
            let read = self.inner.read(&mut bytes[place..=place]);
            if read.map_err(Error::io("read", &self.path))? == 0 {
                return Err(self.damaged("the file ends"));
            }
            self.at += 1;
            if bytes[place] & 0x80 == 0 {
                return Ok(varint(&bytes).map_or(0, |(number, _)| number));
            }
        }
        Err(self.damaged("a number that does not end"))
    }
}
