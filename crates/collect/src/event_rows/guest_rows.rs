//! The rows of one guest, and all that is kept of it.

mod batches;
mod collectives;
mod device;
mod requests;
mod steps;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Counter, EntityId, EntityKind, Lane, Mark, Measure, Name, Ns, SourceId, TrackId, names,
};
use gpuwhy_wire::{Event, Record};

use super::budget::Budget;
use super::{Devices, Times};
use crate::context::Context;
use crate::guest::Guest;
use crate::quota::{self, Quota};
use crate::sys::{self, ns};
use batches::About;
use collectives::Collectives;
use device::{Launches, Stream};
use requests::Requests;
use steps::{StepBegin, Thread};

/// The code of the notice that says how precisely a GPU's clock is known: `NcclClock` of
/// `gpuwhy-inject`.
const CLOCK_PRECISION: u32 = 7;

/// The rows of one guest.
pub(super) struct GuestRows {
    pub(super) guest: Guest,
    source: SourceId,
    devices: Devices,
    budget: Budget,
    now: Ns,
    /// How many guests there are, who share some limits.
    guests: usize,
    /// What the keys of its entities end with, so that two connections of one process do not share any.
    suffix: String,
    /// By the guest's own tids.
    threads: HashMap<u32, Thread>,
    counters: HashMap<(Option<u16>, Name), TrackId>,
    notices: Option<TrackId>,
    waits: Option<TrackId>,
    /// Which GPU it means by a number, as far as it has given its UUID.
    gpus: HashMap<u16, EntityId>,
    /// The others, and simulated ones.
    own_gpus: HashMap<u16, EntityId>,
    streams: HashMap<(u16, u32), Stream>,
    launches: Launches,
    /// When its latest work on a device ended.
    pub(super) last_work: Option<Ns>,
    collectives: Collectives,
    requests: Requests,
    /// Texts for the source's note.
    notes: Vec<String>,
    earliest: Ns,
    last_record: Ns,
    /// When what the present record tells of began.
    at: Ns,
}

impl GuestRows {
    pub fn new(
        guest: Guest,
        number: u32,
        source: SourceId,
        devices: Devices,
        now: Ns,
    ) -> GuestRows {
        GuestRows {
            earliest: guest.earliest(now),
            guest,
            source,
            devices,
            budget: Budget::new(),
            now,
            guests: 1,
            suffix: format!("{}.{number}", source.0),
            threads: HashMap::new(),
            counters: HashMap::new(),
            notices: None,
            waits: None,
            gpus: HashMap::new(),
            own_gpus: HashMap::new(),
            streams: HashMap::new(),
            launches: Launches::default(),
            last_work: None,
            collectives: Collectives::default(),
            requests: Requests::default(),
            notes: Vec::new(),
            last_record: now,
            at: now,
        }
    }

    /// A tick begins.
    pub fn tick(&mut self, now: Ns, guests: usize) {
        self.now = now;
        self.guests = guests;
        self.budget.refill(now);
    }

    /// How many records can be taken now.
    pub fn allowance(&mut self) -> usize {
        let left = self.budget.records.left();
        if left == 0 {
            self.budget.use_up(Quota::Records);
        }
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// When its last record was read.
    pub fn last_record(&self) -> Ns {
        self.last_record
    }

    /// Writes the rows that follow from a record. Returns whether there are any, now or later.
    pub fn record(&mut self, record: &Record<&Name>, cx: &mut Context) -> bool {
        self.last_record = self.now;
        if !self.budget.records.take(1) {
            self.budget.use_up(Quota::Records);
            return false;
        }
        let mut bytes = quota::RECORD_BYTES;
        record.named(|name| bytes += name.len() as u64);
        if !self.budget.bytes.take(bytes) {
            self.budget.use_up(Quota::Bytes);
            return false;
        }
        self.guest.is_own(record.pid) && self.event(record.tid, record.event, cx).is_some()
    }

    /// What happened at this time can be true: not before the guest was there, and not in the future.
    /// Rows of impossible times would move the window of what is kept for everybody.
    fn is_possible(&self, Times { ts, dur }: Times) -> bool {
        let end = ts.saturating_add(dur).saturating_sub(quota::AHEAD);
        // A tick may take long on a busy host, and what is read in it be younger than its beginning.
        ts >= self.earliest && (end <= self.now || end <= sys::monotonic())
    }

    fn event(&mut self, tid: u32, event: Event<&Name>, cx: &mut Context) -> Option<()> {
        let times = Times::of(&event);
        if !self.is_possible(times) {
            return None;
        }
        self.at = times.ts;
        match event {
            Event::StepOpen { name, seq, size, rank, start } => {
                let begin = StepBegin { name: name.clone(), start: ns(start), size, rank };
                self.step_begins(tid, seq, begin, cx)
            }
            Event::Step { name, seq, size, rank, start, .. } => {
                let begin = StepBegin { name: name.clone(), start: ns(start), size, rank };
                self.step_ends(tid, seq, begin, times.end(), cx)
            }
            Event::Phase { name, step, .. } => self.phase(tid, step, name.clone(), times, cx),
            Event::Mark { name, value, .. } => self.mark(tid, name.clone(), times.ts, value, cx),
            Event::Counter { name, unit, device, value, .. } => {
                self.counter(device, (name, unit), (times.ts, value), cx)
            }
            Event::Launch { name, correlation, .. } => {
                self.launch(tid, correlation, name.clone(), times, cx)
            }
            Event::Kernel { name, device, stream, correlation, graph, .. } => {
                let name = device::kernel_name(name, graph);
                self.kernel(correlation, (device, stream), name, times, cx)
            }
            Event::Copy { name, device, stream, correlation, bytes, .. } => {
                self.copy(correlation, (device, stream), (name, bytes), times, cx)
            }
            Event::Wait { name, .. } => self.device_wait(name.clone(), times, cx),
            Event::Device { name, device, .. } => self.device(device, name, cx),
            Event::Communicator { name, communicator, id, rank, ranks, .. } => {
                self.communicator(communicator, name, id, (rank, ranks), cx)
            }
            Event::Collective { name, communicator, seq, bytes, how, .. } => {
                let operation = (communicator, name.clone(), seq);
                self.collective(operation, times, bytes, (None, Some(&**how)), cx)
            }
            Event::Message { name, communicator, peer, seq, bytes, .. } => {
                let operation = (communicator, name.clone(), seq);
                self.collective(operation, times, bytes, (Some(peer), None), cx)
            }
            Event::Stage { name, communicator, operation, seq, channel, .. } => {
                let operation = (communicator, operation.clone(), seq);
                self.stage(operation, name.clone(), times, channel, cx)
            }
            Event::Notice { name, code, value, .. } => {
                self.notice((name, code, value), times.ts, cx)
            }
            Event::Batch { .. }
            | Event::BatchWork { .. }
            | Event::BatchChange { .. }
            | Event::BatchQueue { .. }
            | Event::BatchOutput { .. } => self.batch(tid, &event, times.ts, cx),
            Event::Request { name, request, step, tokens, computed, .. } => {
                let about = About { step, tokens, computed };
                self.request(tid, (request, name), about, times.ts, cx)
            }
            Event::RequestKey { request, part, first, last, .. } => {
                self.request_key(request, part, [first, last], times.ts, cx)
            }
        }
    }

    fn mark(
        &mut self,
        tid: u32,
        name: Name,
        ts: Ns,
        value: Option<f64>,
        cx: &mut Context,
    ) -> Option<()> {
        let thread = self.thread(tid, cx)?;
        let (entity, known) = (thread.entity, thread.marks);
        let track = match known {
            Some(track) => track,
            None => self.track(entity, None, Lane::marks("marks"), cx)?,
        };
        if known.is_none() {
            self.thread(tid, cx)?.add_marks(track);
        }
        cx.rows.mark.push(Mark { id: cx.ids.next_id(), ts, track, name, value });
        Some(())
    }

    fn counter(
        &mut self,
        device: Option<u16>,
        (name, unit): (&Name, &Name),
        (ts, value): (Ns, f64),
        cx: &mut Context,
    ) -> Option<()> {
        let key = (device, name.clone());
        let track = match self.counters.get(&key) {
            Some(track) => *track,
            None => {
                // The library's own counters are totals; programs' are values of the moment.
                let is_ours = name.starts_with("inject.");
                let measure = if is_ours { Measure::Total } else { Measure::Gauge };
                let (entity, text) = match device {
                    // A GPU that others use as well has no counters but its driver's.
                    Some(device) if self.is_shared(device) => {
                        (self.guest.process(), format!("{name} (gpu {device})"))
                    }
                    Some(device) => (self.gpu(device, cx)?, name.to_string()),
                    None => (self.guest.process(), name.to_string()),
                };
                let track = self.track(entity, None, Lane::counter(&text, unit, measure), cx)?;
                self.counters.insert(key, track);
                track
            }
        };
        cx.rows.counter.push(Counter { ts, track, value });
        Some(())
    }

    /// A library reports what it cannot record: a mark in the trace, and the source's note.
    fn notice(
        &mut self,
        (name, code, value): (&Name, u32, Option<f64>),
        ts: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        // How precisely a clock is known is no loss.
        if code != CLOCK_PRECISION {
            self.note(name, cx);
        }
        self.notice_row(name.clone(), value.or(Some(f64::from(code))), ts, cx)
    }

    fn notice_row(
        &mut self,
        name: Name,
        value: Option<f64>,
        ts: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        let track = match self.notices {
            Some(track) => track,
            None => self.track(self.guest.process(), None, Lane::marks(names::NOTICES), cx)?,
        };
        self.notices = Some(track);
        cx.rows.mark.push(Mark { id: cx.ids.next_id(), ts, track, name, value });
        Some(())
    }

    /// A text about this guest for the source's note; each once, and not without end, so that none drives
    /// those of others out.
    fn note(&mut self, text: &str, cx: &Context) {
        let text = format!("{}: {text}", self.called(cx));
        if self.budget.notes > 0 && !self.notes.contains(&text) {
            self.budget.notes -= 1;
            self.notes.push(text);
        }
    }

    fn called(&self, cx: &Context) -> String {
        let name =
            cx.catalog.get(self.guest.process()).map_or_else(Name::default, |e| e.name.clone());
        match self.guest.host() {
            Some(host) => format!("{name} (pid {})", host.pid),
            None => name.to_string(),
        }
    }

    /// What the source's note is to say of this guest; the quotas that it has used up are noticed in the
    /// trace as well.
    pub fn tell(&mut self, cx: &mut Context) -> Vec<String> {
        let used_up: Vec<Quota> = self.budget.untold().collect();
        let mut all = std::mem::take(&mut self.notes);
        for quota in used_up {
            let text = quota.text();
            all.push(format!("{}: {text}", self.called(cx)));
            let name = format!("quota used up: {text}");
            self.notice_row(name.as_str().into(), None, self.now, cx);
        }
        all
    }

    /// One more entity of this guest, whose key is its own; `None` if it has too many.
    pub(super) fn entity(
        &mut self,
        kind: EntityKind,
        what: &str,
        cx: &mut Context,
        make: impl FnOnce(&mut gpuwhy_schema::Entity),
    ) -> Option<EntityId> {
        if !self.budget.take_entity() {
            self.end_idle(quota::IDLE_WHEN_FULL, cx);
            if !self.budget.take_entity() {
                return None;
            }
        }
        let key = format!("{what}.{}", self.suffix);
        Some(cx.catalog.entity(kind, &key, make))
    }

    /// One more track; `None` if there are too many.
    pub(super) fn track(
        &mut self,
        entity: EntityId,
        parent: Option<TrackId>,
        lane: Lane<'_>,
        cx: &mut Context,
    ) -> Option<TrackId> {
        let has_room = self.budget.take_track();
        has_room.then(|| cx.catalog.track(entity, parent, lane, self.source))
    }

    /// Ends what has not been used for so long: streams, and threads that cannot be verified.
    pub fn end_idle(&mut self, idle: Ns, cx: &mut Context) {
        let before = self.now.saturating_sub(idle);
        self.end_streams(before, cx);
        self.end_threads(before, false, cx);
    }

    /// The guest has ended, and all that it made. Phases of steps that never ended, and stages of
    /// collectives that never came, are written without them.
    pub fn end(mut self, cx: &mut Context) {
        self.collectives.finish(cx);
        self.finish_requests(cx);
        self.end_threads(Ns::MAX, true, cx);
        self.end_ranks(cx);
        self.end_gpus(cx);
        if self.guest.host().is_none() {
            cx.catalog.retire(self.guest.process(), self.now);
        }
    }

    /// Writes the steps that have begun and not ended, and the stages without a collective.
    pub fn finish(&mut self, cx: &mut Context) {
        self.collectives.finish(cx);
        self.finish_requests(cx);
        self.finish_steps(cx);
    }
}
