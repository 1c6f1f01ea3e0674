//! Programs and libraries of the host: where in them fat binaries lie.

use std::io::{Read, Seek};

use object::Endianness;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, SectionHeader as _};

/// A part of a host's file that holds fat binaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// `.nv_fatbin`, which the driver is given, or `__nv_relfatbin`, which was linked into the former.
    pub name: &'static str,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

impl Section {
    /// Whether a driver is given what it holds.
    pub fn loaded(&self) -> bool {
        self.name == NAMES[0]
    }
}

const NAMES: [&str; 2] = [".nv_fatbin", "__nv_relfatbin"];

/// The sections of an ELF file of 64 bits that hold fat binaries; only its headers are read.
pub fn sections(file: impl Read + Seek) -> Result<Vec<Section>, object::Error> {
    let cache = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&cache)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &cache)?;
    let mut found = Vec::new();
    for section in sections.iter() {
        let name = sections.section_name(endian, section)?;
        let Some(name) = NAMES.into_iter().find(|known| known.as_bytes() == name) else { continue };
        if let Some((offset, size)) = section.file_range(endian) {
            found.push(Section { name, offset, size });
        }
    }
    Ok(found)
}
