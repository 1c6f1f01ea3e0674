//! Where records go: to the ring that a recording gave this process at its start, or to that of whoever listens
//! at the agent socket, from when they come until they go.
//!
//! A thread of ours, which runs no Python, connects at the first call of a wrapped function; while nobody listens, each
//! call is a branch. What was said once, when the program began, is said again to each who comes ([`notice`]).

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use gpuwhy_wire::connected::{self, Connected, Ring};
use gpuwhy_wire::{
    DEFAULT_SOCKET, Event, NameId, Producer, SOCKET_ENV, Settings, is_off, now,
    spawn_without_signals,
};
use pyo3::prelude::*;

/// What is said again, at most.
const NOTICES: usize = 64;

/// Whether an agent is to be looked for, and whether a thread does so.
static LISTENS: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);
/// Where.
static SOCKET: Mutex<Option<PathBuf>> = Mutex::new(None);
static SAID: Mutex<Vec<Said>> = Mutex::new(Vec::new());

/// What is said to each who comes.
#[derive(Clone)]
pub(crate) enum Said {
    /// What stays true.
    Notice(String, Option<f64>),
    /// A communicator: its name, number, identity, this process's rank and how many there are.
    Communicator(String, u16, u64, u32, u32),
}

/// Whether records are written.
#[inline]
pub(crate) fn is_on() -> bool {
    connected::is_there() || look()
}

/// Sees to it that an agent is looked for.
#[inline]
fn look() -> bool {
    if LISTENS.load(Relaxed) && !STARTED.load(Relaxed) {
        start();
    }
    false
}

#[cold]
fn start() {
    if STARTED.swap(true, SeqCst) {
        return;
    }
    // Never held for long, and by nobody when a process forks but by who forks.
    let socket = SOCKET.try_lock().ok().and_then(|path| path.clone());
    if let Some(path) = socket {
        // Without a thread nothing is recorded.
        let _ = spawn_without_signals(move || connected::run(&path, &mut Process));
    }
}

/// Calls `f` with the ring, if there is one.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    if is_on() { connected::with(f) } else { None }
}

/// Writes an event of the calling thread, if somebody listens.
#[inline]
pub(crate) fn write(event: impl FnOnce(&Ring) -> Event) {
    with(|ring| ring.write(event(ring)));
}

/// How many rings there have been: what was written to another one is not known to whom this one belongs.
#[inline]
pub(crate) fn generation() -> u64 {
    connected::generation()
}

/// A name, whose number in the ring is remembered.
pub(crate) struct Name {
    text: Box<str>,
    /// The ring's generation (the upper half) and the number there.
    known: AtomicU64,
}

impl Name {
    pub fn new(text: &str) -> Name {
        Name { text: text.into(), known: AtomicU64::new(0) }
    }

    /// Its number in a ring.
    #[inline]
    pub fn of(&self, ring: &Ring) -> NameId {
        let known = self.known.load(Relaxed);
        if known >> 32 == ring.generation & 0xffff_ffff {
            return NameId(known as u32);
        }
        let id = ring.name(&self.text);
        self.known.store(ring.generation << 32 | u64::from(id.0), Relaxed);
        id
    }
}

impl Clone for Name {
    fn clone(&self) -> Name {
        Name { text: self.text.clone(), known: AtomicU64::new(self.known.load(Relaxed)) }
    }
}

/// What this process does with its connection.
struct Process;

impl Connected for Process {
    /// Nothing is done between messages, and the end of a connection is one.
    const TICK_MS: u32 = 5000;

    fn ask(&mut self, _settings: Settings) {
        let said = SAID.lock().map(|said| said.clone()).unwrap_or_default();
        connected::with(|ring| said.iter().for_each(|said| said.write(ring)));
    }
}

impl Said {
    /// As the main thread says it: who looks for what a process lacks looks there.
    fn write(&self, ring: &Ring) {
        let at = now();
        let event = match *self {
            Said::Notice(ref name, value) => Event::Mark { name: ring.name(name), at, value },
            Said::Communicator(ref name, communicator, id, rank, ranks) => {
                Event::Communicator { name: ring.name(name), communicator, id, rank, ranks, at }
            }
        };
        ring.write_as(std::process::id(), event);
    }
}

/// Says it to who listens now, and to each who comes later.
pub(crate) fn say(what: Said) {
    with(|ring| what.write(ring));
    if LISTENS.load(Relaxed)
        && let Ok(mut said) = SAID.lock()
        && said.len() < NOTICES
    {
        said.push(what);
    }
}

/// Opens the ring at `path`, once a process; whether there is one now.
#[pyfunction]
pub fn open(path: &str) -> bool {
    if !connected::is_there()
        && let Ok(producer) = Producer::open(path)
    {
        connected::keep(producer);
    }
    connected::is_there()
}

/// From now on an agent is looked for at `path`, or where GPUWHY_SOCKET or else the host's agent listens. Not if there is
/// a ring already, or GPUWHY_OFF is set. Whether records may come to be written.
#[pyfunction]
#[pyo3(signature = (path=None))]
pub fn listen(path: Option<&str>) -> bool {
    if connected::is_there() || LISTENS.load(SeqCst) {
        return true;
    }
    if is_off() {
        return false;
    }
    let named = path.map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os(SOCKET_ENV).map(PathBuf::from));
    let named = named.filter(|path| !path.as_os_str().is_empty());
    if let Ok(mut socket) = SOCKET.lock() {
        *socket = Some(named.unwrap_or_else(|| DEFAULT_SOCKET.into()));
    }
    LISTENS.store(true, SeqCst);
    true
}

/// Whether there is a ring, or may be one later.
#[pyfunction]
pub fn is_wanted() -> bool {
    connected::is_there() || LISTENS.load(SeqCst)
}

/// In the child of a fork: a ring that an agent sent is the parent's; the child looks for the agent itself.
pub(crate) fn in_the_child() {
    if LISTENS.load(SeqCst) {
        connected::forget_after_fork();
        STARTED.store(false, SeqCst);
    }
}

/// Says once what stays true: to who listens now, and to each who comes later.
#[pyfunction]
#[pyo3(signature = (name, value=None))]
pub fn notice(name: &str, value: Option<f64>) {
    say(Said::Notice(name.to_owned(), value.filter(|value| value.is_finite())));
}
