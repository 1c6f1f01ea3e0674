//! Machine code without PTX: functions that NVIDIA's Sanitizer calls from it, and the programs that make them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use gpuwhy_gpubpf::TABLE;
use gpuwhy_gpubpf::image::{Cubin, ELF_MAGIC};
use gpuwhy_gpubpf::splice::{Patch, Patched, Plan};
use gpuwhy_wire::images::{self, name_hash};

/// The library's name.
const LIBRARY: &str = "libsanitizer-public.so";

/// How machine code is reached.
#[derive(Debug, clap::Args)]
pub(crate) struct Reach {
    /// Reach kernels that are machine code alone by NVIDIA's Sanitizer, which calls the programs there; its library is
    /// looked for where CUDA is installed, or given. While it is used, nothing else of NVIDIA's records this command's kernels
    #[arg(long, value_name = "LIBRARY", num_args = 0..=1, require_equals = true)]
    sanitizer: Option<Option<PathBuf>>,
    /// NVIDIA's assembler, for what is called from machine code (default: where CUDA is installed, or on the path; without
    /// one the driver is given PTX)
    #[arg(long, value_name = "PROGRAM", requires = "sanitizer")]
    ptxas: Option<PathBuf>,
}

/// The library and the assembler.
#[derive(Debug)]
pub(crate) struct Sanitizer {
    pub library: PathBuf,
    ptxas: Option<PathBuf>,
    /// The functions, by the device's number; or why there are none.
    made: Mutex<HashMap<u32, Result<Arc<Functions>, String>>>,
}

/// Functions for a device.
#[derive(Debug)]
pub(crate) struct Functions {
    pub patch: Patch,
    /// What is loaded: assembled, or text with a zero.
    pub image: Vec<u8>,
}

impl Reach {
    /// What was asked for.
    pub fn sanitizer(&self) -> Result<Option<Sanitizer>> {
        let Some(asked) = &self.sanitizer else { return Ok(None) };
        let folders = cuda();
        let within = |at: &str, name: &str| {
            folders.iter().map(|folder| folder.join(at).join(name)).find(|path| path.is_file())
        };
        let library = match asked {
            Some(path) => path.canonicalize().with_context(|| format!("`{}`", path.display()))?,
            None => match within("compute-sanitizer", LIBRARY).or_else(|| within("lib", LIBRARY)) {
                Some(found) => found,
                None => bail!(
                    "there is no {LIBRARY} where CUDA is installed ({}); --sanitizer=FILE names it (it comes with CUDA's \
                     toolkit, and with the Python package nvidia-cuda-sanitizer-api)",
                    folders.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")
                ),
            },
        };
        let on_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|at| at.join("ptxas")).find(|at| at.is_file())
        };
        let ptxas = match &self.ptxas {
            Some(named) => {
                if !named.is_file() {
                    bail!("`{}` is no file", named.display());
                }
                Some(named.clone())
            }
            None => within("bin", "ptxas").or_else(on_path),
        };
        Ok(Some(Sanitizer { library, ptxas, made: Mutex::default() }))
    }
}

/// Where CUDA may be installed.
fn cuda() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let named = named.filter(|value| !value.is_empty()).map(PathBuf::from);
    named.chain([PathBuf::from("/usr/local/cuda")]).collect()
}

impl Sanitizer {
    /// The functions for a device.
    ///
    /// # Errors
    /// A program cannot run there, or the assembler refuses them.
    pub fn functions(&self, plan: &Plan, sm: u32) -> Result<Arc<Functions>, String> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || self.make(plan, sm).map(Arc::new).map_err(|why| format!("{why:#}"));
        made.entry(sm).or_insert_with(make).clone()
    }

    fn make(&self, plan: &Plan, sm: u32) -> Result<Functions> {
        let patch = plan.patch(sm)?;
        let image = match &self.ptxas {
            Some(ptxas) if !patch.spots.is_empty() => assembled(ptxas, &patch.text, sm)?,
            _ => [patch.text.as_bytes(), &[0]].concat(),
        };
        Ok(Functions { patch, image })
    }
}

/// Functions as `ptxas` assembles them for Sanitizer.
fn assembled(ptxas: &Path, text: &str, sm: u32) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let (from, to) = (folder.path().join("patch.ptx"), folder.path().join("patch.cubin"));
    std::fs::write(&from, text).context("cannot write the functions")?;
    let mut command = Command::new(ptxas);
    command.arg("--compile-as-tools-patch").arg(format!("-arch=sm_{sm}"));
    let output = command.arg("-o").arg(&to).arg(&from).output();
    let output = output.with_context(|| format!("cannot run `{}`", ptxas.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` refuses the functions: {}", ptxas.display(), said.trim());
    }
    let mut bytes = std::fs::read(&to).context("cannot read what was assembled")?;
    bytes.push(0);
    Ok(bytes)
}

/// What became of a module of machine code.
#[derive(Debug)]
pub(crate) struct Reached {
    pub cubin: Cubin,
    /// What the programs do in it, and the functions; or why they do nothing.
    pub patched: Result<(Patched, Arc<Functions>), String>,
}

/// What becomes of a module that the driver has loaded; `None` if it is no machine code, or has probes already.
pub(crate) fn reach(sanitizer: &Sanitizer, plan: &Plan, bytes: &[u8]) -> Option<Reached> {
    if !bytes.starts_with(&ELF_MAGIC) || names(bytes, TABLE) {
        return None;
    }
    let cubin = Cubin::read(bytes).ok()?;
    let nothing = || "no probe belongs into it".to_owned();
    let patched = sanitizer.functions(plan, cubin.arch.number).and_then(|functions| {
        let patched = plan.patched(&functions.patch, &cubin.kernels);
        match patched.words.is_empty() {
            true if patched.notes.is_empty() => Err(nothing()),
            true => Err(patched.notes.join("; ")),
            false => Ok((patched, functions)),
        }
    });
    Some(Reached { cubin, patched })
}

/// Whether an ELF file has this among its names.
fn names(bytes: &[u8], name: &str) -> bool {
    let name = [&[0], name.as_bytes(), &[0]].concat();
    bytes.windows(name.len()).any(|window| window == name)
}

/// What a program is told of the kernels that call the functions.
pub(crate) fn told(patched: &Patched) -> images::Patch {
    let spots = patched.spots.iter().fold(0, |bits, spot| bits | 1 << spot.instruction());
    let programs = patched.words.first().map_or(0, |(_, words)| words.len() as u32 - 1);
    let kernels = patched.words.iter().take(images::MANY as usize);
    let kernels = kernels.map(|(name, words)| (name_hash(name.as_bytes()), words[1..].to_vec()));
    images::Patch { spots, programs, kernels: kernels.collect() }
}

/// Why a program has no Sanitizer, by the code that it told.
pub(crate) fn trouble(code: u32) -> Option<String> {
    let why = match code {
        0 => return None,
        10 => "another tool has subscribed to it".to_owned(),
        12 => "it does not work beside what else is loaded, such as CUPTI".to_owned(),
        1000 => "its library cannot be loaded, or lacks a function".to_owned(),
        other => format!("it answers {other} (SanitizerResult)"),
    };
    Some(format!("machine code stays as it is: NVIDIA's Sanitizer: {why}"))
}

#[cfg(test)]
mod tests {
    use gpuwhy_gpubpf::splice::Spot;

    use super::*;

    #[test]
    fn both_ends_call_a_function_by_one_name() {
        for spot in Spot::ALL {
            let name = images::Patch::function(spot.instruction());
            assert_eq!(name.and_then(|name| name.to_str().ok()), Some(spot.function()));
        }
    }

    #[test]
    fn a_table_among_the_names_is_found_and_a_longer_name_is_none() {
        assert!(names(b"x\0gpuwhy_probe\0y", TABLE));
        assert!(!names(b"x\0gpuwhy_probes\0y", TABLE) && !names(b"gpuwhy_probe", TABLE));
    }
}
