//! `gpuwhy probe`: from an empty directory to a kernel with a probe in it.

mod common;

use std::process::Command;

use common::{folder, gpuwhy, said, skeleton, text};
use serde_json::Value;

const KERNEL: &str = "\
.version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z4copyPKfPf(.param .u64 a, .param .u64 b)\n{\n\
\t.reg .f32 %f<2>;\n\t.reg .b64 %rd<3>;\n\tld.param.u64 %rd1, [a];\n\tld.param.u64 %rd2, [b];\n\
\tld.global.f32 %f1, [%rd1+4];\n\tst.global.f32 [%rd2], %f1;\n\tret;\n}\n";

#[test]
fn a_new_probe_builds_is_accepted_and_lies_in_a_kernel() {
    let (_keep, folder) = folder();
    let object = skeleton(&folder, "counts");
    let output = gpuwhy(&["probe", "check", text(&object)]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("warps (kprobe/*): accepted, observing"), "{told}");
    assert!(told.contains("eBPF instructions at most; a warp"), "{told}");
    let output = gpuwhy(&["probe", "check", "--json", text(&object)]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["programs"][1]["section"], "gpu/insn/loads");
    assert!(document["programs"][1]["certificate"]["warp_atomics"].as_u64() > Some(0));

    let (kernels, probed) = (folder.join("k.ptx"), folder.join("probed.ptx"));
    std::fs::write(&kernels, KERNEL).unwrap();
    let splice = ["probe", "splice", text(&object), text(&kernels), "-o", text(&probed)];
    let output = gpuwhy(&splice);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("copy(float const*, float*): 2 sites"),
        "{output:?}"
    );
    let output = gpuwhy(&[&splice[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["sites"][1]["ptx_line"], 10);
    assert_eq!(document["table"]["maps"][0]["word"], 4);
    assert_eq!(document["table"]["switches"][1]["word"], 8);
    let spliced = std::fs::read_to_string(&probed).unwrap();
    assert!(spliced.contains("gpuwhy_probe[9]"), "{spliced}");

    // What was written is not taken for a module of the user's.
    let output = gpuwhy(&["probe", "splice", text(&object), text(&probed), "-o", text(&kernels)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("probed.ptx`: the module cannot be spliced"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_refused_program_is_named_with_its_source_line() {
    let (_keep, folder) = folder();
    let dir = folder.join("counts");
    gpuwhy(&["probe", "new", text(&dir)]);
    let source = dir.join("probe.bpf.c");
    let code = std::fs::read_to_string(&source).unwrap();
    std::fs::write(&source, code.replace("__sync_fetch_and_add(count, by)", "*count += by"))
        .unwrap();
    Command::new("make").arg("-C").arg(&dir).output().unwrap();
    let output = gpuwhy(&["probe", "check", text(&dir.join("probe.bpf.o"))]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("use __sync_fetch_and_add"), "{told}");
    assert!(told.contains("probe.bpf.c:"), "{told}");
}

#[test]
fn what_is_no_object_or_no_ptx_is_named() {
    let (_keep, folder) = folder();
    let file = folder.join("notes.txt");
    std::fs::write(&file, "years of work").unwrap();
    let output = gpuwhy(&["probe", "check", text(&file)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("notes.txt`: not a readable ELF object"), "{}", said(&output));
    let object = skeleton(&folder, "counts");
    let out = folder.join("out.ptx");
    let output = gpuwhy(&["probe", "splice", text(&object), text(&file), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("notes.txt` is no PTX: line 1, column 1"), "{}", said(&output));
    assert!(!out.exists());
}
