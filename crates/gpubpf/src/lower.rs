//! Each instruction as PTX.
//!
//! PTX differs from eBPF where this file is longer than a table: shift counts are clamped and not
//! masked, division by zero and of the most negative number is unspecified, addresses must be
//! aligned, and atomics on local memory are illegal.

use crate::emit::{Emitter, Target};
use crate::error::Fault;
use crate::flow::State;
use crate::insn::{
    AluOp, AtomicOp, ByteOrder, Compare, Condition, Insn, Operand, Reg, Size, Wide, Width,
};
use crate::options::Options;
use crate::program::MapKind;
use crate::value::Value;

/// Lowers `insn`, before which registers hold `state`.
pub(crate) fn insn(
    e: &mut Emitter,
    options: &Options,
    insn: Insn,
    state: &State,
) -> Result<(), Fault> {
    match insn {
        Insn::Alu { op, width, dst, src } => alu(e, op, width, dst, src, state),
        Insn::SignExtend { width, bits, dst, src } => sign_extend(e, width, bits, dst, src),
        Insn::Neg { width, dst } => {
            let reg = Emitter::reg(dst);
            match width {
                Width::W64 => e.line(&format!("neg.s64 {reg}, {reg}")),
                Width::W32 => {
                    e.line(&format!("cvt.u32.u64 #w0, {reg}"));
                    e.line("neg.s32 #w0, #w0");
                    e.line(&format!("cvt.u64.u32 {reg}, #w0"));
                }
            }
        }
        Insn::Endian { order, bits, dst } => endian(e, order, bits, &Emitter::reg(dst)),
        Insn::LoadWide { dst, value } => wide(e, dst, value),
        Insn::Load { size, signed, acquire, dst, base, offset } => {
            let target = e.target(state, base, offset.into(), size.bytes().into())?;
            let dst = Emitter::reg(dst);
            e.load(&dst, &target, size, signed);
            if acquire && matches!(target, Target::Memory { .. }) {
                e.line("fence.acq_rel.gpu");
            }
        }
        Insn::Store { size, release, base, offset, src } => {
            let target = e.target_to_write(state, base, offset.into(), size.bytes().into())?;
            // A stack address that is kept on the promoted stack has no number, and none is needed:
            // who loads it again is known to have it.
            if let Operand::Reg(reg) = src
                && state.reg(reg).is_stack()
                && !e.in_memory
            {
                return Ok(());
            }
            // The context is no address, so it cannot come back from memory.
            if let Operand::Reg(reg) = src
                && matches!(state.reg(reg), Value::Context(_) | Value::MaybeContext)
                && !matches!(target, Target::Cells(_))
            {
                return Err(e.fault(
                    "the context is kept in memory, where this program's stack lies; load what is needed \
                     of it first",
                ));
            }
            if release && matches!(target, Target::Memory { .. }) {
                e.line("fence.acq_rel.gpu");
            }
            let src = e.operand(src, "#t5");
            e.store(&target, size, &src);
        }
        Insn::Atomic { op, fetch, width, base, offset, src } => {
            let bytes = i64::from(width.bits() / 8);
            let target = e.target_to_write(state, base, offset.into(), bytes)?;
            let scope = scope(e, state.reg(base));
            let of_warp = options.of_warp.contains(&e.origin);
            let atomic = Atomic { op, fetch, width, src: Emitter::reg(src), scope, of_warp };
            atomic.lower(e, &target, state.reg(base));
        }
        Insn::Jump { when, target } => jump(e, when, target),
        Insn::CallHelper { id } => {
            if !crate::hash::lower(e, options, id, state)? {
                crate::call::lower(e, options, id, state)?;
            }
        }
        Insn::CallLocal { .. } | Insn::Exit => {
            return Err(
                e.fault("a call or exit is left after inlining; this is a defect of the compiler")
            );
        }
    }
    Ok(())
}

/// Who must see an atomic: the host too, where it maps the array.
fn scope(e: &Emitter, address: Value) -> &'static str {
    match address {
        Value::Global { map: Some(map), .. }
            if e.program.maps[map as usize].kind == MapKind::KernelShared =>
        {
            "sys"
        }
        _ => "gpu",
    }
}

/// The right operand of a 64-bit instruction: a register, or a literal of 64 bits.
fn operand64(src: Operand) -> String {
    match src {
        Operand::Reg(reg) => Emitter::reg(reg),
        Operand::Imm(imm) => format!("{:#x}", imm as i64 as u64),
    }
}

/// The right operand of a 32-bit instruction; a register goes through `temporary`.
fn operand32(e: &mut Emitter, src: Operand, temporary: &str) -> String {
    match src {
        Operand::Reg(reg) => {
            e.line(&format!("cvt.u32.u64 {temporary}, {}", Emitter::reg(reg)));
            temporary.into()
        }
        Operand::Imm(imm) => format!("{:#x}", imm as u32),
    }
}

fn alu(e: &mut Emitter, op: AluOp, width: Width, dst: Reg, src: Operand, state: &State) {
    // Addresses on the promoted stack have no numbers.
    let held = |reg| state.reg(reg).is_stack() && !e.in_memory;
    let from_stack = matches!(src, Operand::Reg(reg) if held(reg));
    if from_stack || (op != AluOp::Mov && held(dst)) {
        return;
    }
    let dst = Emitter::reg(dst);
    match width {
        Width::W64 => {
            let src = operand64(src);
            alu64(e, op, &dst, &src);
        }
        Width::W32 => {
            let src = operand32(e, src, "#w1");
            if op == AluOp::Mov {
                e.line(&format!("mov.b32 #w0, {src}"));
            } else {
                e.line(&format!("cvt.u32.u64 #w0, {dst}"));
                arithmetic(e, op, 32, "#w0", &src);
            }
            e.line(&format!("cvt.u64.u32 {dst}, #w0"));
        }
    }
}

fn alu64(e: &mut Emitter, op: AluOp, dst: &str, src: &str) {
    let src = match op {
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if src.starts_with('#') => {
            e.line(&format!("cvt.u32.u64 #w1, {src}"));
            "#w1"
        }
        _ => src,
    };
    if op == AluOp::Mov {
        e.line(&format!("mov.b64 {dst}, {src}"));
    } else {
        arithmetic(e, op, 64, dst, src);
    }
}

/// `dst = dst op src` on `bits` bits; counts of shifts have 32.
fn arithmetic(e: &mut Emitter, op: AluOp, bits: u32, dst: &str, src: &str) {
    let name = match op {
        AluOp::Add => "add.s",
        AluOp::Sub => "sub.s",
        AluOp::Mul => "mul.lo.s",
        AluOp::Or => "or.b",
        AluOp::And => "and.b",
        AluOp::Xor => "xor.b",
        AluOp::Lsh => "shl.b",
        AluOp::Rsh => "shr.u",
        AluOp::Arsh => "shr.s",
        AluOp::Mov => "mov.b",
        AluOp::Div | AluOp::Mod | AluOp::SignedDiv | AluOp::SignedMod => {
            return divide(e, op, bits, dst, src);
        }
    };
    match (op, src.strip_prefix("0x")) {
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Some(literal)) => {
            let count = u64::from_str_radix(literal, 16).unwrap_or(0) & u64::from(bits - 1);
            e.line(&format!("{name}{bits} {dst}, {dst}, {count}"));
        }
        (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, None) => {
            e.line(&format!("and.b32 #w1, {src}, {}", bits - 1));
            e.line(&format!("{name}{bits} {dst}, {dst}, #w1"));
        }
        _ => e.line(&format!("{name}{bits} {dst}, {dst}, {src}")),
    }
}

/// Division and remainder: a divisor that PTX leaves unspecified is replaced by 1 and the result
/// put right afterwards.
fn divide(e: &mut Emitter, op: AluOp, bits: u32, dst: &str, src: &str) {
    let signed = matches!(op, AluOp::SignedDiv | AluOp::SignedMod);
    let quotient = matches!(op, AluOp::Div | AluOp::SignedDiv);
    let name = if quotient { "div" } else { "rem" };
    let kind = if signed { 's' } else { 'u' };
    let (divisor, result) = if bits == 64 { ("#t1", "#t0") } else { ("#w2", "#w3") };
    e.line(&format!("mov.b{bits} {divisor}, {src}"));
    e.line(&format!("setp.eq.s{bits} #p0, {divisor}, 0"));
    if signed {
        e.line(&format!("setp.eq.s{bits} #p1, {divisor}, -1"));
        e.line(&format!("selp.b{bits} {divisor}, 1, {divisor}, #p1"));
    }
    e.line(&format!("selp.b{bits} {divisor}, 1, {divisor}, #p0"));
    e.line(&format!("{name}.{kind}{bits} {result}, {dst}, {divisor}"));
    // The remainder by -1 and by 1 are both 0.
    if signed && quotient {
        e.line(&format!("@#p1 neg.s{bits} {result}, {result}"));
    }
    let by_zero = if quotient { "0" } else { dst };
    e.line(&format!("selp.b{bits} {dst}, {by_zero}, {result}, #p0"));
}

fn sign_extend(e: &mut Emitter, width: Width, bits: u32, dst: Reg, src: Reg) {
    let (dst, src) = (Emitter::reg(dst), Emitter::reg(src));
    match width {
        Width::W64 => e.line(&format!("cvt.s64.s{bits} {dst}, {src}")),
        Width::W32 => {
            e.line(&format!("cvt.u32.u64 #w0, {src}"));
            e.line(&format!("cvt.s32.s{bits} #w0, #w0"));
            e.line(&format!("cvt.u64.u32 {dst}, #w0"));
        }
    }
}

fn endian(e: &mut Emitter, order: ByteOrder, bits: u32, reg: &str) {
    if order == ByteOrder::Little {
        match bits {
            64 => {}
            32 => e.line(&format!("and.b64 {reg}, {reg}, 0xffffffff")),
            _ => e.line(&format!("and.b64 {reg}, {reg}, 0xffff")),
        }
        return;
    }
    e.line(&format!("mov.b64 {{#w0, #w1}}, {reg}"));
    match bits {
        64 => {
            e.line("prmt.b32 #w0, #w0, 0, 0x0123");
            e.line("prmt.b32 #w1, #w1, 0, 0x0123");
            e.line(&format!("mov.b64 {reg}, {{#w1, #w0}}"));
        }
        32 => {
            e.line("prmt.b32 #w0, #w0, 0, 0x0123");
            e.line(&format!("cvt.u64.u32 {reg}, #w0"));
        }
        // Bytes 2 and 3 come from the second operand, which is 0.
        _ => {
            e.line("prmt.b32 #w0, #w0, 0, 0x4401");
            e.line(&format!("cvt.u64.u32 {reg}, #w0"));
        }
    }
}

fn wide(e: &mut Emitter, dst: Reg, value: Wide) {
    let dst = Emitter::reg(dst);
    match value {
        Wide::Number(value) => e.line(&format!("mov.b64 {dst}, {value:#x}")),
        // A map is known by its index wherever it is used.
        Wide::Map(map) => e.line(&format!("mov.b64 {dst}, {map}")),
        Wide::Data { section, offset } => {
            e.line(&format!("mov.u64 {dst}, $data{section}"));
            e.line(&format!("cvta.global.u64 {dst}, {dst}"));
            if offset > 0 {
                e.line(&format!("add.s64 {dst}, {dst}, {offset}"));
            }
        }
    }
}

fn jump(e: &mut Emitter, when: Option<Condition>, target: u32) {
    let Some(Condition { compare, width, dst, src }) = when else {
        return e.line(&format!("bra $L{target}"));
    };
    let (name, kind) = match compare {
        Compare::Eq => ("eq", 's'),
        Compare::Ne | Compare::Set => ("ne", 's'),
        Compare::Gt => ("gt", 'u'),
        Compare::Ge => ("ge", 'u'),
        Compare::Lt => ("lt", 'u'),
        Compare::Le => ("le", 'u'),
        Compare::Sgt => ("gt", 's'),
        Compare::Sge => ("ge", 's'),
        Compare::Slt => ("lt", 's'),
        Compare::Sle => ("le", 's'),
    };
    let bits = width.bits();
    let (left, right) = match width {
        Width::W64 => (Emitter::reg(dst), operand64(src)),
        Width::W32 => {
            e.line(&format!("cvt.u32.u64 #w0, {}", Emitter::reg(dst)));
            ("#w0".into(), operand32(e, src, "#w1"))
        }
    };
    if compare == Compare::Set {
        let masked = if width == Width::W64 { "#t0" } else { "#w0" };
        e.line(&format!("and.b{bits} {masked}, {left}, {right}"));
        e.line(&format!("setp.ne.s{bits} #p0, {masked}, 0"));
    } else {
        e.line(&format!("setp.{name}.{kind}{bits} #p0, {left}, {right}"));
    }
    e.line(&format!("@#p0 bra $L{target}"));
}

/// An atomic instruction.
struct Atomic {
    op: AtomicOp,
    fetch: bool,
    width: Width,
    src: String,
    scope: &'static str,
    /// Whether one lane adds for its warp.
    of_warp: bool,
}

impl Atomic {
    fn lower(&self, e: &mut Emitter, target: &Target, address: Value) {
        match target {
            Target::Cells(_) | Target::Context(_) | Target::Memory { space: ".local", .. } => {
                self.plain(e, target);
            }
            Target::Memory { space, base, offset, .. } => {
                let place = format!("[{base}+{offset}]");
                // Atomics on local memory are illegal, and this may be an address on the stack.
                let unsure = e.in_memory && !matches!(address, Value::Global { .. });
                if !unsure {
                    return self.shared(e, space, &place);
                }
                let (local, done) = (e.fresh(), e.fresh());
                e.line(&format!("isspacep.local #p2, {base}"));
                e.line(&format!("@#p2 bra {local}"));
                self.shared(e, space, &place);
                e.line(&format!("bra {done}"));
                e.label(&local);
                self.plain(e, target);
                e.label(&done);
            }
        }
    }

    /// On memory that other threads see.
    fn shared(&self, e: &mut Emitter, space: &str, place: &str) {
        let Self { op, fetch, width, src, scope, of_warp } = self;
        let bits = width.bits();
        if *of_warp && *op == AtomicOp::Add && !fetch {
            return self.by_first_lane(e, space, place);
        }
        let (name, kind) = match op {
            AtomicOp::Add => ("add", 'u'),
            AtomicOp::Or => ("or", 'b'),
            AtomicOp::And => ("and", 'b'),
            AtomicOp::Xor => ("xor", 'b'),
            AtomicOp::Exchange => ("exch", 'b'),
            AtomicOp::CompareExchange => ("cas", 'b'),
        };
        let narrow = *width == Width::W32;
        let mut operand = src.clone();
        if narrow {
            e.line(&format!("cvt.u32.u64 #w0, {src}"));
            operand = "#w0".into();
        }
        if !fetch {
            e.line(&format!("red.relaxed.{scope}{space}.{name}.{kind}{bits} {place}, {operand}"));
            return;
        }
        let result = if narrow { "#w2" } else { "#t0" };
        let head = format!("atom.acq_rel.{scope}{space}.{name}.{kind}{bits} {result}, {place}");
        if *op == AtomicOp::CompareExchange {
            let mut expected = "#r0";
            if narrow {
                e.line("cvt.u32.u64 #w1, #r0");
                expected = "#w1";
            }
            e.line(&format!("{head}, {expected}, {operand}"));
        } else {
            e.line(&format!("{head}, {operand}"));
        }
        let to = self.result();
        if narrow {
            e.line(&format!("cvt.u64.u32 {to}, #w2"));
        } else {
            e.line(&format!("mov.b64 {to}, #t0"));
        }
    }

    /// The lanes that are here add one number to one address: the first of them adds it so many times.
    fn by_first_lane(&self, e: &mut Emitter, space: &str, place: &str) {
        let Self { width, src, scope, .. } = self;
        e.line("activemask.b32 #w0");
        e.line("mov.u32 #w1, %lanemask_lt");
        e.line("and.b32 #w1, #w1, #w0");
        e.line("setp.eq.u32 #p0, #w1, 0");
        e.line("popc.b32 #w0, #w0");
        let (bits, sum) = match width {
            Width::W32 => {
                e.line(&format!("cvt.u32.u64 #w1, {src}"));
                e.line("mul.lo.u32 #w0, #w0, #w1");
                (32, "#w0")
            }
            Width::W64 => {
                e.line("cvt.u64.u32 #t0, #w0");
                e.line(&format!("mul.lo.u64 #t0, #t0, {src}"));
                (64, "#t0")
            }
        };
        e.line(&format!("@#p0 red.relaxed.{scope}{space}.add.u{bits} {place}, {sum}"));
    }

    /// Where what was there before goes.
    fn result(&self) -> &str {
        if self.op == AtomicOp::CompareExchange { "#r0" } else { &self.src }
    }

    /// On memory of this thread alone.
    fn plain(&self, e: &mut Emitter, target: &Target) {
        let size = if self.width == Width::W32 { Size::B4 } else { Size::B8 };
        e.load("#t0", target, size, false);
        let src = &self.src;
        match self.op {
            AtomicOp::Add => e.line(&format!("add.s64 #t1, #t0, {src}")),
            AtomicOp::Or => e.line(&format!("or.b64 #t1, #t0, {src}")),
            AtomicOp::And => e.line(&format!("and.b64 #t1, #t0, {src}")),
            AtomicOp::Xor => e.line(&format!("xor.b64 #t1, #t0, {src}")),
            AtomicOp::Exchange => e.line(&format!("mov.b64 #t1, {src}")),
            AtomicOp::CompareExchange => {
                e.line("mov.b64 #t2, #r0");
                if self.width == Width::W32 {
                    e.line("and.b64 #t2, #t2, 0xffffffff");
                }
                e.line("setp.eq.s64 #p0, #t0, #t2");
                e.line(&format!("selp.b64 #t1, {src}, #t0, #p0"));
            }
        }
        e.store(target, size, "#t1");
        if self.fetch {
            e.line(&format!("mov.b64 {}, #t0", self.result()));
        }
    }
}

/// The registers that `insn` reads or writes, numbered as after inlining.
pub(crate) fn registers(insn: &Insn, mut each: impl FnMut(Reg)) {
    let mut operand = |src: &Operand| {
        if let Operand::Reg(reg) = src {
            each(*reg);
        }
    };
    match insn {
        Insn::Alu { src, .. } | Insn::Store { src, .. } => operand(src),
        Insn::Jump { when: Some(Condition { src, .. }), .. } => operand(src),
        _ => {}
    }
    match *insn {
        Insn::Alu { dst, .. } | Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => each(dst),
        Insn::LoadWide { dst, .. } => each(dst),
        Insn::SignExtend { dst, src, .. } => [dst, src].into_iter().for_each(each),
        Insn::Load { dst, base, .. } => [dst, base].into_iter().for_each(each),
        Insn::Store { base, .. } => each(base),
        Insn::Atomic { base, src, .. } => [base, src, 0].into_iter().for_each(each),
        Insn::Jump { when: Some(Condition { dst, .. }), .. } => each(dst),
        Insn::CallHelper { .. } => (0..=5).for_each(each),
        Insn::Jump { when: None, .. } | Insn::CallLocal { .. } | Insn::Exit => {}
    }
}
