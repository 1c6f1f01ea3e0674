//! The CUDA door: kernels and copies, as CUPTI's activity records tell them.
//!
//! *What it does.* The driver loads this object in `cuInit` (`CUDA_INJECTION64_PATH`) and calls
//! [`InitializeInjection`]. If a collector asks for kernels, activity records are switched on:
//! kernels, copies, memsets, waits for them, and launches of CUDA graphs as a whole; no callbacks of API calls,
//! which cost more than all else (a throughput lower by 64 % was reported of them:
//! parca-dev/parca-agent #3213). The nodes of graphs, and the calls that launch, are told on demand,
//! and nodes for a part of the time if so asked. All of it is switched while the process runs.
//!
//! *What it watches*, since CUPTI in production fails in known ways:
//!
//! | what is seen | what it means | what is done |
//! |---|---|---|
//! | many records without times | the device's buffers have run out (parcagpu #23) | graphs as a whole; if they were that already, nothing more is told |
//! | no buffer is free | records come faster than they are read, or CUPTI keeps what it got | said, and CUPTI's own count of what it dropped |
//! | `cuptiSubscribe` says 39 | another profiler is here, and CUPTI (before 13.2) serves one | it is left alone, and looked again every 5 s |
//! | our own time | | told each second, beside what was told |
//!
//! *What fools it.* Work that was launched before a collector asked is not seen. Somebody who puts his
//! callbacks in the place of ours without subscribing is not seen from here: the process looks idle.
//! The collector sees it, where the driver says that the process uses the device.

mod abi;
mod buffers;
mod library;
mod names;
mod records;

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use std::ffi::CStr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use gpuwhy_wire::{Event, Kernels, NameId, Settings};

use crate::exclusive::Exclusive;
use crate::link;
use crate::notice::{self, Code};
use abi::kind;
use buffers::Buffers;
use library::{Cuda, Cupti};
use records::{NameCache, Read};

/// Records that have ended are asked for so often.
const FLUSH_NS: u64 = 200_000_000;
/// Our own cost is told so often.
const COST_NS: u64 = 1_000_000_000;
/// Another profiler, or a CUPTI that was not found, is looked for again after so long.
const AGAIN_NS: u64 = 5_000_000_000;
/// How often the end of a process looks whether our thread has left CUPTI, 1 ms apart.
const LEAVE_TRIES: u32 = 100;
/// So long without a record, while CUPTI has buffers of ours, is looked into.
const QUIET_NS: u64 = 2_000_000_000;
/// The same is not said more often.
const SAID_NS: u64 = 60_000_000_000;
/// So many records without times in a window, and one in so many of all, are a defect.
const BAD: u64 = 32;
const BAD_ONE_IN: u64 = 100;

static OPENED: AtomicBool = AtomicBool::new(false);
/// The driver is in the middle of `cuInit`, on another thread than ours.
static INSIDE: AtomicBool = AtomicBool::new(false);
static DOOR: Exclusive<Door> = Exclusive::new(Door::new());
static NAMES: Exclusive<NameCache> = Exclusive::new(NameCache::new());
static BUFFERS: Buffers = Buffers::new();
/// What the callbacks need of the library.
static NEXT: AtomicU64 = AtomicU64::new(0);
static DROPPED_FN: AtomicU64 = AtomicU64::new(0);
/// What is added to CUPTI's times: 0 where it takes our clock's.
static OFFSET: AtomicI64 = AtomicI64::new(0);

static TOLD: AtomicU64 = AtomicU64::new(0);
static TIMED: AtomicU64 = AtomicU64::new(0);
static UNTIMED: AtomicU64 = AtomicU64::new(0);
static CAME_BACK: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static COST: AtomicU64 = AtomicU64::new(0);
static FORCED: AtomicBool = AtomicBool::new(false);

/// What the driver calls in `cuInit`; 1 is success, and nothing else is ever said.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    crate::guarded(1, || {
        if gpuwhy_wire::is_off() || OPENED.swap(true, AcqRel) {
            return 1;
        }
        INSIDE.store(true, Release);
        link::start();
        // On the driver's own thread, so that it need not wait for one of ours.
        turn();
        INSIDE.store(false, Release);
        // SAFETY: the handler stays where it is, since this object is never unloaded.
        unsafe { libc::atexit(at_exit) };
        1
    })
}

/// The last records of a process that ends in good order.
extern "C" fn at_exit() {
    crate::guarded((), || {
        // Behind us come the handlers of CUDA and CUPTI, which take apart what our thread may be
        // calling at this moment: it does not begin again, and is waited for a little.
        OPENED.store(false, Release);
        for _ in 0..LEAVE_TRIES {
            if DOOR.with(Door::leave).is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
}

/// In a forked child, where CUDA does not work: nothing is open.
pub(crate) fn forget() {
    OPENED.store(false, Release);
    INSIDE.store(false, Release);
    DOOR.open_after_fork();
    NAMES.open_after_fork();
    DOOR_CALLS.open_after_fork();
    DOOR.with(|door| *door = Door::new());
}

/// What is asked from now on.
pub(crate) fn ask(settings: Settings) {
    // The thread that ends the process may be telling the last records.
    DOOR.with(|door| door.asked = settings);
    tick();
}

/// What must be done now and then.
pub(crate) fn tick() {
    if OPENED.load(Acquire) && !INSIDE.load(Acquire) {
        turn();
    }
}

fn turn() {
    DOOR.with(|door| door.turn(gpuwhy_wire::now()));
}

#[derive(Clone, Copy)]
enum State {
    /// CUPTI is as it was.
    Closed,
    /// Our callbacks are registered.
    Open(Cupti),
    /// Somebody else has it, or it was not found; looked for again at that time.
    Away(u64),
    /// It cannot be believed any more, in this process.
    Broken,
    /// The process ends.
    Over,
}

/// Kinds of record that are switched on, one bit each in the order of [`KINDS`].
const KINDS: [u32; 7] = [
    kind::CONCURRENT_KERNEL,
    kind::MEMCPY,
    kind::MEMSET,
    kind::MEMCPY2,
    kind::SYNCHRONIZATION,
    kind::GRAPH_TRACE,
    kind::DRIVER,
];
const WORK: u8 = 0b001_1111;
const GRAPHS: u8 = 0b010_0000;
const CALLS: u8 = 0b100_0000;

struct Door {
    asked: Settings,
    state: State,
    on: u8,
    /// Nodes of graphs are told no more: it has broken CUPTI once.
    no_nodes: bool,
    flushed: u64,
    cost_told: u64,
    /// When buffers came back last, and how many had.
    seen: (u64, u64),
    /// [`TIMED`] and [`UNTIMED`] at the last look.
    judged: (u64, u64),
    starved: u64,
    lost: u64,
    /// The ring whose collector was told which GPU is which.
    devices_told: u64,
    /// When each notice was said last, and to which collector.
    told: [(u64, u64); 32],
}

impl Door {
    const fn new() -> Door {
        Door {
            asked: Settings::NOTHING,
            state: State::Closed,
            on: 0,
            no_nodes: false,
            flushed: 0,
            cost_told: 0,
            seen: (0, 0),
            judged: (0, 0),
            starved: 0,
            lost: 0,
            devices_told: 0,
            told: [(0, 0); 32],
        }
    }

    fn turn(&mut self, now: u64) {
        let wanted = self.asked.kernels != Kernels::Off;
        match self.state {
            State::Closed if wanted => self.open(now),
            State::Away(until) if wanted && now >= until => self.open(now),
            _ => {}
        }
        let State::Open(cupti) = self.state else { return };
        set_offset();
        let kinds = self.kinds(now);
        self.switch(&cupti, kinds);
        if self.on == 0 {
            return;
        }
        self.tell_devices();
        if now.saturating_sub(self.flushed) >= FLUSH_NS {
            self.flushed = now;
            // Whole records only.
            // SAFETY: a function of CUPTI, called as its header says, from no callback.
            unsafe { (cupti.flush)(0) };
            self.watch(&cupti, now);
        }
        if now.saturating_sub(self.cost_told) >= COST_NS {
            self.cost_told = now;
            self.tell_cost();
        }
    }

    /// The last of it.
    fn leave(&mut self) {
        if let State::Open(cupti) = self.state {
            // What is forced out before it has ended has no times, rightly.
            FORCED.store(true, Release);
            // SAFETY: a function of CUPTI, called as its header says.
            unsafe { (cupti.flush)(abi::FLUSH_FORCED) };
            FORCED.store(false, Release);
            self.tell_cost();
        }
        self.state = State::Over;
    }

    /// The kinds of record that are wanted now.
    fn kinds(&self, now: u64) -> u8 {
        if self.asked.kernels == Kernels::Off {
            return 0;
        }
        let every = u64::from(self.asked.nodes_every_ms);
        let their_turn = every > 0 && now / 1_000_000 % every < u64::from(self.asked.nodes_for_ms);
        let nodes = (self.asked.kernels == Kernels::Nodes || their_turn) && !self.no_nodes;
        let calls = if self.asked.launches { CALLS } else { 0 };
        WORK | calls | if nodes { 0 } else { GRAPHS }
    }

    /// Takes CUPTI, if nobody else has it.
    fn open(&mut self, now: u64) {
        self.state = State::Away(now + AGAIN_NS);
        let Some(cupti) = library::cupti() else {
            self.say(Code::CuptiMissing, "no libcupti was found: kernels are not seen", None);
            return;
        };
        let mut version = 0;
        // SAFETY: the pointer is to our stack.
        unsafe { (cupti.version)(&raw mut version) };
        if is_subscribed(&cupti) {
            self.say(Code::CuptiShared, SHARED, Some(f64::from(version)));
            return;
        }
        if !BUFFERS.make() {
            self.say(Code::CuptiMissing, "no memory for CUPTI's buffers", None);
            return;
        }
        if let Some(set) = cupti.set_attribute {
            let (mut bytes, mut yes) = (1usize, 1u8);
            let (bytes, yes) = (&raw mut bytes, (&raw mut yes).cast());
            // SAFETY: the header says that this attribute's value is one byte.
            unsafe { set(abi::ATTR_ZEROED_BUFFERS, bytes, yes) };
            if let Some(mut limit) = pool_limit() {
                let mut bytes = size_of::<usize>();
                // SAFETY: the header says that this attribute's value is a `size_t`.
                unsafe { set(abi::ATTR_POOL_LIMIT, &raw mut bytes, (&raw mut limit).cast()) };
            }
        }
        // SAFETY: the callback stays where it is, since this object is never unloaded.
        let ours = cupti.timestamps.is_some_and(|register| unsafe { register(timestamp) } == 0);
        OFFSET.store(i64::from(!ours), Release);
        set_offset();
        NEXT.store(cupti.next as usize as u64, Release);
        DROPPED_FN.store(cupti.dropped as usize as u64, Release);
        // SAFETY: as above.
        let failed = unsafe { (cupti.register)(requested, completed) };
        if failed != 0 {
            let text = "CUPTI takes no callbacks: kernels are not seen";
            self.say(Code::CuptiMissing, text, Some(f64::from(failed)));
            return;
        }
        self.state = State::Open(cupti);
        self.on = 0;
        self.seen = (now, CAME_BACK.load(Relaxed));
        self.flushed = now;
    }

    fn switch(&mut self, cupti: &Cupti, wanted: u8) {
        for (i, kind) in KINDS.into_iter().enumerate() {
            let bit = 1u8 << i;
            if (self.on ^ wanted) & bit == 0 {
                continue;
            }
            let on = wanted & bit != 0;
            let failed = match (kind, cupti.enable_call, cupti.call_name) {
                (kind::DRIVER, Some(enable), Some(name)) => launching_calls(enable, name, on),
                // SAFETY: functions of CUPTI, called as its header says, from no callback.
                _ if on => unsafe { (cupti.enable)(kind) },
                // SAFETY: as above.
                _ => unsafe { (cupti.disable)(kind) },
            };
            self.on ^= bit;
            if failed != 0 && on {
                let text = match kind {
                    kind::CONCURRENT_KERNEL => "CUPTI does not tell kernels here",
                    kind::GRAPH_TRACE => "CUPTI does not tell CUDA graphs as a whole here",
                    kind::DRIVER => "CUPTI does not tell launching calls here",
                    kind::SYNCHRONIZATION => "CUPTI does not tell waits here",
                    _ => "CUPTI does not tell copies here",
                };
                self.say(Code::CuptiKind, text, Some(f64::from(failed)));
            }
        }
    }

    /// Looks whether what comes can be believed, and whether it comes.
    fn watch(&mut self, cupti: &Cupti, now: u64) {
        let (timed, untimed) = (TIMED.load(Relaxed), UNTIMED.load(Relaxed));
        let bad = untimed - self.judged.1;
        if bad >= BAD && bad * BAD_ONE_IN >= bad + timed - self.judged.0 {
            let nodes = self.on & GRAPHS == 0;
            self.judged = (timed, untimed);
            if nodes {
                self.no_nodes = true;
                let text = "records without times: nodes of CUDA graphs are told no more";
                self.say(Code::CuptiTimes, text, Some(bad as f64));
            } else {
                let text = "records without times: kernels are told no more in this process";
                self.say(Code::CuptiTimes, text, Some(bad as f64));
                self.switch(cupti, 0);
                self.state = State::Broken;
                return;
            }
        } else if timed - self.judged.0 > 100_000 {
            self.judged = (timed, untimed);
        }
        let starved = BUFFERS.starved();
        if starved > self.starved {
            let text = "all buffers are full: CUPTI drops records";
            self.say(Code::CuptiBuffers, text, Some((starved - self.starved) as f64));
            self.starved = starved;
        }
        let lost = LOST.load(Relaxed);
        if lost > self.lost {
            let text = "CUPTI dropped records";
            self.say(Code::CuptiDropped, text, Some((lost - self.lost) as f64));
            self.lost = lost;
        }
        self.listen(cupti, now);
    }

    /// Whether another profiler has come. That is asked when nothing comes back any more, since
    /// asking takes the place of a subscriber for a moment; an idle device looks the same, and is
    /// asked about now and then for nothing. Buffers are not forced out: work that has not ended
    /// would be told without times and never again.
    fn listen(&mut self, cupti: &Cupti, now: u64) {
        let back = CAME_BACK.load(Relaxed);
        if back != self.seen.1 || BUFFERS.out() == 0 {
            self.seen = (now, back);
            return;
        }
        if now.saturating_sub(self.seen.0) < QUIET_NS {
            return;
        }
        self.seen.0 = now;
        if is_subscribed(cupti) {
            self.say(Code::CuptiShared, SHARED, None);
            // The switches are his now: they are left as they are.
            self.on = 0;
            self.state = State::Away(now + AGAIN_NS);
        }
    }

    /// Says so, once a minute and collector at most.
    fn say(&mut self, code: Code, text: &str, value: Option<f64>) {
        let now = gpuwhy_wire::now();
        let generation = link::with(|ring| ring.generation).unwrap_or(0);
        let (told, to) = self.told[code as usize % self.told.len()];
        if generation == 0 || (to == generation && now.saturating_sub(told) < SAID_NS) {
            return;
        }
        self.told[code as usize % self.told.len()] = (now, generation);
        notice::tell(code, text, value);
    }

    /// Which GPU each number means, once a collector.
    fn tell_devices(&mut self) {
        let told = link::with(|ring| {
            if ring.generation == self.devices_told {
                return None;
            }
            let cuda = library::cuda()?;
            let mut count = 0;
            // SAFETY: the pointer is to our stack. Before `cuInit` is over this is an error.
            if unsafe { (cuda.count)(&raw mut count) } != 0 {
                return None;
            }
            for number in 0..count.clamp(0, 64) {
                if let Some(uuid) = uuid(&cuda, number) {
                    let name = ring.name(uuid_text(&uuid).as_str());
                    let (device, at) = (number as u16, gpuwhy_wire::now());
                    ring.write(Event::Device { name, device, at });
                }
            }
            Some(ring.generation)
        });
        if let Some(Some(generation)) = told {
            self.devices_told = generation;
        }
    }

    /// What it has cost this process so far.
    fn tell_cost(&self) {
        link::with(|ring| {
            let at = gpuwhy_wire::now();
            let told = [
                ("inject.time", "ns", COST.load(Relaxed)),
                ("inject.records", "1", TOLD.load(Relaxed)),
                ("inject.lost", "1", LOST.load(Relaxed) + UNTIMED.load(Relaxed)),
            ];
            for (name, unit, value) in told {
                let (name, unit) = (ring.name(name), ring.name(unit));
                let value = value as f64;
                ring.write(Event::Counter { name, unit, device: None, at, value });
            }
        });
    }
}

/// How many buffers CUPTI may have on a device, if not its usual 250: with few of them the defect of
/// parcagpu #23 shows within a million records, and `make gpu-check` need not wait for 25 million.
fn pool_limit() -> Option<usize> {
    std::env::var("GPUWHY_CUPTI_POOL_LIMIT").ok()?.parse().ok()
}

const SHARED: &str = "another profiler uses CUPTI: it is left alone";

/// Whether another profiler subscribes to CUPTI. Ours lasts for the blink of this call.
fn is_subscribed(cupti: &Cupti) -> bool {
    unsafe extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    let mut subscriber = null_mut();
    // SAFETY: the pointer is to our stack; the callback does nothing and stays where it is.
    let answer = unsafe { (cupti.subscribe)(&raw mut subscriber, nothing, null_mut()) };
    if answer == 0 {
        // SAFETY: the subscriber that was just made.
        unsafe { (cupti.unsubscribe)(subscriber) };
    }
    // Anything else, such as a driver that is not ready yet, says nothing about others.
    answer == abi::MULTIPLE_SUBSCRIBERS
}

/// Switches the records of calls that launch on or off, one by one.
fn launching_calls(
    enable: unsafe extern "C" fn(u32, u8) -> abi::Status,
    name: unsafe extern "C" fn(u32, u32, *mut *const c_char) -> abi::Status,
    on: bool,
) -> abi::Status {
    let mut failed = 0;
    for call in 1..1024 {
        if call_name(name, call).is_some_and(launches) {
            // SAFETY: a function of CUPTI, called as its header says, from no callback.
            failed = unsafe { enable(call, on.into()) };
        }
    }
    failed
}

fn launches(call: &str) -> bool {
    ["cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"].iter().any(|p| call.starts_with(p))
}

fn call_name(
    name: unsafe extern "C" fn(u32, u32, *mut *const c_char) -> abi::Status,
    call: u32,
) -> Option<&'static str> {
    let mut text = core::ptr::null();
    // SAFETY: the pointer is to our stack.
    if unsafe { name(abi::DOMAIN_DRIVER, call, &raw mut text) } != 0 || text.is_null() {
        return None;
    }
    // SAFETY: CUPTI gives a C string of its own, which stays.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

fn uuid(cuda: &Cuda, number: i32) -> Option<[u8; 16]> {
    let (mut device, mut uuid) = (0, [0; 16]);
    // SAFETY: the pointers are to our stack, a `CUuuid` has 16 bytes.
    let failed = unsafe {
        (cuda.device)(&raw mut device, number) != 0
            || (cuda.uuid_v2.unwrap_or(cuda.uuid))(&raw mut uuid, device) != 0
    };
    (!failed).then_some(uuid)
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVML prints it.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut out = String::with_capacity(40);
    out.push_str("GPU");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            out.push('-');
        }
        for nibble in [byte >> 4, byte & 15] {
            out.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
        }
    }
    out
}

/// The difference between the clock of CUPTI's times and ours, where it does not take ours.
fn set_offset() {
    if OFFSET.load(Relaxed) != 0 {
        let mut real = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to our stack.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut real) };
        let real = real.tv_sec * 1_000_000_000 + real.tv_nsec;
        // Never 0, which means that there is nothing to add.
        OFFSET.store((gpuwhy_wire::now() as i64 - real).min(-1), Release);
    }
}

fn to_monotonic(cupti: u64) -> u64 {
    cupti.saturating_add_signed(OFFSET.load(Relaxed))
}

unsafe extern "C" fn timestamp() -> u64 {
    gpuwhy_wire::now()
}

/// CUPTI asks for a buffer.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    crate::guarded((), || {
        if buffer.is_null() || size.is_null() || most.is_null() {
            return;
        }
        let ours = BUFFERS.take();
        // SAFETY: CUPTI gives places for its answers, none of them null (checked).
        unsafe {
            *buffer = ours.unwrap_or(null_mut());
            *size = if ours.is_some() { buffers::BYTES } else { 0 };
            *most = 0;
        }
    });
}

/// CUPTI gives a buffer back, with so many bytes of records.
unsafe extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid: usize,
) {
    crate::guarded((), || {
        let began = gpuwhy_wire::now();
        CAME_BACK.fetch_add(1, Relaxed);
        if !BUFFERS.is_out(buffer) {
            return;
        }
        let valid = valid.min(buffers::BYTES);
        // SAFETY: a buffer of ours that CUPTI had until now: `BYTES` bytes, and nobody writes them
        // while we hold it.
        let bytes = unsafe { std::slice::from_raw_parts(buffer, valid) };
        match NAMES.with(|names| read_all(bytes, buffer, Some(names))) {
            Some(()) => {}
            None => read_all(bytes, buffer, None),
        }
        BUFFERS.give_back(buffer, valid);
        let ask = DROPPED_FN.load(Acquire) as usize;
        if ask != 0 {
            // SAFETY: stored by `open` from a function pointer of this type.
            let ask: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> abi::Status =
                unsafe { std::mem::transmute(ask) };
            let mut lost = 0;
            // SAFETY: context and stream are those that CUPTI gave; the pointer is to our stack.
            if unsafe { ask(context, stream, &raw mut lost) } == 0 {
                LOST.fetch_add(lost as u64, Relaxed);
            }
        }
        COST.fetch_add(gpuwhy_wire::now().saturating_sub(began), Relaxed);
    });
}

/// Tells every record of a buffer.
fn read_all(bytes: &[u8], buffer: *mut u8, mut names: Option<&mut NameCache>) {
    let next = NEXT.load(Acquire) as usize;
    if next == 0 {
        return;
    }
    // SAFETY: stored by `open` from a function pointer of this type.
    let next: unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> abi::Status =
        unsafe { std::mem::transmute(next) };
    let (mut timed, mut untimed, mut told) = (0, 0, 0);
    let mut record: *mut u8 = null_mut();
    link::with(|ring| {
        // The smallest record has 8 bytes, and a library that does not advance ends the loop too.
        for _ in 0..bytes.len() / 8 {
            let before = record;
            // SAFETY: the buffer, its valid bytes, and a place for the answer on our stack.
            if unsafe { next(buffer, bytes.len(), &raw mut record) } != 0 || record <= before {
                break;
            }
            let Some(rest) = bytes.get(record as usize - buffer as usize..) else { break };
            // SAFETY: CUPTI wrote this record; names of kernels are its own C strings.
            match unsafe { records::event(rest, to_monotonic, names.as_deref_mut(), ring) } {
                Read::Event(event) => {
                    timed += 1;
                    told += 1;
                    ring.write(event);
                }
                Read::NoTime => untimed += 1,
                Read::Other => {
                    if let Some(call) = records::call(rest, to_monotonic) {
                        told += 1;
                        tell_call(ring, &call);
                    }
                }
            }
        }
    });
    TOLD.fetch_add(told, Relaxed);
    TIMED.fetch_add(timed, Relaxed);
    // What was forced out before it ended has no times, rightly.
    if !FORCED.load(Acquire) {
        UNTIMED.fetch_add(untimed, Relaxed);
    }
}

fn tell_call(ring: &link::Ring, call: &records::Call) {
    let name = DOOR_CALLS.with(|calls| calls.name(call.call, ring));
    ring.write_as(
        call.thread,
        Event::Launch {
            name: name.unwrap_or(NameId(0)),
            // Which device it was for, its kernel says.
            device: 0,
            stream: 0,
            correlation: call.correlation,
            start: call.start,
            dur: call.dur,
        },
    );
}

static DOOR_CALLS: Exclusive<CallNames> =
    Exclusive::new(CallNames { ids: [NameId(0); 1024], generation: 0 });

/// Names of driver calls by their numbers.
struct CallNames {
    ids: [NameId; 1024],
    generation: u64,
}

impl CallNames {
    fn name(&mut self, call: u32, ring: &link::Ring) -> NameId {
        if self.generation != ring.generation {
            *self = CallNames { ids: [NameId(0); 1024], generation: ring.generation };
        }
        let Some(id) = self.ids.get_mut(call as usize) else { return NameId(0) };
        if *id == NameId(0) {
            let text = library::cupti().and_then(|c| call_name(c.call_name?, call));
            *id = ring.name(text.unwrap_or("launch"));
        }
        *id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let uuid = [
            0x1b, 0x2c, 0x3d, 0x4e, 0x5f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6, 0xd7, 0xe8,
            0xf9, 0x0a,
        ];
        assert_eq!(uuid_text(&uuid), "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f90a");
    }

    #[test]
    fn nodes_of_graphs_have_their_turn() {
        let mut door = Door::new();
        assert_eq!(door.kinds(0), 0);
        door.asked = Settings { nodes_every_ms: 1000, nodes_for_ms: 100, ..Settings::USUAL };
        let ms = 1_000_000;
        assert_eq!(door.kinds(7_000 * ms) & GRAPHS, 0);
        assert_eq!(door.kinds(7_099 * ms) & GRAPHS, 0);
        assert_eq!(door.kinds(7_100 * ms) & GRAPHS, GRAPHS);
        door.no_nodes = true;
        assert_eq!(door.kinds(7_000 * ms), WORK | GRAPHS);
        door.asked = Settings { launches: true, ..Settings::USUAL };
        assert_eq!(door.kinds(0), WORK | GRAPHS | CALLS);
    }
}
