//! The agent's end of the agent socket: it listens, and has a ring for each process that connected.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::messages::{BYTES, Kernels, Settings, pid_of_hello};
use super::unix;
use crate::consumer::{Consumer, Drained};
use crate::map::{Error, Options, Ring};
use crate::record::Record;

/// How long another agent may take to begin to listen, ms.
const LOCK_MS: u32 = 500;
/// How long a process may take from its connection to its hello, ns.
const HELLO_NS: u64 = 1_000_000_000;
/// Connections that wait to be accepted, and that one [`Server::poll`] accepts at most.
const BACKLOG: i32 = 64;

/// Whose process a ring is, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process, in the agent's pid namespace; 0 if it lies outside it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The pid that the process has in its own namespace, as it says itself.
    pub own_pid: u32,
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
    /// Processes that were refused: there are [`ServerOptions::max_clients`] already, or their library
    /// is of another version.
    pub refused: usize,
}

/// How a [`Server`] listens.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The most processes at a time.
    pub max_clients: usize,
    /// The ring of each.
    pub ring: Options,
    /// Permissions of the socket's file; connecting takes the permission to write.
    pub mode: u32,
}

impl Default for ServerOptions {
    /// 64 processes of the same user, 1.1 MiB each.
    fn default() -> ServerOptions {
        ServerOptions { max_clients: 64, ring: Options::default(), mode: 0o600 }
    }
}

/// A listening socket, and the rings of the processes that have connected.
#[derive(Debug)]
pub struct Server {
    socket: OwnedFd,
    path: PathBuf,
    ring: Options,
    max_clients: usize,
    settings: Settings,
    /// Connections without a hello yet, and since when.
    waiting: Vec<(OwnedFd, u64)>,
    clients: Vec<Connected>,
}

#[derive(Debug)]
struct Connected {
    socket: OwnedFd,
    peer: Peer,
    consumer: Consumer,
    gone: bool,
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
fn listen(path: &Path, mode: u32) -> Result<OwnedFd, Error> {
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
    let mode = std::fs::Permissions::from_mode(mode);
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
            socket: listen(path, options.mode)?,
            path: path.to_owned(),
            ring: options.ring,
            max_clients: options.max_clients,
            settings,
            waiting: Vec::new(),
            clients: Vec::new(),
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
        mut record: impl FnMut(Peer, Record<&Arc<str>>),
        mut gone: impl FnMut(Peer),
    ) -> Polled {
        let now = crate::clock::now();
        let mut polled = Polled::default();
        self.accept(now, &mut polled);
        self.clients.retain_mut(|client| {
            // First the socket: a process that has closed it has written its last record.
            client.gone = client.gone || unix::has_ended(client.socket.as_raw_fd());
            let peer = client.peer;
            let drained = client.consumer.drain_at(now, usize::MAX, |r| record(peer, r));
            let sum = &mut polled.drained;
            sum.records += drained.records;
            sum.lost += drained.lost;
            sum.torn += drained.torn;
            sum.abandoned += drained.abandoned;
            sum.waiting |= drained.waiting;
            // There may be whole records after a slot that a killed thread has left.
            let done = client.gone && !drained.waiting;
            if done {
                polled.gone += 1;
                gone(peer);
            }
            !done
        });
        polled
    }

    fn accept(&mut self, now: u64, polled: &mut Polled) {
        // As many as a full backlog a call, so that a flood of connections takes no longer.
        for _ in 0..BACKLOG {
            let Some(socket) = unix::accept(self.socket.as_raw_fd()) else { break };
            if self.waiting.len() + self.clients.len() >= self.max_clients {
                polled.refused += 1;
                continue;
            }
            self.waiting.push((socket, now));
        }
        for (socket, since) in std::mem::take(&mut self.waiting) {
            let mut bytes = [0; BYTES + 1];
            match unix::receive(socket.as_raw_fd(), &mut bytes) {
                Ok((0, _)) => {}
                Ok((n, _)) => match self.welcome(socket, &bytes[..n]) {
                    Ok(Some(client)) => {
                        polled.connected += 1;
                        self.clients.push(client);
                    }
                    Ok(None) => polled.refused += 1,
                    // It was killed before its welcome, which is no refusal.
                    Err(_) => {}
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if now.saturating_sub(since) < HELLO_NS {
                        self.waiting.push((socket, since));
                    } else {
                        polled.refused += 1;
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Sends a process its ring; `None` if it is refused, an error if it has gone.
    fn welcome(&self, socket: OwnedFd, hello: &[u8]) -> io::Result<Option<Connected>> {
        let known = pid_of_hello(hello).zip(unix::credentials(socket.as_raw_fd()));
        let Some((own_pid, (pid, uid))) = known else { return Ok(None) };
        let Ok(ring) = Ring::memfd(self.ring) else { return Ok(None) };
        let peer = Peer { pid, uid, own_pid };
        let consumer = Consumer::of(ring);
        let welcome = self.settings.encode();
        unix::send(socket.as_raw_fd(), &welcome, Some(consumer.as_raw_fd()))?;
        Ok(Some(Connected { socket, peer, consumer, gone: false, without_nodes: false }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
