//! An answer of NCCL's RAS, which whoever listens at its port may have written.

#![no_main]

// Alone, as the crate that it belongs to brings the kernel's side along, which nothing here needs.
#[path = "../../crates/collect/src/nccl_ras/answer.rs"]
#[allow(dead_code)]
mod answer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let answer = answer::read(data, true);
    assert!(answer.says.len() <= 256);
    // What is said of an answer that was cut is what would be said of the whole, or nothing new.
    let cut = answer::read(data, false);
    assert!(cut.cut);
    assert_eq!((cut.says, cut.left_out), (answer.says, answer.left_out));
});
