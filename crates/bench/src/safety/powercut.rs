//! The power goes at every moment of a recording: does what is left open, validate, and hold all that was
//! sealed?

use anyhow::{Context as _, Result};

use super::disk::{Draw, Keeps};
use super::power;
use crate::result::Figure;

/// States that are tried, over all moments and kinds.
const STATES: usize = 10_000;
/// Broken states that are told one by one.
const TOLD: usize = 5;

/// Tries states after power cuts.
pub fn run(args: &super::Args) -> Result<super::Measured> {
    // Memory is enough: what a disk would keep is modelled.
    let shm = std::path::Path::new("/dev/shm");
    let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    let folder = base.join(format!("gpuwhy-powercut-{}", std::process::id()));
    std::fs::create_dir(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    let recording = power::record(&folder.join("recorded"))?;
    let moments = recording.ops.len() + 1;
    let critical = recording.critical();
    let mut draw = Draw(args.seed);
    let (mut valid, mut broken) = (0, Vec::new());
    let states = args.tries(STATES);
    for number in 0..states {
        // Every moment in turn, with each kind in turn; every other state is one of the critical moments, at
        // which any of what is not flushed may be lost.
        let (moment, keeps) = match number % 2 {
            0 => ((number / 2) % moments, Keeps::ALL[(number / 2 / moments) % Keeps::ALL.len()]),
            _ => (critical[(number / 2) % critical.len()], Keeps::Any),
        };
        let state = recording.cut(moment, keeps, &mut draw);
        match power::broken(&state, &folder.join(format!("{number}")), keeps, &mut draw) {
            None => valid += 1,
            Some(why) => broken.push(format!("before operation {moment}, {keeps:?}: {why}")),
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    let mut measured = super::Measured::default();
    measured.figures.insert("powercut_prefixes_valid".into(), Figure::share(valid, states));
    let operations = Figure::of(&[recording.ops.len() as f64]);
    measured.figures.insert("powercut_operations".into(), operations);
    measured.notes = broken.into_iter().take(TOLD).collect();
    Ok(measured)
}
