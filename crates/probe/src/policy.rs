//! `gpuwhy probe policy -- COMMAND`: eBPF programs decide what a program's driver is asked for, which the program
//! does not know of.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::live::{self, Session};

/// A command, and the policies that are for it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A policy is an eBPF program in a section gpu/policy/alloc, gpu/policy/launch or gpu/policy/tick. It
runs here and not in the command, verified and in one thread: when the command allocates memory,
when it launches a kernel, and ten times a second. It asks for managed memory to be prefetched, for
advice about it, for launches to be delayed (by 10 ms each and by a quarter of the time at most), and
for a priority of streams that are created later. Programs for kernels in the same objects are put
into the command's kernels; policies read their arrays by name. Nothing is claimed to be quicker for
it: measure.

Example: what comes next, where launches walk through managed memory
  gpuwhy probe new ahead --tool sequential && make -C ahead
  gpuwhy probe policy --object ahead/probe.bpf.o -- ./walk")]
pub(crate) struct Options {
    /// What clang -target bpf wrote: policies, and programs that are put into the kernels
    #[arg(long, value_name = "OBJECT", required = true)]
    object: Vec<PathBuf>,
    /// Decide and tell, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    session: Session,
}

/// Exit code: as of `probe run`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let decides = live::Decides { dry_run: options.dry_run };
    live::session(&options.session, &options.object, &[], Some(decides))
}
