//! Sums that become rows of delta counters once a tick, as the recorder writes them.

use gpuwhy_schema::{Counter, Ns, Rows, TrackId};

/// Over so long values are summed.
const TICK: i64 = 10_000_000;

/// What came up since the last row.
#[derive(Debug)]
pub(super) struct Sum {
    track: TrackId,
    since: i64,
    value: f64,
}

impl Sum {
    /// Nothing yet.
    pub fn new(track: TrackId) -> Sum {
        Sum { track, since: i64::MIN, value: 0.0 }
    }

    /// The track that its rows lie on.
    pub fn track(&self) -> TrackId {
        self.track
    }

    /// Adds what came up between `from` and `now`; the row before it says when that began.
    pub fn add(&mut self, value: f64, from: i64, now: i64, rows: &mut Rows) {
        if self.value == 0.0 {
            self.since = from.max(self.since);
            rows.counter.push(Counter { ts: Ns(self.since), track: self.track, value: 0.0 });
        }
        self.value += value;
        if now.saturating_sub(self.since) >= TICK {
            self.flush(now, rows);
        }
    }

    /// Writes what has come up.
    pub fn flush(&mut self, now: i64, rows: &mut Rows) {
        if self.value > 0.0 {
            let now = now.max(self.since);
            rows.counter.push(Counter { ts: Ns(now), track: self.track, value: self.value });
            (self.value, self.since) = (0.0, now);
        }
    }
}
