//! What libraries inside processes report: kernels, copies and waits by CUPTI, collectives by NCCL.
//!
//! *What it sees*: the records of `gpuwhy-inject`, one ring a process, handed out through the agent
//! socket ([`gpuwhy_wire::Server`]). *Why it matters*: only from inside is it seen when a kernel ran and
//! for which rank a process waited. *What fools it*: a process that was started without the library
//! reports nothing; one that writes false records spoils its own rows alone: the kernel says which
//! process has a ring, for as long as that process lives, and its threads are those that /proc shows
//! ([`crate::guest`]). What it may cost is limited ([`crate::quota`]).

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Ns, SourceId, sources};
use gpuwhy_wire::{
    Collectives, Drained, Host, Kernels, Peer, PidFd, Record, Server, ServerOptions, Settings,
};

use crate::context::Context;
use crate::error::CollectError;
use crate::event_rows::{Devices, EventRows};
use crate::guest::Guest;
use crate::probe::{Probe, ProbeSpec, Start};
use crate::quota::{self, Bucket};

pub(crate) const PROBE: ProbeSpec = ProbeSpec {
    wanted_if: |config| config.agent_socket.is_some(),
    required_if: |config| config.agent_socket.as_ref().is_some_and(|socket| socket.required),
    ..ProbeSpec::new(
        "inject",
        &sources::INJECT,
        "kernels, copies and collectives, reported by libraries inside processes",
        start,
    )
};

/// A process that uses a GPU reports work at least once in this time.
const SILENT: Ns = Ns::secs(2);
/// How much a process's GPU memory may grow while the nodes of its graphs are recorded.
const GROWN: u64 = 512 << 20;
/// During an incident the nodes of CUDA graphs are recorded for the first of these times in each of
/// the second, ms.
const NODES_MS: (u32, u32) = (200, 1000);

struct Inject {
    server: Server,
    /// What the libraries record while there is no incident.
    settings: Settings,
    rows: EventRows,
    /// What all guests together may still write.
    records: Bucket,
    source: SourceId,
    refused: u64,
    /// GPU memory of processes when nodes of graphs were first recorded of them; `None` once that was
    /// given up.
    memory: HashMap<i32, Option<u64>>,
    /// Processes that use a GPU and report no work on it, which the source's note mentions.
    silent: Vec<u32>,
}

/// Opens the socket.
fn start(start: Start<'_>) -> Result<Box<dyn Probe>, CollectError> {
    let Some(config) = &start.config.agent_socket else {
        return Err(CollectError::Unsupported {
            missing: "no agent socket was named".into(),
            fix: "name one at which in-process libraries can connect".into(),
        });
    };
    let options = ServerOptions { clients: quota::CLIENTS, mode: config.mode, group: config.group };
    let server = Server::listen(&config.socket, options, config.settings)
        .map_err(|source| CollectError::Socket { path: config.socket.clone(), source })?;
    Ok(Box::new(Inject {
        server,
        settings: config.settings,
        rows: EventRows::new(start.source, Devices::Real),
        records: Bucket::new(quota::ALL_RECORDS),
        source: start.source,
        refused: 0,
        memory: HashMap::new(),
        silent: Vec::new(),
    }))
}

impl Probe for Inject {
    fn tick(&mut self, now: Ns, cx: &mut Context) -> Result<(), CollectError> {
        self.records.refill(now);
        let budget = self.records.left().min(quota::RECORDS_PER_TICK);
        self.read(budget, now, cx);
        Ok(())
    }

    fn recorded(&self) -> u64 {
        self.rows.recorded
    }

    fn dropped(&self) -> u64 {
        self.rows.dropped
    }

    fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        self.server.ask(if on { detailed(self.settings) } else { self.settings });
        Ok(())
    }

    fn finish(&mut self, now: Ns, cx: &mut Context) {
        // Records that have been written since the last tick, and what was left then.
        self.read(u64::MAX, now, cx);
        self.rows.finish(cx);
    }
}

impl Inject {
    /// Takes the records of at most `budget` slots.
    fn read(&mut self, budget: u64, now: Ns, cx: &mut Context) {
        self.rows.tick(now, cx);
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        let mut guests =
            Guests { rows: &mut self.rows, source: self.source, ended: Vec::new(), cx };
        let polled = self.server.serve(budget, &mut guests);
        let ended = guests.ended;
        self.records.take(polled.drained.slots());
        self.refused = self.refused.saturating_add(polled.refused as u64);
        self.watch_memory(cx);
        self.watch_silence(cx);
        for peer in ended {
            self.rows.end(peer.client, cx);
            self.memory.remove(&peer.pid);
            if let Ok(pid) = u32::try_from(peer.pid) {
                cx.plugins.remove(pid);
                self.silent.retain(|silent| *silent != pid);
            }
        }
        if polled.refused > 0 {
            let note = format!(
                "processes were refused: more than {} of one process, {} of one user or {} at once, no \
                 hello in time, or a library of another version",
                quota::CLIENTS.per_pid,
                quota::CLIENTS.per_uid,
                quota::CLIENTS.all
            );
            self.rows.add_to_note(&note, cx);
        }
    }

    /// Notes processes that have reported kernels, report none any more, and still use the device
    /// according to its driver: another profiler has registered its callbacks in the place of ours (the
    /// last one to register wins), or CUPTI hangs.
    fn watch_silence(&mut self, cx: &mut Context) {
        if self.server.settings().kernels == Kernels::Off {
            return;
        }
        for peer in self.server.peers() {
            let Ok(pid) = u32::try_from(peer.pid) else { continue };
            let last = (cx.gpu_use.last_busy(pid), self.rows.last_work(peer.client));
            let (Some(busy), Some(reported)) = last else { continue };
            let is_silent = busy > reported.saturating_add(SILENT);
            match self.silent.iter().position(|p| *p == pid) {
                Some(at) if !is_silent => {
                    self.silent.swap_remove(at);
                }
                None if is_silent => {
                    self.silent.push(pid);
                    let note = format!(
                        "pid {pid} uses its GPU, but CUPTI reports nothing any more: another \
                         profiler has taken over its buffers, or CUPTI hangs"
                    );
                    self.rows.add_to_note(&note, cx);
                }
                _ => {}
            }
        }
    }

    /// CUPTI 13.0 does not use its buffers on the device again while it records the nodes of CUDA
    /// graphs (parca-dev/parcagpu #23): the process's GPU memory grows, by 1 GiB until all times
    /// are 0. A program that allocates as much itself looks the same, and then recording its nodes is
    /// given up without need.
    fn watch_memory(&mut self, cx: &mut Context) {
        let asked = self.server.settings();
        if asked.kernels != Kernels::Nodes && asked.nodes_for_ms == 0 {
            self.memory.retain(|_, first| first.is_none());
            return;
        }
        let pids: Vec<i32> = self.server.peers().map(|peer| peer.pid).collect();
        for pid in pids {
            let now = u32::try_from(pid).ok().and_then(|pid| cx.gpu_use.memory(pid));
            let Some(now) = now else { continue };
            let first = self.memory.entry(pid).or_insert(Some(now));
            let grown = first.map_or(0, |first| now.saturating_sub(first));
            if grown >= GROWN {
                *first = None;
                self.server.stop_nodes(pid);
                let note = format!(
                    "pid {pid}: its GPU memory grew by {} MiB while nodes of CUDA graphs were \
                     recorded, as with a known defect of CUPTI 13.0: they are not recorded any more",
                    grown >> 20
                );
                self.rows.add_to_note(&note, cx);
            }
        }
    }
}

/// What libraries record during an incident: the calls that launch too, the nodes of graphs for a
/// part of the time, and the phases of collectives.
fn detailed(settings: Settings) -> Settings {
    let (nodes_for_ms, nodes_every_ms) = match settings.kernels {
        Kernels::Graphs => NODES_MS,
        Kernels::Off | Kernels::Nodes => (settings.nodes_for_ms, settings.nodes_every_ms),
    };
    Settings {
        launches: settings.kernels != Kernels::Off,
        collectives: match settings.collectives {
            Collectives::Calls => Collectives::Phases,
            other => other,
        },
        nodes_every_ms,
        nodes_for_ms,
        ..settings
    }
}

/// Takes the records of the processes that have connected.
struct Guests<'a> {
    rows: &'a mut EventRows,
    cx: &'a mut Context,
    source: SourceId,
    ended: Vec<Peer>,
}

impl Host for Guests<'_> {
    fn connected(&mut self, peer: Peer, process: Option<&PidFd>) {
        let Context { attribution, catalog, host, .. } = &mut *self.cx;
        let lives = || process.is_none_or(|process| !process.has_exited());
        let pid = u32::try_from(peer.pid).ok().filter(|pid| *pid > 0);
        let guest = pid.and_then(|pid| attribution.guest(catalog, pid, lives));
        // It has gone already, or lies outside our pid namespace.
        let guest = guest.unwrap_or_else(|| {
            let key = format!("socket:{}.{}/{}", self.source.0, peer.client, peer.own_pid);
            Guest::unverified(catalog, *host, &key, peer.own_pid)
        });
        self.rows.add(peer.client, guest, self.cx);
    }

    fn allowance(&mut self, peer: Peer) -> usize {
        self.rows.allowance(peer.client)
    }

    fn lives(&mut self, peer: Peer) -> bool {
        self.rows.host_of(peer.client).is_none_or(|host| self.cx.attribution.is_alive(host))
    }

    fn record(&mut self, peer: Peer, record: Record<&Arc<str>>) {
        self.rows.record(peer.client, &record, self.cx);
    }

    fn drained(&mut self, _peer: Peer, drained: &Drained) {
        self.rows.missed(drained);
    }

    fn gone(&mut self, peer: Peer) {
        self.ended.push(peer);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpuwhy_schema::EntityKind;
    use gpuwhy_wire::{Client, Event, Received};

    use super::*;
    use crate::config::{Config, SocketConfig};
    use crate::recorder::Recorder;

    /// Gives the socket to a process that plays the one in a container.
    const CONTAINED: &str = "GPUWHY_TEST_CONTAINED";

    /// Gives it a file that it must not see.
    const HIDDEN: &str = "GPUWHY_TEST_HIDDEN";

    /// A recorder that only hears processes.
    fn listening(socket: SocketConfig) -> Result<Recorder, CollectError> {
        Recorder::start(Config { agent_socket: Some(socket), ..Config::only(&["inject"]) })
    }

    /// Not a test of its own: the process in a container. Its two threads report their own names, and
    /// stay until it is killed.
    #[test]
    fn contained() {
        let Some(socket) = std::env::var_os(CONTAINED) else { return };
        let hidden = std::env::var_os(HIDDEN).unwrap();
        assert!(!std::path::Path::new(&hidden).exists(), "the host's files are visible");
        let client = Client::connect(socket.as_ref()).unwrap();
        let Received::Welcome(ring, _) = client.recv(10_000) else { panic!("refused") };
        std::thread::scope(|scope| {
            for name in ["first", "second"] {
                let ring = &ring;
                let thread = std::thread::Builder::new().name(name.to_owned());
                let report = move || {
                    ring.mark(name, None);
                    std::thread::sleep(Duration::from_secs(60));
                };
                thread.spawn_scoped(scope, report).unwrap();
            }
        });
    }

    /// A process in pid and mount namespaces of its own, that sees nothing of the host's temporary
    /// files but the socket's directory: the kernel says which process of this host it is, and so its
    /// threads are found.
    #[test]
    fn root_a_process_in_a_container_is_known_by_this_hosts_numbers() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let root = dir.path().join("inside");
        for folder in ["agent", "inside/agent"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let hidden = dir.path().join("hidden");
        std::fs::write(&hidden, "").unwrap();
        let socket = dir.path().join("agent/socket");
        let mut recorder = listening(SocketConfig::usual(socket.clone())).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), root.join("program")).unwrap();
        // Its /tmp is `inside`, with the socket's directory in it, and its /proc is its own.
        let script = "mount --make-rprivate / && mount --bind \"$1/agent\" \"$1/inside/agent\" && \
            mount --rbind \"$1/inside\" /tmp && mount -t proc proc /proc && \
            exec /tmp/program --exact probes::inject::tests::contained --nocapture";
        let mut container = std::process::Command::new("unshare")
            .args(["--pid", "--mount", "--fork", "--kill-child", "sh", "-c", script, "sh"])
            .arg(dir.path())
            .env(CONTAINED, "/tmp/agent/socket")
            .env(HIDDEN, &hidden)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut rows = gpuwhy_schema::Rows::default();
        while rows.mark.len() < 2 {
            if let Some(status) = container.try_wait().unwrap() {
                let mut why = String::new();
                let stderr = container.stderr.take().unwrap();
                std::io::Read::read_to_string(&mut { stderr }, &mut why).unwrap();
                let refused = ["not permitted", "denied", "unshare failed"];
                assert!(refused.iter().any(|word| why.contains(word)), "{status}: {why}");
                println!("skipped: no namespaces here without root: {}", why.trim());
                return;
            }
            rows.append(&mut recorder.poll(Duration::from_millis(20)).unwrap());
        }
        // The numbers are right if these threads of this host have the names.
        for mark in &rows.mark {
            let track = rows.track.iter().find(|t| t.id == mark.track).unwrap();
            let of = |id| rows.entity.iter().rfind(|e| e.id == id).unwrap();
            let thread = of(track.entity);
            let process = of(thread.parent.unwrap());
            assert_eq!((thread.kind, process.kind), (EntityKind::Thread, EntityKind::Process));
            let (tid, pid) = (thread.number.unwrap(), process.number.unwrap());
            let comm = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap();
            assert_eq!(comm.trim(), &*mark.name);
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
            assert_eq!(program.file_name().unwrap(), "program");
        }
        container.kill().unwrap();
        container.wait().unwrap();
    }

    #[test]
    fn more_is_recorded_during_an_incident() {
        let asked = detailed(Settings::USUAL);
        assert!(asked.launches && asked.nodes_for_ms > 0);
        assert_eq!(asked.collectives, Collectives::Phases);
        assert_eq!(detailed(Settings::default()), Settings::default());
    }

    #[test]
    fn two_recorders_share_no_socket_and_only_one_that_requires_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let socket = SocketConfig::usual(dir.path().join("socket"));
        let start = |required| listening(SocketConfig { required, ..socket.clone() });
        let _first = start(false).unwrap();
        let refused = start(true).err().expect("the socket is taken");
        assert!(matches!(refused, CollectError::Socket { .. }), "{refused}");
        let mut second = start(false).unwrap();
        let rows = second.poll(Duration::from_millis(20)).unwrap();
        let source = rows.source.iter().rfind(|s| &*s.kind == "inject").unwrap();
        assert_eq!(source.state, gpuwhy_schema::SourceState::Unavailable);
        assert!(source.note.as_deref().unwrap().contains("socket"), "{source:?}");
    }

    #[test]
    fn the_records_of_a_library_become_rows_of_the_recorder() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let mut recorder = listening(SocketConfig::usual(socket.clone())).unwrap();
        let client = Client::connect(&socket).unwrap();
        let mut rows = recorder.poll(Duration::from_millis(20)).unwrap();
        let Received::Welcome(ring, asked) = client.recv(1000) else { panic!("refused") };
        assert_eq!(asked, Settings::USUAL);
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
        drop(client);
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
