//! `bench safety`: what gpuwhy withstands, in figures: full disks, hostile guests, forged identities,
//! a besieged correlator, power cuts, bad input, and what a command inherits.
//!
//! Each part is a file with a function that measures and returns figures. A run of some parts keeps
//! the figures of the others in the results, each with the commit that it was measured at.

mod attribution;
mod disk;
pub mod disk_fault;
mod escape;
mod fate;
mod folder;
mod fuzz;
mod guests;
mod hostile;
mod power;
mod powercut;
mod privileges;
mod siege;
/// A small recorder, which the store's own tests use.
#[path = "../../../store/tests/it/sim.rs"]
#[allow(dead_code)]
mod sim;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use gpuwhy_engine::parallel::in_order;
use gpuwhy_schema::terminal;
use serde::{Deserialize, Serialize};

use super::result::{self, Figure, Made};

/// The parts, in the order in which they run.
const PARTS: &[PartSpec] = &[
    PartSpec { name: "guests", run: guests::run },
    PartSpec { name: "attribution", run: attribution::run },
    PartSpec { name: "powercut", run: powercut::run },
    PartSpec { name: "fate", run: fate::run },
    PartSpec { name: "disk", run: disk_fault::run },
    PartSpec { name: "privileges", run: privileges::run },
    PartSpec { name: "fuzz", run: fuzz::run },
    PartSpec { name: "escape", run: escape::run },
    PartSpec { name: "siege", run: siege::run },
];

/// A part of the benchmark.
struct PartSpec {
    name: &'static str,
    run: fn(&Args) -> Result<Measured>,
}

/// Arguments of `bench safety`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure these parts only; the results keep the other figures
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Divide the numbers of tries by this, for a quick look; the results say how many there were
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    divide: u32,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the results go
    #[arg(long, default_value = "bench/results/safety.json")]
    output: PathBuf,
}

impl Args {
    /// How many tries to make of a part that wants `whole`.
    pub fn tries(&self, whole: usize) -> usize {
        (whole / self.divide as usize).max(1)
    }
}

/// Tries at once: most of a try is waiting.
const AT_ONCE: usize = 4;

/// Makes so many tries, some at once, and takes what came of them in order.
fn each<T: Send>(
    tries: usize,
    make: impl Fn(usize) -> T + Sync,
    take: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    in_order(tries, AT_ONCE, make, take)
}

/// What a part measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The figures by their names.
    pub figures: BTreeMap<String, Figure>,
    /// Tables by their names: rows of cells by their columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, Vec<BTreeMap<String, String>>>,
    /// What else to know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// When and where a part was measured last.
#[derive(Debug, Serialize, Deserialize)]
struct PartMade {
    made: Made,
    seconds: f64,
    measured: Measured,
}

/// The file: the parts, and all their figures and tables in one place.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Results {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    made: Option<Made>,
    #[serde(default)]
    figures: BTreeMap<String, Figure>,
    #[serde(flatten)]
    tables: BTreeMap<String, serde_json::Value>,
}

/// Measures the parts that were asked for.
pub fn run(args: &Args) -> Result<ExitCode> {
    let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no part `{unknown}`; the parts are {}", known.join(", "));
    }
    let mut parts = earlier(args)?;
    for part in PARTS {
        if !args.only.is_empty() && !args.only.iter().any(|name| name == part.name) {
            continue;
        }
        terminal::note(format_args!("safety: {}", part.name));
        // The commit before, not after: a long part may see others.
        let (began, made) = (std::time::Instant::now(), Made::now());
        let measured =
            (part.run)(args).with_context(|| format!("cannot measure part `{}`", part.name))?;
        for (name, f) in &measured.figures {
            terminal::say(format_args!(
                "{name}: {:.4} [{:.4}, {:.4}] of {}",
                f.value, f.spread[0], f.spread[1], f.n
            ))?;
        }
        for note in &measured.notes {
            terminal::say(format_args!("  {note}"))?;
        }
        let seconds = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        parts.insert(part.name.to_owned(), PartMade { made, seconds, measured });
        result::write(&args.output, &joined(&parts)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The parts of the results that are there already.
fn earlier(args: &Args) -> Result<BTreeMap<String, PartMade>> {
    let Ok(text) = std::fs::read_to_string(&args.output) else { return Ok(BTreeMap::new()) };
    let mut old: Results = serde_json::from_str(&text)
        .with_context(|| format!("cannot understand `{}`", args.output.display()))?;
    let parts = old.tables.remove("parts").unwrap_or_default();
    Ok(serde_json::from_value(parts).unwrap_or_default())
}

/// The results as one file.
fn joined(parts: &BTreeMap<String, PartMade>) -> Result<Results> {
    let mut all = Results { made: Some(Made::now()), ..Results::default() };
    for part in parts.values() {
        all.figures.extend(part.measured.figures.clone());
        for (name, rows) in &part.measured.tables {
            all.tables.insert(name.clone(), serde_json::to_value(rows)?);
        }
    }
    all.tables.insert("parts".into(), serde_json::to_value(parts)?);
    Ok(all)
}
