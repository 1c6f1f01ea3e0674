//! Any text as a trace of the PyTorch profiler: it is refused with an error, or all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::Options;
use gpuwhy_formats::importers;

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.json", std::process::id()).into());

fn import() -> gpuwhy_formats::Result<()> {
    // Twice, so that its base time is read first and its times are moved.
    let paths = [PATH.clone(), PATH.clone()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    while import.next()?.is_some() {}
    import.summary();
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(&*PATH, data).unwrap();
    let _ = import();
});
