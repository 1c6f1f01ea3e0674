//! What anybody may send to an agent's socket, or a false agent to a library: the first byte says which.
//! No descriptor stays open.

#![no_main]

use std::os::fd::AsRawFd as _;

use gpuwhy_wire::fuzzing::{client_receives, server_receives};

/// The lowest number that no descriptor has: higher if one was left open, lower if one was closed twice.
fn free_descriptor() -> i32 {
    std::fs::File::open("/dev/null").map_or(-1, |file| file.as_raw_fd())
}

libfuzzer_sys::fuzz_target!(
    init: server_receives(&[]),
    |data: &[u8]| {
        let before = free_descriptor();
        match data.split_first() {
            Some((0..128, rest)) => server_receives(rest),
            Some((_, rest)) => client_receives(rest),
            None => {}
        }
        assert_eq!(free_descriptor(), before, "a descriptor was left open, or closed twice");
    }
);
