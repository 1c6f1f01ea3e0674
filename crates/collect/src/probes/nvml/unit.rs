//! One GPU, slice or virtual GPU: its readings in a round, whatever of them it offers.

use std::collections::HashMap;
use std::sync::Arc;

use gpuwhy_schema::{Ns, names};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use super::metrics::{METRICS, MetricId, Pace, Way, metric_named};
use super::schedule::Schedule;
use crate::sys;

/// Events taken from one set in a round; the rest waits for the next.
const EVENTS: usize = 16;

/// After this number of failures in a row, a way of reading a metric is given up.
const FAILURES: u8 = 20;

/// A GPU, a part of one, or a virtual one, as NVML describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// What it is.
    pub kind: UnitKind,
    /// NVML's own name for it, which stays the same.
    pub uuid: String,
    /// Its name in texts.
    pub name: String,
    /// Its index among its kind.
    pub index: u32,
    /// The GPU that it is a part of, by UUID.
    pub parent: Option<String>,
}

/// What a [`Unit`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// A GPU, or what a virtual machine sees as one.
    Gpu,
    /// A slice of a GPU (MIG).
    Slice,
    /// A virtual GPU that this host gives to a virtual machine.
    Virtual,
}

/// The result of one call, and when it was made.
#[derive(Debug, PartialEq)]
pub(super) struct Reading {
    /// Just before the call.
    pub before: Ns,
    /// Just after it.
    pub after: Ns,
    /// What it returned.
    pub observed: Observed,
}

/// What a call returned.
#[derive(Debug, PartialEq)]
pub(super) enum Observed {
    /// Values of the moment.
    Values(Vec<(MetricId, f64)>),
    /// Values that the driver had buffered, with their own times.
    Buffered(MetricId, Vec<(Ns, f64)>),
    /// How busy processes kept the multiprocessors: pid, time, percent.
    ProcessUse(Vec<(u32, Ns, f64)>),
    /// How much memory processes have, by pid, in bytes: all that have some.
    ProcessMemory(Vec<(u32, u64)>),
    /// How long software runlists of virtual GPUs had the device since the reading before, by their numbers, ns.
    RunlistTime(Vec<(u32, u64)>),
    /// An event, with its number.
    Event(&'static str, Option<f64>),
    /// The unit does not answer any more, and why.
    Lost(String),
    /// It answers again.
    Returned,
    /// There is no such unit any more, and nothing is wrong: slices are created and joined.
    Ended,
}

/// One unit, and how far its readings have come.
pub(super) struct SampledUnit<'n> {
    /// The unit.
    pub unit: Arc<Unit>,
    /// When to ask again, if it does not answer.
    pub lost: Option<Ns>,
    device: Device<'n>,
    /// Whether the use by processes is read of its slices instead.
    split: bool,
    hosts_virtual: bool,
    schedule: Schedule,
    states: Vec<MetricState>,
    /// The last sample of processes that was read, on NVML's clock.
    last_use: u64,
    not_offered: NotOffered,
    events: Vec<EventWatch<'n>>,
}

/// How far the readings of one metric have come.
#[derive(Clone, Copy, Debug, Default)]
struct MetricState {
    /// Which of its ways; as many as there are means that the unit does not offer it.
    way: u8,
    /// Whether this way has returned something already.
    answers: bool,
    failures: u8,
    /// When the buffer last had new samples.
    last_new: Option<Ns>,
    /// The last sample of the buffer that was read, on NVML's clock.
    last_sample: u64,
    /// The last value of a total of 32 bits, and what has overflowed.
    last: u32,
    overflow: u64,
}

impl MetricState {
    fn try_next_way(&mut self) {
        *self = MetricState { way: self.way + 1, ..MetricState::default() };
    }
}

/// Lists that a unit does not offer.
#[derive(Clone, Copy, Debug, Default)]
struct NotOffered {
    process_use: bool,
    compute: bool,
    graphics: bool,
}

/// Events that are watched. The wrapper keeps only the kinds that it has names for, so that each other
/// kind has a set of its own by which it is recognised.
struct EventWatch<'n> {
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
enum Meaning {
    /// There is no value now.
    NoValue,
    /// The unit does not offer this.
    NotOffered,
    /// The unit is lost.
    Lost,
    /// It is not known.
    Unknown,
}

fn meaning(error: &NvmlError) -> Meaning {
    match error {
        NvmlError::NotFound | NvmlError::NoData | NvmlError::Timeout => Meaning::NoValue,
        NvmlError::NotSupported
        | NvmlError::NoPermission
        | NvmlError::InvalidArg
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(_) => Meaning::NotOffered,
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::IrqIssue
        | NvmlError::DriverNotLoaded
        | NvmlError::Uninitialized => Meaning::Lost,
        _ => Meaning::Unknown,
    }
}

/// NVML's clock, CLOCK_REALTIME in µs, compared with ours.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    /// What to subtract from the wall clock to get the trace clock, ns.
    ahead: i64,
}

impl Clocks {
    /// Reads both clocks.
    pub fn read() -> Clocks {
        let before = sys::monotonic();
        let wall = sys::wall();
        let after = sys::monotonic();
        Clocks { ahead: wall.saturating_sub(before.0.saturating_add((after - before).0 / 2)) }
    }

    fn trace_time(self, us: u64) -> Ns {
        let wall = i64::try_from(us).unwrap_or(i64::MAX).saturating_mul(1000);
        Ns(wall.saturating_sub(self.ahead))
    }

    /// From where on samples are to be read, after those up to `last`. When the wall clock was set
    /// back `last` lies in the future, and all samples there are must be read again.
    fn resume_after(self, last: u64) -> u64 {
        let ahead = self.trace_time(last).saturating_sub(sys::monotonic());
        if ahead > Ns::secs(1) { 0 } else { last }
    }
}

/// A unit is lost, and why.
pub(super) struct Lost(pub String);

impl<'n> SampledUnit<'n> {
    /// A unit that has not been read yet.
    pub fn new(
        nvml: &'n Nvml,
        unit: Unit,
        device: Device<'n>,
        split: bool,
        hosts_virtual: bool,
    ) -> SampledUnit<'n> {
        SampledUnit {
            events: watch_events(nvml, &device, unit.kind),
            unit: Arc::new(unit),
            device,
            lost: None,
            split,
            hosts_virtual,
            schedule: Schedule::default(),
            states: vec![MetricState::default(); METRICS.len()],
            last_use: 0,
            not_offered: NotOffered::default(),
        }
    }

    /// The same unit was found again; it may have been renamed or split since.
    pub fn update(&mut self, unit: Unit, split: bool, hosts_virtual: bool) {
        if *self.unit != unit {
            self.unit = Arc::new(unit);
        }
        self.split = split;
        self.hosts_virtual = hosts_virtual;
    }

    /// Whether it answers again; then its readings start from the beginning, except that metrics that it
    /// does not offer are not tried again.
    pub fn has_returned(&mut self, nvml: &'n Nvml) -> bool {
        let Ok(device) = nvml.device_by_uuid(&*self.unit.uuid) else { return false };
        // NVML may return a handle of a GPU that is still lost.
        if device
            .clock_info(Clock::SM)
            .is_err_and(|error| matches!(meaning(&error), Meaning::Lost | Meaning::Unknown))
        {
            return false;
        }
        self.events = watch_events(nvml, &device, self.unit.kind);
        self.device = device;
        self.lost = None;
        for state in &mut self.states {
            *state = MetricState { way: state.way, ..MetricState::default() };
        }
        self.last_use = 0;
        true
    }

    /// One round of readings, and those of virtual GPUs on it.
    pub fn read(
        &mut self,
        is_due: &dyn Fn(Pace) -> bool,
        clocks: Clocks,
        from: Ns,
        out: &mut Vec<Reading>,
        virtual_gpus: &mut Vec<(Unit, Reading)>,
    ) -> Result<(), Lost> {
        self.read_events(out);
        let mut round = Round::default();
        let mut fields = Vec::new();
        for metric in (0..METRICS.len()).map(MetricId) {
            if !is_due(metric.metric().pace) || self.is_replaced(metric) {
                continue;
            }
            match self.way(metric) {
                None => {}
                Some(Way::Field(id, factor)) => fields.push((metric, id, factor)),
                Some(Way::Call(call)) => {
                    let (before, answer, after) = timed(|| call(&self.device));
                    if let Some(value) = self.check(metric, answer, &mut round)? {
                        let observed = Observed::Values(vec![(metric, value)]);
                        out.push(Reading { before, after, observed });
                    }
                }
                Some(Way::Buffer(..)) => self.read_buffer(metric, clocks, from, out, &mut round)?,
            }
        }
        self.read_fields(&fields, out, &mut round)?;
        if is_due(Pace::Second) && !self.split {
            self.read_processes(clocks, from, out, &mut round)?;
        }
        if is_due(Pace::Second) && self.hosts_virtual {
            self.read_schedule(out);
            self.read_virtual_gpus(virtual_gpus);
        }
        match round {
            Round { answered: 0, failure: Some(why) } => Err(Lost(why)),
            _ => Ok(()),
        }
    }

    /// The way by which this metric is read now, if the unit offers one.
    fn way(&self, metric: MetricId) -> Option<Way> {
        metric.metric().ways.get(usize::from(self.states[metric.0].way)).copied()
    }

    /// Whether it only replaces another metric, which is offered.
    fn is_replaced(&self, metric: MetricId) -> bool {
        let other = metric.metric().instead_of.and_then(metric_named);
        other.is_some_and(|other| self.way(other).is_some())
    }

    /// The value of an answer; errors count against the metric, or against the unit.
    fn check<T>(
        &mut self,
        metric: MetricId,
        answer: Result<T, NvmlError>,
        round: &mut Round,
    ) -> Result<Option<T>, Lost> {
        match answer {
            Ok(answer) => {
                round.answered += 1;
                let state = &mut self.states[metric.0];
                (state.failures, state.answers) = (0, true);
                Ok(Some(answer))
            }
            Err(error) => self.count_failure(metric, &error, round).map(|()| None),
        }
    }

    fn count_failure(
        &mut self,
        metric: MetricId,
        error: &NvmlError,
        round: &mut Round,
    ) -> Result<(), Lost> {
        let state = &mut self.states[metric.0];
        match meaning(error) {
            Meaning::NoValue => {}
            Meaning::Lost => return Err(Lost(error.to_string())),
            Meaning::NotOffered if !state.answers => state.try_next_way(),
            // If it was offered before, the handle may have become invalid.
            Meaning::NotOffered | Meaning::Unknown => {
                round.failure = Some(error.to_string());
                state.failures += 1;
                if state.failures >= FAILURES {
                    state.try_next_way();
                }
            }
        }
        Ok(())
    }

    /// The samples that the driver has buffered since the last round.
    fn read_buffer(
        &mut self,
        metric: MetricId,
        clocks: Clocks,
        from: Ns,
        out: &mut Vec<Reading>,
        round: &mut Round,
    ) -> Result<(), Lost> {
        let Some(Way::Buffer(kind, factor)) = self.way(metric) else { return Ok(()) };
        let last = clocks.resume_after(self.states[metric.0].last_sample);
        let (before, answer, after) = timed(|| self.device.samples(kind, last));
        let Some(samples) = self.check(metric, answer, round)? else {
            self.count_empty_buffer(metric, after, from);
            return Ok(());
        };
        let state = &mut self.states[metric.0];
        state.last_sample = samples.iter().fold(last, |last, s| last.max(s.timestamp));
        let values: Vec<(Ns, f64)> = samples
            .into_iter()
            .map(|s| (clocks.trace_time(s.timestamp).min(after), s.value))
            .filter(|&(ts, _)| ts >= from)
            .map(|(ts, value)| (ts, number(&value) * factor))
            .collect();
        if values.is_empty() {
            self.count_empty_buffer(metric, after, from);
            return Ok(());
        }
        state.last_new = Some(after);
        out.push(Reading { before, after, observed: Observed::Buffered(metric, values) });
        Ok(())
    }

    /// A buffer that never has samples is given up for the next way, if there is one.
    fn count_empty_buffer(&mut self, metric: MetricId, now: Ns, from: Ns) {
        let state = &mut self.states[metric.0];
        let ways = metric.metric().ways.len();
        let since = *state.last_new.get_or_insert(from.max(now - Ns::secs(1)));
        if now - since > Ns::secs(2) && usize::from(state.way) + 1 < ways {
            state.try_next_way();
        }
    }

    /// All fields that are due, in one call.
    fn read_fields(
        &mut self,
        fields: &[(MetricId, u32, f64)],
        out: &mut Vec<Reading>,
        round: &mut Round,
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
                return fields
                    .iter()
                    .try_for_each(|&(metric, ..)| self.count_failure(metric, &error, round));
            }
        };
        let mut values = Vec::with_capacity(fields.len());
        for (&(metric, _, factor), answer) in fields.iter().zip(answers) {
            let answer = answer.and_then(|sample| sample.value);
            let Some(value) = self.check(metric, answer, round)? else { continue };
            let state = &mut self.states[metric.0];
            let value = match value {
                SampleValue::U32(n) if metric.metric().wraps => {
                    if n < state.last {
                        state.overflow += 1 << 32;
                    }
                    state.last = n;
                    (state.overflow + u64::from(n)) as f64
                }
                value => number(&value),
            };
            values.push((metric, value * factor));
        }
        if !values.is_empty() {
            out.push(Reading { before, after, observed: Observed::Values(values) });
        }
        Ok(())
    }

    /// Its use by processes.
    fn read_processes(
        &mut self,
        clocks: Clocks,
        from: Ns,
        out: &mut Vec<Reading>,
        round: &mut Round,
    ) -> Result<(), Lost> {
        if !self.not_offered.process_use {
            let last = clocks.resume_after(self.last_use);
            let (before, answer, after) = timed(|| self.device.process_utilization_stats(last));
            let list = check_list(answer, &mut self.not_offered.process_use, round)?;
            let list = list.unwrap_or_default();
            self.last_use = list.iter().fold(last, |last, s| last.max(s.timestamp));
            let observed: Vec<(u32, Ns, f64)> = list
                .into_iter()
                // The call is known to return entries that were never filled.
                .filter(|s| s.pid != 0 && s.sm_util <= 100)
                .map(|s| (s.pid, clocks.trace_time(s.timestamp).min(after), f64::from(s.sm_util)))
                .filter(|&(_, ts, _)| ts >= from)
                .collect();
            if !observed.is_empty() {
                out.push(Reading { before, after, observed: Observed::ProcessUse(observed) });
            }
        }
        let mut memory: HashMap<u32, u64> = HashMap::new();
        let before = sys::monotonic();
        let mut any = false;
        for graphics in [false, true] {
            let not_offered = match graphics {
                true => &mut self.not_offered.graphics,
                false => &mut self.not_offered.compute,
            };
            if *not_offered {
                continue;
            }
            let answer = match graphics {
                true => self.device.running_graphics_processes(),
                false => self.device.running_compute_processes(),
            };
            let Some(list) = check_list(answer, not_offered, round)? else { return Ok(()) };
            any = true;
            for process in list {
                // A process that is in both lists has the same memory in both.
                let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { continue };
                let entry = memory.entry(process.pid).or_default();
                *entry = bytes.max(*entry);
            }
        }
        if any {
            let mut list: Vec<(u32, u64)> = memory.into_iter().collect();
            list.sort_unstable();
            let after = sys::monotonic();
            out.push(Reading { before, after, observed: Observed::ProcessMemory(list) });
        }
        Ok(())
    }

    /// The memory that virtual machines have of it.
    fn read_virtual_gpus(&self, out: &mut Vec<(Unit, Reading)>) {
        let Ok(all) = self.device.active_vgpus() else { return };
        for (i, vgpu) in (0_u32..).zip(&all) {
            let before = sys::monotonic();
            let (Ok(uuid), Ok(used)) = (vgpu.uuid(), vgpu.fb_usage()) else { continue };
            let after = sys::monotonic();
            let model = vgpu.instance_type().and_then(|t| t.name());
            let unit = Unit {
                kind: UnitKind::Virtual,
                uuid,
                name: match model {
                    Ok(model) => format!("gpu {} virtual {i}: {model}", self.unit.index),
                    Err(_) => format!("gpu {} virtual {i}", self.unit.index),
                },
                index: i,
                parent: Some(self.unit.uuid.clone()),
            };
            let used = metric_named(names::GPU_MEMORY_USED).map(|metric| (metric, used as f64));
            let observed = Observed::Values(used.into_iter().collect());
            out.push((unit, Reading { before, after, observed }));
        }
    }

    /// What the scheduler of virtual GPUs logged.
    fn read_schedule(&mut self, out: &mut Vec<Reading>) {
        let (before, answer, after) = timed(|| self.device.vgpu_scheduler_log());
        let Ok(log) = answer else { return };
        if let Some((name, slice)) = self.schedule.policy(&log) {
            out.push(Reading { before, after, observed: Observed::Event(name, Some(slice)) });
        }
        let ran = self.schedule.ran(&log.entries);
        if !ran.is_empty() {
            out.push(Reading { before, after, observed: Observed::RunlistTime(ran) });
        }
    }

    /// Events since the last round. They do not decide whether the unit is lost, its readings do: a
    /// wait for events may fail because of another unit's loss.
    pub fn read_events(&mut self, out: &mut Vec<Reading>) {
        self.events.retain(|watch| {
            for _ in 0..EVENTS {
                let (before, answer, after) = timed(|| watch.set.wait(0));
                let error = match answer {
                    Ok(event) => {
                        let number = event.event_data.map(|xid| match xid {
                            XidError::Value(n) => n as f64,
                            // NVML's own number for it.
                            XidError::Unknown => 999.0,
                        });
                        let name = watch.kind.or_else(|| event_name(event.event_type));
                        if let Some(name) = name {
                            let observed = Observed::Event(name, number);
                            out.push(Reading { before, after, observed });
                        }
                        continue;
                    }
                    Err(error) => error,
                };
                return matches!(meaning(&error), Meaning::NoValue | Meaning::Lost);
            }
            true
        });
    }

    /// Watches no events any more, until the unit returns.
    pub fn forget_events(&mut self) {
        self.events.clear();
    }
}

/// How the calls of a round went.
#[derive(Debug, Default)]
struct Round {
    answered: u32,
    failure: Option<String>,
}

/// The entries of a list; `not_offered` is set if the unit does not offer it.
fn check_list<T>(
    answer: Result<Vec<T>, NvmlError>,
    not_offered: &mut bool,
    round: &mut Round,
) -> Result<Option<Vec<T>>, Lost> {
    match answer {
        Ok(list) => {
            round.answered += 1;
            Ok(Some(list))
        }
        Err(error) => match meaning(&error) {
            Meaning::NoValue => Ok(Some(Vec::new())),
            Meaning::NotOffered => {
                *not_offered = true;
                Ok(Some(Vec::new()))
            }
            Meaning::Lost => Err(Lost(error.to_string())),
            Meaning::Unknown => {
                round.failure = Some(error.to_string());
                Ok(None)
            }
        },
    }
}

fn timed<T>(call: impl FnOnce() -> T) -> (Ns, T, Ns) {
    let before = sys::monotonic();
    let answer = call();
    (before, answer, sys::monotonic())
}

fn number(value: &SampleValue) -> f64 {
    match *value {
        SampleValue::F64(n) => n,
        SampleValue::U32(n) => f64::from(n),
        SampleValue::U64(n) => n as f64,
        SampleValue::I64(n) => n as f64,
    }
}

/// The name of an event of a kind that the wrapper knows.
fn event_name(event: EventTypes) -> Option<&'static str> {
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

/// Event sets for all kinds that this device offers. A registration that fails consumes its set, so
/// that each is tried with a set of its own.
fn watch_events<'n>(nvml: &'n Nvml, device: &Device<'n>, unit: UnitKind) -> Vec<EventWatch<'n>> {
    if unit != UnitKind::Gpu {
        return Vec::new();
    }
    let named = EventTypes::CRITICAL_XID_ERROR
        | EventTypes::DOUBLE_BIT_ECC_ERROR
        | EventTypes::SINGLE_BIT_ECC_ERROR
        | EventTypes::MIG_CONFIG_CHANGE
        | EventTypes::POWER_SOURCE_CHANGE;
    let named = device.supported_event_types().map_or(named, |offered| named & offered);
    let unnamed =
        UNNAMED_EVENTS.iter().map(|&(bit, name)| (EventTypes::from_bits_retain(bit), Some(name)));
    [(named, None)]
        .into_iter()
        .chain(unnamed)
        .filter(|(kinds, _)| !kinds.is_empty())
        .filter_map(|(kinds, kind)| {
            let set = nvml.create_event_set().ok()?;
            let set = device.register_events(kinds, set).ok()?;
            Some(EventWatch { set, kind })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_again_when_the_wall_clock_was_set_back() {
        let now = sys::monotonic();
        // The wall clock is an hour ahead of the trace clock.
        let clocks = Clocks { ahead: Ns::secs(3600).0 };
        let us = |ns: Ns| u64::try_from((ns.0 + Ns::secs(3600).0) / 1000).unwrap();
        assert!((clocks.trace_time(us(now)) - now).0.abs() <= 1000);
        let last = us(now - Ns::millis(20));
        assert_eq!(clocks.resume_after(last), last);
        assert_eq!(clocks.resume_after(us(now + Ns::secs(60))), 0);
        assert_eq!(clocks.resume_after(0), 0);
        assert_eq!(clocks.trace_time(u64::MAX), Ns(i64::MAX - clocks.ahead));
    }

    #[test]
    fn an_error_concerns_the_value_the_metric_or_the_unit() {
        let check = |error: NvmlError, expected| assert_eq!(meaning(&error), expected, "{error}");
        check(NvmlError::NotFound, Meaning::NoValue);
        check(NvmlError::Timeout, Meaning::NoValue);
        check(NvmlError::NotSupported, Meaning::NotOffered);
        check(NvmlError::NoPermission, Meaning::NotOffered);
        check(NvmlError::GpuLost, Meaning::Lost);
        check(NvmlError::ResetRequired, Meaning::Lost);
        check(NvmlError::Unknown, Meaning::Unknown);
    }
}
