//! Turns the records of programs and in-process libraries into rows: steps and phases, launches and
//! device work, collectives and their stages.
//!
//! Records arrive in the order in which they were written, which is the order of their ends at best.
//! Records that belong together (a phase and its step, a launch and its kernel, a stage and its
//! collective) may arrive in either order; the first one is held until the other one is there, or
//! until too many are held. A record that contradicts others is dropped and counted.
//!
//! Each guest has rows, entities and limits of its own ([`GuestRows`], [`crate::quota`]), so that one that
//! writes garbage, or without end, costs itself alone. All that it made ends with it.

mod budget;
mod guest_rows;

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Name, Ns, SourceId};
use gpuwhy_wire::{Drained, Event, Record};

use crate::context::Context;
use crate::guest::{Guest, HostProcess};
use crate::probe::OpenStep;
use crate::quota;
use crate::sys::ns;
use guest_rows::GuestRows;

/// Texts that a source's note shows at a time.
const NOTES: usize = 6;

/// Turns records into rows.
pub(crate) struct EventRows {
    /// Records that became rows.
    pub recorded: u64,
    /// Records that did not.
    pub dropped: u64,
    source: SourceId,
    devices: Devices,
    guests: HashMap<u32, GuestRows>,
    now: Ns,
    next_idle_check: Ns,
    /// What the source's note shows, oldest first.
    notes: VecDeque<String>,
}

/// What the numbers of devices in records mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// Simulated devices, of which each process has its own; a stream does one thing at a time.
    Simulated,
    /// The host's GPUs, known by their UUIDs; nodes of a graph on one stream may overlap.
    Real,
}

/// When something began, and how long it took.
#[derive(Clone, Copy)]
struct Times {
    ts: Ns,
    dur: Ns,
}

impl Times {
    fn of<N: Copy>(event: &Event<N>) -> Times {
        let (start, dur) = match *event {
            Event::Step { start, dur, .. }
            | Event::Phase { start, dur, .. }
            | Event::Launch { start, dur, .. }
            | Event::Kernel { start, dur, .. }
            | Event::Copy { start, dur, .. }
            | Event::Wait { start, dur, .. }
            | Event::Collective { start, dur, .. }
            | Event::Message { start, dur, .. }
            | Event::Stage { start, dur, .. } => (start, dur),
            Event::Batch { at, dur, .. } => (at, dur),
            Event::StepOpen { start, .. } => (start, 0),
            Event::Mark { at, .. }
            | Event::Counter { at, .. }
            | Event::Device { at, .. }
            | Event::Communicator { at, .. }
            | Event::Notice { at, .. }
            | Event::BatchWork { at, .. }
            | Event::BatchChange { at, .. }
            | Event::BatchQueue { at, .. }
            | Event::BatchOutput { at, .. }
            | Event::Request { at, .. }
            | Event::RequestKey { at, .. } => (at, 0),
        };
        Times { ts: ns(start), dur: ns(dur) }
    }

    fn end(self) -> Ns {
        self.ts.saturating_add(self.dur)
    }
}

impl EventRows {
    /// With no rows yet, for `source`.
    pub fn new(source: SourceId, devices: Devices) -> EventRows {
        EventRows {
            recorded: 0,
            dropped: 0,
            source,
            devices,
            guests: HashMap::new(),
            now: Ns::ZERO,
            next_idle_check: Ns::MIN,
            notes: VecDeque::new(),
        }
    }

    /// A tick begins: guests get back what time gives them, and what they have not used for long ends.
    pub fn tick(&mut self, now: Ns, cx: &mut Context) {
        self.now = now;
        let check = now >= self.next_idle_check;
        if check {
            self.next_idle_check = now.saturating_add(quota::IDLE_CHECK);
        }
        let guests = self.guests.len();
        let mut told = Vec::new();
        for rows in self.guests.values_mut() {
            rows.tick(now, guests);
            if check {
                rows.end_idle(quota::IDLE, cx);
                told.extend(rows.tell(cx));
            }
        }
        for text in told {
            self.add_to_note(&text, cx);
        }
    }

    /// A guest appears, under a number that no other has or had. One that was never seen to have a process
    /// of this host becomes no target.
    pub fn add(&mut self, number: u32, guest: Guest, cx: &mut Context) {
        if let Some(host) = guest.host() {
            cx.new_targets.add(host.pid);
        }
        let rows = GuestRows::new(guest, number, self.source, self.devices, self.now);
        self.guests.insert(number, rows);
    }

    /// How many records of a guest can be taken now.
    pub fn allowance(&mut self, number: u32) -> usize {
        self.guests.get_mut(&number).map_or(usize::MAX, GuestRows::allowance)
    }

    /// The process of this host that a guest is, if it could be verified.
    pub fn host_of(&self, number: u32) -> Option<HostProcess> {
        self.guests.get(&number)?.guest.host()
    }

    /// Writes the rows that follow from a guest's record.
    pub fn record(&mut self, number: u32, record: &Record<&Name>, cx: &mut Context) {
        let became_rows = match self.guests.get_mut(&number) {
            Some(rows) => rows.record(record, cx),
            None => false,
        };
        let count = if became_rows { &mut self.recorded } else { &mut self.dropped };
        *count = count.saturating_add(1);
    }

    /// Counts what was missed of a guest.
    pub fn missed(&mut self, drained: &Drained) {
        self.dropped = self.dropped.saturating_add(drained.missed());
    }

    /// The guest has ended: all that it made ends with it.
    pub fn end(&mut self, number: u32, cx: &mut Context) {
        let Some(mut rows) = self.guests.remove(&number) else { return };
        let told = rows.tell(cx);
        for text in told {
            self.add_to_note(&text, cx);
        }
        rows.end(cx);
    }

    /// The guests that no record came from since `before`.
    pub fn silent(&self, before: Ns) -> impl Iterator<Item = u32> {
        self.guests.iter().filter(move |(_, rows)| rows.last_record() < before).map(|(n, _)| *n)
    }

    /// Writes into the source's note that it sees less than it was asked to, and why.
    pub fn add_to_note(&mut self, text: &str, cx: &mut Context) {
        if self.notes.iter().any(|known| known == text) {
            return;
        }
        if self.notes.len() >= NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(text.to_owned());
        let all: Vec<&str> = self.notes.iter().map(String::as_str).collect();
        cx.degraded(self.source, &all.join("; "));
    }

    /// When the latest device work that a guest reported ended.
    pub fn last_work(&self, number: u32) -> Option<Ns> {
        self.guests.get(&number)?.last_work
    }

    /// The step of each thread that began last, before `before`, and has not ended. `lives` says
    /// whether a thread lives, by the numbers of its process and its own; one that cannot be verified
    /// does not.
    pub fn open_steps(&self, before: Ns, lives: impl Fn(u32, u32) -> bool) -> Vec<OpenStep> {
        self.guests.values().flat_map(|rows| rows.open_steps(before, &lives)).collect()
    }

    /// Writes the steps that have begun and not ended, and the stages without a collective.
    pub fn finish(&mut self, cx: &mut Context) {
        let mut guests: Vec<_> = self.guests.drain().collect();
        guests.sort_unstable_by_key(|(number, _)| *number);
        for (_, mut rows) in guests {
            for text in rows.tell(cx) {
                self.add_to_note(&text, cx);
            }
            rows.finish(cx);
        }
    }
}

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod tests;
