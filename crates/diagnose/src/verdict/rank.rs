//! Which class accounts for most of an incident, and how sure that is.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::{Class, Ns, PartKind};

use super::Judgement;
use super::context::JudgeContext;
use crate::classes::{self, Counts, Incident as Measured};
use crate::excess::{Compared, Excess, Weighing};
use crate::gpu::Readings;
use crate::on_cpu::{Doubt, OnCpu};
use crate::stats::Random;

/// A class that holds a smaller share of the growth is no cause.
const WORTH: f64 = 0.02;
/// The first class is a guess in as far as it holds less than this share of the growth.
const HELD_BY_FIRST: f64 = 0.6;
/// What lost events leave of the confidence in a class.
const WITH_LOSS: f64 = 0.9;
/// Of so few slow steps, resamples do not tell how stable the first class is.
const FEW: usize = 3;
/// A class is no more likely than another one that holds this share of what it holds.
const AS_MUCH: f64 = 0.8;
/// Slow steps that took this many times as long as usual count for that many.
const MUCH_SLOWER: f64 = 10.0;

/// The classes of an incident, most excess first.
pub(super) struct Ranked<'a> {
    /// Each class with its excess in ns a step.
    pub list: Vec<(Class, f64)>,
    /// The excess of all classes that grew, ns a step; no less than that of the steps: what is not in their parts is held by
    /// no class.
    pub growth: f64,
    /// The part of it that no row explains, ns a step.
    pub unexplained: f64,
    /// Usual and slow ns a step of each kind of part.
    pub kinds: BTreeMap<PartKind, (f64, f64)>,
    /// How often threads slept for a time in their steps.
    sleeps: Counts,
    /// In how many resamples each class came out first.
    firsts: HashMap<Class, usize>,
    resamples: usize,
    /// How far the steps that were compared suffice.
    enough: f64,
    /// How many times as long as usual the slow ones took.
    times: f64,
    slow_steps: usize,
    /// Where the program ran for longer, and who else ran.
    on_cpu: OnCpu,
    from: Ns,
    to: Ns,
    readings: &'a Readings,
}

impl<'a> Ranked<'a> {
    /// Ranks the classes of an incident that lasted from `from` to `to`.
    pub(super) fn new(
        series: &[Compared<'_>],
        excess: &Excess,
        on_cpu: OnCpu,
        (from, to): (Ns, Ns),
        context: &'a JudgeContext<'_>,
        judgement: &Judgement,
    ) -> Ranked<'a> {
        let kinds = excess.kinds();
        let readings = context.readings();
        let (kinds_of, on) = (&kinds, &on_cpu);
        let (sleeps, total) = (excess.sleeps, excess.total());
        let measured =
            Measured { from, to, readings, kinds: kinds_of, sleeps, on_cpu: on, excess: total };
        let contradicted: Vec<PartKind> =
            classes::ALL.iter().flat_map(|spec| (spec.contradicted)(&measured)).copied().collect();
        let mut list: Vec<(Class, f64)> = excess.classes(&contradicted).into_iter().collect();
        list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ranked {
            growth: list.iter().map(|(_, ns)| ns.max(0.0)).sum::<f64>().max(total),
            unexplained: excess.unexplained(),
            list,
            firsts: firsts(series, judgement.resamples, &contradicted),
            resamples: judgement.resamples,
            enough: enough(excess),
            times: times(excess),
            slow_steps: excess.slow_steps,
            kinds,
            sleeps: excess.sleeps,
            on_cpu,
            from,
            to,
            readings,
        }
    }

    /// The classes that hold enough of the growth to be causes, most excess first.
    pub(super) fn causes(&self) -> impl Iterator<Item = (Class, f64)> {
        let worth = WORTH * self.growth;
        self.list.iter().copied().filter(move |(_, ns)| *ns > worth && *ns > 0.0)
    }

    /// How sure the class at `rank`, from 0, is that accounts for `ns` a step; not calibrated.
    pub(super) fn confidence(
        &self,
        rank: usize,
        (class, ns): (Class, f64),
        context: &JudgeContext<'_>,
    ) -> f64 {
        if class == Class::Unexplained {
            return 0.0;
        }
        let first = self.firsts.get(&class).copied().unwrap_or(0);
        let share = self.share(ns);
        // A class that comes out first but holds a third of the growth is a guess.
        let weight = if rank == 0 { held_by_first(share) } else { share };
        let lossless = if context.has_lost(class) { WITH_LOSS } else { 1.0 };
        self.certainty(first, weight) * lossless
    }

    /// How sure it is that one of these classes comes first, if they are taken together; not calibrated.
    pub(super) fn confidence_of_any(&self, classes: &[Class]) -> f64 {
        let firsts = classes.iter().filter_map(|class| self.firsts.get(class)).sum();
        let of_these = self.list.iter().filter(|(class, _)| classes.contains(class));
        let share = self.share(of_these.map(|(_, ns)| ns.max(0.0)).sum());
        self.certainty(firsts, held_by_first(share))
    }

    /// The share of the growth that so many ns a step are.
    fn share(&self, ns: f64) -> f64 {
        (ns / self.growth.max(1.0)).clamp(0.0, 1.0)
    }

    /// How sure it is what came first in so many resamples, and has this weight.
    fn certainty(&self, firsts: usize, weight: f64) -> f64 {
        let explained = 1.0 - self.share(self.unexplained);
        firsts as f64 / self.resamples.max(1) as f64 * explained * weight * self.enough
    }

    /// What speaks against that the program did more.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.on_cpu.doubt()
    }

    /// Whether steps take as much longer without anybody's doing.
    pub(super) fn comes_and_goes(&self) -> bool {
        self.on_cpu.comes_and_goes(self.times)
    }

    /// What is left of the confidence in the first class, after calibration, if another one holds as much of a few steps.
    pub(super) fn of_two(&self) -> f64 {
        let [first, second] = [0, 1].map(|n| self.list.get(n).map_or(0.0, |(_, ns)| *ns));
        let tied = self.slow_steps <= FEW && second > AS_MUCH * first;
        if tied { 0.5 } else { 1.0 }
    }

    /// How far the steps that were compared suffice.
    pub(super) fn enough(&self) -> f64 {
        self.enough
    }

    /// The incident as the class with this excess sees it.
    pub(super) fn incident(&self, class: Class) -> Measured<'_> {
        let excess = self.list.iter().find(|(c, _)| *c == class).map_or(0.0, |(_, ns)| *ns);
        let Ranked { from, to, readings, kinds, sleeps, on_cpu, .. } = self;
        Measured { from: *from, to: *to, readings, kinds, sleeps: *sleeps, on_cpu, excess }
    }
}

/// How much what comes first weighs by the share of the growth that it holds.
fn held_by_first(share: f64) -> f64 {
    (share / HELD_BY_FIRST).min(1.0)
}

/// In how many resamples each class came out first.
fn firsts(
    series: &[Compared<'_>],
    resamples: usize,
    contradicted: &[PartKind],
) -> HashMap<Class, usize> {
    let mut random = Random::new(0x6770_7577);
    let mut firsts: HashMap<Class, usize> = HashMap::new();
    if series.is_empty() {
        return firsts;
    }
    let mut weighing = Weighing::new(series);
    for _ in 0..resamples {
        let classes = weighing.resampled(&mut random).classes(contradicted);
        if let Some((class, _)) = classes.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
            *firsts.entry(class).or_default() += 1;
        }
    }
    firsts
}

/// How many times as long as usual slow steps took.
fn times(excess: &Excess) -> f64 {
    excess.slow / excess.usual.max(1.0)
}

/// How far the steps that were compared suffice. A step that took ten times as long as usual counts
/// for ten that took twice as long, and so on.
fn enough(excess: &Excess) -> f64 {
    let times = times(excess);
    let weight = if times >= MUCH_SLOWER { times } else { 1.0 };
    let slow = excess.slow_steps as f64 * weight;
    1.0 - 0.5f64.powf(slow.min(excess.usual_steps as f64) / 3.0)
}
