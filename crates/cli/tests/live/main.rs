//! Verdicts while it happens: tests whose machine is best left to them alone, and which therefore are
//! a program of their own, one at a time.

mod gpus;
mod probes;
mod watching;

#[path = "../common/mod.rs"]
mod common;
pub use common::*;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that judge what happens while it happens do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
