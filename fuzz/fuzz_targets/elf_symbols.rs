//! A program that anybody may have compiled, in which a function is sought. The first byte says which.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

// This file alone: its crate needs libbpf, which is of no use here.
#[path = "../../crates/collect/src/elf.rs"]
#[allow(dead_code)]
mod elf;

mod error {
    use std::path::PathBuf;

    #[derive(Debug, thiserror::Error)]
    #[allow(dead_code)]
    pub enum CollectError {
        #[error("cannot read `{path}`")]
        Read { path: PathBuf, source: std::io::Error },
        #[error("there is no function `{symbol}`{hint} in `{binary}`")]
        Symbol { binary: PathBuf, symbol: String, hint: String },
    }
}

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.elf", std::process::id()).into());

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, file)) = data.split_first() else { return };
    std::fs::write(&*PATH, file).unwrap();
    let symbol = ["main", "step", "", "gpuwhy_step_of_the_loop"][usize::from(kind % 4)];
    let _ = elf::function_offsets(&PATH, symbol);
    let mut read = |at: u64, buffer: &mut [u8]| {
        let from =
            usize::try_from(at).ok().and_then(|at| file.get(at..at.checked_add(buffer.len())?));
        let bytes = from.ok_or_else(|| std::io::Error::other("beyond the end"))?;
        buffer.copy_from_slice(bytes);
        Ok(())
    };
    let _ = elf::exported(&mut read, symbol);
});
