//! What PTX version and device an inserted instruction needs, against what the module says it is for.
//!
//! The module's `.version` and `.target` are left as they are: a newer version may not load on the
//! driver that the module was made for. So a fragment that needs more is refused by name.

use super::Refusal;
use crate::ptx::{Kind, Module};

/// The head of a module: versions as `major * 10 + minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u32,
    pub(super) sm: u32,
    /// The byte after the directives that must come first.
    pub(super) end: usize,
}

/// Reads a module's head.
pub(super) fn head(module: &Module) -> Result<Head, Refusal> {
    let (mut version, mut sm, mut bits, mut end) = (None, None, None, 0);
    for statement in module.statements() {
        let code = module.code(statement);
        let mut words = code.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        match (statement.kind, words.next()) {
            (Kind::Directive, Some(".version")) => version = words.next().and_then(ten),
            (Kind::Directive, Some(".target")) => sm = words.find_map(device),
            (Kind::Directive, Some(".address_size")) => bits = words.next(),
            _ => break,
        }
        end = statement.end;
    }
    let missing = |what: &str| Refusal::Module(format!("it does not begin with {what}"));
    if bits != Some("64") {
        return Err(Refusal::Module("its addresses do not have 64 bits (.address_size)".into()));
    }
    let version = version.ok_or_else(|| missing(".version"))?;
    let sm = sm.ok_or_else(|| missing("a .target that names a device"))?;
    Ok(Head { version, sm, end })
}

/// `7.8` as 78.
fn ten(version: &str) -> Option<u32> {
    let (major, minor) = version.split_once('.')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 100 && minor < 10).then_some(major * 10 + minor)
}

/// `sm_90a` as 90.
fn device(word: &str) -> Option<u32> {
    let digits = word.strip_prefix("sm_")?;
    digits.trim_end_matches(['a', 'f']).parse().ok()
}

/// What begins so needs this PTX version and device, by NVIDIA's PTX ISA reference; the first row
/// that fits counts.
const NEEDS: &[(&str, u32, u32)] = &[
    ("redux.sync.", 70, 80),
    ("fence.acq_rel", 60, 70),
    ("activemask", 62, 30),
    ("shfl.sync", 60, 30),
    ("vote.sync", 60, 30),
    ("match.any.sync", 60, 70),
    ("match.all.sync", 60, 70),
    ("atom.acq_rel", 60, 70),
    ("atom.relaxed", 60, 70),
    ("red.relaxed", 60, 70),
    ("st.release", 60, 70),
    ("ld.acquire", 60, 70),
    ("barrier.sync", 60, 30),
    ("bfe.", 20, 20),
    ("prmt.", 20, 20),
    ("isspacep.", 20, 20),
    ("prefetch.", 20, 20),
];

/// Special registers that are younger than the PTX that everybody has.
const REGISTERS: &[(&str, u32, u32)] = &[("%globaltimer", 31, 30), ("%gridid", 30, 20)];

/// Refuses a block of text that needs more than the module is for.
pub(super) fn check(block: &str, head: &Head, program: &str) -> Result<(), Refusal> {
    let refuse = |what: &str, version: u32, sm: u32| Refusal::Needs {
        program: program.to_owned(),
        what: what.to_owned(),
        version: (version / 10, version % 10),
        sm,
        module: (head.version / 10, head.version % 10),
        module_sm: head.sm,
    };
    let short = |version: u32, sm: u32| head.version < version || head.sm < sm;
    for line in block.lines() {
        let mut words = line.split_whitespace().filter(|word| !word.starts_with('@'));
        let opcode = words.next().unwrap_or_default().trim_end_matches(';');
        let row = NEEDS.iter().find(|(prefix, ..)| opcode.starts_with(prefix));
        if let Some(&(_, version, sm)) = row
            && short(version, sm)
        {
            return Err(refuse(opcode, version, sm));
        }
        let named = REGISTERS.iter().find(|(name, ..)| line.contains(name));
        if let Some(&(name, version, sm)) = named
            && short(version, sm)
        {
            return Err(refuse(name, version, sm));
        }
    }
    Ok(())
}
