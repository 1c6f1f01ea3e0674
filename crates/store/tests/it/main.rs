//! The store as its users meet it: written, cut off, garbled, read, merged, validated.

mod crash;
#[path = "../../../bench/src/safety/disk.rs"]
mod disk;
mod merge;
mod others;
mod outputs;
mod outside;
#[path = "../../../bench/src/safety/power.rs"]
mod power;
mod powercut;
mod ring;
mod sim;
mod validate;
mod write_and_read;
