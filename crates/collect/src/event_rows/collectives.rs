//! Communicators, their collectives, and the stages of these.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;
use gpuwhy_schema::{
    Attr, Collective, Discipline, EntityKind, Id, Lane, Name, Span, TrackId, names,
};

use super::{Devices, EventRows, KEPT, Times};
use crate::context::Context;

/// Collectives that are remembered after they were written, and those whose stages wait for them.
const REMEMBERED: usize = 1 << 12;

/// Stages of one collective that wait for it.
const STAGES: usize = 1 << 10;

/// A collective of one rank: process, number of the communicator in it, operation and its number.
type OperationKey = (u32, u16, Name, u64);

/// What is known of communicators and their collectives.
#[derive(Default)]
pub(super) struct Collectives {
    ranks: HashMap<(u32, u16), Rank>,
    /// Stages that arrived before their collectives.
    early_stages: HashMap<OperationKey, Vec<Span>>,
    /// The keys of `early_stages`, oldest first.
    early_order: VecDeque<OperationKey>,
    /// Collectives that were written.
    written: HashMap<OperationKey, Id>,
    /// The keys of `written`, oldest first.
    written_order: VecDeque<OperationKey>,
}

/// A process's place in a communicator.
struct Rank {
    communicator: u64,
    rank: u32,
    ranks: u32,
    collectives: TrackId,
    stages: TrackId,
}

impl EventRows {
    /// A communicator's rank in this process gets a track for its collectives, and one for their
    /// stages.
    pub(super) fn communicator(
        &mut self,
        (pid, number): (u32, u16),
        name: &str,
        communicator: u64,
        (rank, ranks): (u32, u32),
        cx: &mut Context,
    ) {
        if self.collectives.ranks.len() >= KEPT {
            self.collectives.ranks.clear();
        }
        if self.devices == Devices::Real {
            cx.plugins.add(pid);
        }
        let process = cx.process(pid, None);
        // The process is part of the key: the next job uses the numbers again.
        let key = format!("{communicator:016x}/{rank}@{pid}");
        let entity = cx.catalog.entity(EntityKind::Rank, &key, |e| {
            e.parent = Some(process);
            let of = if name.is_empty() { format!("{communicator:x}") } else { name.to_owned() };
            e.name = format!("rank {rank} of {of}").as_str().into();
            e.number = Some(i64::from(rank));
        });
        let (source, overlap) = (self.source, Discipline::Overlap);
        let kind = Lane::spans(names::COLLECTIVES, overlap);
        let collectives = cx.catalog.track(entity, None, kind, source);
        let kind = Lane::spans(names::COLLECTIVE_STAGES, overlap);
        let stages = cx.catalog.track(entity, Some(collectives), kind, source);
        let rank = Rank { communicator, rank, ranks, collectives, stages };
        self.collectives.ranks.insert((pid, number), rank);
    }

    /// A collective or message that has ended; `how` is its algorithm, protocol and channels. Its
    /// stages so far are written with it.
    pub(super) fn collective(
        &mut self,
        operation: OperationKey,
        times: Times,
        bytes: u64,
        (peer, how): (Option<u32>, Option<&str>),
        cx: &mut Context,
    ) {
        let Some(rank) = self.collectives.ranks.get(&(operation.0, operation.1)) else {
            self.dropped += 1;
            return;
        };
        let (op, seq) = (operation.2.clone(), operation.3);
        let (id, ts) = (cx.ids.next_id(), times.ts);
        let (track, name) = (rank.collectives, op.clone());
        cx.rows.span.push(Span { id, ts, dur: Some(times.dur), track, parent: None, name });
        let mut how = how.into_iter().flat_map(|how| how.split('/'));
        let mut word = || how.next().filter(|w| !w.is_empty() && *w != "?");
        let (algorithm, protocol) = (word().map(Name::from), word().map(Name::from));
        cx.rows.collective.push(Collective {
            id,
            ts,
            communicator: rank.communicator,
            seq,
            op,
            bytes,
            rank: rank.rank,
            ranks: rank.ranks,
            peer,
            algorithm,
            protocol,
            channels: word().and_then(|n| n.parse().ok()),
        });
        for mut stage in self.collectives.early_stages.remove(&operation).unwrap_or_default() {
            stage.parent = Some(id);
            cx.rows.span.push(stage);
        }
        self.collectives.remember(operation, id);
    }

    /// A stage is written with or after its collective, so that its parent is always in the trace.
    pub(super) fn stage(
        &mut self,
        operation: OperationKey,
        name: Name,
        times: Times,
        channel: Option<u32>,
        cx: &mut Context,
    ) {
        let Some(rank) = self.collectives.ranks.get(&(operation.0, operation.1)) else {
            self.dropped += 1;
            return;
        };
        let (id, ts, track) = (cx.ids.next_id(), times.ts, rank.stages);
        let mut stage = Span { id, ts, dur: Some(times.dur), track, parent: None, name };
        if let Some(channel) = channel {
            let (key, value) = ("channel".into(), channel.to_string().as_str().into());
            cx.rows.attr.push(Attr { id, key, value });
        }
        if let Some(&collective) = self.collectives.written.get(&operation) {
            stage.parent = Some(collective);
            cx.rows.span.push(stage);
        } else if !self.collectives.hold(operation, stage, cx) {
            self.dropped += 1;
        }
    }
}

impl Collectives {
    fn remember(&mut self, operation: OperationKey, id: Id) {
        if self.written.insert(operation.clone(), id).is_none() {
            self.written_order.push_back(operation);
        }
        if self.written_order.len() > REMEMBERED
            && let Some(oldest) = self.written_order.pop_front()
        {
            self.written.remove(&oldest);
        }
    }

    /// Holds a stage until its collective arrives; too old ones are written without a parent.
    /// Returns whether there was room.
    fn hold(&mut self, operation: OperationKey, stage: Span, cx: &mut Context) -> bool {
        let early = match self.early_stages.entry(operation) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                self.early_order.push_back(place.key().clone());
                place.insert(Vec::new())
            }
        };
        let fits = early.len() < STAGES;
        if fits {
            early.push(stage);
        }
        while self.early_order.len() > REMEMBERED {
            let oldest = self.early_order.pop_front();
            if let Some(orphans) = oldest.and_then(|key| self.early_stages.remove(&key)) {
                cx.rows.span.extend(orphans);
            }
        }
        fits
    }

    /// A process has ended: its communicators' numbers may be used again.
    pub fn process_ended(&mut self, pid: u32) {
        self.ranks.retain(|key, _| key.0 != pid);
    }

    /// Writes the stages whose collectives never arrived.
    pub fn finish(&mut self, cx: &mut Context) {
        let early = self.early_stages.drain();
        let mut orphans: Vec<Span> = early.flat_map(|(_, stages)| stages).collect();
        orphans.sort_unstable_by_key(|stage| stage.id);
        cx.rows.span.append(&mut orphans);
    }
}
