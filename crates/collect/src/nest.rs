//! Spans of one thread that contain or follow each other, and never cross.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

/// Outermost spans that a later one may contain.
const RECENT: usize = 64;

/// The spans of one thread so far, told at their ends.
#[derive(Debug, Default)]
pub struct Nest {
    outer: VecDeque<(Ns, Ns)>,
}

impl Nest {
    /// Whether a span that ends last so far contains or follows each of the others. One that does
    /// not is not kept.
    pub fn fits(&mut self, start: Ns, end: Ns) -> bool {
        if end < start || self.outer.back().is_some_and(|&(_, last)| end < last) {
            return false;
        }
        let inside = self.outer.iter().rev().take_while(|(from, _)| *from >= start).count();
        let before = self.outer.len() - inside;
        if before > 0 && self.outer[before - 1].1 > start {
            return false;
        }
        self.outer.truncate(before);
        if self.outer.len() >= RECENT {
            self.outer.pop_front();
        }
        self.outer.push_back((start, end));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_lie_in_their_step_and_what_crosses_does_not_fit() {
        let mut nest = Nest::default();
        let mut fits = |start, end| nest.fits(Ns(start), Ns(end));
        assert!(fits(10, 20), "a phase");
        assert!(fits(20, 30), "the next one");
        assert!(!fits(25, 35), "crosses the last one");
        assert!(fits(5, 40), "the step around both");
        assert!(!fits(12, 41), "crosses the step");
        assert!(fits(40, 50), "the step after it");
        assert!(!fits(41, 45), "ends before one that was told before");
        assert!(fits(0, 50), "ends where the last one ends and contains it all");
    }
}
