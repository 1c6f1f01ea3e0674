//! Benchmarks: what the docs quote, made by a command.

pub mod darzi;
pub mod injectors;
pub mod overhead;
pub mod result;
pub mod trial;
