//! What stands in a file besides events: the kernel's descriptions, options, and where the pages of each CPU lie.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::pack::Packing;
use crate::kernel::input::Input;
use crate::kernel::tracing_data::{MAGIC, TracingData};
use crate::{Error, Result};
use gpuwhy_tracepoint::Machine;

/// Bytes of one option and of a section that is unpacked at most.
const OPTION: u64 = 64 << 20;
const SECTION: u64 = 256 << 20;
/// Options, sections of options, and CPUs of all buffers at most.
const OPTIONS: usize = 1 << 16;
const SECTIONS: usize = 1 << 10;
const CPUS: usize = 1 << 14;
/// Bytes of a page at most.
const PAGE: u64 = 16 << 20;

/// Where the pages of a CPU lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuData {
    pub cpu: u32,
    pub offset: u64,
    pub size: u64,
}

/// Events of one buffer of the kernel: the main one, or an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Empty for the main one.
    pub name: String,
    pub clock: String,
    pub page_size: usize,
    pub is_packed: bool,
    pub cpus: Vec<CpuData>,
}

/// How the kernel's clock becomes ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scale {
    /// Multiplier and shift of cycles; ns if there are none.
    pub cycles: Option<(u32, u32)>,
    /// What is added, ns.
    pub offset: i64,
}

impl Scale {
    /// The time, if 64 bits hold it.
    pub fn ns(self, time: u64) -> Option<i64> {
        let ns = match self.cycles {
            Some((by, shift)) => (u128::from(time) * u128::from(by)) >> shift.min(127),
            None => time.into(),
        };
        i64::try_from(i128::try_from(ns).ok()? + i128::from(self.offset)).ok()
    }
}

/// A file without its events.
#[derive(Debug)]
pub(super) struct DatFile {
    pub path: PathBuf,
    pub file: File,
    pub length: u64,
    pub version: u64,
    pub machine: Machine,
    pub packing: Packing,
    pub tracing: TracingData,
    pub scale: Scale,
    pub clock: String,
    /// What `uname` said of the machine: `Linux host 6.1.0 x86_64`.
    pub uname: String,
    /// Version of trace-cmd that recorded.
    pub recorder: String,
    /// The process of threads, by one fork's option.
    pub processes: Vec<(i64, i64)>,
    /// Events that the kernel says were overwritten or dropped.
    pub overrun: u64,
    pub buffers: Vec<Buffer>,
    /// Options and sections that are not read: their numbers and bytes.
    pub passed_over: Vec<(u64, u64)>,
    page_size: usize,
    /// An option says that the clock is named after the list of CPUs.
    has_clock: bool,
}

impl DatFile {
    /// Reads all but the events.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is of another version.
    pub fn open(path: &Path) -> Result<DatFile> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("measure", path))?.len();
        let machine = Machine { is_big: false, long: 8 };
        let reader = BufReader::new(file.try_clone().map_err(Error::io("open", path))?);
        let mut input = Input::new(reader, path, machine, 0, "byte");
        if input.bytes(MAGIC.len() as u64, 64)? != MAGIC {
            let why = "it does not begin with 17 08 44 and `tracing`".into();
            return Err(Error::NotThis { path: path.into(), format: "a trace.dat file", why });
        }
        let version = input.text()?;
        let Some(version) = version.parse().ok().filter(|version| (6..=7).contains(version)) else {
            let why = format!("it is of version {version:?}; versions 6 and 7 are read");
            return Err(Error::Unreadable { path: path.into(), why });
        };
        let (is_big, long) = (input.unsigned(1)? == 1, input.unsigned(1)? as usize);
        if !matches!(long, 4 | 8) {
            return Err(input.damaged(format!("a `long` of {long} bytes")));
        }
        let machine = Machine { is_big, long };
        input.set_machine(machine);
        let mut dat = DatFile {
            path: path.into(),
            file,
            length,
            version,
            machine,
            packing: Packing::None,
            tracing: TracingData::default(),
            scale: Scale::default(),
            clock: String::new(),
            uname: String::new(),
            recorder: String::new(),
            processes: Vec::new(),
            overrun: 0,
            buffers: Vec::new(),
            passed_over: Vec::new(),
            page_size: 0,
            has_clock: false,
        };
        dat.page_size = dat.page_size(&mut input)?;
        if version == 6 {
            dat.version_6(&mut input)?;
        } else {
            dat.version_7(&mut input)?;
        }
        dat.check()?;
        Ok(dat)
    }

    /// Whether anything refers to bytes that are not there, or to the same bytes again and again.
    fn check(&self) -> Result<()> {
        let all = || self.buffers.iter().flat_map(|buffer| &buffer.cpus);
        let wrong = |what: String| Err(Error::damaged(&self.path, "in the list of CPUs", what));
        if all().count() > CPUS {
            return wrong(format!("{} CPUs; up to {CPUS} are read", all().count()));
        }
        for CpuData { cpu, offset, size } in all() {
            if offset.checked_add(*size).is_none_or(|end| end > self.length) {
                let length = self.length;
                return wrong(format!(
                    "CPU {cpu} has {size} bytes at byte {offset} of a file of {length}; it is cut off"
                ));
            }
        }
        if all().map(|data| u128::from(data.size)).sum::<u128>() > self.length.into() {
            return wrong("CPUs have more bytes than the file".into());
        }
        if self.tracing.page.is_none() {
            return Err(Error::damaged(&self.path, "in its headers", "no `header_page`"));
        }
        Ok(())
    }

    fn page_size<R: Read>(&self, input: &mut Input<R>) -> Result<usize> {
        match input.unsigned(4)? {
            size @ 16..=PAGE => Ok(size as usize),
            size => Err(input.damaged(format!("pages of {size} bytes"))),
        }
    }

    fn version_6<R: Read + std::io::Seek>(
        &mut self,
        input: &mut Input<BufReader<R>>,
    ) -> Result<()> {
        self.tracing.read(input, true)?;
        let mut cpus = input.unsigned(4)?;
        let mut instances = Vec::new();
        let mut main = Buffer { page_size: self.page_size, ..Buffer::default() };
        let mut kind = input.bytes(10, 10)?;
        if kind == b"options  \0" {
            for _ in 0..OPTIONS {
                let id = input.unsigned(2)?;
                if id == 0 {
                    break;
                }
                let size = input.unsigned(4)?;
                let bytes = input.bytes(size, OPTION)?;
                let mut option = self.part(&bytes, input.at() - size);
                match id {
                    3 => instances.push((option.unsigned(8)?, option.text()?)),
                    8 if size == 4 => cpus = option.unsigned(4)?,
                    id => self.option(id, &bytes),
                }
            }
            kind = input.bytes(10, 10)?;
        }
        match &kind[..] {
            b"flyrecord\0" => main.cpus = cpu_table(input, cpus)?,
            b"latency  \0" => return Err(self.is_text()),
            _ => return Err(input.damaged("neither options nor the list of CPUs")),
        }
        if std::mem::take(&mut self.has_clock)
            && let Ok(size @ 1..=4096) = input.unsigned(8)
            && let Ok(text) = input.bytes(size, 4096)
        {
            // Files of some versions end before it; then the clock is the kernel's default.
            clock(String::from_utf8_lossy(&text).trim()).clone_into(&mut self.clock);
        }
        main.clock.clone_from(&self.clock);
        self.buffers.push(main);
        for (offset, name) in instances {
            let mut input = self.at(offset)?;
            if input.bytes(10, 10)? != b"flyrecord\0" {
                return Err(input.damaged(format!("no list of CPUs of the instance {name:?}")));
            }
            let (clock, page_size) = (self.clock.clone(), self.page_size);
            let cpus = cpu_table(&mut input, cpus)?;
            self.buffers.push(Buffer { name, clock, page_size, is_packed: false, cpus });
        }
        Ok(())
    }

    fn is_text(&self) -> Error {
        let why =
            "it holds the text of a latency tracer and no events; `trace-cmd report` prints it";
        Error::Unreadable { path: self.path.clone(), why: why.into() }
    }

    fn version_7<R: Read>(&mut self, input: &mut Input<R>) -> Result<()> {
        let (name, version) = (input.text()?, input.text()?);
        self.packing = match &*name {
            "none" => Packing::None,
            "zlib" => Packing::Zlib,
            "zstd" => Packing::Zstd,
            _ => {
                let why = format!("it is packed by {name:?} {version}; zlib and zstd are read");
                return Err(Error::Unreadable { path: self.path.clone(), why });
            }
        };
        let mut next = input.unsigned(8)?;
        let mut is_text = false;
        for _ in 0..SECTIONS {
            if next == 0 {
                if self.buffers.is_empty() && is_text {
                    return Err(self.is_text());
                }
                return Ok(());
            }
            let (_, bytes) = self.section(next, 0)?;
            let mut options = self.part(&bytes, 0);
            let mut count = 0;
            next = loop {
                count += 1;
                let (id, size) = (options.unsigned(2)?, options.unsigned(4)?);
                if count > OPTIONS {
                    return Err(options.damaged("more options than can be"));
                }
                let bytes = options.bytes(size, OPTION)?;
                let mut option = self.part(&bytes, options.at() - size);
                match id {
                    0 => break option.unsigned(8)?,
                    3 => {
                        let buffer = self.buffer(&mut option, size)?;
                        self.buffers.push(buffer);
                    }
                    16..=21 => {
                        let at = option.unsigned(8)?;
                        self.headers(id, at)?;
                    }
                    22 => is_text = true,
                    id => self.option(id, &bytes),
                }
            };
        }
        Err(Error::damaged(&self.path, "in its options", "sections that refer to each other"))
    }

    /// A part of the kernel's descriptions.
    fn headers(&mut self, id: u64, at: u64) -> Result<()> {
        if matches!(id, 19 | 20) {
            // Addresses of functions, and of formats of `trace_printk`: nothing refers to them.
            return Ok(());
        }
        let (_, bytes) = self.section(at, id)?;
        let mut tracing = std::mem::take(&mut self.tracing);
        let mut part = self.part(&bytes, 0);
        match id {
            16 => tracing.headers(&mut part)?,
            17 => tracing.ftrace(&mut part)?,
            18 => tracing.events(&mut part)?,
            _ => {
                let size = part.unsigned(8)?;
                tracing.names(&mut part, size)?;
            }
        }
        self.tracing = tracing;
        Ok(())
    }

    /// A buffer by its option of so many bytes.
    fn buffer<R: Read>(&self, option: &mut Input<R>, size: u64) -> Result<Buffer> {
        let from = option.at();
        let at = option.unsigned(8)?;
        let (name, clock) = (option.text()?, option.text()?);
        // Each CPU has 20 bytes, after their number; the size of a page came later.
        let has_size = size.saturating_sub(option.at() - from) % 20 == 8;
        let page_size = if has_size { self.page_size(option)? } else { self.page_size };
        let mut cpus = Vec::new();
        for _ in 0..option.unsigned(4)? {
            let (cpu, offset, size) =
                (option.unsigned(4)? as u32, option.unsigned(8)?, option.unsigned(8)?);
            cpus.push(CpuData { cpu, offset, size });
        }
        let mut input = self.at(at)?;
        let (_, flags) = (input.unsigned(2)?, input.unsigned(2)?);
        let is_packed = flags & 1 != 0 && self.packing != Packing::None;
        Ok(Buffer { name, clock, page_size, is_packed, cpus })
    }

    /// The flags and the content of a section.
    fn section(&self, at: u64, expected: u64) -> Result<(u64, Vec<u8>)> {
        let mut input = self.at(at)?;
        let (id, flags) = (input.unsigned(2)?, input.unsigned(2)?);
        let (_, size) = (input.unsigned(4)?, input.unsigned(8)?);
        if id != expected {
            return Err(input.damaged(format!("section {id} where {expected} should be")));
        }
        if flags & 1 == 0 || self.packing == Packing::None {
            return Ok((flags, input.bytes(size, SECTION)?));
        }
        let (packed, size) = (input.unsigned(4)?, input.unsigned(4)?);
        if size > SECTION {
            return Err(input.damaged(format!("a section of {size} bytes")));
        }
        let bytes = input.bytes(packed, SECTION)?;
        let unpacked = self.packing.unpack(&bytes, size as usize);
        Ok((flags, unpacked.map_err(|what| input.damaged(what))?))
    }

    fn at(&self, offset: u64) -> Result<Input<BufReader<File>>> {
        let mut file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        file.seek(SeekFrom::Start(offset)).map_err(Error::io("read", &self.path))?;
        Ok(Input::new(BufReader::new(file), &self.path, self.machine, offset, "byte"))
    }

    fn part<'a>(&self, bytes: &'a [u8], at: u64) -> Input<&'a [u8]> {
        let what = if self.version == 6 { "byte" } else { "byte of a section of options" };
        Input::new(bytes, &self.path, self.machine, at, what)
    }

    /// An option that says something of the trace.
    fn option(&mut self, id: u64, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end_matches('\0').trim();
        match id {
            // A time that was recorded beside the kernel's own, in µs and in ns.
            1 => {
                self.scale.offset =
                    self.scale.offset.saturating_add(number(text).saturating_mul(1000))
            }
            7 => self.scale.offset = self.scale.offset.saturating_add(number(text)),
            2 => self.overrun = self.overrun.saturating_add(overrun(text)),
            4 => {
                self.has_clock = text.is_empty();
                clock(text).clone_into(&mut self.clock);
            }
            5 => text.clone_into(&mut self.uname),
            9 => text.clone_into(&mut self.recorder),
            // So many CPUs have data; upstream writes four bytes, and one fork the processes of threads.
            8 if bytes.len() == 4 => {}
            // Hooks of a plugin, the number of the recording, and names of sections.
            6 | 11 | 15 => {}
            14 if bytes.len() >= 8 => {
                let (by, shift) =
                    (self.machine.unsigned(&bytes[..4]), self.machine.unsigned(&bytes[4..8]));
                self.scale.cycles = Some((by as u32, shift as u32));
            }
            id => match processes(text) {
                Some(processes) if id == 8 => self.processes = processes,
                _ => self.passed_over.push((id, bytes.len() as u64)),
            },
        }
    }
}

/// Where the data of each CPU lie, in the order of the CPUs.
fn cpu_table<R: Read>(input: &mut Input<R>, cpus: u64) -> Result<Vec<CpuData>> {
    if cpus > CPUS as u64 {
        return Err(input.damaged(format!("{cpus} CPUs; up to {CPUS} are read")));
    }
    let one = |cpu| {
        let (offset, size) = (input.unsigned(8)?, input.unsigned(8)?);
        Ok(CpuData { cpu: cpu as u32, offset, size })
    };
    (0..cpus).map(one).collect()
}

/// A number in decimal, or in hexadecimal after `0x`; 0 if it is none.
fn number(text: &str) -> i64 {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    number.map_or(0, |number| sign * number)
}

/// The clock in `[local] global mono`, or the only one that is named.
fn clock(text: &str) -> &str {
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(text, |(chosen, _)| chosen)
}

/// The events that a CPU's `per_cpu/cpu0/stats` says were overwritten or dropped.
fn overrun(text: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let of = |name: &str| matches!(name.trim(), "overrun" | "commit overrun" | "dropped events");
    let numbers = lines.filter(|(name, _)| of(name)).filter_map(|(_, n)| n.trim().parse().ok());
    numbers.fold(0, u64::saturating_add)
}

/// `thread process` a line (`saved_tgids` of tracefs); `None` if the text is something else.
fn processes(text: &str) -> Option<Vec<(i64, i64)>> {
    let line = |line: &str| {
        let (thread, process) = line.trim().split_once(' ')?;
        Some((thread.parse().ok()?, process.trim().parse().ok()?))
    };
    let all: Option<Vec<(i64, i64)>> =
        text.lines().filter(|line| !line.trim().is_empty()).map(line).collect();
    all.filter(|all| !all.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_texts_of_several_forms() {
        assert_eq!((number("0x10"), number("-7"), number("x")), (16, -7, 0));
        assert_eq!((clock("local [mono] boot"), clock("tai"), clock("")), ("mono", "tai", ""));
        assert_eq!(overrun("CPU: 0\noverrun: 5\nbytes: 9\ndropped events: 2\n"), 7);
        assert_eq!(processes("12 10\n 13 10\n"), Some(vec![(12, 10), (13, 10)]));
        assert_eq!((processes("a 1"), processes("")), (None, None));
    }

    #[test]
    fn cycles_become_nanoseconds_and_offsets_are_added() {
        let scale = Scale { cycles: Some((1 << 31, 32)), offset: -5 };
        assert_eq!(scale.ns(100), Some(45));
        assert_eq!(scale.ns(u64::MAX), Some(i64::MAX - 5));
        assert_eq!(Scale::default().ns(u64::MAX), None);
        assert_eq!(Scale { cycles: Some((u32::MAX, 0)), offset: 0 }.ns(u64::MAX), None);
    }
}
