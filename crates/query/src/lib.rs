//! SQL over traces, in this process or on a cluster.
//!
//! The engine is DataFusion, and Ballista where one machine is outgrown; what is ours is the three
//! things that they cannot know: which files of a directory belong to a trace and whose its rows are
//! ([`trace`]), views that a user can guess ([`views`]), and the functions that `gpuwhy variability`
//! computes with ([`functions`]). Plans are plain: tables over Parquet files, lists of values, and
//! functions by name, so that they travel to any process that knows the functions.
//!
//! *Invariant:* no analysis is written here. What differs, and why, is `derive`'s and `diagnose`'s.

#![forbid(unsafe_code)]

pub mod functions;
pub mod output;
pub mod roles;
pub mod session;
pub mod shards;
pub mod stores;
pub mod trace;
pub mod views;
