//! Which kernels of a file a probe can reach on a device, and how.

use std::collections::BTreeMap;

use super::{Arch, Content, Cubin, Image};
use crate::ptx::Module;

/// How a probe gets into a kernel on a device, the best way first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Its PTX is there, for a device not newer than this one: spliced as text, and the driver compiles it.
    Ptx,
    /// The machine code that the driver would load carries the PTX that it was made of.
    PtxInCubin,
    /// Machine code alone: NVIDIA's Sanitizer interface patches that.
    MachineCode,
    /// No image of it runs on this device.
    NotForDevice,
}

impl Way {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Ptx, Self::PtxInCubin, Self::MachineCode, Self::NotForDevice];

    /// In one word, as documents have it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ptx => "ptx",
            Self::PtxInCubin => "ptx_in_cubin",
            Self::MachineCode => "machine_code",
            Self::NotForDevice => "not_for_device",
        }
    }
}

/// A kernel of one translation unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its name, mangled.
    pub name: String,
    /// How it is reached.
    pub way: Way,
    /// For what the PTX was compiled that would be spliced.
    pub ptx: Option<Arch>,
    /// For what the machine code was compiled that the driver loads as things are.
    pub machine: Option<Arch>,
}

impl Found {
    /// Whether its PTX is for an older architecture than the machine code which the driver would load otherwise: then
    /// the kernel changes with its first probe, and what a probe costs is to be compared with the PTX without one.
    pub fn older(&self) -> bool {
        matches!((self.way, self.ptx, self.machine), (Way::Ptx, Some(p), Some(m)) if p.number < m.number)
    }
}

/// What is known of a kernel of the unit that is being read.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    ptx: Option<Arch>,
    machine: Option<Arch>,
    /// Whether that machine code carries its PTX.
    with_text: bool,
}

/// Collects the kernels of images, unit by unit.
#[derive(Debug)]
pub struct Coverage {
    device: u32,
    known: BTreeMap<String, Known>,
}

impl Coverage {
    /// For a device of this number: 90 for an H100.
    pub fn new(device: u32) -> Self {
        Self { device, known: BTreeMap::new() }
    }

    /// Adds an image of the current unit; what is said of an image that cannot be read is why.
    pub fn image(&mut self, image: &Image) -> Result<(), String> {
        match image.content {
            Content::Ptx => {
                let text = std::str::from_utf8(&image.bytes)
                    .map_err(|error| format!("PTX that is no text: {error}"))?;
                self.ptx(text, image.arch)
            }
            Content::Cubin => {
                let cubin = Cubin::read(&image.bytes).map_err(|error| error.to_string())?;
                self.cubin(cubin, image.arch);
                Ok(())
            }
            Content::Other(kind) => Err(format!("an image of an unknown kind ({kind})")),
        }
    }

    /// Adds PTX that stands by itself: for what it was compiled is in its text.
    pub fn text(&mut self, text: &str) -> Result<Arch, String> {
        let module = Module::read(text).map_err(|fault| fault.to_string())?;
        let target = module
            .statements()
            .iter()
            .map(|statement| module.code(statement))
            .find_map(|code| code.strip_prefix(".target"))
            .and_then(|words| words.split([' ', '\t', ',']).find_map(|word| word.parse().ok()));
        let arch = target.ok_or("it has no .target that names an architecture")?;
        self.module(&module, arch);
        Ok(arch)
    }

    /// Adds PTX of an image.
    fn ptx(&mut self, text: &str, arch: Arch) -> Result<(), String> {
        let module = Module::read(text).map_err(|fault| format!("PTX, {fault}"))?;
        self.module(&module, arch);
        Ok(())
    }

    fn module(&mut self, module: &Module, arch: Arch) {
        for function in module.functions().iter().filter(|f| f.kernel && f.body.is_some()) {
            let known = self.known.entry(function.name.clone()).or_default();
            if arch.compiles_for(self.device) && known.ptx.is_none_or(|best| better(arch, best)) {
                known.ptx = Some(arch);
            }
        }
    }

    /// Adds machine code.
    pub fn cubin(&mut self, cubin: Cubin, arch: Arch) {
        for kernel in cubin.kernels {
            let known = self.known.entry(kernel).or_default();
            if arch.runs_on(self.device) && known.machine.is_none_or(|best| better(arch, best)) {
                known.machine = Some(arch);
                known.with_text = cubin.text.is_some();
            }
        }
    }

    /// Ends the unit: its kernels by name.
    pub fn unit(&mut self) -> Vec<Found> {
        let found = |(name, known): (String, Known)| {
            let way = match known {
                Known { ptx: Some(_), .. } => Way::Ptx,
                Known { machine: Some(_), with_text: true, .. } => Way::PtxInCubin,
                Known { machine: Some(_), .. } => Way::MachineCode,
                _ => Way::NotForDevice,
            };
            Found { name, way, ptx: known.ptx, machine: known.machine }
        };
        std::mem::take(&mut self.known).into_iter().map(found).collect()
    }
}

/// Which of two that a device could use it uses: the newer, and of these the more specific.
fn better(one: Arch, than: Arch) -> bool {
    one > than
}
