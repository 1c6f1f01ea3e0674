//! `gpuwhy vgpu --against` on simulated hosts: what changed from one run to another is said part by part, with who did it.

use std::path::Path;

use gpuwhy_testkit::gvt::{self, KINDS, Load, Setup, Trace, Vgpu};
use serde_json::Value;

use crate::vgpu::{MS, load, number, simulated};
use crate::{folder, gpuwhy, said};

/// The trace of a run, through CTF as users make it.
fn imported(trace: &Trace, folder: &Path, name: &str) -> String {
    let (ctf, out) = (folder.join(format!("{name}.ctf")), folder.join(format!("{name}.trace")));
    gvt::ctf::write(&trace.events, &ctf).unwrap();
    let (ctf, out) = (ctf.to_str().unwrap(), out.to_str().unwrap());
    let output = gpuwhy(&["import", ctf, "-o", out, "--force"]);
    assert!(output.status.success(), "{}", said(&output));
    out.to_owned()
}

/// The comparison as a document and as text, with the exit code.
fn compared(run: &str, base: &str, more: &[&str]) -> (Value, String, i32) {
    let words = [&["vgpu", run, "--against", base], more].concat();
    let output = gpuwhy(&words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let output = gpuwhy(&[&words[..], &["--json"]].concat());
    let code = output.status.code().unwrap();
    assert!(matches!(code, 0 | 3), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    parts_sum_to_changes(&report["against"]);
    (report["against"].clone(), text, code)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn tenant<'a>(against: &'a Value, name: &str) -> &'a Value {
    let found = list(&against["tenants"]).iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {against:#}"))
}

fn part(parts: &Value, kind: &str, who: Option<&str>) -> f64 {
    let is = |one: &&Value| {
        one["part"]["kind"] == kind && who.is_none_or(|who| one["part"]["tenant"] == who)
    };
    list(parts).iter().find(is).map_or(0.0, |one| number(&one["change_ms"]))
}

/// Whatever is compared, its parts are all of it.
fn parts_sum_to_changes(against: &Value) {
    let sum =
        |parts: &Value, of: &str| -> f64 { list(parts).iter().map(|one| number(&one[of])).sum() };
    let equal = |a: f64, b: f64, of: &Value| {
        assert!((a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs())), "{a} and {b}: {of:#}");
    };
    for one in list(&against["tenants"]) {
        for engine in list(&one["engines"]).iter().filter(|one| !list(&one["parts"]).is_empty()) {
            equal(sum(&engine["parts"], "change_ms"), number(&engine["change_ms"]), engine);
            equal(
                sum(&engine["parts"], "base_ms"),
                number(&engine["latency"]["base"]["mean"]),
                engine,
            );
            equal(
                sum(&engine["parts"], "run_ms"),
                number(&engine["latency"]["run"]["mean"]),
                engine,
            );
        }
        let work = &one["work"];
        if !work.is_null() {
            let parts = sum(&work["parts"], "change_ms") / 1e3;
            equal(parts + number(&work["by_requests_s"]), number(&work["change_s"]), work);
            equal(sum(&work["parts"], "run_ms") / 1e3, number(&work["active_s"]["run"]), work);
        }
    }
    for one in list(&against["uses"]) {
        let parts = ["by_requests", "by_length", "rest"].map(|part| number(&one[part]));
        equal(parts.iter().sum(), number(&one["change"]), one);
    }
}

fn mean(of: impl Iterator<Item = i64>) -> f64 {
    let all: Vec<f64> = of.map(|ns| ns as f64 / MS as f64).collect();
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
fn a_tenant_beside_a_neighbour_with_long_requests_is_told_that_it_waits_for_them() {
    let (_guard, folder) = folder();
    let own = Vgpu::with(load(18, 4_500, 300));
    let alone = simulated(vec![own.clone()]);
    let beside = simulated(vec![own, Vgpu::with(load(800, 5_000, 12))]);
    let (base, run) = (imported(&alone, &folder, "base"), imported(&beside, &folder, "run"));
    let page = folder.join("page.html");
    let (against, text, code) = compared(&run, &base, &["--html", page.to_str().unwrap()]);
    assert_eq!((code, &against["changed"]), (0, &true.into()), "{text}");
    let one = tenant(&against, "vGPU 1");
    let render = &one["engines"][0];
    let latency = |trace: &Trace| {
        let own = trace.requests.iter().filter(|one| one.vgpu == 0);
        mean(own.map(|one| one.to - one.queued))
    };
    // Some µs are between the end of a request and the driver's notice of it.
    let truly = latency(&beside) - latency(&alone);
    let told = number(&render["change_ms"]);
    assert!((told - truly).abs() < 0.02, "{told} ms told, {truly} ms truly");
    let behind = part(&render["parts"], "other_tenant", Some("vGPU 2"));
    assert!(behind > 0.5 * told && told > 20.0, "{behind} of {told} ms: {text}");
    assert!(part(&render["parts"], "execution", None).abs() < 0.5, "{text}");
    let says = render["says"].as_str().unwrap();
    assert!(says.contains("waiting for vGPU 2's requests"), "{says}");
    assert!(text.contains(says), "{text}");
    // The same requests took longer, and there are as many.
    let work = &one["work"];
    assert_eq!((number(&work["by_requests_s"]), &work["changed"]), (0.0, &true.into()), "{work:#}");
    let slower = (beside.accounts[0].finished - alone.accounts[0].finished) as f64 / 1e9;
    assert!((number(&work["change_s"]) - slower).abs() < 0.001, "{work:#}, {slower} s truly");
    // Who is in one only is said, with what it took.
    assert_eq!(against["unmatched"][0]["name"], "vGPU 2");
    assert_eq!(against["unmatched"][0]["only_in"], "run");
    let taken = &against["uses"][0];
    assert_eq!((&taken["tenant"], number(&taken["used_percent"]["base"])), (&"vGPU 2".into(), 0.0));
    assert!(number(&taken["by_requests"]) > 0.9 * number(&taken["change"]), "{taken:#}");
    assert!(text.contains("vGPU 2: 12 requests, in the run only"), "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    for id in ["changes", "latency-bars", "work-bars", "latency-parts", "work-parts", "use-changes"]
    {
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
    }
    assert!(page.contains("behind vGPU 2: "), "a bar has who is waited for");
    // The other way round it is faster, by the same.
    let (against, ..) = compared(&base, &run, &[]);
    assert_eq!(number(&tenant(&against, "vGPU 1")["engines"][0]["change_ms"]), -told);
}

#[test]
fn requests_that_run_longer_are_told_as_executions() {
    let (_guard, folder) = folder();
    let host = |runs| {
        simulated(vec![Vgpu::with(load(runs, 30_000, 100)), Vgpu::with(load(3, 20_000, 150))])
    };
    let base = imported(&host(8), &folder, "base");
    let run = imported(&host(12), &folder, "run");
    let (against, text, code) = compared(&run, &base, &[]);
    assert_eq!(code, 0, "{text}");
    let render = &tenant(&against, "vGPU 1")["engines"][0];
    let execution = part(&render["parts"], "execution", None);
    assert!((execution - 4.0).abs() < 0.2, "{text}");
    assert_eq!(render["changed"], true);
    let used = list(&against["uses"]).iter().find(|one| one["tenant"] == "vGPU 1").unwrap();
    assert!(number(&used["by_length"]) > 5.0 && number(&used["by_requests"]) < 0.0, "{used:#}");
}

#[test]
fn equal_runs_change_by_nothing_and_more_requests_are_no_slower_ones() {
    let (_guard, folder) = folder();
    let host = |seed, requests| {
        let vgpus = vec![Vgpu::with(load(6, 25_000, requests)), Vgpu::with(load(4, 25_000, 200))];
        gvt::run(&Setup::kernel(vgpus, seed))
    };
    let base = imported(&host(1, 200), &folder, "base");
    let (against, text, code) = compared(&base, &base, &[]);
    assert_eq!((code, &against["changed"]), (3, &false.into()), "{text}");
    assert!(text.contains("nothing changed beyond what may be chance"), "{text}");
    for seed in [2, 3, 4] {
        let run = imported(&host(seed, 200), &folder, "run");
        let (_, text, code) = compared(&run, &base, &[]);
        assert_eq!(code, 3, "{text}");
    }
    // Waits that come in bursts vary more.
    let bursts = |seed| {
        let vgpus = vec![Vgpu::with(load(18, 4_500, 150)), Vgpu::with(load(300, 5_000, 10))];
        gvt::run(&Setup::kernel(vgpus, seed))
    };
    let before = imported(&bursts(1), &folder, "before");
    for seed in [2, 3, 4] {
        let run = imported(&bursts(seed), &folder, "run");
        let (_, text, code) = compared(&run, &before, &[]);
        assert_eq!(code, 3, "{text}");
    }
    let run = imported(&host(1, 320), &folder, "more");
    let (against, text, _) = compared(&run, &base, &[]);
    let work = &tenant(&against, "vGPU 1")["work"];
    let (by, change) = (number(&work["by_requests_s"]), number(&work["change_s"]));
    assert!(by > 3.0 && (change / by - 1.0).abs() < 0.05, "{text}");
    assert_eq!(work["changed"], false, "{text}");
}

#[test]
fn the_window_of_either_run_is_its_own() {
    let (_guard, folder) = folder();
    // The neighbour ends, and the rest of the run is like the time alone.
    let trace = simulated(vec![Vgpu::with(load(18, 4_500, 700)), Vgpu::with(load(800, 5_000, 10))]);
    let until = trace.accounts[1].finished;
    let run = imported(&trace, &folder, "run");
    let (to, from) = (format!("{until}ns"), format!("{}ns", until + 1_000 * MS));
    let (against, text, code) = compared(&run, &run, &["--to", &to, "--against-from", &from]);
    assert_eq!(code, 0, "{text}");
    assert!((number(&against["base_from_s"]) - (until + 1_000 * MS) as f64 / 1e9).abs() < 1e-6);
    let one = tenant(&against, "vGPU 1");
    assert!(part(&one["engines"][0]["parts"], "other_tenant", Some("vGPU 2")) > 10.0, "{text}");
    // The neighbour has requests in one of the windows only.
    let said_why = list(&against["not_compared"]).iter().any(|why| {
        why.as_str().unwrap() == "vGPU 2: none of its requests is done in the base's window"
    });
    assert!(said_why, "{text}");
}

#[test]
fn what_one_run_does_not_tell_is_not_compared_and_is_named() {
    let (_guard, folder) = folder();
    let trace = simulated(vec![Vgpu::with(load(6, 20_000, 60)), Vgpu::with(load(4, 20_000, 60))]);
    let base = imported(&trace, &folder, "base");
    let without = |names: &[&str], name: &str| {
        let mut trace = trace.clone();
        trace.events.retain(|event| !names.contains(&KINDS[event.kind].name));
        imported(&trace, &folder, name)
    };
    // Waits begin later where the queue of the virtual GPU is not told.
    let run = without(&["gvt_workload_queue"], "late");
    let (against, text, code) = compared(&run, &base, &[]);
    let one = &tenant(&against, "vGPU 1")["engines"][0];
    assert_eq!(
        (code, &one["change_ms"], list(&one["parts"]).len()),
        (3, &Value::Null, 0),
        "{text}"
    );
    assert!(text.contains("the queue of the virtual GPU in the base"), "{text}");
    assert!(text.contains("the run has no gvt_workload_queue"), "{text}");
    assert!(tenant(&against, "vGPU 1")["work"].is_null(), "{text}");
    // Without it, dependencies are the host's in both.
    let run = without(&["i915_gem_request_submit"], "ready");
    let (against, text, _) = compared(&run, &base, &[]);
    let one = &tenant(&against, "vGPU 1")["engines"][0];
    assert!(list(&one["parts"]).iter().all(|one| one["part"]["kind"] != "dependency"), "{text}");
    assert!(number(&one["change_ms"]).abs() < 1e-6, "{text}");
    assert!(text.contains("the run does not tell when requests were ready"), "{text}");
}

#[test]
fn a_run_without_requests_or_with_few_says_so() {
    let (_guard, folder) = folder();
    let some = imported(&simulated(vec![Vgpu::with(load(6, 20_000, 60))]), &folder, "some");
    let idle = Setup { lasts: 300 * MS, ..Setup::kernel(vec![Vgpu::idle(4), Vgpu::idle(4)], 7) };
    let mut idle = gvt::run(&idle);
    // A trace of nothing is no trace: one event that is of no GPU.
    idle.events.truncate(1);
    if idle.events.is_empty() {
        let other = simulated(vec![Vgpu::with(load(6, 20_000, 1))]);
        idle.events.extend(other.events.into_iter().take(1));
    }
    let none = imported(&idle, &folder, "none");
    let (against, text, code) = compared(&none, &some, &[]);
    assert_eq!((code, list(&against["tenants"]).len()), (3, 0), "{text}");
    assert!(text.contains("nothing can be compared"), "{text}");
    let three = imported(&simulated(vec![Vgpu::with(load(9, 20_000, 3))]), &folder, "three");
    let (against, text, code) = compared(&three, &some, &[]);
    assert_eq!(code, 3, "{text}");
    let one = tenant(&against, "vGPU 1");
    assert_eq!((&one["engines"][0]["changed"], &one["work"]), (&Value::Null, &Value::Null));
    assert!(text.contains("too few to say"), "{text}");
    assert!(text.contains("has 3 requests, fewer than 5"), "{text}");
    // Requests to engines that only one run uses.
    let mut other = Vgpu::with(load(6, 20_000, 60));
    other.loads.push(Load { engine: 2, ..load(4, 9_000, 60) });
    let other = imported(&simulated(vec![other]), &folder, "other");
    let (_, text, _) = compared(&other, &some, &[]);
    assert!(text.contains("the base has no such requests"), "{text}");
    assert!(text.contains("50 % of its requests are to"), "{text}");
}

#[test]
fn a_base_that_cannot_be_read_and_an_empty_window_are_errors_that_name_it() {
    let (_guard, folder) = folder();
    let some = imported(&simulated(vec![Vgpu::with(load(6, 20_000, 20))]), &folder, "some");
    let output = gpuwhy(&["vgpu", &some, "--against", "nowhere.trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("nowhere.trace"), "{}", said(&output));
    let output = gpuwhy(&["vgpu", &some, "--against", &some, "--against-from", "900s"]);
    assert_eq!(output.status.code(), Some(1));
    let words = said(&output);
    assert!(words.contains("holds nothing of") && words.contains("some.trace"), "{words}");
    let output = gpuwhy(&["vgpu", &some, "--from", "200ms", "--to", "100ms"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("from 0.200000 to 0.100000 s"), "{}", said(&output));
    let output = gpuwhy(&["vgpu", &some, "--against-to", "1s"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}
