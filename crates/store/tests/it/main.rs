//! The store as its users meet it: written, cut off, garbled, read, merged, validated.

mod crash;
mod merge;
mod outside;
mod ring;
mod sim;
mod validate;
mod write_and_read;
