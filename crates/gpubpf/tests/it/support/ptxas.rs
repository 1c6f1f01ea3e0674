//! NVIDIA's assembler, where this machine has it (`scripts/ptxas.sh` brings it).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object as _, ObjectSection as _};
use serde_json::{Value, json};

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
    let place = tempfile::tempdir().unwrap();
    assemble_in(place.path(), text, target, &[])
}

/// The same of functions that Sanitizer calls.
pub fn assemble_patch(text: &str, target: &str) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    assemble_in(place.path(), text, target, &["--compile-as-tools-patch"])
}

/// The same, leaving `module.cubin` in `place`.
fn assemble_in(place: &Path, text: &str, target: &str, how: &[&str]) -> Option<String> {
    let Some(program) = program() else {
        println!("skipped: no ptxas; scripts/ptxas.sh brings it");
        return None;
    };
    let source = place.join("module.ptx");
    std::fs::write(&source, text).unwrap();
    let output = Command::new(program)
        .arg("-v")
        .args(how)
        .arg(format!("-arch={target}"))
        .arg("-o")
        .arg(place.join("module.cubin"))
        .arg(&source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", numbered(text, &said));
    Some(said)
}

/// An assembled kernel.
pub struct Kernel {
    pub registers: u64,
    pub stack: u64,
    pub spill_stores: u64,
    pub spill_loads: u64,
    /// Whether ptxas warns that it serialised the tensor cores' instructions (C7510).
    pub serialised: bool,
    /// How often it waits for the tensor cores (`WARPGROUP.DEPBAR`), where nvdisasm is here.
    pub waits: Option<usize>,
    /// The machine code.
    pub code: Vec<u8>,
}

impl Kernel {
    pub fn json(&self) -> Value {
        json!({
            "registers": self.registers,
            "stack": self.stack,
            "spill_stores": self.spill_stores,
            "spill_loads": self.spill_loads,
            "serialised": self.serialised,
            "waits": self.waits,
            "instructions": self.code.len() / 16,
        })
    }
}

/// Assembles `text` and tells of each kernel; `None` without ptxas.
pub fn kernels(text: &str, target: &str) -> Option<BTreeMap<String, Kernel>> {
    let place = tempfile::tempdir().unwrap();
    let said = assemble_in(place.path(), text, target, &[])?;
    let bytes = std::fs::read(place.path().join("module.cubin")).unwrap();
    let cubin = object::File::parse(&*bytes).unwrap();
    let waits = waits(text, &place.path().join("module.cubin"));
    let mut found = BTreeMap::new();
    for report in said.split("Compiling entry function '").skip(1) {
        let name = report.split('\'').next().unwrap_or_default();
        let code = cubin.section_by_name(&format!(".text.{name}")).unwrap().data().unwrap();
        let serialised =
            said.lines().any(|line| line.contains("C7510") && line.contains(&format!("'{name}'")));
        let kernel = Kernel {
            registers: number(report, "Used ", " registers"),
            stack: number(report, "", " bytes stack frame"),
            spill_stores: number(report, "", " bytes spill stores"),
            spill_loads: number(report, "", " bytes spill loads"),
            serialised,
            waits: waits.get(name).copied(),
            code: code.to_vec(),
        };
        found.insert(name.to_owned(), kernel);
    }
    Some(found)
}

/// For each kernel that uses the tensor cores asynchronously, how often its machine code waits for them.
fn waits(text: &str, cubin: &Path) -> BTreeMap<String, usize> {
    let program = std::env::var_os("GPUWHY_NVDISASM").map(PathBuf::from).filter(|at| at.is_file());
    let (Some(program), true) = (program, text.contains("wgmma.mma_async")) else {
        return BTreeMap::new();
    };
    let output = Command::new(program).arg("-c").arg(cubin).output().unwrap();
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let parts = listing.split("\t.section\t.text.").skip(1);
    let parts = parts.map(|part| (part.split([',', '"']).next().unwrap_or_default(), part));
    parts.map(|(name, part)| (name.to_owned(), part.matches("WARPGROUP.DEPBAR").count())).collect()
}

/// The number between two texts.
fn number(report: &str, before: &str, after: &str) -> u64 {
    let end = report.find(after).unwrap_or_else(|| panic!("`{after}` in {report}"));
    let start = report[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    assert!(report[..start].ends_with(before), "{report}");
    report[start..end].parse().unwrap()
}

/// The lines of `text` that the errors speak of.
fn numbered(text: &str, said: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let named = said
        .lines()
        .filter_map(|line| line.split("line ").nth(1)?.split(';').next()?.parse::<usize>().ok());
    named.take(5).filter_map(|n| Some(format!("{n}: {}\n", lines.get(n - 1)?))).collect()
}
