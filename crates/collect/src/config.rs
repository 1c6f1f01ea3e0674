//! What the user asked to be recorded.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use gpuwhy_schema::Ns;
use gpuwhy_wire::Settings;

use crate::error::CollectError;
use crate::event_pattern::EventPattern;
use crate::probes::engine_metrics::Latency;

/// Slots of a new ring for marked steps ([`Config::wire`]): 2 MiB. A step is a few records of 64
/// bytes, so this holds seconds of most programs, and 50 ms (five ticks) of 600,000 records a second.
pub const WIRE_RING_SLOTS: u32 = 1 << 15;

/// A process that is to be recorded exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A process with all its threads and, from now on, all its descendants.
    Pid(i32),
}

impl Target {
    /// The process's number.
    pub(crate) fn pid(self) -> i32 {
        let Target::Pid(pid) = self;
        pid
    }

    /// Whether the process exists.
    pub(crate) fn check(self) -> Result<(), CollectError> {
        let pid = self.pid();
        if pid > 0 && Path::new("/proc").join(pid.to_string()).exists() {
            return Ok(());
        }
        Err(CollectError::NoProcess { pid })
    }
}

/// A function whose every call is a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UprobeStep {
    /// The program or library.
    pub binary: PathBuf,
    /// The function, as it is called in the symbol table.
    pub symbol: String,
}

impl FromStr for UprobeStep {
    type Err = InvalidStep;

    /// `uprobe:BINARY:SYMBOL`.
    fn from_str(text: &str) -> Result<UprobeStep, InvalidStep> {
        let invalid = || InvalidStep { text: text.to_owned() };
        let rest = text.strip_prefix("uprobe:").ok_or_else(invalid)?;
        let (binary, symbol) = rest.rsplit_once(':').ok_or_else(invalid)?;
        if binary.is_empty() || symbol.is_empty() {
            return Err(invalid());
        }
        Ok(UprobeStep { binary: binary.into(), symbol: symbol.to_owned() })
    }
}

/// A text that is not of the form `uprobe:BINARY:SYMBOL`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no function; write uprobe:BINARY:SYMBOL, as in uprobe:redis-server:call")]
pub struct InvalidStep {
    /// The text.
    pub text: String,
}

/// The agent socket: where it is, and what the libraries that connect are asked to record.
#[derive(Clone, Debug)]
pub struct SocketConfig {
    /// The socket's path.
    pub socket: PathBuf,
    /// Its permissions, which decide what processes may connect.
    pub mode: u32,
    /// The number of its group, if not the recorder's own.
    pub group: Option<u32>,
    /// What the libraries record while there is no incident.
    pub settings: Settings,
    /// Whether the recording fails if the socket cannot be opened; otherwise only the note of the
    /// source says so.
    pub required: bool,
}

impl SocketConfig {
    /// At this path, for its owner alone, with the usual settings; the recording fails without it.
    pub fn usual(socket: PathBuf) -> SocketConfig {
        SocketConfig { socket, mode: 0o600, group: None, settings: Settings::USUAL, required: true }
    }
}

/// Where NCCL's RAS is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RasAddress {
    /// On this host, at the port that the NCCL_RAS_ADDR of a target names, else at NCCL's default
    /// port.
    #[default]
    Local,
    /// `HOST:PORT`.
    At(String),
}

impl FromStr for RasAddress {
    type Err = String;

    /// `HOST:PORT`, or an empty text for this host.
    fn from_str(text: &str) -> Result<RasAddress, String> {
        match text.rsplit_once(':') {
            None if text.is_empty() => Ok(RasAddress::Local),
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(RasAddress::At(text.to_owned()))
            }
            _ => Err("write HOST:PORT, as in localhost:28028".into()),
        }
    }
}

/// Where engines of language models say how their requests fare, and what was promised of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Addresses as `http://localhost:8000/metrics`.
    pub addresses: Vec<String>,
    /// How long what may take.
    pub promised: Vec<(Latency, Ns)>,
}

impl Metrics {
    /// Of engines at these addresses, if there are any.
    pub fn at(addresses: &[String], promised: &[(Latency, Ns)]) -> Option<Metrics> {
        let metrics = || Metrics { addresses: addresses.to_vec(), promised: promised.to_vec() };
        (!addresses.is_empty()).then(metrics)
    }
}

/// What to record.
#[derive(Clone, Debug)]
pub struct Config {
    /// Processes whose threads are recorded exactly.
    pub targets: Vec<Target>,
    /// How many wakers away from the targets' threads other threads are recorded exactly too.
    pub hops: u8,
    /// Ticks a second: how often aggregates are read and the ring is drained.
    pub hz: u32,
    /// The same while the ring is less than an eighth full at each tick, if that is less often.
    pub calm_hz: Option<u32>,
    /// Size of the ring between kernel and recorder; a power of two.
    pub ring_bytes: u32,
    /// Exact records of threads that one CPU may write in a second; it can save them up for as long. What goes beyond is
    /// left out and counted as dropped.
    pub cpu_records: u32,
    /// Functions of unmodified programs that are steps.
    pub steps: Vec<UprobeStep>,
    /// The shared-memory ring to which programs write the steps that they mark.
    pub wire: Option<PathBuf>,
    /// The socket at which in-process libraries connect.
    pub agent_socket: Option<SocketConfig>,
    /// Where NCCL's RAS is asked during an incident; `None` to leave it alone.
    pub nccl_ras: Option<RasAddress>,
    /// Engines that are asked how their requests fare, all the time.
    pub metrics: Option<Metrics>,
    /// Tracepoints that become marks with their fields, besides those of GPU drivers; `None` for none of these either.
    pub kernel_events: Option<Vec<EventPattern>>,
    /// Whether the context switches of NVIDIA GPUs are recorded.
    pub gpu_switches: bool,
    /// Probes switched off, by name.
    pub off: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            targets: Vec::new(),
            hops: 2,
            hz: 100,
            calm_hz: None,
            // 100,000 events of 80 bytes in a second fill 8 MB; a tick is a hundredth of one.
            ring_bytes: 4 << 20,
            // A workload with some thousand switches a second stays far below; most of one that does nothing but
            // switch is left out, so that watching does not slow it down.
            cpu_records: 20_000,
            steps: Vec::new(),
            wire: None,
            agent_socket: None,
            nccl_ras: None,
            metrics: None,
            kernel_events: None,
            gpu_switches: false,
            off: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_by_binary_and_symbol() {
        let step: UprobeStep = "uprobe:/usr/bin/redis-server:call".parse().unwrap();
        assert_eq!((step.binary, step.symbol), ("/usr/bin/redis-server".into(), "call".into()));
        for bad in ["redis-server:call", "uprobe:call", "uprobe::call", "uprobe:x:", ""] {
            let error = bad.parse::<UprobeStep>().unwrap_err().to_string();
            assert!(error.contains("write uprobe:BINARY:SYMBOL"), "{error}");
        }
    }

    #[test]
    fn an_address_of_ras_has_a_host_and_a_port() {
        assert_eq!("h:1".parse(), Ok(RasAddress::At("h:1".into())));
        assert_eq!("".parse(), Ok(RasAddress::Local));
        for bad in ["h", ":1", "h:", "h:x", "h:99999"] {
            assert!(bad.parse::<RasAddress>().is_err(), "{bad}");
        }
    }
}
