//! Checks and chores of the repository that are better written in Rust than in shell.
//!
//! `cargo xtask layers`: each crate uses only what its row of the layer table allows.
//! `cargo xtask docs [--check]`: writes the generated pages, or says which are out of date.
//! `cargo xtask unsafe-check`: unsafe code lies only where it may, each piece with its argument.
//! `cargo xtask leaks`: nothing of one machine, and no file that does not belong, is committed.
//! `cargo xtask downloads`: what scripts and images download is named with its hash.
//! `cargo xtask promises`: what docs/threat-model.md promises is held by tests that exist.
//! `cargo xtask house [--check | --json | --undocumented]`: sizes of crates, files and functions,
//! circles between files, documented items; or what of it is beyond its limit.
//! `cargo xtask all`: the seven checks, all of them even if one fails.

#![forbid(unsafe_code)]

mod bench;
mod docs;
mod downloads;
mod house;
mod layers;
mod leaks;
mod promises;
mod source;
mod unsafe_code;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask layers | docs [--check] | unsafe-check | leaks | \
    downloads | promises | house [--check | --json | --undocumented] | all";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.to_string() == USAGE { 2 } else { 1 })
        }
    }
}

fn run(args: &[String]) -> Result<()> {
    let root = root()?;
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["layers"] => report("layers", layers::run(&root)),
        ["docs"] => docs::write(&root),
        ["docs", "--check"] => report("docs", docs::stale(&root)),
        ["unsafe-check"] => report("unsafe-check", unsafe_code::run(&root)),
        ["leaks"] => report("leaks", leaks::run(&root)),
        ["downloads"] => report("downloads", downloads::run(&root)),
        ["promises"] => report("promises", promises::run(&root)),
        ["house"] => {
            print!("{}", house::measure(&root)?.text());
            Ok(())
        }
        ["house", "--json"] => {
            println!("{:#}", house::measure(&root)?.json());
            Ok(())
        }
        ["house", "--undocumented"] => {
            house::measure(&root)?.undocumented().iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        ["house", "--check"] => report("house", house::measure(&root).map(|h| h.broken())),
        ["all"] => {
            let outcomes = [
                report("layers", layers::run(&root)),
                report("docs", docs::stale(&root)),
                report("unsafe-check", unsafe_code::run(&root)),
                report("leaks", leaks::run(&root)),
                report("downloads", downloads::run(&root)),
                report("promises", promises::run(&root)),
                report("house", house::measure(&root).map(|h| h.broken())),
            ];
            let mut failed = Vec::new();
            for outcome in outcomes {
                if let Err(error) = outcome {
                    failed.push(format!("{error:#}"));
                }
            }
            if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
        }
        _ => bail!(USAGE),
    }
}

/// Prints what a check found, one line each, and turns findings into a failure.
fn report(check: &str, found: Result<Vec<String>>) -> Result<()> {
    let found = found.with_context(|| format!("{check} could not run"))?;
    for line in &found {
        println!("{check}: {line}");
    }
    match found.len() {
        0 => {
            println!("{check}: ok");
            Ok(())
        }
        n => bail!("{check} found {n} {}", if n == 1 { "problem" } else { "problems" }),
    }
}

/// The root of the workspace that this is run in. Where the crate was compiled says nothing: several
/// clones share a target directory, and with it what is built from equal sources.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    let root = here.ancestors().find(|folder| folder.join("crates/xtask/Cargo.toml").is_file());
    Ok(root.context("run it in a clone of this project")?.to_owned())
}
