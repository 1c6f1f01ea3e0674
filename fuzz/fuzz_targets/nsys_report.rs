//! Any database as a report of Nsight Systems: it is refused with an error, or all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::{Options, WorkKind};
use gpuwhy_formats::importers;

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.sqlite", std::process::id()).into());

fn import() -> gpuwhy_formats::Result<()> {
    let paths = [PATH.clone()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    while import.next()?.is_some() {}
    import.summary();
    for report in importers::open_work(&paths)? {
        for kind in [WorkKind::Kernels, WorkKind::Copies] {
            for part in 0..report.parts(kind) {
                report.read(kind, part)?;
            }
        }
    }
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(&*PATH, data).unwrap();
    let _ = import();
});
