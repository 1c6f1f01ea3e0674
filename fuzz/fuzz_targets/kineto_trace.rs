//! A text that anybody may have written and calls a trace of the PyTorch profiler: refused with an
//! error, or all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::kineto::{File, Import};

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.json", std::process::id()).into());

fn import() -> gpuwhy_formats::Result<()> {
    let _ = File::about(&*PATH);
    let mut import = Import::new();
    let mut file = File::open(&*PATH, i64::MAX / 2)?;
    while file.next(&mut import)?.is_some() {}
    import.finish();
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(&*PATH, data).unwrap();
    let _ = import();
    std::fs::remove_file(&*PATH).unwrap();
});
