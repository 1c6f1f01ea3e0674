//! The first error message that a user meets tells the fix.

use std::process::Command;

use crate::{folder, gpuwhy, hostile_names, said};

#[test]
fn a_path_that_is_not_there_is_named() {
    let output = gpuwhy(&["diagnose", "/nowhere/run.trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("/nowhere/run.trace"), "{}", said(&output));
}

#[test]
fn a_folder_that_is_no_trace_is_neither_read_nor_replaced() {
    let (_keep, folder) = folder();
    std::fs::write(folder.join("thesis.tex"), "years of work").unwrap();
    let path = folder.to_str().unwrap();
    let output = gpuwhy(&["validate", path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("trace.toml"), "{}", said(&output));
    let output = gpuwhy(&["record", "--force", "--for", "1s", "-o", path]);
    assert_ne!(output.status.code(), Some(0), "{}", said(&output));
    assert!(folder.join("thesis.tex").exists());
}

#[test]
fn what_was_mistyped_is_usage_and_says_what_was_meant() {
    for (args, hint) in [
        (&["record", "--step", "redis:call"][..], "uprobe:BINARY:SYMBOL"),
        (&["record", "--for", "5 parsecs"][..], "ms, s, m or h"),
        (&["diagnoze"][..], "diagnose"),
        (&["inject", "cpu-hogg"][..], "cpu-hog"),
    ] {
        let output = gpuwhy(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(hint), "{args:?}: {}", said(&output));
    }
}

#[test]
fn a_process_that_does_not_exist_is_said_before_anything_is_made() {
    let (_keep, folder) = folder();
    let trace = folder.join("run.trace");
    let output = gpuwhy(&["record", "-p", "4194303", "-o", trace.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("cannot record process 4194303: there is no such process"),
        "{}",
        said(&output)
    );
    assert!(!trace.exists());
}

#[test]
fn an_injector_without_a_workload_says_how_to_start_one() {
    let (_keep, folder) = folder();
    let output = gpuwhy(&["inject", "cpu-hog", "--work-dir", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(folder.to_str().unwrap()), "{}", said(&output));
}

/// Root writes pages and exports where another user may place links.
#[test]
fn no_command_writes_a_page_or_an_export_through_a_link_or_into_a_pipe() {
    let (_keep, folder) = folder();
    let trace = folder.join("run.trace");
    let mut writer = gpuwhy_store::Writer::create(&trace, Default::default()).unwrap();
    writer.append(&mut hostile_names::recording("x")).unwrap();
    writer.finish().unwrap();
    let (victim, link, pipe) = (folder.join("victim"), folder.join("link"), folder.join("pipe"));
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let trace = trace.to_str().unwrap();
    for (place, why) in [(&link, "symbolic link"), (&pipe, "pipe")] {
        let place = place.to_str().unwrap();
        for args in [
            ["diagnose", trace, "--html", place],
            ["variability", trace, "--html", place],
            ["export", trace, "--perfetto", place],
        ] {
            let output = gpuwhy(&args);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {}", said(&output));
            let text = said(&output);
            assert!(text.contains(place) && text.contains(why), "{args:?}: {text}");
        }
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 4, "nothing half-made is left");
}
