//! Policies: what the program allocates, creates and launches is told to the controller, and what that asks for is
//! carried out.
//!
//! Only where the environment says so ([`gpuwhy_wire::images::POLICY_ENV`]). The first call of a hooked function asks
//! the controller for an [`Exchange`], once, and waits for it as loads do; from then on nobody waits for the
//! controller: what is told lies in a queue or is counted as lost, and a thread of ours asks the driver to prefetch
//! and advises it, on a stream of its own that no other waits for.
//!
//! *What changes for the program.* Launches that a rule is about begin later, within the bounds of [`crate::delays`].
//! Streams that a rule is about are created with another priority; CUDA can give none to a stream that exists.
//! Prefetches and advice change where managed memory lies, and not what it holds: a range that was given back
//! meanwhile is refused by the driver, or is other managed memory, whose pages then lie elsewhere.
//!
//! *When the controller has gone*, or has given no sign of life for [`STALE_NS`], no rule counts any more and nothing
//! is told.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use gpuwhy_wire::images::{Answer, Ask, Count, Exchange, POLICY_ENV, Request, Told, name_hash};
use gpuwhy_wire::{now, spawn_without_signals};

use crate::ask::connect;
use crate::book::{Book, parameter};
use crate::delays::{Delay, Delays};
use crate::driver::{self, Stream};
use crate::guarded;
use crate::lock::Lock;
use crate::streams::stream_of;
use crate::types::{Code, Handle, Of, SUCCESS};

/// How often it is looked for what the controller asks for.
const EVERY: Duration = Duration::from_millis(5);
/// After so long without a sign of life the controller counts as gone, ns.
const STALE_NS: u64 = 2_000_000_000;
/// Rules of priority at a time.
const RULES: usize = 64;
/// Advice of ours: it prefers the host.
const PREFER_HOST: u64 = 7;
/// `CUresult`s that say that a context or stream has gone.
const GONE: [Code; 3] = [201, 400, 709];

// Whether the controller was asked.
const UNTRIED: u8 = 0;
const TRIED: u8 = 1;

static STATE: AtomicU8 = AtomicU8::new(UNTRIED);
/// What the controller gave; null before, and when it has gone. Never freed: other threads may use it.
static EXCHANGE: AtomicPtr<Exchange> = AtomicPtr::new(null_mut());
/// When it gave it, ns.
static SINCE: AtomicU64 = AtomicU64::new(0);
static BOOK: Lock<Book> = Lock::new(Book::new());
static DELAYS: Lock<Delays> = Lock::new(Delays::new());
/// Whether there is a rule of delay.
static DELAYING: AtomicBool = AtomicBool::new(false);
/// Priorities of streams, by their numbers; 0 is of all.
static PRIORITIES: Lock<Vec<(u64, i64)>> = Lock::new(Vec::new());
/// Held while something is carried out.
static STREAMS: Lock<Streams> = Lock::new(Streams(BTreeMap::new()));
static ENDED: AtomicBool = AtomicBool::new(false);

/// Our stream in each context.
struct Streams(BTreeMap<usize, Stream>);

// SAFETY: handles of the driver, which any thread may use.
unsafe impl Send for Streams {}

/// Whether the environment asks for policies.
fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let wanted = std::env::var(POLICY_ENV).is_ok_and(|value| value == "1");
        if wanted {
            // SAFETY: a function of this object, which is never unloaded.
            unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
        }
        wanted
    })
}

/// The exchange with the controller, if there is one; the first call asks for it.
fn exchange() -> Option<&'static Exchange> {
    if STATE.load(Relaxed) == UNTRIED {
        begin();
    }
    // SAFETY: null, or a box that was leaked.
    unsafe { EXCHANGE.load(Acquire).as_ref() }
}

/// Asks the controller, once a process.
#[cold]
fn begin() {
    if STATE.swap(TRIED, AcqRel) == TRIED || !wanted() {
        return;
    }
    guarded((), || {
        let Some((asker, wait)) = connect() else { return };
        if asker.say(Ask::Policy, None).is_err() {
            return;
        }
        let Ok((Answer::Policy, Some(fd))) = asker.answer(wait) else { return };
        let Ok(exchange) = Exchange::of(fd) else { return };
        let exchange: &'static Exchange = Box::leak(Box::new(exchange));
        SINCE.store(now(), Relaxed);
        // What was asked for before the first call counts for it.
        carry_out_all(exchange);
        EXCHANGE.store(core::ptr::from_ref(exchange).cast_mut(), Release);
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: a function of this object, which is never unloaded. The driver, which was loaded before, is told of the
        // exit after us.
        ONCE.call_once(|| _ = unsafe { libc::atexit(at_exit) });
        // Without the thread launches are told, and nothing is carried out.
        let _ = spawn_without_signals(move || guarded((), || run(exchange)));
    });
}

fn run(exchange: &'static Exchange) {
    while !ENDED.load(SeqCst) {
        std::thread::sleep(EVERY);
        if is_stale(exchange) {
            EXCHANGE.store(null_mut(), Release);
            return;
        }
        carry_out_all(exchange);
    }
}

fn is_stale(exchange: &Exchange) -> bool {
    now().saturating_sub(exchange.beaten()) > STALE_NS
}

extern "C" fn at_exit() {
    if ENDED.swap(true, SeqCst) {
        return;
    }
    guarded((), || {
        // SAFETY: null, or a box that was leaked.
        let exchange = unsafe { EXCHANGE.swap(null_mut(), AcqRel).as_ref() };
        // Nothing is carried out any more when this thread has the lock.
        STREAMS.with(|_| exchange.into_iter().for_each(Exchange::close));
    });
}

unsafe extern "C" fn in_the_child() {
    EXCHANGE.store(null_mut(), Release);
    BOOK.forget_after_fork(Book::new());
    DELAYS.forget_after_fork(Delays::new());
    PRIORITIES.forget_after_fork(Vec::new());
    STREAMS.forget_after_fork(Streams(BTreeMap::new()));
    DELAYING.store(false, SeqCst);
    ENDED.store(false, SeqCst);
    STATE.store(UNTRIED, SeqCst);
}

/// Carries out what was asked for.
fn carry_out_all(exchange: &Exchange) {
    STREAMS.with(|streams| {
        if !ENDED.load(SeqCst) {
            exchange.asked(|request| carry_out(exchange, streams, request));
        }
    });
}

fn carry_out(exchange: &Exchange, streams: &mut Streams, request: Request) {
    match request {
        Request::Prefetch { address, bytes } => {
            let asked = on_managed(exchange, streams, address, bytes, |stream, device| {
                stream.prefetch(address, bytes, device)
            });
            if asked {
                exchange.count(Count::Prefetches, 1);
                exchange.count(Count::PrefetchedBytes, bytes);
            }
        }
        Request::Advise { address, bytes, advice } => {
            let Some((number, host)) = advice_of(advice) else {
                exchange.count(Count::NoSuchAdvice, 1);
                return;
            };
            let asked = on_managed(exchange, streams, address, bytes, |_, device| {
                driver::advise(address, bytes, number, if host { None } else { Some(device) })
            });
            if asked {
                exchange.count(Count::Advised, 1);
            }
        }
        Request::Delay { kernel, us } => {
            let (taken, any) = DELAYS.with(|delays| (delays.rule(kernel, us), delays.any()));
            DELAYING.store(any, Release);
            exchange.count(if taken { Count::DelayRules } else { Count::TooManyRules }, 1);
        }
        Request::Priority { stream, priority } => {
            let taken = PRIORITIES.with(|rules| {
                rules.retain(|(of, _)| *of != stream);
                let room = rules.len() < RULES;
                room.then(|| rules.push((stream, priority)));
                room
            });
            exchange.count(if taken { Count::PriorityRules } else { Count::TooManyRules }, 1);
        }
    }
}

/// CUDA's number of advice, and whether it names the host.
fn advice_of(advice: u64) -> Option<(c_int, bool)> {
    match advice {
        1..=6 => Some((advice as c_int, false)),
        // CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        PREFER_HOST => Some((3, true)),
        _ => None,
    }
}

/// Asks the driver for something about managed memory, in the context of its allocation; whether it did. Refusals are
/// counted.
fn on_managed(
    exchange: &Exchange,
    streams: &mut Streams,
    address: u64,
    bytes: u64,
    ask: impl FnOnce(&Stream, c_int) -> Result<(), Code>,
) -> bool {
    let Some(found) = BOOK.with(|book| book.managed(address, bytes)) else {
        exchange.count(Count::NotManaged, 1);
        return false;
    };
    let asked = driver::within(found.context as Handle, || {
        driver::relaxed(|| {
            let stream = match streams.0.entry(found.context) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(room) => room.insert(Stream::new()?),
            };
            ask(stream, c_int::try_from(found.device).unwrap_or(0))
        })
    });
    if let Err(code) = asked {
        exchange.count(Count::ByDriver, 1);
        exchange.raise(Count::DriverCode, code.into());
        if GONE.contains(&code) {
            // It went with its context, whose handle another one may get.
            streams.0.remove(&found.context);
        }
    }
    asked.is_ok()
}

/// The program allocated memory, of which the driver wrote the address to `to`.
pub fn allocated(code: Code, to: *mut u64, bytes: usize, managed: bool) {
    if code != SUCCESS || to.is_null() {
        return;
    }
    let Some(exchange) = exchange() else { return };
    guarded((), || {
        // SAFETY: the driver has just written it there.
        let address = unsafe { to.read_unaligned() };
        let (context, device) = (driver::current() as usize, driver::device().unwrap_or(0));
        let device = u64::try_from(device).unwrap_or(0);
        let made = BOOK.with(|book| book.allocate(address, bytes as u64, managed, context, device));
        if let Some(made) = made {
            exchange.tell(made.told(address, false));
        }
    });
}

/// The program gives memory back, by `real`.
pub fn free(address: u64, real: impl FnOnce() -> Code) -> Code {
    let Some(exchange) = exchange() else { return real() };
    // Before the driver may give it to another thread.
    let gone = guarded(None, || BOOK.with(|book| book.free(address)));
    let code = real();
    if let Some(gone) = gone {
        guarded((), || match code {
            SUCCESS => _ = exchange.tell(gone.told(address, true)),
            _ => BOOK.with(|book| book.keep(address, gone)),
        });
    }
    code
}

/// The program creates a stream, by `create`, which takes a priority where it is not the program's own.
pub fn stream(to: *mut Handle, create: impl Fn(Option<c_int>) -> Code) -> Code {
    if exchange().is_none() {
        return create(None);
    }
    let number = guarded(0, || BOOK.with(Book::next_stream));
    let priority = guarded(None, || {
        PRIORITIES.with(|rules| {
            let of = |wanted| rules.iter().find(|(of, _)| *of == wanted);
            of(number).or_else(|| of(0)).map(|(_, priority)| *priority)
        })
    });
    // The driver takes the nearest that its device has.
    let priority = priority.map(|p| p.clamp(c_int::MIN.into(), c_int::MAX.into()) as c_int);
    let with = priority.map(|priority| create(Some(priority))).filter(|code| *code == SUCCESS);
    let code = with.unwrap_or_else(|| create(None));
    if code == SUCCESS && !to.is_null() {
        guarded((), || {
            // SAFETY: the driver has just written it there.
            let handle = unsafe { to.read_unaligned() } as u64;
            BOOK.with(|book| book.stream(handle, number));
            if let (Some(_), Some(exchange)) = (with, exchange()) {
                exchange.count(Count::StreamsPrioritised, 1);
            }
        });
    }
    code
}

/// A stream is about to be destroyed.
pub fn stream_ends(stream: Handle) {
    if exchange().is_some() {
        guarded((), || BOOK.with(|book| book.stream_ends(stream as u64)));
    }
}

/// The program got a function or kernel by its name.
pub fn named(of: Of, name: &[u8], handle: u64) {
    if wanted() {
        let of_library = matches!(of, Of::Library(_));
        guarded((), || BOOK.with(|book| book.kernel(handle, name_hash(name), of_library)));
    }
}

/// The program got the function of a kernel.
pub fn also(kernel: Handle, function: u64) {
    if wanted() {
        guarded((), || BOOK.with(|book| book.also(kernel as u64, function)));
    }
}

/// A kernel is about to be launched: it is told, and waits if a rule says so.
pub fn launch(
    function: Handle,
    stream: Handle,
    per_thread: bool,
    [grid, block]: [[c_uint; 3]; 2],
    params: *mut *mut c_void,
) {
    let Some(exchange) = exchange() else { return };
    let wait = guarded(Duration::ZERO, || {
        let stream = stream_of(stream as usize, per_thread);
        // What is captured runs when its graph does.
        if driver::is_capturing(stream as Handle) {
            return Duration::ZERO;
        }
        let layout = |of_library| driver::wide_parameters(function, of_library);
        let word = |number| parameter(params, number);
        let launched = BOOK.with(|book| book.launch(function as u64, stream as u64, layout, word));
        let crate::book::Launched { number, kernel, stream, pointers, pointer } = launched;
        exchange.tell(Told::Launch { number, kernel, stream, grid, block, pointers, pointer });
        delay(exchange, kernel)
    });
    if !wait.is_zero() {
        std::thread::sleep(wait);
    }
}

/// How long a launch waits.
fn delay(exchange: &Exchange, kernel: u64) -> Duration {
    if !DELAYING.load(Acquire) || is_stale(exchange) {
        return Duration::ZERO;
    }
    let since = now().saturating_sub(SINCE.load(Relaxed));
    match DELAYS.with(|delays| delays.launch(kernel, since)) {
        Delay::Nothing => Duration::ZERO,
        Delay::LeftOut => {
            exchange.count(Count::DelaysLeftOut, 1);
            Duration::ZERO
        }
        Delay::Wait { ns, cut } => {
            exchange.count(Count::LaunchesDelayed, 1);
            exchange.count(Count::DelayedNs, ns);
            exchange.raise(Count::LongestDelayNs, ns);
            exchange.count(Count::DelaysCut, cut.into());
            Duration::from_nanos(ns)
        }
    }
}

/// The same, where grid, block and stream stand in a `CUlaunchConfig`.
pub fn launch_config(
    how: *const c_void,
    function: Handle,
    per_thread: bool,
    params: *mut *mut c_void,
) {
    if how.is_null() || exchange().is_none() {
        return;
    }
    // SAFETY: the driver is about to read them there as well; no alignment is assumed.
    let sides = unsafe { how.cast::<[[c_uint; 3]; 2]>().read_unaligned() };
    // SAFETY: as above: the stream stands behind seven numbers and four bytes of padding.
    let stream = unsafe { how.byte_add(32).cast::<Handle>().read_unaligned() };
    launch(function, stream, per_thread, sides, params);
}
