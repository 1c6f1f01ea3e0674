//! Any bytes as a trace of Perfetto: it is refused with an error, or all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::Options;
use gpuwhy_formats::importers;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/gpuwhy-fuzz-pftrace-{}", std::process::id())));

fn import() -> gpuwhy_formats::Result<()> {
    let paths = [FILE.clone()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    while import.next()?.is_some() {}
    import.summary();
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(&*FILE, data).unwrap();
    let _ = import();
});
