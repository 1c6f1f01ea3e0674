//! Work stealing in software: beside a kernel `K` stands `K_with_policy`, whose blocks take the next block of the grid as
//! often as there is one, so that a launch has no more blocks than run at once.
//!
//! What a block does before its own work is done for each block of the grid all the same, and the hardware hands blocks out
//! as places come free as well. What changes is the order, which a program may choose (`gpu/order/KERNEL`), and that a place
//! is not given back and taken again between two blocks.
//!
//! `K` stays as it is, and whoever launches chooses between the two, launch by launch. Kernels whose blocks cannot follow
//! each other in one block are refused, each with its line and the reason ([`Rule`]).

mod body;
mod rules;
mod uniform;
mod write;

use std::collections::HashSet;
use std::fmt::Write as _;

use super::needs::{self, Head};
use super::points::points;
use super::{Names, Plan, Probe, Refusal, Spliced};
use crate::attach::Attach;
use crate::options::{Addresses, Options, TABLE};
use crate::ptx::{Function, Kind, MAX_TEXT, Module};
use rules::{Allowed, judge};
pub use rules::{Rule, Unsafe};
use write::{Order, Rewrite, brackets, name_at};

/// What the name of a kernel that steals ends with.
pub const SUFFIX: &str = "_with_policy";
/// The last parameter of such a kernel: the address of a [`Record`], the three sides of the grid, and how many blocks the
/// launch has.
pub const PARAMETER_BYTES: u32 = 24;
/// Bytes of a record before the bits of its blocks.
const RECORD_HEAD: u32 = 64;
/// Grids of more blocks are not put in order by a program; their blocks come one after the other.
pub const ORDERED: u32 = 1 << 16;
/// The most bytes of all parameters, with the one that is added: what each device takes.
const MOST_PARAMETERS: u32 = 4096;

/// The memory of one launch at a time, all zero before and after: how many blocks were taken, how many blocks of the launch
/// have found none left, and one bit for each block that was taken, where a program orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record;

impl Record {
    /// Its bytes.
    pub fn bytes(ordered: bool) -> u64 {
        u64::from(RECORD_HEAD + if ordered { ORDERED / 8 } else { 0 })
    }
}

/// A kernel that can steal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stealing {
    /// Its name as the text has it.
    pub kernel: String,
    /// Its name as a programmer wrote it.
    pub readable: String,
    /// Its parameters, without the one that is added.
    pub parameters: u32,
    /// Where the one that is added lies among the bytes of all.
    pub at: u32,
    /// It may steal only where 32 threads in x are one warp: blocks whose side in x is a multiple of 32, or the only one.
    pub rows: bool,
    /// The program that orders its blocks.
    pub order: Option<String>,
    /// Its blocks ask the hardware for further ones: it takes no parameter more and no record, and is launched with the grid of
    /// the other.
    pub by_hardware: bool,
}

impl Stealing {
    /// The name of the kernel that steals.
    pub fn name(&self) -> String {
        format!("{}{SUFFIX}", self.kernel)
    }

    /// The bytes of the parameter that is added: `record` is the address of a [`Record`], `blocks` how many the launch has.
    pub fn parameter(record: u64, grid: [u32; 3], blocks: u32) -> [u8; PARAMETER_BYTES as usize] {
        let mut bytes = [0; PARAMETER_BYTES as usize];
        bytes[..8].copy_from_slice(&record.to_le_bytes());
        for (to, number) in bytes[8..].chunks_exact_mut(4).zip([grid[0], grid[1], grid[2], blocks])
        {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// A kernel that is not to steal, though it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotStealing {
    /// Its name as the text has it.
    pub kernel: String,
    /// Its name as a programmer wrote it.
    pub readable: String,
    /// Each rule that it breaks, with the first place.
    pub reasons: Vec<Unsafe>,
}

impl std::fmt::Display for Unsafe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, `{}`: {}", self.line, self.statement, self.rule.reason())
    }
}

impl Plan {
    /// From now on kernels that one of these patterns means get one beside them that steals.
    pub fn steal(&mut self, kernels: &[String]) {
        self.steal.extend(kernels.iter().cloned());
    }

    /// Whether kernels are to steal.
    pub fn steals(&self) -> bool {
        !self.steal.is_empty()
    }

    /// Adds to `spliced`, which was made of `module`, the kernels that steal.
    pub(super) fn add_stealing(
        &self,
        module: &Module,
        spliced: Spliced,
    ) -> Result<Spliced, Refusal> {
        let meant: Vec<&Function> = module
            .functions()
            .iter()
            .filter(|f| f.kernel && f.body.is_some())
            .filter(|f| {
                let names = Names::new(&f.name);
                self.steal.iter().any(|pattern| names.matches(pattern))
            })
            .collect();
        if meant.is_empty() {
            return Ok(spliced);
        }
        let head = needs::head(module)?;
        let mut judged = Vec::new();
        for function in meant {
            judged.push((function, self.judged(module, function, head)));
        }
        let with = spliced.text.clone();
        let with = Module::read(&with).map_err(|fault| Refusal::Module(fault.to_string()))?;
        Stealer::new(self, &with)?.all(&judged, spliced)
    }

    /// Whether a kernel may steal, and how.
    fn judged(
        &self,
        module: &Module,
        function: &Function,
        head: Head,
    ) -> Result<Shape, Vec<Unsafe>> {
        let code = module.code(&module.statements()[function.head]);
        let broken = |rule| {
            let line = module.place(module.statements()[function.head].start).0;
            vec![Unsafe { line, statement: format!(".entry {}", function.name), rule }]
        };
        let policy = format!("{}{SUFFIX}", function.name);
        if module.functions().iter().any(|other| other.name == policy) {
            return Err(broken(Rule::Named));
        }
        if head.version < 60 || head.sm < 70 {
            return Err(broken(Rule::TooOld));
        }
        let parameters =
            parameters(code, &function.name).ok_or_else(|| broken(Rule::Parameters))?;
        let end = parameters.last().map_or(0, |last| last.end);
        let at = end.next_multiple_of(8);
        if at + PARAMETER_BYTES > MOST_PARAMETERS {
            return Err(broken(Rule::Parameters));
        }
        let names: HashSet<&str> = parameters.iter().map(|parameter| parameter.name).collect();
        let reached = reached(module, function);
        let allowed = judge(module, function, &reached, &names)?;
        Ok(Shape { allowed, parameters: parameters.len() as u32, at })
    }
}

/// What is known of a kernel that may steal.
struct Shape {
    allowed: Allowed,
    parameters: u32,
    at: u32,
}

/// A parameter of a kernel.
struct Parameter<'a> {
    name: &'a str,
    /// Where it ends.
    end: u32,
}

/// The parameters of a kernel by the text of its head; `None` where they are not read.
fn parameters<'a>(head: &'a str, kernel: &str) -> Option<Vec<Parameter<'a>>> {
    let after = name_at(head, kernel)? + kernel.len();
    if !head[after..].trim_start().starts_with('(') {
        return Some(Vec::new());
    }
    let (open, close) = brackets(&head[after..])?;
    let all = &head[after + open + 1..after + close];
    let mut found: Vec<Parameter> = Vec::new();
    for one in all.split(',').filter(|one| !one.trim().is_empty()) {
        let (mut size, mut align, mut name, mut is_pointer) = (None, None, None, false);
        let mut words =
            one.split([' ', '\t', '\n', '\r', '[', ']']).filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            match word {
                ".param" => {}
                ".ptr" => is_pointer = true,
                ".align" => {
                    let number: u32 = words.next()?.parse().ok()?;
                    // That of a pointer speaks of what it leads to.
                    align = if is_pointer { align } else { Some(number) };
                }
                _ if word.starts_with('.') => {
                    let bits = word[1..].trim_start_matches(|c: char| c.is_ascii_lowercase());
                    if let Ok(bits) = bits.parse::<u32>() {
                        size = Some(bits.div_ceil(8));
                    }
                }
                _ if word.starts_with(|c: char| c.is_ascii_digit()) => {
                    size = size?.checked_mul(word.parse().ok()?);
                }
                _ => {
                    align = align.or(size);
                    name = Some(word);
                }
            }
        }
        let (size, align) = (size?, align?);
        let before = found.last().map_or(0, |last| last.end);
        let end = before.checked_next_multiple_of(align.max(1))?.checked_add(size)?;
        found.push(Parameter { name: name?, end });
    }
    Some(found)
}

/// The functions of the module that a kernel calls, directly or not.
fn reached<'m>(module: &'m Module, kernel: &Function) -> Vec<&'m Function> {
    let (calls, _) = super::calls(module);
    let functions = module.functions();
    let at = |function: &Function| {
        functions.iter().position(|f| f.name == function.name && f.body == function.body)
    };
    let (mut open, mut found) = (at(kernel).into_iter().collect::<Vec<_>>(), Vec::new());
    while let Some(function) = open.pop() {
        for &callee in &calls[function] {
            if !found.contains(&callee) {
                found.push(callee);
                open.push(callee);
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|at| &functions[at]).collect()
}

/// Writes the kernels that steal.
struct Stealer<'a, 'm, 'p> {
    plan: &'p Plan,
    module: &'m Module<'a>,
    head: Head,
    /// What no name of the module contains.
    base: String,
    insertions: Vec<(usize, String)>,
    declarations: String,
}

impl<'a, 'm, 'p> Stealer<'a, 'm, 'p> {
    fn new(plan: &'p Plan, module: &'m Module<'a>) -> Result<Self, Refusal> {
        let (mut base, mut number) = ("gs_".to_owned(), 0_u64);
        while module.text().contains(&base) {
            number += 1;
            base = format!("gs{number}_");
        }
        let (insertions, declarations) = (Vec::new(), String::new());
        Ok(Self { plan, module, head: needs::head(module)?, base, insertions, declarations })
    }

    fn all(
        mut self,
        judged: &[(&Function, Result<Shape, Vec<Unsafe>>)],
        mut spliced: Spliced,
    ) -> Result<Spliced, Refusal> {
        for (original, shape) in judged {
            let (kernel, readable) =
                (original.name.clone(), Names::new(&original.name).readable().to_owned());
            let found = self.module.functions().iter().find(|f| f.kernel && f.name == kernel);
            let made = match shape {
                Err(reasons) => Err(reasons.clone()),
                Ok(shape) => self.kernel(found.unwrap_or(original), shape)?,
            };
            match made {
                Ok(order) => {
                    let Some(Shape { allowed, parameters, at }) = shape.as_ref().ok() else {
                        continue;
                    };
                    spliced.stealing.push(Stealing {
                        kernel,
                        readable,
                        parameters: *parameters,
                        at: *at,
                        rows: allowed.rows,
                        by_hardware: order.is_none() && self.has_hardware(),
                        order,
                    });
                }
                Err(reasons) => {
                    spliced.not_stealing.push(NotStealing { kernel, readable, reasons })
                }
            }
        }
        if !self.insertions.is_empty() {
            self.finish(&mut spliced)?;
        }
        Ok(spliced)
    }

    /// Adds the kernel that steals behind this one. The program that orders its blocks.
    fn kernel(
        &mut self,
        function: &Function,
        shape: &Shape,
    ) -> Result<Result<Option<String>, Vec<Unsafe>>, Refusal> {
        // Programs that lie in functions know nothing of the block's number.
        for callee in reached(self.module, function) {
            if let Some((open, close)) = callee.body {
                let statements = &self.module.statements()[open..close];
                let reads = statements.iter().find(|s| self.module.code(s).contains("%ctaid"));
                if let Some(statement) = reads {
                    let (line, rule) =
                        (self.module.place(statement.start).0, Rule::BlockInFunction);
                    let statement = self.module.code(statement).chars().take(120).collect();
                    return Ok(Err(vec![Unsafe { line, statement, rule }]));
                }
            }
        }
        let number = self.insertions.len();
        let order = self.order(function, number)?;
        let (found, _) =
            points(self.module, function, &Attach::Entry("*".into()), &Default::default());
        let head = self.module.statements()[function.head];
        let unread = || {
            let line = self.module.place(head.start).0;
            let statement = format!(".entry {}", function.name);
            Ok(Err(vec![Unsafe { line, statement, rule: Rule::Unread }]))
        };
        let (Some(point), Some((_, close))) = (found.first(), function.body) else {
            return unread();
        };
        let statements = self.module.statements();
        let begin = statements.partition_point(|statement| statement.start < point.at);
        let name = format!("{}{SUFFIX}", function.name);
        let rewrite = Rewrite {
            module: self.module,
            function,
            name: &name,
            base: &self.base,
            allowed: &shape.allowed,
            order: order.as_ref().map(|(order, _)| order),
            begin,
            shared: self.shared(),
            by_hardware: order.is_none() && self.has_hardware(),
        };
        let Some(text) = rewrite.text() else { return unread() };
        self.insertions.push((statements[close].end, text));
        Ok(Ok(order.map(|(_, program)| program)))
    }

    /// Bytes of shared memory that a block of it takes: as many as leave what the launch adds where its kernel expects it, which may
    /// be at a multiple of more than it declares.
    fn shared(&self) -> u32 {
        let launched = self.module.statements().iter().any(|statement| {
            let code = self.module.code(statement);
            statement.kind == Kind::Directive
                && code.starts_with(".extern")
                && code.contains(".shared")
        });
        match (launched, self.has_hardware()) {
            (true, _) => 1024,
            (false, true) => 32,
            (false, false) => 16,
        }
    }

    /// Whether the devices that the module is for hand blocks out to blocks that ask (PTX 8.6).
    fn has_hardware(&self) -> bool {
        self.head.sm >= 100 && self.head.version >= 86
    }

    /// The first program that orders the blocks of a kernel, compiled, and its name.
    fn order(
        &mut self,
        function: &Function,
        number: usize,
    ) -> Result<Option<(Order, String)>, Refusal> {
        let names = Names::new(&function.name);
        let orders =
            |probe: &Probe| probe.attach.orders().is_some_and(|pattern| names.matches(pattern));
        let Some(at) = self.plan.probes.iter().position(orders) else { return Ok(None) };
        let probe = &self.plan.probes[at];
        // One thread runs it, so that nothing is of a warp.
        let result = Some(format!("%{}d2", self.base));
        let addresses = Addresses::Shared { first: probe.first_map };
        let with = Options { result, addresses, ..Options::default() };
        let declarations = &mut self.declarations;
        let fragment = super::compiled(probe, number, &self.base, &self.head, declarations, with)?;
        let word = self.plan.first_switch() + at;
        let switch = self.plan.how.switch.then(|| format!("{TABLE}+{}", 8 * word));
        Ok(Some((Order { fragment: fragment.body, switch }, probe.name.clone())))
    }

    /// Puts all into the text.
    fn finish(mut self, spliced: &mut Spliced) -> Result<(), Refusal> {
        let mut head = String::new();
        if !super::names_table(self.module) {
            let words = self.plan.table().words;
            let _ = write!(head, "\n\n.visible .const .align 8 .b64 {TABLE}[{words}];");
        }
        if !self.declarations.is_empty() {
            let _ = write!(head, "\n{}", self.declarations.trim_end());
        }
        if !head.is_empty() {
            // Directives at the head end with their line.
            self.insertions.push((self.end_of_declared(), head + "\n"));
        }
        self.insertions.sort_by_key(|(at, _)| *at);
        let grown: usize = self.insertions.iter().map(|(_, text)| text.len()).sum();
        if self.module.text().len() + grown > MAX_TEXT {
            let reason =
                format!("kernels that steal would make the text longer than {MAX_TEXT} bytes");
            return Err(Refusal::Module(reason));
        }
        let text = self.module.text();
        let mut whole = String::with_capacity(text.len() + grown);
        let mut ranges = Vec::new();
        let mut from = 0;
        // What was inserted before stands further on by what is inserted now.
        let moved = |at: usize| {
            let before = self.insertions.iter().take_while(|(place, _)| *place <= at);
            at + before.map(|(_, text)| text.len()).sum::<usize>()
        };
        let old = spliced.inserted.iter().map(|range| {
            let start = moved(range.start);
            start..start + range.len()
        });
        ranges.extend(old);
        for (at, inserted) in &self.insertions {
            whole.push_str(&text[from..*at]);
            let start = whole.len();
            whole.push_str(inserted);
            ranges.push(start..whole.len());
            from = *at;
        }
        whole.push_str(&text[from..]);
        ranges.sort_by_key(|range| range.start);
        spliced.inserted = ranges;
        spliced.text = whole;
        Ok(())
    }

    /// Behind the head of the module, and behind the table where it is there.
    fn end_of_declared(&self) -> usize {
        let statements = self.module.statements().iter();
        let table = statements.filter(|s| s.kind == Kind::Directive).find(|s| {
            let code = self.module.code(s);
            code.starts_with(".visible .const") && code.contains(TABLE)
        });
        table.map_or(self.head.end, |statement| statement.end)
    }
}

/// Refused where a program orders blocks and may end threads: nobody would tell the others of its block.
pub(super) const ORDER_EFFECT: crate::verify::Effect = crate::verify::Effect::Prefetching;
