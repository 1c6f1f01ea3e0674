//! A linked program: its functions in one list of instructions, with the maps and data it names.

use std::collections::BTreeSet;

use crate::error::{Fault, Place};
use crate::insn::{self, Insn, Wide};

/// What a map is, by the number in its definition.
///
/// The numbers from 1501 on are bpftime's (merged there); 1540 to 1542 are ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapKind {
    /// 1501: one value for each key that a thread has put there, shared by all threads of the device.
    Hash,
    /// 1502: one value for each key and thread of the grid.
    PerThreadArray,
    /// 1503: one value for each key, shared by all threads of the device.
    Array,
    /// 1504: a kernel array map that is mapped into both the host kernel and the device.
    KernelShared,
    /// 1527: records, in one ring for each SM.
    Ring,
    /// 1540: one value for each key and SM; whoever reads adds them up.
    PerSmArray,
    /// 1541: one sum for each key, in the shared memory of each block while it runs and added to the device's when it ends.
    BlockArray,
    /// 1542: one value for each key, in memory of the host that the device reaches: whoever reads it there sees it at
    /// once, and it outlives the program.
    HostArray,
    /// Any other number: a map of the host, or one that has no lowering yet.
    Other(u32),
}

impl MapKind {
    /// How many copies of its values a map has: one for each thread or SM, or 0 where all share them.
    pub fn shards(self, threads: u64, sms: u64) -> u64 {
        match self {
            Self::PerThreadArray => threads,
            Self::PerSmArray | Self::Ring => sms,
            _ => 0,
        }
    }

    /// Whether it holds one value for each key below its number of entries, and those alone.
    pub fn is_one_array(self) -> bool {
        matches!(self, Self::Array | Self::KernelShared | Self::BlockArray | Self::HostArray)
    }

    /// The kind with this number.
    pub fn from_id(id: u32) -> Self {
        match id {
            1501 => Self::Hash,
            1502 => Self::PerThreadArray,
            1503 => Self::Array,
            1504 => Self::KernelShared,
            1527 => Self::Ring,
            1540 => Self::PerSmArray,
            1541 => Self::BlockArray,
            1542 => Self::HostArray,
            other => Self::Other(other),
        }
    }

    /// The number in map definitions.
    pub fn id(self) -> u32 {
        match self {
            Self::Hash => 1501,
            Self::PerThreadArray => 1502,
            Self::Array => 1503,
            Self::KernelShared => 1504,
            Self::Ring => 1527,
            Self::PerSmArray => 1540,
            Self::BlockArray => 1541,
            Self::HostArray => 1542,
            Self::Other(id) => id,
        }
    }
}

/// The most numbers of 8 bytes of one map in the shared memory of a block.
const MOST_OF_BLOCK: u32 = 1024;

/// A map as its object declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// The variable's name.
    pub name: String,
    /// What it is.
    pub kind: MapKind,
    /// Bytes of a key; 0 where the map has none.
    pub key_size: u32,
    /// Bytes of a value; of a ring, the most bytes of a record.
    pub value_size: u32,
    /// The number of keys; of a ring, of records for each SM at a time.
    pub max_entries: u32,
    /// `map_flags`, as for the kernel.
    pub flags: u32,
}

impl Map {
    /// Bytes from one value to the next: values lie at multiples of 8, as in the kernel's arrays.
    pub fn stride(&self) -> u64 {
        u64::from(self.value_size).next_multiple_of(8)
    }

    /// Bytes of device memory, where `shards` is the number of threads (per-thread array) or SMs
    /// (ring, per-SM array); other kinds ignore it. `None` where that exceeds 64 bits.
    pub fn bytes(&self, shards: u64) -> Option<u64> {
        let values = self.stride().checked_mul(self.max_entries.into())?;
        match self.kind {
            MapKind::PerThreadArray | MapKind::PerSmArray => values.checked_mul(shards),
            MapKind::Ring => self.ring_bytes()?.checked_mul(shards),
            MapKind::Hash => self.slots()?.checked_mul(self.slot()),
            _ => Some(values),
        }
    }

    /// Its 8-byte words, if each has one for each key and block: sums, which are set to 0 and added up as such.
    ///
    /// # Errors
    /// Its values are no such words, or there are more of them than one thread should add up.
    pub fn words_of_block(&self) -> Result<u32, String> {
        let Self { name, value_size, max_entries, .. } = self;
        let words = u64::from(value_size / 8) * u64::from(*max_entries);
        if *value_size == 0 || value_size % 8 != 0 || words == 0 {
            return Err(format!(
                "map `{name}` (1541) has values of {value_size} bytes and {max_entries} entries; sums of a block are \
                 numbers of 8 bytes"
            ));
        }
        let words = u32::try_from(words).ok().filter(|words| *words <= MOST_OF_BLOCK);
        words.ok_or_else(|| {
            format!(
                "map `{name}` (1541) has more than {MOST_OF_BLOCK} numbers of 8 bytes, which the last thread of each \
                 block would have to add up; use a map of type 1540 (a value per SM)"
            )
        })
    }

    /// Bytes of one SM's ring: a header of 64 bytes, of which the first 8 count the records and the next 8 the
    /// places that are taken, then slots of 8 bytes (the record's number and 1 in the upper half, its size in the lower
    /// one, written last) and a record, by its number modulo the slots.
    pub fn ring_bytes(&self) -> Option<u64> {
        self.ring_slot().checked_mul(self.ring_slots())?.checked_add(64)
    }

    /// The slots of a ring: a power of two, of which `max_entries` are in use at a time.
    pub fn ring_slots(&self) -> u64 {
        u64::from(self.max_entries).next_power_of_two()
    }

    /// The slots of a hash map: half as many again as its entries, and then up to the next power of two.
    pub fn slots(&self) -> Option<u64> {
        let entries = u64::from(self.max_entries);
        (entries + entries / 2).checked_next_power_of_two()
    }

    /// Bytes of a slot of a hash map: a word that says what it is, the key and the value, each at a multiple of 8.
    pub fn slot(&self) -> u64 {
        self.value_at() + self.stride()
    }

    /// Where the value begins in a slot of a hash map; the key begins at 8.
    pub fn value_at(&self) -> u64 {
        8 + u64::from(self.key_size).next_multiple_of(8)
    }

    /// Bytes of one slot of a ring.
    pub fn ring_slot(&self) -> u64 {
        8 + self.stride()
    }
}

/// A read-only section that programs refer to (`.rodata`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The section's name.
    pub name: String,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Where an instruction comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// An index into [`Program::sections`].
    pub section: u32,
    /// The 8-byte slot within that section.
    pub slot: u32,
    /// An index into [`Program::lines`], where the object has line information.
    pub line: Option<u32>,
}

/// A program, linked: the entry function first, then every function that it reaches.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The entry function's name.
    pub name: String,
    /// The section as written in the object: `kprobe/…`, `kretprobe/…`, `kprobe/__memcapture`.
    pub section: String,
    /// The instructions; targets of jumps and calls are indices into them.
    pub insns: Vec<Insn>,
    /// Where each instruction comes from, index by index.
    pub sites: Vec<Site>,
    /// Names of the sections that `sites` refer to.
    pub sections: Vec<String>,
    /// Source lines that `sites` refer to: `file:line: text`.
    pub lines: Vec<String>,
    /// The object's maps; instructions name them by index.
    pub maps: Vec<Map>,
    /// The object's read-only data; instructions name it by index.
    pub data: Vec<Data>,
}

impl Program {
    /// A program of raw instructions without maps: 8 bytes an instruction, calls of its own
    /// functions resolved by their distance. `name` stands for the section in messages.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, Fault> {
        let (slots, insns): (Vec<u32>, Vec<Insn>) =
            insn::decode_all(bytes, name)?.into_iter().unzip();
        if insns.is_empty() {
            return Err(Place::new(name, 0).fault("a program without instructions".into()));
        }
        let sites = slots.into_iter().map(|slot| Site { section: 0, slot, line: None }).collect();
        let section = name.to_owned();
        let sections = vec![section.clone()];
        Ok(Self { name: section.clone(), section, insns, sites, sections, ..Self::default() })
    }

    /// The maps that lie in the shared memory of blocks ([`MapKind::BlockArray`]) and that the program names, by their index.
    pub fn maps_of_blocks(&self) -> BTreeSet<usize> {
        let named = self.insns.iter().filter_map(|insn| match *insn {
            Insn::LoadWide { value: Wide::Map(map), .. } => Some(map as usize),
            _ => None,
        });
        let of_block =
            |map: &usize| self.maps.get(*map).is_some_and(|map| map.kind == MapKind::BlockArray);
        named.filter(of_block).collect()
    }

    /// Where instruction `index` stands in its object.
    pub fn place(&self, index: usize) -> Place {
        let site = self.sites[index];
        Place::new(self.sections[site.section as usize].clone(), site.slot)
    }

    /// An error at instruction `index`, with its source line where that is known.
    pub fn fault(&self, index: usize, reason: impl Into<String>) -> Fault {
        let mut reason = reason.into();
        if let Some(line) = self.sites[index].line {
            reason = format!("{reason} (at {})", self.lines[line as usize]);
        }
        self.place(index).fault(reason)
    }
}
