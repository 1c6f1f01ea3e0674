//! `block_io`: the disk, its queue or its journal was busy with somebody else's requests.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Share, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Checkpoints, data loading or logging take longer while another process uses the same \
                 disk.",
    takes: &[
        Takes::all(PartKind::BlockQueue),
        Takes::all(PartKind::BlockDevice),
        Takes::all(PartKind::BlockCompletion),
        Takes { kind: PartKind::CacheMiss, share: Share::SlowerMisses },
        Takes { kind: PartKind::ColdRead, share: Share::SlowerMisses },
    ],
    evidence: "For it: `io` rows of the requests that the step waited for, queued or with the device \
               while others had requests there, and the per-process counters of disks. Against it: \
               nobody in particular had requests there.",
    verify: Verify { culprit: Some(Verify::PAUSE), otherwise: Verify::COMPARE },
    fooled_by: "A disk behind a network or a hypervisor, which others use unseen; work that writes more \
                than before and waits for itself.",
    has_culprit: true,
    ..ClassSpec::new(Class::BlockIo)
};
