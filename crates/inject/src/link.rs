//! The connection to the agent: one thread that connects, and calls the tenants while it is connected.
//!
//! *What it does.* The first entry point that is called starts the thread. It connects to the agent
//! socket, publishes the ring that it receives, passes settings on, and calls each tenant every
//! [`TICK_MS`]. When the agent disappears, the ring is withdrawn, the tenants are asked to record
//! nothing, and the thread connects again: an agent that starts late and one that restarts are the
//! same case.
//!
//! *What fools it.* A child made by a bare clone(2), without exec, has its parent's ring and no
//! thread; its records carry its own pid, and the agent drops them. A fork made through libc starts
//! anew at its first entry point.

use std::path::{Path, PathBuf};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr};
use std::thread::Thread;
use std::time::Duration;

use gpuwhy_wire::{
    Client, DEFAULT_SOCKET, Producer, Received, SOCKET_ENV, Settings, is_off, spawn_without_signals,
};

use crate::notice::{self, Code};
use crate::published::Withdrawn;
use crate::ring::{self, Ring};
use crate::tenant::Tenants;
use crate::{faults, guarded};

/// A ring to write to instead of connecting to an agent: what tests and benchmarks set.
pub const RING_ENV: &str = "GPUWHY_INJECT_RING";
/// The interval at which tenants are called, ms.
pub const TICK_MS: u32 = 50;
/// How long the first entry point waits for the agent's ring, once a process: so that the first
/// kernels are recorded too.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The pauses between attempts to connect, ms; the last one repeats.
const RETRY_MS: [u64; 4] = [100, 250, 1000, 2000];
/// While this many withdrawn rings may still be written to, the agent is not connected to again.
const RETIRED: usize = 4;
/// An agent that sends no ring in this time is disconnected, ms.
const WELCOME_MS: u32 = 2000;

/// Those of the first call of [`start`]; null before.
static TENANTS: AtomicPtr<Tenants> = AtomicPtr::new(null_mut());
static STARTED: AtomicBool = AtomicBool::new(false);
static SOCKET: AtomicI32 = AtomicI32::new(-1);

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
            ring::publish(producer);
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
    if spawn_without_signals(move || guarded((), || run(&path, &first, tenants))).is_ok() {
        std::thread::park_timeout(FIRST_WAIT);
    }
}

/// The child of a fork has neither the thread nor a ring of its own; it starts anew when one of its
/// entry points is called.
unsafe extern "C" fn in_the_child() {
    ring::forget_after_fork();
    STARTED.store(false, SeqCst);
    let socket = SOCKET.swap(-1, SeqCst);
    if socket >= 0 {
        // The connection ends with its process, and not with the last of its children.
        // SAFETY: this copy of the descriptor is the child's, whose copy of the owner never runs.
        unsafe { libc::close(socket) };
    }
    // SAFETY: null, or a `&'static Tenants` that `start` stored.
    if let Some(tenants) = unsafe { TENANTS.load(SeqCst).as_ref() } {
        tenants.forget();
    }
}

/// Connects again and again, until the process ends.
fn run(path: &Path, first: &Thread, tenants: &Tenants) {
    let mut retired: Vec<Withdrawn<Ring>> = Vec::new();
    let mut failed = 0;
    loop {
        ring::release(&mut retired);
        if retired.len() < RETIRED
            && let Ok(client) = Client::connect(path)
        {
            failed = 0;
            serve(&client, first, tenants, &mut retired);
        }
        first.unpark();
        let wait = RETRY_MS[failed.min(RETRY_MS.len() - 1)];
        failed += 1;
        std::thread::sleep(Duration::from_millis(wait));
    }
}

/// From the connection to its end.
fn serve(client: &Client, first: &Thread, tenants: &Tenants, retired: &mut Vec<Withdrawn<Ring>>) {
    SOCKET.store(client.as_raw_fd(), SeqCst);
    let mut welcome = client.recv(WELCOME_MS);
    while let Received::Settings(_) = welcome {
        welcome = client.recv(WELCOME_MS);
    }
    if let Received::Welcome(producer, settings) = welcome {
        retired.extend(ring::publish(producer));
        tenants.ask(settings);
        first.unpark();
        let mut reported = 0;
        loop {
            match client.recv(TICK_MS) {
                Received::Settings(settings) => tenants.ask(settings),
                Received::Nothing => {}
                Received::Welcome(..) | Received::Closed => break,
            }
            tenants.tick();
            let panics = faults();
            if panics > reported {
                reported = panics;
                notice::report(Code::OurFault, Code::OurFault.text(), Some(panics as f64));
            }
            ring::release(retired);
        }
        tenants.ask(Settings::default());
        retired.extend(ring::withdraw());
    }
    SOCKET.store(-1, SeqCst);
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
