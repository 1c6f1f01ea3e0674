//! What a file of an unknown format looks like, for the error that refuses it.

use std::io::Read as _;

use crate::importer::Candidate;

/// Bytes that are shown of a binary file.
const BYTES: usize = 8;
/// Characters that are shown of a text.
const CHARACTERS: usize = 40;
/// Names that are shown of a directory.
const ENTRIES: usize = 5;

/// How files of other kinds begin, and what the user should do with them. From the `magic` database of
/// file(1), and the Parquet and Arrow format specifications.
const KNOWN: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "zip: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "Zstandard: decompress it first"),
    (b"\xfd7zXZ\0", "xz: decompress it first"),
    (b"BZh", "bzip2: decompress it first"),
    (b"\x7fELF", "an ELF program or library"),
    (b"PAR1", "one table in Parquet: give the directory that holds all tables of the export"),
    (b"ARROW1", "one table in Arrow: give the directory that holds all tables of the export"),
    (b"SQLite format 3\0", "an SQLite database of another schema"),
    (b"<!DOCTYPE", "a web page: the download did not give the file itself"),
    (b"<html", "a web page: the download did not give the file itself"),
];

/// How a file or directory begins and what that looks like, as a clause: `it begins with …`.
pub(crate) fn describe(candidate: &Candidate) -> String {
    if candidate.is_dir {
        return describe_directory(candidate);
    }
    let head = &candidate.head[..];
    if head.is_empty() {
        return "it is empty (0 bytes)".into();
    }
    let looks = if candidate.is_lfs_pointer() {
        Some("a Git LFS pointer; `git lfs pull` brings the file itself".into())
    } else if head.starts_with(GZIP) {
        Some(describe_gzip(head))
    } else if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        Some("text in UTF-16; `iconv -f UTF-16 -t UTF-8` makes UTF-8 of it".into())
    } else if matches!(head.trim_ascii_start().first(), Some(b'{' | b'[')) {
        Some("JSON, but without `traceEvents`".into())
    } else {
        let known = KNOWN.iter().find(|(begin, _)| head.starts_with(begin));
        known.map(|(_, looks)| (*looks).to_owned())
    };
    let begin = first_bytes(head);
    match looks {
        Some(looks) => format!("it begins with {begin} ({looks})"),
        None => format!("it begins with {begin}"),
    }
}

/// How gzip files begin (RFC 1952, section 2.3.1).
pub(crate) const GZIP: &[u8] = &[0x1f, 0x8b];

/// The first bytes of what a gzip file decompresses to, as far as `head` reaches.
pub(crate) fn gunzip(head: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    // The end of `head` cuts the file off: what came before that is enough.
    let _ = flate2::bufread::GzDecoder::new(head).take(1024).read_to_end(&mut text);
    text
}

fn describe_gzip(head: &[u8]) -> String {
    let text = gunzip(head);
    if text.is_empty() {
        return "gzip, empty or damaged".into();
    }
    // A profile is a protocol buffer whose first field, `sample_type`, is repeated (pprof,
    // proto/profile.proto).
    let pprof = if text[0] == 0x0a { ", perhaps a pprof profile" } else { "" };
    format!("gzip of {}{pprof}: unpack it first", first_bytes(&text))
}

/// The first line of a text in quotes, or the first bytes in hexadecimal.
fn first_bytes(head: &[u8]) -> String {
    let line = head.split(|b| matches!(b, b'\n' | b'\r')).next().unwrap_or_default();
    let line = &line[..line.len().min(CHARACTERS)];
    if !line.is_empty() && line.iter().all(|b| matches!(b, b'\t' | b' '..=b'~')) {
        return format!("{:?}", String::from_utf8_lossy(line));
    }
    let bytes: Vec<String> = head.iter().take(BYTES).map(|b| format!("{b:02x}")).collect();
    bytes.join(" ")
}

fn describe_directory(candidate: &Candidate) -> String {
    let Ok(entries) = candidate.path.read_dir() else { return "it is a directory".into() };
    let name = |e: std::fs::DirEntry| e.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.take(4096).filter_map(|e| e.ok().map(name)).collect();
    if names.is_empty() {
        return "it is an empty directory".into();
    }
    names.sort();
    let more = if names.len() > ENTRIES { " …" } else { "" };
    names.truncate(ENTRIES);
    format!(
        "it is a directory with {}{more}; give the files in it that are to be imported",
        names.join(", ")
    )
}
