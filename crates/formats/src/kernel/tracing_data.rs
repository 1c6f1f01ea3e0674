//! What trace-cmd and perf keep of the traced kernel: how pages and events are laid out, and the names of threads.
//!
//! # How
//! trace-cmd's file of version 6 begins with it, perf has it in a section of its own, and in version 7 each part is a
//! section (trace-cmd, Documentation/trace-cmd/trace-cmd.dat.v6.5.txt and v7.5.txt).

use std::collections::BTreeMap;
use std::io::Read;

use super::input::Input;
use super::ring::PageLayout;
use crate::Result;
use gpuwhy_tracepoint::Format;

/// How such data begin.
pub(crate) const MAGIC: &[u8] = b"\x17\x08\x44tracing";
/// Bytes of one description, of a list of names, and of all descriptions at most.
const PART: u64 = 8 << 20;
const NAMES: u64 = 64 << 20;
const ALL: u64 = 256 << 20;

/// A type of event with the system that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SystemFormat {
    pub system: String,
    pub format: Format,
}

/// What is known of the traced kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct TracingData {
    pub page: Option<PageLayout>,
    /// By the numbers that events begin with.
    pub formats: BTreeMap<u64, SystemFormat>,
    /// Threads and their names.
    pub commands: Vec<(i64, String)>,
    /// Descriptions that cannot be read, with why.
    pub unreadable: Vec<String>,
    bytes: u64,
}

impl TracingData {
    /// Reads all parts in the order of version 6; the list of names is there since that version.
    ///
    /// # Errors
    /// A part is damaged.
    pub fn read<R: Read>(&mut self, input: &mut Input<R>, has_names: bool) -> Result<()> {
        self.headers(input)?;
        self.ftrace(input)?;
        self.events(input)?;
        // Addresses of functions, and of formats of `trace_printk`: nothing refers to them.
        for _ in 0..2 {
            let size = input.unsigned(4)?;
            input.skip(size)?;
        }
        if has_names {
            let size = input.unsigned(8)?;
            self.names(input, size)?;
        }
        Ok(())
    }

    /// Reads `header_page` and `header_event`.
    ///
    /// # Errors
    /// They are damaged.
    pub fn headers<R: Read>(&mut self, input: &mut Input<R>) -> Result<()> {
        for name in ["header_page", "header_event"] {
            if input.text()? != name {
                return Err(input.damaged(format!("no `{name}` where it should be")));
            }
            let size = input.unsigned(8)?;
            let bytes = input.bytes(size, PART)?;
            // perf of user space without tracefs has nothing in it.
            if name == "header_page" && !bytes.is_empty() {
                let text = String::from_utf8_lossy(&bytes);
                let layout = PageLayout::parse(&text, input.machine());
                self.page = Some(layout.map_err(|what| input.damaged(what))?);
            }
        }
        Ok(())
    }

    /// Reads the events of ftrace itself.
    ///
    /// # Errors
    /// They are damaged.
    pub fn ftrace<R: Read>(&mut self, input: &mut Input<R>) -> Result<()> {
        self.system("ftrace", input)
    }

    /// Reads all systems with their events.
    ///
    /// # Errors
    /// They are damaged.
    pub fn events<R: Read>(&mut self, input: &mut Input<R>) -> Result<()> {
        for _ in 0..input.unsigned(4)? {
            let system = input.text()?;
            self.system(&system, input)?;
        }
        Ok(())
    }

    fn system<R: Read>(&mut self, system: &str, input: &mut Input<R>) -> Result<()> {
        for _ in 0..input.unsigned(4)? {
            let size = input.unsigned(8)?;
            self.bytes = self.bytes.saturating_add(size);
            if self.bytes > ALL {
                return Err(input.damaged(format!("more than {ALL} bytes of formats")));
            }
            let text = input.bytes(size, PART)?;
            match Format::parse(&String::from_utf8_lossy(&text), input.machine()) {
                Ok(format) => {
                    let system = system.to_owned();
                    self.formats.insert(format.id, SystemFormat { system, format });
                }
                // Events of this type are counted as such when they come.
                Err(what) => self.unreadable.push(what),
            }
        }
        Ok(())
    }

    /// Reads the names of threads, `number name` a line.
    ///
    /// # Errors
    /// There are fewer bytes than that.
    pub fn names<R: Read>(&mut self, input: &mut Input<R>, size: u64) -> Result<()> {
        let bytes = input.bytes(size, NAMES)?;
        for line in String::from_utf8_lossy(&bytes).lines() {
            let line = line.trim_end_matches('\0');
            let Some((number, name)) = line.split_once(' ') else { continue };
            if let Ok(number) = number.parse() {
                self.commands.push((number, name.to_owned()));
            }
        }
        Ok(())
    }
}
