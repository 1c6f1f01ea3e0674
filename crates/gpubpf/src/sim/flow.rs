//! Where lanes that part at a branch meet again: at the branch's immediate post-dominator.

use super::code::{Inst, Op};
use crate::graph;

/// Sets [`Inst::meet`] of every branch.
pub(crate) fn meeting_points(code: &mut [Inst]) {
    let blocks = Blocks::of(code);
    let after = blocks.post_dominators(code);
    for (block, range) in blocks.ranges.iter().enumerate() {
        let meet = match after[block] {
            Some(next) if next < blocks.ranges.len() => blocks.ranges[next].0,
            _ => code.len(),
        };
        if let Some(last) = code.get_mut(range.1 - 1) {
            last.meet = meet as u32;
        }
    }
}

/// Whether control may go elsewhere than to the next instruction.
fn ends_block(inst: &Inst) -> bool {
    matches!(inst.op, Op::Branch(_) | Op::BranchIndex { .. } | Op::Return | Op::Exit | Op::Trap)
}

struct Blocks {
    /// First instruction, and the one after the last.
    ranges: Vec<(usize, usize)>,
    /// The block of each instruction.
    of: Vec<usize>,
}

impl Blocks {
    fn of(code: &[Inst]) -> Self {
        let mut leader = vec![false; code.len() + 1];
        leader[0] = true;
        let mut lead = |at: u32| {
            if let Some(leader) = leader.get_mut(at as usize) {
                *leader = true;
            }
        };
        for (at, inst) in code.iter().enumerate() {
            match &inst.op {
                Op::Branch(target) => lead(*target),
                Op::BranchIndex { targets, .. } => targets.iter().for_each(|target| lead(*target)),
                _ => {}
            }
            if ends_block(inst) {
                lead(at as u32 + 1);
            }
        }
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        let mut of = Vec::with_capacity(code.len());
        for (at, &leads) in leader.iter().enumerate().take(code.len()) {
            if leads {
                ranges.push((at, at));
            }
            if let Some(range) = ranges.last_mut() {
                range.1 = at + 1;
            }
            of.push(ranges.len() - 1);
        }
        Self { ranges, of }
    }

    /// Blocks that may come after `block`; the number of blocks stands for the end.
    fn successors(&self, code: &[Inst], block: usize) -> Vec<usize> {
        let end = self.ranges.len();
        let last = self.ranges[block].1 - 1;
        let of = |at: usize| self.of.get(at).copied().unwrap_or(end);
        let inst = &code[last];
        let mut found = match &inst.op {
            Op::Branch(target) => vec![of(*target as usize)],
            Op::BranchIndex { targets, .. } => targets.iter().map(|t| of(*t as usize)).collect(),
            Op::Return | Op::Exit | Op::Trap => vec![end],
            _ => return vec![of(last + 1)],
        };
        if inst.guard.is_some() {
            found.push(of(last + 1));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn post_dominators(&self, code: &[Inst]) -> Vec<Option<usize>> {
        let end = self.ranges.len();
        let next: Vec<Vec<usize>> = (0..end).map(|block| self.successors(code, block)).collect();
        graph::post_dominators(&next)
    }
}
