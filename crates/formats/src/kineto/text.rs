//! A streaming JSON reader with bounded memory.
//!
//! Values that are not wanted are skipped, not built. Control characters in strings, which a strict reader
//! refuses, are accepted: real traces contain them (pytorch issue 130622).

use std::io::Read;
use std::path::{Path, PathBuf};

use super::timestamps::Time;
use crate::{Error, Result};

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// How deeply values may be nested.
const DEPTH: usize = 512;
/// The longest number, bytes.
const NUMBER: usize = 64;

/// Why a file in UTF-16 is refused, and what to do.
pub(super) const UTF16: &str =
    "it is text in UTF-16; `iconv -f UTF-16 -t UTF-8` makes JSON of it that can be read";

/// A text that is being read.
pub(super) struct Text<R> {
    input: R,
    path: PathBuf,
    buffer: Box<[u8]>,
    at: usize,
    end: usize,
    /// Bytes before the buffer.
    before: u64,
    /// What is being read, for errors.
    pub place: String,
}

/// A number, as it is written.
#[derive(Clone, Copy)]
pub(super) struct Number {
    bytes: [u8; NUMBER],
    len: usize,
}

impl Number {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Its value as an integer; `None` if it has a fraction or is out of range.
    pub fn int(&self) -> Option<i64> {
        let text = std::str::from_utf8(self.text()).ok()?;
        text.parse().ok().or_else(|| {
            let n: f64 = text.parse().ok()?;
            (n.fract() == 0.0 && n.abs() < 9e15).then_some(n as i64)
        })
    }

    /// Its value as a floating-point number.
    pub fn real(&self) -> Option<f64> {
        std::str::from_utf8(self.text()).ok()?.parse().ok()
    }

    /// As a time or duration, if it is a number of microseconds.
    pub fn time(&self) -> Time {
        Time::of(self.text())
    }
}

impl<R: Read> Text<R> {
    /// The text of `input`; errors name `path`.
    pub fn new(input: R, path: &Path) -> Text<R> {
        Text {
            input,
            path: path.into(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            at: 0,
            end: 0,
            before: 0,
            place: String::new(),
        }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// An error at the current byte.
    pub fn bad(&self, what: impl Into<String>) -> Error {
        let place = match &*self.place {
            "" => format!("byte {} of its text", self.offset()),
            place => format!("{place}, byte {} of its text", self.offset()),
        };
        Error::damaged(&self.path, place, what)
    }

    /// The error that the whole is something else.
    pub fn refuse(&self, why: &str) -> Error {
        let format = "a trace of the PyTorch profiler";
        Error::NotThis { path: self.path.clone(), format, why: why.into() }
    }

    /// Fills the buffer; false at the end.
    #[cold]
    fn refill(&mut self) -> Result<bool> {
        self.before += self.end as u64;
        (self.at, self.end) = (0, 0);
        loop {
            match self.input.read(&mut self.buffer) {
                Ok(n) => {
                    self.end = n;
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // An error of the decompressor means that the file is damaged.
                Err(e) if e.get_ref().is_some() || e.kind() == std::io::ErrorKind::InvalidInput => {
                    return Err(self.bad(format!("it cannot be decompressed: {e}")));
                }
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Err(self.bad(
                        "its compressed data are cut off, or something else follows after them",
                    ));
                }
                Err(e) => return Err(Error::io("read", &self.path)(e)),
            }
        }
    }

    /// The next byte, without reading past it; `None` at the end.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<u8>> {
        if self.at == self.end && !self.refill()? {
            return Ok(None);
        }
        Ok(Some(self.buffer[self.at]))
    }

    #[inline]
    fn next(&mut self) -> Result<u8> {
        match self.peek()? {
            Some(byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.bad("it ends in the middle")),
        }
    }

    /// The next byte that is not white space.
    #[inline]
    pub fn token(&mut self) -> Result<u8> {
        loop {
            let byte = self.next()?;
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Ok(byte);
            }
        }
    }

    /// Skips the mark that some editors put at the beginning of UTF-8; an error if the text is in UTF-16.
    pub fn begin(&mut self) -> Result<()> {
        match self.peek()? {
            Some(0xef) => {
                self.next()?;
                if (self.next()?, self.next()?) == (0xbb, 0xbf) {
                    return Ok(());
                }
                Err(self.refuse("it does not begin as a text"))
            }
            Some(0xfe | 0xff) => Err(self.refuse(UTF16)),
            Some(_) => Ok(()),
            None => Err(self.refuse("it is empty after decompression")),
        }
    }

    /// Reads to the end of the file, which only white space may follow: this is where a checksum of gzip is
    /// compared.
    pub fn end(&mut self) -> Result<()> {
        while let Some(byte) = self.peek()? {
            match byte {
                b' ' | b'\n' | b'\t' | b'\r' => self.at += 1,
                b'{' | b'[' => {
                    return Err(self.bad(
                        "a second document begins after the end of the first; make each a file of its own",
                    ));
                }
                other => {
                    let other = (other as char).escape_default();
                    return Err(
                        self.bad(format!("`{other}` follows after the end of the document"))
                    );
                }
            }
        }
        Ok(())
    }

    /// Reads a byte after white space that must be `wanted`.
    pub fn expect(&mut self, wanted: u8) -> Result<()> {
        match self.token()? {
            byte if byte == wanted => Ok(()),
            byte => {
                let (wanted, byte) = (wanted as char, (byte as char).escape_default());
                Err(self.bad(format!("`{wanted}` is expected here, not `{byte}`")))
            }
        }
    }

    /// Whether an object or array ends here; otherwise reads the comma before its next value.
    pub fn is_end(&mut self, close: u8, first: bool) -> Result<bool> {
        let byte = self.token()?;
        if byte == close {
            return Ok(true);
        }
        if first {
            self.at -= 1;
        } else if byte != b',' {
            let (close, byte) = (close as char, (byte as char).escape_default());
            return Err(self.bad(format!("`,` or `{close}` is expected here, not `{byte}`")));
        }
        Ok(false)
    }

    /// The rest of a string whose quote has been read, up to `limit` bytes of it.
    pub fn string(&mut self, out: &mut Vec<u8>, limit: usize) -> Result<()> {
        out.clear();
        loop {
            if self.at == self.end && !self.refill()? {
                return Err(self.bad("it ends within a string"));
            }
            let held = &self.buffer[self.at..self.end];
            let found = memchr::memchr2(b'"', b'\\', held);
            let plain = &held[..found.unwrap_or(held.len())];
            out.extend_from_slice(&plain[..plain.len().min(limit.saturating_sub(out.len()))]);
            self.at += plain.len();
            let Some(found) = found else { continue };
            self.at += 1;
            if held[found] == b'"' {
                return Ok(());
            }
            self.escape(out, limit)?;
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>, limit: usize) -> Result<()> {
        let c = match self.next()? {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let high = self.four()?;
                match high {
                    0xd800..=0xdbff if self.peek()? == Some(b'\\') => {
                        self.next()?;
                        match self.next()? {
                            b'u' => {
                                let low = self.four()?;
                                let low = low.wrapping_sub(0xdc00) & 0x3ff;
                                char::from_u32(0x10000 + ((high - 0xd800) << 10) + low)
                            }
                            _ => None,
                        }
                    }
                    _ => char::from_u32(high),
                }
                .unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            // `\"`, `\\`, `\/`, and characters that need no escape, which some files escape.
            other => other as char,
        };
        if out.len() < limit {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }

    fn four(&mut self) -> Result<u32> {
        let mut n = 0;
        for _ in 0..4 {
            let digit = (self.next()? as char).to_digit(16);
            n = n * 16
                + digit
                    .ok_or_else(|| self.bad("an escape `\\u` lacks its four hexadecimal digits"))?;
        }
        Ok(n)
    }

    fn skip_string(&mut self) -> Result<()> {
        loop {
            if self.at == self.end && !self.refill()? {
                return Err(self.bad("it ends within a string"));
            }
            match memchr::memchr2(b'"', b'\\', &self.buffer[self.at..self.end]) {
                None => self.at = self.end,
                Some(found) => {
                    self.at += found + 1;
                    if self.buffer[self.at - 1] == b'"' {
                        return Ok(());
                    }
                    self.next()?;
                }
            }
        }
    }

    /// A number, or `null` (none), whose first byte has been read.
    pub fn number(&mut self, first: u8) -> Result<Option<Number>> {
        let mut number = Number { bytes: [0; NUMBER], len: 0 };
        let mut byte = first;
        loop {
            match byte {
                b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E' => {
                    if number.len == NUMBER {
                        return Err(self.bad(format!("a number has more than {NUMBER} characters")));
                    }
                    number.bytes[number.len] = byte;
                    number.len += 1;
                }
                _ => {
                    self.skip_value(byte)?;
                    return Ok(None);
                }
            }
            match self.peek()? {
                Some(next @ (b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')) => {
                    self.at += 1;
                    byte = next;
                }
                // `-Infinity`, as Python writes it.
                Some(b'I' | b'N' | b'i' | b'n') if matches!(number.text(), b"-" | b"+") => {
                    self.skip_value(b'I')?;
                    return Ok(None);
                }
                _ => return Ok(Some(number)),
            }
        }
    }

    /// A number that may stand in quotes; its first byte has been read.
    pub fn number_or_text(&mut self, first: u8, out: &mut Vec<u8>) -> Result<Option<Number>> {
        if first != b'"' {
            out.clear();
            return self.number(first);
        }
        self.string(out, 256)?;
        let digits =
            out.iter().all(|b| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
        if out.is_empty() || !digits || out.len() > NUMBER {
            return Ok(None);
        }
        let mut number = Number { bytes: [0; NUMBER], len: out.len() };
        number.bytes[..out.len()].copy_from_slice(out);
        out.clear();
        Ok(Some(number))
    }

    /// Skips a value whose first byte has been read.
    pub fn skip_value(&mut self, first: u8) -> Result<()> {
        match first {
            b'"' => self.skip_string(),
            b'{' | b'[' => {
                let mut depth = 1;
                while depth > 0 {
                    if self.at == self.end && !self.refill()? {
                        return Err(self.bad("it ends in the middle"));
                    }
                    let byte = self.buffer[self.at];
                    self.at += 1;
                    match byte {
                        b'"' => self.skip_string()?,
                        b'{' | b'[' => {
                            depth += 1;
                            if depth > DEPTH {
                                return Err(
                                    self.bad(format!("values are nested more than {DEPTH} deep"))
                                );
                            }
                        }
                        b'}' | b']' => depth -= 1,
                        _ => {}
                    }
                }
                Ok(())
            }
            // true, false, null, NaN, Infinity, and numbers.
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'+' | b'.' => {
                while let Some(byte) = self.peek()? {
                    if !byte.is_ascii_alphanumeric() && !matches!(byte, b'.' | b'-' | b'+') {
                        break;
                    }
                    self.at += 1;
                }
                Ok(())
            }
            other => {
                let other = (other as char).escape_default();
                Err(self.bad(format!("a value is expected here, not `{other}`")))
            }
        }
    }
}
