//! Those who do not have gpuwhy read a trace with the tools that they have.

use std::path::Path;
use std::process::Command;

use gpuwhy_store::Writer;

use crate::sim::{Sim, create, scratch};

#[test]
fn duckdb_pandas_and_pyarrow_see_what_the_manifest_says() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("run.trace");
    let mut sim = Sim::new(1, "a");
    for part in 0..3 {
        let mut writer = match part {
            0 => create(&path),
            _ => Writer::open(&path, scratch()).unwrap(),
        };
        writer.append(&mut sim.second()).unwrap();
        writer.finish().unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/read-outside.py");
    // The interpreter in whose environment DuckDB and the others are installed, if they are.
    let python = std::env::var_os("GPUWHY_PYTHON").unwrap_or("python3".into());
    let output = match Command::new(&python).arg(script).arg(&path).output() {
        Ok(output) => output,
        Err(e) => {
            eprintln!("skipped: cannot run {}: {e}", python.display());
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    print!("{said}");
    if output.status.code() != Some(77) && !wrong.contains("No module named 'tomllib'") {
        assert!(output.status.success(), "{said}{wrong}");
    } else {
        eprintln!("skipped: {wrong}none of DuckDB, pandas, pyarrow is installed");
    }
}
