//! The thread that talks to NVML, so that nobody else waits for it.
//!
//! A call takes from microseconds to milliseconds, and where a GPU falls off the bus it may not
//! return at all. So whoever records only looks into a bounded channel; what does not fit is
//! counted, and a thread that hangs is left behind.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::Thread;
use std::time::{Duration, Instant};

use gpuwhy_schema::{Ns, names};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::readings::{METRICS, Pace, Way, Which, which};
use crate::kernel;

/// Between rounds. Utilisation is new every 167 ms and a clock is looked at in the moment, so that
/// faster polling would cost more and show nothing.
const ROUND: Duration = Duration::from_millis(100);

/// A GPU that does not answer is asked again after so long.
const AGAIN: Ns = Ns::secs(5);

/// Messages on the way: 8 GPUs for ten seconds.
const ON_THE_WAY: usize = 1024;

/// Events taken from one set in a round; the rest waits for the next.
const EVENTS: usize = 16;

/// A reading that fails so often in a row, though the GPU answers otherwise, is left out.
const PATIENCE: u8 = 20;

/// A GPU, a part of one, or a virtual one, as NVML tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// What it is.
    pub kind: UnitKind,
    /// NVML's own name for it, which stays the same.
    pub uuid: String,
    /// For people.
    pub name: String,
    /// Its index among its kind.
    pub index: u32,
    /// The GPU that it is a part of, by UUID.
    pub parent: Option<String>,
}

/// What a [`Unit`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// A GPU, or what a virtual machine takes for one.
    Gpu,
    /// A slice of a GPU (MIG).
    Slice,
    /// A GPU as a virtual machine of this host has it.
    Virtual,
}

/// What the sampler tells.
#[derive(Debug)]
pub(super) enum Told {
    /// NVML answers, and this is its driver and how many GPUs it knows of.
    Began { driver: String, gpus: u32 },
    /// NVML cannot be used, and why.
    Refused(String),
    /// GPUs of which nothing is known but that they do not answer, and why.
    Silent(Vec<(u32, String)>),
    /// What was read of one unit.
    Read(Arc<Unit>, Vec<Reading>),
}

/// What one call brought, and when.
#[derive(Debug, PartialEq)]
pub(super) struct Reading {
    /// Just before the call.
    pub before: Ns,
    /// Just after it.
    pub after: Ns,
    /// What it brought.
    pub what: What,
}

#[derive(Debug, PartialEq)]
pub(super) enum What {
    /// Values of the moment.
    Values(Vec<(Which, f64)>),
    /// Values that the driver had kept, with their own times.
    Kept(Which, Vec<(Ns, f64)>),
    /// How busy processes kept the multiprocessors: pid, time, percent.
    Busy(Vec<(u32, Ns, f64)>),
    /// How much memory processes have, by pid, in bytes: all that have some.
    Memory(Vec<(u32, u64)>),
    /// Something happened.
    Mark(&'static str, Option<f64>),
    /// The unit does not answer any more, and why.
    Lost(String),
    /// It answers again.
    Back,
    /// There is no such unit any more, and nothing is wrong: slices are made and joined.
    Ended,
}

/// The running thread, seen from outside.
pub(super) struct Sampler {
    told: Receiver<Told>,
    shared: Arc<Shared>,
    thread: Thread,
}

/// What both sides look at.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    dropped: AtomicU64,
    /// Index of the GPU that is being asked.
    asked: AtomicU32,
}

impl Sampler {
    /// Starts to sample with the first of these libraries that loads.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn begin(libraries: Vec<OsString>) -> io::Result<Sampler> {
        Sampler::spawn(move |teller| run(&libraries, teller))
    }

    /// Has something else do the telling.
    #[cfg(test)]
    pub fn run(tells: impl FnOnce(&dyn Fn(Told)) + Send + 'static) -> io::Result<Sampler> {
        Sampler::spawn(move |teller| tells(&|told| teller.tell(told)))
    }

    fn spawn(run: impl FnOnce(&Teller) + Send + 'static) -> io::Result<Sampler> {
        let (tell, told) = sync_channel(ON_THE_WAY);
        let shared = Arc::new(Shared::default());
        let teller = Teller { tell, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("gpuwhy-nvml".into());
        let handle = thread.spawn(move || run(&teller))?;
        Ok(Sampler { told, shared, thread: handle.thread().clone() })
    }

    /// What was told since, without waiting; `None` for nothing more now.
    pub fn next(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }

    /// What is told next, within `patience`.
    pub fn wait(&self, patience: Duration) -> Option<Told> {
        self.told.recv_timeout(patience).ok()
    }

    /// Readings that did not fit into the channel.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// The index of the GPU that was asked last.
    pub fn asked(&self) -> u32 {
        self.shared.asked.load(Ordering::Relaxed)
    }

    /// Has it take a last round and end, and hands over what it tells until then, for `patience` at
    /// most: a thread that hangs in a call is left behind.
    pub fn stop(&self, patience: Duration, mut each: impl FnMut(Told)) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.unpark();
        let end = Instant::now() + patience;
        loop {
            match self.told.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(told) => each(told),
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
struct Teller {
    tell: SyncSender<Told>,
    shared: Arc<Shared>,
}

impl Teller {
    fn tell(&self, told: Told) {
        let readings = match &told {
            Told::Read(_, readings) => readings.len() as u64,
            _ => 1,
        };
        if self.tell.try_send(told).is_err() {
            self.shared.dropped.fetch_add(readings, Ordering::Relaxed);
        }
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
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

fn run(libraries: &[OsString], teller: &Teller) {
    let nvml = match open(libraries) {
        Ok(nvml) => nvml,
        Err(error) => return teller.tell(Told::Refused(error.to_string())),
    };
    let driver = nvml.sys_driver_version().unwrap_or_else(|_| "of unknown version".into());
    teller.tell(Told::Began { driver, gpus: nvml.device_count().unwrap_or(0) });
    let began = kernel::monotonic();
    let mut house = House { nvml: &nvml, began, units: Vec::new(), silent: Vec::new() };
    let mut next = Instant::now();
    for round in 0_u64.. {
        // Asked before the round, so that one more is taken after the word to stop.
        let last = teller.stopped();
        if round % 100 == 0 {
            house.look(teller);
        }
        let due = |pace| match pace {
            Pace::Tenth => true,
            Pace::Second => round % 10 == 0,
            Pace::Rare => round % 100 == 0,
        };
        house.round(&due, teller);
        if last {
            return;
        }
        next = (next + ROUND).max(Instant::now());
        while !teller.stopped() {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
    }
}

/// All units of this host.
struct House<'n> {
    nvml: &'n Nvml,
    began: Ns,
    units: Vec<Sampled<'n>>,
    silent: Vec<(u32, String)>,
}

/// One unit, and how far its readings have come.
struct Sampled<'n> {
    unit: Arc<Unit>,
    device: Device<'n>,
    /// When to ask again, of one that does not answer.
    lost: Option<Ns>,
    /// Whether what processes do is told by its slices.
    split: bool,
    hosts_virtual: bool,
    states: Vec<State>,
    /// The last sample of processes that was seen, on NVML's clock.
    busy_seen: u64,
    without: Without,
    watches: Vec<Watch<'n>>,
}

/// How far one reading has come.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Which of its ways; as many as there are means that the unit does not offer it.
    way: u8,
    /// Whether this way has brought something already.
    answers: bool,
    failures: u8,
    /// When the buffer brought something last.
    fed: Option<Ns>,
    /// The last sample of the buffer that was seen, on NVML's clock.
    seen: u64,
    /// The last value of a total of 32 bits, and what has run over.
    last: u32,
    over: u64,
}

impl State {
    fn next_way(&mut self) {
        *self = State { way: self.way + 1, ..State::default() };
    }
}

/// Lists that this unit does not offer.
#[derive(Clone, Copy, Debug, Default)]
struct Without {
    busy: bool,
    compute: bool,
    graphics: bool,
}

/// Events that are waited for. A set for each kind that the wrapper has no name for: it keeps only
/// the names that it knows, so that the kind is told by the set.
struct Watch<'n> {
    set: EventSet<'n>,
    kind: Option<&'static str>,
}

/// Kinds of events by their bit in NVML, where the wrapper has no name for them.
const UNNAMED_EVENTS: [(u64, &str); 5] = [
    (0x0800, "row remap failed"),
    (0x1000, "poison"),
    (0x2000, "fatal poison"),
    (0x4000, "gpu unavailable"),
    (0x8000, "gpu recovery action"),
];

/// What an error of one call means.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Means {
    /// Nothing is there now.
    Nothing,
    /// The unit does not offer this.
    NotOffered,
    /// The unit is gone.
    Gone,
    /// Who knows.
    Trouble,
}

fn meaning(error: &NvmlError) -> Means {
    match error {
        NvmlError::NotFound | NvmlError::NoData | NvmlError::Timeout => Means::Nothing,
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::InvalidArg
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(_) => Means::NotOffered,
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::IrqIssue
        | NvmlError::DriverNotLoaded
        | NvmlError::Uninitialized => Means::Gone,
        _ => Means::Trouble,
    }
}

/// NVML's clock, CLOCK_REALTIME in us, beside ours.
#[derive(Clone, Copy)]
struct Clocks {
    /// What to take from the wall clock to get the trace clock.
    ahead: i64,
}

impl Clocks {
    fn read() -> Clocks {
        let before = kernel::monotonic();
        let wall = kernel::wall();
        let after = kernel::monotonic();
        Clocks { ahead: wall.saturating_sub(before.0.saturating_add((after - before).0 / 2)) }
    }

    fn trace(self, us: u64) -> Ns {
        let wall = i64::try_from(us).unwrap_or(i64::MAX).saturating_mul(1000);
        Ns(wall.saturating_sub(self.ahead))
    }

    /// From where on samples are wanted, after those up to `seen`. When the wall clock was set back
    /// that lies ahead, and all that there is is wanted again.
    fn since(self, seen: u64) -> u64 {
        let ahead = self.trace(seen).saturating_sub(kernel::monotonic());
        if ahead > Ns::secs(1) { 0 } else { seen }
    }
}

/// A unit that is lost, and why.
struct Lost(String);

impl<'n> House<'n> {
    /// Who is there: GPUs come and go, are split and joined.
    fn look(&mut self, teller: &Teller) {
        let mut silent = Vec::new();
        let mut found: Vec<String> = Vec::new();
        for index in 0..self.nvml.device_count().unwrap_or(0) {
            teller.shared.asked.store(index, Ordering::Relaxed);
            let device = self.nvml.device_by_index(index);
            let (device, uuid) = match device.and_then(|d| Ok((d.uuid()?, d))) {
                Ok((uuid, device)) => (device, uuid),
                Err(error) => {
                    // One that was known is lost, and its readings say so.
                    let known = |u: &Unit| u.kind == UnitKind::Gpu && u.index == index;
                    if !self.units.iter().any(|s| known(&s.unit)) {
                        silent.push((index, error.to_string()));
                    }
                    continue;
                }
            };
            let split = device.mig_mode().is_ok_and(|mode| mode.current == 1);
            let mode = device.virtualization_mode().ok();
            let what = device.name().unwrap_or_else(|_| "GPU".into());
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
                let Ok(own) = slice.uuid() else { continue };
                let what = slice.name().unwrap_or_else(|_| "slice".into());
                found.push(own.clone());
                let unit = Unit {
                    kind: UnitKind::Slice,
                    uuid: own,
                    name: format!("gpu {index} slice {i}: {what}"),
                    index: i,
                    parent: Some(uuid.clone()),
                };
                self.put(unit, slice, false, false);
            }
            found.push(uuid.clone());
            let unit = Unit {
                kind: UnitKind::Gpu,
                uuid,
                name: format!("gpu {index}: {what}{suffix}"),
                index,
                parent: None,
            };
            self.put(unit, device, split, mode == Some(GpuVirtualizationMode::HostVgpu));
        }
        let now = kernel::monotonic();
        self.units.retain(|s| {
            // A GPU that is gone is an accident, and may come back.
            let stays = s.unit.kind == UnitKind::Gpu || found.contains(&s.unit.uuid);
            if !stays {
                let ended = Reading { before: now, after: now, what: What::Ended };
                teller.tell(Told::Read(Arc::clone(&s.unit), vec![ended]));
            }
            stays
        });
        if silent != self.silent {
            self.silent.clone_from(&silent);
            teller.tell(Told::Silent(silent));
        }
    }

    fn put(&mut self, unit: Unit, device: Device<'n>, split: bool, hosts_virtual: bool) {
        let known = self.units.iter_mut().find(|s| s.unit.uuid == unit.uuid);
        if let Some(known) = known {
            if *known.unit != unit {
                known.unit = Arc::new(unit);
            }
            known.split = split;
            known.hosts_virtual = hosts_virtual;
            return;
        }
        let watches = watches(self.nvml, &device, unit.kind);
        self.units.push(Sampled {
            unit: Arc::new(unit),
            device,
            lost: None,
            split,
            hosts_virtual,
            states: vec![State::default(); METRICS.len()],
            busy_seen: 0,
            without: Without::default(),
            watches,
        });
    }

    fn round(&mut self, due: &dyn Fn(Pace) -> bool, teller: &Teller) {
        let clocks = Clocks::read();
        for sampled in &mut self.units {
            teller.shared.asked.store(sampled.unit.index, Ordering::Relaxed);
            let now = kernel::monotonic();
            let mut readings = Vec::new();
            if let Some(again) = sampled.lost {
                if now < again || !sampled.returns(self.nvml) {
                    if now >= again {
                        sampled.lost = Some(now + AGAIN);
                    }
                    continue;
                }
                let after = kernel::monotonic();
                readings.push(Reading { before: now, after, what: What::Back });
            }
            let from = self.began;
            if let Err(Lost(why)) = sampled.read(due, clocks, from, &mut readings, teller) {
                let after = kernel::monotonic();
                // The event that says why (Xid 79) comes in the same moment.
                sampled.events(&mut readings);
                sampled.lost = Some(after + AGAIN);
                sampled.watches.clear();
                readings.push(Reading { before: now, after, what: What::Lost(why) });
            }
            if !readings.is_empty() {
                teller.tell(Told::Read(Arc::clone(&sampled.unit), readings));
            }
        }
    }
}

impl<'n> Sampled<'n> {
    /// Whether it answers again; then everything begins anew but what it does not offer.
    fn returns(&mut self, nvml: &'n Nvml) -> bool {
        let Ok(device) = nvml.device_by_uuid(&*self.unit.uuid) else { return false };
        // A handle may be had of a GPU that is still gone.
        if device
            .clock_info(Clock::SM)
            .is_err_and(|error| matches!(meaning(&error), Means::Gone | Means::Trouble))
        {
            return false;
        }
        self.watches = watches(nvml, &device, self.unit.kind);
        self.device = device;
        self.lost = None;
        for state in &mut self.states {
            *state = State { way: state.way, ..State::default() };
        }
        self.busy_seen = 0;
        true
    }

    /// One round of readings.
    fn read(
        &mut self,
        due: &dyn Fn(Pace) -> bool,
        clocks: Clocks,
        from: Ns,
        out: &mut Vec<Reading>,
        teller: &Teller,
    ) -> Result<(), Lost> {
        self.events(out);
        let mut tally = Tally::default();
        let mut fields = Vec::new();
        for i in 0..METRICS.len() {
            let which = Which(i);
            if !due(which.metric().pace) || self.is_covered(which) {
                continue;
            }
            match self.way(which) {
                None => {}
                Some(Way::Field(id, factor)) => fields.push((which, id, factor)),
                Some(Way::Ask(ask)) => {
                    let (before, answer, after) = timed(|| ask(&self.device));
                    if let Some(value) = self.judge(which, answer, &mut tally)? {
                        let what = What::Values(vec![(which, value)]);
                        out.push(Reading { before, after, what });
                    }
                }
                Some(Way::Buffer(kind, factor)) => {
                    let seen = clocks.since(self.states[i].seen);
                    let (before, answer, after) = timed(|| self.device.samples(kind, seen));
                    let Some(samples) = self.judge(which, answer, &mut tally)? else {
                        self.starves(which, after, from);
                        continue;
                    };
                    let state = &mut self.states[i];
                    state.seen = samples.iter().fold(seen, |seen, s| seen.max(s.timestamp));
                    let values: Vec<(Ns, f64)> = samples
                        .into_iter()
                        .map(|s| (clocks.trace(s.timestamp).min(after), s.value))
                        .filter(|&(ts, _)| ts >= from)
                        .map(|(ts, value)| (ts, number(&value) * factor))
                        .collect();
                    if values.is_empty() {
                        self.starves(which, after, from);
                        continue;
                    }
                    state.fed = Some(after);
                    out.push(Reading { before, after, what: What::Kept(which, values) });
                }
            }
        }
        self.fields(&fields, out, &mut tally)?;
        if due(Pace::Second) && !self.split {
            self.processes(clocks, from, out, &mut tally)?;
        }
        if due(Pace::Second) && self.hosts_virtual {
            self.virtual_gpus(teller);
        }
        match tally {
            Tally { answered: 0, trouble: Some(why) } => Err(Lost(why)),
            _ => Ok(()),
        }
    }

    /// The way that this reading is come by, if the unit offers it.
    fn way(&self, which: Which) -> Option<Way> {
        which.metric().ways.get(usize::from(self.states[which.0].way)).copied()
    }

    /// Whether it only stands in for another, which is there.
    fn is_covered(&self, reading: Which) -> bool {
        let other = reading.metric().instead_of.and_then(which);
        other.is_some_and(|other| self.way(other).is_some())
    }

    /// What an answer says; errors count against the reading, or against the unit.
    fn judge<T>(
        &mut self,
        which: Which,
        answer: Result<T, NvmlError>,
        tally: &mut Tally,
    ) -> Result<Option<T>, Lost> {
        match answer {
            Ok(answer) => {
                tally.answered += 1;
                let state = &mut self.states[which.0];
                (state.failures, state.answers) = (0, true);
                Ok(Some(answer))
            }
            Err(error) => self.miss(which, &error, tally).map(|()| None),
        }
    }

    fn miss(&mut self, which: Which, error: &NvmlError, tally: &mut Tally) -> Result<(), Lost> {
        let state = &mut self.states[which.0];
        match meaning(error) {
            Means::Nothing => {}
            Means::Gone => return Err(Lost(error.to_string())),
            Means::NotOffered if !state.answers => state.next_way(),
            // What was offered and is not any more may be a handle that has become invalid.
            Means::NotOffered | Means::Trouble => {
                tally.trouble = Some(error.to_string());
                state.failures += 1;
                if state.failures >= PATIENCE {
                    state.next_way();
                }
            }
        }
        Ok(())
    }

    /// A buffer that never brings anything is given up for the next way, if there is one.
    fn starves(&mut self, which: Which, now: Ns, from: Ns) {
        let state = &mut self.states[which.0];
        let ways = which.metric().ways.len();
        let since = *state.fed.get_or_insert(from.max(now - Ns::secs(1)));
        if now - since > Ns::secs(2) && usize::from(state.way) + 1 < ways {
            state.next_way();
        }
    }

    /// All fields that are due, in one call.
    fn fields(
        &mut self,
        fields: &[(Which, u32, f64)],
        out: &mut Vec<Reading>,
        tally: &mut Tally,
    ) -> Result<(), Lost> {
        if fields.is_empty() {
            return Ok(());
        }
        let ids: Vec<FieldId> = fields.iter().map(|&(_, id, _)| FieldId(id)).collect();
        let (before, answers, after) = timed(|| self.device.field_values_for(&ids));
        let answers = match answers {
            Ok(answers) => answers,
            // It counts against each of them.
            Err(error) => {
                return fields.iter().try_for_each(|&(which, ..)| self.miss(which, &error, tally));
            }
        };
        let mut values = Vec::with_capacity(fields.len());
        for (&(which, _, factor), answer) in fields.iter().zip(answers) {
            let answer = answer.and_then(|sample| sample.value);
            let Some(value) = self.judge(which, answer, tally)? else { continue };
            let state = &mut self.states[which.0];
            let value = match value {
                SampleValue::U32(n) if which.metric().wraps => {
                    if n < state.last {
                        state.over += 1 << 32;
                    }
                    state.last = n;
                    (state.over + u64::from(n)) as f64
                }
                value => number(&value),
            };
            values.push((which, value * factor));
        }
        if !values.is_empty() {
            out.push(Reading { before, after, what: What::Values(values) });
        }
        Ok(())
    }

    /// What processes do on it.
    fn processes(
        &mut self,
        clocks: Clocks,
        from: Ns,
        out: &mut Vec<Reading>,
        tally: &mut Tally,
    ) -> Result<(), Lost> {
        if !self.without.busy {
            let seen = clocks.since(self.busy_seen);
            let (before, answer, after) = timed(|| self.device.process_utilization_stats(seen));
            let list = listed(answer, &mut self.without.busy, tally)?.unwrap_or_default();
            self.busy_seen = list.iter().fold(seen, |seen, s| seen.max(s.timestamp));
            let busy: Vec<(u32, Ns, f64)> = list
                .into_iter()
                // Entries that were never filled are a known fault of the call.
                .filter(|s| s.pid != 0 && s.sm_util <= 100)
                .map(|s| (s.pid, clocks.trace(s.timestamp).min(after), f64::from(s.sm_util)))
                .filter(|&(_, ts, _)| ts >= from)
                .collect();
            if !busy.is_empty() {
                out.push(Reading { before, after, what: What::Busy(busy) });
            }
        }
        let mut memory: HashMap<u32, u64> = HashMap::new();
        let begin = kernel::monotonic();
        let mut whole = false;
        for graphics in [false, true] {
            let without =
                if graphics { &mut self.without.graphics } else { &mut self.without.compute };
            if *without {
                continue;
            }
            let answer = match graphics {
                true => self.device.running_graphics_processes(),
                false => self.device.running_compute_processes(),
            };
            let Some(list) = listed(answer, without, tally)? else { return Ok(()) };
            whole = true;
            for process in list {
                // What both lists have is one and the same.
                let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { continue };
                let entry = memory.entry(process.pid).or_default();
                *entry = bytes.max(*entry);
            }
        }
        if whole {
            let mut list: Vec<(u32, u64)> = memory.into_iter().collect();
            list.sort_unstable();
            let after = kernel::monotonic();
            out.push(Reading { before: begin, after, what: What::Memory(list) });
        }
        Ok(())
    }

    /// The virtual machines' shares of it.
    fn virtual_gpus(&self, teller: &Teller) {
        let Ok(all) = self.device.active_vgpus() else { return };
        for (i, own) in (0_u32..).zip(&all) {
            let before = kernel::monotonic();
            let (Ok(uuid), Ok(used)) = (own.uuid(), own.fb_usage()) else { continue };
            let after = kernel::monotonic();
            let what = own.instance_type().and_then(|t| t.name());
            let unit = Unit {
                kind: UnitKind::Virtual,
                uuid,
                name: match what {
                    Ok(what) => format!("gpu {} virtual {i}: {what}", self.unit.index),
                    Err(_) => format!("gpu {} virtual {i}", self.unit.index),
                },
                index: i,
                parent: Some(self.unit.uuid.clone()),
            };
            let used = which(names::GPU_MEMORY_USED).map(|w| (w, used as f64));
            let what = What::Values(used.into_iter().collect());
            teller.tell(Told::Read(Arc::new(unit), vec![Reading { before, after, what }]));
        }
    }

    /// What has happened since the round before. Whether the unit is there is for its readings to
    /// say: a wait may tell of another's loss.
    fn events(&mut self, out: &mut Vec<Reading>) {
        self.watches.retain(|watch| {
            for _ in 0..EVENTS {
                let (before, answer, after) = timed(|| watch.set.wait(0));
                let error = match answer {
                    Ok(event) => {
                        let number = event.event_data.map(|xid| match xid {
                            XidError::Value(n) => n as f64,
                            // NVML's own number for it.
                            XidError::Unknown => 999.0,
                        });
                        let name = watch.kind.or_else(|| kind(event.event_type));
                        if let Some(name) = name {
                            let what = What::Mark(name, number);
                            out.push(Reading { before, after, what });
                        }
                        continue;
                    }
                    Err(error) => error,
                };
                return matches!(meaning(&error), Means::Nothing | Means::Gone);
            }
            true
        });
    }
}

/// How a round has gone.
#[derive(Debug, Default)]
struct Tally {
    answered: u32,
    trouble: Option<String>,
}

/// What a list says; `without` is set for one that the unit does not offer.
fn listed<T>(
    answer: Result<Vec<T>, NvmlError>,
    without: &mut bool,
    tally: &mut Tally,
) -> Result<Option<Vec<T>>, Lost> {
    match answer {
        Ok(list) => {
            tally.answered += 1;
            Ok(Some(list))
        }
        Err(error) => match meaning(&error) {
            Means::Nothing => Ok(Some(Vec::new())),
            Means::NotOffered => {
                *without = true;
                Ok(Some(Vec::new()))
            }
            Means::Gone => Err(Lost(error.to_string())),
            Means::Trouble => {
                tally.trouble = Some(error.to_string());
                Ok(None)
            }
        },
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (Ns, T, Ns) {
    let before = kernel::monotonic();
    let answer = call();
    (before, answer, kernel::monotonic())
}

fn number(value: &SampleValue) -> f64 {
    match *value {
        SampleValue::F64(n) => n,
        SampleValue::U32(n) => f64::from(n),
        SampleValue::U64(n) => n as f64,
        SampleValue::I64(n) => n as f64,
    }
}

/// What to call an event that the wrapper knows.
fn kind(event: EventTypes) -> Option<&'static str> {
    [
        (EventTypes::CRITICAL_XID_ERROR, "xid"),
        (EventTypes::DOUBLE_BIT_ECC_ERROR, "ecc uncorrected"),
        (EventTypes::SINGLE_BIT_ECC_ERROR, "ecc corrected"),
        (EventTypes::MIG_CONFIG_CHANGE, "slices changed"),
        (EventTypes::POWER_SOURCE_CHANGE, "power source changed"),
    ]
    .into_iter()
    .find_map(|(bit, name)| event.contains(bit).then_some(name))
}

/// Sets of events for all kinds that this device offers. A registration that fails takes its set
/// with it, so that each is tried with a set of its own.
fn watches<'n>(nvml: &'n Nvml, device: &Device<'n>, unit: UnitKind) -> Vec<Watch<'n>> {
    if unit != UnitKind::Gpu {
        return Vec::new();
    }
    let wanted = EventTypes::CRITICAL_XID_ERROR
        | EventTypes::DOUBLE_BIT_ECC_ERROR
        | EventTypes::SINGLE_BIT_ECC_ERROR
        | EventTypes::MIG_CONFIG_CHANGE
        | EventTypes::POWER_SOURCE_CHANGE;
    let known = device.supported_event_types().map_or(wanted, |offered| wanted & offered);
    let unnamed =
        UNNAMED_EVENTS.iter().map(|&(bit, name)| (EventTypes::from_bits_retain(bit), Some(name)));
    [(known, None)]
        .into_iter()
        .chain(unnamed)
        .filter(|(kinds, _)| !kinds.is_empty())
        .filter_map(|(kinds, kind)| {
            let set = nvml.create_event_set().ok()?;
            let set = device.register_events(kinds, set).ok()?;
            Some(Watch { set, kind })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_wall_clock_that_was_set_back_are_wanted_again() {
        let now = kernel::monotonic();
        // The wall clock is an hour ahead of the trace clock.
        let clocks = Clocks { ahead: Ns::secs(3600).0 };
        let us = |ns: Ns| u64::try_from((ns.0 + Ns::secs(3600).0) / 1000).unwrap();
        assert!((clocks.trace(us(now)) - now).0.abs() <= 1000);
        let seen = us(now - Ns::millis(20));
        assert_eq!(clocks.since(seen), seen);
        assert_eq!(clocks.since(us(now + Ns::secs(60))), 0);
        assert_eq!(clocks.since(0), 0);
        assert_eq!(clocks.trace(u64::MAX), Ns(i64::MAX - clocks.ahead));
    }

    #[test]
    fn an_error_means_the_reading_the_unit_or_nothing() {
        let check = |error: NvmlError, expected| assert_eq!(meaning(&error), expected, "{error}");
        check(NvmlError::NotFound, Means::Nothing);
        check(NvmlError::Timeout, Means::Nothing);
        check(NvmlError::NotSupported, Means::NotOffered);
        check(NvmlError::NoPermission, Means::NotOffered);
        check(NvmlError::GpuLost, Means::Gone);
        check(NvmlError::ResetRequired, Means::Gone);
        check(NvmlError::Unknown, Means::Trouble);
    }
}
