//! What usual steps were made of, kept longer than their rows.
//!
//! Rows are held for half a minute, and for less where there are many. The usual steps that an incident is compared with
//! are older where one incident follows another, where steps take nearly as long as that, where what is slow was for a
//! while not worth reporting, and where steps have become slower little by little. So a few steps of each series are
//! accounted for once a minute while everything is as usual.

use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_diagnose::detect::{Against, Incident, Signature, Slowed, Step, StepNo, Steps};
use gpuwhy_schema::{Id, Ns};

use crate::account::KnownParts;

/// Steps are sampled for the second time so long after the first, later at twice the distance from one to the next,
const SOON: Ns = Ns::secs(5);
/// and at last so often,
const EVERY: Ns = Ns::secs(60);
/// of so many series at most, those that come first;
const SERIES: usize = 16;
/// how many steps of each,
pub(super) const STEPS: usize = 8;
/// of those that began so lately, or of so many if they are long.
const WITHIN: Ns = Ns::millis(1500);
/// Samples of a series that are kept, the closer together the later they are.
const SAMPLES: usize = 6;
/// Parts of a sample at most; one that has more is not kept.
const PARTS: usize = 4096;

/// Usual steps of one moment.
struct Sample {
    ts: Ns,
    steps: Vec<StepNo>,
}

/// Usual steps of some series, with their parts.
#[derive(Default)]
pub(super) struct Usual {
    series: BTreeMap<Signature, Vec<Sample>>,
    known: KnownParts,
    /// When steps are sampled next, and how long after the last time.
    next: Option<(Ns, Ns)>,
}

/// Steps of a series that are to be sampled.
pub(super) type Chosen = (Signature, Vec<StepNo>);

impl Usual {
    /// Whether steps are to be sampled.
    pub(super) fn is_due(&self, now: Ns) -> bool {
        self.next.is_none_or(|(at, _)| now >= at)
    }

    /// The steps to sample, of the `usual` ones of each series (oldest first): of those whose rows are held, spread over
    /// the last moments.
    pub(super) fn choose<'a>(
        &self,
        usual: impl Iterator<Item = (&'a Signature, &'a [StepNo])>,
        steps: &Steps,
        now: Ns,
        covers: impl Fn(&Step) -> bool,
    ) -> Vec<Chosen> {
        let since = now.saturating_sub(WITHIN);
        let is_kept = |signature: &Signature| {
            self.series.contains_key(signature) || self.series.len() < SERIES
        };
        let of_series = |(signature, usual): (&Signature, &[StepNo])| {
            let held = usual.iter().rev().copied().skip_while(|no| !covers(&steps[*no]));
            let held: Vec<StepNo> = held.take_while(|no| covers(&steps[*no])).collect();
            let late = held.iter().take_while(|no| steps[**no].ts >= since).count();
            let among = &held[..late.max(STEPS).min(held.len())];
            let apart = among.len().div_ceil(STEPS).max(1);
            let mut chosen: Vec<StepNo> = among.iter().copied().step_by(apart).collect();
            chosen.reverse();
            (chosen.len() == STEPS || apart > 1).then(|| (signature.clone(), chosen))
        };
        usual
            .filter(|(signature, _)| is_kept(signature))
            .filter_map(of_series)
            .take(SERIES)
            .collect()
    }

    /// Takes the parts of chosen steps.
    pub(super) fn take(&mut self, chosen: Vec<Chosen>, now: Ns, steps: &Steps, known: &KnownParts) {
        let apart = self.next.map_or(SOON, |(_, apart)| Ns(2 * apart.0).min(EVERY));
        self.next = Some((now.saturating_add(apart), apart));
        let mut let_go = false;
        for (signature, numbers) in chosen {
            let fresh = known.of(&ids(&numbers, steps));
            let is_new = !self.series.contains_key(&signature);
            if fresh.parts.is_empty()
                || fresh.parts.len() > PARTS
                || is_new && self.series.len() >= SERIES
            {
                continue;
            }
            self.known.extend(fresh);
            let samples = self.series.entry(signature).or_default();
            samples.push(Sample { ts: now, steps: numbers });
            if samples.len() > SAMPLES {
                samples.remove(most_alike(samples, now));
                let_go = true;
            }
        }
        if let_go {
            self.keep_sampled(steps);
        }
    }

    /// Forgets the parts of steps that stand in no sample any more. Of few or long steps the last ones are sampled again, so that
    /// one may stand in several.
    fn keep_sampled(&mut self, steps: &Steps) {
        let samples = self.series.values().flatten();
        let left: BTreeSet<StepNo> = samples.flat_map(|one| one.steps.iter().copied()).collect();
        let left: Vec<StepNo> = left.into_iter().collect();
        let mut known = KnownParts::default();
        known.extend(self.known.of(&ids(&left, steps)));
        self.known = known;
    }

    /// Forgets samples of steps that are not remembered.
    pub(super) fn forget(&mut self, steps: &Steps) {
        let Some((first, _)) = steps.numbered().next() else { return };
        let is_old = |sample: &Sample| sample.steps.iter().any(|no| *no < first);
        if !self.series.values().flatten().any(is_old) {
            return;
        }
        self.series.values_mut().for_each(|samples| samples.retain(|sample| !is_old(sample)));
        self.series.retain(|_, samples| !samples.is_empty());
        self.keep_sampled(steps);
    }

    /// An incident with sampled steps of those of its series of which the rows of no usual step are held: their parts
    /// are `known` then.
    pub(super) fn complete(
        &self,
        incident: &Incident,
        steps: &Steps,
        known: &mut KnownParts,
        covers: impl Fn(&Step) -> bool,
    ) -> Incident {
        let mut incident = incident.clone();
        for slowed in &mut incident.slowed {
            let is_available = |no: &StepNo| known.contains(steps[*no].id) || covers(&steps[*no]);
            if slowed.usual.iter().any(is_available) {
                continue;
            }
            let Some(sample) = self.of(slowed, incident.from) else { continue };
            known.extend(self.known.of(&ids(&sample.steps, steps)));
            slowed.usual.extend(&sample.steps);
            slowed.usual.sort_unstable();
            slowed.usual.dedup();
        }
        incident
    }

    /// The sample of a series that shows what was usual: the last one before an onset, or that of when steps took what they
    /// do no more.
    fn of(&self, slowed: &Slowed, onset: Ns) -> Option<&Sample> {
        let of_all = Signature { kind: 0, ..slowed.signature.clone() };
        let samples = match slowed.against {
            Against::Lately | Against::Longest => self.series.get(&slowed.signature),
            Against::Drifted(_) => self.series.get(&of_all),
            Against::Reference => None,
        };
        let mut before = samples?.iter().filter(|sample| sample.ts <= onset);
        match slowed.against {
            Against::Drifted(of) => before.min_by_key(|sample| (sample.ts.0 - of.since.0).abs()),
            _ => before.next_back(),
        }
    }
}

/// The ids of steps.
fn ids(numbers: &[StepNo], steps: &Steps) -> Vec<Id> {
    numbers.iter().map(|no| steps[*no].id).collect()
}

/// Which of many samples is missed least: it lies between two that are close to each other for how long ago they were.
fn most_alike(samples: &[Sample], now: Ns) -> usize {
    let between = |at: &usize| {
        let apart = (samples[at + 1].ts - samples[at - 1].ts).0 as f64;
        apart / (now - samples[*at].ts).0.max(1) as f64
    };
    let inner = 1..samples.len().saturating_sub(1);
    inner.min_by(|a, b| between(a).total_cmp(&between(b))).unwrap_or(0)
}

#[cfg(test)]
mod tests;
