//! Verdicts while it happens: tests whose machine is best left to them alone, and which therefore are
//! a program of their own, one at a time.

mod gpus;
mod machines;
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

/// Runs what is asserted of times that pass on this machine, up to three times: who else takes its CPUs makes steps longer,
/// and what is asserted then does not hold of all of them.
fn in_one_of_three_tries(assertions: impl Fn()) {
    for _ in 0..2 {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&assertions)).is_ok() {
            return;
        }
        eprintln!("once more");
    }
    assertions();
}
