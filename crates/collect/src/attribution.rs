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
//! that is used again is another process. A thread is known by its process and its own number, and is
//! read below its process (`/proc/TGID/task/TID`), so that it is never another process's. The cache
//! holds two generations of [`GENERATION`] entries; an entry that falls out of it is looked up in /proc
//! again and found to be the same.
//!
//! Processes that report by themselves (guests) are believed less: see [`Attribution::guest`].

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use foldhash::HashMap;
use gpuwhy_schema::{Entity, EntityId, EntityKind, Lanes, Ns};

use crate::bpf::text_of;
use crate::cgroup_path::{Membership, Mounts, Owner, main_membership, memberships, owners};
use crate::groups;
use crate::guest::{Guest, HostProcess};
use crate::procfs::{Proc, Stat};
use crate::quota::Bucket;
use crate::sys;

/// Entries of each of the two generations of the cache, for threads and for processes.
const GENERATION: usize = 16 * 1024;

/// How often the name that events carry may rename a thread; exec is not counted. A program that
/// renames itself at every request should not fill the trace with names.
const RENAMES: u8 = 8;

/// How long what /proc reported for a number is used: not every exit is recorded, and numbers are
/// used again, though hardly within this time.
const FRESH: Ns = Ns::secs(10);

/// As [`FRESH`] for threads of guests: a thread of a container has another number here than there, so that
/// its successor under its own number is not seen by its number here.
const FRESH_OF_GUEST: Ns = Ns::secs(2);

/// Bytes of a file of /proc that are read.
const BUFFER: usize = 4096;

/// Threads and processes seen so far.
#[derive(Debug)]
pub(crate) struct Attribution {
    proc: Proc,
    host: EntityId,
    /// By the numbers of the process and of the thread, see [`thread_number`].
    threads: Cache,
    /// By the number of the process.
    processes: Cache,
    mounts: Mounts,
    /// Cgroups by their keys, with the inodes of their folders: one that was removed and made again is
    /// another one.
    cgroups: HashMap<String, (EntityId, u64)>,
    /// Numbers entities whose start time is not known, so that two of them are two.
    unknown: u64,
    /// Up to which entity [`Attribution::sweep`] has come.
    swept: EntityId,
    /// When the present tick began: to ask the clock for each event would cost as much as the look-up.
    now: Ns,
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

/// A thread or process by its numbers.
#[derive(Clone, Copy, Debug)]
enum Which {
    Process(u32),
    Thread { tid: u32, tgid: u32 },
}

/// A guest's look-ups are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLookUps;

/// A process that was seen and has not been seen to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's number when it was first seen; 0 if not known.
    pub parent: u32,
}

/// Cgroups that are known at a time; beyond this number all are looked up again.
const CGROUPS: usize = 16 * 1024;

/// When a process or thread began that has this start in clock ticks since boot, to 10 ms. The trace clock
/// stands still while the host is suspended; where it was since then, the result is earlier than the truth.
fn began(start: u64) -> Ns {
    let ticks = i64::try_from(start.saturating_mul(10_000_000)).unwrap_or(i64::MAX);
    Ns(ticks).saturating_sub(sys::suspended())
}

/// The number of a thread in the cache of threads.
fn thread_number(tid: u32, tgid: u32) -> u64 {
    u64::from(tgid) << 32 | u64::from(tid)
}

impl Attribution {
    /// With no entries yet, on `host`.
    pub fn new(host: EntityId) -> Attribution {
        Attribution::of(host, Proc::default())
    }

    /// As [`Attribution::new`], with another folder of processes.
    pub fn of(host: EntityId, proc: Proc) -> Attribution {
        let mounts = fs::read_to_string(proc.path("self/mountinfo")).unwrap_or_default();
        Attribution {
            proc,
            host,
            threads: Cache::default(),
            processes: Cache::default(),
            mounts: Mounts::parse(&mounts),
            cgroups: HashMap::default(),
            unknown: 0,
            swept: EntityId(0),
            now: sys::monotonic(),
            buffer: vec![0; BUFFER],
        }
    }

    /// A tick begins.
    pub fn tick(&mut self, now: Ns) {
        self.now = now;
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
        let number = thread_number(tid, tgid);
        if let Some(&known) = self.threads.get(number) {
            let name = comm.filter(|comm| self.is_new_name(catalog, known, comm));
            if !self.is_reused(Which::Thread { tid, tgid }, known, name.is_some()) {
                if let Some(name) = name {
                    self.follow_name(catalog, known, tid, tgid, name);
                }
                return known.id;
            }
            self.threads.remove(number);
        }
        let process = self.process(catalog, tgid, if tid == tgid { comm } else { None });
        let which = Which::Thread { tid, tgid };
        let stat = self.stat(which);
        let known = self.look_up(catalog, which, stat, process, comm);
        self.threads.insert(number, known);
        known.id
    }

    /// The process `tgid`; `comm` is the name of one of its threads, for the case that the process has
    /// ended and /proc knows nothing better.
    pub fn process(&mut self, catalog: &mut Lanes, tgid: u32, comm: Option<&[u8]>) -> EntityId {
        let number = u64::from(tgid);
        if let Some(&known) = self.processes.get(number) {
            if !self.is_reused(Which::Process(tgid), known, false) {
                return known.id;
            }
            self.processes.remove(number);
        }
        let parent = self.cgroup_of_process(catalog, tgid).unwrap_or(self.host);
        let which = Which::Process(tgid);
        let stat = self.stat(which);
        let known = self.look_up(catalog, which, stat, parent, comm);
        self.processes.insert(number, known);
        known.id
    }

    /// Who process `pid` is, which reports by itself, and which `lives` says to live once its start has
    /// been read: `None` if it does not, or nothing can be known of it. What it reports later is its own,
    /// whoever has its number then.
    pub fn guest(
        &mut self,
        catalog: &mut Lanes,
        pid: u32,
        lives: impl FnOnce() -> bool,
    ) -> Option<Guest> {
        let start = self.proc.start_time(pid)?;
        let numbers = self.proc.namespace_pids(pid);
        let known = self.processes.get(u64::from(pid)).copied();
        if let Some(known) = known.filter(|known| known.start != Some(start)) {
            self.processes.remove(u64::from(pid));
            // Its end may not have been seen.
            if !known.ended {
                catalog.end(known.id, sys::monotonic());
            }
        }
        let process = self.process(catalog, pid, None);
        if !lives() || self.processes.get(u64::from(pid))?.start != Some(start) {
            return None;
        }
        let began = began(start);
        Some(Guest::new(process, HostProcess { pid, start }, &numbers, began))
    }

    /// The thread of this host that a guest means by its own number `own_tid`, if the guest has such a
    /// thread now. Each file that is read is taken from `look_ups`.
    ///
    /// # Errors
    /// `look_ups` are used up, so that it cannot be known now.
    pub fn guest_tid(
        &mut self,
        guest: &mut Guest,
        own_tid: u32,
        now: Ns,
        look_ups: &mut Bucket,
    ) -> Result<Option<u32>, NoLookUps> {
        let Some(HostProcess { pid, start }) = guest.host() else { return Ok(None) };
        if !look_ups.take(2) {
            return Err(NoLookUps);
        }
        let tid = if guest.is_nested() {
            if guest.is_to_be_listed(own_tid, now) {
                let most = usize::try_from(look_ups.left()).unwrap_or(usize::MAX);
                let all = self.proc.inner_tids(pid, most);
                look_ups.take(all.len() as u64);
                guest.learn(&all, now);
            }
            guest.tid(own_tid)
        } else {
            Some(own_tid)
        };
        let lives = |tid: &u32| self.proc.thread_start(pid, *tid).is_some();
        // The process last: it had this number while its threads were looked at.
        Ok(tid.filter(lives).filter(|_| self.proc.start_time(pid) == Some(start)))
    }

    /// The thread `tid` of a guest's process, if it lives or was known when it did.
    pub fn guest_thread(
        &mut self,
        catalog: &mut Lanes,
        guest: &Guest,
        tid: u32,
    ) -> Option<EntityId> {
        let which = Which::Thread { tid, tgid: guest.host()?.pid };
        let number = thread_number(tid, guest.host()?.pid);
        if let Some(&known) = self.threads.get(number)
            && known.start.is_some()
            && !self.is_reused(which, known, false)
        {
            return Some(known.id);
        }
        let stat = self.stat(which)?;
        let known = self.look_up(catalog, which, Some(stat), guest.process(), None);
        self.threads.insert(number, known);
        Some(known.id)
    }

    /// Whether this very process lives; /proc is read.
    pub fn is_alive(&self, HostProcess { pid, start }: HostProcess) -> bool {
        self.proc.start_time(pid) == Some(start)
    }

    /// Whether `thread` is still who has this number in process `tgid`, as far as is known without
    /// looking: it has not ended, and was looked at a short time ago.
    pub fn is_current(&mut self, tid: u32, tgid: u32, thread: EntityId, now: Ns) -> bool {
        self.threads.get(thread_number(tid, tgid)).is_some_and(|known| {
            known.id == thread && !known.ended && now - known.looked_up < FRESH_OF_GUEST
        })
    }

    /// Looks whether `thread` still lives under this number in process `tgid`.
    pub fn confirm(&mut self, tid: u32, tgid: u32, thread: EntityId) -> bool {
        let start = self.proc.thread_start(tgid, tid);
        let known = self.threads.get_mut(thread_number(tid, tgid));
        known
            .filter(|known| known.id == thread && start.is_some() && known.start == start)
            .is_some_and(|known| {
                known.looked_up = sys::monotonic();
                !known.ended
            })
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
        let mut end = |cache: &mut Cache, number: u64| {
            if let Some(known) = cache.get_mut(number)
                && !known.ended
            {
                known.ended = true;
                catalog.end(known.id, at);
            }
        };
        end(&mut self.threads, thread_number(tid, tgid));
        if tid == tgid {
            end(&mut self.processes, u64::from(tgid));
        }
    }

    /// Ends threads and processes that have exited unseen, as exits are recorded of threads of interest
    /// and of processes only. Looks at `most` of them at most, at the next ones each time.
    pub fn sweep(&mut self, catalog: &mut Lanes, now: Ns, most: usize) {
        let number = |e: &Entity| u32::try_from(e.number?).ok();
        let of = |e: &Entity| {
            let start = e.key.split_once('@')?.1.parse::<u64>().ok();
            let which = match e.kind {
                EntityKind::Process => Which::Process(number(e)?),
                EntityKind::Thread => {
                    Which::Thread { tid: number(e)?, tgid: number(catalog.get(e.parent?)?)? }
                }
                _ => return None,
            };
            Some((e.id, which, start))
        };
        let checked: Vec<_> = catalog.living_after(self.swept).filter_map(of).take(most).collect();
        let last = checked.last().filter(|_| checked.len() == most);
        self.swept = last.map_or(EntityId(0), |last| last.0);
        for (id, which, start) in checked {
            // An entity whose start is not known had ended when it was looked up.
            let lives = start.is_some() && self.stat(which).map(|stat| stat.start) == start;
            if lives {
                continue;
            }
            if let Some(known) = self.known_mut(which).filter(|known| known.id == id) {
                known.ended = true;
            }
            catalog.end(id, now);
        }
    }

    /// The processes that are known and live.
    pub fn processes(&self) -> impl Iterator<Item = Process> {
        let living = self.processes.iter().filter(|(_, known)| !known.ended);
        living.map(|(pid, known)| Process { pid: pid as u32, parent: known.parent })
    }

    fn known_mut(&mut self, which: Which) -> Option<&mut Known> {
        match which {
            Which::Process(pid) => self.processes.get_mut(u64::from(pid)),
            Which::Thread { tid, tgid } => self.threads.get_mut(thread_number(tid, tgid)),
        }
    }

    /// Reads the cgroups that process `pid` is in and, if it has moved, updates its entity. `None` if
    /// the process has ended.
    pub fn cgroups(&mut self, catalog: &mut Lanes, pid: u32) -> Option<Vec<Membership>> {
        let all = memberships(self.read(&format!("{pid}/cgroup"))?);
        if let Some(&known) = self.processes.get(u64::from(pid))
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
        let key = membership.key();
        let folder = self.mounts.folder(membership);
        let inode = folder.and_then(|folder| Some(fs::metadata(folder).ok()?.ino()));
        if let (Some(inode), Some(&(known, before))) = (inode, self.cgroups.get(&key))
            && inode != before
        {
            catalog.end(known, sys::monotonic());
        }
        let id = catalog.entity(EntityKind::Cgroup, &key, |e| {
            e.parent = Some(above);
            e.name = membership.path.as_str().into();
        });
        if let Some(inode) = inode {
            if self.cgroups.len() >= CGROUPS {
                self.cgroups.clear();
            }
            self.cgroups.insert(key, (id, inode));
        }
        id
    }

    /// Ends the cgroups, containers, jobs and virtual machines to which nothing belongs any more, `patience`
    /// after that ended.
    pub fn end_groups(&mut self, catalog: &mut Lanes, now: Ns, patience: Ns) {
        let Attribution { mounts, cgroups, .. } = self;
        groups::end(catalog, now, patience, |group| {
            // One whose folder was never seen may lie where we do not see.
            cgroups.get(&*group.key).filter(|(known, _)| *known == group.id)?;
            let (hierarchy, path) = group.key.split_once(":/")?;
            let membership =
                Membership { hierarchy: hierarchy.to_owned(), path: format!("/{path}") };
            let folder = mounts.folder(&membership)?;
            let is_gone = fs::metadata(folder).is_err_and(|e| e.kind() == ErrorKind::NotFound);
            if is_gone {
                cgroups.remove(&*group.key);
            }
            Some(is_gone)
        });
    }

    /// Where cgroups are mounted.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// The cgroup entity that a process belongs to; `None` for a process that has ended, or that is in
    /// no other cgroup than the roots.
    fn cgroup_of_process(&mut self, catalog: &mut Lanes, pid: u32) -> Option<EntityId> {
        let all = memberships(self.read(&format!("{pid}/cgroup"))?);
        self.main_cgroup(catalog, &all)
    }

    fn main_cgroup(&mut self, catalog: &mut Lanes, all: &[Membership]) -> Option<EntityId> {
        let main = main_membership(all)?.clone();
        Some(self.cgroup(catalog, &main))
    }

    fn look_up(
        &mut self,
        catalog: &mut Lanes,
        which: Which,
        stat: Option<Stat>,
        parent: EntityId,
        comm: Option<&[u8]>,
    ) -> Known {
        let (kind, number, word) = match which {
            Which::Process(pid) => (EntityKind::Process, pid, "pid"),
            Which::Thread { tid, .. } => (EntityKind::Thread, tid, "tid"),
        };
        let key = match &stat {
            Some(stat) => format!("{number}@{}", stat.start),
            None => {
                self.unknown += 1;
                format!("{number}@unknown.{}", self.unknown)
            }
        };
        let id = catalog.entity(kind, &key, |e| {
            e.parent = Some(parent);
            e.number = Some(i64::from(number));
            // /proc is read after the event, so that its name is the later one.
            let name = stat.as_ref().map(|s| s.name.clone()).or_else(|| comm.map(text_of));
            e.name = name.unwrap_or_else(|| format!("{word} {number}")).as_str().into();
            e.from = stat.as_ref().map(|s| began(s.start));
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
        if let Some(known) = self.threads.get_mut(thread_number(tid, tgid)) {
            known.renames += 1;
        }
        let name = text_of(comm);
        catalog.update(known.id, |e| e.name = name.as_str().into());
        if tid == tgid
            && let Some(process) = self.processes.get(u64::from(tgid))
        {
            catalog.update(process.id, |e| e.name = name.as_str().into());
        }
    }

    /// Whether the number belongs to another thread or process by now; /proc is read if the known one
    /// has ended, was last looked up some time ago, or is `suspect`.
    fn is_reused(&mut self, which: Which, known: Known, suspect: bool) -> bool {
        if !known.ended && !suspect {
            let now = self.now;
            if now - known.looked_up < FRESH {
                return false;
            }
            if let Some(entry) = self.known_mut(which) {
                entry.looked_up = now;
            }
        }
        self.stat(which).is_some_and(|stat| Some(stat.start) != known.start)
    }

    fn stat(&mut self, which: Which) -> Option<Stat> {
        let path = match which {
            Which::Process(pid) => format!("{pid}/stat"),
            Which::Thread { tid, tgid } => format!("{tgid}/task/{tid}/stat"),
        };
        Stat::parse(self.read(&path)?)
    }

    /// A small file of /proc, cut to the length of the buffer.
    fn read(&mut self, path: &str) -> Option<&str> {
        let path: PathBuf = self.proc.path(path);
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
    young: HashMap<u64, Known>,
    old: HashMap<u64, Known>,
}

impl Cache {
    fn get(&mut self, number: u64) -> Option<&Known> {
        self.get_mut(number).map(|known| &*known)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Known> {
        if !self.young.contains_key(&number) {
            let known = self.old.remove(&number)?;
            self.insert(number, known);
        }
        self.young.get_mut(&number)
    }

    #[cfg(test)]
    fn peek(&self, number: u64) -> Option<&Known> {
        self.young.get(&number).or_else(|| self.old.get(&number))
    }

    fn insert(&mut self, number: u64, known: Known) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(number, known);
    }

    fn remove(&mut self, number: u64) {
        self.young.remove(&number);
        self.old.remove(&number);
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Known)> {
        let old = self.old.iter().filter(|(number, _)| !self.young.contains_key(number));
        self.young.iter().chain(old).map(|(&number, known)| (number, known))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Command, Stdio};

    use gpuwhy_schema::Rows;

    use super::*;

    /// A catalog with a host and nothing on it.
    fn empty() -> (Lanes, Attribution) {
        let mut catalog = Lanes::default();
        let host = catalog.entity(EntityKind::Host, "host", |_| {});
        (catalog, Attribution::new(host))
    }

    /// A host whose one hierarchy of control groups is mounted at `folder`.
    fn with_cgroups(proc: &Path, folder: &Path) -> (Lanes, Attribution) {
        std::fs::create_dir_all(proc.join("self")).unwrap();
        let mount = format!("33 30 0:29 / {} rw - cgroup2 cgroup2 rw\n", folder.display());
        std::fs::write(proc.join("self/mountinfo"), mount).unwrap();
        let mut catalog = Lanes::default();
        let host = catalog.entity(EntityKind::Host, "host", |_| {});
        (catalog, Attribution::of(host, Proc::at(proc)))
    }

    fn known(attribution: &mut Attribution, tid: u32) -> &mut Known {
        attribution.threads.get_mut(thread_number(tid, tid)).unwrap()
    }

    fn cached(attribution: &Attribution, tid: u32) -> Option<EntityId> {
        attribution.threads.peek(thread_number(tid, tid)).map(|known| known.id)
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
        known(&mut attribution, init).start = Some(7);
        assert_eq!(attribution.thread(&mut catalog, init, init, None), first);
        assert_eq!(known(&mut attribution, init).start, Some(7));
        known(&mut attribution, init).looked_up = Ns(-FRESH.0);
        attribution.thread(&mut catalog, init, init, None);
        assert_ne!(known(&mut attribution, init).start, Some(7));
        let me = std::process::id();
        let before = attribution.thread(&mut catalog, me, me, None);
        attribution.exited(&mut catalog, me, me, Ns(9));
        known(&mut attribution, me).start = Some(1);
        attribution.processes.get_mut(u64::from(me)).unwrap().start = Some(1);
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
        let known = *known(&mut attribution, me);
        for number in 0..3 * GENERATION as u32 {
            attribution.threads.insert(thread_number(0x1000_0000 + number, 0), known);
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

    #[test]
    fn a_tid_of_another_process_is_another_thread() {
        let (mut catalog, mut attribution) = empty();
        let me = std::process::id();
        let mine = attribution.thread(&mut catalog, me, me, None);
        let init = attribution.process(&mut catalog, 1, None);
        // An event of a thread of init that had this number, and has ended.
        let other = attribution.thread(&mut catalog, me, 1, None);
        assert_ne!(other, mine);
        assert_eq!(catalog.get(other).unwrap().parent, Some(init));
        assert!(catalog.get(other).unwrap().key.contains("unknown"));
        assert_eq!(attribution.thread(&mut catalog, me, me, None), mine);
    }

    #[test]
    fn a_cgroup_that_was_made_again_is_another_one() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys");
        let (mut catalog, mut attribution) = with_cgroups(root.path(), &folder);
        let membership = Membership { hierarchy: "v2".into(), path: "/a".into() };
        std::fs::create_dir_all(folder.join("a")).unwrap();
        let first = attribution.cgroup(&mut catalog, &membership);
        assert_eq!(attribution.cgroup(&mut catalog, &membership), first);
        // Kept, so that its inode is not used again at once.
        std::fs::rename(folder.join("a"), folder.join("b")).unwrap();
        std::fs::create_dir_all(folder.join("a")).unwrap();
        let second = attribution.cgroup(&mut catalog, &membership);
        assert_ne!(first, second);
        assert!(catalog.get(first).unwrap().to.is_some());
        assert_eq!(attribution.cgroup(&mut catalog, &membership), second);
    }

    #[test]
    fn a_cgroup_that_was_removed_has_ended_and_one_that_is_there_has_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys");
        let (mut catalog, mut attribution) = with_cgroups(root.path(), &folder);
        let mut cgroup = |path: &str| {
            let membership = Membership { hierarchy: "v2".into(), path: path.into() };
            attribution.cgroup(&mut catalog, &membership)
        };
        let id = "0123456789abcdef".repeat(4);
        let paths = [format!("/docker/{id}"), "/there".into(), "/unseen".into()];
        for path in &paths[..2] {
            std::fs::create_dir_all(folder.join(&path[1..])).unwrap();
        }
        let [container, there, unseen] = paths.clone().map(|path| cgroup(&path));
        std::fs::remove_dir_all(folder.join("docker")).unwrap();
        attribution.end_groups(&mut catalog, Ns::secs(50), Ns::ZERO);
        let ended = |id| catalog.get(id).unwrap().to;
        assert_eq!((ended(there), ended(unseen)), (None, None));
        assert_eq!(ended(container), Some(Ns::secs(50)));
        let above = catalog.get(container).unwrap().parent.unwrap();
        assert_eq!(catalog.get(above).unwrap().kind, EntityKind::Container);
        assert_eq!(ended(above), Some(Ns::secs(50)));
    }

    /// Finding 5: each lie about a thread of a container made the recorder walk all its threads.
    #[test]
    fn lies_about_threads_cost_no_more_than_the_look_ups_of_the_guest() {
        let root = tempfile::tempdir().unwrap();
        let stat = "1 (t) S 1 2 3 0 -1 0 0 0 0 0 5 6 0 0 20 0 1 0 7 1 0";
        for tid in 4242..4342 {
            let status = format!("Name:\tt\nNSpid:\t{tid}\t{}\n", tid - 4241);
            for folder in [format!("4242/task/{tid}"), "4242".into()] {
                let folder = root.path().join(folder);
                std::fs::create_dir_all(&folder).unwrap();
                if !folder.join("stat").exists() {
                    std::fs::write(folder.join("stat"), stat).unwrap();
                    std::fs::write(folder.join("status"), &status).unwrap();
                }
            }
        }
        let mut catalog = Lanes::default();
        let host = catalog.entity(EntityKind::Host, "host", |_| {});
        let mut attribution = Attribution::of(host, Proc::at(root.path()));
        let mut guest = attribution.guest(&mut catalog, 4242, || true).unwrap();
        let mut look_ups = Bucket::new(crate::quota::LOOK_UPS);
        let mut find = |tid, now, look_ups: &mut Bucket| {
            attribution.guest_tid(&mut guest, tid, Ns(now), look_ups)
        };
        assert_eq!(find(9, 0, &mut look_ups), Ok(Some(4250)));
        let answered =
            (1000..100_000).filter(|lie| find(*lie, 1, &mut look_ups) == Ok(None)).count();
        // One walk in a tick, and two files for each.
        assert!(answered <= 1024 - 100, "{answered}");
        assert_eq!(find(9, 1, &mut look_ups), Err(NoLookUps));
        let walks = (2..1000).filter(|now| {
            look_ups = Bucket::new(crate::quota::LOOK_UPS);
            let before = look_ups.left();
            let _ = find(5000, *now, &mut look_ups);
            before - look_ups.left() == 102
        });
        assert_eq!(walks.count(), 998, "a walk is paid for");
    }
}
