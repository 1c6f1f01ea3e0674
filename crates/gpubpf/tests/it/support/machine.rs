//! A small machine for eBPF, written from RFC 9669 and apart from the compiler: the reference.

/// Where the program's memory lies.
pub const MEMORY: u64 = 0x10_0000;
/// Where the top of the stack lies; frames of 512 bytes grow down from it.
pub const STACK_TOP: u64 = 0x20_0000;
const FRAMES: u64 = 8;

/// What is left of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub result: u64,
    pub memory: Vec<u8>,
}

struct Machine<'a> {
    code: &'a [u8],
    regs: [u64; 11],
    memory: Vec<u8>,
    stack: Vec<u8>,
    /// Where to go on, and the caller's `r6`–`r10`.
    callers: Vec<(usize, [u64; 5])>,
}

/// Runs `code` with `r1` at `memory` and `r2` its length, for at most `fuel` instructions.
pub fn run(code: &[u8], memory: &[u8], fuel: u64) -> Result<Ended, String> {
    run_along(code, memory, fuel, |_| ())
}

/// The same, and tells each instruction that is executed.
pub fn run_along(
    code: &[u8],
    memory: &[u8],
    fuel: u64,
    mut each: impl FnMut(usize),
) -> Result<Ended, String> {
    let stack = vec![0; (FRAMES * 512) as usize];
    let mut machine =
        Machine { code, regs: [0; 11], memory: memory.to_vec(), stack, callers: Vec::new() };
    machine.regs[1] = MEMORY;
    machine.regs[2] = memory.len() as u64;
    machine.regs[10] = STACK_TOP;
    let mut pc = 0;
    for _ in 0..fuel {
        each(pc);
        match machine.step(pc)? {
            Some(next) => pc = next,
            None => return Ok(Ended { result: machine.regs[0], memory: machine.memory }),
        }
    }
    Err("too many instructions".into())
}

impl Machine<'_> {
    fn step(&mut self, pc: usize) -> Result<Option<usize>, String> {
        let at = self.code.get(pc * 8..pc * 8 + 8).ok_or(format!("no instruction {pc}"))?;
        let (code, dst, src) = (at[0], usize::from(at[1] & 15), usize::from(at[1] >> 4));
        let offset = i16::from_le_bytes([at[2], at[3]]);
        let imm = i32::from_le_bytes(at[4..8].try_into().unwrap());
        let next = pc + 1;
        let to = |distance: i64| Ok(Some((next as i64 + distance) as usize));
        match code & 7 {
            0 => {
                let high =
                    i32::from_le_bytes(self.code[pc * 8 + 12..pc * 8 + 16].try_into().unwrap());
                self.regs[dst] = u64::from(imm as u32) | u64::from(high as u32) << 32;
                return Ok(Some(pc + 2));
            }
            1 => {
                let value = self.load(self.regs[src].wrapping_add(offset as u64), bytes(code))?;
                let unused = 64 - 8 * bytes(code) as u32;
                let signed = code & 0xe0 == 0x80;
                self.regs[dst] =
                    if signed { ((value << unused) as i64 >> unused) as u64 } else { value };
            }
            2 => self.store(
                self.regs[dst].wrapping_add(offset as u64),
                bytes(code),
                imm as i64 as u64,
            )?,
            3 if code & 0xe0 == 0xc0 => self.atomic(code, dst, src, offset, imm)?,
            3 => {
                self.store(self.regs[dst].wrapping_add(offset as u64), bytes(code), self.regs[src])?
            }
            4 | 7 => self.alu(code, dst, src, offset, imm),
            _ => match code {
                0x05 => return to(offset.into()),
                0x06 => return to(imm.into()),
                0x85 if src == 1 => {
                    let saved = self.regs[6..11].try_into().unwrap();
                    self.callers.push((next, saved));
                    // The callee's own registers begin at 0, as the compiler defines it.
                    self.regs[6..10].fill(0);
                    self.regs[10] -= 512;
                    return to(imm.into());
                }
                0x85 => return Err(format!("helper {imm}")),
                0x95 => match self.callers.pop() {
                    Some((back, saved)) => {
                        self.regs[6..11].copy_from_slice(&saved);
                        return Ok(Some(back));
                    }
                    None => return Ok(None),
                },
                _ => {
                    if self.taken(code, dst, src, imm) {
                        return to(offset.into());
                    }
                }
            },
        }
        Ok(Some(next))
    }

    fn taken(&self, code: u8, dst: usize, src: usize, imm: i32) -> bool {
        let mut a = self.regs[dst];
        let mut b = if code & 8 != 0 { self.regs[src] } else { imm as i64 as u64 };
        let (mut sa, mut sb) = (a as i64, b as i64);
        if code & 7 == 6 {
            (a, b) = (u64::from(a as u32), u64::from(b as u32));
            (sa, sb) = (i64::from(a as i32), i64::from(b as i32));
        }
        match code >> 4 {
            1 => a == b,
            2 => a > b,
            3 => a >= b,
            4 => a & b != 0,
            5 => a != b,
            6 => sa > sb,
            7 => sa >= sb,
            10 => a < b,
            11 => a <= b,
            12 => sa < sb,
            _ => sa <= sb,
        }
    }

    fn alu(&mut self, code: u8, dst: usize, src: usize, offset: i16, imm: i32) {
        let wide = code & 7 == 7;
        let a = self.regs[dst];
        let b = if code & 8 != 0 { self.regs[src] } else { imm as i64 as u64 };
        if code >> 4 == 13 {
            self.regs[dst] = order(a, imm, wide || code & 8 != 0);
            return;
        }
        let b = match (code >> 4, offset) {
            (11, 8) => b as i8 as i64 as u64,
            (11, 16) => b as i16 as i64 as u64,
            (11, 32) => b as i32 as i64 as u64,
            _ => b,
        };
        self.regs[dst] = if wide {
            wide64(code >> 4, a, b, offset == 1)
        } else {
            u64::from(narrow32(code >> 4, a as u32, b as u32, offset == 1))
        };
    }

    fn atomic(
        &mut self,
        code: u8,
        dst: usize,
        src: usize,
        offset: i16,
        imm: i32,
    ) -> Result<(), String> {
        let (address, size) = (self.regs[dst].wrapping_add(offset as u64), bytes(code));
        let old = self.load(address, size)?;
        let mask = if size == 4 { 0xffff_ffff } else { u64::MAX };
        let operand = self.regs[src];
        let new = match imm & 0xf0 {
            0x00 => old.wrapping_add(operand),
            0x40 => old | operand,
            0x50 => old & operand,
            0xa0 => old ^ operand,
            0xe0 => operand,
            _ if old == self.regs[0] & mask => operand,
            _ => old,
        };
        self.store(address, size, new)?;
        match imm {
            0xf1 => self.regs[0] = old,
            _ if imm & 1 != 0 => self.regs[src] = old,
            _ => {}
        }
        Ok(())
    }

    fn place(&mut self, address: u64, size: usize) -> Result<&mut [u8], String> {
        let bottom = STACK_TOP - FRAMES * 512;
        let (bytes, at) = if address >= bottom && address < STACK_TOP {
            (&mut self.stack, address - bottom)
        } else {
            (&mut self.memory, address.wrapping_sub(MEMORY))
        };
        let end = usize::try_from(at).ok().and_then(|at| at.checked_add(size));
        end.and_then(|end| bytes.get_mut(end - size..end))
            .ok_or(format!("no memory at {address:#x}"))
    }

    fn load(&mut self, address: u64, size: usize) -> Result<u64, String> {
        let bytes = self.place(address, size)?;
        Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn store(&mut self, address: u64, size: usize, value: u64) -> Result<(), String> {
        self.place(address, size)?.copy_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }
}

fn bytes(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}

fn order(value: u64, bits: i32, swap: bool) -> u64 {
    match (bits, swap) {
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, true) => u64::from((value as u32).swap_bytes()),
        (_, true) => value.swap_bytes(),
        (16, false) => u64::from(value as u16),
        (32, false) => u64::from(value as u32),
        (_, false) => value,
    }
}

fn wide64(op: u8, a: u64, b: u64, signed: bool) -> u64 {
    match op {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        3 if b == 0 => 0,
        3 if signed => (a as i64).wrapping_div(b as i64) as u64,
        3 => a / b,
        4 => a | b,
        5 => a & b,
        6 => a << (b & 63),
        7 => a >> (b & 63),
        8 => a.wrapping_neg(),
        9 if b == 0 => a,
        9 if signed => (a as i64).wrapping_rem(b as i64) as u64,
        9 => a % b,
        10 => a ^ b,
        11 => b,
        _ => ((a as i64) >> (b & 63)) as u64,
    }
}

fn narrow32(op: u8, a: u32, b: u32, signed: bool) -> u32 {
    match op {
        0 => a.wrapping_add(b),
        1 => a.wrapping_sub(b),
        2 => a.wrapping_mul(b),
        3 if b == 0 => 0,
        3 if signed => (a as i32).wrapping_div(b as i32) as u32,
        3 => a / b,
        4 => a | b,
        5 => a & b,
        6 => a << (b & 31),
        7 => a >> (b & 31),
        8 => a.wrapping_neg(),
        9 if b == 0 => a,
        9 if signed => (a as i32).wrapping_rem(b as i32) as u32,
        9 => a % b,
        10 => a ^ b,
        11 => b,
        _ => ((a as i32) >> (b & 31)) as u32,
    }
}
