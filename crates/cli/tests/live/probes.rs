//! A probe in the kernels of a program that is recorded: what it counts there becomes a part of the verdict.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpuwhy_testkit::gpu;
use serde_json::Value;

use crate::{alone, built, folder, gpuwhy, in_one_of_three_tries, may_record, said};

/// A probe of `probe new`, compiled by its own Makefile.
fn probe(folder: &Path, tool: &str) -> PathBuf {
    let dir = folder.join(tool);
    let new = Command::new(built("gpuwhy-probe")).args(["new", "--tool", tool]).arg(&dir).output();
    let new = new.unwrap();
    assert!(new.status.success(), "{}", said(&new));
    let made = Command::new("make").arg("-C").arg(&dir).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    dir.join("probe.bpf.o")
}

fn program(folder: &Path) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let to = folder.join("uneven");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-I"]).arg(crates.join("wire/include"));
    command.arg(crates.join("../bench/probes/uneven.c")).arg("-o").arg(&to).arg("-ldl");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    to
}

/// `gpuwhy` with these words, into a trace, around `gpuwhy probe run` with these options, over the stand-in in the folder; the object
/// and the command are to follow.
fn probed(folder: &Path, words: &[&str], trace: &Path, options: &[&str]) -> Command {
    let libraries = folder.join("libraries");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy"));
    command.args(words).args(["--force", "-o"]).arg(trace);
    command.arg("--inject-library").arg(built("libgpuwhy_inject.so")).arg("--");
    command.arg(built("gpuwhy-probe")).args(["run", "--no-cache"]).args(options).arg("--object");
    command
        .env("GPUWHY_STANDIN", folder.join("machine"))
        .env("GPUWHY_STANDIN_EXECUTES", "1")
        .env("GPUWHY_INTERPOSE", built("libgpuwhy_interpose.so"))
        .env("GPUWHY_NVML", libraries.join("libnvidia-ml.so.1"))
        .env("LD_LIBRARY_PATH", &libraries);
    command
}

/// The finding that lost most in a run of a program whose steps become slow in this way.
fn judged(folder: &Path, object: &Path, program: &Path, how: &str, late: &str) -> Option<Value> {
    let trace = folder.join(format!("{how}.trace"));
    let output = probed(folder, &["record", "--json"], &trace, &[])
        .args([object, Path::new("--"), program])
        .args([how, "500", "400", "4", "24"])
        .env("GPUWHY_STANDIN_LATE", late)
        .output()
        .unwrap();
    assert!(output.status.success(), "{how}: {}", said(&output));
    assert!(said(&output).contains("probes lie in "), "{how}: {}", said(&output));
    let valid = gpuwhy(&["validate", trace.to_str().unwrap()]);
    assert!(valid.status.success(), "{}", said(&valid));
    let output = gpuwhy(&["diagnose", "--json", trace.to_str().unwrap()]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{how}: {}", document["findings"][0]["summary"]);
    document["findings"].as_array()?.first().cloned()
}

/// The stand-in's machine and libraries in a folder, a probe of this name, and the program.
fn prepared(folder: &Path, tool: &str) -> (PathBuf, PathBuf) {
    std::fs::create_dir(folder.join("machine")).unwrap();
    gpu::link_libraries(&folder.join("libraries"), &built("libgpuwhy_standin.so")).unwrap();
    (probe(folder, tool), program(folder))
}

/// Of launches that take several times as long, those that wait for one block are told from those that have more to do;
/// where nothing changes nothing is told.
#[test]
fn root_a_kernel_that_waits_for_one_of_its_blocks_is_told_from_one_that_has_more_to_do() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (_keep, folder) = folder();
    let (object, program) = prepared(&folder, "tail");
    in_one_of_three_tries(|| {
        let judged = |how: &str| judged(&folder, &object, &program, how, "");
        let uneven = judged("uneven").expect("steps became slow");
        assert_eq!(uneven["class"], "kernel_imbalance", "{uneven:#}");
        // The kernel by its name.
        let says = uneven["causes"][0]["evidence_for"].to_string();
        assert!(says.contains("most of it in `work(unsigned int, unsigned int)`"), "{uneven:#}");
        // One block takes 20 ms longer than the others.
        let excess = uneven["causes"][0]["excess_ms"].as_f64().unwrap();
        assert!((12.0..22.0).contains(&excess), "{uneven:#}");
        let more = judged("more").expect("steps became slow");
        assert_ne!(more["class"], "kernel_imbalance", "{more:#}");
        if let Some(none) = judged("none") {
            assert_ne!(none["class"], "kernel_imbalance", "{none:#}");
        }
    });
}

/// Of steps that take several times as long, those whose launches begin late are told from those whose kernels have more to
/// do, and from those whose launches wait for a block.
#[test]
fn root_launches_that_begin_late_are_told_from_kernels_that_take_longer() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (_keep, folder) = folder();
    let (object, program) = prepared(&folder, "launchlate");
    in_one_of_three_tries(|| {
        let judged = |how: &str, late: &str| judged(&folder, &object, &program, how, late);
        // From the launch 400 on they begin 20 ms later than they could.
        let late = judged("none", "_Z4workjj:400:20000").expect("steps became slow");
        assert_eq!(late["class"], "launch_latency", "{late:#}");
        let says = late["causes"][0]["evidence_for"].to_string();
        assert!(says.contains("most of it in `work(unsigned int, unsigned int)`"), "{late:#}");
        let excess = late["causes"][0]["excess_ms"].as_f64().unwrap();
        assert!((12.0..22.0).contains(&excess), "{late:#}");
        let more = judged("more", "").expect("steps became slow");
        assert_ne!(more["class"], "launch_latency", "{more:#}");
        let uneven = judged("uneven", "").expect("steps became slow");
        assert_eq!(uneven["class"], "kernel_imbalance", "{uneven:#}");
    });
}

/// A probe that stands by is off until steps wait longer for their GPU, and then tells why.
#[test]
fn root_a_probe_that_stands_by_is_on_while_steps_wait_for_their_gpu_and_then_tells_why() {
    if !may_record() {
        return;
    }
    let _alone = alone();
    let (_keep, folder) = folder();
    let (object, program) = prepared(&folder, "tail");
    let watched = |how: &str| {
        let (events, trace) = (folder.join("events"), folder.join(format!("{how}.watch")));
        let words = ["watch", "--json", "--max-cpu", "50", "--events", events.to_str().unwrap()];
        let output = probed(&folder, &words, &trace, &["--stand-by"])
            .args([&object, Path::new("--"), &program])
            // Some 9 s as usual, and as long as it takes with 24 ms a step.
            .args([how, "1300", "1000", "4", "24"])
            .output()
            .unwrap();
        assert!(output.status.success() || output.status.code() == Some(2), "{}", said(&output));
        let events = std::fs::read_to_string(events).unwrap();
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is = |event: &Value| ["verdict", "over"].contains(&event["event"].as_str().unwrap());
        let classes = events.filter(is).map(|event| event["finding"]["class"].to_string());
        let classes: Vec<String> = classes.map(|class| class.replace('"', "")).collect();
        println!("{how}: {classes:?}\n{}", said(&output));
        (classes, said(&output))
    };
    in_one_of_three_tries(|| {
        let (classes, told) = watched("uneven");
        assert!(told.contains("the programs stood by, and were on "), "{told}");
        assert!(classes.iter().any(|class| class == "kernel_imbalance"), "{classes:?}\n{told}");
        let (classes, told) = watched("none");
        assert!(told.contains("the programs stood by, and nobody asked for them"), "{told}");
        assert!(classes.iter().all(|class| class != "kernel_imbalance"), "{classes:?}");
    });
    // Without anybody who would ask for them, it says so before the command begins.
    let alone = Command::new(built("gpuwhy-probe"))
        .args(["run", "--stand-by", "--object"])
        .args([&object, Path::new("--"), Path::new("/bin/true")])
        .env_remove("GPUWHY_SOCKET")
        .env("GPUWHY_INTERPOSE", built("libgpuwhy_interpose.so"))
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(said(&alone).contains("--stand-by waits for `gpuwhy watch`"), "{}", said(&alone));
}
