//! The programs of `tests/programs`, compiled by clang as everybody would.

use std::path::Path;
use std::process::Command;

/// The object of `tests/programs/NAME.bpf.c` for this version of the instruction set.
pub fn object(name: &str, cpu: &str) -> Vec<u8> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    compiled(&here.join(format!("tests/programs/{name}.bpf.c")), cpu)
}

/// The object of this file. Tests of other crates beside this one use it too.
pub fn compiled(source: &Path, cpu: &str) -> Vec<u8> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = tempfile::tempdir().unwrap();
    let object = place.path().join("probe.o");
    let output = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-Wall", "-Wno-unused-variable"])
        .arg(format!("-mcpu={cpu}"))
        .arg("-I")
        .arg(beside.join("../gpubpf/include"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("clang, which every build of gpuwhy needs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(object).unwrap()
}

/// The object of a probe that `gpuwhy probe new` writes, compiled by its own Makefile.
pub fn skeleton(skeleton: gpuwhy_gpubpf::Skeleton) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in skeleton.files() {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let built = Command::new("make").arg("-C").arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success() && said.is_empty(), "{}: {said}", skeleton.name);
    std::fs::read(folder.path().join("probe.bpf.o")).unwrap()
}
