//! Live judgement: rows in, events out.
//!
//! [`LiveJudge`] remembers the recent past, detects what becomes slower and investigates it. It reads
//! no clock, starts no thread and knows no recorder: whoever drives it ([`crate::watch`], or a test
//! that replays a trace) pushes rows, says what time it is, and decides at which priority the costly
//! part ([`LiveJudge::examine`], [`LiveJudge::conclude`]) runs.

mod as_before;
mod event;
mod lost;
mod off_cpu;
mod recent;
mod references;
mod stacks;
#[cfg(test)]
mod testing;
mod text;
mod usual;

use std::collections::{HashMap, HashSet, VecDeque};

use gpuwhy_collect::OpenStep;
use gpuwhy_diagnose::classes;
use gpuwhy_diagnose::detect::{self, Against, Detection, Incident, Step, StepNo};
use gpuwhy_diagnose::live::{Live, Look};
use gpuwhy_diagnose::verdict::{self, Finding, FirstWord, Outcome};
use gpuwhy_schema::{Class, EntityId, Id, Ns, Part, PartKind, Rows, Span, State, TrackId};
use gpuwhy_store::{Keep, Writer};

use crate::account::{KnownParts, account};
use crate::error::Result;
use crate::investigate::{self, Budget, investigate};
use crate::source::RowSource as _;
use crate::units::loads::Loads;
use crate::units::steps::{self, FinishedStep};

use as_before::AsBefore;
pub use event::{Broken, Correlating, Ended, Event, Shedding, Slow, Status, Trouble, Verdict};
pub use off_cpu::OffCpu;
pub use recent::{Recent, SETTLED, Sorted};
pub use references::References;
pub(crate) use references::seconds_since_1970;
use stacks::Sampled;
pub use text::wall_clock;
use usual::Usual;

/// A step in which our own judging began has begun this long before it at most.
const OWN_BEFORE: Ns = Ns::millis(100);
/// Judgements whose CPU time is remembered: those of the longest incident that we may be the cause of.
const JUDGEMENTS: usize = 64;
/// Steps are as usual again this long after our own judging.
const OWN_AFTER: Ns = Ns::millis(300);
/// What we make slow for longer is told.
const OWN_AT_MOST: Ns = Ns::secs(10);
/// How soon a judgement that was not decided is tried again; twice as long after each try.
const RETRY: Ns = Ns::millis(250);
/// A judgement is not tried again before this many times the CPU time of the last one has passed.
const RETRY_COST: i64 = 20;
/// How often a decided judgement is revised while the incident lasts,
const REVISE: Ns = Ns::secs(10);
/// and how soon, at first, while a step hangs.
const REVISE_HANG: Ns = Ns::secs(1);
/// A verdict is reported again when the loss is this many times as large.
const GROWN: f64 = 4.0;
/// How much of an incident is searched for samples of the culprit.
const SAMPLED: Ns = Ns::secs(4);
/// Findings that are remembered, for whoever asks what was slow.
const TOLD: usize = 64;
/// Steps that can be asked for by their number.
const NUMBERED: usize = 1 << 14;

/// How to judge live.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// When something is slower than usual.
    pub detection: Detection,
    /// Why.
    pub judging: investigate::Options,
    /// Whether steps and their sleeps are kept for [`LiveJudge::ended_steps`].
    pub collect_steps: bool,
}

/// What [`LiveJudge::look`] found.
pub enum Phase {
    /// Nothing is slower than usual.
    Calm,
    /// What began turned out to be nothing, seen as a whole. A verdict that was reported is not taken
    /// back in silence: it is concluded as it stands.
    Withdrawn(Option<Conclusion>),
    /// An incident that has not ended.
    Lasts(Incident),
    /// An incident that has ended.
    Over(Incident),
}

/// The end of an incident.
pub struct Conclusion {
    /// What is to be told before it, if nobody was told that the incident had begun.
    pub began: Option<Slow>,
    /// Its last judgement.
    pub verdict: Box<Verdict>,
    /// The parts of its steps that were not written before.
    parts: Vec<gpuwhy_schema::Part>,
}

impl Conclusion {
    /// The finding, its causes and the parts as rows.
    pub fn rows(&self, id: Id, track: TrackId) -> Rows {
        let mut rows = verdict::rows(&self.verdict.finding, id, track);
        rows.part = self.parts.clone();
        rows
    }
}

/// An incident that is not over.
#[derive(Default)]
struct Current {
    /// It was reported as begun: it is larger than what was undecided before, or decided.
    told: bool,
    tried: Ns,
    tries: u32,
    /// Since when a step has hung, if one did at the last try.
    hung: Option<Ns>,
    /// The share of what steps lost that was their GPU's own work, at the last try.
    of_gpu: f64,
    class: Option<String>,
    first_word: FirstWord,
    /// The last verdict that was reported.
    reported: Option<Box<Verdict>>,
    known: KnownParts,
}

/// Judges rows as they arrive.
pub struct LiveJudge {
    options: Options,
    recent: Recent,
    detector: Live,
    /// Steps that hang, with how long they have taken so far.
    open: Vec<(OpenStep, Ns)>,
    current: Option<Current>,
    /// When we last judged something that was over: what is slow then and only then is slow because
    /// of us.
    own_work: (Ns, Ns),
    /// When our latest judgements ended, and what CPU time they took.
    own_cpu: VecDeque<(Ns, Ns)>,
    own_doing: u64,
    as_before: AsBefore,
    /// Steps whose parts have been written.
    written: HashSet<Id>,
    steps: u64,
    findings: u64,
    ended: Vec<FinishedStep>,
    off_cpu: OffCpu,
    loads: Loads,
    references: Option<References>,
    usual: Usual,
    /// The parts of the stored steps that an incident is compared with.
    stored_parts: HashMap<Id, Vec<Part>>,
    /// The latest steps by rank and number.
    numbered: VecDeque<(Option<u32>, u64, Id)>,
    /// The latest findings that were concluded: when these were, and what was said.
    told: VecDeque<(Ns, Ns, String)>,
}

impl LiveJudge {
    /// Nothing seen yet; `keep` bounds the memory of the recent past.
    pub fn new(options: Options, keep: Keep) -> LiveJudge {
        LiveJudge {
            options,
            recent: Recent::new(keep),
            detector: Live::new(options.detection),
            open: Vec::new(),
            current: None,
            own_work: (Ns::MIN, Ns::MIN),
            own_cpu: VecDeque::new(),
            own_doing: 0,
            as_before: AsBefore::default(),
            written: HashSet::new(),
            steps: 0,
            findings: 0,
            ended: Vec::new(),
            off_cpu: OffCpu::default(),
            loads: Loads::default(),
            references: None,
            usual: Usual::default(),
            stored_parts: HashMap::new(),
            numbered: VecDeque::new(),
            told: VecDeque::new(),
        }
    }

    /// Compares with what was stored of recordings before.
    pub fn set_references(&mut self, references: References) {
        self.references = Some(references);
    }

    /// The recent past.
    pub fn recent(&mut self) -> &mut Recent {
        &mut self.recent
    }

    /// Takes rows that arrived, as [`Recent::sort`] sorted them.
    pub fn push(&mut self, rows: Sorted) {
        let steps = steps::finished(&rows.aggregates, |track| self.recent.steps_of(track));
        self.off_cpu.take(&rows.exact);
        self.steps += steps.len() as u64;
        let mut ended = Vec::with_capacity(steps.len());
        for mut finished in steps {
            finished.step.ran = self.off_cpu.ran(&finished.step);
            self.off_cpu.follow(finished.step.thread);
            ended.push(finished.step.clone());
            self.numbered.push_back((finished.step.rank, finished.seq, finished.step.id));
            if self.numbered.len() > NUMBERED {
                self.numbered.pop_front();
            }
            if self.options.collect_steps {
                self.ended.push(finished);
            }
        }
        // What is new is known by its names before it is looked up.
        let batches = rows.aggregates.batch.clone();
        self.recent.push(rows);
        let mut stored = |step: &Step, mix| {
            let series = (step.thread, &step.name, step.rank);
            self.references.as_mut()?.prices(&self.recent.catalog(), series, mix)
        };
        for step in self.loads.take(ended, &batches, &mut stored) {
            if self.references.is_none() {
                self.detector.push(step);
            } else if let Some(no) = self.detector.push(step.clone()) {
                self.compare(no, &step);
            }
        }
    }

    /// Compares a step with what is stored of its series.
    fn compare(&mut self, no: StepNo, step: &Step) {
        let Some(references) = &mut self.references else { return };
        let effect = self.options.detection.min_effect;
        let calm = self.current.is_none() && self.detector.is_calm(&step.signature());
        if let Some((first, _)) = self.detector.steps().numbered().next() {
            references.forget(first);
        }
        let catalog = || self.recent.catalog();
        let Some(slower) = references.take(catalog, (no, step), calm, effect) else { return };
        let steps = self.detector.steps();
        let Some((usual, parts, slowed)) = references.anomaly(slower, steps, effect) else {
            return;
        };
        for part in parts {
            self.stored_parts.entry(part.step).or_default().push(part);
        }
        let usual = usual.into_iter().map(|step| self.detector.remember(step)).collect();
        self.detector.tell(detect::Slowed { usual, ..slowed });
    }

    /// Whether usual steps are to be sampled, for later incidents or for the reference.
    pub fn is_sample_due(&self, now: Ns) -> bool {
        let of_references = self.references.as_ref();
        self.usual.is_due(now) && self.detector.usual(usual::STEPS).next().is_some()
            || of_references.is_some_and(|references| references.to_sample(now).is_some())
    }

    /// Samples usual steps, if that is due: to be called in calm.
    ///
    /// # Errors
    /// Their rows cannot be read.
    pub fn sample(&mut self, now: Ns) -> Result<()> {
        self.sample_usual(now)?;
        self.sample_for_reference(now)
    }

    /// For later incidents.
    fn sample_usual(&mut self, now: Ns) -> Result<()> {
        if !self.usual.is_due(now) {
            return Ok(());
        }
        let (source, steps) = (self.recent.at(now, Rows::default()), self.detector.steps());
        self.usual.forget(steps);
        let covers = |step: &Step| source.covers(step);
        let chosen = self.usual.choose(self.detector.usual(usual::STEPS), steps, now, covers);
        let numbers: Vec<StepNo> =
            chosen.iter().flat_map(|(_, numbers)| numbers).copied().collect();
        let mut known = KnownParts::default();
        known.extend(account(&source, steps, &numbers, &self.options.judging.accounting)?);
        self.usual.take(chosen, now, steps, &known);
        Ok(())
    }

    fn sample_for_reference(&mut self, now: Ns) -> Result<()> {
        let Some(references) = &mut self.references else { return Ok(()) };
        let Some((signature, level)) = references.to_sample(now) else { return Ok(()) };
        let source = self.recent.at(now, Rows::default());
        let steps = self.detector.steps();
        let covers = |step: &Step| source.covers(step);
        let sampled = references::typical(steps, &signature, level, covers);
        let numbers: Vec<StepNo> = sampled.iter().map(|(no, _)| *no).collect();
        let accounting = &self.options.judging.accounting;
        let parts = account(&source, steps, &numbers, accounting)?.parts;
        let sampled: Vec<&Step> = sampled.into_iter().map(|(_, step)| step).collect();
        references.sampled(&signature, now, &sampled, &parts);
        Ok(())
    }

    /// Adds what was seen to the reference. Returns how many series it has; none if nothing was to be added.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_reference(&self, now_s: u64) -> Result<Option<usize>> {
        let Some(references) = &self.references else { return Ok(None) };
        let prices = |of: &detect::Signature| self.loads.first(of.of, &of.name, of.mix?);
        references.write(&self.recent.catalog(), prices, now_s)
    }

    /// What was slow in a stretch of time: the findings of that time, and the step that lost most.
    ///
    /// # Errors
    /// Its rows cannot be read.
    pub fn slow_between(&self, from: Ns, to: Ns, now: Ns) -> Result<Vec<String>> {
        let current = self.current.as_ref().and_then(|current| current.reported.as_ref());
        let all = self.told.iter().cloned().chain(current.map(|verdict| told(verdict)));
        let met = all.filter(|(begin, end, _)| *begin < to && *end > from);
        let mut out: Vec<String> =
            met.map(|(.., summary)| format!("meanwhile {summary}")).collect();
        let steps = self.detector.steps();
        if let Some((no, usual)) = lost::most(steps, from, to) {
            let source = self.recent.at(now, Rows::default());
            let parts = account(&source, steps, &[no], &self.options.judging.accounting)?.parts;
            out.push(lost::in_words(&steps[no], usual, &parts, now, &self.recent.catalog()));
        }
        Ok(out)
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Findings concluded so far.
    pub fn findings(&self) -> u64 {
        self.findings
    }

    /// Slowdowns so far that began and ended with our own judging, and were not reported.
    pub fn own_doing(&self) -> u64 {
        self.own_doing
    }

    /// Slowdowns so far that were like others for which nobody could be named, and were not reported.
    pub fn as_before(&self) -> u64 {
        self.as_before.not_told()
    }

    /// Whether nothing is slower than usual.
    pub fn is_calm(&self) -> bool {
        self.current.is_none()
    }

    /// Whether something was told to be slower than usual, and not why.
    pub fn is_awaited(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.told && current.class.is_none())
    }

    /// The share of what steps of the current incident lost that was their GPU's own work, as it was judged last.
    pub fn lost_on_gpu(&self) -> f64 {
        self.current.as_ref().map_or(0.0, |current| current.of_gpu)
    }

    /// `calm`, `slow` or the class of the current incident.
    pub fn state(&self) -> String {
        match self.current.as_ref().filter(|current| current.told) {
            None => "calm".to_string(),
            Some(current) => current.class.clone().unwrap_or_else(|| "slow".into()),
        }
    }

    /// The steps that ended since the last call, if [`Options::collect_steps`].
    pub fn ended_steps(&mut self) -> Vec<FinishedStep> {
        std::mem::take(&mut self.ended)
    }

    /// When the threads that have steps were off their CPUs lately.
    pub fn off_cpu(&self) -> &OffCpu {
        &self.off_cpu
    }

    /// Steps that have begun and not ended at `now`; those that take too long hang.
    pub fn set_open(&mut self, open: Vec<OpenStep>, now: Ns) {
        if open.is_empty() && self.open.is_empty() {
            return;
        }
        // What was recorded until then has arrived.
        let until = now.saturating_sub(SETTLED);
        let so_far = |s: &OpenStep| Step {
            id: s.id,
            ts: s.ts,
            dur: until.saturating_sub(s.ts),
            thread: s.thread,
            series: None,
            rank: s.rank,
            name: s.name.clone(),
            size: s.size,
            ran: None,
            expected: Default::default(),
        };
        let hanging = self.detector.set_open(open.iter().map(so_far).collect());
        let hanging: HashSet<Id> = hanging.iter().map(|s| s.id).collect();
        self.open = open
            .into_iter()
            .filter(|s| hanging.contains(&s.id))
            .map(|s| (s.clone(), until.saturating_sub(s.ts)))
            .collect();
    }

    /// Whether a step hangs: a judgement then needs the states that threads are in.
    pub fn hangs(&self) -> bool {
        !self.open.is_empty()
    }

    /// Steps that are open at `now` can hang only if they began before this.
    pub fn hanging_since(&self, now: Ns) -> Ns {
        now.saturating_sub(SETTLED).saturating_sub(self.options.detection.hang)
    }

    /// What is slower than usual at `now`; each incident is over once.
    pub fn look(&mut self, now: Ns) -> Phase {
        let look = self.detector.look(now);
        if let Look::Present(incident) | Look::Over(incident) = &look
            && self.current.is_none()
            && self.is_our_doing(incident, now)
        {
            self.own_doing += u64::from(matches!(look, Look::Over(_)));
            return Phase::Calm;
        }
        match look {
            Look::Calm => match self.current.take() {
                None => Phase::Calm,
                Some(Current { reported: None, .. }) => Phase::Withdrawn(None),
                Some(Current { reported: Some(verdict), known, .. }) => {
                    Phase::Withdrawn(Some(self.concluded(verdict, known)))
                }
            },
            Look::Present(incident) => Phase::Lasts(incident),
            Look::Over(incident) => Phase::Over(incident),
        }
    }

    /// The last look: nothing more will come that could touch what has ended.
    pub fn last_look(&mut self, now: Ns) -> Option<Incident> {
        let calm = self.options.detection.merge_within.saturating_add(Ns::secs(1));
        self.current.as_ref()?;
        match self.detector.look(now.saturating_add(calm)) {
            Look::Over(incident) | Look::Present(incident) => Some(incident),
            Look::Calm => None,
        }
    }

    /// Takes note of the CPU time that a judgement took which ended at `now`. What recording takes is no such time: on a large
    /// machine it may be much, and nobody's loss.
    pub fn note_own_cpu(&mut self, now: Ns, took: Ns) {
        if self.own_cpu.len() == JUDGEMENTS {
            self.own_cpu.pop_front();
        }
        self.own_cpu.push_back((now, took));
    }

    /// Whether what a series lost in an incident is no more than the CPU time that our
    /// judgements took meanwhile.
    fn is_what_we_took(&self, incident: &Incident) -> bool {
        let (from, to) = (incident.from, incident.to.saturating_add(OWN_BEFORE));
        let took = self.own_cpu.iter().filter(|(at, _)| *at >= from && *at <= to);
        let took: f64 = took.map(|(_, took)| took.0 as f64).sum();
        took > 0.0 && incident.most_lost_ns(self.detector.steps()) <= took
    }

    /// Whether an incident began and ended with work of our own, as far as can be said so soon after, or lost no more than
    /// that took. What another incident became began before that was judged.
    fn is_our_doing(&self, incident: &Incident, now: Ns) -> bool {
        if incident.slowed.iter().any(|slowed| slowed.follows.is_some()) {
            return false;
        }
        if self.is_what_we_took(incident) {
            return true;
        }
        let (from, to) = self.own_work;
        let begins_with_it = incident.from >= from.saturating_sub(OWN_BEFORE)
            && incident.from <= to.saturating_add(OWN_BEFORE);
        let ends_with_it = incident.to <= to.saturating_add(OWN_AFTER);
        begins_with_it && (ends_with_it || now < to.saturating_add(Ns(2 * OWN_AFTER.0)))
    }

    /// Reports an incident as begun, if it was not yet. One that is hardly larger than others before it for which nobody could be
    /// named is reported once it is decided or has grown.
    pub fn begin(&mut self, incident: &Incident, now: Ns) -> Option<Slow> {
        if self.current.as_ref().is_some_and(|current| current.told) {
            return None;
        }
        let as_before = self.as_before.is(incident, self.detector.steps(), &self.recent, now);
        let current = self.current.get_or_insert_default();
        if as_before && current.reported.is_none() {
            return None;
        }
        current.told = true;
        Some(self.slow(incident, now))
    }

    /// Whether the current incident is to be examined at `now`: at once, again when the last try was
    /// not decided, and from time to time while it lasts.
    pub fn is_due(&self, now: Ns) -> bool {
        let Some(current) = &self.current else { return false };
        if current.tries == 0 {
            return true;
        }
        let hangs = !self.open.is_empty();
        let patience = match current.class {
            // Another thing has begun, and matters the more the longer it lasts.
            Some(_) if hangs => current
                .hung
                .map_or(Ns::ZERO, |since| current.tried.saturating_sub(since).max(REVISE_HANG)),
            Some(_) => REVISE,
            None => Ns(RETRY.0 << current.tries.saturating_sub(1).min(5))
                .max(Ns(RETRY_COST * self.cost().0)),
        };
        now >= current.tried.saturating_add(patience)
    }

    /// Investigates the current incident while it lasts; a verdict if it says something new.
    /// `open_states` are the states that threads are in, if a step hangs.
    ///
    /// # Errors
    /// Its rows cannot be read.
    pub fn examine(
        &mut self,
        incident: &Incident,
        now: Ns,
        open_states: Vec<State>,
    ) -> Result<Option<Box<Verdict>>> {
        let verdict = self.judge(incident, now, open_states, &Budget::LIVE)?;
        let hangs = self.hangs();
        let Some(current) = &mut self.current else { return Ok(None) };
        let hung = current.hung.filter(|_| hangs);
        current.tried = now;
        current.tries += 1;
        let of_gpu = verdict.finding.parts_ms.get(PartKind::Gpu.as_str());
        current.of_gpu = of_gpu.unwrap_or(&0.0) / verdict.finding.excess_ms.max(1e-9);
        current.hung = hangs.then_some(hung.unwrap_or(now));
        let class = verdict.finding.class.to_string();
        let is_own = is_own(&verdict.finding, &self.recent);
        let decided = verdict.finding.outcome == Outcome::Decided && !is_own;
        let reported_ms = current.reported.as_ref().map_or(0.0, |v| v.finding.excess_ms);
        let grown = verdict.finding.excess_ms >= GROWN * reported_ms;
        let lasted = now.saturating_sub(incident.from);
        if decided
            && (current.class.is_some() || current.first_word.is_told(&verdict.finding, lasted))
            && (grown || current.class.as_ref() != Some(&class))
        {
            current.class = Some(class);
            current.reported = Some(Box::new(verdict.clone()));
            return Ok(Some(Box::new(verdict)));
        }
        Ok(None)
    }

    /// Investigates an incident that is over, as a whole; none if nobody was told of it and it was a short one of our own
    /// making, or undecided as others before. `open_states` as in [`LiveJudge::examine`].
    ///
    /// # Errors
    /// Its rows cannot be read.
    pub fn conclude(
        &mut self,
        incident: &Incident,
        now: Ns,
        open_states: Vec<State>,
    ) -> Result<Option<Conclusion>> {
        let mut verdict = self.judge(incident, now, open_states, &Budget::ENDED)?;
        let was_decided = self.current.as_ref().is_some_and(|current| current.reported.is_some());
        if !was_decided && is_own(&verdict.finding, &self.recent) {
            self.current = None;
            self.own_doing += 1;
            return Ok(None);
        }
        let is_decided = verdict.finding.outcome == Outcome::Decided;
        let was_told = self.current.as_ref().is_some_and(|current| current.told);
        if !was_decided && !is_decided {
            let (steps, recent) = (self.detector.steps(), &self.recent);
            if !self.as_before.take(incident, steps, recent, now, was_told) {
                self.current = None;
                return Ok(None);
            }
        }
        let began = (!was_told).then(|| self.slow(incident, now));
        self.look_at_stacks(incident, &mut verdict);
        if self.is_somebody_elses(&verdict.finding) {
            self.detector.blame_others(incident);
        }
        let known = self.current.take().map(|current| current.known).unwrap_or_default();
        Ok(Some(Conclusion { began, ..self.concluded(Box::new(verdict), known) }))
    }

    /// Where culprit and steps were in their code. Looked up once, at the end: it walks over all rows of some seconds.
    fn look_at_stacks(&self, incident: &Incident, verdict: &mut Verdict) {
        let until = incident.to.min(incident.from.saturating_add(SAMPLED));
        let rows = self.recent.exact_rows(incident.from..until);
        if rows.sample.is_empty() {
            return;
        }
        let sampled = Sampled::new(&rows);
        let Ok(class) = verdict.finding.class.parse::<Class>() else { return };
        let spec = classes::of(class);
        let kinds: HashSet<PartKind> = spec
            .kinds()
            .chain(spec.spans.iter().flat_map(|s| s.instead_of.iter().copied()))
            .collect();
        let known = self.current.iter().flat_map(|current| current.known.parts());
        let of_cause = |part: &&Part| part.ts >= incident.from && kinds.contains(&part.kind);
        let parts: Vec<&Part> = known.filter(of_cause).collect();
        if let Some(culprit) = &verdict.finding.culprit {
            verdict.culprit_was_in = sampled.culprit(EntityId(culprit.entity), &parts);
        }
        let steps = self.detector.steps();
        let threads: HashMap<Id, EntityId> = steps.iter().map(|s| (s.id, s.thread)).collect();
        let own = parts.iter().filter_map(|part| Some((*threads.get(&part.step)?, *part)));
        verdict.steps_were_in = sampled.own(own);
    }

    /// Whether a process was named that takes no steps itself, or who held a lock: that is no habit of the steps either.
    fn is_somebody_elses(&self, finding: &Finding) -> bool {
        let named = finding.culprit.as_ref().filter(|_| finding.outcome == Outcome::Decided);
        if named.is_some() && finding.class == "lock_contention" {
            return true;
        }
        let Some(culprit) = named.filter(|culprit| culprit.pid.is_some()) else { return false };
        let catalog = self.recent.catalog();
        let threads: HashSet<EntityId> = self.detector.threads().collect();
        let of_steps = catalog.entity.iter().filter(|e| threads.contains(&e.id));
        let processes: HashSet<EntityId> = of_steps.filter_map(|e| e.parent).collect();
        let mut own = catalog.entity.iter().filter(|e| processes.contains(&e.id));
        !own.any(|process| process.number == culprit.pid)
    }

    fn concluded(&mut self, verdict: Box<Verdict>, known: KnownParts) -> Conclusion {
        self.findings += 1;
        self.stored_parts.clear();
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(told(&verdict));
        // What was a baseline step of this incident may have been one of the incident before.
        let alive: HashSet<Id> = self.detector.steps().iter().map(|s| s.id).collect();
        self.written.retain(|step| alive.contains(step));
        let recorded = known.into_steps().filter(|(step, _)| !references::is_stored(*step));
        let new = recorded.filter(|(step, _)| self.written.insert(*step));
        let mut parts: Vec<_> = new.flat_map(|(_, parts)| parts).collect();
        parts.sort_by_key(|p| (p.ts, p.step));
        Conclusion { began: None, verdict, parts }
    }

    /// The CPU time of the last judgement: the next one waits the longer, the more it was.
    fn cost(&self) -> Ns {
        self.own_cpu.back().map_or(Ns::ZERO, |(_, took)| *took)
    }

    /// When we judged an incident that was over: a slowdown that begins and ends with that is our own
    /// doing.
    pub fn set_own_work(&mut self, from: Ns, to: Ns) {
        self.own_work = (from, to);
    }

    /// Why a rank's steps of these numbers took as long as they did, whether they were found slow here
    /// or not; `None` if none of them is remembered.
    ///
    /// # Errors
    /// Their rows cannot be read.
    pub fn explain(
        &mut self,
        rank: u32,
        seqs: (u64, u64),
        now: Ns,
        open_states: Vec<State>,
    ) -> Result<Option<Finding>> {
        let of_rank = self.numbered.iter().rev().filter(|(r, ..)| *r == Some(rank));
        let latest = latest_run(of_rank.map(|(_, seq, id)| (*seq, *id)));
        let selected: HashSet<Id> =
            latest.filter(|(seq, _)| (seqs.0..=seqs.1).contains(seq)).map(|(_, id)| id).collect();
        let steps = self.detector.steps();
        let is_selected = |step: &Step| selected.contains(&step.id);
        let slow = steps.numbered().filter(|(_, step)| is_selected(step)).map(|(no, _)| no);
        let slow: Vec<StepNo> = slow.collect();
        let Some(incident) = detect::incident_of(steps, &slow) else { return Ok(None) };
        Ok(Some(self.judge(&incident, now, open_states, &Budget::LIVE)?.finding))
    }

    /// Writes the exact rows of a stretch of time that were not written before.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn retain(&mut self, range: std::ops::Range<Ns>, writer: &mut Writer) -> Result<()> {
        self.recent.retain(range, writer)
    }

    fn judge(
        &mut self,
        incident: &Incident,
        now: Ns,
        open_states: Vec<State>,
        budget: &Budget,
    ) -> Result<Verdict> {
        let mut known =
            self.current.as_mut().map(|c| std::mem::take(&mut c.known)).unwrap_or_default();
        for (step, parts) in &self.stored_parts {
            known.give(*step, parts.clone());
        }
        let source = self.recent.at(now, self.open_rows(open_states));
        let steps = self.detector.steps();
        self.usual.forget(steps);
        let incident =
            &self.usual.complete(incident, steps, &mut known, |step| source.covers(step));
        let found =
            investigate(&source, steps, incident, &self.options.judging, budget, &mut known)?;
        self.open.iter().for_each(|(step, _)| known.forget(step.id));
        if let Some(current) = &mut self.current {
            current.known = known;
        }
        let finding = found.finding;
        let counterfactual = finding.counterfactual.as_ref().map(ToString::to_string);
        Ok(Verdict {
            at_ns: now.0,
            finding,
            counterfactual,
            culprit_was_in: Vec::new(),
            steps_were_in: Vec::new(),
            differs: self.differs(incident),
        })
    }

    /// What settings are not as in the recordings that an incident is compared with.
    fn differs(&self, incident: &Incident) -> Vec<String> {
        let compared = incident.slowed.iter().find(|one| one.against == Against::Reference);
        match (compared, &self.references) {
            (Some(one), Some(references)) => {
                references.differs(&self.recent.catalog(), &one.signature)
            }
            _ => Vec::new(),
        }
    }

    /// Rows for the steps that hang, as if they had ended now, and for the states that threads are in.
    fn open_rows(&self, states: Vec<State>) -> Rows {
        let mut rows = Rows::default();
        for (step, dur) in &self.open {
            let OpenStep { id, ts, thread, track, seq, name, size, rank } = step.clone();
            rows.span.push(Span { id, ts, dur: Some(*dur), track, parent: None, name });
            rows.step.push(gpuwhy_schema::Step { id, ts, thread, seq, size, rank });
        }
        rows.state = states;
        rows
    }

    fn slow(&self, incident: &Incident, now: Ns) -> Slow {
        let steps = self.detector.steps();
        let catalog = self.recent.catalog();
        let mean = |list: &[StepNo]| {
            list.iter().map(|&no| steps[no].dur.as_millis_f64()).sum::<f64>()
                / list.len().max(1) as f64
        };
        let first = &incident.slowed[0];
        let hangs = |no: &StepNo| self.open.iter().any(|(step, _)| step.id == steps[*no].id);
        let what = match first.slow.iter().find(|no| hangs(no)) {
            Some(&open) => format!(
                "{} has not ended after {:.1} ms; it takes {:.1} ms usually",
                first.signature.name,
                steps[open].dur.as_millis_f64(),
                mean(&first.usual),
            ),
            None => self.slower(incident, first, mean(&first.slow), mean(&first.usual)),
        };
        let threads: HashMap<EntityId, _> = catalog.entity.iter().map(|e| (e.id, e)).collect();
        let name = |s: &detect::Slowed| {
            let of = threads.get(&s.signature.of);
            of.map_or(String::new(), |e| format!("{} {}", e.name, e.number.unwrap_or_default()))
        };
        let mut series: Vec<String> = incident.slowed.iter().map(name).collect();
        series.sort();
        series.dedup();
        Slow { at_ns: now.0, since_ns: incident.from.0, what, series }
    }

    /// By how much the steps of a series have become slower, and than what: ms.
    fn slower(&self, incident: &Incident, first: &detect::Slowed, slow: f64, usual: f64) -> String {
        let name = &first.signature.name;
        match first.against {
            Against::Drifted(drift) => format!(
                "{name} takes {slow:.1} ms and took {:.1} ms {:.0} min ago",
                first.fit.center.exp() / 1e6,
                incident.to.saturating_sub(drift.since).as_secs_f64() / 60.0,
            ),
            Against::Reference => format!(
                "{name} takes {slow:.1} ms ({:+.1}) beside the reference ({})",
                detect::mean_excess(self.detector.steps(), first) / 1e6,
                self.references
                    .as_ref()
                    .map_or(String::new(), |of| of.recordings(&first.signature)),
            ),
            Against::Lately | Against::Longest => format!(
                "{name} takes {slow:.1} ms instead of {usual:.1} ms ({:+.1})",
                detect::mean_excess(self.detector.steps(), first) / 1e6
            ),
        }
    }
}

/// Of a rank's steps, the latest first, those since it was restarted last: then its numbers began anew. Steps
/// may end out of order, so that a small rise is none.
fn latest_run(steps: impl Iterator<Item = (u64, Id)>) -> impl Iterator<Item = (u64, Id)> {
    let mut seen = HashSet::new();
    let mut last = u64::MAX;
    steps.take_while(move |(seq, _)| {
        let goes_on = *seq <= last.saturating_add(64) && seen.insert(*seq);
        last = *seq;
        goes_on
    })
}

/// When it was, and what was said of it.
fn told(verdict: &Verdict) -> (Ns, Ns, String) {
    let Finding { from_ns, to_ns, summary, .. } = &verdict.finding;
    (Ns(*from_ns), Ns(*to_ns), summary.clone())
}

/// Whether we made steps slow, for a short while: by looking into what was slow before, and writing that down. What lasts is
/// told all the same.
fn is_own(finding: &Finding, recent: &Recent) -> bool {
    let named = finding.culprit.as_ref().filter(|_| finding.outcome == Outcome::Decided);
    let Some(pid) = named.and_then(|culprit| culprit.pid) else { return false };
    let lasted = Ns(finding.to_ns - finding.from_ns);
    is_short_and_of_a_recorder(pid, lasted, &recent.catalog().source)
}

fn is_short_and_of_a_recorder(pid: i64, lasted: Ns, sources: &[gpuwhy_schema::Source]) -> bool {
    let is_ours = |source: &gpuwhy_schema::Source| {
        source.word("pid").and_then(|own| own.parse::<i64>().ok()) == Some(pid)
    };
    lasted <= OWN_AT_MOST && sources.iter().any(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a slowdown is told of steps of 10 ms that take 4 ms longer for a second, while our judgements take so much of a
    /// CPU.
    fn is_told(own: f64) -> bool {
        let keep = Keep { bytes: 1 << 20, duration: Ns::secs(30) };
        let mut judge = LiveJudge::new(Options::default(), keep);
        let mut told = false;
        for n in 0..800i64 {
            let ts = Ns::millis(20 * n);
            let is_slow = (500..550).contains(&n);
            let dur = Ns::millis(10) + Ns(n % 7 * 10_000) + Ns::millis(if is_slow { 4 } else { 0 });
            let id = Id::new(0, n as u64);
            let (thread, track) = (EntityId(1), TrackId(1));
            let span = Span { id, ts, dur: Some(dur), track, parent: None, name: "step".into() };
            let step =
                gpuwhy_schema::Step { id, ts, thread, seq: n as u64, size: None, rank: None };
            let aggregates = Rows { span: vec![span], step: vec![step], ..Rows::default() };
            judge.push(Sorted { aggregates, exact: Rows::default() });
            let now = ts + Ns::millis(20);
            if is_slow && own > 0.0 {
                judge.note_own_cpu(now, Ns((own * 20e6) as i64));
            }
            told |= !matches!(judge.look(now), Phase::Calm);
        }
        told
    }

    #[test]
    fn a_slowdown_that_lost_no_more_than_we_took_is_our_doing() {
        assert!(is_told(0.0));
        assert!(!is_told(0.9));
        // Half of what was lost explains it no more than nothing does.
        assert!(is_told(0.1));
    }

    #[test]
    fn what_the_recorder_made_slow_for_a_short_while_is_not_told() {
        let source = gpuwhy_schema::Source {
            id: gpuwhy_schema::SourceId(1),
            kind: "bpf:run_queue".into(),
            tool: "gpuwhy".into(),
            version: "0".into(),
            config: "hz=10 pid=77".into(),
            state: gpuwhy_schema::SourceState::Ok,
            note: None,
            recorded: 1,
            dropped: 0,
            one_in: 1,
        };
        let sources = [source];
        let is_own = |pid, seconds| is_short_and_of_a_recorder(pid, Ns::secs(seconds), &sources);
        assert!(is_own(77, 3));
        assert!(!is_own(78, 3), "somebody else");
        assert!(!is_own(77, 30), "what lasts is told");
    }

    #[test]
    fn a_question_is_about_the_steps_since_the_last_restart() {
        let run = |seqs: &[u64]| -> Vec<u64> {
            latest_run(seqs.iter().rev().map(|seq| (*seq, Id(*seq)))).map(|step| step.0).collect()
        };
        assert_eq!(run(&[0, 1, 2, 4, 3, 5]), [5, 3, 4, 2, 1, 0]);
        assert_eq!(run(&[4998, 4999, 0, 1, 2]), [2, 1, 0]);
        assert_eq!(run(&[0, 1, 2, 0, 1]), [1, 0, 2], "a crash after few steps");
    }
}
