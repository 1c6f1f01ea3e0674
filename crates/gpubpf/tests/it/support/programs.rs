//! Random programs that end: jumps go forward, loops are short, addresses stay inside.

/// Numbers that look random; the same for the same seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Immediates that sit on edges more often than not.
    fn imm(&mut self) -> i32 {
        match self.below(4) {
            0 => self.pick(&[0, 1, -1, i32::MIN, i32::MAX, 31, 32, 63, 64, 255, 256, -256]),
            1 => self.below(64) as i32 - 32,
            _ => self.next() as i32,
        }
    }
}

fn slot(code: u8, dst: u8, src: u8, offset: i16, imm: i32) -> [u8; 8] {
    let (o, i) = (offset.to_le_bytes(), imm.to_le_bytes());
    [code, dst | src << 4, o[0], o[1], i[0], i[1], i[2], i[3]]
}

/// Bytes of a program's memory.
pub const MEMORY: i16 = 64;

/// A program that ends: jumps go forward, and addresses are within the stack and the memory.
/// `r1` keeps the memory's address; `r9` counts up to 3 where there is a loop.
pub fn program(random: &mut Random) -> Vec<u8> {
    with_loads(random, 0)
}

/// The same with `loads` registers that come from memory before anything else, so that lanes with
/// different memory take different branches.
pub fn with_loads(random: &mut Random, loads: usize) -> Vec<u8> {
    let length = 6 + random.below(40) as usize;
    let mut code: Vec<[u8; 8]> = Vec::new();
    for reg in [0, 2, 3, 4, 5, 6, 7, 8] {
        let value = random.next();
        code.push(slot(0x18, reg, 0, 0, value as i32));
        code.push(slot(0, 0, 0, 0, if random.below(2) == 0 { (value >> 32) as i32 } else { 0 }));
    }
    for reg in [0, 2, 3, 4, 5, 6, 7, 8].into_iter().take(loads) {
        let offset = random.below(8) as i16 * 8;
        let size = random.pick(&[0x00, 0x08, 0x10, 0x18]);
        code.push(slot(0x61 | size, reg, 1, offset, 0));
    }
    let start = code.len();
    for _ in 0..length {
        code.push(instruction(random));
    }
    // Forward jumps over what follows.
    for at in start..code.len() - 1 {
        if random.below(6) == 0 {
            let over = random.below((code.len() - at - 1) as u64).min(9) as i16;
            code[at] = jump(random, over);
        }
    }
    // A loop around it.
    if random.below(3) == 0 {
        code.insert(0, slot(0xb7, 9, 0, 0, 0));
        code.push(slot(0x07, 9, 0, 0, 1));
        let back = start as i16 + 1 - code.len() as i16 - 1;
        code.push(slot(0xa5, 9, 0, back, 3));
    }
    // All registers reach the result.
    for reg in 2..9 {
        code.push(slot(0x27, 0, 0, 0, 31));
        code.push(slot(0xaf, 0, reg, 0, 0));
    }
    for offset in [-8, -16, -24, -32] {
        code.push(slot(0x79, 2, 10, offset, 0));
        code.push(slot(0x27, 0, 0, 0, 31));
        code.push(slot(0xaf, 0, 2, 0, 0));
    }
    code.push(slot(0x95, 0, 0, 0, 0));
    code.concat()
}

/// A program for a place in a kernel: what `r1` points to is read and never written, the stack is written before it is read, and
/// lanes differ by what they read. Such programs are mostly accepted.
pub fn for_a_place(random: &mut Random) -> Vec<u8> {
    let mut code: Vec<[u8; 8]> = Vec::new();
    for reg in REGS {
        if random.below(2) == 0 {
            // Of nine words.
            code.push(slot(0x79, reg, 1, 8 * random.below(9) as i16, 0));
        } else {
            code.push(slot(0xb7, reg, 0, 0, random.imm()));
        }
    }
    for offset in 1..=8 {
        code.push(slot(0x7b, 10, random.pick(&REGS), -8 * offset, 0));
    }
    if random.below(3) == 0 {
        code.push(slot(0xb7, 9, 0, 0, 0));
    }
    let (start, has_loop) = (code.len(), code.last().is_some_and(|last| last[0] == 0xb7));
    for _ in 0..6 + random.below(40) {
        // Stores of any kind go to the stack.
        let found = (0..).map(|_| instruction(random));
        code.extend(
            found.into_iter().find(|one| !(matches!(one[0] & 7, 2 | 3) && one[1] & 15 == 1)),
        );
    }
    for at in start..code.len() - 1 {
        if random.below(6) == 0 {
            let over = random.below((code.len() - at - 1) as u64).min(9) as i16;
            code[at] = jump(random, over);
        }
    }
    if has_loop {
        code.push(slot(0x07, 9, 0, 0, 1));
        let back = start as i16 - code.len() as i16 - 1;
        code.push(slot(0xa5, 9, 0, back, 3));
    }
    for reg in 2..9 {
        code.push(slot(0xaf, 0, reg, 0, 0));
    }
    code.push(slot(0x95, 0, 0, 0, 0));
    code.concat()
}

const REGS: [u8; 8] = [0, 2, 3, 4, 5, 6, 7, 8];

fn jump(random: &mut Random, over: i16) -> [u8; 8] {
    let op = random.pick(&[0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0_u8]);
    let class = random.pick(&[5, 6]);
    if random.below(2) == 0 {
        slot(op | class, random.pick(&REGS), 0, over, random.imm())
    } else {
        slot(op | class | 8, random.pick(&REGS), random.pick(&REGS), over, 0)
    }
}

fn instruction(random: &mut Random) -> [u8; 8] {
    let (dst, src) = (random.pick(&REGS), random.pick(&REGS));
    match random.below(10) {
        0..5 => {
            let op: u8 = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12]) << 4;
            let class = random.pick(&[4, 7]);
            let offset = i16::from(matches!(op, 0x30 | 0x90) && random.below(2) == 0);
            if random.below(2) == 0 {
                slot(op | class, dst, 0, offset, random.imm())
            } else {
                slot(op | class | 8, dst, src, offset, 0)
            }
        }
        5 => match random.below(3) {
            0 => slot(random.pick(&[0x84, 0x87]), dst, 0, 0, 0),
            1 => slot(random.pick(&[0xd4, 0xdc, 0xd7]), dst, 0, 0, random.pick(&[16, 32, 64])),
            _ => match random.below(2) {
                0 => slot(0xbf, dst, src, random.pick(&[8, 16, 32]), 0),
                _ => slot(0xbc, dst, src, random.pick(&[8, 16]), 0),
            },
        },
        6..9 => access(random, dst, src),
        _ => {
            let (code, size) = random.pick(&[(0xc3, 4), (0xdb, 8)]);
            let op = random.pick(&[0, 1, 0x40, 0x41, 0x50, 0x51, 0xa0, 0xa1, 0xe1, 0xf1]);
            let (base, offset) = address(random, size);
            slot(code, base, src, offset / size * size, op)
        }
    }
}

/// Loads and stores of every size, at any offset: on the stack they overlap and cross words.
fn access(random: &mut Random, dst: u8, src: u8) -> [u8; 8] {
    let (size, bytes) = random.pick(&[(0x00, 4), (0x08, 2), (0x10, 1), (0x18, 8)]);
    let (base, offset) = address(random, bytes);
    match random.below(4) {
        0 => slot(0x61 | size, dst, base, offset, 0),
        1 if bytes < 8 => slot(0x81 | size, dst, base, offset, 0),
        2 => slot(0x62 | size, base, 0, offset, random.imm()),
        _ => slot(0x63 | size, base, src, offset, 0),
    }
}

fn address(random: &mut Random, bytes: i16) -> (u8, i16) {
    if random.below(2) == 0 {
        (10, -(bytes + random.below(33 - bytes as u64) as i16))
    } else {
        (1, random.below((MEMORY - bytes) as u64) as i16)
    }
}
