//! What names mean within a function: registers, variables, labels, each in its block of braces.

use std::collections::HashMap;

use super::code::{Address, Dst, Special, Src};
use super::text::{self, literal};
use super::types::Ty;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Symbol {
    Register {
        slot: u32,
        bits: u32,
    },
    /// An address that is known, in the space where it was declared.
    Address(u64),
    /// An offset in the frame's local memory.
    Local(u64),
    /// Shared memory that the launch adds.
    Dynamic,
    /// A parameter of the kernel, by its offset.
    Kernel {
        at: u32,
    },
    /// A parameter within the frame.
    Frame {
        at: u32,
        bytes: u32,
    },
    Function(u32),
}

#[derive(Debug, Default)]
struct Scope {
    outer: Option<usize>,
    symbols: HashMap<String, Symbol>,
    /// `%r<100>`: how many there are and their width.
    ranges: HashMap<String, (u32, u32)>,
    labels: HashMap<String, u32>,
    /// `.branchtargets` and `.callprototype` behind a label.
    tables: HashMap<String, Vec<String>>,
}

/// The names of one function, inside of those of the module.
pub(crate) struct Names<'a> {
    module: &'a HashMap<String, Symbol>,
    scopes: Vec<Scope>,
    /// Registers so far.
    pub(crate) registers: u32,
}

impl<'a> Names<'a> {
    pub(crate) fn new(module: &'a HashMap<String, Symbol>) -> Self {
        Self { module, scopes: vec![Scope::default()], registers: 0 }
    }

    /// A block within `outer`.
    pub(crate) fn open(&mut self, outer: usize) -> usize {
        self.scopes.push(Scope { outer: Some(outer), ..Scope::default() });
        self.scopes.len() - 1
    }

    pub(crate) fn outer(&self, scope: usize) -> usize {
        self.scopes[scope].outer.unwrap_or(0)
    }

    pub(crate) fn declare(&mut self, scope: usize, name: &str, symbol: Symbol) {
        self.scopes[scope].symbols.insert(name.to_owned(), symbol);
    }

    pub(crate) fn register(&mut self, scope: usize, name: &str, bits: u32) -> Symbol {
        let symbol = Symbol::Register { slot: self.registers, bits };
        self.registers += 1;
        self.declare(scope, name, symbol);
        symbol
    }

    pub(crate) fn range(&mut self, scope: usize, prefix: &str, count: u32, bits: u32) {
        self.scopes[scope].ranges.insert(prefix.to_owned(), (count, bits));
    }

    pub(crate) fn label(&mut self, scope: usize, name: &str, at: u32) {
        self.scopes[scope].labels.insert(name.to_owned(), at);
    }

    pub(crate) fn table(&mut self, scope: usize, name: &str, entries: Vec<String>) {
        self.scopes[scope].tables.insert(name.to_owned(), entries);
    }

    fn outward(&self, scope: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(scope), |&scope| self.scopes[scope].outer)
    }

    pub(crate) fn find_label(&self, scope: usize, name: &str) -> Result<u32, String> {
        let found = self.outward(scope).find_map(|s| self.scopes[s].labels.get(name).copied());
        found.ok_or_else(|| format!("there is no label `{name}`"))
    }

    pub(crate) fn find_table(&self, scope: usize, name: &str) -> Result<Vec<String>, String> {
        let found = self.outward(scope).find_map(|s| self.scopes[s].tables.get(name).cloned());
        found.ok_or_else(|| format!("there is no list of targets `{name}`"))
    }

    pub(crate) fn find(&mut self, scope: usize, name: &str) -> Option<Symbol> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = name[prefix.len()..].parse().ok();
        let scopes: Vec<usize> = self.outward(scope).collect();
        for at in scopes {
            if let Some(symbol) = self.scopes[at].symbols.get(name) {
                return Some(*symbol);
            }
            let range = self.scopes[at].ranges.get(prefix).copied();
            if let (Some((count, bits)), Some(number)) = (range, number)
                && number < count
            {
                return Some(self.register(at, name, bits));
            }
        }
        self.module.get(name).copied()
    }

    /// A value that an instruction reads as `ty`.
    pub(crate) fn source(&mut self, scope: usize, text: &str, ty: Ty) -> Result<Src, String> {
        if let Some(predicate) = text.strip_prefix('!') {
            return match self.find(scope, predicate.trim()) {
                Some(Symbol::Register { slot, .. }) => Ok(Src::Not(slot)),
                _ => Err(format!("`{predicate}` is no predicate")),
            };
        }
        if let Some(value) = literal(text, ty) {
            return Ok(Src::Imm(value));
        }
        if text == "WARP_SZ" {
            return Ok(Src::Imm(32));
        }
        if let Some(special) = special(text) {
            return Ok(Src::Special(special));
        }
        let (name, offset) = match text.split_once('+') {
            Some((name, offset)) => {
                let offset = literal(offset.trim(), super::types::B64);
                (name.trim(), offset.ok_or_else(|| format!("`{text}` is no value"))?)
            }
            None => (text, 0),
        };
        match self.find(scope, name) {
            Some(Symbol::Register { slot, .. }) if offset == 0 => Ok(Src::Reg(slot)),
            Some(Symbol::Address(at)) => Ok(Src::Imm(at.wrapping_add(offset))),
            Some(Symbol::Kernel { at }) => Ok(Src::Imm(u64::from(at).wrapping_add(offset))),
            Some(Symbol::Local(at)) => Ok(Src::Local(at.wrapping_add(offset))),
            Some(Symbol::Dynamic) => Ok(Src::Dynamic(offset)),
            Some(Symbol::Function(at)) => Ok(Src::Imm(super::code::FUNCTIONS + u64::from(at) * 16)),
            _ => Err(format!("`{text}` is not declared")),
        }
    }

    /// A register that an instruction writes.
    pub(crate) fn target(&mut self, scope: usize, text: &str) -> Result<Dst, String> {
        if text == "_" {
            return Ok(Dst::None);
        }
        match self.find(scope, text) {
            Some(Symbol::Register { slot, bits }) if bits <= 64 => Ok(Dst::Reg(slot, bits)),
            Some(Symbol::Register { .. }) => Err(format!("`{text}` has more than 64 bits")),
            _ => Err(format!("`{text}` is no register")),
        }
    }

    /// `{a, b}` or `a`.
    pub(crate) fn targets(&mut self, scope: usize, text: &str) -> Result<Vec<Dst>, String> {
        list(text).into_iter().map(|part| self.target(scope, part)).collect()
    }

    pub(crate) fn sources(&mut self, scope: usize, text: &str, ty: Ty) -> Result<Vec<Src>, String> {
        list(text).into_iter().map(|part| self.source(scope, part, ty)).collect()
    }

    /// `[base+offset]`.
    pub(crate) fn address(&mut self, scope: usize, text: &str) -> Result<Address, String> {
        let inner = text.trim().strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("`{text}` is no address"))?.trim();
        let words = text::tokens(inner);
        let number = |word: &str| literal(word, super::types::B64).map(|value| value as i64);
        let wrong = || format!("`{text}` is no address that is known here");
        let (base, offset) = match words[..] {
            [base] => (base, 0),
            [base, "+", offset] => (base, number(offset).ok_or_else(wrong)?),
            [base, "-", offset] | [base, "+", "-", offset] => {
                (base, number(offset).ok_or_else(wrong)?.wrapping_neg())
            }
            _ => return Err(wrong()),
        };
        if let Some(Symbol::Frame { at, .. }) = self.find(scope, base) {
            return Ok(Address { base: Src::Imm(at.into()), offset, frame: true });
        }
        Ok(Address { base: self.source(scope, base, super::types::B64)?, offset, frame: false })
    }
}

/// The parts of `{a, b}`; of `a` it is `a` alone.
pub(crate) fn list(text: &str) -> Vec<&str> {
    match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        Some(inner) => inner.split(',').map(str::trim).collect(),
        None => vec![text],
    }
}

/// The special register that `text` names.
fn special(text: &str) -> Option<Special> {
    let name = text.strip_prefix('%')?;
    let (base, axis) = name.split_once('.').unwrap_or((name, "x"));
    let axis = match axis {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        _ => return None,
    };
    Some(match base {
        "tid" => Special::Tid(axis),
        "ntid" => Special::Ntid(axis),
        "ctaid" => Special::Ctaid(axis),
        "nctaid" => Special::Nctaid(axis),
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::WarpsPerSm,
        "smid" => Special::SmId,
        "nsmid" => Special::Sms,
        "gridid" => Special::GridId,
        "clock" => Special::Clock,
        "clock_hi" => Special::ClockHigh,
        "clock64" => Special::Clock64,
        "globaltimer" => Special::GlobalTimer,
        "globaltimer_lo" => Special::GlobalTimerLow,
        "globaltimer_hi" => Special::GlobalTimerHigh,
        "lanemask_eq" => Special::MaskEq,
        "lanemask_le" => Special::MaskLe,
        "lanemask_lt" => Special::MaskLt,
        "lanemask_ge" => Special::MaskGe,
        "lanemask_gt" => Special::MaskGt,
        "dynamic_smem_size" => Special::DynamicShared,
        "total_smem_size" => Special::TotalShared,
        // A block is a cluster of its own.
        "clusterid" => Special::Ctaid(axis),
        "nclusterid" => Special::Nctaid(axis),
        "cluster_ctaid" | "cluster_ctarank" => Special::Number(0),
        "cluster_nctaid" | "cluster_nctarank" => Special::Number(1),
        "is_explicit_cluster" => Special::Number(0),
        _ => return None,
    })
}
