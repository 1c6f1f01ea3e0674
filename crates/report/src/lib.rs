//! A verdict as one self-contained HTML page: no network, no server, nothing beside it.
//!
//! The page says first what got slow, by how much, because of whom and how sure we are; then
//! shows it; then gives the evidence for and against with the rows it stands on; then says what
//! was lost or never looked at. Everything that is text is in the HTML itself and needs no
//! script; the script draws the time tracks and moves through them.
//!
//! Two things are true of every page. Names in a trace come from the recorded processes, so
//! nothing from a trace reaches the page but through [`html::esc`] or [`html::json`], and a
//! content security policy lets only our own script run. And its size is bounded: tracks are
//! thinned to pixel columns here ([`detail`]), not in the browser.
//!
//! *Invariant:* this crate judges nothing and opens no file; it shows what it is given.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bars;
pub mod data;
pub mod detail;
pub mod html;
mod page;
pub mod pairs;
mod profile;
pub mod table;
pub mod timeline;
pub mod variability;
pub mod vgpu;

pub use data::*;
pub use page::render;
