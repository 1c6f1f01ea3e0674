//! `interrupts`: interrupts took the CPU.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps on one or a few CPUs take longer while a network or storage device is busy, and no \
                 other process is.",
    takes: &[Takes::all(PartKind::Hardirq), Takes::all(PartKind::Softirq)],
    evidence: "For it: `state` rows in which a handler had borrowed the CPU from the step's thread, and \
               the interrupt counters of CPUs. What entering and leaving the kernel takes lies outside of the \
               handlers, in the time of the code that was interrupted: of what that ran longer, as much counts for \
               interrupts as the handlers took longer.",
    verify: Verify { culprit: None, otherwise: Verify::COMPARE },
    fooled_by: "A thread for interrupts (`ksoftirqd`, threaded handlers), which is scheduled like any \
                other and appears as `cpu_contention`.",
    ..ClassSpec::new(Class::Interrupts)
};
