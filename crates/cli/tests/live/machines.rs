//! Virtual machines of the host's own, recorded while they run.

use std::process::Command;

use gpuwhy_testkit::{sys, vms};
use serde_json::Value;

use crate::{alone, built, folder, gpuwhy, in_one_of_three_tries, may_record, said};

/// Two machines that spin, a thread of the host and the recorder on one CPU, one that halts on another.
#[test]
fn root_preemptions_of_real_virtual_machines_are_those_that_the_kernel_counts() {
    let cpus = sys::cpus();
    if let Some(reason) = vms::refusal() {
        return eprintln!("skipped: {reason}");
    }
    if cpus.len() < 2 || !may_record() {
        return eprintln!("skipped: there is one CPU, or recording is not allowed");
    }
    let _alone = alone();
    in_one_of_three_tries(|| preemptions(&cpus));
}

fn preemptions(cpus: &[usize]) {
    let (_guard, folder) = folder();
    let trace = folder.join("t.trace");
    let trace = trace.to_str().unwrap();
    let bench = built("gpuwhy-bench");
    let (busy, calm) = (cpus[0], cpus[1]);
    let tasks = [(busy, "spins"), (busy, "spins"), (calm, "halts"), (busy, "hog")];
    let tasks = tasks.map(|(cpu, kind)| format!("{cpu}:{kind}"));
    let output = std::thread::spawn({
        let trace = trace.to_owned();
        move || {
            sys::pin(busy).unwrap();
            let mut record = Command::new(env!("CARGO_BIN_EXE_gpuwhy"));
            record.args(["record", "--json", "-o", &trace, "--"]);
            // Machines begin apart from the recorder: each goes to its own CPU, but not from its first instruction on.
            record.args(["taskset", "-c", &calm.to_string()]).arg(bench);
            record.args(["__machines", "--for", "3s"]).args(tasks).output().unwrap()
        }
    });
    let output = output.join().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let ran: Vec<vms::Ran> = serde_json::from_slice(&output.stdout).unwrap();
    let output = gpuwhy(&["validate", trace]);
    assert!(output.status.success(), "{}", said(&output));
    let output = gpuwhy(&["vgpu", trace, "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let vcpus = &report["vcpus"];
    let machines = vcpus["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 3, "{vcpus:#}");
    let told = |pid: i32| machines.iter().find(|one| one["pid"] == pid).unwrap();
    let name_of = |at: usize| told(ran[at].pid)["name"].as_str().unwrap();
    let halting = name_of(2);
    for one in &ran[..3] {
        let machine = told(one.pid);
        let (found, counted) = (machine["preemptions"].as_u64().unwrap(), one.switches.involuntary);
        assert!(found.abs_diff(counted) <= 2, "{found} found, {counted} counted: {vcpus:#}");
        let pairs = vcpus["preempted"].as_array().unwrap().iter();
        let pairs: Vec<&Value> = pairs.filter(|pair| pair["machine"] == machine["name"]).collect();
        if one.kind == vms::Kind::Halts {
            // Now and then a thread of another test comes to its CPU, and the kernel counts that too.
            assert!(found <= 10 && machine["halts"].as_u64().unwrap() > 100, "{vcpus:#}");
        } else {
            assert!(found > 20, "{vcpus:#}");
            // Who is on another CPU takes nothing; the neighbour and the thread of the host do.
            assert!(pairs.iter().all(|pair| pair["by"] != halting), "{vcpus:#}");
            let neighbour = if one.pid == ran[0].pid { name_of(1) } else { name_of(0) };
            for by in [neighbour, "host"] {
                let pair = pairs.iter().find(|pair| pair["by"] == *by);
                let direct = pair.map_or(0, |pair| pair["direct"].as_u64().unwrap());
                assert!(direct > 0, "{by}: {vcpus:#}");
            }
        }
    }
}
