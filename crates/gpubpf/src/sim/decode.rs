//! Opcodes as what is to be done.

use super::code::{AtomicOp, Barrier, Callee, Dst, Mma, Op, Passed, Shuffle, Space, Src, Vote};
use super::names::{Names, Symbol, list};
use super::ops::{Calc, Compare, Fun, Half, Join, Permute, Test};
use super::soft::Round;
use super::types::{B32, B64, Kind, PRED, S32, Ty, U32};
use crate::ptx::Instruction;

/// One instruction within its scope of names.
struct Decoder<'n, 'm, 'a> {
    names: &'n mut Names<'m>,
    scope: usize,
    parts: Vec<&'a str>,
    operands: &'a [&'a str],
}

/// What `instruction` does; an error says what of it is not known.
pub(crate) fn decode(
    names: &mut Names,
    scope: usize,
    instruction: &Instruction,
) -> Result<Op, String> {
    let parts = instruction.parts().collect();
    let mut decoder = Decoder { names, scope, parts, operands: &instruction.operands };
    let found = decoder.op()?;
    found.ok_or_else(|| instruction.opcode.to_owned())
}

/// The predicate that guards `instruction`.
pub(crate) fn guard(
    names: &mut Names,
    scope: usize,
    instruction: &Instruction,
) -> Result<Option<(u32, bool)>, String> {
    let Some(guard) = instruction.guard else { return Ok(None) };
    match names.find(scope, guard.predicate) {
        Some(Symbol::Register { slot, bits: 1 }) => Ok(Some((slot, guard.negated))),
        _ => Err(format!("`{}` is no predicate", guard.predicate)),
    }
}

impl<'a> Decoder<'_, '_, 'a> {
    fn has(&self, part: &str) -> bool {
        self.parts[1..].contains(&part)
    }

    /// The types that the opcode names, in order.
    fn types(&self) -> Vec<Ty> {
        self.parts[1..].iter().filter_map(|part| Ty::parse(part)).collect()
    }

    fn ty(&self) -> Result<Ty, String> {
        self.types().last().copied().ok_or_else(|| "it names no type".to_owned())
    }

    fn operand(&self, at: usize) -> Result<&'a str, String> {
        self.operands.get(at).copied().ok_or_else(|| "an operand is missing".to_owned())
    }

    fn source(&mut self, at: usize, ty: Ty) -> Result<Src, String> {
        let text = self.operand(at)?;
        self.names.source(self.scope, text, ty)
    }

    fn target(&mut self, at: usize) -> Result<Dst, String> {
        let text = self.operand(at)?;
        self.names.target(self.scope, text)
    }

    /// `d|p`: the second is none where it is not named.
    fn pair(&mut self, at: usize) -> Result<(Dst, Dst), String> {
        let text = self.operand(at)?;
        match text.split_once('|') {
            Some((first, second)) => Ok((
                self.names.target(self.scope, first.trim())?,
                self.names.target(self.scope, second.trim())?,
            )),
            None => Ok((self.names.target(self.scope, text)?, Dst::None)),
        }
    }

    fn targets(&mut self, at: usize) -> Result<Vec<Dst>, String> {
        let text = self.operand(at)?;
        self.names.targets(self.scope, text)
    }

    fn sources(&mut self, at: usize, ty: Ty) -> Result<Vec<Src>, String> {
        let text = self.operand(at)?;
        self.names.sources(self.scope, text, ty)
    }

    fn address(&mut self, at: usize) -> Result<super::code::Address, String> {
        let text = self.operand(at)?;
        self.names.address(self.scope, text)
    }

    fn space(&self) -> Space {
        self.parts[1..].iter().find_map(|part| space(part)).unwrap_or(Space::Generic)
    }

    fn op(&mut self) -> Result<Option<Op>, String> {
        let name = self.parts[0];
        Ok(Some(match name {
            "ld" | "ldu" => {
                let (space, ty) = (self.space(), self.ty()?);
                Op::Load { space, ty, dst: self.targets(0)?, at: self.address(1)? }
            }
            "st" => {
                let (space, ty) = (self.space(), self.ty()?);
                Op::Store { space, ty, src: self.sources(1, ty)?, at: self.address(0)? }
            }
            "atom" | "red" => return self.atomic(name == "atom"),
            "mov" => return self.mov(),
            "bra" => {
                let label = self.operand(0)?;
                Op::Branch(self.names.find_label(self.scope, label)?)
            }
            "brx" => {
                let table = self.names.find_table(self.scope, self.operand(1)?)?;
                let scope = self.scope;
                let find = |label: &String| self.names.find_label(scope, label);
                let targets = table.iter().map(find).collect::<Result<_, _>>()?;
                Op::BranchIndex { index: self.source(0, U32)?, targets }
            }
            "call" => self.call()?,
            "ret" => Op::Return,
            "exit" => Op::Exit,
            "trap" => Op::Trap,
            "bar" | "barrier" => return self.barrier(),
            "membar" | "fence" | "prefetch" | "prefetchu" | "applypriority" | "discard"
            | "pmevent" | "brkpt" | "griddepcontrol" | "setmaxnreg" => Op::Nothing,
            "nanosleep" => Op::Sleep(self.source(0, U32)?),
            "shfl" | "vote" | "match" | "redux" | "elect" | "activemask" => return self.warp(name),
            "cp" => return self.copy(),
            "ldmatrix" | "stmatrix" => return self.matrix(name == "ldmatrix"),
            "mma" => return self.mma(),
            _ => return self.calc(),
        }))
    }

    fn atomic(&mut self, fetch: bool) -> Result<Option<Op>, String> {
        let (space, ty) = (self.space(), self.ty()?);
        let op = self.parts[1..].iter().find_map(|part| atomic_op(part));
        let Some(op) = op.filter(|_| ty.bits <= 64) else { return Ok(None) };
        let dst = if fetch { self.targets(0)? } else { Vec::new() };
        let first = usize::from(fetch);
        let at = self.address(first)?;
        let src = self.sources(first + 1, ty)?;
        let with = if op == AtomicOp::Cas { self.source(first + 2, ty)? } else { Src::Imm(0) };
        Ok(Some(Op::Atomic { space, op, ty, dst, at, src, with }))
    }

    fn mov(&mut self) -> Result<Option<Op>, String> {
        let ty = self.ty()?;
        let (to, from) = (self.operand(0)?, self.operand(1)?);
        if ty.bits > 64 {
            return Ok(None);
        }
        if to.starts_with('{') {
            let bits = ty.width() / list(to).len() as u32;
            let src = self.source(1, ty)?;
            return Ok(Some(Op::Unpack { dst: self.targets(0)?, src, bits }));
        }
        if from.starts_with('{') {
            let bits = ty.width() / list(from).len() as u32;
            let part = Ty { bits, kind: Kind::Bits, packed: false };
            let parts = self.sources(1, part)?;
            return Ok(Some(Op::Pack { dst: self.target(0)?, parts, bits }));
        }
        let calc = Calc { fun: Fun::Mov, ty, from: ty, ..Calc::default() };
        Ok(Some(self.computed(calc, &[ty])?))
    }

    /// A computation whose operands have the types `from`.
    fn computed(&mut self, calc: Calc, from: &[Ty]) -> Result<Op, String> {
        let (dst, also) = self.pair(0)?;
        let mut src = [Src::Imm(0); 4];
        let mut widths = [64; 4];
        if self.operands.len() < from.len() + 1 {
            return Err("an operand is missing".into());
        }
        for (at, ty) in from.iter().enumerate() {
            src[at] = self.source(at + 1, *ty)?;
            widths[at] = ty.width();
        }
        Ok(Op::Calc { calc: Box::new(calc), dst, also, src, widths })
    }

    fn call(&mut self) -> Result<Op, String> {
        let groups: Vec<Vec<String>> = self
            .operands
            .iter()
            .map(|text| match text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
                Some(inner) => inner.split(',').map(|p| p.trim().to_owned()).collect(),
                None => vec![(*text).to_owned()],
            })
            .collect();
        let grouped = |at: usize| self.operands.get(at).is_some_and(|t| t.starts_with('('));
        let callee = usize::from(grouped(0));
        let arguments = if grouped(callee + 1) { Some(callee + 1) } else { None };
        let name = self.operand(callee)?;
        let target = match self.names.find(self.scope, name) {
            Some(Symbol::Function(number)) => Callee::Function(number),
            Some(Symbol::Register { slot, .. }) => Callee::Pointer(Src::Reg(slot)),
            _ => return Err(format!("it calls `{name}`, which the module does not declare")),
        };
        let mut passed = |group: Option<&Vec<String>>, result: bool| {
            let mut found = Vec::new();
            for text in group.into_iter().flatten().filter(|text| !text.is_empty()) {
                found.push(match self.names.find(self.scope, text) {
                    Some(Symbol::Frame { at, bytes }) => Passed::Bytes { at, bytes },
                    Some(Symbol::Register { slot, bits }) if result => {
                        Passed::Result(Dst::Reg(slot, bits))
                    }
                    Some(Symbol::Register { slot, bits }) => Passed::Value(Src::Reg(slot), bits),
                    _ => Passed::Value(self.names.source(self.scope, text, B64)?, 64),
                });
            }
            Ok::<_, String>(found)
        };
        let results = passed(if callee == 1 { groups.first() } else { None }, true)?;
        let arguments = passed(arguments.and_then(|at| groups.get(at)), false)?;
        Ok(Op::Call { callee: target, results, arguments })
    }

    fn barrier(&mut self) -> Result<Option<Op>, String> {
        if self.has("cluster") {
            return Ok(None);
        }
        if self.has("warp") {
            return Ok(Some(Op::WarpBarrier { mask: self.source(0, B32)? }));
        }
        let aligned = self.parts[0] == "bar" || self.has("aligned");
        if self.has("red") {
            let what = match () {
                () if self.has("popc") => Barrier::Popc,
                () if self.has("and") => Barrier::And,
                () => Barrier::Or,
            };
            let last = self.operands.len().saturating_sub(1);
            let (dst, id, with) = (self.target(0)?, self.source(1, U32)?, self.source(last, PRED)?);
            let count = if last == 3 { Some(self.source(2, U32)?) } else { None };
            return Ok(Some(Op::Barrier { what, id, count, aligned, dst, with }));
        }
        let what = if self.has("arrive") { Barrier::Arrive } else { Barrier::Sync };
        let count = if self.operands.len() > 1 { Some(self.source(1, U32)?) } else { None };
        let id = self.source(0, U32)?;
        Ok(Some(Op::Barrier { what, id, count, aligned, dst: Dst::None, with: Src::Imm(0) }))
    }

    fn warp(&mut self, name: &str) -> Result<Option<Op>, String> {
        let sync = self.has("sync");
        let last = self.operands.len().saturating_sub(1);
        Ok(Some(match name {
            "activemask" => Op::ActiveMask { dst: self.target(0)? },
            "elect" => {
                let (dst, also) = self.pair(0)?;
                Op::Elect { dst, also, mask: self.source(1, B32)? }
            }
            "shfl" => {
                let mode = match () {
                    () if self.has("up") => Shuffle::Up,
                    () if self.has("down") => Shuffle::Down,
                    () if self.has("bfly") => Shuffle::Butterfly,
                    () => Shuffle::Index,
                };
                let (dst, also) = self.pair(0)?;
                let (src, lane) = (self.source(1, B32)?, self.source(2, U32)?);
                let clamp = self.source(3, U32)?;
                let mask = if sync { Some(self.source(4, B32)?) } else { None };
                Op::Shuffle { mode, dst, also, src, lane, clamp, mask }
            }
            "vote" => {
                let what = match () {
                    () if self.has("all") => Vote::All,
                    () if self.has("any") => Vote::Any,
                    () if self.has("uni") => Vote::Uniform,
                    () => Vote::Ballot,
                };
                let mask = if sync { Some(self.source(2, B32)?) } else { None };
                Op::Vote { what, dst: self.target(0)?, src: self.source(1, PRED)?, mask }
            }
            "match" => {
                let (dst, also) = self.pair(0)?;
                let ty = self.ty()?;
                let (src, mask) = (self.source(1, ty)?, self.source(2, B32)?);
                Op::Match { all: self.has("all"), bits: ty.bits, dst, also, src, mask }
            }
            _ => {
                let ty = self.ty()?;
                let op = self.parts[1..].iter().find_map(|part| atomic_op(part));
                let Some(op) = op else { return Ok(None) };
                let (src, mask) = (self.source(1, ty)?, self.source(last, B32)?);
                if ty.float().is_some() {
                    return Ok(None);
                }
                Op::Redux { op, ty, dst: self.target(0)?, src, mask }
            }
        }))
    }

    fn copy(&mut self) -> Result<Option<Op>, String> {
        if !self.has("async") || self.has("bulk") || self.has("mbarrier") || self.has("reduce") {
            return Ok(None);
        }
        if self.has("commit_group") {
            return Ok(Some(Op::CopyCommit));
        }
        if self.has("wait_all") {
            return Ok(Some(Op::CopyWait(0)));
        }
        if self.has("wait_group") {
            let count = match self.source(0, U32)? {
                Src::Imm(count) => count as u32,
                _ => return Err("the number of groups is no constant".into()),
            };
            return Ok(Some(Op::CopyWait(count)));
        }
        let bytes = match self.source(2, U32)? {
            Src::Imm(bytes @ (4 | 8 | 16)) => bytes as u32,
            _ => return Err("the size of the copy is not 4, 8 or 16".into()),
        };
        let hint = self.parts.iter().any(|part| part.ends_with("::cache_hint"));
        let sized = self.operands.len() > if hint { 4 } else { 3 };
        let size = if sized { Some(self.source(3, U32)?) } else { None };
        Ok(Some(Op::CopyAsync { bytes, to: self.address(0)?, from: self.address(1)?, size }))
    }

    fn matrix(&mut self, load: bool) -> Result<Option<Op>, String> {
        let count = match () {
            () if self.has("x4") => 4,
            () if self.has("x2") => 2,
            () => 1,
        };
        if !self.has("m8n8") || !self.has("b16") {
            return Ok(None);
        }
        let (transposed, space) = (self.has("trans"), self.space());
        Ok(Some(if load {
            let (dst, at) = (self.targets(0)?, self.address(1)?);
            Op::MatrixLoad { count, transposed, dst, at, space }
        } else {
            let (src, at) = (self.sources(1, B32)?, self.address(0)?);
            Op::MatrixStore { count, transposed, src, at, space }
        }))
    }

    fn mma(&mut self) -> Result<Option<Op>, String> {
        let shape = self.parts[1..].iter().find_map(|part| shape(part));
        let Some((m, n, k)) = shape else { return Ok(None) };
        let [d, a, b, c] = self.types()[..] else { return Ok(None) };
        let layout = self.has("row") && self.has("col");
        let known = super::mma::known(m, n, k, a, b) && layout && self.operands.len() == 4;
        if !known || self.parts.contains(&"sp") {
            return Ok(None);
        }
        let dst = self.targets(0)?;
        let src = [self.sources(1, B32)?, self.sources(2, B32)?, self.sources(3, B32)?];
        let sat = self.has("satfinite");
        let mma = Mma { m, n, k, a, b, c, d, sat, dst, src };
        Ok(Some(Op::Mma(Box::new(mma))))
    }

    fn calc(&mut self) -> Result<Option<Op>, String> {
        let types = self.types();
        if types.iter().any(|ty| ty.bits > 64) {
            return Ok(None);
        }
        let mut calc = self.modifiers();
        let name = self.parts[0];
        calc.carry_in = matches!(name, "addc" | "subc" | "madc");
        if let Some(special) = self.unusual(name, &types, calc.clone())? {
            return Ok(Some(special));
        }
        let Some(&ty) = types.last() else { return Ok(None) };
        (calc.ty, calc.from) = (ty, ty);
        let half = match () {
            () if self.has("hi") => Half::High,
            () if self.has("wide") => Half::Wide,
            () => Half::Low,
        };
        let twice = Ty { bits: ty.bits * 2, ..ty };
        let [one, two, three] = [vec![ty], vec![ty; 2], vec![ty; 3]];
        let (fun, from) = match name {
            "add" | "addc" => (Fun::Add, two),
            "sub" | "subc" => (Fun::Sub, two),
            "mul" => (Fun::Mul(half), two),
            "mad" | "madc" if ty.float().is_some() => (Fun::Fma, three),
            "mad" | "madc" if half == Half::Wide => (Fun::Mad(half), vec![ty, ty, twice]),
            "mad" | "madc" => (Fun::Mad(half), three),
            "mul24" => (Fun::Mul24(half), two),
            "mad24" => (Fun::Mad24(half), three),
            "fma" => (Fun::Fma, three),
            "div" => (Fun::Div, two),
            "rem" => (Fun::Rem, two),
            "abs" => (Fun::Abs, one),
            "neg" => (Fun::Neg, one),
            "min" if self.operands.len() == 3 => (Fun::Min, two),
            "max" if self.operands.len() == 3 => (Fun::Max, two),
            "and" => (Fun::And, two),
            "or" => (Fun::Or, two),
            "xor" => (Fun::Xor, two),
            "not" => (Fun::Not, one),
            "cnot" => (Fun::Cnot, one),
            "shl" => (Fun::Shl, vec![ty, U32]),
            "shr" => (Fun::Shr, vec![ty, U32]),
            "bfe" => (Fun::Bfe, vec![ty, U32, U32]),
            "bfi" => (Fun::Bfi, vec![ty, ty, U32, U32]),
            "brev" => (Fun::Brev, one),
            "sad" => (Fun::Sad, three),
            "selp" => (Fun::Selp, vec![ty, ty, PRED]),
            "copysign" => (Fun::Copysign, two),
            "rcp" => (Fun::Rcp, one),
            "sqrt" => (Fun::Sqrt, one),
            "rsqrt" => (Fun::Rsqrt, one),
            "sin" => (Fun::Sin, one),
            "cos" => (Fun::Cos, one),
            "lg2" => (Fun::Lg2, one),
            "ex2" => (Fun::Ex2, one),
            "tanh" => (Fun::Tanh, one),
            _ => return Ok(None),
        };
        calc.fun = fun;
        Ok(Some(self.computed(calc, &from)?))
    }

    /// Those whose operands have types of their own.
    fn unusual(&mut self, name: &str, types: &[Ty], mut calc: Calc) -> Result<Option<Op>, String> {
        let first = types.first().copied().unwrap_or(B32);
        let second = types.get(1).copied().unwrap_or(first);
        let (fun, ty, from, operands) = match name {
            "setp" => return self.compared(calc, first, PRED).map(Some),
            "set" => return self.compared(calc, second, first).map(Some),
            "popc" => (Fun::Popc, U32, first, vec![first]),
            "clz" => (Fun::Clz, U32, first, vec![first]),
            "bfind" => {
                let shift = self.has("shiftamt");
                (Fun::Bfind { shift }, U32, first, vec![first])
            }
            "fns" => (Fun::Fns, B32, B32, vec![B32, U32, S32]),
            "bmsk" => (Fun::Bmsk { wrap: self.has("wrap") }, B32, B32, vec![U32, U32]),
            "szext" => (Fun::Szext { wrap: self.has("wrap") }, first, first, vec![first, U32]),
            "lop3" if self.operands.len() == 5 => (Fun::Lop3, B32, B32, vec![B32; 4]),
            "prmt" => {
                let mode = self.parts.iter().find_map(|part| permute(part));
                (Fun::Prmt(mode.unwrap_or(Permute::Index)), B32, B32, vec![B32, B32, B32])
            }
            "shf" => {
                let (left, wrap) = (self.has("l"), self.has("wrap"));
                (Fun::Funnel { left, wrap }, B32, B32, vec![B32, B32, U32])
            }
            "slct" => (Fun::Slct, first, second, vec![first, first, second]),
            "dp4a" => {
                let fun = Fun::Dp4a { a: first.signed(), b: second.signed() };
                (fun, S32, S32, vec![B32, B32, B32])
            }
            "dp2a" => {
                let high = self.has("hi");
                let fun = Fun::Dp2a { a: first.signed(), b: second.signed(), high };
                (fun, S32, S32, vec![B32, B32, B32])
            }
            "testp" => {
                let test = self.parts.iter().find_map(|part| test(part));
                let Some(test) = test else { return Ok(None) };
                (Fun::Testp(test), PRED, first, vec![first])
            }
            "isspacep" => (Fun::IsSpace(self.space()), PRED, B64, vec![B64]),
            "cvta" => (Fun::Cvta(self.space(), self.has("to")), B64, B64, vec![B64]),
            "createpolicy" => {
                self.operands = &self.operands[..self.operands.len().min(1)];
                (Fun::Mov, B64, B64, Vec::new())
            }
            "cvt" if self.has("pack") || types.len() != 2 => return Ok(None),
            "cvt" if self.operands.len() == 3 => (Fun::CvtPack, first, second, vec![second; 2]),
            "cvt" => (Fun::Cvt, first, second, vec![second]),
            _ => return Ok(None),
        };
        (calc.fun, calc.ty, calc.from) = (fun, ty, from);
        Ok(Some(self.computed(calc, &operands)?))
    }

    fn compared(&mut self, mut calc: Calc, from: Ty, ty: Ty) -> Result<Op, String> {
        let found = self.parts[1..].iter().find_map(|part| compare(part));
        let (compare, unordered) = found.ok_or("it names no comparison")?;
        (calc.compare, calc.unordered) = (compare, unordered);
        calc.from = from;
        calc.fun = if ty == PRED { Fun::Setp } else { Fun::Set };
        calc.ty = ty;
        calc.join = self.parts[2..].iter().find_map(|part| match *part {
            "and" => Some(Join::And),
            "or" => Some(Join::Or),
            "xor" => Some(Join::Xor),
            _ => None,
        });
        let mut operands = vec![from, from];
        if calc.join.is_some() {
            operands.push(PRED);
        }
        self.computed(calc, &operands)
    }

    fn modifiers(&self) -> Calc {
        let mut calc = Calc {
            ftz: self.has("ftz"),
            sat: self.has("sat"),
            finite: self.has("satfinite"),
            relu: self.has("relu"),
            nan: self.has("NaN"),
            xorsign: self.has("xorsign"),
            carry_out: self.has("cc"),
            ..Calc::default()
        };
        for part in &self.parts[1..] {
            let (round, whole) = match *part {
                "rn" => (Round::Nearest, false),
                "rna" => (Round::Away, false),
                "rz" => (Round::Zero, false),
                "rm" => (Round::Down, false),
                "rp" => (Round::Up, false),
                "rni" => (Round::Nearest, true),
                "rzi" => (Round::Zero, true),
                "rmi" => (Round::Down, true),
                "rpi" => (Round::Up, true),
                _ => continue,
            };
            (calc.round, calc.whole) = (round, whole);
        }
        calc
    }
}

fn space(part: &str) -> Option<Space> {
    Some(match part {
        "global" => Space::Global,
        "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
        "local" => Space::Local,
        "const" => Space::Const,
        "param" | "param::entry" | "param::func" => Space::Param,
        _ => return None,
    })
}

fn atomic_op(part: &str) -> Option<AtomicOp> {
    Some(match part {
        "add" => AtomicOp::Add,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "exch" => AtomicOp::Exch,
        "cas" => AtomicOp::Cas,
        "inc" => AtomicOp::Inc,
        "dec" => AtomicOp::Dec,
        _ => return None,
    })
}

/// A comparison, and whether it holds for NaN.
fn compare(part: &str) -> Option<(Compare, bool)> {
    Some(match part {
        "eq" => (Compare::Eq, false),
        "ne" => (Compare::Ne, false),
        "lt" | "lo" => (Compare::Lt, false),
        "le" | "ls" => (Compare::Le, false),
        "gt" | "hi" => (Compare::Gt, false),
        "ge" | "hs" => (Compare::Ge, false),
        "equ" => (Compare::Eq, true),
        "neu" => (Compare::Ne, true),
        "ltu" => (Compare::Lt, true),
        "leu" => (Compare::Le, true),
        "gtu" => (Compare::Gt, true),
        "geu" => (Compare::Ge, true),
        "num" => (Compare::Numbers, false),
        "nan" => (Compare::NotNumbers, false),
        _ => return None,
    })
}

fn permute(part: &str) -> Option<Permute> {
    Some(match part {
        "f4e" => Permute::Forward4,
        "b4e" => Permute::Backward4,
        "rc8" => Permute::Replicate8,
        "ecl" => Permute::EdgeLeft,
        "ecr" => Permute::EdgeRight,
        "rc16" => Permute::Replicate16,
        _ => return None,
    })
}

fn test(part: &str) -> Option<Test> {
    Some(match part {
        "finite" => Test::Finite,
        "infinite" => Test::Infinite,
        "number" => Test::Number,
        "notanumber" => Test::NotANumber,
        "normal" => Test::Normal,
        "subnormal" => Test::Subnormal,
        _ => return None,
    })
}

/// `m16n8k16`
fn shape(part: &str) -> Option<(usize, usize, usize)> {
    let (m, rest) = part.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
}
