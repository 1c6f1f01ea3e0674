//! What libraries inside processes tell: kernels, copies and waits by CUPTI, collectives by NCCL.
//!
//! *What it sees*: the records of `gpuwhy-inject`, one ring a process, handed out through a socket
//! ([`gpuwhy_wire::Host`]). *Why it matters*: only from inside is it seen when a kernel ran and
//! whom a rank waited for. *What fools it*: a process that was started without the library tells
//! nothing; one that lies harms the rows of its own process alone, since whose ring it is the kernel
//! says (SO_PEERCRED), in this host's numbers, also of a process in a container.
//!
//! Threads are named by their numbers in the process's own pid namespace; `/proc/PID/task` has both.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Ns;
use gpuwhy_wire::{Collectives, Hospitality, Host, Kernels, Options, Peer, Record, Settings};

use crate::book::{Book, Devices};
use crate::{CollectError, Context, Probe, Start};

/// Processes at a time.
const PROCESSES: usize = 64;
/// Records of one process, 5 MiB: CUPTI hands over what a device gathered at once, tens of thousands
/// at times.
const SLOTS: u32 = 1 << 16;
const NAMES: u32 = 1 << 13;
/// Threads whose numbers are known.
const THREADS: usize = 1 << 14;
/// A process that uses a GPU tells of work on it at least so often.
const SILENT: Ns = Ns::secs(2);
/// By so much a process's GPU memory may grow while the nodes of its graphs are told.
const GROWN: u64 = 512 << 20;
/// For how long of how long the nodes of CUDA graphs are told while something is the matter.
const NODES_MS: (u32, u32) = (200, 1000);

struct Doors {
    host: Host,
    usual: Settings,
    book: Book,
    threads: HashMap<(i32, u32), u32>,
    refused: u64,
    /// GPU memory of processes when nodes of graphs were first told of them; none once they are
    /// told no more.
    memory: HashMap<i32, Option<u64>>,
    /// Processes that use a GPU and tell of no work on it, and were said to.
    silent: Vec<u32>,
}

/// Starts the source: listens.
pub fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Some(config) = &start.config.doors else {
        return Err(CollectError::Unsupported {
            what: "no socket was named".into(),
            fix: "name one to hear from inside processes".into(),
        });
    };
    let hospitality = Hospitality {
        most: PROCESSES,
        ring: Options { slots: SLOTS, names: NAMES, ..Options::default() },
        mode: config.mode,
    };
    let host = Host::listen(&config.socket, hospitality, config.settings)
        .map_err(|source| CollectError::Door { path: config.socket.clone(), source })?;
    Ok(Box::new(Doors {
        host,
        usual: config.settings,
        book: Book::new(start.source, Devices::Real),
        threads: HashMap::new(),
        refused: 0,
        memory: HashMap::new(),
        silent: Vec::new(),
    }))
}

/// Where to listen, and what to ask.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// The socket's path.
    pub socket: std::path::PathBuf,
    /// Its permissions: who may tell.
    pub mode: u32,
    /// What is asked while nothing is the matter.
    pub settings: Settings,
    /// Whether a recording is not to begin without it; else its source says what is wrong.
    pub needed: bool,
}

impl Probe for Doors {
    fn name(&self) -> &'static str {
        "inject"
    }

    fn tick(&mut self, _now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        let (book, threads) = (&mut self.book, &mut self.threads);
        let mut gone: Vec<i32> = Vec::new();
        let seen = self.host.attend(
            |peer, record| match theirs(peer, &record, threads) {
                Some((pid, tid)) => book.record(&Record { pid, tid, event: record.event }, cx),
                None => book.dropped += 1,
            },
            |peer| gone.push(peer.pid),
        );
        book.recorded += seen.drained.records;
        book.dropped += seen.drained.lost + seen.drained.torn + seen.drained.abandoned;
        self.refused += seen.refused as u64;
        self.watch_memory(cx);
        self.watch_silence(cx);
        for pid in gone {
            self.threads.retain(|key, _| key.0 != pid);
            self.memory.remove(&pid);
            if let Ok(pid) = u32::try_from(pid) {
                cx.inside.remove(&pid);
                self.book.process_ended(pid);
                self.silent.retain(|gone| *gone != pid);
            }
        }
        if seen.refused > 0 {
            let text = format!(
                "{} processes were not let in: too many at once, or of another version",
                self.refused
            );
            self.book.say(&text, cx);
        }
        Ok(())
    }

    fn counted(&self) -> u64 {
        self.book.recorded
    }

    fn dropped(&self) -> u64 {
        self.book.dropped
    }

    fn detail(&mut self, wanted: bool) -> Result<(), CollectError> {
        self.host.ask(if wanted { closer(self.usual) } else { self.usual });
        Ok(())
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        // What was on its way.
        let _ = self.tick(now, cx);
        self.book.finish(cx);
    }
}

impl Doors {
    /// A process that told of kernels, tells of none any more, and uses the device as much as
    /// before, as its driver says: somebody has put his callbacks in the place of ours (the last
    /// one to register wins), or CUPTI has stuck.
    fn watch_silence(&mut self, cx: &mut Context) {
        if self.host.asked().kernels == Kernels::Off {
            return;
        }
        for peer in self.host.peers() {
            let Ok(pid) = u32::try_from(peer.pid) else { continue };
            let (Some(&used), Some(told)) = (cx.gpu_used.get(&pid), self.book.last_work(pid))
            else {
                continue;
            };
            let silent = used > told.saturating_add(SILENT);
            match self.silent.iter().position(|p| *p == pid) {
                Some(at) if !silent => {
                    self.silent.swap_remove(at);
                }
                None if silent => {
                    self.silent.push(pid);
                    let text = format!(
                        "pid {pid} uses its GPU, but CUPTI tells of nothing any more: another \
                         profiler has taken its buffers, or it has stuck"
                    );
                    self.book.say(&text, cx);
                }
                _ => {}
            }
        }
    }

    /// CUPTI 13.0 does not use its buffers on the device again where it tells the nodes of CUDA
    /// graphs (parca-dev/parcagpu #23): the process's GPU memory grows, by 1 GiB until all times
    /// are 0. A program that allocates as much by itself looks the same, and then nodes are told
    /// of it no more for nothing.
    fn watch_memory(&mut self, cx: &mut Context) {
        let asked = self.host.asked();
        if asked.kernels != Kernels::Nodes && asked.nodes_for_ms == 0 {
            self.memory.retain(|_, first| first.is_none());
            return;
        }
        let pids: Vec<i32> = self.host.peers().map(|peer| peer.pid).collect();
        for pid in pids {
            let Some(&now) = u32::try_from(pid).ok().and_then(|pid| cx.gpu_memory.get(&pid)) else {
                continue;
            };
            let first = self.memory.entry(pid).or_insert(Some(now));
            let grown = first.map_or(0, |first| now.saturating_sub(first));
            if grown >= GROWN {
                *first = None;
                self.host.spare(pid);
                let text = format!(
                    "pid {pid}: its GPU memory grew by {} MiB while nodes of CUDA graphs were \
                     told, as with a known defect of CUPTI 13.0: they are told no more",
                    grown >> 20
                );
                self.book.say(&text, cx);
            }
        }
    }
}

/// What is asked while something is the matter: the calls that launch, the nodes of graphs for a
/// part of the time, and the phases of collectives.
fn closer(usual: Settings) -> Settings {
    let (nodes_for_ms, nodes_every_ms) = match usual.kernels {
        Kernels::Graphs => NODES_MS,
        Kernels::Off | Kernels::Nodes => (usual.nodes_for_ms, usual.nodes_every_ms),
    };
    Settings {
        launches: usual.kernels != Kernels::Off,
        collectives: match usual.collectives {
            Collectives::Calls => Collectives::Phases,
            other => other,
        },
        nodes_every_ms,
        nodes_for_ms,
        ..usual
    }
}

/// Whose record that is, in this host's numbers; `None` if it is not the process's that it came
/// from, which a child that was cloned without our seeing it would write.
fn theirs<N: Copy>(
    peer: Peer,
    record: &Record<N>,
    threads: &mut HashMap<(i32, u32), u32>,
) -> Option<(u32, u32)> {
    let pid = u32::try_from(peer.pid).ok().filter(|pid| *pid > 0)?;
    if record.pid != peer.own_pid {
        return None;
    }
    if peer.own_pid == pid {
        return Some((pid, record.tid));
    }
    if let Some(&tid) = threads.get(&(peer.pid, record.tid)) {
        return Some((pid, tid));
    }
    if threads.len() >= THREADS {
        threads.clear();
    }
    // A thread that is gone already keeps its own number, below its process.
    let tid = host_thread(pid, record.tid).unwrap_or(record.tid);
    threads.insert((peer.pid, record.tid), tid);
    Some((pid, tid))
}

/// This host's number of the thread that its innermost pid namespace numbers `own`.
fn host_thread(pid: u32, own: u32) -> Option<u32> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().take(1 << 14) {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        if innermost(&status) == Some(own) {
            return task.file_name().to_str()?.parse().ok();
        }
    }
    None
}

/// The last number of `NSpid:`.
fn innermost(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuwhy_schema::EntityKind;
    use gpuwhy_wire::{Event, Heard, Visit};

    use super::*;

    #[test]
    fn a_containers_thread_is_found_by_its_own_number() {
        let status = "Name:\tpython\nPid:\t4242\nNSpid:\t4242\t31\t7\nThreads:\t1\n";
        assert_eq!(innermost(status), Some(7));
        assert_eq!(innermost("Name:\tpython\n"), None);
        let me = std::process::id();
        assert_eq!(host_thread(me, me), Some(me), "no namespace of its own");
    }

    #[test]
    fn a_record_of_another_process_than_the_rings_is_dropped() {
        let peer = Peer { pid: 4242, uid: 0, own_pid: 7 };
        let at = |pid| Record { pid, tid: 9, event: Event::Mark { name: 0, at: 1, value: None } };
        let mut threads = HashMap::new();
        assert_eq!(theirs(peer, &at(8), &mut threads), None);
        assert_eq!(theirs(peer, &at(7), &mut threads), Some((4242, 9)), "the thread is gone");
        let outside = Peer { pid: 0, ..peer };
        assert_eq!(theirs(outside, &at(7), &mut threads), None);
    }

    /// Names the socket to a process that plays the container's.
    const CONTAINED: &str = "GPUWHY_TEST_CONTAINED";

    /// Names a file to it that it must not see.
    const HIDDEN: &str = "GPUWHY_TEST_HIDDEN";

    /// Not a test of its own: the process in a container. Its two threads tell their own names, and
    /// stay until it is killed.
    #[test]
    fn contained() {
        let Some(socket) = std::env::var_os(CONTAINED) else { return };
        let hidden = std::env::var_os(HIDDEN).unwrap();
        assert!(!std::path::Path::new(&hidden).exists(), "the host's files are seen");
        let visit = Visit::knock(socket.as_ref()).unwrap();
        let Heard::Welcome(ring, _) = visit.hear(10_000) else { panic!("not let in") };
        std::thread::scope(|scope| {
            for name in ["first", "second"] {
                let ring = &ring;
                let thread = std::thread::Builder::new().name(name.to_owned());
                let tell = move || {
                    ring.mark(name, None);
                    std::thread::sleep(Duration::from_secs(60));
                };
                thread.spawn_scoped(scope, tell).unwrap();
            }
        });
    }

    /// A process in pid and mount namespaces of its own, that sees nothing of the host's temporary
    /// files but the socket's directory: whose it is, and which thread of this host told what, is
    /// known by the kernel's word.
    #[test]
    fn root_a_process_in_a_container_is_known_by_this_hosts_numbers() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let root = dir.path().join("inside");
        for folder in ["door", "inside/door"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let hidden = dir.path().join("hidden");
        std::fs::write(&hidden, "").unwrap();
        let socket = dir.path().join("door/socket");
        let mut host = Host::listen(&socket, Hospitality::default(), Settings::default()).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), root.join("program")).unwrap();
        // Its /tmp is `inside`, with the socket's directory in it, and its /proc is its own.
        let script = "mount --make-rprivate / && mount --bind \"$1/door\" \"$1/inside/door\" && \
            mount --rbind \"$1/inside\" /tmp && mount -t proc proc /proc && \
            exec /tmp/program --exact doors::tests::contained --nocapture";
        let mut container = std::process::Command::new("unshare")
            .args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c", script, "sh"])
            .arg(dir.path())
            .env(CONTAINED, "/tmp/door/socket")
            .env(HIDDEN, &hidden)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut threads = HashMap::new();
        let mut seen = std::collections::BTreeMap::new();
        while seen.len() < 2 {
            if let Some(status) = container.try_wait().unwrap() {
                let mut why = String::new();
                let stderr = container.stderr.take().unwrap();
                std::io::Read::read_to_string(&mut { stderr }, &mut why).unwrap();
                let refused = ["not permitted", "denied", "unshare failed"];
                assert!(refused.iter().any(|word| why.contains(word)), "{status}: {why}");
                println!("skipped: no namespaces here without root: {}", why.trim());
                return;
            }
            host.attend(
                |peer, record| {
                    assert!(peer.pid as u32 != peer.own_pid, "{peer:?} is in no namespace");
                    assert_eq!(record.pid, peer.own_pid);
                    let Event::Mark { name, .. } = record.event else { panic!("{record:?}") };
                    let of = theirs(peer, &record, &mut threads).unwrap();
                    assert_eq!(of.0, peer.pid as u32);
                    assert!(of.1 != record.tid, "that is its own number of it: {record:?}");
                    seen.insert(name.to_string(), of);
                },
                |_| {},
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        // This host's numbers are right if this host says that the threads are called so.
        for (name, (pid, tid)) in &seen {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap();
            assert_eq!(comm.trim(), name);
        }
        let program = std::fs::read_link(format!("/proc/{}/exe", seen["first"].0)).unwrap();
        assert_eq!(program.file_name().unwrap(), "program");
        container.kill().unwrap();
        container.wait().unwrap();
        let mut gone = Vec::new();
        while gone.is_empty() {
            host.attend(|_, _| {}, |peer| gone.push(peer.pid as u32));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(gone, [seen["first"].0], "its end is heard");
    }

    #[test]
    fn more_is_asked_while_something_is_the_matter() {
        let asked = closer(Settings::USUAL);
        assert!(asked.launches && asked.nodes_for_ms > 0);
        assert_eq!(asked.collectives, Collectives::Phases);
        assert_eq!(closer(Settings::default()), Settings::default());
    }

    #[test]
    fn two_recorders_at_once_share_no_door_and_only_who_named_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let start = |needed| {
            let (socket, settings) = (dir.path().join("door"), Settings::USUAL);
            let doors = Some(DoorConfig { socket, mode: 0o600, settings, needed });
            crate::Recorder::start(crate::Config { doors, ..crate::Config::only(&["inject"]) })
        };
        let _first = start(false).unwrap();
        let refused = start(true).err().expect("the door is taken");
        assert!(matches!(refused, CollectError::Door { .. }), "{refused}");
        let mut second = start(false).unwrap();
        let rows = second.poll(Duration::from_millis(20)).unwrap();
        let source = rows.source.iter().rfind(|s| &*s.kind == "inject").unwrap();
        assert_eq!(source.state, gpuwhy_schema::SourceState::Unavailable);
        assert!(source.note.as_deref().unwrap().contains("door"), "{source:?}");
    }

    #[test]
    fn what_a_library_tells_comes_out_of_the_recorder() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("door");
        let settings = Settings::USUAL;
        let config = crate::Config {
            doors: Some(DoorConfig { socket: socket.clone(), mode: 0o600, settings, needed: true }),
            ..crate::Config::only(&["inject"])
        };
        let mut recorder = crate::Recorder::start(config).unwrap();
        let visit = Visit::knock(&socket).unwrap();
        let mut rows = recorder.poll(Duration::from_millis(20)).unwrap();
        let Heard::Welcome(ring, asked) = visit.hear(1000) else { panic!("not let in") };
        assert_eq!(asked, settings);
        let name = |text: &str| ring.name(text);
        let (start, dur) = (gpuwhy_wire::now(), 1000);
        ring.write(Event::Device { name: name("GPU-1"), device: 0, at: start });
        let correlation = 1;
        let (device, stream, graph) = (0, 7, None);
        let kernel =
            Event::Kernel { name: name("gemm"), device, stream, correlation, graph, start, dur };
        ring.write(kernel);
        let (name_, bytes) = (name("HtoD pinned"), 4096);
        ring.write(Event::Copy { name: name_, device, stream, correlation: 2, bytes, start, dur });
        drop(visit);
        rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
        rows.append(&mut recorder.finish());
        let gpu = rows.entity.iter().find(|e| e.kind == EntityKind::Gpu).unwrap();
        assert_eq!((&*gpu.key, rows.kernel[0].gpu), ("GPU-1", gpu.id));
        let copy = &rows.copy[0];
        assert_eq!(
            (copy.to, copy.from, copy.pinned.as_deref()),
            (Some(gpu.id), None, Some("pinned"))
        );
        let source = rows.source.iter().rev().find(|s| &*s.kind == "inject").unwrap();
        assert_eq!((source.recorded, source.dropped), (3, 0));
    }
}
