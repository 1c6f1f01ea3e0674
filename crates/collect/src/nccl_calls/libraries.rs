//! Which processes have NCCL in them, and where.
//!
//! A thread of its own looks: `/proc/PID/maps` of a training process has thousands of lines, and the
//! symbols of a library of gigabytes take a while. What was found in a file is kept by its device and
//! inode, so that a file is read once however many processes map it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::{HashMap, HashSet, HashSetExt as _};
use gpuwhy_schema::Ns;
use object::read::ReadCache;
use object::{Object, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use super::functions::number;
use crate::kernel;
use crate::run_queue::family;
use crate::steps::offset_of;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// A process is looked at every second for so long since it was first seen, and while nothing was
/// found in it; NCCL comes with a framework, whose loading takes a while.
const YOUNG: Ns = Ns::secs(60);
/// How often an older one is looked at, and one in which NCCL was found.
const RARELY: Ns = Ns::secs(10);
/// NCCL built into another library brings its kernels along, which are tens of megabytes.
const LARGE: u64 = 8 << 20;
/// Processes that are watched.
const PROCESSES: usize = 4096;
/// Files that are remembered.
const FILES: usize = 4096;
/// Messages on the way; a process whose message finds no room is found again later.
const ON_THE_WAY: usize = 256;

/// A file, by device (as /proc/PID/maps writes it) and inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey(String, u64);

/// NCCL in a file.
#[derive(Debug)]
pub(super) struct Library {
    pub key: FileKey,
    /// Where its functions begin in the file, and their numbers.
    pub functions: Vec<(usize, u8)>,
}

/// A process, whose number may be used again: pid and start, in ticks since boot.
pub(super) type Who = (u32, u64);

/// What the thread tells.
#[derive(Debug)]
pub(super) enum Told {
    /// A process maps NCCL from the file behind this path.
    Maps(Who, PathBuf, Arc<Library>),
    /// A process is gone.
    Gone(Who),
}

/// The running thread, seen from outside.
pub(super) struct Finder {
    told: Receiver<Told>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    roots: Mutex<Vec<i32>>,
}

impl Finder {
    /// Begins to look at these processes and their descendants.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn begin(roots: Vec<i32>) -> std::io::Result<Finder> {
        let shared = Arc::new(Shared { roots: Mutex::new(roots), ..Shared::default() });
        let (teller, told) = sync_channel(ON_THE_WAY);
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("gpuwhy-nccl".into())
            .spawn(move || run(&theirs, &teller))?;
        Ok(Finder { told, shared, thread: Some(thread) })
    }

    /// Looks at this process and its descendants too.
    pub fn add(&self, pid: i32) {
        let mut roots = self.shared.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if !roots.contains(&pid) && roots.len() < PROCESSES {
            roots.push(pid);
        }
    }

    /// What it has to tell, if anything.
    pub fn next(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It may be in the middle of a large file; nobody waits for that.
            thread.thread().unpark();
        }
    }
}

fn run(shared: &Shared, teller: &SyncSender<Told>) {
    // Whoever trains goes first.
    kernel::nice(10);
    let mut looker = Looker::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let roots = {
            let mut roots = shared.roots.lock().unwrap_or_else(PoisonError::into_inner);
            roots.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
            roots.clone()
        };
        let mut pids: Vec<u32> = roots.into_iter().flat_map(family).collect();
        pids.sort_unstable();
        pids.dedup();
        looker.look(&pids, kernel::monotonic(), |told| teller.try_send(told).is_ok());
        std::thread::park_timeout(EVERY);
    }
}

/// What is known of processes and files.
#[derive(Default)]
struct Looker {
    processes: HashMap<Who, Process>,
    files: HashMap<FileKey, Option<Arc<Library>>>,
}

struct Process {
    since: Ns,
    looked: Option<Ns>,
    told: HashSet<FileKey>,
}

impl Process {
    /// Whether it is time to look at it again.
    fn is_due(&self, now: Ns) -> bool {
        let Some(looked) = self.looked else { return true };
        let young = now - self.since < YOUNG && self.told.is_empty();
        young || now - looked >= RARELY
    }
}

impl Looker {
    /// Looks at these processes; `tell` says whether there was room for what it was told.
    fn look(&mut self, pids: &[u32], now: Ns, mut tell: impl FnMut(Told) -> bool) {
        let mut here = HashSet::new();
        for &pid in pids {
            let Some(start) = start_of(pid) else { continue };
            let who = (pid, start);
            here.insert(who);
            if !self.processes.contains_key(&who) && self.processes.len() >= PROCESSES {
                continue;
            }
            let process = self.processes.entry(who).or_insert_with(|| Process {
                since: now,
                looked: None,
                told: HashSet::new(),
            });
            if !process.is_due(now) {
                continue;
            }
            process.looked = Some(now);
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            for mapping in mappings(&maps) {
                if process.told.contains(&mapping.key) {
                    continue;
                }
                let path = mapping.path(pid);
                if self.files.len() >= FILES {
                    self.files.clear();
                }
                let found = self.files.entry(mapping.key.clone()).or_insert_with(|| {
                    let library = look_into(&path, mapping.key.clone(), mapping.is_by_name());
                    library.map(Arc::new)
                });
                if let Some(library) = found
                    && tell(Told::Maps(who, path, Arc::clone(library)))
                {
                    process.told.insert(mapping.key);
                }
            }
        }
        self.processes.retain(|who, _| here.contains(who) || !tell(Told::Gone(*who)));
    }
}

/// When a process began, in ticks since boot; `None` if it is gone.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A file of which a process maps code.
#[derive(Debug, PartialEq)]
struct Mapping<'a> {
    key: FileKey,
    range: &'a str,
    file: &'a str,
}

impl Mapping<'_> {
    /// A way to the file from here: by the process's own root, as it may be in a container; a file
    /// that was removed since has none but that of its mapping.
    fn path(&self, pid: u32) -> PathBuf {
        match self.file.strip_suffix(" (deleted)") {
            None => format!("/proc/{pid}/root{}", self.file),
            Some(_) => format!("/proc/{pid}/map_files/{}", self.range),
        }
        .into()
    }

    /// Whether the file's name says that it is NCCL.
    fn is_by_name(&self) -> bool {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        name.starts_with("libnccl.so") || name.starts_with("libnccl-")
    }
}

/// The files of which /proc/PID/maps says that code is mapped, each once.
fn mappings(maps: &str) -> Vec<Mapping<'_>> {
    let mut seen = HashSet::new();
    let mapping = |line| {
        // "7f0a-7f0b r-xp 00059000 fe:00 1234      /usr/lib/libnccl.so.2"
        let mut rest: &str = line;
        let mut word = || {
            let (word, behind) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
            rest = behind;
            word
        };
        let (range, rights, _offset, device, inode) = (word(), word(), word(), word(), word());
        let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
        let file = rest.trim_start();
        (rights.as_bytes().get(2) == Some(&b'x') && file.starts_with('/')).then(|| Mapping {
            key: FileKey(device.to_owned(), inode),
            range,
            file,
        })
    };
    maps.lines().filter_map(mapping).filter(|m| seen.insert(m.key.clone())).collect()
}

/// NCCL's functions in a file, if it exports them. A file whose name does not say that it is NCCL is
/// looked into if it is large enough.
fn look_into(path: &Path, key: FileKey, by_name: bool) -> Option<Library> {
    let file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || (!by_name && metadata.size() < LARGE) {
        return None;
    }
    // Only what is asked for is read, of libraries of gigabytes.
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).ok()?;
    let mut functions = Vec::new();
    for symbol in elf.dynamic_symbol_table()?.symbols() {
        if symbol.kind() != SymbolKind::Text || symbol.address() == 0 || symbol.is_undefined() {
            continue;
        }
        if let Some(number) = symbol.name().ok().and_then(number)
            && let Some(offset) = offset_of(&elf, symbol.address())
        {
            functions.push((offset, number));
        }
    }
    // Two names for one place would be two calls.
    functions.sort_unstable();
    functions.dedup_by_key(|(offset, _)| *offset);
    let all_reduce = number("ncclAllReduce");
    let is_nccl = functions.iter().any(|(_, number)| Some(*number) == all_reduce);
    is_nccl.then_some(Library { key, functions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_told_once_and_removed_files_are_found_by_their_mapping() {
        let maps = "\
55d0c000-55d0e000 r--p 00000000 fe:00 41         /usr/bin/python3.12
55d0e000-55d10000 r-xp 00002000 fe:00 41         /usr/bin/python3.12
7f01000-7f02000 r-xp 00059000 00:1c 1234         /opt/my libs/libnccl.so.2
7f02000-7f03000 r-xp 0005a000 00:1c 1234         /opt/my libs/libnccl.so.2
7f03000-7f04000 r-xp 00000000 00:1c 99           /opt/libnccl.so.2.27.7 (deleted)
7f05000-7f06000 rw-p 00000000 00:00 0            [heap]
7f06000-7f07000 r-xp 00000000 00:00 0            [vdso]
7f07000-7f08000 r-xp 00000000 00:01 7            anon_inode
nonsense
";
        let found = mappings(maps);
        let told: Vec<(String, bool)> = found
            .iter()
            .map(|m| (m.path(42).to_string_lossy().into_owned(), m.is_by_name()))
            .collect();
        let expected = [
            ("/proc/42/root/usr/bin/python3.12", false),
            ("/proc/42/root/opt/my libs/libnccl.so.2", true),
            ("/proc/42/map_files/7f03000-7f04000", true),
        ];
        assert_eq!(told, expected.map(|(path, name)| (path.to_owned(), name)));
    }

    #[test]
    fn a_process_is_looked_at_often_while_it_is_young_and_told_once_when_it_is_gone() {
        let mut process =
            Process { since: Ns::ZERO, looked: Some(Ns::secs(3)), told: HashSet::new() };
        assert!(process.is_due(Ns::secs(4)), "nothing was found yet");
        process.told.insert(FileKey("fe:00".into(), 1));
        assert!(!process.is_due(Ns::secs(4)) && process.is_due(Ns::secs(13)));
        let old = Process { looked: Some(Ns::secs(100)), told: HashSet::new(), ..process };
        assert!(!old.is_due(Ns::secs(101)) && old.is_due(Ns::secs(110)));

        let mut looker = Looker::default();
        let mut told = Vec::new();
        let me = std::process::id();
        looker.look(&[me, u32::MAX], Ns::secs(1), |t| {
            told.push(format!("{t:?}"));
            true
        });
        assert!(told.is_empty(), "no NCCL in here");
        assert_eq!(looker.processes.len(), 1);
        looker.look(&[], Ns::secs(2), |t| matches!(t, Told::Gone((pid, _)) if pid == me));
        assert!(looker.processes.is_empty());
    }

    #[test]
    fn what_is_no_library_is_no_nccl() {
        let key = || FileKey("fe:00".into(), 1);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libnccl.so.2");
        assert!(look_into(&path, key(), true).is_none());
        std::fs::write(&path, "no library").unwrap();
        assert!(look_into(&path, key(), true).is_none());
        assert!(look_into(dir.path(), key(), true).is_none());
        assert!(look_into(&std::env::current_exe().unwrap(), key(), true).is_none());
    }
}
