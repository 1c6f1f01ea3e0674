//! What a class of causes is: how it describes itself, and what its statements are made from.

use std::collections::BTreeMap;

use gpuwhy_schema::sources::{self, SourceKind};
use gpuwhy_schema::{Class, Ns, PartKind};

use crate::evidence::Statements;
use crate::gpu::{Gpu, GpuEvidence, Readings};
use crate::on_cpu::OnCpu;

/// A class's description of itself. [`ALL`](super::ALL) lists all of them.
///
/// Its name is `class.as_str()`, its meaning in one line `class.doc()`.
#[derive(Debug)]
pub struct ClassSpec {
    /// The class.
    pub class: Class,
    /// What it looks like to a user, in one sentence.
    pub looks_like: &'static str,
    /// The kinds of part whose excess points to it, in the order of [`PartKind::ALL`].
    pub takes: &'static [Takes],
    /// Spans that point to it by their names.
    pub spans: Option<NamedSpans>,
    /// Names of the tracks of GPU drivers' readings that its statements are made from.
    pub readings: &'static [&'static str],
    /// Which rows support it and which contradict it, in words.
    pub evidence: &'static str,
    /// How a user finds out whether it is true.
    pub verify: Verify,
    /// When a verdict of this class is wrong, or this class is missed.
    pub fooled_by: &'static str,
    /// Whether it speaks against a cause of this class that no culprit was seen.
    pub(crate) has_culprit: bool,
    /// Whether a culprit is one that takes more of the CPUs than before, and not whoever was in the way.
    pub(crate) by_demand: bool,
    /// Statements beyond those that every class has.
    pub(crate) statements: fn(&Incident<'_>, &mut Statements),
    /// Kinds of part that do not point to it in this incident, as other rows contradict it; their
    /// excess stays unexplained.
    pub(crate) contradicted: fn(&Incident<'_>) -> &'static [PartKind],
    /// What a calibrated confidence in it is multiplied by, from 0 to 1, where rows that would decide
    /// were not recorded.
    pub(crate) trust: fn(&Incident<'_>) -> f64,
}

impl ClassSpec {
    /// A class to which nothing points, to be filled in.
    pub(crate) const fn new(class: Class) -> ClassSpec {
        ClassSpec {
            class,
            looks_like: "",
            takes: &[],
            spans: None,
            readings: &[],
            evidence: "",
            verify: Verify { culprit: None, otherwise: Verify::COMPARE },
            fooled_by: "",
            has_culprit: false,
            by_demand: false,
            statements: |_, _| {},
            contradicted: |_| &[],
            trust: |_| 1.0,
        }
    }

    /// The kinds of part whose excess points to it, wholly or in part.
    pub fn kinds(&self) -> impl Iterator<Item = PartKind> + Clone + use<> {
        self.takes.iter().map(|takes| takes.kind)
    }

    /// The kinds of part that point to it before any other class.
    pub(crate) fn own_kinds(&self) -> impl Iterator<Item = PartKind> + use<> {
        let own = self.takes.iter().filter(|takes| takes.share != Share::SlowerMisses);
        own.map(|takes| takes.kind)
    }

    /// Which share of the excess of a kind of part points to it.
    pub fn share_of(&self, kind: PartKind) -> Option<Share> {
        self.takes.iter().find(|takes| takes.kind == kind).map(|takes| takes.share)
    }

    /// The kinds of sources whose rows are evidence for it in particular. Sources that are evidence
    /// for every class, such as thread states, are not among them.
    pub fn sources(&self) -> impl Iterator<Item = &'static SourceKind> + use<> {
        let class = self.class;
        sources::ALL.iter().filter(move |source| source.evidence_for.contains(&class))
    }
}

/// A kind of part, and which share of its excess points to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// The kind of part.
    pub kind: PartKind,
    /// The share of its excess.
    pub share: Share,
}

impl Takes {
    /// All excess of a kind of part.
    pub(crate) const fn all(kind: PartKind) -> Takes {
        Takes { kind, share: Share::All }
    }
}

/// Which share of the excess of a kind of part points to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    All,
    /// Of page-cache misses: what comes from there being more of them.
    MoreMisses,
    /// Of page-cache misses: the rest, which comes from each taking longer.
    SlowerMisses,
}

impl Share {
    /// The excess, in ns a step, of parts that took `usual` and `slow` ns a step.
    pub(crate) fn of(self, usual: f64, slow: f64, misses: Counts) -> f64 {
        match self {
            Share::All => slow - usual,
            Share::MoreMisses => misses.more(usual, slow),
            Share::SlowerMisses => slow - usual - misses.more(usual, slow),
        }
    }
}

/// How often something happened in a step: page-cache misses, say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// In usual steps.
    pub usual: f64,
    /// In slow steps.
    pub slow: f64,
}

impl Counts {
    /// Of the excess in page-cache misses, in ns a step, what comes from there being more of them.
    ///
    /// Time is number times duration, and its growth is divided between the two by their logarithms
    /// (the logarithmic mean Divisia index). To price more misses at what a slow one takes would call
    /// one more read behind a full queue a lack of memory; to price them at what a usual one takes
    /// would call it the disk's fault that many reads at once wait for each other.
    fn more(self, usual: f64, slow: f64) -> f64 {
        let excess = slow - usual;
        let growth = (slow / usual).ln();
        let share = (self.slow / self.usual).ln() / growth;
        // Where there were none before, or are none now, all comes from their number.
        excess * if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// Spans that point to a class by their names, where they lie in a step of their process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedSpans {
    /// Their names.
    pub names: &'static [&'static str],
    /// Whether a name may go on with `: ` and what it was, as `kernel_imbalance: gemm(float*)`.
    pub detailed: bool,
    /// Kinds of part that such a span explains: the excess of what lies inside it points to this class
    /// instead of the kind's own.
    pub instead_of: &'static [PartKind],
}

impl NamedSpans {
    /// Whether a span of this name is one.
    pub(crate) fn contain(&self, name: &str) -> bool {
        let of = |(name, _)| name;
        let name = if self.detailed { name.split_once(": ").map_or(name, of) } else { name };
        self.names.contains(&name)
    }
}

/// How a user verifies a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    /// Where the culprit is a process: `{pid}` stands for its pid.
    pub culprit: Option<&'static str>,
    /// Where it is none, or none was seen.
    pub otherwise: &'static str,
}

impl Verify {
    /// Pausing a process, which shows whether it matters.
    pub(crate) const PAUSE: &str =
        "pause it and record again: `kill -STOP {pid}; sleep 5; kill -CONT {pid}`";
    /// What always remains.
    pub(crate) const COMPARE: &str = "record again with the suspect paused or moved, and compare";

    /// What to do, for the culprit's pid if it is a process.
    pub fn steps(&self, pid: Option<i64>) -> String {
        match (self.culprit, pid) {
            (Some(text), Some(pid)) => text.replace("{pid}", &pid.to_string()),
            _ => self.otherwise.to_owned(),
        }
    }
}

/// One incident as it was measured, from which a class makes its statements.
#[derive(Clone, Copy, Debug)]
pub struct Incident<'a> {
    /// When it began.
    pub from: Ns,
    /// When it ended.
    pub to: Ns,
    /// What the drivers of GPUs reported around it.
    pub readings: &'a Readings,
    /// Usual and slow ns a step of each kind of part.
    pub kinds: &'a BTreeMap<PartKind, (f64, f64)>,
    /// How often threads slept for a time in their steps.
    pub sleeps: Counts,
    /// Where the program ran for longer, and who else ran.
    pub on_cpu: &'a OnCpu,
    /// The excess of the class in ns a step.
    pub excess: f64,
}

impl Incident<'_> {
    /// By how much a kind of part grew, in ns a step.
    pub fn growth(&self, kind: PartKind) -> f64 {
        self.kinds.get(&kind).map_or(0.0, |(usual, slow)| slow - usual)
    }

    /// Statements of each GPU's readings.
    pub(crate) fn of_each_gpu(
        &self,
        out: &mut Statements,
        state: impl Fn(&Gpu, &mut GpuEvidence<'_>),
    ) {
        for gpu in self.readings.gpus().take(STATED_GPUS) {
            state(gpu, &mut GpuEvidence::new(gpu, self.from, self.to, out));
        }
    }
}

/// GPUs of which statements are made at most.
const STATED_GPUS: usize = 4;
