//! One instruction of one path.

use super::calc;
use super::code::{Callee, Dst, FUNCTIONS, Op, Passed, Src};
use super::fault::{Fail, Trouble, fail};
use super::machine::{Context, LOST, Lanes, lanes};
use super::memory::Bytes;
use super::mma;
use super::ops::{Calc, Fun, Half};
use super::types::{B32, B64, Kind, PRED, Ty, mask};
use super::warp::Frame;

impl<'a> Context<'a, '_> {
    /// Executes the next instruction of the path.
    pub(crate) fn step(&mut self) -> Result<(), Fail> {
        let path = self.warp.paths[self.path];
        (self.frame, self.active) = (path.frame, path.mask);
        let Some(inst) = self.inst(path.at)? else { return self.give_back() };
        if let Some((predicate, negated)) = inst.guard {
            let values = self.gather(Src::Reg(predicate))?;
            let holds = lanes(path.mask).filter(|&lane| (values[lane] & 1 == 1) != negated);
            self.active = holds.fold(0, |active, lane| active | 1 << lane);
        }
        let counts = &mut self.warp.facts.counts;
        counts.instructions += 1;
        counts.lanes += u64::from(self.active.count_ones());
        if self.active == 0 {
            self.warp.go(self.path, path.at + 1);
            return Ok(());
        }
        if self.control(&inst.op, inst.meet)? {
            return Ok(());
        }
        self.plain(&inst.op)?;
        self.warp.go(self.path, path.at + 1);
        Ok(())
    }

    /// Instructions that say themselves where lanes go; false for all others.
    fn control(&mut self, op: &'a Op, meet: u32) -> Result<bool, Fail> {
        let path = self.warp.paths[self.path];
        let rest = path.mask & !self.active;
        match op {
            Op::Branch(target) => {
                let mut groups = vec![(*target, self.active)];
                if rest != 0 {
                    groups.insert(0, (path.at + 1, rest));
                }
                self.part(groups, meet)?;
            }
            Op::BranchIndex { index, targets } => {
                let index = self.gather(*index)?;
                let mut groups: Vec<(u32, u32)> = Vec::new();
                for lane in lanes(self.active) {
                    let target = targets.get(index[lane] as u32 as usize).copied();
                    let why = "a branch by an index beyond its list of targets";
                    let target = target.ok_or_else(|| fail(1 << lane, Trouble::Undefined(why)))?;
                    match groups.iter_mut().find(|(to, _)| *to == target) {
                        Some((_, group)) => *group |= 1 << lane,
                        None => groups.push((target, 1 << lane)),
                    }
                }
                if rest != 0 {
                    groups.push((path.at + 1, rest));
                }
                self.part(groups, meet)?;
            }
            Op::Call { callee, results, arguments } => self.call(*callee, results, arguments)?,
            Op::Return => self.give_back()?,
            Op::Exit => self.end()?,
            Op::Trap => return Err(fail(self.active, Trouble::Trap("trap"))),
            Op::Barrier { .. } => self.barrier(op)?,
            Op::WarpBarrier { mask } => self.warp_barrier(*mask)?,
            Op::Shuffle { .. } => self.shuffle(op)?,
            Op::Vote { what, dst, src, mask } => self.vote(*what, *dst, *src, *mask)?,
            Op::Match { .. } => self.matching(op)?,
            Op::Redux { op, ty, dst, src, mask } => self.redux(*op, *ty, *dst, *src, *mask)?,
            Op::Elect { dst, also, mask } => self.elect(*dst, *also, *mask)?,
            Op::Missing(what) => {
                return Err(fail(self.active, Trouble::Missing(what.clone())));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn part(&mut self, groups: Vec<(u32, u32)>, meet: u32) -> Result<(), Fail> {
        let end = self.function()?.code.len() as u32;
        self.warp.part(self.path, &groups, meet, end);
        Ok(())
    }

    fn plain(&mut self, op: &Op) -> Result<(), Fail> {
        match op {
            Op::Calc { calc, dst, also, src, widths } => {
                self.compute(calc, [*dst, *also], src, widths)?;
            }
            Op::Pack { dst, parts, bits } => {
                let (mut values, mut missing) = ([0; 32], 0);
                for (at, part) in parts.iter().enumerate() {
                    let (part, unwritten) = self.gather_any(*part)?;
                    missing |= unwritten;
                    for lane in 0..32 {
                        let shift = (at as u32 * bits).min(63);
                        values[lane] |= mask(part[lane], *bits) << shift;
                    }
                }
                self.write_some(*dst, B64, &values, missing)?;
            }
            Op::Unpack { dst, src, bits } => {
                let (values, missing) = self.gather_any(*src)?;
                for (at, dst) in dst.iter().enumerate() {
                    let part = values.map(|v| mask(v >> (at as u32 * bits).min(63), *bits));
                    self.write_some(*dst, B64, &part, missing)?;
                }
            }
            Op::Load { space, ty, dst, at } => self.load(*space, *ty, dst, *at)?,
            Op::Store { space, ty, src, at } => self.store_all(*space, *ty, src, *at)?,
            Op::Atomic { space, op, ty, dst, at, src, with } => {
                self.atomic(*space, *op, *ty, dst, *at, src, *with)?;
            }
            Op::ActiveMask { dst } => {
                self.write(*dst, B32, &[u64::from(self.active); 32])?;
            }
            Op::CopyAsync { bytes, to, from, size } => {
                self.copy_async(*bytes, *to, *from, *size)?
            }
            Op::CopyCommit => self.copy_commit(),
            // `wait_all` waits for copies of no group too.
            Op::CopyWait(left) => self.copy_wait(*left as usize, self.active, *left == 0)?,
            Op::MatrixLoad { count, transposed, dst, at, space } => {
                self.matrix(*space, *count, *transposed, *at, Ok(dst))?;
            }
            Op::MatrixStore { count, transposed, src, at, space } => {
                self.matrix(*space, *count, *transposed, *at, Err(src))?;
            }
            Op::Mma(product) => self.mma(product)?,
            Op::Sleep(duration) => {
                let duration = self.gather(*duration)?;
                let longest = lanes(self.active).map(|lane| duration[lane] as u32).max();
                self.rest += u64::from(longest.unwrap_or(0).min(1_000_000));
            }
            _ => {}
        }
        Ok(())
    }

    fn mma(&mut self, product: &super::code::Mma) -> Result<(), Fail> {
        if self.active != u32::MAX {
            let why = "a product of matrices by a part of the warp";
            return Err(fail(self.active, Trouble::Undefined(why)));
        }
        let expected = mma::registers(product);
        let given = [product.src[0].len(), product.src[1].len(), product.src[2].len()];
        if given != expected[..3] || product.dst.len() != expected[3] {
            let why = "a product of matrices with another number of registers than its shape has";
            return Err(fail(self.active, Trouble::Undefined(why)));
        }
        let of =
            |src: &[Src]| src.iter().map(|src| self.gather(*src)).collect::<Result<Vec<_>, _>>();
        let (a, b, c) = (of(&product.src[0])?, of(&product.src[1])?, of(&product.src[2])?);
        let d = mma::product(product, &a, &b, &c);
        for (dst, values) in product.dst.iter().zip(&d) {
            self.write(*dst, B64, values)?;
        }
        Ok(())
    }

    fn compute(
        &mut self,
        calc: &Calc,
        dst: [Dst; 2],
        src: &[Src; 4],
        widths: &[u32; 4],
    ) -> Result<(), Fail> {
        let mut operands: [Lanes; 4] = [[0; 32]; 4];
        let mut unwritten = [0; 4];
        for (at, src) in src.iter().enumerate() {
            if *src != Src::Imm(0) {
                (operands[at], unwritten[at]) = self.gather_any(*src)?;
            }
        }
        let mut missing = unwritten[0] | unwritten[1] | unwritten[2] | unwritten[3];
        if calc.fun == Fun::Selp && missing != 0 {
            // What is not chosen does not matter.
            let first = lanes(self.active).filter(|&lane| operands[2][lane] & 1 == 1);
            let first = first.fold(0, |first, lane| first | 1 << lane);
            missing = unwritten[2] | unwritten[0] & first | unwritten[1] & !first;
        }
        if calc.carry_in || calc.carry_out {
            if missing != 0 {
                return Err(fail(missing, Trouble::UnwrittenRegister));
            }
            return self.carried(calc, dst[0], &operands);
        }
        let mut values = [0; 32];
        for lane in lanes(self.active & !missing) {
            let v = std::array::from_fn(|at| mask(operands[at][lane], widths[at]));
            values[lane] = match calc::compute(calc, v) {
                Ok(value) => value,
                Err(why) if self.launched.check_undefined => {
                    return Err(fail(1 << lane, Trouble::Undefined(why)));
                }
                // As the hardware has it for divisions by zero.
                Err(_) => u64::MAX,
            };
        }
        let ty = match calc.fun {
            Fun::Mul(Half::Wide) | Fun::Mad(Half::Wide) => Ty { bits: calc.ty.bits * 2, ..calc.ty },
            Fun::Bfind { .. } => B32,
            // A number in a register that is wider has zeros above.
            _ if matches!(calc.ty.kind, Kind::Float(_)) => Ty { kind: Kind::Bits, ..calc.ty },
            _ => calc.ty,
        };
        self.write_some(dst[0], ty, &values, missing)?;
        if dst[1] != Dst::None {
            self.write_some(dst[1], PRED, &values.map(|value| value >> 1 & 1), missing)?;
        }
        Ok(())
    }

    /// Additions and products with a carry.
    fn carried(&mut self, calc: &Calc, dst: Dst, v: &[Lanes; 4]) -> Result<(), Fail> {
        let bits = calc.ty.bits;
        let (mut values, mut carry) = ([0; 32], self.warp.carry);
        for lane in lanes(self.active) {
            let into = u128::from(calc.carry_in && carry >> lane & 1 == 1);
            let of = |at: usize| u128::from(mask(v[at][lane], bits));
            let (value, over) = match calc.fun {
                Fun::Sub => {
                    let taken = of(1) + into;
                    (of(0).wrapping_sub(taken), of(0) < taken)
                }
                Fun::Mad(_) => {
                    let plain = Calc {
                        fun: match calc.fun {
                            Fun::Mad(half) => Fun::Mul(half),
                            other => other,
                        },
                        ..calc.clone()
                    };
                    let product = calc::compute(&plain, [v[0][lane], v[1][lane], 0, 0]);
                    let sum = u128::from(mask(product.unwrap_or(0), bits)) + of(2) + into;
                    (sum, sum >> bits != 0)
                }
                _ => {
                    let sum = of(0) + of(1) + into;
                    (sum, sum >> bits != 0)
                }
            };
            values[lane] = mask(value as u64, bits);
            if calc.carry_out {
                carry = carry & !(1 << lane) | u32::from(over) << lane;
            }
        }
        self.warp.carry = carry;
        self.write(dst, calc.ty, &values)
    }

    /// The active lanes end.
    fn end(&mut self) -> Result<(), Fail> {
        let mask = self.active;
        self.copy_wait(0, mask, true)?;
        self.warp.exit(self.path, mask);
        self.open_barriers()
    }

    /// The active lanes return from their function.
    fn give_back(&mut self) -> Result<(), Fail> {
        let (mask, frame) = (self.active, self.frame()?);
        let Some((to, call)) = frame.caller else { return self.end() };
        let function = self.function()?;
        let code = self.warp.frame(to).map(|frame| &self.launched.function(frame.function).code);
        let op = code.and_then(|code| code.get(call as usize)).map(|inst| &inst.op);
        if let Some(Op::Call { results, .. }) = op {
            for (result, into) in function.results.iter().zip(results) {
                let value = match result.reg {
                    Some((slot, _)) => Ok(self.gather(Src::Reg(slot))?),
                    None => Err((result.at, result.bytes)),
                };
                self.hand_over(self.frame, value, to, *into, mask)?;
            }
        }
        self.warp.give_back(self.path, mask);
        Ok(())
    }

    /// Moves a value (or bytes among the parameters of `from`) to a place in frame `to`.
    fn hand_over(
        &mut self,
        from: usize,
        value: Result<Lanes, (u32, u32)>,
        to: usize,
        place: Passed,
        mask_of: u32,
    ) -> Result<(), Fail> {
        let lost = || fail(mask_of, LOST);
        for lane in lanes(mask_of) {
            let bytes: Vec<Option<u8>> = match value {
                Ok(values) => values[lane].to_le_bytes().iter().map(|&byte| Some(byte)).collect(),
                Err((at, bytes)) => {
                    let parameters = &self.warp.frame(from).ok_or_else(lost)?.parameters[lane];
                    let byte = |at| parameters.read(at, 1).filter(|found| found.1);
                    (u64::from(at)..u64::from(at + bytes))
                        .map(|at| byte(at).map(|(value, _)| value as u8))
                        .collect()
                }
            };
            let frame = self.warp.frame_mut(to).ok_or_else(lost)?;
            match place {
                Passed::Bytes { at, bytes: room } => {
                    for (offset, byte) in bytes.iter().enumerate().take(room as usize) {
                        if let Some(byte) = byte {
                            let at = u64::from(at) + offset as u64;
                            frame.parameters[lane].write(at, 1, u64::from(*byte));
                        }
                    }
                }
                Passed::Value(Src::Reg(slot), width) | Passed::Result(Dst::Reg(slot, width)) => {
                    let value = bytes.iter().take(8).rev();
                    let value = value.fold(0, |v, byte| v << 8 | u64::from(byte.unwrap_or(0)));
                    frame.registers[slot as usize][lane] = mask(value, width);
                    frame.written[slot as usize] |= 1 << lane;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        callee: Callee,
        results: &[Passed],
        arguments: &[Passed],
    ) -> Result<(), Fail> {
        let path = self.warp.paths[self.path];
        let number = match callee {
            Callee::Function(number) => number as usize,
            Callee::Pointer(src) => {
                let pointers = self.gather(src)?;
                let pointer = pointers[self.active.trailing_zeros() as usize & 31];
                let same = lanes(self.active).filter(|&lane| pointers[lane] == pointer);
                let same = same.fold(0, |same, lane| same | 1 << lane);
                if same != self.active {
                    let groups = [(path.at, same), (path.at, path.mask & !same)];
                    self.warp.part(self.path, &groups, path.at + 1, u32::MAX);
                    return Ok(());
                }
                let number = pointer.wrapping_sub(FUNCTIONS);
                let known = number.is_multiple_of(16)
                    && number / 16 < self.launched.image.functions.len() as u64;
                if !known {
                    let why = "a call of an address at which there is no function";
                    return Err(fail(self.active, Trouble::Undefined(why)));
                }
                (number / 16) as usize
            }
        };
        let function = self.launched.function(number);
        if !function.defined {
            return self.outside(&function.name, results);
        }
        if function.parameters.len() != arguments.len() || function.results.len() != results.len() {
            let why = "a call with another number of parameters than the function has";
            return Err(fail(self.active, Trouble::Undefined(why)));
        }
        let frame = self.new_frame(number)?;
        let (caller, active) = (self.frame, self.active);
        let mut given = Vec::new();
        for (parameter, argument) in function.parameters.iter().zip(arguments) {
            let value = match *argument {
                Passed::Value(src, _) => Ok(self.gather(src)?),
                Passed::Bytes { at, bytes } => Err((at, bytes)),
                Passed::Result(_) => continue,
            };
            let place = match parameter.reg {
                Some((slot, width)) => Passed::Value(Src::Reg(slot), width),
                None => Passed::Bytes { at: parameter.at, bytes: parameter.bytes },
            };
            given.push((value, place));
        }
        self.warp.call(self.path, frame, active);
        let to = self.warp.paths[self.path].frame;
        for (value, place) in given {
            self.hand_over(caller, value, to, place, active)?;
        }
        Ok(())
    }

    fn new_frame(&mut self, number: usize) -> Result<Frame, Fail> {
        let function = self.launched.function(number);
        let caller = self.frame()?;
        let depth = caller.depth + 1;
        let limit = u64::from(self.launched.call_depth);
        if u64::from(depth) > limit {
            let what = "calls within each other";
            return Err(fail(self.active, Trouble::Limit { what, limit }));
        }
        let below = self.launched.function(caller.function).local_bytes;
        let local = (caller.local + below).next_multiple_of(16);
        let size = u64::from(local) + u64::from(function.local_bytes);
        if size > self.launched.local_limit {
            let (what, limit) = ("bytes of local memory", self.launched.local_limit);
            return Err(fail(self.active, Trouble::Limit { what, limit }));
        }
        let frames = self.warp.frames.iter().flatten();
        let bytes = frames.map(|frame| frame_bytes(self.launched.function(frame.function)));
        if bytes.sum::<u64>() + frame_bytes(function) > MAX_FRAMES {
            let what = "bytes of registers and parameters in the calls of one warp";
            return Err(fail(self.active, Trouble::Limit { what, limit: MAX_FRAMES }));
        }
        for lane in lanes(self.active) {
            let memory = &mut self.warp.local[lane];
            memory.forget(local as usize);
            if memory.data.len() < size as usize {
                memory.resize(size as usize);
            }
        }
        Ok(frame(function, number, local, depth))
    }

    /// Functions that the driver gives to modules.
    fn outside(&mut self, name: &str, results: &[Passed]) -> Result<(), Fail> {
        match name {
            // What is printed is nobody's; the number of arguments is the result.
            "vprintf" => {
                let (frame, active) = (self.frame, self.active);
                for result in results {
                    self.hand_over(frame, Ok([0; 32]), frame, *result, active)?;
                }
                let next = self.warp.paths[self.path].at + 1;
                self.warp.go(self.path, next);
                Ok(())
            }
            "__assertfail" => Err(fail(self.active, Trouble::Trap("an assertion failed"))),
            _ => {
                let what = format!("call of {name}");
                Err(fail(self.active, Trouble::Missing(what)))
            }
        }
    }
}

/// The most bytes that the frames of one warp take.
const MAX_FRAMES: u64 = 64 << 20;

/// What a frame takes of the simulating machine's memory.
pub(crate) fn frame_bytes(function: &super::code::Function) -> u64 {
    u64::from(function.registers) * 260 + u64::from(function.parameter_bytes) * 64
}

/// A frame of `function` in which nothing is written.
pub(crate) fn frame(
    function: &super::code::Function,
    number: usize,
    local: u32,
    depth: u32,
) -> Frame {
    Frame {
        function: number,
        registers: vec![[0; 32]; function.registers as usize],
        written: vec![0; function.registers as usize],
        parameters: vec![Bytes::unwritten(function.parameter_bytes as usize); 32],
        local,
        depth,
        back: None,
        caller: None,
    }
}
