//! `cpu_steal`: the hypervisor gave the CPUs of this virtual machine to others.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "On a virtual machine: steps take longer and vary more although nothing in the machine is busier \
                 than before; every process gets less done a second.",
    takes: &[Takes::all(PartKind::Steal)],
    evidence: "For it: the `steal` counters of CPUs, during the slices in which the step's threads, or those \
               behind which they waited, had them. To the nanosecond where the kernel keeps this time from its \
               threads (`CONFIG_PARAVIRT_TIME_ACCOUNTING`), by `/proc/stat` in 10 ms elsewhere. Against it: that other \
               parts of the steps grew by more.",
    verify: Verify {
        culprit: None,
        otherwise: "watch the column `st` of `vmstat 1` while the work runs; ask who runs the hosts for CPUs of \
                    its own (dedicated cores, no overcommitment), or for another host",
    },
    fooled_by: "A virtual machine that is limited loses the more, the more runs in it: somebody inside may be why. \
                A hypervisor that reports no steal: its time looks as if the work ran longer (`engine_software`). \
                Which other virtual machine had the CPU is not seen from inside of one.",
    ..ClassSpec::new(Class::CpuSteal)
};
