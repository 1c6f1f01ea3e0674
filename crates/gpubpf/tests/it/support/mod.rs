//! What the tests share: the conformance files, an assembler for their text, a reference machine.

pub mod asm;
pub mod cases;
pub mod clang;
pub mod machine;
pub mod probed;
pub mod programs;
pub mod ptx;
pub mod ptxas;
pub mod stolen;
pub mod vectors;
pub mod warps;
