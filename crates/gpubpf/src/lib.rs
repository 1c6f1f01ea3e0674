//! eBPF programs for GPU kernels.
//!
//! An object as clang writes it for the kernel's eBPF becomes PTX that is put inline at a probe site:
//! no call, no local memory where the stack is used at constant offsets, each helper lowered in
//! place.
//!
//! *Invariant:* this crate opens no file and starts no process; it takes bytes and gives text.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod actions;
mod attach;
mod btf;
mod call;
mod compile;
pub mod contents;
mod emit;
mod error;
mod flow;
mod graph;
mod hash;
mod helpers;
pub mod image;
mod inline;
pub mod insn;
mod interval;
mod lower;
mod options;
pub mod policy;
mod program;
pub mod ptx;
mod reader;
pub mod sim;
mod skeleton;
pub mod splice;
mod value;
mod verify;

pub use actions::{Action, Advice};
pub use attach::{Attach, Event, Moment, What};
pub use compile::{Fragment, MODULE_HEAD, entry, fragment, kernel, kernel_options};
pub use error::{Fault, Place};
pub use helpers::{Helper, Runs};
pub use options::{Addresses, Options, Stack, TABLE, TABLE_HEADER};
pub use program::{Data, Map, MapKind, Program, Site};
pub use reader::{Entry, Object, Unreadable};
pub use skeleton::{SKELETONS, Skeleton};
pub use verify::{Budget, Certificate, Effect, Uniform, verify};
