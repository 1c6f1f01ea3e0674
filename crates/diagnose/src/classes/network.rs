//! `network`: bytes took longer: a full link, a shaped link, loss.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Exchanges between ranks or reads from a store take longer, while neither side is busy.",
    takes: &[Takes::all(PartKind::Network)],
    evidence: "For it: `message` rows whose bytes were handed over long before they arrived, the counters \
               of network devices by process, and TCP retransmissions.",
    verify: Verify {
        culprit: Some(Verify::PAUSE),
        otherwise: "look for a shaper or a full link: `tc -s qdisc show`",
    },
    fooled_by: "Traffic that bypasses the kernel, such as RDMA; a peer outside of the trace that answers \
                late.",
    ..ClassSpec::new(Class::Network)
};
