//! What is a finding, and what only looks like one.

use super::*;

/// What is said of a kind that is no finding.
fn no_finding(report: &Report, kind: &str) -> Vec<String> {
    report.no_findings.iter().filter(|s| s.kind == kind).map(|s| s.says.clone()).collect()
}

/// `count` kernels of one name, one behind the other, each of `ms`; when the last has ended.
fn run(scene: &mut Scene, name: &str, from: f64, count: i32, ms: f64) -> f64 {
    for i in 0..count {
        let at = from + f64::from(i) * (ms + 0.1);
        // Durations vary a little, as they do.
        scene.launched(at - 0.05, name, at, at + ms + 0.001 * f64::from(i % 3));
    }
    from + f64::from(count) * (ms + 0.1)
}

#[test]
fn a_kernel_that_is_launched_in_another_size_is_no_kernel_that_became_quicker() {
    let mut scene = Scene { grid: 512, ..Scene::default() };
    let end = run(&mut scene, "jacobi_kernel", 1.0, 100, 3.4);
    scene.grid = 64;
    run(&mut scene, "jacobi_kernel", end + 20.0, 100, 0.4);
    for report in scene.reports(Some(1)) {
        assert_eq!(says(&report, "kernel_shift"), [""; 0]);
        assert_eq!(
            no_finding(&report, "kernel_sizes"),
            [
                "jacobi_kernel took 3400.990 us on average in 100 launches of 512x1x1 blocks (0.000 to 0.350 s), \
                 400.990 us on average in 100 launches of 64x1x1 blocks (0.370 to 0.420 s): it was launched in 2 \
                 sizes, and no launch of one size came to take longer or less long"
            ]
        );
    }
}

#[test]
fn the_two_solvers_of_jacobi_launch_their_kernel_in_two_sizes() {
    // 1000 launches of 512x512 blocks first and 1000 of 512x64 then, by a query of the file.
    let Some(report) = report_of(&["nsys/jacobi_mpi8/rank3.sqlite"]) else { return };
    assert_eq!(says(&report, "kernel_shift"), [""; 0]);
    let says = no_finding(&report, "kernel_sizes").join("");
    assert!(says.contains("3433.908 us on average in 1000 launches of 512x512x1 blocks"), "{says}");
    assert!(says.contains("434.022 us on average in 1000 launches of 512x64x1 blocks"), "{says}");
}

#[test]
fn a_kernel_that_becomes_slower_in_one_of_its_sizes_is_told_with_that_size() {
    let mut scene = Scene { grid: 512, ..Scene::default() };
    let end = run(&mut scene, "jacobi_kernel", 1.0, 100, 3.4);
    scene.grid = 64;
    let end = run(&mut scene, "jacobi_kernel", end, 300, 0.4);
    run(&mut scene, "jacobi_kernel", end, 300, 0.8);
    for report in scene.reports(Some(1)) {
        let shifts = says(&report, "kernel_shift");
        assert_eq!(shifts.len(), 1, "{shifts:?}");
        let first = "jacobi_kernel in launches of 64x1x1 blocks took 4";
        assert!(shifts[0].starts_with(first), "{shifts:?}");
        assert!(no_finding(&report, "kernel_sizes").is_empty());
    }
    // Of one size alone, in the same way.
    let mut scene = Scene { grid: 64, ..Scene::default() };
    let end = run(&mut scene, "jacobi_kernel", 1.0, 300, 0.4);
    run(&mut scene, "jacobi_kernel", end, 300, 0.8);
    for report in scene.reports(Some(1)) {
        let shifts = says(&report, "kernel_shift");
        assert!(shifts[0].starts_with("jacobi_kernel took 4"), "{shifts:?}");
    }
}

#[test]
fn a_kernel_that_the_next_phase_runs_for_something_else_is_told_as_of_phases() {
    let mut scene = Scene { grid: 64, ..Scene::default() };
    for i in 0..200 {
        let at = 1.0 + 2.0 * f64::from(i);
        scene.launched(at - 0.05, "axpy", at, at + 0.9);
        scene.launched(at + 0.9, "assemble", at + 1.0, at + 1.5);
    }
    for i in 0..200 {
        let at = 501.0 + 2.0 * f64::from(i);
        scene.launched(at - 0.05, "axpy", at, at + 0.3);
        scene.call("cudaMemcpy_v3020", at + 0.4, at + 0.8).copy(0, 2, 4096, at + 0.5, at + 0.8);
        scene.launched(at + 0.9, "precondition", at + 1.0, at + 1.5);
    }
    let [_, trace] = scene.reports(Some(5));
    assert_eq!(says(&trace, "kernel_shift"), [""; 0]);
    assert_eq!(
        no_finding(&trace, "kernel_phases"),
        [
            "axpy took 900.000 us on average in `work 1` (200 calls), 300.000 us on average in `work 2` (200 \
             calls): these are phases of the program, and within one it came to take neither longer nor less long"
        ]
    );
    // A report as it is has no calls, and so no phases.
}

/// Two devices that compute, but for these intervals of 10 ms in which they copy.
fn stalled(of: [&[i32]; 2]) -> Scene {
    let mut scene = Scene::default();
    for (device, stalls) in of.iter().enumerate() {
        for interval in 0..40 {
            let (device, at) = (device as i64, 10.0 * f64::from(interval));
            match stalls.contains(&interval) {
                true => scene.copy(device, 1, 1 << 20, at, at + 9.0),
                false => scene.kernel(device, "k", at, at + 9.9),
            };
        }
    }
    scene
}

#[test]
fn a_stall_that_devices_share_by_chance_is_no_finding_and_one_that_they_share_by_its_cause_is() {
    for report in stalled([&[3, 10, 20], &[10, 30, 35]]).reports(Some(10)) {
        assert_eq!(report.statements.len(), 0, "{:?}", report.statements);
        let chance = no_finding(&report, "shared_stalls");
        assert!(chance[0].ends_with(": no more than chance makes"), "{chance:?}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["no_findings"][0]["kind"], "shared_stalls");
    }
    for report in stalled([&[3, 10, 20], &[3, 10, 20]]).reports(Some(10)) {
        assert!(says(&report, "shared_stalls")[0].ends_with(": they share a cause"));
        assert!(no_finding(&report, "shared_stalls").is_empty() && report.found);
    }
}

#[test]
fn processes_that_wait_alike_are_no_finding() {
    let mut scene = Scene::default();
    scene.kernel(0, "k", 0.0, 400.0);
    for i in 0..30 {
        let at = 10.0 * f64::from(i);
        scene.mpi("MPI_Allreduce", at, at + 1.0);
    }
    let other: Vec<Vec<i64>> = scene
        .mpi
        .iter()
        .map(|row| vec![row[0], row[1], (1 << 48) | (4300 << 24) | 4300, row[3]])
        .collect();
    scene.mpi.extend(other);
    let [_, trace] = scene.reports(Some(10));
    assert_eq!(no_finding(&trace, "no_straggler").len(), 1);
    assert!(!trace.found && trace.statements.is_empty());
    assert!(!pages(&scene, None)[0].contains("class=\"slow\""));
}

#[test]
fn what_a_thread_waited_for_in_calls_of_the_operating_system_is_what_a_phase_was_spent_on() {
    let mut scene = Scene { grid: 1, ..Scene::default() };
    scene.call("cudaMalloc_v3020", 0.0, 10.0).os(THREAD, "ioctl", 1.0, 9.0);
    scene.os(THREAD, "getc", 20.0, 90.0);
    // Another thread only waits for its turn.
    scene.os(THREAD + 1, "poll", 0.0, 400.0);
    run(&mut scene, "solve", 100.0, 200, 1.0);
    let dir = tempfile::tempdir().unwrap();
    let (report, trace) = (dir.path().join("report.sqlite"), dir.path().join("t.trace"));
    scene.write(&report);
    import(&report, &trace);
    let source = crate::source::TraceSource::open(&trace).unwrap();
    let programs = crate::phases::of_trace(&source).unwrap().told;
    let set_up = &programs[0].phases[0];
    let spent = &set_up.spent.calls_ms;
    let round = |kind: &str| spent.get(kind).map(|ms| ms.round());
    assert_eq!((&*set_up.name, round("reading and writing")), ("set-up", Some(70.0)));
    assert_eq!((round("allocating"), round("other OS calls")), (Some(10.0), None), "{spent:?}");
    assert!(!spent.contains_key("waiting for events"), "{spent:?}");
    assert!(set_up.text().contains("thread: reading and writing 70 %"), "{}", set_up.text());
}

/// A process that computes on the one GPU of `node1`, and copies beside that now and then.
fn sharing(begin: Option<i64>, process: i64) -> Scene {
    let mut scene = stalls("node1", begin);
    for row in scene.kernels.iter_mut().chain(&mut scene.copies) {
        row[6] = (1 << 48) | (process << 24);
    }
    scene
}

#[test]
fn what_processes_of_two_files_did_on_one_gpu_is_compared_only_as_far_as_their_clocks_are_known() {
    let said = |begin: Option<i64>, interval| {
        let scenes = [sharing(begin, 700), sharing(begin.map(|ns| ns + 1), 701)];
        of_two([&scenes[0], &scenes[1]], Some(interval))
    };
    // The host's own clock, by which both files say when they began.
    let [_, trace] = said(Some(1 << 60), 10);
    assert_eq!(trace.devices.len(), 1, "{:?}", trace.devices);
    assert!(trace.not_said.is_empty() && trace.devices[0].rule != "several_files");
    let [_, trace] = said(None, 10);
    assert_eq!((trace.devices.len(), trace.devices[0].rule), (1, "several_files"));
    assert_eq!((trace.devices[0].anomalous, trace.found), (0, false));
    assert!(
        trace.not_said[0].starts_with("not said in which intervals GPU 0 H100 stalls"),
        "{:?}",
        trace.not_said
    );
}
