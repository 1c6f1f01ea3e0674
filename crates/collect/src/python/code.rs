//! Names and lines of code objects, read from the memory of their process.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Name;

use super::layout::{CodeLayout, NONE};
use super::memory::Memory;
use super::{Interpreter, interpreter, lines};
use crate::bpf::shared_with_c;

/// Places whose names are held.
const PLACES: usize = 1 << 16;
/// Processes whose memory is kept open.
const PROCESSES: usize = 256;
/// Bytes of a name, a path, and a table of lines that are read.
const TEXT: u64 = 1024;
const TABLE: u64 = 1 << 16;

// The struct of `bpf/python.h`, where each field is explained.
shared_with_c! {
    objects ["stacks"];

    /// Where a function of Python is.
    pub(crate) struct PythonFrame = "python_frame" {
        /// The address of its code object; 0: it is no function of Python.
        pub code: u64,
        /// The address of its instruction, or before 3.11 its number.
        pub instruction: u64,
    }
}

/// A line of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// What it is called.
    pub function: Name,
    /// Its file.
    pub file: Name,
    /// The line, if it is known.
    pub line: Option<u32>,
}

/// Names of code objects, by process.
#[derive(Default)]
pub(crate) struct CodeObjects {
    processes: HashMap<u32, Option<(Memory, CodeLayout)>>,
    places: HashMap<(u32, u64, u64), Option<Place>>,
}

impl CodeObjects {
    /// Forgets everything: processes end, and code objects are freed.
    pub fn forget(&mut self) {
        self.processes = HashMap::new();
        self.places = HashMap::new();
    }

    /// Where a function of process `tgid` is; `None` if it cannot be read any more.
    pub fn place(&mut self, tgid: u32, frame: PythonFrame) -> Option<Place> {
        let key = (tgid, frame.code, frame.instruction);
        if let Some(known) = self.places.get(&key) {
            return known.clone();
        }
        if self.processes.len() >= PROCESSES {
            self.processes.clear();
        }
        let process = self.processes.entry(tgid).or_insert_with(|| {
            let Interpreter { layout, .. } = interpreter(tgid)?;
            Some((Memory::of(tgid).ok()?, layout?.code))
        });
        let place = process.as_ref().and_then(|(memory, layout)| read(memory, layout, frame));
        if self.places.len() >= PLACES {
            self.places.clear();
        }
        self.places.insert(key, place.clone());
        place
    }
}

fn read(memory: &Memory, layout: &CodeLayout, frame: PythonFrame) -> Option<Place> {
    let member = |offset: u32| frame.code.checked_add(offset.into());
    let object = |offset: u32| memory.word(member(offset)?);
    let function = text(memory, layout, object(layout.name)?)?;
    let file = text(memory, layout, object(layout.filename)?)?;
    let line = line(memory, layout, frame, &member);
    Some(Place { function: function.as_str().into(), file: file.as_str().into(), line })
}

fn line(
    memory: &Memory,
    layout: &CodeLayout,
    frame: PythonFrame,
    member: &dyn Fn(u32) -> Option<u64>,
) -> Option<u32> {
    let first = memory.word(member(layout.first_line)?)? as u32;
    let table = memory.word(member(layout.line_table)?)?;
    // `bytes`: the size at 16, the text at 32.
    let size = memory.word(table.checked_add(16)?)?.min(TABLE);
    let mut bytes = vec![0; size as usize];
    memory.read(table.checked_add(32)?, &mut bytes)?;
    let line = match layout.instructions {
        NONE => lines::of_deltas(&bytes, first.into(), u64::from(frame.instruction as u32) * 2),
        offset => {
            let at = frame.instruction.checked_sub(member(offset)?)?;
            lines::of_locations(&bytes, first.into(), at)
        }
    };
    u32::try_from(line?).ok()
}

/// The text of a string object.
fn text(memory: &Memory, layout: &CodeLayout, at: u64) -> Option<String> {
    let length = memory.word(at.checked_add(16)?)?.min(TEXT) as usize;
    let state = memory.word(at.checked_add(32)?)? as u8;
    let (width, compact, ascii) = kind(state)?;
    if !compact {
        return None;
    }
    let skip = if ascii { layout.ascii } else { layout.other_text() };
    let mut bytes = vec![0; length * width];
    memory.read(at.checked_add(skip.into())?, &mut bytes)?;
    Some(decoded(&bytes, width))
}

/// Bytes of a character, whether the text follows the object, and whether it is ASCII. The state begins with two bits about
/// sharing.
fn kind(state: u8) -> Option<(usize, bool, bool)> {
    let width = state >> 2 & 7;
    matches!(width, 1 | 2 | 4).then_some((width.into(), state & 32 != 0, state & 64 != 0))
}

/// Characters of one, two or four bytes.
fn decoded(bytes: &[u8], width: usize) -> String {
    let number =
        |c: &[u8]| c.iter().rev().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let character = |c| char::from_u32(number(c)).unwrap_or(char::REPLACEMENT_CHARACTER);
    bytes.chunks_exact(width).map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_of_one_two_or_four_bytes_a_character() {
        assert_eq!(decoded(b"f\xfcr", 1), "für");
        assert_eq!(decoded(&[0x42, 0x30, 0x00, 0xd8], 2), "あ\u{fffd}");
        assert_eq!(decoded(&[0x0d, 0xf4, 0x01, 0x00], 4), "🐍");
        // `'ascii'` of 3.11 (interned, ready) and of 3.13.
        for state in [0xe5, 0x64] {
            assert_eq!(kind(state), Some((1, true, true)), "{state:x}");
        }
        assert_eq!(kind(0x28), Some((2, true, false)));
        assert_eq!(kind(0), None);
    }
}
