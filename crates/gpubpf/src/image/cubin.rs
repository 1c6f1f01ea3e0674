//! Cubins: ELF objects with the machine code of kernels for one architecture.

use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

use super::{Arch, Variant};

/// A symbol's `st_other` has this bit where the function is a kernel (`STO_CUDA_ENTRY`); functions that kernels call
/// do not have it.
const ENTRY: u8 = 0x10;

/// What ptxas keeps of the PTX where it was called with `-lineinfo` or `-g`, as Triton does.
const TEXT: &[u8] = b".nv_debug_ptx_txt";

/// A cubin cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CubinFault {
    /// It is no ELF object, or a damaged one.
    #[error("not a readable ELF object")]
    Elf(#[from] object::Error),
    /// It is an ELF object for something else.
    #[error("an ELF object for machine {0}, not for NVIDIA's devices (190)")]
    Machine(u16),
}

/// What a cubin holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// For what it was compiled; whether for this device alone (`sm_90a`) is said by the fat binary around it and not
    /// here.
    pub arch: Arch,
    /// Names of its kernels (mangled), in the order of its symbols.
    pub kernels: Vec<String>,
    /// The PTX that it was made of, if it was kept: without comments, white space at the beginnings of lines and empty
    /// statements, and otherwise what ptxas was given.
    pub text: Option<String>,
    /// Whether it has yet to be linked (`-rdc=true`).
    pub relocatable: bool,
}

/// The version of the ELF interface since which the architecture stands in the second byte of the flags, not in the
/// first; CUDA 13.0 writes it.
const NEW_FLAGS: u8 = 8;

impl Cubin {
    /// The machine number of NVIDIA's devices in ELF headers (`EM_CUDA`).
    pub const MACHINE: u16 = 190;

    /// Reads a cubin.
    pub fn read(bytes: &[u8]) -> Result<Self, CubinFault> {
        let header = elf::FileHeader64::<LittleEndian>::parse(bytes)?;
        let endian = header.endian()?;
        let machine = header.e_machine(endian);
        if machine != Self::MACHINE {
            return Err(CubinFault::Machine(machine));
        }
        let sections = header.sections(endian, bytes)?;
        let symbols = sections.symbols(endian, bytes, elf::SHT_SYMTAB)?;
        let mut kernels = Vec::new();
        for symbol in symbols.iter() {
            if symbol.st_type() == elf::STT_FUNC
                && symbol.st_other() & ENTRY != 0
                && !symbol.is_undefined(endian)
            {
                let name = symbol.name(endian, symbols.strings())?;
                kernels.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        let mut text = None;
        for section in sections.iter() {
            if sections.section_name(endian, section)? == TEXT {
                // Lines end with a zero, so that line numbers are offsets.
                let lines = section.data(endian, bytes)?;
                let lines: Vec<u8> =
                    lines.iter().map(|byte| if *byte == 0 { b'\n' } else { *byte }).collect();
                text = String::from_utf8(lines).ok();
            }
        }
        let flags = header.e_flags(endian);
        let number =
            if header.e_ident().abi_version >= NEW_FLAGS { flags >> 8 } else { flags } & 0xff;
        let arch = Arch { number, variant: Variant::Plain };
        Ok(Self { arch, kernels, text, relocatable: header.e_type(endian) == elf::ET_REL })
    }
}
