//! What a launch did, in numbers that tools and certificates are checked against.

/// Sums over a launch, or of one warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Instructions that warps issued.
    pub instructions: u64,
    /// The lanes that were active in them and whose guard held, summed: divided by 32 ×
    /// `instructions` it is the share of lanes that worked.
    pub lanes: u64,
    /// Branches at which lanes of a warp parted.
    pub divergent_branches: u64,
    /// Instructions that accessed device, constant or local memory.
    pub requests: u64,
    /// The sectors of 32 bytes that they touched.
    pub sectors: u64,
    /// Instructions that accessed shared memory.
    pub shared_requests: u64,
    /// Cycles that they waited because several lanes wanted different words of one bank.
    pub bank_conflicts: u64,
    /// Atomic operations, by lane.
    pub atomics: u64,
    /// Cycles that warps waited at barriers of their block.
    pub barrier_wait: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.lanes += other.lanes;
        self.divergent_branches += other.divergent_branches;
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.shared_requests += other.shared_requests;
        self.bank_conflicts += other.bank_conflicts;
        self.atomics += other.atomics;
        self.barrier_wait += other.barrier_wait;
    }

    /// The mean number of lanes that an instruction had, up to 32; 0 where nothing was issued.
    pub fn active_lanes(&self) -> f64 {
        if self.instructions == 0 { 0.0 } else { self.lanes as f64 / self.instructions as f64 }
    }
}

/// What one warp did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WarpFacts {
    /// The block, counted through.
    pub block: u64,
    /// The warp within the block.
    pub warp: u32,
    /// The SM on which its block ran.
    pub sm: u32,
    /// The cycle at which its block began.
    pub begin: u64,
    /// The cycle at which its last lane ended.
    pub end: u64,
    /// What it did.
    pub counts: Counts,
}

/// What a launch did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Cycles of the simulated clock from the launch to its last warp's end.
    pub cycles: u64,
    /// The same until the last warp of each SM had ended; 0 where none ran.
    pub sms: Vec<u64>,
    /// Sums over all warps.
    pub total: Counts,
    /// Each warp, in the order in which they ended; at most [`super::Limits::warp_facts`].
    pub warps: Vec<WarpFacts>,
}
