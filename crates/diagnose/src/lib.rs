//! Judgement: what was slower than it should have been, why, by whom, and how sure we are.
//!
//! [`detect`] finds incidents in series of steps, [`live`] while they arrive; [`verdict`] subtracts the
//! usual parts of a step from the parts during the incident, ranks what is left, names who was in the
//! way, and says how sure it is. [`published`] holds other methods, above all that of Darzi et al., to be measured
//! against.
//!
//! *Invariant:* pure functions of rows. Nothing here opens a file, asks for the time or draws a
//! random number that is not seeded; it could run in a browser.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod baseline;
pub mod calibration;
pub mod change;
pub mod classes;
pub mod correspondents;
pub mod demand;
pub mod detect;
pub mod evidence;
pub mod excess;
pub mod exchange;
pub mod fleet;
pub mod gpu;
pub mod live;
pub mod on_cpu;
pub mod published;
pub mod reference;
pub mod roofline;
pub mod spans;
pub mod stats;
pub mod undecided;
pub mod variability;
pub mod verdict;
pub mod vgpu;
