//! `collective_straggler`: one rank came late and the others waited.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "All ranks of a job slow down at once, and all but one of them wait in a collective.",
    takes: &[Takes::all(PartKind::Stopped), Takes::all(PartKind::Peer)],
    evidence: "For it: stages of collectives in which the others waited longest and one rank least, and \
               `state` rows of that rank: stopped, or asleep before it joined. Where that rank's own rows \
               say why it was late, the cause is that instead.",
    verify: Verify {
        culprit: Some(
            "see what it does before it comes, `gpuwhy record -p {pid}`, and whether it is stopped, `grep \
             State /proc/{pid}/status`",
        ),
        otherwise: Verify::COMPARE,
    },
    fooled_by: "A rank on a host that is not in the trace. Collectives that are launched in another order \
                than they complete.",
    ..ClassSpec::new(Class::CollectiveStraggler)
};
