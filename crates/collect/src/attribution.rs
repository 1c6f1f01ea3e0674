//! Whose a tid is: thread, process, cgroup, container, pod or job.
//!
//! *What it sees*: the tids and pids that events bring. A tid that was seen before costs one hash
//! look-up; a new one is looked up in /proc once: start time, name and flags from `stat`, the
//! cgroup of its process from `cgroup` (see [`crate::cgroup_path`]). *Why it matters*: a culprit
//! that is called `pid 4711` helps nobody. *What fools it*: a process that is gone before /proc is
//! asked has the name that its event carried, or none, and no cgroup; a number that is given to
//! the next process between an event and its reading.
//!
//! Keys are `pid@start`, with the start in clock ticks since boot as /proc has it, so that a number
//! that is used again is another process. The cache holds two generations of [`GENERATION`]
//! entries; who falls out of it is looked up in /proc again and found to be the same.

use std::fs::{self, File};
use std::io::Read;

use foldhash::HashMap;
use gpuwhy_schema::{Entity, EntityId, EntityKind, Lanes, Ns};

use crate::cgroup_path::{Membership, Mounts, Owner, memberships, most_telling, owners};

/// Entries of each of the two generations of the cache, for threads and for processes.
const GENERATION: usize = 16 * 1024;

/// How often the name that events carry may rename a thread; exec is not counted. A program that
/// renames itself at every request should not fill the trace with names.
const RENAMES: u8 = 8;

/// How long what /proc said of a number is believed: not every exit is told us, and numbers are
/// used again, though hardly within this.
const FRESH: Ns = Ns::secs(10);

/// Flag of kernel threads in the ninth field of `/proc/PID/stat`.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Threads and processes seen so far.
#[derive(Debug)]
pub struct Attribution {
    host: EntityId,
    threads: Cache,
    processes: Cache,
    mounts: Mounts,
    /// What to add to a time since boot to get the trace clock: less than 0 after a suspend.
    boot: Ns,
    /// Numbers those whose start time is not known, so that two of them are two.
    nameless: u64,
    /// Up to which entity [`Attribution::sweep`] has come.
    swept: EntityId,
    buffer: Vec<u8>,
}

/// One thread or process.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: EntityId,
    /// Clock ticks since boot; `None` if it was gone before it was looked up.
    start: Option<u64>,
    parent: u32,
    ended: bool,
    kernel: bool,
    renames: u8,
    /// When /proc was asked last.
    asked: Ns,
}

/// A process that was seen and has not been seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// That of its parent when it was first seen; 0 if not known.
    pub parent: u32,
    /// Whether it is a thread of the kernel.
    pub kernel: bool,
    /// The process.
    pub entity: EntityId,
}

impl Attribution {
    /// Nobody yet, on `host`.
    pub fn new(host: EntityId) -> Attribution {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let boot = uptime.split(' ').next().and_then(|s| s.parse::<f64>().ok());
        // Start times have a resolution of 10 ms, so that a nearer look at this is worth nothing.
        let boot = boot.map_or(Ns::ZERO, |s| crate::context::now() - Ns((s * 1e9) as i64));
        Attribution {
            host,
            threads: Cache::default(),
            processes: Cache::default(),
            mounts: Mounts::parse(&mounts),
            boot: if boot.0.abs() < 20_000_000 { Ns::ZERO } else { boot },
            nameless: 0,
            swept: EntityId(0),
            buffer: vec![0; 4096],
        }
    }

    /// The thread `tid` of process `tgid`. `comm` is what an event said it was called; without it
    /// /proc is asked, on first sight only.
    pub fn thread(
        &mut self,
        lanes: &mut Lanes,
        tid: u32,
        tgid: u32,
        comm: Option<&[u8]>,
    ) -> EntityId {
        if let Some(&known) = self.threads.get(tid) {
            let name = comm.filter(|comm| self.is_new_name(lanes, known, comm));
            if !self.used_again(tid, known, name.is_some()) {
                if let Some(name) = name {
                    self.follow_name(lanes, known, tid, tgid, name);
                }
                return known.id;
            }
            self.threads.remove(tid);
        }
        let process = self.process(lanes, tgid, if tid == tgid { comm } else { None });
        let known = self.look_up(lanes, EntityKind::Thread, process, tid, comm);
        self.threads.insert(tid, known);
        known.id
    }

    /// The process `tgid`; `comm` is that of one of its threads, for the case that the process is
    /// gone and /proc knows nothing better.
    pub fn process(&mut self, lanes: &mut Lanes, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        if let Some(&known) = self.processes.get(tgid) {
            if !self.used_again(tgid, known, false) {
                return known.id;
            }
            self.processes.remove(tgid);
        }
        let home = self.home(lanes, tgid).unwrap_or(self.host);
        let known = self.look_up(lanes, EntityKind::Process, home, tgid, comm);
        self.processes.insert(tgid, known);
        known.id
    }

    /// The thread `tid`, if it was seen before and not too long ago; /proc is not asked.
    pub fn seen(&self, tid: u32) -> Option<EntityId> {
        self.threads.peek(tid).map(|known| known.id)
    }

    /// The thread `tid` is called `comm` from now on (exec, prctl).
    pub fn renamed(&mut self, lanes: &mut Lanes, tid: u32, tgid: u32, comm: &[u8]) {
        let thread = self.thread(lanes, tid, tgid, Some(comm));
        let name = text(comm);
        lanes.update(thread, |e| e.name = name.as_str().into());
        if tid == tgid {
            let process = self.process(lanes, tgid, Some(comm));
            lanes.update(process, |e| e.name = name.as_str().into());
        }
    }

    /// The thread `tid` has exited; its number may be given to another. Events of its last moments
    /// that are read later still find it.
    pub fn exited(&mut self, lanes: &mut Lanes, tid: u32, tgid: u32, at: Ns) {
        let mut end = |cache: &mut Cache, number| {
            if let Some(known) = cache.get_mut(number)
                && !known.ended
            {
                known.ended = true;
                lanes.end(known.id, at);
            }
        };
        end(&mut self.threads, tid);
        if tid == tgid {
            end(&mut self.processes, tgid);
        }
    }

    /// Ends threads and processes that are gone and were not seen to go, as exits are told only of
    /// those that are watched. At most `most` are looked at, the next ones each time.
    pub fn sweep(&mut self, lanes: &mut Lanes, now: Ns, most: usize) {
        let of = |e: &Entity| {
            let number = u32::try_from(e.number?).ok()?;
            let start = e.key.split_once('@')?.1.parse::<u64>().ok();
            matches!(e.kind, EntityKind::Thread | EntityKind::Process)
                .then_some((e.id, e.kind, number, start))
        };
        let looked: Vec<_> = lanes.living_after(self.swept).filter_map(of).take(most).collect();
        let last = looked.last().filter(|_| looked.len() == most);
        self.swept = last.map_or(EntityId(0), |last| last.0);
        for (id, kind, number, start) in looked {
            // Whose start is not known was gone when he was looked up.
            let here = start.is_some() && self.stat(number).map(|stat| stat.start) == start;
            if here {
                continue;
            }
            let cache = match kind {
                EntityKind::Thread => &mut self.threads,
                _ => &mut self.processes,
            };
            if let Some(known) = cache.get_mut(number).filter(|known| known.id == id) {
                known.ended = true;
            }
            lanes.end(id, now);
        }
    }

    /// The processes that are known and live.
    pub fn processes(&self) -> impl Iterator<Item = Process> {
        self.processes.iter().filter(|(_, known)| !known.ended).map(|(pid, known)| Process {
            pid,
            parent: known.parent,
            kernel: known.kernel,
            entity: known.id,
        })
    }

    /// Reads the cgroups that process `pid` is in and, if it has moved, says so in its entity.
    /// `None` if the process is gone.
    pub fn cgroups(&mut self, lanes: &mut Lanes, pid: u32) -> Option<Vec<Membership>> {
        let all = memberships(self.read(&format!("/proc/{pid}/cgroup"))?);
        if let Some(&known) = self.processes.get(pid)
            && !known.ended
        {
            let home = self.cgroup_of(lanes, &all).unwrap_or(self.host);
            lanes.update(known.id, |e| e.parent = Some(home));
        }
        Some(all)
    }

    /// The entity of a cgroup, under the container, job or machine that it was made for.
    pub fn cgroup(&mut self, lanes: &mut Lanes, membership: &Membership) -> EntityId {
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
                above = lanes.entity(kind, key, |e| {
                    e.parent = Some(parent);
                    e.name = name.as_str().into();
                });
            }
        }
        lanes.entity(EntityKind::Cgroup, &membership.key(), |e| {
            e.parent = Some(above);
            e.name = membership.path.as_str().into();
        })
    }

    /// Where cgroups are mounted.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// The cgroup entity that a process belongs to; `None` for a process that is gone, or in no
    /// other cgroup than the roots.
    fn home(&mut self, lanes: &mut Lanes, pid: u32) -> Option<EntityId> {
        let all = memberships(self.read(&format!("/proc/{pid}/cgroup"))?);
        self.cgroup_of(lanes, &all)
    }

    fn cgroup_of(&mut self, lanes: &mut Lanes, all: &[Membership]) -> Option<EntityId> {
        let shown = most_telling(all)?.clone();
        Some(self.cgroup(lanes, &shown))
    }

    fn look_up(
        &mut self,
        lanes: &mut Lanes,
        kind: EntityKind,
        parent: EntityId,
        number: u32,
        comm: Option<&[u8]>,
    ) -> Known {
        let stat = self.stat(number);
        let key = match &stat {
            Some(stat) => format!("{number}@{}", stat.start),
            None => {
                self.nameless += 1;
                format!("{number}@unknown.{}", self.nameless)
            }
        };
        let boot = self.boot;
        let id = lanes.entity(kind, &key, |e| {
            e.parent = Some(parent);
            e.number = Some(i64::from(number));
            // /proc is asked after the event, so that its name is the later one.
            let name = stat.as_ref().map(|s| s.name.clone()).or_else(|| comm.map(text));
            let word = if kind == EntityKind::Thread { "tid" } else { "pid" };
            e.name = name.unwrap_or_else(|| format!("{word} {number}")).as_str().into();
            e.from = stat.as_ref().map(|s| Ns(s.start as i64 * 10_000_000) + boot);
        });
        Known {
            id,
            start: stat.as_ref().map(|s| s.start),
            parent: stat.as_ref().map_or(0, |s| s.parent),
            ended: false,
            kernel: stat.as_ref().is_some_and(|s| s.flags & PF_KTHREAD != 0),
            renames: 0,
            asked: crate::context::now(),
        }
    }

    /// Whether an event knows the thread by another name than we do, and has not done so too often.
    fn is_new_name(&self, lanes: &Lanes, known: Known, comm: &[u8]) -> bool {
        let end = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
        let same = || lanes.get(known.id).is_some_and(|e| e.name.as_bytes() == &comm[..end]);
        end > 0 && !known.ended && known.renames < RENAMES && !same()
    }

    /// A thread that was first seen between fork and exec bears its parent's name until an event
    /// says better.
    fn follow_name(&mut self, lanes: &mut Lanes, known: Known, tid: u32, tgid: u32, comm: &[u8]) {
        if let Some(known) = self.threads.get_mut(tid) {
            known.renames += 1;
        }
        let name = text(comm);
        lanes.update(known.id, |e| e.name = name.as_str().into());
        if tid == tgid
            && let Some(process) = self.processes.get(tgid)
        {
            lanes.update(process.id, |e| e.name = name.as_str().into());
        }
    }

    /// Whether the number belongs to somebody else by now; /proc is asked if its owner has ended,
    /// was last looked at some time ago, or is `suspect`.
    fn used_again(&mut self, number: u32, known: Known, suspect: bool) -> bool {
        if !known.ended && !suspect {
            let now = crate::context::now();
            if now - known.asked < FRESH {
                return false;
            }
            for cache in [&mut self.threads, &mut self.processes] {
                if let Some(entry) = cache.get_mut(number)
                    && entry.id == known.id
                {
                    entry.asked = now;
                }
            }
        }
        self.stat(number).is_some_and(|stat| Some(stat.start) != known.start)
    }

    fn stat(&mut self, number: u32) -> Option<Stat> {
        Stat::parse(self.read(&format!("/proc/{number}/stat"))?)
    }

    /// A small file of /proc; what is longer than the buffer is cut.
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
                self.buffer.resize(4096.max(filled), 0);
            }
        }
        str::from_utf8(&self.buffer[..filled]).ok()
    }
}

/// A comm without what follows its NUL.
fn text(comm: &[u8]) -> String {
    let end = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

/// What is wanted of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: u32,
    flags: u32,
    /// Clock ticks since boot.
    start: u64,
}

impl Stat {
    /// The name may hold spaces and parentheses: it ends at the last one.
    fn parse(line: &str) -> Option<Stat> {
        let (open, close) = (line.find('(')?, line.rfind(')')?);
        let name = line.get(open + 1..close)?.to_owned();
        let fields: Vec<&str> = line[close + 1..].split_whitespace().take(20).collect();
        let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
        Some(Stat {
            name,
            parent: u32::try_from(number(1)?).ok()?,
            flags: number(6)? as u32,
            start: number(19)?,
        })
    }
}

/// Two generations: what is used moves to the young one; when that is full the old one is
/// forgotten and the young one becomes old.
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

    fn people() -> (Lanes, Attribution) {
        let mut lanes = Lanes::default();
        let host = lanes.entity(EntityKind::Host, "host", |_| {});
        (lanes, Attribution::new(host))
    }

    #[test]
    fn a_name_may_hold_anything() {
        let tail = "S 1 2 3 0 -1 2129984 0 0 0 0 5 6 0 0 20 0 1 0 4711 8192 0";
        let stat = Stat::parse(&format!("42 (a) (b c) {tail}")).unwrap();
        assert_eq!(stat.name, "a) (b c");
        assert_eq!((stat.parent, stat.start), (1, 4711));
        assert_eq!(stat.flags & PF_KTHREAD, PF_KTHREAD);
        for broken in ["", "42 (a", "42 )a( S", "42 (a) S 1 2", "42 (a) S x 2 3 0 -1 0"] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_thread_belongs_to_its_process_and_both_have_names_and_a_start() {
        let (mut lanes, mut people) = people();
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        // Until exec it is still called as we are.
        while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() != "sleep" {
            std::thread::yield_now();
        }
        let thread = people.thread(&mut lanes, pid, pid, None);
        let process = people.process(&mut lanes, pid, None);
        let entity = lanes.get(thread).unwrap().clone();
        assert_eq!((&*entity.name, entity.parent), ("sleep", Some(process)));
        assert_eq!(entity.number, Some(i64::from(pid)));
        let now = crate::context::now();
        assert!(entity.from.unwrap() <= now && entity.from.unwrap() > now - Ns::secs(3600));
        assert_eq!(people.seen(pid), Some(thread));
        assert!(people.processes().any(|p| p.pid == pid && p.parent == std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_is_gone_keeps_the_name_that_the_event_carried() {
        let (mut lanes, mut people) = people();
        // Larger than any pid that this kernel gives out.
        let (a, b) = (0x7fff_fff0, 0x7fff_fff1);
        let thread = people.thread(&mut lanes, a, a, Some(b"ghost\0\0"));
        assert_eq!(&*lanes.get(thread).unwrap().name, "ghost");
        let thread = people.thread(&mut lanes, b, b, None);
        assert_eq!(&*lanes.get(thread).unwrap().name, "tid 2147483633");
        assert_eq!(people.cgroups(&mut lanes, a), None);
    }

    #[test]
    fn the_last_events_of_a_thread_still_find_it_and_its_number_can_be_used_again() {
        let (mut lanes, mut people) = people();
        let gone = 0x7fff_fff0;
        let first = people.thread(&mut lanes, gone, gone, Some(b"first"));
        people.exited(&mut lanes, gone, gone, Ns(7));
        assert_eq!(people.thread(&mut lanes, gone, gone, Some(b"other")), first);
        assert_eq!(&*lanes.get(first).unwrap().name, "first");
        assert_eq!(lanes.get(first).unwrap().to, Some(Ns(7)));
        // A number that /proc knows with another start time is somebody else's by now, whether we
        // were told of the exit or only see it some time later.
        let us = 1;
        let init = people.thread(&mut lanes, us, us, None);
        people.threads.get_mut(us).unwrap().start = Some(7);
        assert_eq!(people.thread(&mut lanes, us, us, None), init);
        assert_eq!(people.threads.peek(us).unwrap().start, Some(7));
        people.threads.get_mut(us).unwrap().asked = Ns(-FRESH.0);
        people.thread(&mut lanes, us, us, None);
        assert_ne!(people.threads.peek(us).unwrap().start, Some(7));
        let me = std::process::id();
        let before = people.thread(&mut lanes, me, me, None);
        people.exited(&mut lanes, me, me, Ns(9));
        people.threads.get_mut(me).unwrap().start = Some(1);
        people.processes.get_mut(me).unwrap().start = Some(1);
        assert_ne!(people.thread(&mut lanes, me, me, None), before);
    }

    #[test]
    fn who_goes_unseen_is_ended_by_a_sweep_and_who_is_here_is_not() {
        let (mut lanes, mut people) = people();
        let me = std::process::id();
        let here = people.process(&mut lanes, me, None);
        let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let gone = people.thread(&mut lanes, pid, pid, None);
        let ghost = people.thread(&mut lanes, 0x7fff_fff0, 0x7fff_fff0, Some(b"ghost"));
        child.kill().unwrap();
        child.wait().unwrap();
        // Two at a time, so that it takes several rounds to see all.
        (0..4).for_each(|_| people.sweep(&mut lanes, Ns(7), 2));
        let ended = |id| lanes.get(id).unwrap().to;
        assert_eq!((ended(here), ended(gone), ended(ghost)), (None, Some(Ns(7)), Some(Ns(7))));
    }

    #[test]
    fn a_name_first_seen_before_exec_is_corrected_but_not_without_end() {
        let (mut lanes, mut people) = people();
        let pid = 0x7fff_fff0;
        let thread = people.thread(&mut lanes, pid, pid, Some(b"bash"));
        people.thread(&mut lanes, pid, pid, Some(b"cpuhog\0\0"));
        let process = people.process(&mut lanes, pid, None);
        assert_eq!(&*lanes.get(thread).unwrap().name, "cpuhog");
        assert_eq!(&*lanes.get(process).unwrap().name, "cpuhog");
        for i in 0..100 {
            people.thread(&mut lanes, pid, pid, Some(format!("job {i}").as_bytes()));
        }
        let mut rows = Rows::default();
        lanes.drain(&mut rows);
        let renamed = rows.entity.iter().filter(|e| e.id == thread).count();
        assert_eq!(renamed, 1 + usize::from(RENAMES));
        people.renamed(&mut lanes, pid, pid, b"exec");
        assert_eq!(&*lanes.get(thread).unwrap().name, "exec");
    }

    #[test]
    fn the_cache_is_bounded_and_who_falls_out_is_found_again() {
        let (mut lanes, mut people) = people();
        let me = std::process::id();
        let mine = people.thread(&mut lanes, me, me, None);
        let known = *people.threads.peek(me).unwrap();
        for number in 0..3 * GENERATION as u32 {
            people.threads.insert(0x1000_0000 + number, known);
        }
        assert!(people.threads.young.len() + people.threads.old.len() <= 2 * GENERATION);
        assert_eq!(people.seen(me), None);
        assert_eq!(people.thread(&mut lanes, me, me, None), mine);
    }

    #[test]
    fn a_process_in_a_container_hangs_below_its_pod() {
        let (mut lanes, mut people) = people();
        let id = "0123456789abcdef".repeat(4);
        let path = format!("/kubepods/pod3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e/{id}");
        let membership = Membership { hierarchy: "v2".into(), path };
        let mut at = Some(people.cgroup(&mut lanes, &membership));
        let mut chain = Vec::new();
        while let Some(entity) = at.and_then(|id| lanes.get(id)) {
            chain.push(format!("{} {}", entity.kind.as_str(), entity.name));
            at = entity.parent;
        }
        assert_eq!(
            chain[1..],
            ["container 0123456789ab", "job pod 3b7c1f2e-0d4a-4c8b-9e21-5f6a7b8c9d0e", "host host"]
        );
    }
}
