//! What stands in a file besides records: the events that were recorded, the kernel's descriptions, and the machine.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use foldhash::HashMap;

use super::layout::Attr;
use crate::kernel::input::Input;
use crate::kernel::tracing_data::{MAGIC, TracingData};
use crate::{Error, Result};
use gpuwhy_tracepoint::Machine;

/// How files begin: on little-endian machines, and on big-endian ones.
pub(super) const LITTLE: &[u8] = b"PERFILE2";
pub(super) const BIG: &[u8] = b"2ELIFREP";
/// Events, and numbers of events on CPUs, at most.
const ATTRS: u64 = 1 << 16;
const IDS: usize = 1 << 22;
/// Bytes of the kernel's descriptions and of another part at most.
const TRACING: u64 = 256 << 20;
const PART: u64 = 16 << 20;

/// What is known of a recording; in a pipe it comes with the records.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub attrs: Vec<Attr>,
    /// The event of each number.
    pub ids: HashMap<u64, usize>,
    pub tracing: TracingData,
    pub host: String,
    pub version: String,
}

/// A file that is opened.
pub(super) struct PerfFile {
    pub path: PathBuf,
    pub input: Input<BufReader<File>>,
    pub machine: Machine,
    pub known: Known,
    /// The byte after the last record; of a pipe the end of the file.
    pub end: u64,
    pub is_pipe: bool,
    pub start: u64,
}

impl PerfFile {
    /// Opens a file and reads all but its records.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or was not closed.
    pub fn open(path: &Path) -> Result<PerfFile> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("measure", path))?.len();
        let mut machine = Machine { is_big: false, long: 8 };
        let mut input = Input::new(BufReader::new(file), path, machine, 0, "byte");
        machine.is_big = input.bytes(8, 8)? == BIG;
        input.set_machine(machine);
        let size = input.unsigned(8)?;
        if size < 104 {
            let known = Known::default();
            let start = input.at();
            return Ok(PerfFile {
                path: path.into(),
                input,
                machine,
                known,
                end: length,
                is_pipe: true,
                start,
            });
        }
        let attr_size = input.unsigned(8)?;
        let mut section = || Ok::<_, Error>((input.unsigned(8)?, input.unsigned(8)?));
        let (attrs, data, _) = (section()?, section()?, section()?);
        let mut features = [0; 4];
        for word in &mut features {
            *word = input.unsigned(8)?;
        }
        if data.1 == 0 {
            let why =
                "its recorder did not close it, and the descriptions of its events are missing";
            return Err(Error::Unreadable { path: path.into(), why: why.into() });
        }
        let end = data.0.checked_add(data.1).filter(|end| *end <= length);
        let Some(end) = end else {
            let what = format!(
                "{} bytes of records at byte {} of a file of {length}; it is cut off",
                data.1, data.0
            );
            return Err(input.damaged(what));
        };
        let mut known = Known::default();
        known.read_attrs(path, machine, attrs, attr_size)?;
        known.read_features(path, machine, end, features)?;
        let input = at(path, machine, data.0)?;
        let (path, is_pipe, start) = (path.into(), false, data.0);
        Ok(PerfFile { path, input, machine, known, end, is_pipe, start })
    }
}

/// Reads a file from this byte on.
fn at(path: &Path, machine: Machine, offset: u64) -> Result<Input<BufReader<File>>> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    file.seek(SeekFrom::Start(offset)).map_err(Error::io("read", path))?;
    Ok(Input::new(BufReader::with_capacity(256 << 10, file), path, machine, offset, "byte"))
}

impl Known {
    fn read_attrs(
        &mut self,
        path: &Path,
        machine: Machine,
        (from, size): (u64, u64),
        each: u64,
    ) -> Result<()> {
        let mut input = at(path, machine, from)?;
        if !(64..=4096).contains(&each) || size / each > ATTRS {
            return Err(input.damaged(format!("{size} bytes of events of {each} bytes each")));
        }
        for _ in 0..size / each {
            let bytes = input.bytes(each - 16, 4096)?;
            let Some(attr) = Attr::read(&bytes, machine) else {
                return Err(input.damaged("an event that cannot be read"));
            };
            let (from, size) = (input.unsigned(8)?, input.unsigned(8)?);
            let mut ids = at(path, machine, from)?;
            for _ in 0..size / 8 {
                let id = ids.unsigned(8)?;
                self.add_id(id).map_err(|what| ids.damaged(what))?;
            }
            self.attrs.push(attr);
        }
        Ok(())
    }

    /// A number of the event that is added next.
    fn add_id(&mut self, id: u64) -> Result<(), String> {
        self.ids.insert(id, self.attrs.len());
        if self.ids.len() > IDS {
            return Err(format!("more than {IDS} numbers of events"));
        }
        Ok(())
    }

    /// An event that comes with the records (`PERF_RECORD_HEADER_ATTR`), after the record's header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn attr_record(&mut self, bytes: &[u8], machine: Machine) -> Result<(), String> {
        let size = bytes.get(4..8).map_or(0, |size| machine.unsigned(size)) as usize;
        let attr = Attr::read(bytes, machine).ok_or("an event that cannot be read")?;
        for id in bytes.get(size.max(48)..).unwrap_or_default().chunks_exact(8) {
            self.add_id(machine.unsigned(id))?;
        }
        self.attrs.push(attr);
        if self.attrs.len() as u64 > ATTRS {
            return Err(format!("more than {ATTRS} events"));
        }
        Ok(())
    }

    /// Features lie after the records, in the order of their bits.
    fn read_features(
        &mut self,
        path: &Path,
        machine: Machine,
        end: u64,
        features: [u64; 4],
    ) -> Result<()> {
        let mut list = at(path, machine, end)?;
        for number in 0..256u64 {
            if features[number as usize / 64] >> (number % 64) & 1 == 0 {
                continue;
            }
            let (from, size) = (list.unsigned(8)?, list.unsigned(8)?);
            match number {
                1 => self.tracing_data(&mut at(path, machine, from)?, size)?,
                3 | 5 | 12 => {
                    let bytes = at(path, machine, from)?.bytes(size, PART)?;
                    self.feature(number, &bytes, path, machine)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A feature of a file or of a pipe.
    ///
    /// # Errors
    /// It is damaged.
    pub fn feature(
        &mut self,
        number: u64,
        bytes: &[u8],
        path: &Path,
        machine: Machine,
    ) -> Result<()> {
        let mut input = Input::new(bytes, path, machine, 0, "byte of a feature");
        match number {
            3 => self.host = text(&mut input)?,
            5 => self.version = text(&mut input)?,
            12 => {
                let (count, size) = (input.unsigned(4)?, input.unsigned(4)?);
                for place in 0..count.min(ATTRS) {
                    input.skip(size)?;
                    let ids = input.unsigned(4)?;
                    let name = text(&mut input)?;
                    input.skip(8 * ids)?;
                    if let Some(attr) = self.attrs.get_mut(place as usize) {
                        attr.name = name;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The kernel's descriptions, in so many bytes.
    ///
    /// # Errors
    /// They are damaged.
    pub fn tracing_data<R: Read>(&mut self, input: &mut Input<R>, size: u64) -> Result<()> {
        if size > TRACING {
            return Err(input.damaged(format!("{size} bytes of descriptions of events")));
        }
        let before = input.machine();
        if input.bytes(MAGIC.len() as u64, 64)? != MAGIC {
            return Err(input.damaged("no `tracing` where descriptions of events should be"));
        }
        let version = input.text()?;
        let (is_big, long) = (input.unsigned(1)? == 1, input.unsigned(1)? as usize);
        input.set_machine(Machine { is_big, long: if long == 4 { 4 } else { 8 } });
        input.unsigned(4)?;
        // Names of threads came with 0.6.
        let has_names = version.parse::<f32>().is_ok_and(|version| version >= 0.6);
        self.tracing.read(input, has_names)?;
        input.set_machine(before);
        Ok(())
    }
}

/// A text with its length before it, and zero bytes behind.
fn text<R: Read>(input: &mut Input<R>) -> Result<String> {
    let length = input.unsigned(4)?;
    let bytes = input.bytes(length, 1 << 16)?;
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into())
}
