//! Signals: to other processes, and which of them are ignored here.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sends a signal to a process.
///
/// # Errors
/// There is no such process, or we may not signal it.
pub fn signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ignores a signal, or no longer: what programs that this one becomes inherit.
pub fn set_ignored(signal: i32, ignored: bool) {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: both actions are valid for every signal, and replace no handler that somebody relies on:
    // callers pass SIGPIPE, SIGTTOU and SIGCHLD, for which nobody here sets one. What cannot be set
    // is an error without effect.
    unsafe { libc::signal(signal, action) };
}

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Whether SIGPIPE was ignored when this program was started. Rust's runtime ignores it in every
/// program, so it has to be asked before `main`.
pub fn sigpipe_was_ignored() -> bool {
    SIGPIPE_IGNORED.load(Ordering::Relaxed)
}

extern "C" fn look_at_sigpipe() {
    // SAFETY: a `sigaction` is plain numbers, for which zeros are valid, and a null action asks only.
    let ignored = unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    };
    SIGPIPE_IGNORED.store(ignored, Ordering::Relaxed);
}

// SAFETY: the section holds pointers to functions of this type, which the C runtime calls once before
// `main`, while there is one thread; this one needs nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = look_at_sigpipe;
