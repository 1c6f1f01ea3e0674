//! Requests to engines that serve language models: how late each was, and why.
//!
//! # How
//! A request's life is cut at the steps that it was part of ([`gpuwhy_derive::requests`]); what each step should have
//! taken, with and without the prompts of others, is by prices learned from all steps of the trace
//! ([`crate::units::loads`]). *Late* is all that is not the request's own work: what it would not have waited for alone.
//! The findings that the trace holds are joined by time.
//!
//! # What fools it
//! Alone, a batch is smaller and a step shorter than any that was recorded may show: the tokens of others' answers count
//! as the request's own time. A trace without findings, as `record` writes it, says how late and not who did it.

mod text;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use gpuwhy_derive::requests::{EngineStep, Life, Part, Piece, Spent, Split, longest_gap, spent};
use gpuwhy_diagnose::detect::Step;
use gpuwhy_diagnose::stats::quantile_of;
use gpuwhy_schema::{self as schema, BatchRequest, EntityId, Id, Name, Ns, Request, Span, names};
use serde::Serialize;

use crate::error::Result;
use crate::source::{EVER, TraceSource, all};
use crate::units::loads::{self, Learned};
use crate::units::steps;
use crate::vgpu::Times;

/// The version of [`Report`].
pub const SCHEMA_VERSION: u32 = 1;
const MS: f64 = 1e6;

/// By what requests are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// By the time that was not its own work.
    #[default]
    Late,
    /// By the time to the first token.
    FirstToken,
    /// By the time a token of the answer took after the first.
    EachToken,
    /// By the longest time between two tokens.
    Gap,
    /// By all of it.
    Total,
}

impl Order {
    /// What requests are ordered by, ms.
    fn of(self, one: &RequestReport) -> Option<f64> {
        match self {
            Order::Late => Some(one.late_ms),
            Order::FirstToken => one.ttft_ms,
            Order::EachToken => one.tpot_ms,
            Order::Gap => one.longest_gap.as_ref().map(|gap| gap.ms),
            Order::Total => Some(one.total_ms),
        }
    }

    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Order::Late => "late",
            Order::FirstToken => "ttft",
            Order::EachToken => "tpot",
            Order::Gap => "gap",
            Order::Total => "total",
        }
    }
}

/// What was promised of requests: a service-level objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// Of what,
    pub what: Order,
    /// and how long it may be.
    pub at_most: Duration,
}

impl std::str::FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Slo, String> {
        let (what, at_most) = crate::duration::what_and_time(text)?;
        Ok(Slo { what, at_most })
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(word: &str) -> Result<Order, String> {
        Ok(match word {
            "late" => Order::Late,
            "ttft" => Order::FirstToken,
            "tpot" => Order::EachToken,
            "gap" => Order::Gap,
            "total" => Order::Total,
            _ => {
                return Err("late, ttft, tpot, gap or total is what requests are ordered by".into());
            }
        })
    }
}

/// Which requests are told in full.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// So many, the worst first.
    pub worst: usize,
    /// By what.
    pub order: Order,
    /// Those whose name, or trace id of OpenTelemetry, holds this.
    pub named: Option<String>,
    /// What was promised.
    pub slos: Vec<Slo>,
}

/// Mean and quantiles over requests.
fn times(ms: &[f64]) -> Option<Times> {
    let max = ms.iter().copied().max_by(f64::total_cmp)?;
    let at = |q| quantile_of(ms.iter().copied(), q);
    Some(Times { mean: gpuwhy_diagnose::stats::mean(ms), p50: at(0.5), p99: at(0.99), max })
}

/// Where time went, ms, by [`Piece::as_str`].
pub type Pieces = BTreeMap<&'static str, f64>;

/// A finding of the trace that fell into a request's life.
#[derive(Clone, Debug, Serialize)]
pub struct Met {
    /// What was slow, why, and who did it, as far as it was decided.
    pub cause: String,
    /// When it began, s on the trace clock.
    pub from_s: f64,
    /// How much of the request's time that was not its own work fell into it, ms.
    pub late_ms: f64,
}

/// The token that took longest after the one before.
#[derive(Clone, Debug, Serialize)]
pub struct GapReport {
    /// When the token before was there, s on the trace clock.
    pub from_s: f64,
    /// How long it took, ms,
    pub ms: f64,
    /// and what that was.
    pub pieces_ms: Pieces,
}

/// A request.
#[derive(Clone, Debug, Serialize)]
pub struct RequestReport {
    /// The engine's name for it.
    pub key: String,
    /// The trace id of OpenTelemetry that came with it.
    pub trace: Option<String>,
    /// When it came, s on the trace clock.
    pub came_s: f64,
    /// Tokens of its prompt,
    pub prompt_tokens: Option<u64>,
    /// of these, what a cache had,
    pub cached_tokens: Option<u64>,
    /// and of its answer.
    pub output_tokens: Option<u64>,
    /// How it ended.
    pub outcome: Option<String>,
    /// All of it, ms.
    pub total_ms: f64,
    /// To the first token, ms.
    pub ttft_ms: Option<f64>,
    /// Each later token, ms.
    pub tpot_ms: Option<f64>,
    /// What was not its own work, ms.
    pub late_ms: f64,
    /// Where its time went, ms; they sum to `total_ms`.
    pub pieces_ms: Pieces,
    /// Steps that it was part of.
    pub steps: usize,
    /// The token that took longest.
    pub longest_gap: Option<GapReport>,
    /// Findings that fell into it, the costliest first.
    pub met: Vec<Met>,
}

/// All of a trace.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The trace.
    pub trace: String,
    /// When the first request came, s on the trace clock; text tells times from then on.
    pub from_s: f64,
    /// Requests that ended while it was recorded.
    pub requests: usize,
    /// Requests that did not.
    pub unfinished: usize,
    /// Requests of which no step is known: those are not told.
    pub without_steps: usize,
    /// To the first token.
    pub ttft_ms: Option<Times>,
    /// Each later token.
    pub tpot_ms: Option<Times>,
    /// All of it.
    pub total_ms: Option<Times>,
    /// What was not their own work.
    pub late_ms: Option<Times>,
    /// Where the time of all of them went, ms a request,
    pub pieces_ms: Pieces,
    /// and where that of the hundredth went that was latest.
    pub latest_ms: Pieces,
    /// Of the steps, the share whose prices are known.
    pub priced_share: f64,
    /// Findings that the trace holds.
    pub findings: usize,
    /// What was computed for nothing.
    pub wasted: Wasted,
    /// What was promised, and how it was kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slos: Vec<SloReport>,
    /// The requests that were asked for.
    pub told: Vec<RequestReport>,
}

/// Tokens that were computed for nothing, over all steps of the engines.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Wasted {
    /// Draft tokens that were made.
    pub proposed: u64,
    /// Of these, those that were submitted to be verified,
    pub submitted: u64,
    /// and those that were kept.
    pub accepted: u64,
    /// Submitted in a step for which fewer had been made, such as padding; 0 where no step says how many were made.
    pub unmade: u64,
    /// Time in which drafts were made (`ModelRunner::Draft`), ms.
    pub draft_ms: f64,
    /// Tokens of batches of which it is known how many the device computed,
    pub tokens: u64,
    /// and how many it computed, with padding.
    pub padded: u64,
}

impl Wasted {
    fn of<'a>(batches: impl Iterator<Item = &'a schema::Batch>) -> Wasted {
        let mut out = Wasted::default();
        for batch in batches {
            let number = |n: Option<u64>| n.unwrap_or(0);
            out.proposed = out.proposed.saturating_add(number(batch.proposed));
            out.submitted = out.submitted.saturating_add(number(batch.drafts));
            out.accepted = out.accepted.saturating_add(number(batch.accepted));
            if let (Some(made), Some(submitted)) = (batch.proposed, batch.drafts) {
                out.unmade = out.unmade.saturating_add(submitted.saturating_sub(made));
            }
            if let Some(padded) = batch.padded {
                out.tokens = out.tokens.saturating_add(batch.tokens);
                out.padded = out.padded.saturating_add(padded);
            }
        }
        // An engine of which it is not seen how many it makes says none of each step.
        out.unmade *= u64::from(out.proposed > 0);
        out
    }
}

/// How a promise was kept.
#[derive(Clone, Debug, Serialize)]
pub struct SloReport {
    /// Of what: `ttft`, `tpot`, `gap`, `late` or `total`.
    pub what: &'static str,
    /// How long it may be, ms.
    pub at_most_ms: f64,
    /// Requests of which it is known,
    pub of: usize,
    /// and those that took longer.
    pub violated: usize,
    /// Where the time of those went, ms a request.
    pub pieces_ms: Pieces,
    /// The costliest finding of each of those, and of how many; the most frequent first.
    pub findings: Vec<(String, usize)>,
}

/// A finding with what it says.
struct Found {
    from: Ns,
    to: Ns,
    cause: String,
}

/// What the requests of a trace are joined with.
struct Joined {
    steps: HashMap<EntityId, Vec<EngineStep>>,
    learned: Learned,
    parts: HashMap<Id, Vec<BatchRequest>>,
    wasted: Wasted,
    findings: Vec<Found>,
}

/// What is told of the requests of a trace.
///
/// # Errors
/// It cannot be read.
pub fn requests(path: &Path, options: &Options) -> Result<Report> {
    let source = TraceSource::open(path)?;
    let rows: Vec<Request> = all(source.trace(), EVER)?;
    let joined = join(&source)?;
    let (durations, draft_ms) = durations(&source, rows.iter().map(|row| row.id).collect())?;
    let fronts = fronts(&rows, &durations);
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        trace: path.display().to_string(),
        from_s: 0.0,
        requests: 0,
        unfinished: 0,
        without_steps: 0,
        ttft_ms: None,
        tpot_ms: None,
        total_ms: None,
        late_ms: None,
        pieces_ms: Pieces::new(),
        latest_ms: Pieces::new(),
        priced_share: joined.learned.share(),
        findings: joined.findings.len(),
        wasted: Wasted { draft_ms, ..joined.wasted },
        slos: Vec::new(),
        told: Vec::new(),
    };
    let mut all: Vec<RequestReport> = Vec::new();
    let has_parts = |row: &&Request| joined.parts.contains_key(&row.id);
    let seen: HashSet<&Name> = rows.iter().filter(has_parts).map(|row| &row.key).collect();
    // A request has a row of the engine, and one of the process that talks to users, which may be the same process.
    let is_front = |row: &&Request| !has_parts(row) && seen.contains(&row.key);
    for row in rows.iter().filter(|row| !is_front(row)) {
        let Some(steps) = row.instance.and_then(|of| joined.steps.get(&of)) else { continue };
        let Some(Some(dur)) = durations.get(&row.id) else {
            report.unfinished += 1;
            continue;
        };
        report.requests += 1;
        match joined.parts.get(&row.id) {
            Some(parts) => {
                let front = fronts.get(&row.key).copied();
                all.push(one(row, *dur, front, parts, steps, &joined));
            }
            None => report.without_steps += 1,
        }
    }
    summarise(&mut report, &all);
    let came = all.iter().map(|one| one.came_s).min_by(f64::total_cmp);
    report.from_s = came.unwrap_or_default();
    report.slos = options.slos.iter().map(|slo| kept(slo, &all)).collect();
    let by = |one: &RequestReport| options.order.of(one).unwrap_or(0.0);
    all.sort_by(|a, b| by(b).total_cmp(&by(a)).then_with(|| a.key.cmp(&b.key)));
    if let Some(named) = &options.named {
        let is_trace = |one: &RequestReport| one.trace.as_ref().is_some_and(|t| t.contains(named));
        all.retain(|one| one.key.contains(named.as_str()) || is_trace(one));
    } else {
        all.truncate(options.worst);
    }
    report.told = all;
    Ok(report)
}

/// How long requests took, `None` for those that did not end; and for how long drafts were made, ms.
fn durations(source: &TraceSource, ids: HashSet<Id>) -> Result<(HashMap<Id, Option<Ns>>, f64)> {
    let tracks = &source.entities_and_tracks().track;
    let tracks: HashSet<_> =
        tracks.iter().filter(|t| &*t.name == names::REQUESTS).map(|t| t.id).collect();
    let (mut out, mut draft_ms) = (HashMap::new(), 0.0);
    for spans in source.trace().read::<Span>(EVER) {
        for span in spans? {
            if tracks.contains(&span.track) && ids.contains(&span.id) {
                out.insert(span.id, span.dur);
            } else if &*span.name == "ModelRunner::Draft" {
                draft_ms += span.dur.map_or(0.0, Ns::as_millis_f64);
            }
        }
    }
    Ok((out, draft_ms))
}

/// A request as the process that talks to users saw it: when it came and was gone, and when its first token was out.
#[derive(Clone, Copy)]
struct Front {
    came: Ns,
    gone: Ns,
    first_token: Option<Ns>,
}

/// Requests by their name, where two processes have seen them: the earlier row is the front's.
fn fronts(rows: &[Request], durations: &HashMap<Id, Option<Ns>>) -> HashMap<Name, Front> {
    let mut by_key: HashMap<&Name, Vec<&Request>> = HashMap::new();
    for row in rows {
        by_key.entry(&row.key).or_default().push(row);
    }
    let both = by_key.into_iter().filter(|(_, rows)| rows.len() == 2);
    both.filter_map(|(key, rows)| {
        let front = rows.into_iter().min_by_key(|row| row.ts)?;
        let gone = front.ts.saturating_add((*durations.get(&front.id)?)?);
        Some((key.clone(), Front { came: front.ts, gone, first_token: front.first_token }))
    })
    .collect()
}

fn join(source: &TraceSource) -> Result<Joined> {
    let mut steps = steps::of_trace(source)?;
    let learned = loads::learn(source, &mut steps)?;
    let by_id: HashMap<Id, &Step> = steps.iter().map(|step| (step.id, step)).collect();
    let mut parts: HashMap<Id, Vec<BatchRequest>> = HashMap::new();
    let mut with_requests = HashSet::new();
    for row in all::<BatchRequest>(source.trace(), EVER)? {
        with_requests.insert(row.batch);
        parts.entry(row.request).or_default().push(row);
    }
    parts.values_mut().for_each(|of| of.sort_by_key(|row| row.ts));
    // Workers have batches too, and name no requests.
    let engines: HashSet<(EntityId, &Name)> = learned
        .batches()
        .filter(|batch| with_requests.contains(&batch.id))
        .map(|batch| (batch.instance, &batch.engine))
        .collect();
    let mut of_engine: HashMap<EntityId, Vec<EngineStep>> = HashMap::new();
    for batch in learned.batches() {
        let step =
            by_id.get(&batch.id).filter(|_| engines.contains(&(batch.instance, &batch.engine)));
        let Some(step) = step else { continue };
        let step = EngineStep { id: step.id, ts: step.ts, end: step.end() };
        of_engine.entry(batch.instance).or_default().push(step);
    }
    of_engine.values_mut().for_each(|of| of.sort_by_key(|step| (step.ts, step.id)));
    let of_engines = |batch: &&schema::Batch| engines.contains(&(batch.instance, &batch.engine));
    let wasted = Wasted::of(learned.batches().filter(of_engines));
    let findings = findings(source)?;
    Ok(Joined { steps: of_engine, learned, parts, wasted, findings })
}

/// The findings of a trace, each with its first cause.
fn findings(source: &TraceSource) -> Result<Vec<Found>> {
    let causes: Vec<schema::Cause> = all(source.trace(), EVER)?;
    let first: HashMap<Id, &schema::Cause> =
        causes.iter().filter(|cause| cause.rank == 1).map(|cause| (cause.finding, cause)).collect();
    let entities = &source.entities_and_tracks().entity;
    let said = |finding: &schema::Finding| {
        let Some(cause) = first.get(&finding.id) else { return "undecided".to_owned() };
        let culprit = cause.culprit.and_then(|id| entities.iter().find(|entity| entity.id == id));
        let who = culprit.map_or(String::new(), |entity| match entity.number {
            Some(number) => format!(", by {} ({} {number})", entity.name, entity.kind),
            None => format!(", by {}", entity.name),
        });
        format!("{} {:.2}{who}", cause.class, cause.confidence)
    };
    let rows: Vec<schema::Finding> = all(source.trace(), EVER)?;
    let found = rows.iter().map(|row| {
        let (from, to) = (row.ts, row.ts.saturating_add(row.dur));
        Found { from, to, cause: said(row) }
    });
    Ok(found.collect())
}

fn one(
    row: &Request,
    dur: Ns,
    front: Option<Front>,
    parts: &[BatchRequest],
    steps: &[EngineStep],
    joined: &Joined,
) -> RequestReport {
    let (began, ended) = (row.ts, row.ts.saturating_add(dur));
    let front = front.filter(|front| front.came <= began);
    let life = Life {
        came: front.map_or(began, |front| front.came),
        began,
        ended,
        gone: front.map_or(ended, |front| front.gone),
        prompt: row.prompt_tokens.unwrap_or(0),
        parts: parts.iter().map(|row| (row.ts, part(row))).collect(),
    };
    let spent = spent(&life, steps, |step, own| joined.learned.split(step.id, own));
    let total: Ns = spent.iter().fold(Ns::ZERO, |sum, piece| sum.saturating_add(piece.dur));
    let first_token = front.and_then(|front| front.first_token).or(row.first_token);
    let ttft = first_token.map(|at| at.saturating_sub(life.came));
    let later = row.output_tokens.and_then(|n| n.checked_sub(1)).filter(|n| *n > 0);
    let tpot = first_token.zip(later).map(|(first, n)| {
        life.came.saturating_add(total).saturating_sub(first).0 as f64 / n as f64
    });
    let mut of: Vec<Id> = spent.iter().filter_map(|piece| piece.step).collect();
    of.dedup();
    let gap = longest_gap(&spent).map(|gap| GapReport {
        from_s: gap.from.as_secs_f64(),
        ms: gap.to.saturating_sub(gap.from).as_millis_f64(),
        pieces_ms: pieces(spent.iter().filter(|piece| piece.ts >= gap.from && piece.ts < gap.to)),
    });
    RequestReport {
        key: row.key.to_string(),
        trace: row.trace.as_ref().map(|trace| trace.to_string()),
        came_s: life.came.as_secs_f64(),
        prompt_tokens: row.prompt_tokens,
        cached_tokens: row.cached_tokens,
        output_tokens: row.output_tokens,
        outcome: row.outcome.as_ref().map(|word| word.to_string()),
        total_ms: total.as_millis_f64(),
        ttft_ms: ttft.map(Ns::as_millis_f64),
        tpot_ms: tpot.map(|ns| ns / MS),
        late_ms: late(spent.iter()),
        pieces_ms: pieces(spent.iter()),
        steps: of.len(),
        longest_gap: gap,
        met: met(&spent, &joined.findings),
    }
}

fn part(row: &BatchRequest) -> Part {
    match &*row.state {
        "preempted" => Part::Preempted,
        "pauses" => Part::Pauses,
        _ => Part::Runs { tokens: row.tokens, computed: row.computed },
    }
}

fn pieces<'a>(spent: impl Iterator<Item = &'a Spent>) -> Pieces {
    let mut out = Pieces::new();
    for piece in spent {
        *out.entry(piece.piece.as_str()).or_default() += piece.dur.as_millis_f64();
    }
    out
}

/// What of it was not the request's own work, ms.
fn late<'a>(spent: impl Iterator<Item = &'a Spent>) -> f64 {
    spent.filter(|piece| !piece.piece.is_own()).map(|piece| piece.dur.as_millis_f64()).sum()
}

/// The findings into which time fell that was not its own work, the costliest first.
fn met(spent: &[Spent], findings: &[Found]) -> Vec<Met> {
    let within = |found: &Found, piece: &Spent| {
        let end = piece.ts.saturating_add(piece.dur).min(found.to);
        end.saturating_sub(piece.ts.max(found.from)).max(Ns::ZERO).as_millis_f64()
    };
    let of = |found: &Found| {
        let late = spent.iter().filter(|piece| !piece.piece.is_own());
        let late_ms = late.map(|piece| within(found, piece)).sum();
        Met { cause: found.cause.clone(), from_s: found.from.as_secs_f64(), late_ms }
    };
    let mut met: Vec<Met> = findings.iter().map(of).filter(|met| met.late_ms > 0.0).collect();
    met.sort_by(|a, b| b.late_ms.total_cmp(&a.late_ms));
    met
}

/// How a promise was kept.
fn kept(slo: &Slo, all: &[RequestReport]) -> SloReport {
    let at_most_ms = slo.at_most.as_secs_f64() * 1e3;
    let known = all.iter().filter(|one| slo.what.of(one).is_some()).count();
    let is_violated = |one: &&RequestReport| slo.what.of(one).is_some_and(|ms| ms > at_most_ms);
    let violated: Vec<&RequestReport> = all.iter().filter(is_violated).collect();
    let mut findings: BTreeMap<&str, usize> = BTreeMap::new();
    for met in violated.iter().filter_map(|one| one.met.first()) {
        *findings.entry(&met.cause).or_default() += 1;
    }
    let mut findings: Vec<(String, usize)> =
        findings.into_iter().map(|(cause, n)| (cause.to_owned(), n)).collect();
    findings.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    SloReport {
        what: slo.what.as_str(),
        at_most_ms,
        of: known,
        violated: violated.len(),
        pieces_ms: mean(violated.into_iter()),
        findings,
    }
}

/// The mean of each piece over requests, ms.
fn mean<'a>(of: impl ExactSizeIterator<Item = &'a RequestReport>) -> Pieces {
    let (mut out, n) = (Pieces::new(), of.len().max(1) as f64);
    for one in of {
        for (piece, ms) in &one.pieces_ms {
            *out.entry(*piece).or_default() += ms / n;
        }
    }
    out
}

fn summarise(report: &mut Report, all: &[RequestReport]) {
    let spread = |of: &dyn Fn(&RequestReport) -> Option<f64>| {
        times(&all.iter().filter_map(of).collect::<Vec<_>>())
    };
    report.ttft_ms = spread(&|one| one.ttft_ms);
    report.tpot_ms = spread(&|one| one.tpot_ms);
    report.total_ms = spread(&|one| Some(one.total_ms));
    report.late_ms = spread(&|one| Some(one.late_ms));
    report.pieces_ms = mean(all.iter());
    let mut latest: Vec<&RequestReport> = all.iter().collect();
    latest.sort_by(|a, b| b.late_ms.total_cmp(&a.late_ms));
    latest.truncate(all.len().div_ceil(100));
    report.latest_ms = mean(latest.into_iter());
}

/// What a step should have taken, with and without the prompts of others.
impl Learned {
    fn split(&self, step: Id, own: u64) -> Option<Split> {
        let (expected, without) = self.with_and_without(step, own)?;
        Some(Split { expected, without })
    }
}

/// In the order of a life.
fn in_order(pieces: &Pieces) -> impl Iterator<Item = (&'static str, f64)> + '_ {
    Piece::ALL.iter().filter_map(|of| Some((of.as_str(), *pieces.get(of.as_str())?)))
}

#[cfg(test)]
mod tests;
