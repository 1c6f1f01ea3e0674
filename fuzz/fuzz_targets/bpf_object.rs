//! A device program that anybody may have written: as an object, or as bare instructions. The first
//! byte says which. What is read is verified and compiled.

#![no_main]

use gpuwhy_gpubpf::{Budget, Object, Options, Program, fragment, verify};

fn compile(program: &Program) {
    let _ = verify(program, Budget::default());
    let _ = fragment(program, &Options::default());
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    if kind % 2 == 0 {
        let Ok(object) = Object::read(bytes) else { return };
        for entry in object.entries() {
            if let Ok(program) = object.link(entry) {
                compile(&program);
            }
        }
    } else if let Ok(program) = Program::from_bytes(bytes, "fuzz") {
        compile(&program);
    }
});
