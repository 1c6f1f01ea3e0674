//! Loads, stores, atomics and copies, and what they cost.

use std::cmp::Ordering;

use super::calc::ordered;
use super::code::{Address, AtomicOp, Dst, Space, Src, space_of};
use super::fault::{Fail, Trouble, fail};
use super::floats;
use super::machine::{Context, Lanes, aligned, lanes};
use super::ops::{Calc, Fun};
use super::types::{B32, Kind, Ty, mask};
use super::warp::Copy;

fn at_lane(lane: usize) -> impl Fn(Trouble) -> Fail {
    move |trouble| Fail { lane: lane as u32, trouble }
}

impl Context<'_, '_> {
    pub(crate) fn load(
        &mut self,
        space: Space,
        ty: Ty,
        dst: &[Dst],
        at: Address,
    ) -> Result<(), Fail> {
        if ty.bits > 64 {
            return Err(fail(self.active, Trouble::Missing("a load of 128 bits at once".into())));
        }
        if at.frame {
            return self.load_parameter(ty, dst, at);
        }
        let addresses = self.addresses(space, at)?;
        let bytes = ty.bytes();
        let whole = bytes * dst.len() as u32;
        let mut values = [[0; 32]; 8];
        for lane in lanes(self.active) {
            aligned("load", addresses[lane], whole.next_power_of_two()).map_err(at_lane(lane))?;
            for (part, values) in values.iter_mut().enumerate().take(dst.len()) {
                let address = addresses[lane].wrapping_add(part as u64 * u64::from(bytes));
                values[lane] = self.read(lane, address, bytes).map_err(at_lane(lane))?;
            }
        }
        for (dst, values) in dst.iter().zip(&values) {
            self.write(*dst, ty, values)?;
        }
        self.charge(&addresses, whole);
        Ok(())
    }

    pub(crate) fn store_all(
        &mut self,
        space: Space,
        ty: Ty,
        src: &[Src],
        at: Address,
    ) -> Result<(), Fail> {
        if ty.bits > 64 {
            return Err(fail(self.active, Trouble::Missing("a store of 128 bits at once".into())));
        }
        if at.frame {
            return self.store_parameter(ty, src, at);
        }
        let addresses = self.addresses(space, at)?;
        let bytes = ty.bytes();
        let whole = bytes * src.len() as u32;
        for (part, src) in src.iter().enumerate() {
            let values = self.gather(*src)?;
            for lane in lanes(self.active) {
                aligned("store", addresses[lane], whole.next_power_of_two())
                    .map_err(at_lane(lane))?;
                let address = addresses[lane].wrapping_add(part as u64 * u64::from(bytes));
                self.store(lane, address, bytes, values[lane]).map_err(at_lane(lane))?;
            }
        }
        self.charge(&addresses, whole);
        Ok(())
    }

    /// Where a parameter of the frame lies.
    fn parameter(at: Address, part: usize, bytes: u32) -> u64 {
        let base = match at.base {
            Src::Imm(base) => base,
            _ => 0,
        };
        base.wrapping_add(at.offset as u64).wrapping_add(part as u64 * u64::from(bytes))
    }

    fn load_parameter(&mut self, ty: Ty, dst: &[Dst], at: Address) -> Result<(), Fail> {
        let bytes = ty.bytes();
        for (part, dst) in dst.iter().enumerate() {
            let address = Self::parameter(at, part, bytes);
            let mut values = [0; 32];
            for lane in lanes(self.active) {
                let found = self.frame()?.parameters[lane].read(address, bytes);
                let space = Space::Param;
                values[lane] = match found {
                    Some((_, false)) if self.launched.check_unwritten => {
                        return Err(at_lane(lane)(Trouble::Unwritten { space, address, bytes }));
                    }
                    Some((value, _)) => value,
                    None => {
                        let what = "load";
                        let trouble = Trouble::OutOfBounds { what, space, address, bytes };
                        return Err(at_lane(lane)(trouble));
                    }
                };
            }
            self.write(*dst, ty, &values)?;
        }
        Ok(())
    }

    fn store_parameter(&mut self, ty: Ty, src: &[Src], at: Address) -> Result<(), Fail> {
        let bytes = ty.bytes();
        for (part, src) in src.iter().enumerate() {
            let (values, address) = (self.gather(*src)?, Self::parameter(at, part, bytes));
            let (active, frame) = (self.active, self.frame);
            let frame = self.warp.frame_mut(frame);
            let frame = frame.ok_or_else(|| fail(active, super::machine::LOST))?;
            for lane in lanes(active) {
                let (what, space) = ("store", Space::Param);
                frame.parameters[lane].write(address, bytes, values[lane]).ok_or_else(|| {
                    at_lane(lane)(Trouble::OutOfBounds { what, space, address, bytes })
                })?;
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // What an atomic instruction names.
    pub(crate) fn atomic(
        &mut self,
        space: Space,
        op: AtomicOp,
        ty: Ty,
        dst: &[Dst],
        at: Address,
        src: &[Src],
        with: Src,
    ) -> Result<(), Fail> {
        let addresses = self.addresses(space, at)?;
        let bytes = ty.bytes();
        let parts = src.iter().map(|src| self.gather(*src)).collect::<Result<Vec<_>, _>>()?;
        let with = self.gather(with)?;
        let mut olds = vec![[0; 32]; parts.len()];
        for lane in lanes(self.active) {
            let told = at_lane(lane);
            let whole = bytes * parts.len() as u32;
            aligned("atomic", addresses[lane], whole.next_power_of_two()).map_err(&told)?;
            if matches!(space_of(addresses[lane]), Space::Local | Space::Param | Space::Const) {
                return Err(told(Trouble::Undefined(
                    "an atomic on memory that is neither global nor shared",
                )));
            }
            for (part, values) in parts.iter().enumerate() {
                let address = addresses[lane].wrapping_add(part as u64 * u64::from(bytes));
                let old = self.read(lane, address, bytes).map_err(&told)?;
                let new = changed(op, ty, old, values[lane], with[lane]);
                self.store(lane, address, bytes, new).map_err(&told)?;
                olds[part][lane] = old;
            }
        }
        for (dst, olds) in dst.iter().zip(&olds) {
            self.write(*dst, ty, olds)?;
        }
        self.warp.facts.counts.atomics += u64::from(self.active.count_ones());
        self.charge(&addresses, bytes * parts.len() as u32);
        // Those on one address come one after the other.
        let mut sorted: Vec<u64> = lanes(self.active).map(|lane| addresses[lane]).collect();
        sorted.sort_unstable();
        let longest = sorted.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(1);
        self.busy += longest as u64 - 1;
        Ok(())
    }

    /// Counts an access of `bytes` at the active lanes' addresses and says how long it takes: a cycle
    /// for each sector of 32 bytes, in shared memory one for each word that a bank has to give.
    pub(crate) fn charge(&mut self, addresses: &Lanes, bytes: u32) {
        let shared = lanes(self.active).find(|&lane| space_of(addresses[lane]) == Space::Shared);
        let local = lanes(self.active).find(|&lane| space_of(addresses[lane]) == Space::Local);
        let counts = &mut self.warp.facts.counts;
        if shared.is_some() {
            let cycles = bank_cycles(addresses, bytes, self.active);
            let least = u64::from(bytes * self.active.count_ones()).div_ceil(128).max(1);
            counts.shared_requests += 1;
            counts.bank_conflicts += cycles.saturating_sub(least);
            self.busy += cycles;
            return;
        }
        // Words of local memory are interleaved: the same word of all lanes is one line.
        let unit = if local.is_some() { 4 } else { 32 };
        let mut units: Vec<u64> = Vec::with_capacity(64);
        for lane in lanes(self.active) {
            let first = addresses[lane] / unit;
            let last = addresses[lane].wrapping_add(u64::from(bytes) - 1) / unit;
            units.extend(first..=last.max(first));
        }
        units.sort_unstable();
        units.dedup();
        let sectors = units.len() as u64 * if local.is_some() { 4 } else { 1 };
        let parameter = lanes(self.active).any(|l| space_of(addresses[l]) == Space::Param);
        if !parameter {
            counts.requests += 1;
            counts.sectors += sectors;
            self.busy += sectors;
        }
    }

    pub(crate) fn copy_async(
        &mut self,
        bytes: u32,
        to: Address,
        from: Address,
        size: Option<Src>,
    ) -> Result<(), Fail> {
        let to = self.addresses(Space::Shared, to)?;
        let from = self.addresses(Space::Global, from)?;
        let size = match size {
            Some(size) => self.gather(size)?,
            None => [u64::from(bytes); 32],
        };
        for lane in lanes(self.active) {
            let told = at_lane(lane);
            aligned("store", to[lane], bytes).map_err(&told)?;
            aligned("load", from[lane], bytes).map_err(&told)?;
            let read = (size[lane] as u32).min(bytes);
            let (to, from, lane) = (to[lane], from[lane], lane as u32);
            let copy = Copy { to, from, bytes, read, lane };
            self.warp.begun[lane as usize].push(copy);
        }
        self.charge(&from, bytes);
        Ok(())
    }

    pub(crate) fn copy_commit(&mut self) {
        for lane in lanes(self.active) {
            let begun = std::mem::take(&mut self.warp.begun[lane]);
            self.warp.groups[lane].push_back(begun);
        }
    }

    /// Carries out the copies of all but the last `left` groups; `all` also of what is in no group.
    pub(crate) fn copy_wait(&mut self, left: usize, mask: u32, all: bool) -> Result<(), Fail> {
        for lane in lanes(mask) {
            let mut due = Vec::new();
            while self.warp.groups[lane].len() > left {
                due.extend(self.warp.groups[lane].pop_front().unwrap_or_default());
            }
            if all {
                due.append(&mut self.warp.begun[lane]);
            }
            for Copy { to, from, bytes, read, lane } in due {
                let told = at_lane(lane as usize);
                for at in 0..u64::from(bytes) {
                    let byte = if at < u64::from(read) {
                        self.read(lane as usize, from + at, 1).map_err(&told)?
                    } else {
                        0
                    };
                    self.store(lane as usize, to + at, 1, byte).map_err(&told)?;
                }
            }
        }
        Ok(())
    }

    /// Rows of 8 × 8 matrices of 16 bits: lane `l` names row `l % 8` of matrix `l / 8`.
    pub(crate) fn matrix(
        &mut self,
        space: Space,
        count: usize,
        transposed: bool,
        at: Address,
        dst: Result<&[Dst], &[Src]>,
    ) -> Result<(), Fail> {
        if self.active != u32::MAX {
            let why = "a matrix is loaded or stored by a part of the warp";
            return Err(fail(self.active, Trouble::Undefined(why)));
        }
        let rows = self.addresses(space, at)?;
        let place = |matrix: usize, lane: usize, half: usize| {
            let (row, column) = match transposed {
                false => (lane / 4, lane % 4 * 2 + half),
                true => (lane % 4 * 2 + half, lane / 4),
            };
            (matrix * 8 + row, column as u64 * 2)
        };
        for (lane, &row) in rows.iter().enumerate().take(count * 8) {
            aligned("load", row, 16).map_err(at_lane(lane))?;
        }
        match dst {
            Ok(dst) => {
                for (matrix, dst) in dst.iter().enumerate().take(count) {
                    let mut values = [0; 32];
                    for (lane, value) in values.iter_mut().enumerate() {
                        for half in 0..2 {
                            let (row, column) = place(matrix, lane, half);
                            let element = self.read(lane, rows[row].wrapping_add(column), 2);
                            *value |= element.map_err(at_lane(row))? << (16 * half);
                        }
                    }
                    self.write(*dst, B32, &values)?;
                }
            }
            Err(src) => {
                for (matrix, src) in src.iter().enumerate().take(count) {
                    let values = self.gather(*src)?;
                    for (lane, value) in values.iter().enumerate() {
                        for half in 0..2 {
                            let (row, column) = place(matrix, lane, half);
                            let element = value >> (16 * half) & 0xffff;
                            self.store(lane, rows[row].wrapping_add(column), 2, element)
                                .map_err(at_lane(row))?;
                        }
                    }
                }
            }
        }
        // Eight rows of 16 bytes at a time.
        for matrix in 0..count {
            let saved = self.active;
            self.active = 0xff << (matrix * 8);
            self.charge(&rows, 16);
            self.active = saved;
        }
        Ok(())
    }
}

/// How many cycles the banks need: 32 banks give a word of 4 bytes each; 8 bytes are asked for by
/// half a warp at a time, 16 by a quarter.
fn bank_cycles(addresses: &Lanes, bytes: u32, active: u32) -> u64 {
    let lanes_at_once = (128 / bytes.max(4)).clamp(1, 32);
    let mut cycles = 0;
    for first in (0..32).step_by(lanes_at_once as usize) {
        let mut words: Vec<u64> = Vec::with_capacity(32);
        for lane in
            lanes(active).filter(|lane| (first..first + lanes_at_once as usize).contains(lane))
        {
            let from = addresses[lane] / 4;
            words.extend(from..=(addresses[lane] + u64::from(bytes) - 1) / 4);
        }
        words.sort_unstable();
        words.dedup();
        let mut of_bank = [0_u64; 32];
        for word in words {
            of_bank[(word % 32) as usize] += 1;
        }
        cycles += of_bank.iter().copied().max().unwrap_or(0);
    }
    cycles
}

/// What memory holds after an atomic operation on `old`.
pub(crate) fn changed(op: AtomicOp, ty: Ty, old: u64, value: u64, with: u64) -> u64 {
    let bits = ty.width();
    let (old, value) = (mask(old, bits), mask(value, bits));
    let new = match op {
        AtomicOp::Add => match ty.kind {
            Kind::Float(format) => {
                let calc = Calc { fun: Fun::Add, ty, from: ty, ..Calc::default() };
                floats::compute(&calc, format, [old, value, 0, 0])
            }
            _ => old.wrapping_add(value),
        },
        AtomicOp::Min | AtomicOp::Max if ty.float().is_some() || !ty.packed => {
            let fun = if op == AtomicOp::Min { Fun::Min } else { Fun::Max };
            match ty.kind {
                Kind::Float(format) => {
                    let calc = Calc { fun, ty, from: ty, ..Calc::default() };
                    floats::compute(&calc, format, [old, value, 0, 0])
                }
                _ => {
                    let less = ordered(ty, old, value) == Ordering::Less;
                    if less == (op == AtomicOp::Min) { old } else { value }
                }
            }
        }
        AtomicOp::Min | AtomicOp::Max => old,
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Exch => value,
        // The operand is what is compared, the other what is stored.
        AtomicOp::Cas => {
            if old == value {
                with
            } else {
                old
            }
        }
        AtomicOp::Inc => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Dec => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
    };
    mask(new, bits)
}
