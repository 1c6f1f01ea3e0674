//! A file of references that anybody may have written: refused with an error, or it is written again as it was read.

#![no_main]

use gpuwhy_diagnose::reference::file::File;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(mut file) = File::parse(text) else { return };
    let again = File::parse(&file.text()).expect("what was read can be written");
    // Numbers may lose their last digit in their text.
    assert_eq!(again.series.len(), file.series.len());
    for stored in file.series.clone() {
        let level = stored.level();
        assert!(level.is_none_or(|level| level.center.is_finite() && level.scale > 0.0));
        let _ = stored.fit();
        file.add(stored.key.clone(), 1.0, stored);
    }
    assert!(File::parse(&file.text()).is_ok());
});
