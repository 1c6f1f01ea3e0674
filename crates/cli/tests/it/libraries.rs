//! Whose code runs with gpuwhy's privileges.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::{folder, said};

/// A shared object whose loading leaves the file that `MARK` names.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
    FILE *mark = fopen(MARK, "w");
    if (mark) fclose(mark);
}
"#;

/// Runs `doctor` of a program as the user nobody, with NVML's library named by the environment; whether
/// the library was loaded.
fn loads(program: &Path, library: &Path, mark: &Path) -> bool {
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .arg("doctor")
        .env("GPUWHY_NVML", library)
        .output()
        .expect("setpriv starts");
    assert!(said(&output).contains("kernel"), "{}", said(&output));
    std::fs::remove_file(mark).is_ok()
}

#[test]
fn root_a_file_with_capabilities_loads_no_library_that_the_environment_names() {
    let (_keep, folder) = folder();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (source, library, mark) =
        (folder.join("mark.c"), folder.join("libmark.so"), folder.join("loaded"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(format!("-DMARK=\"{}\"", mark.display()))
        .arg(&source)
        .status();
    let program = folder.join("gpuwhy");
    std::fs::copy(env!("CARGO_BIN_EXE_gpuwhy"), &program).unwrap();
    let granted = Command::new("setcap").arg("cap_bpf,cap_perfmon+ep").arg(&program).output();
    if !compiled.is_ok_and(|status| status.success())
        || !granted.is_ok_and(|output| output.status.success())
    {
        println!("skipped: it takes root, setcap and a C compiler");
        return;
    }
    assert!(!loads(&program, &library, &mark), "nobody's code ran with the file's capabilities");
    // The same program without capabilities does what its user says.
    std::fs::copy(env!("CARGO_BIN_EXE_gpuwhy"), folder.join("plain")).unwrap();
    assert!(loads(&folder.join("plain"), &library, &mark));
}
