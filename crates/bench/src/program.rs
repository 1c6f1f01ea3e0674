//! The programs that a benchmark starts: `gpuwhy` beside this one, and this one again.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use gpuwhy_engine::launch::program_beside;

/// The `gpuwhy` that is measured: as GPUWHY_BIN says, or beside this program, or on the PATH.
pub fn gpuwhy() -> PathBuf {
    program_beside("gpuwhy", "GPUWHY_BIN")
}

/// This program, which is also the workload.
pub fn own() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the binary of gpuwhy-bench")
}

/// This program, as an argument.
pub fn own_text() -> Result<String> {
    match own()?.into_os_string().into_string() {
        Ok(path) => Ok(path),
        Err(path) => bail!("the path of gpuwhy-bench is not UTF-8: {}", path.display()),
    }
}

/// Why this host cannot be recorded, and what would change that.
pub fn cannot_record() -> Option<String> {
    let checks = gpuwhy_collect::host::needed();
    let missing: Vec<String> = checks
        .iter()
        .filter(|c| c.needed && !c.ok)
        .map(|c| format!("  {}: {}\n    fix: {}", c.name, c.found, c.fix))
        .collect();
    let list = missing.join("\n");
    (!missing.is_empty()).then(|| format!("this user cannot record this host:\n{list}"))
}
