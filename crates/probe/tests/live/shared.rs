//! An array that programs of the host's kernel and programs in a running program's GPU kernels count in.
//!
//! Loading BPF programs needs root; without it the test prints why it was skipped.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use gpuwhy_collect::SharedArray;
use libbpf_rs::{ObjectBuilder, ProgramInput};

use super::{COPY, Place, image, number, said, text};

/// A BPF file system of the test's own.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn root_the_kernel_and_kernels_of_a_running_program_count_in_one_map() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading BPF programs needs root");
        return;
    }
    let mut place = Place::new();
    let bpf = place.dir.join("bpf");
    std::fs::create_dir(&bpf).unwrap();
    let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&bpf).status().unwrap();
    assert!(mounted.success());
    let _mounted = Mounted(&bpf);
    let kernel = std::fs::read(place.compiled("kernel_counts", &[])).unwrap();
    let mut kernel = ObjectBuilder::default().open_memory(&kernel).unwrap().load().unwrap();
    let pinned = bpf.join("counts");
    kernel.maps_mut().next().unwrap().pin(&pinned).unwrap();
    let array = SharedArray::open(&pinned).unwrap();
    place.object = place.compiled("shared", &[]);

    let path = image("zstd.fatbin");
    let words = ["./loads", "dlsym", "library", text(&path), COPY, "1", "40", "slow"];
    let shared = format!("counts={}", text(&pinned));
    let count = kernel.progs_mut().next().unwrap();
    let ended = AtomicBool::new(false);
    let (found, runs) = std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let found = place.found(&["--map", &shared], &words);
            ended.store(true, Ordering::SeqCst);
            found
        });
        let mut runs = 0;
        while !ended.load(Ordering::SeqCst) {
            count.test_run(ProgramInput::default()).unwrap();
            runs += 1;
        }
        (running.join().unwrap().0, runs)
    });
    let threads = number(&found, "own", 0);
    assert!(threads > 0 && threads.is_multiple_of(256), "{found:#}");
    assert_eq!(array.numbers()[0], runs + threads, "none is lost");
    assert_eq!(array.numbers()[699], 0);

    // What the host has put there is seen by the next launch, and the controller tells what the map holds.
    let mut before = array.numbers();
    before[0] = 0;
    let mut after = before.clone();
    after[0] = 1_000_000;
    array.add_growth(&before, &after);
    let (found, _) = place.found(&["--map", &shared], &words);
    let again = number(&found, "own", 0);
    assert_eq!(number(&found, "counts", 699), again);
    assert_eq!(number(&found, "counts", 0), 1_000_000 + runs + threads + again);

    // Arrays that cannot be shared are refused before the command starts.
    for (map, why) in [("own", "has type 1503"), ("none", "there is no map `none`")] {
        let shared = format!("{map}={}", text(&pinned));
        let output = place.probed(&["--map", &shared], &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(why), "{}", said(&output));
    }
}
