//! Programs put into any text that reads as PTX, and kernels that steal beside its own: nothing panics, what is not inserted is the module's
//! text, and the whole reads as PTX again.

#![no_main]

use gpuwhy_gpubpf::Program;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{How, Plan};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let Ok(module) = Module::read(&text) else { return };
    for (section, word) in [
        ("kprobe/*", 0),
        ("kretprobe/*", 0),
        ("kprobe/__memcapture", 8),
        ("gpu/insnret/*", 16),
        ("gpu/insn/*/k*", 8),
        ("gpu/line/k.cu:1", 0),
        ("gpu/tp/*", 24),
        ("gpu/order/*", 32),
    ] {
        // r0 = *(u64 *)(r1 + word); exit
        let bytes = [0x79, 0x10, word, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        let Ok(program) = Program::from_bytes(&bytes, section) else { return };
        let mut plan = Plan::new(How::default());
        plan.program(program);
        if word != 8 {
            plan.steal(&["*".into()]);
        }
        let Ok(spliced) = plan.splice(&module) else { continue };
        let (mut own, mut from) = (String::new(), 0);
        for range in &spliced.inserted {
            own.push_str(&spliced.text[from..range.start]);
            from = range.end;
        }
        own.push_str(&spliced.text[from..]);
        assert_eq!(own, text);
        let has_none = spliced.sites.is_empty() && spliced.stealing.is_empty();
        assert_eq!(spliced.inserted.is_empty(), has_none);
        let again = Module::read(&spliced.text).expect("what is written is PTX");
        assert_eq!(again.functions().len(), module.functions().len() + spliced.stealing.len());
        if !spliced.sites.is_empty() {
            plan.splice(&again).expect_err("a spliced module is not spliced again");
        }
    }
});
