//! An event of a trace, and its arguments.

use std::io::Read;

use super::text::{Number, Text};
use super::timestamps::Time;
use crate::Result;

/// Bytes that are kept of a name.
pub(super) const NAME: usize = 4096;
/// Values of one counter event that are imported.
const VALUES: usize = 256;

/// The fields of an event that are imported. Reused for the next event, for its allocations.
#[derive(Default)]
pub(super) struct Event {
    /// What kind of event: `X`, `i`, `C`, `M` …; 0 if it has none.
    pub phase: u8,
    /// The category, which says what a span is.
    pub category: Vec<u8>,
    /// What happened.
    pub name: Vec<u8>,
    /// The pid, where it is a number.
    pub pid: Option<Number>,
    /// The pid, where it is a text.
    pub pid_text: Vec<u8>,
    /// The tid, where it is a number.
    pub tid: Option<Number>,
    /// The tid, where it is a text.
    pub tid_text: Vec<u8>,
    /// When, in ns from the base time of the file.
    pub ts: Time,
    /// How long, in ns.
    pub dur: Time,
    /// The arguments.
    pub args: Args,
}

/// The arguments of an event that have columns in the trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    /// The CUDA ordinal.
    pub device: Option<i64>,
    /// The stream.
    pub stream: Option<i64>,
    /// Ties a kernel or copy to the call that launched it.
    pub correlation: Option<u64>,
    /// Blocks of a kernel: x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z.
    pub block: [u32; 3],
    /// Registers of a thread.
    pub registers: Option<u32>,
    /// Shared memory of a block, bytes.
    pub shared: Option<u64>,
    /// How much a copy moved.
    pub bytes: Option<u64>,
    /// The node of a CUDA graph; 0 if the kernel belongs to none.
    pub graph_node: Option<u64>,
    /// The value of a counter, or the bytes of an allocation.
    pub value: Option<f64>,
    /// The new name of a process or thread.
    pub name: Vec<u8>,
    /// The values of a counter event by their names.
    pub values: Vec<(Vec<u8>, f64)>,
}

impl Event {
    /// Empties it for the next event.
    pub fn clear(&mut self) {
        (self.phase, self.pid, self.tid) = (0, None, None);
        (self.ts, self.dur) = (Time::Missing, Time::Missing);
        self.category.clear();
        self.name.clear();
        self.pid_text.clear();
        self.tid_text.clear();
        let mut name = std::mem::take(&mut self.args.name);
        name.clear();
        self.args = Args { name, ..Args::default() };
    }
}

/// Reads the arguments of a counter event, whose bracket has been read: each is a value of its own.
pub(super) fn read_values<R: Read>(text: &mut Text<R>, args: &mut Args) -> Result<()> {
    let (mut key, mut scratch, mut first) = (Vec::new(), Vec::new(), true);
    while !text.is_end(b'}', first)? {
        first = false;
        text.expect(b'"')?;
        text.string(&mut key, 256)?;
        text.expect(b':')?;
        let byte = text.token()?;
        let value = text.number_or_text(byte, &mut scratch)?.and_then(|n| n.real());
        if let Some(value) = value.filter(|v| v.is_finite() && args.values.len() < VALUES) {
            args.values.push((key.clone(), value));
        }
    }
    Ok(())
}

/// Reads the arguments of an event, whose bracket has been read.
pub(super) fn read_args<R: Read>(text: &mut Text<R>, args: &mut Args) -> Result<()> {
    let (mut key, mut scratch, mut first) = (Vec::new(), Vec::new(), true);
    while !text.is_end(b'}', first)? {
        first = false;
        text.expect(b'"')?;
        text.string(&mut key, 64)?;
        text.expect(b':')?;
        let byte = text.token()?;
        let mut number = |text: &mut Text<R>| text.number_or_text(byte, &mut scratch);
        let unsigned = |n: Option<Number>| n.and_then(|n| n.int()).and_then(|n| n.try_into().ok());
        match (&*key, byte) {
            (b"device", _) => args.device = number(text)?.and_then(|n| n.int()),
            (b"stream", _) => args.stream = number(text)?.and_then(|n| n.int()),
            (b"correlation", _) => args.correlation = unsigned(number(text)?),
            (b"graph node id", _) => args.graph_node = unsigned(number(text)?),
            (b"bytes", _) => args.bytes = unsigned(number(text)?),
            (b"shared memory", _) => args.shared = unsigned(number(text)?),
            (b"registers per thread", _) => {
                let n = number(text)?.and_then(|n| n.int());
                args.registers = n.and_then(|n| n.try_into().ok());
            }
            (b"Bytes" | b"value", _) => args.value = number(text)?.and_then(|n| n.real()),
            (b"name", b'"') => text.string(&mut args.name, NAME)?,
            (b"grid", b'[') => triple(text, &mut args.grid)?,
            (b"block", b'[') => triple(text, &mut args.block)?,
            _ => text.skip_value(byte)?,
        }
    }
    Ok(())
}

/// Reads up to three numbers of an array, whose bracket has been read.
fn triple<R: Read>(text: &mut Text<R>, out: &mut [u32; 3]) -> Result<()> {
    let mut i = 0;
    while !text.is_end(b']', i == 0)? {
        let byte = text.token()?;
        let n = text.number(byte)?.and_then(|n| n.int()).and_then(|n| n.try_into().ok());
        if let Some(place) = out.get_mut(i) {
            *place = n.unwrap_or(0);
        }
        i += 1;
    }
    Ok(())
}
