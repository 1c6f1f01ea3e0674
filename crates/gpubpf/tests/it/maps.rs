//! Maps of programs that run in the simulator: what threads put there is what is read, and what found no room
//! is counted.

use crate::support::clang;
use crate::support::probed::{Run, map, words};
use gpuwhy_gpubpf::contents::Layout;
use gpuwhy_gpubpf::sim::Contents;
use gpuwhy_gpubpf::splice::Table;
use gpuwhy_gpubpf::{Map, MapKind};

/// Runs the program of `hashes` that belongs to a kernel of this name, which does nothing.
fn run(kernel: &str, blocks: u32, threads: u32) -> Vec<Contents> {
    let text = format!(
        ".version 7.8\n.target sm_75\n.address_size 64\n.visible .entry {kernel}()\n{{\n\tret;\n}}\n"
    );
    let run = Run { text: &text, kernel, blocks, threads, words: 0, sms: 4 };
    run.with(&clang::object("hashes", "v3")).1
}

/// Keys and values of a map, as numbers of up to 8 bytes.
fn numbers(contents: &Contents) -> Vec<(u64, u64)> {
    contents.entries.iter().map(|e| (words(&e.key)[0], words(&e.bytes)[0])).collect()
}

#[test]
fn threads_that_come_with_the_same_key_share_one_entry() {
    let maps = run("count", 8, 256);
    let counts = map(&maps, "counts");
    let mut entries = numbers(counts);
    entries.sort_unstable();
    let wanted: Vec<(u64, u64)> = (0..32).map(|x| (x * 1_000_000_007, 64)).collect();
    assert_eq!(entries, wanted, "2048 threads, 64 for each of 32 keys");
    assert_eq!(counts.lost, 0);
}

#[test]
fn a_key_without_room_is_counted_and_refused_and_no_entry_is_harmed() {
    let maps = run("crowd", 1, 64);
    let narrow = map(&maps, "narrow");
    // 8 entries are asked for, and half as many again are rounded up to a power of two.
    let entries = numbers(narrow);
    assert_eq!(entries.len(), 16);
    assert!(entries.iter().all(|(key, value)| *value == key * 2 + 1), "{entries:?}");
    assert_eq!(narrow.lost, 64 - 16);
    let said = numbers(map(&maps, "said"));
    let refused = said.iter().filter(|(_, said)| *said as i64 == -7).count();
    assert_eq!(refused, 64 - 16, "-E2BIG for each that found no room");
}

#[test]
fn updates_and_deletions_answer_as_the_kernels_hash_maps_do() {
    let maps = run("rules", 1, 64);
    let said = map(&maps, "said");
    let of = |thread: u64| -> Vec<i64> {
        let mut answers = vec![0; 8];
        for entry in said.entries.iter().filter(|entry| entry.shard == Some(thread)) {
            answers[entry.key[0] as usize] = words(&entry.bytes)[0] as i64;
        }
        answers
    };
    for thread in 0..64_u64 {
        let (enoent, eexist, sum) = (-2, -17, 3 * thread as i64 + 6);
        let wanted = match thread % 2 {
            0 => vec![enoent, 0, eexist, 0, sum, 0, 0, 0],
            _ => vec![enoent, 0, eexist, 0, sum, 0, enoent, 2],
        };
        assert_eq!(of(thread), wanted, "thread {thread}");
    }
    let places = map(&maps, "places");
    assert_eq!(places.entries.len(), 32, "every second was deleted");
    for entry in &places.entries {
        assert_eq!((entry.key.len(), entry.bytes.len()), (12, 16));
        assert_eq!((entry.key[0] % 2, entry.key[8], entry.bytes[8]), (0, 7, 6), "{entry:?}");
        assert_eq!(entry.bytes[0], entry.key[0] * 3);
    }
}

#[test]
fn maps_of_the_host_come_first_by_pages_and_what_somebody_else_has_takes_no_room() {
    let map = |kind, name: &str, entries| {
        let (key_size, value_size, flags) = (4, 8, 0);
        Map { name: name.into(), kind, key_size, value_size, max_entries: entries, flags }
    };
    let maps = [
        map(MapKind::Array, "device", 3),
        map(MapKind::HostArray, "host", 600),
        map(MapKind::KernelShared, "kernel", 700),
        map(MapKind::HostArray, "more", 1),
    ];
    let maps: Vec<(Map, usize)> = maps.into_iter().zip((4..).step_by(3)).collect();
    let table = Table { words: 16, maps, switches: vec![] };
    let layout = Layout::new(&table, 1, 1, 1 << 20, &[2].into()).unwrap();
    assert_eq!(layout.host_bytes, 8192, "4,800 bytes and 256");
    let (words, addresses) = layout.words(&table);
    // The counters of what was lost lie behind them, and the map of the device behind those.
    let at: Vec<(u32, u64)> =
        vec![(4, 8448), (6, 8192), (7, 0), (9, 8200), (12, 8208), (13, 4864), (15, 8216)];
    assert_eq!((words.iter().sum::<u64>(), addresses), (0, at));
    assert_eq!(layout.outside().collect::<Vec<_>>(), [(2, 10, 5600)]);
    let mut memory = vec![0; layout.bytes as usize];
    for (at, value) in [(8448 + 16, 5), (8 * 599, 6), (4864, 7), (8200, 9)] {
        memory[at] = value;
    }
    let read = layout.read(&memory);
    let held: Vec<Vec<(u64, u64)>> = read.iter().map(numbers).collect();
    assert_eq!(held, [vec![(2, 5)], vec![(599, 6)], vec![], vec![(0, 7)]]);
    assert_eq!(read[1].lost, 9);
    let kernel = Contents::of_numbers(&table.maps[2].0, &[0, 0, 8]);
    assert_eq!(numbers(&kernel), [(2, 8)]);
    let refused = Layout::new(&table, 1, 1, 4096, &[2].into()).unwrap_err();
    assert!(refused.contains("map `host`"), "{refused}");
}
