//! The maps of spliced programs as they lie in a device's memory: where each lies, and what the bytes mean.

use std::collections::BTreeSet;

use crate::hash::THERE;
use crate::program::{Map, MapKind};
use crate::splice::Table;

/// A value of a map: of arrays one that is not all zero, of hash maps one that a thread has put there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key; of arrays a number of 4 bytes.
    pub key: Vec<u8>,
    /// The number of the thread in the grid (per-thread array) or of the SM (per-SM array).
    pub shard: Option<u64>,
    /// The value.
    pub bytes: Vec<u8>,
}

/// A record of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The SM that wrote it.
    pub sm: u64,
    /// What was written.
    pub bytes: Vec<u8>,
}

/// What a map holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The map.
    pub map: Map,
    /// Of arrays the values that are not all zero, by key and then by shard; of a hash map all; of a ring none.
    pub entries: Vec<Entry>,
    /// Records of a ring, SM by SM in their order.
    pub records: Vec<Record>,
    /// What threads wanted to write and found no room for.
    pub lost: u64,
}

impl Contents {
    /// What an array holds that all threads share, by its numbers.
    pub fn of_numbers(map: &Map, numbers: &[u64]) -> Self {
        let values: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self::of(map, 0, &values, 0)
    }

    /// What a map of so many shards holds, by the bytes of its memory.
    pub(crate) fn of(map: &Map, shards: u64, values: &[u8], lost: u64) -> Self {
        let (entries, records) = match map.kind {
            MapKind::Ring => (Vec::new(), records(map, values)),
            MapKind::Hash => (slots(map, values), Vec::new()),
            _ => (entries(map, shards, values), Vec::new()),
        };
        Self { map: map.clone(), entries, records, lost }
    }
}

/// The map in which kernels count what was sampled ([`Sampled`]).
pub const SAMPLED: &str = "gpuwhy_sampled";

/// In how many launches, blocks and warps programs ran, and how many there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Launches: all, and those in the sample.
    pub launches: [u64; 2],
    /// Blocks of all launches, and those in the sample.
    pub blocks: [u64; 2],
    /// Warps of all blocks, and those in the sample.
    pub warps: [u64; 2],
}

impl Sampled {
    /// What the maps say of it, if programs are sampled.
    pub fn of(maps: &[Contents]) -> Option<Self> {
        let counts = maps.iter().find(|contents| contents.map.name == SAMPLED)?;
        let mut numbers = [0; 6];
        for entry in &counts.entries {
            let key = entry.key.first().copied().map_or(0, usize::from);
            if let Some(number) = numbers.get_mut(key) {
                *number = word(&entry.bytes, 0);
            }
        }
        let [launches, kept_launches, blocks, kept_blocks, warps, kept_warps] = numbers;
        Some(Self {
            launches: [launches, kept_launches],
            blocks: [blocks, kept_blocks],
            warps: [warps, kept_warps],
        })
    }
}

/// Memory of the host is mapped by pages of this size.
const HOST_PAGE: u64 = 4096;

/// All maps of a [`Table`] in one piece of memory, which is zero at first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    places: Vec<Place>,
    /// So many bytes of it, whole pages, are for maps that lie in the host's memory: they come first. The counters of what was
    /// lost come next.
    pub host_bytes: u64,
    /// How many bytes that is.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    map: Map,
    word: usize,
    shards: u64,
    at: u64,
    bytes: u64,
    /// It lies elsewhere: in memory that somebody else has.
    outside: bool,
}

/// The table before a loader has filled it: words, and which of them are addresses, by the offset in the maps' memory.
pub type Words = (Vec<u64>, Vec<(u32, u64)>);

impl Layout {
    /// Lays out the maps of a table for a device with so many SMs, and launches of at most so many threads. Some, by
    /// their numbers, lie elsewhere.
    ///
    /// # Errors
    /// They take more than `most` bytes.
    pub fn new(
        table: &Table,
        threads: u64,
        sms: u64,
        most: u64,
        outside: &BTreeSet<usize>,
    ) -> Result<Self, String> {
        let mut places: Vec<Option<Place>> = vec![None; table.maps.len()];
        let mut lay = |of_host: bool, mut end: u64| {
            for (number, (map, word)) in table.maps.iter().enumerate() {
                if (map.kind == MapKind::HostArray) != of_host {
                    continue;
                }
                let outside = outside.contains(&number);
                if outside {
                    let (map, word) = (map.clone(), *word);
                    places[number] = Some(Place { map, word, shards: 0, at: 0, bytes: 0, outside });
                    continue;
                }
                let shards = map.kind.shards(threads, sms);
                let bytes = map.bytes(shards).filter(|bytes| *bytes <= most);
                let next = bytes.and_then(|b| end.checked_add(b)?.checked_next_multiple_of(256));
                let next = next.filter(|next| *next <= most).ok_or_else(|| {
                    format!("map `{}` with {shards} shards takes more than the {most} bytes that maps may have", map.name)
                })?;
                let (map, word, at, bytes) = (map.clone(), *word, end, bytes.unwrap_or(0));
                places[number] = Some(Place { map, word, shards, at, bytes, outside });
                end = next;
            }
            Ok::<u64, String>(end)
        };
        let host_bytes = lay(true, 0)?.next_multiple_of(HOST_PAGE);
        let bytes = lay(false, host_bytes + (8 * table.maps.len() as u64).next_multiple_of(256))?;
        let places = places.into_iter().flatten().collect();
        Ok(Self { places, host_bytes, bytes })
    }

    /// The table, with every program on.
    pub fn words(&self, table: &Table) -> Words {
        let mut words = vec![0; table.words];
        let mut addresses = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            let word = place.word;
            if !place.outside {
                addresses.push((word as u32, place.at));
            }
            words[word + 1] = place.shards;
            addresses.push((word as u32 + 2, self.host_bytes + 8 * number as u64));
        }
        for (_, word) in &table.switches {
            words[*word] = 1;
        }
        (words, addresses)
    }

    /// Where an array begins that all threads share and whose values have so many bytes, a multiple of 8, and how many
    /// values it has.
    pub fn array(&self, name: &str, value_bytes: u32) -> Option<(u64, u32)> {
        let place = self.places.iter().find(|place| place.map.name == name)?;
        let is = place.map.kind == MapKind::Array && place.map.value_size == value_bytes;
        is.then_some((place.at, place.map.max_entries))
    }

    /// The maps of a name: each with its offset and bytes, and what a copy of these tells of it.
    pub fn named<'a>(
        &'a self,
        name: &str,
    ) -> impl Iterator<Item = (u64, u64, impl Fn(&[u8]) -> Contents + 'a)> {
        let places = self.places.iter().filter(move |place| place.map.name == name);
        let places: Vec<&Place> = places.collect();
        places.into_iter().map(|place| {
            let read = move |values: &[u8]| Contents::of(&place.map, place.shards, values, 0);
            (place.at, place.bytes, read)
        })
    }

    /// The maps that lie elsewhere: the map's number, the word of the table that is to be its address, and its bytes.
    pub fn outside(&self) -> impl Iterator<Item = (usize, u32, u64)> {
        let places = self.places.iter().enumerate().filter(|(_, place)| place.outside);
        places.map(|(number, place)| (number, place.word as u32, place.map.bytes(0).unwrap_or(0)))
    }

    /// The rings: the map's number, how many SMs have one, and the offset of the first.
    pub fn rings(&self) -> impl Iterator<Item = (usize, &Map, u64, u64)> {
        let places = self.places.iter().enumerate();
        let rings = places.filter(|(_, place)| place.map.kind == MapKind::Ring);
        rings.map(|(number, place)| (number, &place.map, place.shards, place.at))
    }

    /// What the maps hold, by a copy of their memory; what the copy lacks counts as zero.
    pub fn read(&self, memory: &[u8]) -> Vec<Contents> {
        let part = |at: u64, bytes: u64| {
            let range =
                usize::try_from(at).ok().zip(usize::try_from(at.saturating_add(bytes)).ok());
            range.and_then(|(from, to)| memory.get(from..to)).unwrap_or_default()
        };
        let read = |(number, place): (usize, &Place)| {
            let lost = word(part(self.host_bytes + 8 * number as u64, 8), 0);
            Contents::of(&place.map, place.shards, part(place.at, place.bytes), lost)
        };
        self.places.iter().enumerate().map(read).collect()
    }
}

fn entries(map: &Map, shards: u64, values: &[u8]) -> Vec<Entry> {
    let stride = map.stride() as usize;
    if stride == 0 {
        return Vec::new();
    }
    values
        .chunks_exact(stride)
        .enumerate()
        .filter(|(_, value)| value.iter().any(|byte| *byte != 0))
        .map(|(number, value)| {
            let number = number as u64;
            let (key, shard) = match shards {
                0 => (number, None),
                shards => (number / shards, Some(number % shards)),
            };
            let key = (key as u32).to_le_bytes().to_vec();
            Entry { key, shard, bytes: value[..map.value_size as usize].to_vec() }
        })
        .collect()
}

/// What lies in a hash map, in the order of its slots.
fn slots(map: &Map, values: &[u8]) -> Vec<Entry> {
    let part = |slot: &[u8], at: u64, size: u32| slot[at as usize..][..size as usize].to_vec();
    values
        .chunks_exact(map.slot() as usize)
        .filter(|slot| word(slot, 0) & THERE == THERE)
        .map(|slot| Entry {
            key: part(slot, 8, map.key_size),
            shard: None,
            bytes: part(slot, map.value_at(), map.value_size),
        })
        .collect()
}

fn records(map: &Map, values: &[u8]) -> Vec<Record> {
    let (Some(ring), slot) = (map.ring_bytes(), map.ring_slot() as usize) else {
        return Vec::new();
    };
    let mut records = Vec::new();
    for (sm, ring) in values.chunks_exact(ring as usize).enumerate() {
        let many = word(ring, 0).min(map.max_entries.into()) as usize;
        for slot in ring[64..].chunks_exact(slot).take(many) {
            let size = (word(slot, 0) as u32).min(map.value_size) as usize;
            records.push(Record { sm: sm as u64, bytes: slot[8..8 + size].to_vec() });
        }
    }
    records
}

/// The little-endian word at `at`; 0 where there is none.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
