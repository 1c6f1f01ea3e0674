//! Who else took more of the CPUs than before the incident.

use std::collections::{BTreeMap, HashSet};

use gpuwhy_schema::{EntityId, Ns};

use super::context::{Group, JudgeContext};
use super::guilt::too_late;
use crate::demand::Demand;
use crate::on_cpu::Neighbour;

/// Those who began to take more of the CPUs at the onset, and neither take the steps nor record them; none if that is
/// not known. Processes of one command in one control group are one.
pub(super) fn neighbours(
    context: &JudgeContext<'_>,
    workload: &HashSet<EntityId>,
    (from, to): (Ns, Ns),
) -> Option<Vec<Neighbour>> {
    let demands = Some(context.demands()).filter(|demands| demands.are_known())?;
    let mut of_group: BTreeMap<Group, (Demand, EntityId, usize)> = BTreeMap::new();
    let others = demands.iter().filter(|(id, _)| !workload.contains(id) && !context.records(*id));
    for (id, demand) in others {
        let sum = of_group.entry(context.group(id)).or_insert((Demand::default(), id, 0));
        if demand.during > demands.of(sum.1).during {
            sum.1 = id;
        }
        sum.0 = sum.0.and(demand);
        sum.2 += 1;
    }
    let latest = from.saturating_add(too_late(to.saturating_sub(from)));
    let neighbour = |(demand, id, processes): (Demand, EntityId, usize)| {
        let began = demand.began.is_none_or(|began| began <= latest);
        let culprit = context.culprit(id).filter(|_| demand.rise() > 0.0 && began)?;
        let name = super::Culprit { processes, ..culprit }.to_string();
        Some(Neighbour { name, before: demand.before, during: demand.during })
    };
    Some(of_group.into_values().filter_map(neighbour).collect())
}
