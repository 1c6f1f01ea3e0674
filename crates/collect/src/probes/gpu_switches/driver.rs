//! GPUs whose context switches NVIDIA's driver is asked to log.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;

use super::ring::{HEADER, RECORD, RECORDS, Ring, Switch};
use crate::sys::{self, Client, Command, Handle, Mapped, Refused, put, word};

const CONTROL: &str = "/dev/nvidiactl";
const VERSION: &str = "/proc/driver/nvidia/version";
/// The first driver whose structures are those that [`sys::Client`] knows.
const SINCE: u32 = 535;
/// GPUs of a host: `NV0000_CTRL_GPU_MAX_ATTACHED_GPUS`.
const GPUS: usize = 32;
/// Readings of a GPU's clock of which the quickest counts.
const READINGS: usize = 8;

/// Why the log is not to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoLog {
    /// There is no such driver.
    #[error("NVIDIA's driver is not here: {file}: {error}")]
    NoDriver {
        /// Which file of it.
        file: &'static str,
        /// Why it cannot be used.
        error: io::Error,
    },
    /// Its structures are others.
    #[error("NVIDIA's driver is {0}; the log is read of versions from {SINCE} on")]
    Version(String),
    /// No GPU.
    #[error("NVIDIA's driver knows no GPU that can be opened")]
    NoGpu,
    /// It refuses.
    #[error("{what}: {why}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The answer.
        why: Refused,
    },
    /// It does not log, and says why.
    #[error("NVIDIA's driver does not log context switches: {0}")]
    NotLogged(String),
}

/// Adds what was asked for to a refusal.
fn at(what: &'static str) -> impl FnOnce(Refused) -> NoLog {
    move |why| NoLog::Refused { what, why }
}

/// A GPU whose context switches are logged.
#[derive(Debug)]
pub(super) struct Logged {
    /// As NVML calls it.
    pub uuid: String,
    // In this order: what is mapped goes before the client whose memory it is.
    header: Mapped,
    records: Mapped,
    ring: Ring,
    client: Client,
    subdevice: Handle,
    buffer: Handle,
    /// A GPU is in use as long as its device is open: its driver does not put it to sleep.
    _devices: Arc<Vec<File>>,
}

/// What the log of a GPU says, and how its clock stands to ours.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// In the order in which they happened.
    pub switches: Vec<Switch>,
    /// Records that were lost so far.
    pub lost: u64,
    /// What is to be added to the GPU's clock for CLOCK_MONOTONIC, and how far that may be off, ns.
    pub clock: Option<(i64, i64)>,
}

/// All GPUs of this host.
///
/// # Errors
/// There is none, or one whose driver does not log.
pub(super) fn all() -> Result<Vec<Logged>, NoLog> {
    check_version()?;
    let client = Client::new(control()?).map_err(at("become a client of it"))?;
    let devices = (0..GPUS).filter_map(|number| open(&format!("/dev/nvidia{number}")).ok());
    let devices: Arc<Vec<File>> = Arc::new(devices.collect());
    let mut ids = [0; 4 * GPUS];
    client.ask(0, Command::AttachedGpus, &mut ids).map_err(at("ask for its GPUs"))?;
    // NV0000_CTRL_GPU_INVALID_ID ends the list.
    let ids = ids.as_chunks().0.iter().map(|id| u32::from_ne_bytes(*id));
    let all: Result<Vec<Logged>, NoLog> = ids
        .take_while(|id| *id != u32::MAX)
        .map(|id| {
            Logged::new(id, Client::new(control()?).map_err(at("become a client of it"))?, &devices)
        })
        .collect();
    all.and_then(|all| if all.is_empty() { Err(NoLog::NoGpu) } else { Ok(all) })
}

fn open(path: &str) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn control() -> Result<File, NoLog> {
    open(CONTROL).map_err(|error| NoLog::NoDriver { file: CONTROL, error })
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build`.
fn check_version() -> Result<(), NoLog> {
    let text = fs::read_to_string(VERSION);
    let text = text.map_err(|error| NoLog::NoDriver { file: VERSION, error })?;
    let mut words = text.split_whitespace();
    let version =
        words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
    let version = version.unwrap_or("of no version that is told");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major >= SINCE => Ok(()),
        _ => Err(NoLog::Version(version.to_owned())),
    }
}

impl Logged {
    fn new(id: u32, client: Client, devices: &Arc<Vec<File>>) -> Result<Logged, NoLog> {
        // NV0000_CTRL_GPU_GET_UUID_FROM_GPU_ID_PARAMS; as text is 0.
        let mut uuid = [0; 268];
        put(&mut uuid, 0, id);
        client.ask(0, Command::GpuUuid, &mut uuid).map_err(at("ask for a GPU's UUID"))?;
        let text = uuid[8..264].split(|byte| *byte == 0).next().unwrap_or_default();
        let uuid = String::from_utf8_lossy(text).into_owned();
        // NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS: the instances of device and subdevice.
        let mut info = [0; 32];
        put(&mut info, 0, id);
        client.ask(0, Command::GpuInfo, &mut info).map_err(at("ask which device a GPU is"))?;
        let subdevice = client.device(word(&info, 8), word(&info, 12));
        let subdevice = subdevice.map_err(at("open a GPU"))?;
        let bytes = u64::from(RECORD * RECORDS);
        let made = "make a log's memory";
        let header = client.memory(HEADER).map_err(at(made))?;
        let records = client.memory(bytes).map_err(at(made))?;
        let mapped = |memory, bytes| -> Result<Mapped, NoLog> {
            client.map(memory, bytes, &control()?).map_err(at("map a log's memory"))
        };
        let (of_header, of_records) = (mapped(header, HEADER)?, mapped(records, bytes)?);
        let buffer = client.event_buffer(subdevice, header, records, (RECORD, RECORDS));
        let buffer = buffer.map_err(at("make a log"))?;
        bind(&client, subdevice, buffer)?;
        // NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS: on, and a full ring keeps what is in it.
        let mut enable = [1, 0, 0, 0, 1, 0, 0, 0];
        client.ask(buffer, Command::Enable, &mut enable).map_err(at("start a log"))?;
        Ok(Logged {
            uuid,
            client,
            subdevice,
            buffer,
            header: of_header,
            records: of_records,
            ring: Ring::default(),
            _devices: Arc::clone(devices),
        })
    }

    /// What the log says since the last call, and how the clocks stand if that `is_asked`. The driver writes the log 30 times
    /// a second.
    ///
    /// # Errors
    /// The log is damaged, or the driver takes no more calls.
    pub fn read(&mut self, is_asked: bool) -> Result<Said, NoLog> {
        let damaged = || NoLog::NotLogged("its log says what cannot be".into());
        let switches = self.ring.read(&self.header, &self.records).ok_or_else(damaged)?;
        if !switches.is_empty() {
            // NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS.
            let mut taken = [0; 8];
            put(&mut taken, 0, self.ring.next);
            self.client.ask(self.buffer, Command::Taken, &mut taken).map_err(at("go on"))?;
        }
        let clock = if is_asked { self.clock() } else { None };
        Ok(Said { switches, lost: self.ring.lost, clock })
    }

    /// How the GPU's clock stands to CLOCK_MONOTONIC, by the reading that took least.
    fn clock(&self) -> Option<(i64, i64)> {
        let mut best: Option<(i64, i64)> = None;
        for _ in 0..READINGS {
            // NV2080_CTRL_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO_PARAMS: one sample, with the system's time, which every
            // driver knows and nobody here needs.
            let mut params = [0; 264];
            (params[0], params[1]) = (1, 1);
            let before = sys::monotonic();
            self.client.ask(self.subdevice, Command::Time, &mut params).ok()?;
            let after = sys::monotonic();
            let gpu = params[16..].first_chunk().map(|eight| i64::from_ne_bytes(*eight))?;
            let half = after.saturating_sub(before).0 / 2;
            if best.is_none_or(|(_, error)| half < error) {
                best = Some((before.0.saturating_add(half).saturating_sub(gpu), half));
            }
        }
        best
    }
}

/// Has the context switches of a GPU written to a buffer, of all users' processes.
fn bind(client: &Client, subdevice: Handle, buffer: Handle) -> Result<(), NoLog> {
    // NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS with NV2080_CTRL_GR_FECS_BIND_EVTBUF_LOD_SIMPLE.
    let mut params = [0; 24];
    for (at, word) in [(0, buffer), (4, RECORD), (8, 1), (16, 1)] {
        put(&mut params, at, word);
    }
    let answer = client.ask(subdevice, Command::BindSwitches, &mut params);
    // NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*.
    let why = match (&answer, word(&params, 20)) {
        (Ok(()), _) => return Ok(()),
        (_, 1) => "the GPU is too old",
        (_, 2) => "not on this GPU",
        (_, 3) => "not for this user or partition of the GPU",
        (_, 4) => "only for administrators, on a host of virtual GPUs or in a virtual machine",
        (_, 5) => "the virtual GPU was not given the right to be profiled",
        (Err(_), _) => return answer.map_err(at("have context switches logged")),
    };
    Err(NoLog::NotLogged(why.into()))
}
