//! The workload, its competitor and faults as whole processes over the stand-in. This test has a
//! `main` of its own, because these processes are this program started again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gpuwhy_testkit::gpu::{self, Defect, Environment, Machine, reason};
use gpuwhy_testkit::gpuloop::{self, Config, Hog, Summary};
use gpuwhy_testkit::{gpufault, helper, sys};

/// Gets the directory of the machine, and the environment for processes.
type Test = fn(&Path, &Environment) -> Result<()>;

fn main() -> Result<()> {
    helper::dispatch();
    let dir = tempfile::tempdir()?;
    let object = gpu::find_standin()
        .context("cannot find the stand-in, which cargo builds for this test")?;
    gpu::link_libraries(&dir.path().join("lib"), &object)?;
    let environment = Environment {
        machine: Some(dir.path().to_owned()),
        libraries: Some(dir.path().join("lib")),
        variables: Vec::new(),
    };
    let tests: [(&str, Test); 4] = [
        ("steps are taken, with and without graphs", steps_are_taken),
        ("a fault lasts for its time and is repaired", a_fault_is_repaired),
        (
            "a fault that is killed is repaired by the process that started it",
            a_killed_fault_is_repaired,
        ),
        ("a competitor uses the GPU until it is stopped", a_competitor_is_seen),
    ];
    for (name, test) in tests {
        test(dir.path(), &environment).context(name)?;
        println!("{name} ... ok");
    }
    Ok(())
}

fn steps(environment: &Environment, graph: bool) -> Result<Summary> {
    let config = Config {
        seconds: Some(0.5),
        rank: 3,
        graph,
        environment: environment.clone(),
        ..Config::default()
    };
    gpuloop::start(&config)?.finish()
}

fn steps_are_taken(dir: &Path, environment: &Environment) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    for graph in [false, true] {
        let before = gpu.busy();
        let summary = steps(environment, graph)?;
        ensure!(summary.steps > 0 && summary.rank == 3, "{summary:?}");
        // Eight kernels of 0.4 ms, each at its nominal time.
        ensure!(gpu.busy() - before == summary.steps * 8 * 400_000, "{summary:?}");
        ensure!(summary.mean_ms > 3.2, "{summary:?}");
    }
    ensure!(gpu.processes().is_empty(), "no process is left");
    Ok(())
}

fn a_fault_is_repaired(dir: &Path, environment: &Environment) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let start = |kind, seconds| {
        gpufault::start(&gpufault::Spec {
            kind,
            seconds,
            gpu: 0,
            pid: 0,
            environment: environment.clone(),
        })
    };
    let mut fault = start(gpufault::Kind::Thermal, None)?;
    let begun = fault.begun()?;
    ensure!(gpu.reasons(sys::now()) & reason::HW_THERMAL != 0);
    let slow = steps(environment, false)?;
    ensure!(slow.mean_ms > 8.0, "8 x 0.4 ms at 40 %: {slow:?}");
    let label = fault.stop()?;
    ensure!(label.class.as_deref() == Some("gpu_throttling") && label.from_ns == begun);
    ensure!(label.to_ns > begun && label.gpu == Some(0), "{label:?}");
    ensure!(gpu.reasons(sys::now()) & !reason::IDLE == 0, "repaired");

    let label = start(gpufault::Kind::LostBuffers, Some(0.05))?.finish()?;
    ensure!(label.kind == "lost-buffers" && label.class.is_none(), "{label:?}");
    ensure!(!machine.has(Defect::LostBuffers));
    Ok(())
}

fn a_killed_fault_is_repaired(dir: &Path, environment: &Environment) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let kind = gpufault::Kind::OffBus;
    let spec =
        gpufault::Spec { kind, seconds: None, gpu: 0, pid: 0, environment: environment.clone() };
    let mut fault = gpufault::start(&spec)?;
    fault.begun()?;
    ensure!(!gpu.present());
    sys::kill(fault.pid(), 9)?;
    ensure!(fault.finish().is_err());
    ensure!(gpu.present());
    Ok(())
}

fn a_competitor_is_seen(dir: &Path, environment: &Environment) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let mut hog = gpuloop::start_hog(&Hog { environment: environment.clone(), ..Hog::default() })?;
    hog.begun()?;
    let pid = hog.pid();
    let crowded = steps(environment, false)?;
    ensure!(gpu.processes().iter().any(|p| p.pid == pid as u32), "{:?}", gpu.processes());
    ensure!(crowded.mean_ms > 4.5, "half of the GPU at most: {crowded:?}");
    let label = hog.stop()?;
    ensure!(label.pid == Some(pid) && label.class.as_deref() == Some("gpu_contention"));
    ensure!(gpu.processes().is_empty());
    Ok(())
}
