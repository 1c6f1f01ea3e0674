//! What a spliced kernel costs, as NVIDIA's assembler tells it: registers, spills, and machine code.
//!
//! The kernels are those of `tests/modules`, and where `scripts/ptx-corpus.sh` made it, a corpus of
//! kernels of other people; `GPUWHY_CORPUS_JSON` names a file for what was measured and asks for all
//! of them, and without it one in eight is measured. Without ptxas the test skips itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{clang, ptxas};
use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Object, Program};
use serde_json::{Value, json};

const PROBES: [&str; 4] = ["entry_count", "return_stamp", "load_count", "nothing"];

/// The corpus, where there is one.
fn corpus() -> Vec<PathBuf> {
    let named = std::env::var_os("GPUWHY_CORPUS").map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("gpuwhy/ptx-corpus"));
    let folders = named.or(cache).into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let mut found: Vec<PathBuf> = folders
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "ptx"))
        .collect();
    found.sort();
    found
}

fn plan(probe: &str) -> Plan {
    let mut plan = Plan::new(How::default());
    plan.object(&Object::read(&clang::object(probe, "v3")).unwrap());
    plan
}

/// The device that a module is for.
fn target(text: &str) -> &str {
    let at = text.find(".target").expect("a module names its target");
    text[at + 7..].split([',', '\n']).next().unwrap_or_default().trim()
}

/// Everything of one module: for each kernel, itself and with each probe.
fn measure(path: &Path, plans: &[(&str, Plan)]) -> Option<BTreeMap<String, Value>> {
    let text = std::fs::read_to_string(path).unwrap();
    let module = Module::read(&text).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
    assert_eq!(module.rebuild(), text, "{}", path.display());
    let arch = target(&text);
    let native = ptxas::kernels(&text, arch)?;
    let mut rows: BTreeMap<String, Value> = BTreeMap::new();
    for (name, kernel) in &native {
        let row = json!({
            "wgmma": uses_wgmma(&module, name),
            "module": path.file_stem().map(|stem| stem.to_string_lossy()),
            "native": kernel.json(),
        });
        rows.insert(name.clone(), row);
    }
    for (probe, plan) in plans {
        let spliced =
            plan.splice(&module).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let patched = ptxas::kernels(&spliced.text, arch)?;
        for (name, before) in &native {
            let after = &patched[name];
            let sites = spliced.kernels.iter().find(|kernel| kernel.name == *name);
            let mut told = after.json();
            told["sites"] = json!(sites.map_or(0, |kernel| kernel.sites));
            told["identical"] = json!(before.code == after.code);
            rows.get_mut(name).unwrap()[probe] = told;
        }
    }
    Some(rows)
}

/// Whether a kernel uses the tensor cores asynchronously.
fn uses_wgmma(module: &Module, name: &str) -> bool {
    let kernel = module.functions().iter().find(|function| function.name == name);
    let Some((open, close)) = kernel.and_then(|function| function.body) else { return false };
    module.statements()[open..close]
        .iter()
        .any(|statement| module.code(statement).starts_with("wgmma.mma_async"))
}

#[test]
fn a_probe_costs_what_is_promised() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/modules");
    let mut modules: Vec<PathBuf> = vec![here.join("own.ptx")];
    let json = std::env::var_os("GPUWHY_CORPUS_JSON");
    let others = corpus();
    if others.is_empty() {
        println!("no corpus here (scripts/ptx-corpus.sh makes it): our own kernels alone");
    }
    modules.extend(others.into_iter().step_by(if json.is_some() { 1 } else { 8 }));
    let plans: Vec<(&str, Plan)> = PROBES.iter().map(|&probe| (probe, plan(probe))).collect();
    let mut all = serde_json::Map::new();
    let mut wrong = Vec::new();
    for path in &modules {
        let Some(rows) = measure(path, &plans) else { return };
        for (name, row) in rows {
            wrong.extend(complaints(&name, &row));
            let stem = path.file_stem().unwrap().to_string_lossy();
            all.insert(format!("{stem}/{name}"), row);
        }
        println!("{}: {} kernels", path.display(), all.len());
    }
    if let Some(json) = json {
        std::fs::write(json, Value::Object(all).to_string()).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_tracepoint_costs_nothing_until_a_program_is_attached() {
    let text = include_str!("../modules/own.ptx");
    let bare: String =
        text.split_inclusive('\n').filter(|line| !line.contains("gpuwhy_tp")).collect();
    assert_ne!(text, bare);
    let mut plan = Plan::new(How::default());
    // r0 = *(u64 *)(r1 + 8): the number of the tile; it goes nowhere.
    let read = [0x79, 0x10, 8, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    plan.program(Program::from_bytes(&read, "gpu/tp/tile").unwrap());
    let spliced = plan.splice(&Module::read(text).unwrap()).unwrap();
    assert_eq!(spliced.sites.len(), 1, "{:?}", spliced.sites);
    assert!(spliced.sites[0].source.as_ref().is_some_and(|at| at.ends_with("own.cu:20")));
    let Some(with) = ptxas::kernels(text, "sm_90") else { return };
    let without = ptxas::kernels(&bare, "sm_90").unwrap();
    let idle = ptxas::kernels(&spliced.text, "sm_90").unwrap();
    for (name, kernel) in &with {
        assert!(kernel.code == without[name].code, "{name}: with a tracepoint");
        assert!(kernel.code == idle[name].code, "{name}: with a program of which nothing is used");
    }
}

/// What does not hold of a kernel and should; how many registers a probe takes is measured and not
/// promised.
fn complaints(name: &str, row: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut ask = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("{name}: {what}"));
        }
    };
    ask(row["nothing"]["identical"] == true, "an empty probe changes machine code");
    for probe in ["entry_count", "return_stamp"] {
        ask(row[probe]["sites"].as_u64() > Some(0), &format!("{probe} has no site"));
        ask(row[probe]["identical"] == false, &format!("{probe} does nothing"));
        for sign in ["spill_stores", "spill_loads", "stack", "serialised", "waits"] {
            let told =
                format!("{probe}: {sign} {} becomes {}", row["native"][sign], row[probe][sign]);
            ask(row[probe][sign] == row["native"][sign], &told);
        }
    }
    let registers = |what: &str| row[what]["registers"].as_u64().unwrap_or_default();
    let grown = registers("entry_count").saturating_sub(registers("native"));
    let told =
        format!("a counter at entry takes {grown} registers more than {}", registers("native"));
    ask(registers("native") < 30 || grown <= 2, &told);
    found
}
