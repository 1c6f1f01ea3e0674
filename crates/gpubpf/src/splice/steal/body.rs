//! A kernel's text as a graph of blocks.

use std::collections::HashMap;

use crate::graph;
use crate::ptx::{Function, Instruction, Kind, Module};

/// An instruction of the body.
pub(super) struct Inst<'a> {
    /// The statement.
    pub(super) statement: usize,
    pub(super) insn: Instruction<'a>,
    /// The block that it lies in.
    pub(super) block: usize,
}

/// The body of a function.
pub(super) struct Body<'a> {
    pub(super) insts: Vec<Inst<'a>>,
    /// For each block, its first instruction and the one after its last.
    pub(super) blocks: Vec<(usize, usize)>,
    /// For each block, those that may come after it; the number of blocks stands for the end.
    pub(super) next: Vec<Vec<usize>>,
    /// For each block, where all paths from it meet.
    pub(super) meets: Vec<Option<usize>>,
}

/// Whether an instruction may go elsewhere than to the next one.
fn ends_block(insn: &Instruction) -> bool {
    matches!(insn.name(), "bra" | "brx" | "ret" | "exit" | "trap")
}

/// The words of a text: names of registers, variables and labels, without numbers.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let part = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.'));
    let name = |word: &&str| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit());
    text.split(part).filter(name)
}

impl<'a> Body<'a> {
    /// Of a function that has a body.
    pub(super) fn new(module: &Module<'a>, function: &Function) -> Self {
        let (open, close) = function.body.unwrap_or((0, 0));
        let (mut insts, mut labels) = (Vec::new(), HashMap::new());
        // Behind which label a list of targets stands, and the list.
        let (mut lists, mut last_label) = (HashMap::new(), "");
        for at in open + 1..close {
            let statement = &module.statements()[at];
            let code = module.code(statement);
            match statement.kind {
                Kind::Label => {
                    last_label = code.trim_end_matches(':').trim_end();
                    labels.insert(last_label, insts.len());
                }
                Kind::Directive => {
                    if let Some(rest) = code.strip_prefix(".branchtargets") {
                        lists.insert(last_label, rest);
                    }
                }
                Kind::Instruction => {
                    if let Some(insn) = module.instruction(statement) {
                        insts.push(Inst { statement: at, insn, block: 0 });
                    }
                }
                _ => {}
            }
        }
        let targets = |insn: &Instruction<'a>| -> Vec<usize> {
            let named = |name: &str| labels.get(name).copied();
            match (insn.name(), insn.operands.as_slice()) {
                ("bra", [target, ..]) => named(target).into_iter().collect(),
                ("brx", [_, list, ..]) => {
                    let list = lists.get(list).copied().unwrap_or_default();
                    words(list).filter_map(named).collect()
                }
                _ => Vec::new(),
            }
        };
        let mut leads = vec![false; insts.len() + 1];
        leads[0] = true;
        for (at, inst) in insts.iter().enumerate() {
            targets(&inst.insn).into_iter().for_each(|target| leads[target] = true);
            leads[at + 1] |= ends_block(&inst.insn);
        }
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for at in 0..insts.len() {
            if leads[at] {
                blocks.push((at, at));
            }
            let number = blocks.len() - 1;
            blocks[number].1 = at + 1;
            insts[at].block = number;
        }
        let of = |at: usize| insts.get(at).map_or(blocks.len(), |inst| inst.block);
        let after = |&(_, end): &(usize, usize)| -> Vec<usize> {
            let insn = &insts[end - 1].insn;
            let mut found: Vec<usize> = match insn.name() {
                "ret" | "exit" => vec![blocks.len()],
                // It ends the launch for all threads.
                "trap" => Vec::new(),
                "bra" | "brx" => targets(insn).into_iter().map(of).collect(),
                _ => return vec![of(end)],
            };
            if insn.guard.is_some() {
                found.push(of(end));
            }
            found.sort_unstable();
            found.dedup();
            found
        };
        let next: Vec<Vec<usize>> = blocks.iter().map(after).collect();
        let meets = graph::post_dominators(&next);
        Self { insts, blocks, next, meets }
    }

    /// The instruction at whose end a block's paths part, if they may.
    pub(super) fn branch(&self, block: usize) -> Option<&Inst<'a>> {
        let last = &self.insts[self.blocks[block].1 - 1];
        let parts = last.insn.name() == "brx" || last.insn.guard.is_some();
        (parts && self.next[block].len() > 1).then_some(last)
    }

    /// The blocks between a branch and where its paths meet.
    pub(super) fn between(&self, block: usize) -> Vec<usize> {
        graph::reached(&self.next, &self.next[block], self.meets[block])
    }

    /// The instructions of a block.
    pub(super) fn of(&self, block: usize) -> &[Inst<'a>] {
        &self.insts[self.blocks[block].0..self.blocks[block].1]
    }
}
