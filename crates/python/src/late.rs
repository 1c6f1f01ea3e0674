//! Where records go: to the ring that a recording gave this process at its start, or to that of whoever listens
//! at the agent socket, from when they come until they go.
//!
//! A thread of ours, which runs no Python, connects at the first call of a wrapped function; while nobody listens, each
//! call is a branch. What was said once, when the program began, is said again to each who comes ([`notice`]).

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

use gpuwhy_wire::connected::{self, Connected, Ring};
use gpuwhy_wire::{
    DEFAULT_SOCKET, Event, NameId, Producer, SOCKET_ENV, is_off, now, spawn_without_signals,
};
use pyo3::prelude::*;

/// How many rings there have been: what was written to another one is not known to whom this one belongs.
pub(crate) use gpuwhy_wire::connected::generation;

/// What is said again, at most.
const NOTICES: usize = 64;

/// How often a lock is tried: a thread that a forked child does not have may hold it there for good.
const TRIES: usize = 1000;

/// Where an agent is to be looked for, if one is, and whether a thread does so.
static SOCKET: OnceLock<PathBuf> = OnceLock::new();
static STARTED: AtomicBool = AtomicBool::new(false);
static SAID: Mutex<Vec<Said>> = Mutex::new(Vec::new());

/// What is said to each who comes.
#[derive(Clone)]
pub(crate) enum Said {
    /// What stays true.
    Notice(String, Option<f64>),
    /// A communicator: its name, number, identity, this process's rank and how many there are.
    Communicator(String, u16, u64, u32, u32),
}

/// Whether records are written; if not, an agent is looked for.
#[inline]
pub(crate) fn is_on() -> bool {
    let is_there = connected::is_there();
    if !is_there {
        look();
    }
    is_there
}

/// Calls `f` with the ring, if there is one.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    if is_on() { connected::with(f) } else { None }
}

#[inline]
fn look() {
    if let Some(path) = SOCKET.get()
        && !STARTED.load(Relaxed)
    {
        start(path);
    }
}

#[cold]
fn start(path: &'static Path) {
    if !STARTED.swap(true, SeqCst) {
        // Without a thread nothing is recorded.
        let _ = spawn_without_signals(move || connected::run(path, &mut Process));
    }
}

/// Writes an event of the calling thread, if somebody listens.
#[inline]
pub(crate) fn write(event: impl FnOnce(&Ring) -> Event) {
    with(|ring| ring.write(event(ring)));
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

/// What this process does with its connection.
struct Process;

impl Connected for Process {
    /// Nothing is done between messages, and the end of a connection is one.
    const TICK_MS: u32 = 5000;

    fn welcomed(&mut self) {
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
    if SOCKET.get().is_some()
        && let Some(mut said) = (0..TRIES).find_map(|_| SAID.try_lock().ok())
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

/// From now on an agent is looked for where GPUWHY_SOCKET or else the host's agent listens; not if there is a ring already, or
/// GPUWHY_OFF is set. Whether records may come to be written.
#[pyfunction]
pub fn listen() -> bool {
    if connected::is_there() || SOCKET.get().is_some() {
        return true;
    }
    if is_off() {
        return false;
    }
    let named = std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty());
    SOCKET.get_or_init(|| named.unwrap_or_else(|| DEFAULT_SOCKET.into()).into());
    true
}

/// In the child of a fork: a ring that an agent sent is the parent's; the child looks for the agent itself.
pub(crate) fn in_the_child() {
    if SOCKET.get().is_some() {
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
