//! Options about the command behind `--`, what it inherits of privileges, and what is said where.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gpuwhy_testkit::eventually;

use crate::{built, folder, gpuwhy, may_record, said};

const OWN: &str = env!("CARGO_BIN_EXE_gpuwhy");

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// A copy that others may execute: the build directory may be closed to them.
fn copy_for_others(program: &Path, folder: &Path) -> PathBuf {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = folder.join(program.file_name().unwrap());
    std::fs::copy(program, &copy).unwrap();
    copy
}

fn nobody(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(words);
    command
}

/// Fails unless the sets that a program prints of itself are empty, but for the bounding set.
fn has_no_capabilities(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
    assert!(output.status.success(), "{}", said(output));
    for set in sets {
        assert!(text.contains(&format!("{set}:\t0000000000000000")), "{text}");
    }
}

const CAPABILITIES: [&str; 3] = ["grep", "^Cap", "/proc/self/status"];

#[test]
fn root_the_command_has_no_capability_that_was_lent_to_the_recorder() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let program = copy_for_others(OWN.as_ref(), &folder);
    let program = program.to_str().unwrap();
    // CAP_PERFMON and CAP_BPF; older setpriv does not know them by name.
    for how in ["record", "watch"] {
        let trace = path(&folder, how);
        let mut words = vec!["--inh-caps=+cap_38,+cap_39", "--ambient-caps=+cap_38,+cap_39"];
        words.extend([program, how, "-o", &trace, "--"]);
        words.extend(CAPABILITIES);
        has_no_capabilities(&nobody(&words).output().unwrap());
    }
}

#[test]
fn the_command_has_no_capability_of_a_user_namespace_that_was_lent_to_us() {
    let program = built("gpuwhy-bench");
    let behind = |words: &[&str]| {
        let lent = Command::new("unshare").args(["--user", "--keep-caps"]).args(words).output();
        lent.expect("unshare starts")
    };
    let alone = behind(&CAPABILITIES);
    if !alone.status.success() || said(&alone).contains("CapAmb:\t0000000000000000") {
        println!("skipped: this host lets users make no user namespaces: {}", said(&alone));
        return;
    }
    let mut words = vec![program.to_str().unwrap(), "__supervise", "--"];
    words.extend(CAPABILITIES);
    has_no_capabilities(&behind(&words));
}

#[test]
fn root_a_program_with_file_capabilities_passes_the_whole_environment_and_no_capability() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let program = copy_for_others(OWN.as_ref(), &folder);
    let set = Command::new("setcap").arg("cap_bpf,cap_perfmon+ep").arg(&program).status();
    if !set.is_ok_and(|status| status.success()) {
        println!("skipped: setcap does not work here");
        return;
    }
    let trace = path(&folder, "run.trace");
    let script = "grep ^Cap /proc/self/status; echo $LD_LIBRARY_PATH";
    let words = [program.to_str().unwrap(), "record", "-o", &trace, "--", "sh", "-c", script];
    let output = nobody(&words).env("LD_LIBRARY_PATH", "/of/the/user").output().unwrap();
    if output.status.code() == Some(5) {
        println!("skipped: file capabilities have no effect here: {}", said(&output));
        return;
    }
    has_no_capabilities(&output);
    assert!(said(&output).contains("\n/of/the/user\n"), "{}", said(&output));
}

#[test]
fn root_a_command_runs_as_the_user_who_is_named_and_finds_ring_and_socket() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let trace = path(&folder, "run.trace");
    let script = "id -u; id -g; id -G; test -w \"$GPUWHY_RING\" && echo ring; \
                  test -z \"$GPUWHY_SOCKET\" || test -w \"$GPUWHY_SOCKET\" && echo socket; exit 4";
    let args = ["record", "--user", "65534:65534", "-o", &trace, "--", "sh", "-c", script];
    let output = gpuwhy(&args);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "65534\n65534\n65534\nring\nsocket\n", "{}", said(&output));
}

#[test]
fn a_user_who_is_not_there_is_wrong_usage() {
    let output = gpuwhy(&["record", "--user", "nobody-knows-him", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("knows no user"), "{}", said(&output));
}

#[test]
fn root_whoever_records_by_sudo_is_told_that_the_command_runs_as_root() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let trace = path(&folder, "run.trace");
    let mut record = Command::new(OWN);
    record.args(["record", "-o", &trace, "--", "true"]);
    let output = record.env("SUDO_UID", "1000").env("SUDO_USER", "ada").output().unwrap();
    assert!(said(&output).contains("--user ada"), "{}", said(&output));
}

#[test]
fn root_a_trace_that_is_being_written_is_not_replaced() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let trace = path(&folder, "run.trace");
    let mut first = Command::new(OWN)
        .args(["record", "-o", &trace, "--", "sleep", "100"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("the trace is there", || folder.join("run.trace/trace.toml").is_file());
    let second = gpuwhy(&["record", "--force", "-o", &trace, "--", "true"]);
    // Passed on to `sleep`, of which it dies.
    gpuwhy_testkit::sys::kill(first.id() as i32, 15).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(second.status.code(), Some(1), "{}", said(&second));
    assert!(said(&second).contains("another process is writing"), "{}", said(&second));
    let valid = gpuwhy(&["validate", &trace]);
    assert!(valid.status.success(), "{}", said(&valid));
    let third = gpuwhy(&["record", "--force", "-o", &trace, "--", "true"]);
    assert_eq!(third.status.code(), Some(0), "{}", said(&third));
}

#[test]
fn root_when_the_time_is_over_the_recording_ends_and_not_the_command() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    for how in ["record", "watch"] {
        let trace = path(&folder, how);
        let script = "sleep 1.5; echo end; exit 4";
        let output = gpuwhy(&[how, "--for", "300ms", "-o", &trace, "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        assert_eq!(output.stdout, b"end\n");
        let valid = gpuwhy(&["validate", &trace]);
        assert!(valid.status.success(), "{}", said(&valid));
    }
}

#[test]
fn root_scripts_get_a_verdict_instead_of_the_commands_status() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    for how in ["record", "watch"] {
        let trace = path(&folder, how);
        let args = [how, "--exit-with-verdict", "-o", &trace, "--", "sh", "-c", "exit 9"];
        let output = gpuwhy(&args);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    }
    let trace = path(&folder, "again");
    let args = ["record", "--exit-with-verdict", "--json", "-o", &trace, "--", "true"];
    let output = gpuwhy(&args);
    let document: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&document["verdict"], &document["command_status"]),
        (&"no_steps".into(), &0.into())
    );
}

#[test]
fn root_what_gpuwhy_says_goes_where_it_is_told_and_the_command_does_not_inherit_that() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let (trace, other) = (path(&folder, "run.trace"), path(&folder, "watch.trace"));
    let file = path(&folder, "summary.json");
    let output = gpuwhy(&["record", "--json", "--summary", &file, "-o", &trace, "--", "true"]);
    assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0), "{}", said(&output));
    let text = std::fs::read_to_string(&file).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&summary["complete"], &summary["lost_rows"]), (&true.into(), &0.into()));

    let events = path(&folder, "events");
    let script = format!(
        "exec {OWN} watch --json --events fd:7 -o {other} -- sh -c 'test ! -e /proc/self/fd/7' 7> {events}"
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = std::fs::read_to_string(&events).unwrap();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["command_status"]), (&"ended".into(), &0.into()));
}
