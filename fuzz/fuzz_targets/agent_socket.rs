//! What anybody may send to an agent's socket, or a false agent to a library: the first byte says which.
//! No descriptor stays open.

#![no_main]

use gpuwhy_wire::fuzzing::{client_receives, server_receives};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

libfuzzer_sys::fuzz_target!(
    init: server_receives(&[]),
    |data: &[u8]| {
        let before = descriptors();
        match data.split_first() {
            Some((0..128, rest)) => server_receives(rest),
            Some((_, rest)) => client_receives(rest),
            None => {}
        }
        assert_eq!(descriptors(), before, "a descriptor was left open, or closed twice");
    }
);
