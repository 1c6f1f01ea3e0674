//! Python programs that say themselves what their steps are, against the ledger that they keep.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuwhy_schema::Span;
use gpuwhy_store::Trace;

use crate::{built, folder, gpuwhy, may_record, said};

/// A Python of at least 3.10 on this machine; says why not.
pub fn python() -> Option<&'static str> {
    const CHECK: &str = "import sys; sys.exit(sys.version_info < (3, 10))";
    let works = |python: &&str| {
        Command::new(python).args(["-c", CHECK]).output().is_ok_and(|out| out.status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(works);
    if found.is_none() {
        println!("skipped: no Python of 3.10 or later here");
    }
    found
}

/// The package as `make release` leaves it, and the wheel, in `folder`.
pub fn package(python: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(python)
        .arg(root.join("scripts/wheel.py"))
        .args([&built("libgpuwhy_python.so"), folder])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    folder.join("gpuwhy-python")
}

/// `gpuwhy record` with a package.
pub fn record(package: &Path, trace: &Path, command: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
        .args(["record", "-o", trace.to_str().unwrap(), "--"])
        .args(command)
        .env("GPUWHY_WHEEL", package)
        .output()
        .unwrap()
}

/// Start and duration of all spans of a name, ns, in order.
fn spans(trace: &Path, name: &str) -> Vec<(i64, i64)> {
    let trace = Trace::open(trace).unwrap();
    let all = trace.all::<Span>().flat_map(Result::unwrap);
    let mut found: Vec<_> =
        all.filter(|span| &*span.name == name).map(|s| (s.ts.0, s.dur.unwrap().0)).collect();
    found.sort_unstable();
    found
}

/// What a script prints of each piece of work: its name, and ns before and after.
fn ledger(output: &[u8], name: &str) -> Vec<i64> {
    let text = String::from_utf8_lossy(output);
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    };
    text.lines().filter_map(line).collect()
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values[values.len() / 2]
}

const MARKED: &str = r#"
import time, gpuwhy
clock = time.monotonic_ns
steps, parts = [], []
for n in range(60):
    before = clock()
    with gpuwhy.step("train", size=n):
        began = clock()
        with gpuwhy.span("load"):
            time.sleep(0.004 + 0.0001 * n)
        parts.append(clock() - began)
        time.sleep(0.006)
        gpuwhy.mark("loss", 1 / (n + 1))
    steps.append(clock() - before)
for took in steps: print("step", took)
for took in parts: print("load", took)
"#;

#[test]
fn root_steps_and_spans_of_a_python_program_are_as_in_its_own_ledger() {
    let Some(python) = python().filter(|_| may_record()) else { return };
    let (_keep, folder) = folder();
    let (package, trace) = (package(python, &folder), folder.join("run.trace"));
    let output = record(&package, &trace, &[python, "-c", MARKED]);
    assert!(output.status.success(), "{}", said(&output));
    for (name, label) in [("train", "step"), ("load", "load")] {
        let (spans, own) = (spans(&trace, name), ledger(&output.stdout, label));
        assert_eq!((spans.len(), own.len()), (60, 60), "{name}: {}", said(&output));
        let off = median(spans.iter().zip(&own).map(|((_, dur), own)| (dur - own).abs()).collect());
        println!("{name}: {off} ns from the program's own ledger (median)");
        assert!(off < 100_000, "{name}: {off} ns from the program's own ledger");
    }
    let output = gpuwhy(&["diagnose", trace.to_str().unwrap(), "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["steps"], 60, "{document}");
}

const TASKS: &str = r#"
import asyncio, gpuwhy
@gpuwhy.step("request")
async def request(n):
    await part(n)
@gpuwhy.span("part")
async def part(n):
    await asyncio.sleep(0.01 * (3 - n))
async def main():
    for _ in range(10):
        await asyncio.gather(*(request(n) for n in range(3)))
asyncio.run(main())
"#;

/// Three tasks take turns on one thread, and those that begin first end last.
#[test]
fn root_steps_of_tasks_that_take_turns_keep_their_own_times() {
    let Some(python) = python().filter(|_| may_record()) else { return };
    let (_keep, folder) = folder();
    let (package, trace) = (package(python, &folder), folder.join("run.trace"));
    let output = record(&package, &trace, &[python, "-c", TASKS]);
    assert!(output.status.success(), "{}", said(&output));
    for name in ["request", "part"] {
        let spans = spans(&trace, name);
        assert_eq!(spans.len(), 30, "{name}: {spans:?}");
        // At least what the task slept; a step that took another's end would be shorter or longer.
        for three in spans.chunks(3) {
            let least = [29_000_000, 19_000_000, 9_000_000];
            assert!(three.iter().zip(least).all(|((_, dur), least)| *dur >= least), "{three:?}");
            assert!(three.windows(2).all(|two| two[0].1 > two[1].1), "{three:?}");
        }
    }
}

const PATHS: &str = "import sys, os\n\
    print(sys.path, sorted(name for name in sys.modules if 'gpuwhy' not in name), sys.argv)\n\
    import sitecustomize; print(sitecustomize.MINE)\n\
    sys.exit(7)\n";

/// The user's own sitecustomize runs, and paths, modules and status are as without us.
#[test]
fn root_a_python_program_is_the_same_when_it_is_recorded() {
    let Some(python) = python().filter(|_| may_record()) else { return };
    let (_keep, folder) = folder();
    let (package, trace) = (package(python, &folder), folder.join("run.trace"));
    let own = folder.join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("sitecustomize.py"), "MINE = 'mine'\n").unwrap();
    let alone = Command::new(python).args(["-c", PATHS]).env("PYTHONPATH", &own).output().unwrap();
    let recorded = Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
        .args(["record", "-o", trace.to_str().unwrap(), "--", python, "-c", PATHS])
        .env("GPUWHY_WHEEL", &package)
        .env("PYTHONPATH", &own)
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(7), "{}", said(&alone));
    assert_eq!(recorded.status.code(), Some(7), "{}", said(&recorded));
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text(&recorded), text(&alone));
}

/// What loops do and which steps that makes, without a library and without a recording.
#[test]
fn steps_of_training_loops_follow_from_their_events() {
    let Some(python) = python() else { return };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/steps.py");
    let output = Command::new(python).arg("-B").arg(cases).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// What is written of compilations by Numba and Triton, as they call our hooks. GPUWHY_NUMBA_PYTHON names a Python that
/// has Numba.
#[test]
fn compilations_by_numba_and_triton_are_parts_of_steps() {
    let Some(python) = python() else { return };
    let named = std::env::var("GPUWHY_NUMBA_PYTHON").unwrap_or_else(|_| python.to_owned());
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/compiling.py");
    let output = Command::new(named).arg("-B").arg(cases).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// A Python with PyTorch: the one that GPUWHY_TORCH_PYTHON names, the environment of `make bench-train`, or Debian's.
/// Says if there is none.
fn python_with_torch() -> Option<String> {
    let cache = std::env::var("XDG_CACHE_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cache")));
    let ours = cache.map(|cache| format!("{cache}/gpuwhy/train/bin/python"));
    let named = std::env::var("GPUWHY_TORCH_PYTHON").ok();
    let all = named.into_iter().chain(ours).chain([python()?.to_owned()]);
    let has_torch = |python: &String| {
        let output = Command::new(python).args(["-c", "import torch"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = all.into_iter().find(has_torch);
    if found.is_none() {
        println!(
            "skipped: no Python here has torch (apt install python3-torch, or make bench-train)"
        );
    }
    found
}

/// Loops that import nothing of ours. `LOOP` names one; each prints its steps and phases as it sees them.
const TRAINING: &str = include_str!("training.py");

fn trained(case: &str) -> Option<(tempfile::TempDir, PathBuf, Vec<u8>)> {
    let python = python_with_torch().filter(|_| may_record())?;
    let (keep, folder) = folder();
    let (package, trace) = (package(&python, &folder), folder.join("run.trace"));
    let output = record(&package, &trace, &[python.as_str(), "-c", TRAINING, case]);
    assert!(output.status.success(), "{}", said(&output));
    Some((keep, trace, output.stdout))
}

/// Counts are exact, and each phase is within 100 us of the program's own ledger (median).
fn assert_as_in_ledger(case: &str, names: &[&str]) {
    let Some((_keep, trace, output)) = trained(case) else { return };
    for name in names {
        let (spans, own) = (spans(&trace, name), ledger(&output, name));
        assert!(!own.is_empty(), "{case}: no {name} in the program's own ledger");
        assert_eq!(spans.len(), own.len(), "{case}: {name}");
        let off = median(spans.iter().zip(&own).map(|((_, dur), own)| (dur - own).abs()).collect());
        println!("{case}: {name}: {} of them, {off} ns off (median)", own.len());
        assert!(off < 100_000, "{case}: {name} is {off} ns from the program's own ledger");
    }
}

#[test]
fn root_a_plain_training_loop_shows_its_steps_and_phases() {
    assert_as_in_ledger(
        "plain",
        &["train", "data", "forward", "backward", "optimizer", "evaluation", "checkpoint"],
    );
}

#[test]
fn root_four_accumulated_batches_are_one_step() {
    assert_as_in_ledger("accumulate", &["train", "data", "forward", "backward", "optimizer"]);
}

#[test]
fn root_two_optimizers_of_a_gan_are_one_step() {
    assert_as_in_ledger("gan", &["train", "data", "backward", "optimizer"]);
}

#[test]
fn root_an_optimizer_that_calls_the_loop_itself_is_told_apart_from_it() {
    assert_as_in_ledger("lbfgs", &["train", "forward", "backward"]);
}

#[test]
fn root_a_step_whose_gradients_overflow_is_a_step() {
    assert_as_in_ledger("overflow", &["train", "data", "forward", "backward"]);
}
