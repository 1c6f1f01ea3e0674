//! The probes that `gpuwhy probe new` writes, in the situations of the seed (section 4), made by kernel code:
//! each finds what is wrong in its situation, and nothing where all is even.

use std::path::Path;

use crate::support::clang;
use crate::support::probed::{Run, map, words};
use gpuwhy_gpubpf::Skeleton;
use gpuwhy_gpubpf::sim::{Contents, Facts};

const SITUATIONS: &str = include_str!("../modules/situations.ptx");

fn run(tool: &str, kernel: &str, blocks: u32, threads: u32) -> (Facts, Vec<Contents>) {
    let run = Run { text: SITUATIONS, kernel, blocks, threads, words: 65_536, sms: 2 };
    run.with(&clang::skeleton(Skeleton::named(tool).unwrap()))
}

/// The first word of each value, summed over SMs, by key.
fn by_key(contents: &Contents) -> Vec<(u64, u64)> {
    let mut sums = std::collections::BTreeMap::<u64, u64>::new();
    for entry in &contents.entries {
        *sums.entry(words(&entry.key)[0]).or_default() += words(&entry.bytes)[0];
    }
    sums.into_iter().collect()
}

/// The first word of each thread's value.
fn by_thread(contents: &Contents) -> Vec<(u64, u64)> {
    contents.entries.iter().map(|e| (e.shard.unwrap(), words(&e.bytes)[0])).collect()
}

#[test]
fn one_late_lane_is_found_by_its_work_and_not_by_its_return() {
    let (_, maps) = run("work", "late_lane", 1, 128);
    let threads = by_thread(map(&maps, "threads"));
    assert_eq!(threads.len(), 128);
    for (thread, accesses) in threads {
        assert_eq!(accesses, if thread == 77 { 101 } else { 11 }, "thread {thread}");
    }
    let lanes = by_key(map(&maps, "lanes"));
    assert_eq!(lanes[13], (13, 3 * 11 + 101));
    assert!(lanes.iter().all(|(lane, n)| *lane == 13 || *n == 44), "{lanes:?}");
    // All lanes of its warp return with it; so returns tell of 32 late threads and not of one.
    let (_, maps) = run("returns", "late_lane", 1, 128);
    let took = by_key(map(&maps, "took"));
    assert_eq!(took.iter().map(|(_, n)| n).sum::<u64>(), 128);
    assert_eq!(took.last().unwrap().1, 32, "{took:?}");
    assert!(took.len() >= 2, "{took:?}");
}

#[test]
fn every_eighth_thread_is_found_by_its_lanes() {
    let (_, maps) = run("work", "every_eighth", 2, 64);
    let lanes = by_key(map(&maps, "lanes"));
    for (lane, accesses) in lanes {
        assert_eq!(accesses, 4 * if lane % 8 == 0 { 81 } else { 11 }, "lane {lane}");
    }
}

#[test]
fn the_warp_that_the_others_wait_for_waits_least() {
    let (_, maps) = run("barriers", "one_warp_late", 1, 128);
    let threads = map(&maps, "threads");
    let waited = |warp: u64| -> u64 {
        let of = threads.entries.iter().filter(|e| e.shard.unwrap() / 32 == warp);
        of.map(|e| words(&e.bytes)[1]).max().unwrap()
    };
    assert!(threads.entries.iter().all(|e| words(&e.bytes)[2] == 1), "each waited once");
    let others = [0, 1, 2].map(waited);
    assert!(others.iter().all(|ns| *ns > 4 * waited(3)), "{others:?} against {}", waited(3));
}

#[test]
fn uneven_blocks_and_those_that_came_late_are_in_their_records() {
    // Two SMs that hold 16 blocks each.
    let (facts, maps) = run("blocks", "uneven_blocks", 40, 32);
    let blocks = map(&maps, "blocks");
    assert_eq!((blocks.records.len(), blocks.lost), (40, 0));
    let mut records: Vec<Vec<u64>> = blocks.records.iter().map(|r| words(&r.bytes)).collect();
    records.sort();
    let took = |r: &Vec<u64>| r[5] - r[4];
    assert!(records.iter().enumerate().all(|(n, r)| r[..3] == [n as u64, 0, 0] && r[3] < 2));
    assert!(
        took(&records[31]) > 2 * took(&records[3]),
        "block 31 has eight times the work of block 3"
    );
    let first = records.iter().map(|r| r[4]).min().unwrap();
    let queued = records.iter().filter(|r| r[4] - first > facts.cycles / 20).count();
    assert!(
        (8..=9).contains(&queued),
        "{queued} of 40 blocks waited for a place; 32 had one at once"
    );
}

/// The launch's number is the simulator's first, the kernel the fourth of its module; its blocks are counted as they run.
#[test]
fn a_launch_is_told_by_its_number_once_when_its_first_block_begins() {
    let (facts, maps) = run("launchlate", "uneven_blocks", 40, 32);
    let launches = map(&maps, "gpuwhy_launches");
    let [entry] = &launches.entries[..] else { panic!("{:?}", launches.entries) };
    let [number, site, begin] = words(&entry.bytes)[..] else { panic!("three words") };
    assert_eq!((words(&entry.key)[0], number, site), (1, 2, 3));
    let (_, blocks) = run("blocks", "uneven_blocks", 40, 32);
    let begins = map(&blocks, "blocks").records.iter().map(|r| words(&r.bytes)[4]);
    assert!(begin.abs_diff(begins.min().unwrap()) < facts.cycles / 20, "{begin}");
    // All that began have ended.
    let running = by_key(map(&maps, "gpuwhy_running"));
    assert_eq!(running.iter().fold(0, |sum: u64, (_, n)| sum.wrapping_add(*n)), 0, "{running:?}");
    assert!(running[0].1 > 0, "{running:?}");
}

#[test]
fn a_word_that_half_of_the_threads_change_is_named() {
    let (_, maps) = run("contended", "one_counter", 1, 256);
    let lines = map(&maps, "lines");
    assert_eq!(lines.lost, 0);
    let mut counts: Vec<(u64, u64)> =
        by_key(lines).into_iter().map(|(line, n)| (n, line)).collect();
    counts.sort_unstable();
    assert_eq!(counts.len(), 129);
    assert_eq!(counts[128].0, 128, "word 0");
    assert_eq!(counts[127].0, 1);
    assert!(counts[..128].iter().all(|(_, line)| *line > counts[128].1), "it is the first of them");
}

#[test]
fn a_bank_conflict_delays_the_whole_warp_and_no_lane_of_it() {
    let (facts, maps) = run("work", "bank_conflict", 1, 32);
    assert_eq!(
        facts.total.bank_conflicts,
        2 * 31,
        "a column of 32 words in one bank, stored and loaded"
    );
    let lanes = by_key(map(&maps, "lanes"));
    assert!(lanes.iter().all(|(_, accesses)| *accesses == 1), "{lanes:?}");
    let (_, maps) = run("returns", "bank_conflict", 1, 32);
    assert_eq!(by_key(map(&maps, "took")).len(), 1, "all lanes return together");
}

/// Threads that write their number, load it and the neighbour's as a vector, and loads that lie together or each in a sector of
/// its own.
const LOADS: &str = "\
.version 7.8
.target sm_75
.address_size 64
.visible .entry near(.param .u64 data)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [data];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ld.global.u32 %r2, [%rd3];
	ret;
}
.visible .entry far(.param .u64 data)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [data];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 1024;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3+4], %r1;
	setp.lt.u32 %p1, %r1, 16;
	ld.global.v2.u32 {%r2, %r3}, [%rd3];
	@%p1 ld.global.u32 %r3, [%rd3+4];
	ret;
}
";

fn of_loads(object: &[u8], kernel: &str) -> Vec<Contents> {
    Run { text: LOADS, kernel, blocks: 1, threads: 32, words: 65_536, sms: 2 }.with(object).1
}

#[test]
fn loads_that_lie_apart_take_longer_than_those_that_lie_together() {
    let stalls = clang::skeleton(Skeleton::named("stalls").unwrap());
    let told = |kernel| {
        let maps = of_loads(&stalls, kernel);
        let all = by_key(map(&maps, "stalls"));
        let took: u64 = by_key(map(&maps, "took")).iter().map(|(_, count)| count).sum();
        assert_eq!(took, all[1].1, "each load is in the histogram");
        (all[1].1, all[0].1 as f64 / all[1].1 as f64)
    };
    let ((near, mean), (far, apart)) = (told("near"), told("far"));
    assert_eq!((near, far), (32, 48));
    // 32 sectors or 16 instead of 4, each of which takes a cycle there.
    assert!(apart > mean + 15.0 && mean > 0.0, "{apart} cycles and {mean}");
}

#[test]
fn what_was_loaded_is_read_behind_the_load_and_of_a_vector_the_last() {
    let source = "#include \"gpuwhy_probe.h\"\n\
        struct { __uint(type, GPU_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } \
        sums SEC(\".maps\");\n\
        static __attribute__((always_inline)) int add(__u32 key, __u64 by) {\n\
        __u64 *sum = bpf_map_lookup_elem(&sums, &key); if (sum) __sync_fetch_and_add(sum, by); return 0; }\n\
        SEC(\"gpu/insnret/loads\") int behind(struct gpu_access *at) { return add(0, at->loaded); }\n\
        SEC(\"gpu/insn/loads\") int before(struct gpu_access *at) { return add(1, 1 + at->loaded); }\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.bpf.c");
    std::fs::write(&path, source).unwrap();
    let object = clang::compiled(&path, "v3");
    let numbers = |n: u64| n * (n - 1) / 2;
    let sums = |kernel| by_key(map(&of_loads(&object, kernel), "sums"));
    assert_eq!(sums("near"), [(0, numbers(32)), (1, 32)]);
    // All as the second word of a vector, and 16 of them once more.
    assert_eq!(sums("far"), [(0, numbers(32) + numbers(16)), (1, 48)]);
}

#[test]
fn each_probe_has_a_file_of_its_own_and_a_line_about_it() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("skeleton/tools");
    let files = std::fs::read_dir(here).unwrap().count();
    assert_eq!(gpuwhy_gpubpf::SKELETONS.len(), files + 1);
    assert!(
        gpuwhy_gpubpf::SKELETONS.iter().all(|s| !s.about.is_empty() && !s.about.ends_with('.'))
    );
}
