//! Faults of a scripted GPU or of its CUPTI, for a limited time, with a label of the ground truth.
//!
//! A fault is a process of its own that writes into the machine's page. It restores everything when
//! its time is over or when it gets SIGTERM; if it is killed, the process that started it restores
//! everything ([`HelperProcess`]).

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::gpu::{self, Defect, Environment, Machine, Quantity, reason};
use crate::gpuloop::Label;
use crate::helper::{Deadline, HelperProcess, print_json};
use crate::sys;

/// Which fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The power limit halves the clock.
    Throttle,
    /// The GPU is hot, and the hardware lowers the clock to 40 %.
    Thermal,
    /// The server's power supply demands less power (power brake): a third of the clock.
    PowerBrake,
    /// PCIe replays its packets: a quarter of the bandwidth.
    PcieReplay,
    /// The PCIe link has trained at generation 1.
    PcieLink,
    /// The GPU reports Xid 31, a page fault.
    Xid,
    /// The GPU reports Xid 74 every 1.5 s and does no work for 1.2 s each time.
    XidStall,
    /// The GPU falls off the bus.
    OffBus,
    /// CUPTI's timestamps become 0.
    ZeroTimestamps,
    /// CUPTI leaks device memory for each kernel of a graph.
    GraphGrowth,
    /// Another tool has subscribed to CUPTI.
    SecondSubscriber,
    /// Another tool has replaced our buffer callbacks of CUPTI.
    CallbacksReplaced,
    /// CUPTI rejects a timestamp callback.
    NoTimestampCallback,
    /// CUPTI never completes buffers.
    LostBuffers,
}

impl Kind {
    /// The class that a verdict should give, as the schema's `Class` names it; `None` where no step
    /// gets slower.
    pub const fn class(self) -> Option<&'static str> {
        match self {
            Kind::Throttle | Kind::Thermal | Kind::PowerBrake => Some("gpu_throttling"),
            Kind::PcieReplay | Kind::PcieLink => Some("pcie"),
            Kind::XidStall => Some("gpu_fault"),
            _ => None,
        }
    }

    /// Its name, also on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Throttle => "throttle",
            Kind::Thermal => "thermal",
            Kind::PowerBrake => "power-brake",
            Kind::PcieReplay => "pcie-replay",
            Kind::PcieLink => "pcie-link",
            Kind::Xid => "xid",
            Kind::XidStall => "xid-stall",
            Kind::OffBus => "off-bus",
            Kind::ZeroTimestamps => "zero-timestamps",
            Kind::GraphGrowth => "graph-growth",
            Kind::SecondSubscriber => "second-subscriber",
            Kind::CallbacksReplaced => "callbacks-replaced",
            Kind::NoTimestampCallback => "no-timestamp-callback",
            Kind::LostBuffers => "lost-buffers",
        }
    }

    fn defect(self) -> Option<Defect> {
        Defect::named(self.name())
    }
}

/// A fault to be injected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Which fault.
    pub kind: Kind,
    /// Seconds that it lasts; until SIGTERM if absent.
    pub seconds: Option<f64>,
    /// Index of the GPU in the machine.
    pub gpu: u32,
    /// The process in whose work an Xid happens; 0 for none.
    #[serde(default)]
    pub pid: u64,
    /// Where it finds the machine.
    #[serde(default)]
    pub environment: Environment,
}

/// Starts the fault. It ends with the calling thread.
///
/// # Errors
/// If the process cannot be started.
pub fn start(spec: &Spec) -> Result<HelperProcess<Label>> {
    let dir =
        spec.environment.machine.clone().or_else(|| std::env::var_os(gpu::ENV).map(Into::into));
    let dir = dir.with_context(|| {
        format!("{} is not set; set it to the directory of the machine", gpu::ENV)
    })?;
    let killed = spec.clone();
    let fault = HelperProcess::start("gpu-fault", spec, &spec.environment)?;
    Ok(fault.or_undo(move || {
        if let Ok(machine) = Machine::open(&dir, 1) {
            undo(&machine, &killed);
        }
    }))
}

/// Injects the fault from this process.
pub(crate) fn run(spec: Spec) -> Result<()> {
    sys::set_comm("gpu-fault");
    let end = Deadline::new(spec.seconds)?;
    let machine = Machine::from_env()?;
    let gpu = machine.gpu(spec.gpu as usize).with_context(|| {
        format!("the machine has no GPU {}, only 0 to {}", spec.gpu, machine.count() - 1)
    })?;
    let from_ns = sys::now();
    let max = gpu.get(Quantity::SmClockMax);
    match spec.kind {
        Kind::Throttle => {
            gpu.set(Quantity::Power, gpu.get(Quantity::PowerLimit));
            gpu.throttle(reason::SW_POWER_CAP, max / 2, from_ns);
        }
        Kind::Thermal => {
            gpu.set(Quantity::Temperature, 91);
            gpu.throttle(reason::HW_SLOWDOWN | reason::HW_THERMAL, max * 2 / 5, from_ns);
        }
        Kind::PowerBrake => {
            gpu.throttle(reason::HW_SLOWDOWN | reason::POWER_BRAKE, max / 3, from_ns);
        }
        Kind::PcieReplay => gpu.pcie_replay(true),
        Kind::PcieLink => gpu.pcie_link(1, gpu.get(Quantity::PcieWidthMax)),
        Kind::Xid => gpu.xid(31, spec.pid, from_ns),
        Kind::OffBus => gpu.fall_off_bus(from_ns),
        _ => {
            if let Some(defect) = spec.kind.defect() {
                machine.set_defect(defect, true);
            }
        }
    }
    print_json(&json!({ "from_ns": from_ns }));
    if spec.kind == Kind::XidStall {
        loop {
            let now = sys::now();
            gpu.xid(74, 0, now);
            gpu.stall(now, 1_200_000_000);
            if end.wait_for(1.5) {
                break;
            }
        }
    } else {
        end.wait();
    }
    undo(&machine, &spec);
    print_json(&Label {
        kind: spec.kind.name().into(),
        class: spec.kind.class().map(str::to_owned),
        from_ns,
        to_ns: sys::now(),
        pid: Some(spec.pid as i32).filter(|pid| *pid != 0),
        gpu: spec.kind.defect().is_none().then_some(spec.gpu),
    });
    Ok(())
}

/// Restores what a fault changed; harmless if it changed nothing.
fn undo(machine: &Machine, spec: &Spec) {
    match spec.kind.defect() {
        Some(defect) => machine.set_defect(defect, false),
        None => {
            if let Some(gpu) = machine.gpu(spec.gpu as usize) {
                gpu.heal(sys::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn names_are_those_of_the_command_line_the_schema_and_the_defects() {
        for kind in Kind::value_variants() {
            assert_eq!(kind.to_possible_value().unwrap().get_name(), kind.name());
            assert_eq!(json!(kind), json!(kind.name()));
            if let Some(class) = kind.class() {
                assert!(class.parse::<gpuwhy_schema::Class>().is_ok(), "{class}");
            }
        }
        for defect in Defect::ALL {
            assert!(Kind::value_variants().iter().any(|k| k.defect() == Some(defect)));
        }
    }
}
