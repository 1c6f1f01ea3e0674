//! `gpuwhy validate`: every invariant of a trace.

use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_store::Trace;

use crate::args::Validate;
use crate::exit;

/// Checks a trace; exit code 1 if a rule is broken.
pub fn run(args: &Validate) -> Result<ExitCode> {
    let trace = Trace::open(&args.trace)?;
    let report = gpuwhy_store::validate(&trace);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.is_valid() { ExitCode::SUCCESS } else { exit::failed() })
}
