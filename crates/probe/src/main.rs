//! `gpuwhy probe`: programs for GPU kernels, before any kernel runs: written, verified, put into PTX.
//!
//! A program of its own beside `gpuwhy`, which starts it: who records and diagnoses needs no compiler.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use gpuwhy_gpubpf::image::Arch;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{How, Plan, Probe, Spliced, Table};
use gpuwhy_gpubpf::{Attach, SKELETONS, Skeleton};
use gpuwhy_schema::terminal;
use gpuwhy_schema::text::Screen;
use serde_json::{Value, json};

mod cache;
mod code;
mod coverage;
mod decisions;
mod desk;
mod launches;
mod live;
mod policies;
mod policy;
mod programs;
mod shared;
mod show;
mod simulate;
mod standby;
mod steal;

use programs::{Allowed, Sampling, object, ptx, reason, refused};

/// Write, verify and cost eBPF programs for GPU kernels, put them into kernels, tell which can be reached
#[derive(Debug, Parser)]
#[command(name = "gpuwhy probe", bin_name = "gpuwhy probe", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed or a program is refused, 2 wrong usage.")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a directory with a device probe that builds, to begin with
    New {
        /// The directory to make
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Which probe
        #[arg(long, value_name = "NAME", default_value = "counts", value_parser = Skeletons)]
        tool: Skeleton,
    },
    /// Tell what the verifier says of each program of an object, and what it costs at most
    Check {
        /// What clang -target bpf wrote
        #[arg(value_name = "OBJECT")]
        object: PathBuf,
        #[command(flatten)]
        allowed: Allowed,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Put the programs of an object into the kernels of a PTX module
    Splice {
        /// What clang -target bpf wrote
        #[arg(value_name = "OBJECT")]
        object: PathBuf,
        /// The module: PTX as nvcc -ptx, Triton or NVRTC write it, a fat binary, or a cubin that carries its PTX
        #[arg(value_name = "KERNELS")]
        kernels: PathBuf,
        /// The GPU for which PTX is chosen from a fat binary, by its compute capability
        #[arg(long, value_name = "ARCH", default_value = "sm_90")]
        device: Arch,
        /// The module to write
        #[arg(short, long, value_name = "OUT.ptx")]
        output: PathBuf,
        #[command(flatten)]
        sampling: Sampling,
        /// Leave out the switch by which a program is turned on after loading: it is always on
        #[arg(long)]
        always_on: bool,
        #[command(flatten)]
        allowed: Allowed,
        /// Print one JSON document: where the programs are, and the table that a loader fills
        #[arg(long)]
        json: bool,
    },
    /// Tell which kernels of programs, libraries and wheels a probe can reach on a GPU, and how
    Coverage(coverage::Options),
    /// Run a command with probes in its kernels: what they count
    Run(live::Options),
    /// Run a command under policies: eBPF programs that ask for prefetches, advice, delays and priorities
    Policy(policy::Options),
    /// Run a kernel without a GPU, as it is and with probes: what they count and what they cost (also: run --simulate)
    Simulate(simulate::Options),
}

/// The probes that `new` writes, with what each tells.
#[derive(Clone)]
struct Skeletons;

impl TypedValueParser for Skeletons {
    type Value = Skeleton;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Skeleton, clap::Error> {
        let names = PossibleValuesParser::new(SKELETONS.iter().map(|skeleton| skeleton.name));
        let name = names.parse_ref(command, argument, value)?;
        Ok(Skeleton::named(&name).expect("each possible value is the name of a skeleton"))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(SKELETONS.iter().map(|s| PossibleValue::new(s.name).help(s.about))))
    }
}

/// The arguments. `run --simulate …` is `simulate …`: a command and a kernel have few options in common.
fn arguments() -> Vec<OsString> {
    const RUNS: &str = "--simulate";
    let mut all: Vec<OsString> = std::env::args_os().collect();
    let ours = all.iter().take_while(|word| *word != "--").count();
    let at = all[..ours].iter().position(|word| {
        word.to_str().is_some_and(|word| word == RUNS || word.starts_with("--simulate="))
    });
    if let Some(at) = at.filter(|_| all.get(1).is_some_and(|word| word == "run")) {
        all[1] = "simulate".into();
        match all[at].to_str().and_then(|word| word.split_once('=')) {
            Some((_, kernels)) => all[at] = kernels.into(),
            None => _ = all.remove(at),
        }
    }
    all
}

fn main() -> ExitCode {
    terminal::tell_panics();
    let args = match Args::try_parse_from(arguments()) {
        Ok(args) => args,
        // What was typed may be the name of somebody's file.
        Err(error) if error.use_stderr() => {
            terminal::fail(error.render());
            return ExitCode::from(2);
        }
        // Help and version.
        Err(error) => error.exit(),
    };
    run(&args.command).unwrap_or_else(|error| {
        terminal::fail(format_args!("gpuwhy: {error:#}"));
        ExitCode::FAILURE
    })
}

/// Writes, checks or splices.
fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::New { dir, tool } => new(dir, *tool),
        Command::Coverage(options) => coverage::run(options),
        Command::Run(options) => live::run(options),
        Command::Policy(options) => policy::run(options),
        Command::Simulate(options) => simulate::run(options),
        Command::Check { object, allowed, json } => {
            let how = How { budget: allowed.budget(), ..How::default() };
            check(&plan(object, how)?, *json)
        }
        Command::Splice { object, kernels, device, output, sampling, always_on, allowed, json } => {
            let how = sampling.how(allowed, !always_on);
            splice(&plan(object, how)?, kernels, *device, output, *json)
        }
    }
}

fn new(dir: &Path, tool: Skeleton) -> Result<ExitCode> {
    std::fs::create_dir(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    for (name, text) in tool.files() {
        let path = dir.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    terminal::say(format_args!(
        "made {0}; `make -C {0} check` builds it and tells its cost",
        dir.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn plan(path: &Path, how: How) -> Result<Plan> {
    let mut plan = Plan::new(how);
    plan.object(&object(path)?);
    if plan.probes().is_empty() {
        bail!(
            "`{}` holds no program in a section of its own, such as SEC(\"kprobe/*\")",
            path.display()
        );
    }
    Ok(plan)
}

/// Exit code 1 where a program for a device is refused.
fn check(plan: &Plan, json: bool) -> Result<ExitCode> {
    if json {
        let programs: Vec<Value> = plan.probes().iter().map(verdict).collect();
        terminal::say_json(&format!("{:#}", json!({ "programs": programs })))?;
    } else {
        let mut out = String::new();
        for probe in plan.probes() {
            out += &told(probe);
        }
        terminal::show(Screen::new(false).block("", out))?;
    }
    Ok(if refused(plan).is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn told(probe: &Probe) -> String {
    let Probe { name, section, attach, verdict, .. } = probe;
    let mut out = format!("{name} ({section}): ");
    match (attach, verdict, reason(probe)) {
        (Attach::Host, ..) => out += "for the host, not looked at\n",
        (_, _, Some(reason)) => {
            let _ = writeln!(out, "refused\n  {reason}");
        }
        (Attach::Policy(_), Ok((_, cost)), None) => {
            let effect = cost.effect.word();
            let _ = writeln!(
                out,
                "accepted, {effect}\n  a run on the host executes {} eBPF instructions at most",
                cost.thread_instructions
            );
        }
        (_, Ok((_, cost)), None) => {
            let effect = cost.effect.word();
            let _ = writeln!(
                out,
                "accepted, {effect}\n  a thread executes {} eBPF instructions at most; a warp {} on {} \
                 paths, with {} atomics and {} bytes of maps",
                cost.thread_instructions,
                cost.warp_instructions,
                cost.paths,
                cost.warp_atomics,
                cost.warp_bytes
            );
            if cost.warp_host_atomics > 0 {
                let _ = write!(
                    out,
                    "\n  {} more atomics of a warp go to memory of the host, over its bus",
                    cost.warp_host_atomics
                );
            }
            if cost.block_bytes > 0 {
                let _ = write!(
                    out,
                    "\n  of these maps {} bytes lie in the shared memory of each block, with {} more atomics of a warp \
                     there; when a block ends, its last thread adds {} numbers to the device's",
                    cost.block_bytes, cost.warp_shared_atomics, cost.block_atomics
                );
            }
        }
        (_, Err(_), None) => {}
    }
    out
}

fn verdict(probe: &Probe) -> Value {
    let mut document = json!({
        "program": probe.name,
        "section": probe.section,
        "device": probe.attach != Attach::Host && probe.attach.policy().is_none(),
    });
    if probe.attach == Attach::Host {
        return document;
    }
    document["refused"] = json!(reason(probe));
    if let Ok((_, cost)) = &probe.verdict {
        document["certificate"] = json!({
            "thread_instructions": cost.thread_instructions,
            "paths": cost.paths,
            "warp_instructions": cost.warp_instructions,
            "warp_atomics": cost.warp_atomics,
            "warp_bytes": cost.warp_bytes,
            "warp_host_atomics": cost.warp_host_atomics,
            "warp_shared_atomics": cost.warp_shared_atomics,
            "block_bytes": cost.block_bytes,
            "block_atomics": cost.block_atomics,
            "effect": cost.effect.word(),
        });
    }
    document
}

fn splice(
    plan: &Plan,
    kernels: &Path,
    device: Arch,
    output: &Path,
    json: bool,
) -> Result<ExitCode> {
    let text = ptx(kernels, device)?;
    let module =
        Module::read(&text).with_context(|| format!("`{}` is no PTX", kernels.display()))?;
    let spliced = plan.splice(&module).with_context(|| format!("`{}`", kernels.display()))?;
    std::fs::write(output, &spliced.text)
        .with_context(|| format!("cannot write `{}`", output.display()))?;
    let table = plan.table();
    if json {
        terminal::say_json(&format!("{:#}", document(&spliced, &table)))?;
    } else {
        terminal::show(Screen::new(false).block("", page(&spliced, output)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(spliced: &Spliced, output: &Path) -> String {
    let mut out = String::new();
    for kernel in &spliced.kernels {
        let _ = writeln!(out, "{}: {} sites", kernel.readable, kernel.sites);
    }
    for note in &spliced.notes {
        let _ = writeln!(out, "{note}");
    }
    let unchanged = if spliced.sites.is_empty() { " as it was" } else { "" };
    let _ = writeln!(out, "wrote {}{unchanged}", output.display());
    out
}

fn document(spliced: &Spliced, table: &Table) -> Value {
    let kernels: Vec<Value> = spliced
        .kernels
        .iter()
        .map(|k| json!({ "name": k.name, "readable": k.readable, "sites": k.sites }))
        .collect();
    let sites: Vec<Value> = spliced
        .sites
        .iter()
        .enumerate()
        .map(|(number, site)| {
            json!({
                "site": number,
                "program": site.probe,
                "function": site.function,
                "ptx_line": site.line,
                "source": site.source,
            })
        })
        .collect();
    let maps: Vec<Value> = table
        .maps
        .iter()
        .map(|(map, word)| {
            json!({
                "name": map.name,
                "type": map.kind.id(),
                "key_size": map.key_size,
                "value_size": map.value_size,
                "max_entries": map.max_entries,
                "word": word,
            })
        })
        .collect();
    let switches: Vec<Value> = table
        .switches
        .iter()
        .map(|(name, word)| json!({ "program": name, "word": word }))
        .collect();
    json!({
        "changed": !spliced.sites.is_empty(),
        "kernels": kernels,
        "sites": sites,
        "notes": spliced.notes,
        "table": {
            "symbol": gpuwhy_gpubpf::TABLE,
            "words": table.words,
            "maps": maps,
            "switches": switches,
        },
    })
}
