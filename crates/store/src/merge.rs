//! Makes one trace of several: the shards of one import, the hosts of one job.
//!
//! Ids keep their sequence. Their shard is renumbered where two traces used the same one.
//! Entities are known by kind and key, so that a host that two traces tell of is one host.
//! Everything is streamed; memory holds the lanes and one batch.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use gpuwhy_schema::{
    Discipline, EachTable, Entity, EntityId, EntityKind, Frame, Id, Measure, Name, Ns, Part, Role,
    Rows, Sample, Shape, Source, SourceId, SourceState, Stack, State, Table, Track, TrackId, names,
};
use serde::Serialize;

use crate::read::Place;
use crate::segment::Batches;
use crate::{Error, Options, Result, Trace, Writer};

/// What the traces are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// Pieces of one recording or import: equal sources are one source, whose counts are summed,
    /// and equal tracks are one track.
    OfOne,
    /// Recordings of their own, of other hosts or by other programs: each keeps its sources and
    /// tracks, even if they look the same.
    Independent,
}

/// What a merge did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Merged {
    /// Rows that were written.
    pub rows: u64,
    /// Entities that several of the traces declare.
    pub shared_entities: u64,
    /// Shards that got another number.
    pub renumbered_shards: u64,
    /// Rows of results that were left out: what was concluded from a piece is not concluded from
    /// the whole, and its evidence refers to rows by their old ids.
    pub left_out: u64,
}

/// Merges `inputs` into a new trace at `output`. Their times must be on one trace clock already.
pub fn merge(
    inputs: &[Trace],
    output: impl AsRef<Path>,
    options: Options,
    shards: Shards,
) -> Result<Merged> {
    let output = output.as_ref();
    let mut lanes = Joined::default();
    let mut merged = Merged::default();
    let mut used = HashSet::new();
    let mut maps = Vec::new();
    for (number, trace) in inputs.iter().enumerate() {
        let group = match shards {
            Shards::OfOne => 0,
            Shards::Independent => number,
        };
        let mut map = lanes.add(trace, group, &mut merged)?;
        map.shards = renumber(trace, &mut used, &mut merged)
            .map_err(|why| Error::Merge { path: output.into(), why })?;
        maps.push(map);
    }
    let mut writer = Writer::create(output, options)?;
    writer.inherit(inputs.iter().map(Trace::manifest));
    writer.append(&mut lanes.rows)?;
    for (trace, map) in inputs.iter().zip(&maps) {
        let mut copy = Copying { trace, map, writer: &mut writer, merged: &mut merged };
        Rows::default().each(&mut copy)?;
    }
    merged.rows = writer.finish()?.rows;
    Ok(merged)
}

/// Gives each shard of a trace a number that no other trace has.
fn renumber(
    trace: &Trace,
    used: &mut HashSet<u16>,
    merged: &mut Merged,
) -> Result<HashMap<u16, u16>, String> {
    let mut shards: Vec<u16> = trace.shards().into_iter().collect();
    shards.sort_unstable();
    let mut map = HashMap::new();
    let own: HashSet<u16> = shards.iter().copied().collect();
    for shard in shards {
        let mut number = shard;
        if used.contains(&shard) {
            number = (0..=u16::MAX)
                .find(|n| !used.contains(n) && !own.contains(n))
                .ok_or("all 65536 shard numbers are taken")?;
            merged.renumbered_shards += 1;
        }
        used.insert(number);
        map.insert(shard, number);
    }
    Ok(map)
}

/// What the lanes of one trace are called in the other.
#[derive(Default)]
struct Map {
    entities: HashMap<u32, u32>,
    tracks: HashMap<u32, u32>,
    sources: HashMap<u32, u32>,
    stacks: HashMap<u32, u32>,
    /// Tracks (by old id) whose states are entity ids.
    occupants: HashSet<u32>,
    shards: HashMap<u16, u16>,
}

type TrackKey = (
    usize,
    EntityId,
    Option<TrackId>,
    Name,
    (Shape, Option<Name>, Option<Measure>, Option<Discipline>),
    SourceId,
);

type FrameKey = (Name, Option<Name>, Option<Name>, Option<u32>);

/// The lanes of all traces.
#[derive(Default)]
struct Joined {
    rows: Rows,
    /// By kind, key, and which of the entities of that key in its trace (keys are used again).
    entities: HashMap<(EntityKind, Name, u32), usize>,
    tracks: HashMap<TrackKey, TrackId>,
    sources: HashMap<(usize, [Name; 4]), usize>,
    frames: HashMap<FrameKey, u32>,
    stacks: HashMap<(Option<u32>, u32), u32>,
}

impl Joined {
    fn add(&mut self, trace: &Trace, group: usize, merged: &mut Merged) -> Result<Map> {
        let mut map = Map::default();
        self.add_entities(trace.entities()?, &mut map, merged);
        self.add_sources(trace.sources()?, group, &mut map);
        self.add_tracks(trace.tracks()?, group, &mut map);
        let frames = self.add_frames(trace.latest::<Frame>()?);
        self.add_stacks(trace.latest::<Stack>()?, &frames, &mut map);
        Ok(map)
    }

    fn add_entities(&mut self, entities: Vec<Entity>, map: &mut Map, merged: &mut Merged) {
        let mut nth: HashMap<(EntityKind, Name), u32> = HashMap::new();
        let mut fresh = Vec::new();
        for entity in entities {
            let n = nth.entry((entity.kind, entity.key.clone())).or_default();
            let key = (entity.kind, entity.key.clone(), *n);
            *n += 1;
            let at = *self.entities.entry(key).or_insert(self.rows.entity.len());
            map.entities.insert(entity.id.0, at as u32 + 1);
            match self.rows.entity.get_mut(at) {
                Some(known) => {
                    merged.shared_entities += 1;
                    // Each may have seen a begin or an end that the other has not.
                    known.from = known.from.into_iter().chain(entity.from).min();
                    known.to = known.to.max(entity.to);
                    known.number = known.number.or(entity.number);
                    if known.parent.is_none() {
                        fresh.push((at, entity.parent));
                    }
                }
                None => {
                    fresh.push((at, entity.parent));
                    let id = EntityId(at as u32 + 1);
                    self.rows.entity.push(Entity { id, parent: None, ..entity });
                }
            }
        }
        // When all are known by their new ids.
        for (at, parent) in fresh {
            let parent = parent.and_then(|p| map.entities.get(&p.0)).map(|&p| EntityId(p));
            self.rows.entity[at].parent = parent;
        }
    }

    fn add_sources(&mut self, sources: Vec<Source>, group: usize, map: &mut Map) {
        for source in sources {
            let words =
                [&source.kind, &source.tool, &source.version, &source.config].map(Arc::clone);
            let at = *self.sources.entry((group, words)).or_insert(self.rows.source.len());
            map.sources.insert(source.id.0, at as u32 + 1);
            match self.rows.source.get_mut(at) {
                Some(known) => {
                    known.recorded = known.recorded.saturating_add(source.recorded);
                    known.dropped = known.dropped.saturating_add(source.dropped);
                    known.one_in = known.one_in.max(source.one_in);
                    let rank = |s: SourceState| SourceState::ALL.iter().position(|x| *x == s);
                    if rank(source.state) > rank(known.state) {
                        (known.state, known.note) = (source.state, source.note);
                    }
                }
                None => {
                    let id = SourceId(at as u32 + 1);
                    self.rows.source.push(Source { id, ..source });
                }
            }
        }
    }

    fn add_tracks(&mut self, tracks: Vec<Track>, group: usize, map: &mut Map) {
        let occupants = tracks.iter().filter(|t| &*t.name == names::OCCUPANT).map(|t| t.id.0);
        map.occupants = occupants.collect();
        let mut known: HashMap<u32, u32> = HashMap::new();
        parents_first(
            tracks,
            |t| (t.id.0, t.parent.map(|p| p.0)),
            |track| {
                let entity = EntityId(map.entities.get(&track.entity.0).copied().unwrap_or(0));
                let parent = track.parent.and_then(|p| known.get(&p.0)).map(|&p| TrackId(p));
                let source = SourceId(map.sources.get(&track.source.0).copied().unwrap_or(0));
                let kind = (track.shape, track.unit.clone(), track.measure, track.discipline);
                let key = (group, entity, parent, track.name.clone(), kind, source);
                let rows = &mut self.rows.track;
                let old = track.id.0;
                let id = *self.tracks.entry(key).or_insert_with(|| {
                    let id = TrackId(rows.len() as u32 + 1);
                    rows.push(Track { id, entity, parent, source, ..track });
                    id
                });
                known.insert(old, id.0);
            },
        );
        map.tracks = known;
    }

    fn add_frames(&mut self, frames: Vec<Frame>) -> HashMap<u32, u32> {
        let mut known = HashMap::new();
        for frame in frames {
            let key = (frame.name.clone(), frame.module.clone(), frame.file.clone(), frame.line);
            let old = frame.id;
            let id = *self.frames.entry(key).or_insert_with(|| {
                let id = self.rows.frame.len() as u32 + 1;
                self.rows.frame.push(Frame { id, ..frame });
                id
            });
            known.insert(old, id);
        }
        known
    }

    fn add_stacks(&mut self, stacks: Vec<Stack>, frames: &HashMap<u32, u32>, map: &mut Map) {
        let mut known: HashMap<u32, u32> = HashMap::new();
        parents_first(
            stacks,
            |s| (s.id, s.parent),
            |stack| {
                let parent = stack.parent.and_then(|p| known.get(&p)).copied();
                let frame = frames.get(&stack.frame).copied().unwrap_or(0);
                let rows = &mut self.rows.stack;
                let id = *self.stacks.entry((parent, frame)).or_insert_with(|| {
                    let id = rows.len() as u32 + 1;
                    rows.push(Stack { id, parent, frame });
                    id
                });
                known.insert(stack.id, id);
            },
        );
        map.stacks = known;
    }
}

/// Calls `each` with every node after its parent; of a circle, which no sound trace has, in any
/// order.
fn parents_first<N, I: Copy + Eq + Hash>(
    nodes: Vec<N>,
    ids: impl Fn(&N) -> (I, Option<I>),
    mut each: impl FnMut(N),
) {
    let all: HashSet<I> = nodes.iter().map(|n| ids(n).0).collect();
    let mut waiting: HashMap<I, Vec<N>> = HashMap::new();
    let mut ready = Vec::new();
    for node in nodes {
        match ids(&node).1.filter(|parent| all.contains(parent)) {
            Some(parent) => waiting.entry(parent).or_default().push(node),
            None => ready.push(node),
        }
    }
    ready.reverse();
    while let Some(node) = ready.pop() {
        let id = ids(&node).0;
        each(node);
        ready.extend(waiting.remove(&id).into_iter().flatten());
    }
    waiting.into_values().flatten().for_each(each);
}

/// Copies the rows of one trace under their new ids.
struct Copying<'a> {
    trace: &'a Trace,
    map: &'a Map,
    writer: &'a mut Writer,
    merged: &'a mut Merged,
}

impl EachTable for Copying<'_> {
    type Error = Error;

    fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<()> {
        if crate::seal::is_lane::<T>() {
            return Ok(());
        }
        for place in self.trace.places::<T>(&(Ns::MIN..Ns::MAX)) {
            match place {
                Place::Sealed(file) => {
                    if T::GROUP == Part::GROUP {
                        self.merged.left_out += file.rows;
                        continue;
                    }
                    let all = Ns::MIN..Ns::MAX;
                    let mut batches = Batches::open::<T>(self.trace.dir(), &file, &all)?;
                    while let Some(batch) = batches.next() {
                        let batch = self.rename::<T>(&batch?);
                        self.writer.append_batch::<T>(&batch)?;
                    }
                }
                Place::Journal(found) => {
                    for batch in found.batches::<T>() {
                        let batch = batch?;
                        if T::GROUP == Part::GROUP {
                            self.merged.left_out += batch.num_rows() as u64;
                            continue;
                        }
                        let batch = self.rename::<T>(&batch);
                        self.writer.append_batch::<T>(&batch)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Copying<'_> {
    fn rename<T: Table>(&self, batch: &RecordBatch) -> RecordBatch {
        let schema = gpuwhy_schema::schema::<T>();
        let columns = T::columns().into_iter().map(|column| {
            // `Batches` and the journal have seen to it that the columns are the declared ones.
            let old = batch.column_by_name(column.name).cloned().unwrap_or_else(|| {
                arrow_array::new_null_array(&column.data_type, batch.num_rows())
            });
            let small = |map: &HashMap<u32, u32>| -> ArrayRef {
                match old.as_primitive_opt::<UInt32Type>() {
                    Some(ids) => Arc::new(
                        // What led to nothing before leads to nothing still.
                        ids.unary::<_, UInt32Type>(|id| map.get(&id).copied().unwrap_or(0)),
                    ),
                    None => Arc::clone(&old),
                }
            };
            match column.role {
                Role::Entity => small(&self.map.entities),
                Role::Track => small(&self.map.tracks),
                Role::Source => small(&self.map.sources),
                Role::Row => match old.as_primitive_opt::<UInt64Type>() {
                    Some(ids) => Arc::new(ids.unary::<_, UInt64Type>(|id| self.row(Id(id)).0)),
                    None => old,
                },
                Role::Value if T::NAME == Sample::NAME && column.name == "stack" => {
                    small(&self.map.stacks)
                }
                Role::Value if T::NAME == State::NAME && column.name == "value" => {
                    self.occupants(batch, old)
                }
                Role::Value => old,
            }
        });
        RecordBatch::try_new(schema, columns.collect())
            .expect("columns keep their types, lengths and nulls")
    }

    fn row(&self, id: Id) -> Id {
        let shard = self.map.shards.get(&id.shard()).copied().unwrap_or(id.shard());
        Id::new(shard, id.sequence())
    }

    /// The values of states, which on some tracks are entities.
    fn occupants(&self, batch: &RecordBatch, values: ArrayRef) -> ArrayRef {
        let tracks = batch.column_by_name("track").and_then(|c| c.as_primitive_opt::<UInt32Type>());
        let (Some(tracks), Some(old)) = (tracks, values.as_primitive_opt::<Int64Type>()) else {
            return values;
        };
        let occupied = |track| self.map.occupants.contains(&track);
        if !tracks.values().iter().any(|&t| occupied(t)) {
            return values;
        }
        let renamed = tracks.values().iter().zip(old.values()).map(|(&track, &value)| {
            let known = u32::try_from(value).ok().and_then(|id| self.map.entities.get(&id));
            match known {
                Some(&id) if occupied(track) => i64::from(id),
                _ => value,
            }
        });
        Arc::new(Int64Array::from_iter_values(renamed))
    }
}
