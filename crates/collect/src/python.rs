//! Interpreters of Python programs (CPython): where in a process they are, and what is where in them.
//!
//! The kernel side (`bpf/python.h`) follows a thread's frames and notes code objects; their names and lines are read here
//! ([`CodeObjects`]) from the process's memory, once each.

mod code;
mod layout;
mod lines;
mod memory;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use object::{Object as _, ObjectSegment as _};

pub(crate) use code::{CodeObjects, Place, PythonFrame};
pub(crate) use layout::Layout;
use memory::Memory;

use crate::bpf::Python;
use crate::{elf, procfs, sys};

/// What is read of the mappings of a process at most.
const MAPS: u64 = 4 << 20;

/// The interpreter of one process.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    /// Its version: 3 and this.
    pub minor: u32,
    /// Whether it has no interpreter lock.
    pub free_threaded: bool,
    /// Where its state (`_PyRuntime`) begins and ends.
    runtime: (u64, u64),
    /// What is where in it, if that is known of this version.
    pub layout: Option<Layout>,
}

impl Interpreter {
    /// What the kernel side needs of it.
    pub fn for_kernel(&self) -> Python {
        let walk = self.layout.as_ref().map_or(Python::default(), |layout| layout.walk);
        // Without an interpreter lock no futex is one for it.
        let to = if self.free_threaded { self.runtime.0 } else { self.runtime.1 };
        Python { from: self.runtime.0, to, ..walk }
    }
}

/// The file of an interpreter that a process runs, and where it lies in the process's memory.
#[derive(Debug)]
pub(crate) struct InterpreterFile {
    /// The program or library.
    pub file: File,
    /// What to add to the file's addresses.
    bias: u64,
    /// What its name says of the version.
    minor: Option<u32>,
}

/// The files of a process that may hold an interpreter: its program or a library.
pub(crate) fn files(pid: u32) -> Vec<InterpreterFile> {
    let mut maps = String::new();
    let Ok(file) = File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    if file.take(MAPS).read_to_string(&mut maps).is_err() {
        return Vec::new();
    }
    let code = procfs::mappings(&maps).filter(|m| m.executable && is_python(m.path));
    // The names there have no leading zeros, unlike those of `maps`.
    let link = |m: &procfs::Mapping<'_>| format!("/proc/{pid}/map_files/{:x}-{:x}", m.from, m.to);
    code.filter_map(|m| {
        // The link takes more rights; behind the path there may be a newer file by now.
        let opened = sys::open_behind(&link(&m));
        let file = opened.or_else(|_| sys::open_of_process(pid, m.path)).ok()?;
        let bias = bias(&file, &m)?;
        Some(InterpreterFile { file, bias, minor: minor_of_name(m.path) })
    })
    .collect()
}

/// Whether a file is an interpreter by its name.
pub(crate) fn is_python(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.starts_with("python") || name.starts_with("libpython")
}

/// The 11 of `/usr/lib/libpython3.11.so.1.0`.
fn minor_of_name(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next()?;
    let (_, rest) = name.split_once("python3.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// What to add to addresses of the file, of which `mapping` shows some code.
fn bias(file: &File, mapping: &procfs::Mapping<'_>) -> Option<u64> {
    let cache = object::read::ReadCache::new(file.try_clone().ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let page = sys::page_size() - 1;
    elf.segments().find_map(|segment| {
        let (in_file, size) = segment.file_range();
        let within = (in_file & !page..in_file.checked_add(size)?).contains(&mapping.offset);
        within.then(|| {
            mapping
                .from
                .wrapping_sub(segment.address().wrapping_add(mapping.offset).wrapping_sub(in_file))
        })
    })
}

impl InterpreterFile {
    /// The interpreter of `pid`, if the file holds one.
    pub fn interpreter(&self, pid: u32) -> Option<Interpreter> {
        let runtime = self.exported("_PyRuntime")?;
        let memory = Memory::of(pid).ok();
        let word = |at: u64| memory.as_ref()?.word(at);
        let version = self.exported("Py_Version").and_then(|(at, _)| word(at));
        let minor = version.map(|hex| (hex >> 16 & 0xff) as u32).or(self.minor)?;
        let found = layout::of(minor, &mut |at| word(runtime.0.checked_add(at)?));
        let (free_threaded, layout) = (found.free_threaded, found.layout);
        Some(Interpreter { minor, free_threaded, runtime, layout })
    }

    /// Where a datum that the file exports begins and ends in the process's memory.
    fn exported(&self, name: &str) -> Option<(u64, u64)> {
        let mut read = |at: u64, buffer: &mut [u8]| self.file.read_exact_at(buffer, at);
        let symbol = elf::exported(&mut read, name)?;
        let from = symbol.address.wrapping_add(self.bias);
        Some((from, from.saturating_add(symbol.size)))
    }
}

/// The interpreter of a process, if it runs one whose state can be found.
pub(crate) fn interpreter(pid: u32) -> Option<Interpreter> {
    files(pid).iter().find_map(|file| file.interpreter(pid))
}

#[cfg(test)]
mod tests;
