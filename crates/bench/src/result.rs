//! Files `bench/results/X.json`: machine, date, commit, command and figures with their spread.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::stats::{quantile, sorted};
use serde::{Deserialize, Serialize};

/// Where and how figures were made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Processors, memory and kernel.
    pub machine: String,
    /// UTC date.
    pub date: String,
    /// The commit, with `+` if the tree was changed.
    pub commit: String,
    /// The command.
    pub command: String,
}

impl Made {
    /// Here and now, by this command line.
    pub fn now() -> Made {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let model = read("/proc/cpuinfo")
            .lines()
            .find_map(|l| {
                l.strip_prefix("model name").map(|l| l.trim_start_matches([' ', '\t', ':']))
            })
            .unwrap_or("unknown processor")
            .to_string();
        let memory = read("/proc/meminfo")
            .lines()
            .find_map(|l| {
                l.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse::<u64>().ok()
            })
            .unwrap_or(0);
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_string();
        let out = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output().ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
        };
        let head = out("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or("unknown".into());
        // Results that were written meanwhile, and the pages that hold them, are not what is measured.
        let others = [":/", ":(top,exclude)bench/results", ":(top,exclude)docs"];
        let changed = out("git", &[&["status", "--porcelain", "-uno", "--"][..], &others].concat())
            .is_some_and(|s| !s.is_empty());
        let args = without_places(std::env::args().skip(1));
        Made {
            machine: format!("{cpus} x {model}, {} GiB, Linux {kernel}", memory >> 20),
            date: out("date", &["-u", "+%Y-%m-%dT%H:%MZ"]).unwrap_or_default(),
            commit: format!("{head}{}", if changed { "+" } else { "" }),
            command: format!("gpuwhy {}", args.join(" ")),
        }
    }
}

/// A command's arguments but for where it puts things: that changes no figure, and is no business of
/// whoever reads the result.
fn without_places(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut out = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        match arg.split_once('=').map_or(&*arg, |(name, _)| name) {
            "--output" | "--traces" => _ = arg.contains('=') || args.next().is_some(),
            _ => out.push(arg),
        }
    }
    out
}

/// A figure with its spread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Median, or the share that was counted.
    pub value: f64,
    /// Least and greatest, or the 95 % Wilson interval of a share.
    pub spread: [f64; 2],
    /// How many measurements.
    pub n: usize,
}

impl Figure {
    /// The median of values, with the least and the greatest.
    pub fn of(values: &[f64]) -> Figure {
        let all = sorted(values.iter().copied());
        let at = |q| quantile(&all, q);
        Figure { value: at(0.5), spread: [at(0.0), at(1.0)], n: all.len() }
    }

    /// `hits` of `n`, with the 95 % Wilson interval.
    pub fn share(hits: usize, n: usize) -> Figure {
        if n == 0 {
            return Figure { value: 0.0, spread: [0.0, 1.0], n };
        }
        let (p, n_f, z) = (hits as f64 / n as f64, n as f64, 1.96);
        let middle = (p + z * z / (2.0 * n_f)) / (1.0 + z * z / n_f);
        let half =
            z / (1.0 + z * z / n_f) * (p * (1.0 - p) / n_f + z * z / (4.0 * n_f * n_f)).sqrt();
        Figure { value: p, spread: [middle - half, middle + half], n }
    }
}

/// Writes a result file so that a killed run leaves the old one whole.
pub fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make `{}`", folder.display()))?;
    }
    write_text(path, &(serde_json::to_string_pretty(value)? + "\n"))
}

/// The same of text that is JSON already.
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("json.tmp");
    std::fs::write(&fresh, text).with_context(|| format!("cannot write `{}`", fresh.display()))?;
    std::fs::rename(&fresh, path).with_context(|| format!("cannot write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_of_seventeen_is_anything_from_66_to_97_per_cent() {
        let figure = Figure::share(15, 17);
        assert!((figure.spread[0] - 0.657).abs() < 0.005, "{figure:?}");
        assert!((figure.spread[1] - 0.967).abs() < 0.005, "{figure:?}");
    }

    #[test]
    fn where_a_result_went_is_no_part_of_it() {
        let args =
            "bench nodes --output /x/y.json --trials 3 --traces=/x/z --keep-traces".split(' ');
        let left = without_places(args.map(str::to_owned));
        assert_eq!(left.join(" "), "bench nodes --trials 3 --keep-traces");
    }
}
