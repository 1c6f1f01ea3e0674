//! The FFI room: loads BPF objects, shares their maps, reads mapped memory and the clock.
//!
//! Everything else of this crate is safe code on top of what is here. The maps of `gpuwhy.h` are
//! created once, from an object without programs, and every probe's object is given the same
//! descriptors. Maps that user space reads every tick are arrays that it maps into its own memory
//! (`BPF_F_MMAPABLE`), so that a tick costs no system call for them.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuwhy_schema::Ns;
use libbpf_rs::btf::types::{FuncProto, Ptr, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, PrintLevel,
    RingBuffer, RingBufferBuilder, libbpf_sys,
};

use crate::CollectError;

/// The compiled object of the probe with this stem.
macro_rules! bpf_object {
    ($stem:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $stem, ".bpf.o"))
    };
}
pub(crate) use bpf_object;

/// Softirq vectors of Linux, in the kernel's order.
pub const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Probes that write ring records; as `enum probe` in `gpuwhy.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProbeNumber {
    /// Scheduler.
    RunQueue = 1,
    /// Uprobe steps.
    Steps = 3,
    /// Block requests.
    BlockIo = 4,
    /// Network.
    Network = 5,
    /// Faults and reclaim.
    Memory = 6,
    /// Stacks.
    Stacks = 7,
    /// Calls of NCCL.
    NcclCalls = 8,
}

impl ProbeNumber {
    /// The kinds of ring records that belong to it.
    pub fn kinds(self) -> std::ops::Range<u16> {
        let n = self as u16;
        n << 8..(n + 1) << 8
    }
}

/// Slots for probes in [`Cpu`]; as `PROBES` in `gpuwhy.h`.
pub const PROBES: usize = 9;

/// Declares a struct as BPF programs write it, whose bytes may hold anything.
///
/// Only for integers and arrays of them, in an order that leaves no padding: the compiler checks
/// both.
macro_rules! record {
    ($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$fdoc:meta])* $fvis:vis $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        $vis struct $name { $($(#[$fdoc])* $fvis $field: $ty,)* }

        const _: () = {
            const fn plain<T: $crate::kernel::Plain>() {}
            $(plain::<$ty>();)*
            assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "no padding");
        };
        // SAFETY: every field is plain and there is no padding, both checked just above.
        unsafe impl $crate::kernel::Plain for $name {}

        #[cfg(test)]
        #[allow(dead_code)] // for `kernel::tests::same_layout`
        impl $name {
            /// Name, offset and size of each field.
            const LAYOUT: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>()),)*];
        }
    };
}
pub(crate) use record;

/// Types that any bytes are a valid value of.
///
/// # Safety
/// No padding that matters, no references, no enums: every bit pattern must be a value.
pub unsafe trait Plain: Copy + Default + 'static {}

macro_rules! plain_integers {
    ($($ty:ty)*) => { $(
        // SAFETY: any bytes are an integer.
        unsafe impl Plain for $ty {}
    )* };
}
plain_integers!(u8 u16 u32 u64 i32 i64);

// SAFETY: an array has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] where [T; N]: Default {}

record! {
    /// One CPU's counters; as `struct cpu` in `gpuwhy.h`. Times are ns since the objects were
    /// loaded.
    pub struct Cpu {
        /// In interrupt handlers.
        pub hardirq_ns: u64,
        /// In each softirq vector.
        pub softirq_ns: [u64; SOFTIRQS.len()],
        hardirq_start: u64,
        softirq_start: u64,
        softirq_hardirq0: u64,
        hardirq_depth: u32,
        softirq_vec: u32,
        slice_hardirq_ns: u64,
        slice_softirq_ns: u64,
        slice_vec_ns: [u64; SOFTIRQS.len()],
        /// All threads together waited so long for this CPU.
        pub runq_wait_ns: u64,
        /// Context switches.
        pub switches: u64,
        /// Ring records written, per [`ProbeNumber`].
        pub recorded: [u64; PROBES],
        /// Ring records lost to a full ring, per [`ProbeNumber`].
        pub dropped: [u64; PROBES],
        credit: u64,
        credited: u64,
        spare: [u64; 1],
    }
}

record! {
    /// What begins every ring record; as `struct head` in `gpuwhy.h`.
    pub struct Head {
        /// ns, CLOCK_MONOTONIC.
        pub ts: u64,
        /// Which record.
        pub kind: u16,
        /// The CPU it was written on.
        pub cpu: u16,
        /// Whose record it is, 0 if no thread's.
        pub tid: u32,
    }
}

record! {
    /// As `struct knobs` in `gpuwhy.h`.
    pub struct Knobs {
        /// One CPU may write an exact record each so many ns, and save up a second's.
        pub record_ns: u32,
        /// Whether nobody becomes of interest for having woken somebody.
        pub without_wakers: u32,
        /// Whether messages are left out.
        pub without_messages: u32,
        pub pad: u32,
        /// ns; what the scheduler probe saw before is of another time.
        pub resumed: u64,
    }
}

/// The first `size_of::<T>()` bytes of `bytes` as a `T`; `None` if there are fewer.
pub fn plain<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough (checked above), any bytes are a valid `T` (`Plain`), and
    // `read_unaligned` asks nothing of the address.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a plain value, for map keys and values. Padding must have been written.
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the value lives as long as the borrow, is `size_of::<T>()` bytes long, and
    // `Plain` types have no uninitialised padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// CLOCK_MONOTONIC.
pub fn monotonic() -> Ns {
    clock(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, ns since 1970.
pub fn wall() -> i64 {
    clock(libc::CLOCK_REALTIME).0
}

/// CPU time of this process so far: all its threads, user and system.
pub fn cpu_time() -> Ns {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// How nice the calling thread is to others on a busy CPU, from -20 to 19; less than 0 needs a
/// privilege, and without it nothing changes.
pub fn nice(niceness: i32) {
    // SAFETY: takes plain numbers; 0 is this thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}

/// While it is there, its thread gives way to whoever else wants its CPU.
///
/// A nice thread is not enough: since EEVDF (Linux 6.6) whoever wakes waits until the slice of the
/// one that runs is over, however nice that is; only one of the policy SCHED_IDLE is preempted at
/// once.
#[derive(Debug)]
pub struct GivingWay {
    niceness: i32,
    guardian: Option<std::thread::Thread>,
    over: Arc<AtomicBool>,
}

/// Gives way for `at_most`: on a CPU that is never idle a thread of this policy would get nowhere.
/// `niceness` is the thread's afterwards. Does nothing if we could not come back from it.
pub fn give_way(niceness: i32, at_most: Duration) -> GivingWay {
    let over = Arc::new(AtomicBool::new(false));
    let mut giving = GivingWay { niceness, guardian: None, over: over.clone() };
    // SAFETY: takes plain numbers; 0 is this thread, whose id `gettid` tells.
    let (own, tid) = unsafe { (libc::getpriority(libc::PRIO_PROCESS, 0), libc::gettid()) };
    // Whoever is below 0 was allowed to go there, and is allowed to come back.
    if own >= 0 {
        return giving;
    }
    let guard = move || {
        let end = Instant::now() + at_most;
        while !over.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                policy(tid, libc::SCHED_OTHER);
                return;
            }
            std::thread::park_timeout(left);
        }
    };
    let Ok(guardian) = std::thread::Builder::new().name("gpuwhy-guard".into()).spawn(guard) else {
        return giving;
    };
    giving.guardian = Some(guardian.thread().clone());
    policy(tid, libc::SCHED_IDLE);
    giving
}

fn policy(tid: libc::pid_t, policy: libc::c_int) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` lives during the call; a thread that is gone is an error that nobody minds.
    unsafe { libc::sched_setscheduler(tid, policy, &none) };
}

impl Drop for GivingWay {
    fn drop(&mut self) {
        if let Some(guardian) = self.guardian.take() {
            self.over.store(true, Ordering::Relaxed);
            guardian.unpark();
            policy(0, libc::SCHED_OTHER);
        }
        nice(self.niceness);
    }
}

/// Sends a signal to a process.
///
/// # Errors
/// There is no such process, or it is not ours to signal.
pub fn signal(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A timer that interrupts whatever runs on a CPU, `hz` times a second, while it is open; BPF
/// programs can be attached to it.
///
/// # Errors
/// Needs CAP_PERFMON, and a CPU that is online.
pub fn cpu_timer(cpu: usize, hz: u64) -> io::Result<OwnedFd> {
    /// `struct perf_event_attr`, version 0 (uapi/linux/perf_event.h).
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        kind: u32,
        size: u32,
        config: u64,
        sample_freq: u64,
        sample_type: u64,
        read_format: u64,
        flags: u64,
        wakeup_events: u32,
        bp_type: u32,
        bp_addr: u64,
    }
    const SOFTWARE: u32 = 1;
    const CPU_CLOCK: u64 = 0;
    const FREQ: u64 = 1 << 10;
    const CLOEXEC: libc::c_ulong = 8;
    let attr = Attr {
        kind: SOFTWARE,
        size: size_of::<Attr>() as u32,
        config: CPU_CLOCK,
        sample_freq: hz,
        flags: FREQ,
        ..Attr::default()
    };
    let (any, none) = (-1 as libc::pid_t, -1 as libc::c_int);
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

/// CPU time of the calling thread so far, user and system.
pub fn thread_time() -> Ns {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Gives memory that was freed back to the system, where the allocator would keep it for later: after
/// work that took much of it for a moment.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a plain number, and touches only memory that nobody holds.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes of a page of memory.
pub fn page_size() -> u64 {
    // SAFETY: takes a plain number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

fn clock(clock: libc::clockid_t) -> Ns {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for a timespec; the clocks asked for exist on every
    // Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Ns(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

/// Sleeps until CLOCK_MONOTONIC shows `until`, or a signal comes.
pub fn sleep_until(until: Ns) {
    let time = libc::timespec { tv_sec: until.0 / 1_000_000_000, tv_nsec: until.0 % 1_000_000_000 };
    // SAFETY: `time` is a valid timespec, and a null remainder is allowed.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &time,
            std::ptr::null_mut(),
        )
    };
}

/// An array map in our own memory.
///
/// The kernel writes while we read; each value is copied out by volatile loads, so a value may be
/// torn between its fields but each aligned field is whole.
#[derive(Debug)]
pub struct Mapped<T> {
    memory: NonNull<u8>,
    bytes: usize,
    stride: usize,
    len: usize,
    value: PhantomData<T>,
}

impl<T: Plain> Mapped<T> {
    /// Maps `map`, an array with `BPF_F_MMAPABLE` whose values are `T`.
    pub fn new(name: &'static str, map: &dyn MapCore) -> Result<Mapped<T>, CollectError> {
        let stride = (map.value_size() as usize).next_multiple_of(8);
        if map.map_type() != MapType::Array || map.value_size() as usize != size_of::<T>() {
            return Err(CollectError::Unsupported {
                what: format!(
                    "the BPF map `{name}` has values of {} bytes where {} are expected",
                    map.value_size(),
                    size_of::<T>()
                ),
                fix: "rebuild gpuwhy: its two halves do not belong together".into(),
            });
        }
        let len = map.max_entries() as usize;
        let bytes = stride * len;
        // SAFETY: a new shared read-only mapping at an address of the kernel's choice; the
        // descriptor is open during the call and the mapping outlives it by itself.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(CollectError::System {
                what: format!("map `{name}` into memory"),
                source: io::Error::last_os_error(),
            });
        }
        let memory = NonNull::new(memory.cast()).expect("a mapping is never at address 0");
        Ok(Mapped { memory, bytes, stride, len, value: PhantomData })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A copy of value `i`; zeros behind the end.
    pub fn read(&self, i: usize) -> T {
        if i >= self.len {
            return T::default();
        }
        // SAFETY: `i * stride + size_of::<T>()` lies within the mapping (`i < len`), which lives
        // until drop; array values are 8-byte aligned and `T`'s fields need no more; the volatile
        // read keeps the compiler from assuming that the value stands still, and any bytes are
        // a valid `T`.
        unsafe {
            self.memory.as_ptr().add(i * self.stride).cast::<Unaligned<T>>().read_volatile().0
        }
    }
}

/// A value at an address that is a multiple of 8, whatever its own type would ask for.
#[derive(Clone, Copy)]
#[repr(C, packed(8))]
struct Unaligned<T>(T);

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, and nothing borrows from it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

/// A loaded BPF object with its attached programs. Dropping it detaches them.
#[derive(Debug)]
pub struct Loaded {
    /// The object.
    pub object: Object,
    /// What keeps its programs attached.
    pub links: Vec<Link>,
    /// Tracepoints that this kernel does not have; their programs were left out.
    pub missing: Vec<String>,
    probe: &'static str,
}

impl Loaded {
    /// Attaches every tracepoint program that was loaded, as its section says.
    ///
    /// # Errors
    /// The first one that cannot be attached, with its tracepoint.
    pub fn attach(&mut self) -> Result<(), CollectError> {
        for program in self.object.progs_mut() {
            // Uprobes are attached by who knows where to.
            if !program.autoload() || !program.section().to_string_lossy().starts_with("tp") {
                continue;
            }
            let link = program.attach().map_err(|source| CollectError::Attach {
                probe: self.probe,
                to: program.section().to_string_lossy().into_owned(),
                source,
            })?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Detaches every tracepoint program, or attaches them again.
    ///
    /// # Errors
    /// As [`Loaded::attach`].
    pub fn pause(&mut self, paused: bool) -> Result<(), CollectError> {
        match (paused, self.links.is_empty()) {
            (true, _) => self.links.clear(),
            (false, true) => self.attach()?,
            (false, false) => {}
        }
        Ok(())
    }

    /// A handle on one of its maps.
    ///
    /// # Errors
    /// No such map, or no descriptor left.
    pub fn map(&self, name: &'static str) -> Result<MapHandle, CollectError> {
        let map = self.object.maps().find(|map| map.name() == name).ok_or_else(|| {
            CollectError::Unsupported {
                what: format!("there is no BPF map `{name}`"),
                fix: "rebuild gpuwhy: its two halves do not belong together".into(),
            }
        })?;
        MapHandle::try_from(&map).map_err(|source| CollectError::Map { map: name, source })
    }

    /// One of its mmapable arrays, in our memory.
    ///
    /// # Errors
    /// As [`Loaded::map`], or values of another size.
    pub fn mapped<T: Plain>(&self, name: &'static str) -> Result<Mapped<T>, CollectError> {
        Mapped::new(name, &self.map(name)?)
    }
}

/// The maps that all probes share, and the loader of their objects.
pub struct Kernel {
    /// Or why there are none.
    shared: Result<Shared, String>,
    cpu_count: usize,
    programs: RefCell<Vec<OwnedFd>>,
    btf: RefCell<Option<Btf<'static>>>,
}

struct Shared {
    events: MapHandle,
    tasks: MapHandle,
    cpus: MapHandle,
    targets: MapHandle,
    generation: MapHandle,
    knobs: MapHandle,
    changes: Cell<u32>,
    counters: Mapped<Cpu>,
    ring: RingBuffer<'static>,
    staged: Rc<RefCell<Staged>>,
    _object: Object,
}

/// Records copied out of the ring until they are handed out: the length, then the bytes.
#[derive(Debug, Default)]
struct Staged {
    bytes: Vec<u8>,
    limit: usize,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("shared", &self.shared.as_ref().map(|_| ()))
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Creates the shared maps, with a ring of `ring_bytes` (rounded up to a power of two, at
    /// least a page). Where the kernel refuses, sources that need no BPF run all the same, and
    /// [`Kernel::load`] says why the others do not.
    pub fn new(ring_bytes: u32) -> Kernel {
        quiet();
        let cpu_count = libbpf_rs::num_possible_cpus().unwrap_or(1);
        let shared = Shared::new(ring_bytes, cpu_count).map_err(|error| crate::story(&error));
        let btf = Btf::from_vmlinux().ok();
        Kernel { shared, cpu_count, programs: RefCell::default(), btf: RefCell::new(btf) }
    }

    /// Why BPF cannot be used, if it cannot.
    pub fn refused(&self) -> Option<&str> {
        self.shared.as_ref().err().map(String::as_str)
    }

    /// Opens the object of `probe`, lets `configure` change it (sizes of maps, programs switched
    /// off), gives it the shared maps, and loads it.
    ///
    /// # Errors
    /// What libbpf or the verifier says.
    pub fn load(
        &self,
        probe: &'static str,
        bytes: &[u8],
        configure: impl FnOnce(&mut OpenObject) -> Result<(), libbpf_rs::Error>,
    ) -> Result<Loaded, CollectError> {
        let shared = self.shared.as_ref().map_err(|why| CollectError::Unsupported {
            what: format!("BPF cannot be used: {why}"),
            fix: "run as root, or give the program CAP_BPF and CAP_PERFMON; `gpuwhy doctor` \
                  says more"
                .into(),
        })?;
        let load = |source| CollectError::Load { probe, why: complaint(), source };
        let mut open = open(probe, bytes).map_err(load)?;
        configure(&mut open).map_err(load)?;
        for mut map in open.maps_mut() {
            let ours = match map.name().to_str() {
                Some("events") => &shared.events,
                Some("tasks") => &shared.tasks,
                Some("cpus") => &shared.cpus,
                Some("targets") => &shared.targets,
                Some("generation") => &shared.generation,
                Some("knobs") => &shared.knobs,
                _ => continue,
            };
            map.reuse_fd(ours.as_fd()).map_err(load)?;
        }
        let mut missing = Vec::new();
        for mut program in open.progs_mut() {
            let section = program.section().to_string_lossy().into_owned();
            if let Some(tracepoint) = section.strip_prefix("tp_btf/")
                && self.tracepoint(tracepoint).is_none()
            {
                program.set_autoload(false);
                missing.push(tracepoint.to_owned());
            }
        }
        let object = open.load().map_err(load)?;
        let mut programs = self.programs.borrow_mut();
        for program in object.progs() {
            if let Ok(fd) = program.as_fd().try_clone_to_owned() {
                programs.push(fd);
            }
        }
        Ok(Loaded { object, links: Vec::new(), missing, probe })
    }

    /// How many arguments the tracepoint has on this kernel, `None` if the kernel lacks it. To be
    /// asked while probes start only.
    pub fn tracepoint(&self, name: &str) -> Option<usize> {
        let btf = self.btf.borrow();
        let typedef = btf.as_ref()?.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
        let pointer = Ptr::try_from(typedef.referenced_type()).ok()?;
        let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
        // The first parameter is the tracepoint's own.
        Some(function.iter().count().saturating_sub(1))
    }

    /// All probes have started: the kernel's types (some MB) are not needed any more.
    pub fn started(&self) {
        self.btf.replace(None);
    }

    /// Moves the records that lie in the ring to `into`, up to one ring's worth, and returns
    /// what is to be walked by [`records`].
    pub fn drain(&self, into: &mut Vec<u8>) {
        into.clear();
        let Ok(shared) = &self.shared else { return };
        std::mem::swap(&mut shared.staged.borrow_mut().bytes, into);
        shared.ring.consume_raw();
        std::mem::swap(&mut shared.staged.borrow_mut().bytes, into);
    }

    /// Makes these processes, by tgid, targets from now on; `hops` wakers out from them are of
    /// interest too.
    ///
    /// # Errors
    /// The kernel refuses; there may be too many.
    pub fn add_targets(&self, tgids: &[u32], hops: u32) -> Result<(), CollectError> {
        let Ok(shared) = &self.shared else { return Ok(()) };
        for tgid in tgids {
            put(&shared.targets, "targets", bytes_of(tgid), bytes_of(&hops))?;
        }
        shared.changes.set(shared.changes.get() + 1);
        let changes = shared.changes.get();
        put(&shared.generation, "generation", bytes_of(&0_u32), bytes_of(&changes))
    }

    /// Turns what the programs look at while they run.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn turn(&self, knobs: &Knobs) -> Result<(), CollectError> {
        let Ok(shared) = &self.shared else { return Ok(()) };
        put(&shared.knobs, "knobs", bytes_of(&0_u32), bytes_of(knobs))
    }

    /// How many CPUs this host may have.
    pub fn cpu_count(&self) -> usize {
        self.cpu_count
    }

    /// The counters of CPU `i`.
    pub fn cpu(&self, i: usize) -> Cpu {
        self.shared.as_ref().map_or_else(|_| Cpu::default(), |s| s.counters.read(i))
    }

    /// Run time of all our BPF programs and how often they ran, since they were loaded. Both are
    /// 0 while the kernel's BPF statistics are off.
    pub fn bpf_time(&self) -> (Ns, u64) {
        let mut sum = (0, 0);
        for fd in self.programs.borrow().iter() {
            if let Some(info) = program_info(fd) {
                sum.0 += info.run_time_ns;
                sum.1 += info.run_cnt;
            }
        }
        (Ns(sum.0 as i64), sum.1)
    }
}

impl Shared {
    fn new(ring_bytes: u32, cpu_count: usize) -> Result<Shared, CollectError> {
        let load = |source| CollectError::Load { probe: "shared", why: complaint(), source };
        let map = |name| move |source| CollectError::Map { map: name, source };
        let ring_bytes = ring_bytes.clamp(4096, 1 << 30).next_power_of_two();
        let mut open = open("shared", bpf_object!("shared")).map_err(load)?;
        for mut m in open.maps_mut() {
            if m.name() == "events" {
                m.set_max_entries(ring_bytes).map_err(map("events"))?;
            } else if m.name() == "cpus" {
                m.set_max_entries(cpu_count as u32).map_err(map("cpus"))?;
            }
        }
        let loaded = Loaded {
            object: open.load().map_err(load)?,
            links: Vec::new(),
            missing: Vec::new(),
            probe: "shared",
        };
        let (events, tasks) = (loaded.map("events")?, loaded.map("tasks")?);
        let cpus = loaded.map("cpus")?;
        let (targets, generation) = (loaded.map("targets")?, loaded.map("generation")?);
        let knobs = loaded.map("knobs")?;
        let counters = Mapped::new("cpus", &cpus)?;

        // One drain may copy as much as the ring holds; what is written meanwhile waits for the
        // next one, so that a fast writer cannot keep us here.
        let staged =
            Rc::new(RefCell::new(Staged { bytes: Vec::new(), limit: ring_bytes as usize }));
        let ring = {
            let staged = Rc::clone(&staged);
            let mut builder = RingBufferBuilder::new();
            builder
                .add(&events, move |record| staged.borrow_mut().push(record))
                .map_err(map("events"))?;
            builder.build().map_err(map("events"))?
        };
        Ok(Shared {
            events,
            tasks,
            cpus,
            targets,
            generation,
            knobs,
            changes: Cell::new(0),
            counters,
            ring,
            staged,
            _object: loaded.object,
        })
    }
}

impl Staged {
    fn push(&mut self, record: &[u8]) -> i32 {
        self.bytes.extend_from_slice(&(record.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(record);
        if self.bytes.len() >= self.limit { -libc::EAGAIN } else { 0 }
    }
}

/// The records that [`Kernel::drain`] moved.
pub fn records(mut staged: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = plain::<u32>(staged)? as usize;
        let record = staged.get(4..4 + len)?;
        staged = &staged[4 + len..];
        Some(record)
    })
}

fn open(probe: &str, bytes: &[u8]) -> Result<OpenObject, libbpf_rs::Error> {
    ObjectBuilder::default().name(probe)?.open_memory(bytes)
}

/// What libbpf complained of last; bounded, as a verifier's log may have a million lines.
static COMPLAINT: Mutex<String> = Mutex::new(String::new());

/// libbpf would tell its story on stderr; we keep the point of it for the error.
fn quiet() {
    if std::env::var_os("GPUWHY_LIBBPF_LOG").is_none() {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            // Later words are of consequences.
            let mut complaint = COMPLAINT.lock().unwrap_or_else(|e| e.into_inner());
            // Kernels since 5.11 have no such limit, and the error that follows says enough.
            if complaint.is_empty() && !text.contains("RLIMIT_MEMLOCK") {
                *complaint = point(&text);
            }
        })));
    }
}

/// The line of a verifier's log that says what is wrong: the last one before its statistics.
fn point(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let i = lines.iter().position(|line| line.starts_with("processed "));
    let line = match i {
        Some(i) => lines.get(i.saturating_sub(1)),
        None => lines.first(),
    };
    let line = line.map_or("", |line| line.trim_start_matches("libbpf: "));
    // "BPF program load failed: Permission denied" says less than the log that follows it.
    if line.ends_with("-- BEGIN PROG LOAD LOG --") || line.contains("load failed: ") {
        return String::new();
    }
    line.chars().take(200).collect()
}

/// Takes the complaint, in brackets behind a blank.
fn complaint() -> String {
    let text = std::mem::take(&mut *COMPLAINT.lock().unwrap_or_else(|e| e.into_inner()));
    if text.is_empty() { text } else { format!(" ({text})") }
}

/// What the kernel says about the program behind `fd`.
fn program_info(fd: &OwnedFd) -> Option<libbpf_sys::bpf_prog_info> {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of_val(&info) as u32;
    // SAFETY: `info` is writable for `len` bytes during the call. Its pointer members are null
    // with counts of 0, so the kernel writes to nothing else.
    let rc = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) };
    (rc == 0).then_some(info)
}

/// Makes the kernel measure the run time of BPF programs while the descriptor is open.
///
/// # Errors
/// Needs CAP_SYS_ADMIN.
pub fn enable_bpf_stats() -> io::Result<OwnedFd> {
    // SAFETY: takes a plain number and returns a descriptor or a negative error.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor was just opened and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Writes `value` under `key`.
///
/// # Errors
/// What the kernel says.
pub fn put(
    map: &MapHandle,
    name: &'static str,
    key: &[u8],
    value: &[u8],
) -> Result<(), CollectError> {
    map.update(key, value, MapFlags::ANY).map_err(|source| CollectError::Map { map: name, source })
}

#[cfg(test)]
pub mod tests {
    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};

    use super::*;

    /// Fails unless the struct `name` of the compiled object `stem` has these fields.
    pub fn same_layout(stem: &str, name: &str, size: usize, fields: &[(&str, usize, usize)]) {
        let path = format!("{}/{stem}.bpf.o", env!("OUT_DIR"));
        let btf = Btf::from_path(&path).unwrap();
        let found = btf
            .type_by_name::<Struct<'_>>(name)
            .unwrap_or_else(|| panic!("no struct `{name}` in `{path}`"));
        let theirs: Vec<(String, usize)> = found
            .iter()
            .map(|member| {
                let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field") };
                (member.name.unwrap().to_string_lossy().into_owned(), offset as usize / 8)
            })
            .collect();
        let ours: Vec<(String, usize)> =
            fields.iter().map(|&(name, offset, _)| (name.to_owned(), offset)).collect();
        assert_eq!(theirs, ours, "`{name}` of `{path}`");
        assert_eq!(found.size(), size, "`{name}` of `{path}`");
    }

    #[test]
    fn both_halves_agree_on_what_they_share() {
        same_layout("interrupts", "cpu", size_of::<Cpu>(), Cpu::LAYOUT);
        same_layout("run_queue", "knobs", size_of::<Knobs>(), Knobs::LAYOUT);
        same_layout("run_queue", "head", size_of::<Head>(), Head::LAYOUT);
    }

    #[test]
    fn the_point_of_a_verifiers_log_is_its_last_line() {
        let log = "libbpf: prog 'sched_switch': -- BEGIN PROG LOAD LOG --\n0: R1=ctx()\n\
                   82: (79) r7 = *(u64 *)(r1 +408)\nR1 invalid mem access 'scalar'\n\
                   processed 81 insns (limit 1000000)\n-- END PROG LOAD LOG --\n";
        assert_eq!(point(log), "R1 invalid mem access 'scalar'");
        assert_eq!(point("libbpf: prog 'x': BPF program load failed: Permission denied\n"), "");
        assert_eq!(point("libbpf: map 'x': failed to create\n"), "map 'x': failed to create");
        assert_eq!(point(""), "");
    }

    #[test]
    fn staged_records_come_back_and_a_torn_end_is_left() {
        let mut staged = Staged { bytes: Vec::new(), limit: 16 };
        assert_eq!(staged.push(b"first"), 0);
        assert_eq!(staged.push(b"second"), -libc::EAGAIN, "enough for one drain");
        let all: Vec<&[u8]> = records(&staged.bytes).collect();
        assert_eq!(all, [&b"first"[..], b"second"]);
        for cut in 0..staged.bytes.len() {
            assert!(records(&staged.bytes[..cut]).count() < 2);
        }
    }
}
