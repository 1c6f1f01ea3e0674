//! The `gpuwhy` command as its users meet it.

mod command;
mod engines;
mod errors;
mod fate;
mod fleet;
mod hostile;
mod importing;
mod left_out;
mod libraries;
mod packaging;
mod profiles;
mod python;
mod recording;
mod vgpu;
mod vgpu_against;
mod without_steps;

#[path = "../../../bench/src/safety/hostile.rs"]
mod hostile_names;

#[path = "../common/mod.rs"]
mod common;
pub use common::*;
