//! The tables of a gpuwhy trace: what happened, whose it was, and what we concluded.
//!
//! Analyses read *shapes* (span, state, counter, mark, sample, link), so the same code serves
//! CUDA streams, i915 rings, NET_RX and block I/O. *Lanes* say whose a row is; *details* hold the
//! domain's own columns, keyed by the id of their span or mark; *results* are what gpuwhy itself
//! concluded. `docs/schema.md` is made from the declarations in [`tables`].
//!
//! Each table is declared once, in `tables.rs`. The row struct, the Arrow schema, the batch
//! builder, the reader and the documentation all follow from that declaration.
//!
//! *Invariant:* this crate knows no source, no file format, and neither opens files nor asks for
//! the time.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attr_columns;
pub mod cell;
mod clock_error;
pub mod docs;
pub mod flow;
mod lanes;
pub mod names;
pub mod sources;
mod table;
pub mod tables;
pub mod terminal;
pub mod text;
mod units;
mod words;

pub use attr_columns::{AttrBatch, AttrColumns, AttrKey, Texts};
pub use cell::{Name, Names, Role, UnknownWord};
pub use clock_error::ClockError;
pub use lanes::{Lane, Lanes, STACKS_LAST, remembered};
pub use table::{Column, SchemaError, TABLE_KEY, Table, VERSION, VERSION_KEY, schema};
pub use tables::*;
pub use units::{EntityId, Id, Ids, Ns, SourceId, TrackId};
pub use words::*;
