//! Pid and tid of the calling thread, cached, and correct after a fork.
//!
//! The caches are keyed by a word in a page that the kernel wipes in every child
//! (MADV_WIPEONFORK), however the child was made; where the kernel cannot, by a fork handler,
//! which misses children made by a bare clone(2).

use core::cell::Cell;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicPtr, AtomicU64};

/// Starts a thread for other people's programs: small, and it receives none of the program's signals, not even before
/// its first instruction. A thread inherits the signal mask of its parent, so the parent blocks them all meanwhile. The
/// program's handlers run on the program's own threads.
///
/// # Errors
/// The system gives no thread.
pub fn spawn_without_signals(
    f: impl FnOnce() + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    // SAFETY: all-zero bytes are a set of signals; the calls read and write sets that lie on our stack and
    // concern this thread alone.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let thread = std::thread::Builder::new().name("gpuwhy".into()).stack_size(256 << 10);
    let started = thread.spawn(f);
    // SAFETY: as above; this is the mask that the thread had.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    started
}

/// A number that no other process of this tree has, or 0 in a child that has not computed it yet.
static FALLBACK: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

#[derive(Clone, Copy)]
struct Me {
    key: u64,
    pid: u32,
    tid: u32,
    steps: u64,
}

thread_local! {
    static ME: Cell<Me> = const { Cell::new(Me { key: 0, pid: 0, tid: 0, steps: 0 }) };
}

/// Pid and tid of the calling thread in its own pid namespace.
#[inline]
pub(crate) fn ids() -> (u32, u32) {
    let me = me();
    (me.pid, me.tid)
}

/// The number of the calling thread's next step, from 0.
#[inline]
pub(crate) fn next_step() -> u64 {
    let me = me();
    // A thread that is being torn down has no cache any more; its steps count from 0.
    let _ = ME.try_with(|cell| cell.set(Me { steps: me.steps.wrapping_add(1), ..me }));
    me.steps
}

#[inline]
fn me() -> Me {
    let key = key();
    match ME.try_with(Cell::get) {
        Ok(me) if me.key == key && key != 0 => me,
        _ => ask(),
    }
}

#[inline]
fn key() -> u64 {
    // A thread that sees the pointer sees that the page is zeroed, also on weakly ordered machines.
    let page = PAGE.load(Acquire);
    if page.is_null() {
        return 0;
    }
    // SAFETY: `PAGE` is null or points to an `AtomicU64` that is never freed: the static above, or
    // a page that stays mapped.
    unsafe { (*page).load(Relaxed) }
}

#[cold]
fn ask() -> Me {
    // SAFETY: neither call has arguments or can fail.
    let (pid, tid) = unsafe { (libc::getpid() as u32, libc::syscall(libc::SYS_gettid) as u32) };
    let page = match PAGE.load(Acquire) {
        page if page.is_null() => first_page(),
        page => page,
    };
    // SAFETY: as in `key`.
    let word = unsafe { &*page };
    // The pid and the time, so that an ancestor that had the same pid has another key.
    let fresh = (pid as u64) << 32 | (crate::clock::now() & 0xffff_ffff) | 1;
    let key = match word.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => fresh,
        Err(key) => key,
    };
    let me = Me { key, pid, tid, steps: 0 };
    let _ = ME.try_with(|cell| cell.set(me));
    me
}

#[cold]
fn first_page() -> *mut AtomicU64 {
    let fresh = wiped_page().unwrap_or_else(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
        (&raw const FALLBACK).cast_mut()
    });
    match PAGE.compare_exchange(null_mut(), fresh, AcqRel, Acquire) {
        Ok(_) => fresh,
        // Another thread was faster; this page is left alone, which happens once a process.
        Err(page) => page,
    }
}

unsafe extern "C" fn forget() {
    FALLBACK.store(0, Relaxed);
}

fn wiped_page() -> Option<*mut AtomicU64> {
    const BYTES: usize = 4096;
    // SAFETY: a new anonymous mapping touches no memory of ours.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping above is ours, page-aligned and of this length.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: nothing else uses the mapping yet.
        unsafe { libc::munmap(page, BYTES) };
        return None;
    }
    Some(page.cast())
}
