//! The `gpuwhy` command as its users meet it.

mod errors;
mod importing;
mod libraries;
mod packaging;
mod recording;

#[path = "../common/mod.rs"]
mod common;
pub use common::*;
