//! `gil_contention`: another thread of the program held Python's interpreter lock.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Each call of the program's main thread that gives up the interpreter lock takes 5 ms longer, or as long as \
                 another thread computes, while CPUs may be idle.",
    takes: &[Takes::all(PartKind::Gil)],
    evidence: "For it: the step's thread, or one that it waited for, sleeps in `futex` on an address of the interpreter \
               lock, and the `wakeup` rows say which thread gave that up; what that thread did until then is the \
               time. Stack samples say in which function. Against it: no Python runs there.",
    verify: Verify {
        culprit: Some(
            "see what its threads do: `py-spy dump --pid {pid}`, or the stacks of `gpuwhy watch -p {pid}`",
        ),
        otherwise: "move the work of that thread to another process, or to code that gives up the lock; shorten \
                    `sys.setswitchinterval` to see whether the steps follow",
    },
    fooled_by: "Sub-interpreters with locks of their own, whose waits look like `lock_contention`; code in C that has the \
                lock and waits by itself, which is told as if the thread computed.",
    has_culprit: true,
    ..ClassSpec::new(Class::GilContention)
};
