//! Which rows belong to a stretch of time: those that overlap it, and what hangs on these.

use std::any::Any;
use std::ops::Range;

use gpuwhy_schema::{Cause, Link, Ns, Part, Step, Table};

use crate::ids::IdSet;
use crate::read::overlaps;
use crate::seal::is_lasting;

/// Which links belong to a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Those with one end in it, for who reads.
    Either,
    /// Those with both ends in it, for who makes a trace of it.
    Both,
}

/// A selection of rows as it is made, table by table in the order of their declaration, in which
/// spans, marks and findings come before what hangs on them.
#[derive(Debug)]
pub(crate) struct Selection {
    range: Range<Ns>,
    links: Links,
    /// The spans, marks and findings that were selected.
    pub ids: IdSet,
    /// When the first of these began, or the range.
    pub earliest: Ns,
    /// When the last of these that has ended ended, or the range.
    pub latest: Ns,
}

impl Selection {
    /// An empty selection of rows that overlap `range`, and those that `links` lead to.
    pub fn new(range: Range<Ns>, links: Links) -> Selection {
        let (earliest, latest) = (range.start, range.end);
        Selection { range, links, ids: IdSet::default(), earliest, latest }
    }

    /// Whether a table's rows belong to others, whose ids they bear.
    pub fn hangs_on_others<T: Table>() -> bool {
        T::GROUP == Step::GROUP || matches!(T::NAME, Link::NAME | Part::NAME | Cause::NAME)
    }

    /// Where the rows of a table that may belong to the selection lie in time.
    pub fn extent<T: Table>(&self) -> Range<Ns> {
        match () {
            () if is_lasting::<T>() => Ns::MIN..Ns::MAX,
            // Parts tile their step, which may reach out of the range on both sides.
            () if T::NAME == Part::NAME => self.earliest..self.latest,
            // Details lie at the start of their span, which may lie before the range.
            () if Self::hangs_on_others::<T>() => self.earliest..self.range.end,
            () => self.range.clone(),
        }
    }

    /// Whether `row` belongs to the selection; if it is one that others hang on, it is noted.
    pub fn take<T: Table>(&mut self, row: &T) -> bool {
        if is_lasting::<T>() {
            return true;
        }
        if Self::hangs_on_others::<T>() {
            return self.hangs(row);
        }
        let (Some(start), Some(end)) = (row.start(), row.end()) else { return true };
        if !overlaps(start, end, &self.range) {
            return false;
        }
        if let Some(id) = row.id() {
            self.ids.insert(id);
            self.earliest = self.earliest.min(start);
            if end < Ns::MAX {
                self.latest = self.latest.max(end);
            }
        }
        true
    }

    fn hangs<T: Table>(&self, row: &T) -> bool {
        let any = row as &dyn Any;
        if let Some(link) = any.downcast_ref::<Link>() {
            let (from, to) = (self.ids.contains(link.from), self.ids.contains(link.to));
            match self.links {
                Links::Either => from || to,
                Links::Both => from && to,
            }
        } else if let Some(part) = any.downcast_ref::<Part>() {
            self.ids.contains(part.step)
        } else if let Some(cause) = any.downcast_ref::<Cause>() {
            self.ids.contains(cause.finding)
        } else {
            row.id().is_some_and(|id| self.ids.contains(id))
        }
    }
}
