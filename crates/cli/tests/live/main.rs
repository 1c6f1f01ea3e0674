//! Verdicts while it happens: tests whose machine is best left to them alone, and which therefore are
//! a program of their own, one at a time.

mod watching;

#[path = "../common/mod.rs"]
mod common;
pub use common::*;
