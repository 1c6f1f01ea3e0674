//! The PTX of an image as a program hands it to the driver (`cuModuleLoadData`, `cuLibraryLoadData`): what a probe is put
//! into, and what the driver is then given instead.

use super::{Arch, Content, Cubin, CubinFault, ELF_MAGIC, FATBIN_MAGIC, Image, ImageFault, Images};

/// PTX for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The text.
    pub text: String,
    /// For what it was compiled.
    pub arch: Arch,
    /// For what the machine code was compiled that the driver would load instead, if there is some.
    pub machine: Option<Arch>,
}

/// Why an image has no PTX for a device.
#[derive(Debug, thiserror::Error)]
pub enum NoPtx {
    /// A fat binary is damaged.
    #[error("a damaged fat binary")]
    Fatbin(#[from] ImageFault),
    /// A cubin is damaged, or an ELF file for something else.
    #[error("no cubin")]
    Cubin(#[from] CubinFault),
    /// The PTX is no text.
    #[error("PTX that is no text")]
    Text(#[from] std::string::FromUtf8Error),
    /// There is only machine code.
    #[error("it holds machine code for {0} alone: a probe is put into PTX")]
    MachineCode(Arch),
    /// Nothing in it runs on the device.
    #[error("nothing in it is for sm_{device}; it holds {}", listed(.found))]
    NotForDevice {
        /// The device's number.
        device: u32,
        /// What it holds.
        found: Vec<Arch>,
    },
    /// It holds several translation units, of which a driver is given one.
    #[error("it holds {0} fat binaries, each of which a program loads by itself")]
    Several(usize),
}

fn listed(found: &[Arch]) -> String {
    match found {
        [] => "no device code".to_owned(),
        some => some.iter().map(Arch::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Whether these bytes begin as a fat binary or an ELF object, and not as text.
pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(&FATBIN_MAGIC) || bytes.starts_with(&ELF_MAGIC)
}

/// The PTX that a device of this number compiles, of a fat binary or a cubin. Of several the newest
/// is taken; PTX within machine code only where the fat binary has none.
pub fn ptx_for(bytes: &[u8], device: u32) -> Result<Chosen, NoPtx> {
    if bytes.starts_with(&ELF_MAGIC) {
        let cubin = Cubin::read(bytes)?;
        let arch = cubin.arch;
        if !arch.runs_on(device) {
            return Err(NoPtx::NotForDevice { device, found: vec![arch] });
        }
        let text = cubin.text.ok_or(NoPtx::MachineCode(arch))?;
        return Ok(Chosen { text, arch, machine: Some(arch) });
    }
    let images: Vec<Image> = Images::new(bytes).collect::<Result<_, _>>()?;
    let units = images.last().map_or(0, |image| image.unit + 1);
    if units > 1 {
        return Err(NoPtx::Several(units));
    }
    let newest = |content: Content, fits: &dyn Fn(Arch) -> bool| {
        let of = images.iter().filter(|image| image.content == content && fits(image.arch));
        of.max_by_key(|image| image.arch)
    };
    let machine = newest(Content::Cubin, &|arch| arch.runs_on(device));
    let at = machine.map(|image| image.arch);
    if let Some(ptx) = newest(Content::Ptx, &|arch| arch.compiles_for(device)) {
        let text = String::from_utf8(ptx.bytes.clone())?;
        return Ok(Chosen { text, arch: ptx.arch, machine: at });
    }
    match machine {
        Some(image) => {
            let text = Cubin::read(&image.bytes)?.text.ok_or(NoPtx::MachineCode(image.arch))?;
            Ok(Chosen { text, arch: image.arch, machine: at })
        }
        None => {
            let found = images.iter().map(|image| image.arch).collect();
            Err(NoPtx::NotForDevice { device, found })
        }
    }
}
