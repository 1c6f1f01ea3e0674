//! What a step of an engine that serves language models usually takes, by what there is to do in it.
//!
//! # What it sees
//! Of each step its batch: tokens of prompts, tokens of answers, tokens computed before, requests; and its duration. For
//! each series and [`Mix`] the durations of up to 1,024 steps are fitted by a sum of terms that are not negative:
//! a constant, and a price for each token of a prompt, for each pair of tokens within a prompt (attention), for each
//! token of an answer, each token of context and each request. The fit is that of the median of the
//! relative error (least absolute deviations), so that a third of slow steps among them hardly moves it.
//!
//! # Why it matters
//! Steps of any length are silent in a judgement by duration: a prompt of 900 tokens takes a hundred times as long as a
//! token of an answer. Divided by what its batch should take, each step says whether it was slow. A line through the
//! 99th percentiles (StriaTrace, section 4.2) calls one healthy step in a hundred slow by its construction, and has no
//! percentiles where each length comes once.
//!
//! # What fools it
//! Costs that the batch does not show: which experts tokens go to, the kind of sampling, adapters. A series that is
//! slow from its first step on: what is usual is learned from it.

use std::collections::VecDeque;

/// Terms of the sum.
const TERMS: usize = 6;
/// Steps that are kept of one mix.
const KEPT: usize = 1024;
/// Steps that a fit needs.
const NEEDED: usize = 48;
/// A fit is made anew after so many more steps, and after a quarter more than it was made of.
const REFIT: usize = 128;
/// Beyond as many steps as are needed, one is learned in so much time, so that what is usual spans minutes.
const SPACING: f64 = 0.3;
/// How often the weights of a fit are computed, and how often its terms are adjusted for each.
const ROUNDS: usize = 12;
const SWEEPS: usize = 24;
/// Of steps with so many times as much to do as any that was learned, stored prices say nothing.
const BEYOND: f64 = 1.25;
/// Relative errors less than this are equally good.
const FINEST: f64 = 0.01;

/// What there is to do in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Tokens of prompts.
    pub prefill: f64,
    /// Requests whose prompts they are.
    pub prefill_requests: f64,
    /// Tokens of answers, drafts among them.
    pub decode: f64,
    /// Tokens computed before.
    pub context: f64,
    /// Requests.
    pub requests: f64,
    /// Drafts among the tokens.
    pub drafts: f64,
}

/// What kind of step it is: what is done for the tokens of answers alone is done by other kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mix {
    /// Tokens of answers only.
    Decode,
    /// The same with drafts to verify.
    Speculative,
    /// Tokens of prompts only.
    Prefill,
    /// Both.
    Mixed,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 4] = [Mix::Decode, Mix::Speculative, Mix::Prefill, Mix::Mixed];

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Mix::Decode => "decode",
            Mix::Speculative => "speculative",
            Mix::Prefill => "prefill",
            Mix::Mixed => "mixed",
        }
    }
}

impl Load {
    /// What kind of step it makes.
    pub fn mix(&self) -> Mix {
        match (self.prefill > 0.0, self.decode > 0.0) {
            (true, true) => Mix::Mixed,
            (true, false) => Mix::Prefill,
            (false, _) if self.drafts > 0.0 => Mix::Speculative,
            (false, _) => Mix::Decode,
        }
    }

    fn terms(&self) -> [f64; TERMS] {
        let prompts = self.prefill_requests.max(1.0);
        let pairs = self.prefill * self.prefill / prompts;
        [1.0, self.prefill, pairs, self.decode, self.context, self.requests]
    }
}

/// What steps of one series and mix take.
#[derive(Clone, Debug, Default)]
pub struct Roofline {
    learned: VecDeque<([f64; TERMS], f64)>,
    since_fit: usize,
    last: f64,
    fit: Option<Fit>,
    /// What was known first: of a recording before.
    stored: Option<Fit>,
    /// By how much prices have risen since the first fit, on the log scale.
    risen: f64,
}

/// A fit, and how good it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// ns for each term.
    prices: [f64; TERMS],
    /// The most of each term that they were learned from.
    largest: [f64; TERMS],
    /// Of the variance of the log durations, the share that it explains; negative if a single number does better.
    pub r2: f64,
    /// The median relative error.
    pub error: f64,
    /// Steps that it is made of.
    pub steps: usize,
}

impl Fit {
    /// Of prices that were stored, and the most of each term that they were learned from; none if they are not what these
    /// can be.
    pub fn of_prices(prices: &[f64], largest: &[f64]) -> Option<Fit> {
        let prices: [f64; TERMS] = prices.try_into().ok()?;
        let largest: [f64; TERMS] = largest.try_into().ok()?;
        let sound = |of: f64| of.is_finite() && of >= 0.0;
        let sound = prices.iter().chain(&largest).all(|of| sound(*of));
        let some = prices.iter().any(|price| *price > 0.0);
        (sound && some).then_some(Fit { prices, largest, r2: 0.0, error: 0.0, steps: 0 })
    }

    /// The same with all prices so much higher, on the log scale.
    pub fn risen(self, by: f64) -> Fit {
        Fit { prices: self.prices.map(|price| price * by.exp()), ..self }
    }

    /// Whether it was learned from steps with as much to do.
    pub fn knows(&self, load: &Load) -> bool {
        load.terms().iter().zip(&self.largest).all(|(term, most)| *term <= BEYOND * most)
    }

    /// The most of each term that it was learned from.
    pub fn largest(&self) -> &[f64] {
        &self.largest
    }

    /// ns for each term: a step, a token of a prompt, a pair of tokens within a prompt, a token of an answer, a token of
    /// context, a request.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// What a step takes, ns.
    pub fn expects(&self, load: &Load) -> f64 {
        sum(&self.prices, &load.terms()).max(1.0)
    }
}

impl Roofline {
    /// What was learned so far, if that is enough.
    pub fn fit(&self) -> Option<&Fit> {
        self.fit.as_ref()
    }

    /// Nothing learned yet, and what was known before.
    pub fn knowing(stored: Option<Fit>) -> Roofline {
        Roofline { stored, ..Roofline::default() }
    }

    /// The prices that were known first: the stored ones, else the first ones that were learned here, as far as they are
    /// known by now.
    pub fn first(&self) -> Option<Fit> {
        self.stored.or_else(|| Some(self.fit?.risen(-self.risen)))
    }

    /// What a step takes by what was known first, ns; none if stored prices say nothing of as much to do.
    pub fn expected_first(&self, load: &Load) -> Option<f64> {
        let first = self.first().filter(|first| self.stored.is_none() || first.knows(load));
        first.map(|first| first.expects(load))
    }

    /// By how much these prices are higher than those before, on the log scale, for what there was to do lately: as an
    /// index of prices is chained from year to year, so that what is bought may change.
    fn risen_since(&self, before: &Fit, now: &Fit) -> f64 {
        let lately = self.learned.iter().rev().take(REFIT);
        let rise = |(terms, _): &([f64; TERMS], f64)| {
            (sum(&now.prices, terms).max(1.0) / sum(&before.prices, terms).max(1.0)).ln()
        };
        crate::stats::quantile_of(lately.map(rise), 0.5)
    }

    /// Learns a step that took `ns` and ended `at` seconds.
    pub fn learn(&mut self, load: &Load, ns: f64, at: f64) {
        if self.learned.len() >= 2 * NEEDED && at - self.last < SPACING {
            return;
        }
        self.last = at;
        if self.learned.len() == KEPT {
            self.learned.pop_front();
        }
        self.learned.push_back((load.terms(), ns.max(1.0)));
        self.since_fit += 1;
        let made_of = self.fit.map_or(0, |fit| fit.steps);
        let is_due = self.since_fit >= REFIT || self.since_fit * 4 >= made_of.max(1);
        if self.learned.len() >= NEEDED && is_due {
            let before = self.fit;
            self.fit = fit(self.learned.make_contiguous());
            if let (Some(before), Some(now)) = (before, self.fit) {
                self.risen += self.risen_since(&before, &now);
            }
            self.since_fit = 0;
        }
    }
}

fn sum(prices: &[f64; TERMS], terms: &[f64; TERMS]) -> f64 {
    prices.iter().zip(terms).map(|(price, term)| price * term).sum()
}

/// The prices of the least sum of absolute relative errors, none of them negative: least squares, weighted anew by the
/// errors of the round before.
fn fit(learned: &[([f64; TERMS], f64)]) -> Option<Fit> {
    // Terms of the same size, so that none is lost in the others' rounding.
    let mut sizes = [0.0_f64; TERMS];
    for (terms, _) in learned {
        for (size, term) in sizes.iter_mut().zip(terms) {
            *size = size.max(*term);
        }
    }
    let scaled: Vec<([f64; TERMS], f64)> = learned
        .iter()
        .map(|(terms, ns)| {
            let mut of = *terms;
            of.iter_mut().zip(&sizes).for_each(|(term, size)| *term /= size.max(1e-9));
            (of, *ns)
        })
        .collect();
    let mut prices = [0.0; TERMS];
    let mut weights: Vec<f64> = scaled.iter().map(|(_, ns)| 1.0 / (ns * ns)).collect();
    for _ in 0..ROUNDS {
        prices = least_squares(&scaled, &weights, prices);
        for (weight, (terms, ns)) in weights.iter_mut().zip(&scaled) {
            let expected = sum(&prices, terms).max(1.0);
            let error = (ns / expected - 1.0).abs().max(FINEST);
            *weight = 1.0 / (expected * expected * error);
        }
    }
    prices.iter_mut().zip(&sizes).for_each(|(price, size)| *price /= size.max(1e-9));
    if !prices.iter().all(|price| price.is_finite()) || prices.iter().all(|price| *price == 0.0) {
        return None;
    }
    let logs = |ns: f64| ns.max(1.0).ln();
    let errors: Vec<f64> =
        learned.iter().map(|(terms, ns)| logs(*ns) - logs(sum(&prices, terms))).collect();
    let all: Vec<f64> = learned.iter().map(|(_, ns)| logs(*ns)).collect();
    let mean = crate::stats::mean(&all);
    let variance: f64 = all.iter().map(|log| (log - mean).powi(2)).sum();
    let left: f64 = errors.iter().map(|error| error * error).sum();
    let absolute: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    Some(Fit {
        prices,
        largest: sizes,
        r2: 1.0 - left / variance.max(1e-12),
        error: crate::stats::quantile_of(absolute, 0.5),
        steps: learned.len(),
    })
}

/// Weighted least squares with prices that are not negative, by adjusting one after another.
fn least_squares(
    rows: &[([f64; TERMS], f64)],
    weights: &[f64],
    mut prices: [f64; TERMS],
) -> [f64; TERMS] {
    let (mut products, mut with_ns) = ([[0.0; TERMS]; TERMS], [0.0; TERMS]);
    for ((terms, ns), weight) in rows.iter().zip(weights) {
        for i in 0..TERMS {
            with_ns[i] += weight * terms[i] * ns;
            for j in 0..TERMS {
                products[i][j] += weight * terms[i] * terms[j];
            }
        }
    }
    for _ in 0..SWEEPS {
        for i in 0..TERMS {
            let others: f64 =
                (0..TERMS).filter(|j| *j != i).map(|j| products[i][j] * prices[j]).sum();
            if products[i][i] > 0.0 {
                prices[i] = ((with_ns[i] - others) / products[i][i]).max(0.0);
            }
        }
    }
    prices
}

#[cfg(test)]
mod tests;
