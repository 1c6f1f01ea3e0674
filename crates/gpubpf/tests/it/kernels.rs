//! Kernels of CUDA and Triton in the simulator, against what NumPy computed.
//!
//! A handful lies in `tests/kernels` with its source; `scripts/kernels.sh` compiles the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::cases::Case;
use crate::support::clang;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Contents, Facts};
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Object, Skeleton};

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

/// What `scripts/kernels.sh` has compiled; says if it has not.
fn compiled() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = cache.map(|c| c.join("gpuwhy/kernels")).filter(|f| f.is_dir());
    if folder.is_none() {
        println!("skipped: scripts/kernels.sh has not compiled the kernels");
    }
    folder
}

/// Runs each kernel of a folder with the probe of `gpuwhy probe new` in it. How many there are.
fn run_all_probed(folder: &Path) -> usize {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&clang::skeleton(Skeleton::named("counts").unwrap())).unwrap());
    let (table, mut wrong) = (plan.table(), Vec::new());
    let cases = Case::all(folder);
    for case in &cases {
        let text = std::fs::read_to_string(&case.module).unwrap();
        let spliced = plan.splice(&Module::read(&text).unwrap()).unwrap();
        let ran = case.run_with(&spliced.text, Config::default(), Some(&table));
        let of = |maps: &[Contents], key: u8| -> u64 {
            let entries = maps[0].entries.iter().filter(|entry| entry.key[0] == key);
            entries.map(|entry| u64::from_le_bytes(entry.bytes[..8].try_into().unwrap())).sum()
        };
        match ran {
            Err(why) => wrong.push(format!("{}: {why}", case.name)),
            Ok((_, maps)) => {
                let (warps, bytes) = (of(&maps, 0), of(&maps, 1));
                let loads = spliced.sites.iter().filter(|site| site.probe == "loaded").count();
                println!("{}: {warps} warps, {bytes} bytes at {loads} loads", case.name);
                if warps != case.warps() || maps[0].lost > 0 || (loads == 0 && bytes > 0) {
                    wrong.push(format!("{}: {warps} warps of {}", case.name, case.warps()));
                }
            }
        }
    }
    println!(
        "{} of {} kernels with a probe as NumPy has it",
        cases.len() - wrong.len(),
        cases.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    cases.len()
}

#[test]
fn kernels_of_ours_compute_the_same_with_a_probe_that_counts_their_warps() {
    assert!(run_all_probed(&here()) >= 10);
}

#[test]
fn every_kernel_that_was_compiled_computes_the_same_with_a_probe() {
    if let Some(folder) = compiled() {
        run_all_probed(&folder);
    }
}

#[test]
fn every_kernel_that_was_compiled_computes_what_numpy_does() {
    let Some(folder) = compiled() else { return };
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
