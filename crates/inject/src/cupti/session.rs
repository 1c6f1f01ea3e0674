//! When CUPTI is opened, what is switched on, and whether what it gives can be believed.
//!
//! Only one thread at a time works on the session: the driver's in `cuInit`, later the connection's,
//! and at the end of the process the one that runs the exit handlers. A thread that finds it taken
//! does nothing.
//!
//! Exit handlers run in the opposite order of their registration. Ours calls CUPTI for the last records,
//! so it must run before CUPTI's own, which take CUPTI apart: it is registered once CUPTI is loaded and
//! records. At `cuInit` would be too early where the agent, and CUPTI with it, comes later.

use core::ffi::c_void;
use core::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::time::Duration;

use gpuwhy_wire::{Event, Kernels, Settings};

use super::abi::{self, kind};
use super::callbacks::{self, BUFFERS};
use super::library::{self, Cupti, Environment};
use super::{calls, devices};
use crate::exclusive::Exclusive;
use crate::notice::{self, Code};
use crate::ring;

/// How often records that have ended are asked for.
const FLUSH_NS: u64 = 200_000_000;
/// How often our own cost is reported.
const COST_NS: u64 = 1_000_000_000;
/// After how long another profiler, or a CUPTI that was not found, is looked for again.
const RETRY_NS: u64 = 5_000_000_000;
/// If no buffer comes back for this long while CUPTI has some, another profiler is looked for.
const QUIET_NS: u64 = 2_000_000_000;
/// A notice is repeated after this at the earliest.
const NOTICE_NS: u64 = 60_000_000_000;
/// Records without times are taken for a defect of CUPTI from this number on,
const UNTIMED_LEAST: u64 = 32;
/// if their share is at least one in this number.
const UNTIMED_ONE_IN: u64 = 100;
/// After this many records with times the share is counted anew.
const UNTIMED_WINDOW: u64 = 100_000;

/// How often the end of a process looks whether our thread has left CUPTI, 1 ms apart.
const LEAVE_TRIES: u32 = 100;

const SHARED: &str = "another profiler uses CUPTI: it is left alone";

/// The driver has called us in this process.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// The driver is in the middle of `cuInit`, on another thread than ours.
static IN_INIT: AtomicBool = AtomicBool::new(false);
static SESSION: Exclusive<Session> = Exclusive::new(Session::new());

/// In `cuInit`: calls `start`, which asks for the agent's settings, and opens CUPTI if they say so.
/// Nothing is done if this process has called it before.
pub fn open(start: impl FnOnce()) {
    if IS_OPEN.swap(true, AcqRel) {
        return;
    }
    IN_INIT.store(true, Release);
    // Here, on a thread of the program: on one of ours, getenv could meet the program's setenv.
    SESSION.with(|session| session.environment = Some(Environment::read()));
    start();
    update();
    IN_INIT.store(false, Release);
}

/// Reports the last records of a process that ends in good order.
extern "C" fn at_exit() {
    crate::guarded((), || {
        // After us run the handlers of CUDA and CUPTI, which take apart what our thread may be
        // calling at this moment: it does not begin again, and is waited for a little.
        IS_OPEN.store(false, Release);
        for _ in 0..LEAVE_TRIES {
            if SESSION.with(Session::leave).is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The agent's settings from now on.
pub fn ask(settings: Settings) {
    // The thread that ends the process may have the session; then settings do not matter any more.
    SESSION.with(|session| session.asked = settings);
    tick();
}

/// Brings CUPTI in line with the settings, flushes it, and reports.
pub fn tick() {
    if IS_OPEN.load(Acquire) && !IN_INIT.load(Acquire) {
        update();
    }
}

/// In a forked child, where CUDA does not work: nothing is open.
pub fn forget_after_fork() {
    IS_OPEN.store(false, Release);
    IN_INIT.store(false, Release);
    SESSION.open_after_fork();
    SESSION.with(|session| {
        // What lies on the heap is kept: a fork handler frees nothing.
        let environment = session.environment.take();
        std::mem::forget(std::mem::replace(session, Session { environment, ..Session::new() }));
    });
}

fn update() {
    SESSION.with(|session| session.update(gpuwhy_wire::now()));
}

#[derive(Clone, Copy)]
enum State {
    /// CUPTI is as it was.
    Closed,
    /// Our callbacks are registered.
    Open(Cupti),
    /// Another profiler has it, or it was not found; looked for again at that time.
    Away(u64),
    /// It gave records that cannot be believed: not used any more in this process.
    Broken,
    /// The process ends.
    Over,
}

/// Kinds of record that can be switched, one bit each in the order of this list.
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

struct Session {
    asked: Settings,
    state: State,
    /// What the program's environment said in `cuInit`; `None` before.
    environment: Option<Environment>,
    /// [`at_exit`] is registered.
    leaves_at_exit: bool,
    /// Kinds that are switched on.
    on: u8,
    /// Nodes of graphs are not recorded any more: they have broken CUPTI once.
    no_nodes: bool,
    flushed: u64,
    cost_reported: u64,
    /// When buffers came back last, and how many had.
    returned: (u64, u64),
    /// Records with and without times at the last check.
    checked: (u64, u64),
    starved: u64,
    lost: u64,
    /// The generation of ring to which the devices were reported.
    devices_reported: u64,
    /// By code, when a notice was written last, and to which generation of ring.
    noticed: [(u64, u64); 32],
}

impl Session {
    const fn new() -> Session {
        Session {
            asked: Settings::NOTHING,
            state: State::Closed,
            environment: None,
            leaves_at_exit: false,
            on: 0,
            no_nodes: false,
            flushed: 0,
            cost_reported: 0,
            returned: (0, 0),
            checked: (0, 0),
            starved: 0,
            lost: 0,
            devices_reported: 0,
            noticed: [(0, 0); 32],
        }
    }

    fn update(&mut self, now: u64) {
        let wanted = self.asked.kernels != Kernels::Off;
        match self.state {
            State::Closed if wanted => self.open(now),
            State::Away(until) if wanted && now >= until => self.open(now),
            _ => {}
        }
        let State::Open(cupti) = self.state else { return };
        callbacks::update_offset();
        let kinds = self.kinds(now);
        self.switch(&cupti, kinds);
        if self.on == 0 {
            return;
        }
        if !std::mem::replace(&mut self.leaves_at_exit, true) {
            // SAFETY: the handler stays where it is, since this object is never unloaded.
            unsafe { libc::atexit(at_exit) };
        }
        self.report_devices();
        if now.saturating_sub(self.flushed) >= FLUSH_NS {
            self.flushed = now;
            // Whole records only.
            // SAFETY: a function of CUPTI, called as its header says, from no callback.
            unsafe { (cupti.flush)(0) };
            self.check_times(&cupti);
            self.check_losses();
            self.look_for_others(&cupti, now);
        }
        if now.saturating_sub(self.cost_reported) >= COST_NS {
            self.cost_reported = now;
            report_cost();
        }
    }

    fn leave(&mut self) {
        if let State::Open(cupti) = self.state {
            callbacks::flush_forced(&cupti);
            report_cost();
        }
        self.state = State::Over;
    }

    /// The kinds of record that the settings ask for now.
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

    /// Registers with CUPTI, unless another profiler has it.
    fn open(&mut self, now: u64) {
        self.state = State::Away(now + RETRY_NS);
        let environment = self.environment.clone().unwrap_or_default();
        let Some(cupti) = library::cupti(&environment) else {
            self.notice(
                Code::CuptiMissing,
                "no libcupti was found: kernels are not recorded",
                None,
            );
            return;
        };
        let mut version = 0;
        // SAFETY: the pointer is to our stack.
        unsafe { (cupti.version)(&raw mut version) };
        if is_subscribed(&cupti) {
            self.notice(Code::CuptiShared, SHARED, Some(f64::from(version)));
            return;
        }
        if !BUFFERS.make() {
            self.notice(Code::CuptiMissing, "no memory for CUPTI's buffers", None);
            return;
        }
        set_attributes(&cupti, environment.pool_limit);
        let failed = callbacks::register(&cupti);
        if failed != 0 {
            let text = "CUPTI refuses our callbacks: kernels are not recorded";
            self.notice(Code::CuptiMissing, text, Some(f64::from(failed)));
            return;
        }
        self.state = State::Open(cupti);
        self.on = 0;
        self.returned = (now, callbacks::counts().returned);
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
                (kind::DRIVER, Some(enable), Some(name)) => calls::switch(enable, name, on),
                // SAFETY: functions of CUPTI, called as its header says, from no callback.
                _ if on => unsafe { (cupti.enable)(kind) },
                // SAFETY: as above.
                _ => unsafe { (cupti.disable)(kind) },
            };
            self.on ^= bit;
            if failed != 0 && on {
                let text = match kind {
                    kind::CONCURRENT_KERNEL => "CUPTI does not record kernels here",
                    kind::GRAPH_TRACE => "CUPTI does not record CUDA graphs as a whole here",
                    kind::DRIVER => "CUPTI does not record launching calls here",
                    kind::SYNCHRONIZATION => "CUPTI does not record waits here",
                    _ => "CUPTI does not record copies here",
                };
                self.notice(Code::CuptiKind, text, Some(f64::from(failed)));
            }
        }
    }

    /// Many records without times: the buffers on the device have run out, as happens with nodes of
    /// graphs (parcagpu #23).
    fn check_times(&mut self, cupti: &Cupti) {
        let counts = callbacks::counts();
        let (timed, untimed) = (counts.timed - self.checked.0, counts.untimed - self.checked.1);
        if untimed >= UNTIMED_LEAST && untimed * UNTIMED_ONE_IN >= untimed + timed {
            self.checked = (counts.timed, counts.untimed);
            if self.on & GRAPHS == 0 {
                self.no_nodes = true;
                let text = "records without times: nodes of CUDA graphs are not recorded any more";
                self.notice(Code::CuptiTimes, text, Some(untimed as f64));
            } else {
                let text =
                    "records without times: kernels are not recorded any more in this process";
                self.notice(Code::CuptiTimes, text, Some(untimed as f64));
                self.switch(cupti, 0);
                self.state = State::Broken;
            }
        } else if timed > UNTIMED_WINDOW {
            self.checked = (counts.timed, counts.untimed);
        }
    }

    /// Notes records that CUPTI dropped, and how often it got no buffer.
    fn check_losses(&mut self) {
        if let State::Broken = self.state {
            return;
        }
        let starved = BUFFERS.starved();
        if starved > self.starved {
            let text = "all buffers are full: CUPTI drops records";
            self.notice(Code::CuptiBuffers, text, Some((starved - self.starved) as f64));
            self.starved = starved;
        }
        let lost = callbacks::counts().lost;
        if lost > self.lost {
            let text = "CUPTI dropped records";
            self.notice(Code::CuptiDropped, text, Some((lost - self.lost) as f64));
            self.lost = lost;
        }
    }

    /// Whether another profiler has come. That is looked for when no buffer comes back any more, since
    /// it takes the place of a subscriber for a moment; an idle device looks the same, and is looked at
    /// now and then for nothing. Buffers are not forced out: work that has not ended would be recorded
    /// without times, and never again.
    fn look_for_others(&mut self, cupti: &Cupti, now: u64) {
        if let State::Broken = self.state {
            return;
        }
        let returned = callbacks::counts().returned;
        if returned != self.returned.1 || BUFFERS.out() == 0 {
            self.returned = (now, returned);
            return;
        }
        if now.saturating_sub(self.returned.0) < QUIET_NS {
            return;
        }
        self.returned.0 = now;
        if is_subscribed(cupti) {
            self.notice(Code::CuptiShared, SHARED, None);
            // The kinds are the other profiler's now: they are left as they are.
            self.on = 0;
            self.state = State::Away(now + RETRY_NS);
        }
    }

    /// Writes a notice, once a minute and agent at most.
    fn notice(&mut self, code: Code, text: &str, value: Option<f64>) {
        let now = gpuwhy_wire::now();
        let generation = ring::with(|ring| ring.generation).unwrap_or(0);
        let place = code as usize % self.noticed.len();
        let (last, to) = self.noticed[place];
        if generation == 0 || (to == generation && now.saturating_sub(last) < NOTICE_NS) {
            return;
        }
        self.noticed[place] = (now, generation);
        notice::report(code, text, value);
    }

    /// Reports which GPU each number means, once to each agent.
    fn report_devices(&mut self) {
        let reported = ring::with(|ring| {
            let known = ring.generation == self.devices_reported;
            (known || devices::report(ring).is_some()).then_some(ring.generation)
        });
        if let Some(Some(generation)) = reported {
            self.devices_reported = generation;
        }
    }
}

/// Reports what the callbacks have cost this process so far.
fn report_cost() {
    let counts = callbacks::counts();
    ring::with(|ring| {
        let at = gpuwhy_wire::now();
        let counters = [
            ("inject.time", "ns", counts.cost),
            ("inject.records", "1", counts.records),
            ("inject.lost", "1", counts.lost + counts.untimed),
        ];
        for (name, unit, value) in counters {
            let (name, unit) = (ring.name(name), ring.name(unit));
            let value = value as f64;
            ring.write(Event::Counter { name, unit, device: None, at, value });
        }
    });
}

/// Says that our buffers come zeroed, and how many CUPTI may have on a device.
fn set_attributes(cupti: &Cupti, pool_limit: Option<usize>) {
    let Some(set) = cupti.set_attribute else { return };
    let (mut bytes, mut yes) = (1usize, 1u8);
    let (bytes, yes) = (&raw mut bytes, (&raw mut yes).cast());
    // SAFETY: the header says that this attribute's value is one byte.
    unsafe { set(abi::ATTR_ZEROED_BUFFERS, bytes, yes) };
    if let Some(mut limit) = pool_limit {
        let mut bytes = size_of::<usize>();
        // SAFETY: the header says that this attribute's value is a `size_t`.
        unsafe { set(abi::ATTR_POOL_LIMIT, &raw mut bytes, (&raw mut limit).cast()) };
    }
}

/// Whether another profiler subscribes to CUPTI. Our own subscription lasts no longer than this call.
fn is_subscribed(cupti: &Cupti) -> bool {
    unsafe extern "C" fn nothing(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}
    let mut subscriber = null_mut();
    // SAFETY: the pointer is to our stack; the callback does nothing and stays where it is.
    let answer = unsafe { (cupti.subscribe)(&raw mut subscriber, nothing, null_mut()) };
    if answer == 0 {
        // SAFETY: the subscriber that was just made.
        unsafe { (cupti.unsubscribe)(subscriber) };
    }
    // Any other error, such as of a driver that is not ready yet, says nothing about other profilers.
    answer == abi::MULTIPLE_SUBSCRIBERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_graphs_are_recorded_for_their_share_of_the_time() {
        let mut session = Session::new();
        assert_eq!(session.kinds(0), 0);
        session.asked = Settings { nodes_every_ms: 1000, nodes_for_ms: 100, ..Settings::USUAL };
        let ms = 1_000_000;
        assert_eq!(session.kinds(7_000 * ms) & GRAPHS, 0);
        assert_eq!(session.kinds(7_099 * ms) & GRAPHS, 0);
        assert_eq!(session.kinds(7_100 * ms) & GRAPHS, GRAPHS);
        session.no_nodes = true;
        assert_eq!(session.kinds(7_000 * ms), WORK | GRAPHS);
        session.asked = Settings { launches: true, ..Settings::USUAL };
        assert_eq!(session.kinds(0), WORK | GRAPHS | CALLS);
    }
}
