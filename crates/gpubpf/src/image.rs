//! Images of device code as programs and libraries carry them: fat binaries with PTX and machine
//! code (cubins) for several architectures.
//!
//! *What it sees:* which kernels a file holds, for which devices, and whether their PTX is there. *Why it
//! matters:* a probe is put into PTX; a kernel that ships as machine code alone is out of its reach.
//! *What fools it:* nothing here asks a driver. What a program compiles while it runs (NVRTC, Triton)
//! is in none of its files.
//!
//! NVIDIA does not publish the format of fat binaries; fields and flags are those that `fatbinary` of
//! CUDA 13.0 writes, in each of its modes of compression.

use std::fmt;
use std::str::FromStr;

mod choice;
mod coverage;
mod cubin;
mod fatbin;
mod host;

pub use choice::{Chosen, NoPtx, is_binary, ptx_for};
pub use coverage::{Coverage, Found, Way};
pub use cubin::{Cubin, CubinFault};
pub use fatbin::{Content, FATBIN_MAGIC, Image, ImageFault, Images, MAX_IMAGE};
pub use host::{Section, sections};

/// The first bytes of an ELF file.
pub const ELF_MAGIC: [u8; 4] = *b"\x7fELF";

/// For which devices code was compiled beyond its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// For this device and, of the same generation, later ones; PTX for all later ones.
    Plain,
    /// `f`: for the devices of this family alone.
    Family,
    /// `a`: for this device alone.
    Specific,
}

/// An architecture: `sm_90`, `sm_90a`, `compute_100f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// Ten times the compute capability: 90 for 9.0.
    pub number: u32,
    /// For which devices beyond that.
    pub variant: Variant,
}

impl Arch {
    /// The major compute capability: 9 for `sm_90`.
    pub fn generation(self) -> u32 {
        self.number / 10
    }

    /// Whether a device of the number `device` compiles PTX for this architecture.
    pub fn compiles_for(self, device: u32) -> bool {
        match self.variant {
            Variant::Plain => self.number <= device,
            Variant::Family => self.runs_on(device),
            Variant::Specific => self.number == device,
        }
    }

    /// Whether a device of the number `device` runs machine code for this architecture.
    pub fn runs_on(self, device: u32) -> bool {
        match self.variant {
            Variant::Plain | Variant::Family => {
                self.generation() == device / 10 && self.number <= device
            }
            Variant::Specific => self.number == device,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.variant {
            Variant::Plain => "",
            Variant::Family => "f",
            Variant::Specific => "a",
        };
        write!(f, "sm_{}{suffix}", self.number)
    }
}

/// A text that names no architecture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no architecture: write sm_90, sm_90a or 9.0")]
pub struct NoArch(String);

impl FromStr for Arch {
    type Err = NoArch;

    fn from_str(text: &str) -> Result<Self, NoArch> {
        let no = || NoArch(text.chars().take(40).collect());
        let bare = text.strip_prefix("sm_").or_else(|| text.strip_prefix("compute_"));
        let bare = bare.unwrap_or(text);
        let (digits, variant) = match bare.as_bytes().last() {
            Some(b'a') => (&bare[..bare.len() - 1], Variant::Specific),
            Some(b'f') => (&bare[..bare.len() - 1], Variant::Family),
            _ => (bare, Variant::Plain),
        };
        let number = match digits.split_once('.') {
            Some((major, minor)) if minor.len() == 1 => format!("{major}{minor}"),
            Some(_) => return Err(no()),
            None => digits.to_owned(),
        };
        // From sm_10 to what three digits hold.
        if !(2..=3).contains(&number.len()) || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(no());
        }
        Ok(Self { number: number.parse().map_err(|_| no())?, variant })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_as_tools_write_them() {
        for (text, number, variant) in [
            ("sm_90", 90, Variant::Plain),
            ("sm_90a", 90, Variant::Specific),
            ("compute_100f", 100, Variant::Family),
            ("9.0", 90, Variant::Plain),
            ("12.1", 121, Variant::Plain),
            ("75", 75, Variant::Plain),
        ] {
            assert_eq!(text.parse(), Ok(Arch { number, variant }), "{text}");
        }
        for text in ["", "sm_", "sm_9", "h100", "9.01", "-90", "sm_90b", "sm_9000", "٩0", "aé"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }

    /// Code, device, whether PTX and whether machine code for it is used there.
    #[test]
    fn who_may_run_what() {
        for (code, device, ptx, machine) in [
            ("sm_80", 80, true, true),
            ("sm_80", 86, true, true),
            ("sm_86", 80, false, false),
            ("sm_80", 90, true, false),
            ("sm_90a", 90, true, true),
            ("sm_90a", 100, false, false),
            ("sm_100f", 103, true, true),
            ("sm_100f", 120, false, false),
        ] {
            let code: Arch = code.parse().unwrap();
            let says = (code.compiles_for(device), code.runs_on(device));
            assert_eq!(says, (ptx, machine), "{code} on {device}");
        }
    }
}
