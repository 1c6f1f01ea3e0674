//! What is packaged starts gpuwhy as it can be started, with the rights that docs/privileges.md lists.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::said;

/// The capabilities that recording takes, as docs/privileges.md has them.
const GRANTED: [&str; 2] = ["BPF", "PERFMON"];

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The rest of each line that begins so.
fn after<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.trim().strip_prefix(begin).map(str::trim))
}

/// Runs this command line without any right to record; what it says is not that it is wrong.
fn is_a_command_line(args: &[&str]) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    let output =
        command.arg(env!("CARGO_BIN_EXE_gpuwhy")).args(args).output().expect("setpriv starts");
    if output.status.code() == Some(127) || said(&output).contains("setpriv:") {
        println!("skipped: setpriv may not change the user here");
        return;
    }
    // 5: a privilege is missing. 2 would be a wrong command line.
    assert_eq!(output.status.code(), Some(5), "gpuwhy {}: {}", args.join(" "), said(&output));
}

#[test]
fn the_systemd_unit_grants_two_capabilities_and_starts_a_valid_command() {
    let unit = text("deploy/systemd/gpuwhy.service");
    let wanted: Vec<String> = GRANTED.iter().map(|name| format!("CAP_{name}")).collect();
    for key in ["AmbientCapabilities=", "CapabilityBoundingSet="] {
        let granted: Vec<&str> = after(&unit, key).flat_map(str::split_whitespace).collect();
        assert_eq!(granted, wanted, "{key}");
    }
    for needed in
        ["NoNewPrivileges=yes", "RuntimeDirectory=gpuwhy", "StateDirectory=gpuwhy", "User=gpuwhy"]
    {
        assert!(unit.lines().any(|line| line == needed), "{needed} is missing");
    }
    let start = after(&unit, "ExecStart=").next().expect("it starts something");
    let args: Vec<&str> = start.split_whitespace().skip(1).collect();
    is_a_command_line(&args);
}

#[test]
fn the_agents_of_a_cluster_have_two_capabilities_and_a_valid_command() {
    let manifest = text("deploy/agent.yaml");
    let granted = after(&manifest, "capabilities:").next().expect("it grants something");
    assert_eq!(granted, format!("{{drop: [ALL], add: [{}]}}", GRANTED.join(", ")));
    for needed in
        ["privileged: false", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true"]
    {
        assert!(manifest.lines().any(|line| line.trim() == needed), "{needed} is missing");
    }
    let args: Vec<&str> = manifest
        .lines()
        .skip_while(|line| line.trim() != "args:")
        .skip(1)
        .map_while(|line| line.trim().strip_prefix("- "))
        .collect();
    assert_eq!(args.first(), Some(&"watch"));
    is_a_command_line(&args);
}

#[test]
fn the_recipes_of_the_documents_grant_the_same_two() {
    let page = text("docs/privileges.md");
    assert!(page.contains("--ambient-caps=+bpf,+perfmon --bounding-set=-all,+bpf,+perfmon"));
    assert!(page.contains("setcap cap_bpf,cap_perfmon+ep"));
    assert!(page.contains("--cap-drop ALL --cap-add BPF --cap-add PERFMON"));
}

/// When a clone's file was changed, after the clone has made a target directory its own.
fn changed_after_owning(clone: &Path, target: &Path) -> SystemTime {
    let script = clone.join("scripts/own-target.sh");
    let output = Command::new(script).env("CARGO_TARGET_DIR", target).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    clone.join("crates/one/src/lib.rs").metadata().unwrap().modified().unwrap()
}

#[test]
fn what_another_clone_has_built_in_a_shared_target_directory_is_not_taken_for_ours() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let clones = ["a", "b"].map(|name| {
        let clone = folder.path().join(name);
        for part in ["scripts", "crates/one/src", "fuzz"] {
            std::fs::create_dir_all(clone.join(part)).unwrap();
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/own-target.sh");
        std::fs::copy(script, clone.join("scripts/own-target.sh")).unwrap();
        let file = std::fs::File::create(clone.join("crates/one/src/lib.rs")).unwrap();
        file.set_modified(long_ago).unwrap();
        clone
    });
    // Who builds first, and who comes after another one, has changed all of its files; who builds again has not.
    let first = changed_after_owning(&clones[0], &target);
    assert!(first > long_ago);
    assert_eq!(changed_after_owning(&clones[0], &target), first);
    assert!(changed_after_owning(&clones[1], &target) > long_ago);
    let file = std::fs::File::options().append(true).open(clones[0].join("crates/one/src/lib.rs"));
    file.unwrap().set_modified(long_ago).unwrap();
    assert!(changed_after_owning(&clones[0], &target) > long_ago);
    // Who builds in a directory that is not there yet need not build all of it again the next time.
    let before = clones[1].join("crates/one/src/lib.rs").metadata().unwrap().modified().unwrap();
    for _ in 0..2 {
        assert_eq!(changed_after_owning(&clones[1], &folder.path().join("none")), before);
    }
    assert!(changed_after_owning(&clones[0], &folder.path().join("none")) > before);
}
