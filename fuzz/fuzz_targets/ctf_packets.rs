//! Any bytes as a stream of a CTF trace with all kinds of fields, in either byte order: it is refused with an error, or
//! all of it becomes rows.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use gpuwhy_formats::importer::Options;
use gpuwhy_formats::importers;

static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = PathBuf::from(format!("/dev/shm/gpuwhy-fuzz-ctf-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
});

/// The metadata; `ORDER` is replaced.
const METADATA: &str = include_str!("ctf_packets.tsdl");

fn import() -> gpuwhy_formats::Result<()> {
    let paths = [DIRECTORY.clone()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    while import.next()?.is_some() {}
    import.summary();
    Ok(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, stream)) = data.split_first() else { return };
    let order = if first % 2 == 0 { "le" } else { "be" };
    std::fs::write(DIRECTORY.join("metadata"), METADATA.replace("ORDER", order)).unwrap();
    std::fs::write(DIRECTORY.join("stream"), stream).unwrap();
    let _ = import();
});
