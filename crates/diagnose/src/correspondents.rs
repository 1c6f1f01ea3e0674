//! Who takes part in the work of those that take the steps, by exchanging something with them: an engine's front end, a
//! client, a loader of data.
//!
//! # What it sees
//! Messages of one connection on both sides, and wakeups: who ended waits of the workload's threads and had its own ended by
//! them, each time by code of its own and not by an interrupt that happened to arrive there. Pipes, local sockets and
//! shared memory are seen by the latter alone.
//!
//! # Why it matters
//! Who takes more of the CPUs because the work asks it to is no neighbour who is in the way.
//!
//! # What fools it
//! A neighbour who shares a lock with the work.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use gpuwhy_schema::{EntityId, Rows, WakeContext};

/// So many wakeups in each direction are an exchange. Of a server of a language model that was watched for five minutes
/// each pair of its processes had at least 879, and no other pair one in both directions.
const EXCHANGES: u32 = 3;

/// The processes that exchanged something with those that take the steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correspondents {
    by_message: BTreeSet<EntityId>,
    /// How often each process woke one of the workload, and was woken by one.
    wakeups: BTreeMap<EntityId, [u32; 2]>,
}

impl Correspondents {
    /// Of those whose `threads` take steps, from all that happened in `rows`.
    pub fn new(rows: &Rows, threads: &HashSet<EntityId>) -> Correspondents {
        let mut out = Correspondents::default();
        if rows.message.is_empty() && rows.wakeup.is_empty() {
            return out;
        }
        let parents: HashMap<EntityId, EntityId> =
            rows.entity.iter().filter_map(|e| Some((e.id, e.parent?))).collect();
        let workload: HashSet<EntityId> =
            threads.iter().filter_map(|thread| parents.get(thread)).copied().collect();
        let ends = || rows.message.iter().filter_map(|m| Some((m.flow, *parents.get(&m.thread)?)));
        let of_workload = ends().filter(|(_, process)| workload.contains(process));
        let flows: HashSet<u64> = of_workload.map(|(flow, _)| flow).collect();
        let others =
            ends().filter(|(flow, process)| flows.contains(flow) && !workload.contains(process));
        out.by_message.extend(others.map(|(_, process)| process));
        for wakeup in rows.wakeup.iter().filter(|w| w.context == WakeContext::Task) {
            let ends = [wakeup.waker, Some(wakeup.woken)];
            let [Some(waker), Some(woken)] = ends.map(|end| parents.get(&end?).copied()) else {
                continue;
            };
            match (workload.contains(&waker), workload.contains(&woken)) {
                (false, true) => out.wakeups.entry(waker).or_default()[0] += 1,
                (true, false) => out.wakeups.entry(woken).or_default()[1] += 1,
                _ => {}
            }
        }
        out
    }

    /// These, who exchanged messages.
    #[cfg(test)]
    pub(crate) fn known(processes: impl Into<BTreeSet<EntityId>>) -> Correspondents {
        Correspondents { by_message: processes.into(), ..Correspondents::default() }
    }

    /// Adds what happened at another time.
    pub fn extend(&mut self, other: Correspondents) {
        self.by_message.extend(other.by_message);
        for (process, times) in other.wakeups {
            let sum = self.wakeups.entry(process).or_default();
            *sum = [sum[0].saturating_add(times[0]), sum[1].saturating_add(times[1])];
        }
    }

    /// Those that exchanged enough to take part in the work.
    pub fn processes(&self) -> impl Iterator<Item = EntityId> + '_ {
        let both = |(_, times): &(&EntityId, &[u32; 2])| times.iter().all(|n| *n >= EXCHANGES);
        let woken = self.wakeups.iter().filter(both).map(|(process, _)| *process);
        self.by_message.iter().copied().chain(woken)
    }
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Entity, EntityKind, Id, Message, Ns, Wakeup};

    use super::*;

    /// Six processes of one thread each: process n has thread 10 n.
    fn processes() -> Vec<Entity> {
        let entity = |id: u32, kind, parent: Option<u32>| Entity {
            id: EntityId(id),
            kind,
            key: format!("{id}").into(),
            name: "a".into(),
            number: None,
            parent: parent.map(EntityId),
            from: None,
            to: None,
        };
        let processes = (1..7).map(|n| entity(n, EntityKind::Process, None));
        let threads = (1..7).map(|n| entity(10 * n, EntityKind::Thread, Some(n)));
        processes.chain(threads).collect()
    }

    /// Who corresponds with the processes 1 and 2.
    fn found(rows: Rows) -> Vec<EntityId> {
        let rows = Rows { entity: processes(), ..rows };
        let ranks = [EntityId(10), EntityId(20)].into();
        Correspondents::new(&rows, &ranks).processes().collect()
    }

    #[test]
    fn who_exchanges_messages_with_a_rank_takes_part_in_its_work_and_its_neighbours_do_not() {
        let message = |thread: u32, flow: u64| Message {
            id: Id(1),
            ts: Ns::ZERO,
            thread: EntityId(thread),
            direction: gpuwhy_schema::Direction::Send,
            flow,
            bytes: 1,
            position: 0,
        };
        // 1 and 2 are ranks that talk to each other, 3 asks 1, 4 talks to 5.
        let talk = [(10, 1), (20, 1), (10, 2), (30, 2), (40, 3), (50, 3)];
        let message = talk.map(|(thread, flow)| message(thread, flow)).to_vec();
        assert_eq!(found(Rows { message, ..Rows::default() }), [EntityId(3)]);
    }

    #[test]
    fn who_wakes_a_rank_and_is_woken_by_it_takes_part_in_its_work() {
        let wakeup = |waker: u32, woken: u32, context| Wakeup {
            id: Id(1),
            ts: Ns::ZERO,
            woken: EntityId(woken),
            waker: Some(EntityId(waker)),
            context,
            cpu: 0,
        };
        use WakeContext::{Hardirq, Task};
        // 3 answers 1. Of 4 an interrupt arrived that woke 1, and of 1 one that woke 4. 5 wakes 2 and is not woken by it.
        // 6 has done so once.
        let pairs = [
            (10, 30, Task),
            (30, 10, Task),
            (10, 40, Hardirq),
            (40, 10, Hardirq),
            (50, 20, Task),
            (10, 20, Task),
            (20, 10, Task),
        ];
        let mut wakeups: Vec<Wakeup> = Vec::new();
        for _ in 0..5 {
            wakeups.extend(pairs.map(|(waker, woken, context)| wakeup(waker, woken, context)));
        }
        wakeups.extend([wakeup(10, 60, Task), wakeup(60, 10, Task)]);
        assert_eq!(found(Rows { wakeup: wakeups, ..Rows::default() }), [EntityId(3)]);
    }

    #[test]
    fn what_was_exchanged_at_several_times_adds_up() {
        let times = |n| Correspondents {
            wakeups: [(EntityId(3), [n, n])].into(),
            ..Correspondents::default()
        };
        let mut sum = times(2);
        assert_eq!(sum.processes().count(), 0);
        sum.extend(times(1));
        assert_eq!(sum.processes().collect::<Vec<_>>(), [EntityId(3)]);
    }
}
