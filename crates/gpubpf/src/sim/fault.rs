//! What goes wrong in a kernel, where and in which thread.

use std::fmt;

use super::code::Space;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// An access outside of all memory that exists.
    #[error("{what} of {bytes} bytes at {address:#x}, where there is no {space} memory")]
    OutOfBounds {
        /// `load`, `store` or `atomic`.
        what: &'static str,
        /// The space in which it was looked for.
        space: Space,
        /// The address within the space.
        address: u64,
        /// How many bytes.
        bytes: u32,
    },
    /// An address that is no multiple of the size of what is accessed.
    #[error("{what} at {address:#x} of {space} memory, which is not aligned to {align} bytes")]
    Misaligned {
        /// `load`, `store` or `atomic`.
        what: &'static str,
        /// The space.
        space: Space,
        /// The address within the space.
        address: u64,
        /// The alignment that it needs.
        align: u32,
    },
    /// Memory that nobody has written.
    #[error("{bytes} bytes at {address:#x} of {space} memory are read before they are written")]
    Unwritten {
        /// The space.
        space: Space,
        /// The address within the space.
        address: u64,
        /// How many bytes were read.
        bytes: u32,
    },
    /// A value from a register that this thread has not written decides a branch, is an address or is
    /// stored.
    #[error("a value is used that comes from a register which was not written")]
    UnwrittenRegister,
    /// A result that PTX leaves open, or an operand that it forbids.
    #[error("{0}")]
    Undefined(&'static str),
    /// An instruction that the simulator does not know.
    #[error("the simulator does not know `{0}`")]
    Missing(String),
    /// Threads wait for each other for ever.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// `trap`, or a failed assertion.
    #[error("the kernel ended itself: {0}")]
    Trap(&'static str),
    /// More than the simulation is allowed.
    #[error("more than {limit} {what}, which is the limit of this simulation")]
    Limit {
        /// Of what there is more.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
}

/// What went wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kernel or function, as the text has it.
    pub function: String,
    /// The line of the text, from 1.
    pub line: usize,
    /// The statement.
    pub statement: String,
    /// `%ctaid`
    pub block: [u32; 3],
    /// `%tid` of the first thread that it happened to.
    pub thread: [u32; 3],
    /// What happened.
    pub trouble: Trouble,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { function, line, statement, block: [bx, by, bz], thread: [x, y, z], trouble } =
            self;
        write!(
            f,
            "`{function}`, line {line}, `{statement}`, block ({bx}, {by}, {bz}), \
             thread ({x}, {y}, {z}): {trouble}"
        )
    }
}

impl std::error::Error for Fault {}

/// What went wrong, and in which lane.
#[derive(Debug)]
pub(crate) struct Fail {
    pub(crate) lane: u32,
    pub(crate) trouble: Trouble,
}

/// A failure that concerns the lanes of `mask`.
pub(crate) fn fail(mask: u32, trouble: Trouble) -> Fail {
    Fail { lane: mask.trailing_zeros().min(31), trouble }
}
