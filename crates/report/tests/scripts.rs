//! What the scripts of pages do, run by node with a small document.

use std::process::Command;

use gpuwhy_report::table::{Cell, Row, Table};
use gpuwhy_report::timeline::{DeviceRow, TimeLine, TimeRow};
use gpuwhy_report::variability::{self, Variability};

fn page() -> String {
    let row = |ms: Option<f64>, name: &str| Row {
        id: None,
        cells: vec![Cell::or_nothing(ms), Cell::Name(name.into())],
    };
    let device = DeviceRow {
        name: "GPU 0".into(),
        computing: vec![0.25, 0.5],
        communicating: vec![0.0, 0.25],
        copying: vec![0.5, 0.0],
        ..DeviceRow::default()
    };
    let page = Variability {
        time_line: TimeLine {
            to_s: 2.0,
            column_s: 1.0,
            rows: vec![TimeRow::Device(device)],
            ..TimeLine::default()
        },
        tables: vec![Table {
            id: "kernels",
            title: "Kernels".into(),
            columns: vec!["total, ms", "name"],
            rows: vec![row(Some(9.5), "k10"), row(None, "k1"), row(Some(100.0), "k9")],
            ..Table::default()
        }],
        ..Variability::default()
    };
    variability::render(&page)
}

/// What a script says about the page after it ran; `None` where there is no node.
fn said(after: &str) -> Option<String> {
    let found = Command::new("node").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("skipped: node is not here");
        return None;
    }
    let keep = tempfile::tempdir().unwrap();
    let folder = keep.path();
    let page = page();
    std::fs::write(folder.join("page.html"), &page).unwrap();
    let script = page.rsplit("<script>").next().unwrap().split("</script>").next().unwrap();
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/document.js");
    let whole = format!(
        "const {{ parse }} = require({document:?});\n\
         const document = parse(require('fs').readFileSync('page.html', 'utf8'));\n{script}\n{after}"
    );
    std::fs::write(folder.join("run.js"), whole).unwrap();
    let output = Command::new("node").arg("run.js").current_dir(folder).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_click_sorts_numbers_from_the_greatest_and_names_from_a_and_what_is_unknown_last() {
    let Some(said) = said(
        "const [ms, name] = document.querySelectorAll('thead th');\n\
         const names = () => document.querySelectorAll('td.name').map((td) => td.textContent.trim()).join(' ');\n\
         const press = (th) => { th.querySelector('button').listeners.click(); \
         console.log(names(), th.getAttribute('aria-sort')); };\n\
         console.log(names()); press(ms); press(ms); press(name); press(name);\n\
         console.log(ms.getAttribute('aria-sort'));",
    ) else {
        return;
    };
    let expected = [
        "k10 k1 k9",
        "k9 k10 k1 descending",
        "k10 k9 k1 ascending",
        "k1 k9 k10 ascending",
        "k10 k9 k1 descending",
        "null",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn arrow_keys_say_what_a_device_did_in_a_column() {
    let Some(said) = said(
        "const plot = document.getElementById('time-plot');\n\
         const press = (key) => { plot.listeners.keydown({ target: plot, key, preventDefault() {} }); \
         console.log(document.getElementById('at-time').textContent); };\n\
         press('ArrowRight'); press('ArrowRight'); press('ArrowRight'); press('Escape');",
    ) else {
        return;
    };
    let expected = [
        "0.000 s to 1.000 s, GPU 0: computes 25 %, only communicates 0 %, only copies 50 %, idle 25 %",
        "1.000 s to 2.000 s, GPU 0: computes 50 %, only communicates 25 %, only copies 0 %, idle 25 %",
        "1.000 s to 2.000 s, GPU 0: computes 50 %, only communicates 25 %, only copies 0 %, idle 25 %",
        "",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}
