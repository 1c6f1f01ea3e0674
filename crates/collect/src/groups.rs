//! Ends cgroups, and the containers, jobs and virtual machines that they were made for.
//!
//! *What it sees*: a cgroup that was removed, and which processes of it were the last to end. Nobody announces
//! the end of a container or a batch job; what it leaves behind is that nothing belongs to it any more.
//! *Why it matters*: who asks which jobs ran at a time needs their ends, and a recorder that runs for months
//! must not remember every container that a node ever had. *What fools it*: a pod between two of its containers
//! has none, so a group is given [`PATIENCE`]; who comes back later is another entity with the same key.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Entity, EntityId, EntityKind, Lanes, Ns};

/// How long nothing may belong to a group before it is taken to have ended.
pub(crate) const PATIENCE: Ns = Ns::secs(60);

/// Groups from the innermost on.
const KINDS: [EntityKind; 4] =
    [EntityKind::Cgroup, EntityKind::Container, EntityKind::Job, EntityKind::Vm];

/// What belongs to a group.
#[derive(Clone, Copy, Default)]
struct Members {
    living: usize,
    /// When the last of those that have ended did.
    last: Option<Ns>,
}

/// Ends the groups to which nothing living belongs, each when the last of its members did: cgroups at once if
/// they are `removed` (`None`: that cannot be known), everything else `patience` later.
pub(crate) fn end(
    catalog: &mut Lanes,
    now: Ns,
    patience: Ns,
    mut removed: impl FnMut(&Entity) -> Option<bool>,
) {
    let mut members: HashMap<EntityId, Members> = HashMap::new();
    for entity in catalog.entities() {
        let Some(parent) = entity.parent else { continue };
        let group = members.entry(parent).or_default();
        match entity.to {
            None => group.living += 1,
            Some(to) => group.last = group.last.max(Some(to)),
        }
    }
    for kind in KINDS {
        let groups = catalog.living_after(EntityId(0)).filter(|entity| entity.kind == kind);
        let over: Vec<(EntityId, Option<EntityId>, Ns)> = groups
            .filter_map(|group| {
                let Members { living, last } = members.get(&group.id).copied().unwrap_or_default();
                let long_ago = || last.filter(|last| now.saturating_sub(*last) >= patience);
                let end = match (living, kind) {
                    (0, EntityKind::Cgroup) => match removed(group) {
                        Some(true) => Some(last.unwrap_or(now)),
                        Some(false) => None,
                        None => long_ago(),
                    },
                    (0, _) => long_ago(),
                    _ => None,
                };
                Some((group.id, group.parent, end?))
            })
            .collect();
        for (id, parent, at) in over {
            catalog.end(id, at);
            if let Some(above) = parent.and_then(|parent| members.get_mut(&parent)) {
                above.living = above.living.saturating_sub(1);
                above.last = above.last.max(Some(at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job with a container in it, and a process in its cgroup.
    struct Pod {
        catalog: Lanes,
        job: EntityId,
        container: EntityId,
        cgroup: EntityId,
        process: EntityId,
    }

    fn pod() -> Pod {
        let mut catalog = Lanes::default();
        let host = catalog.entity(EntityKind::Host, "host", |_| {});
        let mut within = |kind, key: &str, parent| {
            catalog.entity(kind, key, |entity| entity.parent = Some(parent))
        };
        let job = within(EntityKind::Job, "k8s:1", host);
        let container = within(EntityKind::Container, "abc", job);
        let cgroup = within(EntityKind::Cgroup, "v2:/kubepods/pod1/abc", container);
        let process = within(EntityKind::Process, "7@1", cgroup);
        Pod { catalog, job, container, cgroup, process }
    }

    impl Pod {
        fn end(&mut self, now: i64, patience: Ns, removed: Option<bool>) {
            end(&mut self.catalog, Ns::secs(now), patience, |_| removed);
        }

        /// When cgroup, container and job ended, s.
        fn ends(&self) -> [Option<i64>; 3] {
            [self.cgroup, self.container, self.job]
                .map(|id| self.catalog.get(id).unwrap().to.map(|to| to.0 / 1_000_000_000))
        }
    }

    #[test]
    fn a_container_and_its_job_end_when_the_last_process_of_theirs_did() {
        let mut pod = pod();
        pod.end(10, PATIENCE, Some(true));
        assert_eq!(pod.ends(), [None; 3], "somebody lives in it");
        pod.catalog.end(pod.process, Ns::secs(20));
        pod.end(21, PATIENCE, Some(true));
        assert_eq!(pod.ends(), [Some(20), None, None], "the next container may come yet");
        pod.end(80, PATIENCE, Some(true));
        assert_eq!(pod.ends(), [Some(20); 3]);
        assert_eq!(pod.catalog.find(EntityKind::Job, "k8s:1"), None);
        // What has ended is forgotten.
        pod.catalog.forget(Ns::secs(30));
        assert_eq!(pod.catalog.len(), 1);
    }

    #[test]
    fn a_recording_that_ends_waits_for_nobody() {
        let mut pod = pod();
        pod.catalog.end(pod.process, Ns::secs(20));
        pod.end(21, Ns::ZERO, Some(true));
        assert_eq!(pod.ends(), [Some(20); 3]);
    }

    #[test]
    fn a_cgroup_that_is_there_has_not_ended_and_one_that_nobody_sees_has_after_a_while() {
        let mut pod = pod();
        pod.catalog.end(pod.process, Ns::secs(20));
        pod.end(1000, PATIENCE, Some(false));
        assert_eq!(pod.ends(), [None; 3]);
        pod.end(79, PATIENCE, None);
        assert_eq!(pod.ends(), [None; 3]);
        pod.end(80, PATIENCE, None);
        assert_eq!(pod.ends(), [Some(20); 3]);
    }

    #[test]
    fn a_job_goes_on_while_another_container_of_it_does() {
        let mut pod = pod();
        let (job, second) = (pod.job, EntityKind::Container);
        let second = pod.catalog.entity(second, "def", |entity| entity.parent = Some(job));
        pod.catalog.end(pod.process, Ns::secs(20));
        pod.end(100, PATIENCE, Some(true));
        assert_eq!(pod.ends(), [Some(20), Some(20), None]);
        assert_eq!(pod.catalog.get(second).unwrap().to, None, "nothing of it was seen to end");
    }
}
