//! Defects of CUPTI that programs meet.

/// A defect of CUPTI as it was observed (notes on LLM inference, section 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Defect {
    /// From some record on, start and end are 0, and some records end before they start.
    ZeroTimestamps = 1,
    /// Tracing the kernels of a graph one by one costs device memory that is never freed, and from
    /// some record on their timestamps are 0.
    GraphGrowth = 2,
    /// Another tool has subscribed: `cuptiSubscribe` returns 39.
    SubscriberRefused = 4,
    /// Another tool has registered its buffer callbacks after us: ours are no longer called.
    CallbacksReplaced = 8,
    /// The timestamp callback is rejected.
    NoTimestampCallback = 16,
    /// Buffers are requested and never completed.
    LostBuffers = 32,
}

impl Defect {
    /// All defects.
    pub const ALL: [Defect; 6] = [
        Defect::ZeroTimestamps,
        Defect::GraphGrowth,
        Defect::SubscriberRefused,
        Defect::CallbacksReplaced,
        Defect::NoTimestampCallback,
        Defect::LostBuffers,
    ];

    /// Its name, as in [`ENV_DEFECTS`](super::ENV_DEFECTS) and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Defect::ZeroTimestamps => "zero-timestamps",
            Defect::GraphGrowth => "graph-growth",
            Defect::SubscriberRefused => "second-subscriber",
            Defect::CallbacksReplaced => "callbacks-replaced",
            Defect::NoTimestampCallback => "no-timestamp-callback",
            Defect::LostBuffers => "lost-buffers",
        }
    }

    /// The defect of this name.
    pub fn named(name: &str) -> Option<Defect> {
        Defect::ALL.into_iter().find(|d| d.name() == name)
    }
}
