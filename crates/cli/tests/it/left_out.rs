//! Nothing that an import leaves out is silent: it is said by the import, by `validate`, and by every verdict
//! that rests on it.

use std::path::Path;

use serde_json::Value;

use crate::{folder, gpuwhy, said};

fn printed(args: &[&str]) -> String {
    let output = gpuwhy(args);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&printed(args)).unwrap()
}

/// A profile of 40 kernels, 3 copies and 2 memsets, of which `bad` more kernels have no sound duration.
fn profile(folder: &Path, name: &str, bad: &[&str]) -> String {
    let event = |cat: &str, i: usize, dur: &str| {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{cat}","pid":0,"tid":7,"ts":{},"dur":{dur},"args":{{"device":0,"stream":7}}}}"#,
            1000 * i
        )
    };
    let mut events: Vec<String> = (0..40).map(|i| event("kernel", i, "500")).collect();
    events.extend((0..3).map(|i| event("gpu_memcpy", 40 + i, "100")));
    events.extend((0..2).map(|i| event("gpu_memset", 43 + i, "100")));
    events.extend(bad.iter().map(|dur| event("kernel", 20, dur)));
    let path = folder.join(name);
    std::fs::write(&path, format!("[{}]", events.join(","))).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_a_profile_lost_is_said_by_import_validate_and_every_verdict() {
    let (_keep, folder) = folder();
    let path = profile(&folder, "p.json", &["NaN", "-1", "-1"]);
    let trace = folder.join("p.trace");
    let trace = trace.to_str().unwrap();
    let why = "duration is not a number 1, negative duration 2";
    let text = printed(&["import", &path, "-o", trace]);
    assert!(text.contains(&format!("left out: 3 of 48 rows of {path}: {why}\n")), "{text}");
    let document = json(&["import", &path, "-o", trace, "--force", "--json"]);
    let left_out = &document["left_out"][0];
    assert_eq!((&left_out["lost"], &left_out["recorded"]), (&3.into(), &45.into()), "{document}");
    assert_eq!(left_out["why"]["negative duration"], 2);

    let text = printed(&["validate", trace]);
    assert!(text.contains(&format!("left out: 3 of 48 rows of p.json: {why}\n")), "{text}");
    let checked = json(&["validate", trace, "--json"]);
    assert_eq!(checked["left_out"][0]["lost"], 3);
    assert_eq!(checked["rows"], document["rows"], "import and validate count the same rows");

    let mark = format!("This rests on p.json, which lost 3 of 48 rows ({why}).\n");
    let page = folder.join("p.html");
    let variability = ["variability", trace, "--interval", "10ms"];
    let text = printed(&[&variability[..], &["--html", page.to_str().unwrap()]].concat());
    assert!(text.contains(&mark), "{text}");
    assert!(std::fs::read_to_string(&page).unwrap().contains("which lost 3 of 48 rows"));
    let report = json(&[&variability[..], &["--json"]].concat());
    assert_eq!(report["rests_on_incomplete"][0]["lost"], 3);
    let text = printed(&["diagnose", trace, "--html", page.to_str().unwrap()]);
    assert!(text.ends_with(&mark), "{text}");
    assert!(
        std::fs::read_to_string(&page).unwrap().contains("⚠ This rests on p.json, which lost 3")
    );
    assert_eq!(json(&["diagnose", trace, "--json"])["rests_on_incomplete"][0]["of"], 48);
}

#[test]
fn a_profile_that_lost_nothing_has_no_marks() {
    let (_keep, folder) = folder();
    let path = profile(&folder, "p.json", &[]);
    let trace = folder.join("p.trace");
    let trace = trace.to_str().unwrap();
    for text in [
        printed(&["import", &path, "-o", trace]),
        printed(&["validate", trace]),
        printed(&["variability", trace, "--interval", "10ms"]),
        printed(&["variability", trace, "--interval", "10ms", "--json"]),
        printed(&["diagnose", trace, "--json"]),
    ] {
        assert!(!text.contains("left out") && !text.contains("rests"), "{text}");
    }
}

#[test]
fn a_trace_without_work_of_a_device_says_what_it_holds_instead() {
    let (_keep, folder) = folder();
    let path = folder.join("cpu.json");
    let event = r#"{"ph":"X","cat":"cpu_op","name":"o","pid":1,"tid":1,"ts":1,"dur":1}"#;
    std::fs::write(&path, format!("[{event},{event},{}]", event.replace("cpu_op", "odd"))).unwrap();
    let trace = folder.join("t.trace");
    let trace = trace.to_str().unwrap();
    let text = printed(&["import", path.to_str().unwrap(), "-o", trace]);
    assert!(
        text.contains("no kernels and no copies of a device; its spans: operators 2, odd 1"),
        "{text}"
    );
    let output = gpuwhy(&["variability", trace]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains(
            "which is what `variability` compares, but 3 spans: operators 2, odd 1; `gpuwhy diagnose`"
        ),
        "{said}"
    );
    assert!(said.contains("gpuwhy query"), "{said}");
}
