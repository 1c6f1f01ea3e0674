//! Sums that lie in the shared memory of each block while it runs: the same as in the device's memory, for less of its
//! traffic; kernels in which they could not be right are left out by name.

use std::path::Path;

use crate::support::clang;
use crate::support::probed::{Run, map, words};
use crate::support::ptxas;
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Contents, Facts};
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Budget, Object, verify};

const HEAD: &str = ".version 7.8\n.target sm_75\n.address_size 64\n";

/// Threads that load in a loop whose length differs by lane, and end at three places: some by an `exit` under a
/// guard, some by a `ret`, the others at the end of the text. It has shared memory and a barrier of its own.
const KERNEL: &str = "\
.visible .entry uneven(.param .u64 data)\n{\n\
\t.reg .pred %p<5>;\n\t.reg .b32 %r<6>;\n\t.reg .b64 %rd<4>;\n\t.shared .align 4 .b8 own[64];\n\
\tld.param.u64 %rd1, [data];\n\tmov.u32 %r1, %tid.x;\n\tst.shared.u32 [own], %r1;\n\tbar.sync 0;\n\
\tand.b32 %r2, %r1, 7;\n\tadd.u32 %r2, %r2, 1;\n\
$again:\n\tld.global.u32 %r3, [%rd1];\n\tsub.u32 %r2, %r2, 1;\n\tsetp.ne.u32 %p1, %r2, 0;\n\t@%p1 bra $again;\n\
\tsetp.lt.u32 %p2, %r1, 5;\n\t@%p2 exit;\n\
\tsetp.gt.u32 %p3, %r1, 60;\n\t@!%p3 bra $rest;\n\tld.global.u64 %rd2, [%rd1];\n\tret;\n$rest:\n}\n";

/// A program that does nothing.
const NOTHING: &str = "#include \"gpuwhy_probe.h\"\n\
                       SEC(\"kprobe/*\") int p(void *ctx) { return 0; }\n";

fn compiled(source: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.bpf.c");
    std::fs::write(&path, source).unwrap();
    clang::compiled(&path, "v3")
}

fn counts() -> Vec<u8> {
    clang::object("block_sums", "v3")
}

/// The number at `word` of the value of `key`.
fn sum(maps: &[Contents], name: &str, key: u64, word: usize) -> u64 {
    let entries = &map(maps, name).entries;
    let entry = entries.iter().find(|entry| words(&entry.key)[0] == key);
    entry.map_or(0, |entry| words(&entry.bytes)[word])
}

#[test]
fn sums_of_all_blocks_are_those_of_all_threads_wherever_they_end() {
    let text = format!("{HEAD}{KERNEL}");
    for (blocks, threads) in [(1, 1), (1, 32), (3, 72), (5, 300)] {
        let run = Run { text: &text, kernel: "uneven", blocks, threads, words: 16, sms: 2 };
        let (_, maps) = run.with(&counts());
        let (blocks, threads) = (u64::from(blocks), u64::from(threads));
        let of_block = |each: fn(u64) -> u64| blocks * (0..threads).map(each).sum::<u64>();
        let told = |name, key, word| sum(&maps, name, key, word);
        assert_eq!(told("threads", 0, 0), blocks * threads, "{blocks} blocks of {threads}");
        assert_eq!(told("threads", 1, 0), of_block(|x| 1 + x % 32));
        assert_eq!(told("sizes", 4, 0), of_block(|x| x % 8 + 1));
        assert_eq!(told("sizes", 8, 0), of_block(|x| u64::from(x > 60)));
        assert_eq!(map(&maps, "sizes").entries.len(), 1 + usize::from(threads > 61));
    }
}

/// Forty blocks on two SMs: what a block that came later found in shared memory was set to 0, or there were more.
#[test]
fn they_are_the_sums_of_the_devices_memory_for_less_than_half_of_its_traffic() {
    let text = format!("{HEAD}{KERNEL}");
    let run = Run { text: &text, kernel: "uneven", blocks: 40, threads: 256, words: 16, sms: 2 };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/block_sums.bpf.c");
    let in_memory = format!("#define PLACE GPU_ARRAY\n#include \"{}\"\n", here.display());
    let (block, sums) = run.with(&counts());
    let (device, all) = run.with(&compiled(&in_memory));
    for (sums, all) in sums.iter().zip(&all) {
        assert_eq!(sums.entries, all.entries, "{}", sums.map.name);
    }
    let (without, _) = run.with(&compiled(NOTHING));
    let more = |facts: &Facts| facts.total.sectors - without.total.sectors;
    let (block, device) = (more(&block), more(&device));
    // Both read their switches in constant memory, which counts too.
    assert!(2 * block < device, "{block} and {device} sectors of device memory");
}

#[test]
fn what_it_costs_is_certified() {
    let object = Object::read(&counts()).unwrap();
    let cost = |name: &str| {
        let entry = object.entries().iter().find(|entry| entry.name == name).unwrap();
        verify(&object.link(entry).unwrap(), Budget::default()).unwrap()
    };
    let (comes, goes, accesses) = (cost("comes"), cost("goes"), cost("accesses"));
    // One number by all lanes to one place; numbers that differ; places that may differ.
    let atomics = [comes, goes, accesses].map(|cost| (cost.warp_atomics, cost.warp_shared_atomics));
    assert_eq!(atomics, [(0, 1), (0, 32), (0, 1)]);
    assert_eq!((comes.block_bytes, comes.block_atomics), (32, 4));
    assert_eq!((accesses.block_bytes, accesses.block_atomics), (800, 100));
}

/// What is said of a kernel in which no sum of a block can be.
fn left_out(text: &str) -> String {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&counts()).unwrap());
    let spliced = plan.splice(&Module::read(text).unwrap()).unwrap();
    assert_eq!(spliced.text, text, "nothing is put into it");
    spliced.notes.join("\n")
}

#[test]
fn kernels_in_which_threads_may_end_unseen_or_memory_may_be_short_are_left_out_by_name() {
    let kernel = |around: &str, body: &str| {
        format!("{HEAD}{around}.visible .entry k()\n{{\n\t.reg .b64 %rd<3>;\n{body}\tret;\n}}\n")
    };
    let ends = ".func f()\n{\n\texit;\n}\n";
    let call = "\tcall.uni f, ();\n";
    let cases = [
        (kernel(ends, call), "threads end in `f`, which it calls"),
        (
            kernel("", "p: .callprototype ()_ ();\n\tmov.u64 %rd1, k;\n\tcall.uni %rd1, (), p;\n"),
            "calls through a pointer",
        ),
        (kernel("", "\t.shared .align 16 .b8 big[49000];\n"), "49015 bytes of shared memory"),
        (kernel(".extern .shared .align 16 .b8 more[];\n", ""), "how much is not in the text"),
        (kernel("", "\t.reg .b32 %t;\n\tmov.u32 %t, %total_smem_size;\n"), "in all"),
    ];
    for (text, why) in cases {
        let said = left_out(&text);
        assert!(said.contains("k: not probed by `comes`") && said.contains(why), "{said}");
    }
}

#[test]
fn sums_of_a_block_are_added_to_and_nothing_else() {
    let program = |line: &str| {
        let source = format!(
            "#include \"gpuwhy_probe.h\"\n\
             struct {{ __uint(type, GPU_BLOCK_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u64); }} \
             sums SEC(\".maps\");\n\
             SEC(\"kprobe/k\") int p(void *ctx) {{ __u32 key = 1; __u64 one = 1; __u64 *sum = \
             bpf_map_lookup_elem(&sums, &key); if (!sum) return 0; {line} return 0; }}\n"
        );
        let object = Object::read(&compiled(&source)).unwrap();
        let entry = object.entries().first().unwrap();
        verify(&object.link(entry).unwrap(), Budget::default())
    };
    assert!(program("__sync_fetch_and_add(sum, 2);").is_ok());
    for line in [
        "*sum = 1;",
        "if (*sum > 4) return 1;",
        "if (__sync_fetch_and_add(sum, 2) > 4) return 1;",
        "__sync_fetch_and_or(sum, 2);",
        "__sync_fetch_and_add((__u32 *)sum, 2);",
        "bpf_map_update_elem(&sums, &key, &one, BPF_ANY);",
    ] {
        let refused = program(line).expect_err(line).to_string();
        assert!(refused.contains("holds sums of each block"), "{line}: {refused}");
    }
}

#[test]
fn the_assembler_takes_them() {
    let text = format!("{HEAD}{KERNEL}");
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&counts()).unwrap());
    let spliced = plan.splice(&Module::read(&text).unwrap()).unwrap();
    ptxas::assemble(&spliced.text, "sm_75");
    ptxas::assemble(&spliced.text, "sm_90");
}
