//! The benchmark's program as `gpuwhy bench` runs it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwhy-bench")).args(args).output().expect("it starts")
}

fn generated(path: &Path, seed: &str) -> Value {
    let path = path.to_str().unwrap();
    let size = ["--kernels", "120000", "--copies", "12000", "--seed", seed, "-o", path];
    let output = bench(&[&["bench", "trace-data"][..], &size].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn generated_data_follow_from_their_seed() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
    let (first, again) = (generated(&a, "7"), generated(&b, "7"));
    assert_eq!(first["stalls"], again["stalls"]);
    assert_eq!(std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
    assert_ne!(generated(&c, "8")["stalls"], first["stalls"]);
}

#[test]
fn a_wrong_result_file_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("faults.json");
    std::fs::write(&file, "years of trials").unwrap();
    let path = file.to_str().unwrap();
    let output = bench(&["bench", "faults", "--minutes", "0", "--output", path]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(path) && error.contains("--fresh"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "years of trials");
}

#[test]
fn help_is_written_as_users_type_it() {
    let output = bench(&["bench", "faults", "--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(help.contains("Usage: gpuwhy bench faults"), "{help}");
}
