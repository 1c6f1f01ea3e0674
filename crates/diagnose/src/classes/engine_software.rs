//! `engine_software`: the program itself did more.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Takes, Verify};

/// See the module's documentation.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "The program's own threads compute for longer, with nobody in their way.",
    takes: &[Takes::all(PartKind::Run), Takes::all(PartKind::Allocate), Takes::all(PartKind::Load)],
    evidence: "For it: `state` rows of the step's threads that run longer than usual on a CPU that nobody \
               took from them. Stack samples say in which functions. In a profile of another tool: calls that \
               allocate memory or load code, which slow steps make and usual ones do not.",
    verify: Verify { culprit: None, otherwise: Verify::COMPARE },
    fooled_by: "A CPU that runs at a lower clock, or shares its core, its caches or its memory bandwidth: \
                the same instructions then run for longer.",
    ..ClassSpec::new(Class::EngineSoftware)
};
