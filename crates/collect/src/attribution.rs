//! The thread, process, cgroup, container, pod or job that a tid belongs to.
//!
//! *What it sees*: the tids and pids of events. A tid that was seen before costs one hash look-up;
//! a new one is looked up in /proc once: start time, name and flags from `stat`, the cgroup of its
//! process from `cgroup` (see [`crate::cgroup_path`]). *Why it matters*: a culprit that is called
//! `pid 4711` helps no operator. *What fools it*: a process that has ended before /proc is read has
//! the name that its event carried, or none, and no cgroup; and a number that the kernel gives to the
//! next process between an event and its reading.
//!
//! Keys are `pid@start`, with the start in clock ticks since boot as /proc has it, so that a number
//! that is used again is another process. The cache holds two generations of [`GENERATION`]
//! entries; an entry that falls out of it is looked up in /proc again and found to be the same.

use std::fs::{self, File};
use std::io::Read;

use foldhash::HashMap;
use gpuwhy_schema::{Entity, EntityId, EntityKind, Lanes, Ns};

use crate::bpf::text_of;
use crate::cgroup_path::{Membership, Mounts, Owner, main_membership, memberships, owners};
use crate::procfs::Stat;
use crate::sys;

/// Entries of each of the two generations of the cache, for threads and for processes.
const GENERATION: usize = 16 * 1024;

/// How often the name that events carry may rename a thread; exec is not counted. A program that
/// renames itself at every request should not fill the trace with names.
const RENAMES: u8 = 8;

/// How long what /proc reported for a number is used: not every exit is recorded, and numbers are
/// used again, though hardly within this time.
const FRESH: Ns = Ns::secs(10);

/// Bytes of a file of /proc that are read.
const BUFFER: usize = 4096;

/// Threads and processes seen so far.
#[derive(Debug)]
pub(crate) struct Attribution {
    host: EntityId,
    threads: Cache,
    processes: Cache,
    mounts: Mounts,
    /// What to add to a time since boot to get the trace clock: less than 0 after a suspend.
    boot: Ns,
    /// Numbers entities whose start time is not known, so that two of them are two.
    unknown: u64,
    /// Up to which entity [`Attribution::sweep`] has come.
    swept: EntityId,
    buffer: Vec<u8>,
}

/// What is known of one thread or process.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: EntityId,
    /// Clock ticks since boot; `None` if it had ended before it was looked up.
    start: Option<u64>,
    parent: u32,
    ended: bool,
    renames: u8,
    /// When /proc was last read.
    looked_up: Ns,
}

/// A process that was seen and has not been seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's number when it was first seen; 0 if not known.
    pub parent: u32,
}

impl Attribution {
    /// With no entries yet, on `host`.
    pub fn new(host: EntityId) -> Attribution {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let boot = uptime.split(' ').next().and_then(|s| s.parse::<f64>().ok());
        // Start times have a resolution of 10 ms, so that reading this more precisely gains nothing.
        let boot = boot.map_or(Ns::ZERO, |s| sys::monotonic() - Ns((s * 1e9) as i64));
        Attribution {
            host,
            threads: Cache::default(),
            processes: Cache::default(),
            mounts: Mounts::parse(&mounts),
            boot: if boot.0.abs() < 20_000_000 { Ns::ZERO } else { boot },
            unknown: 0,
            swept: EntityId(0),
            buffer: vec![0; BUFFER],
        }
    }

    /// The thread `tid` of process `tgid`. `comm` is the name that an event carried; without it the
    /// name in /proc is taken when the thread is first seen.
    pub fn thread(
        &mut self,
        catalog: &mut Lanes,
        tid: u32,
        tgid: u32,
        comm: Option<&[u8]>,
    ) -> EntityId {
        if let Some(&known) = self.threads.get(tid) {
            let name = comm.filter(|comm| self.is_new_name(catalog, known, comm));
            if !self.is_reused(tid, known, name.is_some()) {
                if let Some(name) = name {
                    self.follow_name(catalog, known, tid, tgid, name);
                }
                return known.id;
            }
            self.threads.remove(tid);
        }
        let process = self.process(catalog, tgid, if tid == tgid { comm } else { None });
        let known = self.look_up(catalog, EntityKind::Thread, process, tid, comm);
        self.threads.insert(tid, known);
        known.id
    }

    /// The process `tgid`; `comm` is the name of one of its threads, for the case that the process has
    /// ended and /proc knows nothing better.
    pub fn process(&mut self, catalog: &mut Lanes, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        if let Some(&known) = self.processes.get(tgid) {
            if !self.is_reused(tgid, known, false) {
                return known.id;
            }
            self.processes.remove(tgid);
        }
        let parent = self.cgroup_of_process(catalog, tgid).unwrap_or(self.host);
        let known = self.look_up(catalog, EntityKind::Process, parent, tgid, comm);
        self.processes.insert(tgid, known);
        known.id
    }

    /// The thread `tid` is called `comm` from now on (exec, prctl).
    pub fn renamed(&mut self, catalog: &mut Lanes, tid: u32, tgid: u32, comm: &[u8]) {
        let thread = self.thread(catalog, tid, tgid, Some(comm));
        let name = text_of(comm);
        catalog.update(thread, |e| e.name = name.as_str().into());
        if tid == tgid {
            let process = self.process(catalog, tgid, Some(comm));
            catalog.update(process, |e| e.name = name.as_str().into());
        }
    }

    /// The thread `tid` has exited; its number may be used again. Events of its last moments that are
    /// read later still find it.
    pub fn exited(&mut self, catalog: &mut Lanes, tid: u32, tgid: u32, at: Ns) {
        let mut end = |cache: &mut Cache, number| {
            if let Some(known) = cache.get_mut(number)
                && !known.ended
            {
                known.ended = true;
                catalog.end(known.id, at);
            }
        };
        end(&mut self.threads, tid);
        if tid == tgid {
            end(&mut self.processes, tgid);
        }
    }

    /// Ends threads and processes that have exited unseen, as exits are recorded of threads of interest
    /// and of processes only. Looks at `most` of them at most, at the next ones each time.
    pub fn sweep(&mut self, catalog: &mut Lanes, now: Ns, most: usize) {
        let of = |e: &Entity| {
            let number = u32::try_from(e.number?).ok()?;
            let start = e.key.split_once('@')?.1.parse::<u64>().ok();
            matches!(e.kind, EntityKind::Thread | EntityKind::Process)
                .then_some((e.id, e.kind, number, start))
        };
        let checked: Vec<_> = catalog.living_after(self.swept).filter_map(of).take(most).collect();
        let last = checked.last().filter(|_| checked.len() == most);
        self.swept = last.map_or(EntityId(0), |last| last.0);
        for (id, kind, number, start) in checked {
            // An entity whose start is not known had ended when it was looked up.
            let lives = start.is_some() && self.stat(number).map(|stat| stat.start) == start;
            if lives {
                continue;
            }
            let cache = match kind {
                EntityKind::Thread => &mut self.threads,
                _ => &mut self.processes,
            };
            if let Some(known) = cache.get_mut(number).filter(|known| known.id == id) {
                known.ended = true;
            }
            catalog.end(id, now);
        }
    }

    /// The processes that are known and live.
    pub fn processes(&self) -> impl Iterator<Item = Process> {
        let living = self.processes.iter().filter(|(_, known)| !known.ended);
        living.map(|(pid, known)| Process { pid, parent: known.parent })
    }

    /// Reads the cgroups that process `pid` is in and, if it has moved, updates its entity. `None` if
    /// the process has ended.
    pub fn cgroups(&mut self, catalog: &mut Lanes, pid: u32) -> Option<Vec<Membership>> {
        let all = memberships(self.read(&format!("/proc/{pid}/cgroup"))?);
        if let Some(&known) = self.processes.get(pid)
            && !known.ended
        {
            let parent = self.main_cgroup(catalog, &all).unwrap_or(self.host);
            catalog.update(known.id, |e| e.parent = Some(parent));
        }
        Some(all)
    }

    /// The entity of a cgroup, under the container, job or virtual machine that it was made for.
    pub fn cgroup(&mut self, catalog: &mut Lanes, membership: &Membership) -> EntityId {
        let host = self.host;
        let found = owners(&membership.path);
        let mut above = host;
        for (kind, owner) in [
            (EntityKind::Vm, &found.vm),
            (EntityKind::Job, &found.job),
            (EntityKind::Container, &found.container),
        ] {
            if let Some(Owner { key, name }) = owner {
                let parent = above;
                above = catalog.entity(kind, key, |e| {
                    e.parent = Some(parent);
                    e.name = name.as_str().into();
                });
            }
        }
        catalog.entity(EntityKind::Cgroup, &membership.key(), |e| {
            e.parent = Some(above);
            e.name = membership.path.as_str().into();
        })
    }

    /// Where cgroups are mounted.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// The cgroup entity that a process belongs to; `None` for a process that has ended, or that is in
    /// no other cgroup than the roots.
    fn cgroup_of_process(&mut self, catalog: &mut Lanes, pid: u32) -> Option<EntityId> {
        let all = memberships(self.read(&format!("/proc/{pid}/cgroup"))?);
        self.main_cgroup(catalog, &all)
    }

    fn main_cgroup(&mut self, catalog: &mut Lanes, all: &[Membership]) -> Option<EntityId> {
        let main = main_membership(all)?.clone();
        Some(self.cgroup(catalog, &main))
    }

    fn look_up(
        &mut self,
        catalog: &mut Lanes,
        kind: EntityKind,
        parent: EntityId,
        number: u32,
        comm: Option<&[u8]>,
    ) -> Known {
        let stat = self.stat(number);
        let key = match &stat {
            Some(stat) => format!("{number}@{}", stat.start),
            None => {
                self.unknown += 1;
                format!("{number}@unknown.{}", self.unknown)
            }
        };
        let boot = self.boot;
        let id = catalog.entity(kind, &key, |e| {
            e.parent = Some(parent);
            e.number = Some(i64::from(number));
            // /proc is read after the event, so that its name is the later one.
            let name = stat.as_ref().map(|s| s.name.clone()).or_else(|| comm.map(text_of));
            let word = if kind == EntityKind::Thread { "tid" } else { "pid" };
            e.name = name.unwrap_or_else(|| format!("{word} {number}")).as_str().into();
            e.from = stat.as_ref().map(|s| Ns(s.start as i64 * 10_000_000) + boot);
        });
        Known {
            id,
            start: stat.as_ref().map(|s| s.start),
            parent: stat.as_ref().map_or(0, |s| s.parent),
            ended: false,
            renames: 0,
            looked_up: sys::monotonic(),
        }
    }

    /// Whether an event carries another name than the entity has, and has not done so too often.
    fn is_new_name(&self, catalog: &Lanes, known: Known, comm: &[u8]) -> bool {
        let end = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
        let same = || catalog.get(known.id).is_some_and(|e| e.name.as_bytes() == &comm[..end]);
        end > 0 && !known.ended && known.renames < RENAMES && !same()
    }

    /// Renames a thread that was first seen between fork and exec and so has its parent's name.
    fn follow_name(&mut self, catalog: &mut Lanes, known: Known, tid: u32, tgid: u32, comm: &[u8]) {
        if let Some(known) = self.threads.get_mut(tid) {
            known.renames += 1;
        }
        let name = text_of(comm);
        catalog.update(known.id, |e| e.name = name.as_str().into());
        if tid == tgid
            && let Some(process) = self.processes.get(tgid)
        {
            catalog.update(process.id, |e| e.name = name.as_str().into());
        }
    }

    /// Whether the number belongs to another thread or process by now; /proc is read if the known one
    /// has ended, was last looked up some time ago, or is `suspect`.
    fn is_reused(&mut self, number: u32, known: Known, suspect: bool) -> bool {
        if !known.ended && !suspect {
            let now = sys::monotonic();
            if now - known.looked_up < FRESH {
                return false;
            }
            for cache in [&mut self.threads, &mut self.processes] {
                if let Some(entry) = cache.get_mut(number)
                    && entry.id == known.id
                {
                    entry.looked_up = now;
                }
            }
        }
        self.stat(number).is_some_and(|stat| Some(stat.start) != known.start)
    }

    fn stat(&mut self, number: u32) -> Option<Stat> {
        Stat::parse(self.read(&format!("/proc/{number}/stat"))?)
    }

    /// A small file of /proc, cut to the length of the buffer.
    fn read(&mut self, path: &str) -> Option<&str> {
        let mut file = File::open(path).ok()?;
        let mut filled = 0;
        while filled < self.buffer.len() {
            match file.read(&mut self.buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(_) => return None,
            }
        }
        // Names of threads may hold any bytes.
        match str::from_utf8(&self.buffer[..filled]) {
            Ok(_) => {}
            Err(_) => {
                let valid = String::from_utf8_lossy(&self.buffer[..filled]).into_owned();
                self.buffer.clear();
                self.buffer.extend_from_slice(valid.as_bytes());
                filled = self.buffer.len();
                self.buffer.resize(BUFFER.max(filled), 0);
            }
        }
        str::from_utf8(&self.buffer[..filled]).ok()
    }
}

/// Two generations: an entry that is used moves to the young one; when that is full the old one is
/// dropped and the young one becomes the old one.
#[derive(Debug, Default)]
struct Cache {
    young: HashMap<u32, Known>,
    old: HashMap<u32, Known>,
}

impl Cache {
    fn get(&mut self, number: u32) -> Option<&Known> {
        self.get_mut(number).map(|known| &*known)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Known> {
        if !self.young.contains_key(&number) {
            let known = self.old.remove(&number)?;
            self.insert(number, known);
        }
        self.young.get_mut(&number)
    }

    #[cfg(test)]
    fn peek(&self, number: u32) -> Option<&Known> {
        self.young.get(&number).or_else(|| self.old.get(&number))
    }

    fn insert(&mut self, number: u32, known: Known) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, known);
    }

    fn remove(&mut self, number: u32) {
        self.young.remove(&number);
        self.old.remove(&number);
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Known)> {
        let old = self.old.iter().filter(|(number, _)| !self.young.contains_key(number));
        self.young.iter().chain(old).map(|(&number, known)| (number, known))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use gpuwhy_schema::Rows;

    use super::*;

    /// A catalog with a host and nothing on it.
    fn empty() -> (Lanes, Attribution) {
        let mut catalog = Lanes::default();
        let host = catalog.entity(EntityKind::Host, "host", |_| {});
        (catalog, Attribution::new(host))
    }

    fn cached(attribution: &Attribution, tid: u32) -> Option<EntityId> {
        attribution.threads.peek(tid).map(|known| known.id)
    }

    #[test]
    fn a_thread_belongs_to_its_process_and_both_have_names_and_a_start() {
        let (mut catalog, mut attribution) = empty();
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        // Until exec it still has our own name.
        while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() != "sleep" {
            std::thread::yield_now();
        }
        let thread = attribution.thread(&mut catalog, pid, pid, None);
        let process = attribution.process(&mut catalog, pid, None);
        let entity = catalog.get(thread).unwrap().clone();
        assert_eq!((&*entity.name, entity.parent), ("sleep", Some(process)));
        assert_eq!(entity.number, Some(i64::from(pid)));
        let now = sys::monotonic();
        assert!(entity.from.unwrap() <= now && entity.from.unwrap() > now - Ns::secs(3600));
        assert_eq!(cached(&attribution, pid), Some(thread));
        assert!(attribution.processes().any(|p| p.pid == pid && p.parent == std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_has_ended_keeps_the_name_that_the_event_carried() {
        let (mut catalog, mut attribution) = empty();
        // Larger than any pid that this kernel gives out.
        let (a, b) = (0x7fff_fff0, 0x7fff_fff1);
        let thread = attribution.thread(&mut catalog, a, a, Some(b"ghost\0\0"));
        assert_eq!(&*catalog.get(thread).unwrap().name, "ghost");
        let thread = attribution.thread(&mut catalog, b, b, None);
        assert_eq!(&*catalog.get(thread).unwrap().name, "tid 2147483633");
        assert_eq!(attribution.cgroups(&mut catalog, a), None);
    }

    #[test]
    fn the_last_events_of_a_thread_still_find_it_and_its_number_can_be_used_again() {
        let (mut catalog, mut attribution) = empty();
        let gone = 0x7fff_fff0;
        let first = attribution.thread(&mut catalog, gone, gone, Some(b"first"));
        attribution.exited(&mut catalog, gone, gone, Ns(7));
        assert_eq!(attribution.thread(&mut catalog, gone, gone, Some(b"other")), first);
        assert_eq!(&*catalog.get(first).unwrap().name, "first");
        assert_eq!(catalog.get(first).unwrap().to, Some(Ns(7)));
        // A number that /proc knows with another start time is another thread's by now, whether the
        // exit was recorded or is only noticed some time later.
        let init = 1;
        let first = attribution.thread(&mut catalog, init, init, None);
        attribution.threads.get_mut(init).unwrap().start = Some(7);
        assert_eq!(attribution.thread(&mut catalog, init, init, None), first);
        assert_eq!(attribution.threads.peek(init).unwrap().start, Some(7));
        attribution.threads.get_mut(init).unwrap().looked_up = Ns(-FRESH.0);
        attribution.thread(&mut catalog, init, init, None);
        assert_ne!(attribution.threads.peek(init).unwrap().start, Some(7));
        let me = std::process::id();
        let before = attribution.thread(&mut catalog, me, me, None);
        attribution.exited(&mut catalog, me, me, Ns(9));
        attribution.threads.get_mut(me).unwrap().start = Some(1);
        attribution.processes.get_mut(me).unwrap().start = Some(1);
        assert_ne!(attribution.thread(&mut catalog, me, me, None), before);
    }

    #[test]
    fn a_sweep_ends_what_has_exited_unseen_and_nothing_that_lives() {
        let (mut catalog, mut attribution) = empty();
        let me = std::process::id();
        let here = attribution.process(&mut catalog, me, None);
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let gone = attribution.thread(&mut catalog, pid, pid, None);
        let ghost = attribution.thread(&mut catalog, 0x7fff_fff0, 0x7fff_fff0, Some(b"ghost"));
        child.kill().unwrap();
        child.wait().unwrap();
        // Two at a time, so that it takes several rounds to see all.
        (0..4).for_each(|_| attribution.sweep(&mut catalog, Ns(7), 2));
        let ended = |id| catalog.get(id).unwrap().to;
        assert_eq!((ended(here), ended(gone), ended(ghost)), (None, Some(Ns(7)), Some(Ns(7))));
    }

    #[test]
    fn a_name_first_seen_before_exec_is_corrected_but_not_without_end() {
        let (mut catalog, mut attribution) = empty();
        let pid = 0x7fff_fff0;
        let thread = attribution.thread(&mut catalog, pid, pid, Some(b"bash"));
        attribution.thread(&mut catalog, pid, pid, Some(b"cpuhog\0\0"));
        let process = attribution.process(&mut catalog, pid, None);
        assert_eq!(&*catalog.get(thread).unwrap().name, "cpuhog");
        assert_eq!(&*catalog.get(process).unwrap().name, "cpuhog");
        for i in 0..100 {
            attribution.thread(&mut catalog, pid, pid, Some(format!("job {i}").as_bytes()));
        }
        let mut rows = Rows::default();
        catalog.drain(&mut rows);
        let renamed = rows.entity.iter().filter(|e| e.id == thread).count();
        assert_eq!(renamed, 1 + usize::from(RENAMES));
        attribution.renamed(&mut catalog, pid, pid, b"exec");
        assert_eq!(&*catalog.get(thread).unwrap().name, "exec");
    }

    #[test]
    fn the_cache_is_bounded_and_an_entry_that_falls_out_is_found_again() {
        let (mut catalog, mut attribution) = empty();
        let me = std::process::id();
        let mine = attribution.thread(&mut catalog, me, me, None);
        let known = *attribution.threads.peek(me).unwrap();
        for number in 0..3 * GENERATION as u32 {
            attribution.threads.insert(0x1000_0000 + number, known);
        }
        assert!(attribution.threads.young.len() + attribution.threads.old.len() <= 2 * GENERATION);
        assert_eq!(cached(&attribution, me), None);
        assert_eq!(attribution.thread(&mut catalog, me, me, None), mine);
    }

    #[test]
    fn a_process_in_a_container_belongs_to_its_pod() {
        let (mut catalog, mut attribution) = empty();
        let id = "0123456789abcdef".repeat(4);
        let path = format!("/kubepods/pod3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e/{id}");
        let membership = Membership { hierarchy: "v2".into(), path };
        let mut at = Some(attribution.cgroup(&mut catalog, &membership));
        let mut chain = Vec::new();
        while let Some(entity) = at.and_then(|id| catalog.get(id)) {
            chain.push(format!("{} {}", entity.kind.as_str(), entity.name));
            at = entity.parent;
        }
        assert_eq!(
            chain[1..],
            ["container 0123456789ab", "job pod 3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e", "host host"]
        );
    }
}
