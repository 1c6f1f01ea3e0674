//! `input_starvation`: the work waited for a worker of its data loader, which computed.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps wait for their batches, while a worker of the loader has a CPU of its own and uses it.",
    takes: &[Takes::all(PartKind::Input)],
    evidence: "For it: the step's thread waits for bytes, or at a semaphore, of a process that marks `load` spans and takes \
               no steps, and that process runs meanwhile. What delays the worker instead points to that: another process \
               on its CPU, its disk, its own sleep. Against it: the worker has its batch before the step asks.",
    verify: Verify {
        culprit: Some("see what the worker does: `py-spy dump --pid {pid}`"),
        otherwise: "record again with more workers, or with batches made beforehand, and compare",
    },
    fooled_by: "A worker that does not mark its batches (a loader that is no `DataLoader`, or a program that was already \
                running when it was watched): its work is `engine_software` by its process.",
    has_culprit: true,
    ..ClassSpec::new(Class::InputStarvation)
};
