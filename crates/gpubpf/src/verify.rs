//! Whether a program may be attached: it ends, stays within its maps and stack, does not race, and
//! costs no more than a bound that is stated before.
//!
//! Every path is followed by itself, with an interval for each number, so that a loop with a constant
//! bound is simply walked. Nothing is merged: what is proved holds on each path, and a program with
//! too many paths is refused instead of guessed about.

use std::collections::{BTreeMap, BTreeSet};

use crate::attach::Attach;
use crate::error::Fault;
use crate::hash;
use crate::helpers::{Helper, Runs};
use crate::inline::{self, Inlined, Op, REGISTERS, STACK_BYTES};
use crate::insn::{AluOp, AtomicOp, Compare, Condition, Insn, Operand, Reg, Wide, Width};
use crate::interval::Interval;
use crate::program::{Map, MapKind, Program};

/// Among which threads a value is the same, from all to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Uniform {
    /// The same everywhere.
    Const,
    /// The same in a launch: its dimensions.
    Grid,
    /// The same in a block: its index.
    Block,
    /// The same in a warp: its number, its SM.
    Warp,
    /// It may differ from lane to lane: thread index, clocks, what was loaded.
    Lane,
}

/// What a program does beyond computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It writes maps alone.
    Observing,
    /// It also moves application data between caches, or asks for it to be moved or advised about.
    Prefetching,
    /// It may end threads of the kernel, or asks for launches to be delayed and streams to have a priority.
    Controlling,
}

impl Effect {
    /// As reports have it.
    pub fn word(self) -> &'static str {
        match self {
            Effect::Observing => "observing",
            Effect::Prefetching => "prefetching",
            Effect::Controlling => "controlling",
        }
    }
}

/// Bounds on what one execution by one warp costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Certificate {
    /// eBPF instructions, a helper counting as one, that one thread executes at most.
    pub thread_instructions: u64,
    /// How many different paths the lanes of one warp may take.
    pub paths: u64,
    /// The same instructions as issued for a warp: each path that lanes take is issued by itself.
    pub warp_instructions: u64,
    /// Atomic operations of all 32 lanes. An addition of one number to one address by all lanes of a warp counts once, as
    /// `splice` has one lane add for all of them.
    pub warp_atomics: u64,
    /// Bytes of maps that 32 lanes read and write.
    pub warp_bytes: u64,
    /// Atomic operations of all 32 lanes on the shared memory of their block, counted likewise.
    pub warp_shared_atomics: u64,
    /// Atomic operations of all 32 lanes that go to memory of the host, counted likewise.
    pub warp_host_atomics: u64,
    /// Bytes of shared memory that each block of a kernel needs more, and sets to 0 where it begins.
    pub block_bytes: u64,
    /// Atomic operations on the device's memory by which a block's last thread adds them up.
    pub block_atomics: u64,
    /// What it does.
    pub effect: Effect,
}

/// What a program may cost and do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The bound on [`Certificate::warp_instructions`].
    pub warp_instructions: u64,
    /// The strongest effect that is allowed.
    pub effect: Effect,
}

impl Default for Budget {
    fn default() -> Self {
        Self { warp_instructions: 4096, effect: Effect::Observing }
    }
}

impl Budget {
    /// What a policy may cost and do: it runs on the host, in one thread, and is named by whoever wants it.
    pub const POLICY: Self = Self { warp_instructions: 1 << 16, effect: Effect::Controlling };
}

/// Steps that all paths together may take.
const MAX_STEPS: u64 = 200_000;

/// Lanes of a warp.
const LANES: u64 = 32;

/// Proves that `program` is safe and within `budget`, or says what is wrong with which instruction.
pub fn verify(program: &Program, budget: Budget) -> Result<Certificate, Fault> {
    verified(program, budget).map(|(certificate, _)| certificate)
}

/// The same, with the atomic additions that all lanes of a warp make to one address with one number, on each path:
/// instructions of the program. One lane may add for all of them; the certificate counts them so.
pub(crate) fn verified(
    program: &Program,
    budget: Budget,
) -> Result<(Certificate, BTreeSet<usize>), Fault> {
    let inlined = inline::inline(program)?;
    let mut walk = Walk::new(program, &inlined, BTreeSet::new());
    walk.all()?;
    let of_warp: BTreeSet<usize> = walk.same.difference(&walk.differing).copied().collect();
    if !of_warp.is_empty() {
        walk = Walk::new(program, &inlined, of_warp.clone());
        walk.all()?;
    }
    let Cost { instructions, atomics, bytes, effect } = walk.worst;
    // One thread of a block says which one is next.
    let attach = Attach::from_section(&program.section);
    let lanes = if attach.orders().is_some() || walk.policy { 1 } else { LANES };
    let of_blocks = program.maps_of_blocks();
    let words = of_blocks.iter().map(|map| program.maps[*map].words_of_block().unwrap_or(0));
    let words_of_block = words.map(u64::from).sum::<u64>();
    // Paths part only where lanes disagree; other branches are taken by whole warps.
    let paths = (walk.diverging + 1).min(lanes);
    let certificate = Certificate {
        thread_instructions: instructions,
        paths,
        warp_instructions: instructions * paths,
        warp_atomics: atomics.device.of_warp(lanes),
        warp_bytes: bytes * lanes,
        warp_shared_atomics: atomics.block.of_warp(lanes),
        warp_host_atomics: atomics.host.of_warp(lanes),
        block_bytes: 8 * words_of_block,
        block_atomics: words_of_block,
        effect: effect.unwrap_or(Effect::Observing),
    };
    if certificate.warp_instructions > budget.warp_instructions {
        return Err(program.fault(0, format!(
            "up to {} instructions for a warp ({instructions} on {paths} paths); the budget is {}",
            certificate.warp_instructions, budget.warp_instructions
        )));
    }
    if certificate.effect > budget.effect {
        let reason =
            format!("the program is {:?}; only {:?} is allowed", certificate.effect, budget.effect);
        return Err(program.fault(0, reason.to_lowercase()));
    }
    Ok((certificate, of_warp))
}

/// What a register holds on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Nothing was written to it.
    Nothing,
    /// A number between two bounds, and the map that it was loaded from.
    Number { min: u64, max: u64, uniform: Uniform, from: Option<u32> },
    /// An address on the stack.
    Stack(i64),
    /// A map.
    Map(u32),
    /// An address in a map's value, between two offsets; where `null`, it may be null instead.
    Value { map: u32, min: i64, max: i64, null: bool, look_up: u64, uniform: Uniform },
    /// An address in read-only data, between two offsets.
    Data { section: u32, min: i64, max: i64 },
    /// The context, which is opaque.
    Context,
}

fn any(uniform: Uniform) -> Held {
    Held::Number { min: 0, max: u64::MAX, uniform, from: None }
}

fn constant(value: u64) -> Held {
    Held::Number { min: value, max: value, uniform: Uniform::Const, from: None }
}

/// Atomic operations: of each lane, and those that one lane does for its warp.
#[derive(Debug, Clone, Copy, Default)]
struct Atomics {
    of_lane: u64,
    once: u64,
}

impl Atomics {
    fn of_warp(self, lanes: u64) -> u64 {
        self.of_lane * lanes + self.once
    }

    fn max(self, other: Self) -> Self {
        Self { of_lane: self.of_lane.max(other.of_lane), once: self.once.max(other.once) }
    }
}

/// The same, by where the memory lies.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    device: Atomics,
    block: Atomics,
    host: Atomics,
}

impl Places {
    fn of(&mut self, kind: MapKind) -> &mut Atomics {
        match kind {
            MapKind::BlockArray => &mut self.block,
            MapKind::HostArray => &mut self.host,
            _ => &mut self.device,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            device: self.device.max(other.device),
            block: self.block.max(other.block),
            host: self.host.max(other.host),
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    instructions: u64,
    atomics: Places,
    bytes: u64,
    effect: Option<Effect>,
}

impl Cost {
    fn max(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.max(other.instructions),
            atomics: self.atomics.max(other.atomics),
            bytes: self.bytes.max(other.bytes),
            effect: self.effect.max(other.effect),
        }
    }
}

/// One path, so far.
#[derive(Clone)]
struct Path {
    at: usize,
    regs: [Held; REGISTERS],
    /// Bytes of the stack that were written.
    written: BTreeSet<i64>,
    /// What stores left on the stack, by offset, with the bytes that each stored.
    saved: BTreeMap<i64, (i64, Held)>,
    /// Whether lanes of one warp may have parted before.
    diverged: bool,
    cost: Cost,
}

impl Path {
    fn reg(&self, reg: Reg) -> Held {
        self.regs[usize::from(reg)]
    }

    /// Once lanes have parted, what they compute may differ when they meet again.
    fn set(&mut self, reg: Reg, held: Held) {
        let held = match held {
            Held::Number { min, max, from, .. } if self.diverged => {
                Held::Number { min, max, uniform: Uniform::Lane, from }
            }
            Held::Value { map, min, max, null, look_up, .. } if self.diverged => {
                Held::Value { map, min, max, null, look_up, uniform: Uniform::Lane }
            }
            held => held,
        };
        self.regs[usize::from(reg)] = held;
    }

    fn operand(&self, src: Operand) -> Held {
        match src {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(imm) => constant(imm as i64 as u64),
        }
    }
}

struct Walk<'a> {
    program: &'a Program,
    inlined: &'a Inlined,
    /// Whether it is a policy: it has one thread, and its maps are its own.
    policy: bool,
    steps: u64,
    /// How often lanes may part.
    diverging: u64,
    worst: Cost,
    /// Atomic additions that are known to be made by one lane for its warp.
    of_warp: BTreeSet<usize>,
    /// Those to one address with one number in all lanes of a warp, on some path,
    same: BTreeSet<usize>,
    /// and those that may differ on some path.
    differing: BTreeSet<usize>,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, inlined: &'a Inlined, of_warp: BTreeSet<usize>) -> Self {
        let (same, differing) = (BTreeSet::new(), BTreeSet::new());
        let worst = Cost::default();
        let policy = Attach::from_section(&program.section).policy().is_some();
        Self { program, inlined, policy, steps: 0, diverging: 0, worst, of_warp, same, differing }
    }

    fn all(&mut self) -> Result<(), Fault> {
        let mut regs = [Held::Nothing; REGISTERS];
        regs[1] = Held::Context;
        for depth in 0..inline::MAX_DEPTH {
            let frame = inline::register(crate::insn::FRAME_POINTER, depth);
            regs[usize::from(frame)] = Held::Stack(-i64::from(STACK_BYTES) * depth as i64);
        }
        let (written, saved) = (BTreeSet::new(), BTreeMap::new());
        let mut open =
            vec![Path { at: 0, regs, written, saved, diverged: false, cost: Cost::default() }];
        while let Some(path) = open.pop() {
            self.path(path, &mut open)?;
        }
        Ok(())
    }

    /// Follows one path to its end; where it forks, the other branch is put into `open`.
    fn path(&mut self, mut path: Path, open: &mut Vec<Path>) -> Result<(), Fault> {
        loop {
            self.steps += 1;
            let step = self.inlined.steps[path.at];
            let fault = |reason: String| self.program.fault(step.origin, reason);
            if self.steps > MAX_STEPS {
                return Err(fault(format!(
                    "not finished after {MAX_STEPS} instructions on all paths: a loop without a constant \
                     bound, or too many branches"
                )));
            }
            match step.op {
                Op::End => {
                    self.worst = self.worst.max(path.cost);
                    return Ok(());
                }
                Op::Return(to) => {
                    path.at = to;
                    continue;
                }
                Op::Enter(depth) => {
                    for reg in 6..10 {
                        path.set(inline::register(reg, depth), Held::Nothing);
                    }
                }
                Op::Insn(Insn::Jump { when, target }) => {
                    path.cost.instructions += 1;
                    self.jump(&mut path, when, target as usize, open).map_err(fault)?;
                    continue;
                }
                Op::Insn(Insn::CallHelper { id }) => {
                    path.cost.instructions += 1;
                    let helper = Helper::from_id(id).map_err(fault)?;
                    self.helper(&mut path, helper).map_err(fault)?;
                    if helper == Helper::CudaExit {
                        self.worst = self.worst.max(path.cost);
                        return Ok(());
                    }
                }
                Op::Insn(insn) => {
                    path.cost.instructions += 1;
                    self.plain(&mut path, insn).map_err(fault)?;
                }
            }
            path.at += 1;
        }
    }

    fn jump(
        &mut self,
        path: &mut Path,
        when: Option<Condition>,
        target: usize,
        open: &mut Vec<Path>,
    ) -> Result<(), String> {
        let Some(condition) = when else {
            path.at = target;
            return Ok(());
        };
        let left = initialised(condition.dst, path.reg(condition.dst))?;
        let right = match condition.src {
            Operand::Reg(reg) => initialised(reg, path.reg(reg))?,
            src @ Operand::Imm(_) => path.operand(src),
        };
        // What a look-up found is as uniform as its key.
        let uniform_of = |held| match held {
            Held::Number { uniform, .. } | Held::Value { uniform, .. } => uniform,
            _ => Uniform::Lane,
        };
        let uniform = uniform_of(left).max(uniform_of(right));
        let taken = narrowed(left, right, condition, true);
        let passed = narrowed(left, right, condition, false);
        let mut both = [(taken, target), (passed, path.at + 1)]
            .into_iter()
            .filter_map(|(held, at)| Some((held?, at)));
        let Some((held, at)) = both.next() else { return Err("no branch can be taken".into()) };
        if let Some((other, elsewhere)) = both.next() {
            path.diverged |= uniform == Uniform::Lane;
            self.diverging += u64::from(uniform == Uniform::Lane);
            let mut fork = path.clone();
            fork.at = elsewhere;
            self.refine(&mut fork, condition.dst, left, other);
            open.push(fork);
        }
        path.at = at;
        self.refine(path, condition.dst, left, held);
        Ok(())
    }

    /// Puts what a branch tells into the register, and into every copy of a look-up's result.
    fn refine(&self, path: &mut Path, reg: Reg, before: Held, after: Held) {
        path.regs[usize::from(reg)] = after;
        if let Held::Value { look_up, .. } = before {
            let same =
                |held: &Held| matches!(held, Held::Value { look_up: l, .. } if *l == look_up);
            let to = |held: &mut Held| match (*held, after) {
                (Held::Value { map, min, max, look_up, uniform, .. }, Held::Value { null, .. }) => {
                    *held = Held::Value { map, min, max, null, look_up, uniform };
                }
                _ => *held = after,
            };
            path.regs.iter_mut().filter(|h| same(h)).for_each(to);
            path.saved.values_mut().map(|(_, h)| h).filter(|h| same(h)).for_each(to);
        }
    }

    fn plain(&mut self, path: &mut Path, insn: Insn) -> Result<(), String> {
        match insn {
            Insn::Alu { op, width, dst, src } => {
                let right = match src {
                    Operand::Reg(reg) => initialised(reg, path.reg(reg))?,
                    src @ Operand::Imm(_) => path.operand(src),
                };
                let left = if op == AluOp::Mov { right } else { initialised(dst, path.reg(dst))? };
                path.set(dst, arithmetic(op, width, left, right)?);
            }
            Insn::SignExtend { width, bits, dst, src } => {
                let held = initialised(src, path.reg(src))?;
                path.set(dst, changed(held, |number| number.extended(bits, width))?);
            }
            Insn::Neg { width, dst } => {
                let held = initialised(dst, path.reg(dst))?;
                path.set(dst, changed(held, |number| number.negated(width))?);
            }
            Insn::Endian { order, bits, dst } => {
                let held = initialised(dst, path.reg(dst))?;
                path.set(dst, changed(held, |number| number.reordered(order, bits))?);
            }
            Insn::LoadWide { dst, value } => path.set(
                dst,
                match value {
                    Wide::Number(value) => constant(value),
                    Wide::Map(map) => Held::Map(map),
                    Wide::Data { section, offset } => {
                        Held::Data { section, min: offset.into(), max: offset.into() }
                    }
                },
            ),
            Insn::Load { size, signed, dst, base, offset, .. } => {
                let bytes = i64::from(size.bytes());
                let held = self.read(path, base, offset.into(), bytes)?;
                let held = match held {
                    Held::Number { .. } if signed => {
                        changed(held, |number| number.extended(size.bytes() * 8, Width::W64))?
                    }
                    _ if signed => return Err("a part of an address is loaded".into()),
                    held => held,
                };
                path.set(dst, held);
            }
            Insn::Store { size, base, offset, src, .. } => {
                let value = match src {
                    Operand::Reg(reg) => initialised(reg, path.reg(reg))?,
                    src @ Operand::Imm(_) => path.operand(src),
                };
                self.write(path, base, offset.into(), size.bytes().into(), value)?;
            }
            Insn::Atomic { op, fetch, width, base, offset, src } => {
                self.atomic(path, op, fetch, width, base, offset.into(), src)?;
            }
            Insn::Jump { .. } | Insn::CallLocal { .. } | Insn::CallHelper { .. } | Insn::Exit => {}
        }
        Ok(())
    }

    /// Checks that `bytes` bytes at `base + offset` may be accessed.
    fn reach(&self, path: &mut Path, base: Reg, offset: i64, bytes: i64) -> Result<Held, String> {
        let held = initialised(base, path.reg(base))?;
        match held {
            Held::Stack(at) => {
                let at = at + offset;
                let bottom = -i64::from(STACK_BYTES) * self.inlined.depths as i64;
                if at < bottom || at + bytes > 0 {
                    return Err(format!(
                        "{bytes} bytes at {at} of the stack, which has {}",
                        -bottom
                    ));
                }
                Ok(Held::Stack(at))
            }
            Held::Value { null: true, .. } => Err(format!(
                "r{base} is what a look-up gave and may be null; test it before it is used"
            )),
            Held::Value { map, min, max, .. } => {
                let declared = &self.program.maps[map as usize];
                let (name, size) = (&declared.name, i64::from(declared.value_size));
                if min + offset < 0 || max + offset + bytes > size {
                    return Err(format!(
                        "{bytes} bytes at {}..={} of a value of map `{name}`, which has {size}",
                        min + offset,
                        max + offset
                    ));
                }
                path.cost.bytes += bytes as u64;
                Ok(held)
            }
            Held::Data { section, min, max } => {
                let size = self.program.data[section as usize].bytes.len() as i64;
                if min + offset < 0 || max + offset + bytes > size {
                    return Err(format!("{bytes} bytes beyond read-only data of {size}"));
                }
                path.cost.bytes += bytes as u64;
                Ok(held)
            }
            Held::Context => {
                let words = Attach::from_section(&self.program.section).context_words();
                let within = offset >= 0 && offset + bytes <= 8 * words as i64;
                if !within || offset % 8 + bytes > 8 {
                    return Err(format!(
                        "{bytes} bytes at {offset} of the context, which has {words} words of 8 \
                         bytes in a program of this section"
                    ));
                }
                Ok(Held::Context)
            }
            Held::Map(_) => Err("a map is dereferenced; look a key up instead".into()),
            Held::Number { .. } => Err(format!("r{base} is a number and no address")),
            Held::Nothing => Err(format!("r{base} is used before it is written")),
        }
    }

    fn read(&self, path: &mut Path, base: Reg, offset: i64, bytes: i64) -> Result<Held, String> {
        match self.reach(path, base, offset, bytes)? {
            Held::Stack(at) => {
                if let Some(gap) = (at..at + bytes).find(|byte| !path.written.contains(byte)) {
                    return Err(format!("byte {gap} of the stack is read before it is written"));
                }
                match path.saved.get(&at) {
                    Some(&(stored, held)) if bytes == stored => Ok(held),
                    Some(&(stored, held @ Held::Number { .. })) if bytes < stored => {
                        Ok(truncated(held, bytes))
                    }
                    _ => Ok(below(bytes, Uniform::Lane, None)),
                }
            }
            Held::Value { map, .. } => {
                self.no_sum(map)?;
                Ok(below(bytes, Uniform::Lane, Some(map)))
            }
            Held::Context => Ok(below(bytes, self.of_context(path, base, offset), None)),
            _ => Ok(below(bytes, Uniform::Lane, None)),
        }
    }

    /// How uniform what lies at this place of the context is: the number of the site, and how many bytes of which
    /// kind an instruction accesses, are constants of the site; addresses and arguments differ by lane.
    fn of_context(&self, path: &Path, base: Reg, offset: i64) -> Uniform {
        let attach = Attach::from_section(&self.program.section);
        let accesses = matches!(attach, Attach::Accesses | Attach::Instructions { .. });
        match (path.reg(base), offset / 8) {
            (Held::Context, 0) if attach.orders().is_none() => Uniform::Const,
            (Held::Context, 2 | 3) if accesses => Uniform::Const,
            _ => Uniform::Lane,
        }
    }

    fn write(
        &self,
        path: &mut Path,
        base: Reg,
        offset: i64,
        bytes: i64,
        value: Held,
    ) -> Result<(), String> {
        match self.reach(path, base, offset, bytes)? {
            Held::Stack(at) => {
                path.written.extend(at..at + bytes);
                path.saved.retain(|&kept, _| kept + 8 <= at || kept >= at + bytes);
                if bytes < 8 && !matches!(value, Held::Number { .. }) {
                    return Err("a part of an address is stored".into());
                }
                path.saved.insert(at, (bytes, truncated(value, bytes)));
                Ok(())
            }
            Held::Value { map, .. } => {
                self.no_sum(map)?;
                let declared = &self.program.maps[map as usize];
                let name = &declared.name;
                let Held::Number { from, .. } = value else {
                    return Err(format!("an address is stored into map `{name}`"));
                };
                let shared = declared.kind != MapKind::PerThreadArray && !self.policy;
                if shared && from == Some(map) {
                    return Err(format!(
                        "a value of map `{name}` is loaded, changed and stored back, and other threads do \
                         the same; use __sync_fetch_and_add, or a map of type 1502 (a value per thread)"
                    ));
                }
                Ok(())
            }
            Held::Context => Err("the context is written".into()),
            _ => Err("read-only data is written".into()),
        }
    }

    /// Sums of a block are added to and nothing else: what one block has so far says nothing of the others.
    fn no_sum(&self, map: u32) -> Result<(), String> {
        let Map { name, kind, .. } = &self.program.maps[map as usize];
        match kind {
            MapKind::BlockArray => Err(format!(
                "map `{name}` (1541) holds sums of each block: programs add to them (`__sync_fetch_and_add` of 8 \
                 bytes, its result unused) and neither read nor set them"
            )),
            _ => Ok(()),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic(
        &mut self,
        path: &mut Path,
        op: AtomicOp,
        fetch: bool,
        width: Width,
        base: Reg,
        offset: i64,
        src: Reg,
    ) -> Result<(), String> {
        let bytes = i64::from(width.bits() / 8);
        let by = number(initialised(src, path.reg(src))?)?;
        match self.reach(path, base, offset, bytes)? {
            Held::Value { map, min, max, uniform, .. } => {
                let declared = &self.program.maps[map as usize];
                let shared = declared.kind != MapKind::PerThreadArray && !self.policy;
                if op == AtomicOp::CompareExchange && shared {
                    return Err(format!(
                        "compare-and-exchange on map `{}`, which other threads change too: lanes of one warp \
                         would wait for each other",
                        declared.name
                    ));
                }
                if min != max || (min + offset) % bytes != 0 {
                    return Err(format!(
                        "an atomic operation that is not aligned to {bytes} bytes"
                    ));
                }
                let number = self.inlined.steps[path.at].origin;
                let adds = op == AtomicOp::Add && !fetch;
                if !(adds && width == Width::W64) {
                    self.no_sum(map)?;
                }
                let found = match adds && uniform.max(by) <= Uniform::Warp {
                    true => &mut self.same,
                    false => &mut self.differing,
                };
                found.insert(number);
                let cost = path.cost.atomics.of(declared.kind);
                match self.of_warp.contains(&number) {
                    true => cost.once += 1,
                    false => cost.of_lane += 1,
                }
            }
            Held::Stack(at) => {
                if (at..at + bytes).any(|byte| !path.written.contains(&byte)) {
                    return Err(format!("byte {at} of the stack is read before it is written"));
                }
                path.saved.retain(|&kept, _| kept + 8 <= at || kept >= at + bytes);
            }
            Held::Context => return Err("the context is written".into()),
            _ => return Err("read-only data is written".into()),
        }
        if fetch {
            let to = if op == AtomicOp::CompareExchange { 0 } else { src };
            path.set(to, below(bytes, Uniform::Lane, None));
        }
        Ok(())
    }

    /// A helper: its arguments, its result, and what it may do at all.
    fn helper(&mut self, path: &mut Path, helper: Helper) -> Result<(), String> {
        let mut result = any(Uniform::Lane);
        belongs(helper, self.policy)?;
        match helper {
            Helper::Lookup | Helper::Update | Helper::Delete => {
                result = self.by_key(path, helper)?;
            }
            Helper::Output => self.output(path)?,
            Helper::BlockIdx | Helper::BlockDim | Helper::ThreadIdx | Helper::GridDim => {
                let uniform = match helper {
                    Helper::ThreadIdx => Uniform::Lane,
                    Helper::BlockIdx => Uniform::Block,
                    _ => Uniform::Grid,
                };
                for reg in 1..=3 {
                    let value = Held::Number { min: 0, max: u32::MAX.into(), uniform, from: None };
                    self.write(path, reg, 0, 8, value)?;
                }
                result = constant(0);
            }
            Helper::LaneId => {
                result =
                    Held::Number { min: 0, max: LANES - 1, uniform: Uniform::Lane, from: None };
            }
            Helper::SmId | Helper::WarpId => {
                result = Held::Number {
                    min: 0,
                    max: u32::MAX.into(),
                    uniform: Uniform::Warp,
                    from: None,
                };
            }
            Helper::PidTgid | Helper::GridId => result = any(Uniform::Grid),
            Helper::GlobalTimer | Helper::Clock64 | Helper::MembarSys => {}
            Helper::PrefetchL2 => {
                path.cost.effect = path.cost.effect.max(Some(Effect::Prefetching))
            }
            Helper::CudaExit if path.diverged => {
                return Err(
                    "threads of one warp may part before this exit: a barrier of the kernel would \
                            wait for those that are gone"
                        .into(),
                );
            }
            Helper::CudaExit => path.cost.effect = Some(Effect::Controlling),
            Helper::AskPrefetch | Helper::AskAdvise | Helper::AskDelay | Helper::AskPriority => {
                ask(path, helper)?;
            }
        }
        for reg in 1..=5 {
            path.set(reg, Held::Nothing);
        }
        path.set(0, result);
        Ok(())
    }

    /// A helper that looks a key of a map up, writes or deletes it: what r0 holds after it.
    fn by_key(&self, path: &mut Path, helper: Helper) -> Result<Held, String> {
        let Held::Map(map) = path.reg(1) else { return Err("r1 is no map".into()) };
        let declared = &self.program.maps[map as usize];
        let size = i64::from(declared.value_size);
        let key_size = if declared.kind == MapKind::Hash { declared.key_size } else { 4 };
        let key = self.read(path, 2, 0, key_size.into())?;
        // Arrays hold every key below their number of entries; a shard may lack room, and
        // that it did is counted by an atomic.
        let whole = declared.kind.is_one_array();
        if declared.kind == MapKind::BlockArray {
            declared.words_of_block()?;
            if helper != Helper::Lookup {
                self.no_sum(map)?;
            }
        }
        let entries = u64::from(declared.max_entries);
        let found = matches!(key, Held::Number { max, .. } if max < entries) && whole;
        if declared.kind == MapKind::Hash {
            // Each slot's word and key; taking one and giving it free are atomic.
            path.cost.bytes += u64::from(hash::PROBES) * (8 + u64::from(key_size));
            path.cost.atomics.device.of_lane += u64::from(helper != Helper::Lookup) * 2;
        } else if !whole && helper != Helper::Delete {
            path.cost.atomics.device.of_lane += 1;
            path.cost.bytes += 8;
        }
        if helper == Helper::Update {
            self.readable(path, 3, size)?;
            path.cost.bytes += size as u64;
        } else if helper == Helper::Lookup {
            let look_up = self.steps;
            let key = number(key).unwrap_or(Uniform::Lane);
            let uniform = match declared.kind {
                _ if whole => key,
                MapKind::PerSmArray => key.max(Uniform::Warp),
                // Others may put the key there meanwhile.
                _ => Uniform::Lane,
            };
            return Ok(Held::Value { map, min: 0, max: 0, null: !found, look_up, uniform });
        }
        Ok(any(Uniform::Lane))
    }

    /// A record for a ring.
    fn output(&self, path: &mut Path) -> Result<(), String> {
        let Held::Number { min, max, .. } = path.reg(5) else {
            return Err("r5 is no size".into());
        };
        if min != max || max > 4096 {
            return Err("the size of a record must be a constant of at most 4096".into());
        }
        self.readable(path, 4, max as i64)?;
        // One atomic takes a place, another the record's number; where there is none, two give it back and count the loss.
        path.cost.bytes += max + 24;
        path.cost.atomics.device.of_lane += 3;
        Ok(())
    }

    /// Whether `bytes` bytes at `reg` are readable and were written.
    fn readable(&self, path: &mut Path, reg: Reg, bytes: i64) -> Result<(), String> {
        self.read(path, reg, 0, bytes).map(|_| ())
    }
}

/// Whether a helper may be called where the program runs.
fn belongs(helper: Helper, policy: bool) -> Result<(), String> {
    match (helper.runs(), policy) {
        (Runs::Kernels, true) => {
            Err("a policy runs on the host, where this helper has nothing to tell or do".into())
        }
        (Runs::Policies, false) => {
            Err("a helper of policies (sections gpu/policy/…), which run on the host".into())
        }
        _ => Ok(()),
    }
}

/// What a policy asks for: its arguments are numbers.
fn ask(path: &mut Path, helper: Helper) -> Result<(), String> {
    let of_memory = matches!(helper, Helper::AskPrefetch | Helper::AskAdvise);
    let effect = if of_memory { Effect::Prefetching } else { Effect::Controlling };
    for reg in 1..=helper.asks().map_or(0, |(_, arguments)| arguments) {
        if !matches!(initialised(reg, path.reg(reg))?, Held::Number { .. }) {
            return Err(format!("r{reg} is an address of the policy's own, and no number"));
        }
    }
    path.cost.effect = path.cost.effect.max(Some(effect));
    Ok(())
}

fn initialised(reg: Reg, held: Held) -> Result<Held, String> {
    match held {
        Held::Nothing => Err(format!("r{reg} is used before it is written")),
        held => Ok(held),
    }
}

/// The uniformity of a number; addresses are none.
fn number(held: Held) -> Result<Uniform, String> {
    match held {
        Held::Number { uniform, .. } => Ok(uniform),
        _ => Err("arithmetic on an address".into()),
    }
}

/// Any number of so many bytes.
fn below(bytes: i64, uniform: Uniform, from: Option<u32>) -> Held {
    let max = if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
    Held::Number { min: 0, max, uniform, from }
}

/// What is left of a number in so many bytes.
fn truncated(held: Held, bytes: i64) -> Held {
    changed(held, |number| number.lower(8 * bytes as u32)).unwrap_or(held)
}

fn arithmetic(op: AluOp, width: Width, left: Held, right: Held) -> Result<Held, String> {
    if op == AluOp::Mov && width == Width::W64 {
        return Ok(right);
    }
    let moved = |min: i64, max: i64, by: Held| -> Option<(i64, i64)> {
        let Held::Number { min: least, max: most, .. } = by else { return None };
        // Small distances only: beyond them nothing is in bounds anyway.
        let (least, most) = if least == most {
            (least as i64, most as i64)
        } else {
            (i64::try_from(least).ok()?, i64::try_from(most).ok()?)
        };
        let small = -(1 << 30)..=1 << 30;
        let (min, max) = match op {
            AluOp::Add => (min.checked_add(least)?, max.checked_add(most)?),
            AluOp::Sub => (min.checked_sub(most)?, max.checked_sub(least)?),
            _ => return None,
        };
        (small.contains(&min) && small.contains(&max)).then_some((min, max))
    };
    let refused = || "arithmetic on an address that leaves what it points to".to_owned();
    let (address, by) = match (left, right) {
        (Held::Number { .. }, Held::Number { .. }) => return Ok(numbers(op, width, left, right)),
        (Held::Number { .. }, address) if op == AluOp::Add => (address, left),
        (address, by) => (address, by),
    };
    if width == Width::W32 {
        return Err("arithmetic on the lower half of an address".into());
    }
    match address {
        Held::Stack(at) => match moved(at, at, by) {
            Some((min, max)) if min == max => Ok(Held::Stack(min)),
            _ => Err("an address on the stack is moved by what is no constant".into()),
        },
        Held::Value { null: true, .. } => {
            Err("what a look-up gave is moved before it is tested for null".into())
        }
        Held::Value { map, min, max, null, look_up, uniform } => {
            let (min, max) = moved(min, max, by).ok_or_else(refused)?;
            let uniform = uniform.max(number(by)?);
            Ok(Held::Value { map, min, max, null, look_up, uniform })
        }
        Held::Data { section, min, max } => {
            let (min, max) = moved(min, max, by).ok_or_else(refused)?;
            Ok(Held::Data { section, min, max })
        }
        _ => Err("arithmetic on an address".into()),
    }
}

/// Arithmetic on numbers.
fn numbers(op: AluOp, width: Width, left: Held, right: Held) -> Held {
    let (
        Held::Number { min, max, uniform: u, from: f },
        Held::Number { min: c, max: d, uniform: v, from: g },
    ) = (left, right)
    else {
        return any(Uniform::Lane);
    };
    let right = Interval { min: c, max: d };
    let Interval { min, max } = Interval { min, max }.arithmetic(op, width, right);
    let (uniform, from) = if op == AluOp::Mov { (v, g) } else { (u.max(v), f.or(g)) };
    Held::Number { min, max, uniform, from }
}

/// A number changed by itself.
fn changed(held: Held, by: impl Fn(Interval) -> Interval) -> Result<Held, String> {
    let Held::Number { min, max, uniform, from } = held else {
        return Err("arithmetic on an address".into());
    };
    let Interval { min, max } = by(Interval { min, max });
    Ok(Held::Number { min, max, uniform, from })
}

/// What the left operand is where the branch is taken, or is not; `None` where that cannot be.
fn narrowed(left: Held, right: Held, condition: Condition, taken: bool) -> Option<Held> {
    let Held::Number { min: c, max: d, .. } = right else { return Some(left) };
    if let Held::Value { map, min, max, null, look_up, uniform } = left {
        if (c, d) != (0, 0) || condition.width == Width::W32 {
            return Some(left);
        }
        let is_null = match condition.compare {
            Compare::Eq => taken,
            Compare::Ne => !taken,
            _ => return Some(left),
        };
        return match (is_null, null) {
            (true, true) => Some(constant(0)),
            (true, false) => None,
            (false, _) => Some(Held::Value { map, min, max, null: false, look_up, uniform }),
        };
    }
    let Held::Number { min: a, max: b, uniform, from } = left else { return Some(left) };
    let (left, right) = (Interval { min: a, max: b }, Interval { min: c, max: d });
    let Interval { min, max } = left.narrowed(condition.compare, condition.width, right, taken)?;
    Some(Held::Number { min, max, uniform, from })
}
