//! Where in a function a probe is put: places in the text, each with what is known there.

use std::collections::HashMap;

use super::access::{self, Space};
use super::names::glob;
use super::registers::{Registers, Width};
use crate::attach::{Attach, Moment, TRACEPOINT_ARGUMENTS};
use crate::ptx::{Function, Guard, Instruction, Kind, Module, Statement};

/// What the pragma of a tracepoint begins with.
const TRACEPOINT: &str = "gpuwhy_tp";

/// A word of a site's context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// This number.
    Number(u64),
    /// The bits of a register.
    Register(&'a str, Width),
    /// A register of so many bits, and what is added to it.
    Address(&'a str, u32, i64),
    /// A variable's address, and what is added to it; whether it is a global variable.
    Variable(&'a str, bool, i64),
}

/// A place for a probe.
#[derive(Debug, Clone)]
pub(super) struct Point<'a> {
    /// The byte of the text where the probe goes.
    pub(super) at: usize,
    /// For a probe after an instruction: where what must be read before it goes.
    pub(super) before: Option<usize>,
    /// Of two at one byte, the lower comes first.
    pub(super) rank: u8,
    /// The condition under which the instruction is executed, and the probe too.
    pub(super) guard: Option<Guard<'a>>,
    /// The words of the context after the first.
    pub(super) words: Vec<Word<'a>>,
    /// Behind an instruction: a register that has what it loaded.
    pub(super) loaded: Option<(&'a str, Width)>,
    /// The source file's number and the line there, where the text has them.
    pub(super) source: Option<(u32, u32)>,
}

const AFTER: u8 = 0;
const FIRST: u8 = 1;
const BEFORE: u8 = 2;

/// The places in a function for `attach`, and notes on what could not be reached.
pub(super) fn points<'a>(
    module: &Module<'a>,
    function: &Function,
    attach: &Attach,
    files: &HashMap<u32, String>,
) -> (Vec<Point<'a>>, Vec<String>) {
    let Some((open, close)) = function.body else { return (Vec::new(), Vec::new()) };
    let mut walk = Walk {
        module,
        statements: &module.statements()[..=close],
        calls: calls(module, open, close),
        registers: Registers::default(),
        source: None,
        points: Vec::new(),
        odd: HashMap::new(),
    };
    match attach {
        Attach::Entry(_) if function.kernel => walk.entry(open, close),
        Attach::Return(_) if function.kernel => walk.falling_off(open, close),
        _ => {}
    }
    let mut pending = false;
    for at in open..=close {
        let statement = walk.statements[at];
        match statement.kind {
            Kind::Open => walk.registers.open(),
            Kind::Close => walk.registers.close(),
            Kind::Directive => pending |= walk.directive(&statement, attach, files),
            Kind::Instruction => {
                if std::mem::take(&mut pending) {
                    let before = walk.before(at);
                    walk.push(before, BEFORE, None, Vec::new());
                }
                walk.instruction(at, function, attach);
            }
            _ => {}
        }
    }
    let mut notes: Vec<String> = walk
        .odd
        .into_iter()
        .map(|(why, count)| format!("{}: {count} instructions {why}", function.name))
        .collect();
    notes.sort();
    (walk.points, notes)
}

struct Walk<'a, 'm> {
    module: &'m Module<'a>,
    statements: &'m [Statement],
    /// For statements within the sequence of a call: its first and last statement.
    calls: HashMap<usize, (usize, usize)>,
    registers: Registers<'a>,
    source: Option<(u32, u32)>,
    points: Vec<Point<'a>>,
    odd: HashMap<&'static str, usize>,
}

impl<'a> Walk<'a, '_> {
    fn push(&mut self, at: usize, rank: u8, guard: Option<Guard<'a>>, words: Vec<Word<'a>>) {
        let source = self.source;
        self.points.push(Point { at, before: None, rank, guard, words, loaded: None, source });
    }

    /// The kernel's first place where all its threads are together: behind the declarations, and
    /// before the first label that something jumps back to.
    fn entry(&mut self, open: usize, close: usize) {
        let first = (open + 1..close).find(|&at| {
            let code = self.module.code(&self.statements[at]);
            match self.statements[at].kind {
                Kind::Directive => !declares(code),
                // Debug information names labels at the beginning; nothing jumps to them.
                Kind::Label => self.is_target(code.trim_end_matches(':').trim_end(), open, close),
                _ => true,
            }
        });
        let at = self.statements[first.unwrap_or(close)].start;
        self.push(at, FIRST, None, Vec::new());
    }

    fn is_target(&self, label: &str, open: usize, close: usize) -> bool {
        self.statements[open..close].iter().any(|statement| {
            matches!(statement.kind, Kind::Instruction | Kind::Directive)
                && self.module.code(statement).contains(label)
        })
    }

    /// A kernel whose text ends without a `ret`.
    fn falling_off(&mut self, open: usize, close: usize) {
        let last = self.statements[open + 1..close].iter().rev().find(|statement| {
            let label = || self.module.code(statement).trim_end_matches(':').trim_end();
            match statement.kind {
                Kind::Close | Kind::Open | Kind::Directive => false,
                Kind::Label => self.is_target(label(), open, close),
                _ => true,
            }
        });
        let ends = last.and_then(|statement| self.module.instruction(statement)).is_some_and(|i| {
            i.guard.is_none() && matches!(i.name(), "ret" | "exit" | "bra" | "brx" | "trap")
        });
        if !ends {
            self.push(self.statements[close].start, BEFORE, None, Vec::new());
        }
    }

    /// A directive within the body; whether the next instruction begins a line that is wanted.
    fn directive(
        &mut self,
        statement: &Statement,
        attach: &Attach,
        files: &HashMap<u32, String>,
    ) -> bool {
        let code = self.module.code(statement);
        if code.starts_with(".reg") {
            self.registers.declare(code);
        } else if let Some(rest) = code.strip_prefix(".loc") {
            let mut numbers = rest.split_whitespace().map_while(|word| word.parse::<u32>().ok());
            let here = numbers.next().zip(numbers.next());
            let same = here == self.source;
            self.source = here;
            if let (Attach::Line { file, line, .. }, Some((number, at))) = (attach, here) {
                let path = files.get(&number).map_or("", String::as_str);
                let meant = path == file
                    || path.strip_suffix(file.as_str()).is_some_and(|head| head.ends_with('/'));
                return !same && meant && at == *line;
            }
        } else if let (Attach::Tracepoint { name, .. }, Some(text)) = (attach, pragma(code)) {
            let mut words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
            let here = words.next() == Some(TRACEPOINT);
            if here && words.next().is_some_and(|found| glob(name, found)) {
                let arguments: Vec<Word> =
                    words.take(TRACEPOINT_ARGUMENTS).map(|word| self.argument(word)).collect();
                self.push(statement.end, AFTER, None, arguments);
            }
        }
        false
    }

    fn argument(&mut self, word: &'a str) -> Word<'a> {
        match (self.registers.width(word), access::number(word)) {
            (Some(Width::Bits(bits)), _) if bits > 64 => {}
            (Some(width), _) => return Word::Register(word, width),
            (None, Some(value)) => return Word::Number(value as u64),
            (None, None) => {}
        }
        *self
            .odd
            .entry("have an argument that is no register or number; it is given as 0")
            .or_default() += 1;
        Word::Number(0)
    }

    fn instruction(&mut self, at: usize, function: &Function, attach: &Attach) {
        let statement = self.statements[at];
        let Some(insn) = self.module.instruction(&statement) else { return };
        match attach {
            // In a function, `ret` goes back to the kernel.
            Attach::Return(_)
                if insn.name() == "exit" || insn.name() == "ret" && function.kernel =>
            {
                self.push(statement.start, BEFORE, insn.guard, Vec::new());
            }
            Attach::Accesses if access::wanted(&crate::attach::What::Accesses, &insn) => {
                self.around(at, &insn, Moment::Before);
            }
            Attach::Instructions { what, moment, .. } if access::wanted(what, &insn) => {
                self.around(at, &insn, *moment);
            }
            _ => {}
        }
    }

    /// Before or after the instruction `at`, with what is known of it.
    fn around(&mut self, at: usize, insn: &Instruction<'a>, moment: Moment) {
        let words = self.access(insn);
        if moment == Moment::Before {
            let before = self.before(at);
            self.push(before, BEFORE, insn.guard, words);
            return;
        }
        if matches!(insn.name(), "bra" | "brx" | "ret" | "exit" | "trap") {
            *self.odd.entry("have nothing after them").or_default() += 1;
            return;
        }
        let end = self.calls.get(&at).map_or(at, |&(_, last)| last);
        self.push(self.statements[end].end, AFTER, insn.guard, words);
        let (before, loaded) = (self.before(at), self.loaded(insn));
        if let Some(point) = self.points.last_mut() {
            (point.before, point.loaded) = (Some(before), loaded);
        }
    }

    /// A register that an instruction loads: of several the last.
    fn loaded(&self, insn: &Instruction<'a>) -> Option<(&'a str, Width)> {
        if !matches!(insn.name(), "ld" | "ldu" | "atom") {
            return None;
        }
        let all = insn.operands.first()?.trim_matches(['{', '}']);
        let name = all.rsplit(',').map(str::trim).find(|name| *name != "_")?;
        let width = self.registers.width(name)?;
        matches!(width, Width::Bits(..=64)).then_some((name, width))
    }

    /// The byte before the instruction `at`, or before what belongs to it.
    fn before(&self, at: usize) -> usize {
        let mut first = self.calls.get(&at).map_or(at, |&(first, _)| first);
        // This pragma speaks of the instruction that follows it.
        while first > 0
            && self.statements[first - 1].kind == Kind::Directive
            && pragma(self.module.code(&self.statements[first - 1]))
                .is_some_and(|text| text.starts_with("used_bytes_mask"))
        {
            first -= 1;
        }
        self.statements[first].start
    }

    /// Address, bytes and kind of an access.
    fn access(&mut self, insn: &Instruction<'a>) -> Vec<Word<'a>> {
        let Some(found) = access::access(insn) else { return Vec::new() };
        let kind = Word::Number(found.kind | (found.space as u64) << 8);
        let address = match access::base_and_offset(found.address) {
            _ if found.space == Space::Param => None,
            Some((base, offset)) => match (self.registers.width(base), access::number(base)) {
                (Some(Width::Bits(bits @ (32 | 64))), _) => Some(Word::Address(base, bits, offset)),
                (Some(_), _) => None,
                (None, Some(number)) => Some(Word::Number(number.wrapping_add(offset) as u64)),
                (None, None) if base.starts_with('%') => None,
                (None, None) => Some(Word::Variable(base, found.space == Space::Global, offset)),
            },
            None => None,
        };
        if address.is_none() && found.space != Space::Param {
            *self.odd.entry("have an address that is not read; it is given as 0").or_default() += 1;
        }
        vec![address.unwrap_or(Word::Number(0)), Word::Number(found.bytes), kind]
    }
}

/// Whether a directive declares something, so that code may not stand before it.
fn declares(code: &str) -> bool {
    let word = code.split([' ', '\t']).next().unwrap_or_default();
    !matches!(word, ".loc" | ".pragma" | ".file" | ".section" | ".branchtargets")
}

/// The text of a pragma.
fn pragma(code: &str) -> Option<&str> {
    let rest = code.strip_prefix(".pragma")?.trim_start().strip_prefix('"')?;
    rest.split('"').next()
}

/// Sequences of calls: nothing may stand between the parameters' stores, the call, and the loads of
/// what it returns.
fn calls(module: &Module, open: usize, close: usize) -> HashMap<usize, (usize, usize)> {
    let statements = module.statements();
    let belongs = |at: usize, store: bool| match statements[at].kind {
        Kind::Directive => true,
        // The prototype of a call through a pointer.
        Kind::Label => module.code(&statements[at + 1]).starts_with(".call"),
        Kind::Instruction => module.instruction(&statements[at]).is_some_and(|insn| {
            insn.opcode.starts_with(if store { "st.param" } else { "ld.param" })
        }),
        _ => false,
    };
    let mut found = HashMap::new();
    let is_call =
        |at: &usize| module.instruction(&statements[*at]).is_some_and(|insn| insn.name() == "call");
    for at in (open + 1..close).filter(is_call) {
        let (mut first, mut last) = (at, at);
        while first > open + 1 && belongs(first - 1, true) {
            first -= 1;
        }
        while last + 1 < close && belongs(last + 1, false) {
            last += 1;
        }
        found.extend((first..=last).map(|inside| (inside, (first, last))));
    }
    found
}
