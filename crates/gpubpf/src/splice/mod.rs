//! Device programs put into the text of a kernel.
//!
//! A splice only inserts: without what it inserted, the text is the module's, byte for byte, with its
//! debug information. What is inserted at a site is one block in braces that declares its own
//! registers and labels under a name that the module does not contain, so that nothing can collide.
//! There is no call, and no parameter is added: maps are found through one table in constant memory
//! ([`Table`]), which whoever loads the module fills.
//!
//! Where a kernel begins, the block stands before anything can part the lanes. Where threads return,
//! it stands before each `ret` and `exit` under the same condition, and where text ends without one.
//! Nothing is put between a call's parameters, the call and its results, nor between an instruction
//! and the pragma that speaks of it.

mod access;
mod block;
mod called;
mod names;
mod needs;
mod patch;
mod points;
mod registers;
mod sample;
mod steal;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::ops::Range;

use crate::attach::Attach;
use crate::compile::{self, Fragment};
use crate::error::Fault;
use crate::options::{self, Addresses, Options, TABLE, TABLE_HEADER};
use crate::program::{Map, Program};
use crate::ptx::{Function, Kind, MAX_TEXT, Module};
use crate::reader::Object;
use crate::verify::{Budget, Certificate, verified};
pub use called::{GIVEN, called};
pub use names::Names;
pub use patch::{Patch, Patched, Spot};
use points::points;
pub use steal::{NotStealing, ORDERED, PARAMETER_BYTES, Record, Rule, SUFFIX, Stealing, Unsafe};
use write::{Insertion, Site};

/// The name of the switch by which kernels steal.
pub const STEAL: &str = "blocksteal";

/// How programs are put into kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// What each program may cost and do.
    pub budget: Budget,
    /// It runs in one of so many launches.
    pub launches: NonZeroU32,
    /// It runs in one of so many blocks of these.
    pub blocks: NonZeroU32,
    /// It runs in one of so many warps of these.
    pub warps: NonZeroU32,
    /// Whether each program has a word of the table that switches it on and off.
    pub switch: bool,
}

impl Default for How {
    fn default() -> Self {
        let all = NonZeroU32::MIN;
        Self { budget: Budget::default(), launches: all, blocks: all, warps: all, switch: true }
    }
}

impl How {
    /// Whether programs are left out of any launch, block or warp.
    pub fn samples(&self) -> bool {
        [self.launches, self.blocks, self.warps].iter().any(|n| n.get() > 1)
    }
}

/// A program that may be spliced.
#[derive(Debug, Clone)]
pub struct Probe {
    /// The function's name.
    pub name: String,
    /// Its section.
    pub section: String,
    /// What the section says.
    pub attach: Attach,
    /// The program and what it costs, or why it is refused. A program of the host has no cost.
    pub verdict: Result<(Program, Certificate), Fault>,
    /// The number in the table of its first map.
    pub(crate) first_map: usize,
    /// Its atomic additions that one lane may make for its warp.
    of_warp: BTreeSet<usize>,
}

/// Programs with their maps, to be put into any number of modules.
#[derive(Debug, Clone)]
pub struct Plan {
    how: How,
    maps: Vec<Map>,
    probes: Vec<Probe>,
    /// The kernels that steal, by patterns.
    steal: Vec<String>,
}

/// The table in constant memory: the symbol `gpuwhy_probe`, an array of 64-bit words, all 0 at first.
///
/// Words 0 to 3 are the process (`pid << 32 | tid`, as helper 14 gives it) and three reserved ones.
/// For each map follow the address of its values, the number of its shards (threads or SMs; 0 where
/// it has none) and the address of the 64-bit counter of what was lost. For each program follows its
/// switch: 0 is off. Where kernels are to steal, the last word says whether they do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// How many words it has.
    pub words: usize,
    /// The maps, each with the first of its three words.
    pub maps: Vec<(Map, usize)>,
    /// The programs' names, each with its switch.
    pub switches: Vec<(String, usize)>,
}

/// A place where a program was put; its index is the number that the program reads in the first word
/// of its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteReport {
    /// The program.
    pub probe: String,
    /// The kernel or function, as the text names it.
    pub function: String,
    /// The line in the module that was read, from 1.
    pub line: usize,
    /// The source line, where the module has line information.
    pub source: Option<String>,
}

/// What became of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Its name as the text has it.
    pub name: String,
    /// Its name as a programmer wrote it.
    pub readable: String,
    /// How many sites lie in it, and in functions that only kernels of this plan call.
    pub sites: usize,
}

/// A module with programs in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spliced {
    /// The new text; the module's own where there is no site.
    pub text: String,
    /// What was inserted, as ranges of the new text; without them it is the module's text.
    pub inserted: Vec<Range<usize>>,
    /// The kernels that a program is attached to.
    pub kernels: Vec<KernelReport>,
    /// Every place.
    pub sites: Vec<SiteReport>,
    /// What could not be reached, and why.
    pub notes: Vec<String>,
    /// Kernels beside which one stands that steals.
    pub stealing: Vec<Stealing>,
    /// Kernels that were named for that, and why they do not.
    pub not_stealing: Vec<NotStealing>,
}

/// Why a module is not spliced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A program that is attached to one of its kernels cannot run there.
    #[error("program `{program}`: {fault}")]
    Program {
        /// The program.
        program: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A program says nothing that can be attached to.
    #[error("program `{program}`, section `{section}`: {reason}")]
    Section {
        /// The program.
        program: String,
        /// Its section.
        section: String,
        /// What is unclear.
        reason: String,
    },
    /// The module itself.
    #[error("the module cannot be spliced: {0}")]
    Module(String),
    /// An instruction that the module is too old for.
    #[error(
        "program `{program}` needs `{what}`: PTX {}.{} and sm_{sm}; the module has PTX {}.{} and \
         sm_{module_sm}", version.0, version.1, module.0, module.1
    )]
    Needs {
        /// The program.
        program: String,
        /// The instruction or register.
        what: String,
        /// The PTX version that has it.
        version: (u32, u32),
        /// The device that has it.
        sm: u32,
        /// The module's version.
        module: (u32, u32),
        /// The module's device.
        module_sm: u32,
    },
}

impl Plan {
    /// An empty plan.
    pub fn new(how: How) -> Self {
        Self { how, maps: Vec::new(), probes: Vec::new(), steal: Vec::new() }
    }

    /// Adds every program of an object. One that is refused is kept with the reason, since an object
    /// may hold programs for kernels, or for a host, that a module does not have.
    pub fn object(&mut self, object: &Object) {
        let first_map = self.maps.len();
        self.maps.extend(object.maps().iter().cloned());
        for entry in object.entries() {
            let (verdict, of_warp) = self.verified(object.link(entry), &entry.attach);
            self.probes.push(Probe {
                name: entry.name.clone(),
                section: entry.section.clone(),
                attach: entry.attach.clone(),
                verdict,
                first_map,
                of_warp,
            });
        }
    }

    /// Adds one program, attached as its section says.
    pub fn program(&mut self, program: Program) {
        let first_map = self.maps.len();
        self.maps.extend(program.maps.iter().cloned());
        let (name, section) = (program.name.clone(), program.section.clone());
        let attach = Attach::from_section(&section);
        let (verdict, of_warp) = self.verified(Ok(program), &attach);
        self.probes.push(Probe { name, section, attach, verdict, first_map, of_warp });
    }

    /// A program with what it costs, or why it is refused; and which additions one lane may make for its warp.
    fn verified(
        &self,
        program: Result<Program, Fault>,
        attach: &Attach,
    ) -> (Result<(Program, Certificate), Fault>, BTreeSet<usize>) {
        let mut budget = self.how.budget;
        if attach.orders().is_some() {
            budget.effect = budget.effect.min(steal::ORDER_EFFECT);
        }
        if attach.policy().is_some() {
            budget = Budget::POLICY;
        }
        let accepted = program.and_then(|program| {
            let (certificate, of_warp) = verified(&program, budget)?;
            Ok(((program, certificate), of_warp))
        });
        match accepted {
            Ok((accepted, of_warp)) => (Ok(accepted), of_warp),
            Err(fault) => (Err(fault), BTreeSet::new()),
        }
    }

    /// The programs, with what the verifier says of each.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The table that a spliced module declares.
    pub fn table(&self) -> Table {
        let sampled = self.how.samples().then(sample::map);
        let maps =
            self.maps.iter().cloned().chain(sampled).zip((TABLE_HEADER..).step_by(3)).collect();
        let first = self.first_switch();
        let names = self.probes.iter().map(|probe| probe.name.clone());
        let names = names.chain(self.steals().then(|| STEAL.to_owned()));
        let switches = if self.how.switch { names.zip(first..).collect() } else { Vec::new() };
        Table { words: first + switches.len(), maps, switches }
    }

    fn first_switch(&self) -> usize {
        TABLE_HEADER + 3 * (self.maps.len() + usize::from(self.how.samples()))
    }

    /// Puts the programs into a module, and beside kernels that are to steal those that do.
    pub fn splice(&self, module: &Module) -> Result<Spliced, Refusal> {
        let spliced = self.splice_programs(module)?;
        if self.steals() { self.add_stealing(module, spliced) } else { Ok(spliced) }
    }

    fn splice_programs(&self, module: &Module) -> Result<Spliced, Refusal> {
        let matches = self.matches(module)?;
        let unchanged = |kernels, notes| Spliced {
            text: module.text().to_owned(),
            inserted: Vec::new(),
            kernels,
            sites: Vec::new(),
            notes,
            stealing: Vec::new(),
            not_stealing: Vec::new(),
        };
        if matches.is_empty() {
            let told = "no kernel of the module is one that a program is attached to".to_owned();
            // Programs that order blocks belong to none.
            let attached = self.probes.iter().any(|probe| probe.attach.kernel().is_some());
            let notes = if attached || !self.steals() { vec![told] } else { Vec::new() };
            return Ok(unchanged(Vec::new(), notes));
        }
        let head = needs::head(module)?;
        if names_table(module) {
            let reason = format!("it has a variable `{TABLE}` already, as spliced modules do");
            return Err(Refusal::Module(reason));
        }
        let mut splicer = Splicer::new(self, module, head);
        let matches = splicer.that_can_have_sums(matches);
        for (probe, kernels) in &matches {
            splicer.probe(*probe, kernels)?;
        }
        let kernels = splicer.kernels(&matches);
        splicer.census(&kernels)?;
        splicer.sums_of_blocks(&kernels)?;
        if splicer.sites.is_empty() {
            splicer.notes.push("its kernels match, and have no such place".into());
            return Ok(unchanged(kernels, splicer.notes));
        }
        splicer.finish(kernels)
    }

    /// For each program that is attached to a kernel of the module: these kernels.
    fn matches(&self, module: &Module) -> Result<Vec<(usize, Vec<usize>)>, Refusal> {
        let kernels: Vec<(usize, Names)> = module
            .functions()
            .iter()
            .enumerate()
            .filter(|(_, function)| function.kernel && function.body.is_some())
            .map(|(at, function)| (at, Names::new(&function.name)))
            .collect();
        let mut found = Vec::new();
        for (number, probe) in self.probes.iter().enumerate() {
            if let Attach::Unclear(reason) = &probe.attach {
                return Err(Refusal::Section {
                    program: probe.name.clone(),
                    section: probe.section.clone(),
                    reason: reason.clone(),
                });
            }
            let Some(pattern) = probe.attach.kernel() else { continue };
            let meant: Vec<usize> = kernels
                .iter()
                .filter(|(_, names)| names.matches(pattern))
                .map(|&(at, _)| at)
                .collect();
            if !meant.is_empty() {
                found.push((number, meant));
            }
        }
        Ok(found)
    }
}

/// Whether the module's scope has a variable of the table's name.
fn names_table(module: &Module) -> bool {
    let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.'));
    module.statements().iter().any(|statement| {
        statement.kind == Kind::Directive
            && module.code(statement).split(word).any(|word| word == TABLE)
    })
}

struct Splicer<'a, 'm, 'p> {
    plan: &'p Plan,
    module: &'m Module<'a>,
    head: needs::Head,
    /// What no name of the module contains.
    base: String,
    /// Starts of lines.
    lines: Vec<usize>,
    files: HashMap<u32, String>,
    /// For each function, those that it calls.
    calls: Vec<BTreeSet<usize>>,
    /// Functions that call what the text does not tell.
    calls_unknown: BTreeSet<usize>,
    insertions: Vec<Insertion>,
    declarations: String,
    sites: Vec<SiteReport>,
    /// For each site, its function and its program.
    places: Vec<(usize, usize)>,
    notes: Vec<String>,
    grown: usize,
}

impl<'a, 'm, 'p> Splicer<'a, 'm, 'p> {
    fn new(plan: &'p Plan, module: &'m Module<'a>, head: needs::Head) -> Self {
        let text = module.text();
        let mut base = "gw_".to_owned();
        let mut number = 0_u64;
        while text.contains(&base) {
            number += 1;
            base = format!("gw{number}_");
        }
        let breaks = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        let (calls, calls_unknown) = calls(module);
        let note = |at: &usize| {
            let name = &module.functions()[*at].name;
            format!("{name}: calls through a pointer; what it reaches is not probed")
        };
        let notes = calls_unknown.iter().map(note).collect();
        let (insertions, sites, places) = (Vec::new(), Vec::new(), Vec::new());
        let files = files(module);
        Self {
            plan,
            module,
            head,
            base,
            lines,
            files,
            calls,
            calls_unknown,
            insertions,
            declarations: String::new(),
            sites,
            places,
            notes,
            grown: 0,
        }
    }

    /// Puts one program into its kernels and into the functions that only these call.
    fn probe(&mut self, number: usize, kernels: &[usize]) -> Result<(), Refusal> {
        let probe = &self.plan.probes[number];
        let functions = self.functions(kernels, probe);
        let mut compiled: Option<Fragment> = None;
        for at in functions {
            let function = &self.module.functions()[at];
            let (found, notes) = points(self.module, function, &probe.attach, &self.files);
            self.notes.extend(notes);
            for point in found {
                let fragment = match &compiled {
                    Some(fragment) => fragment,
                    None => compiled.insert(self.compile(number, probe)?),
                };
                let site = Site {
                    base: &self.base,
                    fragment: &fragment.body,
                    switch: self.plan.first_switch() + number,
                    how: &self.plan.how,
                };
                site.write(&point, self.sites.len(), &mut self.insertions);
                self.grown += fragment.body.len() + 512;
                if self.grown + self.module.text().len() > MAX_TEXT {
                    let reason = format!(
                        "program `{}` would make the text longer than {MAX_TEXT} bytes",
                        probe.name
                    );
                    return Err(Refusal::Module(reason));
                }
                self.places.push((at, number));
                self.sites.push(SiteReport {
                    probe: probe.name.clone(),
                    function: function.name.clone(),
                    line: self.lines.partition_point(|&start| start <= point.at),
                    source: point.source.and_then(|(file, line)| {
                        self.files.get(&file).map(|path| format!("{path}:{line}"))
                    }),
                });
            }
        }
        Ok(())
    }

    /// Where programs are sampled: the counts of what is left out, at the beginning of each kernel that has sites.
    fn census(&mut self, kernels: &[KernelReport]) -> Result<(), Refusal> {
        let how = &self.plan.how;
        if !how.samples() {
            return Ok(());
        }
        let word = TABLE_HEADER + 3 * self.plan.maps.len();
        let text = sample::census(&self.base, how, options::Table::Constant, word);
        needs::check(&text, &self.head, "1 in N")?;
        for function in self.module.functions() {
            let is = |kernel: &&KernelReport| kernel.name == function.name && kernel.sites > 0;
            if !function.kernel || !kernels.iter().any(|kernel| is(&kernel)) {
                continue;
            }
            let (found, _) = points(self.module, function, &Attach::Entry("*".into()), &self.files);
            for point in found {
                let line = if point.rank == 0 { "\n" } else { "" };
                self.insertions.push((point.at, point.rank, format!("{line}{text}\t")));
                self.grown += text.len() + 8;
            }
        }
        Ok(())
    }

    fn compile(&mut self, number: usize, probe: &Probe) -> Result<Fragment, Refusal> {
        let of_block = Some(block::prefix(&self.base));
        let addresses = Addresses::Shared { first: probe.first_map };
        let of_warp = probe.of_warp.clone();
        let with = Options { of_warp, of_block, addresses, ..Options::default() };
        compiled(probe, number, &self.base, &self.head, &mut self.declarations, with)
    }

    /// The kernels, and the functions that they reach and no other kernel does.
    fn functions(&mut self, kernels: &[usize], probe: &Probe) -> Vec<usize> {
        let mut meant: Vec<usize> = kernels.to_vec();
        if matches!(probe.attach, Attach::Entry(_)) {
            return meant;
        }
        let reached = self.reached(kernels);
        let functions = self.module.functions();
        let others: Vec<usize> = (0..functions.len())
            .filter(|at| functions[*at].kernel && !kernels.contains(at))
            .collect();
        let elsewhere = self.reached(&others);
        for at in reached {
            let Function { name, kernel: false, body: Some(_), .. } = &functions[at] else {
                continue;
            };
            if elsewhere.contains(&at) {
                self.notes.push(format!(
                    "{name}: not probed by `{}`, since kernels that it is not attached to call this \
                     function too",
                    probe.name
                ));
            } else {
                meant.push(at);
            }
        }
        meant
    }

    /// All that these functions call, directly or not, themselves included.
    fn reached(&self, from: &[usize]) -> BTreeSet<usize> {
        let mut found: BTreeSet<usize> = from.iter().copied().collect();
        let mut open = from.to_vec();
        while let Some(at) = open.pop() {
            open.extend(self.calls[at].iter().filter(|&&callee| found.insert(callee)));
        }
        found
    }

    fn kernels(&self, matches: &[(usize, Vec<usize>)]) -> Vec<KernelReport> {
        let meant: BTreeSet<usize> =
            matches.iter().flat_map(|(_, at)| at.iter().copied()).collect();
        let report = |at: usize| {
            let name = self.module.functions()[at].name.clone();
            let reached = self.reached(&[at]);
            let sites = self.places.iter().filter(|(place, _)| reached.contains(place)).count();
            KernelReport { readable: Names::new(&name).readable().to_owned(), name, sites }
        };
        meant.into_iter().map(report).collect()
    }

    /// The text with everything put in.
    fn finish(mut self, kernels: Vec<KernelReport>) -> Result<Spliced, Refusal> {
        let words = self.plan.table().words;
        let mut head = String::from("\n\n");
        let _ = writeln!(head, ".visible .const .align 8 .b64 {TABLE}[{words}];");
        head.push_str(&self.declarations);
        self.insertions.push((self.head.end, 0, head));
        // Stable: of one program before another, the first comes first.
        self.insertions.sort_by_key(|&(at, rank, _)| (at, rank));
        let (whole, ranges) = inserted(self.module.text(), &self.insertions);
        let mut seen = HashSet::new();
        self.notes.retain(|note| seen.insert(note.clone()));
        let (inserted, sites, notes) = (ranges, self.sites, self.notes);
        let (stealing, not_stealing) = (Vec::new(), Vec::new());
        Ok(Spliced { text: whole, inserted, kernels, sites, notes, stealing, not_stealing })
    }
}

/// A text with insertions in it, which are in order, and where they lie in it.
fn inserted(text: &str, insertions: &[Insertion]) -> (String, Vec<Range<usize>>) {
    let grown: usize = insertions.iter().map(|(_, _, inserted)| inserted.len() + 1).sum();
    let mut whole = String::with_capacity(text.len() + grown);
    let (mut from, mut ranges) = (0, Vec::with_capacity(insertions.len()));
    for (at, _, inserted) in insertions {
        whole.push_str(&text[from..*at]);
        let start = whole.len();
        // Some directives end with their line, so a block begins a line of its own.
        let line = whole.rfind('\n').map_or(0, |newline| newline + 1);
        if !whole[line..].trim_ascii().is_empty() && !inserted.starts_with('\n') {
            whole.push('\n');
        }
        whole.push_str(inserted);
        ranges.push(start..whole.len());
        from = *at;
    }
    whole.push_str(&text[from..]);
    (whole, ranges)
}

/// The program of a probe in PTX, under names of its own; `with` says how, and where its maps are, beside where its context
/// is. What it declares is added to `declarations`.
fn compiled(
    probe: &Probe,
    number: usize,
    base: &str,
    head: &needs::Head,
    declarations: &mut String,
    with: Options,
) -> Result<Fragment, Refusal> {
    let named = |fault| Refusal::Program { program: probe.name.clone(), fault };
    let (program, _) = probe.verdict.as_ref().map_err(|fault| named(fault.clone()))?;
    let words = 0..probe.attach.context_words();
    let options = Options {
        prefix: format!("{base}{number}_"),
        context: words.map(|word| Site::context(base, word)).collect(),
        ..with
    };
    let fragment = compile::fragment(program, &options).map_err(named)?;
    needs::check(&fragment.body, head, &probe.name)?;
    declarations.push_str(&fragment.declarations);
    Ok(fragment)
}

/// Which functions each function calls, and those with calls whose target the text does not tell.
fn calls(module: &Module) -> (Vec<BTreeSet<usize>>, BTreeSet<usize>) {
    let functions = module.functions();
    let numbers: HashMap<&str, usize> = functions
        .iter()
        .enumerate()
        .filter(|(_, function)| function.body.is_some())
        .map(|(at, function)| (&*function.name, at))
        .collect();
    let declared: HashSet<&str> = functions.iter().map(|function| &*function.name).collect();
    let mut unknown = BTreeSet::new();
    let found = functions.iter().enumerate().map(|(at, function)| {
        let mut callees = BTreeSet::new();
        let Some((open, close)) = function.body else { return callees };
        for statement in &module.statements()[open..close] {
            let Some(insn) = module.instruction(statement) else { continue };
            if insn.name() != "call" {
                continue;
            }
            let target = insn.operands.iter().find(|operand| !operand.starts_with('('));
            let target = target.copied().unwrap_or_default();
            if let Some(&callee) = numbers.get(target) {
                callees.insert(callee);
            } else if !declared.contains(target) {
                unknown.insert(at);
            }
        }
        callees
    });
    let found = found.collect();
    (found, unknown)
}

/// The source files by their numbers.
fn files(module: &Module) -> HashMap<u32, String> {
    let mut found = HashMap::new();
    for statement in module.statements() {
        if statement.kind != Kind::Directive {
            continue;
        }
        let Some(rest) = module.code(statement).strip_prefix(".file") else { continue };
        let mut parts = rest.splitn(3, '"');
        let number = parts.next().and_then(|number| number.trim().parse().ok());
        if let (Some(number), Some(path)) = (number, parts.next()) {
            found.insert(number, path.to_owned());
        }
    }
    found
}
