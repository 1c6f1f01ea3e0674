//! One judgement for every front end.
//!
//! `gpuwhy diagnose`, `gpuwhy watch`, the correlator, every benchmark and a later server ask the same
//! questions of rows, and this crate is where they are answered:
//!
//! - [`source`]: where rows come from: a trace on disk, the recent past, either without some probes.
//! - [`units`]: what is compared with its like: marked steps, or the rounds of a program without any.
//! - [`investigate()`]: **the** composition of accounting and judgement for one incident, within a
//!   [`Budget`]; [`analysis`] does it for all incidents of a trace, [`live`] as rows arrive.
//! - [`watch`] drives a recorder and a live judge within limits; [`record`] records without judging;
//!   [`launch`] starts the command that is recorded; [`fleet`] joins several hosts.
//! - [`variability`]: which intervals, ranks and links of GPU work differ from the others.
//! - [`vgpu`]: who waits for whom where tenants share a GPU.
//! - [`view`]: a window of a trace as drawable lanes, as a report, as a Perfetto trace.
//!
//! *Invariants:* it knows no command line, prints nothing, and returns typed errors. Judgement itself
//! is pure and lies in `derive` and `diagnose`; this crate reads the rows that they need.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod account;
pub mod analysis;
mod duration;
mod error;
pub mod explain;
pub mod fleet;
pub mod investigate;
pub mod launch;
pub mod live;
pub mod parallel;
mod phase_table;
pub mod phases;
pub mod published;
pub mod query;
pub mod record;
pub mod requests;
pub mod settings;
pub mod source;
mod source_file;
pub mod threads;
mod trace_output;
pub mod units;
pub mod variability;
pub mod vgpu;
pub mod view;
pub mod watch;

pub use account::{KnownParts, account};
pub use analysis::{Analysis, analyse};
pub use duration::{parse_duration, share_of_time};
pub use error::{Error, Result};
pub use investigate::{Budget, Investigation, investigate};
pub use source::{RowSource, TraceSource};
