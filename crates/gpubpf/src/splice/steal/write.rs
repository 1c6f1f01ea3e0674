//! The text of a kernel whose blocks take their turns themselves.
//!
//! ```text
//! again:  all threads wait for each other
//!         the first one takes the next number, makes a block of it, and tells the others
//!         all threads wait for it, and leave together if there is none
//!         (the kernel's text; where a thread would return, it goes to `again`)
//! ```
//!
//! *Memory.* A launch is given the address of a record ([`Record`](super::Record)) that nobody else uses meanwhile, all zero, and leaves it so: the
//! last block that finds no work clears it. So nothing has to be done on the host between two launches of a stream.
//!
//! *On devices since sm_100* the hardware gives blocks that it has not begun to blocks that ask for them
//! (`clusterlaunchcontrol`). Where no program orders the blocks, that is what they do: the launch has the grid that it
//! has otherwise, and needs no record and no further parameter. The answer comes by an asynchronous copy, for which a
//! barrier in shared memory waits.
//!
//! *The order.* A program may say which block is the n-th. It is a proposal: a bit for each block says whether it was
//! taken, and who finds it taken takes the next free one. So each block is executed once whatever the program returns.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::rules::Allowed;
use super::{ORDERED, PARAMETER_BYTES, RECORD_HEAD};
use crate::ptx::{Function, Kind, Module};

/// Which block is the n-th.
pub(super) struct Order {
    /// The compiled program, whose context lies in the registers `cN` and whose result in `d2`.
    pub(super) fragment: String,
    /// What keeps it from running, if it is switched: a word of constant memory that is 0.
    pub(super) switch: Option<String>,
}

/// What a kernel becomes.
pub(super) struct Rewrite<'a, 'm> {
    pub(super) module: &'m Module<'a>,
    pub(super) function: &'m Function,
    /// Its name.
    pub(super) name: &'m str,
    /// What no name of the module contains.
    pub(super) base: &'m str,
    pub(super) allowed: &'m Allowed,
    pub(super) order: Option<&'m Order>,
    /// The statement before which its threads are together: behind its declarations.
    pub(super) begin: usize,
    /// Bytes of shared memory for what the first thread tells the others.
    pub(super) shared: u32,
    /// Whether blocks ask the hardware.
    pub(super) by_hardware: bool,
}

impl Rewrite<'_, '_> {
    /// The kernel's text, which goes behind the one that it was made of.
    pub(super) fn text(&self) -> Option<String> {
        let (open, close) = self.function.body?;
        let b = self.base;
        let mut out = format!("\n\n{}{{", self.head()?);
        self.copy(open + 1..self.begin, &mut out);
        let (before, after) = match self.by_hardware {
            true => (self.asking(), self.answer()),
            false => (self.declarations(), self.next()),
        };
        let _ = write!(out, "\n{before}{after}{b}body:");
        self.copy(self.begin..close, &mut out);
        let _ = write!(out, "\n\tbra {b}again;\n}}\n");
        Some(out)
    }

    /// The head under another name, with one parameter more.
    fn head(&self) -> Option<String> {
        let code = self.module.code(&self.module.statements()[self.function.head]);
        let code = code.trim_end_matches('{');
        let name = &self.function.name;
        let at = name_at(code, name)?;
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        if self.by_hardware {
            return Some(format!("{before}{}{after}", self.name));
        }
        let parameter = format!(".param .align 8 .b8 {}steal[{PARAMETER_BYTES}]", self.base);
        let with = match after.trim_start().starts_with('(') {
            false => format!("({parameter}){after}"),
            true => {
                let (open, close) = brackets(after)?;
                let others = after[open + 1..close].trim_end();
                let comma = if others.trim().is_empty() { "" } else { ",\n\t" };
                format!("({others}{comma}{parameter}\n){}", &after[close + 1..])
            }
        };
        Some(format!("{before}{}{with}", self.name))
    }

    /// What comes before the first block, where blocks ask the hardware.
    fn asking(&self) -> String {
        let (b, bytes) = (self.base, self.shared);
        let align = bytes.next_power_of_two();
        let mut text = format!(
            "\t.shared .align {align} .b8 {b}next[{bytes}];\n\t.reg .pred %{b}p<2>;\n\t.reg .b32 %{b}w<3>;\n\t.reg .b32 \
             %{b}i<3>;\n\t.reg .b32 %{b}n<3>;\n\t.reg .b128 %{b}q;\n"
        );
        for (axis, side) in ['x', 'y', 'z'].into_iter().enumerate() {
            let _ = writeln!(
                text,
                "\tmov.u32 %{b}i{axis}, %ctaid.{side};\n\tmov.u32 %{b}n{axis}, %nctaid.{side};"
            );
        }
        text += &self.first_thread();
        let _ = write!(
            text,
            "\tmov.u32 %{b}w2, 0;\n\t@!%{b}p0 bra {b}body;\n\tmbarrier.init.shared::cta.b64 [{b}next+16], 1;\n\
             \tfence.mbarrier_init.release.cluster;\n\tbra {b}body;\n"
        );
        text
    }

    /// Asks for the next block, and waits for the answer.
    fn answer(&self) -> String {
        let (b, barrier) = (self.base, self.allowed.barrier);
        let copies = if self.allowed.copies { "\tcp.async.wait_all;\n" } else { "" };
        format!(
            "{b}again:\n{copies}\tbarrier.sync {barrier};\n\t@!%{b}p0 bra {b}wait;\n\
             \tfence.proxy.async.shared::cta;\n\
             \tmbarrier.arrive.expect_tx.relaxed.cta.shared::cta.b64 _, [{b}next+16], 16;\n\
             \tclusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [{b}next], \
             [{b}next+16];\n\
             {b}wait:\n\tmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %{b}p1, [{b}next+16], %{b}w2;\n\
             \t@!%{b}p1 bra {b}wait;\n\tld.shared.b128 %{b}q, [{b}next];\n\txor.b32 %{b}w2, %{b}w2, 1;\n\
             \tclusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %{b}p1, %{b}q;\n\t@!%{b}p1 bra {b}gone;\n\
             \tclusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%{b}i0, %{b}i1, %{b}i2, %{b}w0}}, \
             %{b}q;\n\tbra {b}body;\n{b}gone:\n\tret;\n"
        )
    }

    /// Sets `p0` in the first thread of the block.
    fn first_thread(&self) -> String {
        let b = self.base;
        format!(
            "\tmov.u32 %{b}w0, %tid.x;\n\tmov.u32 %{b}w1, %tid.y;\n\tor.b32 %{b}w0, %{b}w0, %{b}w1;\n\tmov.u32 %{b}w1, \
             %tid.z;\n\tor.b32 %{b}w0, %{b}w0, %{b}w1;\n\tsetp.eq.u32 %{b}p0, %{b}w0, 0;\n"
        )
    }

    fn declarations(&self) -> String {
        let (b, bytes) = (self.base, self.shared);
        let align = bytes.max(16);
        let mut text = format!(
            "\t.shared .align {align} .b8 {b}next[{bytes}];\n\t.reg .pred %{b}p<5>;\n\t.reg .b32 %{b}w<14>;\n\t.reg .b32 \
             %{b}i<3>;\n\t.reg .b32 %{b}n<3>;\n\t.reg .b64 %{b}d<6>;\n\t.reg .b64 %{b}c<5>;\n"
        );
        // What the launch says of itself.
        text += &self.first_thread();
        let _ = write!(
            text,
            "\tld.param.u64 %{b}d0, [{b}steal];\n\tcvta.to.global.u64 %{b}d0, %{b}d0;\n\tld.param.u32 %{b}n0, \
             [{b}steal+8];\n\tld.param.u32 %{b}n1, [{b}steal+12];\n\tld.param.u32 %{b}n2, [{b}steal+16];\n"
        );
        text
    }

    /// What stands before a block's own text.
    fn next(&self) -> String {
        let (b, barrier) = (self.base, self.allowed.barrier);
        let mut text = format!("{b}again:\n");
        if self.allowed.copies {
            text.push_str("\tcp.async.wait_all;\n");
        }
        let _ = write!(
            text,
            "\tbarrier.sync {barrier};\n\t@!%{b}p0 bra {b}wait;\n\
             \tmul.lo.u32 %{b}w2, %{b}n0, %{b}n1;\n\tmul.lo.u32 %{b}w2, %{b}w2, %{b}n2;\n\
             \tatom.global.add.u32 %{b}w3, [%{b}d0], 1;\n\tsetp.ge.u32 %{b}p1, %{b}w3, %{b}w2;\n\
             \t@%{b}p1 bra {b}none;\n"
        );
        if let Some(order) = self.order {
            text += &self.ordered(order);
        }
        // The number as a place in the grid.
        let _ = write!(
            text,
            "\trem.u32 %{b}i0, %{b}w3, %{b}n0;\n\tdiv.u32 %{b}w4, %{b}w3, %{b}n0;\n\trem.u32 %{b}i1, %{b}w4, %{b}n1;\n\
             \tdiv.u32 %{b}i2, %{b}w4, %{b}n1;\n\tmov.u32 %{b}w4, 1;\n\
             \tst.shared.v4.u32 [{b}next], {{%{b}i0, %{b}i1, %{b}i2, %{b}w4}};\n\tbra {b}wait;\n"
        );
        // The last block that comes here says so.
        let _ = write!(
            text,
            "{b}none:\n\tfence.acq_rel.gpu;\n\tatom.global.add.u32 %{b}w4, [%{b}d0+4], 1;\n\tfence.acq_rel.gpu;\n\
             \tld.param.u32 %{b}w5, [{b}steal+20];\n\tadd.u32 %{b}w4, %{b}w4, 1;\n\
             \tsetp.eq.u32 %{b}p1, %{b}w4, %{b}w5;\n\tselp.u32 %{b}w4, 2, 0, %{b}p1;\n\
             \tst.shared.v4.u32 [{b}next], {{%{b}w4, %{b}w4, %{b}w4, %{b}w4}};\n\
             \t@%{b}p1 st.global.u64 [%{b}d0], 0;\n\
             {b}wait:\n\tbarrier.sync {barrier};\n\
             \tld.shared.v4.u32 {{%{b}i0, %{b}i1, %{b}i2, %{b}w4}}, [{b}next];\n\
             \tsetp.eq.u32 %{b}p1, %{b}w4, 1;\n\t@%{b}p1 bra {b}body;\n"
        );
        if self.order.is_some() {
            text += &self.cleared();
        }
        text + "\tret;\n"
    }

    /// Asks the program, and takes the block that it names or the next free one.
    fn ordered(&self, order: &Order) -> String {
        let b = self.base;
        let mut text =
            format!("\tsetp.gt.u32 %{b}p1, %{b}w2, {ORDERED};\n\t@%{b}p1 bra {b}taken;\n");
        if let Some(word) = &order.switch {
            let _ = write!(
                text,
                "\tcvt.u64.u32 %{b}d2, %{b}w3;\n\tld.const.u64 %{b}d1, [{word}];\n\tsetp.eq.s64 %{b}p1, %{b}d1, 0;\n\
                 \t@%{b}p1 bra {b}named;\n"
            );
        }
        for (word, from) in ["w3", "w2", "n0", "n1", "n2"].into_iter().enumerate() {
            let _ = writeln!(text, "\tcvt.u64.u32 %{b}c{word}, %{b}{from};");
        }
        let _ = write!(
            text,
            "{}{b}named:\n\tcvt.u64.u32 %{b}d1, %{b}w2;\n\trem.u64 %{b}d2, %{b}d2, %{b}d1;\n\
             \tcvt.u32.u64 %{b}w3, %{b}d2;\n",
            order.fragment
        );
        // Less than all are taken while somebody is here, so that there is one to be found.
        let _ = write!(
            text,
            "{b}claim:\n\tshr.u32 %{b}w6, %{b}w3, 5;\n\tmul.wide.u32 %{b}d3, %{b}w6, 4;\n\
             \tadd.s64 %{b}d3, %{b}d0, %{b}d3;\n\tand.b32 %{b}w7, %{b}w3, 31;\n\tmov.u32 %{b}w8, 1;\n\
             \tshl.b32 %{b}w8, %{b}w8, %{b}w7;\n\tatom.global.or.b32 %{b}w9, [%{b}d3+{RECORD_HEAD}], %{b}w8;\n\
             \tand.b32 %{b}w9, %{b}w9, %{b}w8;\n\tsetp.eq.u32 %{b}p1, %{b}w9, 0;\n\t@%{b}p1 bra {b}taken;\n\
             {b}look:\n\tsetp.ge.u32 %{b}p1, %{b}w3, %{b}w2;\n\tselp.u32 %{b}w3, 0, %{b}w3, %{b}p1;\n\
             \tshr.u32 %{b}w6, %{b}w3, 5;\n\tmul.wide.u32 %{b}d3, %{b}w6, 4;\n\tadd.s64 %{b}d3, %{b}d0, %{b}d3;\n\
             \tand.b32 %{b}w7, %{b}w3, 31;\n\tld.volatile.global.u32 %{b}w9, [%{b}d3+{RECORD_HEAD}];\n\
             \tnot.b32 %{b}w9, %{b}w9;\n\tshr.u32 %{b}w9, %{b}w9, %{b}w7;\n\tsetp.eq.u32 %{b}p1, %{b}w9, 0;\n\
             \t@%{b}p1 bra {b}full;\n\tbrev.b32 %{b}w9, %{b}w9;\n\tclz.b32 %{b}w9, %{b}w9;\n\
             \tadd.u32 %{b}w3, %{b}w3, %{b}w9;\n\tsetp.ge.u32 %{b}p1, %{b}w3, %{b}w2;\n\t@%{b}p1 bra {b}look;\n\
             \tbra {b}claim;\n\
             {b}full:\n\tor.b32 %{b}w3, %{b}w3, 31;\n\tadd.u32 %{b}w3, %{b}w3, 1;\n\tbra {b}look;\n{b}taken:\n"
        );
        text
    }

    /// The last block clears the bits that say which blocks were taken.
    fn cleared(&self) -> String {
        let b = self.base;
        format!(
            "\tmul.lo.u32 %{b}w2, %{b}n0, %{b}n1;\n\tmul.lo.u32 %{b}w2, %{b}w2, %{b}n2;\n\
             \tsetp.ne.u32 %{b}p1, %{b}w4, 2;\n\tsetp.gt.u32 %{b}p2, %{b}w2, {ORDERED};\n\
             \tor.pred %{b}p1, %{b}p1, %{b}p2;\n\t@%{b}p1 bra {b}gone;\n\
             \tadd.u32 %{b}w2, %{b}w2, 31;\n\tshr.u32 %{b}w2, %{b}w2, 5;\n\
             \tmov.u32 %{b}w5, %ntid.x;\n\tmov.u32 %{b}w6, %ntid.y;\n\tmov.u32 %{b}w7, %ntid.z;\n\
             \tmov.u32 %{b}w8, %tid.z;\n\tmov.u32 %{b}w9, %tid.y;\n\
             \tmad.lo.u32 %{b}w8, %{b}w8, %{b}w6, %{b}w9;\n\tmov.u32 %{b}w9, %tid.x;\n\
             \tmad.lo.u32 %{b}w8, %{b}w8, %{b}w5, %{b}w9;\n\tmul.lo.u32 %{b}w5, %{b}w5, %{b}w6;\n\
             \tmul.lo.u32 %{b}w5, %{b}w5, %{b}w7;\n\
             {b}clear:\n\tsetp.ge.u32 %{b}p1, %{b}w8, %{b}w2;\n\t@%{b}p1 bra {b}gone;\n\
             \tmul.wide.u32 %{b}d3, %{b}w8, 4;\n\tadd.s64 %{b}d3, %{b}d0, %{b}d3;\n\
             \tst.global.u32 [%{b}d3+{RECORD_HEAD}], 0;\n\tadd.u32 %{b}w8, %{b}w8, %{b}w5;\n\tbra {b}clear;\n{b}gone:\n"
        )
    }

    /// Statements of the kernel: threads that would return go back, and the block's number and the grid are the launch's.
    fn copy(&self, statements: std::ops::Range<usize>, out: &mut String) {
        let named = self.named();
        for at in statements {
            let statement = &self.module.statements()[at];
            let code = self.module.code(statement);
            let gap = &self.module.text()[statement.begin..statement.start];
            match statement.kind {
                // Labels that debug information alone names stay with the first one.
                Kind::Label if !named.contains(code.trim_end_matches(':').trim_end()) => {}
                Kind::Instruction => {
                    out.push_str(gap);
                    let insn = self.module.instruction(statement);
                    match insn.filter(|insn| matches!(insn.name(), "ret" | "exit")) {
                        Some(insn) => {
                            let guard = insn.guard.map(|guard| {
                                format!(
                                    "@{}{} ",
                                    if guard.negated { "!" } else { "" },
                                    guard.predicate
                                )
                            });
                            let _ =
                                write!(out, "{}bra {}again;", guard.unwrap_or_default(), self.base);
                        }
                        None => self.in_grid(code, out),
                    }
                }
                _ => {
                    out.push_str(gap);
                    out.push_str(code);
                }
            }
        }
    }

    /// What instructions and directives of the body name.
    fn named(&self) -> HashSet<&str> {
        let (open, close) = self.function.body.unwrap_or((0, 0));
        let all = self.module.statements()[open..close].iter();
        let code = all.filter(|s| matches!(s.kind, Kind::Instruction | Kind::Directive));
        let code = code
            .map(|statement| self.module.code(statement))
            .filter(|code| !code.starts_with(".loc"));
        code.flat_map(super::body::words).collect()
    }

    /// An instruction with the block's number and the grid in registers.
    fn in_grid(&self, code: &str, out: &mut String) {
        if !code.contains("ctaid") {
            return out.push_str(code);
        }
        let mut rest = code;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
            let end = rest[at..].find(|c| !word(c)).map_or(rest.len(), |end| at + end);
            let (register, side) = match rest[at..end].rsplit_once('.') {
                Some(("%ctaid", side)) => ("i", side),
                Some(("%nctaid", side)) => ("n", side),
                _ => ("", ""),
            };
            match "xyz".find(side).filter(|_| side.len() == 1) {
                Some(axis) => _ = write!(out, "%{}{register}{axis}", self.base),
                None => out.push_str(&rest[at..end]),
            }
            rest = &rest[end..];
        }
        out.push_str(rest);
    }
}

/// Where a kernel's name stands in the text of its head: behind `.entry`, white space and comments.
pub(super) fn name_at(head: &str, name: &str) -> Option<usize> {
    let mut at = head.find(".entry")? + ".entry".len();
    loop {
        let rest = head[at..].trim_start();
        at = head.len() - rest.len();
        let comment = match rest.get(..2) {
            Some("//") => rest.find('\n')?,
            Some("/*") => rest.find("*/")? + 2,
            _ => return rest.starts_with(name).then_some(at),
        };
        at += comment;
    }
}

/// The brackets that open first in a text, and close it.
pub(super) fn brackets(text: &str) -> Option<(usize, usize)> {
    let open = text.find('(')?;
    let mut depth = 0_usize;
    let close = text[open..].find(|c| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth - 1,
            _ => depth,
        };
        depth == 0
    })?;
    Some((open, open + close))
}
