//! A journal that anybody may have written. An even first byte: the file is what follows. An odd
//! one: what follows is the payload of a frame whose checksums hold, which no mutation would find.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_store::fuzzing;

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.journal", std::process::id()).into());

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match data {
        [mode, file @ ..] if mode % 2 == 0 => std::fs::write(&*PATH, file).unwrap(),
        [_, table, rows, payload @ ..] => {
            let file = fuzzing::journal_of(*table, u32::from(*rows), payload);
            std::fs::write(&*PATH, file).unwrap();
        }
        _ => return,
    }
    // The file is there and can be read, so whatever it holds is not an error of reading.
    fuzzing::journal(&PATH).unwrap();
});
