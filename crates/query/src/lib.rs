//! SQL over traces, in this process or on a cluster.
//!
//! The engine is DataFusion, with Ballista for several machines. This crate adds three things: the tables
//! of a trace, with the files that belong to each ([`trace`]); views with names in place of ids
//! ([`views`]); and the functions that `gpuwhy variability` computes with ([`functions`]). Plans consist
//! of tables over Parquet files, lists of values, and functions by name, so that any process that has the
//! functions can execute them.
//!
//! *Invariant:* this crate contains no analysis. `derive` and `diagnose` find what differs, and why.

#![forbid(unsafe_code)]

pub mod functions;
pub mod output;
pub mod roles;
pub mod served;
pub mod session;
pub mod shards;
pub mod stores;
pub mod trace;
pub mod views;
