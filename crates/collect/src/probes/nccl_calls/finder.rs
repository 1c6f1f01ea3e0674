//! Finds the processes that have loaded NCCL, and the file that it is in.
//!
//! A thread of its own reads /proc: `/proc/PID/maps` of a training process has thousands of lines, and
//! the symbols of a library of gigabytes take a while. So three things are asked first, each a file of the
//! kernel or a few bytes of a library: whether there is a new process at all, whether a process maps other
//! libraries than before, and whether the hash table of a library's symbols has NCCL's. What was found in a
//! file is kept by its device and inode, so that a file is read once however many processes map it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use foldhash::{HashMap, HashSet, HashSetExt as _};
use gpuwhy_schema::Ns;
use object::read::ReadCache;
use object::{Object, ObjectSymbol, ObjectSymbolTable};

use super::functions::number;
use crate::procfs::{self, latest_process, library_code, process_tree, start_time};
use crate::{elf, every, sys};

/// Between two searches.
const EVERY: Duration = Duration::from_secs(1);
/// For this time after it was first seen, a process is searched every second, until NCCL is found in
/// it; a framework that uses NCCL takes a while to load.
const YOUNG: Ns = Ns::secs(60);
/// How often an older process is searched, and one in which NCCL was found.
const RARELY: Ns = Ns::secs(10);
/// The least size of a file that may have NCCL built into it: NCCL's kernels alone are tens of
/// megabytes.
const LARGE: u64 = 8 << 20;
/// What NCCL exports, whatever else it does.
const ALL_REDUCE: &str = "ncclAllReduce";
/// Processes that are watched.
const PROCESSES: usize = 4096;
/// Files that are remembered.
const FILES: usize = 4096;
/// Messages in the channel; a process whose message does not fit is found again later.
const CHANNEL: usize = 256;

/// A file, by device (as /proc/PID/maps writes it) and inode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey(String, u64);

/// NCCL in a file.
#[derive(Debug)]
pub(super) struct Library {
    /// Which file it is.
    pub key: FileKey,
    /// What the process calls it.
    pub name: String,
    /// The file, kept open: a path could lead elsewhere by the time it is used.
    pub file: File,
    /// Where its functions begin in the file, and their numbers.
    pub functions: Vec<(usize, u8)>,
}

/// A process by its pid and, as that may be used again, its start in ticks since boot.
pub(super) type ProcessKey = (u32, u64);

/// A message of the thread.
#[derive(Debug)]
pub(super) enum Found {
    /// A process maps NCCL from this file.
    Library(ProcessKey, Arc<Library>),
    /// A process has ended.
    Ended(ProcessKey),
}

/// The running thread, as others see it.
pub(super) struct Finder {
    found: Receiver<Found>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    roots: Mutex<Vec<i32>>,
}

impl Finder {
    /// Begins to search these processes and their descendants.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start(roots: Vec<i32>) -> std::io::Result<Finder> {
        let shared = Arc::new(Shared { roots: Mutex::new(roots), ..Shared::default() });
        let (sender, found) = sync_channel(CHANNEL);
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("gpuwhy-nccl".into())
            .spawn(move || run(&for_thread, &sender))?;
        Ok(Finder { found, shared, thread: Some(thread) })
    }

    /// Searches this process and its descendants too.
    pub fn add(&self, pid: i32) {
        let mut roots = self.shared.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if !roots.contains(&pid) && roots.len() < PROCESSES {
            roots.push(pid);
        }
    }

    /// The next message, if there is one.
    pub fn next(&self) -> Option<Found> {
        self.found.try_recv().ok()
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It is not waited for: it may be in the middle of a large file.
            thread.thread().unpark();
        }
    }
}

fn run(shared: &Shared, sender: &SyncSender<Found>) {
    // The training goes first.
    sys::nice(10);
    let mut search = Search::default();
    let mut family = Family::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let roots = {
            let mut roots = shared.roots.lock().unwrap_or_else(PoisonError::into_inner);
            roots.retain(|pid| Path::new(&format!("/proc/{pid}")).exists());
            roots.clone()
        };
        let began = sys::thread_time();
        let pids = family.of(roots, latest_process(), process_tree);
        let walked = sys::thread_time() - began;
        search.run(pids, sys::monotonic(), |found| sender.try_send(found).is_ok());
        let pause = every::pause(Ns(EVERY.as_nanos() as i64), walked);
        std::thread::park_timeout(Duration::from_nanos(pause.0 as u64));
    }
}

/// Processes and their descendants.
#[derive(Default)]
struct Family {
    roots: Vec<i32>,
    latest: Option<u32>,
    pids: Vec<u32>,
}

impl Family {
    /// These processes and all their descendants. `latest` is the number of the process or thread that
    /// was made last: as long as it is the same, nobody has new descendants, and no tree is walked.
    fn of(
        &mut self,
        roots: Vec<i32>,
        latest: Option<u32>,
        tree: impl FnMut(i32) -> Vec<u32>,
    ) -> &[u32] {
        if latest.is_none() || latest != self.latest || roots != self.roots {
            self.pids = roots.iter().copied().flat_map(tree).collect();
            self.pids.sort_unstable();
            self.pids.dedup();
            (self.roots, self.latest) = (roots, latest);
        }
        &self.pids
    }
}

/// What is known of processes and files.
#[derive(Default)]
struct Search {
    processes: HashMap<ProcessKey, Process>,
    files: HashMap<FileKey, Option<Arc<Library>>>,
}

struct Process {
    first_seen: Ns,
    searched: Option<Ns>,
    /// How much code of libraries it mapped at that time; `None` if it is to be searched in any case.
    libraries: Option<u64>,
    /// Files with NCCL that were reported.
    reported: HashSet<FileKey>,
}

impl Process {
    /// Whether it is to be searched again: it maps other libraries than before, and some time has
    /// passed. `libraries` reads how much of them it maps.
    fn is_due(&self, now: Ns, libraries: impl FnOnce() -> Option<u64>) -> bool {
        let Some(searched) = self.searched else { return true };
        let is_young = now - self.first_seen < YOUNG && self.reported.is_empty();
        let is_time = is_young || now - searched >= RARELY;
        is_time && (self.libraries.is_none() || self.libraries != libraries())
    }
}

impl Search {
    /// Searches these processes; `report` returns whether there was room for the message.
    fn run(&mut self, pids: &[u32], now: Ns, mut report: impl FnMut(Found) -> bool) {
        let mut alive = HashSet::new();
        for &pid in pids {
            let Some(start) = start_time(pid) else { continue };
            let key = (pid, start);
            alive.insert(key);
            if !self.processes.contains_key(&key) && self.processes.len() >= PROCESSES {
                continue;
            }
            let process = self.processes.entry(key).or_insert_with(|| Process {
                first_seen: now,
                searched: None,
                libraries: None,
                reported: HashSet::new(),
            });
            if !process.is_due(now, || library_code(pid)) {
                continue;
            }
            process.searched = Some(now);
            // Before the mappings: what is loaded meanwhile is found at the next time.
            process.libraries = library_code(pid);
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            for mapped in mapped_files(&maps) {
                if process.reported.contains(&mapped.key) {
                    continue;
                }
                if self.files.len() >= FILES {
                    self.files.clear();
                }
                let found = self.files.entry(mapped.key.clone()).or_insert_with(|| {
                    let file = mapped.open(pid).ok()?;
                    library_in(file, &mapped).map(Arc::new)
                });
                let Some(library) = found else { continue };
                if report(Found::Library(key, Arc::clone(library))) {
                    process.reported.insert(mapped.key);
                } else {
                    process.libraries = None;
                }
            }
        }
        self.processes.retain(|key, _| alive.contains(key) || !report(Found::Ended(*key)));
    }
}

/// A file of which a process maps code.
#[derive(Debug, PartialEq)]
struct MappedFile<'a> {
    key: FileKey,
    range: &'a str,
    file: &'a str,
}

impl MappedFile<'_> {
    /// Opens the file within the process's own root, as it may be in a container; a file that was
    /// removed since has no path but that of its mapping.
    fn open(&self, pid: u32) -> std::io::Result<File> {
        match self.file.strip_suffix(" (deleted)") {
            None => sys::open_of_process(pid, self.file),
            Some(_) => sys::open_behind(&format!("/proc/{pid}/map_files/{}", self.range)),
        }
    }

    /// Whether the file's name says that it is NCCL.
    fn is_named_nccl(&self) -> bool {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        name.starts_with("libnccl.so") || name.starts_with("libnccl-")
    }
}

/// The files of which /proc/PID/maps says that code is mapped, each once.
fn mapped_files(maps: &str) -> Vec<MappedFile<'_>> {
    let mut seen = HashSet::new();
    procfs::mappings(maps)
        .filter(|m| m.executable && m.inode != 0 && m.path.starts_with('/'))
        .map(|m| MappedFile {
            key: FileKey(m.device.to_owned(), m.inode),
            range: m.range,
            file: m.path,
        })
        .filter(|mapped| seen.insert(mapped.key.clone()))
        .collect()
}

/// NCCL's functions in a file, if it exports them. A file whose name does not say that it is NCCL is
/// read if it is large enough.
fn library_in(file: File, mapped: &MappedFile<'_>) -> Option<Library> {
    if !mapped.is_named_nccl() && file.metadata().ok()?.size() < LARGE {
        return None;
    }
    let mut read = |at: u64, buffer: &mut [u8]| file.read_exact_at(buffer, at);
    if elf::may_export(&mut read, ALL_REDUCE) == Some(false) {
        return None;
    }
    // Libraries have gigabytes; the cache reads only the parts that are asked for.
    let cache = ReadCache::new(&file);
    let elf = object::File::parse(&cache).ok()?;
    let mut functions = Vec::new();
    for symbol in elf.dynamic_symbol_table()?.symbols().filter(elf::is_function) {
        if let Some(number) = symbol.name().ok().and_then(number)
            && let Some(offset) = elf::file_offset(&elf, symbol.address())
        {
            functions.push((offset, number));
        }
    }
    // Two names for one place would be recorded as two calls.
    functions.sort_unstable();
    functions.dedup_by_key(|(offset, _)| *offset);
    let all_reduce = number(ALL_REDUCE);
    let is_nccl = functions.iter().any(|(_, number)| Some(*number) == all_reduce);
    let (key, name) = (mapped.key.clone(), mapped.file.to_owned());
    is_nccl.then_some(Library { key, name, file, functions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_are_listed_once_and_removed_ones_are_found_by_their_mapping() {
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
        let found = mapped_files(maps);
        let listed: Vec<(String, bool)> =
            found.iter().map(|m| (format!("{} {}", m.range, m.file), m.is_named_nccl())).collect();
        let expected = [
            ("55d0e000-55d10000 /usr/bin/python3.12", false),
            ("7f01000-7f02000 /opt/my libs/libnccl.so.2", true),
            ("7f03000-7f04000 /opt/libnccl.so.2.27.7 (deleted)", true),
        ];
        assert_eq!(listed, expected.map(|(path, name)| (path.to_owned(), name)));
    }

    #[test]
    fn a_process_is_searched_often_while_it_is_young_and_its_end_is_reported_once() {
        let mut process = searched_at(Ns::secs(3));
        let is_due = |process: &Process, s| process.is_due(Ns::secs(s), || Some(3000));
        assert!(is_due(&process, 4), "nothing was found yet");
        process.reported.insert(FileKey("fe:00".into(), 1));
        assert!(!is_due(&process, 4) && is_due(&process, 13));
        let old = searched_at(Ns::secs(100));
        assert!(!is_due(&old, 101) && is_due(&old, 110));

        let mut search = Search::default();
        let mut reported = Vec::new();
        let me = std::process::id();
        search.run(&[me, u32::MAX], Ns::secs(1), |found| {
            reported.push(format!("{found:?}"));
            true
        });
        assert!(reported.is_empty(), "this test has no NCCL");
        assert_eq!(search.processes.len(), 1);
        search.run(&[], Ns::secs(2), |found| matches!(found, Found::Ended((pid, _)) if pid == me));
        assert!(search.processes.is_empty());
    }

    fn searched_at(searched: Ns) -> Process {
        Process {
            first_seen: Ns::ZERO,
            searched: Some(searched),
            libraries: Some(2000),
            reported: HashSet::new(),
        }
    }

    #[test]
    fn a_program_without_a_gpu_is_not_searched_for_nccl_again() {
        let process = searched_at(Ns::secs(3));
        for s in [4, 13, 100, 10_000] {
            assert!(!process.is_due(Ns::secs(s), || Some(2000)), "it maps what it mapped before");
        }
        assert!(process.is_due(Ns::secs(4), || Some(2004)), "it has loaded something");
        // What could not be reported is reported at the next time.
        let (mut search, me) = (Search::default(), std::process::id());
        search.run(&[me], Ns::secs(1), |_| true);
        let library = Library {
            key: FileKey("fe:00".into(), 1),
            name: "libnccl.so.2".into(),
            file: File::open("/proc/self/exe").unwrap(),
            functions: Vec::new(),
        };
        let library = Arc::new(library);
        search.files.values_mut().for_each(|found| *found = Some(Arc::clone(&library)));
        search.processes.values_mut().for_each(|process| process.libraries = None);
        search.run(&[me], Ns::secs(2), |_| false);
        let mut reported = 0;
        search.run(&[me], Ns::secs(3), |found| {
            reported += usize::from(matches!(found, Found::Library(..)));
            true
        });
        assert_eq!(reported, search.files.len());
    }

    #[test]
    fn while_no_process_is_made_no_tree_is_walked() {
        let (mut family, mut walks) = (Family::default(), 0);
        let mut of = |roots: &[i32], latest| {
            let tree = |pid: i32| {
                walks += 1;
                vec![pid as u32, 7]
            };
            let pids = family.of(roots.to_vec(), latest, tree).to_vec();
            (pids, walks)
        };
        assert_eq!(of(&[1, 2], Some(10)), (vec![1, 2, 7], 2));
        assert_eq!(of(&[1, 2], Some(10)), (vec![1, 2, 7], 2));
        assert_eq!(of(&[1, 2], Some(11)), (vec![1, 2, 7], 4), "somebody has a child");
        assert_eq!(of(&[1], Some(11)), (vec![1, 7], 5), "a target has ended");
        assert_eq!(of(&[1], None), (vec![1, 7], 6));
        assert_eq!(of(&[1], None), (vec![1, 7], 7), "it cannot be known");
    }

    #[test]
    fn a_file_that_is_no_library_has_no_nccl() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libnccl.so.2");
        let library = |path: &Path| {
            let name = path.to_str().unwrap();
            let key = FileKey("fe:00".into(), 1);
            let mapped = MappedFile { key, range: "", file: "libnccl.so.2" };
            library_in(sys::open_of_process(std::process::id(), name).ok()?, &mapped)
        };
        assert!(library(&path).is_none());
        std::fs::write(&path, "no library").unwrap();
        assert!(library(&path).is_none());
        assert!(library(dir.path()).is_none());
        assert!(library(&std::env::current_exe().unwrap()).is_none());
    }
}
