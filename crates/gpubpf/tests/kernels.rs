//! Kernels of CUDA and Triton in the simulator, against what NumPy computed.
//!
//! A handful lies in `tests/kernels` with its source; `scripts/kernels.sh` compiles the others.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpuwhy_gpubpf::sim::{Config, Facts};
use support::cases::Case;

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels")
}

/// What each kernel of a folder did, or why it did not.
fn run_all(folder: &Path) -> BTreeMap<String, Result<Facts, String>> {
    let mut found = BTreeMap::new();
    for case in Case::all(folder) {
        let text = std::fs::read_to_string(&case.module).unwrap();
        found.insert(case.name.clone(), case.run(&text, Config::default()));
    }
    found
}

#[test]
fn kernels_of_ours_compute_what_numpy_does() {
    let all = run_all(&here());
    let wrong: Vec<_> =
        all.iter().filter_map(|(name, result)| Some((name, result.as_ref().err()?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(all.len() >= 10, "{}", all.len());
}

/// A column of a 32 × 32 tile lies in one bank; with a column of padding it does not.
#[test]
fn bank_conflicts_delay_the_warp() {
    let all = run_all(&here());
    let of = |name: &str| all[name].clone().unwrap();
    let (padded, plain) = (of("transpose"), of("transpose_conflicts"));
    assert_eq!(padded.total.instructions, plain.total.instructions);
    assert_eq!(padded.total.bank_conflicts, 0);
    assert!(plain.total.bank_conflicts > 1000, "{:?}", plain.total);
    assert!(plain.cycles > padded.cycles, "{} {}", plain.cycles, padded.cycles);
}

#[test]
fn every_kernel_that_was_compiled_computes_what_numpy_does() {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let Some(folder) = cache.map(|c| c.join("gpuwhy/kernels")).filter(|f| f.is_dir()) else {
        println!("skipped: scripts/kernels.sh has not compiled the kernels");
        return;
    };
    let all = run_all(&folder);
    let mut wrong = Vec::new();
    for (name, result) in &all {
        match result {
            Ok(facts) => println!(
                "{name}: {} instructions of warps, {:.1} lanes, {} sectors, {} cycles of bank conflicts",
                facts.total.instructions,
                facts.total.active_lanes(),
                facts.total.sectors,
                facts.total.bank_conflicts
            ),
            Err(why) => wrong.push(format!("{name}: {why}")),
        }
    }
    println!("{} of {} kernels as NumPy has it", all.len() - wrong.len(), all.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
}
