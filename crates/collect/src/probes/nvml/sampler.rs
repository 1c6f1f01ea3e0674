//! The thread that calls NVML, so that the recorder never waits for it.
//!
//! A call takes from microseconds to milliseconds, and when a GPU has fallen off the bus it may not
//! return at all. So the recorder only reads from a bounded channel; messages that do not fit are
//! counted, and a thread that hangs is left behind.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use gpuwhy_schema::Ns;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::metrics::Pace;
use super::unit::{Clocks, Lost, Observed, Reading, SampledUnit, Unit, UnitKind};
use crate::sys;

/// Between rounds. Utilisation is renewed every 167 ms and a clock is read in the moment, so that
/// faster polling would cost more and show nothing new.
const ROUND: Duration = Duration::from_millis(100);

/// After this time a GPU that does not answer is asked again.
const RETRY: Ns = Ns::secs(5);

/// Messages in the channel: 8 GPUs for ten seconds.
const CHANNEL: usize = 1024;

/// A message of the sampler.
#[derive(Debug)]
pub(super) enum Message {
    /// NVML has started, with its driver's version and the number of GPUs.
    Started { driver: String, gpus: u32 },
    /// NVML cannot be used, and why.
    Unavailable(String),
    /// GPUs that have not answered since the beginning, by index, and why.
    Unresponsive(Vec<(u32, String)>),
    /// Readings of one unit.
    Readings(Arc<Unit>, Vec<Reading>),
}

/// The running thread, as others see it.
pub(super) struct Sampler {
    messages: Receiver<Message>,
    shared: Arc<Shared>,
    thread: Thread,
}

/// What both sides use.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    dropped: AtomicU64,
    /// Index of the GPU that is being asked.
    current: AtomicU32,
}

impl Sampler {
    /// Starts to sample with the first of these libraries that loads.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start(libraries: Vec<OsString>) -> io::Result<Sampler> {
        Sampler::spawn(move |sender| run(&libraries, sender))
    }

    /// A sampler that sends what a test wants.
    #[cfg(test)]
    pub fn simulated(send: impl FnOnce(&dyn Fn(Message)) + Send + 'static) -> io::Result<Sampler> {
        Sampler::spawn(move |sender| send(&|message| sender.send(message)))
    }

    fn spawn(run: impl FnOnce(&Sender) + Send + 'static) -> io::Result<Sampler> {
        let (channel, messages) = sync_channel(CHANNEL);
        let shared = Arc::new(Shared::default());
        let sender = Sender { channel, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("gpuwhy-nvml".into());
        let handle = thread.spawn(move || run(&sender))?;
        Ok(Sampler { messages, shared, thread: handle.thread().clone() })
    }

    /// The next message, without waiting; `None` if there is none now.
    pub fn next(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// The next message, within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Message> {
        self.messages.recv_timeout(timeout).ok()
    }

    /// Readings that did not fit into the channel.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// The index of the GPU that was asked last.
    pub fn current(&self) -> u32 {
        self.shared.current.load(Ordering::Relaxed)
    }

    /// Has the thread take a last round and end, and hands over its messages until then, for `timeout`
    /// at most: a thread that hangs in a call is left behind.
    pub fn stop(&self, timeout: Duration, mut each: impl FnMut(Message)) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        let end = Instant::now() + timeout;
        loop {
            match self.messages.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(message) => each(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// The thread's end of the channel.
pub(super) struct Sender {
    channel: SyncSender<Message>,
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends a message, or counts it if it does not fit.
    pub fn send(&self, message: Message) {
        let readings = match &message {
            Message::Readings(_, readings) => readings.len() as u64,
            _ => 1,
        };
        if self.channel.try_send(message).is_err() {
            self.shared.dropped.fetch_add(readings, Ordering::Relaxed);
        }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    fn set_current(&self, index: u32) {
        self.shared.current.store(index, Ordering::Relaxed);
    }
}

/// NVML by the first of these libraries that loads; otherwise why the first one did not.
///
/// # Errors
/// None of them loads or answers.
pub(crate) fn open(libraries: &[OsString]) -> Result<Nvml, NvmlError> {
    let mut first = None;
    for library in libraries {
        match Nvml::builder().lib_path(library).init() {
            Ok(nvml) => return Ok(nvml),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or(NvmlError::LibraryNotFound))
}

fn run(libraries: &[OsString], sender: &Sender) {
    // The driver's library is code of others, and needs none of the recorder's rights.
    sys::drop_capabilities();
    let nvml = match open(libraries) {
        Ok(nvml) => nvml,
        Err(error) => return sender.send(Message::Unavailable(error.to_string())),
    };
    let driver = nvml.sys_driver_version().unwrap_or_else(|_| "of unknown version".into());
    sender.send(Message::Started { driver, gpus: nvml.device_count().unwrap_or(0) });
    let began = sys::monotonic();
    let mut units = Units { nvml: &nvml, began, sampled: Vec::new(), unresponsive: Vec::new() };
    let mut next = Instant::now();
    for round in 0_u64.. {
        // Read before the round, so that one more is taken after the request to stop.
        let last = sender.stopped();
        if round % 100 == 0 {
            units.discover(sender);
        }
        let is_due = |pace| match pace {
            Pace::Tenth => true,
            Pace::Second => round % 10 == 0,
            Pace::Rare => round % 100 == 0,
        };
        units.round(&is_due, sender);
        if last {
            return;
        }
        next = (next + ROUND).max(Instant::now());
        while !sender.stopped() {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// All units of this host.
struct Units<'n> {
    nvml: &'n Nvml,
    began: Ns,
    sampled: Vec<SampledUnit<'n>>,
    /// GPUs that have never answered, and why.
    unresponsive: Vec<(u32, String)>,
}

impl<'n> Units<'n> {
    /// Finds the units: GPUs come and go, are split and joined.
    fn discover(&mut self, sender: &Sender) {
        let mut unresponsive = Vec::new();
        let mut found: Vec<String> = Vec::new();
        for index in 0..self.nvml.device_count().unwrap_or(0) {
            sender.set_current(index);
            if let Err(error) = self.discover_gpu(index, &mut found) {
                // One that was known is lost, and its readings say so.
                let known = |u: &Unit| u.kind == UnitKind::Gpu && u.index == index;
                if !self.sampled.iter().any(|s| known(&s.unit)) {
                    unresponsive.push((index, error.to_string()));
                }
            }
        }
        let now = sys::monotonic();
        self.sampled.retain(|s| {
            // A GPU that has disappeared has failed, and may return.
            let stays = s.unit.kind == UnitKind::Gpu || found.contains(&s.unit.uuid);
            if !stays {
                let ended = Reading { before: now, after: now, observed: Observed::Ended };
                sender.send(Message::Readings(Arc::clone(&s.unit), vec![ended]));
            }
            stays
        });
        if unresponsive != self.unresponsive {
            self.unresponsive.clone_from(&unresponsive);
            sender.send(Message::Unresponsive(unresponsive));
        }
    }

    /// Adds a GPU and its slices, and their UUIDs to `found`.
    fn discover_gpu(&mut self, index: u32, found: &mut Vec<String>) -> Result<(), NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let uuid = device.uuid()?;
        let split = device.mig_mode().is_ok_and(|mode| mode.current == 1);
        let mode = device.virtualization_mode().ok();
        let model = device.name().unwrap_or_else(|_| "GPU".into());
        let suffix = match mode {
            _ if split => ", split",
            Some(GpuVirtualizationMode::Vgpu) => ", virtual",
            Some(GpuVirtualizationMode::PassThrough) => ", passed through",
            Some(GpuVirtualizationMode::HostVgpu) => ", hosts virtual GPUs",
            _ => "",
        };
        let slices = if split { device.mig_device_count().unwrap_or(0) } else { 0 };
        for i in 0..slices {
            let Ok(slice) = device.mig_device_by_index(i) else { continue };
            let Ok(slice_uuid) = slice.uuid() else { continue };
            let model = slice.name().unwrap_or_else(|_| "slice".into());
            found.push(slice_uuid.clone());
            let unit = Unit {
                kind: UnitKind::Slice,
                uuid: slice_uuid,
                name: format!("gpu {index} slice {i}: {model}"),
                index: i,
                parent: Some(uuid.clone()),
            };
            self.add(unit, slice, false, false);
        }
        found.push(uuid.clone());
        let unit = Unit {
            kind: UnitKind::Gpu,
            uuid,
            name: format!("gpu {index}: {model}{suffix}"),
            index,
            parent: None,
        };
        let hosts_virtual = mode == Some(GpuVirtualizationMode::HostVgpu);
        self.add(unit, device, split, hosts_virtual);
        Ok(())
    }

    /// Adds a unit, or updates what is known of it.
    fn add(&mut self, unit: Unit, device: Device<'n>, split: bool, hosts_virtual: bool) {
        match self.sampled.iter_mut().find(|s| s.unit.uuid == unit.uuid) {
            Some(known) => known.update(unit, split, hosts_virtual),
            None => {
                let fresh = SampledUnit::new(self.nvml, unit, device, split, hosts_virtual);
                self.sampled.push(fresh);
            }
        }
    }

    fn round(&mut self, is_due: &dyn Fn(Pace) -> bool, sender: &Sender) {
        let clocks = Clocks::read();
        for sampled in &mut self.sampled {
            sender.set_current(sampled.unit.index);
            let now = sys::monotonic();
            let mut readings = Vec::new();
            if let Some(retry) = sampled.lost {
                if now < retry || !sampled.has_returned(self.nvml) {
                    if now >= retry {
                        sampled.lost = Some(now + RETRY);
                    }
                    continue;
                }
                let after = sys::monotonic();
                readings.push(Reading { before: now, after, observed: Observed::Returned });
            }
            let (from, mut virtual_gpus) = (self.began, Vec::new());
            let read = sampled.read(is_due, clocks, from, &mut readings, &mut virtual_gpus);
            for (unit, reading) in virtual_gpus {
                sender.send(Message::Readings(Arc::new(unit), vec![reading]));
            }
            if let Err(Lost(why)) = read {
                let after = sys::monotonic();
                // The event that says why (Xid 79) arrives in the same moment.
                sampled.read_events(&mut readings);
                sampled.lost = Some(after + RETRY);
                sampled.forget_events();
                readings.push(Reading { before: now, after, observed: Observed::Lost(why) });
            }
            if !readings.is_empty() {
                sender.send(Message::Readings(Arc::clone(&sampled.unit), readings));
            }
        }
    }
}
