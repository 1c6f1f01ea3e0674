//! `lock_contention`: somebody else held what the work needed.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps wait although CPU, disk, network and GPU are all idle.",
    takes: &[Takes::all(PartKind::Lock)],
    evidence: "For it: futex waits of the step's threads, and the `wakeup` rows that say which thread \
               ended them: one outside of the workload, or one that takes other steps; sleeps between two \
               tries for a lock of a file, and who held that. Against it: nobody in particular was seen.",
    verify: Verify {
        culprit: Some("see what it does while it holds the lock: `gpuwhy record -p {pid}`"),
        otherwise: Verify::COMPARE,
    },
    fooled_by: "Locks that are polled instead of waited for, but for those of files; a waker that only \
                hands on what another thread held.",
    has_culprit: true,
    ..ClassSpec::new(Class::LockContention)
};
