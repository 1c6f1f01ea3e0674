//! What is where in the structs of CPython, by its version.
//!
//! Python 3.13 and later say it themselves, in a table at the begin of `_PyRuntime` (`struct _Py_DebugOffsets` of
//! `pycore_debug_offsets.h`, in 3.13 of `pycore_runtime.h`). The numbers of 3.10 to 3.12 are those of a 64-bit build, from
//! the same headers (`pycore_runtime.h`, `pycore_interp.h`, `cpython/pystate.h`, `pycore_frame.h`, `cpython/code.h`); they
//! do not differ between the releases of one version. A build with `--with-trace-refs` has others, and is not understood.

use crate::bpf::Python;

/// Where a version has no such member.
pub(crate) const NONE: u32 = u32::MAX;

/// The first version that describes itself.
const DESCRIBES_ITSELF: u32 = 13;
/// The last version whose table is known; of later ones only the address of the interpreter lock is taken.
const NEWEST: u32 = 15;
/// An offset beyond this is none: the table is not what it should be.
const FARTHEST: u64 = 1 << 20;

/// What is where, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// What the kernel side follows.
    pub walk: Python,
    /// What is in a code object.
    pub code: CodeLayout,
}

/// What is where in a code object, and in the objects that it refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeLayout {
    pub filename: u32,
    /// The function, with its classes and functions around it, or before 3.11 without.
    pub name: u32,
    pub line_table: u32,
    pub first_line: u32,
    /// The first instruction; [`NONE`] where frames number instructions instead.
    pub instructions: u32,
    /// Bytes of a string before its text, if that is ASCII; of another, [`CodeLayout::OTHERS_MORE`] more.
    pub ascii: u32,
}

impl CodeLayout {
    /// Bytes of a string that is not ASCII before its text (`PyCompactUnicodeObject`).
    pub fn other_text(&self) -> u32 {
        // Since 3.12: length and address of its UTF-8; before, the length of another form too.
        self.ascii + if self.ascii >= 48 { 24 } else { 16 }
    }
}

/// What was found of an interpreter.
#[derive(Debug)]
pub(super) struct Found {
    /// It has no interpreter lock.
    pub free_threaded: bool,
    /// What is where; `None` if that is not known of this version or build.
    pub layout: Option<Layout>,
}

/// Of version 3.`minor`, of whose `_PyRuntime` `word` reads a part.
pub(super) fn of(minor: u32, word: &mut dyn FnMut(u64) -> Option<u64>) -> Found {
    if minor < DESCRIBES_ITSELF {
        return Found { free_threaded: false, layout: before(minor) };
    }
    described(minor, word).unwrap_or(Found { free_threaded: false, layout: None })
}

/// 3.10 to 3.12.
fn before(minor: u32) -> Option<Layout> {
    let walk = Python { next_thread: 8, ..Python::default() };
    Some(match minor {
        10 => Layout {
            walk: Python {
                interpreters: 32,
                threads: 8,
                thread_id: 176,
                frame: 24,
                in_between: NONE,
                previous: 24,
                code: 32,
                instruction: 96,
                owner: NONE,
                ..walk
            },
            code: CodeLayout {
                filename: 104,
                name: 112,
                line_table: 120,
                first_line: 40,
                instructions: NONE,
                ascii: 48,
            },
        },
        11 => Layout {
            walk: Python {
                interpreters: 40,
                threads: 16,
                thread_id: 152,
                frame: 56,
                in_between: 8,
                previous: 48,
                code: 32,
                instruction: 56,
                owner: 69,
                ..walk
            },
            code: CodeLayout {
                filename: 112,
                name: 128,
                line_table: 136,
                first_line: 72,
                instructions: 184,
                ascii: 48,
            },
        },
        12 => Layout {
            walk: Python {
                interpreters: 40,
                threads: 72,
                thread_id: 136,
                frame: 56,
                in_between: 0,
                previous: 8,
                code: 0,
                instruction: 56,
                owner: 70,
                ..walk
            },
            code: CodeLayout {
                filename: 112,
                name: 128,
                line_table: 136,
                first_line: 68,
                instructions: 192,
                ascii: 40,
            },
        },
        _ => return None,
    })
}

/// What an interpreter says of itself; `None` if it says nothing that can be understood.
fn described(minor: u32, word: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Found> {
    if word(0)? != u64::from_le_bytes(*b"xdebugpy") {
        return None;
    }
    let version = word(8)?;
    let free_threaded = word(16)? != 0;
    // Objects of builds without the lock begin otherwise, and each of their threads has instructions of its own.
    if version >> 16 & 0xff != u64::from(minor) || minor > NEWEST || free_threaded {
        return Some(Found { free_threaded, layout: None });
    }
    // Each group of numbers begins with the size of what it describes.
    let mut at = 24;
    let mut group = |members: u64| {
        let from = at + 8;
        at = from + 8 * members;
        from
    };
    let (since_14, since_15) = (u64::from(minor >= 14), u64::from(minor >= 15));
    let runtime = group(2);
    // 3.14: the main thread, and two counts of generations at the end.
    let interpreter = group(12 + 3 * since_14);
    // 3.15: three more frames before its id, and five more numbers at the end.
    let thread = group(8 + 8 * since_15);
    let id_of_thread = 4 + 3 * since_15;
    let frame = group(5 + 2 * since_14);
    let code = group(9 + since_14);
    let _object = group(1);
    let _type = group(3 + 2 * since_15);
    let _heap_type = (since_15 == 1).then(|| group(1));
    let (_tuple, _list) = (group(2), group(2));
    let _set = (since_14 == 1).then(|| group(3));
    let (_dict, _float, _long, _bytes) = (group(2), group(1), group(2), group(2));
    let text = group(3);
    let mut number = |from: u64, member: u64| {
        let offset = word(from + 8 * member)?;
        (offset < FARTHEST).then_some(offset as u32)
    };
    let walk = Python {
        interpreters: number(runtime, 1)?,
        threads: number(interpreter, 2)?,
        next_thread: number(thread, 1)?,
        frame: number(thread, 3)?,
        in_between: NONE,
        thread_id: number(thread, id_of_thread)?,
        previous: number(frame, 0)?,
        code: number(frame, 1)?,
        instruction: number(frame, 2)?,
        owner: number(frame, 4)?,
        ..Python::default()
    };
    let code = CodeLayout {
        filename: number(code, 0)?,
        name: number(code, 2)?,
        line_table: number(code, 3)?,
        first_line: number(code, 4)?,
        instructions: number(code, 8)?,
        ascii: number(text, 2)?,
    };
    Some(Found { free_threaded, layout: Some(Layout { walk, code }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_that_describes_itself_otherwise_than_expected_is_not_followed() {
        let mut table = vec![u64::from_le_bytes(*b"xdebugpy"), 0x030e_00f0, 0];
        table.extend(0..100);
        let read = |table: &[u64]| described(14, &mut |at| table.get(at as usize / 8).copied());
        assert!(read(&table).unwrap().layout.is_some());
        assert!(read(&table[..40]).is_none(), "it ends early");
        assert!(read(&[0; 100]).is_none(), "no such table");
        table[1] = 0x030d_00f0;
        assert!(read(&table).unwrap().layout.is_none(), "another version");
        table[1] = 0x030e_00f0;
        table[2] = 1;
        let without_lock = read(&table).unwrap();
        assert!(without_lock.free_threaded && without_lock.layout.is_none());
        table[2] = 0;
        table.iter_mut().skip(3).for_each(|offset| *offset = u64::MAX);
        assert!(read(&table).is_none(), "no offsets");
    }
}
