//! `input_load`: there was more to do.

use gpuwhy_schema::Class;

use super::spec::{ClassSpec, Verify};

/// No part of a step points to it: steps are compared with steps of the same size, so that more to do
/// is no incident where the size was recorded.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Requests or batches are larger than usual, and take longer in proportion.",
    evidence: "None of its own: steps are compared with steps of similar size (`step.size`), so a larger \
               step is slow only if it takes longer than others of its size.",
    verify: Verify { culprit: None, otherwise: Verify::COMPARE },
    fooled_by: "Steps whose size is not recorded: more to do then looks like `engine_software`, or like a \
                slower GPU.",
    ..ClassSpec::new(Class::InputLoad)
};
