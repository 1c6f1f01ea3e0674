//! Stacks of running threads, during incidents.
//!
//! *What it sees*: 99 times a second on each CPU, from a timer's interrupt, the stacks of the
//! thread that runs there, in the kernel and in the program. *Why it matters*: it shows what a culprit was doing
//! while it was in the way. *What fools it*: programs built without frame pointers have stacks of
//! one frame; a function that the binary's symbol table does not name is shown as its module; code
//! with interrupts off is seen at its end. Attached only while [`Probe::detail`] is on.

use std::fs;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::rc::Rc;

use foldhash::HashMap;
use gpuwhy_schema::{
    Frame, Lane, Name, Ns, STACKS_LAST, Sample, Shape, SourceId, Stack, names, sources,
};
use object::read::ReadCache;
use object::{Object, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use crate::bpf::{Head, LoadedObject, bpf_object, from_bytes, shared_with_c};
use crate::context::Context;
use crate::error::CollectError;
use crate::probe::{How, Probe, ProbeSpec, Shedding, Start};
use crate::procfs;
use crate::shed::Shed;
use crate::sys;

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    sheds: &[Shedding {
        shed: Shed::Detail,
        how: How::NoDetail,
        missing: "stacks are not sampled during incidents",
    }],
    ..ProbeSpec::new(
        "stacks",
        &sources::STACKS,
        "stacks of running threads during incidents",
        start,
    )
};

/// Samples a second on each CPU; not a round number, so as not to beat with periodic work.
const HZ: u64 = 99;
/// Frames of the kernel's stack and of the program's; as in `stacks.bpf.c`.
const KERNEL_DEPTH: usize = 16;
const USER_DEPTH: usize = 32;
/// Binaries whose symbols are held.
const BINARIES: usize = 32;
/// Symbols of larger binaries are not read: it would take longer than the incident that they are read
/// for.
const LARGEST: u64 = 256 << 20;
/// Nodes and frames that are declared within [`STACKS_LAST`]; stacks end where they would need more.
const NODES: usize = 1 << 16;

// The struct of `stacks.bpf.c`, where each field is explained.
shared_with_c! {
    objects ["stacks"];

    struct Record = "stack_record" {
        head: Head,
        tgid: u32,
        pad: u32,
        kernel_bytes: i32,
        user_bytes: i32,
        comm: [u8; 16],
        kernel: [u64; KERNEL_DEPTH],
        user: [u64; USER_DEPTH],
    }
}

struct Stacks {
    source: SourceId,
    loaded: LoadedObject,
    cpus: usize,
    declared: Declared,
    symbols: Symbols,
}

/// Stacks and frames that the trace has.
#[derive(Default)]
struct Declared {
    nodes: HashMap<(Option<u32>, u32), u32>,
    frames: HashMap<(Name, Option<Name>), u32>,
    /// The last ids given out; none is given out twice.
    last: (u32, u32),
    since: Ns,
}

/// Samples nothing before detail is on.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let loaded = start.bpf.load("stacks", bpf_object!("stacks"), |_| Ok(()))?;
    // So that a missing privilege is reported at the start, and not in the first incident.
    sys::cpu_timer(0, HZ)
        .map_err(|source| CollectError::System { action: "sample CPU 0".into(), source })?;
    Ok(Box::new(Stacks {
        source: start.source,
        loaded,
        cpus: start.bpf.cpu_count(),
        declared: Declared::default(),
        symbols: Symbols::default(),
    }))
}

impl Probe for Stacks {
    fn tick(&mut self, now: Ns, _cx: &mut Context) -> Result<(), CollectError> {
        if now - self.declared.since >= STACKS_LAST {
            let last = self.declared.last;
            self.declared = Declared { last, since: now, ..Declared::default() };
        }
        Ok(())
    }

    fn event(&mut self, _kind: u8, bytes: &[u8], cx: &mut Context) {
        let Some(record) = from_bytes::<Record>(bytes) else { return };
        let thread = cx.thread(record.head.tid, record.tgid, Some(&record.comm));
        let kind = Lane {
            name: names::CPU_SAMPLES,
            shape: Shape::Sample,
            unit: Some("ns"),
            measure: None,
            discipline: None,
        };
        let track = cx.catalog.track(thread, None, kind, self.source);
        let frames = |bytes: i32, all: &[u64]| -> usize {
            (usize::try_from(bytes).unwrap_or(0) / 8).min(all.len())
        };
        let mut node = None;
        let user = &record.user[..frames(record.user_bytes, &record.user)];
        let kernel = &record.kernel[..frames(record.kernel_bytes, &record.kernel)];
        // Callers first.
        for &address in user.iter().rev() {
            let (name, module) = self.symbols.user(record.tgid, address);
            node = self.declared.node(node, name, module, cx).or(node);
        }
        for &address in kernel.iter().rev() {
            let name = self.symbols.kernel(address);
            node = self.declared.node(node, name, Some("kernel".into()), cx).or(node);
        }
        let weight = 1e9 / HZ as f64;
        let ts = Ns(record.head.ts as i64);
        cx.rows.sample.push(Sample { ts, track, stack: node, state: None, weight });
    }

    fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        if !on {
            self.loaded.links.clear();
            self.symbols.forget();
            return Ok(());
        }
        if !self.loaded.links.is_empty() {
            return Ok(());
        }
        for cpu in 0..self.cpus {
            // A possible CPU may be offline.
            let Ok(timer) = sys::cpu_timer(cpu, HZ) else { continue };
            for program in self.loaded.object.progs_mut() {
                let link = program.attach_perf_event(timer.as_raw_fd()).map_err(|source| {
                    CollectError::Attach { probe: "stacks", target: format!("CPU {cpu}"), source }
                })?;
                self.loaded.links.push(link);
            }
            // The link closes it.
            let _ = timer.into_raw_fd();
        }
        Ok(())
    }
}

impl Declared {
    /// The node of a function called from `caller`, which is declared when it is new.
    fn node(
        &mut self,
        caller: Option<u32>,
        name: Name,
        module: Option<Name>,
        cx: &mut Context,
    ) -> Option<u32> {
        if self.nodes.len() >= NODES || self.frames.len() >= NODES {
            return None;
        }
        let last = &mut self.last;
        let frame = *self.frames.entry((name.clone(), module.clone())).or_insert_with(|| {
            last.1 += 1;
            cx.rows.frame.push(Frame { id: last.1, name, module, file: None, line: None });
            last.1
        });
        Some(*self.nodes.entry((caller, frame)).or_insert_with(|| {
            last.0 += 1;
            cx.rows.stack.push(Stack { id: last.0, parent: caller, frame });
            last.0
        }))
    }
}

/// Functions by address: where each begins, its size, its name.
type Table = Vec<(u64, u64, Name)>;

fn find(table: &Table, address: u64) -> Option<Name> {
    let after = table.partition_point(|(from, ..)| *from <= address);
    let (from, size, name) = table.get(after.checked_sub(1)?)?;
    // Functions written in assembler often have no size.
    (*size == 0 || address < from + size).then(|| name.clone())
}

/// A mapping of a file's code: addresses, where in the file it begins, the file.
struct Mapping {
    from: u64,
    to: u64,
    offset: u64,
    file: BinaryKey,
}

/// A file by its device and inode, as two containers may have different files under one path; and by its
/// path, as it is opened by that.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BinaryKey {
    device: Name,
    inode: u64,
    path: Name,
}

/// Names of addresses.
#[derive(Default)]
struct Symbols {
    kernel: Option<Table>,
    maps: HashMap<u32, Vec<Mapping>>,
    binaries: HashMap<BinaryKey, Rc<Binary>>,
}

/// The functions of a binary, by address, and where its segments lie in the file.
#[derive(Default)]
struct Binary {
    functions: Table,
    segments: Vec<(u64, u64, u64)>,
}

impl Symbols {
    /// Forgets the mappings: processes end and addresses are used again. Binaries do not change.
    fn forget(&mut self) {
        self.maps.clear();
        if self.binaries.len() > BINARIES {
            self.binaries.clear();
        }
    }

    fn kernel(&mut self, address: u64) -> Name {
        let table = self.kernel.get_or_insert_with(|| {
            let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
            kallsyms(&text)
        });
        find(table, address).unwrap_or_else(|| "?".into())
    }

    fn user(&mut self, tgid: u32, address: u64) -> (Name, Option<Name>) {
        let maps = self.maps.entry(tgid).or_insert_with(|| {
            mappings(&fs::read_to_string(format!("/proc/{tgid}/maps")).unwrap_or_default())
        });
        let Some(mapping) = maps.iter().find(|m| (m.from..m.to).contains(&address)) else {
            return ("?".into(), None);
        };
        let file = mapping.file.clone();
        let in_file = address - mapping.from + mapping.offset;
        let module: Name = file.path.rsplit('/').next().unwrap_or("?").into();
        if !self.binaries.contains_key(&file) && self.binaries.len() < BINARIES {
            // By the process's own root, which may be another than ours.
            let binary =
                sys::open_of_process(tgid, &file.path).map(Binary::read).unwrap_or_default();
            self.binaries.insert(file.clone(), Rc::new(binary));
        }
        let name = self.binaries.get(&file).and_then(|binary| binary.name(in_file));
        (name.unwrap_or_else(|| "?".into()), Some(module))
    }
}

/// The functions of `/proc/kallsyms`; none where addresses are hidden.
fn kallsyms(text: &str) -> Table {
    let mut table: Table = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|a| *a != 0)?;
            matches!(words.next()?, "t" | "T" | "w" | "W").then_some(())?;
            Some((address, 0, words.next()?.into()))
        })
        .collect();
    table.sort_by_key(|(address, ..)| *address);
    table
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

impl Binary {
    fn read(file: fs::File) -> Binary {
        if file.metadata().is_ok_and(|m| m.len() > LARGEST) {
            return Binary::default();
        }
        let cache = ReadCache::new(file);
        let Ok(elf) = object::File::parse(&cache) else { return Binary::default() };
        let mut functions: Table = Vec::new();
        for symbols in [elf.symbol_table(), elf.dynamic_symbol_table()].into_iter().flatten() {
            for symbol in symbols.symbols() {
                if symbol.kind() == SymbolKind::Text
                    && symbol.address() != 0
                    && let Ok(name) = symbol.name()
                {
                    functions.push((symbol.address(), symbol.size(), name.into()));
                }
            }
        }
        functions.sort();
        functions.dedup_by_key(|f| f.0);
        let segments = elf
            .segments()
            .map(|s| {
                let (offset, size) = s.file_range();
                (offset, size, s.address())
            })
            .collect();
        Binary { functions, segments }
    }

    fn name(&self, in_file: u64) -> Option<Name> {
        let segment = self
            .segments
            .iter()
            .find(|(offset, size, _)| (*offset..offset.saturating_add(*size)).contains(&in_file));
        let (offset, _, address) = segment?;
        find(&self.functions, in_file - offset + address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_name_of_the_function_that_they_lie_in() {
        let table = kallsyms(
            "ffffffff81000000 T _text\nffffffff81000040 t do_one\nffffffff81000100 D data\n\
             ffffffff81000200 T do_two\n0000000000000000 T hidden\nrubbish\n",
        );
        let name = |address| find(&table, address).map(|n| n.to_string());
        assert_eq!(name(0xffff_ffff_8100_0050).as_deref(), Some("do_one"));
        assert_eq!(name(0xffff_ffff_8100_0200).as_deref(), Some("do_two"));
        assert_eq!(name(0x1000), None);
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
        assert_eq!(&*symbols.user(std::process::id(), 16).0, "?");
    }
}
