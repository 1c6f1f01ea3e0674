//! Objects of programs: reading them, what they may cost, and why one is refused.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gpuwhy_gpubpf::image::{self, Arch};
use gpuwhy_gpubpf::ptx::MAX_TEXT;
use gpuwhy_gpubpf::splice::{How, Plan, Probe};
use gpuwhy_gpubpf::{Attach, Budget, Effect, Object};

/// What programs may cost and do.
#[derive(Debug, clap::Args)]
pub(crate) struct Allowed {
    /// The most eBPF instructions that one warp may execute at a site
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = Budget::default().warp_instructions)]
    budget: u64,
    /// Allow programs that end threads of the kernel
    #[arg(long)]
    controlling: bool,
}

impl Allowed {
    pub(crate) fn budget(&self) -> Budget {
        let effect = if self.controlling { Effect::Controlling } else { Effect::Prefetching };
        Budget { warp_instructions: self.budget, effect }
    }
}

/// In which launches, blocks and warps programs run.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Sampling {
    /// Run in one of N launches; how many there were is counted
    #[arg(long, value_name = "N", default_value = "1")]
    one_launch_in: NonZeroU32,
    /// Run in one of N blocks of these
    #[arg(long, value_name = "N", default_value = "1")]
    one_block_in: NonZeroU32,
    /// Run in one of N warps of these
    #[arg(long, value_name = "N", default_value = "1")]
    one_warp_in: NonZeroU32,
}

impl Sampling {
    /// How programs are put into kernels.
    pub(crate) fn how(self, allowed: &Allowed, switch: bool) -> How {
        How {
            budget: allowed.budget(),
            launches: self.one_launch_in,
            blocks: self.one_block_in,
            warps: self.one_warp_in,
            switch,
        }
    }
}

/// The largest object that is read.
const MAX_OBJECT: u64 = 64 << 20;

/// A whole file, if it is not larger than `most`.
pub(crate) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let bytes = std::fs::metadata(path)
        .map(|file| file.len())
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    if bytes > most {
        bail!("`{}` has {bytes} bytes; at most {most}", path.display());
    }
    std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Why a program for a device is refused.
pub(crate) fn reason(probe: &Probe) -> Option<String> {
    match (&probe.attach, &probe.verdict) {
        (Attach::Unclear(reason), _) => Some(reason.clone()),
        (_, Err(fault)) => Some(fault.to_string()),
        _ => None,
    }
}

/// The first program for a device that is refused, and why.
pub(crate) fn refused(plan: &Plan) -> Option<(&Probe, String)> {
    let device = |probe: &&Probe| probe.attach != Attach::Host;
    plan.probes().iter().filter(device).find_map(|probe| Some((probe, reason(probe)?)))
}

/// An object that clang wrote.
pub(crate) fn object(path: &Path) -> Result<Object> {
    object_of(path, &read(path, MAX_OBJECT)?)
}

fn object_of(path: &Path, bytes: &[u8]) -> Result<Object> {
    Object::read(bytes).with_context(|| format!("cannot read `{}`", path.display()))
}

/// The programs of all objects, and the objects' bytes; an error where a program for a device is refused.
pub(crate) fn accepted(paths: &[PathBuf], how: How) -> Result<(Plan, Vec<Vec<u8>>)> {
    let (mut plan, mut all) = (Plan::new(how), Vec::new());
    for path in paths {
        let bytes = read(path, MAX_OBJECT)?;
        plan.object(&object_of(path, &bytes)?);
        all.push(bytes);
    }
    if let Some((probe, reason)) = refused(&plan) {
        bail!("program `{}` is refused: {reason}", probe.name);
    }
    Ok((plan, all))
}

/// The PTX of a file that may be a fat binary or a cubin: what `device` would be given.
pub(crate) fn ptx(path: &Path, device: Arch) -> Result<String> {
    let bytes = read(path, MAX_TEXT as u64)?;
    if image::is_binary(&bytes) {
        let chosen = image::ptx_for(&bytes, device.number);
        return Ok(chosen.with_context(|| format!("`{}`", path.display()))?.text);
    }
    String::from_utf8(bytes).with_context(|| format!("`{}` is no text", path.display()))
}
