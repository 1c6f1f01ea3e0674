//! PTX text as statements, without loss: each byte of the text belongs to one statement or to what
//! follows the last, so that the text comes back as it was and an insertion changes nothing else.
//!
//! The reader knows where statements begin and end, and of instructions the guard, the opcode and
//! the operands. What an opcode means is left to who asks; so text of newer PTX versions is read as
//! well. The grammar follows NVIDIA's PTX ISA reference, chapters "Syntax" and "Directives".

use std::ops::Range;

/// The longest text that is read, in bytes.
pub const MAX_TEXT: usize = 256 << 20;

/// The deepest nesting of braces, parentheses and brackets.
const MAX_NESTING: usize = 256;

/// Why a text cannot be read, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct TextFault {
    /// The line, from 1.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
    /// What is wrong there.
    pub reason: String,
}

/// What a statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `.version`, `.reg`, `.loc`, a variable, a section: all that begins with a dot and is no function.
    Directive,
    /// The head of a function or kernel, up to the brace that opens its body.
    Head,
    /// A function that is declared without a body.
    Declaration,
    /// `{`.
    Open,
    /// `}`.
    Close,
    /// `name:`.
    Label,
    /// An instruction, with its guard and semicolon.
    Instruction,
}

/// One statement: a place in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    /// What it is.
    pub kind: Kind,
    /// Where the white space and comments before it begin: the end of the statement before.
    pub begin: usize,
    /// Its first byte.
    pub start: usize,
    /// The byte after its last.
    pub end: usize,
}

/// A function or kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name as the text has it (mangled).
    pub name: String,
    /// Whether it is a kernel (`.entry`).
    pub kernel: bool,
    /// The statement of its head.
    pub head: usize,
    /// The statements of the braces around its body; `None` where it is only declared.
    pub body: Option<(usize, usize)>,
}

/// The condition under which an instruction is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard<'a> {
    /// Whether it is executed where the predicate is false (`@!%p`).
    pub negated: bool,
    /// The predicate's register.
    pub predicate: &'a str,
}

/// An instruction taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// `@%p` or `@!%p`.
    pub guard: Option<Guard<'a>>,
    /// All of it: `ld.global.nc.v4.f32`.
    pub opcode: &'a str,
    /// What stands between the commas outside of brackets, without white space around.
    pub operands: Vec<&'a str>,
}

impl<'a> Instruction<'a> {
    /// The parts of the opcode between dots; `::` is kept within a part.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> {
        self.opcode.split('.')
    }

    /// The first part of the opcode: `ld`.
    pub fn name(&self) -> &'a str {
        self.parts().next().unwrap_or_default()
    }
}

/// A text that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module<'a> {
    text: &'a str,
    statements: Vec<Statement>,
    functions: Vec<Function>,
}

impl<'a> Module<'a> {
    /// Reads a module. Zeros at its end, as fat binaries have them, count as white space.
    pub fn read(text: &'a str) -> Result<Self, TextFault> {
        let mut reader = Reader { text, at: 0, statements: Vec::new(), functions: Vec::new() };
        if text.len() > MAX_TEXT {
            return Err(reader.fault(0, format!("{} bytes; at most {MAX_TEXT}", text.len())));
        }
        reader.module()?;
        Ok(Self { text, statements: reader.statements, functions: reader.functions })
    }

    /// The whole text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The statements, in the text's order.
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Kernels and functions, in the text's order.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The text of a statement, without what stands before it.
    pub fn code(&self, statement: &Statement) -> &'a str {
        &self.text[statement.start..statement.end]
    }

    /// A statement taken apart, if it is an instruction.
    pub fn instruction(&self, statement: &Statement) -> Option<Instruction<'a>> {
        if statement.kind != Kind::Instruction {
            return None;
        }
        instruction(self.code(statement)).ok()
    }

    /// The text put together again from its statements: equal to [`Module::text`].
    pub fn rebuild(&self) -> String {
        let mut whole = String::with_capacity(self.text.len());
        for statement in &self.statements {
            whole.push_str(&self.text[statement.begin..statement.end]);
        }
        let end = self.statements.last().map_or(0, |last| last.end);
        whole.push_str(&self.text[end..]);
        whole
    }

    /// The line and column, from 1, of a byte of the text.
    pub fn place(&self, at: usize) -> (usize, usize) {
        place(self.text, at)
    }
}

fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    (line, before.len() - start + 1)
}

/// A token: a word (names, numbers, opcodes, directives), a string, or one other character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Word,
    Text,
    Sign(u8),
}

/// The place of what cannot be read, and the reason.
type Trouble = (usize, &'static str);

/// The token at or after `from`: what it is and its range; `None` at the end.
fn token(text: &str, from: usize) -> Result<Option<(Token, Range<usize>)>, Trouble> {
    let bytes = text.as_bytes();
    let start = skip(text, from)?;
    let Some(&first) = bytes.get(start) else { return Ok(None) };
    if first == b'"' {
        let mut end = start + 1;
        loop {
            match bytes.get(end) {
                None | Some(b'\n') => return Err((start, "a string without an end")),
                Some(b'"') => return Ok(Some((Token::Text, start..end + 1))),
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
            }
        }
    }
    let mut end = start;
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'$' | b'%' | b'.' => end += 1,
            // `shared::cta`, `L1::evict_last`.
            b':' if end > start && bytes.get(end + 1) == Some(&b':') => end += 2,
            _ => break,
        }
    }
    if end > start {
        return Ok(Some((Token::Word, start..end)));
    }
    match first {
        b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b',' | b';' | b':' | b'@'
        | b'!' | b'+' | b'-' | b'*' | b'/' | b'&' | b'|' | b'^' | b'~' | b'=' | b'?' => {
            Ok(Some((Token::Sign(first), start..start + 1)))
        }
        _ => Err((start, "a character that PTX does not have")),
    }
}

/// The end of white space and comments that begin at `at`.
fn skip(text: &str, mut at: usize) -> Result<usize, Trouble> {
    let bytes = text.as_bytes();
    loop {
        match bytes.get(at) {
            Some(b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c) => at += 1,
            Some(0) if bytes[at..].iter().all(|&byte| byte == 0) => return Ok(bytes.len()),
            Some(b'/') if bytes.get(at + 1) == Some(&b'/') => {
                let line = bytes[at..].iter().position(|&byte| byte == b'\n');
                at = line.map_or(bytes.len(), |line| at + line + 1);
            }
            Some(b'/') if bytes.get(at + 1) == Some(&b'*') => match text[at + 2..].find("*/") {
                Some(end) => at += end + 4,
                None => return Err((at, "a comment without an end")),
            },
            _ => return Ok(at),
        }
    }
}

/// Takes the instruction `code` apart.
fn instruction(code: &str) -> Result<Instruction<'_>, Trouble> {
    let missing = (0, "an instruction without an opcode");
    let mut next = token(code, 0)?.ok_or(missing)?;
    let mut guard = None;
    if next.0 == Token::Sign(b'@') {
        next = token(code, next.1.end)?.ok_or(missing)?;
        let negated = next.0 == Token::Sign(b'!');
        if negated {
            next = token(code, next.1.end)?.ok_or(missing)?;
        }
        if next.0 != Token::Word {
            return Err((next.1.start, "a guard without a predicate"));
        }
        guard = Some(Guard { negated, predicate: &code[next.1.clone()] });
        next = token(code, next.1.end)?.ok_or(missing)?;
    }
    let starts_well = code.as_bytes()[next.1.start].is_ascii_alphabetic();
    if next.0 != Token::Word || !starts_well {
        return Err((next.1.start, "an opcode is expected"));
    }
    let opcode = &code[next.1.clone()];
    let operands = operands(code, next.1.end)?;
    Ok(Instruction { guard, opcode, operands })
}

/// The operands from `from` up to the semicolon.
fn operands(code: &str, from: usize) -> Result<Vec<&str>, Trouble> {
    let mut found = Vec::new();
    let (mut depth, mut at) = (0_usize, from);
    let mut current: Option<Range<usize>> = None;
    while let Some((kind, range)) = token(code, at)? {
        at = range.end;
        match kind {
            Token::Sign(b'(' | b'[' | b'{') => depth += 1,
            Token::Sign(b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            Token::Sign(b';') => break,
            Token::Sign(b',') if depth == 0 => {
                let operand = current.take().ok_or((range.start, "an operand is missing"))?;
                found.push(&code[operand]);
                continue;
            }
            _ => {}
        }
        current = Some(current.map_or(range.start, |operand| operand.start)..range.end);
    }
    match current {
        Some(operand) => found.push(&code[operand]),
        None if found.is_empty() => {}
        None => return Err((at, "an operand is missing")),
    }
    Ok(found)
}

/// Directives that end with their line and not with a semicolon.
const LINES: [&str; 5] = [".version", ".target", ".address_size", ".file", ".loc"];

struct Reader<'a> {
    text: &'a str,
    at: usize,
    statements: Vec<Statement>,
    functions: Vec<Function>,
}

impl<'a> Reader<'a> {
    fn fault(&self, at: usize, reason: impl Into<String>) -> TextFault {
        let (line, column) = place(self.text, at);
        TextFault { line, column, reason: reason.into() }
    }

    fn token(&self, at: usize) -> Result<Option<(Token, Range<usize>)>, TextFault> {
        token(self.text, at).map_err(|(at, reason)| self.fault(at, reason))
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        self.statements.push(Statement { kind, begin: self.at, start, end });
        self.at = end;
    }

    fn module(&mut self) -> Result<(), TextFault> {
        // The braces that are open, and the function whose body the first of them opens.
        let mut open: Vec<usize> = Vec::new();
        let mut body = None;
        while let Some((kind, range)) = self.token(self.at)? {
            let word = &self.text[range.clone()];
            match kind {
                Token::Sign(b'{') if !open.is_empty() || body.is_some() => {
                    if open.len() == MAX_NESTING {
                        return Err(self.fault(range.start, "blocks are nested too deep"));
                    }
                    open.push(self.statements.len());
                    self.push(Kind::Open, range.start, range.end);
                }
                Token::Sign(b'}') if !open.is_empty() => {
                    let opened = open.pop().unwrap_or_default();
                    if open.is_empty()
                        && let Some(function) = body.take()
                    {
                        let function: &mut Function = &mut self.functions[function];
                        function.body = Some((opened, self.statements.len()));
                    }
                    self.push(Kind::Close, range.start, range.end);
                }
                _ if body.is_some() && open.is_empty() => {
                    return Err(self.fault(range.start, "a body in braces is expected"));
                }
                Token::Word if word.starts_with('.') => self.directive(&range, &mut body)?,
                Token::Word | Token::Sign(b'@') if !open.is_empty() => {
                    self.label_or_instruction(kind, &range)?;
                }
                _ => return Err(self.fault(range.start, "a statement is expected")),
            }
        }
        match open.first().or(body.map(|function| &self.functions[function].head)) {
            Some(&at) => {
                let start = self.statements[at].start;
                Err(self.fault(start, "the text ends within this function"))
            }
            None => Ok(()),
        }
    }

    fn label_or_instruction(&mut self, kind: Token, range: &Range<usize>) -> Result<(), TextFault> {
        if kind == Token::Word
            && let Some((Token::Sign(b':'), colon)) = self.token(range.end)?
        {
            self.push(Kind::Label, range.start, colon.end);
            return Ok(());
        }
        let end = self.semicolon(range.start)?;
        instruction(&self.text[range.start..end])
            .map_err(|(at, reason)| self.fault(range.start + at, reason))?;
        self.push(Kind::Instruction, range.start, end);
        Ok(())
    }

    /// The byte after the semicolon outside of braces that ends the statement at `start`.
    fn semicolon(&self, start: usize) -> Result<usize, TextFault> {
        self.until(start, |sign| sign == b';').map(|(end, _)| end)
    }

    /// The byte after the first sign outside of brackets that `ends` wants, and that sign.
    fn until(&self, start: usize, ends: fn(u8) -> bool) -> Result<(usize, u8), TextFault> {
        let (mut nesting, mut at) = (Vec::new(), start);
        while let Some((kind, range)) = self.token(at)? {
            at = range.end;
            let Token::Sign(sign) = kind else { continue };
            if nesting.is_empty() && ends(sign) {
                return Ok((range.end, sign));
            }
            match sign {
                b'(' => nesting.push(b')'),
                b'[' => nesting.push(b']'),
                b'{' => nesting.push(b'}'),
                b')' | b']' | b'}' if nesting.pop() != Some(sign) => {
                    return Err(self.fault(range.start, "a bracket closes what is not open"));
                }
                b';' => return Err(self.fault(range.start, "a bracket is not closed")),
                _ => {}
            }
            if nesting.len() > MAX_NESTING {
                return Err(self.fault(range.start, "brackets are nested too deep"));
            }
        }
        Err(self.fault(start, "this statement has no end"))
    }

    fn directive(
        &mut self,
        range: &Range<usize>,
        body: &mut Option<usize>,
    ) -> Result<(), TextFault> {
        let (start, word) = (range.start, &self.text[range.clone()]);
        if LINES.contains(&word) {
            let end = self.line_end(range.end)?;
            self.push(Kind::Directive, start, end);
            return Ok(());
        }
        if word == ".section" {
            let (mut end, _) = self.until(start, |sign| sign == b'{')?;
            while let Some((kind, inside)) = self.token(end)? {
                end = inside.end;
                if kind == Token::Sign(b'}') {
                    self.push(Kind::Directive, start, end);
                    return Ok(());
                }
            }
            return Err(self.fault(start, "this section has no end"));
        }
        if let Some(kernel) = self.is_function(start)? {
            return self.head(start, kernel, body);
        }
        let end = self.semicolon(start)?;
        self.push(Kind::Directive, start, end);
        Ok(())
    }

    /// Whether linkage words lead to `.entry` (true) or `.func` (false).
    fn is_function(&self, start: usize) -> Result<Option<bool>, TextFault> {
        let mut at = start;
        while let Some((Token::Word, range)) = self.token(at)? {
            match &self.text[range.clone()] {
                ".entry" => return Ok(Some(true)),
                ".func" => return Ok(Some(false)),
                ".visible" | ".extern" | ".weak" | ".common" => at = range.end,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// A function's head: what it returns, its name, its parameters and tuning directives.
    fn head(
        &mut self,
        start: usize,
        kernel: bool,
        body: &mut Option<usize>,
    ) -> Result<(), TextFault> {
        if body.is_some() || self.functions.last().is_some_and(|last| self.inside(last)) {
            return Err(self.fault(start, "a function within a function"));
        }
        let (mut name, mut depth, mut at) = (None, 0_usize, start);
        let mut pragma = false;
        while let Some((kind, range)) = self.token(at)? {
            match kind {
                Token::Sign(b'(') => depth += 1,
                Token::Sign(b')') => depth = depth.saturating_sub(1),
                Token::Sign(sign @ (b'{' | b';')) if depth == 0 => {
                    // A pragma among the tuning directives has a semicolon of its own.
                    if sign == b';' && std::mem::take(&mut pragma) {
                        at = range.end;
                        continue;
                    }
                    let name =
                        name.ok_or_else(|| self.fault(start, "a function without a name"))?;
                    let head = self.statements.len();
                    self.functions.push(Function { name, kernel, head, body: None });
                    if sign == b';' {
                        self.push(Kind::Declaration, start, range.end);
                    } else {
                        *body = Some(self.functions.len() - 1);
                        self.push(Kind::Head, start, at);
                    }
                    return Ok(());
                }
                Token::Word if depth == 0 => {
                    let word = &self.text[range.clone()];
                    pragma |= word == ".pragma";
                    let is_name = !word.starts_with(|c: char| c == '.' || c.is_ascii_digit());
                    if is_name && name.is_some() {
                        return Err(self.fault(range.start, "a body in braces is expected"));
                    }
                    if is_name {
                        name = Some(word.to_owned());
                    }
                }
                _ => {}
            }
            at = range.end;
        }
        Err(self.fault(start, "the text ends within this function's head"))
    }

    /// Whether the text is within `function`, whose brace is not closed yet.
    fn inside(&self, function: &Function) -> bool {
        let head = self.statements[function.head];
        head.kind == Kind::Head && function.body.is_none()
    }

    /// The end of a directive that ends with its line: before a comment, a newline, or what begins
    /// with a dot.
    fn line_end(&self, from: usize) -> Result<usize, TextFault> {
        let mut end = from;
        while let Some((_, range)) = self.token(end)? {
            let gap = &self.text[end..range.start];
            if gap.contains('\n') || self.text[range.clone()].starts_with('.') {
                break;
            }
            end = range.end;
        }
        Ok(end)
    }
}
