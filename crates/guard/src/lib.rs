//! Parquet and Arrow files from anywhere, looked over before their decoders do.
//!
//! The decoders are well-kept libraries, but they trust their input: lengths that make them reserve
//! memory, lists without end, pages that unpack to anything; and some malformed files end in a panic
//! inside them. Here is what makes them safe to point at a file that nobody vouches for, in bounded
//! time and memory; the fuzz targets of those who use it are its tests.
//!
//! *Invariant:* this crate knows no table and no path. Whoever asks names the file in his own error.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arrow_file;
mod arrow_stream;
mod panics;
mod parquet_file;
mod thrift;

use std::io;

pub use arrow_file::check_blocks;
pub use arrow_stream::{Stream, check_stream};
pub use panics::guarded;
pub use parquet_file::{Checked, check_pages, metadata};

/// Why a file is not given to its decoder.
#[derive(Debug, thiserror::Error)]
pub enum Unsound {
    /// The operating system refused.
    #[error("cannot {what}")]
    Io {
        /// What was tried: to it belongs the file's name.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is cut off or garbled.
    #[error("{0}")]
    Damaged(String),
    /// The decoder says so.
    #[error("{place}")]
    Parquet {
        /// Where in the file.
        place: String,
        /// What it says.
        #[source]
        source: parquet::errors::ParquetError,
    },
}

impl Unsound {
    fn io(what: &'static str) -> impl Fn(io::Error) -> Unsound {
        move |source| Unsound::Io { what, source }
    }
}

/// What looking over comes to.
pub type Result<T, E = Unsound> = std::result::Result<T, E>;
