//! A node's connection to its correlator, kept by a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuwhy_schema::Ns;
use mio::net::TcpStream;
use mio::{Events, Poll, Token, Waker};

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::keys::{hex, random};
use crate::lines::Lines;
use crate::protocol::{LINE, Question, clean, is_name};
use crate::session::Session;
use crate::tls::Credentials;

/// Lines and bytes that wait to be sent; beyond that the oldest are dropped.
const QUEUE: (usize, usize) = (512, 4 << 20);
/// Questions that wait for an answer.
const QUESTIONS: usize = 4;
/// News of the connection that wait to be told.
const NEWS: usize = 16;
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a node waits before it connects again: at first, and at most.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// A connection that lasted for so long was a good one.
const LASTED: Duration = Duration::from_secs(10);
/// How long what waits may take to be sent at the end.
const LAST_LINES: Duration = Duration::from_millis(500);

const CONNECTION: Token = Token(0);
const WAKER: Token = Token(1);

/// What became of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The correlator welcomed this node.
    Joined,
    /// There is no connection, and why; it is tried again until there is one.
    Away {
        /// Why.
        why: String,
    },
}

/// What the thread and its owner share.
struct Shared {
    queue: Mutex<Queue>,
    waker: Waker,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    dropped: u64,
    news: VecDeque<LinkEvent>,
    /// No more lines will come.
    ending: bool,
}

impl Queue {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > QUEUE.0 || self.bytes > QUEUE.1 {
            let oldest = self.lines.pop_front();
            self.bytes -= oldest.map_or(0, |line| line.len());
            self.dropped += 1;
        }
    }

    fn tell(&mut self, event: LinkEvent) {
        if self.news.len() >= NEWS {
            self.news.pop_front();
        }
        self.news.push_back(event);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing in here is left half done when a thread panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node's connection. What it is given is sent when it can be: it never blocks.
pub struct Link {
    shared: Arc<Shared>,
    questions: Receiver<Question>,
    ended: Receiver<()>,
}

impl Link {
    /// Connects to the correlator at `address`, given as HOST:PORT, as `node`, and again whenever the connection
    /// ends. Keys are read anew each time, so that they can be replaced.
    ///
    /// # Errors
    /// `node` is no name, others can reach the address and there are no credentials, or they cannot be read.
    pub fn connect(address: &str, node: &str, credentials: &Credentials) -> Result<Link> {
        if !is_name(node) {
            return Err(Error::Name { name: clean(node, 100) });
        }
        credentials.check(address)?;
        credentials.client(address)?;
        let poll = Poll::new().map_err(Error::Wait)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(Error::Wait)?;
        let shared = Arc::new(Shared { queue: Mutex::default(), waker });
        let (asked, questions) = sync_channel(QUESTIONS);
        let (end, ended) = sync_channel(1);
        let keeper = Keeper {
            shared: shared.clone(),
            poll,
            events: Events::with_capacity(16),
            asked,
            address: address.into(),
            node: node.into(),
            session: hex(&random::<16>()?),
            credentials: credentials.clone(),
            began: Instant::now(),
            told_away: None,
        };
        std::thread::Builder::new()
            .name("fleet".into())
            .spawn(move || {
                keeper.keep();
                let _ = end.send(());
            })
            .map_err(Error::Wait)?;
        Ok(Link { shared, questions, ended })
    }

    /// Sends a line when that is possible; the oldest that wait give way to it. A line that is too long for
    /// the correlator is dropped and counted.
    pub fn send(&self, line: String) {
        let mut queue = self.shared.queue();
        if line.len() > LINE {
            queue.dropped += 1;
            return;
        }
        queue.push(line);
        drop(queue);
        let _ = self.shared.waker.wake();
    }

    /// Lines that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.shared.queue().dropped
    }

    /// The next question of the correlator.
    pub fn question(&self) -> Option<Question> {
        self.questions.try_recv().ok()
    }

    /// What became of the connection since the last call.
    pub fn news(&self) -> Vec<LinkEvent> {
        self.shared.queue().news.drain(..).collect()
    }
}

impl Drop for Link {
    /// Sends what waits, if that is possible at once.
    fn drop(&mut self) {
        self.shared.queue().ending = true;
        let _ = self.shared.waker.wake();
        let _ = self.ended.recv_timeout(2 * LAST_LINES);
    }
}

/// The thread.
struct Keeper {
    shared: Arc<Shared>,
    poll: Poll,
    events: Events,
    asked: SyncSender<Question>,
    address: String,
    node: String,
    session: String,
    credentials: Credentials,
    began: Instant,
    told_away: Option<String>,
}

/// Why a connection ended.
enum Ended {
    /// The owner of the link wants no more of it.
    Wanted,
    /// Something else.
    Because(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Because(clean(&error.to_string(), 300))
    }
}

impl Keeper {
    fn now(&self) -> Ns {
        Ns::secs(1).saturating_add(Ns(self.began.elapsed().as_nanos() as i64))
    }

    fn keep(mut self) {
        let mut wait = RECONNECT.0;
        loop {
            let began = Instant::now();
            let Err(ended) = self.connection() else { return };
            let why = match ended {
                Ended::Wanted => return,
                Ended::Because(why) => why,
            };
            if self.told_away.as_ref() != Some(&why) {
                self.shared.queue().tell(LinkEvent::Away { why: why.clone() });
                self.told_away = Some(why);
            }
            wait =
                if began.elapsed() >= LASTED { RECONNECT.0 } else { (wait * 2).min(RECONNECT.1) };
            if self.pause(jittered(wait)) {
                return;
            }
        }
    }

    /// Waits; whether the link is not wanted any more.
    fn pause(&mut self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if self.shared.queue().ending {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.poll.poll(&mut self.events, Some(left)).is_err() {
                std::thread::sleep(left.min(Duration::from_millis(100)));
            }
        }
        false
    }

    /// One connection from its beginning to its end.
    fn connection(&mut self) -> Result<(), Ended> {
        let mut channel = self.open()?;
        let ended = self.converse(&mut channel);
        self.shared.queue().dropped += channel.unsent_lines();
        ended
    }

    fn converse(&mut self, channel: &mut Channel) -> Result<(), Ended> {
        let mut session = Session::new(&self.node, &self.session, self.now());
        channel.send(session.hello());
        let (mut lines, mut bytes) = (Lines::default(), Vec::new());
        let opened = Instant::now();
        let mut ending: Option<Instant> = None;
        loop {
            let busy = channel.may_read() && session.may_read(self.now());
            let timeout = Duration::from_millis(if busy { 0 } else { 250 });
            match self.poll.poll(&mut self.events, Some(timeout)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            self.events.iter().filter(|e| e.token() == CONNECTION).for_each(|e| channel.ready(e));
            if let Some(error) = channel.error() {
                return Err(error.into());
            }
            let now = self.now();
            if session.may_read(now) {
                bytes.clear();
                let progress = channel.read(16 << 10, &mut bytes)?;
                session.read(progress.bytes, now);
                lines.push(&bytes);
                self.take_lines(&mut session, &mut lines, now)?;
                if progress.ended {
                    return Err(Ended::Because("it closed the connection".into()));
                }
            }
            if !channel.is_established() && opened.elapsed() >= CONNECT {
                return Err(Ended::Because("it did not show a key within 5 s".into()));
            }
            if let Some(line) = session.tick(now).map_err(Ended::Because)? {
                channel.send(&line);
            }
            if session.is_welcome() && self.fill(channel) {
                session.sent(now);
            }
            channel.flush()?;
            if self.shared.queue().ending {
                let by = *ending.get_or_insert_with(|| Instant::now() + LAST_LINES);
                let done = self.shared.queue().lines.is_empty() && !channel.is_sending();
                if done || !session.is_welcome() || Instant::now() >= by {
                    channel.close();
                    return Err(Ended::Wanted);
                }
            }
        }
    }

    fn open(&mut self) -> Result<Channel, Ended> {
        let tls = self.credentials.client(&self.address).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            Ended::Because(format!("{error}{}", cause.unwrap_or_default()))
        })?;
        let loopback = self.credentials == Credentials::None { anywhere: false };
        let mut last = Ended::Because("its name has no address".into());
        for address in self.address.to_socket_addrs()? {
            // Without keys nobody beyond this host is trusted, whatever a name leads to.
            if loopback && !address.ip().is_loopback() {
                continue;
            }
            // One address after the other, each with its time: the first that answers is taken.
            let stream = match std::net::TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => stream,
                Err(error) => {
                    last = error.into();
                    continue;
                }
            };
            stream.set_nonblocking(true)?;
            let mut channel = Channel::connecting(TcpStream::from_std(stream), tls.config)
                .map_err(|error| Ended::Because(error.to_string()))?;
            channel.register(self.poll.registry(), CONNECTION)?;
            return Ok(channel);
        }
        Err(last)
    }

    fn take_lines(
        &mut self,
        session: &mut Session,
        lines: &mut Lines,
        now: Ns,
    ) -> Result<(), Ended> {
        loop {
            let line = lines
                .next_line(session.longest_line())
                .map_err(|_| Ended::Because("it sends a line that is too long".into()))?;
            let Some(line) = line else { return Ok(()) };
            let was_welcome = session.is_welcome();
            if let Some(question) = session.line(line, now).map_err(Ended::Because)? {
                // The watcher answers when it can; more than a few questions wait in vain.
                let _ = self.asked.try_send(question);
            }
            if session.is_welcome() && !was_welcome {
                self.told_away = None;
                self.shared.queue().tell(LinkEvent::Joined);
            }
        }
    }

    /// Hands lines to the channel as long as they fit; whether there were any.
    fn fill(&mut self, channel: &mut Channel) -> bool {
        let mut queue = self.shared.queue();
        let mut any = false;
        while let Some(line) = queue.lines.front() {
            if !channel.send(line) {
                break;
            }
            any = true;
            queue.bytes -= line.len();
            queue.lines.pop_front();
        }
        any
    }
}

/// Half to one and a half of a time: nodes that lost their correlator together come back one by one.
fn jittered(wait: Duration) -> Duration {
    let [random] = random().unwrap_or([128]);
    wait / 2 + wait * u32::from(random) / 256
}
