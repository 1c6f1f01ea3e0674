//! What the tests of this crate share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `gpuwhy probe …`.
pub fn gpuwhy(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_gpuwhy-probe");
    Command::new(program).args(&args[1..]).output().expect("gpuwhy-probe starts")
}

pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

pub fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_path_buf();
    (dir, path)
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A probe of `gpuwhy probe new`, compiled by its own Makefile.
pub fn skeleton(folder: &Path, tool: &str) -> PathBuf {
    let dir = folder.join(tool);
    let output = gpuwhy(&["probe", "new", text(&dir), "--tool", tool]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let built = Command::new("make").arg("-C").arg(&dir).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert_eq!(String::from_utf8_lossy(&built.stderr), "", "it compiles without a warning");
    dir.join("probe.bpf.o")
}
