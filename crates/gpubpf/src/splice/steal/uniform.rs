//! Among which threads of a block the registers of a kernel are the same.
//!
//! A register is as uniform as the least uniform of all that is written to it, and as the branches between whose paths
//! that happens: threads that have taken other paths hold other values. What is loaded from memory that others may write
//! counts as different in each thread.

use std::collections::{HashMap, HashSet};

use super::body::{Body, words};
use crate::ptx::Instruction;

/// Among which threads a value may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Differs {
    /// Not in a block.
    Nowhere,
    /// Between warps, not within one.
    Warps,
    /// Within warps.
    Lanes,
}

/// The registers of a kernel.
pub(super) struct Uniform<'a> {
    levels: HashMap<&'a str, Differs>,
    /// How far branches part, by their blocks.
    pub(super) branches: Vec<Option<Differs>>,
    /// Whether some value counts as one of its warp since 32 threads in x are one.
    pub(super) rows: bool,
}

/// What has no result.
const NO_RESULT: &[&str] = &[
    "st",
    "red",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "bar",
    "barrier",
    "membar",
    "fence",
    "prefetch",
    "prefetchu",
    "cp",
    "nanosleep",
    "brkpt",
    "pmevent",
    "discard",
    "applypriority",
    "stmatrix",
    "sust",
    "sured",
];

/// The registers that an instruction writes, and the operands that it reads.
pub(super) fn results_and_sources<'a, 'i>(
    insn: &'i Instruction<'a>,
) -> (Vec<&'a str>, &'i [&'a str]) {
    let reduces =
        matches!(insn.name(), "bar" | "barrier") && insn.parts().any(|part| part == "red");
    if NO_RESULT.contains(&insn.name()) && !reduces {
        return (Vec::new(), &insn.operands);
    }
    match insn.operands.split_first() {
        Some((first, rest)) => (words(first).collect(), rest),
        None => (Vec::new(), &[]),
    }
}

/// How a special register differs; `None` for other names.
fn special(name: &str) -> Option<Differs> {
    let stem = name.strip_prefix('%')?.split('.').next()?;
    Some(match stem {
        "ntid" | "ctaid" | "nctaid" | "nwarpid" | "smid" | "nsmid" | "gridid"
        | "dynamic_smem_size" => Differs::Nowhere,
        "tid" | "laneid" | "warpid" | "clock" | "clock_hi" | "clock64" | "globaltimer"
        | "globaltimer_lo" | "globaltimer_hi" => Differs::Lanes,
        _ if stem.starts_with("lanemask") || stem.starts_with("pm") => Differs::Lanes,
        _ => return None,
    })
}

/// A literal.
pub(super) fn number(text: &str) -> Option<i64> {
    let text = text.trim_end_matches(['U', 'u']);
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<'a> Uniform<'a> {
    /// Of a kernel with these parameters.
    pub(super) fn new(body: &Body<'a>, parameters: &HashSet<&str>) -> Self {
        let columns = columns(body);
        let mut found =
            Self { levels: HashMap::new(), branches: vec![None; body.blocks.len()], rows: false };
        // How far the threads have parted that are in a block together.
        let mut parted = vec![Differs::Nowhere; body.blocks.len()];
        loop {
            let mut changed = false;
            for inst in &body.insts {
                let (results, sources) = results_and_sources(&inst.insn);
                if results.is_empty() {
                    continue;
                }
                let guard =
                    inst.insn.guard.map_or(Differs::Nowhere, |guard| found.of(guard.predicate));
                let value = found.value(&inst.insn, sources, parameters, &columns);
                let level = value.max(guard).max(parted[inst.block]);
                for result in results {
                    let known = found.levels.entry(result).or_insert(Differs::Nowhere);
                    changed |= level > *known;
                    *known = level.max(*known);
                }
            }
            for block in 0..body.blocks.len() {
                let Some(branch) = body.branch(block) else { continue };
                let by = match branch.insn.name() {
                    "brx" => branch
                        .insn
                        .operands
                        .first()
                        .and_then(|index| words(index).map(|word| found.of(word)).max()),
                    _ => None,
                };
                let guard =
                    branch.insn.guard.map_or(Differs::Nowhere, |guard| found.of(guard.predicate));
                let level = by.unwrap_or(Differs::Nowhere).max(guard);
                if found.branches[block] < Some(level) {
                    (found.branches[block], changed) = (Some(level), true);
                    body.between(block)
                        .into_iter()
                        .for_each(|at| parted[at] = parted[at].max(level));
                }
            }
            if !changed {
                return found;
            }
        }
    }

    /// Of a name: a register, a special one, or the address of a variable.
    pub(super) fn of(&self, name: &str) -> Differs {
        special(name).or_else(|| self.levels.get(name).copied()).unwrap_or(Differs::Nowhere)
    }

    fn sources(&self, sources: &[&'a str]) -> Differs {
        sources
            .iter()
            .flat_map(|source| words(source))
            .map(|word| self.of(word))
            .max()
            .unwrap_or(Differs::Nowhere)
    }

    /// How the result of an instruction differs, by what it does.
    fn value(
        &mut self,
        insn: &Instruction<'a>,
        sources: &[&'a str],
        parameters: &HashSet<&str>,
        columns: &HashSet<&str>,
    ) -> Differs {
        let by_sources = self.sources(sources);
        let has = |part: &str| insn.parts().any(|p| p == part);
        match insn.name() {
            // A kernel's own parameters, and memory that nobody writes while it runs.
            "ld" if has("param") || has("const") => {
                let base = sources.first().and_then(|at| words(at).next()).unwrap_or_default();
                let own = has("const") || parameters.contains(base);
                if own { by_sources } else { Differs::Lanes }
            }
            "ld" if has("nc") => by_sources,
            "ldu" => by_sources,
            // The same for all that its mask names.
            "vote" | "redux" if sources.last().is_some_and(|mask| is_whole_warp(mask)) => {
                Differs::Warps
            }
            // All threads of the block take part where no count is given.
            "bar" | "barrier" if insn.operands.len() <= 3 => Differs::Nowhere,
            "ld" | "atom" | "tex" | "tld4" | "suld" | "call" | "ldmatrix" | "wmma" | "mma"
            | "shfl" | "match" | "vote" | "redux" | "activemask" | "elect" | "bar" | "barrier"
            | "alloca" => Differs::Lanes,
            "shr" | "and" | "setp"
                if by_sources == Differs::Lanes && of_rows(insn, sources, columns) =>
            {
                self.rows = true;
                Differs::Warps
            }
            _ => by_sources,
        }
    }
}

/// Whether a mask names all 32 lanes.
fn is_whole_warp(mask: &str) -> bool {
    matches!(number(mask), Some(-1 | 0xffff_ffff))
}

/// The registers that hold `%tid.x` and nothing else.
fn columns<'a>(body: &Body<'a>) -> HashSet<&'a str> {
    let mut written: HashMap<&str, usize> = HashMap::new();
    for inst in &body.insts {
        for result in results_and_sources(&inst.insn).0 {
            *written.entry(result).or_default() += 1;
        }
    }
    let mut found: HashSet<&str> = HashSet::from(["%tid.x"]);
    for inst in &body.insts {
        let moves = matches!(
            inst.insn.opcode,
            "mov.u32" | "mov.b32" | "mov.s32" | "cvt.u64.u32" | "cvt.s64.s32"
        );
        if let (true, None, [to, from]) = (moves, inst.insn.guard, inst.insn.operands.as_slice())
            && found.contains(from)
            && written.get(to) == Some(&1)
        {
            found.insert(to);
        }
    }
    found
}

/// Whether the result is one of 32 threads in x: the thread's number by 32, or where it is compared with a multiple of 32.
fn of_rows(insn: &Instruction, sources: &[&str], columns: &HashSet<&str>) -> bool {
    let [thread, by] = sources else { return false };
    let Some(by) = columns.contains(thread).then(|| number(by)).flatten() else { return false };
    let mut parts = insn.parts();
    match parts.next() {
        Some("shr") => by >= 5,
        Some("and") => by & 31 == 0,
        Some("setp") => match parts.next() {
            Some("lt" | "ge" | "lo" | "hs") => by % 32 == 0,
            Some("gt" | "le" | "hi" | "ls") => (by + 1) % 32 == 0,
            _ => false,
        },
        _ => false,
    }
}
