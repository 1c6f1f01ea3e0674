//! The system calls that the workload and the injectors need, and all unsafe code of this crate
//! but the calls of `libcuda`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    gpuwhy_wire::now()
}

/// CPU time of the calling thread, ns.
pub fn thread_cpu() -> u64 {
    cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of all threads of this process, ns.
pub fn process_cpu() -> u64 {
    cpu(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn cpu(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for a timespec, which the call fills.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sleeps until a time of CLOCK_MONOTONIC; a timer's interrupt ends the sleep.
pub fn sleep_until(at: u64) {
    let t = libc::timespec {
        tv_sec: (at / 1_000_000_000) as libc::time_t,
        tv_nsec: (at % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: `t` is valid; no remainder is asked for. A signal makes us sleep again.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &t, std::ptr::null_mut())
    } == libc::EINTR
    {}
}

/// Names the calling thread, and so a process of one thread; 15 bytes are kept.
pub fn set_comm(name: &str) {
    let name = CString::new(name).unwrap_or_default();
    // SAFETY: a C string, which the kernel copies.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Has sleeps end within a microsecond of their time instead of fifty.
pub fn set_exact_timers() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000 as libc::c_ulong) };
}

/// Pins the calling thread, and the threads that it starts from now on, to one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid, and CPU_SET ignores numbers beyond it.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid and its size is given.
    done(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) })
}

/// The CPUs that the calling thread may run on, ascending.
pub fn cpus() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid and its size is given.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if failed != 0 {
        return vec![0];
    }
    // SAFETY: all numbers below CPU_SETSIZE lie within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Makes the calling thread a real-time thread of the lowest FIFO priority.
pub fn set_fifo() -> io::Result<()> {
    // SAFETY: all zero is a valid sched_param.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    // SAFETY: the parameter is valid.
    done(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) })
}

/// Samples whatever runs on a CPU, so often a second, from a timer's interrupt, and throws the
/// samples away. Ends when the descriptor is closed.
pub fn profile(cpu: usize, hz: u64) -> io::Result<OwnedFd> {
    /// `struct perf_event_attr`, version 0 (uapi/linux/perf_event.h).
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        kind: u32,
        size: u32,
        config: u64,
        sample_period: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup_events: u32,
        bp_type: u32,
        bp_addr: u64,
    }
    const PERF_TYPE_SOFTWARE: u32 = 1;
    const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
    const PERF_SAMPLE_IP: u64 = 1;
    let attr = Attr {
        kind: PERF_TYPE_SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK,
        sample_period: 1_000_000_000 / hz.max(1),
        sample_type: PERF_SAMPLE_IP,
        ..Attr::default()
    };
    let (any, none) = (-1 as libc::pid_t, -1 as libc::c_int);
    const CLOEXEC: libc::c_ulong = 8;
    // SAFETY: the attributes are valid and say how long they are; the rest are numbers.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &attr, any, cpu as libc::c_int, none, CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Sends a signal to a process.
pub fn kill(pid: i32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: numbers only.
    done(unsafe { libc::kill(pid, signal) })
}

/// Moves the calling thread into a new network namespace.
pub fn new_netns() -> io::Result<()> {
    // SAFETY: numbers only.
    done(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

/// Moves the calling thread into the network namespace of a process.
pub fn enter_netns(pid: i32) -> io::Result<()> {
    let ns = File::open(format!("/proc/{pid}/ns/net"))?;
    // SAFETY: the descriptor is open.
    done(unsafe { libc::setns(ns.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Tells the kernel that the pages of a file are not needed, which drops the clean ones.
pub fn drop_cache(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Gives a file blocks for so many bytes.
pub fn allocate(fd: libc::c_int, bytes: u64) -> io::Result<()> {
    // SAFETY: numbers only; a descriptor that is not open is an error.
    match unsafe { libc::posix_fallocate(fd, 0, bytes as libc::off_t) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Has as many busy threads weigh as much as they would without autogroups, which make all
/// processes of a session together weigh as much as one thread.
pub fn weigh_as(threads: usize) {
    // A step of nice is a quarter more weight.
    let nice = (threads as f64).ln() / 1.25f64.ln();
    let _ = std::fs::write("/proc/self/autogroup", format!("-{}", nice.round().min(20.0)));
}

/// Has this process give way to others on the CPU, as background jobs do.
pub fn give_way() {
    // SAFETY: numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
    let _ = std::fs::write("/proc/self/autogroup", "5");
}

/// Has the command killed by `signal` when the thread that starts it ends, and started in a
/// session of its own, so that a Ctrl-C reaches only us and we end it in order.
pub fn die_with_parent(command: &mut Command, signal: libc::c_int) -> &mut Command {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: between fork and exec only async-signal-safe calls are made.
    unsafe {
        command.pre_exec(move || {
            done(libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong))?;
            // The parent may have died before the call above.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// Memory aligned for O_DIRECT.
pub struct Aligned {
    at: *mut u8,
    bytes: usize,
}

impl Aligned {
    const ALIGN: usize = 4096;

    /// So many bytes, filled with something that does not compress to nothing.
    pub fn new(bytes: usize) -> Aligned {
        let bytes = bytes.next_multiple_of(Self::ALIGN).max(Self::ALIGN);
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        if at.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        let mut memory = Aligned { at, bytes };
        fill(memory.as_mut(), 1);
        memory
    }

    fn layout(bytes: usize) -> std::alloc::Layout {
        // A power of two, and far from the end of the address space.
        std::alloc::Layout::from_size_align(bytes, Self::ALIGN).expect("a small aligned layout")
    }

    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: `new` allocated and initialised so many bytes, which are ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

// SAFETY: the memory is owned, and bytes may be read from any thread.
unsafe impl Send for Aligned {}
// SAFETY: as above; it is written only while it is made.
unsafe impl Sync for Aligned {}

impl std::ops::Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: as in `as_mut`.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { std::alloc::dealloc(self.at, Self::layout(self.bytes)) };
    }
}

/// Fills memory with numbers that follow from `seed` (xorshift64*).
pub fn fill(memory: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    for eight in memory.chunks_mut(8) {
        let bytes = random.next().to_le_bytes();
        eight.copy_from_slice(&bytes[..eight.len()]);
    }
}

/// Numbers that follow from a seed (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Anonymous memory that is not touched yet.
pub struct Memory {
    at: *mut u8,
    bytes: usize,
}

impl Memory {
    /// Reserves address space of so many bytes.
    pub fn new(bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new anonymous mapping touches no memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Memory { at: at.cast(), bytes })
    }

    /// Writes a byte into each page of `range`, as far as it lies within the memory.
    pub fn touch(&mut self, range: std::ops::Range<usize>) {
        for offset in (range.start..range.end.min(self.bytes)).step_by(4096) {
            // SAFETY: the offset lies within the mapping, which is ours alone.
            unsafe { self.at.add(offset).write_volatile(offset as u8 | 1) };
        }
    }

    /// Gives all pages back; the address space stays.
    pub fn forget(&mut self) {
        // SAFETY: the mapping is ours alone, and zeroed pages are valid bytes.
        unsafe { libc::madvise(self.at.cast(), self.bytes, libc::MADV_DONTNEED) };
    }
}

// SAFETY: the mapping is owned, and may be written from any thread that has it alone.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time has come.
    Time,
    /// Somebody sent SIGINT, SIGTERM or SIGHUP.
    Signal,
    /// A descriptor that was watched is readable, or its other end is gone.
    Ready,
}

/// Waits for a time, a signal or a descriptor, whichever comes first.
pub struct Waiter {
    signals: OwnedFd,
}

impl Waiter {
    /// Takes over SIGINT, SIGTERM and SIGHUP for this thread and those that it starts. To be
    /// called before any thread is started.
    pub fn new() -> io::Result<Waiter> {
        // SAFETY: an all-zero sigset_t is made valid by sigemptyset; all arguments are valid.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            done(libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))?;
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Waiter { signals: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Waits until `at` (CLOCK_MONOTONIC ns; `None` is for ever), a signal, or `watched`.
    pub fn until(&self, at: Option<u64>, watched: Option<&dyn AsRawFd>) -> Ended {
        loop {
            let timeout = match at {
                None => -1,
                // Rounded up, so that it does not spin in the last millisecond.
                Some(at) => at.saturating_sub(now()).div_ceil(1_000_000).min(1 << 30) as i32,
            };
            let fd = watched.map_or(-1, |w| w.as_raw_fd());
            let mut fds = [self.signals.as_raw_fd(), fd].map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            });
            // SAFETY: two valid pollfds; poll ignores negative descriptors.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout) };
            if fds[0].revents != 0 {
                return Ended::Signal;
            }
            if fds[1].revents != 0 {
                return Ended::Ready;
            }
            if ready == 0 && at.is_some_and(|at| now() >= at) {
                return Ended::Time;
            }
        }
    }
}

/// Has signals, which a parent may have blocked, reach this process as on the first day. For a
/// program that is started again by one with a [`Waiter`].
pub fn unblock_signals() {
    // SAFETY: an all-zero sigset_t is made valid by sigemptyset; all arguments are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Waits until one of the two sockets can go on: `read` has bytes, `write` has room. `None` is
/// not waited for.
pub fn wait_for_sockets(read: Option<&dyn AsRawFd>, write: Option<&dyn AsRawFd>) {
    let mut fds = [(read, libc::POLLIN), (write, libc::POLLOUT)].map(|(socket, events)| {
        libc::pollfd { fd: socket.map_or(-1, |s| s.as_raw_fd()), events, revents: 0 }
    });
    // SAFETY: two valid pollfds; poll ignores negative descriptors.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
}

/// A file mapped shared as one value.
pub struct Shared<T> {
    at: *mut T,
}

// SAFETY: only a shared reference to `T` is given out, and `T` may be shared between threads.
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// Maps a file.
    ///
    /// # Safety
    /// Zeroed bytes, and whatever other processes write, must be a valid `T`, and `T` must expect
    /// to be changed by them: atomics, or cells with a lock of their own.
    unsafe fn map(file: &File, create: bool) -> io::Result<Shared<T>> {
        if create {
            file.set_len(size_of::<T>() as u64)?;
        } else if file.metadata()?.len() < size_of::<T>() as u64 {
            return Err(io::Error::other("the file is too short"));
        }
        // SAFETY: a new mapping of a file touches no memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Shared { at: at.cast() })
    }
}

impl<T> std::ops::Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with this size, page-aligned; validity is what `map`'s caller promised.
        unsafe { &*self.at }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping.
        unsafe { libc::munmap(self.at.cast(), size_of::<T>()) };
    }
}

/// A lock between processes, in shared memory; a futex underneath. A holder that dies leaves it
/// to the next.
#[repr(C)]
pub struct SharedMutex {
    mutex: std::cell::UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: the cell is used by the pthread calls only, which are made for this.
unsafe impl Sync for SharedMutex {}

/// Holds a [`SharedMutex`] until dropped.
pub struct Held<'a>(&'a SharedMutex);

impl SharedMutex {
    /// Makes it a mutex; once, before anybody uses it.
    fn init(&self) -> io::Result<()> {
        let errno = |e: libc::c_int| match e {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(e)),
        };
        // SAFETY: the attribute is initialised before it is used and destroyed afterwards; nobody
        // else has the mutex yet.
        unsafe {
            let mut attr: libc::pthread_mutexattr_t = std::mem::zeroed();
            errno(libc::pthread_mutexattr_init(&mut attr))?;
            errno(libc::pthread_mutexattr_setpshared(&mut attr, libc::PTHREAD_PROCESS_SHARED))?;
            errno(libc::pthread_mutexattr_setrobust(&mut attr, libc::PTHREAD_MUTEX_ROBUST))?;
            errno(libc::pthread_mutex_init(self.mutex.get(), &attr))?;
            errno(libc::pthread_mutexattr_destroy(&mut attr))
        }
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Held<'_> {
        // SAFETY: `init` has made it a mutex before the file was shown to others.
        if unsafe { libc::pthread_mutex_lock(self.mutex.get()) } == libc::EOWNERDEAD {
            // SAFETY: we hold the mutex. What it guards is a number, consistent at all times.
            unsafe { libc::pthread_mutex_consistent(self.mutex.get()) };
        }
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

/// The page by which the workload, its supervisor and the injectors speak.
pub fn map_control(
    path: &Path,
    create: bool,
) -> io::Result<Shared<crate::steploop::control::Control>> {
    let file = File::options().read(true).write(true).create_new(create).open(path)?;
    // SAFETY: `Control` is atomics, for which all bytes are valid, and a mutex, which is
    // initialised before the path is told to anybody.
    let control: Shared<crate::steploop::control::Control> = unsafe { Shared::map(&file, create)? };
    if create {
        control.lock.init()?;
    }
    Ok(control)
}

/// The page that all processes of a scripted machine share; given its size if it is new.
pub(crate) fn map_device(file: &File, create: bool) -> io::Result<Shared<crate::gpu::Layout>> {
    // SAFETY: `Layout` is atomics of 64 bits, for which all bytes are valid and which expect to be
    // changed by others.
    unsafe { Shared::map(file, create) }
}

/// Whether a process exists, be it ours or not.
pub(crate) fn is_alive(pid: i32) -> bool {
    match kill(pid, 0) {
        Ok(()) => true,
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// Whether a child has ended; it can still be waited for.
pub(crate) fn has_ended(child: i32) -> bool {
    // SAFETY: all zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the result lives while the call runs.
    let failed = unsafe { libc::waitid(libc::P_PID, child as libc::id_t, &mut info, how) };
    // SAFETY: waitid has filled it, or it is all zero as above.
    failed != 0 || unsafe { info.si_pid() } != 0
}
