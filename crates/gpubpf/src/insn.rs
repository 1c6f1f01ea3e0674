//! eBPF instructions as typed values, decoded strictly.
//!
//! The layout of each instruction, and which of its fields must be zero, follow RFC 9669. Where the
//! RFC reserves a field and a program sets it, decoding fails: such a program means something that
//! this compiler does not know.

use crate::error::{Fault, Place};

/// One of `r0`–`r10`.
pub type Reg = u8;

/// The frame pointer: read-only, 512 bytes of stack lie below it.
pub const FRAME_POINTER: Reg = 10;

/// Whether an operation works on 64 bits, or on the lower 32 and clears the upper ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 32 bits; the result is zero-extended.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// The width in bits.
    pub fn bits(self) -> u32 {
        match self {
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// A second operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// The instruction's immediate; 64-bit operations sign-extend it.
    Imm(i32),
}

/// Arithmetic of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AluOp {
    /// `dst + src`
    Add,
    /// `dst - src`
    Sub,
    /// `dst * src`, its lower half
    Mul,
    /// Unsigned division; by zero it gives 0.
    Div,
    /// Signed division, truncating; by zero it gives 0.
    SignedDiv,
    /// Bitwise or.
    Or,
    /// Bitwise and.
    And,
    /// Shift left; the count is taken modulo the width.
    Lsh,
    /// Logical shift right; the count is taken modulo the width.
    Rsh,
    /// Unsigned remainder; by zero it leaves `dst`.
    Mod,
    /// Signed remainder, truncating; by zero it leaves `dst`.
    SignedMod,
    /// Bitwise exclusive or.
    Xor,
    /// `src`
    Mov,
    /// Arithmetic shift right; the count is taken modulo the width.
    Arsh,
}

/// What a byte-order instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// To little endian: on a GPU the lower bits are kept as they are.
    Little,
    /// To big endian: bytes are swapped.
    Big,
    /// Bytes are swapped whatever the machine.
    Swap,
}

/// How a jump compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `dst & src != 0`
    Set,
    /// unsigned `>`
    Gt,
    /// unsigned `>=`
    Ge,
    /// unsigned `<`
    Lt,
    /// unsigned `<=`
    Le,
    /// signed `>`
    Sgt,
    /// signed `>=`
    Sge,
    /// signed `<`
    Slt,
    /// signed `<=`
    Sle,
}

/// A condition of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// How the operands are compared.
    pub compare: Compare,
    /// How many of their bits.
    pub width: Width,
    /// The left operand.
    pub dst: Reg,
    /// The right operand.
    pub src: Operand,
}

/// What an atomic instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    /// `*p += src`
    Add,
    /// `*p |= src`
    Or,
    /// `*p &= src`
    And,
    /// `*p ^= src`
    Xor,
    /// `src = exchange(p, src)`
    Exchange,
    /// `r0 = compare_exchange(p, r0, src)`
    CompareExchange,
}

/// A size of an access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
}

impl Size {
    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }
}

/// A 64-bit immediate, which the linker may have given a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wide {
    /// A number.
    Number(u64),
    /// A map, by its index in the object.
    Map(u32),
    /// An address within a read-only section, by the section's index in the object.
    Data {
        /// Which of the object's data sections.
        section: u32,
        /// The offset in bytes.
        offset: u32,
    },
}

/// An instruction. Targets are indices into the program's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insn {
    /// Arithmetic.
    Alu {
        /// What is done.
        op: AluOp,
        /// On how many bits.
        width: Width,
        /// The left operand and the result.
        dst: Reg,
        /// The right operand.
        src: Operand,
    },
    /// The lower `bits` of `src`, sign-extended to `width`.
    SignExtend {
        /// The width of the result; 32 clears the upper half.
        width: Width,
        /// 8, 16 or 32.
        bits: u32,
        /// The result.
        dst: Reg,
        /// What is extended.
        src: Reg,
    },
    /// `-dst`
    Neg {
        /// On how many bits.
        width: Width,
        /// The operand and the result.
        dst: Reg,
    },
    /// Byte order of the lower `bits`; the rest becomes 0.
    Endian {
        /// To which order.
        order: ByteOrder,
        /// 16, 32 or 64.
        bits: u32,
        /// The operand and the result.
        dst: Reg,
    },
    /// A 64-bit immediate.
    LoadWide {
        /// The result.
        dst: Reg,
        /// What is loaded.
        value: Wide,
    },
    /// A load.
    Load {
        /// How many bytes.
        size: Size,
        /// Whether they are sign-extended.
        signed: bool,
        /// Whether later accesses must not be seen before it.
        acquire: bool,
        /// The result.
        dst: Reg,
        /// The address.
        base: Reg,
        /// Added to the address.
        offset: i16,
    },
    /// A store.
    Store {
        /// How many bytes.
        size: Size,
        /// Whether earlier accesses must be seen before it.
        release: bool,
        /// The address.
        base: Reg,
        /// Added to the address.
        offset: i16,
        /// What is stored.
        src: Operand,
    },
    /// An atomic read-modify-write.
    Atomic {
        /// What is done.
        op: AtomicOp,
        /// Whether `src` (or `r0`) receives what was there before.
        fetch: bool,
        /// On how many bits.
        width: Width,
        /// The address.
        base: Reg,
        /// Added to the address.
        offset: i16,
        /// The operand.
        src: Reg,
    },
    /// A jump; without a condition always.
    Jump {
        /// When it is taken.
        when: Option<Condition>,
        /// Where to.
        target: u32,
    },
    /// A call of a function of the program.
    CallLocal {
        /// Its first instruction.
        target: u32,
    },
    /// A call of a helper.
    CallHelper {
        /// The helper's number.
        id: u32,
    },
    /// The end of a function; `r0` is its result.
    Exit,
}

/// Eight bytes of a program, taken apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) code: u8,
    pub(crate) dst: Reg,
    pub(crate) src: Reg,
    pub(crate) offset: i16,
    pub(crate) imm: i32,
}

impl Slot {
    pub(crate) fn read(bytes: [u8; 8]) -> Self {
        Self {
            code: bytes[0],
            dst: bytes[1] & 15,
            src: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }
}

/// Where a jump or call of decoded text goes, in slots relative to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// An instruction that refers to no other.
    Plain(Insn),
    /// A jump over so many slots.
    Jump(Option<Condition>, i64),
    /// A call of the function so many slots on.
    CallLocal(i64),
    /// A 64-bit immediate's first slot, with its kind: the `src` field.
    Wide { dst: Reg, kind: Reg, value: u64 },
}

/// What a bad slot is refused with; the place is added by who knows it.
type Reason = Result<Decoded, String>;

const CLASS_LD: u8 = 0;
const CLASS_LDX: u8 = 1;
const CLASS_ST: u8 = 2;
const CLASS_STX: u8 = 3;
const CLASS_ALU: u8 = 4;
const CLASS_JMP: u8 = 5;
const CLASS_JMP32: u8 = 6;

/// Decodes the instruction that begins at `slot`; `next` is the slot after it.
pub(crate) fn decode(slot: Slot, next: Option<Slot>) -> Reason {
    if slot.dst > 10 || slot.src > 10 {
        return Err(format!("register r{} does not exist", slot.dst.max(slot.src)));
    }
    let class = slot.code & 7;
    let decoded = match class {
        CLASS_LD => wide(slot, next),
        CLASS_LDX => load(slot),
        CLASS_ST | CLASS_STX => store(slot),
        CLASS_JMP | CLASS_JMP32 => jump(slot),
        _ => alu(slot),
    }?;
    if writes_frame_pointer(&decoded) {
        return Err("r10 is written; the frame pointer is read-only".into());
    }
    Ok(decoded)
}

fn writes_frame_pointer(decoded: &Decoded) -> bool {
    match decoded {
        Decoded::Plain(insn) => written(insn) == Some(FRAME_POINTER),
        Decoded::Wide { dst, .. } => *dst == FRAME_POINTER,
        _ => false,
    }
}

/// The register that `insn` writes, calls aside.
pub(crate) fn written(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::SignExtend { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::Endian { dst, .. }
        | Insn::LoadWide { dst, .. }
        | Insn::Load { dst, .. } => Some(dst),
        Insn::Atomic { op: AtomicOp::CompareExchange, .. } => Some(0),
        Insn::Atomic { fetch: true, src, .. } => Some(src),
        _ => None,
    }
}

/// Refuses a field that the RFC reserves.
fn zero(what: &str, value: i64) -> Result<(), String> {
    match value {
        0 => Ok(()),
        _ => Err(format!("the unused field `{what}` is {value} and must be 0")),
    }
}

fn unknown(slot: Slot) -> String {
    format!("opcode {:#04x} is not known", slot.code)
}

fn wide(slot: Slot, next: Option<Slot>) -> Reason {
    match slot.code {
        0x18 => {}
        0x20 | 0x28 | 0x30 | 0x40 | 0x48 | 0x50 => {
            return Err(format!(
                "opcode {:#04x} loads from a packet, and a GPU has none",
                slot.code
            ));
        }
        _ => return Err(unknown(slot)),
    }
    zero("offset", slot.offset.into())?;
    let next = next.ok_or("a 64-bit immediate is cut off")?;
    if next.code != 0 || next.dst != 0 || next.src != 0 || next.offset != 0 {
        return Err("the second half of a 64-bit immediate is not one".into());
    }
    let value = u64::from(slot.imm as u32) | u64::from(next.imm as u32) << 32;
    Ok(Decoded::Wide { dst: slot.dst, kind: slot.src, value })
}

fn size(code: u8) -> Size {
    match code & 0x18 {
        0x00 => Size::B4,
        0x08 => Size::B2,
        0x10 => Size::B1,
        _ => Size::B8,
    }
}

fn load(slot: Slot) -> Reason {
    let size = size(slot.code);
    let signed = match slot.code & 0xe0 {
        0x60 => false,
        0x80 if size != Size::B8 => true,
        0x20 | 0xa0 => return Err(format!("opcode {:#04x} is for the kernel's arena", slot.code)),
        _ => return Err(unknown(slot)),
    };
    zero("imm", slot.imm.into())?;
    let (dst, base, offset) = (slot.dst, slot.src, slot.offset);
    Ok(Decoded::Plain(Insn::Load { size, signed, acquire: false, dst, base, offset }))
}

fn store(slot: Slot) -> Reason {
    let size = size(slot.code);
    let (base, offset) = (slot.dst, slot.offset);
    let src = match (slot.code & 0xe0, slot.code & 7) {
        (0x60, CLASS_ST) => {
            zero("src", slot.src.into())?;
            Operand::Imm(slot.imm)
        }
        (0x60, _) => {
            zero("imm", slot.imm.into())?;
            Operand::Reg(slot.src)
        }
        (0xc0, CLASS_STX) => return atomic(slot, size),
        _ => return Err(unknown(slot)),
    };
    Ok(Decoded::Plain(Insn::Store { size, release: false, base, offset, src }))
}

fn atomic(slot: Slot, size: Size) -> Reason {
    let (base, offset, src) = (slot.dst, slot.offset, slot.src);
    // Loads that acquire and stores that release, of every size (ISA v4 of recent compilers).
    match slot.imm {
        0x100 => {
            let (dst, base) = (slot.dst, slot.src);
            let load = Insn::Load { size, signed: false, acquire: true, dst, base, offset };
            return Ok(Decoded::Plain(load));
        }
        0x110 => {
            let src = Operand::Reg(src);
            return Ok(Decoded::Plain(Insn::Store { size, release: true, base, offset, src }));
        }
        _ => {}
    }
    let width = match size {
        Size::B4 => Width::W32,
        Size::B8 => Width::W64,
        _ => return Err("an atomic instruction of less than 4 bytes".into()),
    };
    let (op, fetch) = match slot.imm {
        0x00 => (AtomicOp::Add, false),
        0x01 => (AtomicOp::Add, true),
        0x40 => (AtomicOp::Or, false),
        0x41 => (AtomicOp::Or, true),
        0x50 => (AtomicOp::And, false),
        0x51 => (AtomicOp::And, true),
        0xa0 => (AtomicOp::Xor, false),
        0xa1 => (AtomicOp::Xor, true),
        0xe1 => (AtomicOp::Exchange, true),
        0xf1 => (AtomicOp::CompareExchange, true),
        other => return Err(format!("atomic operation {other:#x} is not known")),
    };
    Ok(Decoded::Plain(Insn::Atomic { op, fetch, width, base, offset, src }))
}

/// The right operand of arithmetic and of jumps: the fields of the other form must be zero.
fn operand(slot: Slot) -> Result<Operand, String> {
    if slot.code & 8 != 0 {
        zero("imm", slot.imm.into())?;
        Ok(Operand::Reg(slot.src))
    } else {
        zero("src", slot.src.into())?;
        Ok(Operand::Imm(slot.imm))
    }
}

fn alu(slot: Slot) -> Reason {
    let width = if slot.code & 7 == CLASS_ALU { Width::W32 } else { Width::W64 };
    let dst = slot.dst;
    match slot.code & 0xf0 {
        0x80 => {
            if slot.code & 8 != 0 {
                return Err(unknown(slot));
            }
            zero("src", slot.src.into())?;
            zero("imm", slot.imm.into())?;
            zero("offset", slot.offset.into())?;
            return Ok(Decoded::Plain(Insn::Neg { width, dst }));
        }
        0xd0 => return endian(slot, width),
        0xb0 if slot.code & 8 != 0 && slot.offset != 0 => return sign_extend(slot, width),
        _ => {}
    }
    let signed = match slot.offset {
        0 => false,
        1 if matches!(slot.code & 0xf0, 0x30 | 0x90) => true,
        other => return Err(format!("the unused field `offset` is {other} and must be 0")),
    };
    let op = match (slot.code & 0xf0, signed) {
        (0x00, _) => AluOp::Add,
        (0x10, _) => AluOp::Sub,
        (0x20, _) => AluOp::Mul,
        (0x30, false) => AluOp::Div,
        (0x30, true) => AluOp::SignedDiv,
        (0x40, _) => AluOp::Or,
        (0x50, _) => AluOp::And,
        (0x60, _) => AluOp::Lsh,
        (0x70, _) => AluOp::Rsh,
        (0x90, false) => AluOp::Mod,
        (0x90, true) => AluOp::SignedMod,
        (0xa0, _) => AluOp::Xor,
        (0xb0, _) => AluOp::Mov,
        (0xc0, _) => AluOp::Arsh,
        _ => return Err(unknown(slot)),
    };
    Ok(Decoded::Plain(Insn::Alu { op, width, dst, src: operand(slot)? }))
}

fn sign_extend(slot: Slot, width: Width) -> Reason {
    zero("imm", slot.imm.into())?;
    let bits = match (slot.offset, width) {
        (8 | 16, _) | (32, Width::W64) => slot.offset as u32,
        (1, Width::W64) => {
            return Err("a cast between address spaces, for the kernel's arena".into());
        }
        (other, _) => return Err(format!("a move that sign-extends {other} bits")),
    };
    Ok(Decoded::Plain(Insn::SignExtend { width, bits, dst: slot.dst, src: slot.src }))
}

fn endian(slot: Slot, width: Width) -> Reason {
    zero("src", slot.src.into())?;
    zero("offset", slot.offset.into())?;
    let order = match (width, slot.code & 8 != 0) {
        (Width::W32, false) => ByteOrder::Little,
        (Width::W32, true) => ByteOrder::Big,
        (Width::W64, false) => ByteOrder::Swap,
        (Width::W64, true) => return Err(unknown(slot)),
    };
    match slot.imm {
        16 | 32 | 64 => {
            let bits = slot.imm as u32;
            Ok(Decoded::Plain(Insn::Endian { order, bits, dst: slot.dst }))
        }
        other => Err(format!("byte order of {other} bits")),
    }
}

fn jump(slot: Slot) -> Reason {
    let width = if slot.code & 7 == CLASS_JMP { Width::W64 } else { Width::W32 };
    let compare = match slot.code & 0xf0 {
        0x00 => return always(slot, width),
        0x80 => return call(slot),
        0x90 => return exit(slot),
        0x10 => Compare::Eq,
        0x20 => Compare::Gt,
        0x30 => Compare::Ge,
        0x40 => Compare::Set,
        0x50 => Compare::Ne,
        0x60 => Compare::Sgt,
        0x70 => Compare::Sge,
        0xa0 => Compare::Lt,
        0xb0 => Compare::Le,
        0xc0 => Compare::Slt,
        0xd0 => Compare::Sle,
        0xe0 => {
            return Err("`may_goto` counts iterations in the kernel; write a bounded loop".into());
        }
        _ => return Err(unknown(slot)),
    };
    let condition = Condition { compare, width, dst: slot.dst, src: operand(slot)? };
    Ok(Decoded::Jump(Some(condition), slot.offset.into()))
}

fn always(slot: Slot, width: Width) -> Reason {
    if slot.code & 8 != 0 {
        return Err(unknown(slot));
    }
    zero("dst", slot.dst.into())?;
    zero("src", slot.src.into())?;
    // `gotol`: the class of 32-bit jumps takes the distance from the immediate.
    if width == Width::W32 {
        zero("offset", slot.offset.into())?;
        return Ok(Decoded::Jump(None, slot.imm.into()));
    }
    zero("imm", slot.imm.into())?;
    Ok(Decoded::Jump(None, slot.offset.into()))
}

fn call(slot: Slot) -> Reason {
    match slot.code {
        0x85 => {}
        0x8d => {
            return Err("an indirect call (callx); a GPU probe calls functions by name only".into());
        }
        _ => return Err(unknown(slot)),
    }
    zero("dst", slot.dst.into())?;
    zero("offset", slot.offset.into())?;
    match slot.src {
        0 => Ok(Decoded::Plain(Insn::CallHelper { id: slot.imm as u32 })),
        1 => Ok(Decoded::CallLocal(slot.imm.into())),
        2 => Err(format!("a call of kernel function {} (kfunc)", slot.imm)),
        other => Err(format!("a call of kind {other}")),
    }
}

fn exit(slot: Slot) -> Reason {
    if slot.code != 0x95 {
        return Err(unknown(slot));
    }
    zero("dst", slot.dst.into())?;
    zero("src", slot.src.into())?;
    zero("offset", slot.offset.into())?;
    zero("imm", slot.imm.into())?;
    Ok(Decoded::Plain(Insn::Exit))
}

/// A function's instructions from its bytes, without any relocation: `lddw` gives numbers.
///
/// Returns the instructions with the slot that each begins at.
pub fn decode_all(bytes: &[u8], section: &str) -> Result<Vec<(u32, Insn)>, Fault> {
    let decoded = decode_slots(bytes, section)?;
    let mut insns = Vec::with_capacity(decoded.len());
    for &(slot, decoded_insn) in &decoded {
        let place = Place::new(section, slot);
        let find = |distance: i64| target(&decoded, slot, distance, &place);
        let insn = match decoded_insn {
            Decoded::Plain(insn) => insn,
            Decoded::Jump(when, distance) => Insn::Jump { when, target: find(distance)? },
            Decoded::CallLocal(distance) => Insn::CallLocal { target: find(distance)? },
            Decoded::Wide { dst, kind: 0, value } => {
                Insn::LoadWide { dst, value: Wide::Number(value) }
            }
            Decoded::Wide { kind, .. } => {
                return Err(
                    place.fault(format!("a 64-bit immediate of kind {kind} without relocation"))
                );
            }
        };
        insns.push((slot, insn));
    }
    Ok(insns)
}

/// The index of the instruction `distance` slots after the one behind `slot`.
pub(crate) fn target(
    decoded: &[(u32, Decoded)],
    slot: u32,
    distance: i64,
    place: &Place,
) -> Result<u32, Fault> {
    let wanted = i64::from(slot) + 1 + distance;
    decoded
        .binary_search_by_key(&wanted, |&(s, _)| i64::from(s))
        .map(|index| index as u32)
        .map_err(|_| place.fault(format!("a jump to slot {wanted}, where no instruction begins")))
}

/// Instructions of a section before jumps are resolved, each with the slot that it begins at.
pub(crate) fn decode_slots(bytes: &[u8], section: &str) -> Result<Vec<(u32, Decoded)>, Fault> {
    let (slots, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(
            Place::new(section, slots.len() as u32).fault("an instruction is cut off".into())
        );
    }
    // The kernel's own limit for one program; it also bounds what a hostile file may cost.
    if slots.len() > MAX_SLOTS {
        let reason = format!("{} instructions; at most {MAX_SLOTS} are read", slots.len());
        return Err(Place::new(section, 0).fault(reason));
    }
    let mut decoded = Vec::with_capacity(slots.len());
    let mut at = 0;
    while at < slots.len() {
        let next = slots.get(at + 1).map(|&bytes| Slot::read(bytes));
        let insn = decode(Slot::read(slots[at]), next)
            .map_err(|reason| Place::new(section, at as u32).fault(reason))?;
        decoded.push((at as u32, insn));
        at += if matches!(insn, Decoded::Wide { .. }) { 2 } else { 1 };
    }
    Ok(decoded)
}

/// The most slots of 8 bytes that a section may have.
pub const MAX_SLOTS: usize = 1_000_000;
