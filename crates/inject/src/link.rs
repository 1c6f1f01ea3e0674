//! The connection to the agent: one thread that connects, and calls the tenants while it is connected.
//!
//! *What it does.* The first entry point that is called starts the thread, which connects to the agent socket
//! ([`gpuwhy_wire::connected`]), passes settings on, and calls each tenant every [`TICK_MS`]. When the agent
//! disappears, the tenants are asked to record nothing. A fork made through libc starts anew at its first entry point.

use std::path::PathBuf;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::thread::Thread;
use std::time::Duration;

use gpuwhy_wire::connected::{self, Connected};
use gpuwhy_wire::{DEFAULT_SOCKET, Producer, SOCKET_ENV, Settings, is_off, spawn_without_signals};

use crate::notice::{self, Code};
use crate::tenant::Tenants;
use crate::{faults, guarded};

/// A ring to write to instead of connecting to an agent: what tests and benchmarks set.
pub const RING_ENV: &str = "GPUWHY_INJECT_RING";
/// The interval at which tenants are called, ms.
pub const TICK_MS: u32 = 50;
/// How long the first entry point waits for the agent's ring, once a process: so that the first
/// kernels are recorded too.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Those of the first call of [`start`]; null before.
static TENANTS: AtomicPtr<Tenants> = AtomicPtr::new(null_mut());
static STARTED: AtomicBool = AtomicBool::new(false);

/// Starts to connect to the agent, if that has not been done, and waits up to [`FIRST_WAIT`] for its
/// ring. Every entry point calls this first.
pub(crate) fn start(tenants: &'static Tenants) {
    if TENANTS.swap(from_ref(tenants).cast_mut(), SeqCst).is_null() {
        // SAFETY: the handler touches atomics and closes a descriptor, as a forked child may.
        unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    }
    if is_off() || STARTED.swap(true, SeqCst) {
        return;
    }
    if let Some(path) = std::env::var_os(RING_ENV).filter(|path| !path.is_empty()) {
        if let Ok(producer) = Producer::open(path) {
            connected::keep(producer);
        }
        return;
    }
    // A panic of ours is reported to the agent, and not printed among the program's own output.
    #[cfg(not(test))]
    std::panic::set_hook(Box::new(|_| {}));
    // Here, on a thread of the program: on ours, getenv could meet the program's setenv.
    let path = std::env::var_os(SOCKET_ENV).filter(|path| !path.is_empty());
    let path = PathBuf::from(path.unwrap_or_else(|| DEFAULT_SOCKET.into()));
    let first = std::thread::current();
    let mut all = All { tenants, first, reported: 0 };
    if spawn_without_signals(move || guarded((), || connected::run(&path, &mut all))).is_ok() {
        std::thread::park_timeout(FIRST_WAIT);
    }
}

/// The child of a fork has neither the thread nor a ring of its own; it starts anew when one of its
/// entry points is called.
unsafe extern "C" fn in_the_child() {
    connected::forget_after_fork();
    STARTED.store(false, SeqCst);
    // SAFETY: null, or a `&'static Tenants` that `start` stored.
    if let Some(tenants) = unsafe { TENANTS.load(SeqCst).as_ref() } {
        tenants.forget();
    }
}

/// The tenants, and the thread that waits for the first ring.
struct All {
    tenants: &'static Tenants,
    first: Thread,
    /// Panics that the agent knows of.
    reported: u64,
}

impl Connected for All {
    const TICK_MS: u32 = TICK_MS;

    fn ask(&mut self, settings: Settings) {
        self.tenants.ask(settings);
        self.first.unpark();
    }

    fn tick(&mut self) {
        self.tenants.tick();
        let panics = faults();
        if panics > self.reported {
            self.reported = panics;
            notice::report(Code::OurFault, Code::OurFault.text(), Some(panics as f64));
        }
    }

    fn attempted(&mut self) {
        self.first.unpark();
        self.reported = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals that the calling thread blocks, as the kernel has them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc is mounted");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    }

    #[test]
    fn our_thread_gets_no_signal_from_its_first_instruction_on_and_the_programs_thread_keeps_its_mask()
     {
        let before = blocked();
        let (sender, mask) = std::sync::mpsc::channel();
        let thread = spawn_without_signals(move || _ = sender.send(blocked())).expect("a thread");
        thread.join().expect("it ends");
        let mask = mask.recv().expect("it sent its mask");
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGPROF] {
            assert!(mask & 1 << (signal - 1) != 0, "signal {signal} is not blocked: {mask:x}");
        }
        assert_eq!(blocked(), before);
    }
}
