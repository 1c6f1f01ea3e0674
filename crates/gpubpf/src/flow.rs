//! What each register and each slot of the stack may hold, at each step of an inlined program.
//!
//! The compiler needs three facts: which accesses go to the stack at a constant offset (they become
//! registers), which go to a map (they need no generic addressing), and how well an address is
//! aligned (PTX wants natural alignment, eBPF does not). It is a forward data flow to a fixed point;
//! it proves nothing about safety, which is the verifier's work.

use std::collections::BTreeMap;

use crate::helpers;
use crate::inline::{self, Inlined, Op, REGISTERS, STACK_BYTES};
use crate::insn::{AluOp, AtomicOp, Insn, Operand, Reg, Size, Wide, Width};
use crate::program::Program;
use crate::value::{Value, zeros};

/// Registers and stack slots at one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    regs: [Value; REGISTERS],
    /// What 8-byte stores left on the stack, by offset; a slot that is not here holds a number.
    slots: BTreeMap<i32, Value>,
}

impl State {
    /// What `reg`, numbered as after inlining, holds.
    pub fn reg(&self, reg: Reg) -> Value {
        self.regs[usize::from(reg)]
    }

    fn operand(&self, src: Operand) -> Value {
        match src {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(imm) => Value::Const(imm as i64 as u64),
        }
    }

    fn set(&mut self, reg: Reg, value: Value) {
        self.regs[usize::from(reg)] = value;
    }

    /// Joins `other` in; whether that changed anything.
    fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.regs.iter_mut().zip(other.regs) {
            *mine = mine.join(theirs);
        }
        let number = Value::Any { align: 0 };
        for (offset, mine) in &mut self.slots {
            *mine = mine.join(other.slots.get(offset).copied().unwrap_or(number));
        }
        for (&offset, &theirs) in &other.slots {
            self.slots.entry(offset).or_insert_with(|| theirs.join(number));
        }
        *self != before
    }

    /// What `size` bytes at `offset` of the stack hold.
    pub fn slot(&self, offset: i32, size: Size) -> Value {
        match self.slots.get(&offset) {
            Some(&value) if size == Size::B8 => value,
            _ => {
                let end = offset + size.bytes() as i32;
                let parts = self.slots.range(offset - 7..end).any(|(_, value)| value.is_stack());
                if parts { Value::MaybeStack } else { Value::Any { align: 0 } }
            }
        }
    }

    /// Forgets what the slots that these bytes touch hold.
    fn scribble(&mut self, offset: i32, bytes: i32) {
        let touched: Vec<i32> =
            self.slots.range(offset - 7..offset + bytes).map(|(&at, _)| at).collect();
        for at in touched {
            self.slots.remove(&at);
        }
    }
}

/// The state before each step; `None` where no path leads.
#[derive(Debug, Clone)]
pub struct Flow {
    /// One state for each step.
    pub before: Vec<Option<State>>,
    /// Why the stack must lie in memory, with the step that makes it so.
    pub escape: Option<(usize, &'static str)>,
}

/// What registers hold at the entry: `r1` and `r2` by their alignment, the others 0.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// `r1` is a multiple of two to this power, at most 3.
    pub context_align: u8,
    /// Whether `r1` is the context of a probe site.
    pub site: bool,
}

/// Finds what registers and slots hold at every step.
pub fn analyse(program: &Program, inlined: &Inlined, entry: Entry) -> Flow {
    let mut flow = fixed_point(program, inlined, entry, true);
    flow.escape = escape(inlined, &flow);
    if flow.escape.is_none() {
        return flow;
    }
    // With the stack in memory, stores through unknown addresses may change any slot.
    let escape = flow.escape;
    let mut flow = fixed_point(program, inlined, entry, false);
    flow.escape = escape;
    flow
}

fn fixed_point(program: &Program, inlined: &Inlined, entry: Entry, slots: bool) -> Flow {
    let steps = inlined.steps.len();
    let mut before: Vec<Option<State>> = vec![None; steps];
    let mut start = State { regs: [Value::Const(0); REGISTERS], slots: BTreeMap::new() };
    start.set(
        1,
        if entry.site { Value::Context(0) } else { Value::Any { align: entry.context_align } },
    );
    start.set(2, Value::Any { align: 0 });
    for depth in 0..inline::MAX_DEPTH {
        let top = -STACK_BYTES * depth as i32;
        start.set(inline::register(crate::insn::FRAME_POINTER, depth), Value::Stack(top));
    }
    let leaders = inlined.leaders();
    before[0] = Some(start.clone());
    let mut open = std::collections::BTreeSet::from([0]);
    while let Some(first) = open.pop_first() {
        let mut at = first;
        loop {
            let mut state = before[at].clone().unwrap_or_else(|| start.clone());
            step(program, inlined.steps[at].op, &mut state, slots);
            let next: Vec<usize> = inlined.successors(at).collect();
            // Within a block there is one way in, so its state is replaced and not joined.
            if let [only] = next[..]
                && !leaders[only]
            {
                before[only] = Some(state);
                at = only;
                continue;
            }
            for target in next {
                let changed = match &mut before[target] {
                    Some(there) => there.join(&state),
                    none => {
                        *none = Some(state.clone());
                        true
                    }
                };
                if changed {
                    open.insert(target);
                }
            }
            break;
        }
    }
    Flow { before, escape: None }
}

/// What `op` does to `state`.
fn step(program: &Program, op: Op, state: &mut State, slots: bool) {
    match op {
        Op::Enter(depth) => {
            for reg in 6..10 {
                state.set(inline::register(reg, depth), Value::Const(0));
            }
        }
        Op::Insn(Insn::CallHelper { id }) => {
            let result = helpers::result(program, id, state.reg(1));
            for (reg, bytes) in helpers::writes(id) {
                match state.reg(reg) {
                    Value::Stack(offset) => state.scribble(offset, bytes),
                    _ => state.slots.clear(),
                }
            }
            state.set(0, result);
        }
        Op::Insn(insn) => plain(insn, state, slots),
        Op::Return(_) | Op::End => {}
    }
}

fn plain(insn: Insn, state: &mut State, slots: bool) {
    let number = Value::Any { align: 0 };
    match insn {
        Insn::Alu { op, width, dst, src } => {
            let value = alu(op, width, state.reg(dst), state.operand(src));
            state.set(dst, value);
        }
        Insn::SignExtend { dst, .. } | Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => {
            state.set(dst, number);
        }
        Insn::LoadWide { dst, value } => {
            let value = match value {
                Wide::Number(value) => Value::Const(value),
                Wide::Map(map) => Value::Map(map),
                Wide::Data { offset, .. } => {
                    Value::Global { align: zeros(offset.into()), map: None }
                }
            };
            state.set(dst, value);
        }
        Insn::Load { size, dst, base, offset, .. } => {
            let value = match state.reg(base) {
                Value::Stack(at) if slots => state.slot(at.saturating_add(offset.into()), size),
                _ if slots || size != Size::B8 => number,
                _ => Value::MaybeStack,
            };
            state.set(dst, value);
        }
        Insn::Store { size, base, offset, src, .. } => {
            if let Value::Stack(at) = state.reg(base) {
                let at = at.saturating_add(offset.into());
                let value = state.operand(src);
                state.scribble(at, size.bytes() as i32);
                if size == Size::B8 {
                    state.slots.insert(at, value);
                }
            }
        }
        Insn::Atomic { op, fetch, width, base, offset, src } => {
            if let Value::Stack(at) = state.reg(base) {
                state.scribble(at.saturating_add(offset.into()), width.bits() as i32 / 8);
            }
            if fetch {
                // With the stack in memory, what comes back may be an address that was stored.
                let back = if slots { number } else { Value::MaybeStack };
                state.set(if op == AtomicOp::CompareExchange { 0 } else { src }, back);
            }
        }
        Insn::Jump { .. } | Insn::CallLocal { .. } | Insn::CallHelper { .. } | Insn::Exit => {}
    }
}

fn alu(op: AluOp, width: Width, dst: Value, src: Value) -> Value {
    if op == AluOp::Mov && width == Width::W64 {
        return src;
    }
    if let (Value::Const(a), Value::Const(b)) = (dst, src)
        && let Some(value) = fold(op, a, b)
    {
        return Value::Const(if width == Width::W64 { value } else { value & 0xffff_ffff });
    }
    let align = aligned(op, dst, src);
    if width == Width::W32 {
        return if op != AluOp::Mov && (dst.is_stack() || src.is_stack())
            || op == AluOp::Mov && src.is_stack()
        {
            Value::MaybeStack
        } else {
            Value::Any { align }
        };
    }
    match (op, dst, src) {
        (AluOp::Add, Value::Stack(at), Value::Const(by))
        | (AluOp::Add, Value::Const(by), Value::Stack(at)) => moved(at, by as i64),
        (AluOp::Sub, Value::Stack(at), Value::Const(by)) => moved(at, (by as i64).wrapping_neg()),
        (AluOp::Add, Value::Context(at), Value::Const(by)) => {
            Value::Context(at.wrapping_add(by as i64))
        }
        _ if matches!(dst, Value::Context(_) | Value::MaybeContext)
            || matches!(src, Value::Context(_) | Value::MaybeContext) =>
        {
            Value::MaybeContext
        }
        _ if dst.is_stack() || src.is_stack() => Value::MaybeStack,
        (
            AluOp::Add | AluOp::Sub,
            Value::Global { map, .. },
            Value::Const(_) | Value::Any { .. },
        )
        | (AluOp::Add, Value::Const(_) | Value::Any { .. }, Value::Global { map, .. }) => {
            Value::Global { align, map }
        }
        _ => Value::Any { align },
    }
}

/// A stack address moved by a constant; one that leaves the program's stack is none.
fn moved(at: i32, by: i64) -> Value {
    let limit = i64::from(STACK_BYTES) * (inline::MAX_DEPTH as i64 + 1);
    match i64::from(at).checked_add(by) {
        Some(to) if (-limit..=i64::from(STACK_BYTES)).contains(&to) => Value::Stack(to as i32),
        _ => Value::MaybeStack,
    }
}

/// Trailing zeros of a result.
fn aligned(op: AluOp, dst: Value, src: Value) -> u8 {
    let (a, b) = (dst.align(), src.align());
    match op {
        AluOp::Add | AluOp::Sub | AluOp::Or | AluOp::Xor => a.min(b),
        AluOp::And => a.max(b),
        AluOp::Mul => (a + b).min(3),
        AluOp::Mov => b,
        AluOp::Lsh => match src {
            Value::Const(by) if by < 32 => (a + by.min(3) as u8).min(3),
            _ => a,
        },
        _ => 0,
    }
}

fn fold(op: AluOp, a: u64, b: u64) -> Option<u64> {
    Some(match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::Xor => a ^ b,
        AluOp::Mov => b,
        _ => return None,
    })
}

/// The first step that needs the stack to have addresses, and why.
fn escape(inlined: &Inlined, flow: &Flow) -> Option<(usize, &'static str)> {
    inlined.steps.iter().enumerate().find_map(|(at, step)| {
        let state = flow.before[at].as_ref()?;
        let why = match step.op {
            Op::Insn(insn) => escapes(insn, state)?,
            Op::End if state.reg(0).is_stack() => "a stack address is the result",
            _ => return None,
        };
        Some((at, why))
    })
}

fn escapes(insn: Insn, state: &State) -> Option<&'static str> {
    let stack = |reg: Reg| state.reg(reg).is_stack();
    let vague = |reg: Reg| state.reg(reg) == Value::MaybeStack;
    match insn {
        Insn::Alu { op: AluOp::Mov, width: Width::W64, .. } => None,
        Insn::Alu { dst, width, op, src } => {
            let value = alu(op, width, state.reg(dst), state.operand(src));
            let reads_dst = op != AluOp::Mov;
            let used = state.operand(src).is_stack() || reads_dst && stack(dst);
            (used && !matches!(value, Value::Stack(_))).then_some("arithmetic on a stack address")
        }
        Insn::SignExtend { src: reg, .. }
        | Insn::Neg { dst: reg, .. }
        | Insn::Endian { dst: reg, .. } => stack(reg).then_some("arithmetic on a stack address"),
        Insn::LoadWide { .. } => None,
        Insn::Load { size, base, offset, .. } => match state.reg(base) {
            Value::MaybeStack => Some("a load at a stack offset that is not constant"),
            Value::Stack(at) => {
                let at = at.saturating_add(offset.into());
                let part = state.slot(at, size) == Value::MaybeStack;
                part.then_some("a part of a stored stack address is loaded")
            }
            _ => None,
        },
        Insn::Store { size, base, offset, src, .. } => {
            let value = state.operand(src);
            match state.reg(base) {
                Value::MaybeStack => Some("a store at a stack offset that is not constant"),
                Value::Stack(at) => {
                    let whole = size == Size::B8 && (at + i32::from(offset)) % 8 == 0;
                    (value.is_stack() && !(whole && value != Value::MaybeStack))
                        .then_some("a part of a stack address is stored")
                }
                _ => value.is_stack().then_some("a stack address is stored outside the stack"),
            }
        }
        Insn::Atomic { op, base, src, offset, width, .. } => {
            let size = if width == Width::W32 { Size::B4 } else { Size::B8 };
            let held = match state.reg(base) {
                Value::Stack(at) => state.slot(at.saturating_add(offset.into()), size),
                _ => Value::Const(0),
            };
            let compared = op == AtomicOp::CompareExchange && stack(0);
            (vague(base) || stack(src) || compared || held.is_stack())
                .then_some("an atomic operation on a stack address")
        }
        Insn::Jump { when: Some(condition), .. } => {
            let used = stack(condition.dst) || state.operand(condition.src).is_stack();
            used.then_some("a comparison of a stack address")
        }
        Insn::CallHelper { id } => helpers::arguments(id)
            .any(vague)
            .then_some("a helper is given a stack offset that is not constant"),
        Insn::Jump { when: None, .. } | Insn::CallLocal { .. } | Insn::Exit => None,
    }
}
