//! Bytes of a file or of a part of one, read in order, with the place for errors.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::{Error, Result};
use gpuwhy_tracepoint::Machine;

/// A text of the file at most, without its zero byte.
const TEXT: usize = 1 << 16;
/// Bytes that room is made for before they are read.
const PART: u64 = 1 << 16;

/// What is read in order.
pub(crate) struct Input<R> {
    inner: R,
    path: PathBuf,
    machine: Machine,
    /// The byte that is read next, and what it is counted in.
    at: u64,
    what: &'static str,
}

impl<R: Read> Input<R> {
    /// Reads `inner`, which begins at byte `at` of what errors shall name: `byte`, or `byte of the unpacked section`.
    pub fn new(inner: R, path: &Path, machine: Machine, at: u64, what: &'static str) -> Input<R> {
        Input { inner, path: path.into(), machine, at, what }
    }

    /// How numbers are written.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Numbers are written like this from now on.
    pub fn set_machine(&mut self, machine: Machine) {
        self.machine = machine;
    }

    /// The byte that is read next.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The error about what was read last.
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::damaged(&self.path, format!("at {} {}", self.what, self.at), what)
    }

    /// The next bytes, at most `most` of them.
    ///
    /// # Errors
    /// There are not so many, or more are asked for than may be.
    pub fn bytes(&mut self, count: u64, most: u64) -> Result<Vec<u8>> {
        if count > most {
            return Err(self.damaged(format!("{count} bytes in one part; up to {most} are read")));
        }
        let mut bytes = Vec::new();
        let read = self.inner.by_ref().take(count).read_to_end(&mut bytes);
        read.map_err(Error::io("read", &self.path))?;
        self.at += bytes.len() as u64;
        if (bytes.len() as u64) < count {
            return Err(self.damaged(format!("the file ends where {count} bytes should be")));
        }
        Ok(bytes)
    }

    /// Adds the next bytes to `to`.
    ///
    /// # Errors
    /// There are not so many.
    pub fn append(&mut self, count: u64, to: &mut Vec<u8>) -> Result<()> {
        let before = to.len();
        // Room for a part is cheap; a file may ask for more than it has.
        if count <= PART {
            to.resize(before + count as usize, 0);
            let got = self.fill(&mut to[before..]);
            to.truncate(before + *got.as_ref().unwrap_or(&0));
            got.map_err(Error::io("read", &self.path))?;
        } else {
            let read = self.inner.by_ref().take(count).read_to_end(to);
            read.map_err(Error::io("read", &self.path))?;
        }
        let got = (to.len() - before) as u64;
        self.at += got;
        match got == count {
            true => Ok(()),
            false => Err(self.damaged(format!("the file ends where {count} bytes should be"))),
        }
    }

    /// Reads as many bytes as there is room for, or as there are; how many these are.
    fn fill(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let mut got = 0;
        while got < to.len() {
            match self.inner.read(&mut to[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(got)
    }

    /// Passes over bytes.
    ///
    /// # Errors
    /// There are not so many.
    pub fn skip(&mut self, count: u64) -> Result<()> {
        let mut part = self.inner.by_ref().take(count);
        let passed = std::io::copy(&mut part, &mut std::io::sink());
        let passed = passed.map_err(Error::io("read", &self.path))?;
        self.at += passed;
        match passed == count {
            true => Ok(()),
            false => Err(self.damaged(format!("the file ends where {count} bytes should be"))),
        }
    }

    /// An unsigned integer of 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// There are no more bytes.
    pub fn unsigned(&mut self, size: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size.min(8)];
        if let Err(error) = self.inner.read_exact(bytes) {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                return Err(self.damaged("the file ends"));
            }
            return Err(Error::io("read", &self.path)(error));
        }
        self.at += size as u64;
        Ok(self.machine.unsigned(bytes))
    }

    /// A text that ends with a zero byte.
    ///
    /// # Errors
    /// It does not end, or is very long.
    pub fn text(&mut self) -> Result<String> {
        let mut text = Vec::new();
        loop {
            match self.unsigned(1)? as u8 {
                0 => return Ok(String::from_utf8_lossy(&text).into()),
                _ if text.len() >= TEXT => return Err(self.damaged("a text that does not end")),
                byte => text.push(byte),
            }
        }
    }
}
