//! Bad input that was tried: the ledger that `FUZZ_LEDGER=1 scripts/fuzz.sh` writes, parser by parser.
//!
//! Nothing is run here: a day of CPU time is gathered over many sittings, at idle priority.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::result::Figure;

/// The ledger, beside the results of the other benchmarks.
const LEDGER: &str = "fuzz.json";

#[derive(Deserialize)]
struct Ledger {
    targets: Vec<Target>,
}

/// What was done with one parser in all sittings.
#[derive(Deserialize)]
struct Target {
    target: String,
    runs: usize,
    failures: usize,
    executions: u64,
    cpu_hours: f64,
    edges: u64,
    slowest_ms: u64,
    rss_mib: u64,
}

/// Reads the ledger.
pub fn run(args: &super::Args) -> Result<super::Measured> {
    let path = args.output.with_file_name(LEDGER);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read `{}`; make bench-fuzz writes it", path.display()))?;
    let ledger: Ledger = serde_json::from_str(&text)
        .with_context(|| format!("cannot understand `{}`", path.display()))?;
    let mut measured = super::Measured::default();
    let total = |value: fn(&Target) -> f64| {
        let values: Vec<f64> = ledger.targets.iter().map(value).collect();
        // The sum, with the least and the most of a parser.
        Figure { value: values.iter().sum(), ..Figure::of(&values) }
    };
    measured.figures = BTreeMap::from([
        ("fuzz_executions".into(), total(|t| t.executions as f64)),
        ("fuzz_cpu_hours".into(), total(|t| t.cpu_hours)),
        ("fuzz_failures".into(), total(|t| t.failures as f64)),
    ]);
    let row = |t: &Target| {
        let cells = [
            ("target", t.target.clone()),
            ("runs", t.runs.to_string()),
            ("executions", t.executions.to_string()),
            ("cpu_hours", format!("{:.2}", t.cpu_hours)),
            ("edges", t.edges.to_string()),
            ("slowest_ms", t.slowest_ms.to_string()),
            ("rss_mib", t.rss_mib.to_string()),
        ];
        cells.map(|(name, value)| (name.to_owned(), value)).into()
    };
    measured.tables.insert("fuzz".into(), ledger.targets.iter().map(row).collect());
    Ok(measured)
}
