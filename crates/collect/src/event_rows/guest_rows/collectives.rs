//! Communicators, their collectives, and the stages of these.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use foldhash::HashMap;
use gpuwhy_schema::{
    Attr, Collective, Discipline, EntityId, EntityKind, Id, Lane, Name, Span, TrackId, names,
};

use super::GuestRows;
use crate::context::Context;
use crate::event_rows::{Devices, Times};
use crate::quota;

/// Stages of one collective that wait for it.
const STAGES: usize = 1 << 10;

/// A collective of one rank: the number of its communicator in the process, operation and its number.
type OperationKey = (u16, Name, u64);

/// What is known of communicators and their collectives.
#[derive(Default)]
pub(super) struct Collectives {
    ranks: HashMap<u16, Rank>,
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
    entity: EntityId,
    communicator: u64,
    rank: u32,
    ranks: u32,
    collectives: TrackId,
    stages: TrackId,
}

impl GuestRows {
    /// A communicator's rank in this process gets a track for its collectives, and one for their
    /// stages.
    pub(super) fn communicator(
        &mut self,
        number: u16,
        name: &str,
        communicator: u64,
        (rank, ranks): (u32, u32),
        cx: &mut Context,
    ) -> Option<()> {
        let known = self.collectives.ranks.get_mut(&number);
        if let Some(known) = known.filter(|r| (r.communicator, r.rank) == (communicator, rank)) {
            known.ranks = ranks;
            return Some(());
        }
        // The number was given to another communicator.
        if let Some(before) = self.collectives.ranks.remove(&number) {
            self.end_rank(&before, cx);
        }
        if let (Devices::Real, Some(host)) = (self.devices, self.guest.host()) {
            cx.plugins.add(host.pid);
        }
        let process = self.guest.process();
        // The process is part of the key: the next job uses the numbers again.
        let key = format!("{communicator:016x}/{rank}@{}:{number}", self.guest.key());
        let entity = self.entity(EntityKind::Rank, &key, cx, |e| {
            e.parent = Some(process);
            let of = if name.is_empty() { format!("{communicator:x}") } else { name.to_owned() };
            e.name = format!("rank {rank} of {of}").as_str().into();
            e.number = Some(i64::from(rank));
        })?;
        let kind = |name| Lane::spans(name, Discipline::Overlap);
        let collectives = self.track(entity, None, kind(names::COLLECTIVES), cx);
        let stages = collectives
            .and_then(|above| self.track(entity, Some(above), kind(names::COLLECTIVE_STAGES), cx));
        let (Some(collectives), Some(stages)) = (collectives, stages) else {
            self.budget.give_back(usize::from(collectives.is_some()));
            cx.catalog.retire(entity, self.now);
            return None;
        };
        let rank = Rank { entity, communicator, rank, ranks, collectives, stages };
        self.collectives.ranks.insert(number, rank);
        Some(())
    }

    fn end_rank(&mut self, rank: &Rank, cx: &mut Context) {
        self.budget.give_back(2);
        cx.catalog.retire(rank.entity, self.now);
    }

    /// The guest has ended: so have its ranks.
    pub(super) fn end_ranks(&mut self, cx: &mut Context) {
        for rank in std::mem::take(&mut self.collectives.ranks).into_values() {
            self.end_rank(&rank, cx);
        }
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
    ) -> Option<()> {
        let rank = self.collectives.ranks.get(&operation.0)?;
        let (op, seq) = (operation.1.clone(), operation.2);
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
        let early = self.collectives.early_stages.remove(&operation).unwrap_or_default();
        self.budget.held = self.budget.held.saturating_sub(early.len());
        for mut stage in early {
            stage.parent = Some(id);
            cx.rows.span.push(stage);
        }
        let most = quota::share(quota::REMEMBERED, self.guests);
        self.collectives.remember(operation, id, most);
        Some(())
    }

    /// A stage is written with or after its collective, so that its parent is always in the trace.
    pub(super) fn stage(
        &mut self,
        operation: OperationKey,
        name: Name,
        times: Times,
        channel: Option<u32>,
        cx: &mut Context,
    ) -> Option<()> {
        let rank = self.collectives.ranks.get(&operation.0)?;
        let (id, ts, track) = (cx.ids.next_id(), times.ts, rank.stages);
        let mut stage = Span { id, ts, dur: Some(times.dur), track, parent: None, name };
        let written = self.collectives.written.get(&operation).copied();
        stage.parent = written;
        if written.is_some() {
            cx.rows.span.push(stage);
        } else {
            let most = quota::share(quota::REMEMBERED, self.guests);
            if self.budget.held >= quota::HELD_SPANS {
                return None;
            }
            let orphans = self.collectives.hold(operation, stage, most)?;
            self.budget.held = (self.budget.held + 1).saturating_sub(orphans.len());
            cx.rows.span.extend(orphans);
        }
        if let Some(channel) = channel {
            let (key, value) = ("channel".into(), channel.to_string().as_str().into());
            cx.rows.attr.push(Attr { id, key, value });
        }
        Some(())
    }
}

impl Collectives {
    fn remember(&mut self, operation: OperationKey, id: Id, most: usize) {
        if self.written.insert(operation.clone(), id).is_none() {
            self.written_order.push_back(operation);
        }
        while self.written_order.len() > most
            && let Some(oldest) = self.written_order.pop_front()
        {
            self.written.remove(&oldest);
        }
    }

    /// Holds a stage until its collective arrives. Returns those that have waited too long for theirs,
    /// which are to be written without it; `None` if there was no room.
    fn hold(&mut self, operation: OperationKey, stage: Span, most: usize) -> Option<Vec<Span>> {
        let early = match self.early_stages.entry(operation) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                self.early_order.push_back(place.key().clone());
                place.insert(Vec::new())
            }
        };
        if early.len() >= STAGES {
            return None;
        }
        early.push(stage);
        let mut orphans = Vec::new();
        while self.early_order.len() > most {
            let oldest = self.early_order.pop_front();
            orphans.extend(
                oldest.and_then(|key| self.early_stages.remove(&key)).into_iter().flatten(),
            );
        }
        Some(orphans)
    }

    /// Writes the stages whose collectives never arrived.
    pub fn finish(&mut self, cx: &mut Context) {
        let early = self.early_stages.drain();
        let mut orphans: Vec<Span> = early.flat_map(|(_, stages)| stages).collect();
        orphans.sort_unstable_by_key(|stage| stage.id);
        cx.rows.span.append(&mut orphans);
    }
}
