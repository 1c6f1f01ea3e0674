//! The records that are written: tasks, their stages, communicators, and notices of what was lost.

use core::sync::atomic::Ordering::Relaxed;

use gpuwhy_wire::{Event, NameId};

use super::abi::bit;
use super::follow::Tracker;
use super::names::LocalName;
use super::open::*;
use super::outside::{Outside, Sink};
use super::pool::{Handle, State};
use crate::notice::Code;

impl<O: Outside> Tracker<O> {
    /// Reports tasks that do not end: a collective that hangs would never be reported otherwise.
    pub(super) fn report_open_tasks(&self, sink: &dyn Sink) {
        let now = self.outside.now();
        for (_, place) in self.tasks.all() {
            let (word, t) = (place.word(), &place.of);
            let age = now.saturating_sub(t.began.load(Relaxed));
            if !matches!(word.state(), State::Live | State::Stopped) || age < OPEN {
                continue;
            }
            let communicator = t.communicator.load(Relaxed);
            let unknown = t.called.load(Relaxed) == 0 && t.base.load(Relaxed) == 0;
            if unknown
                && age >= NO_CHANNELS
                && place.turn_if_free(word.generation(), State::Stopped, State::Reporting)
            {
                if let Some(place) = self.communicators.at(communicator as usize) {
                    place.of.has_channels.store(false, Relaxed);
                }
                self.report_task(t);
                place.turn(word.generation(), &[State::Reporting], State::Done);
                continue;
            }
            let times = t.open_reports.load(Relaxed);
            if age >= OPEN << times.min(30) {
                t.open_reports.store(times + 1, Relaxed);
                sink.write(Event::Stage {
                    name: self.names.in_ring(self.names.id(b"open"), sink),
                    communicator,
                    operation: self.names.in_ring(LocalName(t.name.load(Relaxed)), sink),
                    seq: t.seq.load(Relaxed),
                    channel: None,
                    on_gpu: false,
                    start: now - age,
                    dur: age,
                });
            }
        }
    }

    /// Reports a communicator, if this agent has not received it.
    pub(super) fn report_communicator(&self, sink: &dyn Sink, communicator: usize) {
        if self.off.load(Relaxed) {
            return;
        }
        let generation = sink.generation();
        if self.generation.swap(generation, Relaxed) != generation {
            self.notices.forget_reported();
        }
        let Some(place) = self.communicators.at(communicator) else { return };
        let c = &place.of;
        if c.reported_to.swap(generation, Relaxed) == generation {
            return;
        }
        sink.write(Event::Communicator {
            name: self.names.in_ring(LocalName(c.name.load(Relaxed)), sink),
            communicator: communicator as u16,
            id: c.id.load(Relaxed),
            rank: c.rank.load(Relaxed),
            ranks: c.ranks.load(Relaxed),
            at: c.at.load(Relaxed),
        });
    }

    /// Writes the notices that are due.
    pub(super) fn report_notices(&self, sink: &dyn Sink) {
        if self.notices.has_changed() {
            self.notices.report(self.outside.now(), |text, code, value| {
                let (name, at) = (sink.name(text), self.outside.now());
                sink.write(Event::Notice { name, code, value: Some(value), at });
            });
        }
    }

    /// Reports a call of the calling thread, CLOCK_MONOTONIC ns.
    pub(super) fn report_phase(&self, name: LocalName, start: u64, end: u64) {
        self.outside.with(|sink| {
            let name = self.names.in_ring(name, sink);
            sink.write(Event::Phase { name, step: None, start, dur: end.saturating_sub(start) });
        });
    }

    /// Reports a stage of the task that `p` belongs to; from `first` to `last` by the GPU's clock if
    /// `on_gpu`, else by CLOCK_MONOTONIC.
    pub(super) fn report_stage(
        &self,
        p: &Part,
        stage: LocalName,
        first: u64,
        last: u64,
        on_gpu: bool,
    ) {
        let Some((generation, place)) = self.task(Handle(p.task.load(Relaxed))) else { return };
        let t = &place.of;
        let (operation, seq) = (LocalName(t.name.load(Relaxed)), t.seq.load(Relaxed));
        let communicator = t.communicator.load(Relaxed);
        if place.word().generation() != generation {
            return;
        }
        let now = self.outside.now();
        let start = if on_gpu {
            match self.clock(communicator).map(first, now) {
                Some(mapped) => mapped.at,
                None => return,
            }
        } else {
            first
        };
        let channel = Some(p.channel.load(Relaxed)).filter(|c| *c != u16::MAX).map(u32::from);
        self.outside.with(|sink| {
            self.report_communicator(sink, communicator as usize);
            sink.write(Event::Stage {
                name: self.names.in_ring(stage, sink),
                communicator,
                operation: self.names.in_ring(operation, sink),
                seq,
                channel,
                on_gpu,
                start,
                dur: last.saturating_sub(first),
            });
        });
    }

    /// The task on the GPU: start and duration, if its channels were seen and can be right.
    fn on_gpu(&self, t: &Task, now: u64) -> Option<(u64, u64)> {
        let (first, last) = (t.first.load(Relaxed), t.last.load(Relaxed));
        if first == u64::MAX {
            return None;
        }
        let clock = self.clock(t.communicator.load(Relaxed));
        let mapped = clock.map(first, now)?;
        if let Some(error) = mapped.error
            && self.clock_reported.load(Relaxed) + CLOCK_EVERY < now
        {
            self.clock_reported.store(now, Relaxed);
            self.notices.set(Code::NcclClock, error);
        }
        // Counters that have come apart give times of an earlier kernel (NCCL issue 2368).
        let called = t.called.load(Relaxed);
        let too_early = called != 0 && mapped.at + BEFORE_CALL < called;
        if too_early || last < first || last - first > IMPLAUSIBLE {
            self.notices.count(Code::NcclTimer, 1);
            return None;
        }
        Some((mapped.at, last - first))
    }

    /// Reports the task: on the GPU if its channels were seen, else from its call to the end of the
    /// hand-over.
    pub(super) fn report_task(&self, t: &Task) {
        if self.off.load(Relaxed) {
            return;
        }
        self.outside.with(|sink| {
            let now = self.outside.now();
            let communicator = t.communicator.load(Relaxed);
            self.report_communicator(sink, communicator as usize);
            let kind = t.kind.load(Relaxed) as u64;
            let gpu = self.on_gpu(t, now);
            let (start, dur) = gpu.unwrap_or_else(|| {
                let (began, ended) = (t.began.load(Relaxed), t.ended.load(Relaxed));
                let start = Some(t.called.load(Relaxed)).filter(|c| *c != 0).unwrap_or(began);
                let end = if ended == 0 { now } else { ended };
                (start, end.saturating_sub(start))
            });
            let name = self.names.in_ring(LocalName(t.name.load(Relaxed)), sink);
            let (seq, bytes) = (t.seq.load(Relaxed), t.bytes.load(Relaxed));
            let on_gpu = gpu.is_some();
            sink.write(if kind == bit::P2P {
                let peer = t.peer.load(Relaxed);
                Event::Message { name, communicator, peer, seq, bytes, on_gpu, start, dur }
            } else {
                let how = self.names.in_ring(LocalName(t.how.load(Relaxed)), sink);
                Event::Collective { name, communicator, seq, bytes, how, on_gpu, start, dur }
            });
            if on_gpu {
                self.report_means(sink, t, name, start, now);
            }
            self.report_notices(sink);
        });
    }

    /// One record for each phase, with the mean over the channels; without phases one for the
    /// channels.
    fn report_means(&self, sink: &dyn Sink, t: &Task, operation: NameId, start: u64, now: u64) {
        let communicator = t.communicator.load(Relaxed);
        let has_phases = t.sums[..CHANNEL].iter().any(|sum| sum.count.load(Relaxed) != 0);
        let base = self.clock(communicator).map(t.base.load(Relaxed), now);
        for (i, sum) in t.sums.iter().enumerate() {
            let count = sum.count.load(Relaxed) as u64;
            if count == 0 || has_phases && i == CHANNEL {
                continue;
            }
            let base = base.map_or(start, |mapped| mapped.at);
            let mean = sum.start.load(Relaxed) / count as i64;
            sink.write(Event::Stage {
                name: self.names.in_ring(self.names.id(STAGES[i]), sink),
                communicator,
                operation,
                seq: t.seq.load(Relaxed),
                channel: None,
                on_gpu: true,
                start: base.saturating_add_signed(mean),
                dur: sum.dur.load(Relaxed) / count,
            });
        }
    }
}
