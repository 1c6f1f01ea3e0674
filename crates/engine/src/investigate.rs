//! Why one incident happened: the one composition of accounting and judgement.
//!
//! `gpuwhy diagnose`, `gpuwhy watch`, the correlator's questions to its nodes, judging stored
//! trials again and every benchmark call [`investigate`]; they differ in the source of rows and in
//! the [`Budget`], and in nothing else. So what a benchmark scores is what users get.
//!
//! ```text
//! incident ─► narrowed to the steps that hung, if few of them hold the loss
//!          ─► baseline and slow steps selected, as many as the budget allows
//!          ─► accounted for: parts of each step       (derive, rows from the source)
//!          ─► judged: excess, class, culprit, confidence   (diagnose)
//! ```

use gpuwhy_derive::Accounting;
use gpuwhy_diagnose::detect::{Incident, Narrowed, StepNo, Steps};
use gpuwhy_diagnose::verdict::{self, Finding, JudgeContext, Judgement};
use gpuwhy_schema::{Id, Ns};

use crate::account::{KnownParts, account};
use crate::error::Result;
use crate::source::RowSource;

/// How to judge.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How a step's time is accounted for.
    pub accounting: Accounting,
    /// How a verdict follows from that.
    pub judgement: Judgement,
}

/// How much one investigation may look at.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Steps of a series that are accounted for, on each side: slow ones and baseline ones.
    pub steps: usize,
    /// How far back baseline steps are taken from; all the time before the incident if `None`.
    pub baseline: Option<BaselineReach>,
}

/// How far back baseline steps are taken from. Rows are walked by stretches of time, so each second
/// further back costs as much again, whether or not many steps lie in it.
#[derive(Clone, Copy, Debug)]
pub struct BaselineReach {
    /// Steps that began this long before the incident or later.
    pub within: Ns,
    /// And at least this many, however long ago they were: long steps reach further back.
    pub at_least: usize,
}

impl Budget {
    /// For a trace, which is judged once and in no hurry.
    pub const TRACE: Budget = Budget { steps: 120, baseline: None };
    /// While an incident lasts: an answer is needed now.
    pub const LIVE: Budget = Budget { steps: 40, baseline: Some(BaselineReach::RECENT) };
    /// When an incident is over: nobody waits for it, but it must not disturb anybody either.
    pub const ENDED: Budget = Budget { steps: 80, baseline: Some(BaselineReach::RECENT) };
}

impl BaselineReach {
    /// What the recent past in memory affords.
    pub const RECENT: BaselineReach = BaselineReach { within: Ns::millis(1500), at_least: 4 };
}

/// What one investigation found.
pub struct Investigation {
    /// The verdict and its evidence.
    pub finding: Finding,
    /// The incident as it was judged: narrowed to the steps that hung, if few of them hold the loss.
    pub incident: Narrowed,
    /// The steps that were accounted for.
    pub examined: Vec<Id>,
}

/// Finds out why `incident` happened: `steps` are all units of work, of which it names the slow and
/// the baseline ones. Parts that are in `known` are not accounted for again, and new ones are added.
///
/// # Errors
/// Rows of the source cannot be read.
pub fn investigate(
    source: &dyn RowSource,
    steps: &Steps,
    incident: &Incident,
    options: &Options,
    budget: &Budget,
    known: &mut KnownParts,
) -> Result<Investigation> {
    let incident = incident.where_it_hung(steps);
    let within_reach = limit(&incident, source, steps, budget, known);
    let selected = verdict::select_steps(steps, &within_reach, budget.steps);
    let new: Vec<StepNo> =
        selected.iter().copied().filter(|&no| !known.contains(steps[no].id)).collect();
    known.extend(account(source, steps, &new, &options.accounting)?);
    let examined: Vec<Id> = selected.iter().map(|&no| steps[no].id).collect();
    let rows = known.of(&examined);
    let catalog = source.catalog();
    let context = JudgeContext::new(&catalog)
        .with_readings(source.gpu_readings(&incident)?)
        .with_demands(source.demands(&incident)?);
    let finding = verdict::judge(steps, &incident, &rows, &context, &options.judgement);
    Ok(Investigation { finding, incident, examined })
}

/// The incident with only those steps that the budget reaches and whose rows can be had.
fn limit(
    incident: &Narrowed,
    source: &dyn RowSource,
    steps: &Steps,
    budget: &Budget,
    known: &KnownParts,
) -> Narrowed {
    let available = |no: &StepNo| known.contains(steps[*no].id) || source.covers(&steps[*no]);
    incident.limited(|slowed| {
        slowed.usual.retain(available);
        slowed.slow.retain(available);
        if let Some(BaselineReach { within, at_least }) = budget.baseline {
            let since = incident.from.saturating_sub(within);
            let near = slowed.usual.iter().rev().take_while(|no| steps[**no].ts >= since).count();
            let far = slowed.usual.len() - near.max(at_least).min(slowed.usual.len());
            slowed.usual.drain(..far);
        }
    })
}
