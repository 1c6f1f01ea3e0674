//! What was slow in a stretch of time that somebody asks about, whether it was an incident or not.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_diagnose::detect::{Signature, Step, StepNo, Steps};
use gpuwhy_diagnose::stats::quantile_of;
use gpuwhy_diagnose::verdict::JudgeContext;
use gpuwhy_schema::{EntityId, Ns, Part, PartKind, Rows};

/// Parts of a step that are told.
const TOLD: usize = 3;
/// A part that holds a smaller share of the step is not.
const WORTH: f64 = 0.02;

/// The step that lost most against what is usual, of those that lie in a stretch of time at least in part, and how long
/// such a step usually takes.
pub(super) fn most(steps: &Steps, from: Ns, to: Ns) -> Option<(StepNo, Ns)> {
    let mut of: HashMap<Signature, Vec<f64>> = HashMap::new();
    for step in steps.iter() {
        of.entry(step.signature()).or_default().push(step.dur.0 as f64);
    }
    let medians = of.into_iter().map(|(signature, all)| (signature, quantile_of(all, 0.5)));
    let usual: HashMap<Signature, f64> = medians.collect();
    let within = steps.numbered().filter(|(_, step)| step.ts < to && step.end() > from);
    let lost = within.map(|(no, step)| {
        let usual = step.expected_ns().unwrap_or(usual[&step.signature()]);
        (no, step.dur.0 as f64 - usual, usual)
    });
    let (no, lost, usual) = lost.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (lost > 0.0).then_some((no, Ns(usual as i64)))
}

/// A step in words, with where most of its time went.
pub(super) fn in_words(step: &Step, usual: Ns, parts: &[Part], now: Ns, catalog: &Rows) -> String {
    let mut sums: BTreeMap<(PartKind, Option<EntityId>), i64> = BTreeMap::new();
    for part in parts.iter().filter(|part| part.step == step.id) {
        *sums.entry((part.kind, part.blame)).or_default() += part.dur.0;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    sums.retain(|(_, ns)| *ns as f64 >= WORTH * step.dur.0 as f64);
    let context = JudgeContext::new(catalog);
    let told = sums.iter().take(TOLD).map(|((kind, blame), ns)| {
        let who = blame.and_then(|who| context.culprit(who));
        let who = who.map_or(String::new(), |who| format!(" by {who}"));
        format!("{kind} {}{who}", Ns(*ns))
    });
    let told: Vec<String> = told.collect();
    let where_to = if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) };
    format!(
        "{} of {} s ago took {} instead of {usual}{where_to}",
        step.name,
        format_args!("{:.1}", now.saturating_sub(step.ts).as_secs_f64()),
        step.dur
    )
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Entity, EntityKind, Id};

    use super::*;

    fn step(n: u64, name: &str, at: i64, dur: i64) -> Step {
        Step {
            id: Id(n),
            ts: Ns::millis(at),
            dur: Ns::millis(dur),
            thread: EntityId(1),
            series: None,
            rank: None,
            name: name.into(),
            size: None,
            ran: None,
            expected: Default::default(),
        }
    }

    #[test]
    fn the_step_that_lost_most_is_told_with_where_its_time_went() {
        let mut all: Vec<Step> = (0..100).map(|n| step(n, "decode", 20 * n as i64, 10)).collect();
        all.push(step(200, "prefill", 300, 500));
        all.push(step(201, "prefill", 3000, 510));
        all[70].dur = Ns::millis(60);
        let steps = Steps::from(all);
        let (no, usual) = most(&steps, Ns::secs(1), Ns::secs(2)).unwrap();
        assert_eq!(
            (steps[no].id, usual),
            (Id(70), Ns::millis(10)),
            "a prefill always takes half a second"
        );
        assert_eq!(most(&steps, Ns::secs(10), Ns::secs(20)), None);
        let worker = Entity {
            id: EntityId(7),
            kind: EntityKind::Process,
            key: "7@0".into(),
            name: "worker".into(),
            number: Some(42),
            parent: None,
            from: None,
            to: None,
        };
        let part = |kind, blame: Option<u32>, ms| Part {
            step: Id(70),
            ts: Ns::ZERO,
            dur: Ns::millis(ms),
            kind,
            thread: EntityId(1),
            blame: blame.map(EntityId),
            hops: 0,
        };
        let parts = [
            part(PartKind::Run, None, 8),
            part(PartKind::Stopped, Some(7), 30),
            part(PartKind::Stopped, Some(7), 21),
            part(PartKind::Hardirq, None, 1),
        ];
        let catalog = Rows { entity: vec![worker], ..Rows::default() };
        let said = in_words(&steps[no], usual, &parts, Ns::secs(2), &catalog);
        assert_eq!(
            said,
            "decode of 0.6 s ago took 60.000 ms instead of 10.000 ms: stopped 51.000 ms by worker (pid 42), run 8.000 ms"
        );
    }
}
