//! A manifest that anybody may have written: refused with an error, or it means what it says.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = gpuwhy_store::fuzzing::manifest(text);
});
