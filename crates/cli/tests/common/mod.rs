//! What tests of the command share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command that is tested.
pub fn gpuwhy(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwhy")).args(args).output().expect("gpuwhy starts")
}

/// What cargo built beside this test.
///
/// # Panics
/// If it is not there: `cargo build --workspace` builds it.
pub fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let near = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let newest = near.filter(|path| path.is_file()).max_by_key(|path| {
        path.metadata().and_then(|meta| meta.modified()).expect("a file has a time")
    });
    newest.unwrap_or_else(|| panic!("no {name} beside {}: cargo build --workspace", own.display()))
}

/// Both outputs as text, for messages of failed tests.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Whether this process may record; prints why not.
pub fn may_record() -> bool {
    let output = gpuwhy(&["doctor"]);
    if output.status.success() {
        return true;
    }
    println!("skipped: {}", said(&output).lines().last().unwrap_or("doctor said nothing"));
    false
}

/// A fresh folder on a real file system, removed with the value.
pub fn folder() -> (tempfile::TempDir, PathBuf) {
    let base = ["/var/tmp", "."].iter().map(Path::new).find(|p| p.is_dir()).expect("a folder");
    let dir = tempfile::Builder::new().prefix("gpuwhy-it-").tempdir_in(base).expect("a folder");
    let path = dir.path().to_path_buf();
    (dir, path)
}
