//! The text of one site: a block in braces around the fragment.

use std::fmt::Write as _;

use super::points::{Point, Word};
use super::registers::Width;
use super::{How, sample};
use crate::options::Table;
use crate::ptx::Guard;

/// What all sites of a probe share.
pub(super) struct Site<'a> {
    /// What no name of the module contains.
    pub(super) base: &'a str,
    /// The compiled program.
    pub(super) fragment: &'a str,
    /// The word of the table that switches the probe.
    pub(super) switch: usize,
    pub(super) how: &'a How,
}

/// An insertion: the byte of the text and what goes there.
pub(super) type Insertion = (usize, u8, String);

/// Leaves a block where a condition does not hold, whose predicate lies in a register.
pub(super) fn unless(base: &str, condition: Guard, predicate: &str) -> String {
    let negated = if condition.negated { "" } else { "!" };
    format!("\t@{negated}{predicate} bra {base}end;\n")
}

impl Site<'_> {
    /// The register of a word of the context.
    pub(super) fn context(base: &str, word: usize) -> String {
        format!("%{base}c{word}")
    }

    /// The beginning of a site's block: its registers.
    pub(super) fn declarations(base: &str) -> String {
        format!(
            "{{\n\t.reg .pred %{base}p<3>;\n\t.reg .b16 %{base}h;\n\t.reg .b32 %{base}w<6>;\n\t.reg .b64 \
             %{base}v;\n\t.reg .b64 %{base}c<9>;\n"
        )
    }

    /// The insertions that put the probe at `point`, which is the site `number`.
    pub(super) fn write(&self, point: &Point, number: usize, into: &mut Vec<Insertion>) {
        let base = self.base;
        let mut context = String::new();
        let mut words = vec![Word::Number(number as u64)];
        words.extend(point.words.iter().cloned());
        for at in 0..=crate::attach::TRACEPOINT_ARGUMENTS {
            let register = Self::context(base, at);
            if self.fragment.contains(&register) {
                let word = words.get(at).cloned().unwrap_or(Word::Number(0));
                self.word(&mut context, &register, &word);
            }
        }
        let declarations = Self::declarations(base);
        let (mut head, mut guard) = (String::new(), String::new());
        match (point.guard, point.before) {
            (Some(condition), None) => guard = unless(base, condition, condition.predicate),
            (Some(condition), Some(_)) => {
                let _ = writeln!(head, "\tmov.pred %{base}p2, {};", condition.predicate);
                guard = unless(base, condition, &format!("%{base}p2"));
            }
            (None, _) => {}
        }
        let gates = self.gates(Table::Constant);
        // What was loaded is there behind the instruction alone.
        let loaded = Self::context(base, crate::attach::LOADED);
        if let (Some((name, width)), true) = (point.loaded, self.fragment.contains(&loaded)) {
            self.word(&mut guard, &loaded, &Word::Register(name, width));
        }
        let tail = format!("{}{base}end:\n}}\n", self.fragment);
        match point.before {
            Some(before) if !head.is_empty() || !context.is_empty() => {
                into.push((before, point.rank.max(2), format!("{declarations}{head}{context}\t")));
                into.push((point.at, point.rank, format!("\n{gates}{guard}{tail}")));
            }
            // Behind a statement, so on a line of its own.
            Some(_) => {
                into.push((point.at, point.rank, format!("\n{declarations}{gates}{tail}")));
            }
            None => {
                let line = if point.rank == 0 { "\n" } else { "" };
                let text = format!("{line}{declarations}{gates}{guard}{context}{tail}\t");
                into.push((point.at, point.rank, text));
            }
        }
    }

    /// The switch and the sampling: branches that whole warps take together.
    pub(super) fn gates(&self, table: Table) -> String {
        let (base, mut text) = (self.base, String::new());
        if self.how.switch {
            let _ = write!(
                text,
                "\t{};\n\tsetp.eq.s64 %{base}p0, %{base}v, 0;\n\t@%{base}p0 bra.uni {base}end;\n",
                table.load(&format!("%{base}v"), self.switch)
            );
        }
        text += &sample::gates(base, self.how);
        text
    }

    fn word(&self, text: &mut String, to: &str, word: &Word) {
        let base = self.base;
        let _ = match *word {
            Word::Number(number) => writeln!(text, "\tmov.b64 {to}, {number:#x};"),
            Word::Register(name, Width::Predicate) => {
                writeln!(text, "\tselp.b64 {to}, 1, 0, {name};")
            }
            Word::Register(name, Width::Bits(64)) => writeln!(text, "\tmov.b64 {to}, {name};"),
            Word::Register(name, Width::Bits(32)) => {
                writeln!(text, "\tmov.b32 %{base}w0, {name};\n\tcvt.u64.u32 {to}, %{base}w0;")
            }
            Word::Register(name, Width::Bits(16)) => {
                writeln!(text, "\tmov.b16 %{base}h, {name};\n\tcvt.u64.u16 {to}, %{base}h;")
            }
            Word::Register(name, Width::Bits(_)) => writeln!(text, "\tcvt.u64.u8 {to}, {name};"),
            Word::Address(name, 32, offset) => writeln!(
                text,
                "\tmov.b32 %{base}w0, {name};\n\tcvt.u64.u32 {to}, %{base}w0;\n\tadd.s64 {to}, {to}, \
                 {offset};"
            ),
            Word::Address(name, _, offset) => {
                writeln!(text, "\tmov.b64 {to}, {name};\n\tadd.s64 {to}, {to}, {offset};")
            }
            Word::Variable(name, global, offset) => {
                let _ = writeln!(text, "\tmov.u64 {to}, {name};");
                if global {
                    let _ = writeln!(text, "\tcvta.global.u64 {to}, {to};");
                }
                writeln!(text, "\tadd.s64 {to}, {to}, {offset};")
            }
        };
    }
}
