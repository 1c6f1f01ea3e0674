//! Steps, their numbers, and which of them are comparable.

use std::ops::{Deref, Index};

use gpuwhy_schema::{EntityId, Id, Name, Ns, names};

use crate::roofline::Mix;

/// One finished step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Its span.
    pub id: Id,
    /// When it began.
    pub ts: Ns,
    /// How long it took.
    pub dur: Ns,
    /// Whose time it is.
    pub thread: EntityId,
    /// With whose steps it is compared, if not with those of its thread: with its process's, where they wander between its
    /// threads, or with those of a thread of a pool, for which its own stands in.
    pub series: Option<EntityId>,
    /// The rank, where there is one.
    pub rank: Option<u32>,
    /// Its name.
    pub name: Name,
    /// How much there was to do.
    pub size: Option<i64>,
    /// For how long its thread was on a CPU meanwhile, where its states were recorded.
    pub ran: Option<Ns>,
    /// What it should take.
    pub expected: Expected,
}

/// What a step should take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Expected {
    /// As long as others of its signature.
    #[default]
    Alike,
    /// It depends on what there was to do, and how, was not learned yet.
    NotKnown(Mix),
    /// It was learned what a step takes for what there was to do (see [`crate::roofline`]).
    Priced {
        /// What kind of batch it was made of.
        mix: Mix,
        /// What it should take by what was learned lately, ns,
        ns: f64,
        /// and by what was known first, ns: of a recording before, or when this one began. None if that says nothing of as
        /// much to do.
        first_ns: Option<f64>,
    },
}

impl Expected {
    /// What kind of batch it was made of.
    pub fn mix(self) -> Option<Mix> {
        match self {
            Expected::Alike => None,
            Expected::NotKnown(mix) | Expected::Priced { mix, .. } => Some(mix),
        }
    }
}

/// What steps that are compared are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum By {
    /// Nothing: they are alike.
    #[default]
    Alike,
    /// For how long their thread was on a CPU: they are of any length.
    Cpu,
    /// What they should take for what there was to do in them; so many ns is typical.
    Load(f64),
    /// The same by what was known first; so many ns is typical.
    First(f64),
}

impl By {
    /// How much of that a step has; none if it is not known, or if steps are alike.
    pub fn of(self, step: &Step) -> Option<f64> {
        match (self, step.expected) {
            (By::Cpu, _) => step.ran.map(|ran| ran.0 as f64),
            (By::Load(_), Expected::Priced { ns, .. }) => Some(ns),
            (By::First(_), Expected::Priced { first_ns, .. }) => first_ns,
            _ => None,
        }
    }
}

/// What makes steps comparable: whose they are, the name and the class of size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature {
    /// Whose steps: a thread's, or a process's.
    pub of: EntityId,
    /// Their name.
    pub name: Name,
    /// Their size in sixteenths of an octave (4.4 % apart), or none: what follows from the size
    /// must stay below the least effect that is reported.
    pub size_class: Option<i64>,
    /// The kind of batch that they are made of, where what they take is compared with what that should take.
    pub mix: Option<Mix>,
    /// Which kind of a series whose steps are of several, under one name: 0 of most.
    pub kind: u8,
}

impl Signature {
    /// Whether these are busy periods.
    pub fn is_busy_period(&self) -> bool {
        &*self.name == names::BUSY_PERIOD
    }

    /// Whether these are work quanta.
    pub fn is_quantum(&self) -> bool {
        &*self.name == names::QUANTUM
    }
}

impl Step {
    /// The signature that it is compared under.
    pub fn signature(&self) -> Signature {
        let class = |size: i64| (16.0 * (size.max(1) as f64).log2()).round() as i64;
        let mix = self.expected.mix();
        // Busy periods are of any length, so that they are compared all together.
        let by_size = mix.is_none() && !self.is_busy_period();
        let size_class = self.size.filter(|_| by_size).map(class);
        let of = self.series.unwrap_or(self.thread);
        Signature { of, name: self.name.clone(), size_class, mix, kind: 0 }
    }

    /// Whether it is a busy period, whose size is the number of messages that its thread received.
    pub fn is_busy_period(&self) -> bool {
        &*self.name == names::BUSY_PERIOD
    }

    /// What it should take, ns, where that is known for what there was to do.
    pub fn expected_ns(&self) -> Option<f64> {
        By::Load(0.0).of(self)
    }

    /// How long it would have taken if so many ns of what it should take were typical; as long as it took, where that is
    /// not known.
    pub(crate) fn as_typical(&self, by: By) -> Ns {
        match (by, by.of(self)) {
            (By::Load(typical) | By::First(typical), Some(expected)) => {
                Ns((self.dur.0 as f64 * typical / expected) as i64)
            }
            _ => self.dur,
        }
    }

    /// When it ended.
    pub fn end(&self) -> Ns {
        self.ts.saturating_add(self.dur)
    }
}

/// The number of a step: its place in the order in which steps ended, from 0. It stays the same when
/// older steps are forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepNo(pub u64);

/// The latest steps, in the order in which they ended, by their numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// How many older ones are forgotten.
    forgotten: u64,
    list: Vec<Step>,
}

impl From<Vec<Step>> for Steps {
    /// Steps of which none is forgotten.
    fn from(list: Vec<Step>) -> Steps {
        Steps { forgotten: 0, list }
    }
}

impl Deref for Steps {
    type Target = [Step];

    fn deref(&self) -> &[Step] {
        &self.list
    }
}

impl Index<StepNo> for Steps {
    type Output = Step;

    fn index(&self, no: StepNo) -> &Step {
        &self.list[(no.0 - self.forgotten) as usize]
    }
}

impl<'a> IntoIterator for &'a Steps {
    type Item = &'a Step;
    type IntoIter = std::slice::Iter<'a, Step>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl Steps {
    /// Each step with its number.
    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (StepNo, &Step)> {
        let number = |i: usize| StepNo(self.forgotten + i as u64);
        self.list.iter().enumerate().map(move |(i, step)| (number(i), step))
    }

    /// The number of the next step.
    pub(crate) fn next(&self) -> StepNo {
        StepNo(self.forgotten + self.list.len() as u64)
    }

    /// Adds the next step.
    pub(crate) fn push(&mut self, step: Step) {
        self.list.push(step);
    }

    /// Removes the last steps, so that `len` are left. Their numbers are given out again.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// Forgets the first `n`; returns the number of the first that is left.
    pub(crate) fn forget(&mut self, n: usize) -> StepNo {
        self.list.drain(..n);
        self.forgotten += n as u64;
        StepNo(self.forgotten)
    }
}
