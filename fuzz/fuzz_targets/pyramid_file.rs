//! The file of a pyramid that anybody may have written: the first byte says whether the rest is a whole file, or a chunk
//! of a level (or of rows) in a file whose checksums are sound, with the buckets that the next two bytes say.

#![no_main]

use gpuwhy_store::fuzzing::{pyramid, pyramid_of};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    match (kind, rest) {
        (0xff, file) => {
            pyramid(file);
        }
        (level, [from, length, payload @ ..]) => {
            let from = i64::from(*from as i8);
            let to = from + i64::from(*length) * 1000;
            pyramid(&pyramid_of(u32::from(*level), from, to, payload));
        }
        _ => {}
    }
});
