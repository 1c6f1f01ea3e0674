//! How late launches begin, against the ledger of the driver that began them.

use std::fs;

use serde_json::Value;

use super::common::text;
use super::{COPY, Place, image};

/// A launch in the ledger: called, begun, ended, ns.
type Launch = [u64; 3];

/// Launches of a kernel, as the stand-in began them.
fn ledger(place: &Place, kernel: &str) -> Vec<Launch> {
    let text = fs::read_to_string(place.dir.join("ledger")).unwrap();
    text.lines()
        .filter_map(|line| line.strip_prefix(kernel)?.strip_prefix(' '))
        .map(|line| {
            let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
            numbers.try_into().unwrap()
        })
        .collect()
}

/// What the probe told of a program's launches, image by image.
fn told(place: &Place, words: &[&str]) -> Vec<Value> {
    let output = place
        .probed(&[], words)
        .env("GPUWHY_STANDIN_LEDGER", place.dir.join("ledger"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", super::said(&output));
    let found: Value =
        serde_json::from_slice(&fs::read(place.dir.join("found.json")).unwrap()).unwrap();
    let images = found["images"].as_array().cloned().unwrap();
    images.iter().map(|image| image["contexts"][0]["launches"].clone()).collect()
}

fn kernel<'a>(launches: &'a Value, name: &str) -> &'a Value {
    let kernels = launches["kernels"].as_array().unwrap();
    kernels.iter().find(|kernel| kernel["kernel"] == name).unwrap_or_else(|| panic!("{launches:#}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name}: {value:#}"))
}

/// The latencies add up to those of the ledger, to a fiftieth and 20 ms for threads that were stopped meanwhile.
fn adds_up(told: &Value, truth: &[Launch]) {
    assert_eq!((number(told, "launches"), number(told, "not_known")), (truth.len() as u64, 0));
    let sum: u64 = truth.iter().map(|[called, begun, _]| begun - called).sum();
    let total = number(told, "total_ns");
    assert!(total.abs_diff(sum) < sum / 50 + 20_000_000, "{total} ns, in the ledger {sum} ns");
    let longest = truth.iter().map(|[called, begun, _]| begun - called).max().unwrap();
    assert!(number(told, "longest_ns").abs_diff(longest) < longest / 50 + 20_000_000, "{told:#}");
    println!(
        "told {total} ns, in the ledger {sum} ns; longest {} of {longest}",
        told["longest_ns"]
    );
}

#[test]
fn launches_that_queue_are_each_as_late_as_the_driver_began_them() {
    let place = Place::with("launchlate");
    let told = told(&place, &["./queues", "one", "40"]);
    let truth = ledger(&place, "first");
    adds_up(kernel(&told[0], "first"), &truth);
    // What one time of launch tells, which the next call overwrites before the launch begins.
    let seen =
        |begun: u64| truth.iter().map(|[called, ..]| *called).filter(|at| *at <= begun).max();
    let overwritten: u64 = truth.iter().map(|[_, begun, _]| begun - seen(*begun).unwrap()).sum();
    let right: u64 = truth.iter().map(|[called, begun, _]| begun - called).sum();
    println!("by their number {right} ns, by one time that is overwritten {overwritten} ns");
    assert!(overwritten < right / 2);
    assert_eq!((number(&told[0], "lost_on_device"), number(&told[0], "lost_on_host")), (0, 0));
}

#[test]
fn launches_that_overtake_others_on_another_stream_keep_their_calls() {
    let place = Place::with("launchlate");
    let told = told(&place, &["./queues", "two", "40"]);
    let (first, second) = (ledger(&place, "first"), ledger(&place, "second"));
    assert!(!first.is_sorted_by_key(|[_, begun, _]| *begun), "they begin in another order");
    adds_up(kernel(&told[0], "first"), &first);
    adds_up(kernel(&told[0], "second"), &second);
}

/// The calls that are taken when a module is unloaded are those of all modules.
#[test]
fn a_module_that_is_unloaded_leaves_the_launches_of_others_their_calls() {
    let place = Place::with("launchlate");
    let told = told(&place, &["./queues", "unload", "15"]);
    adds_up(kernel(&told[0], "first"), &ledger(&place, "first"));
    assert_eq!(told.len(), 2);
}

#[test]
fn launches_that_the_driver_refuses_are_none_and_those_of_graphs_are_not_known() {
    let place = Place::with("launchlate");
    let told_of = told(&place, &["./queues", "refused", "12"]);
    adds_up(kernel(&told_of[0], "first"), &ledger(&place, "first"));
    for load in ["library", "module"] {
        let path = image("zstd.fatbin");
        let told = told(&place, &["./loads", "asked", load, text(&path), COPY, "1", "5"]);
        let copy = kernel(&told[0], COPY);
        assert_eq!((number(copy, "launches"), number(copy, "not_known")), (5, 0), "{copy:#}");
    }
    let path = image("kernels.ptx");
    let told = told(&place, &["./loads", "dlsym", "graph", text(&path), COPY, "1", "3"]);
    let copy = kernel(&told[0], COPY);
    assert_eq!((number(copy, "launches"), number(copy, "not_known")), (0, 3), "{copy:#}");
}

#[test]
fn a_sample_says_what_it_left_out_and_a_probe_that_needs_every_launch_refuses_it() {
    let mut place = Place::new();
    let path = image("zstd.fatbin");
    let words = ["./loads", "asked", "library", text(&path), COPY, "1", "40"];
    let options = ["--one-launch-in", "4", "--one-block-in", "2"];
    let (found, said) = place.found(&options, &words);
    let context = &found["images"][0]["contexts"][0];
    let sampled = &context["sampled"];
    let of = |what: &str| ["all", "sampled"].map(|which| number(&sampled[what], which));
    let ([launches, kept], [blocks, in_blocks], [warps, in_warps]) =
        (of("launches"), of("blocks"), of("warps"));
    // 4 blocks of 2 warps each, of which half are in the sample.
    assert_eq!((launches, blocks, warps), (40, 160, 320), "{found:#}");
    assert!((8..=12).contains(&kept), "{kept} of 40");
    assert_eq!((in_blocks, in_warps), (2 * kept, 4 * kept), "{found:#}");
    assert_eq!(super::counted(&found), [[in_warps, 32 * 4 * in_warps]], "{found:#}");
    let told = format!(
        "ran in {kept} of 40 launches, {in_blocks} of 160 blocks and {in_warps} of 320 warps"
    );
    assert!(said.contains(&told), "{said}");
    let (found, _) = place.found(&[], &words);
    assert_eq!(found["images"][0]["contexts"][0]["sampled"], Value::Null);
    place.object = super::skeleton(&place.dir, "launchlate");
    let output = place.probed(&options, &words).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(super::said(&output).contains("run them in all launches"), "{}", super::said(&output));
}
