//! Where `gpuwhy-query` is, the program that carries the SQL engine.
//!
//! The engine takes half an hour to compile and a hundred megabytes; recording and diagnosing need
//! neither, so it is a program of its own beside this one.

use std::path::PathBuf;

use crate::error::Error;

/// Its name.
const PROGRAM: &str = "gpuwhy-query";

/// The program: as GPUWHY_QUERY says, or beside this one, or on the PATH.
pub fn program() -> PathBuf {
    crate::launch::program_beside(PROGRAM, "GPUWHY_QUERY")
}

/// The error of a program that cannot be run, with what to do about it.
pub fn cannot_run(source: std::io::Error) -> Error {
    let hint = match source.kind() {
        std::io::ErrorKind::NotFound => {
            ": SQL and clusters are a program of their own; `make query` builds it, and GPUWHY_QUERY \
             names it if it is neither beside gpuwhy nor on the PATH"
        }
        _ => "",
    };
    Error::Run { program: program().display().to_string(), hint, source }
}
