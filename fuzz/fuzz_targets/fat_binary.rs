//! Fat binaries and cubins that anybody may have written. The first byte says which.

#![no_main]

use gpuwhy_gpubpf::image::{Coverage, Cubin, Images, sections};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 3 {
        0 => {
            let mut coverage = Coverage::new(90);
            for image in Images::new(bytes).map_while(Result::ok) {
                let _ = coverage.image(&image);
            }
            coverage.unit();
        }
        1 => {
            let _ = Cubin::read(bytes);
        }
        _ => {
            let _ = sections(std::io::Cursor::new(bytes));
        }
    }
});
