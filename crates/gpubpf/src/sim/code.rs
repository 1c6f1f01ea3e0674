//! Kernels and functions as the simulator executes them: names are slots, labels are places.

use super::ops::Calc;
pub(crate) use super::space::{CONST, FUNCTIONS, GLOBAL, GLOBAL_END, Space, generic, space_of};
use super::types::Ty;

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    WarpsPerSm,
    SmId,
    Sms,
    GridId,
    Clock,
    ClockHigh,
    Clock64,
    GlobalTimer,
    GlobalTimerLow,
    GlobalTimerHigh,
    MaskEq,
    MaskLe,
    MaskLt,
    MaskGe,
    MaskGt,
    DynamicShared,
    TotalShared,
    Number(u32),
}

/// A value that an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Src {
    Reg(u32),
    /// The complement of a predicate.
    Not(u32),
    Imm(u64),
    Special(Special),
    /// An address in the frame's local memory.
    Local(u64),
    /// Where the shared memory that the launch adds begins.
    Dynamic(u64),
}

/// A register that an instruction writes: slot and width; or none (`_`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dst {
    Reg(u32, u32),
    None,
}

/// An address: a value and a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Src,
    pub(crate) offset: i64,
    /// It names a parameter of a call within the frame.
    pub(crate) frame: bool,
}

/// What is done to memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// Which lane's value a lane gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What a vote asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What a barrier of the block does besides waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Barrier {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// Where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callee {
    Function(u32),
    Pointer(Src),
}

/// What is handed over in a call: a register, or bytes among the frame's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Value(Src, u32),
    Result(Dst),
    Bytes { at: u32, bytes: u32 },
}

/// A product of matrices that a warp holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mma {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Ty,
    pub(crate) b: Ty,
    pub(crate) c: Ty,
    pub(crate) d: Ty,
    pub(crate) sat: bool,
    pub(crate) dst: Vec<Dst>,
    pub(crate) src: [Vec<Src>; 3],
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Calc {
        calc: Box<Calc>,
        dst: Dst,
        also: Dst,
        src: [Src; 4],
        widths: [u32; 4],
    },
    Pack {
        dst: Dst,
        parts: Vec<Src>,
        bits: u32,
    },
    Unpack {
        dst: Vec<Dst>,
        src: Src,
        bits: u32,
    },
    Load {
        space: Space,
        ty: Ty,
        dst: Vec<Dst>,
        at: Address,
    },
    Store {
        space: Space,
        ty: Ty,
        src: Vec<Src>,
        at: Address,
    },
    Atomic {
        space: Space,
        op: AtomicOp,
        ty: Ty,
        dst: Vec<Dst>,
        at: Address,
        src: Vec<Src>,
        with: Src,
    },
    Branch(u32),
    BranchIndex {
        index: Src,
        targets: Vec<u32>,
    },
    Call {
        callee: Callee,
        results: Vec<Passed>,
        arguments: Vec<Passed>,
    },
    Return,
    Exit,
    Trap,
    Barrier {
        what: Barrier,
        id: Src,
        count: Option<Src>,
        aligned: bool,
        dst: Dst,
        with: Src,
    },
    WarpBarrier {
        mask: Src,
    },
    Shuffle {
        mode: Shuffle,
        dst: Dst,
        also: Dst,
        src: Src,
        lane: Src,
        clamp: Src,
        mask: Option<Src>,
    },
    Vote {
        what: Vote,
        dst: Dst,
        src: Src,
        mask: Option<Src>,
    },
    Match {
        all: bool,
        bits: u32,
        dst: Dst,
        also: Dst,
        src: Src,
        mask: Src,
    },
    Redux {
        op: AtomicOp,
        ty: Ty,
        dst: Dst,
        src: Src,
        mask: Src,
    },
    Elect {
        dst: Dst,
        also: Dst,
        mask: Src,
    },
    ActiveMask {
        dst: Dst,
    },
    CopyAsync {
        bytes: u32,
        to: Address,
        from: Address,
        size: Option<Src>,
    },
    CopyCommit,
    CopyWait(u32),
    MatrixLoad {
        count: usize,
        transposed: bool,
        dst: Vec<Dst>,
        at: Address,
        space: Space,
    },
    MatrixStore {
        count: usize,
        transposed: bool,
        src: Vec<Src>,
        at: Address,
        space: Space,
    },
    Mma(Box<Mma>),
    Sleep(Src),
    /// Fences, prefetches and hints: nothing that a program could see.
    Nothing,
    /// An instruction that is not known, and what of it.
    Missing(String),
}

/// An instruction with its condition and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inst {
    /// A predicate's slot, and whether it must be false.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) op: Op,
    /// The line of the text, from 1.
    pub(crate) line: usize,
    /// The statement's bytes in the text.
    pub(crate) text: (usize, usize),
    /// Where lanes that part here meet again; the end of the function where it is no instruction.
    pub(crate) meet: u32,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
    /// The slot, where it is a register.
    pub(crate) reg: Option<(u32, u32)>,
}

/// A kernel or a function.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) kernel: bool,
    pub(crate) defined: bool,
    pub(crate) code: Vec<Inst>,
    /// Registers that are used.
    pub(crate) registers: u32,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) results: Vec<Parameter>,
    /// Bytes of parameters: the kernel's, or those of the frame.
    pub(crate) parameter_bytes: u32,
    pub(crate) local_bytes: u32,
    /// Bytes of shared memory that are used up to the end of its own.
    pub(crate) shared_bytes: u32,
    /// `.reqntid`.
    pub(crate) block: Option<[u32; 3]>,
}
