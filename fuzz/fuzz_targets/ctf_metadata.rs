//! Any text as the metadata of a CTF trace: it is refused with an error, or the events of a stream are read by it.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::Options;
use gpuwhy_formats::importers;

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = PathBuf::from(format!("/dev/shm/gpuwhy-fuzz-ctf-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    // A packet's magic number, and bytes that may be anything.
    let mut stream = vec![0xc1, 0x1f, 0xfc, 0xc1];
    stream.extend((0..508u32).map(|i| (i * i >> 3) as u8));
    std::fs::write(path.join("stream"), stream).unwrap();
    path
});

fn import() -> gpuwhy_formats::Result<()> {
    let paths = [DIRECTORY.clone()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    while import.next()?.is_some() {}
    import.summary();
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    std::fs::write(DIRECTORY.join("metadata"), data).unwrap();
    let _ = import();
});
