//! What the compiler knows of a register.

/// What a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// This number.
    Const(u64),
    /// The top of the entry's stack plus this offset, which is negative.
    Stack(i32),
    /// An address on the stack at no constant offset, or perhaps one.
    MaybeStack,
    /// A map, by its index: what helpers take.
    Map(u32),
    /// An address in global memory or null: the value of a map or read-only data.
    Global {
        /// It is a multiple of two to this power, at most 3.
        align: u8,
        /// The map whose value it is, where it is one.
        map: Option<u32>,
    },
    /// What `r1` is at a probe site, moved by this offset: words that the site knows.
    Context(i64),
    /// The context on one path and something else on another.
    MaybeContext,
    /// Anything else: a number, or an address of the caller's.
    Any {
        /// It is a multiple of two to this power, at most 3.
        align: u8,
    },
}

impl Value {
    /// The power of two, at most 3, that the value is a multiple of.
    pub fn align(self) -> u8 {
        match self {
            Self::Const(value) => zeros(value),
            Self::Stack(offset) => zeros(offset as u64),
            Self::MaybeStack | Self::Map(_) | Self::Context(_) | Self::MaybeContext => 0,
            Self::Global { align, .. } | Self::Any { align } => align,
        }
    }

    /// Whether it may be an address on the stack.
    pub fn is_stack(self) -> bool {
        matches!(self, Self::Stack(_) | Self::MaybeStack)
    }

    /// What a register holds that holds either, by the path taken.
    pub fn join(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        let align = self.align().min(other.align());
        match (self, other) {
            _ if self.is_stack() || other.is_stack() => Self::MaybeStack,
            (Self::Context(_) | Self::MaybeContext, _)
            | (_, Self::Context(_) | Self::MaybeContext) => Self::MaybeContext,
            (Self::Global { map: a, .. }, Self::Global { map: b, .. }) => {
                Self::Global { align, map: a.filter(|_| a == b) }
            }
            // A look-up that found nothing gives 0.
            (Self::Global { map, .. }, Self::Const(0))
            | (Self::Const(0), Self::Global { map, .. }) => Self::Global { align, map },
            _ => Self::Any { align },
        }
    }
}

/// Trailing zero bits, at most 3.
pub(crate) fn zeros(value: u64) -> u8 {
    value.trailing_zeros().min(3) as u8
}
