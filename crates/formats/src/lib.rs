//! Other people's files, in and out: one module knows one format.
//!
//! *Invariant:* this crate knows rows and bytes. It knows no source of live data, no trace
//! directory and no judgement.

#![forbid(unsafe_code)]

pub mod perfetto;
