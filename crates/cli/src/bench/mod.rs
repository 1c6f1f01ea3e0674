//! Benchmarks: what the docs quote, made by a command.

pub mod crash;
pub mod darzi;
pub mod injectors;
pub mod overhead;
pub mod result;
pub mod server;
pub mod trial;
