//! Events of kernel tracers, whichever wrote them: the form in which readers hand them out ([`event`]), and the rows
//! that they become ([`rows`]), which are those that gpuwhy's own recorder writes of the same things.

mod action;
pub mod event;
pub mod rows;
mod sums;
mod tasks;

#[cfg(test)]
mod rows_tests;
