//! A process that is recorded while an agent is there: its ring comes with an agent and goes with it.
//!
//! *What it does.* [`run`], on a thread of its own, connects to the agent socket, publishes the ring that it
//! receives, and passes on what the agent asks for. When the agent disappears, the ring is withdrawn, and the thread
//! connects again: an agent that starts late and one that restarts are the same case.
//!
//! *Writers never wait* (`published`): they find the ring or none ([`with`]). A withdrawn ring stays mapped until no
//! writer can be using it any more.
//!
//! *What fools it.* A child made by a bare clone(2), without exec, has its parent's ring and no thread; its records
//! carry its own pid, and the agent drops them. Whoever forks through libc calls [`forget_after_fork`] in the child.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};
use std::time::Duration;

use crate::producer::Producer;
use crate::published::{LINES, Published, Withdrawn};
use crate::record::{Event, NameId};
use crate::socket::{Client, Received, Settings};

/// The pauses between attempts to connect, ms; the last one repeats.
const RETRY_MS: [u64; 4] = [100, 250, 1000, 2000];
/// While this many withdrawn rings may still be written to, the agent is not connected to again.
const RETIRED: usize = 4;
/// An agent that sends no ring in this time is disconnected, ms.
const WELCOME_MS: u32 = 2000;

/// A ring to write to.
#[derive(Debug)]
pub struct Ring {
    producer: Producer,
    /// Counts the rings that this process has had. Names have other numbers in another ring, so caches
    /// of name numbers are valid for one generation only.
    pub generation: u64,
}

impl Ring {
    /// The number of a name in this ring.
    #[inline]
    pub fn name(&self, name: &str) -> NameId {
        self.producer.name(name)
    }

    /// Writes one event of the calling thread; a full ring counts it as lost.
    #[inline]
    pub fn write(&self, event: Event) {
        self.producer.write(event);
    }

    /// Writes one event of another thread of this process.
    #[inline]
    pub fn write_as(&self, tid: u32, event: Event) {
        self.producer.write_as(tid, event);
    }
}

static RING: Published<Ring> = Published::new();
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The connection's descriptor, while there is one.
static SOCKET: AtomicI32 = AtomicI32::new(-1);

/// The calling thread's counter of readers.
fn my_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static LINE: Cell<usize> = const { Cell::new(usize::MAX) }; }
    // A thread that is being torn down has no cell any more, and uses the first counter.
    let line = LINE.try_with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(NEXT.fetch_add(1, Relaxed) % LINES);
        }
        cell.get()
    });
    line.unwrap_or(0)
}

/// Whether there seems to be a ring; only [`with`] knows.
#[inline]
pub fn is_there() -> bool {
    RING.is_there()
}

/// How many rings this process has had.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// Calls `f` with the ring, if there is one. Never waits.
#[inline]
pub fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    if !RING.is_there() {
        return None;
    }
    RING.with(my_line(), f)
}

/// Makes the ring of `producer` the one that is written to, for good: for a process that was given one.
pub fn keep(producer: Producer) {
    // One that it replaces may be in use, and is not unmapped.
    let _ = publish(producer);
}

fn publish(producer: Producer) -> Option<Withdrawn<Ring>> {
    let generation = GENERATION.fetch_add(1, Relaxed) + 1;
    RING.publish(Box::new(Ring { producer, generation }))
}

/// In the child of a fork: the ring is the parent's, and so is the connection, which ends with its process
/// and not with the last of its children. Allowed in fork handlers.
pub fn forget_after_fork() {
    RING.forget_after_fork();
    let socket = SOCKET.swap(-1, SeqCst);
    if socket >= 0 {
        // SAFETY: this copy of the descriptor is the child's, whose copy of the owner never runs.
        unsafe { libc::close(socket) };
    }
}

/// What a process does with its connection.
pub trait Connected {
    /// How often [`Connected::tick`] is called while there is an agent, ms; also how late its end is noticed.
    const TICK_MS: u32;

    /// An agent has come, and its ring is there.
    fn welcomed(&mut self) {}

    /// What the agent asks for from now on: [`Settings::default`], nothing, when it has gone. The ring is there.
    fn ask(&mut self, _settings: Settings) {}

    /// Called now and then while there is an agent.
    fn tick(&mut self) {}

    /// An attempt to connect has been made, and has failed or come to its end.
    fn attempted(&mut self) {}
}

/// Connects to the agent socket at `path` again and again, until the process ends.
pub fn run<C: Connected>(path: &Path, process: &mut C) -> ! {
    let mut retired: Vec<Withdrawn<Ring>> = Vec::new();
    let mut failed = 0;
    loop {
        RING.release(&mut retired);
        if retired.len() < RETIRED
            && let Ok(client) = Client::connect(path)
        {
            failed = 0;
            SOCKET.store(client.as_raw_fd(), SeqCst);
            serve(&client, process, &mut retired);
            SOCKET.store(-1, SeqCst);
        }
        process.attempted();
        std::thread::sleep(Duration::from_millis(RETRY_MS[failed.min(RETRY_MS.len() - 1)]));
        failed += 1;
    }
}

/// From the connection to its end.
fn serve<C: Connected>(client: &Client, process: &mut C, retired: &mut Vec<Withdrawn<Ring>>) {
    let mut welcome = client.recv(WELCOME_MS);
    while let Received::Settings(_) = welcome {
        welcome = client.recv(WELCOME_MS);
    }
    let Received::Welcome(producer, settings) = welcome else { return };
    retired.extend(publish(producer));
    process.welcomed();
    process.ask(settings);
    loop {
        match client.recv(C::TICK_MS) {
            Received::Settings(settings) => process.ask(settings),
            Received::Nothing => {}
            Received::Welcome(..) | Received::Closed => break,
        }
        process.tick();
        RING.release(retired);
    }
    process.ask(Settings::default());
    retired.extend(RING.withdraw());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::socket::{Server, ServerOptions};

    /// Tells what it is told.
    struct Tells(Sender<Option<Settings>>);

    impl Connected for Tells {
        const TICK_MS: u32 = 10;

        fn welcomed(&mut self) {
            let _ = self.0.send(None);
        }

        fn ask(&mut self, settings: Settings) {
            let _ = self.0.send(Some(settings));
        }
    }

    #[test]
    fn each_agent_that_comes_is_welcomed_once_whatever_it_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let (tells, told) = channel();
        let at = path.clone();
        std::thread::spawn(move || run(&at, &mut Tells(tells)));
        for agent in 1..3 {
            let mut server =
                Server::listen(&path, ServerOptions::default(), Settings::NOTHING).unwrap();
            let mut next = || {
                for _ in 0..500 {
                    server.poll(|_, _| {}, |_| {});
                    if let Ok(one) = told.recv_timeout(Duration::from_millis(20)) {
                        return one;
                    }
                }
                panic!("nothing is told");
            };
            assert_eq!((next(), next()), (None, Some(Settings::NOTHING)));
            assert_eq!((generation(), is_there()), (agent, true));
            server.ask(Settings::USUAL);
            assert_eq!(told.recv().unwrap(), Some(Settings::USUAL));
            drop(server);
            assert_eq!(told.recv().unwrap(), Some(Settings::default()));
        }
    }
}
