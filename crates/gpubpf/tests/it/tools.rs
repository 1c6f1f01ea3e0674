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

#[test]
fn each_probe_has_a_file_of_its_own_and_a_line_about_it() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("skeleton/tools");
    let files = std::fs::read_dir(here).unwrap().count();
    assert_eq!(gpuwhy_gpubpf::SKELETONS.len(), files + 1);
    assert!(
        gpuwhy_gpubpf::SKELETONS.iter().all(|s| !s.about.is_empty() && !s.about.ends_with('.'))
    );
}
