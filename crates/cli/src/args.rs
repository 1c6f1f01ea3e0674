//! Arguments that several commands share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::ValueEnum;
use gpuwhy_collect::{Config, Latency, RasAddress, UprobeStep};
use gpuwhy_diagnose::detect::Detection;
use gpuwhy_engine::investigate;
use gpuwhy_engine::launch::InstrumentOptions;
use gpuwhy_engine::share_of_time;
use gpuwhy_engine::watch::promised;
use gpuwhy_schema::text::Screen;
use gpuwhy_schema::{Ns, terminal};
use gpuwhy_store::IncompleteSource;
use gpuwhy_wire::{Collectives, Kernels, Settings};
use serde::Serialize;

/// What is recorded.
#[derive(Debug, clap::Args)]
pub struct Recorded {
    /// Replace the output if it is a trace already
    #[arg(long)]
    pub force: bool,
    /// Record the threads of this process exactly, present and future; may be repeated
    #[arg(short, long = "pid", value_name = "PID")]
    pub pids: Vec<i32>,
    /// Take each call of this function as one step; may be repeated
    #[arg(long = "step", value_name = "uprobe:BINARY:SYMBOL")]
    pub steps: Vec<UprobeStep>,
    /// The shared-memory ring to which programs write their steps, as named by their GPUWHY_RING;
    /// created if it does not exist
    #[arg(long, value_name = "PATH")]
    pub ring: Option<PathBuf>,
    /// How often aggregate counters are read, times a second; `watch` reads them twenty times
    /// unless the kernel's ring fills
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub hz: u32,
    /// Switch a probe off, by the name that `doctor` lists; may be repeated
    #[arg(long = "off", value_name = "PROBE", value_parser = probe)]
    pub off: Vec<String>,
    /// Whose context has each NVIDIA GPU, all processes included, by its driver's log of context switches (driver 535 or
    /// later, as root). No GPU has been recorded so yet
    #[arg(long)]
    pub gpu_switches: bool,
    #[command(flatten)]
    pub served: Served,
    #[command(flatten)]
    pub in_process: InProcess,
}

/// Whom to ask how requests to a language model fare, and what was promised.
#[derive(Debug, clap::Args)]
pub struct Served {
    /// Ask the engine at URL every 2 s how its requests fare, as http://localhost:8000/metrics (vLLM, SGLang); may be
    /// repeated
    #[arg(long, value_name = "URL")]
    pub metrics: Vec<String>,
    /// What was promised: ttft=500ms, tpot=50ms, gap=200ms or total=10s. What --metrics counts beyond it is recorded;
    /// `watch` tells it with what was slow then. May be repeated
    #[arg(long, value_name = "WHAT=TIME", requires = "metrics", value_parser = promised)]
    pub slo: Vec<(Latency, Ns)>,
}

/// What is recorded from inside processes that use GPUs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Inside GPU processes")]
pub struct InProcess {
    /// Kernels and copies, from CUPTI: a CUDA graph as a whole, or node by node
    #[arg(long, value_enum, default_value = "graphs", value_name = "DETAIL")]
    pub kernels: KernelDetail,
    /// Record the nodes of CUDA graphs for ON ms out of every EVERY ms, such as 200/10000
    #[arg(long, value_name = "ON/EVERY", value_parser = share_of_time)]
    pub graph_nodes: Option<(u32, u32)>,
    /// Record the calls that launch kernels too; costs about as much again as the kernels
    #[arg(long)]
    pub launches: bool,
    /// Collectives, from NCCL: each call, its phases on the device, or also what NCCL's network threads
    /// wait for
    #[arg(long, value_enum, default_value = "calls", value_name = "DETAIL")]
    pub collectives: CollectiveDetail,
    /// The socket to which libraries inside processes connect, as named by their GPUWHY_SOCKET; a
    /// command gets one of its own, other processes use /run/gpuwhy/agent.sock
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The group whose members may connect to a socket that is not a command's own, by name or number;
    /// gpuwhy if there is such a group, else our own
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// The rights of the socket's file in octal; connecting takes the right to write
    #[arg(long, value_name = "0660", value_parser = octal)]
    pub socket_mode: Option<u32>,
    /// While a step hangs, ask NCCL's RAS service which rank is behind, at HOST:PORT or at its usual
    /// port on this host. Answering has crashed jobs with NCCL before 2.29.2, and rarely since: see
    /// docs/inside.md
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub nccl_ras: Option<RasAddress>,
    /// The library that is loaded into the command, if not the one beside gpuwhy
    #[arg(long, value_name = "PATH", hide = true)]
    pub inject_library: Option<PathBuf>,
}

/// How kernels are recorded.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KernelDetail {
    /// Not at all
    Off,
    /// One by one, but a CUDA graph as a whole
    Graphs,
    /// One by one, also those of CUDA graphs
    Nodes,
}

/// How collectives are recorded.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CollectiveDetail {
    /// Not at all
    Off,
    /// Each call
    Calls,
    /// And its phases on the device
    Phases,
    /// And what the network threads wait for
    Network,
}

impl InProcess {
    /// As the engine takes them.
    pub fn options(&self) -> InstrumentOptions {
        let (nodes_for_ms, nodes_every_ms) = self.graph_nodes.unwrap_or((0, 0));
        let settings = Settings {
            kernels: match self.kernels {
                KernelDetail::Off => Kernels::Off,
                KernelDetail::Graphs => Kernels::Graphs,
                KernelDetail::Nodes => Kernels::Nodes,
            },
            launches: self.launches,
            collectives: match self.collectives {
                CollectiveDetail::Off => Collectives::Off,
                CollectiveDetail::Calls => Collectives::Calls,
                CollectiveDetail::Phases => Collectives::Phases,
                CollectiveDetail::Network => Collectives::Network,
            },
            nodes_every_ms,
            nodes_for_ms,
        };
        let library = self.inject_library.clone();
        InstrumentOptions {
            settings,
            socket: self.socket.clone(),
            socket_mode: self.socket_mode,
            socket_group: self.socket_group.clone(),
            library,
        }
    }
}

/// Rights of a file as `chmod` takes them.
fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write the rights in octal, as in 0660".into())
}

/// What is worth a finding, and when a verdict is given.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Judgement")]
pub struct Judging {
    /// How many false incidents a day are acceptable
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub false_alarms_per_day: f64,
    /// The smallest slowdown that is reported, in per cent
    #[arg(long, default_value_t = 10.0, value_name = "PERCENT")]
    pub min_effect: f64,
    /// Report "insufficient evidence" below this confidence, from 0 to 1
    #[arg(long, default_value_t = 0.5, value_name = "P")]
    pub decide_at: f64,
}

impl Judging {
    /// When something is slower than usual.
    pub fn detection(&self) -> Detection {
        Detection {
            false_alarms_per_day: self.false_alarms_per_day.max(1e-6),
            min_effect: (self.min_effect / 100.0).max(0.0),
            ..Detection::default()
        }
    }

    /// How it is judged.
    pub fn options(&self) -> investigate::Options {
        let mut options = investigate::Options::default();
        options.judgement.decide_at = self.decide_at;
        options
    }
}

/// Says what a trace lacks of what was recorded.
pub fn trace_losses(screen: &mut Screen, lost_rows: u64, complete: bool) {
    if lost_rows > 0 {
        screen.line(format_args!("  {lost_rows} rows could not be written and are lost"));
    }
    if !complete {
        screen.line("  the trace is not complete; whatever opens it next recovers what is there");
    }
}

/// Prints a report: as one JSON document, or as what people read.
pub fn tell(json: bool, report: &impl Serialize, text: impl FnOnce() -> Screen) -> Result<()> {
    match json {
        true => terminal::say_json(&serde_json::to_string_pretty(report)?)?,
        false => terminal::show(&text())?,
    }
    Ok(())
}

/// An empty screen for standard output, styled if that is wanted.
pub fn screen() -> Screen {
    terminal::screen(|name| std::env::var_os(name))
}

/// A flag that SIGINT and SIGTERM set.
pub fn stop_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal ends the program at once, as is usual for ^C ^C.
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

/// A probe's name.
fn probe(text: &str) -> Result<String, String> {
    if Config::probe_names().any(|name| name == text) {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = Config::probe_names().collect();
    Err(format!("there is no such probe; the probes are {}", names.join(", ")))
}

/// `correlator:7777` or `[::1]:7777`; the name is looked up later.
pub fn host_port(text: &str) -> Result<String, String> {
    let (host, port) = text.rsplit_once(':').ok_or("write HOST:PORT, as in localhost:7777")?;
    if host.is_empty() || host.contains(':') && !host.starts_with('[') {
        return Err("write HOST:PORT, as in localhost:7777 or [::1]:7777".into());
    }
    port.parse::<u16>().map_err(|_| format!("`{port}` is no port: 0 to 65535"))?;
    Ok(text.to_owned())
}

/// The mark of a result that rests on imported files that lost rows; nothing where there are none.
pub fn mark(screen: &mut Screen, incomplete: &[IncompleteSource]) {
    for source in incomplete {
        screen.line(format_args!("This {}.", source.mark()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["correlator:7777", "0.0.0.0:0", "[::1]:65535"] {
            assert_eq!(host_port(good), Ok(good.into()));
        }
        for bad in ["", "correlator", ":7777", "correlator:", "correlator:99999", "::1:7777"] {
            assert!(host_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_probe_that_does_not_exist_is_refused_with_those_that_do() {
        assert_eq!(probe("psi"), Ok("psi".into()));
        let error = probe("nosuch").unwrap_err();
        assert!(error.contains("run_queue, ") && error.contains(", nvml"), "{error}");
    }
}
