//! Arrays of programs (1504) that are maps of the kernel.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use gpuwhy_collect::SharedArray;
use gpuwhy_gpubpf::MapKind;
use gpuwhy_gpubpf::contents::{Contents, Layout};
use gpuwhy_gpubpf::splice::Table;

/// `counts=/sys/fs/bpf/counts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pinned {
    pub name: String,
    pub path: PathBuf,
}

impl FromStr for Pinned {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("write NAME=PINNED")?;
        Ok(Self { name: name.into(), path: path.into() })
    }
}

/// Maps of the kernel that programs in a running program's kernels count in, by the numbers of the arrays in the table.
#[derive(Debug, Default)]
pub(crate) struct Shared(Vec<(usize, SharedArray)>);

impl Shared {
    /// Opens what is pinned, for arrays of the table.
    ///
    /// # Errors
    /// There is no such array or map, or they differ in size.
    pub fn open(all: &[Pinned], table: &Table) -> Result<Shared> {
        let mut opened = Vec::new();
        for Pinned { name, path } in all {
            let Some(number) = table.maps.iter().position(|(map, _)| map.name == *name) else {
                let names: Vec<&str> = table.maps.iter().map(|(map, _)| &*map.name).collect();
                bail!("there is no map `{name}`; there is {}", names.join(", "));
            };
            let map = &table.maps[number].0;
            if map.kind != MapKind::KernelShared {
                bail!(
                    "map `{name}` has type {}; what is shared with the kernel has 1504",
                    map.kind.id()
                );
            }
            let array = SharedArray::open(path)?;
            let (has, wanted) =
                (8 * array.numbers().len() as u64, map.bytes(0).unwrap_or(u64::MAX));
            if has != wanted {
                bail!("`{}` has {has} bytes, and map `{name}` has {wanted}", path.display());
            }
            opened.push((number, array));
        }
        Ok(Shared(opened))
    }

    /// The numbers of the arrays.
    pub fn numbers(&self) -> BTreeSet<usize> {
        self.0.iter().map(|(number, _)| *number).collect()
    }

    /// The map of an array.
    pub fn array(&self, number: usize) -> Option<&SharedArray> {
        self.0.iter().find(|(one, _)| *one == number).map(|(_, array)| array)
    }

    /// Puts what they hold now in its place.
    pub fn fill(&self, layout: &Layout, maps: &mut [Contents]) {
        for (number, _, _) in layout.outside() {
            if let Some((array, contents)) = self.array(number).zip(maps.get_mut(number)) {
                *contents = Contents::of_numbers(&contents.map, &array.numbers());
            }
        }
    }
}
