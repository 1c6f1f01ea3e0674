//! A map that a program of the kernel and a program in a kernel of a (simulated) GPU count in.
//!
//! Loading BPF programs needs root; without it the test prints why it was skipped.

#[path = "../../gpubpf/tests/it/support/clang.rs"]
#[allow(dead_code)]
mod clang;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use gpuwhy_collect::SharedArray;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Device, Launch, Maps};
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Budget, Object};
use libbpf_rs::{MapCore, ObjectBuilder};

/// Counts the threads that enter a kernel under the first key, and adds up what it finds there under the second.
const DEVICE: &str = r#"
#include "gpuwhy_probe.h"
struct {
	__uint(type, GPU_KERNEL_SHARED_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");
SEC("kprobe/*") int enters(void *ctx)
{
	__u32 first = 0, second = 1;
	__u64 *n = bpf_map_lookup_elem(&counts, &first), *found = bpf_map_lookup_elem(&counts, &second);
	if (n)
		__sync_fetch_and_add(n, 1);
	if (found)
		__sync_fetch_and_add(found, 1000000);
	return 0;
}
"#;

const KERNEL: &str =
    ".version 7.8\n.target sm_75\n.address_size 64\n.visible .entry k()\n{\n\tret;\n}\n";

fn compiled(folder: &Path, name: &str, text: &str) -> Vec<u8> {
    let source = folder.join(format!("{name}.bpf.c"));
    std::fs::write(&source, text).unwrap();
    clang::compiled(&source, "v3")
}

/// A BPF file system of the test's own.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn root_the_kernel_and_a_simulated_gpu_count_in_one_map() {
    if std::fs::metadata("/proc/self").map(|m| m.uid()).ok() != Some(0) {
        println!("skipped: loading BPF programs needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bpf = folder.path().join("bpf");
    std::fs::create_dir(&bpf).unwrap();
    let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&bpf).status().unwrap();
    assert!(mounted.success());
    let _mounted = Mounted(&bpf);

    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpubpf/tests/programs");
    let host = clang::compiled(&programs.join("kernel_counts.bpf.c"), "v3");
    let mut host = ObjectBuilder::default().open_memory(&host).unwrap().load().unwrap();
    let pinned = bpf.join("counts");
    host.maps_mut().next().unwrap().pin(&pinned).unwrap();
    let array = SharedArray::open(&pinned).unwrap();
    assert_eq!(array.numbers(), [0, 0]);

    let mut plan = Plan::new(How { budget: Budget::default(), ..How::default() });
    plan.object(&Object::read(&compiled(folder.path(), "device", DEVICE)).unwrap());
    let spliced = plan.splice(&Module::read(KERNEL).unwrap()).unwrap();
    let mut device = Device::new(Config::default());
    let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
    let (blocks, threads) = (8_u32, 128_u32);
    let maps = Maps::bind(&mut device, &image, &plan.table(), 1024, 1).unwrap();

    let (launches, runs) = (20_u32, 50_000_u64);
    std::thread::scope(|scope| {
        let (array, maps) = (&array, &maps);
        scope.spawn(move || {
            for _ in 0..launches {
                let before = array.numbers();
                maps.set_numbers(&mut device, "counts", &before).unwrap();
                let launch = Launch {
                    kernel: "k",
                    grid: [blocks, 1, 1],
                    block: [threads, 1, 1],
                    dynamic_shared: 0,
                    parameters: &[],
                };
                device.launch(&image, &launch).unwrap();
                let after = maps.numbers(&device, "counts").unwrap();
                // A program of the device sees what was there when its kernel was launched.
                assert_eq!(after[0], before[0] + u64::from(blocks * threads));
                array.add_growth(&before, &after);
            }
        });
        let count = host.progs_mut().next().unwrap();
        for _ in 0..runs {
            count.test_run(libbpf_rs::ProgramInput::default()).unwrap();
        }
    });
    let entered = u64::from(launches * blocks * threads);
    assert_eq!(array.numbers(), [runs + entered, 1_000_000 * entered]);
    // The kernel's own view of it.
    let value = host.maps().next().unwrap().lookup(&[0; 4], libbpf_rs::MapFlags::ANY).unwrap();
    assert_eq!(value.unwrap(), (runs + entered).to_le_bytes());

    let missing = SharedArray::open(&bpf.join("nothing")).unwrap_err().to_string();
    assert!(
        missing.starts_with("cannot open the BPF map `") && missing.contains("nothing"),
        "{missing}"
    );
}
