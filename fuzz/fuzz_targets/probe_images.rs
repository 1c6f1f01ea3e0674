//! What the program and the controller of device probes read of each other, whatever the other end wrote.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpuwhy_wire::fuzzing::images(data));
