//! How much a peer may do a second.

use std::collections::HashMap;

use gpuwhy_schema::Ns;

/// So much a second, and so much at once. What was taken beyond it must be waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    each_second: f64,
    burst: f64,
    level: f64,
    at: Ns,
}

impl Bucket {
    pub fn new(each_second: f64, burst: f64, now: Ns) -> Bucket {
        Bucket { each_second, burst, level: burst, at: now }
    }

    fn fill(&mut self, now: Ns) {
        let passed = now.saturating_sub(self.at).max(Ns::ZERO).as_secs_f64();
        self.level = (self.level + passed * self.each_second).min(self.burst);
        self.at = self.at.max(now);
    }

    /// Takes `n` of what is there, and owes the rest.
    pub fn take(&mut self, n: usize, now: Ns) {
        self.fill(now);
        self.level -= n as f64;
    }

    /// Takes one, if it is there.
    pub fn try_take(&mut self, now: Ns) -> bool {
        self.fill(now);
        let there = self.level >= 1.0;
        if there {
            self.level -= 1.0;
        }
        there
    }

    /// Whether nothing is owed.
    pub fn has_some(&mut self, now: Ns) -> bool {
        self.fill(now);
        self.level > 0.0
    }

    /// Whether half of a burst could be taken.
    fn is_calm(&mut self, now: Ns) -> bool {
        self.fill(now);
        self.level >= self.burst / 2.0
    }
}

/// Bytes and lines of a connection. One that sends more is read more slowly; one that does so for longer than
/// [`Flow::FLOOD`] is a flood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    bytes: Bucket,
    lines: Bucket,
    throttled: Option<Ns>,
}

impl Flow {
    /// A connection that was throttled for so long without a pause is closed.
    pub const FLOOD: Ns = Ns::secs(10);

    pub fn new(bytes: (f64, f64), lines: (f64, f64), now: Ns) -> Flow {
        Flow {
            bytes: Bucket::new(bytes.0, bytes.1, now),
            lines: Bucket::new(lines.0, lines.1, now),
            throttled: None,
        }
    }

    /// Counts what was read.
    pub fn read(&mut self, bytes: usize, lines: usize, now: Ns) {
        self.bytes.take(bytes, now);
        self.lines.take(lines, now);
        self.may_read(now);
    }

    /// Whether more may be read now.
    pub fn may_read(&mut self, now: Ns) -> bool {
        let may = self.bytes.has_some(now) && self.lines.has_some(now);
        if !may {
            self.throttled.get_or_insert(now);
        } else if self.throttled.is_some() && self.bytes.is_calm(now) && self.lines.is_calm(now) {
            self.throttled = None;
        }
        may
    }

    /// Whether it has been too much for too long.
    pub fn is_flood(&mut self, now: Ns) -> bool {
        self.may_read(now);
        self.throttled.is_some_and(|since| now >= since.saturating_add(Flow::FLOOD))
    }
}

/// What is worth telling once, and then with how often it happened since.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    told: HashMap<String, (Ns, u64)>,
}

impl Complaints {
    /// What happens again within this time is counted only.
    const AGAIN: Ns = Ns::secs(60);
    /// Different things that are told apart.
    const MOST: usize = 256;

    /// Whether to tell of `what` now: how often it happened since it was told last.
    pub fn tell(&mut self, what: &str, now: Ns) -> Option<u64> {
        let full = self.told.len() >= Complaints::MOST;
        if full && !self.told.contains_key(what) {
            self.told.retain(|_, (at, _)| now < at.saturating_add(Complaints::AGAIN));
        }
        let full = self.told.len() >= Complaints::MOST && !self.told.contains_key(what);
        let key = if full { "" } else { what };
        match self.told.get_mut(key) {
            Some((at, more)) if now < at.saturating_add(Complaints::AGAIN) => {
                *more += 1;
                None
            }
            Some((at, more)) => {
                *at = now;
                Some(std::mem::take(more))
            }
            None => {
                self.told.insert(key.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_slowed_down_and_a_flood_is_recognised() {
        let mut flow = Flow::new((1000.0, 4000.0), (10.0, 100.0), Ns::ZERO);
        flow.read(10_000, 1, Ns::ZERO);
        assert!(!flow.may_read(Ns::secs(5)) && flow.may_read(Ns::secs(7)));
        assert!(!flow.is_flood(Ns::secs(60)), "one burst is none");
        for tenth in 600..800 {
            let now = Ns::millis(tenth * 100);
            if flow.may_read(now) {
                flow.read(5000, 1, now);
            }
        }
        assert!(flow.is_flood(Ns::secs(80)));
    }

    #[test]
    fn what_happens_all_the_time_is_told_once_a_minute_with_its_number() {
        let mut complaints = Complaints::default();
        let mut told = vec![];
        for second in 0..130 {
            told.extend(complaints.tell("a", Ns::secs(second)).map(|n| (second, n)));
        }
        assert_eq!(told, [(0, 0), (60, 59), (120, 59)]);
        let told =
            (0..10_000).filter_map(|n| complaints.tell(&format!("{n}"), Ns::secs(130))).count();
        assert!(told <= Complaints::MOST, "{told}");
    }
}
