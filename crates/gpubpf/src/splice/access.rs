//! What an instruction accesses: kind, state space, bytes, and where its address stands.

use super::names::glob;
use crate::attach::What;
use crate::ptx::Instruction;

/// Bits of the third word of a site's context (`gpuwhy_probe.h` has the same numbers).
pub(super) const LOAD: u64 = 1;
pub(super) const STORE: u64 = 2;
pub(super) const ATOMIC: u64 = 4;

/// A state space, by its number in the second byte of that word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Generic = 0,
    Global = 1,
    Shared = 2,
    Local = 3,
    Const = 4,
    Param = 5,
}

/// A memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access<'a> {
    /// [`LOAD`], [`STORE`] or [`ATOMIC`].
    pub(super) kind: u64,
    pub(super) space: Space,
    /// Bytes of one thread; 0 where the text does not tell.
    pub(super) bytes: u64,
    /// What stands between the brackets.
    pub(super) address: &'a str,
}

/// What `insn` accesses, if it is one of the instructions whose address and size are in their text.
pub(super) fn access<'a>(insn: &Instruction<'a>) -> Option<Access<'a>> {
    let name = insn.name();
    let asynchronous = name == "cp" && insn.opcode.starts_with("cp.async.c");
    let kind = match name {
        "ld" | "ldu" => LOAD,
        "st" => STORE,
        "atom" | "red" => ATOMIC,
        "cp" if asynchronous => LOAD,
        _ => return None,
    };
    let mut brackets = insn.operands.iter().filter_map(|o| o.strip_prefix('[')?.strip_suffix(']'));
    if asynchronous {
        // `cp.async.ca.shared.global [to], [from], bytes`: what it reads from global memory.
        let (address, bytes) = (brackets.nth(1)?, insn.operands.get(2)?);
        let bytes = bytes.parse().unwrap_or(0);
        return Some(Access { kind, space: Space::Global, bytes, address: address.trim() });
    }
    let address = brackets.next()?.trim();
    let (mut space, mut vector, mut bytes) = (Space::Generic, 1, 0);
    for part in insn.parts().skip(1) {
        match part.split("::").next().unwrap_or_default() {
            "global" => space = Space::Global,
            "shared" => space = Space::Shared,
            "local" => space = Space::Local,
            "const" => space = Space::Const,
            "param" => space = Space::Param,
            "v2" => vector = 2,
            "v4" => vector = 4,
            "v8" => vector = 8,
            part => bytes = type_bytes(part).unwrap_or(bytes),
        }
    }
    Some(Access { kind, space, bytes: bytes * vector, address })
}

/// Bytes of a type: `f32`, `b128`, `bf16x2`.
fn type_bytes(part: &str) -> Option<u64> {
    match part {
        "f16x2" | "bf16x2" => return Some(4),
        "bf16" => return Some(2),
        _ => {}
    }
    let bits: u64 = part.strip_prefix(['u', 's', 'b', 'f'])?.parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64 | 128).then_some(bits / 8)
}

/// Whether `what` means `insn`.
pub(super) fn wanted(what: &What, insn: &Instruction) -> bool {
    let kinds = match what {
        What::Opcode(pattern) => return glob(pattern, insn.opcode),
        What::Barriers => return matches!(insn.name(), "bar" | "barrier"),
        What::Loads => LOAD,
        What::Stores => STORE,
        What::Atomics => ATOMIC,
        What::Accesses => LOAD | STORE | ATOMIC,
    };
    access(insn).is_some_and(|found| {
        found.kind & kinds != 0 && matches!(found.space, Space::Global | Space::Generic)
    })
}

/// An address taken apart: a register, symbol or number, and what is added to it.
pub(super) fn base_and_offset(address: &str) -> Option<(&str, i64)> {
    let end = address.char_indices().find(|&(at, c)| at > 0 && matches!(c, '+' | '-' | ','));
    let (base, rest) = address.split_at(end.map_or(address.len(), |(at, _)| at));
    let base = base.trim();
    let clean = !base.is_empty()
        && base.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.'));
    if !clean {
        return None;
    }
    let rest = rest.trim();
    if rest.is_empty() {
        return Some((base, 0));
    }
    // `+16`, `-4`, and `+-4` as LLVM writes it.
    let rest = rest.strip_prefix('+').unwrap_or(rest).trim();
    let (negative, digits) = match rest.strip_prefix('-') {
        Some(digits) => (true, digits.trim()),
        None => (false, rest),
    };
    let value = number(digits)?;
    Some((base, if negative { value.checked_neg()? } else { value }))
}

/// A literal number.
pub(super) fn number(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(['U', 'u']);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|value| value as i64),
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::Module;

    fn told(code: &str) -> String {
        let text = format!(".entry k() {{ {code} }}");
        let module = Module::read(&text).unwrap();
        let insn = module.statements().iter().find_map(|s| module.instruction(s)).unwrap();
        match access(&insn) {
            None => "none".into(),
            Some(a) => {
                let place = base_and_offset(a.address)
                    .map_or("?".into(), |(base, offset)| format!("{base} {offset}"));
                format!("{} {:?} {} at {place}", a.kind, a.space, a.bytes)
            }
        }
    }

    #[test]
    fn accesses_are_told_with_size_and_address() {
        for (code, wanted) in [
            ("ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1+16];", "1 Global 16 at %rd1 16"),
            ("ld.global.L1::evict_last.L2::128B.b32 %r1, [ %rd4 + 0 ];", "1 Global 4 at %rd4 0"),
            ("st.u8 [%rd2+-4], %rs1;", "2 Generic 1 at %rd2 -4"),
            ("st.shared::cluster.b64 [%r2-8], %rd1;", "2 Shared 8 at %r2 -8"),
            ("red.global.gpu.add.noftz.bf16x2 [%rd1], %r1;", "4 Global 4 at %rd1 0"),
            (
                "@%p atom.acquire.gpu.global.cas.b128 %q, [%rd1+0x10], %q, %q;",
                "4 Global 16 at %rd1 16",
            ),
            ("cp.async.cg.shared.global [%r1+64], [%rd1+128], 16, 8;", "1 Global 16 at %rd1 128"),
            ("cp.async.bulk.wait_group 0;", "none"),
            ("ld.param.u64 %rd1, [k_param_0];", "1 Param 8 at k_param_0 0"),
            ("ld.global.u32 %r1, [table+%r2];", "1 Global 4 at ?"),
            ("add.s32 %r1, %r2, %r3;", "none"),
            (
                "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [%r3];",
                "4 Shared 4 at %r1 0",
            ),
        ] {
            assert_eq!(told(code), wanted, "{code}");
        }
    }
}
