//! A program as PTX: a fragment for a probe site, or a kernel of its own.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::emit::Emitter;
use crate::error::Fault;
use crate::flow::{self, Entry};
use crate::inline::{self, Op};
use crate::insn::{Insn, Reg, Wide};
use crate::lower;
use crate::options::{Addresses, Options, Stack, TABLE, TABLE_HEADER};
use crate::program::Program;

/// A compiled program: text to be put at a probe site, and what it needs around.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// Declarations for the module's scope, before the first kernel; may be empty. Fragments of
    /// different prefixes share one table of maps, so only one of them declares it.
    pub declarations: String,
    /// One block in braces: it declares its own registers, ends by running off its end, and changes
    /// none of the registers around but the one that it was told to.
    pub body: String,
    /// How many PTX instructions the block has.
    pub instructions: u32,
    /// How many 4-byte registers stand for the stack.
    pub cells: usize,
    /// Bytes of local memory: 0 where the stack became registers.
    pub local_bytes: u32,
    /// Why the stack lies in memory, with its place; `None` where it does not have to.
    pub escape: Option<Fault>,
}

/// Compiles `program` to a fragment.
pub fn fragment(program: &Program, options: &Options) -> Result<Fragment, Fault> {
    let inlined = inline::inline(program)?;
    let context_align = options.context_align.trailing_zeros().min(3) as u8;
    let site = !options.context.is_empty();
    let flow = flow::analyse(program, &inlined, Entry { context_align, site });
    let escape = flow.escape.map(|(step, why)| program.fault(inlined.steps[step].origin, why));
    let in_memory = options.stack == Stack::Memory || escape.is_some();
    let mut emitter = Emitter::new(program, options, inlined.depths, in_memory);
    let targets = targets(&inlined);
    let mut used = BTreeSet::from([0]);
    let mut data = BTreeSet::new();
    for (at, step) in inlined.steps.iter().enumerate() {
        let Some(state) = &flow.before[at] else { continue };
        emitter.origin = step.origin;
        if targets.contains(&at) {
            emitter.label(&format!("$L{at}"));
        }
        match step.op {
            Op::Enter(depth) => {
                for reg in (6..10).map(|reg| inline::register(reg, depth)) {
                    emitter.line(&format!("mov.b64 {}, 0", Emitter::reg(reg)));
                }
            }
            Op::Insn(insn) => {
                lower::registers(&insn, |reg: Reg| {
                    used.insert(reg);
                });
                if let Insn::LoadWide { value: Wide::Data { section, .. }, .. } = insn {
                    data.insert(section);
                }
                lower::insn(&mut emitter, options, insn, state)?;
            }
            Op::Return(target) if target == at + 1 => {}
            Op::Return(target) => emitter.line(&format!("bra $L{target}")),
            Op::End if at + 1 == inlined.steps.len() => {}
            Op::End => emitter.line("bra $end"),
        }
    }
    emitter.label("$end");
    if let Some(result) = &options.result {
        emitter.line(&format!("mov.b64 {result}, #r0"));
    }
    let cells = emitter.cells.len();
    let local_bytes = if in_memory { emitter.stack_bytes as u32 } else { 0 };
    let (body, instructions) = close(emitter, &used, options);
    let declarations = declarations(program, options, &data);
    Ok(Fragment { declarations, body, instructions, cells, local_bytes, escape })
}

/// Closes the block: what registers hold at first goes to its beginning.
fn close(emitter: Emitter, used: &BTreeSet<Reg>, options: &Options) -> (String, u32) {
    let mut arguments = Vec::new();
    for (reg, argument) in (1..).zip(&options.arguments) {
        if let Some(argument) = argument
            && used.contains(&reg)
        {
            arguments.push((reg, argument.clone()));
        }
    }
    let (mut body, instructions) = emitter.finish_block(used, &arguments);
    body.push_str("}\n");
    (body, instructions)
}

/// The steps that a branch of the text goes to.
fn targets(inlined: &inline::Inlined) -> BTreeSet<usize> {
    let jumps = inlined.steps.iter().enumerate().filter_map(|(at, step)| match step.op {
        Op::Insn(Insn::Jump { target, .. }) => Some(target as usize),
        Op::Return(target) if target != at + 1 => Some(target),
        _ => None,
    });
    jumps.collect()
}

fn declarations(program: &Program, options: &Options, data: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    if options.addresses == Addresses::Table {
        let words = TABLE_HEADER + 3 * program.maps.len();
        let _ = writeln!(text, ".visible .const .align 8 .b64 {TABLE}[{words}];");
    }
    for &section in data {
        let bytes = &program.data[section as usize].bytes;
        let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
        let (prefix, length) = (&options.prefix, bytes.len().max(1));
        let _ = writeln!(
            text,
            ".global .align 8 .b8 {prefix}data{section}[{length}] = {{{}}};",
            if list.is_empty() { "0".into() } else { list.join(", ") }
        );
    }
    text
}

/// A module with `program` as the kernel `name`, for tests and measurements.
///
/// Its parameters are four 64-bit words: an address, bytes from one thread's memory to the next's,
/// the length of each thread's memory, and the address of the results. Thread `i` of a one-block
/// grid runs the program with `r1 = address + i * stride` and `r2 = length`, and stores `r0` to
/// `results[i]`.
pub fn kernel(program: &Program, options: &Options, name: &str) -> Result<String, Fault> {
    let fragment = self::fragment(program, &kernel_options(options))?;
    Ok(format!("{MODULE_HEAD}{}{}", fragment.declarations, entry(&fragment, name)))
}

/// The options under which a fragment fits into [`entry`].
pub fn kernel_options(options: &Options) -> Options {
    Options {
        arguments: [Some("%memory".into()), Some("%length".into())],
        result: Some("%result".into()),
        ..options.clone()
    }
}

/// What a module with such kernels begins with.
pub const MODULE_HEAD: &str = ".version 7.8\n.target sm_75\n.address_size 64\n\n";

/// The kernel `name` around `fragment`, which was compiled with [`kernel_options`].
pub fn entry(fragment: &Fragment, name: &str) -> String {
    format!(
        ".visible .entry {name}(.param .u64 {name}_memory, .param .u64 {name}_stride, .param .u64 \
         {name}_length, .param .u64 {name}_results)\n{{\n\
         \t.reg .b32 %thread;\n\
         \t.reg .b64 %memory, %stride, %length, %results, %result, %index;\n\
         \tld.param.u64 %memory, [{name}_memory];\n\
         \tld.param.u64 %stride, [{name}_stride];\n\
         \tld.param.u64 %length, [{name}_length];\n\
         \tld.param.u64 %results, [{name}_results];\n\
         \tmov.u32 %thread, %tid.x;\n\
         \tcvt.u64.u32 %index, %thread;\n\
         \tmad.lo.s64 %memory, %index, %stride, %memory;\n\
         {}\
         \tshl.b64 %index, %index, 3;\n\
         \tadd.s64 %results, %results, %index;\n\
         \tst.global.u64 [%results], %result;\n\
         \tret;\n}}\n",
        fragment.body
    )
}
