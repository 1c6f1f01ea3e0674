//! `own_sleep`: the program slept because it asked to.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer by a steady time, while nothing of the machine is busy.",
    takes: &[Takes::all(PartKind::Timer)],
    evidence: "For it: `state` rows of the step's thread, or of one that it waited for, that sleep in \
               `nanosleep` or `clock_nanosleep`. The culprit is the process whose thread slept.",
    verify: Verify {
        culprit: Some(
            "see where it sleeps: `gdb -p {pid} -batch -ex 'thread apply all backtrace'`, or `py-spy dump \
                       --pid {pid}`",
        ),
        otherwise: "look for waits, retries and rate limits in the program",
    },
    fooled_by: "A program that polls: it sleeps while it waits for something else, and what that is was not seen.",
    has_culprit: true,
    ..ClassSpec::new(Class::OwnSleep)
};
