//! Models that turn rows into richer rows.
//!
//! The first of them accounts for time: [`parts`] says where each nanosecond of a step went, as
//! `part` rows that sum to the step's duration. It walks from the step's thread along wakeups and
//! messages to whoever really held it up (a `fsync` that waits for a kworker that waits behind
//! somebody's busy loop is not "disk"), and never believes a waker that ran in an interrupt.
//!
//! *Invariant:* nothing here opens a file, asks for the time, or judges. Baselines, excess and
//! culprits are `diagnose`'s; the two meet in the schema only.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
pub mod busy_periods;
mod bytes;
pub mod calls;
pub mod communication;
pub mod critical_path;
pub mod devices;
mod engine_waits;
mod gpu;
pub mod idle;
mod intervals;
pub mod managed;
mod median;
pub mod nvtx;
pub mod os_calls;
mod pace;
pub mod phases;
pub mod requests;
pub mod rounds;
mod sums;
pub mod sweep;
mod syscall;
pub mod tally;
pub mod threads;
pub mod vgpu;
pub mod wandering;
pub mod work_quanta;
mod world;

pub use account::{Accounted, Accounting, account, parts};
pub use bytes::{Malformed, Partial, Reader};
pub use intervals::{Interval, busy, clip, subtract, union};
pub use sums::{Quantiles, STRETCHES, Stretches, Sum};
pub use world::World;
