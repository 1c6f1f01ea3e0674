//! Turns journals into sealed segments, and drops what a limit on age says to drop.
//!
//! The order of the steps is the commit protocol: files of the segment, then the manifest that
//! names them, then the journal goes. A crash between any two leaves a trace that opens: files
//! that no manifest names are not read, and a journal that the manifest has passed is not either.

use std::any::Any;
use std::collections::hash_map::Entry;
use std::path::Path;

use arrow_array::RecordBatch;
use foldhash::{HashMap, HashSet};
use gpuwhy_schema::{
    Attr, AttrBatch, Clock, EachTable, Entity, EntityKind, Frame, Id, Ns, Rows, Source, Stack,
    State, Table, Track, TrackId, schema,
};

use crate::dir::{Dir, journal_name};
use crate::journal::Found;
use crate::latest::Latest;
use crate::manifest::{File, Manifest};
use crate::pages::Pages;
use crate::pyramid::Builder;
use crate::read::{Place, Read, has_twins, twin_key};
use crate::segment::{self, Times};
use crate::{Error, Result};

/// Files of a lane table before they are made one, while old segments are being dropped.
const LANE_FILES: usize = 16;

/// What a thread that works in the background does first; what it returns is dropped when the thread ends.
pub type ThreadBegins = fn() -> Box<dyn std::any::Any>;

/// What writes segments, one after the other.
#[derive(Debug)]
pub(crate) struct Sealer {
    /// The trace that is written.
    pub dir: Dir,
    /// The manifest as last committed.
    pub manifest: Manifest,
    /// The last state of each track, which may reach into the next segment.
    last: HashMap<TrackId, State>,
    /// How many of them were left when those that have ended were last taken out.
    reaching: usize,
    /// The latest start of a state in any sealed segment.
    latest_state: Option<Ns>,
    /// How long a row is kept after its end.
    pub keep_recent: Option<Ns>,
    /// What is made of the rows besides, where they come only once.
    pub pyramid: Option<Builder>,
}

/// How many rows a segment got, table by table, and what it did not get because it was damaged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealed {
    /// Rows of all tables.
    pub rows: u64,
    /// One sentence for each frame or table that could not be read.
    pub damaged: Vec<String>,
}

/// Rows of the tables whose last row for an id counts.
pub trait LaneRow: Table {
    /// That id.
    fn lane_id(&self) -> u32;
}

macro_rules! lanes {
    ($($Row:ident: $id:expr),+) => {
        $(impl LaneRow for $Row {
            fn lane_id(&self) -> u32 {
                let id: fn(&$Row) -> u32 = $id;
                id(self)
            }
        })+

        /// Whether the last row for an id counts in this table.
        pub(crate) fn is_lane<T: Table>() -> bool {
            [$($Row::NAME),+].contains(&T::NAME)
        }
    };
}

lanes! { Entity: |e| e.id.0, Track: |t| t.id.0, Source: |s| s.id.0, Stack: |s| s.id, Frame: |f| f.id }

/// Whether the rows say whose the others are, so that they must outlive them.
pub(crate) fn is_lasting<T: Table>() -> bool {
    T::GROUP == Entity::GROUP
}

/// The rows of a batch whose id comes not again.
fn latest_only(batch: RecordBatch) -> RecordBatch {
    use arrow_array::cast::AsArray;
    let Some(ids) = batch
        .column_by_name("id")
        .and_then(|c| c.as_primitive_opt::<arrow_array::types::UInt32Type>())
    else {
        return batch;
    };
    let mut seen = HashSet::default();
    let mut rows: Vec<u32> = (0..batch.num_rows() as u32)
        .rev()
        .filter(|&row| seen.insert(ids.value(row as usize)))
        .collect();
    if rows.len() == batch.num_rows() {
        return batch;
    }
    rows.reverse();
    segment::take(&batch, rows)
}

/// The hosts among entities: one row of thousands, each of which holds names.
fn hosts(entities: &RecordBatch) -> RecordBatch {
    use arrow_array::cast::AsArray;
    let Some(kinds) = entities.column_by_name("kind").and_then(|c| c.as_string_opt::<i32>()) else {
        return entities.clone();
    };
    let is_host = |row: &u32| kinds.value(*row as usize) == EntityKind::Host.as_str();
    segment::take(entities, (0..entities.num_rows() as u32).filter(is_host).collect())
}

/// Without the open rows whose ended twin stands in the same batch.
fn without_open_twins<T: Table>(
    batch: RecordBatch,
) -> Result<RecordBatch, gpuwhy_schema::SchemaError> {
    let Some(times) = Times::of::<T>(&batch) else { return Ok(batch) };
    let open: Vec<usize> = (0..batch.num_rows()).filter(|&i| times.end(i).is_none()).collect();
    if open.is_empty() {
        return Ok(batch);
    }
    let rows = T::rows(&batch)?;
    let key = |row: &T| (row.start(), twin_key(row));
    // Few rows are open, so that they are looked up and not the thousands that have ended.
    let opened: HashSet<_> = open.iter().map(|&i| key(&rows[i])).collect();
    let has_ended = |row: &&T| row.end() != Some(Ns::MAX);
    let ended: HashSet<_> =
        rows.iter().filter(has_ended).map(key).filter(|key| opened.contains(key)).collect();
    let mut seen = HashSet::default();
    let keep: Vec<u32> = (0..batch.num_rows() as u32)
        .filter(|&i| {
            let row = &rows[i as usize];
            row.end() != Some(Ns::MAX) || !ended.contains(&key(row)) && seen.insert(key(row))
        })
        .collect();
    Ok(if keep.len() == rows.len() { batch } else { segment::take(&batch, keep) })
}

impl Sealer {
    /// Continues the trace in `dir` whose manifest is `manifest`; `keep_recent` as the field of that name.
    pub fn new(dir: Dir, manifest: Manifest, keep_recent: Option<Ns>) -> Sealer {
        Sealer {
            dir,
            manifest,
            last: HashMap::default(),
            reaching: 0,
            latest_state: None,
            keep_recent,
            pyramid: None,
        }
    }

    /// A sealer that goes on where the sealed segments end.
    pub fn resume(dir: Dir, manifest: Manifest, keep_recent: Option<Ns>) -> Result<Sealer> {
        let mut sealer = Sealer::new(dir, manifest, keep_recent);
        let head = sealer.manifest.file.iter().rfind(|f| f.is_head()).map_or(0, |f| f.segment);
        let states: Vec<File> = sealer
            .manifest
            .file
            .iter()
            .filter(|f| f.table == State::NAME && f.segment >= head)
            .cloned()
            .collect();
        for file in states {
            let mut batches =
                segment::Batches::open::<State>(&sealer.dir, &file, &(Ns::MIN..Ns::MAX))?;
            while let Some(batch) = batches.next() {
                let rows =
                    State::rows(&batch?).map_err(Error::schema(batches.path(), "its rows"))?;
                sealer.learn(rows, file.is_head());
            }
        }
        Ok(sealer)
    }

    fn learn(&mut self, rows: Vec<State>, repeated: bool) {
        if !repeated {
            self.latest_state = self.latest_state.max(rows.iter().map(|row| row.ts).max());
        }
        for row in last_of_tracks(rows) {
            match self.last.entry(row.track) {
                Entry::Vacant(place) => {
                    place.insert(row);
                }
                Entry::Occupied(mut place) => {
                    let last = place.get();
                    // An ended row replaces its open twin.
                    if (row.ts, row.dur.is_some()) >= (last.ts, last.dur.is_some()) {
                        place.insert(row);
                    }
                }
            }
        }
        // One that ended before the latest segment's last state reaches into no later segment: of the
        // threads that a host has in a month, few live now.
        let reaches = |s: &State| s.end().is_some_and(|end| Some(end) > self.latest_state);
        if self.last.len() >= 2 * self.reaching.max(1024) {
            self.last.retain(|_, state| reaches(state));
            self.reaching = self.last.len();
        }
    }

    /// Seals journal `segment`, whose frames are known, and removes it.
    pub fn seal(&mut self, segment: u32, journal: &Found) -> Result<Sealed> {
        // The last try may have failed after its commit, when the journal was to be removed: its files must
        // not be named twice.
        let is_sealed = segment < self.manifest.next_segment;
        let sealed = if is_sealed { Sealed::default() } else { self.make(segment, journal)? };
        self.dir.remove_if_there(&journal_name(segment))?;
        if let Some(keep) = self.keep_recent
            && let Some(end) = self.manifest.end
        {
            self.drop_before(Ns(end).saturating_sub(keep))?;
        }
        Ok(sealed)
    }

    fn make(&mut self, segment: u32, journal: &Found) -> Result<Sealed> {
        let mut work = Work { journal, made: Made::new(&self.dir, segment) };
        Rows::default().each(&mut work)?;
        self.take(segment, work.made, true)
    }

    /// Seals rows that never were in a journal, and takes all of them out; the manifest is not
    /// committed.
    pub fn seal_rows(
        &mut self,
        segment: u32,
        rows: &mut Rows,
        attrs: Vec<AttrBatch>,
    ) -> Result<Sealed> {
        let mut made = Made::new(&self.dir, segment);
        (made.pyramid, made.attrs) = (self.pyramid.take(), attrs);
        rows.each(&mut made)?;
        self.pyramid = made.pyramid.take();
        if let Some(pyramid) = &mut self.pyramid {
            pyramid.end_segment()?;
        }
        self.take(segment, made, false)
    }

    /// Takes a segment's files into the manifest, and commits that if asked to.
    fn take(&mut self, segment: u32, made: Made, commit: bool) -> Result<Sealed> {
        let Made { files, states, hosts, shards, sealed, mut pages, .. } = made;
        let head = self.head(segment, &states, &mut pages)?;

        let mut manifest = self.manifest.clone();
        manifest.next_segment = segment + 1;
        head.into_iter().chain(files).for_each(|file| manifest.add(file));
        for host in hosts {
            if !manifest.hosts.contains(&host) {
                manifest.hosts.push(host);
            }
        }
        manifest.shards.extend(shards);
        manifest.shards.sort_unstable();
        manifest.shards.dedup();
        if commit {
            manifest.commit(&self.dir)?;
        }
        self.manifest = manifest;
        self.learn(states, false);
        Ok(sealed)
    }

    /// Writes the states of earlier segments that reach into this one.
    fn head(&self, segment: u32, states: &[State], pages: &mut Pages) -> Result<Option<File>> {
        let Some(from) = self.latest_state.filter(|_| !states.is_empty()) else { return Ok(None) };
        let key = |s: &State| (s.track, s.ts);
        let mut over: HashMap<(TrackId, Ns), &State> = self
            .last
            .values()
            .filter(|s| s.end().is_some_and(|end| end > from))
            .map(|s| (key(s), s))
            .collect();
        // Those that stand in the segment itself; of its many states few begin as early.
        let latest = over.keys().map(|(_, ts)| *ts).max();
        for own in states.iter().filter(|s| Some(s.ts) <= latest) {
            over.remove(&key(own));
        }
        let mut rows: Vec<State> = over.into_values().cloned().collect();
        // No row reaches over: an empty head says that too.
        rows.sort_by_key(|s| (s.ts, std::cmp::Reverse(s.end()), s.track));
        let path = format!("state.head/{segment:05}.parquet");
        let batches = [State::batch(&rows)];
        let mut file = segment::write::<State>(&self.dir, &path, segment, &batches, pages)?;
        file.repeats_from = Some(from.0);
        Ok(Some(file))
    }

    /// Drops the segments all of whose rows ended before `cutoff`. What says whose the rows are
    /// stays.
    pub fn drop_before(&mut self, cutoff: Ns) -> Result<()> {
        let mut lasting = Lasting(HashSet::default());
        let Ok(()) = Rows::default().each(&mut lasting);
        let lasting = lasting.0;
        let ended: HashMap<u32, bool> = self.manifest.file.iter().filter(|f| !f.is_head()).fold(
            HashMap::default(),
            |mut all, f| {
                // An open row is repeated in a head, or its end comes in a later segment.
                let old = f.max_end.is_none_or(|end| Ns(end) < cutoff);
                *all.entry(f.segment).or_insert(true) &= old || lasting.contains(f.table.as_str());
                all
            },
        );
        // Only from the front on, so that what is kept is one stretch of time.
        let newest = self.manifest.next_segment.saturating_sub(1);
        let mut numbers: Vec<u32> = ended.keys().copied().filter(|&n| n != newest).collect();
        numbers.sort_unstable();
        let gone: HashSet<u32> = numbers.into_iter().take_while(|n| ended[n]).collect();
        let drops = |f: &File| gone.contains(&f.segment) && !lasting.contains(f.table.as_str());
        let mut manifest = self.manifest.clone();
        let mut dropped: Vec<File> = manifest.file.extract_if(.., |f| drops(f)).collect();
        if dropped.is_empty() {
            return Ok(());
        }
        manifest.kept_since = manifest.kept_since.max(Some(cutoff.0));
        manifest.remeasure();
        Compact { sealer: self, manifest: &mut manifest, dropped: &mut dropped }.run()?;
        manifest.commit(&self.dir)?;
        self.manifest = manifest;
        for file in dropped {
            self.dir.remove(&file.path)?;
        }
        Ok(())
    }

    /// Takes all files of these tables out of the trace.
    pub fn clear(&mut self, tables: &[&str]) -> Result<()> {
        let mut manifest = self.manifest.clone();
        let gone: Vec<File> =
            manifest.file.extract_if(.., |f| tables.contains(&f.table.as_str())).collect();
        if gone.is_empty() {
            return Ok(());
        }
        manifest.remeasure();
        manifest.commit(&self.dir)?;
        self.manifest = manifest;
        for file in gone {
            self.dir.remove(&file.path)?;
        }
        Ok(())
    }
}

/// Of states in the order of their file the last of each track; all of them where tracks are too many to be numbered.
fn last_of_tracks(mut rows: Vec<State>) -> Vec<State> {
    let most = rows.iter().map(|row| row.track.0 as usize).max().unwrap_or(0);
    if most > 4 * rows.len() + 4096 {
        return rows;
    }
    let mut last = vec![0; most + 1];
    for (place, row) in rows.iter().enumerate() {
        last[row.track.0 as usize] = place;
    }
    let mut place = 0;
    rows.retain(|row| {
        place += 1;
        last[row.track.0 as usize] == place - 1
    });
    rows
}

/// The files of a segment, as they are made, table by table.
struct Made {
    dir: Dir,
    segment: u32,
    files: Vec<File>,
    states: Vec<State>,
    hosts: Vec<String>,
    shards: HashSet<u16>,
    sealed: Sealed,
    pyramid: Option<Builder>,
    pages: Pages,
    /// Rows of `attr` besides those that come as rows.
    attrs: Vec<AttrBatch>,
}

impl Made {
    fn new(dir: &Dir, segment: u32) -> Made {
        Made {
            dir: dir.clone(),
            segment,
            files: Vec::new(),
            states: Vec::new(),
            hosts: Vec::new(),
            shards: HashSet::default(),
            sealed: Sealed::default(),
            pyramid: None,
            pages: Pages::default(),
            attrs: Vec::new(),
        }
    }

    /// Writes the file of a table; `path` is where its rows come from, for complaints. If they are states, and in order,
    /// these are `states`, if the caller has them.
    fn put<T: Table>(
        &mut self,
        batch: RecordBatch,
        states: Option<Vec<State>>,
        path: &Path,
    ) -> Result<()> {
        let schema_error = |e| Error::schema(path, "its rows")(e);
        let batch = match () {
            () if is_lane::<T>() => latest_only(batch),
            () if has_twins::<T>() => without_open_twins::<T>(batch).map_err(schema_error)?,
            () => batch,
        };
        let batch = segment::sorted::<T>(batch);
        if T::NAME == State::NAME {
            // None was left out if there are as many.
            self.states = match states.filter(|states| states.len() == batch.num_rows()) {
                Some(states) => states,
                None => State::rows(&batch).map_err(schema_error)?,
            };
        }
        if T::NAME == Entity::NAME {
            let hosts = Entity::rows(&hosts(&batch)).map_err(schema_error)?;
            self.hosts.extend(hosts.iter().map(|e| e.key.to_string()));
        }
        learn_shards(&batch, &mut self.shards);
        if let Some(pyramid) = &mut self.pyramid {
            pyramid.batch::<T>(&batch)?;
        }
        let path = format!("{}/{:05}.parquet", T::NAME, self.segment);
        self.write::<T>(&path, &[batch])
    }

    fn write<T: Table>(&mut self, path: &str, batches: &[RecordBatch]) -> Result<()> {
        let file = segment::write::<T>(&self.dir, path, self.segment, batches, &mut self.pages)?;
        self.wrote(file);
        Ok(())
    }

    fn wrote(&mut self, file: File) {
        self.sealed.rows += file.rows;
        self.files.push(file);
    }

    /// Writes the file of `attr`, whose rows have no order.
    fn put_attrs(&mut self, rows: &mut Vec<Attr>) -> Result<()> {
        let mut batches = std::mem::take(&mut self.attrs);
        if !rows.is_empty() {
            batches.push(AttrBatch::of(&std::mem::take(rows)));
        }
        batches.iter().for_each(|batch| shards_of(&batch.ids, &mut self.shards));
        let path = format!("{}/{:05}.parquet", Attr::NAME, self.segment);
        let file = segment::write_attrs(&self.dir, &path, self.segment, &batches, &mut self.pages)?;
        self.wrote(file);
        Ok(())
    }
}

impl EachTable for Made {
    type Error = Error;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<()> {
        if !self.attrs.is_empty()
            && let Some(rows) = (rows as &mut dyn Any).downcast_mut::<Vec<Attr>>()
        {
            return self.put_attrs(rows);
        }
        if rows.is_empty() {
            return Ok(());
        }
        segment::arrange(rows);
        let batch = T::batch(rows);
        let states = (rows as &mut dyn Any).downcast_mut::<Vec<State>>().map(std::mem::take);
        *rows = Vec::new();
        let path = self.dir.path.clone();
        self.put::<T>(batch, states, &path)
    }
}

/// The sealing of one journal, table by table.
struct Work<'a> {
    journal: &'a Found,
    made: Made,
}

impl EachTable for Work<'_> {
    type Error = Error;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<()> {
        let mut batches = Vec::new();
        for batch in self.journal.batches::<T>() {
            match batch {
                Ok(batch) => batches.push(batch),
                // Its checksums hold, so it was written like this; the rest need not suffer.
                Err(Error::Damaged { what, .. }) => self.made.sealed.damaged.push(what),
                Err(e) => return Err(e),
            }
        }
        if batches.is_empty() {
            return Ok(());
        }
        let batch = arrow_select::concat::concat_batches(&schema::<T>(), &batches)
            .map_err(|e| Error::damaged(&self.journal.path, e.to_string()))?;
        drop(batches);
        self.made.put::<T>(batch, None, &self.journal.path)
    }
}

/// Notes the shards that gave out the ids of a batch.
pub(crate) fn learn_shards(batch: &RecordBatch, shards: &mut impl Extend<u16>) {
    use arrow_array::cast::AsArray;
    let ids = batch
        .column_by_name("id")
        .and_then(|c| c.as_primitive_opt::<arrow_array::types::UInt64Type>());
    if let Some(ids) = ids {
        shards_of(ids.values(), shards);
    }
}

fn shards_of(ids: &[u64], shards: &mut impl Extend<u16>) {
    let mut last = None;
    for &id in ids {
        let shard = Some(Id(id).shard());
        if shard != last {
            shards.extend(shard);
            last = shard;
        }
    }
}

/// The names of the tables that outlive the segments they came in.
struct Lasting(HashSet<&'static str>);

impl EachTable for Lasting {
    type Error = std::convert::Infallible;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<(), Self::Error> {
        if is_lasting::<T>() {
            self.0.insert(T::NAME);
        }
        Ok(())
    }
}

/// Makes many small files of the lane tables one each, without those who ended long ago, so that
/// a trace that keeps the recent past for months stays small.
struct Compact<'a> {
    sealer: &'a Sealer,
    manifest: &'a mut Manifest,
    dropped: &'a mut Vec<File>,
}

impl Compact<'_> {
    fn run(mut self) -> Result<()> {
        let files = |name| self.manifest.file.iter().filter(|f| f.table == name).count();
        let most =
            gpuwhy_schema::TABLES.iter().map(|t| files(*t) * usize::from(is_lane_name(t))).max();
        if most <= Some(LANE_FILES) {
            return Ok(());
        }
        let mut lanes = Rows::default();
        lanes.each(&mut Gather(&mut self))?;
        let mut latest = Latest::default();
        // What is in a trace may be referred to from anywhere in it.
        latest.take(&mut lanes, Ns::MAX);
        let oldest = self.manifest.start.map_or(Ns::MIN, Ns);
        latest.prune(oldest.min(self.manifest.kept_since.map_or(Ns::MIN, Ns)));
        latest.rows().each(&mut Rewrite(&mut self))
    }
}

/// Whether a table's files are counted for compaction.
fn is_lane_name(table: &str) -> bool {
    [Entity::NAME, Track::NAME, Source::NAME, Clock::NAME, Stack::NAME, Frame::NAME]
        .contains(&table)
}

/// Reads all lanes.
struct Gather<'a, 'b>(&'a mut Compact<'b>);

impl EachTable for Gather<'_, '_> {
    type Error = Error;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<()> {
        let compact = &mut *self.0;
        if !is_lasting::<T>() {
            return Ok(());
        }
        let files = compact.manifest.file.iter().filter(|f| f.table == T::NAME);
        let places = files.cloned().map(Place::Sealed).collect();
        for batch in Read::<T>::new(&compact.sealer.dir, places, Ns::MIN..Ns::MAX) {
            rows.extend(batch?);
        }
        Ok(())
    }
}

/// Writes each lane table as one file in place of all it had.
struct Rewrite<'a, 'b>(&'a mut Compact<'b>);

impl EachTable for Rewrite<'_, '_> {
    type Error = Error;

    fn table<T: Table>(&mut self, rows: &mut Vec<T>) -> Result<()> {
        let compact = &mut *self.0;
        if !is_lasting::<T>() || rows.is_empty() {
            return Ok(());
        }
        let files = || compact.manifest.file.iter().filter(|f| f.table == T::NAME);
        let numbers = files().map(|f| f.segment);
        let (Some(first), Some(last)) = (numbers.clone().min(), numbers.max()) else {
            return Ok(());
        };
        // A name of its own: until the manifest is committed, the old files are the trace.
        let path = format!("{}/{first:05}-{last:05}.parquet", T::NAME);
        if files().count() < 2 || files().any(|f| f.path == path) {
            return Ok(());
        }
        let batch = segment::sorted::<T>(T::batch(rows));
        let pages = &mut Pages::default();
        let file = segment::write::<T>(&compact.sealer.dir, &path, last, &[batch], pages)?;
        let old = compact.manifest.file.extract_if(.., |f| f.table == T::NAME);
        compact.dropped.extend(old);
        compact.manifest.file.push(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Counter, Lane, Lanes, Measure};

    use super::*;
    use crate::{Options, Trace, Writer};

    /// The journal could not be removed, so sealing failed, and is tried again.
    #[test]
    fn a_sealing_that_failed_after_its_commit_names_its_files_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        let mut writer = Writer::create(&path, Options::default()).unwrap();
        let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        let source = lanes.source("test", "test", "1", "");
        let track = lanes.track(host, None, Lane::counter("n", "1", Measure::Gauge), source);
        lanes.drain(&mut rows);
        rows.counter = (0..50).map(|n| Counter { ts: Ns(n), track, value: 1.0 }).collect();
        writer.append(&mut rows).unwrap();
        drop(writer);
        let dir = Dir::open(&path).unwrap();
        let journal = Found::scan(&dir, &journal_name(0)).unwrap();
        let manifest = Manifest::read_in(&dir).unwrap();
        let mut sealer = Sealer::new(dir.clone(), manifest, None);
        assert!(sealer.seal(0, &journal).unwrap().rows > 50);
        sealer.seal(0, &journal).unwrap();
        sealer.manifest.commit(&dir).unwrap();
        let files = Manifest::read_in(&dir).unwrap().file;
        assert_eq!(files.iter().filter(|f| f.table == Counter::NAME).count(), 1);
        drop(sealer);
        let counters: usize =
            Trace::open(&path).unwrap().all::<Counter>().map(|batch| batch.unwrap().len()).sum();
        assert_eq!(counters, 50);
    }
}
