//! Names that attack whoever prints them: no command lets one reach a terminal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output};

use gpuwhy_store::{Options, Writer};

use crate::{folder, hostile_names as hostile, may_record};

/// Runs the command, fails if anything harmful comes out, and says what did.
fn harmless(args: &[&OsStr]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
        .args(args)
        .env("GPUWHY_INJECT", "\x1b[2J/\u{202e}lib.so")
        .env("CLICOLOR_FORCE", "0")
        .output()
        .expect("gpuwhy starts");
    for sent in [&output.stdout, &output.stderr] {
        let count = hostile::harmful(sent);
        let text = String::from_utf8_lossy(sent);
        let start: String = text.chars().take(300).collect();
        assert_eq!(count, 0, "{args:?} sent harmful characters, and began with {start:?}");
        // A line of its own would be taken for a prompt.
        assert!(!text.lines().any(|line| line.starts_with("root@host")), "{args:?}: {start:?}");
    }
    output
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn trace(path: &Path, name: &str) {
    let mut writer = Writer::create(path, Options::default()).unwrap();
    writer.append(&mut hostile::recording(name)).unwrap();
    writer.finish().unwrap();
}

#[test]
fn no_command_lets_the_names_in_a_trace_reach_the_terminal() {
    let (_keep, folder) = folder();
    let everything = hostile::everything();
    let texts = hostile::TEXTS.iter().map(|(_, text)| *text).chain([everything.as_str()]);
    for (number, name) in texts.enumerate() {
        let path = folder.join(format!("{number}.trace"));
        trace(&path, name);
        let (trace, page) = (path.as_os_str(), folder.join("page.html"));
        let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        let output = harmless(&[os("diagnose"), trace, os("--html"), page.as_os_str()]);
        assert!(said(&output).contains("cpu_contention"), "{number}");
        let is_short = number < hostile::TEXTS.len();
        assert!(!is_short || said(&output).contains("hog"), "{number}: {}", said(&output));
        let output = harmless(&[os("validate"), trace]);
        assert!(!is_short || said(&output).contains("overlap"), "{number}: {}", said(&output));
        let output = harmless(&[os("variability"), trace, os("--html"), page.as_os_str()]);
        assert!(said(&output).contains("kernels by time"), "{number}");
        let html = std::fs::read(&page).unwrap();
        assert_eq!(hostile::harmful(&html), 0, "{number}");
        let html = String::from_utf8(html).unwrap();
        assert_eq!(html.matches("<script").count(), 2, "{number}");
        assert!(html.contains("id=\"kernels\"") && html.ends_with("</html>\n"), "{number}");
        for command in ["diagnose", "validate", "variability"] {
            let output = harmless(&[os(command), trace, os("--json")]);
            let json = said(&output);
            let document: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            if command == "diagnose" && is_short {
                // The same data as before: escapes are read as what they stand for.
                assert!(document.to_string().contains(&serde_json::to_string(name).unwrap()[1..5]));
            }
        }
        harmless(&[os("diagnose"), os("--detector"), os("darzi"), trace]);
        let perfetto = folder.join("t.pftrace");
        harmless(&[os("export"), trace, os("--perfetto"), perfetto.as_os_str()]);
    }
}

#[test]
fn no_error_lets_the_name_of_a_file_reach_the_terminal() {
    let (_keep, folder) = folder();
    let names = hostile::TEXTS.iter().map(|(_, text)| text.as_bytes().to_vec());
    for name in names.chain([b"\xff\x9b2J".to_vec()]) {
        let name: Vec<u8> = name.into_iter().filter(|&b| b != 0 && b != b'/').collect();
        let path = folder.join(OsStr::from_bytes(&name));
        std::fs::write(&path, [b"{\"traceEvents\": [\x1b[2J ", name.as_slice()].concat()).unwrap();
        for command in ["diagnose", "validate", "variability", "import", "explain", "query"] {
            harmless(&[os(command), path.as_os_str()]);
        }
        let out = folder.join("x.trace");
        harmless(&[os("import"), path.as_os_str(), os("-o"), out.as_os_str()]);
        // Usage.
        harmless(&[os("record"), os("--off"), path.as_os_str()]);
        harmless(&[path.as_os_str()]);
        harmless(&[os("watch"), os("--join"), path.as_os_str()]);
        // A directory that is no trace, and one whose manifest quotes.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        harmless(&[os("diagnose"), path.as_os_str()]);
        let manifest =
            [b"format = \"gpuwhy-trace\"\nschema_version = \"", name.as_slice()].concat();
        std::fs::write(path.join("trace.toml"), manifest).unwrap();
        harmless(&[os("validate"), path.as_os_str()]);
    }
    harmless(&[os("doctor")]);
}

#[test]
fn a_recorded_program_cannot_speak_to_the_terminal_of_who_records_it() {
    if !may_record() {
        return;
    }
    let (_keep, folder) = folder();
    let name = "\x1b]0;t\x07\u{9b}2J";
    let program = folder.join(name);
    std::fs::copy("/bin/sleep", &program).unwrap();
    let out = folder.join("run.trace");
    let args = [os("record"), os("-o"), out.as_os_str(), os("--"), program.as_os_str(), os("0.3")];
    harmless(&args);
    harmless(&[os("diagnose"), out.as_os_str()]);
    let missing = folder.join("\x1b[2Jmissing");
    harmless(&[
        os("record"),
        os("-o"),
        out.as_os_str(),
        os("--force"),
        os("--"),
        missing.as_os_str(),
    ]);
}
