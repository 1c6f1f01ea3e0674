//! Trace directories: append, recover, read by time, merge, keep the recent past, validate.
//!
//! ```text
//! x.trace/
//!   trace.toml            what the trace holds; its replacement is the commit
//!   span/00000.parquet    one sealed file a table and segment, sorted by start, zstd
//!   state/00000.parquet
//!   state.head/00001.parquet   states of earlier segments that reach into segment 1, repeated
//!   journal/00001.journal what is not sealed yet
//!   pyramid/levels.bin    sums over buckets of time, from which pictures are drawn; made anew where it is missing
//!   quarantine/           what a crash tore
//!   lock                  held by the writer
//! ```
//!
//! Rows are appended to a journal, which is cheap and outlives the death of the writer, and are
//! sealed into Parquet a segment at a time. Any Parquet reader can read what is sealed:
//! `read_parquet('x.trace/span/*.parquet')`. Two things to know when reading from outside: of
//! `entity`, `track` and `source` the last row of an id counts; and a span or state with a null
//! `dur` had not ended when it was written, and has a twin with the same start (and `id`, or
//! `track`) if it ended later. [`Trace`] sees to both.
//!
//! *Invariant:* this crate opens files and knows no source and no other format.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attr_file;
mod beneath;
mod bulk;
mod dir;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod ids;
mod incomplete;
mod journal;
mod latest;
mod manifest;
mod merge;
mod output;
mod pages;
mod pyramid;
mod read;
mod recover;
mod remove;
mod ring;
mod seal;
mod segment;
mod select;
mod table_file;
mod trace;
mod validate;
mod writer;

#[doc(hidden)]
pub use beneath::{Op, Tap};
pub use bulk::Bulk;
pub use dir::Durability;
pub use error::{Error, Result};
pub use incomplete::IncompleteSource;
pub use manifest::{File, MANIFEST, Manifest};
pub use merge::{Merged, Shards, merge};
pub use output::{Output, write_file};
pub use pyramid::{Grid, Piece, Pyramid};
pub use read::Read;
pub use recover::Recovered;
pub use remove::{put_in_place, remove};
pub use ring::{Keep, Ring};
pub use seal::{LaneRow, ThreadBegins};
pub use trace::{MAX_ROWS, Summary, TableSummary, Trace};
pub use validate::{Report, Rule, Violation, validate};
pub use writer::{Options, Writer, Written};
