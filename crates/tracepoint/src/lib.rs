//! Events of the kernel's tracer, whoever wrote them and wherever they are read: what a reader hands out ([`RawEvent`]), and the
//! kernel's own description of its records ([`Format`]), which tracefs shows and other tracers keep in their files.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod event;
mod format;

pub use event::{EventType, RawEvent, Value};
pub use format::{Field, Format, Machine};
