//! The correlator on the network: one thread, one descriptor a node, nothing that blocks.
//!
//! Each turn takes a bounded number of connections and bytes, so that what one node sends keeps neither the
//! others nor the search for stragglers waiting. Connections that have not said hello have places of their own;
//! when these are taken, the oldest of the address that has most of them gives way.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuwhy_schema::Ns;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use rustls::ServerConfig;

use crate::center::{Action, Center, Conn, FleetEvent, Limits, MayBe};
use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::keys::{hex, random};
use crate::lines::Lines;
use crate::tls::{Credentials, certifies};

const LISTENER: Token = Token(0);
/// Connections that are accepted in one turn.
const ACCEPTED: usize = 64;
/// Bytes that are read from one connection, and from all, in one turn.
const READ: (usize, usize) = (64 << 10, 4 << 20);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long no connection is accepted after one could not be.
const BACK_OFF: Duration = Duration::from_millis(200);
/// Descriptors for other things than connections.
const SPARE: u64 = 64;
/// How long a connection that is to be closed may take to send its last line.
const LAST_LINE: Duration = Duration::from_secs(1);

struct Connection {
    channel: Channel,
    address: IpAddr,
    from: String,
    lines: Lines,
    /// Whether the center knows it: both sides have shown their keys.
    known: bool,
    queued: bool,
    /// When it is closed at the latest, once that was decided.
    closing: Option<Instant>,
    since: Instant,
}

/// Listens to nodes, and reports stragglers.
pub struct Correlator {
    address: SocketAddr,
    poll: Poll,
    events: Events,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    named: bool,
    limits: Limits,
    center: Center,
    connections: HashMap<Conn, Connection>,
    /// Those that have not said hello, the oldest first.
    strangers: BTreeMap<Conn, IpAddr>,
    /// Those that may have something to read.
    ready: VecDeque<Conn>,
    next: Conn,
    /// Whether somebody may wait to be accepted, and from when on it is tried.
    waiting: bool,
    accept_at: Instant,
    began: Instant,
    ticked: Instant,
    read: Vec<u8>,
}

impl Correlator {
    /// Listens at `address`, as HOST:PORT, to nodes that show these credentials.
    ///
    /// # Errors
    /// The address cannot be listened at, others can reach it and there are no credentials, or they cannot be
    /// read.
    pub fn listen(address: &str, credentials: &Credentials, limits: Limits) -> Result<Correlator> {
        credentials.check(address)?;
        let tls = credentials.server()?;
        let cannot = |source| Error::Listen { address: address.into(), source };
        let limits = within_descriptors(limits);
        let mut listener = bind(address).map_err(cannot)?;
        let local = listener.local_addr().map_err(cannot)?;
        let poll = Poll::new().map_err(Error::Wait)?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)
            .map_err(Error::Wait)?;
        // Without random numbers nobody is asked: see `Center::ask`.
        let ids = || random::<16>().map_or_else(|_| String::new(), |id| hex(&id));
        let now = Instant::now();
        Ok(Correlator {
            address: local,
            poll,
            events: Events::with_capacity(1024),
            listener,
            tls: tls.config,
            named: tls.named,
            limits,
            center: Center::new(limits, Box::new(ids)),
            connections: HashMap::new(),
            strangers: BTreeMap::new(),
            ready: VecDeque::new(),
            next: 1,
            waiting: false,
            accept_at: now,
            began: now,
            ticked: now,
            read: Vec::new(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many nodes are connected.
    pub fn nodes(&self) -> usize {
        self.center.nodes()
    }

    /// How many nodes there may be, given the limit of open files.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Our clock: it never stands at zero, and only differences matter.
    fn now(&self) -> Ns {
        Ns::secs(1).saturating_add(Ns(self.began.elapsed().as_nanos() as i64))
    }

    /// Waits at most `timeout` for something to happen, takes a bounded part of what has come, and looks for
    /// stragglers.
    ///
    /// # Errors
    /// The operating system cannot wait for connections.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<FleetEvent>> {
        let busy = !self.ready.is_empty() || (self.waiting && Instant::now() >= self.accept_at);
        let timeout = if busy { Duration::ZERO } else { timeout.min(TICK) };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(Error::Wait(error));
            }
            _ => {}
        }
        let mut ready = Vec::new();
        for event in &self.events {
            if event.token() == LISTENER {
                self.waiting = true;
            } else if let Some(connection) = self.connections.get_mut(&(event.token().0 as Conn)) {
                connection.channel.ready(event);
                ready.push(event.token().0 as Conn);
            }
        }
        ready.into_iter().for_each(|conn| self.enqueue(conn));
        self.accept();
        let mut budget = READ.1;
        for _ in 0..self.ready.len() {
            let Some(conn) = self.ready.pop_front() else { break };
            budget = budget.saturating_sub(self.drive(conn));
            if budget == 0 {
                break;
            }
        }
        if self.ticked.elapsed() >= TICK {
            self.tick();
        }
        Ok(self.act())
    }

    fn enqueue(&mut self, conn: Conn) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(conn);
        }
    }

    /// Accepts some of those that wait.
    fn accept(&mut self) {
        if !self.waiting || Instant::now() < self.accept_at {
            return;
        }
        for _ in 0..ACCEPTED {
            match self.listener.accept() {
                Ok((stream, from)) => self.accepted(stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waiting = false;
                    return;
                }
                // Somebody left before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // No descriptors, no memory: others may give some back. Nobody is lost: they wait.
                Err(error) => {
                    self.accept_at = Instant::now() + BACK_OFF;
                    let now = self.now();
                    let why = format!("no connection can be accepted ({error}); trying again");
                    self.center.complain("the correlator", &why, now);
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, stream: TcpStream, from: SocketAddr) {
        if self.strangers.len() >= self.limits.strangers {
            self.make_room();
        }
        let conn = self.next;
        self.next += 1;
        let Ok(mut channel) = Channel::accepted(stream, self.tls.as_ref()) else { return };
        if channel.register(self.poll.registry(), Token(conn as usize)).is_err() {
            return;
        }
        let connection = Connection {
            channel,
            address: from.ip(),
            from: from.to_string(),
            lines: Lines::default(),
            known: false,
            queued: false,
            closing: None,
            since: Instant::now(),
        };
        self.connections.insert(conn, connection);
        self.strangers.insert(conn, from.ip());
        self.enqueue(conn);
    }

    /// Closes the oldest connection without hello of the address that has most of them.
    fn make_room(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for address in self.strangers.values() {
            *counts.entry(*address).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(address, n)| (*n, *address));
        let oldest = most.and_then(|(most, _)| self.strangers.iter().find(|(_, a)| **a == most));
        if let Some((&conn, &address)) = oldest {
            let why = "too many connections wait to say hello, most of them from there";
            let now = self.now();
            self.center.complain(&address.to_string(), why, now);
            self.remove(conn);
        }
    }

    fn remove(&mut self, conn: Conn) {
        self.strangers.remove(&conn);
        if self.connections.remove(&conn).is_some() {
            self.center.closed(conn);
        }
    }

    /// Reads from a connection and sends what waits for it; how many bytes were read, at least one.
    fn drive(&mut self, conn: Conn) -> usize {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(&conn) else { return 1 };
        connection.queued = false;
        if connection.closing.is_some() {
            let _ = connection.channel.flush();
            return 1;
        }
        if connection.known && !self.center.may_read(conn, now) {
            // It is looked at again at the next tick.
            if connection.channel.flush().is_err() {
                self.remove(conn);
            }
            return 1;
        }
        self.read.clear();
        let got = connection.channel.read(READ.0, &mut self.read);
        let progress = match got.and_then(|got| connection.channel.flush().map(|()| got)) {
            Ok(progress) => progress,
            Err(error) => {
                self.broken(conn, &error, now);
                return 1;
            }
        };
        if !connection.known && connection.channel.is_established() {
            connection.known = true;
            let may_be: MayBe = match (self.named, connection.channel.certificate()) {
                (true, Some(certificate)) => {
                    let certificate = certificate.clone();
                    Box::new(move |name| certifies(&certificate, name))
                }
                (true, None) => Box::new(|_| false),
                (false, _) => Box::new(|_| true),
            };
            self.center.connected(conn, &connection.from, may_be, now);
        }
        self.center.read(conn, progress.bytes, now);
        connection.lines.push(&self.read);
        self.take_lines(conn, now);
        if progress.ended {
            self.remove(conn);
        } else if progress.more {
            self.enqueue(conn);
        }
        progress.bytes.max(1)
    }

    fn take_lines(&mut self, conn: Conn, now: Ns) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        loop {
            let most = self.center.longest_line(conn);
            match connection.lines.next_line(most) {
                Ok(Some(line)) => self.center.line(conn, line, now),
                Ok(None) => break,
                Err(_) => {
                    let why = format!("a line is longer than {most} bytes");
                    self.center.refuse(conn, &why, now);
                    break;
                }
            }
            // What it said last may have been the reason to close it.
            if !self.center.has(conn) {
                break;
            }
        }
        if self.center.knows(conn) {
            self.strangers.remove(&conn);
        }
    }

    /// A connection broke, or the other end has no key of ours.
    fn broken(&mut self, conn: Conn, error: &io::Error, now: Ns) {
        if let Some(connection) = self.connections.get(&conn)
            && !connection.known
            && error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
        {
            let why = format!("it does not show a key of this fleet ({error})");
            self.center.complain(&connection.from.clone(), &why, now);
        }
        self.remove(conn);
    }

    fn tick(&mut self) {
        self.ticked = Instant::now();
        let now = self.now();
        self.center.tick(now);
        let mut over = Vec::new();
        let mut again = Vec::new();
        for (&conn, connection) in &self.connections {
            let (late, closing) = (connection.since.elapsed(), connection.closing);
            if closing.is_some_and(|by| Instant::now() >= by || !connection.channel.is_sending()) {
                over.push((conn, None));
            } else if !connection.known && late >= Duration::from_secs(5) {
                let address = connection.address.to_string();
                over.push((conn, Some((address, "it did not show a key within 5 s"))));
            } else if connection.channel.may_read() || connection.channel.is_sending() {
                again.push(conn);
            }
        }
        for (conn, why) in over {
            if let Some((address, why)) = why {
                self.center.complain(&address, why, now);
            }
            self.remove(conn);
        }
        again.into_iter().for_each(|conn| self.enqueue(conn));
    }

    /// Does what the center decided; what is to be told.
    fn act(&mut self) -> Vec<FleetEvent> {
        let mut told = Vec::new();
        for action in self.center.actions() {
            match action {
                Action::Tell(event) => told.push(event),
                Action::Send(conn, line) => {
                    let Some(connection) = self.connections.get_mut(&conn) else { continue };
                    // A node that does not read what it is asked is silent, and that has a limit.
                    let _ = connection.channel.send(&line);
                    if connection.channel.flush().is_err() {
                        self.remove(conn);
                    }
                }
                Action::Close(conn) => {
                    self.strangers.remove(&conn);
                    if let Some(connection) = self.connections.get_mut(&conn) {
                        connection.channel.close();
                        connection.closing = Some(Instant::now() + LAST_LINE);
                    }
                }
            }
        }
        told
    }
}

fn bind(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Raises the limit of open files as far as it goes, and lowers ours to what it allows.
fn within_descriptors(limits: Limits) -> Limits {
    let wanted = (limits.nodes + limits.strangers) as u64 + SPARE;
    share(limits, raise_descriptors(wanted))
}

/// Raises this process's limit of open files to `wanted`, if that is allowed; what it is then.
pub fn raise_descriptors(wanted: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let most = now.maximum.unwrap_or(u64::MAX);
    let current = now.current.unwrap_or(u64::MAX);
    let raised = wanted.min(most).max(current);
    if raised > current {
        let limit = Rlimit { current: Some(raised), maximum: now.maximum };
        if setrlimit(Resource::Nofile, limit).is_err() {
            return current;
        }
    }
    raised
}

/// Limits that `descriptors` are enough for.
fn share(limits: Limits, descriptors: u64) -> Limits {
    let places = descriptors.saturating_sub(SPARE).max(16) as usize;
    let strangers = limits.strangers.min(places / 4);
    Limits { strangers, nodes: limits.nodes.min(places - strangers), ..limits }
}
