//! A database that anybody may have written and calls a report of Nsight Systems: refused with an
//! error, or all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::nsys::{Import, Report, align};

static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| format!("/dev/shm/gpuwhy-fuzz-{}.sqlite", std::process::id()).into());

fn import() -> gpuwhy_formats::Result<()> {
    let reports = [Report::open(&*PATH)?];
    let alignment = align(&reports)?;
    let mut import = Import::new(&reports, &alignment);
    for chunk in reports[0].chunks() {
        import.place(&reports[0], 0, reports[0].read(chunk)?);
    }
    import.finish(&reports, &alignment);
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(&*PATH, data).unwrap();
    let _ = import();
    std::fs::remove_file(&*PATH).unwrap();
});
