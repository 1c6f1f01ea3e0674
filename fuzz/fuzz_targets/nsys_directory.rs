//! A table that anybody may have written, in a directory that is called an export of Nsight Systems:
//! Parquet if the first byte is even, Arrow if it is odd. Refused with an error, or read to its end.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::nsys::Report;

static DIR: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.tables", std::process::id()).into());

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, table)) = data.split_first() else { return };
    std::fs::create_dir_all(&*DIR).unwrap();
    let name = if kind % 2 == 0 { "StringIds.parquet" } else { "StringIds.arrow" };
    std::fs::write(DIR.join(name), table).unwrap();
    // Strings are read when it is opened.
    let _ = Report::open(&*DIR);
    std::fs::remove_dir_all(&*DIR).unwrap();
});
