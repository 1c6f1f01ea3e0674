//! Every function of a program inlined into one, with a register file for each depth of calls.
//!
//! A GPU probe must not call: a `call` keeps ptxas from allocating across it, costs a stack frame
//! and serialises tensor-core kernels. So each call becomes a copy of its callee. `r0`–`r5` are one
//! set for all depths, as the calling convention has it; `r6`–`r9` and the frame pointer are the
//! callee's own.

use std::collections::{HashMap, HashSet};

use crate::error::Fault;
use crate::insn::{Condition, FRAME_POINTER, Insn, Operand, Reg};
use crate::program::Program;

/// The deepest chain of calls, the entry included, as in the kernel.
pub const MAX_DEPTH: usize = 8;

/// Bytes of stack of each function.
pub const STACK_BYTES: i32 = 512;

/// The most instructions after inlining.
pub const MAX_INLINED: usize = 65_536;

/// The first of the numbers that stand for frame pointers after inlining.
const FIRST_FRAME: Reg = 6 + 4 * MAX_DEPTH as Reg;

/// How many register numbers there are after inlining: `r0`–`r5`, `r6`–`r9` of each depth, and the
/// frame pointer of each depth.
pub const REGISTERS: usize = FIRST_FRAME as usize + MAX_DEPTH;

/// The number after inlining of `reg` at `depth` calls below the entry.
pub fn register(reg: Reg, depth: usize) -> Reg {
    match reg {
        0..=5 => reg,
        FRAME_POINTER => FIRST_FRAME + depth as Reg,
        _ => reg + 4 * depth as Reg,
    }
}

/// The depth whose frame pointer `reg` is, if it is one.
pub fn frame(reg: Reg) -> Option<usize> {
    (reg >= FIRST_FRAME).then(|| usize::from(reg - FIRST_FRAME))
}

/// An instruction after inlining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// An instruction other than calls of functions and exits. Registers and targets are numbered
    /// as after inlining.
    Insn(Insn),
    /// A function begins at this depth: its `r6`–`r9` are 0.
    Enter(usize),
    /// An inlined function ends; `usize` is where its caller goes on.
    Return(usize),
    /// The program ends.
    End,
}

/// An instruction after inlining, with its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// The index of the instruction in the program.
    pub origin: usize,
}

/// A program without calls of its own functions.
#[derive(Debug, Clone)]
pub struct Inlined {
    /// The instructions; the first one is the entry.
    pub steps: Vec<Step>,
    /// How many depths of calls there are, the entry included.
    pub depths: usize,
}

impl Inlined {
    /// The steps that may follow step `at`: none after the end.
    pub fn successors(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match self.steps[at].op {
            Op::Insn(Insn::Jump { when: None, target }) => (Some(target as usize), None),
            Op::Insn(Insn::Jump { when: Some(_), target }) => (Some(at + 1), Some(target as usize)),
            Op::Return(target) => (Some(target), None),
            Op::End => (None, None),
            Op::Insn(_) | Op::Enter(_) => (Some(at + 1), None),
        };
        first.into_iter().chain(second)
    }

    /// Whether each step begins a block: a target of a jump, or what follows one.
    pub fn leaders(&self) -> Vec<bool> {
        let mut leaders = vec![false; self.steps.len()];
        leaders[0] = true;
        for (at, step) in self.steps.iter().enumerate() {
            let jumps = matches!(step.op, Op::Insn(Insn::Jump { .. }) | Op::Return(_) | Op::End);
            if jumps {
                self.successors(at).for_each(|next| leaders[next] = true);
                if let Some(after) = leaders.get_mut(at + 1) {
                    *after = true;
                }
            }
        }
        leaders
    }
}

/// Inlines all functions of `program`.
pub fn inline(program: &Program) -> Result<Inlined, Fault> {
    let mut inliner = Inliner { program, steps: Vec::new(), depths: 0 };
    inliner.function(0, &mut Vec::new())?;
    Ok(Inlined { steps: inliner.steps, depths: inliner.depths })
}

struct Inliner<'a> {
    program: &'a Program,
    steps: Vec<Step>,
    depths: usize,
}

impl Inliner<'_> {
    /// Appends the function that begins at `entry`; `callers` are the entries of those around it.
    fn function(&mut self, entry: usize, callers: &mut Vec<usize>) -> Result<(), Fault> {
        if callers.contains(&entry) {
            return Err(self
                .program
                .fault(entry, "this function calls itself; a GPU probe cannot"));
        }
        if callers.len() == MAX_DEPTH {
            let reason = format!("calls are nested deeper than {MAX_DEPTH}");
            return Err(self.program.fault(entry, reason));
        }
        let depth = callers.len();
        self.depths = self.depths.max(depth + 1);
        let body = self.body(entry)?;
        callers.push(entry);
        if depth > 0 {
            self.push(Op::Enter(depth), entry)?;
        }
        // The body's own order is kept: where each instruction came to stand, by its index.
        let mut stands = HashMap::new();
        let mut returns = Vec::new();
        for &index in &body {
            stands.insert(index, self.steps.len());
            match self.program.insns[index] {
                Insn::CallLocal { target } => self.function(target as usize, callers)?,
                Insn::Exit if depth == 0 => self.push(Op::End, index)?,
                Insn::Exit => {
                    returns.push(self.steps.len());
                    self.push(Op::Return(0), index)?;
                }
                insn => self.push(Op::Insn(renumber(insn, depth)), index)?,
            }
        }
        callers.pop();
        let end = self.steps.len();
        self.resolve(&stands);
        returns.into_iter().for_each(|at| self.steps[at].op = Op::Return(end));
        Ok(())
    }

    /// Points jumps of this function's own steps at where their targets came to stand.
    fn resolve(&mut self, stands: &HashMap<usize, usize>) {
        for (&index, &at) in stands {
            if !matches!(self.program.insns[index], Insn::Jump { .. }) {
                continue;
            }
            if let Op::Insn(Insn::Jump { target, .. }) = &mut self.steps[at].op {
                *target = stands[&(*target as usize)] as u32;
            }
        }
    }

    fn push(&mut self, op: Op, origin: usize) -> Result<(), Fault> {
        if self.steps.len() == MAX_INLINED {
            let reason = format!("more than {MAX_INLINED} instructions once functions are inlined");
            return Err(self.program.fault(origin, reason));
        }
        self.steps.push(Step { op, origin });
        Ok(())
    }

    /// The instructions that are reached from `entry` without entering callees, in order.
    fn body(&self, entry: usize) -> Result<Vec<usize>, Fault> {
        let insns = &self.program.insns;
        let mut seen = HashSet::new();
        let mut open = vec![entry];
        let mut body = Vec::new();
        while let Some(at) = open.pop() {
            if !seen.insert(at) {
                continue;
            }
            body.push(at);
            let falls = match insns[at] {
                Insn::Exit => false,
                Insn::Jump { when, target } => {
                    open.push(target as usize);
                    when.is_some()
                }
                _ => true,
            };
            if falls && at + 1 == insns.len() {
                return Err(self.program.fault(at, "the program runs off its end"));
            }
            if falls {
                open.push(at + 1);
            }
        }
        body.sort_unstable();
        // The entry comes first: what lies before it is moved behind.
        let first = body.partition_point(|&index| index < entry);
        body.rotate_left(first);
        self.check_order(&body)?;
        Ok(body)
    }

    /// Whether each instruction that falls through is followed by the next one.
    fn check_order(&self, body: &[usize]) -> Result<(), Fault> {
        for (place, &index) in body.iter().enumerate() {
            let insn = self.program.insns[index];
            let ends = matches!(insn, Insn::Exit | Insn::Jump { when: None, .. });
            if !ends && body.get(place + 1) != Some(&(index + 1)) {
                return Err(self.program.fault(index, "a function runs into the one before it"));
            }
        }
        Ok(())
    }
}

/// `insn` with the registers of `depth`.
fn renumber(mut insn: Insn, depth: usize) -> Insn {
    let to = |reg: &mut Reg| *reg = register(*reg, depth);
    let operand = |src: &mut Operand| {
        if let Operand::Reg(reg) = src {
            *reg = register(*reg, depth);
        }
    };
    match &mut insn {
        Insn::Alu { dst, src, .. } => {
            to(dst);
            operand(src);
        }
        Insn::SignExtend { dst, src, .. } => {
            to(dst);
            to(src);
        }
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } | Insn::LoadWide { dst, .. } => to(dst),
        Insn::Load { dst, base, .. } => {
            to(dst);
            to(base);
        }
        Insn::Store { base, src, .. } => {
            to(base);
            operand(src);
        }
        Insn::Atomic { base, src, .. } => {
            to(base);
            to(src);
        }
        Insn::Jump { when: Some(Condition { dst, src, .. }), .. } => {
            to(dst);
            operand(src);
        }
        Insn::Jump { when: None, .. }
        | Insn::CallLocal { .. }
        | Insn::CallHelper { .. }
        | Insn::Exit => {}
    }
    insn
}
