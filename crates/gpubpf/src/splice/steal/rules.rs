//! Kernels whose blocks cannot follow each other in one block, and why.
//!
//! A block that steals runs the text of its kernel again and again: a thread that would have ended waits for the others
//! of its block instead. What that changes is refused:
//!
//! - Barriers and operations of a warp do not wait for threads that have ended. So no barrier of the whole block may lie
//!   between a branch at which threads of the block may part and where they meet again (`Judge::barriers`), and no operation of
//!   a warp between one at which lanes may part and a return that some of them may take instead (`Judge::warps`).
//! - What a kernel began has to have ended with it: barriers in memory, copies in bulk, the tensor cores' groups,
//!   registers that warps gave away.
//! - A kernel that knows more of its grid than `%ctaid` and `%nctaid`: clusters, cooperative launches, launches of its own,
//!   and the wait of one block for another, which may not have been begun.

use std::collections::{BTreeMap, HashSet};

use super::body::{Body, Inst, words};
use super::uniform::{Differs, Uniform, number, results_and_sources};
use crate::graph;
use crate::ptx::{Function, Instruction, Module};

/// Why a kernel does not steal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsafe {
    /// The line of the module's text, from 1.
    pub line: usize,
    /// What stands there.
    pub statement: String,
    /// The rule that it breaks.
    pub rule: Rule,
}

/// What is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Clusters of blocks.
    Cluster,
    /// The cooperative grid.
    Cooperative,
    /// Launches that a kernel makes.
    Launches,
    /// Work that depends on other launches while it runs.
    Dependent,
    /// Barriers in shared memory.
    MemoryBarrier,
    /// Copies in bulk and by tensor maps.
    BulkCopy,
    /// Operations of the tensor cores that go on by themselves.
    TensorCores,
    /// Registers that move between warps.
    Registers,
    /// Threads may return while others wait for the block.
    Barrier,
    /// Lanes may return while others wait for the warp.
    Warp,
    /// The number of a barrier is not constant, or all 16 are used.
    BarrierNumber,
    /// A function has a barrier.
    BarrierInFunction,
    /// A function ends threads.
    ExitInFunction,
    /// A function reads which block it is in.
    BlockInFunction,
    /// A function whose text is not here, or that is called through a pointer.
    UnknownFunction,
    /// A block waits for what another one writes.
    Waits,
    /// The stack grows as it runs.
    Stack,
    /// It asks how much shared memory it has in all.
    SharedSize,
    /// A special register in a form that is not read.
    Vector,
    /// Its parameters leave no room.
    Parameters,
    /// The module has a function of the name that the kernel would get.
    Named,
    /// The module is for older devices.
    TooOld,
    /// Its head is written in a way that is not known.
    Unread,
}

impl Rule {
    /// The reason in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Cluster => "its blocks belong to clusters",
            Self::Cooperative => "it knows the cooperative grid, whose blocks run all at once",
            Self::Launches => "it launches kernels itself",
            Self::Dependent => "it tells other launches when they may begin",
            Self::MemoryBarrier => "it has barriers in memory, which are set up once in a block",
            Self::BulkCopy => {
                "it copies in bulk or by tensor maps, which may still go on when threads return"
            }
            Self::TensorCores => {
                "it uses the tensor cores asynchronously, which may still work when threads return"
            }
            Self::Registers => {
                "its warps hand registers to each other, which they have once in a block"
            }
            Self::Barrier => {
                "some threads of a block may return, or go elsewhere, while others wait at this barrier"
            }
            Self::Warp => "some lanes of a warp may return while others wait for the warp here",
            Self::BarrierNumber => {
                "the number of a barrier is not known, so that none is known to be free"
            }
            Self::BarrierInFunction => "a function that it calls has a barrier",
            Self::ExitInFunction => "a function that it calls ends threads",
            Self::BlockInFunction => "a function that it calls reads which block it is in",
            Self::UnknownFunction => "it calls what is not in this module",
            Self::Waits => {
                "a block waits here for what others write, and those may not have been begun"
            }
            Self::Stack => "its stack grows as it runs, until threads return",
            Self::SharedSize => "it asks how much shared memory there is in all",
            Self::Vector => "it reads all sides of the block's number at once",
            Self::Parameters => "its parameters leave no room for one more",
            Self::Unread => "its head is written in a way that is not known",
            Self::Named => "the name that the one beside it would get is taken",
            Self::TooOld => {
                "its module is for devices or a version of PTX that lack what stealing needs (sm_70, PTX 6.0)"
            }
        }
    }
}

/// Instructions by how they begin.
const OPCODES: &[(&str, Rule)] = &[
    ("barrier.cluster", Rule::Cluster),
    ("mapa", Rule::Cluster),
    ("getctarank", Rule::Cluster),
    ("clusterlaunchcontrol", Rule::Cluster),
    ("cp.async.bulk", Rule::BulkCopy),
    ("cp.reduce.async.bulk", Rule::BulkCopy),
    ("tensormap", Rule::BulkCopy),
    ("st.async", Rule::MemoryBarrier),
    ("red.async", Rule::MemoryBarrier),
    ("cp.async.mbarrier", Rule::MemoryBarrier),
    ("mbarrier", Rule::MemoryBarrier),
    ("wgmma", Rule::TensorCores),
    ("tcgen05", Rule::TensorCores),
    ("setmaxnreg", Rule::Registers),
    ("griddepcontrol", Rule::Dependent),
    ("alloca", Rule::Stack),
];

/// Special registers by how they begin.
const SPECIAL: &[(&str, Rule)] = &[
    ("%cluster", Rule::Cluster),
    ("%ncluster", Rule::Cluster),
    ("%is_explicit_cluster", Rule::Cluster),
    ("%envreg", Rule::Cooperative),
    ("%total_smem_size", Rule::SharedSize),
    ("%aggr_smem_size", Rule::SharedSize),
];

/// Functions of the device's run time that may be called: they know nothing of blocks.
const KNOWN: &[&str] =
    &["vprintf", "malloc", "free", "__assertfail", "__assert_fail", "memcpy", "memset"];

/// What is found out of a kernel that steals.
pub(super) struct Allowed {
    /// A barrier that it does not use.
    pub(super) barrier: u32,
    /// It is right only where 32 threads in x are a warp.
    pub(super) rows: bool,
    /// It copies to shared memory asynchronously.
    pub(super) copies: bool,
}

/// Judges a kernel: how it may steal, or the first statement that breaks each rule.
pub(super) fn judge(
    module: &Module,
    function: &Function,
    reached: &[&Function],
    parameters: &HashSet<&str>,
) -> Result<Allowed, Vec<Unsafe>> {
    let body = Body::new(module, function);
    let mut judge = Judge { module, found: BTreeMap::new() };
    judge.head(function);
    body.insts.iter().for_each(|inst| judge.instruction(inst));
    let mut waits: HashSet<&str> = HashSet::new();
    for callee in reached {
        judge.function(callee, &mut waits);
    }
    judge.calls(&body, module);
    let uniform = Uniform::new(&body, parameters);
    let barriers = judge.numbers(&body);
    judge.barriers(&body, &uniform);
    judge.warps(&body, &uniform, &waits);
    judge.waits(&body);
    let copies = body.insts.iter().any(|inst| inst.insn.opcode.starts_with("cp.async"));
    if judge.found.is_empty() {
        let barrier = (0..16_u32)
            .rev()
            .find(|number| !barriers.contains(&(*number).into()))
            .unwrap_or_default();
        return Ok(Allowed { barrier, rows: uniform.rows, copies });
    }
    Err(judge.found.into_values().collect())
}

struct Judge<'a, 'm> {
    module: &'m Module<'a>,
    found: BTreeMap<Rule, Unsafe>,
}

/// Whether an instruction is a barrier of the block, not of a warp or cluster.
fn is_barrier(insn: &Instruction) -> bool {
    matches!(insn.name(), "bar" | "barrier")
        && !insn.parts().any(|part| part == "warp" || part == "cluster")
}

/// Of a barrier of the block: its number, and whether it counts all threads, since no other count stands there.
fn barrier<'a>(insn: &Instruction<'a>) -> (Option<&'a str>, bool) {
    let reduces = insn.parts().any(|part| part == "red");
    let (number, most) = if reduces { (1, 3) } else { (0, 1) };
    (insn.operands.get(number).copied(), insn.operands.len() <= most)
}

/// Whether lanes wait for those that a mask names; not where the mask is of lanes that are there.
fn of_warp(insn: &Instruction) -> bool {
    let sync = insn.parts().any(|part| part == "sync");
    match insn.name() {
        "shfl" | "vote" | "match" | "redux" | "elect" => sync,
        "bar" | "barrier" => insn.parts().any(|part| part == "warp"),
        _ => false,
    }
}

impl<'a> Judge<'a, '_> {
    /// Keeps the first place of each rule.
    fn refuse(&mut self, rule: Rule, statement: usize) {
        if self.found.contains_key(&rule) {
            return;
        }
        let statement = &self.module.statements()[statement];
        let line = self.module.place(statement.start).0;
        let words: Vec<&str> = self.module.code(statement).split_whitespace().collect();
        let text: String = words.join(" ").chars().take(120).collect();
        self.found.insert(rule, Unsafe { line, statement: text, rule });
    }

    fn head(&mut self, function: &Function) {
        let code = self.module.code(&self.module.statements()[function.head]);
        let of_clusters =
            [".reqnctapercluster", ".explicitcluster", ".maxclusterrank", ".blocksareclusters"];
        if words(code).any(|word| of_clusters.contains(&word)) {
            self.refuse(Rule::Cluster, function.head);
        }
    }

    /// What no kernel may have.
    fn instruction(&mut self, inst: &Inst) {
        let Inst { insn, statement, .. } = inst;
        if let Some((_, rule)) = OPCODES.iter().find(|(begin, _)| insn.opcode.starts_with(begin)) {
            self.refuse(*rule, *statement);
        }
        if insn.opcode.contains("::cluster") {
            self.refuse(Rule::Cluster, *statement);
        }
        for word in insn.operands.iter().flat_map(|operand| words(operand)) {
            if let Some((_, rule)) = SPECIAL.iter().find(|(begin, _)| word.starts_with(begin)) {
                self.refuse(*rule, *statement);
            }
            if matches!(word, "%ctaid" | "%nctaid") {
                self.refuse(Rule::Vector, *statement);
            }
        }
    }

    /// What no function may have that a kernel calls.
    fn function<'f>(&mut self, function: &'f Function, waits: &mut HashSet<&'f str>) {
        let body = Body::new(self.module, function);
        for inst in &body.insts {
            self.instruction(inst);
            if is_barrier(&inst.insn) {
                self.refuse(Rule::BarrierInFunction, inst.statement);
            }
            if inst.insn.name() == "exit" {
                self.refuse(Rule::ExitInFunction, inst.statement);
            }
            let mut read = inst.insn.operands.iter().flat_map(|operand| words(operand));
            if read.any(|word| word.starts_with("%ctaid") || word.starts_with("%nctaid")) {
                self.refuse(Rule::BlockInFunction, inst.statement);
            }
            if of_warp(&inst.insn) {
                waits.insert(&function.name);
            }
        }
        self.calls(&body, self.module);
        self.waits(&body);
    }

    /// Calls of what is not here.
    fn calls(&mut self, body: &Body, module: &Module) {
        for inst in body.insts.iter().filter(|inst| inst.insn.name() == "call") {
            let callee = callee(&inst.insn);
            let here = module.functions().iter().any(|f| f.name == callee && f.body.is_some());
            if callee.starts_with("cuda") {
                self.refuse(Rule::Launches, inst.statement);
            } else if !here && !KNOWN.contains(&callee) {
                self.refuse(Rule::UnknownFunction, inst.statement);
            }
        }
    }

    /// The barriers that the kernel uses.
    fn numbers(&mut self, body: &Body) -> HashSet<i64> {
        let mut used = HashSet::new();
        for inst in body.insts.iter().filter(|inst| is_barrier(&inst.insn)) {
            match barrier(&inst.insn).0.and_then(number) {
                Some(number) => _ = used.insert(number),
                None => self.refuse(Rule::BarrierNumber, inst.statement),
            }
            if used.len() == 16 {
                self.refuse(Rule::BarrierNumber, inst.statement);
            }
        }
        used
    }

    /// Barriers of the whole block between a branch at which its threads may part and where they meet. Without one, all
    /// threads pass the same barriers, and none has returned at any of them.
    fn barriers(&mut self, body: &Body, uniform: &Uniform) {
        for block in 0..body.blocks.len() {
            if uniform.branches[block].is_none_or(|differs| differs == Differs::Nowhere) {
                continue;
            }
            for inst in body.between(block).into_iter().flat_map(|at| body.of(at)) {
                if is_barrier(&inst.insn) && barrier(&inst.insn).1 {
                    self.refuse(Rule::Barrier, inst.statement);
                }
            }
        }
        for inst in body.insts.iter().filter(|inst| is_barrier(&inst.insn) && barrier(&inst.insn).1)
        {
            if inst.insn.guard.is_some_and(|guard| uniform.of(guard.predicate) != Differs::Nowhere)
            {
                self.refuse(Rule::Barrier, inst.statement);
            }
        }
    }

    /// Operations of a warp between a branch at which lanes may part and where they meet, if lanes may have returned by
    /// then: a return can be reached without a barrier of the block, for which they would wait.
    fn warps(&mut self, body: &Body, uniform: &Uniform, functions: &HashSet<&str>) {
        let holds = |block: usize| {
            let all = |inst: &Inst| {
                is_barrier(&inst.insn) && barrier(&inst.insn).1 && inst.insn.guard.is_none()
            };
            body.of(block).iter().any(all)
        };
        // As the graph, but nothing follows a barrier.
        let cut: Vec<Vec<usize>> = (0..body.blocks.len())
            .map(|block| if holds(block) { Vec::new() } else { body.next[block].clone() })
            .collect();
        let end = body.blocks.len();
        let returns = |from: &[usize]| {
            from.contains(&end)
                || graph::reached(&cut, from, None).iter().any(|&at| cut[at].contains(&end))
        };
        for block in 0..body.blocks.len() {
            if uniform.branches[block] != Some(Differs::Lanes) || !returns(&body.next[block]) {
                continue;
            }
            for at in body.between(block) {
                for (number, inst) in body.of(at).iter().enumerate() {
                    let insn = &inst.insn;
                    let there = names_who_is_there(&body.of(at)[..number], insn);
                    let calls = insn.name() == "call" && functions.contains(callee(insn));
                    if (of_warp(insn) && !there) || calls {
                        self.refuse(Rule::Warp, inst.statement);
                    }
                }
            }
        }
    }

    /// Loops that decide by what they load past the caches: others write it.
    fn waits(&mut self, body: &Body) {
        for inst in body.insts.iter().filter(|inst| watches(&inst.insn)) {
            let after = graph::reached(&body.next, &body.next[inst.block], None);
            if !after.contains(&inst.block) {
                continue;
            }
            let comes_back = |&block: &usize| {
                graph::reached(&body.next, &body.next[block], None).contains(&inst.block)
            };
            let in_loop: Vec<usize> = after.into_iter().filter(comes_back).collect();
            let mut known: HashSet<&str> = results_and_sources(&inst.insn).0.into_iter().collect();
            loop {
                let before = known.len();
                for inst in in_loop.iter().flat_map(|&block| body.of(block)) {
                    let (results, sources) = results_and_sources(&inst.insn);
                    let mut read = sources.iter().flat_map(|source| words(source));
                    if read.any(|word| known.contains(word)) {
                        known.extend(results);
                    }
                }
                if known.len() == before {
                    break;
                }
            }
            let decides = |&block: &usize| {
                body.branch(block)
                    .and_then(|b| b.insn.guard)
                    .is_some_and(|g| known.contains(g.predicate))
            };
            if in_loop.iter().any(decides) {
                self.refuse(Rule::Waits, inst.statement);
            }
        }
    }
}

/// Whether the mask of an operation of a warp was taken from the lanes that were there on the way to it, without a branch since:
/// all of them come to it.
fn names_who_is_there(before: &[Inst], insn: &Instruction) -> bool {
    let Some(mask) = insn.operands.last() else { return false };
    let writes = |inst: &&Inst| results_and_sources(&inst.insn).0.contains(mask);
    let last = before.iter().rev().find(writes);
    last.is_some_and(|inst| inst.insn.name() == "activemask" && inst.insn.guard.is_none())
}

/// The name of what a call calls, or the register through which it does.
fn callee<'a>(insn: &Instruction<'a>) -> &'a str {
    insn.operands.iter().find(|operand| !operand.starts_with('(')).copied().unwrap_or_default()
}

/// Whether an instruction reads memory that other blocks may be writing: volatile and ordered loads, and atomic operations
/// that change nothing. Who swaps takes a lock, and waits for nobody that has not begun.
fn watches(insn: &Instruction) -> bool {
    if insn.parts().any(|part| part.starts_with("shared") || matches!(part, "local" | "param")) {
        return false;
    }
    match insn.name() {
        "ld" => {
            insn.parts().any(|part| matches!(part, "volatile" | "acquire" | "relaxed" | "mmio"))
        }
        "atom" => {
            let same = matches!(insn.operands.as_slice(), [.., a, b] if insn.parts().any(|p| p == "cas") && a == b);
            let zero = insn.operands.last().is_some_and(|value| number(value) == Some(0));
            let keeps = insn.parts().any(|p| matches!(p, "add" | "or" | "xor"));
            same || (keeps && zero)
        }
        _ => false,
    }
}
