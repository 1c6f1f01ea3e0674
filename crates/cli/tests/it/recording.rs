//! From a program's steps to a verdict, and with how little privilege.

use std::path::Path;
use std::process::Command;

use gpuwhy_schema::{Span, names};
use gpuwhy_store::Trace;

use crate::{folder, gpuwhy, may_record, said};

/// Debian's interpreter has static probes; others do not, and then there is nothing to see.
#[test]
fn root_collections_of_pythons_garbage_are_spans_of_their_thread() {
    const PYTHON: &str = "/usr/bin/python3";
    let has_probes =
        std::fs::read(PYTHON).is_ok_and(|bytes| bytes.windows(9).any(|text| text == b"gc__start"));
    if !may_record() || !has_probes {
        return eprintln!("not tested: {PYTHON} has no static probes, or recording is not allowed");
    }
    let (_keep, folder) = folder();
    let trace = folder.join("run.trace");
    let script = "import gc, time\n\
                  heap = [[n] for n in range(200000)]\n\
                  end = time.time() + 4\n\
                  while time.time() < end: gc.collect(); time.sleep(0.2)\n";
    let path = trace.to_str().unwrap();
    let output = gpuwhy(&["record", "-o", path, "--", PYTHON, "-c", script]);
    assert!(output.status.success(), "{}", said(&output));
    let output = gpuwhy(&["validate", path]);
    assert!(output.status.success(), "{}", said(&output));
    let trace = Trace::open(&trace).unwrap();
    let tracks = trace.tracks().unwrap();
    let pauses = tracks.iter().find(|track| &*track.name == names::RUNTIME_PAUSES).unwrap().id;
    let spans = trace.all::<Span>().flat_map(Result::unwrap);
    let spans: Vec<Span> = spans.filter(|span| span.track == pauses).collect();
    assert!(spans.len() >= 4 && spans.iter().all(|span| &*span.name == "gc"), "{spans:?}");
}

#[test]
fn root_a_command_is_recorded_validated_judged_and_exported() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let trace = folder.join("run.trace");
    let trace = trace.to_str().unwrap();
    let own = env!("CARGO_BIN_EXE_gpuwhy");
    let output = gpuwhy(&["record", "--json", "-o", trace, "--", own, "steploop", "--for", "4s"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("\"command_status\": 0"), "{text}");

    let output = gpuwhy(&["validate", trace]);
    assert!(output.status.success(), "{}", said(&output));

    // Whether this machine was quiet is not ours to say, but steps must be there.
    let page = folder.join("page.html");
    let output = gpuwhy(&["diagnose", trace, "--json", "--html", page.to_str().unwrap()]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema_version"], 1);
    assert!(document["steps"].as_u64().unwrap() > 50, "{document}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("Content-Security-Policy"));

    let out = folder.join("run.pftrace");
    let output = gpuwhy(&["export", trace, "--json", "--perfetto", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(stats["slices"].as_u64().unwrap() > 1000, "{stats}");
    assert_eq!(stats["misplaced"], 0, "{stats}");
}

#[test]
fn root_an_existing_trace_is_replaced_only_when_asked() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let trace = folder.join("run.trace");
    let args = ["record", "--for", "300ms", "-o", trace.to_str().unwrap()];
    let first = gpuwhy(&args);
    assert!(first.status.success(), "{}", said(&first));
    let again = gpuwhy(&args);
    assert_eq!(again.status.code(), Some(1));
    assert!(said(&again).contains("--force"), "{}", said(&again));
    let forced = gpuwhy(&[&args[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", said(&forced));
}

/// CAP_BPF is 39 and CAP_PERFMON is 38; older setpriv does not know them by name.
fn as_nobody(binary: &Path, capabilities: &str, args: &[&str]) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    if capabilities.is_empty() {
        command.args(["--inh-caps", "-all", "--bounding-set", "-all"]);
    } else {
        command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities]);
    }
    command.arg(binary).args(args).output().expect("setpriv starts")
}

#[test]
fn root_two_capabilities_are_enough_to_record_and_without_them_doctor_says_what_is_missing() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    // The build directory may be closed to others.
    let binary = folder.join("gpuwhy");
    std::fs::copy(env!("CARGO_BIN_EXE_gpuwhy"), &binary).unwrap();
    let trace = folder.join("run.trace");
    let trace = trace.to_str().unwrap();

    let record = ["record", "--json", "--for", "2s", "-o", trace, "--", "sleep", "1"];
    let output = as_nobody(&binary, "+cap_38,+cap_39", &record);
    assert!(output.status.success(), "{}", said(&output));
    let printed: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(printed["events"].as_u64().unwrap() > 0, "{printed}");
    let degraded = printed["degraded"].to_string();
    assert!(!degraded.contains("run_queue"), "{degraded}");
    assert!(gpuwhy(&["validate", trace]).status.success());

    let output = as_nobody(&binary, "", &["doctor"]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("CAP_BPF") && text.contains("setcap"), "{text}");
    let output = as_nobody(&binary, "", &["record", "--for", "1s", "-o", "x.trace"]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    assert!(said(&output).contains("gpuwhy doctor"), "{}", said(&output));
}
