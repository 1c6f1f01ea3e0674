//! Verdicts while it happens: tests whose machine is best left to them alone, and which therefore are
//! a program of their own, one at a time.

mod gpus;
mod watching;

#[path = "../common/mod.rs"]
mod common;
pub use common::*;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tests that judge what happens while it happens do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits for something that comes soon; half a minute at most.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let by = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < by, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
