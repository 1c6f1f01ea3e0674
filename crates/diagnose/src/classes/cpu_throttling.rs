//! `cpu_throttling`: the work ran out of its CPU quota.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps in a container stall for tens of milliseconds at a time although CPUs are idle.",
    takes: &[Takes::all(PartKind::Throttled)],
    evidence: "For it: `state` rows of the step's threads that are throttled, and the `throttled` \
               counters of cgroups.",
    verify: Verify {
        culprit: None,
        otherwise: "raise the quota (`cpu.max`, `cpu.cfs_quota_us`) and record again; `cpu.stat` counts \
                    nr_throttled",
    },
    fooled_by: "A quota that is set on a cgroup outside of what the recorder can see, as in a container.",
    ..ClassSpec::new(Class::CpuThrottling)
};
