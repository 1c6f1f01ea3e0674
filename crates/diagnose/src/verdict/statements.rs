//! What supports each cause of an incident, what contradicts it, who did it, and what was ruled out.

use std::collections::{BTreeMap, HashSet};

use gpuwhy_schema::{Class, EntityId, EntityKind, Id, Ns, Part, PartKind};

use super::MS;
use super::context::JudgeContext;
use super::culprits::{self, Blamed, Ranking};
use super::finding::{Cause, Culprit};
use super::guilt::{self, Basis, Guilt};
use super::rank::Ranked;
use crate::classes;
use crate::detect::{Incident, Slowed, StepNo, Steps};
use crate::evidence::{Evidence, Statements};
use crate::excess::{Excess, first_in_the_way};
use crate::spans::{SpanInStep, StepRows, most_in};

/// A kind of part whose excess is a smaller share of all is not worth a statement.
const PART_WORTH: f64 = 0.02;
/// Another cause, or time that nothing explains, speaks against a cause from this share of the growth.
const RIVAL_WORTH: f64 = 0.1;

/// What is left of the confidence where CPUs were waited for and the work may be in its own way: who took more of them
/// works for the steps itself, or nobody of those who did is named. In trials of the benchmarks two of three verdicts of
/// the latter kind were wrong.
const IN_ITS_OWN_WAY: f64 = 0.4;
/// Threads of a program that computes, which may be more than there are CPUs, are in each other's way if they are for this
/// share of what a CPU was waited for longer.
const IN_EACH_OTHERS_WAY: f64 = 0.5;

/// The rows of one incident's steps, from which statements are made.
pub(super) struct Stating<'a> {
    incident: &'a Incident,
    rows: &'a StepRows,
    excess: &'a Excess,
    context: &'a JudgeContext<'a>,
    /// The slow steps.
    slow: HashSet<Id>,
    /// When each of them ended, and what it lost, ns.
    losses: Vec<(Ns, f64)>,
    /// The processes that take the steps,
    workload: HashSet<EntityId>,
    /// and those besides who work for usual ones, or exchange messages or wakeups with them.
    partners: HashSet<EntityId>,
}

/// Who does this share of the running in usual steps has a part in them.
const PARTNER: f64 = 0.1;

/// The processes that run in usual steps: of an engine the workers, say.
fn partners(rows: &StepRows, slow: &HashSet<Id>, context: &JudgeContext<'_>) -> HashSet<EntityId> {
    let mut ran: BTreeMap<EntityId, i64> = BTreeMap::new();
    for part in rows.parts.iter().filter(|p| p.kind == PartKind::Run && !slow.contains(&p.step)) {
        if let Some(process) = context.entity(part.thread).and_then(|thread| thread.parent) {
            *ran.entry(process).or_default() += part.dur.0;
        }
    }
    let all = ran.values().sum::<i64>() as f64;
    ran.into_iter().filter(|(_, ns)| *ns as f64 >= PARTNER * all).map(|(id, _)| id).collect()
}

impl<'a> Stating<'a> {
    pub(super) fn new(
        steps: &Steps,
        incident: &'a Incident,
        rows: &'a StepRows,
        excess: &'a Excess,
        context: &'a JudgeContext<'a>,
    ) -> Stating<'a> {
        let slow = incident.slowed.iter().flat_map(|s| &s.slow).map(|&no| steps[no].id);
        let slow: HashSet<Id> = slow.collect();
        let process = |thread: EntityId| context.entity(thread).and_then(|e| e.parent);
        let threads: HashSet<EntityId> = steps.iter().map(|step| step.thread).collect();
        let workload = threads.into_iter().filter_map(process).collect();
        let lost = |s: &'a Slowed| {
            let lost = move |no: &StepNo| {
                let step = &steps[*no];
                let usual = s.fit.center.exp() / step.as_typical(s.by).0.max(1) as f64;
                (step.end(), (step.dur.0 as f64 * (1.0 - usual)).max(0.0))
            };
            s.slow.iter().map(lost).collect::<Vec<_>>()
        };
        let losses = incident.slowed.iter().flat_map(lost).collect();
        let mut partners = partners(rows, &slow, context);
        partners.extend(rows.correspondents.processes());
        Stating { incident, rows, excess, context, slow, losses, workload, partners }
    }

    /// The processes that take the steps.
    pub(super) fn workload(&self) -> &HashSet<EntityId> {
        &self.workload
    }

    /// Fills in what supports and what contradicts a cause, its culprits, and how to verify it.
    pub(super) fn complete(&self, cause: &mut Cause, ranked: &Ranked<'_>) {
        let Some(class) = cause.instance_of else { return };
        let spec = classes::of(class);
        let kinds: Vec<PartKind> = spec.kinds().collect();
        cause.evidence_for.extend(kinds.iter().filter_map(|kind| self.of_kind(*kind)));
        cause.evidence_for.extend(self.of_spans(class));
        self.name_culprits(cause, &kinds, spec.by_demand, ranked);
        let culprit = cause.culprit.as_ref();
        cause.verify = spec.verify.steps(culprit.and_then(|c| c.pid));
        if spec.has_culprit && culprit.is_none() {
            let nobody = Evidence::of("nobody in particular was seen in the way");
            cause.evidence_against.push(nobody);
        }
        let mut own = Statements::default();
        (spec.statements)(&ranked.incident(class), &mut own);
        cause.evidence_for.append(&mut own.supporting);
        cause.evidence_against.append(&mut own.contradicting);
    }

    /// By how much a kind of part grew, and in how many steps it was seen.
    fn of_kind(&self, kind: PartKind) -> Option<Evidence> {
        let (usual, slow) = *self.excess.kinds().get(&kind)?;
        if slow - usual <= PART_WORTH * self.excess.total().abs() {
            return None;
        }
        let parts = &self.rows.parts;
        let of_kind = || parts.iter().filter(|p| p.kind == kind && self.slow.contains(&p.step));
        let seen: HashSet<Id> = of_kind().map(|p| p.step).collect();
        let longest = of_kind().max_by_key(|p| p.dur);
        Some(Evidence {
            says: format!(
                "{kind}: {:.3} ms a step before, {:.3} ms during; in {} of {} slow steps",
                usual / MS,
                slow / MS,
                seen.len(),
                self.excess.slow_steps
            ),
            rows: longest.map(|p| self.context.pointer(p)),
        })
    }

    /// By how much the time in spans that point to a class by their name grew.
    fn of_spans(&self, class: Class) -> Option<Evidence> {
        let (usual, slow) = self.excess.in_spans(class)?;
        let of_class = |span: &&SpanInStep| span.class == class && self.slow.contains(&span.step);
        let spans = || self.rows.spans.iter().filter(of_class);
        let longest = spans().max_by_key(|span| span.to - span.from)?;
        let seen: HashSet<Id> = spans().map(|span| span.step).collect();
        let what = longest.name.split_once(": ").map_or(&*longest.name, |(what, _)| what);
        let most = most_in(spans()).map_or(String::new(), |(detail, ns)| {
            let each = ns / MS / self.excess.slow_steps.max(1) as f64;
            format!("; most of it in `{detail}`, {each:.3} ms a slow step")
        });
        Some(Evidence {
            says: format!(
                "spans `{what}`: {:.3} ms a step before, {:.3} ms during; in {} of {} slow steps{most}",
                usual / MS,
                slow / MS,
                seen.len(),
                self.excess.slow_steps
            ),
            rows: Some(longest.pointer()),
        })
    }

    /// Names the culprit that accounts for most of a cause, and the others.
    fn name_culprits(
        &self,
        cause: &mut Cause,
        kinds: &[PartKind],
        by_demand: bool,
        ranked: &Ranked<'_>,
    ) {
        let own: HashSet<EntityId> = self.workload.union(&self.partners).copied().collect();
        // Of processes that are blamed together all work for the steps, or none.
        let works = |id: EntityId| by_demand && own.contains(&id);
        let ranking = culprits::ranked(self.excess, kinds, by_demand, self.context, &own);
        let total = cause.excess_ms * MS;
        let mut suspects = Vec::new();
        for blamed in &ranking.blamed {
            let Some(culprit) = self.culprit(blamed) else { continue };
            let excess = blamed.excess();
            if excess < culprits::WORTH * total {
                continue;
            }
            let guilt = Guilt {
                of_cause: excess / total.max(1.0),
                of_candidates: 1.0,
                recovers: excess / self.excess.total().max(1.0),
                // A device is no bystander: where it was in the way, that is the cause, whenever it was first seen.
                began: self
                    .began(blamed, kinds)
                    .filter(|_| culprit.kind != EntityKind::Gpu.as_str())
                    .map(|after| self.in_time_if_little_was_lost(after)),
                basis: match (by_demand, blamed.demand) {
                    (false, _) => Basis::InTheWay,
                    (true, Some(_)) => Basis::Demand,
                    (true, None) => Basis::Occupancy,
                },
            };
            let against = self.against(&culprit, blamed, &guilt, kinds);
            suspects.push((blamed, culprit, excess, guilt, against));
        }
        let candidates: f64 = suspects
            .iter()
            .filter(|(.., against)| against.is_none())
            .map(|(_, _, ns, ..)| ns)
            .sum();
        for (blamed, culprit, excess, guilt, against) in suspects {
            let guilt = Guilt { of_candidates: excess / candidates.max(1.0), ..guilt };
            let is_acquitted = against.is_some();
            cause.evidence_against.extend(against);
            if is_acquitted || cause.culprit.is_some() || excess < guilt::CONVICTED * total {
                cause.others.push((culprit, excess / MS));
                continue;
            }
            let support = guilt.support(self.lasted(), ranked.enough());
            if guilt.is_too_little(support, works(blamed.id) || self.context.records(blamed.id)) {
                cause.others.push((culprit, excess / MS));
                continue;
            }
            self.convict(cause, &culprit, blamed, kinds);
            cause.culprit_ms = excess / MS;
            cause.culprit_support = Some(support);
            cause.culprit = Some(culprit);
            cause.members = blamed.parts(&ranking.displaced);
        }
        self.name_recorder(cause, &ranking, ranked);
        self.acquit(cause, &ranking);
        if let Some(says) = self.in_its_own_way(cause, &ranking, ranked, works) {
            cause.trust = IN_ITS_OWN_WAY;
            cause.evidence_against.push(Evidence::of(says));
        }
    }

    /// What speaks for that the work is in its own way; none if nothing does.
    fn in_its_own_way(
        &self,
        cause: &Cause,
        ranking: &Ranking,
        ranked: &Ranked<'_>,
        works: impl Fn(EntityId) -> bool,
    ) -> Option<String> {
        let of_own = ranking.displaced.iter().filter(|b| b.members.iter().all(|&id| works(id)));
        let own_way: f64 = of_own.map(Blamed::excess).sum();
        let total = cause.excess_ms * MS;
        Some(match &cause.culprit {
            Some(culprit) if works(EntityId(culprit.entity)) => {
                format!("{culprit} works for these steps itself: more of its work, or more to do, looks the same")
            }
            None if ranking.anybody_rose == Some(true) => {
                "of those who took more of the CPUs than before nobody accounts for enough of it: the work may be in its \
                 own way"
                    .to_owned()
            }
            None if ranking.anybody_rose == Some(false)
                && self.incident.slowed.iter().all(|slowed| slowed.signature.is_quantum())
                && own_way >= IN_EACH_OTHERS_WAY * total =>
            {
                "its own threads were in each other's way, and nobody took more of the CPUs than before".to_owned()
            }
            None if ranking.anybody_rose == Some(false) && ranked.comes_and_goes() => {
                "steps that are measured by their batches take that much longer now and then: the work may be in its own way"
                    .to_owned()
            }
            _ => return None,
        })
    }

    /// Names the recorder if it was in the way for most of a cause while nobody took more of the CPUs than before: it has to
    /// take no more than it always does to be where it is waited for.
    fn name_recorder(&self, cause: &mut Cause, ranking: &Ranking, ranked: &Ranked<'_>) {
        if cause.culprit.is_some() || ranking.anybody_rose != Some(false) {
            return;
        }
        let total = cause.excess_ms * MS;
        let most = |b: &&Blamed| {
            self.context.records(b.id) && b.excess() >= culprits::RECORDER_MOST * total
        };
        let Some(blamed) = ranking.displaced.iter().find(most) else { return };
        let Some(culprit) = self.culprit(blamed) else { return };
        cause.culprit_ms = blamed.excess() / MS;
        cause.culprit_support = Some(ranked.enough());
        cause.culprit = Some(culprit);
    }

    /// What shows that a candidate did not do it.
    fn against(
        &self,
        culprit: &Culprit,
        blamed: &Blamed,
        guilt: &Guilt,
        kinds: &[PartKind],
    ) -> Option<Evidence> {
        if guilt.basis == Basis::InTheWay && self.context.works_for_others(blamed.id) {
            return Some(Evidence::of(format!(
                "{culprit} is a worker of the kernel: who asked for what it did is not known"
            )));
        }
        let first = self.first_in_the_way(blamed, kinds);
        if self.context.records(blamed.id) && first.is_none_or(|after| after > guilt::NOTICED) {
            return Some(Evidence::of(format!(
                "{culprit} took more once something was slow, to look into it: it did not begin this"
            )));
        }
        let late = guilt.began.filter(|after| *after > guilt::too_late(self.lasted()));
        if let Some(after) = late {
            let how =
                if blamed.demand.is_some() { "began to take more" } else { "was first in the way" };
            return Some(Evidence::of(format!(
                "{culprit} {how} {after} after the onset: it did not begin this"
            )));
        }
        guilt.recovers_too_little().then(|| {
            Evidence::of(format!(
                "without {culprit} the slow steps would have been slow as well: it accounts for {:.3} of {:.3} ms",
                blamed.excess() / MS,
                self.excess.total() / MS
            ))
        })
    }

    fn culprit(&self, blamed: &Blamed) -> Option<Culprit> {
        let culprit = self.context.culprit(blamed.id)?;
        Some(Culprit { processes: blamed.members.len(), ..culprit })
    }

    /// How long after the onset it was in the way for the first time; none if it was not seen to be.
    fn first_in_the_way(&self, blamed: &Blamed, kinds: &[PartKind]) -> Option<Ns> {
        let onset = self.incident.from;
        let first = |id: &EntityId| first_in_the_way(&self.rows.parts, kinds, *id, onset);
        Some(blamed.members.iter().filter_map(first).min()?.saturating_sub(onset))
    }

    /// How long after the onset it began: to take more, where that was compared, else to be in the way. None if it was
    /// not seen to.
    fn began(&self, blamed: &Blamed, kinds: &[PartKind]) -> Option<Ns> {
        let more = blamed.demand.and_then(|demand| demand.began);
        let more = more.map(|began| began.saturating_sub(self.incident.from));
        more.or_else(|| self.first_in_the_way(blamed, kinds))
    }

    /// When somebody began, for whether that was in time: something small may have come before what cost most, and
    /// dates the incident.
    fn in_time_if_little_was_lost(&self, after: Ns) -> Ns {
        let begun = self.incident.from.saturating_add(after);
        let lost = |until: Ns| -> f64 {
            self.losses.iter().filter(|(end, _)| *end <= until).map(|(_, ns)| ns).sum()
        };
        let little = lost(begun) <= guilt::LITTLE_LOST * lost(Ns::MAX);
        if little { after.min(guilt::too_late(self.lasted())) } else { after }
    }

    /// How long the incident lasted.
    fn lasted(&self) -> Ns {
        self.incident.to.saturating_sub(self.incident.from)
    }

    /// What speaks for and against a culprit.
    fn convict(&self, cause: &mut Cause, culprit: &Culprit, blamed: &Blamed, kinds: &[PartKind]) {
        let first = self.first_in_the_way(blamed, kinds);
        let (usual_ms, slow_ms) = (blamed.usual / MS, blamed.slow / MS);
        let first = first.map_or("at an unknown time".into(), |at| format!("{at} after the onset"));
        let longest = blamed.members.iter().filter_map(|id| self.longest_blamed(kinds, *id));
        cause.evidence_for.push(Evidence {
            says: format!(
                "{culprit} was in the way for {slow_ms:.3} ms a step, {usual_ms:.3} ms before; \
                 first {first}"
            ),
            rows: longest.max_by_key(|p| p.dur).map(|p| self.context.pointer(p)),
        });
        if let Some(demand) = blamed.demand {
            cause.evidence_for.push(Evidence::of(format!(
                "{culprit} took {:.2} CPUs, {:.2} before",
                demand.during, demand.before
            )));
        }
        if blamed.through_others > 0.0 {
            cause.evidence_for.push(Evidence::of(format!(
                "{:.3} ms a step of it through others, whom it displaced",
                blamed.through_others / MS
            )));
        }
        if blamed.demand.is_none() && blamed.usual > culprits::BEFORE_WORTH * blamed.slow {
            cause.evidence_against.push(Evidence::of(format!(
                "{culprit} was in the way before the onset too ({usual_ms:.3} ms a step)"
            )));
        }
    }

    /// Says who was in the way and did not take more than before.
    fn acquit(&self, cause: &mut Cause, ranking: &Ranking) {
        let total = cause.excess_ms * MS;
        let worth = ranking.displaced.iter().filter(|b| b.excess() >= culprits::WORTH * total);
        for (blamed, demand) in worth.filter_map(|b| Some((b, b.demand?))) {
            let Some(culprit) = self.culprit(blamed) else { continue };
            let says = format!(
                "{culprit} was in the way for {:.3} ms a step more and took {:.2} CPUs, {:.2} before: it was \
                 displaced itself",
                blamed.excess() / MS,
                demand.during,
                demand.before
            );
            cause.evidence_for.push(Evidence::of(says));
        }
        for blamed in ranking.own.iter().filter(|b| b.excess() >= culprits::WORTH * total) {
            let Some(culprit) = self.culprit(blamed) else { continue };
            cause.evidence_against.push(Evidence::of(format!(
                "{culprit} was in the way for {:.3} ms a step more: it takes such steps itself, and whether it took \
                 more of the CPUs than before is not known",
                blamed.excess() / MS
            )));
        }
        if ranking.anybody_rose == Some(false) && !ranking.displaced.is_empty() {
            let says = "nobody took more of the CPUs than before";
            cause.evidence_against.push(Evidence::of(says));
        }
    }

    fn longest_blamed(&self, kinds: &[PartKind], id: EntityId) -> Option<&Part> {
        let blamed = |p: &&Part| p.blame == Some(id) && kinds.contains(&p.kind);
        let parts = self.rows.parts.iter().filter(blamed).filter(|p| self.slow.contains(&p.step));
        parts.max_by_key(|p| p.dur)
    }
}

/// A cause for an incident of whose steps nothing was recorded.
pub(super) fn nothing_recorded(excess: &Excess) -> Cause {
    Cause {
        rank: 1,
        class: Class::Unexplained.as_str(),
        culprit: None,
        others: Vec::new(),
        culprit_ms: 0.0,
        culprit_support: None,
        members: Vec::new(),
        trust: 1.0,
        excess_ms: excess.total() / MS,
        confidence: 0.0,
        evidence_for: Vec::new(),
        evidence_against: vec![Evidence::of("no thread states were recorded for these steps")],
        verify: "record again as root or with CAP_BPF and CAP_PERFMON: see `gpuwhy doctor`".into(),
        instance_of: None,
    }
}

/// What speaks against every cause: a rival, time that nothing explains, and what sources did not see.
pub(super) fn contradict(causes: &mut [Cause], ranked: &Ranked<'_>, context: &JudgeContext<'_>) {
    for cause in causes {
        let rival = ranked.list.iter().find(|(c, _)| Some(*c) != cause.instance_of);
        if let Some((class, ns)) = rival.filter(|(_, ns)| *ns > RIVAL_WORTH * ranked.growth) {
            let says = format!("{class} accounts for {:.3} ms a step as well", ns / MS);
            cause.evidence_against.push(Evidence::of(says));
        }
        if ranked.unexplained > RIVAL_WORTH * ranked.growth {
            cause.evidence_against.push(Evidence::of(format!(
                "{:.3} ms a step are accounted for by nothing seen",
                ranked.unexplained / MS
            )));
        }
        if let Some(class) = cause.instance_of {
            cause.evidence_against.extend(context.unseen(class).cloned());
        }
    }
}

/// The classes that were looked for in the parts of steps and account for nothing to speak of.
pub(super) fn ruled_out(excess: &Excess, causes: &[Cause]) -> Vec<Evidence> {
    let all = excess.kinds();
    let mut out = Vec::new();
    for spec in classes::ALL {
        let kinds: Vec<PartKind> = spec.own_kinds().collect();
        if kinds.is_empty() || causes.iter().any(|c| c.instance_of == Some(spec.class)) {
            continue;
        }
        let (usual, slow) = all
            .iter()
            .filter(|(kind, _)| kinds.contains(kind))
            .fold((0.0, 0.0), |sum, (_, (u, s))| (sum.0 + u, sum.1 + s));
        out.push(Evidence::of(format!(
            "{}: {:.3} ms a step before, {:.3} ms during",
            spec.class,
            usual / MS,
            slow / MS
        )));
    }
    out
}
