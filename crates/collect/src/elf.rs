//! Functions of programs and libraries, by their symbol tables.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::Path;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use crate::error::CollectError;

/// Functions of a similar name that are gathered before the best of them are kept.
const SIMILAR: usize = 4096;
/// Functions of a similar name that an error lists.
const LISTED: usize = 5;

/// Where in the file the code at this address in memory is.
pub(crate) fn file_offset<'data>(elf: &impl Object<'data>, address: u64) -> Option<usize> {
    elf.segments().find_map(|segment| {
        let (in_file, bytes) = segment.file_range();
        let within = address.checked_sub(segment.address())?;
        if within >= bytes { None } else { usize::try_from(within.checked_add(in_file)?).ok() }
    })
}

/// Whether a symbol is a function that this file defines.
pub(crate) fn is_function<'data>(symbol: &impl ObjectSymbol<'data>) -> bool {
    symbol.kind() == SymbolKind::Text && symbol.address() != 0 && !symbol.is_undefined()
}

/// Steps in a chain of a hash table; a sound one has a few.
const CHAIN: u64 = 4096;
/// Program headers, and entries of the dynamic section, that are looked at.
const ENTRIES: u64 = 4096;
/// No file is as long as this; so that sums of places do not overflow.
const BEYOND: u64 = 1 << 48;

/// Whether a library exports `symbol`, by its GNU hash table: a few reads of a few bytes, however many
/// symbols it has. `None` where that cannot be said, since it is no 64-bit little-endian library or has no
/// such table. A `true` is to be confirmed: two names may have one hash.
pub(crate) fn may_export(
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    symbol: &str,
) -> Option<bool> {
    let mut bytes = |at, n| number_at(read, at, n);
    let tables = DynamicTables::read(&mut bytes)?;
    Some(in_hash_table(&mut bytes, tables.hashes, symbol, &mut |_, _| Some(true))?.is_some())
}

/// What a library exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    /// Where in memory, from where the library is loaded.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
}

/// A function or datum that a program or library exports, by its GNU hash table, as [`may_export`].
pub(crate) fn exported(
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    symbol: &str,
) -> Option<Exported> {
    let mut bytes = |at, n| number_at(read, at, n);
    let tables = DynamicTables::read(&mut bytes)?;
    let (symbols, strings) = (tables.symbols?, tables.strings?);
    let entry = |index: u64| symbols.checked_add(index.checked_mul(SYMBOL)?);
    let mut is_it = |bytes: Bytes<'_>, index: u64| {
        let name = strings.checked_add(bytes(entry(index)?, 4)?)?;
        for (at, byte) in (0..).zip(symbol.bytes().chain([0])) {
            if bytes(name.checked_add(at)?, 1)? != u64::from(byte) {
                return Some(false);
            }
        }
        Some(true)
    };
    let at = entry(in_hash_table(&mut bytes, tables.hashes, symbol, &mut is_it)??)?;
    let address = bytes(at.checked_add(8)?, 8)?;
    Some(Exported { address, size: bytes(at.checked_add(16)?, 8)? })
}

/// Bytes of a symbol of a 64-bit file.
const SYMBOL: u64 = 24;

/// Reads a number of up to eight bytes.
type Bytes<'a> = &'a mut dyn FnMut(u64, usize) -> Option<u64>;

fn number_at(
    read: &mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>,
    at: u64,
    n: usize,
) -> Option<u64> {
    let mut buffer = [0; 8];
    read(Some(at).filter(|at| *at < BEYOND)?, &mut buffer[..n]).ok()?;
    Some(u64::from_le_bytes(buffer))
}

/// Where in a file the tables lie that its dynamic section names.
struct DynamicTables {
    hashes: u64,
    symbols: Option<u64>,
    strings: Option<u64>,
}

impl DynamicTables {
    /// Those of a 64-bit little-endian file with a GNU hash table.
    fn read(bytes: Bytes<'_>) -> Option<DynamicTables> {
        // 0x7f ELF, 64 bits, little-endian.
        if bytes(0, 6)? != 0x0102_464c_457f {
            return None;
        }
        let headers = bytes(32, 8)?.min(BEYOND);
        let (size, count) = (bytes(54, 2)?, bytes(56, 2)?.min(ENTRIES));
        let mut segments = Vec::new();
        let mut dynamic = None;
        for i in 0..count {
            let at = headers + i * size;
            let range = |bytes: Bytes<'_>| {
                // Where in the file, where in memory, how long.
                Some((bytes(at + 8, 8)?, bytes(at + 16, 8)?, bytes(at + 32, 8)?))
            };
            match bytes(at, 4)? {
                1 => segments.push(range(bytes)?),
                2 => dynamic = Some(range(bytes)?),
                _ => {}
            }
        }
        let (dynamic, _, length) = dynamic?;
        let dynamic = dynamic.min(BEYOND);
        let (mut hashes, mut symbols, mut strings) = (None, None, None);
        for i in 0..(length / 16).min(ENTRIES) {
            let at = dynamic + 16 * i;
            let table = match bytes(at, 8)? {
                0 => break,
                // DT_STRTAB, DT_SYMTAB, DT_GNU_HASH.
                5 => &mut strings,
                6 => &mut symbols,
                0x6fff_fef5 => &mut hashes,
                _ => continue,
            };
            *table = Some(bytes(at + 8, 8)?);
        }
        let in_file = |address: u64| {
            segments.iter().find_map(|(in_file, in_memory, length)| {
                let within = address.checked_sub(*in_memory).filter(|within| within < length)?;
                in_file.checked_add(within)
            })
        };
        let hashes = in_file(hashes?)?;
        Some(DynamicTables {
            hashes,
            symbols: symbols.and_then(in_file),
            strings: strings.and_then(in_file),
        })
    }
}

/// The number of a symbol in the GNU hash table at `table`, of those with its hash the first one that is it. `None` if the
/// table cannot be read.
fn in_hash_table(
    bytes: Bytes<'_>,
    table: u64,
    symbol: &str,
    is_it: &mut dyn FnMut(Bytes<'_>, u64) -> Option<bool>,
) -> Option<Option<u64>> {
    let hash =
        symbol.bytes().fold(5381_u32, |h, byte| h.wrapping_mul(33).wrapping_add(byte.into()));
    let mut number = |i: u64| bytes(table.checked_add(i)?, 4);
    let (buckets, first, words, shift) = (number(0)?, number(4)?, number(8)?, number(12)?);
    let hash = u64::from(hash);
    let word = 16 + 8 * (hash / 64).checked_rem(words)?;
    let filter = number(word)? | number(word + 4)? << 32;
    let mask = 1_u64 << (hash % 64) | 1_u64 << ((hash >> (shift & 31)) % 64);
    if filter & mask != mask {
        return Some(None);
    }
    let buckets_at = 16 + 8 * words;
    let index = number(buckets_at + 4 * hash.checked_rem(buckets)?)?;
    let Some(in_chains) = index.checked_sub(first) else { return Some(None) };
    let chain = buckets_at + 4 * buckets + 4 * in_chains;
    for i in 0..CHAIN {
        let link = bytes(table.checked_add(chain + 4 * i)?, 4)?;
        // The lowest bit marks the last one.
        if link | 1 == hash | 1 && is_it(bytes, index + i)? {
            return Some(Some(index + i));
        }
        if link & 1 == 1 {
            return Some(None);
        }
    }
    None
}

/// Longer mangled names are compared as they are.
const MANGLED: usize = 1024;

/// A function of C++, or of Rust that is mangled likewise, as a programmer calls it: without its parameters and without
/// what a compiler appends. Other names are what they are.
pub(crate) fn readable(symbol: &str) -> Cow<'_, str> {
    if !symbol.starts_with("_Z") || symbol.len() > MANGLED {
        return symbol.into();
    }
    let limits = ParseOptions::default().recursion_limit(96);
    let bare = DemangleOptions::new().no_params().no_return_type();
    let demangled = Symbol::new_with_options(symbol, &limits)
        .ok()
        .and_then(|parsed| parsed.demangle_with_options(&bare).ok());
    let Some(name) = demangled else { return symbol.into() };
    let is_hash = |end: &str| end.len() == 17 && end.starts_with('h');
    match name.rsplit_once("::") {
        Some((path, end)) if is_hash(end) => path.to_owned().into(),
        _ => name.into(),
    }
}

/// Whether a mangled name is of a function that is called so, with its namespaces and classes or without.
fn is_called(mangled: &str, name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    if !mangled.starts_with("_Z") || !mangled.contains(last) {
        return false;
    }
    let readable = readable(mangled);
    readable == name || readable.strip_suffix(name).is_some_and(|rest| rest.ends_with("::"))
}

/// Where in the file the function begins; more than one place if several have the name. Functions of C++ may be named as
/// they are called.
///
/// # Errors
/// The file cannot be read, is not an ELF file, or has no such function, in which case the error
/// lists similar names.
pub(crate) fn function_offsets(binary: &Path, symbol: &str) -> Result<Vec<usize>, CollectError> {
    let read = |source| CollectError::Read { path: binary.to_owned(), source };
    let none = |hint: String| CollectError::Symbol {
        binary: binary.to_owned(),
        symbol: symbol.to_owned(),
        hint,
    };
    let file = File::open(binary).map_err(read)?;
    if !file.metadata().map_err(read)?.is_file() {
        return Err(none(": it is not a file".into()));
    }
    // CUDA libraries have gigabytes; the cache reads only the parts that are asked for.
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache)
        .map_err(|error| none(format!(": it cannot be read: {error}")))?;

    let (mut offsets, mut called) = (Vec::new(), Vec::new());
    let mut similar = SimilarNames::default();
    let tables = elf.symbol_table().into_iter().chain(elf.dynamic_symbol_table());
    for entry in tables.flat_map(|table| table.symbols()).filter(is_function) {
        let Ok(name) = entry.name() else { continue };
        if name == symbol {
            offsets.extend(file_offset(&elf, entry.address()));
        } else if is_called(name, symbol) {
            called.extend(file_offset(&elf, entry.address()));
        } else {
            similar.offer(name, symbol);
        }
    }
    if offsets.is_empty() {
        offsets = called;
    }
    offsets.sort_unstable();
    offsets.dedup();
    // No function calls the entry point of a program: where a return address would lie, the number
    // of arguments does, and a return probe would replace it.
    if file_offset(&elf, elf.entry()).is_some_and(|entry| offsets.contains(&entry)) {
        return Err(none(": the entry point of a program does not return; name a function".into()));
    }
    if !offsets.is_empty() {
        return Ok(offsets);
    }
    let is_stripped = elf.symbol_table().is_none_or(|table| table.symbols().next().is_none());
    Err(none(similar.hint(is_stripped)))
}

/// A static probe (USDT) of a program or library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StaticProbe {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub places: Vec<Place>,
}

/// A place of a static probe, by offsets in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The instruction.
    pub code: usize,
    /// The counter of those who listen; 0 if it has none.
    pub counter: usize,
}

/// Static probes of one file that are looked at.
const STATIC_PROBES: usize = 4096;

/// The static probes of a provider in a file; none if it is no ELF file or has none.
pub(crate) fn static_probes(file: &File, provider: &str) -> Vec<StaticProbe> {
    let Ok(file) = file.try_clone() else { return Vec::new() };
    let cache = ReadCache::new(file);
    let Ok(elf) = object::File::parse(&cache) else { return Vec::new() };
    let section = |name| elf.section_by_name(name);
    let Some(notes) = section(".note.stapsdt").and_then(|notes| notes.data().ok()) else {
        return Vec::new();
    };
    // Prelinked files are moved after the notes were written; this section moves with them.
    let base = section(".stapsdt.base").map(|base| base.address());
    let mut out: Vec<StaticProbe> = Vec::new();
    for note in Notes(notes).take(STATIC_PROBES).filter(|note| note.provider == provider.as_bytes())
    {
        let moved = base.map_or(0, |base| base.wrapping_sub(note.base));
        let offset = |address: u64| file_offset(&elf, address.wrapping_add(moved));
        let Some(code) = offset(note.code) else { continue };
        let counter = match note.counter {
            0 => 0,
            counter => match offset(counter) {
                Some(counter) => counter,
                None => continue,
            },
        };
        let (name, place) = (String::from_utf8_lossy(note.name), Place { code, counter });
        match out.iter_mut().find(|probe| probe.name == name) {
            Some(probe) => probe.places.push(place),
            None => out.push(StaticProbe { name: name.into_owned(), places: vec![place] }),
        }
    }
    out
}

/// A note about a static probe, with addresses as the linker wrote them.
struct Note<'a> {
    code: u64,
    base: u64,
    counter: u64,
    provider: &'a [u8],
    name: &'a [u8],
}

/// The notes of a section, of 64-bit little-endian files.
struct Notes<'a>(&'a [u8]);

impl<'a> Iterator for Notes<'a> {
    type Item = Note<'a>;

    fn next(&mut self) -> Option<Note<'a>> {
        loop {
            let word =
                |at: usize| Some(u32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?));
            let (owner, text, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
            let padded = |bytes: usize| bytes.checked_next_multiple_of(4);
            let from = padded(owner)?.checked_add(12)?;
            let to = from.checked_add(text)?;
            let (is_probe, body) =
                (kind == 3 && self.0.get(12..12 + 8)? == b"stapsdt\0", self.0.get(from..to)?);
            self.0 = self.0.get(from.checked_add(padded(text)?)?..).unwrap_or_default();
            if let Some(note) = is_probe.then(|| Note::of(body)).flatten() {
                return Some(note);
            }
        }
    }
}

impl<'a> Note<'a> {
    fn of(body: &'a [u8]) -> Option<Note<'a>> {
        let word = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
        let mut texts = body.get(24..)?.split(|byte| *byte == 0);
        let (provider, name) = (texts.next()?, texts.next()?);
        Some(Note { code: word(0)?, base: word(8)?, counter: word(16)?, provider, name })
    }
}

/// Names of functions that are similar to the one asked for, with how much they differ.
#[derive(Default)]
struct SimilarNames(Vec<(usize, String)>);

impl SimilarNames {
    fn offer(&mut self, name: &str, asked: &str) {
        let Some(distance) = distance(name, asked) else { return };
        self.0.push((distance, name.to_owned()));
        if self.0.len() >= SIMILAR {
            self.0.sort();
            self.0.truncate(LISTED);
        }
    }

    fn hint(mut self, is_stripped: bool) -> String {
        self.0.sort();
        self.0.dedup();
        let names: Vec<&str> = self.0.iter().take(LISTED).map(|(_, name)| name.as_str()).collect();
        if !names.is_empty() {
            format!("; similar names are {}", names.join(", "))
        } else if is_stripped {
            ": it is stripped, and exports no function of a similar name; install its debug symbols \
             or name an exported function"
                .into()
        } else {
            String::new()
        }
    }
}

/// How much `name` differs from `asked`: the number of additional characters if it contains it, else
/// the number of edits, if these are few.
fn distance(name: &str, asked: &str) -> Option<usize> {
    if asked.len() >= 3 && name.contains(asked) {
        return Some(name.len() - asked.len());
    }
    if name.len().abs_diff(asked.len()) > 2 || asked.len() > 64 {
        return None;
    }
    let (name, asked) = (name.as_bytes(), asked.as_bytes());
    let mut row: Vec<usize> = (0..=asked.len()).collect();
    for (i, a) in name.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in asked.iter().enumerate() {
            let change = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    let edits = row[asked.len()];
    (edits <= 2 && edits < asked.len()).then_some(edits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test's own binary has this function under its own name.
    #[unsafe(no_mangle)]
    extern "C" fn gpuwhy_test_function() {}

    #[test]
    fn a_function_of_cpp_is_what_its_programmer_calls_it() {
        let mangled = "_Z16dispatch_command19enum_server_commandP3THDPcjb";
        assert_eq!(readable(mangled), "dispatch_command");
        assert_eq!(
            readable("_ZN5torch8autograd6Engine7executeEi"),
            "torch::autograd::Engine::execute"
        );
        assert_eq!(readable("_ZN3log3api17h0123456789abcdefE"), "log::api");
        for other in ["processCommand", "_Zmalformed", &format!("_Z{}", "N".repeat(2000))] {
            assert_eq!(readable(other), other);
        }
        assert!(is_called(mangled, "dispatch_command") && !is_called(mangled, "command"));
        let execute = "_ZN5torch8autograd6Engine7executeEi";
        for name in ["execute", "Engine::execute", "torch::autograd::Engine::execute"] {
            assert!(is_called(execute, name), "{name}");
        }
        for name in ["cute", "ngine::execute", "autograd::execute"] {
            assert!(!is_called(execute, name), "{name}");
        }
    }

    #[test]
    fn a_function_is_found_and_similar_names_are_listed() {
        gpuwhy_test_function();
        let own = std::env::current_exe().unwrap();
        assert_eq!(function_offsets(&own, "gpuwhy_test_function").unwrap().len(), 1);
        let entry = function_offsets(&own, "_start").unwrap_err().to_string();
        assert!(entry.contains("entry point"), "{entry}");
        let hint = |name: &str| function_offsets(&own, name).unwrap_err().to_string();
        assert!(hint("gpuwhy_test_funktion").ends_with("; similar names are gpuwhy_test_function"));
        assert!(hint("test_function").contains("similar names are gpuwhy_test_function"));
        assert!(hint("no such thing at all").ends_with(&format!("in `{}`", own.display())));
    }

    /// The C library that this test runs with.
    fn c_library() -> File {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = crate::procfs::mappings(&maps).find(|m| m.path.contains("libc.so"));
        File::open(found.expect("a test has a C library").path).unwrap()
    }

    #[test]
    fn what_a_library_exports_is_told_without_reading_its_symbols() {
        use std::os::unix::fs::FileExt as _;
        let library = c_library();
        let (mut reads, mut bytes) = (0, 0);
        let mut read = |at: u64, buffer: &mut [u8]| {
            (reads, bytes) = (reads + 1, bytes + buffer.len());
            library.read_exact_at(buffer, at)
        };
        for symbol in ["malloc", "getpid", "printf"] {
            assert_eq!(may_export(&mut read, symbol), Some(true), "{symbol}");
        }
        (reads, bytes) = (0, 0);
        let mut read = |at: u64, buffer: &mut [u8]| {
            (reads, bytes) = (reads + 1, bytes + buffer.len());
            library.read_exact_at(buffer, at)
        };
        for symbol in ["ncclAllReduce", "gpuwhy_test_function", ""] {
            assert_eq!(may_export(&mut read, symbol), Some(false), "{symbol}");
        }
        assert!(reads < 400 && bytes < 3200, "{reads} reads of {bytes} bytes for three symbols");
    }

    #[test]
    fn a_library_that_is_cut_off_or_damaged_says_nothing_of_its_symbols() {
        use std::os::unix::fs::FileExt as _;
        let mut none = |_: u64, _: &mut [u8]| Err(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(may_export(&mut none, "malloc"), None);
        let library = c_library();
        // Any byte that is read may be any other one.
        for damaged in 0..400 {
            for with in [0x00, 0x7f, 0xff] {
                let mut reads = 0;
                let mut read = |at: u64, buffer: &mut [u8]| {
                    library.read_exact_at(buffer, at)?;
                    reads += 1;
                    if reads == damaged {
                        buffer.fill(with);
                    }
                    Ok(())
                };
                let _ = may_export(&mut read, "malloc");
            }
        }
    }

    /// A note as an assembler writes it.
    fn note(kind: u32, owner: &[u8], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let sizes = [owner.len(), body.len()].map(|n| u32::try_from(n).unwrap());
        for word in [sizes[0], sizes[1], kind] {
            out.extend(word.to_le_bytes());
        }
        for text in [owner, body] {
            out.extend(text);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    #[test]
    fn notes_of_static_probes_are_read_and_broken_ones_end_it() {
        let body = |name: &str| {
            let words = [0x1000_u64, 0x2000, 0x3000].map(u64::to_le_bytes).concat();
            [&words[..], b"python\0", name.as_bytes(), b"\0-4@%edi\0"].concat()
        };
        let of = |kind, owner: &[u8], name| note(kind, owner, &body(name));
        let all = [
            of(3, b"stapsdt\0", "gc__start"),
            of(1, b"stapsdt\0", "other__kind"),
            of(3, b"GNU\0", "other__owner"),
            note(3, b"stapsdt\0", b"too short"),
            of(3, b"stapsdt\0", "gc__done"),
        ]
        .concat();
        let names = |bytes: &[u8]| -> Vec<String> {
            Notes(bytes).map(|n| String::from_utf8_lossy(n.name).into_owned()).collect()
        };
        assert_eq!(names(&all), ["gc__start", "gc__done"]);
        let first = Notes(&all).next().unwrap();
        assert_eq!((first.code, first.base, first.counter), (0x1000, 0x2000, 0x3000));
        assert_eq!(first.provider, b"python");
        // At every length, and with sizes that lead beyond the end.
        for len in 0..all.len() {
            assert!(names(&all[..len]).len() <= 2);
        }
        assert!(names(&[0xff; 64]).is_empty());
    }

    /// Debian's interpreters have such probes.
    #[test]
    fn the_collector_of_an_interpreter_with_static_probes_is_found() {
        let Ok(file) = File::open("/usr/bin/python3") else { return };
        let probes = static_probes(&file, "python");
        let Some(start) = probes.iter().find(|probe| probe.name == "gc__start") else {
            return eprintln!("this interpreter has no static probes");
        };
        assert!(!start.places.is_empty(), "{start:?}");
        assert!(start.places.iter().all(|place| place.code > 0 && place.counter > 0), "{start:?}");
        assert!(probes.iter().any(|probe| probe.name == "gc__done"), "{probes:?}");
        assert!(static_probes(&file, "libc").is_empty());
    }

    #[test]
    fn a_file_that_is_no_program_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "not a program").unwrap();
        let text = function_offsets(&path, "main").unwrap_err().to_string();
        assert!(text.contains("notes.txt`: it cannot be read: "), "{text}");
        let text = function_offsets(dir.path(), "main").unwrap_err().to_string();
        assert!(text.ends_with(": it is not a file"), "{text}");
        let text = function_offsets(&dir.path().join("nothing"), "main").unwrap_err().to_string();
        assert!(text.starts_with("cannot read `"), "{text}");
        // An ELF header and then nothing, at every length.
        let own = std::fs::read("/proc/self/exe").unwrap();
        for len in [4, 16, 63, 64, 100, 1000] {
            std::fs::write(&path, &own[..len]).unwrap();
            assert!(function_offsets(&path, "main").is_err());
        }
    }
}
