//! `gpuwhy engine check`: whether the spans of engines that serve language models are found in a package, before
//! anything is recorded. The check itself is Python, which reads the package's source and imports nothing of it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Subcommand;
use gpuwhy_engine::launch;

/// Engines that serve language models.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Engine,
}

#[derive(Debug, Subcommand)]
enum Engine {
    /// Tell which spans a recording would show of the installed vLLM, SGLang or transformers, and which not
    ///
    /// Reads the package's source and imports nothing of it. The exit code is 1 if a function is missing that this
    /// version should have.
    Check {
        /// Folders that hold the engine's package, such as an environment's site-packages or an unpacked wheel; by
        /// default wherever the interpreter finds packages
        #[arg(value_name = "FOLDER")]
        folders: Vec<PathBuf>,
        /// The interpreter whose packages are looked at
        #[arg(long, value_name = "PYTHON", default_value = "python3")]
        python: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// Runs the check of the package in the folder that is the first argument. Not by PYTHONPATH: the package takes itself out of
/// that in processes that are not recorded.
const CHECK: &str = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gpuwhy import _engine_check; \
                     sys.exit(_engine_check.main(sys.argv[1:]))";

/// Becomes the interpreter.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Engine::Check { folders, python, json } = &args.command;
    let package = launch::python_package().context(
        "the Python package is not beside gpuwhy: `make release` builds it, and GPUWHY_WHEEL names its folder",
    )?;
    let mut command = Command::new(python);
    command.args(["-c", CHECK]).arg(&package).arg("check");
    command.args(json.then_some("--json"));
    // A folder that begins with a dash is no option.
    command.args(folders.iter().map(|folder| {
        let relative = folder.as_os_str().as_encoded_bytes().starts_with(b"-");
        let mut named = OsString::from(if relative { "./" } else { "" });
        named.push(folder);
        named
    }));
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run `{}`", python.display()))
}
