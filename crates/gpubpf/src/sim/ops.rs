//! What an instruction computes from the values of its operands, lane by lane.

use super::soft::Round;
use super::space::Space;
use super::types::{Ty, U32};

/// Which half of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Low,
    High,
    Wide,
}

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Neither is NaN.
    Numbers,
    /// One is NaN.
    NotNumbers,
}

/// How the outcome of a comparison is joined with a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    And,
    Or,
    Xor,
}

/// Modes of `prmt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permute {
    Index,
    Forward4,
    Backward4,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fun {
    Mov,
    Add,
    Sub,
    Mul(Half),
    Mad(Half),
    Mul24(Half),
    Mad24(Half),
    Fma,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr,
    Funnel {
        left: bool,
        wrap: bool,
    },
    Bfe,
    Bfi,
    Bfind {
        shift: bool,
    },
    Bmsk {
        wrap: bool,
    },
    Szext {
        wrap: bool,
    },
    Clz,
    Popc,
    Brev,
    Fns,
    Lop3,
    Prmt(Permute),
    Sad,
    Dp4a {
        a: bool,
        b: bool,
    },
    Dp2a {
        a: bool,
        b: bool,
        high: bool,
    },
    Selp,
    Slct,
    Set,
    Setp,
    Copysign,
    Testp(Test),
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
    Cvt,
    /// A value as it is: flushed and saturated as the opcode says.
    Identity,
    /// Two numbers become the halves of one value; the first is the upper.
    CvtPack,
    IsSpace(Space),
    /// Between a space's addresses and generic ones: the space, and whether it goes to the space.
    Cvta(Space, bool),
}

/// Questions of `testp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// A computation with all that its opcode says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Calc {
    pub(crate) fun: Fun,
    /// The type of the result.
    pub(crate) ty: Ty,
    /// The type of the operands, where it is another.
    pub(crate) from: Ty,
    pub(crate) round: Round,
    /// A conversion gives a whole number (`.rni` and the like).
    pub(crate) whole: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    /// Beyond the largest number stays the largest (`.satfinite`).
    pub(crate) finite: bool,
    pub(crate) relu: bool,
    /// NaN wins over numbers (`.NaN`).
    pub(crate) nan: bool,
    /// `.xorsign.abs`
    pub(crate) xorsign: bool,
    pub(crate) compare: Compare,
    /// The comparison holds for NaN.
    pub(crate) unordered: bool,
    pub(crate) join: Option<Join>,
    /// The carry is set (`.cc`) and is taken (`addc`).
    pub(crate) carry_out: bool,
    pub(crate) carry_in: bool,
}

impl Default for Calc {
    fn default() -> Self {
        Self {
            fun: Fun::Mov,
            ty: U32,
            from: U32,
            round: Round::Nearest,
            whole: false,
            ftz: false,
            sat: false,
            finite: false,
            relu: false,
            nan: false,
            xorsign: false,
            compare: Compare::Eq,
            unordered: false,
            join: None,
            carry_out: false,
            carry_in: false,
        }
    }
}
