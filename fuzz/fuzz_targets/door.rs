//! What anybody may say at a collector's door, or somebody who plays the collector to a library: the
//! first byte says which. No descriptor stays behind.

#![no_main]

use gpuwhy_wire::fuzzing::{host_hears, visit_hears};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

libfuzzer_sys::fuzz_target!(
    init: host_hears(&[]),
    |data: &[u8]| {
        let before = descriptors();
        match data.split_first() {
            Some((0..128, rest)) => host_hears(rest),
            Some((_, rest)) => visit_hears(rest),
            None => {}
        }
        assert_eq!(descriptors(), before, "a descriptor was left open, or closed twice");
    }
);
