//! What recording has cost and lost so far.

use gpuwhy_schema::Ns;

/// What recording has cost and lost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Ring records received.
    pub events: u64,
    /// Events lost: the ring was full, or a probe had no room.
    pub dropped: u64,
    /// Run time of our BPF programs; `None` while the kernel does not measure it.
    pub bpf: Option<Ns>,
    /// How often our BPF programs ran, where the kernel counts it.
    pub bpf_runs: u64,
    /// CPU time of this process, all threads, user and system.
    pub cpu: Ns,
    /// Resident memory of this process in bytes.
    pub rss: u64,
}
