//! Events of kernel tracers, whichever wrote them: the form in which readers hand them out ([`RawEvent`](gpuwhy_tracepoint::RawEvent)), and the rows
//! that they become ([`rows`]), which are those that gpuwhy's own recorder writes of the same things.

mod action;
pub(crate) mod feed;
pub(crate) mod input;
pub(crate) mod ring;
pub mod rows;
mod sums;
mod tasks;
pub(crate) mod tracing_data;

#[cfg(test)]
mod rows_tests;
