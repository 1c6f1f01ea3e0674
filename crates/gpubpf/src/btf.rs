//! The type information of an object (`.BTF`, `.BTF.ext`): how maps are declared, and source lines.
//!
//! The layout is that of `Documentation/bpf/btf.rst` in Linux.

use std::collections::{HashMap, HashSet};

use crate::program::{Map, MapKind};

/// A type, as far as declarations of maps need it.
#[derive(Debug, Clone)]
struct Type {
    kind: u32,
    name: u32,
    /// The size in bytes, or the type that this one refers to, by kind.
    size_or_type: u32,
    /// Of an array: its element type and count.
    array: (u32, u32),
    /// Of a struct, its members: name and type. Of a section, its variables: type.
    members: Vec<(u32, u32)>,
}

const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const VAR: u32 = 14;
const DATASEC: u32 = 15;

/// The parsed `.BTF` section.
pub(crate) struct Btf<'a> {
    types: Vec<Type>,
    strings: &'a [u8],
}

/// Little-endian numbers from bytes that may end too early.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn word(&mut self) -> Result<u32, String> {
        let word = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<4>);
        let word = word.ok_or_else(|| format!("it is cut off at byte {}", self.at))?;
        self.at += 4;
        Ok(u32::from_le_bytes(*word))
    }

    /// So many words; an absurd count is refused before room is made for it.
    fn words(&mut self, count: usize) -> Result<Vec<u32>, String> {
        if count > self.bytes.len().saturating_sub(self.at) / 4 {
            return Err(format!("it is cut off at byte {}", self.at));
        }
        (0..count).map(|_| self.word()).collect()
    }

    fn done(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

/// The part `start..start + length` of what follows the header.
fn part(bytes: &[u8], header: u32, start: u32, length: u32) -> Result<&[u8], String> {
    let from = header as usize + start as usize;
    let part = bytes.get(from..).and_then(|rest| rest.get(..length as usize));
    part.ok_or_else(|| format!("a part at {start} of {length} bytes lies outside of it"))
}

/// The words of a header: magic number, then version and flags, then its length.
fn header(bytes: &mut Bytes) -> Result<u32, String> {
    let first = bytes.word()?;
    match (first & 0xffff, first >> 16 & 0xff) {
        (0xeb9f, 1) => bytes.word(),
        (0xeb9f, version) => Err(format!("version {version} is not known")),
        _ => Err("it does not begin with BTF's magic number in little-endian order".into()),
    }
}

impl<'a> Btf<'a> {
    pub(crate) fn read(section: &'a [u8]) -> Result<Self, String> {
        let mut bytes = Bytes { bytes: section, at: 0 };
        let length = header(&mut bytes)?;
        let words = bytes.words(4)?;
        let mut types = Bytes { bytes: part(section, length, words[0], words[1])?, at: 0 };
        let strings = part(section, length, words[2], words[3])?;
        // Type 0 is `void`.
        let void = Type { kind: 0, name: 0, size_or_type: 0, array: (0, 0), members: Vec::new() };
        let mut all = vec![void];
        while !types.done() {
            all.push(read_type(&mut types)?);
        }
        Ok(Self { types: all, strings })
    }

    fn string(&self, offset: u32) -> Result<&str, String> {
        let rest = self.strings.get(offset as usize..).ok_or("a name lies outside of it")?;
        let end = rest.iter().position(|&b| b == 0).ok_or("a name has no end")?;
        str::from_utf8(&rest[..end]).map_err(|_| "a name is not UTF-8".into())
    }

    fn get(&self, id: u32) -> Result<&Type, String> {
        self.types.get(id as usize).ok_or_else(|| format!("type {id} does not exist"))
    }

    /// A type without its names and qualifiers.
    fn resolve(&self, mut id: u32) -> Result<&Type, String> {
        for _ in 0..32 {
            let found = self.get(id)?;
            match found.kind {
                8..=11 | 18 => id = found.size_or_type,
                _ => return Ok(found),
            }
        }
        Err(format!("type {id} is named after itself"))
    }

    /// Bytes of a value of the type.
    fn size(&self, id: u32) -> Result<u32, String> {
        let mut count = 1_u32;
        let mut id = id;
        for _ in 0..32 {
            let found = self.resolve(id)?;
            let size = match found.kind {
                1 | STRUCT | 5 | 6 | 16 | 19 => found.size_or_type,
                PTR => 8,
                ARRAY => {
                    count = count.checked_mul(found.array.1).ok_or("an array is too large")?;
                    id = found.array.0;
                    continue;
                }
                kind => return Err(format!("type {id} of kind {kind} has no size")),
            };
            return count.checked_mul(size).ok_or_else(|| "an array is too large".into());
        }
        Err(format!("type {id} holds itself"))
    }

    /// The maps that the `.maps` section declares, by the names of their variables.
    pub(crate) fn maps(&self) -> Result<HashMap<String, Map>, String> {
        let mut maps = HashMap::new();
        for section in self.types.iter().filter(|t| t.kind == DATASEC) {
            if self.string(section.name)? != ".maps" {
                continue;
            }
            for &(_, id) in &section.members {
                let variable = self.get(id)?;
                if variable.kind != VAR {
                    return Err(format!("type {id} in `.maps` is no variable"));
                }
                let name = self.string(variable.name)?;
                let map = self
                    .map(name, variable.size_or_type)
                    .map_err(|why| format!("map `{name}`: {why}"))?;
                maps.insert(name.to_owned(), map);
            }
        }
        Ok(maps)
    }

    fn map(&self, name: &str, id: u32) -> Result<Map, String> {
        let declared = self.resolve(id)?;
        if declared.kind != STRUCT {
            return Err("it is declared by something other than a struct".into());
        }
        let kind = MapKind::Other(0);
        let name = name.to_owned();
        let mut map = Map { name, kind, key_size: 0, value_size: 0, max_entries: 0, flags: 0 };
        for &(member, id) in &declared.members {
            // `__uint(name, value)` is a pointer to an array of so many ints, `__type(name, type)` a
            // pointer to the type.
            let pointer = self.resolve(id)?;
            let member = self.string(member)?;
            if pointer.kind != PTR {
                return Err(format!("member `{member}` is no pointer"));
            }
            let pointed = pointer.size_or_type;
            let number = || match self.resolve(pointed)? {
                array if array.kind == ARRAY => Ok(array.array.1),
                _ => Err(format!("member `{member}` holds no number")),
            };
            match member {
                "type" => map.kind = MapKind::from_id(number()?),
                "max_entries" => map.max_entries = number()?,
                "map_flags" => map.flags = number()?,
                "key_size" => map.key_size = number()?,
                "value_size" => map.value_size = number()?,
                "key" => map.key_size = self.size(pointed)?,
                "value" => map.value_size = self.size(pointed)?,
                // Where the host puts a map does not matter to who compiles programs.
                "pinning" | "numa_node" | "map_extra" => {}
                _ => return Err(format!("member `{member}` is not known")),
            }
        }
        Ok(map)
    }
}

fn read_type(bytes: &mut Bytes) -> Result<Type, String> {
    let (name, info, size_or_type) = (bytes.word()?, bytes.word()?, bytes.word()?);
    let (kind, count) = (info >> 24 & 31, (info & 0xffff) as usize);
    let mut found = Type { kind, name, size_or_type, array: (0, 0), members: Vec::new() };
    match kind {
        1 | VAR | 17 => drop(bytes.word()?),
        ARRAY => {
            let words = bytes.words(3)?;
            found.array = (words[0], words[2]);
        }
        STRUCT | 5 => {
            let words = bytes.words(3 * count)?;
            found.members = words.chunks(3).map(|m| (m[0], m[1])).collect();
        }
        DATASEC => {
            let words = bytes.words(3 * count)?;
            found.members = words.chunks(3).map(|m| (0, m[0])).collect();
        }
        6 | 13 => drop(bytes.words(2 * count)?),
        19 => drop(bytes.words(3 * count)?),
        PTR | 7..=12 | 16 | 18 => {}
        _ => return Err(format!("a type of kind {kind} is not known")),
    }
    Ok(found)
}

/// What `.BTF.ext` says of each section, by name.
#[derive(Debug, Default)]
pub(crate) struct Extension {
    /// Where a source line begins: the slot, and `file:line: text`.
    pub(crate) lines: HashMap<String, Vec<(u32, String)>>,
    /// Slots that the host's loader would have to adapt to the running kernel's types.
    pub(crate) core: HashMap<String, HashSet<u32>>,
}

/// Reads `.BTF.ext`.
pub(crate) fn extension(section: &[u8], btf: &Btf) -> Result<Extension, String> {
    let mut bytes = Bytes { bytes: section, at: 0 };
    let length = header(&mut bytes)?;
    let words = bytes.words(4)?;
    let core = if length >= 32 { bytes.words(2)? } else { vec![0, 0] };
    let mut extension = Extension::default();
    records(part(section, length, words[2], words[3])?, btf, |name, record| {
        let [slot, file, text, line] = *record else { return Err("a line record is short".into()) };
        let text = short(btf.string(text)?.trim());
        let file = short(btf.string(file)?.rsplit('/').next().unwrap_or_default());
        let line = format!("{file}:{}: {text}", line >> 10);
        extension.lines.entry(name.to_owned()).or_default().push((slot / 8, line));
        Ok(())
    })?;
    records(part(section, length, core[0], core[1])?, btf, |name, record| {
        let slot = record.first().ok_or("a relocation record is short")?;
        extension.core.entry(name.to_owned()).or_default().insert(slot / 8);
        Ok(())
    })?;
    extension.lines.values_mut().for_each(|lines| lines.sort());
    Ok(extension)
}

/// The beginning of a source line: many records may name one long text.
fn short(text: &str) -> &str {
    let end = text.char_indices().nth(120).map_or(text.len(), |(at, _)| at);
    &text[..end]
}

/// Calls `each` with every record of a part of `.BTF.ext` and the name of its section.
fn records(
    part: &[u8],
    btf: &Btf,
    mut each: impl FnMut(&str, &[u32]) -> Result<(), String>,
) -> Result<(), String> {
    if part.is_empty() {
        return Ok(());
    }
    let mut bytes = Bytes { bytes: part, at: 0 };
    let size = bytes.word()? as usize;
    if size == 0 || !size.is_multiple_of(4) {
        return Err(format!("records of {size} bytes"));
    }
    while !bytes.done() {
        let (name, count) = (bytes.word()?, bytes.word()?);
        let name = btf.string(name)?;
        let words = bytes.words((count as usize).saturating_mul(size / 4))?;
        // A record may grow at its end in later versions.
        words.chunks(size / 4).try_for_each(|record| each(name, &record[..record.len().min(4)]))?;
    }
    Ok(())
}
