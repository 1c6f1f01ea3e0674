//! The maps of spliced programs in a simulated device: bound before a launch, read after it.

use super::device::Device;
use super::load::Image;
use crate::hash::THERE;
use crate::options::TABLE;
use crate::program::{Map, MapKind};
use crate::splice::Table;

/// The maps of a [`Table`] in the memory of a device.
#[derive(Debug)]
pub struct Maps {
    bound: Vec<Bound>,
}

#[derive(Debug)]
struct Bound {
    map: Map,
    values: u64,
    bytes: usize,
    /// Threads or SMs that have values of their own; 0 where all share them.
    shards: u64,
    lost: u64,
}

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

impl Maps {
    /// Gives each map of `table` zeroed memory and writes the table into `image`, with every program switched on.
    /// `threads` is the number of threads of the largest launch, `who` what helper 14 returns.
    pub fn bind(
        device: &mut Device,
        image: &Image,
        table: &Table,
        threads: u64,
        who: u64,
    ) -> Result<Self, String> {
        let at = image.symbol(TABLE).ok_or_else(|| format!("the module has no `{TABLE}`"))?;
        let mut words = vec![0_u64; table.words];
        words[0] = who;
        let mut bound = Vec::new();
        for (map, word) in &table.maps {
            let shards = match map.kind {
                MapKind::PerThreadArray => threads,
                MapKind::PerSmArray | MapKind::Ring => device.sms(),
                _ => 0,
            };
            let room = map.bytes(shards).filter(|bytes| *bytes <= device.room());
            let bytes = room.ok_or_else(|| {
                format!("map `{}` with {shards} shards is more than the device has left", map.name)
            })?;
            let mut zeros = |bytes: u64| {
                let upload = device.upload(&vec![0; bytes as usize]);
                upload.ok_or_else(|| format!("map `{}` finds no room", map.name))
            };
            let (values, lost) = (zeros(bytes)?, zeros(8)?);
            words[*word..*word + 3].copy_from_slice(&[values, shards, lost]);
            bound.push(Bound { map: map.clone(), values, bytes: bytes as usize, shards, lost });
        }
        for (_, word) in &table.switches {
            words[*word] = 1;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        device.write(at, &bytes).map_err(|trouble| trouble.to_string())?;
        Ok(Self { bound })
    }

    /// The numbers of 64 bits that an array holds whose values all threads share, value by value.
    ///
    /// # Errors
    /// There is no such array, or its values are no such numbers.
    pub fn numbers(&self, device: &Device, name: &str) -> Result<Vec<u64>, String> {
        let bound = self.array(name)?;
        let values =
            device.read(bound.values, bound.bytes).map_err(|trouble| trouble.to_string())?;
        Ok((0..values.len() / 8).map(|number| word(values, 8 * number)).collect())
    }

    /// Sets them before a launch: what the device's programs find there.
    ///
    /// # Errors
    /// As [`Maps::numbers`], or there are not as many numbers.
    pub fn set_numbers(
        &self,
        device: &mut Device,
        name: &str,
        numbers: &[u64],
    ) -> Result<(), String> {
        let bound = self.array(name)?;
        let (has, given) = (bound.bytes / 8, numbers.len());
        if has != given {
            return Err(format!("map `{name}` holds {has} numbers and is given {given}"));
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        device.write(bound.values, &bytes).map_err(|trouble| trouble.to_string())
    }

    fn array(&self, name: &str) -> Result<&Bound, String> {
        let Some(bound) = self.bound.iter().find(|bound| bound.map.name == name) else {
            let all: Vec<&str> = self.bound.iter().map(|bound| bound.map.name.as_str()).collect();
            return Err(format!("there is no map `{name}`; there is {}", all.join(", ")));
        };
        match bound.map.kind {
            MapKind::Array | MapKind::KernelShared if bound.map.value_size.is_multiple_of(8) => {
                Ok(bound)
            }
            MapKind::Array | MapKind::KernelShared => {
                let size = bound.map.value_size;
                Err(format!(
                    "values of map `{name}` have {size} bytes and are no numbers of 64 bits"
                ))
            }
            kind => Err(format!("map `{name}` is no array that all threads share but {kind:?}")),
        }
    }

    /// What the maps hold.
    pub fn read(&self, device: &Device) -> Vec<Contents> {
        // What was bound is the device's own memory; without it nothing was written.
        let bytes = |at, length| device.read(at, length).unwrap_or_default();
        self.bound
            .iter()
            .map(|bound| {
                let values = bytes(bound.values, bound.bytes);
                let (entries, records) = match bound.map.kind {
                    MapKind::Ring => (Vec::new(), records(&bound.map, values)),
                    MapKind::Hash => (slots(&bound.map, values), Vec::new()),
                    _ => (entries(bound, values), Vec::new()),
                };
                Contents {
                    map: bound.map.clone(),
                    entries,
                    records,
                    lost: word(bytes(bound.lost, 8), 0),
                }
            })
            .collect()
    }
}

fn entries(bound: &Bound, values: &[u8]) -> Vec<Entry> {
    let Bound { map, shards, .. } = bound;
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
            let size = (word(slot, 0) as usize).min(map.value_size as usize);
            records.push(Record { sm: sm as u64, bytes: slot[8..8 + size].to_vec() });
        }
    }
    records
}

/// The little-endian word at `at`; 0 where there is none.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
