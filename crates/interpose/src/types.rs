//! What the driver's functions take and return.

use core::ffi::{c_uint, c_void};

/// `CUresult`.
pub type Code = c_uint;
/// A context, module, library, kernel or stream of the driver.
pub type Handle = *mut c_void;

/// No error.
pub const SUCCESS: Code = 0;

/// What an image became, as a number: threads of ours use it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Module(usize),
    Library(usize),
    /// A module of machine code, which calls functions of ours.
    Code(usize),
}
