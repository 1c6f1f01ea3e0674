//! What is wrong with an object or a program, and where.

use std::fmt;

/// An instruction of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The section, as the object names it.
    pub section: String,
    /// The number of the 8-byte slot within the section's text.
    pub slot: u32,
}

impl Place {
    /// The instruction that begins at `slot` of `section`.
    pub fn new(section: impl Into<String>, slot: u32) -> Self {
        Self { section: section.into(), slot }
    }

    /// An error at this place.
    pub fn fault(&self, reason: String) -> Fault {
        Fault { place: self.clone(), reason }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, instruction {}", self.section, self.slot)
    }
}

/// Why an instruction cannot be read or compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// Why, in words that a programmer can act on.
    pub reason: String,
}
