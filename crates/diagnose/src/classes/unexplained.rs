//! `unexplained`: the time is accounted for by nothing that was seen.

use gpuwhy_schema::{Class, PartKind};

use super::spec::{ClassSpec, Incident, Takes, Verify};
use crate::evidence::{Evidence, Statements};

/// See the module's documentation. It is never named as a cause.
pub(super) const CLASS: ClassSpec = ClassSpec {
    looks_like: "Steps take longer, and no recorded row says why.",
    takes: &[Takes::all(PartKind::Unknown)],
    evidence: "Times of which nothing was recorded, and work of a GPU that took longer although its clock was \
               not lowered and nobody else was seen there.",
    verify: Verify { culprit: None, otherwise: Verify::COMPARE },
    fooled_by: "Probes that could not run: `gpuwhy doctor` says which, and what each would have shown.",
    statements,
    ..ClassSpec::new(Class::Unexplained)
};

/// A GPU's own work that grew by a smaller share of the excess is not worth a statement.
const WORTH: f64 = 0.1;

fn statements(incident: &Incident<'_>, out: &mut Statements) {
    let steady = incident.readings.is_lowered(incident.from, incident.to) == Some(false);
    let growth = incident.growth(PartKind::Gpu);
    if steady && growth > WORTH * incident.excess {
        out.supporting.push(Evidence::of(format!(
            "its own work on the GPU took {:.3} ms longer a step; the clock was not lowered, and nobody \
             else was seen there",
            growth / 1e6
        )));
    }
}
