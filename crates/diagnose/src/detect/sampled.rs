//! A few steps of a stretch of time, at equal distances, however many it has.

use super::StepNo;

/// Steps of a stretch, and what was measured of each.
#[derive(Debug)]
pub(crate) struct Sampled {
    of: Vec<(f64, StepNo)>,
    most: usize,
    /// Of so many steps one is taken.
    stride: usize,
    skipped: usize,
}

impl Sampled {
    /// None yet; `most` is how many are held at most.
    pub fn new(most: usize) -> Sampled {
        Sampled { of: Vec::new(), most, stride: 1, skipped: 0 }
    }

    /// Takes the next step, or passes over it.
    pub fn step(&mut self, measured: f64, no: StepNo) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        if self.of.len() == self.most {
            // The later of each two, as the next one follows at the same distance.
            every_other(&mut self.of, 0);
            self.stride *= 2;
        }
        self.of.push((measured, no));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Those of the stretch that has ended; the next one begins.
    pub fn take(&mut self) -> Vec<(f64, StepNo)> {
        (self.stride, self.skipped) = (1, 0);
        std::mem::take(&mut self.of)
    }

    /// Forgets the steps before `first`.
    pub fn forget(&mut self, first: StepNo) {
        self.of.retain(|(_, no)| *no >= first);
    }
}

/// Keeps every other one: with 1 the first, third and so on, with 0 the second, fourth and so on.
pub(crate) fn every_other<T>(list: &mut Vec<T>, which: usize) {
    let mut nth = 0;
    list.retain(|_| {
        nth += 1;
        nth % 2 == which
    });
}
