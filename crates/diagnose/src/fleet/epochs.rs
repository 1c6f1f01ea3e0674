//! Which run of a job a rank's step belongs to.
//!
//! # What it sees
//! Step numbers begin anew when a job is restarted, as elastic launchers do after every failure. A rank
//! whose number falls back, or comes a second time, begins a new epoch, or joins the one that other ranks
//! began.
//!
//! # What fools it
//! Nodes report with different delays, and one of them may lie. A rank therefore joins the epoch in which
//! most nodes are near its own step number; and a rank that is alone moves to such an epoch later.

use std::collections::{BTreeMap, HashMap};

use gpuwhy_schema::Ns;

/// Steps of one rank may end out of order by fewer than this.
const SHUFFLED: u64 = 64;
/// Ranks of one epoch are at most this many steps apart when one of them joins it.
const NEAR: u64 = 256;
/// A rank that is alone moves to an epoch whose ranks are this near.
const VERY_NEAR: u64 = 16;
/// An epoch in which nothing was heard for so long is over.
const OVER: Ns = Ns::secs(60);
/// Epochs that are remembered.
const EPOCHS: usize = 64;

/// What is known of a rank.
#[derive(Debug)]
struct Member {
    epoch: u32,
    /// The epoch that it left when it was restarted: it never returns to that or an older one.
    left: Option<u32>,
    /// Its highest step number, and which of the [`SHUFFLED`] numbers up to there were seen.
    seq: u64,
    seen: u64,
    node: u64,
    heard: Ns,
}

/// What is known of an epoch.
#[derive(Debug, Default)]
struct Group {
    seq: u64,
    heard: Ns,
    /// The nodes that have ranks in it, and how many.
    nodes: HashMap<u64, usize>,
}

/// The epochs of a job, and which rank is in which.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    ranks: BTreeMap<u32, Member>,
    groups: BTreeMap<u32, Group>,
    next: u32,
}

impl Member {
    /// Notes a step; false if that step cannot be of the same run.
    fn advance(&mut self, seq: u64) -> bool {
        if seq > self.seq {
            let by = seq - self.seq;
            self.seen = if by >= SHUFFLED { 0 } else { self.seen << by };
            (self.seq, self.seen) = (seq, self.seen | 1);
            return true;
        }
        let ago = self.seq - seq;
        if ago >= SHUFFLED || self.seen & (1 << ago) != 0 {
            return false;
        }
        self.seen |= 1 << ago;
        true
    }
}

impl Epochs {
    /// The epoch of step `seq` of `rank`, which `node` reported at `now`.
    pub fn of(&mut self, rank: u32, node: u64, seq: u64, now: Ns) -> u32 {
        let (from, left) = match self.ranks.get_mut(&rank) {
            Some(member) => match member.advance(seq) {
                true => (Some(member.epoch), member.left),
                false => (None, Some(member.epoch)),
            },
            None => (None, None),
        };
        let to = match from {
            Some(epoch) => self.better(epoch, left, seq, now).unwrap_or(epoch),
            None => self.nearest(left, seq, NEAR, now).unwrap_or_else(|| self.begin()),
        };
        self.put(rank, node, to, left, from.is_none().then_some(seq), now);
        let group = self.groups.entry(to).or_default();
        group.seq =
            if from.is_none() && group.heard == Ns::ZERO { seq } else { group.seq.max(seq) };
        group.heard = now;
        to
    }

    /// How many ranks are known.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether something of this rank was heard.
    pub fn knows(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    /// The ranks that are in `epoch`, of which something was heard since `since`.
    pub fn members(&self, epoch: u32, since: Ns) -> impl Iterator<Item = u32> {
        let in_it = move |m: &Member| m.epoch == epoch && m.heard >= since;
        self.ranks.iter().filter(move |(_, member)| in_it(member)).map(|(rank, _)| *rank)
    }

    /// Forgets the ranks of which nothing was heard since `since`.
    pub fn forget(&mut self, since: Ns) {
        let gone = |member: &Member| member.heard < since;
        let ranks: Vec<u32> =
            self.ranks.iter().filter(|(_, m)| gone(m)).map(|(rank, _)| *rank).collect();
        for rank in ranks {
            self.leave(rank);
        }
    }

    fn leave(&mut self, rank: u32) -> Option<()> {
        let old = self.ranks.remove(&rank)?;
        let group = self.groups.get_mut(&old.epoch)?;
        let ranks = group.nodes.get_mut(&old.node)?;
        *ranks -= 1;
        if *ranks == 0 {
            group.nodes.remove(&old.node);
        }
        Some(())
    }

    fn put(
        &mut self,
        rank: u32,
        node: u64,
        to: u32,
        left: Option<u32>,
        anew: Option<u64>,
        now: Ns,
    ) {
        let (seq, seen) = match (anew, self.ranks.get_mut(&rank)) {
            (None, Some(member)) if (member.epoch, member.node) == (to, node) => {
                member.heard = now;
                return;
            }
            (None, Some(member)) => (member.seq, member.seen),
            (anew, _) => (anew.unwrap_or(0), 1),
        };
        self.leave(rank);
        self.ranks.insert(rank, Member { epoch: to, left, seq, seen, node, heard: now });
        *self.groups.entry(to).or_default().nodes.entry(node).or_default() += 1;
    }

    fn begin(&mut self) -> u32 {
        let epoch = self.next;
        self.next += 1;
        while self.groups.len() >= EPOCHS {
            // The one that has been silent for longest; never the one that most ranks are in.
            let Some((&oldest, _)) =
                self.groups.iter().min_by_key(|(_, g)| (g.nodes.len() > 1, g.heard))
            else {
                break;
            };
            self.groups.remove(&oldest);
            self.ranks.retain(|_, member| member.epoch != oldest);
        }
        self.groups.insert(epoch, Group::default());
        epoch
    }

    /// The epoch after `left` in which most nodes are within `near` steps of `seq`.
    fn nearest(&self, left: Option<u32>, seq: u64, near: u64, now: Ns) -> Option<u32> {
        let first = left.map_or(0, |left| left + 1);
        let close = |group: &&Group| {
            group.heard.saturating_add(OVER) >= now
                && group.seq.abs_diff(seq) <= near
                && !group.nodes.is_empty()
        };
        let mut best: Option<(usize, u32)> = None;
        for (&epoch, group) in self.groups.range(first..).filter(|(_, group)| close(group)) {
            if best.is_none_or(|(nodes, _)| group.nodes.len() > nodes) {
                best = Some((group.nodes.len(), epoch));
            }
        }
        best.map(|(_, epoch)| epoch)
    }

    /// An epoch that more nodes are in than in the rank's own, at nearly the same step.
    fn better(&self, own: u32, left: Option<u32>, seq: u64, now: Ns) -> Option<u32> {
        if self.groups.len() < 2 {
            return None;
        }
        let nodes = |epoch: u32| self.groups.get(&epoch).map_or(0, |group| group.nodes.len());
        let other = self.nearest(left, seq, VERY_NEAR, now)?;
        (other != own && nodes(other) > nodes(own)).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Job {
        epochs: Epochs,
        now: Ns,
    }

    impl Job {
        fn new() -> Job {
            Job { epochs: Epochs::default(), now: Ns::secs(1) }
        }

        /// A step of each of these ranks, each on its own node; the epochs that they are in.
        fn step(&mut self, ranks: &[u32], seq: u64) -> Vec<u32> {
            self.now += Ns::millis(10);
            ranks.iter().map(|r| self.epochs.of(*r, u64::from(*r), seq, self.now)).collect()
        }
    }

    #[test]
    fn ranks_that_begin_again_meet_in_a_new_epoch() {
        let mut job = Job::new();
        for seq in 0..5000 {
            assert_eq!(job.step(&[0, 1, 2], seq), [0, 0, 0]);
        }
        // One is ahead of the others, as its node reports sooner.
        for seq in 0..40 {
            assert_eq!(job.step(&[1], seq), [1]);
        }
        for seq in 0..40 {
            assert_eq!(job.step(&[0, 2], seq), [1, 1]);
        }
        assert_eq!(job.step(&[0, 1, 2], 40), [1, 1, 1]);
        // A crash after few steps.
        assert_eq!(job.step(&[2, 1, 0], 0), [2, 2, 2]);
    }

    #[test]
    fn steps_that_end_out_of_order_are_no_restart() {
        let mut job = Job::new();
        for seq in [0, 1, 3, 2, 4, 7, 5, 6, 8] {
            assert_eq!(job.step(&[0, 1], seq), [0, 0]);
        }
        assert_eq!(job.step(&[0], 8), [1], "the same number twice is one");
    }

    #[test]
    fn a_node_whose_reports_come_late_catches_up_with_the_others() {
        let mut job = Job::new();
        for seq in 0..2000 {
            job.step(&[0, 1, 2], seq);
        }
        for seq in 0..1000 {
            job.step(&[0, 1], seq);
        }
        let mut late = vec![];
        for seq in 0..1000 {
            late = job.step(&[2], seq);
        }
        assert_eq!(late, [1], "moved to where the others are");
        assert_eq!(job.step(&[0, 1, 2], 1000), [1, 1, 1]);
    }

    #[test]
    fn a_rank_that_restarts_all_the_time_does_not_split_the_others() {
        let mut job = Job::new();
        for seq in 0..500 {
            job.step(&[0, 1, 2], seq);
            job.step(&[9], seq % 3);
        }
        for (n, rank) in [0, 1, 2].into_iter().enumerate() {
            job.step(&[rank], 0);
            job.step(&[9], n as u64 % 2);
        }
        let after = job.step(&[0, 1, 2], 1);
        assert!(after.iter().all(|epoch| *epoch == after[0] && *epoch > 0), "{after:?}");
    }

    #[test]
    fn epochs_are_bounded_and_the_one_of_the_others_stays() {
        let mut job = Job::new();
        job.step(&[0, 1], 7);
        for n in 0..1000 {
            job.step(&[9], 10_000 - n * 100 % 9_999);
        }
        assert!(job.epochs.groups.len() <= EPOCHS);
        assert_eq!(job.step(&[0, 1], 8), [0, 0]);
    }
}
