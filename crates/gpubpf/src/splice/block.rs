//! Sums of a block: maps of type 1541 lie in the shared memory of each block while it runs, and are added to the device's when
//! its last thread ends.
//!
//! So an addition goes to no memory outside the SM, and blocks do not wait for each other's. For that, each kernel that
//! has such a map sets it to 0 where it begins, and waits at a barrier until that is done; and each thread that ends
//! counts itself, so that whichever is the last adds up what there is. Where the text does not show that every thread
//! comes by such a place, or that the memory is there, programs with such maps are left out of the kernel, and a note says
//! why.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::points::{Point, points};
use super::sample::{linear, threads};
use super::write::{Insertion, unless};
use super::{KernelReport, Names, Probe, Refusal, Splicer, needs};
use crate::attach::Attach;
use crate::options::{TABLE_HEADER, Table};
use crate::program::{Map, MapKind};
use crate::ptx::{Function, Kind};
use crate::sim::text::{declared, tokens};
use crate::verify::Effect;

/// Bytes of shared memory that a kernel may declare (CUDA C++ Programming Guide, technical specifications by compute
/// capability): more has to be asked for at the launch.
const MOST_SHARED: u64 = 48 << 10;

/// For which kernels of a module each program is meant, by their numbers.
type Matches = Vec<(usize, Vec<usize>)>;

/// What the name of a map's shared memory begins with, before the map's number in the plan.
pub(super) fn prefix(base: &str) -> String {
    format!("{base}block")
}

impl Splicer<'_, '_, '_> {
    /// Programs with sums of blocks, without the kernels that cannot have any.
    pub(super) fn that_can_have_sums(&mut self, matches: Matches) -> Matches {
        let ends: Vec<usize> = matches
            .iter()
            .filter(|(number, _)| ends_threads(&self.plan.probes[*number]))
            .flat_map(|(_, kernels)| kernels.iter().copied())
            .collect();
        let mut left = Vec::new();
        for (number, mut kernels) in matches {
            let probe = &self.plan.probes[number];
            if has_sums(probe) {
                kernels.retain(|&kernel| {
                    let Err(why) = self.may_have_sums(kernel, &ends) else { return true };
                    let name = &self.module.functions()[kernel].name;
                    self.notes.push(format!(
                        "{}: not probed by `{}`, which has sums of a block: {why}",
                        Names::new(name).readable(),
                        probe.name
                    ));
                    false
                });
            }
            if !kernels.is_empty() {
                left.push((number, kernels));
            }
        }
        left
    }

    /// Whether each thread of a kernel comes by the places where sums are begun and added up, and there is room for them.
    fn may_have_sums(&self, kernel: usize, ends: &[usize]) -> Result<(), String> {
        let functions = self.module.functions();
        let reached = self.reached(&[kernel]);
        if self.plan.steals() {
            return Err("kernels that steal blocks are wanted too, and run several in one".into());
        }
        if ends.contains(&kernel) {
            return Err("another program ends threads of it".into());
        }
        for at in reached.iter().filter(|at| **at != kernel) {
            if self.names(&functions[*at], "exit") {
                return Err(format!("threads end in `{}`, which it calls", functions[*at].name));
            }
        }
        if let Some(at) = reached.intersection(&self.calls_unknown).next() {
            let name = &functions[*at].name;
            return Err(format!("`{name}` calls through a pointer, and threads may end there"));
        }
        let sums: u64 = self.plan.maps.iter().filter_map(bytes).sum();
        let own = self.shared(&reached)?;
        if own + sums + 8 > MOST_SHARED {
            return Err(format!(
                "it declares {own} bytes of shared memory, and {sums} more are over {MOST_SHARED}"
            ));
        }
        Ok(())
    }

    fn names(&self, function: &Function, name: &str) -> bool {
        let (open, close) = function.body.unwrap_or_default();
        let mut statements = self.module.statements()[open..close].iter();
        statements.any(|s| self.module.instruction(s).is_some_and(|insn| insn.name() == name))
    }

    /// Bytes of shared memory that these functions, and the module around them, declare.
    fn shared(&self, functions: &BTreeSet<usize>) -> Result<u64, String> {
        let of_functions: Vec<(usize, usize, bool)> = self
            .module
            .functions()
            .iter()
            .enumerate()
            .filter_map(|(at, f)| {
                f.body.map(|(open, close)| (open, close, functions.contains(&at)))
            })
            .collect();
        let mut bytes = 0;
        for (at, statement) in self.module.statements().iter().enumerate() {
            let within = of_functions.iter().find(|(open, close, _)| (open..=close).contains(&&at));
            if within.is_some_and(|(_, _, reached)| !reached) {
                continue;
            }
            let code = self.module.code(statement);
            if code.contains("_smem_size") {
                return Err("it asks how much shared memory there is in all".into());
            }
            if statement.kind != Kind::Directive || !code.contains(".shared") {
                continue;
            }
            let words = tokens(code);
            let Some(space) = words.iter().position(|word| *word == ".shared") else { continue };
            for variable in declared(&words[space + 1..])? {
                if variable.bytes == 0 {
                    return Err(
                        "launches give it shared memory, how much is not in the text".into()
                    );
                }
                bytes += variable.bytes.saturating_add(variable.align.saturating_sub(1));
            }
        }
        Ok(bytes)
    }

    /// Declares the sums of blocks, sets them to 0 where kernels begin, and adds them up where their threads end.
    pub(super) fn sums_of_blocks(&mut self, kernels: &[KernelReport]) -> Result<(), Refusal> {
        let (mut all, module) = (BTreeSet::new(), self.module);
        for (at, function) in module.functions().iter().enumerate() {
            let is = |kernel: &KernelReport| kernel.name == function.name && kernel.sites > 0;
            if !function.kernel || !kernels.iter().any(is) {
                continue;
            }
            let maps = self.maps_of_blocks(&self.reached(&[at]));
            if maps.is_empty() {
                continue;
            }
            let (begin, end) = (self.begins(&maps), self.ends(&maps));
            for text in [&begin, &end] {
                needs::check(text, &self.head, "sums of a block")?;
            }
            let (first, _) = points(module, function, &Attach::Entry("*".into()), &self.files);
            // Before every program that stands there already.
            let mut first: Vec<Insertion> =
                first.iter().map(|point| self.put(point, &begin)).collect();
            first.append(&mut self.insertions);
            self.insertions = first;
            let (last, _) = points(module, function, &Attach::Return("*".into()), &self.files);
            // And behind every one.
            let last: Vec<Insertion> = last.iter().map(|point| self.put(point, &end)).collect();
            self.grown += begin.len() + last.len() * (end.len() + 512);
            self.insertions.extend(last);
            all.extend(maps);
        }
        let prefix = prefix(&self.base);
        if !all.is_empty() {
            let _ = writeln!(self.declarations, ".shared .align 4 .b32 {prefix}_ended;");
        }
        for number in all {
            let bytes = bytes(&self.plan.maps[number]).unwrap_or(0);
            let _ = writeln!(self.declarations, ".shared .align 8 .b8 {prefix}{number}[{bytes}];");
        }
        Ok(())
    }

    /// The maps of blocks that programs at sites in these functions have, by their numbers in the plan.
    fn maps_of_blocks(&self, functions: &BTreeSet<usize>) -> BTreeSet<usize> {
        let here = self.places.iter().filter(|(place, _)| functions.contains(place));
        let probes: BTreeSet<usize> = here.map(|(_, probe)| *probe).collect();
        let probes = probes.into_iter().map(|probe| &self.plan.probes[probe]);
        let maps = |probe: &Probe| {
            let of_program = probe.verdict.as_ref().map(|(program, _)| program.maps_of_blocks());
            let first = probe.first_map;
            of_program.unwrap_or_default().into_iter().map(move |map| first + map)
        };
        probes.flat_map(maps).collect()
    }

    /// All threads of a block set its sums to 0, each some of them, and wait for each other.
    fn begins(&self, maps: &BTreeSet<usize>) -> String {
        let (base, prefix) = (&self.base, prefix(&self.base));
        let mut text = linear(base, "tid", "ntid", 2);
        let _ = write!(
            text,
            "\tmov.b64 %{base}c2, 0;\n\tmov.b32 %{base}w5, 0;\n\tsetp.eq.u32 %{base}p0, %{base}w2, 0;\n\
             \t@%{base}p0 st.shared.b32 [{prefix}_ended], %{base}w5;\n"
        );
        for &number in maps {
            let _ = write!(
                text,
                "\tmov.b32 %{base}w1, %{base}w2;\n{base}s{number}:\n\
                 \tsetp.ge.u32 %{base}p0, %{base}w1, {};\n\t@%{base}p0 bra {base}t{number};\n\
                 \tmul.wide.u32 %{base}c0, %{base}w1, 8;\n\tmov.u64 %{base}c1, {prefix}{number};\n\
                 \tadd.s64 %{base}c1, %{base}c1, %{base}c0;\n\tst.shared.b64 [%{base}c1], %{base}c2;\n\
                 \tadd.s32 %{base}w1, %{base}w1, %{base}w6;\n\tbra {base}s{number};\n{base}t{number}:\n",
                self.words(number)
            );
        }
        text + "\tbarrier.sync 0;\n"
    }

    /// A thread ends: the last one of its block adds the sums to the device's.
    fn ends(&self, maps: &BTreeSet<usize>) -> String {
        let (base, prefix) = (&self.base, prefix(&self.base));
        // Release: what the thread added. Acquire, of the last one: what all have.
        let mut text = format!(
            "\tatom.acq_rel.cta.shared.add.u32 %{base}w1, [{prefix}_ended], 1;\n\
             \tadd.s32 %{base}w1, %{base}w1, 1;\n\tsetp.ne.s32 %{base}p0, %{base}w1, %{base}w6;\n\
             \t@%{base}p0 bra {base}end;\n"
        );
        for &number in maps {
            // Where nobody has filled the table there is nothing to add to.
            let _ = write!(
                text,
                "\t{};\n\tsetp.eq.s64 %{base}p0, %{base}c0, 0;\n\
                 \t@%{base}p0 bra {base}t{number};\n\tmov.u64 %{base}c1, {prefix}{number};\n\
                 \tmov.b32 %{base}w1, 0;\n{base}s{number}:\n\
                 \tld.shared.u64 %{base}c2, [%{base}c1];\n\tsetp.ne.s64 %{base}p1, %{base}c2, 0;\n\
                 \t@%{base}p1 red.relaxed.gpu.global.add.u64 [%{base}c0], %{base}c2;\n\
                 \tadd.s64 %{base}c0, %{base}c0, 8;\n\tadd.s64 %{base}c1, %{base}c1, 8;\n\
                 \tadd.s32 %{base}w1, %{base}w1, 1;\n\tsetp.lt.u32 %{base}p0, %{base}w1, {};\n\
                 \t@%{base}p0 bra {base}s{number};\n{base}t{number}:\n",
                Table::Constant.load(&format!("%{base}c0"), TABLE_HEADER + 3 * number),
                self.words(number)
            );
        }
        text
    }

    /// The insertion of a text at a point: with registers, of which 6 has the number of threads of the block, and under the
    /// point's condition.
    fn put(&self, point: &Point, text: &str) -> Insertion {
        let base = &self.base;
        let line = if point.rank == 0 { "\n" } else { "" };
        let guard = point.guard.map_or(String::new(), |guard| unless(base, guard, guard.predicate));
        let text = format!(
            "{line}{{\n\t.reg .pred %{base}p<2>;\n\t.reg .b32 %{base}w<8>;\n\t.reg .b64 %{base}c<3>;\n{guard}{}\
             {text}{base}end:\n}}\n\t",
            threads(base)
        );
        (point.at, point.rank, text)
    }

    fn words(&self, map: usize) -> u64 {
        bytes(&self.plan.maps[map]).unwrap_or(0) / 8
    }
}

/// Bytes of a map of blocks, as it was verified.
fn bytes(map: &Map) -> Option<u64> {
    let words = map.words_of_block().ok();
    words.filter(|_| map.kind == MapKind::BlockArray).map(|words| 8 * u64::from(words))
}

fn has_sums(probe: &Probe) -> bool {
    probe.verdict.as_ref().is_ok_and(|(program, _)| !program.maps_of_blocks().is_empty())
}

fn ends_threads(probe: &Probe) -> bool {
    probe.verdict.as_ref().is_ok_and(|(_, cost)| cost.effect == Effect::Controlling)
}
