//! A running total of the kernel as rows of what was added.

use gpuwhy_schema::{Counter, Ns, Rows, TrackId};

/// Turns a total that only grows into a delta counter: no rows while it stands still, and one
/// zero when it stops growing, so that a reader knows where the activity ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DeltaCounter {
    last: u64,
    moving: bool,
    track: Option<TrackId>,
}

impl DeltaCounter {
    /// A counter of what is added to `total` from now on.
    pub fn starting_at(total: u64) -> DeltaCounter {
        DeltaCounter { last: total, ..DeltaCounter::default() }
    }

    /// The same counter, without what was added up to now.
    pub fn rebased(self, total: u64) -> DeltaCounter {
        DeltaCounter { last: total, ..self }
    }

    /// The total is `total` now; `track` is called when the first row is due. A total that is less
    /// than before counts as standing still until it has caught up. Returns what was added.
    pub fn update(
        &mut self,
        total: u64,
        now: Ns,
        rows: &mut Rows,
        track: impl FnOnce() -> TrackId,
    ) -> u64 {
        let added = total.saturating_sub(self.last);
        self.last = self.last.max(total);
        self.add(added, now, rows, track);
        added
    }

    /// `added` was added; as [`DeltaCounter::update`] where the total is not known.
    pub fn add(&mut self, added: u64, now: Ns, rows: &mut Rows, track: impl FnOnce() -> TrackId) {
        if added == 0 && !self.moving {
            return;
        }
        self.moving = added != 0;
        let track = *self.track.get_or_insert_with(track);
        rows.counter.push(Counter { ts: now, track, value: added as f64 });
    }

    /// Whether a closing zero is due if nothing more is added.
    pub fn is_moving(&self) -> bool {
        self.moving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_written_and_its_end_once() {
        let (mut counter, mut rows) = (DeltaCounter::starting_at(10), Rows::default());
        for (i, total) in [10, 10, 14, 19, 19, 19, 18, 20, 20].into_iter().enumerate() {
            counter.update(total, Ns(i as i64), &mut rows, || TrackId(7));
        }
        let written: Vec<_> = rows.counter.iter().map(|c| (c.ts.0, c.value)).collect();
        assert_eq!(written, [(2, 4.0), (3, 5.0), (4, 0.0), (7, 1.0), (8, 0.0)]);
    }
}
