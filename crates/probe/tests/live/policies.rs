//! Policies over the stand-in, whose managed memory may be larger than its device: what kernels wait for without them and
//! with them, what is refused, and what becomes of the program. All times are simulated.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::{Place, compile, kill, said, skeleton, text, wait_until};

/// What the stand-in tells of managed memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Paged {
    launches: u64,
    /// Simulated time of the kernels, ns, and what of it they waited for pages.
    ns: u64,
    stalled: u64,
    faults: u64,
    /// Prefetches and advice that the driver got, and the bytes that the former moved.
    prefetches: u64,
    prefetched: u64,
    advice: u64,
}

impl Paged {
    fn of(ledger: &str) -> Paged {
        let mut all = Paged::default();
        for line in ledger.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words[0] {
                "launch" => {
                    all.launches += 1;
                    all.ns += number(2) + number(3);
                    all.stalled += number(3);
                    all.faults += number(4);
                }
                "prefetch" => {
                    all.prefetches += 1;
                    all.prefetched += number(2);
                }
                "advise" => all.advice += 1,
                other => panic!("{other}"),
            }
        }
        all
    }
}

/// A place with the workloads.
fn place() -> Place {
    let place = Place::new();
    compile(&place.dir, "managed", "managed.c", &["-ldl"]);
    place
}

/// Sets what the device has room for: 8 pages.
fn small(place: &Place, command: &mut Command) {
    let _ = fs::remove_file(place.dir.join("ledger"));
    place.set(command);
    command.env("GPUWHY_STANDIN_MANAGED_MIB", "16");
    command.env("GPUWHY_STANDIN_MANAGED_LEDGER", place.dir.join("ledger"));
}

fn ledger(place: &Place) -> Paged {
    Paged::of(&fs::read_to_string(place.dir.join("ledger")).unwrap_or_default())
}

fn alone(place: &Place, words: &[&str]) -> (Paged, Output) {
    let mut command = Command::new("./managed");
    small(place, &mut command);
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    (ledger(place), output)
}

fn policy(place: &Place, object: &Path, options: &[&str], words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
    small(place, &mut command);
    command.args(["policy", "--object", text(object), "--output", "found.json"]);
    command.args(options).args(["--", "./managed"]).args(words);
    command
}

/// What the stand-in tells, what `gpuwhy probe policy` writes and prints, if the program prints what it does alone.
fn under(place: &Place, object: &Path, options: &[&str], words: &[&str]) -> (Paged, Value, String) {
    let (_, alone) = alone(place, words);
    let output = policy(place, object, options, words).output().unwrap();
    let of = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(of(&output), of(&alone), "{words:?}: {}", said(&output));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found = fs::read(place.dir.join("found.json")).unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Value = serde_json::from_slice(&found).unwrap();
    (ledger(place), found["policy"].clone(), told)
}

/// The process of a run that had one.
fn process(found: &Value) -> &Value {
    assert_eq!(found["processes"].as_array().unwrap().len(), 1, "{found:#}");
    let process = &found["processes"][0];
    assert_eq!((&process["complete"], &process["failed"]), (&Value::Bool(true), &Value::Null));
    process
}

/// The figures of docs/device-probes.md.
fn tell(tool: &str, workload: &str, without: &Paged, with: &Paged) {
    println!(
        "{tool}, {workload}: {} launches, faults {} -> {}, simulated us {} -> {}, {} MiB prefetched",
        with.launches,
        without.faults,
        with.faults,
        without.ns / 1000,
        with.ns / 1000,
        with.prefetched >> 20
    );
}

/// A policy on a workload: kernels wait for at most `share` of what they wait for without it.
fn helps(tool: &str, workload: &str, share: f64) {
    let place = place();
    let object = skeleton(&place.dir, tool);
    let (without, _) = alone(&place, &[workload]);
    let (with, found, told) = under(&place, &object, &[], &[workload]);
    tell(tool, workload, &without, &with);
    let process = process(&found);
    assert_eq!(process["events"]["launches"], with.launches, "{found:#}");
    assert_eq!(process["done"]["prefetches"], with.prefetches, "{found:#}");
    assert!(told.contains("prefetching, at most"), "{told}");
    for reason in ["not_managed", "by_driver", "no_such_advice", "too_many_rules", "no_room"] {
        // What a tick asks for may come when the program has just given its memory back.
        let late = tool == "hot" && reason == "not_managed";
        assert!(late || process["refused"][reason] == 0, "{found:#}");
    }
    let limit = |all: u64| (all as f64 * share) as u64;
    assert!(with.faults <= limit(without.faults), "{without:?} {with:?} {found:#}");
    assert!(with.stalled <= limit(without.stalled), "{without:?} {with:?}");
}

#[test]
fn the_sequential_policy_spares_a_walk_most_of_its_faults() {
    helps("sequential", "slices", 0.6);
}

#[test]
fn the_same_policy_spares_another_one_over_several_allocations() {
    helps("sequential", "segments", 0.75);
}

#[test]
fn the_stride_policy_spares_columns_most_of_their_faults() {
    helps("stride", "columns", 0.6);
}

#[test]
fn the_same_policy_spares_layers_that_are_gone_through_backwards() {
    helps("stride", "layers", 0.6);
}

#[test]
fn the_hot_policy_keeps_on_the_device_what_each_step_uses() {
    helps("hot", "cache", 0.9);
}

#[test]
fn the_same_policy_keeps_what_lies_apart() {
    helps("hot", "lists", 0.95);
}

/// What comes in no order cannot be known before. Nothing is claimed of it: what is printed are counts.
#[test]
fn no_policy_helps_where_launches_come_in_no_order() {
    let place = place();
    for tool in ["sequential", "stride"] {
        let object = skeleton(&place.dir, tool);
        let (without, _) = alone(&place, &["random"]);
        let (with, _, told) = under(&place, &object, &[], &["random"]);
        tell(tool, "random", &without, &with);
        assert!(with.faults * 10 >= without.faults * 8, "{tool}: {without:?} {with:?}");
        for claim in ["saved", "faster", "quicker"] {
            assert!(!told.contains(claim), "{told}");
        }
    }
}

#[test]
fn a_dry_run_decides_the_same_and_does_nothing() {
    let place = place();
    let object = skeleton(&place.dir, "sequential");
    let (without, _) = alone(&place, &["slices"]);
    let (with, found, told) = under(&place, &object, &["--dry-run"], &["slices"]);
    assert_eq!(with, without);
    let process = process(&found);
    assert!(process["decided"]["prefetches"].as_u64().unwrap() >= 20, "{found:#}");
    assert!(process["decided"]["prefetch_bytes"].as_u64().unwrap() > 32 << 20, "{found:#}");
    assert_eq!(process["done"]["prefetches"], 0, "{found:#}");
    assert!(told.contains("dry run: nothing was done"), "{told}");
}

/// CUDA before 12.2 has functions that take a device.
#[test]
fn a_driver_with_the_older_functions_is_asked_by_those() {
    let place = place();
    let object = place.compiled("wild", &[]);
    let output =
        policy(&place, &object, &[], &["device"]).env("GPUWHY_STANDIN_CUDA", "12010").output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    let paged = ledger(&place);
    assert_eq!((paged.prefetches, paged.advice), (1, 1));
}

#[test]
fn what_is_no_managed_memory_of_the_program_is_refused_and_counted() {
    let place = place();
    let object = place.compiled("wild", &[]);
    let (paged, found, told) = under(&place, &object, &[], &["device"]);
    let process = process(&found);
    assert_eq!(process["refused"]["not_managed"], 5, "{found:#}");
    assert_eq!(process["refused"]["no_such_advice"], 1, "{found:#}");
    assert_eq!(process["refused"]["by_driver"], 0, "{found:#}");
    // Of no bytes nothing was asked.
    assert_eq!(process["decided"]["prefetches"], 5, "{found:#}");
    assert_eq!((paged.prefetches, paged.advice), (1, 1));
    assert_eq!(process["events"]["allocations"], 4, "two were made and given back: {found:#}");
    assert!(told.contains("refused: 5 of memory that is not managed"), "{told}");
}

/// The policy asks for a second. What is asserted is how long the launch was told to wait, and no clock's reading.
#[test]
fn a_launch_is_delayed_by_no_more_than_the_bound_and_streams_get_their_priority() {
    let place = place();
    let object = place.compiled("late", &[]);
    let (paged, found, _) = under(&place, &object, &[], &["slices", "60"]);
    let delayed = &process(&found)["delayed"];
    assert_eq!(delayed["longest_ns"], 10_000_000, "{found:#}");
    assert_eq!(delayed["cut"], delayed["launches"], "{found:#}");
    let counts = ["launches", "left_out", "total_ns"].map(|count| delayed[count].as_u64().unwrap());
    assert_eq!(counts[0] + counts[1], paged.launches, "{found:#}");
    assert!(counts[0] > 0 && counts[2] == counts[0] * 10_000_000, "{found:#}");
    // Another tenant is not delayed.
    fs::copy(place.dir.join("managed"), place.dir.join("tenant")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
    small(&place, &mut command);
    command.args(["policy", "--object", text(&object), "--output", "found.json", "--", "./tenant"]);
    let output = command.args(["slices", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found: Value =
        serde_json::from_slice(&fs::read(place.dir.join("found.json")).unwrap()).unwrap();
    assert_eq!(process(&found["policy"])["delayed"]["launches"], 0, "{found:#}");
    // What streams have as the program asks for them, and otherwise.
    let (_, output) = alone(&place, &["streams"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "priorities: 0 -1\n");
    let output = policy(&place, &object, &[], &["streams"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "priorities: -1 -4\n", "{}", said(&output));
    let output = policy(&place, &object, &["--dry-run"], &["streams"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "priorities: 0 -1\n", "{}", said(&output));
}

/// The controller is killed, or stands still, while it delays launches and prefetches.
#[test]
fn a_program_whose_controller_dies_or_hangs_goes_on() {
    let place = place();
    let (late, sequential) = (place.compiled("late", &[]), skeleton(&place.dir, "sequential"));
    let (_, alone) = alone(&place, &["slices"]);
    for signal in ["-KILL", "-STOP"] {
        let script = "./managed slices 40 > printed; echo done > ended";
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
        small(&place, &mut command);
        command.args(["policy", "--object", text(&late), "--object", text(&sequential), "--"]);
        let child = command.args(["sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        wait_until("a prefetch", || ledger(&place).prefetches > 0);
        kill(signal, child.id());
        wait_until("the command ends", || place.dir.join("ended").exists());
        let printed = fs::read(place.dir.join("printed")).unwrap();
        assert_eq!(printed, alone.stdout, "{signal}");
        let _ = child.kill();
        let _ = child.wait();
        fs::remove_file(place.dir.join("ended")).unwrap();
    }
}

/// Memory of the device alone, several devices, contexts that are released, a child of `fork`.
#[test]
fn programs_print_the_same_under_a_policy_however_they_end() {
    let place = place();
    let object = skeleton(&place.dir, "hot");
    let path = super::image("zstd.fatbin");
    for end in ["exit", "unload", "fork", "_exit"] {
        for load in ["library", "module"] {
            let words = ["./loads", "asked", load, text(&path), super::COPY, "2", "3", end];
            let alone = place.alone(&words);
            let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
            place.set(&mut command);
            command.args(["policy", "--object", text(&object), "--output", "found.json", "--"]);
            let output = command.args(words).output().unwrap();
            assert_eq!(output.stdout, alone.stdout, "{end}, {load}: {}", said(&output));
            assert_eq!(output.status.code(), alone.status.code(), "{end}, {load}");
            let found = fs::read(place.dir.join("found.json")).unwrap();
            let found: Value = serde_json::from_slice(&found).unwrap();
            let events = &found["policy"]["processes"][0]["events"];
            assert_eq!(events["launches"], 6, "{end}, {load}: {found:#}");
            assert_eq!(events["allocations"], 4, "{end}, {load}: {found:#}");
        }
    }
}

#[test]
fn without_a_policy_nothing_is_run_and_a_probe_run_takes_none() {
    let place = place();
    let output = policy(&place, &place.object, &[], &["slices"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("have no program in a section gpu/policy/"),
        "{}",
        said(&output)
    );
    let object = skeleton(&place.dir, "sequential");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuwhy-probe"));
    place.set(&mut command);
    let output = command.args(["run", "--object", text(&object), "--", "true"]).output().unwrap();
    assert!(
        said(&output).contains("is a policy, which `gpuwhy probe policy` runs"),
        "{}",
        said(&output)
    );
}
