//! The tests of this crate's interface. They are one program, so that the crate is linked once for all of them.

mod aggregated;
mod blocks;
mod certificates;
mod conformance;
mod corpus;
mod differential;
mod images;
mod kernels;
mod maps;
mod objects;
mod patches;
mod policy;
mod prevail;
mod ptx_text;
mod sampled;
mod simulator;
mod splice;
mod steal;
mod support;
mod tools;
mod verifier;
mod warps;
