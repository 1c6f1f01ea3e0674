//! `gpuwhy vgpu` on the simulated host: its events are written as CTF, imported, measured and judged, and compared with
//! the simulator's ledger.

use std::path::Path;
use std::process::Command;

use gpuwhy_testkit::gvt::{self, Guest, Load, Pinned, Policy, Setup, Trace, Vgpu};
use serde_json::Value;

use crate::{folder, gpuwhy, said};

pub(crate) const MS: i64 = 1_000_000;

pub(crate) fn load(runs_ms: i64, thinks_us: i64, requests: u32) -> Load {
    let (runs, thinks) = (runs_ms * MS, thinks_us * 1000);
    Load { engine: 0, runs, spread: 0.05, thinks, requests, depth: 1, from: 10 * MS }
}

pub(crate) fn simulated(vgpus: Vec<Vgpu>) -> Trace {
    gvt::run(&Setup::kernel(vgpus, 7))
}

/// Through CTF and a trace, as users do it.
fn analysed(trace: &Trace, folder: &Path, window: &[&str]) -> Value {
    let out = imported(&trace.events, folder, "t");
    let output = gpuwhy(&[&["vgpu", &out, "--json"], window].concat());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn tenant<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["tenants"].as_array().unwrap();
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name}: {report:#}"))
}

fn found<'a>(report: &'a Value, rule: &str) -> Option<&'a Value> {
    report["findings"].as_array().unwrap().iter().find(|one| one["rule"] == rule)
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn nothing_misfits(report: &Value) {
    let misfits = report["misfits"].as_object().unwrap();
    assert!(misfits.values().all(|n| n == 0), "{misfits:?}");
    assert_eq!(report["missing"].as_array().unwrap().len(), 0, "{}", report["missing"]);
}

#[test]
fn an_idle_neighbour_caps_the_share_at_half_and_the_time_alone_is_foretold_within_a_percent() {
    let (_guard, folder) = folder();
    let one = Vgpu::with(load(18, 4_000, 400));
    let shared = simulated(vec![one.clone(), Vgpu::idle(4)]);
    let alone = simulated(vec![one]);
    let report = analysed(&shared, &folder, &[]);
    nothing_misfits(&report);
    let own = tenant(&report, "vGPU 1");
    assert_eq!(own["requests"], 400);
    let used = number(&own["utilisation"]["render0"]);
    // Each second, the debt of the last request is forgiven.
    assert!((40.0..=51.0).contains(&used), "{used}");
    let finding = found(&report, "unused_reservation").unwrap_or_else(|| panic!("{report:#}"));
    let began = 10 * MS;
    let truth = (alone.accounts[0].finished - began) as f64 / MS as f64;
    let foretold = number(&finding["counterfactual_ms"]);
    assert!((foretold / truth - 1.0).abs() < 0.01, "{foretold} ms foretold, {truth} ms truly");
    let withheld = shared.accounts[0].withheld as f64 / MS as f64;
    let told = number(&own["waits"]["reserved_idle_ms"]);
    assert!((told / withheld - 1.0).abs() < 0.02, "{told} ms told, {withheld} ms truly");
    // Without the neighbour nothing is withheld.
    let report = analysed(&alone, &folder, &[]);
    assert!(found(&report, "unused_reservation").is_none(), "{report:#}");
}

/// A trace of events through CTF.
fn imported(events: &[gvt::Event], folder: &Path, name: &str) -> String {
    let (ctf, out) = (folder.join(format!("{name}.ctf")), folder.join(format!("{name}.trace")));
    gvt::ctf::write(events, &ctf).unwrap();
    let (ctf, out) = (ctf.to_str().unwrap(), out.to_str().unwrap());
    let output = gpuwhy(&["import", ctf, "-o", out, "--force"]);
    assert!(output.status.success(), "{}", said(&output));
    out.to_owned()
}

#[test]
fn with_a_guests_own_trace_waits_begin_in_the_guest_whatever_its_clock_shows() {
    let (_guard, folder) = folder();
    // It has four requests on their way, of which its driver hands two over; a neighbour has long ones.
    let guest = Guest { ports: 2, ahead: 1_000 * 1_000 * MS, gains: 20_000 };
    let own = Vgpu {
        guest: Some(guest),
        ..Vgpu::with(Load { depth: 4, spread: 0.3, ..load(6, 2_000, 400) })
    };
    let trace = simulated(vec![own, Vgpu::with(load(60, 20_000, 60))]);
    let host = imported(&trace.events, &folder, "host");
    let lost: Vec<gvt::Event> = {
        // Half a second of the guest's trace is missing.
        let all = &trace.guests[0];
        let (from, to) = (guest.shows(2_000 * MS), guest.shows(2_500 * MS));
        all.iter().filter(|one| !(from..to).contains(&one.time)).cloned().collect()
    };
    let within = imported(&lost, &folder, "guest");
    let told = |more: &[&str]| -> Value {
        let output = gpuwhy(&[&["vgpu", &host, "--json"], more].concat());
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let asked = format!("1={within}");
    let report = told(&["--guest", &asked]);
    let joined = &report["guests"][0];
    let missing = trace
        .requests
        .iter()
        .filter(|one| one.vgpu == 0 && (2_000 * MS - 100_000..2_500 * MS).contains(&one.made));
    let missing = missing.count() as i64;
    let requests = joined["requests"].as_i64().unwrap();
    assert!((requests - (400 - missing)).abs() <= 6, "{requests} of {}: {joined:#}", 400 - missing);
    // The clocks: what is said of them holds.
    let ended = trace.ended;
    let uncertain = number(&joined["uncertain_us"]);
    assert!((12.0..=25.0).contains(&uncertain), "{joined:#}");
    assert_eq!(joined["contradicted_us"], 0.0, "{joined:#}");
    let gains = number(&joined["clock_gains_ppm"]);
    assert!((gains - 20.0).abs() < 3.0, "{gains} {ended}");
    // Waits begin in the guest now.
    let whole = tenant(&report, "vGPU 1");
    let before = told(&[]);
    let host_only = tenant(&before, "vGPU 1");
    assert_eq!(number(&host_only["waits"]["guest_ms"]), 0.0);
    let made: i64 =
        trace.requests.iter().filter(|one| one.vgpu == 0).map(|one| one.from - one.made).sum();
    let (told_ms, truly) = (number(&whole["waits"]["total_ms"]), made as f64 / MS as f64);
    let without = number(&host_only["waits"]["total_ms"]);
    assert!(without < 0.8 * truly, "{without} {truly}");
    // But for what is not in the guest's trace.
    assert!((told_ms / truly - 1.0).abs() < 0.15 && told_ms < truly, "{told_ms} {truly}");
    let legs = &joined["processes"][0];
    assert!(legs["name"].as_str().unwrap().contains("glxgears"), "{legs}");
    // It takes the host 7.5 us on average to catch a request, and the guest 55 to hear of its end.
    let (to_host, back) = (number(&legs["to_host_ms"]), number(&legs["to_guest_ms"]));
    let off = |told: f64, truly: f64| (told - truly).abs() <= uncertain / 1e3;
    assert!(off(to_host, 0.0075) && off(back, 0.055), "{legs}");
    assert!((to_host + back - 0.0625).abs() < 0.004, "{legs}");
    // Said in words as well, and drawn.
    let page = folder.join("page.html");
    let output = gpuwhy(&["vgpu", &host, "--guest", &asked, "--html", page.to_str().unwrap()]);
    assert!(said(&output).contains("vGPU 1 from within"), "{}", said(&output));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("in the guest")
            && page.contains("Requests on their way through guest and host")
    );
}

#[test]
fn a_guests_trace_that_cannot_be_joined_is_refused_with_the_reason() {
    let (_guard, folder) = folder();
    let guest = Guest { ports: 2, ahead: 0, gains: 0 };
    let traced = |runs, seed| {
        let own = Vgpu {
            guest: Some(guest),
            ..Vgpu::with(Load { spread: 0.4, ..load(runs, 3_000, 60) })
        };
        gvt::run(&Setup::kernel(vec![own], seed))
    };
    let (own, other) = (traced(6, 7), traced(11, 8));
    let host = imported(&own.events, &folder, "host");
    let others = imported(&other.guests[0], &folder, "others");
    let few = imported(&own.guests[0][..12], &folder, "few");
    let refused = |guest: &str, why: &str| {
        let output = gpuwhy(&["vgpu", &host, "--guest", guest]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(why), "{}", said(&output));
    };
    refused(&format!("1={others}"), "others.trace: cannot be joined");
    refused(&format!("1={few}"), "requests of an engine are in both traces at most");
    refused(&format!("2={others}"), "has no such tenant; it has vGPU 1");
    refused("1=/nowhere.trace", "/nowhere.trace");
}

#[test]
fn a_neighbours_long_requests_hold_up_short_ones_until_they_end() {
    let (_guard, folder) = folder();
    let trace = simulated(vec![Vgpu::with(load(18, 4_500, 900)), Vgpu::with(load(800, 5_000, 20))]);
    let until = trace.accounts[1].finished;
    assert!(trace.accounts[0].finished > until + 5_000 * MS, "{:?}", trace.accounts);
    let to = format!("{until}ns");
    let during = analysed(&trace, &folder, &["--to", &to]);
    let used = number(&tenant(&during, "vGPU 1")["utilisation"]["render0"]);
    assert!(used <= 20.0, "{used}");
    let finding = found(&during, "blocked_by_tenant").unwrap_or_else(|| panic!("{during:#}"));
    assert_eq!((&finding["tenant"], &finding["culprit"]), (&"vGPU 1".into(), &"vGPU 2".into()));
    assert!(number(&finding["fairness"]) < 0.9, "{finding}");
    assert!(number(&tenant(&during, "vGPU 2")["least_left_ms"]) < -300.0, "{during:#}");
    // Their debt lasts a second at most.
    let from = format!("{}ns", until + 1_000 * MS);
    let after = analysed(&trace, &folder, &["--from", &from]);
    let used = number(&tenant(&after, "vGPU 1")["utilisation"]["render0"]);
    assert!((40.0..=55.0).contains(&used), "{used}");
    assert!(found(&after, "blocked_by_tenant").is_none(), "{after:#}");
}

#[test]
fn sums_equal_the_ledger_on_three_tenants_and_two_engines() {
    let (_guard, folder) = folder();
    let mut two = Vgpu::with(load(7, 3_000, 200));
    two.loads.push(Load { engine: 2, depth: 2, ..load(4, 9_000, 100) });
    two.weight = 8;
    let trace = simulated(vec![
        Vgpu::with(load(5, 11_000, 300)),
        two,
        Vgpu::with(Load { depth: 3, ..load(3, 30_000, 150) }),
    ]);
    let report = analysed(&trace, &folder, &[]);
    nothing_misfits(&report);
    let seconds = number(&report["to_s"]) - number(&report["from_s"]);
    for (at, account) in trace.accounts.iter().enumerate() {
        let own = tenant(&report, &format!("vGPU {}", at + 1));
        let requests: Vec<_> = trace.requests.iter().filter(|one| one.vgpu == at).collect();
        assert_eq!(own["requests"], requests.len());
        let used: f64 = own["utilisation"].as_object().unwrap().values().map(number).sum();
        let busy = used / 100.0 * seconds * 1e9;
        assert!((busy - account.busy as f64).abs() < 1e4, "{busy} ns, {} truly", account.busy);
        let waited: i64 = requests.iter().map(|one| one.from - one.queued).sum();
        let waits = &own["waits"];
        let told = number(&waits["total_ms"]);
        assert!((told - waited as f64 / MS as f64).abs() < 1e-3, "{told} ms, {waited} ns truly");
        let others: f64 = waits["other_tenant_ms"].as_object().unwrap().values().map(number).sum();
        let parts = ["own_predecessor_ms", "reserved_idle_ms", "dependency_ms", "host_ms"];
        let parts: f64 = parts.iter().map(|part| number(&waits[part])).sum();
        assert!((parts + others - told).abs() < 1e-3, "{waits:#}");
        // All requests end in the window, so both queues are the same.
        let (queue, little) = (number(&own["queue"]), number(&own["queue_by_little"]));
        assert!((queue - little).abs() < 1e-9, "{queue} and {little}");
    }
}

#[test]
fn babeltrace2_reads_the_simulated_trace() {
    if Command::new("babeltrace2").arg("--version").output().is_err() {
        println!("skipped: there is no babeltrace2");
        return;
    }
    let (_guard, folder) = folder();
    let trace = simulated(vec![Vgpu::with(load(18, 4_000, 50)), Vgpu::with(load(9, 2_000, 50))]);
    gvt::ctf::write(&trace.events, &folder.join("ctf")).unwrap();
    let output = Command::new("babeltrace2").arg(folder.join("ctf")).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), trace.events.len());
    for kind in gvt::KINDS {
        let told = text.lines().filter(|line| line.contains(&format!(" {}: ", kind.name))).count();
        let truly = trace.events.iter().filter(|e| gvt::KINDS[e.kind].name == kind.name).count();
        assert_eq!(told, truly, "{}", kind.name);
    }
}

/// Two machines on a CPU that also has a thread of the host, and one that mostly halts on its own CPU.
fn pinned() -> Setup {
    let vcpu = |cpu, runs_us: i64, halts_us: i64| Pinned {
        cpu,
        runs: runs_us * 1000,
        halts: halts_us * 1000,
    };
    let mut render = Vgpu::with(load(4, 3_000, 150));
    render.vcpus = vec![vcpu(0, 0, 0), vcpu(1, 900, 4_000)];
    let mut hog = Vgpu::idle(4);
    hog.vcpus = vec![vcpu(0, 50_000, 300)];
    let mut halting = Vgpu::idle(4);
    halting.vcpus = vec![vcpu(2, 2_000, 7_000)];
    let mut setup = Setup::kernel(vec![render, hog, halting], 7);
    setup.tasks = vec![Pinned { cpu: 0, runs: 700_000, halts: 9 * MS }];
    setup.lasts = 2_000 * MS;
    setup
}

#[test]
fn who_took_cpus_from_virtual_machines_equals_the_ledger() {
    let (_guard, folder) = folder();
    let trace = gvt::run(&pinned());
    let report = analysed(&trace, &folder, &[]);
    nothing_misfits(&report);
    let vcpus = &report["vcpus"];
    let machines = vcpus["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 3, "{machines:#?}");
    // A machine that sends nothing to the device is called by its process.
    let names = ["vGPU 1", "pid 1010", "pid 1020", "host"];
    let truth = &trace.taken;
    assert!(truth.direct[1][0] > 50 && truth.direct[1][3] > 5, "{truth:#?}");
    let pairs = vcpus["preempted"].as_array().unwrap();
    for (of, machine) in names.iter().enumerate().take(3) {
        let row = machines.iter().find(|one| one["name"] == *machine);
        let row = row.unwrap_or_else(|| panic!("{machine}: {machines:#?}"));
        // The first switch on a CPU does not say since when the one before ran.
        let close = |told: u64, truly: u64| told.abs_diff(truly) <= 1;
        let counted = |key: &str| row[key].as_u64().unwrap();
        let preempted: u64 = truth.direct[of].iter().sum();
        assert!(close(counted("preemptions"), preempted), "{row}: {preempted} truly");
        assert!(close(counted("halts"), truth.halts[of]), "{row}: {} truly", truth.halts[of]);
        for (by, other) in names.iter().enumerate() {
            let pair = pairs.iter().find(|one| one["machine"] == *machine && one["by"] == *other);
            let told = |key: &str| pair.map_or(0, |pair| pair[key].as_u64().unwrap());
            let (direct, eventual) = (truth.direct[of][by], truth.eventual[of][by]);
            assert!(
                close(told("direct"), direct),
                "{machine} by {other}: {pair:?}, {direct} truly"
            );
            assert!(
                close(told("eventual"), eventual),
                "{machine} by {other}: {pair:?}, {eventual}"
            );
            let behind = truth.behind[of][by] as f64 / 1e6;
            let told = pair.map_or(0.0, |pair| number(&pair["behind_ms"]));
            assert!((told - behind).abs() < 0.002 * behind + 8.0, "{told} ms, {behind} ms truly");
        }
    }
    // The one that only halts was preempted by nobody.
    let halting = machines.iter().find(|one| one["name"] == names[2]).unwrap();
    assert_eq!(halting["preemptions"], 0);
    assert!(halting["halts"].as_u64().unwrap() > 100, "{halting}");
}

/// Foretold times of all tenants under a policy beside the same host under it.
fn foretold(setup: &Setup, words: &[&str], other: &Setup, least: f64) {
    let (_guard, folder) = folder();
    let asked: Vec<&str> = words.iter().flat_map(|word| ["--what-if", word]).collect();
    let weights: Vec<String> =
        setup.vgpus.iter().enumerate().map(|(at, v)| format!("{}:{}", at + 1, v.weight)).collect();
    let weights = weights.join(",");
    let report =
        analysed(&gvt::run(setup), &folder, &[&asked[..], &["--weights", &weights]].concat());
    let truth = gvt::run(other);
    let what_if = &report["what_if"][0];
    let error = number(&what_if["model_error_percent"]);
    assert!(error < 2.0, "{what_if:#}");
    for one in what_if["tenants"].as_array().unwrap() {
        let at: usize = one["name"].as_str().unwrap()[5..].parse::<usize>().unwrap() - 1;
        let begun = truth.requests.iter().filter(|r| r.vgpu == at).map(|r| r.queued).min().unwrap();
        let truly = (truth.accounts[at].finished - begun) as f64 / 1e9;
        let told = number(&one["foretold"]["active_s"]);
        assert!((told / truly - 1.0).abs() < 0.02, "{words:?}: {truly} s truly, {one:#}");
        let was = number(&one["observed"]["active_s"]);
        println!("{words:?} {}: {was:.3} s, {told:.3} s foretold, {truly:.3} s truly", one["name"]);
        if at == 0 {
            // The policy makes a difference, or nothing is shown.
            assert!((was / truly - 1.0).abs() > least, "{was} s and {truly} s");
        }
    }
}

#[test]
fn other_policies_are_foretold_within_two_percent_of_a_host_that_has_them() {
    let capped = Setup::kernel(vec![Vgpu::with(load(18, 4_000, 300)), Vgpu::idle(4)], 7);
    let conserving = Policy { work_conserving: true, ..Policy::KERNEL };
    let other = Setup { policy: conserving, ..capped.clone() };
    foretold(&capped, &["work-conserving"], &other, 0.3);
    let long = Vgpu::with(load(800, 5_000, 12));
    let blocked = Setup::kernel(vec![Vgpu::with(load(18, 4_500, 300)), long], 7);
    let other = Setup { policy: Policy { debts: false, ..Policy::KERNEL }, ..blocked.clone() };
    foretold(&blocked, &["no-debts"], &other, 0.0);
    let other = Setup { policy: conserving, ..blocked.clone() };
    foretold(&blocked, &["work-conserving"], &other, 0.0);
}

#[test]
fn other_weights_are_foretold() {
    let equal = Setup::kernel(
        vec![
            Vgpu::with(load(9, 500, 300)),
            Vgpu::with(load(7, 500, 400)),
            Vgpu::with(load(11, 800, 200)),
        ],
        7,
    );
    let mut other = equal.clone();
    other.vgpus[0].weight = 16;
    foretold(&equal, &["weights=1:16"], &other, 0.1);
    // Weights that were unequal before.
    foretold(&other, &["weights=vGPU 1:4"], &equal, 0.1);
}

#[test]
fn a_policy_that_is_none_is_refused_by_name() {
    let output = gpuwhy(&["vgpu", "nowhere.trace", "--what-if", "fair"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("`fair`"), "{}", said(&output));
}

/// Two machines that compute on one CPU, and two that render on another.
fn computing_and_rendering(cpus: [u32; 4]) -> Setup {
    let vcpu = |cpu, runs_ms: i64, halts_us: i64| Pinned {
        cpu,
        runs: runs_ms * MS,
        halts: halts_us * 1000,
    };
    let mut vgpus = Vec::new();
    for (at, cpu) in cpus.into_iter().enumerate() {
        let mut one = match at {
            0 | 1 => Vgpu::idle(4),
            _ => Vgpu::with(load(20, 2_000, 40)),
        };
        one.vcpus = match at {
            0 | 1 => vec![vcpu(cpu, 40 - 12 * at as i64, 300)],
            _ => vec![vcpu(cpu, 0, 0)],
        };
        vgpus.push(one);
    }
    Setup { lasts: 2_000 * MS, ..Setup::kernel(vgpus, 7) }
}

/// How often machines took CPUs from others directly, by the ledger.
fn machine_by_machine(trace: &Trace) -> u64 {
    let machines = trace.taken.direct.len() - 1;
    let pairs = (0..machines).flat_map(|of| (0..machines).map(move |by| (of, by)));
    pairs.filter(|(of, by)| of != by).map(|(of, by)| trace.taken.direct[of][by]).sum()
}

#[test]
fn machines_take_fewer_cpus_from_each_other_after_the_move_that_is_advised() {
    let (_guard, folder) = folder();
    let mut cpus = [0, 0, 1, 1];
    let before = gvt::run(&computing_and_rendering(cpus));
    let report = analysed(&before, &folder, &[]);
    let finding = found(&report, "placement").unwrap_or_else(|| panic!("{report:#}"));
    let moves = report["placement"]["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 1, "{moves:#?}");
    // As somebody would do it who reads the report.
    let names = ["pid 1000", "pid 1010", "vGPU 3", "vGPU 4"];
    let of = |who: &Value| {
        let who = who.as_str().unwrap();
        names.iter().position(|name| who.starts_with(&format!("{name},"))).unwrap()
    };
    for one in moves {
        cpus[of(&one["vcpu"])] = one["to_cpu"].as_u64().unwrap() as u32;
        if !one["instead"].is_null() {
            cpus[of(&one["instead"])] = one["from_cpu"].as_u64().unwrap() as u32;
        }
    }
    assert_ne!(cpus[0], cpus[1], "those that compute are parted: {finding}");
    assert_ne!(cpus[2], cpus[3], "{finding}");
    let after = gvt::run(&computing_and_rendering(cpus));
    let (was, is) = (machine_by_machine(&before), machine_by_machine(&after));
    println!("{was} times, {is} after the move; {finding}");
    assert!(is * 2 < was, "{was} times, {is} after the move");
    let report = analysed(&after, &folder, &[]);
    assert!(found(&report, "placement").is_none(), "{report:#}");
    // Who computes and who renders is told.
    let machines = report["placement"]["machines"].as_array().unwrap();
    for (name, uses) in names.iter().zip(["cpu", "cpu", "gpu", "gpu"]) {
        let one = machines.iter().find(|one| one["name"] == *name).unwrap();
        let phases = one["phases"].as_array().unwrap();
        assert!(phases.iter().any(|phase| phase["uses"] == uses), "{one:#}");
    }
}

#[test]
fn a_tenant_that_gets_another_weight_is_seen_by_its_slices_and_memory_is_told_by_tenant() {
    let (_guard, folder) = folder();
    let mut heavier = Vgpu::with(load(9, 500, 400));
    heavier.changes = vec![(3_000 * MS, 12)];
    let trace = simulated(vec![heavier, Vgpu::with(load(7, 500, 400))]);
    let report = analysed(&trace, &folder, &[]);
    for (name, wanted) in [("vGPU 1", [50.0, 75.0]), ("vGPU 2", [50.0, 25.0])] {
        let slices = tenant(&report, name)["slices"].as_array().unwrap();
        assert!(slices.len() >= 2, "{slices:#?}");
        for (slice, wanted) in slices.iter().zip(wanted) {
            let told = number(&slice["slice_ms"]);
            assert!((told - wanted).abs() < 1.0, "{wanted} ms: {slices:#?}");
        }
        // The scheduler takes it over at its next reset.
        let (before, after) = (number(&slices[0]["to_s"]), number(&slices[1]["from_s"]));
        assert!(before < 4.1 && (3.0..4.5).contains(&after), "{slices:#?}");
        assert_eq!(report["memory"][name], serde_json::json!([64 << 20, 64 << 20]));
    }
}

#[test]
fn tenants_that_want_more_memory_than_there_is_are_told_and_others_are_not() {
    let (_guard, folder) = folder();
    let tenant = |mib: u64, buffers: usize| Vgpu {
        buffers: vec![mib << 20; buffers],
        ..Vgpu::with(load(5, 3_000, 200))
    };
    let vgpus = vec![tenant(32, 8), tenant(32, 6), tenant(16, 2)];
    let all = (8 * 32 + 6 * 32 + 2 * 16) << 20;
    let with = |memory| gvt::run(&Setup { memory, ..Setup::kernel(vgpus.clone(), 7) });
    let narrow = with(all - (96 << 20));
    let report = analysed(&narrow, &folder, &[]);
    nothing_misfits(&report);
    let finding = found(&report, "memory_overcommit").unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(finding["tenant"], "vGPU 1");
    let evictions = report["evictions"].as_object().unwrap();
    let sum = |key| evictions.values().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("times"), sum("bytes")), narrow.evicted);
    let says = finding["says"].as_str().unwrap();
    let times = format!("memory: {} times", narrow.evicted.0);
    assert!(
        says.contains(&times) && says.contains("at most 480 MiB, most of it vGPU 1 256 MiB"),
        "{says}"
    );
    // All fits, to the last byte.
    let report = analysed(&with(all), &folder, &[]);
    assert!(found(&report, "memory_overcommit").is_none(), "{report:#}");
    assert_eq!(report["evictions"], serde_json::json!({}));
}

/// Several hosts, a trace each, as users ask about them.
fn placed(hosts: &[Trace], folder: &Path) -> Value {
    let mut traces = Vec::new();
    for (at, host) in hosts.iter().enumerate() {
        let ctf = folder.join(format!("ctf{at}"));
        let _ = std::fs::remove_dir_all(&ctf);
        gvt::ctf::write(&host.events, &ctf).unwrap();
        let out = folder.join(format!("h{at}.trace"));
        let (ctf, out) = (ctf.to_str().unwrap(), out.to_str().unwrap().to_owned());
        let output = gpuwhy(&["import", ctf, "-o", &out, "--force"]);
        assert!(output.status.success(), "{}", said(&output));
        traces.push(out);
    }
    let traces: Vec<&str> = traces.iter().map(String::as_str).collect();
    let output = gpuwhy(&[&["vgpu", "--json"], &traces[..]].concat());
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn machines_are_placed_over_hosts_and_wait_as_much_as_was_foretold_after_the_moves() {
    let (_guard, folder) = folder();
    let vcpu = |cpu, runs_ms: i64| Pinned { cpu, runs: runs_ms * MS, halts: 300_000 };
    // Requests that differ, so that two that render do not fall into step.
    let renders = |runs, thinks_us| {
        let mut one = Vgpu::with(Load { spread: 0.9, ..load(runs, thinks_us, 250) });
        one.vcpus = vec![vcpu(0, 0)];
        one
    };
    let computes = |runs_ms| {
        let mut one = Vgpu::with(load(1, 5_000, 8));
        one.vcpus = vec![vcpu(0, 0), vcpu(0, runs_ms)];
        one
    };
    // Two that render on one host, two that compute on the other, each with a CPU for itself but for its first.
    let hosts = |kinds: [[char; 2]; 2]| {
        kinds.map(|kinds| {
            let mut vgpus: Vec<Vgpu> = kinds
                .iter()
                .map(|kind| if *kind == 'r' { renders(10, 6_000) } else { computes(40) })
                .collect();
            for (at, one) in vgpus.iter_mut().enumerate() {
                one.vcpus
                    .iter_mut()
                    .enumerate()
                    .for_each(|(n, vcpu)| vcpu.cpu = (at * 2 + n) as u32);
            }
            gvt::run(&Setup { lasts: 2_000 * MS, ..Setup::kernel(vgpus, 7) })
        })
    };
    let before = placed(&hosts([['r', 'r'], ['c', 'c']]), &folder);
    let findings = before["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{:#} {:#}", before["hosts"], before["moves"]);
    let moves = before["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 1, "{moves:#?}");
    assert_eq!((&moves[0]["from_host"], &moves[0]["to_host"]), (&"h0".into(), &"h1".into()));
    let sum = |of: &Value, key: &str| -> f64 {
        let hosts = of["hosts"].as_array().unwrap().iter();
        hosts.map(|host| number(&host[key]) / number(&host["length_s"])).sum()
    };
    // As somebody would do it who reads the report; where nobody comes instead, one host has three machines.
    let after = placed(&hosts([['r', 'c'], ['r', 'c']]), &folder);
    let (was, foretold) = (sum(&before, "waited_gpu_s"), sum(&before, "waited_gpu_foretold_s"));
    let is = sum(&after, "waited_gpu_s");
    println!("{was} of the time, {foretold} foretold, {is} after; {}", moves[0]);
    assert!(is < 0.5 * was, "{was} of the time waited, {foretold} foretold, {is} after the move");
    assert!((foretold - is).abs() < 0.15 * was, "{was} waited, {foretold} foretold, {is} after");
    // Nothing more is to be had.
    assert_eq!(after["moves"], serde_json::json!([]), "{:#}", after["hosts"]);
    assert_eq!(after["findings"], serde_json::json!([]));
    for (host, uses) in [("h0", "gpu"), ("h1", "cpu")] {
        let all = before["hosts"].as_array().unwrap();
        let machines = &all.iter().find(|one| one["name"] == host).unwrap()["machines"];
        let phases = |one: &Value| one["phases"].as_array().unwrap().clone();
        let is_so = |one: &Value| phases(one).iter().any(|phase| phase["uses"] == uses);
        assert!(machines.as_array().unwrap().iter().all(is_so), "{host}: {machines:#}");
    }
}

/// What a page's script draws.
fn drawn(page: &str) -> Value {
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

fn lane<'a>(drawn: &'a Value, group: &str, label: &str) -> &'a Value {
    let all = drawn["tracks"].as_array().unwrap();
    let names = || all.iter().map(|one| format!("{} / {}", one["group"], one["label"]));
    let found = all.iter().find(|one| one["group"] == group && one["label"] == label);
    found.unwrap_or_else(|| panic!("{group} / {label}: {:#?}", names().collect::<Vec<_>>()))
}

#[test]
fn the_page_draws_what_the_report_says() {
    let (_guard, folder) = folder();
    let mut setup = pinned();
    // A neighbour on the device, whose machine has no CPUs.
    setup.vgpus.push(Vgpu::with(Load { depth: 2, ..load(6, 2_000, 120) }));
    let trace = gvt::run(&setup);
    let page = folder.join("page.html");
    let report = analysed(&trace, &folder, &["--html", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    // For a look in a browser: GPUWHY_REPORT_OUT=/some/file.html cargo test -p gpuwhy --test it page_draws
    if let Some(path) = std::env::var_os("GPUWHY_REPORT_OUT") {
        std::fs::write(path, &page).unwrap();
    }
    assert!(page.len() < 20_000_000 && page.contains("default-src 'none'"));
    let drawn = drawn(&page);
    let length = number(&drawn["length_ns"]);
    // The shares of the coarsest level, over all the time, are the use of the engine by each tenant.
    let stack = lane(&drawn, "device 0", "render0, use by tenant");
    for (at, name) in stack["values"].as_array().unwrap().iter().enumerate() {
        let items = stack["levels"][0]["items"].as_array().unwrap().iter();
        let held: f64 =
            items.map(|i| number(&i[2][at]) * (number(&i[1]) - number(&i[0])) / length).sum();
        let said = number(&tenant(&report, name.as_str().unwrap())["utilisation"]["render0"]);
        assert!((held - said).abs() < 0.02 * said, "{name}: {held} % drawn, {said} % said");
    }
    // The area under the queue is the mean queue.
    let queue = lane(&drawn, "vGPU 4", "requests that wait");
    let items = queue["levels"][0]["items"].as_array().unwrap().iter();
    let mean: f64 = items.map(|i| number(&i[2]) * (number(&i[1]) - number(&i[0])) / length).sum();
    let said = number(&tenant(&report, "vGPU 4")["queue"]);
    assert!((mean - said).abs() < 0.01 * said, "{mean} drawn, {said} said");
    // Requests that are on an engine, over all the time, are its use.
    let rows = drawn["tracks"].as_array().unwrap().iter();
    let rows = rows.filter(|one| {
        one["group"] == "vGPU 1" && one["label"].as_str().unwrap().starts_with("requests, row")
    });
    let running = |row: &Value| -> f64 {
        let items = row["levels"][0]["items"].as_array().unwrap().iter();
        items.filter(|i| i[2] == 3).map(|i| number(&i[1]) - number(&i[0])).sum()
    };
    let (ran, truth) = (rows.map(running).sum::<f64>(), trace.accounts[0].busy as f64);
    assert!((ran / truth - 1.0).abs() < 1e-6, "{ran} ns drawn, {truth} ns truly");
    // Each preemption is a band, and the matrix has its count.
    let phases = lane(&drawn, "pid 1010 on the host's CPUs", "virtual CPU 0");
    let bands = phases["levels"][0]["items"].as_array().unwrap();
    let preempted = bands.iter().filter(|i| i[2] == 1).count();
    let machines = report["vcpus"]["machines"].as_array().unwrap();
    let machine = machines.iter().find(|one| one["name"] == "pid 1010").unwrap();
    assert_eq!(machine["preemptions"], preempted);
    let pairs = report["vcpus"]["preempted"].as_array().unwrap();
    let pair = pairs.iter().find(|p| p["machine"] == "pid 1010" && p["by"] == "vGPU 1").unwrap();
    assert!(page.contains(&format!(">{} ({})</text>", pair["direct"], pair["eventual"])));
    for table in ["engines", "tenants", "waits", "slices", "longest", "preempted", "machines"] {
        assert!(page.contains(&format!("<section id=\"{table}\">")), "{table}");
    }
    assert!(page.contains("All is drawn to the ns"), "the finest level is stated");
}

/// What is left of a page in a browser after a script; `None` where there is no browser.
fn in_a_browser(page: &str, folder: &Path, script: &str) -> Option<String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let Some(browser) = names.iter().find(there) else {
        println!("skipped: there is no Chromium");
        return None;
    };
    // The page's own policy lets no other script run.
    let policy = page.split("<meta http-equiv").nth(1).unwrap().split('>').next().unwrap();
    // Without a screen frames come by a clock.
    let frames = "<script>window.requestAnimationFrame = (f) => setTimeout(f, 5);</script>";
    let page = page.replace(&format!("<meta http-equiv{policy}>"), frames);
    let script = format!("<script>addEventListener('load', () => {{ {script} }})</script>");
    std::fs::write(folder.join("browser.html"), page + &script).unwrap();
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", &profile])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--virtual-time-budget=5000", "--window-size=1200,900", "--dump-dom"])
        .arg(format!("file://{}", folder.join("browser.html").display()))
        .output()
        .unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn keys_move_the_one_cursor_and_zoom_all_lanes_in_a_browser() {
    let (_guard, folder) = folder();
    let page = folder.join("page.html");
    analysed(&gvt::run(&pinned()), &folder, &["--html", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    let script = "
        const plot = document.getElementById('track-plots'), said = [];
        const values = () => [...document.querySelectorAll('.lane .value')].map((v) => v.textContent).join('|');
        const press = (key) => plot.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
        const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        const say = (what) => said.push(what + '=' + document.getElementById('range').textContent + ';'
            + document.getElementById('at').textContent + ';' + values());
        plot.focus();
        (async () => {
            await frame(); say('whole');
            press('w'); press('w'); await frame(); say('zoomed');
            press('ArrowRight'); await frame(); say('cursor');
            press('d'); await frame(); say('moved');
            press('f'); press('Escape'); await frame(); say('again');
            const out = document.createElement('pre');
            out.id = 'said'; out.textContent = said.join('\\n'); document.body.append(out);
        })();";
    let Some(dom) = in_a_browser(&page, &folder, script) else { return };
    let said = dom.split("id=\"said\">").nth(1).unwrap_or_else(|| panic!("{dom}"));
    let said: Vec<&str> = said.split("</pre>").next().unwrap().lines().collect();
    let parts: Vec<Vec<&str>> =
        said.iter().map(|line| line.split_once('=').unwrap().1.split(';').collect()).collect();
    let [whole, zoomed, cursor, moved, again] = parts.as_slice() else { panic!("{said:#?}") };
    assert_ne!(whole[0], zoomed[0], "w zooms");
    assert!(
        zoomed[1].is_empty() && cursor[1].contains(" s"),
        "an arrow sets the cursor: {said:#?}"
    );
    assert_ne!(cursor[2], zoomed[2], "the cursor tells what each lane has there");
    assert_ne!(moved[0], cursor[0], "d moves");
    assert_eq!((whole[0], whole[2]), (again[0], again[2]), "f and Escape show the whole again");
}

/// A desktop with an AMD GPU, recorded by trace-cmd: the figures are those of an independent reckoning over the text that
/// trace-cmd prints.
#[test]
fn a_real_trace_of_amdgpu_has_the_published_figures() {
    let Some(packed) = crate::importing::others("kernel/tracecmd/amdgpu_patched.dat.gz") else {
        return;
    };
    let (_guard, folder) = folder();
    let dat = folder.join("a.dat");
    let plain = Command::new("gzip").args(["-dc", &packed]).output().unwrap();
    std::fs::write(&dat, plain.stdout).unwrap();
    has_the_published_figures(dat.to_str().unwrap(), &folder);
}

/// The same from the text itself.
#[test]
fn a_text_of_trace_cmd_has_the_published_figures() {
    let Some(text) = crate::importing::others("kernel/tracecmd/amdgpu_report.txt.gz") else {
        return;
    };
    let (_guard, folder) = folder();
    has_the_published_figures(&text, &folder);
}

fn has_the_published_figures(file: &str, folder: &std::path::Path) {
    let out = folder.join("a.trace");
    let out = out.to_str().unwrap();
    let output = gpuwhy(&["import", file, "-o", out]);
    assert!(output.status.success(), "{}", said(&output));
    let output = gpuwhy(&["vgpu", out, "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let engines = report["engines"].as_array().unwrap();
    let gfx = engines.iter().find(|one| one["name"] == "gfx").unwrap();
    assert_eq!(gfx["requests"], 639);
    for (what, value, digits) in [
        (&gfx["busy_ms"], 1160.221, 3),
        (&gfx["utilisation"], 32.69, 2),
        (&gfx["software_queue"]["mean"], 0.43380, 5),
        (&gfx["hardware_queue"]["mean"], 1.1902, 4),
        (&gfx["execution"]["mean"], 1.8157, 4),
    ] {
        assert_eq!(format!("{:.digits$}", number(what)), format!("{value:.digits$}"), "{gfx:#}");
    }
    for one in report["tenants"].as_array().unwrap() {
        let (queue, little) = (number(&one["queue"]), number(&one["queue_by_little"]));
        assert!((queue - little).abs() < 0.001, "{one:#}");
        // Of all but the kernel's own jobs a later one of the same context ended.
        let all_are_over = one["unfinished"] == one["overtaken"];
        assert!(all_are_over || one["requests"] == 0, "{one:#}");
    }
}
