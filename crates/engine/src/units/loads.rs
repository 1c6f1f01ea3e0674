//! What steps of engines that serve language models should take, by their batches.

use std::collections::{HashMap, HashSet, VecDeque};

use gpuwhy_diagnose::detect::{Expected, Step};
use gpuwhy_diagnose::roofline::{Fit, Load, Mix, Roofline};
use gpuwhy_schema::{Batch, EntityId, Id, Name};

use crate::error::Result;
use crate::source::{EVER, TraceSource, all};

/// A step whose batch is not known is held back until so many others of its series have ended; an engine that makes the
/// next batch before it has the output of the last one writes batches that late (`collect`, `LATE`).
const LATE: usize = 6;
/// Steps that were passed on without a batch, in case one comes.
const PASSED: usize = 256;
/// Series that are learned.
const SERIES: usize = 256;
/// Batches that wait for their steps.
const WAITING: usize = 4096;

/// Steps of one thread and name.
type Key = (EntityId, Name);

/// What there is to do in a batch.
fn load(batch: &Batch) -> Load {
    let number = |n: Option<u64>| n.unwrap_or(0) as f64;
    let (tokens, requests) = (batch.tokens as f64, batch.requests as f64);
    // Who does not say which tokens are those of prompts computes one for each request, or a prompt.
    let prefill = match batch.prefill_tokens {
        Some(tokens) => tokens as f64,
        None if tokens > requests + number(batch.drafts) => tokens,
        None => 0.0,
    };
    Load {
        prefill,
        prefill_requests: number(batch.prefill_requests),
        decode: (tokens - prefill).max(0.0),
        context: number(batch.context),
        requests,
        drafts: number(batch.drafts),
    }
}

/// What was learned of steps, by series and the kind of batch.
#[derive(Default)]
struct Models(HashMap<(Key, Mix), Roofline>);

/// Where prices of a recording before are looked up: those of a step's series, and of the kind of batch.
pub type Stored<'a> = &'a mut dyn FnMut(&Step, Mix) -> Option<Fit>;

impl Models {
    /// What a step should take by what was learned before; it is learned too.
    fn expected(
        &mut self,
        key: &Key,
        load: Option<&Load>,
        step: &Step,
        stored: Stored<'_>,
    ) -> Expected {
        // An engine has steps without a token too, in which it does something else.
        let Some(load) = load.filter(|load| load.prefill + load.decode > 0.0) else {
            return Expected::NotKnown(Mix::Mixed);
        };
        let mix = load.mix();
        let knowing = || Roofline::knowing(stored(step, mix));
        let model = self.0.entry((key.clone(), mix)).or_insert_with(knowing);
        let expected = model.fit().map(|fit| fit.expects(load));
        let first_ns = model.expected_first(load);
        model.learn(load, step.dur.0 as f64, step.end().0 as f64 / 1e9);
        expected.map_or(Expected::NotKnown(mix), |ns| Expected::Priced { mix, ns, first_ns })
    }
}

/// What steps should take by their batches, as far as that was learned from the steps before.
#[derive(Default)]
pub struct Loads {
    models: Models,
    /// Batches whose steps have not ended.
    batches: HashMap<Id, Load>,
    /// Series whose steps have batches, and those of them that wait for theirs.
    held: HashMap<Key, VecDeque<Step>>,
    passed: VecDeque<(Id, Key)>,
}

impl Loads {
    /// Takes steps that ended, in their order, and batches that arrived. Returns steps with what they should take: of those
    /// that have batches as many as are known by now.
    pub fn take(&mut self, steps: Vec<Step>, batches: &[Batch], stored: Stored<'_>) -> Vec<Step> {
        if batches.is_empty() && self.held.is_empty() {
            steps.iter().for_each(|step| self.pass(step));
            return steps;
        }
        for batch in batches {
            if self.batches.len() < WAITING {
                self.batches.insert(batch.id, load(batch));
            }
            if let Some((_, key)) = self.passed.iter().find(|(id, _)| *id == batch.id) {
                self.held.entry(key.clone()).or_default();
                self.batches.remove(&batch.id);
            }
        }
        let mut out = Vec::with_capacity(steps.len());
        let mut touched: HashSet<Key> = self.held.keys().cloned().collect();
        for step in steps {
            let key = (step.thread, step.name.clone());
            if self.batches.contains_key(&step.id) && self.held.len() < SERIES {
                self.held.entry(key.clone()).or_default();
            }
            match self.held.get_mut(&key) {
                Some(held) => {
                    held.push_back(step);
                    touched.insert(key);
                }
                None => {
                    self.pass(&step);
                    out.push(step);
                }
            }
        }
        for key in touched {
            self.release(&key, &mut out, stored);
        }
        out.sort_by_key(|step| (step.end(), step.ts, step.id));
        out
    }

    /// The prices of a series and kind of batch that were known first, as far as they are known.
    pub fn first(&self, thread: EntityId, name: &Name, mix: Mix) -> Option<Fit> {
        self.models.0.get(&((thread, name.clone()), mix))?.first()
    }

    fn pass(&mut self, step: &Step) {
        if self.passed.len() == PASSED {
            self.passed.pop_front();
        }
        self.passed.push_back((step.id, (step.thread, step.name.clone())));
    }

    /// The held steps of a series whose batches are known, or will not be.
    fn release(&mut self, key: &Key, out: &mut Vec<Step>, stored: Stored<'_>) {
        let Some(held) = self.held.get_mut(key) else { return };
        while let Some(first) = held.front() {
            let known = self.batches.remove(&first.id);
            if known.is_none() && held.len() <= LATE {
                return;
            }
            let Some(mut step) = held.pop_front() else { return };
            step.expected = self.models.expected(key, known.as_ref(), &step, stored);
            out.push(step);
        }
    }
}

/// What all steps of a trace were made of, and what was learned of them.
#[derive(Default)]
pub struct Learned {
    batches: Vec<Batch>,
    models: Models,
    series: HashMap<Id, Key>,
    places: HashMap<Id, usize>,
}

impl Learned {
    /// The batches.
    pub fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.batches.iter()
    }

    /// Of the batches, the share whose prices are known.
    pub fn share(&self) -> f64 {
        let known =
            self.batches.iter().filter(|batch| self.with_and_without(batch.id, 0).is_some());
        known.count() as f64 / self.batches.len().max(1) as f64
    }

    /// What a step should take, by prices learned of all steps; and what it would without the prompts of others, if a
    /// request takes `own` tokens of it: ns.
    pub fn with_and_without(&self, step: Id, own: u64) -> Option<(f64, f64)> {
        let load = load(self.batches.get(*self.places.get(&step)?)?);
        let key = self.series.get(&step)?;
        let fit = |mix| self.models.0.get(&(key.clone(), mix))?.fit();
        let prices = fit(load.mix())?;
        let expected = prices.expects(&load);
        // More tokens than one are those of a prompt, or drafts.
        let own_prompt = if own as f64 > 1.0 + load.drafts { own as f64 } else { 0.0 };
        let others = load.prefill - own_prompt;
        let others_in = load.prefill_requests - f64::from(u8::from(own_prompt > 0.0));
        if others < 1.0 || others_in < 1.0 {
            return Some((expected, expected));
        }
        let without = Load {
            prefill: own_prompt,
            prefill_requests: load.prefill_requests - others_in,
            requests: (load.requests - others_in).max(1.0),
            ..load
        };
        // A kind of step that never came alone has no price: then the same prices with nothing to pay for prompts.
        let alone = fit(without.mix()).unwrap_or(prices).expects(&without);
        Some((expected, alone.min(expected)))
    }
}

/// Learns what the steps of a trace take, and sets what each should have taken.
///
/// # Errors
/// The trace cannot be read.
pub fn learn(source: &TraceSource, steps: &mut [Step]) -> Result<Learned> {
    let batches: Vec<Batch> = all(source.trace(), EVER)?;
    if batches.is_empty() {
        return Ok(Learned::default());
    }
    let loads: HashMap<Id, Load> = batches.iter().map(|batch| (batch.id, load(batch))).collect();
    let key = |step: &Step| (step.thread, step.name.clone());
    let with = steps.iter().filter(|step| loads.contains_key(&step.id)).map(key);
    let with: HashSet<Key> = with.collect();
    let mut models = Models::default();
    for step in steps.iter_mut() {
        let key = key(step);
        if with.contains(&key) {
            step.expected = models.expected(&key, loads.get(&step.id), step, &mut |_, _| None);
        }
    }
    let series = steps.iter().filter(|step| loads.contains_key(&step.id));
    let series = series.map(|step| (step.id, key(step))).collect();
    let places = batches.iter().enumerate().map(|(at, batch)| (batch.id, at)).collect();
    Ok(Learned { batches, models, series, places })
}

#[cfg(test)]
mod tests;
