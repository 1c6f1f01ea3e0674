//! What is left out when recording costs too much, in which order.

/// Something that can be left out to record at less cost.
///
/// The probe that records it describes what is missing then (`ProbeSpec::sheds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// The closer look during incidents.
    Detail,
    /// Exact states of threads that woke a thread of interest.
    Wakers,
    /// Messages between processes.
    Messages,
    /// The page cache.
    PageCache,
    /// Nine tenths of the exact records that a CPU may write.
    Exact,
    /// Network devices.
    Network,
    /// Nine of ten readings of the aggregates.
    Ticks,
    /// What threads do: without it no judgement is possible.
    Threads,
}

impl Shed {
    /// In the order in which they are left out; the last one is taken back first.
    pub const ORDER: [Shed; 8] = [
        Shed::Detail,
        Shed::PageCache,
        Shed::Wakers,
        Shed::Messages,
        Shed::Exact,
        Shed::Network,
        Shed::Ticks,
        Shed::Threads,
    ];
}
