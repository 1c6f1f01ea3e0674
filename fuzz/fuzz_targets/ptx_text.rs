//! Any text as PTX: it is refused with its place, or its statements put together are the text again.

#![no_main]

use gpuwhy_gpubpf::ptx::Module;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(module) = Module::read(&text) {
        assert_eq!(module.rebuild(), text);
        for statement in module.statements() {
            module.instruction(statement);
        }
    }
});
