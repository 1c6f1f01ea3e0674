//! A guest: a process that reports by itself, and who it is according to the kernel.
//!
//! Nothing that a guest says of itself is believed: not its pid, not the tids of its threads. Its process
//! is the one that the kernel names, for good; its threads are those that /proc shows below that process.
//! What cannot be verified (a thread that ended before its first record was read) is an entity of its
//! own below its process, `PID@START/OWN-TID`, and never a thread of this host.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{EntityId, EntityKind, Lanes, Ns};

use crate::quota;

/// How much earlier than a guest appeared its records may begin, if its process did not begin earlier: the
/// start of a process is known to 10 ms, and a suspended host shifts it.
const EARLIER: Ns = Ns::secs(60);

/// A process of this host, whoever has its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostProcess {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since boot.
    pub start: u64,
}

/// A process that reports by itself.
#[derive(Debug)]
pub(crate) struct Guest {
    process: EntityId,
    host: Option<HostProcess>,
    /// The pid that it has in its innermost namespace, and writes into its records; `None` if it cannot
    /// be known.
    own_pid: Option<u32>,
    nested: bool,
    /// What its entities' keys begin with.
    key: String,
    /// When its process began.
    began: Ns,
    /// Its threads: tids here, by those of its own namespace, and when they were listed.
    tids: HashMap<u32, u32>,
    listed: Ns,
}

impl Guest {
    /// The process `host`, which has these numbers from our pid namespace to its own.
    pub fn new(process: EntityId, host: HostProcess, numbers: &[u32], began: Ns) -> Guest {
        let HostProcess { pid, start } = host;
        Guest {
            process,
            host: Some(host),
            own_pid: numbers.last().copied(),
            nested: numbers.len() != 1,
            key: format!("{pid}@{start}"),
            began,
            tids: HashMap::new(),
            listed: Ns::MIN,
        }
    }

    /// Somebody of whom only `own_pid` is known, by its own word: a process `key` without a number
    /// here, which can be no target.
    pub fn unverified(catalog: &mut Lanes, host: EntityId, key: &str, own_pid: u32) -> Guest {
        let process = catalog.entity(EntityKind::Process, key, |e| {
            e.parent = Some(host);
            e.name = format!("pid {own_pid}, as it says itself").as_str().into();
        });
        Guest {
            process,
            host: None,
            own_pid: Some(own_pid),
            nested: true,
            key: key.to_owned(),
            began: Ns::MIN,
            tids: HashMap::new(),
            listed: Ns::MIN,
        }
    }

    /// Its process.
    pub fn process(&self) -> EntityId {
        self.process
    }

    /// Its process on this host, if the kernel has named it.
    pub fn host(&self) -> Option<HostProcess> {
        self.host
    }

    /// Whether a record that names this process is its own: another one's pid comes from a child that was
    /// cloned unseen, or from a liar. Where /proc does not say its own pid, the first one is kept.
    pub fn is_own(&mut self, pid: u32) -> bool {
        *self.own_pid.get_or_insert(pid) == pid
    }

    /// Whether its tids are of another pid namespace than ours, or of an unknown one.
    pub fn is_nested(&self) -> bool {
        self.nested
    }

    /// What the keys of its entities begin with.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The earliest time that its records can have, if it was first seen at `seen`.
    pub fn earliest(&self, seen: Ns) -> Ns {
        self.began.min(seen).saturating_sub(EARLIER)
    }

    /// Whether its threads would have to be listed to find one of them: not if it is known, or if they
    /// were listed in this very tick.
    pub fn is_to_be_listed(&self, own_tid: u32, now: Ns) -> bool {
        self.listed != now && !self.tids.contains_key(&own_tid)
    }

    /// The tid here of one of its own threads, if known.
    pub fn tid(&self, own_tid: u32) -> Option<u32> {
        self.tids.get(&own_tid).copied()
    }

    /// Its threads now: tids here and in its own namespace.
    pub fn learn(&mut self, all: &[(u32, u32)], now: Ns) {
        self.listed = now;
        self.tids.clear();
        self.tids.extend(all.iter().take(4 * quota::THREADS).map(|&(tid, own)| (own, tid)));
    }

    /// One of its threads has ended: its own number may be another one's.
    pub fn unlearn(&mut self, own_tid: u32) {
        self.tids.remove(&own_tid);
    }
}
