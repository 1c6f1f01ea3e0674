//! Machine code without PTX: NVIDIA's Sanitizer, or its stand-in, calls the programs from it.
//!
//! The cubin is NVIDIA's own; the stand-in executes the PTX that it was made of in its place.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use gpuwhy_gpubpf::image::{Content, Images};
use serde_json::Value;

use super::common::{said, skeleton, text};
use super::{COPY, Place, counted, image, of_launches};

/// A place with a cubin that has no PTX, and what runs in its stead.
fn place(tool: &str) -> (Place, PathBuf) {
    let mut place = Place::new();
    if tool != "counts" {
        place.object = skeleton(&place.dir, tool);
    }
    let cubin = place.dir.join("alone.cubin");
    let fatbin = fs::read(image("zstd.fatbin")).unwrap();
    let mut images = Images::new(fatbin.as_slice()).map(Result::unwrap);
    let machine = images.find(|i| i.content == Content::Cubin && i.arch.number == 90).unwrap();
    fs::write(&cubin, machine.bytes).unwrap();
    (place, cubin)
}

impl Place {
    /// Runs `probe run` with these options on a program that loads machine code, and one without it beside; what was found,
    /// and what it printed.
    fn code(&self, options: &[&str], words: &[&str], set: &[(&str, &str)]) -> (Value, String) {
        let source = image("kernels.ptx");
        let run = |command: &mut Command| {
            let output = command
                .env("GPUWHY_STANDIN_SOURCE", &source)
                .envs(set.iter().copied())
                .output()
                .unwrap();
            (output.status, String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
        };
        let mut alone = Command::new(words[0]);
        self.set(&mut alone);
        let (status, printed, _) = run(alone.args(&words[1..]));
        let library = format!("--sanitizer={}", text(&self.dir.join("lib/libsanitizer-public.so")));
        let all: Vec<&str> =
            [library.as_str()].into_iter().chain(options.iter().copied()).collect();
        let (with, same, told) = run(&mut self.probed(&all, words));
        assert_eq!((same, with.code()), (printed, status.code().or(Some(137))), "{told}");
        let found = fs::read(self.dir.join("found.json")).unwrap();
        (serde_json::from_slice(&found).unwrap(), told)
    }
}

/// Each way to the driver, and each function that loads: the programs count what they count in PTX.
#[test]
fn a_probe_counts_in_machine_code_that_has_no_ptx_however_it_is_loaded() {
    let (place, cubin) = place("counts");
    for (program, way, loads) in [
        ("./loads", "dlsym", &["module", "moduleex", "wrapper", "file", "library", "graph"][..]),
        ("./loads", "asked", &["module", "library", "libraryfile", "graph"]),
        ("./linked", "linked", &["module", "library"]),
    ] {
        for load in loads {
            let words = [program, way, load, text(&cubin), COPY, "1", "3"];
            let (found, told) = place.code(&[], &words, &[]);
            assert_eq!(counted(&found), [of_launches(3)], "{way}, {load}: {found:#}\n{told}");
            let image = &found["images"][0];
            assert_eq!(image["contexts"][0]["complete"], true, "{found:#}");
            assert_eq!(image["fate"], "called by Sanitizer", "{found:#}");
            assert!(told.contains("copy(float const*, float*): 2 sites"), "{told}");
        }
    }
}

#[test]
fn machine_code_in_two_contexts_unloaded_and_with_threads_that_end_by_signal_is_counted() {
    let (place, cubin) = place("counts");
    for (load, end) in [
        ("module", "unload"),
        ("library", "unload"),
        ("library", "exit"),
        ("module", "kill"),
        ("module", "fork"),
    ] {
        let words = ["./loads", "asked", load, text(&cubin), COPY, "2", "5", end];
        let (found, told) = place.code(&[], &words, &[]);
        assert_eq!(counted(&found), [of_launches(5); 2], "{load}, {end}: {found:#}\n{told}");
        let devices: Vec<_> =
            (0..2).map(|n| found["images"][n]["contexts"][0]["device"].as_u64()).collect();
        assert_eq!(devices, [Some(0), Some(1)], "{found:#}");
    }
}

#[test]
fn images_with_ptx_are_spliced_as_ever_and_their_code_is_not_patched_too() {
    let (place, _) = place("counts");
    let fatbin = image("zstd.fatbin");
    for load in ["module", "library", "link"] {
        let words = ["./loads", "asked", load, text(&fatbin), COPY, "1", "3"];
        let (found, told) = place.code(&[], &words, &[]);
        assert_eq!(counted(&found), [of_launches(3)], "{load}: {found:#}");
        assert_eq!(found["images"][0]["fate"], "with probes", "{told}");
    }
}

#[test]
fn launch_latency_and_switches_are_the_same_for_machine_code() {
    let (mut place, cubin) = place("launchlate");
    for load in ["module", "library"] {
        let words = ["./loads", "asked", load, text(&cubin), COPY, "1", "3", "slow"];
        let (found, told) = place.code(&[], &words, &[]);
        let launches = &found["images"][0]["contexts"][0]["launches"];
        assert_eq!(launches["kernels"][0]["launches"], 3, "{load}: {found:#}\n{told}");
    }
    place.object = place.dir.join("counts/probe.bpf.o");
    let words = ["./loads", "asked", "module", text(&cubin), COPY, "1", "3"];
    let (found, _) = place.code(&["--off"], &words, &[]);
    assert_eq!(counted(&found), [[0, 0]], "{found:#}");
    let (found, _) = place.code(&["--one-block-in", "2"], &words, &[]);
    assert_eq!(found["images"][0]["contexts"][0]["sampled"]["blocks"]["all"], 12, "{found:#}");
    let warps = counted(&found)[0][0];
    assert!(warps > 0 && warps < 24, "{found:#}");
}

#[test]
fn whatever_goes_wrong_with_sanitizer_is_told_and_the_code_runs_as_it_is() {
    let (place, cubin) = place("counts");
    let words = ["./loads", "asked", "module", text(&cubin), COPY, "1", "3"];
    // No library of that kind: it is told, and the image as one that has no PTX.
    let libc = place.dir.join("lib/other.so");
    fs::copy(place.dir.join("loads"), &libc).unwrap();
    let wrong = format!("--sanitizer={}", text(&libc));
    let mut command = place.probed(&[&wrong], &words);
    let output = command.env("GPUWHY_STANDIN_SOURCE", image("kernels.ptx")).output().unwrap();
    let told = said(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("Sanitizer: its library cannot be loaded"), "{told}");
    assert!(told.contains("it holds machine code for sm_90 alone"), "{told}");
    // The driver, or Sanitizer, does not take the functions.
    let refuses = [("GPUWHY_STANDIN_REFUSES", "gpuwhy_patch_enter")];
    let (found, told) = place.code(&[], &words, &refuses);
    assert!(told.contains("Sanitizer refused it (SanitizerResult"), "{told}");
    assert_eq!(
        (counted(&found), &found["images"][0]["probes"]),
        (vec![[0, 0]], &Value::Bool(false))
    );
    // An assembler that fails, and a library that is nowhere.
    let (_, told) = place.code(&["--ptxas", "/bin/false"], &words, &[]);
    assert!(told.contains("`/bin/false` refuses the functions"), "{told}");
    let output = place.probed(&["--sanitizer=/nowhere.so"], &words).output().unwrap();
    assert!(said(&output).contains("/nowhere.so"), "{}", said(&output));
    assert_eq!(output.status.code(), Some(1));
}

/// NVIDIA's own library beside a driver that is not theirs: it has nothing to tell, and nothing breaks.
#[test]
fn nvidias_library_beside_another_driver_leaves_the_program_as_it_is() {
    let cache = std::env::var("XDG_CACHE_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cache")));
    let library = PathBuf::from(cache.unwrap_or_default())
        .join("gpuwhy/sanitizer/lib/libsanitizer-public.so");
    if !library.is_file() {
        println!("skipped: no Sanitizer of NVIDIA's; scripts/sanitizer.sh brings it");
        return;
    }
    let place = Place::new();
    let option = format!("--sanitizer={}", text(&library));
    let (ptx, way) = (image("zstd.fatbin"), ["./loads", "asked", "library"]);
    let words: Vec<&str> = way.into_iter().chain([text(&ptx), COPY, "1", "3"]).collect();
    let (found, told) = place.found(&[&option], &words);
    assert_eq!(counted(&found), [of_launches(3)], "{found:#}");
    assert!(!told.contains("NVIDIA's Sanitizer:"), "{told}");
}
