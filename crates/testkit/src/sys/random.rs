//! Pseudo-random numbers and bytes.

/// Fills memory with the pseudo-random numbers of a seed.
pub fn fill(memory: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    for eight in memory.chunks_mut(8) {
        let bytes = random.next_u64().to_le_bytes();
        eight.copy_from_slice(&bytes[..eight.len()]);
    }
}

/// A pseudo-random number generator (xorshift64*): the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
