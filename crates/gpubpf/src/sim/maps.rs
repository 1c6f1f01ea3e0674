//! The maps of spliced programs in a simulated device: bound before a launch, read after it.

use super::device::Device;
use super::load::Image;
use crate::contents::{Contents, word};
use crate::options::TABLE;
use crate::program::Map;
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
        Self::bind_at(device, at, table, threads, who)
    }

    /// The same with the table at an address of the device: what functions that Sanitizer calls are given.
    pub fn bind_at(
        device: &mut Device,
        at: u64,
        table: &Table,
        threads: u64,
        who: u64,
    ) -> Result<Self, String> {
        let mut words = vec![0_u64; table.words];
        words[0] = who;
        let mut bound = Vec::new();
        for (map, word) in &table.maps {
            let shards = map.kind.shards(threads, device.sms());
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
            kind if !kind.is_one_array() => {
                Err(format!("map `{name}` is no array that all threads share but {kind:?}"))
            }
            _ if bound.map.value_size.is_multiple_of(8) => Ok(bound),
            _ => {
                let size = bound.map.value_size;
                Err(format!(
                    "values of map `{name}` have {size} bytes and are no numbers of 64 bits"
                ))
            }
        }
    }

    /// What the maps hold.
    pub fn read(&self, device: &Device) -> Vec<Contents> {
        // What was bound is the device's own memory; without it nothing was written.
        let bytes = |at, length| device.read(at, length).unwrap_or_default();
        self.bound
            .iter()
            .map(|bound| {
                let (values, lost) = (bytes(bound.values, bound.bytes), bytes(bound.lost, 8));
                Contents::of(&bound.map, bound.shards, values, word(lost, 0))
            })
            .collect()
    }
}
