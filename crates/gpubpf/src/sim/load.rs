//! A module's text as an image: variables placed, functions decoded.

use std::collections::HashMap;

use super::code::{Function, Inst, Op, Parameter, Space};
use super::decode;
use super::flow;
use super::names::{Names, Symbol};
use super::text::{Declared, declared, literal, tokens};
use super::types::B64;
use crate::ptx::{self, Kind, Module};

/// Shared memory begins here, as on the hardware from sm_90 on, so that address 0 is a mistake.
pub(crate) const SHARED_START: u64 = 1024;
/// The most instructions of a module that are decoded.
const MAX_INSTRUCTIONS: usize = 1 << 20;
/// The most bytes of one variable.
const MAX_VARIABLE: u64 = 1 << 32;

/// Why a module cannot be simulated at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct LoadFault {
    /// The line of the text, from 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

/// A variable of the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) address: u64,
    pub(crate) initial: Vec<u8>,
}

/// A module that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub(crate) text: String,
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<Variable>,
    /// The largest alignment of shared memory that launches add.
    pub(crate) dynamic_align: u64,
}

impl Image {
    /// The names of the kernels, as the text has them.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|f| f.kernel && f.defined).map(|f| f.name.as_str())
    }

    /// The address of a variable of the module, in `.global` or `.const` memory.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.variables.iter().find(|v| v.name == name).map(|v| v.address)
    }

    /// The bytes of such a variable.
    pub fn symbol_bytes(&self, name: &str) -> Option<u64> {
        self.variables.iter().find(|v| v.name == name).map(|v| v.initial.len() as u64)
    }

    /// The bytes of each parameter of a kernel, in order.
    pub fn parameters(&self, kernel: &str) -> Option<Vec<u32>> {
        let function = self.functions.iter().find(|f| f.kernel && f.name == kernel)?;
        Some(function.parameters.iter().map(|p| p.bytes).collect())
    }

    /// Where each of them lies in a buffer of all.
    pub fn parameter_places(&self, kernel: &str) -> Option<Vec<u32>> {
        let function = self.functions.iter().find(|f| f.kernel && f.name == kernel)?;
        Some(function.parameters.iter().map(|p| p.at).collect())
    }

    /// What the instructions are that the simulator does not know, each once: opcodes, or what of an
    /// instruction is not understood. A launch that reaches one of them ends there.
    pub fn missing(&self, function: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for inst in self.functions.iter().filter(|f| f.name == function).flat_map(|f| &f.code) {
            if let Op::Missing(what) = &inst.op
                && !found.contains(what)
            {
                found.push(what.clone());
            }
        }
        found
    }
}

/// Gives room in a space: bytes and alignment.
pub(crate) type Place<'a> = dyn FnMut(Space, u64, u64) -> Result<u64, String> + 'a;

struct Loader<'a, 'p> {
    module: &'a Module<'a>,
    place: &'p mut Place<'p>,
    /// Where lines end.
    lines: Vec<usize>,
    symbols: HashMap<String, Symbol>,
    variables: Vec<Variable>,
    /// Initial values wait until all names have addresses.
    initials: Vec<(usize, Vec<String>, super::types::Ty, u64)>,
    shared: u64,
    dynamic_align: u64,
    instructions: usize,
}

/// Loads `module`; `place` gives addresses to its variables.
pub(crate) fn load<'p>(module: &Module, place: &'p mut Place<'p>) -> Result<Image, LoadFault> {
    let ends = module.text().bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let mut loader = Loader {
        module,
        place,
        lines: ends.map(|(at, _)| at).collect(),
        symbols: HashMap::new(),
        variables: Vec::new(),
        initials: Vec::new(),
        shared: SHARED_START,
        dynamic_align: 16,
        instructions: 0,
    };
    loader.module_variables()?;
    let functions = loader.functions()?;
    loader.initial_values()?;
    Ok(Image {
        text: module.text().to_owned(),
        functions,
        variables: loader.variables,
        dynamic_align: loader.dynamic_align,
    })
}

impl Loader<'_, '_> {
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|&end| end < at) + 1
    }

    fn fault(&self, at: usize, reason: String) -> LoadFault {
        LoadFault { line: self.line(at), reason }
    }

    fn module_variables(&mut self) -> Result<(), LoadFault> {
        let mut bodies = self.module.functions().iter().filter_map(|f| f.body).peekable();
        let mut at = 0;
        let statements = self.module.statements();
        while at < statements.len() {
            if let Some(&(open, close)) = bodies.peek()
                && at == open
            {
                at = close + 1;
                bodies.next();
                continue;
            }
            let statement = &statements[at];
            at += 1;
            if statement.kind != Kind::Directive {
                continue;
            }
            let words = tokens(self.module.code(statement));
            for (name, symbol) in
                self.variable(&words).map_err(|reason| self.fault(statement.start, reason))?
            {
                self.symbols.insert(name, symbol);
            }
        }
        Ok(())
    }

    /// The names that a declaration in `.global`, `.const` or `.shared` gives addresses to; none
    /// where it is another directive.
    fn variable(&mut self, words: &[&str]) -> Result<Vec<(String, Symbol)>, String> {
        let linkage = |word: &&&str| [".visible", ".extern", ".weak", ".common"].contains(*word);
        let skipped = words.iter().take_while(linkage).count();
        let external = words[..skipped].contains(&".extern");
        let space = match words.get(skipped) {
            Some(&".global") => Space::Global,
            Some(&".const") => Space::Const,
            Some(&".shared") => Space::Shared,
            _ => return Ok(Vec::new()),
        };
        let mut found = Vec::new();
        for Declared { name, ty, align, bytes, initial, .. } in declared(&words[skipped + 1..])? {
            if space == Space::Shared && bytes == 0 {
                self.dynamic_align = self.dynamic_align.max(align);
                found.push((name.to_owned(), Symbol::Dynamic));
                continue;
            }
            if external || bytes > MAX_VARIABLE {
                continue;
            }
            if space == Space::Shared {
                let at = self.shared.next_multiple_of(align);
                self.shared = at + bytes;
                found.push((name.to_owned(), Symbol::Address(at)));
                continue;
            }
            let address = (self.place)(space, bytes, align)?;
            found.push((name.to_owned(), Symbol::Address(address)));
            let initial: Vec<String> = initial.into_iter().map(str::to_owned).collect();
            self.initials.push((self.variables.len(), initial, ty, bytes));
            let name = name.to_owned();
            self.variables.push(Variable { name, space, address, initial: Vec::new() });
        }
        Ok(found)
    }

    /// Fills in what variables are at first; zeros where nothing is said.
    fn initial_values(&mut self) -> Result<(), LoadFault> {
        for (variable, words, ty, bytes) in std::mem::take(&mut self.initials) {
            let width = ty.bytes().max(1) as usize;
            let mut values = Vec::new();
            let mut at = 0;
            while at < words.len() && values.len() < bytes as usize {
                let word = words[at].as_str();
                at += 1;
                let value = match word {
                    "{" | "}" | "," | "(" | ")" | "generic" | "mask" => continue,
                    "+" => {
                        // An offset to the address before it.
                        let by = words.get(at).and_then(|word| literal(word, B64)).unwrap_or(0);
                        at += 1;
                        let last = values.len().saturating_sub(width);
                        let tail: Vec<u8> = values.split_off(last);
                        let mut sum = [0; 8];
                        sum[..tail.len()].copy_from_slice(&tail);
                        u64::from_le_bytes(sum).wrapping_add(by)
                    }
                    "-" => {
                        let text = format!("-{}", words.get(at).map_or("0", String::as_str));
                        at += 1;
                        literal(&text, ty).unwrap_or(0)
                    }
                    word => match literal(word, ty) {
                        Some(value) => value,
                        None => self.address(word)?,
                    },
                };
                values.extend(&value.to_le_bytes()[..width.min(8)]);
            }
            values.resize(bytes as usize, 0);
            self.variables[variable].initial = values;
        }
        Ok(())
    }

    fn address(&self, word: &str) -> Result<u64, LoadFault> {
        match self.symbols.get(word) {
            Some(Symbol::Address(address)) => Ok(*address),
            Some(Symbol::Function(number)) => Ok(super::code::FUNCTIONS + u64::from(*number) * 16),
            _ => {
                Err(LoadFault { line: 1, reason: format!("`{word}` has no address to begin with") })
            }
        }
    }

    fn functions(&mut self) -> Result<Vec<Function>, LoadFault> {
        let mut functions: Vec<Function> = Vec::new();
        let mut sources = Vec::new();
        for source in self.module.functions() {
            let known = functions.iter().position(|f| f.name == source.name);
            let number = known.unwrap_or(functions.len());
            if known.is_none() {
                let (name, kernel) = (source.name.clone(), source.kernel);
                functions.push(Function { name, kernel, ..Function::default() });
            }
            self.symbols.insert(source.name.clone(), Symbol::Function(number as u32));
            if source.body.is_some() || known.is_none() {
                sources.push((number, source));
            }
        }
        // Shared memory of functions lies below that of kernels, of which one runs at a time.
        sources.sort_by_key(|(_, source)| source.kernel);
        let mut base = self.shared;
        for (number, source) in sources {
            if source.kernel {
                self.shared = base;
            }
            functions[number] = self.function(source)?;
            if !source.kernel {
                base = self.shared;
            }
        }
        Ok(functions)
    }

    fn function(&mut self, source: &ptx::Function) -> Result<Function, LoadFault> {
        let symbols = std::mem::take(&mut self.symbols);
        let mut names = Names::new(&symbols);
        let result = self.body(source, &mut names);
        drop(names);
        self.symbols = symbols;
        result
    }

    fn body(&mut self, source: &ptx::Function, names: &mut Names) -> Result<Function, LoadFault> {
        let head = &self.module.statements()[source.head];
        let mut function = Function {
            name: source.name.clone(),
            kernel: source.kernel,
            defined: source.body.is_some(),
            ..Function::default()
        };
        head_of(self.module.code(head), &mut function, names)
            .map_err(|reason| self.fault(head.start, reason))?;
        let Some((open, close)) = source.body else { return Ok(function) };
        let places = self.declarations(open + 1..close, &mut function, names)?;
        let mut decoded = Vec::with_capacity(places.len());
        for (index, scope) in places {
            let statement = &self.module.statements()[index];
            let Some(instruction) = self.module.instruction(statement) else { continue };
            self.instructions += 1;
            if self.instructions > MAX_INSTRUCTIONS {
                let reason = format!("more than {MAX_INSTRUCTIONS} instructions");
                return Err(self.fault(statement.start, reason));
            }
            let guard = decode::guard(names, scope, &instruction);
            let op = decode::decode(names, scope, &instruction);
            let (guard, op) = match (guard, op) {
                (Ok(guard), Ok(op)) => (guard, op),
                (Err(why), _) | (_, Err(why)) if why == instruction.opcode => {
                    (None, Op::Missing(why))
                }
                (Err(why), _) | (_, Err(why)) => {
                    (None, Op::Missing(format!("{}: {why}", instruction.opcode)))
                }
            };
            let text = (statement.start, statement.end);
            let line = self.line(statement.start);
            decoded.push(Inst { guard, op, line, text, meet: u32::MAX });
        }
        flow::meeting_points(&mut decoded);
        function.code = decoded;
        function.registers = names.registers;
        function.shared_bytes = u32::try_from(self.shared).unwrap_or(u32::MAX);
        Ok(function)
    }

    /// Declares what a body declares; the instructions and the scopes in which they stand.
    fn declarations(
        &mut self,
        range: std::ops::Range<usize>,
        function: &mut Function,
        names: &mut Names,
    ) -> Result<Vec<(usize, usize)>, LoadFault> {
        let mut places = Vec::new();
        let (mut scope, mut label) = (0, None);
        for index in range {
            let statement = &self.module.statements()[index];
            let code = self.module.code(statement);
            match statement.kind {
                Kind::Open => scope = names.open(scope),
                Kind::Close => scope = names.outer(scope),
                Kind::Label => {
                    let name = code.trim_end_matches(':').trim();
                    names.label(scope, name, places.len() as u32);
                    label = Some(name.to_owned());
                    continue;
                }
                Kind::Instruction => places.push((index, scope)),
                Kind::Directive => {
                    let words = tokens(code);
                    if words.first() == Some(&".branchtargets")
                        && let Some(label) = &label
                    {
                        let entries = words[1..].iter().filter(|w| !matches!(**w, "," | ";"));
                        names.table(scope, label, entries.map(|w| (*w).to_owned()).collect());
                    }
                    self.local(&words, scope, function, names)
                        .map_err(|reason| self.fault(statement.start, reason))?;
                }
                Kind::Head | Kind::Declaration => {}
            }
            label = None;
        }
        Ok(places)
    }

    fn local(
        &mut self,
        words: &[&str],
        scope: usize,
        function: &mut Function,
        names: &mut Names,
    ) -> Result<(), String> {
        match words.first() {
            Some(&".reg") => {
                for Declared { name, range, ty, .. } in declared(&words[1..])? {
                    match range {
                        Some(count) => names.range(scope, name, count, ty.width()),
                        None => {
                            names.register(scope, name, ty.width());
                        }
                    }
                }
            }
            Some(&".local") => {
                for Declared { name, align, bytes, .. } in declared(&words[1..])? {
                    let at = u64::from(function.local_bytes).next_multiple_of(align);
                    names.declare(scope, name, Symbol::Local(at));
                    function.local_bytes = room(at, bytes, MAX_LOCAL)?;
                }
            }
            Some(&".param") => {
                for Declared { name, align, bytes, .. } in declared(&words[1..])? {
                    let at = u64::from(function.parameter_bytes).next_multiple_of(align);
                    function.parameter_bytes = room(at, bytes, MAX_PARAMETERS)?;
                    let symbol = Symbol::Frame { at: at as u32, bytes: bytes as u32 };
                    names.declare(scope, name, symbol);
                }
            }
            _ => {
                for (name, symbol) in self.variable(words)? {
                    names.declare(scope, &name, symbol);
                }
            }
        }
        Ok(())
    }
}

/// The most bytes of local memory of a thread, as on the hardware.
const MAX_LOCAL: u64 = 512 << 10;
/// The most bytes of all parameters that a function sees.
const MAX_PARAMETERS: u64 = 32 << 10;

/// The end of `bytes` at `at`.
fn room(at: u64, bytes: u64, limit: u64) -> Result<u32, String> {
    let end = at.checked_add(bytes).filter(|&end| end <= limit);
    end.map(|end| end as u32).ok_or_else(|| format!("{bytes} bytes at {at}; at most {limit}"))
}

/// Parameters and results of a function's head.
fn head_of(code: &str, function: &mut Function, names: &mut Names) -> Result<(), String> {
    let words = tokens(code);
    let mut groups: Vec<&[&str]> = Vec::new();
    let mut at = words.iter().position(|w| matches!(*w, ".entry" | ".func")).unwrap_or(0);
    let mut named = false;
    let mut results = None;
    while at < words.len() {
        match words[at] {
            "(" => {
                let end =
                    words[at..].iter().position(|w| *w == ")").map_or(words.len(), |e| at + e);
                let group = &words[at + 1..end];
                if named {
                    groups.push(group);
                } else {
                    results = Some(group);
                }
                at = end;
            }
            word if word == function.name => named = true,
            ".reqntid" => {
                let numbers: Vec<u32> = words[at + 1..]
                    .iter()
                    .filter(|w| **w != ",")
                    .map_while(|w| w.parse().ok())
                    .collect();
                let side = |axis: usize| numbers.get(axis).copied().unwrap_or(1);
                function.block = Some([side(0), side(1), side(2)]);
            }
            _ => {}
        }
        at += 1;
    }
    function.results = parameters(results.unwrap_or_default(), function, names)?;
    function.parameters = parameters(groups.first().copied().unwrap_or_default(), function, names)?;
    Ok(())
}

fn parameters(
    words: &[&str],
    function: &mut Function,
    names: &mut Names,
) -> Result<Vec<Parameter>, String> {
    let mut found = Vec::new();
    for group in words.split(|word| *word == ",") {
        for Declared { name, ty, align, bytes, register, .. } in declared(group)? {
            let at = u64::from(function.parameter_bytes).next_multiple_of(align);
            let mut parameter =
                Parameter { name: name.to_owned(), at: at as u32, bytes: bytes as u32, reg: None };
            if register {
                if let Symbol::Register { slot, bits } = names.register(0, name, ty.width()) {
                    parameter.reg = Some((slot, bits));
                }
            } else {
                function.parameter_bytes = room(at, bytes, MAX_PARAMETERS)?;
                let (at, bytes) = (at as u32, bytes as u32);
                let symbol = match function.kernel {
                    true => Symbol::Kernel { at },
                    false => Symbol::Frame { at, bytes },
                };
                names.declare(0, name, symbol);
            }
            found.push(parameter);
        }
    }
    Ok(found)
}
