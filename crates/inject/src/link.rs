//! The way to the collector: one thread that knocks, and the ring to write to while it is there.
//!
//! *What it does.* The first door that opens starts the thread. It knocks at the collector's
//! socket until it is let in, publishes the ring that it is handed, hears what is asked, and lets
//! the doors do what must be done now and then ([`TICK_MS`]). When the collector goes, the ring is
//! withdrawn, the doors are told to be quiet, and the thread knocks again: late and restarted
//! collectors are the same case.
//!
//! *Who writes never waits* ([`Published`]). A withdrawn ring is unmapped when no writer can be
//! using it; until then it stays, and while too many stay no new one is taken.
//!
//! *What fools it.* A child made by a bare clone(2), without exec, has its parent's ring and no
//! thread; its records carry its own pid, and the collector drops them. A fork made through libc
//! starts anew at its first door.

use std::cell::Cell;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize};
use std::thread::Thread;
use std::time::Duration;

use gpuwhy_wire::{
    DEFAULT_DOOR, DOOR_ENV, Event, Heard, NameId, Producer, Settings, Visit, is_off,
};

use crate::published::{LINES, Published, Withdrawn};

/// A ring to write to instead of looking for a collector: what tests and benchmarks set.
pub const RING_ENV: &str = "GPUWHY_INJECT_RING";
/// How often the doors may do something.
pub const TICK_MS: u32 = 50;
/// How long a process waits for its collector's first word, once, in the call that opened the
/// first door: so that the first kernels are seen too.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// How long after a knock that nobody answered the next one is.
const KNOCK_MS: [u64; 4] = [100, 250, 1000, 2000];
/// Withdrawn rings that somebody may still be writing to.
const RETIRED: usize = 4;
/// Words that a collector may not send for so long before it is taken for none.
const WELCOME_MS: u32 = 2000;

/// A ring to write to.
#[derive(Debug)]
pub struct Ring {
    producer: Producer,
    /// Names have other numbers in another ring: caches of them are kept with this.
    pub generation: u64,
}

impl Ring {
    /// The number of a name in this ring.
    #[inline]
    pub fn name(&self, name: &str) -> NameId {
        self.producer.name(name)
    }

    /// Writes one event, or counts that there was no room for it.
    #[inline]
    pub fn write(&self, event: Event) {
        self.producer.write(event);
    }

    /// Writes one event of another thread.
    #[inline]
    pub fn write_as(&self, tid: u32, event: Event) {
        self.producer.write_as(tid, event);
    }
}

static RING: Published<Ring> = Published::new();
static STARTED: AtomicBool = AtomicBool::new(false);
static HANDLED: AtomicBool = AtomicBool::new(false);
static SOCKET: AtomicI32 = AtomicI32::new(-1);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The calling thread's counter of readers.
fn my_line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! { static LINE: Cell<usize> = const { Cell::new(usize::MAX) }; }
    // A thread that is being torn down has no cell any more, and takes the first.
    let line = LINE.try_with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(NEXT.fetch_add(1, Relaxed) % LINES);
        }
        cell.get()
    });
    line.unwrap_or(0)
}

/// Gives `f` the ring, if a collector listens. Never waits.
#[inline]
pub fn with<R>(f: impl FnOnce(&Ring) -> R) -> Option<R> {
    if !RING.is_there() {
        return None;
    }
    RING.with(my_line(), f)
}

/// Has a collector looked for, from now on; waits a little for it, the first time.
pub fn start() {
    if is_off() || STARTED.swap(true, SeqCst) {
        return;
    }
    if let Some(ring) = std::env::var_os(RING_ENV).filter(|path| !path.is_empty()) {
        // By hand: a ring by its path, and nobody who asks for anything in particular.
        if let Ok(producer) = Producer::open(ring) {
            publish(producer);
        }
        return;
    }
    if !HANDLED.swap(true, SeqCst) {
        // SAFETY: the handler touches atomics and closes a descriptor, as a forked child may.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    }
    // A fault of ours is the collector's business, and none of whoever reads this program's output.
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
    let waiting = std::thread::current();
    let thread = std::thread::Builder::new().name("gpuwhy".into()).stack_size(256 << 10);
    if thread.spawn(move || crate::guarded((), || run(waiting))).is_ok() {
        std::thread::park_timeout(FIRST_WAIT);
    }
}

/// The child of a fork has neither the thread nor a ring of its own; it begins anew when one of its
/// doors opens.
unsafe extern "C" fn in_the_child() {
    RING.forget_after_fork();
    STARTED.store(false, SeqCst);
    let socket = SOCKET.swap(-1, SeqCst);
    if socket >= 0 {
        // The connection ends with its process, and not with the last of its children.
        // SAFETY: this copy of the descriptor is the child's, whose copy of the owner never runs.
        unsafe { libc::close(socket) };
    }
    crate::cupti::forget();
}

fn run(first: Thread) {
    be_quiet();
    let path = std::env::var_os(DOOR_ENV).filter(|p| !p.is_empty());
    let path = PathBuf::from(path.unwrap_or_else(|| DEFAULT_DOOR.into()));
    let mut retired: Vec<Withdrawn<Ring>> = Vec::new();
    let mut failed = 0;
    loop {
        RING.release(&mut retired);
        if retired.len() < RETIRED
            && let Ok(visit) = Visit::knock(&path)
        {
            failed = 0;
            serve(&visit, &first, &mut retired);
        }
        first.unpark();
        let wait = KNOCK_MS[failed.min(KNOCK_MS.len() - 1)];
        failed += 1;
        std::thread::sleep(Duration::from_millis(wait));
    }
}

/// From the collector's welcome to its end.
fn serve(visit: &Visit, first: &Thread, retired: &mut Vec<Withdrawn<Ring>>) {
    SOCKET.store(visit.as_raw_fd(), SeqCst);
    let mut welcome = visit.hear(WELCOME_MS);
    while let Heard::Asked(_) = welcome {
        welcome = visit.hear(WELCOME_MS);
    }
    if let Heard::Welcome(producer, settings) = welcome {
        retired.extend(publish(producer));
        ask(settings);
        first.unpark();
        let mut faults = 0;
        loop {
            match visit.hear(TICK_MS) {
                Heard::Asked(settings) => ask(settings),
                Heard::Nothing => {}
                Heard::Welcome(..) | Heard::Gone => break,
            }
            crate::cupti::tick();
            crate::nccl::tick();
            if crate::faults() > faults {
                faults = crate::faults();
                let code = crate::notice::Code::OurFault;
                crate::notice::tell(code, code.text(), Some(faults as f64));
            }
            RING.release(retired);
        }
        ask(Settings::default());
        retired.extend(RING.withdraw());
    }
    SOCKET.store(-1, SeqCst);
}

fn ask(settings: Settings) {
    crate::cupti::ask(settings);
    crate::nccl::ask(settings);
}

fn publish(producer: Producer) -> Option<Withdrawn<Ring>> {
    let generation = GENERATION.fetch_add(1, Relaxed) + 1;
    RING.publish(Box::new(Ring { producer, generation }))
}

/// The host's signal handlers run on the host's threads.
fn be_quiet() {
    // SAFETY: the set lies on our stack; the calls concern this thread alone.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut());
    }
}
