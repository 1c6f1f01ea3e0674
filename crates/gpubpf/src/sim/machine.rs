//! What an instruction sees: the launch, its block, its warp and its lanes.

use super::code::{Address, Dst, Function, Inst, Space, Special, Src, generic, space_of};
use super::fault::{Fail, Trouble, fail};
use super::load::{Image, SHARED_START};
use super::memory::{Bytes, Global};
use super::types::{Ty, extend, mask};
use super::warp::{Frame, Warp};

/// A value for each lane.
pub(crate) type Lanes = [u64; 32];

/// What is the same for all threads of a launch.
pub(crate) struct Launched<'a> {
    pub(crate) image: &'a Image,
    pub(crate) kernel: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) parameters: Bytes,
    /// Where the shared memory that the launch adds begins, and its bytes.
    pub(crate) dynamic: (u64, u64),
    pub(crate) shared_bytes: u64,
    pub(crate) number: u64,
    pub(crate) sms: u32,
    pub(crate) warps_per_sm: u32,
    pub(crate) check_unwritten: bool,
    pub(crate) check_undefined: bool,
    pub(crate) call_depth: u32,
    pub(crate) local_limit: u64,
    /// `%globaltimer` at cycle 0, in ns.
    pub(crate) epoch: u64,
}

impl<'a> Launched<'a> {
    pub(crate) fn function(&self, number: usize) -> &'a Function {
        &self.image.functions[number]
    }
}

/// A barrier of a block.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BarrierState {
    pub(crate) arrived: u32,
    /// How many it waits for; all of the block where it is none.
    pub(crate) count: Option<u32>,
    /// Predicates that were true, and whether all and any were.
    pub(crate) trues: u32,
    pub(crate) threads: u32,
    pub(crate) used: bool,
}

/// A block that runs.
pub(crate) struct Block {
    pub(crate) index: [u32; 3],
    pub(crate) shared: Bytes,
    pub(crate) barriers: [BarrierState; 16],
    pub(crate) warps: Vec<Warp>,
    pub(crate) sm: u32,
}

/// One issue of a warp: what its instruction may touch.
pub(crate) struct Context<'a, 'b> {
    pub(crate) launched: &'b Launched<'a>,
    pub(crate) global: &'b mut Global,
    pub(crate) block: &'b mut Block,
    pub(crate) warp: Warp,
    /// The SM's clock.
    pub(crate) now: u64,
    /// Cycles for which memory is busy with what the instruction asked for.
    pub(crate) busy: u64,
    /// Cycles that the warp sleeps.
    pub(crate) rest: u64,
    /// The path, and its lanes for which the guard holds.
    pub(crate) path: usize,
    pub(crate) frame: usize,
    pub(crate) active: u32,
}

/// The lanes of a mask.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        if lane == 32 {
            return None;
        }
        mask &= mask - 1;
        Some(lane as usize)
    })
}

/// A frame that was ended; it does not happen.
pub(crate) const LOST: Trouble = Trouble::Undefined("a frame that has ended is used");

impl<'a> Context<'a, '_> {
    pub(crate) fn frame(&self) -> Result<&Frame, Fail> {
        self.warp.frame(self.frame).ok_or_else(|| fail(self.active, LOST))
    }

    pub(crate) fn function(&self) -> Result<&'a Function, Fail> {
        Ok(self.launched.function(self.frame()?.function))
    }

    pub(crate) fn inst(&self, at: u32) -> Result<Option<&'a Inst>, Fail> {
        Ok(self.function()?.code.get(at as usize))
    }

    /// The value of `src` in each active lane, each of which must have written it.
    pub(crate) fn gather(&self, src: Src) -> Result<Lanes, Fail> {
        let (values, missing) = self.gather_any(src)?;
        if missing != 0 {
            return Err(fail(missing, Trouble::UnwrittenRegister));
        }
        Ok(values)
    }

    /// The value of `src` in each active lane, and the lanes that have not written it.
    ///
    /// Compilers leave such values where nobody needs them: only who branches by one, addresses
    /// memory with it or stores it makes a mistake.
    pub(crate) fn gather_any(&self, src: Src) -> Result<(Lanes, u32), Fail> {
        let mut missing = 0;
        let values = match src {
            Src::Imm(value) => [value; 32],
            Src::Reg(slot) | Src::Not(slot) => {
                let frame = self.frame()?;
                if self.launched.check_unwritten {
                    missing = self.active & !frame.written[slot as usize];
                }
                let mut values = frame.registers[slot as usize];
                if matches!(src, Src::Not(_)) {
                    for value in &mut values {
                        *value ^= 1;
                    }
                }
                values
            }
            Src::Local(at) => [u64::from(self.frame()?.local).wrapping_add(at); 32],
            Src::Dynamic(at) => [self.launched.dynamic.0.wrapping_add(at); 32],
            Src::Special(special) => std::array::from_fn(|lane| self.special(special, lane as u32)),
        };
        Ok((values, missing))
    }

    pub(crate) fn thread(&self, lane: u32) -> [u32; 3] {
        thread_of(self.launched.block, self.warp.index, lane)
    }

    fn special(&self, special: Special, lane: u32) -> u64 {
        let launched = self.launched;
        let ns = launched.epoch.wrapping_add(self.now);
        let low = |value: u64| value & 0xffff_ffff;
        let bit = 1_u64 << lane;
        match special {
            Special::Tid(axis) => u64::from(self.thread(lane)[axis]),
            Special::Ntid(axis) => u64::from(launched.block[axis]),
            Special::Ctaid(axis) => u64::from(self.block.index[axis]),
            Special::Nctaid(axis) => u64::from(launched.grid[axis]),
            Special::LaneId => u64::from(lane),
            Special::WarpId => u64::from(self.warp.index),
            Special::WarpsPerSm => u64::from(launched.warps_per_sm),
            Special::SmId => u64::from(self.block.sm),
            Special::Sms => u64::from(launched.sms),
            Special::GridId => launched.number,
            Special::Clock => low(self.now),
            Special::ClockHigh => self.now >> 32,
            Special::Clock64 => self.now,
            Special::GlobalTimer => ns,
            Special::GlobalTimerLow => low(ns),
            Special::GlobalTimerHigh => ns >> 32,
            Special::MaskEq => bit,
            Special::MaskLt => bit - 1,
            Special::MaskLe => bit | (bit - 1),
            Special::MaskGt => low(!(bit | (bit - 1))),
            Special::MaskGe => low(!(bit - 1)),
            Special::DynamicShared => launched.dynamic.1,
            Special::TotalShared => launched.shared_bytes,
            Special::Number(number) => u64::from(number),
        }
    }

    /// Writes `values` of type `ty` to a register, in the active lanes: wider registers get the sign
    /// of signed types, and zeros otherwise.
    pub(crate) fn write(&mut self, dst: Dst, ty: Ty, values: &Lanes) -> Result<(), Fail> {
        let Dst::Reg(slot, width) = dst else { return Ok(()) };
        let (active, frame) = (self.active, self.frame);
        let frame = self.warp.frame_mut(frame).ok_or_else(|| fail(active, LOST))?;
        let slot = slot as usize;
        frame.written[slot] |= active;
        let register = &mut frame.registers[slot];
        let (bits, signed) = (ty.width(), ty.signed());
        if active == u32::MAX && bits >= width {
            for lane in 0..32 {
                register[lane] = mask(values[lane], width);
            }
            return Ok(());
        }
        for lane in lanes(active) {
            let value = values[lane];
            let whole = if signed && bits < width {
                extend(mask(value, bits), bits) as u64
            } else {
                mask(value, bits)
            };
            register[lane] = mask(whole, width);
        }
        Ok(())
    }

    /// The same, where the values of some lanes come from values that nobody has written.
    pub(crate) fn write_some(
        &mut self,
        dst: Dst,
        ty: Ty,
        values: &Lanes,
        missing: u32,
    ) -> Result<(), Fail> {
        self.write(dst, ty, values)?;
        if let (Dst::Reg(slot, _), Some(frame)) = (dst, self.warp.frame_mut(self.frame)) {
            frame.written[slot as usize] &= !missing;
        }
        Ok(())
    }

    /// The generic addresses of an access in each active lane.
    pub(crate) fn addresses(&self, space: Space, at: Address) -> Result<Lanes, Fail> {
        let base = self.gather(at.base)?;
        Ok(base.map(|base| {
            let address = base.wrapping_add(at.offset as u64);
            match space {
                // Addresses of 32 bits wrap around; others are kept within the space's window.
                Space::Shared | Space::Local | Space::Param if base >> 32 == 0 => {
                    generic(space, address & 0xffff_ffff)
                }
                Space::Shared | Space::Local | Space::Param => {
                    generic(space, address & 0xff_ffff_ffff)
                }
                _ => address,
            }
        }))
    }

    /// Reads up to eight bytes at a generic address.
    pub(crate) fn read(&self, lane: usize, address: u64, bytes: u32) -> Result<u64, Trouble> {
        let space = space_of(address);
        let at = address.wrapping_sub(generic(space, 0));
        let found = match space {
            Space::Shared => self.block.shared.read(at.wrapping_sub(SHARED_START), bytes),
            Space::Local => self.warp.local[lane].read(at, bytes),
            Space::Param => self.launched.parameters.read(at, bytes),
            _ => self.global.read(address, bytes),
        };
        match found {
            None => Err(Trouble::OutOfBounds { what: "load", space, address: at, bytes }),
            Some((_, false)) if self.launched.check_unwritten => {
                Err(Trouble::Unwritten { space, address: at, bytes })
            }
            Some((value, _)) => Ok(value),
        }
    }

    pub(crate) fn store(
        &mut self,
        lane: usize,
        address: u64,
        bytes: u32,
        value: u64,
    ) -> Result<(), Trouble> {
        let space = space_of(address);
        let at = address.wrapping_sub(generic(space, 0));
        let done = match space {
            Space::Shared => self.block.shared.write(at.wrapping_sub(SHARED_START), bytes, value),
            Space::Local => self.warp.local[lane].write(at, bytes, value),
            Space::Param => return Err(Trouble::Undefined("a store to a kernel's parameters")),
            Space::Const => return Err(Trouble::Undefined("a store to constant memory")),
            _ => self.global.write(address, bytes, value),
        };
        done.ok_or(Trouble::OutOfBounds { what: "store", space, address: at, bytes })
    }
}

/// `%tid` of a lane.
pub(crate) fn thread_of(block: [u32; 3], warp: u32, lane: u32) -> [u32; 3] {
    let number = warp * 32 + lane;
    let [x, y, _] = block;
    [number % x, number / x % y, number / x / y]
}

/// The generic address `address` must be a multiple of `align`.
pub(crate) fn aligned(what: &'static str, address: u64, align: u32) -> Result<(), Trouble> {
    if address.is_multiple_of(u64::from(align)) {
        return Ok(());
    }
    let space = space_of(address);
    let address = address.wrapping_sub(generic(space, 0));
    Err(Trouble::Misaligned { what, space, address, align })
}
