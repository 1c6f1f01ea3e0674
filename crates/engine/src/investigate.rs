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
    /// About how many exact rows of an incident are read; all of them if `None`. Each costs about as much, and threads that
    /// switch ten thousand times a second have many: of such an incident a stretch in its middle is looked into.
    pub rows: Option<usize>,
}

/// A stretch of an incident that is looked into is at least so long,
const LEAST_STRETCH: Ns = Ns::secs(1);
/// and has at least so many slow steps of a series.
const LEAST_STEPS: usize = 8;

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
    pub const TRACE: Budget = Budget { steps: 120, baseline: None, rows: None };
    /// While an incident lasts: an answer is needed now.
    pub const LIVE: Budget =
        Budget { steps: 40, baseline: Some(BaselineReach::RECENT), rows: Some(40_000) };
    /// When an incident is over: nobody waits for it, but it must not disturb anybody either.
    pub const ENDED: Budget =
        Budget { steps: 80, baseline: Some(BaselineReach::RECENT), rows: Some(80_000) };
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
    let incident = incident.without_pauses(steps, &rows.parts);
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
    let stretch = budget.rows.and_then(|rows| stretch(incident, source, rows));
    incident.limited(|slowed| {
        slowed.usual.retain(available);
        slowed.slow.retain(available);
        if let Some(BaselineReach { within, at_least }) = budget.baseline {
            let since = incident.from.saturating_sub(within);
            let near = slowed.usual.iter().rev().take_while(|no| steps[**no].ts >= since).count();
            let far = slowed.usual.len() - near.max(at_least).min(slowed.usual.len());
            // What is known costs nothing.
            let near = slowed.usual.split_off(far);
            slowed.usual.retain(|no| known.contains(steps[*no].id));
            slowed.usual.extend(near);
        }
        if let Some((from, to)) = stretch {
            let within = |no: &StepNo| steps[*no].end() > from && steps[*no].ts < to;
            let cheap = |no: &StepNo| known.contains(steps[*no].id) || within(no);
            if slowed.slow.iter().filter(|no| cheap(no)).count() >= LEAST_STEPS {
                slowed.slow.retain(cheap);
            }
        }
    })
}

/// The stretch in the middle of an incident that has about so many rows; none if it does not have more.
fn stretch(incident: &Incident, source: &dyn RowSource, rows: usize) -> Option<(Ns, Ns)> {
    let (from, to) = (incident.from, incident.to);
    let (all, long) = (source.rows_about(&(from..to)), to.saturating_sub(from));
    if all <= rows {
        return None;
    }
    let share = rows as f64 / all as f64;
    let part = Ns((long.0 as f64 * share) as i64).max(LEAST_STRETCH).min(long);
    let begins = from.saturating_add(Ns((long - part).0 / 2));
    Some((begins, begins.saturating_add(part)))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::ops::Range;

    use gpuwhy_diagnose::demand::Demands;
    use gpuwhy_diagnose::gpu::Readings;
    use gpuwhy_schema::Rows;

    use super::*;

    /// So many rows a second.
    struct Dense(i64);

    impl RowSource for Dense {
        fn catalog(&self) -> Cow<'_, Rows> {
            Cow::Owned(Rows::default())
        }

        fn rows(&self, _: Range<Ns>) -> Result<Rows> {
            Ok(Rows::default())
        }

        fn gpu_readings(&self, _: &Incident) -> Result<Readings> {
            Ok(Readings::default())
        }

        fn demands(&self, _: &Incident) -> Result<Demands> {
            Ok(Demands::default())
        }

        fn rows_about(&self, range: &Range<Ns>) -> usize {
            ((range.end - range.start).0 * self.0 / 1_000_000_000) as usize
        }
    }

    /// Of an incident from 10 to 20 s the stretch that is looked into, in ms.
    fn looked_into(rows_a_second: i64) -> Option<(i64, i64)> {
        let incident = Incident { from: Ns::secs(10), to: Ns::secs(20), slowed: Vec::new() };
        let found = stretch(&incident, &Dense(rows_a_second), 80_000);
        found.map(|(from, to)| (from.0 / 1_000_000, to.0 / 1_000_000))
    }

    #[test]
    fn of_an_incident_with_many_rows_a_stretch_in_its_middle_is_looked_into() {
        assert_eq!(looked_into(8_000), None);
        assert_eq!(looked_into(20_000), Some((13_000, 17_000)));
        // No less than a second.
        assert_eq!(looked_into(1_000_000), Some((14_500, 15_500)));
    }
}
