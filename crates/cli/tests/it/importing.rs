//! Files of other profilers: what they become, and how files that are not of any known format are refused.

use std::path::Path;

use serde_json::Value;

use crate::{folder, gpuwhy, said};

fn json(args: &[&str]) -> Value {
    let output = gpuwhy(args);
    // 3: nothing was found.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{args:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A trace of somebody else's; says so where there are none.
pub(crate) fn others(name: &str) -> Option<String> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let data = std::env::var("GPUWHY_TRACES").unwrap_or_else(|_| beside.into());
    let path = format!("{data}/{name}");
    if !Path::new(&path).exists() {
        println!("skipped: GPUWHY_TRACES names no directory of other people's traces");
        return None;
    }
    Some(path)
}

/// What it is as a trace of ours, in a folder that is kept meanwhile.
fn imported(name: &str) -> Option<(tempfile::TempDir, String)> {
    let path = others(name)?;
    let (keep, folder) = folder();
    let trace = folder.join("t.trace").to_str().unwrap().to_owned();
    json(&["import", &path, "-o", &trace, "--json"]);
    Some((keep, trace))
}

/// A generated database, and the label of its stalls.
fn generated(folder: &Path, more: &[&str]) -> (String, Value) {
    let path = folder.join("generated");
    let path = path.to_str().unwrap().to_owned();
    let kernels = ["bench", "trace-data", "--kernels", "120000", "--copies", "12000", "-o", &path];
    let label = json(&[&kernels[..], more].concat());
    (path, label)
}

/// The anomalous intervals of each device, worst first, are those in which there is a stall.
fn finds_the_stalls(report: &Value, label: &Value) {
    for of in report["devices"].as_array().unwrap() {
        let gpu: i64 =
            of["device"]["name"].as_str().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let stalls = label["stalls"].as_array().unwrap();
        let injected: Vec<&Value> =
            stalls.iter().filter(|s| s["gpu"] == gpu).map(|s| &s["interval"]).collect();
        let found: Vec<&Value> =
            of["worst"].as_array().unwrap().iter().map(|w| &w["interval"]).collect();
        assert_eq!(found, injected, "GPU {gpu}");
    }
}

#[test]
fn stalls_are_found_in_the_database_and_in_its_trace_with_any_shards_and_threads() {
    let (_keep, folder) = folder();
    let (database, label) = generated(&folder, &[]);
    let trace = folder.join("t.trace");
    let trace = trace.to_str().unwrap();
    for threads in ["1", "3"] {
        let printed =
            json(&["import", &database, "-o", trace, "--force", "--json", "--threads", threads]);
        assert_eq!(printed["format"], "Nsight Systems");
        let output = gpuwhy(&["validate", trace]);
        assert!(output.status.success(), "{}", said(&output));
    }
    let say = |more: &[&str]| {
        json(&[&["variability", trace, "--interval", "1s", "--json"][..], more].concat())
    };
    let whole = say(&["--shards", "1", "--threads", "1"]);
    finds_the_stalls(&whole, &label);
    for (shards, threads) in [("5", "2"), ("64", "1")] {
        let again = say(&["--shards", shards, "--threads", threads]);
        assert_eq!(again, whole, "{shards} shards on {threads} threads");
    }
    // The database itself says the same of its devices and kernels.
    let straight = json(&["variability", &database, "--interval", "1s", "--json"]);
    for (a, b) in
        straight["devices"].as_array().unwrap().iter().zip(whole["devices"].as_array().unwrap())
    {
        for key in ["kernels", "kernel_s", "copies", "copy_s", "exposed_s", "worst", "anomalous"] {
            assert_eq!(a[key], b[key], "{key}");
        }
    }
    for key in ["kernels", "copies"] {
        assert_eq!(straight[key], whole[key]);
    }
    // Without a length, intervals are as long for the trace as for the database.
    let [chosen, of_trace] = [&*database, trace]
        .map(|input| json(&["variability", input, "--json"])["interval_ms"].clone());
    assert_eq!(chosen, of_trace);
}

#[test]
fn a_profile_of_pytorch_shows_the_same_stalls() {
    let (_keep, folder) = folder();
    let (path, label) = generated(&folder, &["--kineto"]);
    let trace = folder.join("t.trace");
    let trace = trace.to_str().unwrap();
    let printed = json(&["import", &path, "-o", trace, "--json"]);
    assert_eq!(printed["about"]["files"][0]["rank"], 0);
    let output = gpuwhy(&["validate", trace]);
    assert!(output.status.success(), "{}", said(&output));
    finds_the_stalls(&json(&["variability", trace, "--interval", "1s", "--json"]), &label);
}

#[test]
fn files_that_cannot_be_imported_are_refused_and_leave_nothing() {
    let (_keep, folder) = folder();
    let trace = folder.join("t.trace");
    let refused = |content: &[u8], name: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        let output = gpuwhy(&["import", path.to_str().unwrap(), "-o", trace.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(!trace.exists() && !folder.join("t.trace.partial").exists());
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.contains(name), "{printed}");
        printed
    };
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    assert!(refused(lfs, "a.sqlite").contains("git lfs pull"));
    assert!(refused(lfs, "a.json").contains("git lfs pull"));
    assert!(refused(b"\x00\x01\x02", "a.nsys-rep").contains("nsys export"));
    assert!(
        refused(b"hello", "a.txt").contains("none of the known formats; it begins with \"hello\"")
    );
    assert!(refused(b"{\"traceEvents\": [{\"ph\": \"X\"", "cut.json").contains("event 1"));
    let (database, _) = generated(&folder, &[]);
    let whole = std::fs::read(&database).unwrap();
    assert!(refused(&whole[..whole.len() / 2], "cut.sqlite").contains("cut off after"));
    // What is there already is not lost by a refusal.
    std::fs::create_dir(&trace).unwrap();
    std::fs::write(trace.join("mine"), b"mine").unwrap();
    let output = gpuwhy(&["import", &database, "-o", trace.to_str().unwrap(), "--force"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(trace.join("mine").exists());
}

#[test]
fn ranks_of_a_real_job_are_aligned_and_their_straggler_and_slow_link_found() {
    let ranks = [2, 3, 4].map(|rank| others(&format!("nsys/jacobi_mpi8/rank{rank}.sqlite")));
    let [Some(a), Some(b), Some(c)] = &ranks else { return };
    let (_keep, folder) = folder();
    let trace = folder.join("job.trace");
    let trace = trace.to_str().unwrap();
    let printed = json(&["import", a, b, c, "-o", trace, "--json"]);
    let alignment = &printed["about"]["alignment"];
    assert_eq!(
        (&alignment["by"], &alignment["collective"]),
        (&"the ends of collectives".into(), &"MPI_Allreduce".into())
    );
    assert!(alignment["residual_p50_ns"].as_i64().unwrap() < 281, "{alignment}");
    let output = gpuwhy(&["validate", trace]);
    assert!(output.status.success(), "{}", said(&output));

    let report = json(&["variability", trace, "--interval", "100ms", "--json"]);
    for of in report["devices"].as_array().unwrap() {
        let worst: Vec<i64> = of["worst"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["interval"].as_i64().unwrap())
            .collect();
        // As an independent reference implementation found them.
        assert_eq!(worst[..3], [36, 35, 51], "{of}");
    }
    let statement = |kind: &str, what: &str| {
        let of_kind = |s: &&Value| s["kind"] == kind;
        let found = report["statements"].as_array().unwrap().iter().find(of_kind);
        found.unwrap_or_else(|| panic!("no {kind}"))[what].as_str().unwrap().to_owned()
    };
    let says = |kind: &str| statement(kind, "says");
    assert!(says("straggler").starts_with("rank 3 is waited for"), "{}", says("straggler"));
    let link = says("slow_link");
    assert!(link.contains("GPU 5") && link.contains("to GPU 4") && link.contains("4608"), "{link}");
    assert!(says("shared_stall").starts_with("3 of 3 devices stall together from 3.600"));

    // It solves twice, as its ranges say: alone, and with its neighbours. What lies between (a copy of 177 ms,
    // calls of MPI, allocation) is a phase and no fault.
    let verdict = json(&["diagnose", trace, "--json"]);
    let rounds = verdict["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 6, "{rounds:?}");
    let phased = |r: &Value| r["phase"].as_str().unwrap().starts_with("Jacobi solve ");
    assert!(rounds.iter().all(|r| r["of"] == "gpu_waits" && r["rounds"] == 999 && phased(r)));
    assert_eq!(verdict["verdict"], "nothing_anomalous");
    // `NVTX_EVENTS` and the union of `CUPTI_ACTIVITY_KIND_MEMCPY` in each report.
    let solves = [[3504.408, 1416.785], [3507.419, 1416.802], [3506.277, 1416.785]];
    let copies = [216.055, 212.139, 210.969];
    for (i, program) in verdict["programs"].as_array().unwrap().iter().enumerate() {
        let phases = program["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|p| p["name"].as_str().unwrap()).collect();
        let expected = ["set-up", "Jacobi solve 1", "between", "Jacobi solve 2", "end"];
        assert_eq!(names, expected, "{program}");
        for (phase, ms) in [&phases[1], &phases[3]].into_iter().zip(solves[i]) {
            let ns = |end: &str| phase[end].as_i64().unwrap();
            let length = (ns("to_ns") - ns("from_ns")) as f64 / 1e6;
            assert!((length - ms).abs() < 0.001, "{phase}");
        }
        assert!((sum_of(program, "copies_ms") - copies[i]).abs() < 0.01 * copies[i], "{program}");
    }
}

/// A time of all phases of a program together, ms.
fn sum_of(program: &Value, what: &str) -> f64 {
    let phases = program["phases"].as_array().unwrap();
    phases.iter().map(|phase| phase["spent"][what].as_f64().unwrap()).sum()
}

/// The diagnosis of a real report: JSON and text.
fn diagnosed(name: &str) -> Option<(Value, String)> {
    let (_keep, trace) = imported(name)?;
    Some((json(&["diagnose", &trace, "--json"]), said(&gpuwhy(&["diagnose", &trace]))))
}

#[test]
fn the_straggler_is_named_by_its_own_rank_whatever_the_files_are_called() {
    let ranks = [2, 3, 4].map(|rank| others(&format!("nsys/jacobi_mpi8/rank{rank}.sqlite")));
    let [Some(a), Some(b), Some(c)] = &ranks else { return };
    for order in [[a, b, c], [b, c, a], [c, b, a]] {
        let (_keep, folder) = folder();
        let trace = folder.join("job.trace");
        let trace = trace.to_str().unwrap();
        let named = |(i, from): (usize, &&String)| {
            let to = folder.join(format!("report{}.sqlite", i + 1));
            std::fs::copy(from, &to).unwrap();
            to.to_str().unwrap().to_owned()
        };
        let files: Vec<String> = order.iter().enumerate().map(named).collect();
        let import = ["import", &files[0], &files[1], &files[2], "-o", trace, "--json"];
        let printed = json(&import);
        assert_eq!(printed["about"]["world_size"], 8, "{printed}");
        let report = json(&["variability", trace, "--json"]);
        let statements = report["statements"].as_array().unwrap();
        let straggler = statements.iter().find(|s| s["kind"] == "straggler").unwrap();
        let says = straggler["says"].as_str().unwrap();
        assert!(says.starts_with("rank 3 is waited for"), "{order:?}: {says}");
        for command in ["variability", "diagnose"] {
            let page = folder.join("page.html");
            gpuwhy(&[command, trace, "--html", page.to_str().unwrap()]);
            let html = std::fs::read_to_string(page).unwrap();
            let (name, by) = match command {
                "variability" => (
                    "<td class=\"name\">report",
                    "<td class=\"name\">MPI_Allreduce<td class=\"n\">",
                ),
                _ => ("<code>nsys report", "aligned by MPI_Allreduce, to "),
            };
            assert_eq!((html.matches(name).count(), html.matches(by).count()), (3, 3), "{command}");
        }
    }
}

#[test]
fn a_real_solver_that_marks_nothing_has_rounds_and_nothing_is_found_in_them() {
    let Some((verdict, _)) = diagnosed("nsys/jacobi_p2p_gpus03.sqlite") else { return };
    assert_eq!(verdict["verdict"], "nothing_anomalous");
    let rounds = verdict["rounds"].as_array().unwrap();
    let of = |r: &Value| (r["phase"].as_str().unwrap().to_owned(), r["each"].as_i64().unwrap());
    let of: Vec<(String, i64)> = rounds.iter().map(of).collect();
    assert_eq!(of, [("Jacobi Solve".into(), 1), ("Jacobi solve".into(), 2)], "{rounds:?}");
}

#[test]
fn real_programs_are_told_what_takes_most_of_their_time() {
    // The expected times are unions of intervals in the reports' own tables.
    let Some((verdict, text)) = diagnosed("nsys/nsysai_h100_2gpu_1s.sqlite") else { return };
    let programs = verdict["programs"].as_array().unwrap();
    for (program, ms) in programs.iter().zip([940.490, 940.352]) {
        assert!((sum_of(program, "copies_ms") - ms).abs() < 0.01 * ms, "{program}");
        let says = program["mostly"][0].as_str().unwrap();
        assert!(says.starts_with("97 % of the time goes to copies"), "{says}");
        assert!(text.contains(says), "{text}");
    }
    let Some((verdict, _)) = diagnosed("nsys/gomory_rtx3090x2_r19.sqlite") else { return };
    let program = &verdict["programs"][0];
    let says = program["mostly"][0].as_str().unwrap();
    // `cudaMalloc` and `cudaFree` together, of 237.5 ms.
    assert!(says.starts_with("61 % of the time goes to calls that allocate or free"), "{says}");
    assert!((sum_of(program, "kernels_ms") - 15.528).abs() < 0.15, "{program}");
    let Some((verdict, _)) = diagnosed("nsys/pipit_cloverleaf_a100x4.sqlite") else { return };
    let program = &verdict["programs"][0];
    assert!((sum_of(program, "kernels_ms") - 294.405).abs() < 2.9, "{program}");
    assert!((sum_of(program, "copies_ms") - 9.391).abs() < 0.09, "{program}");
    assert_eq!(program["phases"][0]["kind"], "set_up", "{program}");
}

#[test]
fn a_real_report_without_calls_says_what_a_verdict_would_need() {
    let Some((verdict, text)) = diagnosed("nsys/jacc_cg_2026_2.sqlite") else { return };
    assert_eq!(verdict["verdict"], "no_steps");
    // A profile cannot be recorded again with steps by who was given it.
    assert!(
        text.contains("is a profile without marked steps") && !text.contains("gpuwhy record"),
        "{text}"
    );
    assert_eq!(verdict["rests_on"]["scheduler_events"], true);
    assert!(text.contains("not in the trace: calls of CUDA"), "{text}");
}

#[test]
fn operators_of_a_real_profile_launch_what_another_tool_says() {
    let real = imported("kineto/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz");
    let Some((_keep, trace)) = real else { return };
    let report = json(&["variability", &trace, "--json"]);
    let of = |name: &str| {
        let ranges = report["launches"]["ranges"].as_array().unwrap();
        let of = ranges.iter().find(|r| r["lane"] == "operators" && r["name"] == name);
        of.unwrap_or_else(|| panic!("no {name} in {ranges:?}")).clone()
    };
    // From `ops_summary.csv` of TraceLens, in us with the grain of its arithmetic.
    for (name, us) in [("aten::mul", 6752.9), ("aten::mm", 6668.682), ("aten::cat", 2017.783)] {
        let own = of(name)["own_device_ms"].as_f64().unwrap() * 1e3;
        assert!((own - us).abs() < 0.06, "{name}: {own}");
    }
    // What it launched is a copy, and no kernel.
    let scalar = of("aten::_local_scalar_dense");
    assert_eq!(
        (&scalar["kernels"], &scalar["copies_and_memsets"]),
        (&0.into(), &1.into()),
        "{scalar}"
    );
    assert_eq!(scalar["own_device_ms"], 0.002368);
}

#[test]
fn no_device_is_idle_for_longer_than_its_recording() {
    let Some(folder) = others("nsys") else { return };
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|e| e.path());
    let mut devices = 0;
    for file in files.filter(|path| path.extension().is_some_and(|e| e == "sqlite")) {
        // One holds no work of a GPU.
        let output = gpuwhy(&["variability", file.to_str().unwrap(), "--json"]);
        if output.status.code() == Some(1) {
            assert!(said(&output).contains("holds no kernels"), "{}", said(&output));
            continue;
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let seconds = report["seconds"].as_f64().unwrap();
        for of in report["devices"].as_array().unwrap() {
            let s = |key: &str| of[key].as_f64().unwrap();
            let all = s("idle_s") + s("kernel_s") + s("exposed_s");
            assert!((all - seconds).abs() < 1e-6, "{file:?}: {of}");
            devices += 1;
        }
    }
    assert!(devices >= 13, "{devices}");
}

#[test]
fn a_length_of_microseconds_is_taken_and_the_first_line_says_what_was_chosen() {
    let Some(file) = others("nsys/nsysai_mfu_2gpu_after.sqlite") else { return };
    let first = |more: &[&str]| {
        let output = gpuwhy(&[&["variability", &*file][..], more].concat());
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        (text.lines().next().unwrap().to_owned(), text)
    };
    let (line, _) = first(&[]);
    assert!(
        line.ends_with("0.299 s in 150 intervals of 2 ms (chosen; --interval sets it)"),
        "{line}"
    );
    let (line, _) = first(&["--interval", "500us"]);
    assert!(line.ends_with("0.299 s in 599 intervals of 0.5 ms"), "{line}");
    let (_, text) = first(&["--interval", "200ms"]);
    assert!(
        text.contains("2 intervals are too few to compare; choose a shorter --interval"),
        "{text}"
    );
}

#[test]
fn the_critical_path_of_a_real_report_is_told_in_text_and_json() {
    let Some((_keep, trace)) = imported("nsys/pipit_cloverleaf_a100x4.sqlite") else { return };
    let output = gpuwhy(&["variability", &trace]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Its first call begins 455047089 ns before its first work, its last work ends 797454899 ns after that call.
    assert!(text.contains("\ncritical path from -0.455 to 0.342 s, 797.455 ms: "), "{text}");
    // Kernels during whose run the program waited, by a query of the report.
    assert!(text.contains("\n     294.395 ms  36.9 %      1310 x kernels\n"), "{text}");
    let path = json(&["variability", &trace, "--json"])["critical_path"].clone();
    assert_eq!((&path["ns"], &path["bound_by"]), (&797_454_899.into(), &"cpu".into()));
    let ms: f64 = path["parts"].as_array().unwrap().iter().map(|p| p["ms"].as_f64().unwrap()).sum();
    assert!((ms - 797.454899).abs() < 1e-6, "{path}");
}
