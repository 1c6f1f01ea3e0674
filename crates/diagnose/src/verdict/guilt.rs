//! How far what was measured supports that somebody did it.
//!
//! # What it sees
//! Of one candidate for the excess of a cause: the share of it that the candidate accounts for, and of all candidates
//! together; whether it began in time; how much of the whole excess the slow steps would be shorter without it; and
//! whether its demand was compared, or it was only seen to be in the way.
//!
//! # Why it matters
//! The class of a cause may be certain while several could have done it. Who reads one number takes it for both.
//!
//! # What fools it
//! The product orders candidates; that one of 0.6 is right in six of ten cases was not measured.

use gpuwhy_schema::Ns;

/// Who accounts for a smaller share of a cause is listed and not convicted.
pub(super) const CONVICTED: f64 = 0.25;
/// and so is who is supported by less than this,
const NAMED_FROM: f64 = 0.15;
/// or by less than this, of those who were only seen to be in the way of a CPU,
const NAMED_BY_OCCUPANCY: f64 = 0.25;
/// and of those who took more of the CPUs, while others did as well: of 58 who were named in trials of the benchmarks and
/// had done it none was supported by less than 0.45,
const NAMED_BY_DEMAND: f64 = 0.35;
/// and by less than this who works for the steps itself, since more of its work is theirs, and the recorder, which works
/// because something is slow.
const INVOLVED_NAMED_FROM: f64 = 0.5;
/// A culprit is a guess in as far as it accounts for less than this share of its cause,
const HELD_BY_ONE: f64 = 0.6;
/// or as less than this share of the excess would be recovered without it.
const RECOVERED: f64 = 0.5;
/// One without whom no more than this share of the excess would be recovered is no culprit.
const RECOVERS_TOO_LITTLE: f64 = 0.1;
/// What is left if nobody saw when it began,
const BEGIN_UNKNOWN: f64 = 0.7;
/// and if a CPU was waited for and it is not known who took more than before.
const OCCUPANCY_ALONE: f64 = 0.6;
/// Who was first in the way so long after the onset did not cause it,
const TOO_LATE: Ns = Ns::secs(1);
/// nor who was so after this share of an incident, one in this many,
const TOO_LATE_ONE_IN: i64 = 4;
/// unless no more than this share of the time was lost until then.
pub(super) const LITTLE_LOST: f64 = 0.15;
/// The recorder takes more once it has noticed that something is slow: if it was first in the way so long after the
/// onset, it did not begin that.
pub(super) const NOTICED: Ns = Ns::millis(300);

/// How long after its onset an incident may still have been begun by somebody.
pub(super) fn too_late(lasted: Ns) -> Ns {
    TOO_LATE.max(Ns(lasted.0 / TOO_LATE_ONE_IN))
}

/// What speaks for one candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guilt {
    /// The share of its cause that it accounts for.
    pub of_cause: f64,
    /// The share of what all candidates account for that are not ruled out.
    pub of_candidates: f64,
    /// The share of the whole excess that would be recovered without it.
    pub recovers: f64,
    /// How long after the onset it began; none if that was not seen.
    pub began: Option<Ns>,
    /// What is compared of candidates.
    pub basis: Basis,
}

/// What is compared of candidates besides the time for which they were in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// Nothing.
    InTheWay,
    /// What they took of the CPUs.
    Demand,
    /// That, and it is not known.
    Occupancy,
}

impl Guilt {
    /// Whether the steps would have been slow without it as well.
    pub(super) fn recovers_too_little(&self) -> bool {
        self.recovers <= RECOVERS_TOO_LITTLE
    }

    /// Whether so much support is too little to name somebody, who is `involved` if it works for the steps or records
    /// them.
    pub(super) fn is_too_little(&self, support: f64, involved: bool) -> bool {
        let least = match self.basis {
            Basis::InTheWay => NAMED_FROM,
            Basis::Demand => NAMED_BY_DEMAND,
            Basis::Occupancy => NAMED_BY_OCCUPANCY,
        };
        support < if involved { INVOLVED_NAMED_FROM } else { least }
    }

    /// How strongly it is supported, from 0 to 1.
    pub(super) fn support(&self, lasted: Ns, enough: f64) -> f64 {
        let began = match self.began {
            None => BEGIN_UNKNOWN,
            Some(after) if after > too_late(lasted) => 0.0,
            Some(_) => 1.0,
        };
        let basis = if self.basis == Basis::Occupancy { OCCUPANCY_ALONE } else { 1.0 };
        let share = |of: f64, whole: f64| (of / whole).clamp(0.0, 1.0);
        share(self.of_cause, HELD_BY_ONE)
            * share(self.recovers, RECOVERED)
            * self.of_candidates.clamp(0.0, 1.0)
            * began
            * basis
            * enough
    }
}
