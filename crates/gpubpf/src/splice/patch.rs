//! Programs as device functions that NVIDIA's Sanitizer calls from machine code: for kernels of which there is no PTX.
//!
//! The Sanitizer Patching API (`sanitizer_patching.h` of CUDA 13.0) loads a module of such functions and puts calls of them
//! at places of a kind into every kernel of a module. A module of functions has no variable that a host could fill, so
//! each launch is given an address, which every call has as its first argument: 0 where no program is meant, or the
//! [`Patched::words`] of its kernel, whose first is the address of the table.
//!
//! The text is made of the programs and the device alone, so that a context needs one such module.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::access::{ATOMIC, LOAD, STORE, Space};
use super::needs::Head;
use super::write::Site;
use super::{KernelReport, Names, Plan, Probe, Refusal, SiteReport, compiled, needs, sample};
use crate::attach::{Attach, Moment, What};
use crate::options::{Addresses, Options, TABLE_HEADER, Table};
use crate::verify::Effect;

/// What every name in the text begins with.
const BASE: &str = "gw_";
/// The register with the address that the launch was given, and that with the table's.
const DATA: &str = "%gp_data";
const WORDS: &str = "%gp_table";
/// `Sanitizer_DeviceMemoryFlags`: bits of a read and a write, both of which an atomic operation has, and of a prefetch.
const READ_AND_WRITE: u32 = 3;
const PREFETCH: u32 = 8;

/// A kind of place at which Sanitizer calls a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Spot {
    /// A thread begins.
    Enter,
    /// It ends.
    Exit,
    /// Before a load, store or atomic of global memory.
    Access,
    /// Before a barrier of the block.
    Barrier,
}

impl Spot {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Enter, Self::Exit, Self::Access, Self::Barrier];

    /// Its number (`Sanitizer_InstructionId`).
    pub fn instruction(self) -> u32 {
        match self {
            Self::Enter => 1,
            Self::Exit => 2,
            Self::Access => 3,
            Self::Barrier => 6,
        }
    }

    /// The function that is called there.
    pub fn function(self) -> &'static str {
        match self {
            Self::Enter => "gpuwhy_patch_enter",
            Self::Exit => "gpuwhy_patch_exit",
            Self::Access => "gpuwhy_patch_access",
            Self::Barrier => "gpuwhy_patch_barrier",
        }
    }

    /// The bits of its parameters: the launch's address and the program counter first (`SanitizerCallbackBlockEnter`,
    /// `…BlockExit`, `…MemoryAccess`, `…Barrier`).
    pub fn parameters(self) -> &'static [u32] {
        match self {
            Self::Enter | Self::Exit => &[64, 64],
            Self::Access => &[64, 64, 64, 32, 32, 64],
            Self::Barrier => &[64, 64, 32, 32, 32],
        }
    }

    /// Where a program belongs, and which kinds of access it wants; or why it cannot be called from machine code.
    fn of(attach: &Attach) -> Result<(Self, u64), &'static str> {
        let all = LOAD | STORE | ATOMIC;
        match attach {
            Attach::Entry(_) => Ok((Self::Enter, 0)),
            Attach::Return(_) => Ok((Self::Exit, 0)),
            Attach::Accesses => Ok((Self::Access, all)),
            Attach::Instructions { moment: Moment::After, .. } => {
                Err("there is no place behind an instruction")
            }
            Attach::Instructions { what, .. } => match what {
                What::Loads => Ok((Self::Access, LOAD)),
                What::Stores => Ok((Self::Access, STORE)),
                What::Atomics => Ok((Self::Access, ATOMIC)),
                What::Accesses => Ok((Self::Access, all)),
                What::Barriers => Ok((Self::Barrier, 0)),
                What::Opcode(_) => Err("machine code has other opcodes than PTX"),
            },
            Attach::Line { .. } | Attach::Tracepoint { .. } => {
                Err("source lines and tracepoints are places of PTX")
            }
            Attach::Order(_) | Attach::Policy(_) | Attach::Unclear(_) | Attach::Host => {
                Err("it is attached to no kernel")
            }
        }
    }
}

/// Functions for the machine code of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// PTX with a function for each kind of place that a program wants.
    pub text: String,
    /// These kinds.
    pub spots: BTreeSet<Spot>,
    /// Programs that are not in it, by their numbers, and why.
    pub left_out: Vec<(usize, String)>,
}

/// What programs do in the kernels of a module of machine code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patched {
    /// The kinds of places that have to be patched.
    pub spots: BTreeSet<Spot>,
    /// The kernels that a program is attached to.
    pub kernels: Vec<KernelReport>,
    /// For each of these its name and what a launch of it is given: a word for the table's address, and for each program
    /// of the plan the number of its site in this kernel and 1, or 0 where it is not meant.
    pub words: Vec<(String, Vec<u64>)>,
    /// Each program in each kernel: Sanitizer does not tell one instruction from another but by its address.
    pub sites: Vec<SiteReport>,
    /// What could not be reached, and why.
    pub notes: Vec<String>,
}

/// The PTX version that knows a device first (PTX ISA, release notes), times 10.
fn version(sm: u32) -> u32 {
    match sm {
        ..=70 => 60,
        71..=72 => 61,
        73..=75 => 63,
        76..=80 => 70,
        81..=86 => 71,
        87..=88 => 74,
        89..=99 => 78,
        100..=101 => 86,
        120 => 87,
        _ => 88,
    }
}

impl Plan {
    /// The functions for a device of this number (`sm_90`: 90).
    ///
    /// # Errors
    /// A program needs more than the device has.
    pub fn patch(&self, sm: u32) -> Result<Patch, Refusal> {
        let version = version(sm);
        let head = Head { version, sm, end: 0 };
        let (mut functions, mut left_out) = (Vec::new(), Vec::new());
        for (number, probe) in self.probes.iter().enumerate() {
            if probe.attach.kernel().is_none() {
                continue;
            }
            match self.block(number, probe, &head)? {
                Ok((spot, text)) => functions.push((spot, text)),
                Err(why) => left_out.push((number, why)),
            }
        }
        let mut spots: BTreeSet<Spot> = functions.iter().map(|(spot, _)| *spot).collect();
        let mut text = format!(
            ".version {}.{}\n.target sm_{sm}\n.address_size 64\n",
            version / 10,
            version % 10
        );
        if self.how.samples() && !spots.is_empty() {
            spots.insert(Spot::Enter);
        }
        for spot in &spots {
            let mut blocks = String::new();
            if *spot == Spot::Enter && self.how.samples() {
                let word = TABLE_HEADER + 3 * self.maps.len();
                blocks = sample::census(BASE, &self.how, Table::Behind(WORDS), word);
                needs::check(&blocks, &head, "1 in N")?;
            }
            let of = functions.iter().filter(|(of, _)| of == spot);
            of.for_each(|(_, block)| blocks += block);
            text += &function(*spot, &blocks);
        }
        Ok(Patch { text, spots, left_out })
    }

    /// A program as a block of one of the functions; or why it is in none.
    fn block(
        &self,
        number: usize,
        probe: &Probe,
        head: &Head,
    ) -> Result<Result<(Spot, String), String>, Refusal> {
        let (spot, kinds) = match Spot::of(&probe.attach) {
            Ok(found) => found,
            Err(why) => return Ok(Err(why.to_owned())),
        };
        if let Ok((program, cost)) = &probe.verdict {
            if cost.effect == Effect::Controlling {
                return Ok(Err("it ends threads, which a function that is called cannot".into()));
            }
            if !program.maps_of_blocks().is_empty() {
                return Ok(Err("sums of a block need shared memory of the kernel".into()));
            }
        }
        let addresses = Addresses::Behind { register: WORDS.into(), first: probe.first_map };
        let of_warp = probe.of_warp.clone();
        let with = Options { of_warp, addresses, ..Options::default() };
        let mut declarations = String::new();
        let fragment = compiled(probe, number, BASE, head, &mut declarations, with)?;
        if !declarations.is_empty() {
            return Ok(Err("it has read-only data, for which there is no place".into()));
        }
        let site = Site {
            base: BASE,
            fragment: &fragment.body,
            switch: self.first_switch() + number,
            how: &self.how,
        };
        let mut text = Site::declarations(BASE);
        // Whether it is meant in this kernel.
        let context = Site::context(BASE, 0);
        let _ = write!(
            text,
            "\tld.global.u64 {context}, [{DATA}+{}];\n\tsetp.eq.s64 %{BASE}p0, {context}, 0;\n\
             \t@%{BASE}p0 bra.uni {BASE}end;\n\tsub.s64 {context}, {context}, 1;\n",
            8 * (1 + number)
        );
        text += &site.gates(Table::Behind(WORDS));
        if spot == Spot::Access {
            text += &access(kinds);
        } else {
            for word in 1..probe.attach.context_words() {
                let _ = writeln!(text, "\tmov.b64 {}, 0;", Site::context(BASE, word));
            }
        }
        let _ = write!(text, "{}{BASE}end:\n}}\n", fragment.body);
        Ok(Ok((spot, text)))
    }

    /// What the programs do in these kernels of a module of machine code.
    pub fn patched(&self, patch: &Patch, kernels: &[String]) -> Patched {
        let mut out = Patched {
            spots: BTreeSet::new(),
            kernels: Vec::new(),
            words: Vec::new(),
            sites: Vec::new(),
            notes: Vec::new(),
        };
        let mut told = BTreeSet::new();
        for kernel in kernels {
            let names = Names::new(kernel);
            let mut words = vec![0; 1 + self.probes.len()];
            let before = out.sites.len();
            let mut meant = false;
            for (number, probe) in self.probes.iter().enumerate() {
                if !probe.attach.kernel().is_some_and(|pattern| names.matches(pattern)) {
                    continue;
                }
                meant = true;
                if let Some((_, why)) = patch.left_out.iter().find(|(of, _)| *of == number) {
                    if told.insert(number) {
                        out.notes.push(format!("not in machine code: `{}`: {why}", probe.name));
                    }
                    continue;
                }
                words[1 + number] = out.sites.len() as u64 + 1;
                out.spots.extend(Spot::of(&probe.attach).map(|(spot, _)| spot));
                out.sites.push(SiteReport {
                    probe: probe.name.clone(),
                    function: kernel.clone(),
                    line: 0,
                    source: None,
                });
            }
            if meant {
                let sites = out.sites.len() - before;
                let readable = names.readable().to_owned();
                out.kernels.push(KernelReport { name: kernel.clone(), readable, sites });
                if sites > 0 {
                    out.words.push((kernel.clone(), words));
                }
            }
        }
        if self.how.samples() && !out.spots.is_empty() {
            out.spots.insert(Spot::Enter);
        }
        out
    }
}

/// A function that Sanitizer calls: nothing where the launch was given no address.
fn function(spot: Spot, blocks: &str) -> String {
    let parameters: Vec<String> =
        (0..).zip(spot.parameters()).map(|(n, bits)| format!(".param .b{bits} gp_{n}")).collect();
    format!(
        "\n.visible .func (.param .b32 gp_status) {}({})\n{{\n\t.reg .pred %gp_p<2>;\n\t.reg .b32 %gp_w<4>;\n\
         \t.reg .b64 {DATA};\n\t.reg .b64 {WORDS};\n\tld.param.u64 {DATA}, [gp_0];\n\
         \tsetp.eq.s64 %gp_p0, {DATA}, 0;\n\t@%gp_p0 bra gp_end;\n\tld.global.u64 {WORDS}, [{DATA}];\n\
         {blocks}gp_end:\n\tmov.b32 %gp_w0, 0;\n\tst.param.b32 [gp_status], %gp_w0;\n\tret;\n}}\n",
        spot.function(),
        parameters.join(", ")
    )
}

/// The words of an access's context: address, bytes, and kind; to the end where it is none of these kinds.
fn access(kinds: u64) -> String {
    let [address, bytes, kind, loaded] = [1, 2, 3, 4].map(|word| Site::context(BASE, word));
    let mut text = format!(
        "\tld.param.u32 %gp_w1, [gp_4];\n\tand.b32 %gp_w2, %gp_w1, {PREFETCH};\n\
         \tsetp.ne.s32 %{BASE}p0, %gp_w2, 0;\n\t@%{BASE}p0 bra {BASE}end;\n\
         \tand.b32 %gp_w2, %gp_w1, {READ_AND_WRITE};\n\
         \tsetp.eq.s32 %gp_p1, %gp_w2, {READ_AND_WRITE};\n\tselp.b32 %gp_w2, {ATOMIC}, %gp_w2, %gp_p1;\n"
    );
    if kinds != LOAD | STORE | ATOMIC {
        let _ = write!(
            text,
            "\tand.b32 %gp_w3, %gp_w2, {kinds};\n\tsetp.eq.s32 %{BASE}p0, %gp_w3, 0;\n\
             \t@%{BASE}p0 bra {BASE}end;\n"
        );
    }
    let _ = write!(
        text,
        "\tor.b32 %gp_w2, %gp_w2, {};\n\tcvt.u64.u32 {kind}, %gp_w2;\n\tld.param.u64 {address}, [gp_2];\n\
         \tld.param.u32 %gp_w2, [gp_3];\n\tcvt.u64.u32 {bytes}, %gp_w2;\n\tmov.b64 {loaded}, 0;\n",
        (Space::Global as u64) << 8
    );
    text
}
