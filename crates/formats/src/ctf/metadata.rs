//! The file `metadata`: as text, as packets of text (CTF 1.8.3, section 7.1), or as JSON.

use std::path::Path;

use super::ast::{Fault, Metadata};
use super::{build, json, tsdl};
use crate::{Error, Result};

/// The magic number of packets of metadata.
pub(super) const PACKET: u32 = 0x75d1_1d57;
/// How metadata of CTF 2 begin: a record separator.
pub(super) const CTF2: u8 = 0x1e;
/// Bytes of metadata; those of a kernel with all its events have a third of a megabyte.
const MOST: u64 = 64 << 20;
/// Bytes of a packet's header.
const HEADER: usize = 37;

/// Reads the metadata of the trace in a directory.
///
/// # Errors
/// They cannot be read, are damaged, or describe something that is not read.
pub(super) fn read(path: &Path) -> Result<build::Model> {
    let length = std::fs::metadata(path).map_err(Error::io("measure", path))?.len();
    if length > MOST {
        let why = format!("{length} bytes of metadata; up to {MOST} are read");
        return Err(Error::Unreadable { path: path.into(), why });
    }
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    model(&bytes).map_err(|(place, what)| Error::damaged(path, place, what))
}

/// The model that metadata describe, or the place and what is wrong there.
pub(super) fn model(bytes: &[u8]) -> std::result::Result<build::Model, (String, String)> {
    let metadata = parse(bytes).map_err(|fault| (format!("at byte {}", fault.at), fault.what))?;
    build::build(&metadata).map_err(|what| ("in what it declares".into(), what))
}

fn parse(bytes: &[u8]) -> std::result::Result<Metadata, Fault> {
    let magic = bytes.first_chunk::<4>().map(|magic| u32::from_le_bytes(*magic));
    let is_packet = magic == Some(PACKET) || magic == Some(PACKET.swap_bytes());
    let unpacked;
    let (text, places) = if is_packet {
        let (text, places) = unpack(bytes)?;
        unpacked = text;
        (unpacked.as_slice(), places)
    } else {
        (bytes, vec![(0, 0)])
    };
    let found = match text.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(&CTF2) => json::parse(text),
        _ => {
            let invalid = |e: std::str::Utf8Error| Fault {
                at: e.valid_up_to(),
                what: "neither text nor packets of text".into(),
            };
            std::str::from_utf8(text).map_err(invalid).and_then(tsdl::parse)
        }
    };
    // Where the packet has it that the byte of the text comes from.
    found.map_err(|fault| {
        let before = places.iter().rev().find(|(of_text, _)| *of_text <= fault.at);
        let (of_text, of_file) = before.copied().unwrap_or_default();
        Fault { at: of_file + (fault.at - of_text), what: fault.what }
    })
}

/// Where pieces of a text begin in the whole, and where in the file.
type Places = Vec<(usize, usize)>;

/// The text of packets, and for each packet where its text begins in the whole and in the file.
fn unpack(bytes: &[u8]) -> std::result::Result<(Vec<u8>, Places), Fault> {
    let is_big = bytes.starts_with(&PACKET.to_be_bytes());
    let (mut text, mut places) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let fault = |what: &str| Fault { at, what: what.into() };
        let packet = &bytes[at..];
        if packet.len() < HEADER {
            return Err(fault("a packet of metadata that is cut off"));
        }
        let word = |from: usize| {
            let mut four = [0; 4];
            four.copy_from_slice(&packet[from..from + 4]);
            if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
        };
        if word(0) != PACKET {
            return Err(fault("no packet of metadata where one should begin"));
        }
        let (content, size) = (word(24) as usize / 8, word(28) as usize / 8);
        if packet[35] != 1 || packet[36] != 8 {
            let what = format!("metadata of version {}.{}; 1.8 is read", packet[35], packet[36]);
            return Err(fault(&what));
        }
        if packet[32..35] != [0; 3] {
            return Err(fault("metadata that are compressed, encrypted or have a checksum"));
        }
        if size < HEADER || content < HEADER || content > size || size > packet.len() {
            let what = format!(
                "a packet of metadata of {size} bytes, {content} of them used, where {} follow",
                packet.len()
            );
            return Err(fault(&what));
        }
        places.push((text.len(), at + HEADER));
        text.extend_from_slice(&packet[HEADER..content]);
        at += size;
    }
    Ok((text, places))
}
