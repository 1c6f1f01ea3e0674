//! The agent's end of the agent socket: it listens, and has a ring for each process that connected.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::messages::{BYTES, Kernels, Settings, pid_of_hello};
use super::unix;
use crate::consumer::{Consumer, Drained};
use crate::map::{Error, Options, Ring};
use crate::pidfd::{PidFd, readable, wait_for_none};
use crate::record::Record;

/// How long another agent may take to begin to listen, ms.
const LOCK_MS: u32 = 500;
/// How long a process may take from its connection to its hello, ns.
const HELLO_NS: u64 = 1_000_000_000;
/// Connections that wait to be accepted, and that one [`Server::serve`] accepts at most.
const BACKLOG: i32 = 64;

/// Whose process a ring is, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The connection's number, which this server gives out once.
    pub client: u32,
    /// The process, in the agent's pid namespace; 0 if it lies outside it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The pid that the process has in its own namespace, as it says itself: to be checked, not believed.
    pub own_pid: u32,
}

/// Who takes the records of the processes that have connected.
pub trait Host {
    /// A process has connected. `process` says whether it still lives, where the kernel can tell: what
    /// is read of `pid` before that is of this very process.
    fn connected(&mut self, _peer: Peer, _process: Option<&PidFd>) {}

    /// How many records it takes of a client at most now; the others stay in their ring.
    fn allowance(&mut self, _peer: Peer) -> usize {
        usize::MAX
    }

    /// Whether the process still lives: asked for those for which the kernel gave no descriptor.
    fn lives(&mut self, _peer: Peer) -> bool {
        true
    }

    /// A record.
    fn record(&mut self, peer: Peer, record: Record<&Arc<str>>);

    /// What was taken and missed of a client in one go.
    fn drained(&mut self, _peer: Peer, _drained: &Drained) {}

    /// A process has gone; there are no more records of it.
    fn gone(&mut self, peer: Peer);
}

/// What one [`Server::poll`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// All rings together.
    pub drained: Drained,
    /// Processes that have connected.
    pub connected: usize,
    /// Processes that have gone.
    pub gone: usize,
    /// Processes that were refused: there are too many already, of one process, of one user or of all;
    /// they sent no hello in time; or their library is of another version.
    pub refused: usize,
}

/// How many processes may connect, and what rings they get.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// The most connections at a time, those without a hello included.
    pub all: usize,
    /// The most of one process. One that connects again may still have its last connection.
    pub per_pid: usize,
    /// The most of one user.
    pub per_uid: usize,
    /// The ring of a client while there are few.
    pub ring: Options,
    /// How many clients have such a ring at a time, and how many of them one user.
    pub whole_rings: (usize, usize),
    /// The ring of each further client.
    pub small_ring: Options,
}

impl ClientLimits {
    /// The most memory that all rings take together.
    pub fn ring_bytes(&self) -> usize {
        let bytes = |ring: Options| crate::layout::total_bytes(ring.slots, ring.names);
        let whole = self.whole_rings.0.min(self.all);
        whole * bytes(self.ring) + (self.all - whole) * bytes(self.small_ring)
    }
}

/// How a [`Server`] listens.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// How many processes may connect, and what they get.
    pub clients: ClientLimits,
    /// Permissions of the socket's file; connecting takes the permission to write.
    pub mode: u32,
    /// The group of the socket's file, if not the agent's own.
    pub group: Option<u32>,
}

impl Default for ServerOptions {
    /// 64 processes of the same user, 1.1 MiB each.
    fn default() -> ServerOptions {
        ServerOptions::of(64, Options::default())
    }
}

impl ServerOptions {
    /// So many processes of the same user, each with such a ring.
    pub fn of(all: usize, ring: Options) -> ServerOptions {
        let whole_rings = (all, all);
        let clients =
            ClientLimits { all, per_pid: 4, per_uid: all, ring, whole_rings, small_ring: ring };
        ServerOptions { clients, mode: 0o600, group: None }
    }
}

/// A listening socket, and the rings of the processes that have connected.
#[derive(Debug)]
pub struct Server {
    socket: OwnedFd,
    path: PathBuf,
    limits: ClientLimits,
    settings: Settings,
    /// Connections without a hello yet.
    waiting: Vec<Waiting>,
    clients: Vec<Connected>,
    /// The number of the last client.
    last: u32,
    /// Who is served first; the next one, the next time.
    turn: usize,
}

/// A connection without a hello.
#[derive(Debug)]
struct Waiting {
    socket: OwnedFd,
    since: u64,
    pid: i32,
    uid: u32,
}

#[derive(Debug)]
struct Connected {
    socket: OwnedFd,
    /// `None` where the kernel does not give one.
    process: Option<PidFd>,
    peer: Peer,
    consumer: Consumer,
    /// Whether its ring is a whole one.
    whole: bool,
    /// Once it has gone, the slots that are still taken: no more than were reserved then, since somebody
    /// else may have the ring by now.
    last_slots: Option<u64>,
    /// It is not asked for the nodes of CUDA graphs any more.
    without_nodes: bool,
}

impl Connected {
    /// Sends the settings. A library that does not read them keeps those that it has.
    fn ask(&self, all: Settings) {
        let _ = unix::send(self.socket.as_raw_fd(), &self.settings(all).encode(), None);
    }

    fn settings(&self, all: Settings) -> Settings {
        if !self.without_nodes {
            return all;
        }
        let kernels = match all.kernels {
            Kernels::Nodes => Kernels::Graphs,
            other => other,
        };
        Settings { kernels, nodes_for_ms: 0, nodes_every_ms: 0, ..all }
    }

    fn has_gone(&mut self) {
        if self.last_slots.is_none() {
            self.last_slots = Some(self.consumer.reserved());
        }
    }
}

/// Locks the socket's folder, so that of several agents that start at once none takes a socket for
/// abandoned that another one has bound and does not listen on yet. Waits [`LOCK_MS`] at most, and
/// proceeds without the lock if it cannot be had. The lock lasts as long as the result.
fn lock_folder(socket: &Path) -> Option<File> {
    let folder = socket.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..LOCK_MS {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(std::fs::TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(std::fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// A socket that listens at `path`; an abandoned one there is replaced.
fn listen(path: &Path, options: &ServerOptions) -> Result<OwnedFd, Error> {
    let error = |tried, source| Error::Io { tried, path: path.to_owned(), source };
    let _lock = lock_folder(path);
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(error("listen on", io::ErrorKind::AlreadyExists.into()));
        }
        if unix::connect(path).is_ok() {
            return Err(Error::Listening { path: path.to_owned() });
        }
        std::fs::remove_file(path).map_err(|e| error("remove", e))?;
    }
    let socket = unix::new_socket().map_err(|e| error("make", e))?;
    unix::bind(&socket, path).map_err(|e| error("listen on", e))?;
    // Nobody can connect before it listens, so the file may have its owner's rights until here.
    if options.group.is_some() {
        chown(path, None, options.group).map_err(|e| error("change the group of", e))?;
    }
    let mode = std::fs::Permissions::from_mode(options.mode);
    std::fs::set_permissions(path, mode).map_err(|e| error("set permissions of", e))?;
    unix::listen(&socket, BACKLOG).map_err(|e| error("listen on", e))?;
    Ok(socket)
}

impl Server {
    /// Listens at `path`. An abandoned socket there is replaced.
    ///
    /// # Errors
    /// [`Error::Listening`] if another agent listens there, [`Error::Io`] if the socket cannot be made
    /// or there is a file that is no socket.
    pub fn listen(
        path: impl AsRef<Path>,
        options: ServerOptions,
        settings: Settings,
    ) -> Result<Server, Error> {
        let path = path.as_ref();
        Ok(Server {
            socket: listen(path, &options)?,
            path: path.to_owned(),
            limits: options.clients,
            settings,
            waiting: Vec::new(),
            clients: Vec::new(),
            last: 0,
            turn: 0,
        })
    }

    /// Where it listens: the value for [`super::SOCKET_ENV`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The processes that are connected.
    pub fn peers(&self) -> impl Iterator<Item = Peer> {
        self.clients.iter().map(|client| client.peer)
    }

    /// The processes that are connected, and whether each has a whole ring.
    #[cfg(test)]
    pub(super) fn clients(&self) -> impl Iterator<Item = (Peer, bool)> {
        self.clients.iter().map(|client| (client.peer, client.whole))
    }

    /// What all processes are asked to record.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Asks all processes to record this from now on.
    pub fn ask(&mut self, settings: Settings) {
        if settings != self.settings {
            self.settings = settings;
            self.clients.iter().for_each(|client| client.ask(settings));
        }
    }

    /// A process is not asked for the nodes of CUDA graphs any more, whatever the others are asked for.
    pub fn stop_nodes(&mut self, pid: i32) {
        let settings = self.settings;
        for client in self.clients.iter_mut().filter(|client| client.peer.pid == pid) {
            client.without_nodes = true;
            client.ask(settings);
        }
    }

    /// Accepts connections, and gives all records to `record`, process by process, and the processes
    /// that have gone to `gone`, each after its last record. Does not wait.
    pub fn poll(
        &mut self,
        record: impl FnMut(Peer, Record<&Arc<str>>),
        gone: impl FnMut(Peer),
    ) -> Polled {
        struct Both<R, G>(R, G);
        impl<R: FnMut(Peer, Record<&Arc<str>>), G: FnMut(Peer)> Host for Both<R, G> {
            fn record(&mut self, peer: Peer, record: Record<&Arc<str>>) {
                (self.0)(peer, record);
            }
            fn gone(&mut self, peer: Peer) {
                (self.1)(peer);
            }
        }
        self.serve(usize::MAX, &mut Both(record, gone))
    }

    /// Accepts connections and hands out records of at most `budget` slots, which the rings share: each
    /// gets as much as the others, and what one does not need goes to those that need more (max-min
    /// fairness). What is not taken stays in its ring. Does not wait.
    pub fn serve(&mut self, budget: usize, host: &mut impl Host) -> Polled {
        let now = crate::clock::now();
        let mut polled = Polled::default();
        self.accept(now, &mut polled, host);
        // First who has gone: a process that has closed its socket has written its last record.
        self.notice_ends(host);
        let finished = self.drain(now, budget, &mut polled, host);
        let mut at = 0;
        self.clients.retain(|client| {
            let done = finished[at];
            at += 1;
            if done {
                polled.gone += 1;
                host.gone(client.peer);
            }
            !done
        });
        polled
    }

    /// Marks the clients that have closed their sockets or have exited. A socket that an ended process
    /// has passed on is closed with its ring, so that what others write to it is not taken for its own.
    fn notice_ends(&mut self, host: &mut impl Host) {
        if self.clients.is_empty() {
            return;
        }
        let mut all: Vec<libc::pollfd> = Vec::with_capacity(2 * self.clients.len());
        for client in &self.clients {
            all.push(readable(client.socket.as_raw_fd()));
            // A negative descriptor is passed over.
            all.push(readable(client.process.as_ref().map_or(-1, AsRawFd::as_raw_fd)));
        }
        wait_for_none(&mut all);
        for (client, ready) in self.clients.iter_mut().zip(all.chunks_exact(2)) {
            let closed = ready[0].revents != 0 && unix::has_ended(client.socket.as_raw_fd());
            let exited =
                ready[1].revents != 0 || client.process.is_none() && !host.lives(client.peer);
            if closed || exited {
                client.has_gone();
            }
        }
    }

    /// Takes records; returns which clients have gone and have nothing more to say.
    fn drain(
        &mut self,
        now: u64,
        budget: usize,
        polled: &mut Polled,
        host: &mut impl Host,
    ) -> Vec<bool> {
        let n = self.clients.len();
        let mut finished = vec![false; n];
        let mut left = budget;
        // Who may take how much more, beginning with another one each time.
        let mut hungry: Vec<(usize, usize)> = (0..n)
            .map(|i| (self.turn.wrapping_add(i)) % n)
            .map(|i| (i, host.allowance(self.clients[i].peer)))
            .collect();
        self.turn = self.turn.wrapping_add(1);
        while !hungry.is_empty() && left > 0 {
            let share = (left / hungry.len()).max(1);
            hungry.retain_mut(|(i, allowance)| {
                let client = &mut self.clients[*i];
                let last = client.last_slots.map_or(usize::MAX, |slots| slots as usize);
                let most = share.min(left).min(*allowance).min(last);
                let peer = client.peer;
                let drained = client.consumer.drain_at(now, most, |r| host.record(peer, r));
                let taken = drained.slots() as usize;
                left -= taken;
                *allowance -= taken;
                if let Some(slots) = &mut client.last_slots {
                    *slots -= taken as u64;
                    // There may be whole records after a slot that a killed thread has left.
                    finished[*i] = *slots == 0 || taken < most && !drained.waiting;
                }
                host.drained(peer, &drained);
                polled.drained.add(drained);
                taken == most && *allowance > 0 && !finished[*i]
            });
        }
        finished
    }

    fn accept(&mut self, now: u64, polled: &mut Polled, host: &mut impl Host) {
        // To accept nobody costs the kernel a socket, which it makes before it looks who waits.
        let mut listener = [readable(self.socket.as_raw_fd())];
        wait_for_none(&mut listener);
        if listener[0].revents == 0 && self.waiting.is_empty() {
            return;
        }
        // As many as a full backlog a call, so that a flood of connections takes no longer.
        for _ in 0..BACKLOG {
            let Some(socket) = unix::accept(self.socket.as_raw_fd()) else { break };
            match unix::credentials(socket.as_raw_fd()) {
                Some((pid, uid)) if self.has_place(pid, uid) => {
                    self.waiting.push(Waiting { socket, since: now, pid, uid });
                }
                _ => polled.refused += 1,
            }
        }
        for one in std::mem::take(&mut self.waiting) {
            let mut bytes = [0; BYTES + 1];
            match unix::receive(one.socket.as_raw_fd(), &mut bytes) {
                Ok((0, _)) => {}
                Ok((n, _)) => match self.welcome(one, &bytes[..n]) {
                    Ok(Some(client)) => {
                        polled.connected += 1;
                        host.connected(client.peer, client.process.as_ref());
                        self.clients.push(client);
                    }
                    Ok(None) => polled.refused += 1,
                    // It was killed before its welcome, which is no refusal.
                    Err(_) => {}
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if now.saturating_sub(one.since) < HELLO_NS {
                        self.waiting.push(one);
                    } else {
                        polled.refused += 1;
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Whether one more connection of this process, of this user and of all is within the limits.
    fn has_place(&self, pid: i32, uid: u32) -> bool {
        let waiting = self.waiting.iter().map(|one| (one.pid, one.uid));
        let clients = self.clients.iter().map(|client| (client.peer.pid, client.peer.uid));
        let (mut all, mut of_pid, mut of_uid) = (0, 0, 0);
        for (other, user) in waiting.chain(clients) {
            all += 1;
            of_pid += usize::from(other == pid);
            of_uid += usize::from(user == uid);
        }
        all < self.limits.all && of_pid < self.limits.per_pid && of_uid < self.limits.per_uid
    }

    /// The ring for one more client of this user, and whether it is a whole one.
    fn ring_for(&self, uid: u32) -> (Options, bool) {
        let (all, of_uid) = self.limits.whole_rings;
        let whole = self.clients.iter().filter(|client| client.whole);
        let (mut used, mut used_by_user) = (0, 0);
        for client in whole {
            used += 1;
            used_by_user += usize::from(client.peer.uid == uid);
        }
        match used < all && used_by_user < of_uid {
            true => (self.limits.ring, true),
            false => (self.limits.small_ring, false),
        }
    }

    /// Sends a process its ring; `None` if it is refused, an error if it has gone.
    fn welcome(&mut self, one: Waiting, hello: &[u8]) -> io::Result<Option<Connected>> {
        let Waiting { socket, pid, uid, .. } = one;
        let Some(own_pid) = pid_of_hello(hello) else { return Ok(None) };
        let process = match PidFd::of_peer(socket.as_raw_fd(), pid) {
            Ok(process) => Some(process),
            // The number may be somebody else's by now.
            Err(e) if pid > 0 && is_gone(&e) => return Err(e),
            Err(_) => None,
        };
        let (ring, whole) = self.ring_for(uid);
        let Ok(ring) = Ring::memfd(ring) else { return Ok(None) };
        self.last = self.last.wrapping_add(1);
        let peer = Peer { client: self.last, pid, uid, own_pid };
        let consumer = Consumer::of(ring);
        let welcome = self.settings.encode();
        unix::send(socket.as_raw_fd(), &welcome, Some(consumer.as_raw_fd()))?;
        let (last_slots, without_nodes) = (None, false);
        Ok(Some(Connected { socket, process, peer, consumer, whole, last_slots, without_nodes }))
    }
}

/// Whether the system says that a process has ended. SO_PEERPIDFD says so by either number, depending on
/// the kernel's version.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL))
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
