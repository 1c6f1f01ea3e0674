//! What the steps of engines that serve language models are made of.
//!
//! The records of a batch come before the end of its step, and what became of it with that step or, where an
//! engine makes the next batch before it has the output of the last one, in a later one. So a batch is held
//! until its step has ended and its output is there, or a few more steps have ended.

use std::collections::VecDeque;

use gpuwhy_schema::{Batch, BatchRequest, Id, Name, Ns};
use gpuwhy_wire::Event;

use super::GuestRows;
use crate::context::Context;
use crate::quota;

/// Steps that may end before the output of an earlier one.
const LATE: u8 = 4;

/// A request's part in a batch, as in its record.
pub(super) struct About {
    /// The step, if it is of one.
    pub step: Option<u64>,
    /// Tokens in the batch.
    pub tokens: u32,
    /// Tokens computed before.
    pub computed: u32,
}

/// The batches of one thread that are not yet written, oldest first.
#[derive(Default)]
pub(super) struct Batches {
    held: VecDeque<Held>,
}

struct Held {
    step: u32,
    row: Batch,
    changes: Vec<BatchRequest>,
    /// Steps that have ended since its own, itself included.
    ended: u8,
    has_output: bool,
}

impl Batches {
    fn of(&mut self, step: u32) -> Option<&mut Held> {
        self.held.iter_mut().rev().find(|held| held.step == step)
    }

    /// The step `seq` has ended, as this span at this time or as none: what is complete is written. How many
    /// changes are no longer held.
    pub fn step_ended(&mut self, seq: u64, span: Option<(Id, Ns)>, cx: &mut Context) -> usize {
        let mut freed = 0;
        let at = self.held.iter().rposition(|held| held.step == seq as u32 && held.ended == 0);
        match (at, span) {
            (Some(at), Some((id, ts))) => {
                let held = &mut self.held[at];
                (held.row.id, held.row.ts) = (id, ts);
                held.changes.iter_mut().for_each(|change| (change.batch, change.ts) = (id, ts));
                held.ended = 1;
            }
            (Some(at), None) => freed += self.held.remove(at).map_or(0, |held| held.changes.len()),
            (None, _) => {}
        }
        for held in self.held.iter_mut().filter(|held| held.ended > 0) {
            held.ended = held.ended.saturating_add(1);
        }
        freed + self.write(|held| held.ended > 1 && held.has_output || held.ended > LATE, cx)
    }

    /// The thread writes no more. How many changes are no longer held.
    pub fn finish(&mut self, cx: &mut Context) -> usize {
        let freed = self.write(|held| held.ended > 0, cx);
        freed + self.held.drain(..).map(|held| held.changes.len()).sum::<usize>()
    }

    fn write(&mut self, is_ready: impl Fn(&Held) -> bool, cx: &mut Context) -> usize {
        let mut freed = 0;
        for mut held in std::mem::take(&mut self.held) {
            if is_ready(&held) {
                freed += held.changes.len();
                cx.rows.batch.push(held.row);
                cx.rows.batch_request.append(&mut held.changes);
            } else {
                self.held.push_back(held);
            }
        }
        freed
    }
}

impl GuestRows {
    /// A record of a batch.
    pub(super) fn batch(
        &mut self,
        tid: u32,
        event: &Event<&Name>,
        at: Ns,
        cx: &mut Context,
    ) -> Option<()> {
        let instance = self.guest.process();
        let batches = &mut self.thread(tid, cx)?.batches;
        if let Event::Batch { name, step, digest, tokens, requests, .. } = *event {
            let mut lost = 0;
            if batches.held.len() >= quota::BATCHES {
                let oldest = batches.held.pop_front();
                lost = oldest.map_or(0, |held| held.changes.len());
            }
            let counts = (u64::from(tokens), u64::from(requests));
            // Its step is known when that ends.
            let row = Batch::bare((Id(0), at), (name.clone(), instance), digest, counts);
            let changes = Vec::new();
            batches.held.push_back(Held { step, row, changes, ended: 0, has_output: false });
            self.budget.held = self.budget.held.saturating_sub(lost);
            return Some(());
        }
        let some = |n: u32| Some(u64::from(n));
        match *event {
            Event::BatchWork { step, prefill_tokens, prefill_requests, context, .. } => {
                let row = &mut batches.of(step)?.row;
                row.prefill_tokens = some(prefill_tokens);
                row.prefill_requests = some(prefill_requests);
                row.context = Some(context);
            }
            Event::BatchChange { step, new, cached_tokens, preempted, drafts, .. } => {
                let row = &mut batches.of(step)?.row;
                (row.new_requests, row.cached_tokens) = (some(new), some(cached_tokens));
                (row.preempted, row.drafts) = (some(preempted), some(drafts));
            }
            Event::BatchQueue { step, running, waiting, cache_ppm, allocate_ns, .. } => {
                let row = &mut batches.of(step)?.row;
                (row.running, row.waiting) = (some(running), some(waiting));
                row.cache_ppm = some(cache_ppm);
                row.allocate = Some(Ns(i64::from(allocate_ns)));
            }
            Event::BatchOutput { step, padded, output_tokens, accepted, proposed, .. } => {
                let held = batches.of(step)?;
                held.row.padded = some(padded).filter(|n| *n > 0);
                held.row.output_tokens = some(output_tokens);
                (held.row.accepted, held.row.proposed) = (some(accepted), some(proposed));
                held.has_output = true;
                // Its step may have ended long ago.
                let freed = batches.write(|held| held.ended > 1 && held.has_output, cx);
                self.budget.held = self.budget.held.saturating_sub(freed);
            }
            _ => return None,
        }
        Some(())
    }

    /// A request's part in a batch changes. Whether that is held.
    pub(super) fn batch_change(
        &mut self,
        tid: u32,
        request: Id,
        state: Name,
        about: &About,
        cx: &mut Context,
    ) -> Option<()> {
        let step = about.step? as u32;
        let has_room = self.budget.held < quota::HELD_SPANS;
        let held = self.thread(tid, cx)?.batches.of(step)?;
        if !has_room || held.changes.len() >= quota::BATCH_CHANGES || held.ended > 0 {
            return None;
        }
        let (batch, ts) = (held.row.id, held.row.ts);
        let (tokens, computed) = (u64::from(about.tokens), u64::from(about.computed));
        held.changes.push(BatchRequest { batch, ts, request, state, tokens, computed });
        self.budget.held += 1;
        Some(())
    }
}
