//! The workload, its competitor and faults as whole processes over the stand-in. A program of its
//! own `main`, because they are this program started again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gpuwhy_testkit::gpu::{self, Defect, Machine, reason};
use gpuwhy_testkit::gpuloop::{self, Config, Hog, Place, Summary};
use gpuwhy_testkit::{gpufault, helper, sys};

/// Given the machine's directory, and where processes find it.
type Test = fn(&Path, &Place) -> Result<()>;

fn main() -> Result<()> {
    helper::dispatch();
    let dir = tempfile::tempdir()?;
    let object = gpu::find_object().context("cargo builds the object for this test")?;
    gpu::lay_links(&dir.path().join("lib"), &object)?;
    let place = Place {
        machine: Some(dir.path().to_owned()),
        libraries: Some(dir.path().join("lib")),
        env: Vec::new(),
    };
    let tests: [(&str, Test); 4] = [
        ("steps are taken, with and without graphs", steps_are_taken),
        ("a fault is there for its time, and is healed", a_fault_is_healed),
        ("a fault that is killed is healed by who started it", a_killed_fault_is_healed),
        ("a competitor is on the GPU until it is stopped", a_competitor_is_seen),
    ];
    for (name, test) in tests {
        test(dir.path(), &place).context(name)?;
        println!("{name} ... ok");
    }
    Ok(())
}

fn steps(place: &Place, graph: bool) -> Result<Summary> {
    let config =
        Config { seconds: Some(0.5), rank: 3, graph, place: place.clone(), ..Config::default() };
    gpuloop::start(&config)?.finish()
}

fn steps_are_taken(dir: &Path, place: &Place) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    for graph in [false, true] {
        let before = gpu.busy();
        let summary = steps(place, graph)?;
        ensure!(summary.steps > 0 && summary.rank == 3, "{summary:?}");
        // Eight kernels of 0.4 ms, each at its nominal time.
        ensure!(gpu.busy() - before == summary.steps * 8 * 400_000, "{summary:?}");
        ensure!(summary.mean_ms > 3.2, "{summary:?}");
    }
    ensure!(gpu.processes().is_empty(), "nobody is left");
    Ok(())
}

fn a_fault_is_healed(dir: &Path, place: &Place) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let start = |kind, seconds| {
        gpufault::start(&gpufault::Spec { kind, seconds, gpu: 0, pid: 0, place: place.clone() })
    };
    let mut fault = start(gpufault::Kind::Thermal, None)?;
    let begun = fault.begun()?;
    ensure!(gpu.reasons(sys::now()) & reason::HW_THERMAL != 0);
    let slow = steps(place, false)?;
    ensure!(slow.mean_ms > 8.0, "8 x 0.4 ms at 40 %: {slow:?}");
    let label = fault.stop()?;
    ensure!(label.class.as_deref() == Some("gpu_throttling") && label.from_ns == begun);
    ensure!(label.to_ns > begun && label.gpu == Some(0), "{label:?}");
    ensure!(gpu.reasons(sys::now()) & !reason::IDLE == 0, "healed");

    let label = start(gpufault::Kind::LostBuffers, Some(0.05))?.finish()?;
    ensure!(label.kind == "lost-buffers" && label.class.is_none(), "{label:?}");
    ensure!(!machine.has(Defect::LostBuffers));
    Ok(())
}

fn a_killed_fault_is_healed(dir: &Path, place: &Place) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let kind = gpufault::Kind::OffBus;
    let spec = gpufault::Spec { kind, seconds: None, gpu: 0, pid: 0, place: place.clone() };
    let mut fault = gpufault::start(&spec)?;
    fault.begun()?;
    ensure!(!gpu.present());
    sys::kill(fault.pid(), 9)?;
    ensure!(fault.finish().is_err());
    ensure!(gpu.present());
    Ok(())
}

fn a_competitor_is_seen(dir: &Path, place: &Place) -> Result<()> {
    let machine = Machine::open(dir, 1)?;
    let gpu = machine.gpu(0).context("no GPU")?;
    let mut hog = gpuloop::start_hog(&Hog { place: place.clone(), ..Hog::default() })?;
    hog.begun()?;
    let pid = hog.pid();
    let crowded = steps(place, false)?;
    ensure!(gpu.processes().iter().any(|p| p.pid == pid as u32), "{:?}", gpu.processes());
    ensure!(crowded.mean_ms > 4.5, "half of the GPU at most: {crowded:?}");
    let label = hog.stop()?;
    ensure!(label.pid == Some(pid) && label.class.as_deref() == Some("gpu_contention"));
    ensure!(gpu.processes().is_empty());
    Ok(())
}
