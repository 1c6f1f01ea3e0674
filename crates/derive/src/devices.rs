//! Which devices worked in a recording, and for which ranks.

use std::collections::HashMap;

use gpuwhy_schema::{Entity, EntityId, EntityKind, Name, SourceId, Track, TrackId, names};

/// A device whose work was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its entity.
    pub entity: EntityId,
    /// What it is called.
    pub name: Name,
    /// What identifies it, on all hosts.
    pub place: Name,
    /// The rank that used it.
    pub rank: Option<i64>,
}

/// The devices of a recording, in the order of ranks and then of their own numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// By their numbers here.
    pub devices: Vec<Device>,
    /// The number of the device of each track of a stream.
    pub streams: HashMap<TrackId, u32>,
    /// Who waits in the MPI calls of each track of such.
    pub waits: HashMap<TrackId, Waiter>,
}

/// Who waits in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waiter {
    /// A rank.
    Rank(i64),
    /// A process whose rank the recording does not give.
    Process(EntityId),
}

/// Entities by their ids, and the way up from them.
pub struct Above<'a>(HashMap<EntityId, &'a Entity>);

impl<'a> Above<'a> {
    /// Of these.
    pub fn new(entities: &'a [Entity]) -> Above<'a> {
        Above(entities.iter().map(|e| (e.id, e)).collect())
    }

    /// The entity of this id.
    pub fn get(&self, id: EntityId) -> Option<&'a Entity> {
        self.0.get(&id).copied()
    }

    /// `from`, or the nearest entity of this kind that it belongs to.
    pub fn find(&self, from: EntityId, kind: EntityKind) -> Option<&'a Entity> {
        let mut at = self.get(from);
        // Parents of a hostile trace may go round in a circle.
        for _ in 0..16 {
            match at {
                Some(entity) if entity.kind == kind => return Some(entity),
                Some(entity) => at = entity.parent.and_then(|id| self.get(id)),
                None => return None,
            }
        }
        None
    }
}

impl Devices {
    /// Of a recording with these entities and tracks.
    pub fn of(entities: &[Entity], tracks: &[Track]) -> Devices {
        let above = Above::new(entities);
        let mut all = Devices::default();
        // A source is one process's report, or one host's recording: its rank is that of its threads, if all
        // of them have the same.
        let mut rank_of_source: HashMap<SourceId, Option<i64>> = HashMap::new();
        for track in tracks {
            let rank = above.find(track.entity, EntityKind::Rank).and_then(|e| e.number);
            if let Some(rank) = rank {
                let of = rank_of_source.entry(track.source).or_insert(Some(rank));
                *of = of.filter(|known| *known == rank);
            }
            if &*track.name == names::MPI_CALLS {
                let process =
                    || above.find(track.entity, EntityKind::Process).map(|e| Waiter::Process(e.id));
                all.waits.extend(rank.map(Waiter::Rank).or_else(process).map(|w| (track.id, w)));
            }
        }
        let mut streams: Vec<(&Entity, TrackId, Option<i64>)> = tracks
            .iter()
            .filter(|t| &*t.name == names::STREAM)
            .filter_map(|t| {
                let gpu = above.find(t.entity, EntityKind::Gpu)?;
                Some((gpu, t.id, rank_of_source.get(&t.source).copied().flatten()))
            })
            .collect();
        streams.sort_by_key(|(gpu, track, rank)| {
            (rank.unwrap_or(i64::MAX), gpu.number, gpu.id, *track)
        });
        let mut numbers: HashMap<EntityId, u32> = HashMap::new();
        for (gpu, track, rank) in streams {
            let number = *numbers.entry(gpu.id).or_insert_with(|| {
                let (name, place) = (gpu.name.clone(), gpu.key.clone());
                all.devices.push(Device { entity: gpu.id, name, place, rank });
                all.devices.len() as u32 - 1
            });
            all.streams.insert(track, number);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Discipline, Lane, Lanes, Rows};

    use super::*;

    /// The ranks of the devices of a recording of one source, in which processes of these ranks called MPI.
    fn ranks(of: &[i64]) -> Vec<Option<i64>> {
        let mut lanes = Lanes::default();
        let source = lanes.source("nsys", "test", "1", "");
        for rank in of {
            let entity = lanes.entity(EntityKind::Rank, &format!("rank:{rank}"), |e| {
                e.number = Some(*rank);
            });
            lanes.track(entity, None, Lane::spans(names::MPI_CALLS, Discipline::Nested), source);
        }
        let gpu = lanes.entity(EntityKind::Gpu, "GPU-0", |_| {});
        let stream = lanes.entity(EntityKind::Stream, "7", |e| e.parent = Some(gpu));
        lanes.track(stream, None, Lane::spans(names::STREAM, Discipline::Overlap), source);
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        let devices = Devices::of(&rows.entity, &rows.track).devices;
        devices.iter().map(|device| device.rank).collect()
    }

    #[test]
    fn a_device_of_a_report_of_several_ranks_is_called_by_none_of_them() {
        assert_eq!(ranks(&[3]), [Some(3)]);
        assert_eq!(ranks(&[0, 1]), [None]);
        assert_eq!(ranks(&[1, 0, 1]), [None]);
    }
}
