//! A sealed file that anybody may have written. The first byte chooses the table.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

/// The reader reads files; this one lies in memory.
static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.parquet", std::process::id()).into());

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((table, file)) = data.split_first() else { return };
    std::fs::write(&*PATH, file).unwrap();
    let _ = gpuwhy_store::fuzzing::parquet(&PATH, *table);
});
