//! Engines that serve language models, against the ledger that they keep.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpuwhy_schema::{Batch, BatchRequest, Entity, EntityId, Id, Mark, Request, Span, Step};
use gpuwhy_store::Trace;

use crate::python::{package, python, record};
use crate::{folder, gpuwhy, may_record, said};

/// The seed's table of spans, and what else has a name.
const SPANS: &[&str] = &[
    "LLMEngine::Request",
    "EngineCore::Step",
    "EngineCore::Schedule",
    "EngineCore::Execute",
    "EngineCore::Output",
    "EngineCore::CollectiveRpc",
    "EngineCore::InputQueue",
    "EngineCore::ConnectorLookup",
    "Worker::Step",
    "Worker::Response",
    "ModelRunner::Preprocess",
    "ModelRunner::Forward",
    "ModelRunner::Postprocess",
    "ModelRunner::Sample",
    "ModelRunner::Draft",
    "ModelRunner::Bookkeep",
    "ModelRunner::EpLB",
    "ModelRunner::Output",
    "CacheEngine::Load",
    "CacheEngine::Save",
];

/// What a real engine showed.
struct Served {
    /// How many spans there are of each name.
    spans: BTreeMap<String, usize>,
    /// What `gpuwhy requests` says was computed for nothing.
    wasted: serde_json::Value,
}

struct Seen {
    spans: Vec<Span>,
    steps: Vec<Step>,
    batches: Vec<Batch>,
    changes: Vec<BatchRequest>,
    requests: Vec<Request>,
    marks: Vec<Mark>,
    entities: BTreeMap<EntityId, Entity>,
}

fn rows<T: gpuwhy_schema::Table>(trace: &Trace) -> Vec<T> {
    trace.all::<T>().flat_map(Result::unwrap).collect()
}

impl Seen {
    fn of(trace: &Path) -> Seen {
        let valid = gpuwhy(&["validate", trace.to_str().unwrap()]);
        assert!(valid.status.success(), "{}", said(&valid));
        let trace = Trace::open(trace).unwrap();
        let mut batches = rows::<Batch>(&trace);
        batches.sort_by_key(|batch| batch.at);
        let entities = rows::<Entity>(&trace).into_iter().map(|e| (e.id, e)).collect();
        Seen {
            spans: rows(&trace),
            steps: rows(&trace),
            batches,
            changes: rows(&trace),
            requests: rows(&trace),
            marks: rows(&trace),
            entities,
        }
    }

    fn side(&self, side: &str) -> Vec<&Batch> {
        self.batches.iter().filter(|batch| batch.engine.ends_with(side)).collect()
    }

    fn end(&self, id: Id) -> i64 {
        let span = self.spans.iter().find(|span| span.id == id).unwrap();
        span.dur.map_or(i64::MAX, |dur| span.ts.0 + dur.0)
    }

    /// Who is in each batch, from the changes alone: batch, request, tokens, computed before.
    fn members(&self) -> Vec<String> {
        let key = |id| self.requests.iter().find(|r| r.id == id).map_or("?", |r| &*r.key);
        let mut now: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
        let mut lines = Vec::new();
        for (n, batch) in self.side("engine").into_iter().enumerate() {
            now.retain(|request, _| self.end(*request) > batch.at.0);
            for (tokens, computed) in now.values_mut() {
                *computed += *tokens;
            }
            for change in self.changes.iter().filter(|change| change.batch == batch.id) {
                match &*change.state {
                    "runs" => _ = now.insert(change.request, (change.tokens, change.computed)),
                    _ => _ = now.remove(&change.request),
                }
            }
            assert_eq!(now.len() as u64, batch.requests, "batch {n}: {now:?}");
            let line = |(id, (tokens, computed)): (&Id, &(u64, u64))| {
                format!("in {n} {} {tokens} {computed}", key(*id))
            };
            lines.extend(now.iter().map(line));
        }
        lines.sort();
        lines
    }
}

fn lines(output: &Output, word: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |line: &&str| line.split(' ').next() == Some(word);
    text.lines().filter(of).map(str::to_owned).collect()
}

/// Each request that ended is told with as many steps as it was part of, in pieces that sum to its life.
fn requests_are_told(trace: &Path, seen: &Seen) {
    let output = gpuwhy(&["requests", trace.to_str().unwrap(), "--json", "-n", "10000"]);
    assert!(output.status.success(), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let members = seen.members();
    let told = report["told"].as_array().unwrap();
    assert_eq!(told.len() as u64, report["requests"].as_u64().unwrap(), "{report}");
    assert!(!told.is_empty());
    for one in told {
        let key = one["key"].as_str().unwrap();
        let of = |line: &&String| line.split(' ').nth(2) == Some(key);
        let in_steps = members.iter().filter(of).count() as u64;
        assert_eq!(one["steps"].as_u64().unwrap(), in_steps, "{one}");
        let pieces = one["pieces_ms"].as_object().unwrap();
        let sum: f64 = pieces.values().map(|ms| ms.as_f64().unwrap()).sum();
        assert!((sum - one["total_ms"].as_f64().unwrap()).abs() < 1e-3, "{one}");
    }
    let text = said(&gpuwhy(&["requests", trace.to_str().unwrap(), "--slo", "ttft=1ns"]));
    assert!(text.contains("ttft at most 0.0 ms"), "{text}");
}

fn engine() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/engine.py")
}

fn check(version: &str, lacks: &[&str]) {
    let Some(python) = python().filter(|_| may_record()) else { return };
    let (_keep, folder) = folder();
    let (package, trace) = (package(python, &folder), folder.join("run.trace"));
    let output = record(&package, &trace, &[python, engine().to_str().unwrap(), version]);
    assert!(output.status.success(), "{}", said(&output));
    let seen = Seen::of(&trace);
    let missing: Vec<_> = seen.marks.iter().filter(|m| m.name.starts_with("gpuwhy:")).collect();
    // What no recording of this engine asked for: these two lie in modules that it does not import.
    assert!(missing.is_empty(), "{missing:?}");
    let names: BTreeSet<&str> = seen.spans.iter().map(|span| &*span.name).collect();
    for span in SPANS {
        assert_eq!(names.contains(span), !lacks.contains(span), "{span} in {names:?}");
    }

    requests_are_told(&trace, &seen);
    let engine = seen.side("engine");
    let is = |n: Option<u64>| n.unwrap_or(u64::MAX);
    let own: Vec<String> = engine
        .iter()
        .map(|b| {
            format!(
                "step {} {} {} {} {} {} {} {}",
                b.tokens,
                is(b.prefill_tokens),
                b.requests,
                is(b.context),
                is(b.drafts),
                is(b.running),
                is(b.waiting),
                is(b.accepted)
            )
        })
        .collect();
    assert_eq!(own, lines(&output, "step"), "{}", said(&output));
    let preempted: u64 = engine.iter().map(|b| is(b.preempted)).sum();
    assert_eq!(preempted, u64::from(version != "0.11.0"), "one, where the version tells");
    assert!(engine.iter().all(|b| b.allocate.is_some_and(|ns| ns.0 > 0)), "{engine:?}");

    // Both sides of every step, found by its digest.
    let worker = seen.side("worker");
    let tokens: Vec<String> = worker.iter().map(|b| format!("work {}", b.tokens)).collect();
    assert_eq!(tokens, lines(&output, "work"));
    let both = |batches: &[&Batch]| -> Vec<(u64, u64, u64)> {
        batches.iter().map(|b| (b.digest, b.tokens, b.requests)).collect()
    };
    assert_eq!(both(&engine), both(&worker));
    let digests: BTreeSet<u64> = engine.iter().map(|b| b.digest).collect();
    assert_eq!(digests.len(), engine.len(), "each step has a digest of its own");
    assert_ne!(engine[0].instance, worker[0].instance, "two processes");
    assert!(seen.entities.contains_key(&worker[0].instance));
    for batch in &seen.batches {
        let step = seen.steps.iter().find(|step| step.id == batch.id).unwrap();
        assert_eq!(step.size, Some(batch.tokens as i64));
        assert_eq!(step.rank, batch.engine.ends_with("worker").then_some(3));
    }

    let mut members = lines(&output, "in");
    members.sort();
    assert_eq!(seen.members(), members);
    requests(&seen, &output);
}

fn requests(seen: &Seen, output: &Output) {
    let engine =
        |r: &&Request| seen.spans.iter().any(|s| s.id == r.id && &*s.name == "EngineCore::Request");
    let line = |r: &Request| {
        let of = |n: Option<u64>| n.unwrap_or(0);
        let outcome = r.outcome.as_deref().unwrap_or("?");
        let counts = (of(r.prompt_tokens), of(r.cached_tokens), of(r.output_tokens));
        format!("request {} {} {} {} {outcome}", r.key, counts.0, counts.1, counts.2)
    };
    let mut own: Vec<String> = seen.requests.iter().filter(engine).map(line).collect();
    let mut ledger = lines(output, "request");
    own.sort();
    ledger.sort();
    assert_eq!(own, ledger);
    for request in &seen.requests {
        let first = request.first_token.expect("each got one").0;
        assert!(request.ts.0 < first && first <= seen.end(request.id), "{request:?}");
        let trace = request.trace.as_deref();
        let wanted = (&*request.key == "b").then_some("0af7651916cd43dd8448eb211c80319c");
        assert_eq!(trace, wanted, "{request:?}");
    }
    // The side that talks to users has rows of its own, of the same names.
    let keys = |of: bool| -> BTreeSet<&str> {
        let of = |r: &&Request| engine(r) == of;
        seen.requests.iter().filter(of).map(|r| &*r.key).collect()
    };
    assert_eq!(keys(true), keys(false));
}

#[test]
fn root_an_engine_of_vllm_0_32_shows_every_span_and_what_each_step_was_made_of() {
    check("0.32.0", &[]);
}

#[test]
fn root_an_engine_of_vllm_0_11_shows_what_that_version_has() {
    check("0.11.0", &["ModelRunner::Output"]);
}

/// A process that ends with the test, also with one that fails.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An engine that runs already, whose plug-in is on: whoever comes sees its steps on both sides from then on, and so does who
/// comes after that one has gone.
#[test]
fn root_an_engine_that_runs_already_is_seen_by_each_who_comes() {
    let Some(python) = python().filter(|_| may_record()) else { return };
    let (_keep, folder) = folder();
    let package = package(python, &folder);
    let (socket, end) = (folder.join("agent.sock"), folder.join("end"));
    let engine = Command::new(python)
        .args([engine().to_str().unwrap(), "0.32.0", end.to_str().unwrap()])
        .env("PYTHONPATH", &package)
        .env("GPUWHY_SOCKET", &socket)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut engine = Ended(engine);
    for number in 0..2 {
        let trace = folder.join(format!("{number}.trace"));
        let output = gpuwhy(&[
            "record",
            "--for=4s",
            "--socket",
            socket.to_str().unwrap(),
            "--pid",
            &engine.0.id().to_string(),
            "-o",
            trace.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{}", said(&output));
        let seen = Seen::of(&trace);
        let names: BTreeSet<&str> = seen.spans.iter().map(|span| &*span.name).collect();
        for span in SPANS.iter().filter(|span| **span != "ModelRunner::EpLB") {
            assert!(names.contains(span), "{number}: no {span} in {names:?}");
        }
        let (engine, worker) = (seen.side("engine"), seen.side("worker"));
        assert!(engine.len() > 50 && worker.len() > 50, "{} and {}", engine.len(), worker.len());
        // Each side was found when it was found.
        let from = engine[0].at.max(worker[0].at).0;
        let to = engine[engine.len() - 1].at.min(worker[worker.len() - 1].at).0;
        let both = |side: &[&Batch]| -> BTreeSet<(u64, u64)> {
            side.iter().map(|b| (b.digest, b.tokens)).collect()
        };
        let within = |side: &[&Batch]| -> Vec<(u64, u64)> {
            let inside = side.iter().filter(|b| from < b.at.0 && b.at.0 < to - 20_000_000);
            inside.map(|b| (b.digest, b.tokens)).collect()
        };
        let (engines, workers) = (within(&engine), within(&worker));
        assert!(engines.len() > 50, "{number}: {}", engines.len());
        for one in &engines {
            assert!(both(&worker).contains(one), "{number}: {one:?} is not at the worker");
        }
        for one in &workers {
            assert!(both(&engine).contains(one), "{number}: {one:?} is not at the engine");
        }
        // One that ran when it came is known by its name.
        let lasts = seen.requests.iter().find(|r| &*r.key == "lasts").map(|r| r.id);
        let lasts = lasts.unwrap_or_else(|| panic!("{number}: {:?}", seen.requests));
        assert!(seen.changes.iter().any(|c| c.request == lasts), "{number}");
        // Requests that came and ended meanwhile are told in full.
        let whole = seen.requests.iter().filter(|r| r.first_token.is_some() && r.outcome.is_some());
        assert!(whole.count() > 10, "{number}: {:?}", seen.requests);
    }
    std::fs::write(&end, "").unwrap();
    assert!(engine.0.wait().unwrap().success());
}

/// The table holds for the versions whose signatures are kept, and a name that is not there is told.
#[test]
fn every_span_is_found_in_the_source_of_the_versions_that_have_it() {
    let Some(python) = python() else { return };
    let (_keep, folder) = folder();
    let package = package(python, &folder);
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests/engines.json");
    let check = |arguments: &[&str]| {
        let code = "import sys; sys.path.insert(0, sys.argv.pop(1))\n\
            from gpuwhy import _engine_check; sys.exit(_engine_check.main(sys.argv[1:]))";
        Command::new(python)
            .args(["-c", code, package.to_str().unwrap(), "check"])
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = check(&["--json", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let packages: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = packages.as_array().unwrap();
    let vllm = packages.iter().filter(|p| p["engine"] == "vllm");
    for package in vllm {
        let version = package["version"].as_str().unwrap();
        let absent = &package["not_in_this_version"];
        let wanted = match version {
            "0.11.0" => serde_json::json!(["ModelRunner::Output"]),
            _ => serde_json::json!([]),
        };
        assert_eq!(*absent, wanted, "{version}");
    }
    assert!(packages.len() >= 14, "{} packages", packages.len());

    // The same by our own command, which brings the package.
    let output = Command::new(env!("CARGO_BIN_EXE_gpuwhy"))
        .args(["engine", "check", "--json", "--python", python, kept.to_str().unwrap()])
        .env("GPUWHY_WHEEL", &package)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let ours: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ours.as_array(), Some(packages));

    // One name less, and the command says which.
    let text = std::fs::read_to_string(&kept).unwrap();
    let broken = folder.join("broken.json");
    std::fs::write(&broken, text.replace("\"Scheduler.schedule\"", "\"Scheduler.plan\"")).unwrap();
    let output = check(&[broken.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).matches(":Scheduler.schedule").count();
    assert!(told >= 11, "{}", said(&output));
}

/// The environment that `make llm-env` builds, if the one who runs the tests names it: it has a real engine.
fn real() -> Option<(String, PathBuf)> {
    let Some(folder) = std::env::var_os("GPUWHY_LLM_ENV").map(PathBuf::from) else {
        println!("skipped: no GPUWHY_LLM_ENV, which names what `make llm-env` builds");
        return None;
    };
    let python = folder.join("venv/bin/python").to_str().unwrap().to_owned();
    may_record().then_some((python, folder))
}

/// How many of each span there are.
fn counted(seen: &Seen) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for span in seen.spans.iter().filter(|span| span.name.contains("::")) {
        *counts.entry(&*span.name).or_default() += 1;
    }
    counts
}

/// A real server through its own command; the spans that it shows, its steps on both sides, its requests.
fn serve(options: &[&str]) -> Option<Served> {
    let (python, env) = real()?;
    let (_keep, folder) = folder();
    let (package, trace) = (package(&python, &folder), folder.join("run.trace"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/serve.py");
    let model = env.join("model/tiny");
    let mut command = vec![&*python, script.to_str().unwrap(), model.to_str().unwrap(), "48"];
    command.extend(options);
    let output = record(&package, &trace, &command);
    assert!(output.status.success(), "{}", said(&output));
    if let Some(keep) = std::env::var_os("GPUWHY_KEEP") {
        let _ = Command::new("cp").arg("-r").arg(&trace).arg(keep).status();
    }
    let seen = Seen::of(&trace);
    for mark in seen.marks.iter().filter(|mark| mark.name.starts_with("gpuwhy:")) {
        println!("mark: {}", mark.name);
    }
    let counts = counted(&seen);
    println!("{counts:#?}");
    let (engine, worker) = (seen.side("engine"), seen.side("worker"));
    let mut ranks: BTreeMap<EntityId, Vec<(u64, u64)>> = BTreeMap::new();
    for batch in &worker {
        ranks.entry(batch.instance).or_default().push((batch.digest, batch.tokens));
    }
    let own: Vec<_> = engine.iter().map(|b| (b.digest, b.tokens)).collect();
    println!("{} steps at the engine, {} at {} workers", own.len(), worker.len(), ranks.len());
    for (worker, theirs) in &ranks {
        let equal = own.iter().zip(theirs).filter(|(a, b)| a == b).count();
        println!("worker {worker:?}: {equal} of {} steps have equal digest and tokens", own.len());
        assert_eq!(&own, theirs, "every step, in order");
    }
    let members = seen.members().len();
    println!("{members} parts of requests in steps, from {} rows", seen.changes.len());
    let clients = lines(&output, "client");
    let front: Vec<&Request> = seen
        .requests
        .iter()
        .filter(|r| seen.spans.iter().any(|s| s.id == r.id && &*s.name == "LLMEngine::Request"))
        .collect();
    let mut off = Vec::new();
    for line in &clients {
        let words: Vec<&str> = line.split(' ').collect();
        let mine = front.iter().find(|r| r.key.starts_with(words[1]));
        let mine = mine.unwrap_or_else(|| panic!("{line}: no request of that name"));
        assert_eq!(mine.output_tokens, words[3].parse().ok(), "{line}");
        let ttft = mine.first_token.unwrap().0 - mine.ts.0;
        off.push(words[2].parse::<i64>().unwrap() - ttft);
    }
    off.sort_unstable();
    println!(
        "{} requests; the client's TTFT is longer by {} ns (median)",
        off.len(),
        off[off.len() / 2]
    );
    assert_eq!(clients.len(), 48);
    let report = gpuwhy(&["requests", trace.to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    println!("{}", report["wasted"]);
    let spans = counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    Some(Served { spans, wasted: report["wasted"].clone() })
}

/// Drafts by looking up in the prompt.
const NGRAM: &[&str] = &[
    "--speculative-config",
    r#"{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":1}"#,
];

#[test]
fn root_a_real_vllm_shows_its_spans_and_every_step_on_both_sides() {
    let Some(Served { spans, .. }) = serve(&[]) else { return };
    let lacks =
        ["ModelRunner::Draft", "ModelRunner::Output", "CacheEngine::Load", "CacheEngine::Save"];
    let connector = "EngineCore::ConnectorLookup";
    for span in SPANS.iter().filter(|span| !lacks.contains(span) && **span != connector) {
        assert!(spans.contains_key(*span), "{span}");
    }
}

#[test]
fn root_a_real_vllm_with_ngram_drafts_shows_them() {
    let Some(Served { spans, wasted }) = serve(NGRAM) else { return };
    assert!(spans.contains_key("ModelRunner::Draft"));
    assert_eq!(wasted["unmade"], 0, "{wasted}");
}

/// Its scheduler fills up what is too few, as the engine of StriaTrace's case 3 did.
#[test]
fn root_a_real_vllm_that_pads_its_drafts_is_told_so() {
    let pads = ["--scheduler-cls", "padded.Padded", "--no-async-scheduling"];
    let Some(Served { wasted, .. }) = serve(&[NGRAM, &pads].concat()) else { return };
    let of = |name: &str| wasted[name].as_u64().unwrap();
    assert!(of("unmade") > of("submitted") / 10 && of("submitted") > of("proposed"), "{wasted}");
}

#[test]
fn root_a_real_vllm_with_a_connector_shows_loads_and_saves() {
    let store = tempfile::tempdir().unwrap();
    let connector = format!(
        r#"{{"kv_connector":"ExampleConnector","kv_role":"kv_both","kv_connector_extra_config":{{"shared_storage_path":"{}"}}}}"#,
        store.path().display()
    );
    let options = ["--kv-transfer-config", &connector, "--no-enable-prefix-caching"];
    let Some(Served { spans, .. }) = serve(&options) else { return };
    for span in ["CacheEngine::Load", "CacheEngine::Save", "EngineCore::ConnectorLookup"] {
        assert!(spans.contains_key(span), "{span}");
    }
}

#[test]
fn root_a_real_vllm_of_two_ranks_shows_each_step_on_both() {
    serve(&["--tensor-parallel-size", "2"]);
}

#[test]
fn root_continuous_batching_of_transformers_shows_its_steps() {
    let Some((python, _)) = real() else { return };
    let (_keep, folder) = folder();
    let (package, trace) = (package(&python, &folder), folder.join("run.trace"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/batching.py");
    let output = record(&package, &trace, &[&python, script.to_str().unwrap(), "16"]);
    assert!(output.status.success(), "{}", said(&output));
    let seen = Seen::of(&trace);
    println!("{:#?}", counted(&seen));
    let engine = seen.side("engine");
    let tokens: Vec<String> = engine.iter().map(|b| b.tokens.to_string()).collect();
    let given: Vec<String> =
        lines(&output, "forward").iter().map(|line| line[8..].to_owned()).collect();
    println!("{} steps; tokens {tokens:?}, the model was given {given:?}", engine.len());
    assert!(given.ends_with(&tokens), "every step's tokens are what the model was given");
    assert!(seen.members().len() > engine.len());
    let mut own: Vec<String> = seen
        .requests
        .iter()
        .map(|r| {
            format!("request {} {} {}", r.key, r.prompt_tokens.unwrap(), r.output_tokens.unwrap())
        })
        .collect();
    let mut ledger = lines(&output, "request");
    own.sort();
    ledger.sort();
    assert_eq!(own, ledger);
}
