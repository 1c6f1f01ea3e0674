//! An answer of NCCL's RAS: bytes that any program may send that listens at its port.

#![no_main]

// This file alone: its crate needs libbpf, which is of no use here.
#[path = "../../crates/collect/src/probes/nccl_ras/answer.rs"]
#[allow(dead_code)]
mod answer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let answer = answer::read(data, true);
    assert!(answer.statements.len() <= 256);
    // The same bytes lead to the same statements, whether or not the stream ended behind them.
    let cut = answer::read(data, false);
    assert!(cut.cut);
    assert_eq!((cut.statements, cut.left_out), (answer.statements, answer.left_out));
});
