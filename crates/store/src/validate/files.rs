//! What each file must be: readable, of the declared columns, sorted, as the manifest
//! says; and what each row must be to the lanes.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, RecordBatch};
use gpuwhy_schema::{EachTable, EntityId, Ns, Role, Rows, Shape, SourceId, Table, TrackId, schema};

use super::lanes::Lanes;
use super::{Findings, Rule};
use crate::Trace;
use crate::journal::Found;
use crate::manifest;
use crate::segment::{Batches, Times};

const ALL: Range<Ns> = Ns::MIN..Ns::MAX;

pub(super) fn check(trace: &Trace, lanes: &Lanes, findings: &mut Findings) {
    let Ok(()) = Rows::default().each(&mut Files { trace, lanes, findings });
}

struct Files<'a> {
    trace: &'a Trace,
    lanes: &'a Lanes,
    findings: &'a mut Findings,
}

impl EachTable for Files<'_> {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<(), Self::Error> {
        for file in self.trace.manifest().file.iter().filter(|f| f.table == T::NAME) {
            if let Err(e) = self.sealed::<T>(file) {
                self.findings.unreadable(T::NAME, &e);
            }
        }
        for journal in self.trace.journals() {
            if let Err(e) = self.journal::<T>(journal) {
                self.findings.unreadable(T::NAME, &e);
            }
        }
        Ok(())
    }
}

impl Files<'_> {
    fn sealed<T: Table>(&mut self, file: &manifest::File) -> crate::Result<()> {
        let mut batches = Batches::open::<T>(self.trace.dir(), file, &ALL)?;
        let mut last = None;
        let (mut min_start, mut max_end, mut open) = (None::<i64>, None::<i64>, 0);
        loop {
            let first_row = batches.row;
            let Some(batch) = batches.next() else { break };
            let batch = batch?;
            let place = |row: usize| format!("{} row {}", file.path, first_row + row as u64);
            if first_row == 0 {
                self.columns::<T>(&batch, &file.path);
            }
            if !file.is_head() {
                self.findings.rows += batch.num_rows() as u64;
            }
            self.batch::<T>(&batch, &place);
            let Some(times) = Times::of::<T>(&batch) else { continue };
            let broken = match last {
                Some(last) if batch.num_rows() > 0 && last > times.key(0) => Some(0),
                _ => times.disorder(),
            };
            if let Some(row) = broken {
                self.findings.note(
                    Rule::Sorted,
                    T::NAME,
                    || place(row),
                    || "it starts before the row above it, or with it and is longer".into(),
                );
            }
            last = batch.num_rows().checked_sub(1).map(|row| times.key(row)).or(last);
            if let Some((start, end, n)) = times.extent() {
                min_start = Some(min_start.map_or(start, |m| m.min(start)));
                max_end = Some(max_end.map_or(end, |m| m.max(end)));
                open += n;
            }
        }
        let measured = (min_start, max_end, open);
        if measured != (file.min_start, file.max_end, file.open) {
            self.findings.note(Rule::Readable, T::NAME, || file.path.clone(), || {
                format!(
                    "its rows lie in {min_start:?}..{max_end:?}, {open} open; {} says {:?}..{:?}, {}",
                    manifest::MANIFEST,
                    file.min_start,
                    file.max_end,
                    file.open
                )
            });
        }
        Ok(())
    }

    fn journal<T: Table>(&mut self, journal: &Found) -> crate::Result<()> {
        for batch in journal.batches::<T>() {
            let batch = batch?;
            self.findings.rows += batch.num_rows() as u64;
            let path = journal.path.strip_prefix(self.trace.path()).unwrap_or(&journal.path);
            self.batch::<T>(&batch, &|row| format!("{} row {row} of a frame", path.display()));
        }
        Ok(())
    }

    fn columns<T: Table>(&mut self, batch: &RecordBatch, path: &str) {
        let (found, declared) = (batch.schema(), schema::<T>());
        for (found, declared) in found.fields().iter().zip(declared.fields()) {
            if found != declared {
                self.findings.note(
                    Rule::Schema,
                    T::NAME,
                    || path.into(),
                    || format!("it has the column {found}, declared is {declared}"),
                );
            }
        }
        if found.fields().len() != declared.fields().len() {
            self.findings.note(
                Rule::Schema,
                T::NAME,
                || path.into(),
                || {
                    let (found, declared) = (found.fields().len(), declared.fields().len());
                    format!("it has {found} columns, declared are {declared}")
                },
            );
        }
    }

    /// What each row refers to is there, its track is of its shape, its time runs forwards.
    fn batch<T: Table>(&mut self, batch: &RecordBatch, place: &dyn Fn(usize) -> String) {
        let shape: Option<Shape> = T::NAME.parse().ok();
        for column in T::columns() {
            let known: &dyn Fn(u32) -> bool = match column.role {
                Role::Entity => &|id| self.lanes.entities.contains_key(&EntityId(id)),
                Role::Track => &|id| self.lanes.tracks.contains_key(&TrackId(id)),
                Role::Source => &|id| self.lanes.sources.contains(&SourceId(id)),
                Role::Row | Role::Value => continue,
            };
            let Some(ids) =
                batch.column_by_name(column.name).and_then(|c| c.as_primitive_opt::<UInt32Type>())
            else {
                continue;
            };
            // Neighbours mostly refer to the same.
            let mut last = None;
            for (row, id) in ids.iter().enumerate() {
                let Some(id) = id.filter(|id| Some(*id) != last) else { continue };
                if !known(id) {
                    self.findings.note(
                        Rule::Reference,
                        T::NAME,
                        || place(row),
                        || format!("`{}` is {id}, which is not there", column.name),
                    );
                    continue;
                }
                last = Some(id);
                if let Some(shape) = shape
                    && column.name == "track"
                    && !self.lanes.is_of(TrackId(id), shape)
                {
                    self.findings.note(
                        Rule::Shape,
                        T::NAME,
                        || place(row),
                        || format!("track {id} is not a {shape} track"),
                    );
                }
            }
        }
        if let Some(lasting) = T::LASTING
            && let Some(lasting) = batch
                .column_by_name(lasting)
                .and_then(|c| c.as_primitive_opt::<arrow_array::types::Int64Type>())
        {
            let negative =
                (0..lasting.len()).find(|&i| lasting.is_valid(i) && lasting.value(i) < 0);
            if let Some(row) = negative {
                self.findings.note(
                    Rule::Value,
                    T::NAME,
                    || place(row),
                    || format!("it lasts {} ns", lasting.value(row)),
                );
            }
        }
    }
}
