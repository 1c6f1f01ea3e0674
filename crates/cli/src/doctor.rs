//! `gpuwhy doctor`: what this host allows to be recorded, and the exact fix for what it does not.

use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_collect::host::Check;
use gpuwhy_schema::terminal;
use serde::Serialize;

use crate::{args, exit};

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// A check in the JSON document.
#[derive(Serialize)]
struct CheckRow<'a> {
    name: &'a str,
    ok: bool,
    found: &'a str,
    why_it_matters: &'a str,
    needed: bool,
    fix: &'a str,
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    can_record: bool,
    checks: Vec<CheckRow<'a>>,
}

/// Checks the host. Exit code 5 if nothing can be recorded.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut checks = gpuwhy_collect::host::checks();
    checks.push(library(gpuwhy_engine::launch::library(None)));
    let refusal = refusal_of(&checks);
    if args.json {
        let document = Document {
            schema_version: 1,
            can_record: refusal.is_none(),
            checks: checks
                .iter()
                .map(|c| CheckRow {
                    name: &c.name,
                    ok: c.ok,
                    found: &c.found,
                    why_it_matters: c.why_it_matters,
                    needed: c.needed,
                    fix: &c.fix,
                })
                .collect(),
        };
        terminal::say_json(&serde_json::to_string_pretty(&document)?)?;
    } else {
        let mut screen = args::screen();
        for check in &checks {
            let mark = if check.ok { "ok   " } else { "MISS " };
            screen.put(mark).bold(&check.name).line(format_args!(": {}", check.found));
            if !check.ok {
                screen.line(format_args!("       why it matters: {}", check.why_it_matters));
                if !check.fix.is_empty() {
                    screen.line(format_args!("       fix: {}", check.fix));
                }
            }
        }
        screen.end();
        match &refusal {
            None => screen.line("This host can be recorded: gpuwhy record -- CMD"),
            Some(reason) => screen.block("  ", reason),
        };
        terminal::show(&screen)?;
    }
    Ok(if refusal.is_none() { ExitCode::SUCCESS } else { exit::privilege() })
}

/// Whether GPU programs can be observed from inside.
fn library(found: Option<std::path::PathBuf>) -> Check {
    let there = found.as_ref().is_some_and(|path| path.is_file());
    let (ok, found, fix) = match (found, gpuwhy_wire::is_off()) {
        (_, true) => (
            false,
            "GPUWHY_OFF is set: the library does nothing in programs that inherit it".into(),
            "unset GPUWHY_OFF",
        ),
        (Some(path), _) if there => (true, path.display().to_string(), ""),
        (Some(path), _) => (
            false,
            format!("GPUWHY_INJECT names {}, which does not exist", path.display()),
            "build it with `make release`, or let GPUWHY_INJECT name the file that exists",
        ),
        (None, _) => (
            false,
            "neither beside gpuwhy nor in the lib folder beside its bin".into(),
            "build it with `make release`, or let GPUWHY_INJECT name it",
        ),
    };
    Check {
        name: "library inside programs".into(),
        ok,
        needed: false,
        why_it_matters: "kernels, copies and collectives are recorded by libgpuwhy_inject.so, which \
                         the CUDA driver and NCCL load into the program",
        found,
        fix: fix.into(),
    }
}

/// Why this user cannot record this host, and what would change that; `None` if it is possible.
pub fn refusal() -> Option<String> {
    refusal_of(&gpuwhy_collect::host::needed())
}

fn refusal_of(checks: &[Check]) -> Option<String> {
    let missing: Vec<String> = checks
        .iter()
        .filter(|c| c.needed && !c.ok)
        .map(|c| format!("  {}: {}\n    fix: {}", c.name, c.found, c.fix))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "this host cannot be recorded by this user:\n{}\n`gpuwhy doctor` lists all checks",
            missing.join("\n")
        )
    })
}
