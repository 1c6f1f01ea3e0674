//! A ring that a hostile process writes to, bytes and records, while its records become rows. What it makes is
//! bounded, and nothing of it is left when it has ended.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpuwhy_collect::fuzzing::live_ring(data));
