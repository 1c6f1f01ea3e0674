//! Spans of one thread, which contain or follow each other but never cross.

use std::collections::VecDeque;

use gpuwhy_schema::Ns;

/// Outermost spans that are remembered, as a later span may contain them.
const REMEMBERED: usize = 64;

/// The spans of one thread so far, in the order of their ends.
#[derive(Debug, Default)]
pub(crate) struct SpanNesting {
    outermost: VecDeque<(Ns, Ns)>,
}

impl SpanNesting {
    /// Adds a span that ends after all others so far, if it contains or follows each of them.
    /// Returns whether it was added.
    pub fn fits(&mut self, start: Ns, end: Ns) -> bool {
        if end < start || self.outermost.back().is_some_and(|&(_, last)| end < last) {
            return false;
        }
        let inside = self.outermost.iter().rev().take_while(|(from, _)| *from >= start).count();
        let before = self.outermost.len() - inside;
        if before > 0 && self.outermost[before - 1].1 > start {
            return false;
        }
        self.outermost.truncate(before);
        if self.outermost.len() >= REMEMBERED {
            self.outermost.pop_front();
        }
        self.outermost.push_back((start, end));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_lie_in_their_step_and_a_crossing_span_does_not_fit() {
        let mut nesting = SpanNesting::default();
        let mut fits = |start, end| nesting.fits(Ns(start), Ns(end));
        assert!(fits(10, 20), "a phase");
        assert!(fits(20, 30), "the next one");
        assert!(!fits(25, 35), "crosses the last one");
        assert!(fits(5, 40), "the step around both");
        assert!(!fits(12, 41), "crosses the step");
        assert!(fits(40, 50), "the step after it");
        assert!(!fits(41, 45), "ends before an earlier one");
        assert!(fits(0, 50), "ends where the last one ends and contains all");
    }
}
