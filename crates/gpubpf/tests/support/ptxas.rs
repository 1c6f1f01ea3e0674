//! NVIDIA's assembler, where this machine has it (`scripts/ptxas.sh` brings it).

use std::path::PathBuf;
use std::process::Command;

/// The program: `GPUWHY_PTXAS`, or where `scripts/ptxas.sh` puts it, or on the path.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("GPUWHY_PTXAS").map(PathBuf::from);
    let cached = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("gpuwhy/ptxas/ptxas"));
    let path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|at| at.join("ptxas")).find(|at| at.is_file())
    });
    [named, cached, path].into_iter().flatten().find(|at| at.is_file())
}

/// Assembles `text` for `target` and returns what `ptxas -v` says of it; `None` (and a line that
/// says so) without ptxas. Panics with its errors where it refuses.
pub fn assemble(text: &str, target: &str) -> Option<String> {
    let Some(program) = program() else {
        println!("skipped: no ptxas; scripts/ptxas.sh brings it");
        return None;
    };
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("module.ptx");
    std::fs::write(&source, text).unwrap();
    let output = Command::new(program)
        .arg("-v")
        .arg(format!("-arch={target}"))
        .arg("-o")
        .arg(place.path().join("module.cubin"))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", numbered(text, &said));
    Some(said)
}

/// The lines of `text` that the errors speak of.
fn numbered(text: &str, said: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let named = said
        .lines()
        .filter_map(|line| line.split("line ").nth(1)?.split(';').next()?.parse::<usize>().ok());
    named.take(5).filter_map(|n| Some(format!("{n}: {}\n", lines.get(n - 1)?))).collect()
}
