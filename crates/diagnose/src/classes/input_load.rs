//! `input_load`: there was more to do.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Share, Takes, Verify};

/// See the module's documentation. Steps are compared with steps of the same size, so that more to do is no incident
/// where the size was recorded; what is left is data that has to be read from the disk and never was before.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Requests or batches are larger than usual, and take longer in proportion; or they begin to read data \
                 that is not in memory yet, such as the next part of a data set.",
    takes: &[Takes { kind: PartKind::ColdRead, share: Share::MoreMisses }],
    evidence: "For it: `io` rows of reads that the steps waited for, of files of which nobody was seen to evict pages \
               (`page_cache_missed`). Of the size of steps none: they are compared with steps of similar size \
               (`step.size`), so a larger step is slow only if it takes longer than others of its size.",
    verify: Verify {
        culprit: None,
        otherwise: "see which files it began to read: `lsof -p PID`; read them ahead (`vmtouch -t FILE`) and \
                    record again",
    },
    fooled_by: "Steps whose size is not recorded: more to do then looks like `engine_software`, or like a \
                slower GPU. Data that was evicted before the recording began.",
    ..ClassSpec::new(Class::InputLoad)
};
