//! `gpuwhy doctor`: what this host lets us see, and the exact fix for what it does not.

use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_collect::host::Check;
use serde::Serialize;

use crate::args::Doctor;
use crate::exit;
use crate::paint::Paint;

#[derive(Serialize)]
struct Told<'a> {
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
    checks: Vec<Told<'a>>,
}

/// Looks at the host. Exit code 5 if nothing can be recorded.
pub fn run(args: &Doctor) -> Result<ExitCode> {
    let mut checks = gpuwhy_collect::host::facts();
    checks.push(library(crate::inside::library(None)));
    let refusal = refusal_of(&checks);
    if args.json {
        let document = Document {
            schema_version: 1,
            can_record: refusal.is_none(),
            checks: checks
                .iter()
                .map(|c| Told {
                    name: &c.name,
                    ok: c.ok,
                    found: &c.found,
                    why_it_matters: c.why_it_matters,
                    needed: c.needed,
                    fix: &c.fix,
                })
                .collect(),
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        let paint = Paint::stdout();
        for check in &checks {
            let mark = if check.ok { "ok  " } else { "MISS" };
            println!("{mark} {}: {}", paint.bold(&check.name), check.found);
            if !check.ok {
                println!("       why it matters: {}", check.why_it_matters);
                if !check.fix.is_empty() {
                    println!("       fix: {}", check.fix);
                }
            }
        }
        match &refusal {
            None => println!("\nThis host can be recorded: gpuwhy record -- CMD"),
            Some(reason) => println!("\n{reason}"),
        }
    }
    Ok(if refusal.is_none() { ExitCode::SUCCESS } else { exit::privilege() })
}

/// Whether programs can be seen from inside.
fn library(found: Option<std::path::PathBuf>) -> Check {
    let there = found.as_ref().is_some_and(|path| path.is_file());
    let (ok, found, fix) = match (found, gpuwhy_wire::is_off()) {
        (_, true) => (
            false,
            "GPUWHY_OFF is set: it does nothing in programs that inherit that".into(),
            "unset GPUWHY_OFF",
        ),
        (Some(path), _) if there => (true, path.display().to_string(), ""),
        (Some(path), _) => (
            false,
            format!("GPUWHY_INJECT names {}, which is not there", path.display()),
            "build it, `make release`, or name the one that is there",
        ),
        (None, _) => (
            false,
            "not beside gpuwhy, not in its lib folder".into(),
            "`make release` builds it; GPUWHY_INJECT may name another place",
        ),
    };
    Check {
        name: "library inside programs".into(),
        ok,
        needed: false,
        why_it_matters: "kernels, copies and collectives are told by libgpuwhy_inject.so, which the \
                         CUDA driver and NCCL load into the program",
        found,
        fix: fix.into(),
    }
}

/// Why this host cannot be recorded now, and what would change that.
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
            "this host cannot be recorded by this user:\n{}\n`gpuwhy doctor` tells all of it",
            missing.join("\n")
        )
    })
}
