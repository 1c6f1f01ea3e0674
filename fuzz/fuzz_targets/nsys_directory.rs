//! Any table in a directory that is an export of Nsight Systems by its name: Parquet if the first byte is
//! even, Arrow if it is odd. It is refused with an error, or read to its end.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::Options;
use gpuwhy_formats::importers;

static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let dir = PathBuf::from(format!("/dev/shm/gpuwhy-fuzz-{}.tables", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, table)) = data.split_first() else { return };
    let name = if kind % 2 == 0 { "StringIds.parquet" } else { "StringIds.arrow" };
    std::fs::write(DIR.join(name), table).unwrap();
    // Strings are read when it is opened.
    let paths = [DIR.clone()];
    if let Ok(importer) = importers::find(&paths) {
        let _ = importer.open(&paths, &Options { threads: 1 });
    }
    std::fs::remove_file(DIR.join(name)).unwrap();
});
