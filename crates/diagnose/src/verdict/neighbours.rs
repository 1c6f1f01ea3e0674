//! Who else took more of the CPUs than before the incident.

use std::collections::HashSet;

use gpuwhy_schema::{EntityId, Ns};

use super::context::JudgeContext;
use super::guilt::too_late;
use crate::demand::Together;
use crate::on_cpu::Neighbour;

/// Those who began to take more of the CPUs at the onset, and neither take the steps nor record them; none if that is
/// not known. Processes of one command in one control group are one.
pub(super) fn neighbours(
    context: &JudgeContext<'_>,
    workload: &HashSet<EntityId>,
    (from, to): (Ns, Ns),
) -> Option<Vec<Neighbour>> {
    let demands = Some(context.demands()).filter(|demands| demands.are_known())?;
    let is_other = |id: EntityId| !workload.contains(&id) && !context.records(id);
    let of_group = demands.grouped(|id, _| is_other(id).then(|| context.group(id)));
    let latest = from.saturating_add(too_late(to.saturating_sub(from)));
    let neighbour = |Together { demand, most, processes }: Together| {
        let began = demand.began.is_none_or(|began| began <= latest);
        let culprit = context.culprit(most).filter(|_| demand.rise() > 0.0 && began)?;
        let command = culprit.command();
        let name = super::Culprit { processes, ..culprit }.to_string();
        Some(Neighbour { name, command, before: demand.before, during: demand.during })
    };
    Some(of_group.into_values().filter_map(neighbour).collect())
}
