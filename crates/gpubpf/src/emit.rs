//! The text of a fragment while it is written, and accesses to memory and to the promoted stack.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::error::Fault;
use crate::flow::State;
use crate::inline::{self, STACK_BYTES};
use crate::insn::{Operand, Reg, Size};
use crate::options::Options;
use crate::program::Program;
use crate::value::{Value, zeros};

/// Where an access goes.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The stack, promoted to registers: an offset from the entry's top.
    Cells(i32),
    /// The context of a probe site: a byte of its words.
    Context(i64),
    /// An address in a state space (`""` is generic).
    Memory { space: &'static str, base: String, offset: i64, align: u8 },
}

/// The text of a fragment. In what is given to [`Emitter::line`], `#` begins a register of ours and
/// `$` a label of ours; both get the fragment's prefix.
pub(crate) struct Emitter<'a> {
    pub(crate) program: &'a Program,
    pub(crate) text: String,
    prefix: &'a str,
    /// The registers that hold the context of a probe site.
    context: &'a [String],
    /// The 4-byte cells of the stack that became registers, by offset / 4.
    pub(crate) cells: BTreeSet<i32>,
    /// Whether the stack lies in memory.
    pub(crate) in_memory: bool,
    /// Bytes of all stack frames.
    pub(crate) stack_bytes: i32,
    /// The instruction that is lowered now.
    pub(crate) origin: usize,
    labels: u32,
    /// How many PTX instructions were written.
    pub(crate) instructions: u32,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        program: &'a Program,
        options: &'a Options,
        depths: usize,
        in_memory: bool,
    ) -> Self {
        Self {
            program,
            text: String::new(),
            prefix: &options.prefix,
            context: &options.context,
            cells: BTreeSet::new(),
            in_memory,
            stack_bytes: STACK_BYTES * depths as i32,
            origin: 0,
            labels: 0,
            instructions: 0,
        }
    }

    /// Writes one instruction; the semicolon is added.
    pub(crate) fn line(&mut self, text: &str) {
        self.instructions += 1;
        self.text.push('\t');
        let text = self.named(text);
        self.text.push_str(&text);
        self.text.push_str(";\n");
    }

    /// Places a label.
    pub(crate) fn label(&mut self, label: &str) {
        let label = self.named(label);
        let _ = writeln!(self.text, "{label}:");
    }

    /// A label that no other line of the fragment has.
    pub(crate) fn fresh(&mut self) -> String {
        self.labels += 1;
        format!("$x{}", self.labels)
    }

    /// `text` with the prefix put in.
    pub(crate) fn named(&self, text: &str) -> String {
        text.replace('#', &format!("%{}", self.prefix)).replace('$', self.prefix)
    }

    pub(crate) fn fault(&self, reason: impl Into<String>) -> Fault {
        self.program.fault(self.origin, reason)
    }

    /// The PTX register of a register numbered as after inlining.
    pub(crate) fn reg(reg: Reg) -> String {
        format!("#r{reg}")
    }

    /// The address `base + offset`.
    pub(crate) fn target(
        &self,
        state: &State,
        base: Reg,
        offset: i64,
        bytes: i64,
    ) -> Result<Target, Fault> {
        let value = state.reg(base);
        let align = value.align().min(zeros(offset as u64));
        let memory = |space, align| Target::Memory { space, base: Self::reg(base), offset, align };
        Ok(match value {
            Value::Stack(at) => {
                let at = i64::from(at) + offset;
                if at < -i64::from(self.stack_bytes) || at + bytes > 0 {
                    return Err(self.fault(format!(
                        "{bytes} bytes at {at} of the stack, which has {}",
                        self.stack_bytes
                    )));
                }
                if self.in_memory {
                    let offset = at + i64::from(self.stack_bytes);
                    let align = zeros(offset as u64);
                    Target::Memory { space: ".local", base: "$stack".into(), offset, align }
                } else {
                    Target::Cells(at as i32)
                }
            }
            Value::Global { .. } => memory(".global", align),
            Value::Map(map) => {
                let name = &self.program.maps[map as usize].name;
                return Err(
                    self.fault(format!("map `{name}` is dereferenced; look a key up instead"))
                );
            }
            Value::Context(at) => self.context_word(at + offset, bytes)?,
            Value::MaybeContext => {
                return Err(self.fault("it reads the context through what may be something else"));
            }
            Value::MaybeStack => memory("", 0),
            Value::Any { .. } | Value::Const(_) => memory("", align),
        })
    }

    /// The address `base + offset`, which is written to.
    pub(crate) fn target_to_write(
        &self,
        state: &State,
        base: Reg,
        offset: i64,
        bytes: i64,
    ) -> Result<Target, Fault> {
        match self.target(state, base, offset, bytes)? {
            Target::Context(_) => Err(self.fault("the context is written")),
            target => Ok(target),
        }
    }

    /// The word of the context that holds `bytes` bytes at `at`.
    fn context_word(&self, at: i64, bytes: i64) -> Result<Target, Fault> {
        let words = self.context.len() as i64;
        if at < 0 || at + bytes > 8 * words || at.rem_euclid(8) + bytes > 8 {
            return Err(self.fault(format!(
                "{bytes} bytes at {at} of the context, which has {words} words of 8 bytes here"
            )));
        }
        Ok(Target::Context(at))
    }

    fn cell(&mut self, at: i32) -> String {
        let cell = at.div_euclid(4);
        self.cells.insert(cell);
        cell_name(cell)
    }

    /// Loads `size` bytes into `dst`, a 64-bit register.
    pub(crate) fn load(&mut self, dst: &str, target: &Target, size: Size, signed: bool) {
        let bits = size.bytes() * 8;
        let kind = if signed { 's' } else { 'u' };
        match target {
            Target::Cells(at) => self.load_cells(dst, *at, size, signed),
            Target::Context(at) => {
                let word = &self.context[(at / 8) as usize];
                let from = at % 8 * 8;
                self.line(&format!("shr.u64 #t6, {word}, {from}"));
                self.finish(dst, bits, signed);
            }
            Target::Memory { space, base, offset, align } if size.bytes() <= 1 << align => {
                self.line(&format!("ld{space}.{kind}{bits} {dst}, [{base}+{offset}]"));
            }
            Target::Memory { space, base, offset, align } => {
                let step = 1_u32 << align;
                let mut read = 0;
                while read < size.bytes() {
                    let from = offset + i64::from(read);
                    let part = if read == 0 { "#t6" } else { "#t7" };
                    self.line(&format!("ld{space}.u{} {part}, [{base}+{from}]", step * 8));
                    if read > 0 {
                        self.line(&format!("shl.b64 #t7, #t7, {}", read * 8));
                        self.line("or.b64 #t6, #t6, #t7");
                    }
                    read += step;
                }
                self.finish(dst, bits, signed);
            }
        }
    }

    /// Moves what was put together in `#t6` to `dst`.
    fn finish(&mut self, dst: &str, bits: u32, signed: bool) {
        match (signed, bits) {
            (true, _) => self.line(&format!("cvt.s64.s{bits} {dst}, #t6")),
            (false, 64) => self.line(&format!("mov.b64 {dst}, #t6")),
            (false, _) => self.line(&format!("cvt.u64.u{bits} {dst}, #t6")),
        }
    }

    fn load_cells(&mut self, dst: &str, at: i32, size: Size, signed: bool) {
        let (bytes, within) = (size.bytes() as i32, at.rem_euclid(4));
        let kind = if signed { 's' } else { 'u' };
        if size == Size::B8 && within == 0 {
            let (low, high) = (self.cell(at), self.cell(at + 4));
            self.line(&format!("mov.b64 {dst}, {{{low}, {high}}}"));
        } else if within + bytes <= 4 {
            let cell = self.cell(at);
            if bytes == 4 {
                self.line(&format!("cvt.{kind}64.{kind}32 {dst}, {cell}"));
            } else {
                self.line(&format!("bfe.{kind}32 #w7, {cell}, {}, {}", within * 8, bytes * 8));
                self.line(&format!("cvt.{kind}64.{kind}32 {dst}, #w7"));
            }
        } else {
            self.line("mov.b64 #t6, 0");
            for byte in 0..bytes {
                let cell = self.cell(at + byte);
                let shift = (at + byte).rem_euclid(4) * 8;
                self.line(&format!("bfe.u32 #w7, {cell}, {shift}, 8"));
                self.line("cvt.u64.u32 #t7, #w7");
                self.line(&format!("shl.b64 #t7, #t7, {}", byte * 8));
                self.line("or.b64 #t6, #t6, #t7");
            }
            self.finish(dst, size.bytes() * 8, signed);
        }
    }

    /// The 64-bit register that holds `src`.
    pub(crate) fn operand(&mut self, src: Operand, temporary: &str) -> String {
        match src {
            Operand::Reg(reg) => Self::reg(reg),
            Operand::Imm(imm) => {
                self.line(&format!("mov.b64 {temporary}, {imm}"));
                temporary.into()
            }
        }
    }

    /// Stores the lower `size` bytes of `src`, a 64-bit register.
    pub(crate) fn store(&mut self, target: &Target, size: Size, src: &str) {
        let bits = size.bytes() * 8;
        match target {
            Target::Cells(at) => self.store_cells(*at, size, src),
            // Refused by `target_to_write`.
            Target::Context(_) => {}
            Target::Memory { space, base, offset, align } if size.bytes() <= 1 << align => {
                self.line(&format!("st{space}.b{bits} [{base}+{offset}], {src}"));
            }
            Target::Memory { space, base, offset, align } => {
                let step = 1_u32 << align;
                let mut written = 0;
                while written < size.bytes() {
                    let to = offset + i64::from(written);
                    let mut part = src;
                    if written > 0 {
                        self.line(&format!("shr.u64 #t7, {src}, {}", written * 8));
                        part = "#t7";
                    }
                    self.line(&format!("st{space}.b{} [{base}+{to}], {part}", step * 8));
                    written += step;
                }
            }
        }
    }

    fn store_cells(&mut self, at: i32, size: Size, src: &str) {
        let (bytes, within) = (size.bytes() as i32, at.rem_euclid(4));
        if size == Size::B8 && within == 0 {
            let (low, high) = (self.cell(at), self.cell(at + 4));
            self.line(&format!("mov.b64 {{{low}, {high}}}, {src}"));
        } else if within + bytes <= 4 {
            let cell = self.cell(at);
            if bytes == 4 {
                self.line(&format!("cvt.u32.u64 {cell}, {src}"));
            } else {
                self.line(&format!("cvt.u32.u64 #w7, {src}"));
                self.line(&format!("bfi.b32 {cell}, #w7, {cell}, {}, {}", within * 8, bytes * 8));
            }
        } else {
            for byte in 0..bytes {
                let cell = self.cell(at + byte);
                let shift = (at + byte).rem_euclid(4) * 8;
                self.line(&format!("shr.u64 #t7, {src}, {}", byte * 8));
                self.line("cvt.u32.u64 #w7, #t7");
                self.line(&format!("bfi.b32 {cell}, #w7, {cell}, {shift}, 8"));
            }
        }
    }

    /// Declarations, what registers hold at first, and the written text: a block in braces.
    pub(crate) fn finish_block(
        mut self,
        used: &BTreeSet<Reg>,
        arguments: &[(Reg, String)],
    ) -> (String, u32) {
        let body = std::mem::take(&mut self.text);
        let prefix = self.prefix;
        let mut head = String::from("{\n");
        let _ = writeln!(head, "\t.reg .pred %{prefix}p<4>;");
        let _ = writeln!(head, "\t.reg .b32 %{prefix}w<8>;");
        let _ = writeln!(head, "\t.reg .b64 %{prefix}t<8>;");
        let _ = writeln!(head, "\t.reg .b64 %{prefix}r<{}>;", inline::REGISTERS);
        for &cell in &self.cells.clone() {
            let name = self.named(&cell_name(cell));
            let _ = writeln!(head, "\t.reg .b32 {name};");
            self.line(&format!("mov.b32 {}, 0", cell_name(cell)));
        }
        for (reg, argument) in arguments {
            self.line(&format!("mov.b64 {}, {argument}", Self::reg(*reg)));
        }
        for &reg in used {
            match inline::frame(reg) {
                None if arguments.iter().any(|(argument, _)| *argument == reg) => {}
                None => self.line(&format!("mov.b64 {}, 0", Self::reg(reg))),
                Some(depth) if self.in_memory => {
                    let top = self.stack_bytes - STACK_BYTES * depth as i32;
                    self.line("mov.u64 #t0, $stack");
                    self.line("cvta.local.u64 #t0, #t0");
                    self.line(&format!("add.s64 {}, #t0, {top}", Self::reg(reg)));
                }
                Some(_) => {}
            }
        }
        if self.in_memory {
            let _ = writeln!(head, "\t.local .align 8 .b8 {prefix}stack[{}];", self.stack_bytes);
            self.line("mov.b64 #t0, 0");
            for offset in (0..self.stack_bytes).step_by(8) {
                self.line(&format!("st.local.b64 [$stack+{offset}], #t0"));
            }
        }
        (head + &self.text + &body, self.instructions)
    }
}

/// The register of a cell.
fn cell_name(cell: i32) -> String {
    format!("#s{}", -cell)
}
