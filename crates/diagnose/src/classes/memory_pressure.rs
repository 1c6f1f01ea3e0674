//! `memory_pressure`: memory was short: reclaim, or pages evicted that were needed again.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Share, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer as memory fills up, or read data from the disk that used to be in \
                 the page cache.",
    takes: &[
        Takes::all(PartKind::Reclaim),
        Takes { kind: PartKind::CacheMiss, share: Share::MoreMisses },
    ],
    evidence: "For it: spans of reclaim and compaction on the threads' `memory` tracks, and more reads \
               that missed the page cache than usual; the counters of who took the memory. Where as \
               many misses as usual each took longer, that points to `block_io` instead.",
    verify: Verify { culprit: Some(Verify::PAUSE), otherwise: Verify::COMPARE },
    fooled_by: "A program that reads pages of a file that were never in memory, while others of that file were \
                evicted: which pages were evicted is not kept.",
    ..ClassSpec::new(Class::MemoryPressure)
};
