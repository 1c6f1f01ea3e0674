//! State spaces, and where their windows lie among generic addresses.

/// A state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// Any of the others, by its generic address.
    Generic,
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Constants.
    Const,
    /// Parameters of the kernel, or of a function.
    Param,
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Const => "constant",
            Space::Param => "parameter",
        })
    }
}

/// Where the windows of the spaces lie among generic addresses.
const SHARED: u64 = 0x0100_0000_0000;
const LOCAL: u64 = 0x0200_0000_0000;
const PARAM: u64 = 0x0300_0000_0000;
pub(crate) const CONST: u64 = 0x0400_0000_0000;
/// Functions have addresses here, 16 bytes apart.
pub(crate) const FUNCTIONS: u64 = 0x0500_0000_0000;
const WINDOW: u64 = 0x0100_0000_0000;
/// Allocations begin here and end below the first window.
pub(crate) const GLOBAL: u64 = 0x0010_0000_0000;
pub(crate) const GLOBAL_END: u64 = SHARED;

/// The generic address of an address of `space`.
pub(crate) fn generic(space: Space, address: u64) -> u64 {
    match space {
        Space::Generic | Space::Global | Space::Const => address,
        Space::Shared => SHARED.wrapping_add(address),
        Space::Local => LOCAL.wrapping_add(address),
        Space::Param => PARAM.wrapping_add(address),
    }
}

/// The space that a generic address lies in.
pub(crate) fn space_of(address: u64) -> Space {
    match address / WINDOW * WINDOW {
        SHARED => Space::Shared,
        LOCAL => Space::Local,
        PARAM => Space::Param,
        CONST => Space::Const,
        _ => Space::Global,
    }
}
