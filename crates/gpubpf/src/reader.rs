//! Objects as clang writes them for eBPF: sections, maps, relocations and the programs among them.
//!
//! An object may hold programs for the host beside those for the device, so nothing is refused for
//! what one program does until that program is linked.

use std::collections::HashMap;

use object::elf;
use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SectionIndex, SymbolKind,
};

use crate::attach::Attach;
use crate::btf::{self, Btf, Extension};
use crate::error::{Fault, Place};
use crate::insn::{self, Decoded, Insn, Wide};
use crate::program::{Data, Map, Program, Site};

/// Why an object cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is no ELF file, or a damaged one.
    #[error("not a readable ELF object")]
    Elf(#[from] object::Error),
    /// It is an ELF file for something else.
    #[error("an ELF object for machine {0}, not for eBPF (247)")]
    Machine(u16),
    /// One of its sections is damaged.
    #[error("section `{section}`: {reason}")]
    Section {
        /// The section's name.
        section: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A program of an object, before it is linked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The function's name.
    pub name: String,
    /// The section that it stands in.
    pub section: String,
    /// Where it belongs.
    pub attach: Attach,
    at: Span,
}

/// A function's place: a section, and its slots there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Span {
    section: SectionIndex,
    first: u32,
    end: u32,
}

/// What a relocation points at.
#[derive(Debug, Clone)]
struct Symbol {
    name: String,
    section: Option<SectionIndex>,
    address: u64,
}

/// A section with instructions.
struct Code {
    name: String,
    bytes: Vec<u8>,
    /// By slot.
    relocations: HashMap<u32, Symbol>,
}

/// A parsed object.
pub struct Object {
    entries: Vec<Entry>,
    maps: Vec<Map>,
    /// Offsets within `.maps`, index by index, and that section.
    map_offsets: Vec<u64>,
    map_section: Option<SectionIndex>,
    data: Vec<Data>,
    data_sections: Vec<SectionIndex>,
    /// Sections that hold variables, which a device does not share.
    variables: HashMap<SectionIndex, String>,
    code: HashMap<SectionIndex, Code>,
    /// All functions, so that calls find where theirs ends.
    functions: HashMap<(SectionIndex, u32), u32>,
    extension: Extension,
}

/// The most bytes of read-only data in one section.
const MAX_DATA: usize = 65_536;

type Elf<'a> = ElfFile64<'a, LittleEndian>;

impl Object {
    /// Reads an object.
    pub fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let elf = Elf::parse(bytes)?;
        let machine = elf.elf_header().e_machine.get(LittleEndian);
        if machine != elf::EM_BPF {
            return Err(Unreadable::Machine(machine));
        }
        let mut object = Self {
            entries: Vec::new(),
            maps: Vec::new(),
            map_offsets: Vec::new(),
            map_section: None,
            data: Vec::new(),
            data_sections: Vec::new(),
            variables: HashMap::new(),
            code: HashMap::new(),
            functions: HashMap::new(),
            extension: Extension::default(),
        };
        object.sections(&elf)?;
        object.symbols(&elf)?;
        object.types(&elf)?;
        Ok(object)
    }

    /// The programs, host and device, in the order of the symbol table.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The maps, as programs index them.
    pub fn maps(&self) -> &[Map] {
        &self.maps
    }

    fn sections(&mut self, elf: &Elf) -> Result<(), Unreadable> {
        for section in elf.sections() {
            let name = section.name()?.to_owned();
            let flags = match section.flags() {
                object::SectionFlags::Elf { sh_flags } => sh_flags,
                _ => 0,
            };
            if flags & u64::from(elf::SHF_EXECINSTR) != 0 {
                let bytes = section.data()?.to_vec();
                let relocations = relocations(elf, &section)?;
                self.code.insert(section.index(), Code { name, bytes, relocations });
            } else if name == ".maps" {
                self.map_section = Some(section.index());
            } else if name.starts_with(".rodata") {
                let bytes = section.data()?.to_vec();
                if bytes.len() > MAX_DATA {
                    let reason = format!("{} bytes; at most {MAX_DATA}", bytes.len());
                    return Err(Unreadable::Section { section: name, reason });
                }
                self.data.push(Data { name, bytes });
                self.data_sections.push(section.index());
            } else if name.starts_with(".data") || name.starts_with(".bss") {
                self.variables.insert(section.index(), name);
            }
        }
        Ok(())
    }

    fn symbols(&mut self, elf: &Elf) -> Result<(), Unreadable> {
        for symbol in elf.symbols() {
            let Some(section) = symbol.section_index() else { continue };
            let Some(code) = self.code.get(&section) else { continue };
            if symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
                continue;
            }
            let name = symbol.name()?.to_owned();
            let end = symbol.address().checked_add(symbol.size());
            let Some(end) = end.filter(|&end| end <= code.bytes.len() as u64) else {
                let reason = format!("function `{name}` ends beyond it");
                return Err(Unreadable::Section { section: code.name.clone(), reason });
            };
            if symbol.address() % 8 != 0 || end % 8 != 0 {
                let reason = format!("function `{name}` begins or ends within an instruction");
                return Err(Unreadable::Section { section: code.name.clone(), reason });
            }
            let (first, end) = ((symbol.address() / 8) as u32, (end / 8) as u32);
            self.functions.insert((section, first), end);
            if code.name != ".text" {
                let (at, section) = (Span { section, first, end }, code.name.clone());
                let attach = Attach::from_section(&section);
                self.entries.push(Entry { name, section, attach, at });
            }
        }
        Ok(())
    }

    fn types(&mut self, elf: &Elf) -> Result<(), Unreadable> {
        let bad = |section: &str| {
            let section = section.to_owned();
            move |reason| Unreadable::Section { section, reason }
        };
        let Some(section) = elf.section_by_name(".BTF") else {
            return match self.map_section {
                Some(_) => Err(bad(".maps")("maps are declared by BTF; compile with -g".into())),
                None => Ok(()),
            };
        };
        let btf = Btf::read(section.data()?).map_err(bad(".BTF"))?;
        let mut declared = btf.maps().map_err(bad(".BTF"))?;
        for symbol in elf.symbols() {
            if symbol.section_index() == self.map_section
                && self.map_section.is_some()
                && symbol.kind() == SymbolKind::Data
            {
                let name = symbol.name()?;
                let Some(map) = declared.remove(name) else {
                    return Err(bad(".maps")(format!("`{name}` is not declared in BTF")));
                };
                self.maps.push(map);
                self.map_offsets.push(symbol.address());
            }
        }
        if let Some(section) = elf.section_by_name(".BTF.ext") {
            self.extension = btf::extension(section.data()?, &btf).map_err(bad(".BTF.ext"))?;
        }
        Ok(())
    }

    /// Links the program that `entry` names: with all functions that it reaches.
    pub fn link(&self, entry: &Entry) -> Result<Program, Fault> {
        let mut linker = Linker {
            object: self,
            program: Program {
                name: entry.name.clone(),
                section: entry.section.clone(),
                maps: self.maps.clone(),
                data: self.data.clone(),
                ..Program::default()
            },
            functions: vec![entry.at.clone()],
            numbers: HashMap::from([(entry.at.clone(), 0)]),
            starts: Vec::new(),
            decoded: HashMap::new(),
            sections: HashMap::new(),
            calls: Vec::new(),
        };
        let mut next = 0;
        while let Some(span) = linker.functions.get(next).cloned() {
            linker.function(&span)?;
            next += 1;
        }
        for (at, function) in std::mem::take(&mut linker.calls) {
            linker.program.insns[at] = Insn::CallLocal { target: linker.starts[function] };
        }
        Ok(linker.program)
    }
}

fn relocations(
    elf: &Elf,
    section: &object::read::elf::ElfSection64<'_, '_, LittleEndian>,
) -> Result<HashMap<u32, Symbol>, Unreadable> {
    let mut found = HashMap::new();
    for (offset, relocation) in section.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else { continue };
        let symbol = elf.symbol_by_index(index)?;
        let kind = match relocation.flags() {
            RelocationFlags::Elf { r_type } => r_type,
            _ => 0,
        };
        // R_BPF_64_64 and R_BPF_64_32; the others are of debugging sections.
        if !matches!(kind, 1 | 10) {
            let section = section.name()?.to_owned();
            let reason = format!("a relocation of type {kind} at byte {offset}");
            return Err(Unreadable::Section { section, reason });
        }
        let name = symbol.name()?.to_owned();
        let (section, address) = (symbol.section_index(), symbol.address());
        found.insert((offset / 8) as u32, Symbol { name, section, address });
    }
    Ok(found)
}

/// One section's instructions, decoded once.
type DecodedCode = std::rc::Rc<Vec<(u32, Decoded)>>;

struct Linker<'a> {
    object: &'a Object,
    program: Program,
    /// In the order in which they are appended.
    functions: Vec<Span>,
    /// The index of each there.
    numbers: HashMap<Span, usize>,
    /// Where each begins in the program, index by index, as far as appended.
    starts: Vec<u32>,
    decoded: HashMap<SectionIndex, DecodedCode>,
    /// Numbers of sections in the program.
    sections: HashMap<SectionIndex, u32>,
    /// Calls whose function may not stand yet: instruction and function.
    calls: Vec<(usize, usize)>,
}

impl<'a> Linker<'a> {
    fn code(&self, section: SectionIndex) -> &'a Code {
        &self.object.code[&section]
    }

    fn decoded(&mut self, section: SectionIndex) -> Result<DecodedCode, Fault> {
        if let Some(decoded) = self.decoded.get(&section) {
            return Ok(decoded.clone());
        }
        let code = self.code(section);
        let decoded = DecodedCode::new(insn::decode_slots(&code.bytes, &code.name)?);
        self.decoded.insert(section, decoded.clone());
        Ok(decoded)
    }

    /// Appends the function at `span`.
    fn function(&mut self, span: &Span) -> Result<(), Fault> {
        let decoded = self.decoded(span.section)?;
        let code = self.code(span.section);
        let number = self.section(span.section, code);
        let first = decoded.partition_point(|&(slot, _)| slot < span.first);
        let end = decoded.partition_point(|&(slot, _)| slot < span.end);
        let body = &decoded[first..end];
        let start = self.program.insns.len();
        if start + body.len() > insn::MAX_SLOTS {
            let reason = format!("more than {} instructions once linked", insn::MAX_SLOTS);
            return Err(Place::new(&code.name, span.first).fault(reason));
        }
        self.starts.push(start as u32);
        let lines = self.object.extension.lines.get(&code.name);
        for &(slot, decoded) in body {
            let place = Place::new(&code.name, slot);
            if self.object.extension.core.get(&code.name).is_some_and(|c| c.contains(&slot)) {
                return Err(
                    place.fault("a field of a kernel structure (CO-RE), which a GPU lacks".into())
                );
            }
            let relocation = code.relocations.get(&slot);
            let insn = match decoded {
                Decoded::Plain(insn) => insn,
                Decoded::Jump(when, distance) => {
                    let target = insn::target(body, slot, distance, &place)?;
                    Insn::Jump { when, target: target + start as u32 }
                }
                Decoded::CallLocal(distance) => {
                    let function = self.callee(span.section, slot, distance, relocation, &place)?;
                    self.calls.push((self.program.insns.len(), function));
                    Insn::CallLocal { target: 0 }
                }
                Decoded::Wide { dst, kind, value } => {
                    let value = self.wide(kind, value, relocation).map_err(|r| place.fault(r))?;
                    Insn::LoadWide { dst, value }
                }
            };
            let line = lines.and_then(|lines| self.line(lines, slot));
            self.program.insns.push(insn);
            self.program.sites.push(Site { section: number, slot, line });
        }
        Ok(())
    }

    /// The number of a section in the program.
    fn section(&mut self, index: SectionIndex, code: &Code) -> u32 {
        let next = self.sections.len() as u32;
        let number = *self.sections.entry(index).or_insert(next);
        if number == next {
            self.program.sections.push(code.name.clone());
        }
        number
    }

    /// The number of the source line that `slot` belongs to.
    fn line(&mut self, lines: &[(u32, String)], slot: u32) -> Option<u32> {
        let after = lines.partition_point(|&(first, _)| first <= slot);
        let text = &lines.get(after.checked_sub(1)?)?.1;
        if self.program.lines.last() != Some(text) {
            self.program.lines.push(text.clone());
        }
        Some(self.program.lines.len() as u32 - 1)
    }

    /// The function that a call goes to, by its number in `functions`.
    fn callee(
        &mut self,
        section: SectionIndex,
        slot: u32,
        distance: i64,
        relocation: Option<&Symbol>,
        place: &Place,
    ) -> Result<usize, Fault> {
        let (section, first) = match relocation {
            Some(Symbol { name, section: None, .. }) => {
                let reason = format!("it calls `{name}`, which is not in the object");
                return Err(place.fault(reason));
            }
            Some(Symbol { section: Some(section), address, .. }) => {
                (*section, (*address / 8) as i64 + 1 + distance)
            }
            None => (section, i64::from(slot) + 1 + distance),
        };
        let end = u32::try_from(first)
            .ok()
            .and_then(|first| Some((first, *self.object.functions.get(&(section, first))?)));
        let Some((first, end)) = end else {
            return Err(place.fault("it calls what is no function of the object".into()));
        };
        let wanted = Span { section, first, end };
        let next = self.functions.len();
        let number = *self.numbers.entry(wanted.clone()).or_insert(next);
        if number == next {
            self.functions.push(wanted);
        }
        Ok(number)
    }

    /// What a 64-bit immediate means.
    fn wide(&self, kind: u8, value: u64, relocation: Option<&Symbol>) -> Result<Wide, String> {
        let Some(symbol) = relocation else {
            return match kind {
                0 => Ok(Wide::Number(value)),
                _ => Err(format!("a 64-bit immediate of kind {kind} without relocation")),
            };
        };
        let name = &symbol.name;
        let object = self.object;
        let Some(section) = symbol.section else {
            return Err(format!("`{name}` is not in the object"));
        };
        let offset = symbol.address.wrapping_add(value & 0xffff_ffff);
        if object.map_section == Some(section) {
            let map = object.map_offsets.iter().position(|&at| at == offset);
            return map.map(|m| Wide::Map(m as u32)).ok_or(format!("`{name}` is no map"));
        }
        if let Some(data) = object.data_sections.iter().position(|&at| at == section) {
            let length = object.data[data].bytes.len() as u64;
            return match u32::try_from(offset) {
                Ok(offset) if u64::from(offset) <= length => {
                    Ok(Wide::Data { section: data as u32, offset })
                }
                _ => Err(format!("`{name}` lies beyond its section")),
            };
        }
        match object.variables.get(&section) {
            Some(section) => Err(format!(
                "it uses a variable in `{section}`; kernels do not share variables, so keep it in a map"
            )),
            None => Err(format!("it takes the address of `{name}`, which is neither map nor data")),
        }
    }
}
