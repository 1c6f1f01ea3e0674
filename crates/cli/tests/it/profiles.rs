//! Verdicts on profiles of other tools, where calls say what threads did: made profiles, one situation each.

use std::path::Path;

use gpuwhy_schema::{
    Copy, CopyKind, Discipline, EntityId, EntityKind, Id, Kernel, Lane, Lanes, Ns, Rows, SourceId,
    Span, State, ThreadState, TrackId, names,
};
use gpuwhy_store::{Options, Writer};
use serde_json::Value;

use crate::{folder, gpuwhy, said};

const US: i64 = 1_000;
const MS: i64 = 1_000_000;

/// A profile as it is made.
struct Profile {
    lanes: Lanes,
    rows: Rows,
    source: SourceId,
    gpu: EntityId,
    ids: u64,
}

/// A rank of the profiled job, and what time it is there.
#[derive(Clone)]
struct Rank {
    process: EntityId,
    cuda: TrackId,
    mpi: TrackId,
    states: TrackId,
    stream: TrackId,
    at: i64,
    noise: i64,
}

impl Profile {
    fn new() -> Profile {
        let mut lanes = Lanes::default();
        let source = lanes.source("nsys", "Nsight Systems", "1", "made");
        let gpu = lanes.entity(EntityKind::Gpu, "gpu", |_| {});
        Profile { lanes, rows: Rows::default(), source, gpu, ids: 0 }
    }

    fn rank(&mut self, number: i64) -> Rank {
        let lanes = &mut self.lanes;
        let rank = lanes.entity(EntityKind::Rank, &format!("rank:{number}"), |e| {
            e.number = Some(number);
        });
        let process = lanes.entity(EntityKind::Process, &format!("p{number}"), |e| {
            (e.parent, e.number, e.name) = (Some(rank), Some(100 + number), "solver".into());
        });
        let thread = lanes.entity(EntityKind::Thread, &format!("t{number}"), |e| {
            (e.parent, e.number) = (Some(process), Some(100 + number));
        });
        let stream = lanes.entity(EntityKind::Stream, &format!("s{number}"), |e| {
            e.parent = Some(self.gpu);
        });
        let mut track = |of, lane| lanes.track(of, None, lane, self.source);
        let nested = Discipline::Nested;
        Rank {
            process,
            cuda: track(thread, Lane::spans(names::CUDA_CALLS, nested)),
            mpi: track(thread, Lane::spans(names::MPI_CALLS, nested)),
            states: track(thread, Lane::states(names::THREAD_STATE, Discipline::Sparse)),
            stream: track(stream, Lane::spans(names::STREAM, Discipline::Overlap)),
            at: 0,
            noise: 1,
        }
    }

    fn span(&mut self, track: TrackId, name: &str, from: i64, dur: i64) -> Id {
        self.ids += 1;
        let (id, ts, dur) = (Id::new(0, self.ids), Ns(from), Some(Ns(dur)));
        self.rows.span.push(Span { id, ts, dur, track, parent: None, name: name.into() });
        id
    }

    /// A kernel for `ns`, and the call that waits for it.
    fn compute(&mut self, rank: &mut Rank, name: &str, ns: i64) {
        rank.noise = (rank.noise * 75 + 74) % 65_537;
        let ns = ns + rank.noise;
        self.call(rank, "cudaLaunchKernel", 10 * US);
        let id = self.span(rank.stream, name, rank.at, ns);
        let process = Some(rank.process);
        self.rows.kernel.push(Kernel { process, ..Kernel::bare(id, Ns(rank.at), self.gpu) });
        self.call(rank, "cudaStreamSynchronize", ns);
    }

    fn call(&mut self, rank: &mut Rank, name: &str, ns: i64) {
        let track = if name.starts_with("MPI_") { rank.mpi } else { rank.cuda };
        self.span(track, name, rank.at, ns);
        rank.at += ns;
    }

    /// A copy for `ns`, and the call that makes it.
    fn copy(&mut self, rank: &mut Rank, ns: i64) {
        let id = self.span(rank.stream, "memcpy", rank.at, ns);
        let (ts, process) = (Ns(rank.at), Some(rank.process));
        self.rows.copy.push(Copy {
            id,
            ts,
            kind: CopyKind::DeviceToHost,
            bytes: 1 << 20,
            from: Some(self.gpu),
            to: None,
            pinned: None,
            process,
            correlation: None,
        });
        self.call(rank, "cudaMemcpy", ns);
    }

    /// A call of MPI that all ranks leave together.
    fn exchange(&mut self, ranks: &mut [Rank], name: &str) {
        let leave = ranks.iter().map(|rank| rank.at).max().unwrap() + 50 * US;
        for rank in ranks {
            self.call(rank, name, leave - rank.at);
        }
    }

    /// The verdict. The scheduler says of each thread that it ran all the time.
    fn judged(mut self, ranks: &[Rank], folder: &Path) -> Value {
        for rank in ranks {
            let (ts, dur) = (Ns(0), Some(Ns(rank.at)));
            let (value, arg) = (ThreadState::Running.code(), Some(0));
            self.rows.state.push(State { ts, dur, track: rank.states, value, arg });
        }
        self.lanes.drain(&mut self.rows);
        let path = folder.join("made.trace");
        let mut writer = Writer::create(&path, Options::default()).unwrap();
        writer.append(&mut self.rows).unwrap();
        writer.finish().unwrap();
        let path = path.to_str().unwrap();
        let output = gpuwhy(&["validate", path]);
        assert!(output.status.success(), "{}", said(&output));
        let output = gpuwhy(&["diagnose", path, "--json"]);
        let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found =
            verdict["findings"].as_array().unwrap().iter().any(|f| f["outcome"] == "decided");
        assert_eq!(output.status.code(), Some(if found { 0 } else { 3 }), "{}", said(&output));
        verdict
    }
}

/// Names of the phases of the first program.
fn phases(verdict: &Value) -> Vec<&str> {
    let phases = verdict["programs"][0]["phases"].as_array().unwrap();
    phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect()
}

/// Seconds of rounds of 5 ms, of which `odd` does something to the one at 400.
fn one_odd_round(odd: impl Fn(&mut Profile, &mut Rank)) -> Value {
    let (_keep, folder) = folder();
    let mut profile = Profile::new();
    let mut rank = profile.rank(0);
    for round in 0..600 {
        if round == 400 {
            odd(&mut profile, &mut rank);
        }
        profile.compute(&mut rank, "solve", 5 * MS);
    }
    profile.judged(&[rank], &folder)
}

#[test]
fn a_round_that_holds_a_long_copy_is_told_to_copy_and_not_to_compute() {
    let verdict = one_odd_round(|profile, rank| profile.copy(rank, 177 * MS));
    let finding = &verdict["findings"][0];
    assert_eq!(finding["class"], "pcie", "{finding:#}");
    assert_eq!(finding["parts"]["copy"]["slow"], 177.0, "{finding:#}");
    assert!(finding["parts"]["run"]["excess"].as_f64().unwrap().abs() < 0.1, "{finding:#}");
    let rests_on = &verdict["rests_on"];
    assert_eq!(rests_on["scheduler_events"], true, "{rests_on}");
    assert!(rests_on["missing"][0].as_str().unwrap().contains("operating system"), "{rests_on}");
}

#[test]
fn a_round_that_allocates_is_told_to_allocate() {
    let verdict = one_odd_round(|profile, rank| profile.call(rank, "cudaMalloc", 80 * MS));
    let finding = &verdict["findings"][0];
    assert_eq!(finding["class"], "engine_software", "{finding:#}");
    assert_eq!(finding["parts"]["allocate"]["slow"], 80.0, "{finding:#}");
    let evidence = finding["causes"][0]["evidence_for"].to_string();
    assert!(evidence.contains("allocate: 0.000 ms a step before, 80.000 ms during"), "{evidence}");
}

#[test]
fn a_rank_that_waits_in_mpi_while_another_computes_is_held_up_by_that_one() {
    let (_keep, folder) = folder();
    let mut profile = Profile::new();
    let mut ranks = [0, 1].map(|number| profile.rank(number));
    for round in 0..600 {
        for rank in &mut ranks {
            profile.compute(rank, "solve", 4 * MS);
        }
        if let Some(late) = [56, 122, 98, 63].get(round - 400.min(round)).filter(|_| round >= 400) {
            ranks[1].at += late * MS;
        }
        profile.exchange(&mut ranks, "MPI_Allreduce");
    }
    let verdict = profile.judged(&ranks, &folder);
    let finding = &verdict["findings"][0];
    assert_eq!(finding["class"], "collective_straggler", "{finding:#}");
    assert_eq!(finding["culprit"]["pid"], 101, "{finding:#}");
    // The three longest rounds hold most of it, and are what is looked into.
    let late = (122.0 + 98.0 + 63.0) / 3.0;
    let peer = finding["parts"]["peer"]["excess"].as_f64().unwrap();
    assert!((peer - late).abs() < 1.0, "{finding:#}");
}

/// Two ranks that solve twice, and copy, allocate and wait for each other between.
fn two_solvers(folder: &Path) -> Value {
    let mut profile = Profile::new();
    let mut ranks = [0, 1].map(|number| profile.rank(number));
    for rank in &mut ranks {
        (0..20).for_each(|_| profile.call(rank, "cudaMalloc", 25 * MS));
        (0..500).for_each(|_| profile.compute(rank, "reference", 5 * MS));
        // Each of these ends in a wait, as a round does.
        profile.copy(rank, 177 * MS);
        profile.call(rank, "cudaHostAlloc", 100 * MS);
        profile.call(rank, "cudaStreamSynchronize", MS);
        (0..4).for_each(|_| profile.call(rank, "MPI_Barrier", 80 * MS));
    }
    for _ in 0..300 {
        for rank in &mut ranks {
            profile.compute(rank, "solve", 3 * MS);
        }
        profile.exchange(&mut ranks, "MPI_Allreduce");
    }
    profile.judged(&ranks, folder)
}

/// The page that a command writes of the profile in this folder.
fn page(folder: &Path, command: &str) -> String {
    let (trace, page) = (folder.join("made.trace"), folder.join("page.html"));
    let [trace, path] = [&trace, &page].map(|path| path.to_str().unwrap());
    let output = gpuwhy(&[command, trace, "--html", path]);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
    std::fs::read_to_string(page).unwrap()
}

#[test]
fn pages_of_a_profile_show_its_phases_what_devices_did_and_what_verdicts_rest_on() {
    let (_keep, folder) = folder();
    let verdict = two_solvers(&folder);
    let html = page(&folder, "diagnose");
    // The phases of each rank as a table whose rows can be shown, and as a track.
    assert_eq!(html.matches("<td class=\"name\">rank 0, solver (pid 100)").count(), 4);
    assert_eq!(html.matches("<td class=\"name\">rank 1, solver (pid 101)").count(), 4);
    let track = "\"label\":\"phase\",\"shape\":\"bands\",\"values\":[\"set-up\",\"work 1\",\"between\",\"work 2\"]";
    assert_eq!(html.matches(track).count(), 2);
    for phase in verdict["programs"][0]["phases"].as_array().unwrap() {
        let [from, to] = ["from_ns", "to_ns"].map(|key| phase[key].as_i64().unwrap());
        assert!(html.contains(&format!("data-from=\"{from}\" data-to=\"{to}\"")), "{phase}");
    }
    assert!(html.contains("\"label\":\"kernels\",\"shape\":\"line\",\"unit\":\"%\""));
    assert!(html.contains("\"label\":\"only copies\""));
    assert!(html.contains("No steps are marked. What was judged in their place:"));
    assert!(html.contains("<p>Rests on calls of CUDA, MPI and scheduler events.</p>"));
    let html = page(&folder, "variability");
    assert_eq!(html.matches("<rect class=\"phase between\"").count(), 2);
    assert_eq!(html.matches("<tr id=\"phase-").count(), 8);
    assert!(
        html.contains("<p class=\"note\">Rests on calls of CUDA, MPI and scheduler events.</p>")
    );
    assert!(html.contains("<li>calls of the operating system: what a thread outside"));
}

#[test]
fn what_a_program_does_between_two_solvers_is_a_phase_and_no_fault() {
    let (_keep, folder) = folder();
    let verdict = two_solvers(&folder);
    assert_eq!(verdict["verdict"], "nothing_anomalous", "{verdict:#}");
    assert_eq!(phases(&verdict), ["set-up", "work 1", "between", "work 2"], "{verdict:#}");
    let between = &verdict["programs"][0]["phases"][2]["spent"];
    // Phases are told to 1/4096 of the recording, 1.3 ms here.
    let near = |what: &Value, ms: f64| (what.as_f64().unwrap() - ms).abs() < 1.3;
    assert!(near(&between["copies_ms"], 177.0), "{between}");
    assert!(near(&between["calls_ms"]["allocating"], 100.0), "{between}");
    assert!(near(&between["calls_ms"]["MPI"], 320.0), "{between}");
    let rounds = verdict["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 4, "{rounds:?}");
    assert_eq!(rounds[0]["phase"], "work 1");
}

#[test]
fn a_program_that_copies_all_the_time_is_told_so_though_no_round_is_slower() {
    let (_keep, folder) = folder();
    let mut profile = Profile::new();
    let mut rank = profile.rank(0);
    for _ in 0..600 {
        profile.copy(&mut rank, 4_800 * US);
        profile.compute(&mut rank, "scale", 150 * US);
    }
    let whole = rank.at as f64 / 1e6;
    let verdict = profile.judged(&[rank], &folder);
    assert_eq!(verdict["verdict"], "nothing_anomalous", "{verdict:#}");
    let share = (100.0 * 600.0 * 4.8 / whole).round();
    let says = verdict["programs"][0]["mostly"][0].as_str().unwrap();
    assert!(
        says.starts_with(&format!("{share} % of the time goes to copies: 2.88 s of")),
        "{says}"
    );
    let output = gpuwhy(&["diagnose", folder.join("made.trace").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output);
    assert!(text.contains("Nothing anomalous in") && text.contains(says), "{text}");
    let html = page(&folder, "diagnose");
    assert!(html.contains(&format!("<p class=\"mostly\">rank 0, solver (pid 100): {says}.</p>")));
    let html = page(&folder, "variability");
    assert!(html.contains(&format!("<p>rank 0, solver (pid 100): {says}.</p>")));
}

#[test]
fn of_three_hundred_programs_the_busiest_are_told_and_the_others_are_counted() {
    let (_keep, folder) = folder();
    let mut profile = Profile::new();
    // The later a program comes, the more it does.
    let mut ranks: Vec<Rank> = (0..300).map(|number| profile.rank(number)).collect();
    for (number, rank) in ranks.iter_mut().enumerate() {
        profile.call(rank, "cudaDeviceSynchronize", MS + number as i64 * US);
    }
    let verdict = profile.judged(&ranks, &folder);
    let programs = verdict["programs"].as_array().unwrap();
    let told: Vec<i64> = programs.iter().map(|p| p["rank"].as_i64().unwrap()).collect();
    assert_eq!(told, (44..300).collect::<Vec<i64>>());
    let not_told = serde_json::json!({ "programs": 44, "of_programs": 300, "threads": 0 });
    assert_eq!(verdict["not_told"], not_told);
    let text = said(&gpuwhy(&["diagnose", folder.join("made.trace").to_str().unwrap()]));
    let line = "not looked at: 44 of 300 programs, which spent less time in calls than the others";
    assert!(text.contains(line), "{text}");
}

#[test]
fn threads_beyond_those_that_are_followed_are_counted() {
    let (_keep, folder) = folder();
    let mut profile = Profile::new();
    let mut rank = profile.rank(0);
    profile.call(&mut rank, "cudaDeviceSynchronize", 5 * MS);
    for tid in 0..99 {
        let thread = profile.lanes.entity(EntityKind::Thread, &format!("worker{tid}"), |e| {
            (e.parent, e.number) = (Some(rank.process), Some(1000 + tid));
        });
        let lane = Lane::spans(names::CUDA_CALLS, Discipline::Nested);
        let track = profile.lanes.track(thread, None, lane, profile.source);
        profile.span(track, "cudaStreamSynchronize", (6 + tid) * MS, MS);
    }
    let verdict = profile.judged(&[rank], &folder);
    assert_eq!(verdict["not_told"]["threads"], 36, "{verdict:#}");
}
