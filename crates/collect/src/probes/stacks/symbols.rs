//! Names of addresses, in the kernel and in programs.
//!
//! This runs in the recorder's thread while something is slow, so that it must be cheap: of a binary only
//! the places of its functions are read, as one block, and a name when an address asks for it. (A look at
//! each name takes two system calls, and programs have hundreds of thousands.)

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Name;
use object::read::elf::{ElfFile, FileHeader, SectionHeader as _, Sym as _, SymbolTable};
use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSegment};

use crate::{procfs, sys};

/// Binaries whose functions are held.
const BINARIES: usize = 32;
/// Functions of larger binaries are not read: it would take longer than the incident that they are read
/// for.
const LARGEST: u64 = 256 << 20;
/// Addresses whose names are held.
const ADDRESSES: usize = 1 << 16;
/// Bytes of a name that are read.
const NAME: usize = 512;

/// Names of addresses.
#[derive(Default)]
pub(super) struct Symbols {
    kernel: Option<KernelFunctions>,
    maps: HashMap<u32, Vec<Mapping>>,
    binaries: HashMap<BinaryKey, Binary>,
    named: HashMap<(u32, u64), (Name, Option<Name>)>,
}

impl Symbols {
    /// Forgets the mappings: processes end and addresses are used again. Binaries do not change.
    pub fn forget(&mut self) {
        self.maps.clear();
        self.named = HashMap::new();
        if self.binaries.len() >= BINARIES {
            self.binaries.clear();
        }
    }

    /// The function of the kernel at an address.
    pub fn kernel(&mut self, address: u64) -> Name {
        let functions = self.kernel.get_or_insert_with(|| {
            KernelFunctions::read(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
        });
        functions.name(address).unwrap_or("?").into()
    }

    /// The function at an address of a process, and the file that it is in.
    pub fn user(&mut self, tgid: u32, address: u64) -> (Name, Option<Name>) {
        if let Some(known) = self.named.get(&(tgid, address)) {
            return known.clone();
        }
        let found = self.look_up(tgid, address);
        if self.named.len() >= ADDRESSES {
            self.named.clear();
        }
        self.named.insert((tgid, address), found.clone());
        found
    }

    fn look_up(&mut self, tgid: u32, address: u64) -> (Name, Option<Name>) {
        let maps = self.maps.entry(tgid).or_insert_with(|| {
            mappings(&fs::read_to_string(format!("/proc/{tgid}/maps")).unwrap_or_default())
        });
        let Some(mapping) = maps.iter().find(|m| (m.from..m.to).contains(&address)) else {
            return ("?".into(), None);
        };
        let file = &mapping.file;
        let in_file = address - mapping.from + mapping.offset;
        let module: Name = file.path.rsplit('/').next().unwrap_or("?").into();
        if !self.binaries.contains_key(file) && self.binaries.len() < BINARIES {
            // By the process's own root, which may be another than ours.
            let opened = sys::open_of_process(tgid, &file.path);
            let binary = opened.ok().and_then(Binary::read).unwrap_or_default();
            self.binaries.insert(file.clone(), binary);
        }
        let name = self.binaries.get(file).and_then(|binary| binary.name(in_file));
        (name.unwrap_or_else(|| "?".into()), Some(module))
    }
}

/// The functions of the kernel: where each begins and where its name lies in `names`, by address.
struct KernelFunctions {
    names: String,
    functions: Vec<(u64, u32)>,
}

impl KernelFunctions {
    /// The functions of `/proc/kallsyms`; none where addresses are hidden.
    fn read(kallsyms: &str) -> KernelFunctions {
        let (mut names, mut functions) = (String::new(), Vec::new());
        for line in kallsyms.lines() {
            let mut words = line.split_ascii_whitespace();
            let address = words.next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let (Some(address), Some("t" | "T" | "w" | "W")) = (address, words.next()) else {
                continue;
            };
            let (Some(name), Ok(at)) = (words.next(), u32::try_from(names.len())) else { continue };
            if address != 0 {
                names.push_str(name);
                names.push('\n');
                functions.push((address, at));
            }
        }
        names.shrink_to_fit();
        functions.shrink_to_fit();
        // Of two names for one place the first stays the first.
        functions.sort_by_key(|(address, _)| *address);
        KernelFunctions { names, functions }
    }

    fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(from, _)| *from <= address);
        let (_, at) = self.functions.get(after.checked_sub(1)?)?;
        self.names.get(*at as usize..)?.lines().next()
    }
}

/// A mapping of a file's code: addresses, where in the file it begins, the file.
struct Mapping {
    from: u64,
    to: u64,
    offset: u64,
    file: BinaryKey,
}

/// The executable mappings of files in a `/proc/PID/maps`.
fn mappings(text: &str) -> Vec<Mapping> {
    procfs::mappings(text)
        .filter(|m| m.executable && m.path.starts_with('/'))
        .map(|m| {
            let file = BinaryKey { device: m.device.into(), inode: m.inode, path: m.path.into() };
            Mapping { from: m.from, to: m.to, offset: m.offset, file }
        })
        .collect()
}

/// A file by its device and inode, as two containers may have different files under one path; and by its
/// path, as it is opened by that.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BinaryKey {
    device: Name,
    inode: u64,
    path: Name,
}

/// The functions of a binary, by address, and where its segments lie in the file.
#[derive(Default)]
struct Binary {
    file: Option<File>,
    functions: Vec<Function>,
    /// Where in the file, how long, where in memory.
    segments: Vec<(u64, u64, u64)>,
}

/// Where a function begins, how long it is, and where in the file its name lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    address: u64,
    size: u32,
    name: u64,
}

impl Binary {
    /// Reads where the functions are; `None` for what is no binary, or too large.
    fn read(file: File) -> Option<Binary> {
        if file.metadata().is_ok_and(|m| m.len() > LARGEST) {
            return None;
        }
        let cache = ReadCache::new(&file);
        let elf = object::File::parse(&cache).ok()?;
        let mut functions = Vec::new();
        match &elf {
            object::File::Elf64(elf) => functions_of(elf, &mut functions),
            object::File::Elf32(elf) => functions_of(elf, &mut functions),
            _ => {}
        }
        functions.sort_unstable();
        functions.dedup_by_key(|function| function.address);
        functions.shrink_to_fit();
        let segment = |s: object::read::Segment<'_, '_, _>| {
            let (offset, size) = s.file_range();
            (offset, size, s.address())
        };
        let segments = elf.segments().map(segment).collect();
        drop(elf);
        drop(cache);
        Some(Binary { file: Some(file), functions, segments })
    }

    fn name(&self, in_file: u64) -> Option<Name> {
        let holds = |(offset, size, _): &&(u64, u64, u64)| {
            (*offset..offset.saturating_add(*size)).contains(&in_file)
        };
        let (offset, _, address) = self.segments.iter().find(holds)?;
        let address = (in_file - offset).checked_add(*address)?;
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        // Functions written in assembler often have no size.
        let within = function.size == 0 || address - function.address < u64::from(function.size);
        if within { self.name_at(function.name) } else { None }
    }

    fn name_at(&self, at: u64) -> Option<Name> {
        let mut buffer = [0; NAME];
        let read = self.file.as_ref()?.read_at(&mut buffer, at).ok()?;
        let name = buffer[..read].split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(name).as_ref().into())
    }
}

/// Adds the functions of both symbol tables.
fn functions_of<'data, Elf: FileHeader, R: ReadRef<'data>>(
    elf: &ElfFile<'data, Elf, R>,
    functions: &mut Vec<Function>,
) {
    let endian = elf.endian();
    let mut add = |symbols: &SymbolTable<'data, Elf, R>| {
        let Ok(strings) = elf.elf_section_table().section(symbols.string_section()) else { return };
        let strings: u64 = strings.sh_offset(endian).into();
        functions.extend(symbols.iter().filter_map(|symbol| {
            let is_function =
                matches!(symbol.st_type(), object::elf::STT_FUNC | object::elf::STT_GNU_IFUNC);
            let (address, size) = (symbol.st_value(endian).into(), symbol.st_size(endian).into());
            (is_function && address != 0).then(|| Function {
                address,
                size: u32::try_from(size).unwrap_or(u32::MAX),
                name: strings.saturating_add(symbol.st_name(endian).into()),
            })
        }));
    };
    add(elf.elf_symbol_table());
    add(elf.elf_dynamic_symbol_table());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_name_of_the_function_that_they_lie_in() {
        let functions = KernelFunctions::read(
            "ffffffff81000000 T _text\nffffffff81000040 t do_one\nffffffff81000100 D data\n\
             ffffffff81000200 T do_two\n0000000000000000 T hidden\nrubbish\n",
        );
        assert_eq!(functions.name(0xffff_ffff_8100_0050), Some("do_one"));
        assert_eq!(functions.name(0xffff_ffff_8100_0200), Some("do_two"));
        assert_eq!(functions.name(0x1000), None);
        assert_eq!(KernelFunctions::read("").name(0xffff_ffff_8100_0050), None);
    }

    #[test]
    fn only_executable_mappings_of_files_have_names() {
        let maps = mappings(
            "55d0a000-55d0b000 r--p 00000000 fe:00 123 /usr/bin/a\n\
             55d0b000-55d0f000 r-xp 00001000 fe:00 123 /usr/bin/a b\n\
             7f000000-7f001000 r-xp 00000000 00:00 0 [vdso]\n7f1-7f2 rubbish\n",
        );
        let all: Vec<_> = maps.iter().map(|m| (m.from, m.to, m.offset, &*m.file.path)).collect();
        assert_eq!(all, [(0x55d0_b000, 0x55d0_f000, 0x1000, "/usr/bin/a b")]);
    }

    #[inline(never)]
    fn here() -> u64 {
        here as fn() -> u64 as usize as u64
    }

    #[test]
    fn our_own_functions_have_names() {
        let mut symbols = Symbols::default();
        let (name, module) = symbols.user(std::process::id(), here() + 1);
        assert!(name.contains("here"), "{name} in {module:?}");
        assert_eq!(symbols.user(std::process::id(), here() + 1), (name, module), "and again");
        assert_eq!(&*symbols.user(std::process::id(), 16).0, "?");
    }

    /// System calls of reading that this thread has made so far.
    fn reads() -> u64 {
        let io = fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = io.lines().find_map(|line| line.strip_prefix("syscr: "));
        line.unwrap().parse().unwrap()
    }

    #[test]
    fn a_binary_with_many_functions_is_read_by_few_calls() {
        let before = reads();
        let binary = Binary::read(File::open("/proc/self/exe").unwrap()).unwrap();
        let took = reads() - before;
        assert!(binary.functions.len() > 1000, "a test has many functions");
        assert!(took < 100, "{took} reads for {} functions", binary.functions.len());
        assert!(binary.functions.is_sorted_by_key(|function| function.address));
    }
}
