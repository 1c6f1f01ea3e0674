//! Exit codes beyond 0, done.

use std::process::ExitCode;

/// It failed.
pub fn failed() -> ExitCode {
    ExitCode::from(1)
}

/// It was called wrongly.
pub fn usage() -> ExitCode {
    ExitCode::from(2)
}

/// Nothing anomalous, or inconclusive, where that is the answer.
pub fn nothing() -> ExitCode {
    ExitCode::from(3)
}

/// A privilege is missing.
pub fn privilege() -> ExitCode {
    ExitCode::from(5)
}

/// The command could not be started: 126 or 127, as shells have it.
pub fn not_started(code: u8) -> ExitCode {
    ExitCode::from(code)
}
