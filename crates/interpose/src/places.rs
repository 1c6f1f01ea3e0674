//! Where the maps of each image lie, on each device.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};

use gpuwhy_wire::images::{Answer, Ask, Outcome, Plan, Running, State};
use gpuwhy_wire::now;

use crate::ask::connect;
use crate::driver::{self, Clock, Stream};
use crate::lock::Lock;
use crate::tail::{Tail, Tails};
use crate::types::{Code, Handle, SUCCESS};
use crate::{guarded, ring};

/// The name of the table that spliced modules declare.
const TABLE: &core::ffi::CStr = c"gpuwhy_probe";
/// `CUresult` for what is not as it should be, and for what the controller did not give.
const UNKNOWN: Code = 999;

/// What an image became, as a number: threads of ours use it as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Module(usize),
    Library(usize),
}

/// An image with probes.
struct Image {
    of: Of,
    /// With its text: a library's may have to stay where it is.
    plan: Plan,
    /// A library's, once something was asked of it: before, its globals would be loaded for nothing.
    used: bool,
    places: Vec<Place>,
}

/// Its maps in one context.
struct Place {
    context: usize,
    device: c_int,
    /// Device memory of the maps.
    maps: u64,
    table: u64,
    stream: Stream,
    state: State,
    /// The switches as the device has them.
    on: Vec<bool>,
    /// Where a map counts the blocks that run.
    followed: Option<Followed>,
}

/// The running blocks of a device, and its clock.
struct Followed {
    clock: Clock,
    /// What is to be added to the device's clock for ours, ns, and when it was compared.
    offset: i64,
    compared: u64,
    tails: Tails,
}

/// How often clocks are compared, ns.
const COMPARE_NS: u64 = 10_000_000_000;
/// A comparison that took longer does not count, ns.
const PROMPT_NS: u64 = 1_000_000;

impl Followed {
    fn new(running: Running, stream: &Stream) -> Result<Followed, Code> {
        let clock = Clock::new(stream)?;
        let ((offset, _), compared) = (clock.offset(stream)?, now());
        let tails = Tails::new(running, compared.wrapping_sub(offset as u64));
        Ok(Followed { clock, offset, compared, tails })
    }

    /// Tells the tails that have ended; `at` is when the maps were copied.
    fn tell(&mut self, at: u64, running: Running, state: &State, stream: &Stream) {
        let offset = self.offset as u64;
        let tails = self
            .tails
            .read(at.wrapping_sub(offset), |bin| state.number(running.at + 8 * u64::from(bin)));
        for Tail { from, to, most } in tails {
            ring::tail(from.wrapping_add(offset), to.wrapping_add(offset), most);
        }
        if at.saturating_sub(self.compared) > COMPARE_NS {
            self.compared = at;
            // A device that was busy tells its clock too late.
            match self.clock.offset(stream) {
                Ok((offset, took)) if took < PROMPT_NS => self.offset = offset,
                _ => {}
            }
        }
    }
}

// SAFETY: handles of the driver, which any thread may use.
unsafe impl Send for Place {}

static IMAGES: Lock<Vec<Image>> = Lock::new(Vec::new());
/// Counts what may need a new place: images that are loaded, libraries that are used. 0 while there is none.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// Whether kernels were launched since [`launched`] was asked.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Context and changes of this thread's last launch.
    static SEEN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// An image with probes was loaded.
pub fn take(of: Of, plan: Plan) -> Outcome {
    let mut image = Image { of, plan, used: false, places: Vec::new() };
    let outcome = match of {
        Of::Module(_) => match place(&image, driver::current()) {
            Ok(place) => {
                image.places.push(place);
                Outcome::Taken
            }
            // Its table stays zero, and its programs off.
            Err(code) => Outcome::Unfilled(code),
        },
        Of::Library(_) => Outcome::Taken,
    };
    IMAGES.with(|images| images.push(image));
    CHANGES.fetch_add(1, SeqCst);
    outcome
}

/// Something is asked of a library.
pub fn used(library: Handle) {
    if CHANGES.load(Relaxed) == 0 {
        return;
    }
    guarded((), || {
        IMAGES.with(|images| {
            let of = Of::Library(library as usize);
            if let Some(image) = images.iter_mut().find(|image| image.of == of && !image.used) {
                image.used = true;
                CHANGES.fetch_add(1, SeqCst);
            }
        });
    });
}

/// A kernel is about to be launched: libraries that have no place in this context yet get one.
#[inline]
pub fn before_launch() {
    let changes = CHANGES.load(Relaxed);
    if changes == 0 {
        return;
    }
    if !LAUNCHED.load(Relaxed) {
        LAUNCHED.store(true, Relaxed);
    }
    let context = driver::current();
    let now = (context as usize, changes);
    // A thread that is being torn down looks again.
    if SEEN.try_with(|seen| seen.replace(now) == now).unwrap_or(false) || context.is_null() {
        return;
    }
    guarded((), || {
        IMAGES.with(|images| {
            for image in images.iter_mut().filter(|image| image.used) {
                if image.places.iter().all(|place| place.context != context as usize) {
                    match place(image, context) {
                        Ok(place) => image.places.push(place),
                        Err(code) => {
                            // Once: it does not get better, and costs each launch.
                            image.used = false;
                            unfilled(image.plan.image, code);
                        }
                    }
                }
            }
        });
    });
}

fn unfilled(image: u64, code: Code) {
    if let Some((asker, _)) = connect() {
        let _ = asker.say(Ask::Loaded { image, outcome: Outcome::Unfilled(code) }, None);
    }
}

/// Gives an image's maps memory in the calling thread's context, and fills its table.
fn place(image: &Image, context: Handle) -> Result<Place, Code> {
    let plan = &image.plan;
    let device = driver::device()?;
    let (asker, wait) = connect().ok_or(UNKNOWN)?;
    let ask = Ask::State {
        image: plan.image,
        device: device.try_into().unwrap_or(0),
        context: context as u64,
    };
    asker.say(ask, None).map_err(|_| UNKNOWN)?;
    let (Answer::State, Some(fd)) = asker.answer(wait).map_err(|_| UNKNOWN)? else {
        return Err(UNKNOWN);
    };
    let state = State::of(fd, plan.state_bytes).map_err(|_| UNKNOWN)?;
    driver::relaxed(|| {
        let (table, room) = match image.of {
            Of::Module(module) => driver::global_of_module(module as Handle, TABLE)?,
            Of::Library(library) => driver::global_of_library(library as Handle, TABLE)?,
        };
        if room < size_of_val(plan.words.as_slice()) {
            return Err(UNKNOWN);
        }
        let stream = Stream::new()?;
        let maps = stream.zeros((plan.state_bytes as usize).max(8))?;
        let mut words = plan.words.clone();
        for (word, at) in &plan.places {
            words[*word as usize] = maps + at;
        }
        words[0] = caller();
        if let Err(code) = stream.put(table, &words) {
            stream.end(maps);
            return Err(code);
        }
        let on = plan.switches.iter().map(|word| words[*word as usize] != 0).collect();
        // Without a clock of the device nothing is told of its blocks.
        let followed = plan.running.and_then(|running| Followed::new(running, &stream).ok());
        Ok(Place { context: context as usize, device, maps, table, stream, state, on, followed })
    })
}

/// What helper 14 (`bpf_get_current_pid_tgid`) returns.
fn caller() -> u64 {
    // SAFETY: it takes nothing and cannot fail.
    let tid = unsafe { libc::gettid() };
    u64::from(std::process::id()) << 32 | u64::from(tid as u32)
}

impl Place {
    /// Calls `f` in the place's context. One that is gone, or a driver that has ended, is no reason to stop.
    fn within(&mut self, f: impl FnOnce(&mut Place)) {
        let context = self.context as Handle;
        let _ = driver::within(context, || {
            driver::relaxed(|| f(self));
            Ok(())
        });
    }

    /// Shows the controller what the maps hold, in the place's context.
    fn show(&mut self, plan: &Plan) {
        let Place { maps, stream, state, followed, .. } = self;
        let at = now();
        state.drain(at, |to| stream.get(*maps, to, plan.state_bytes as usize).is_ok());
        if let Some((followed, running)) = followed.as_mut().zip(plan.running) {
            followed.tell(at, running, state, stream);
        }
    }

    /// Turns programs on and off as the controller wants them.
    fn switch(&mut self, switches: &[u32]) {
        for (program, word) in switches.iter().enumerate() {
            let wanted = self.state.is_on(program);
            let at = self.table + 8 * u64::from(*word);
            if self.on[program] != wanted && self.stream.put(at, &[wanted.into()]).is_ok() {
                self.on[program] = wanted;
            }
        }
    }
}

/// Whether kernels were launched since this was last asked.
pub fn launched() -> bool {
    LAUNCHED.swap(false, Relaxed)
}

/// Shows all maps, and sets switches. `last`: nothing more comes.
pub fn drain_all(last: bool) {
    IMAGES.with(|images| {
        for image in images {
            let plan = &image.plan;
            for place in &mut image.places {
                place.within(|place| {
                    place.switch(&plan.switches);
                    place.show(plan);
                });
                if last {
                    place.state.close();
                }
            }
        }
    });
}

/// A module or library is about to be unloaded, by `real`.
pub fn unload(handle: Handle, real: impl FnOnce() -> Code) -> Code {
    let gone = guarded(None, || {
        if CHANGES.load(Relaxed) == 0 {
            return None;
        }
        let is = |of: Of| [Of::Module(handle as usize), Of::Library(handle as usize)].contains(&of);
        IMAGES.with(|images| {
            let at = images.iter().position(|image| is(image.of))?;
            let mut image = images.swap_remove(at);
            for place in &mut image.places {
                place.within(|place| {
                    place.show(&image.plan);
                    place.state.close();
                });
            }
            Some(image)
        })
    });
    let code = real();
    guarded((), || {
        // Kernels of it are over now, and their maps are nobody's.
        for place in gone.into_iter().flat_map(|image| image.places) {
            let _ = driver::within(place.context as Handle, || {
                driver::relaxed(|| place.stream.end(place.maps));
                Ok(())
            });
        }
    });
    code
}

/// A context is about to be destroyed, by `real`.
pub fn destroy(context: Handle, real: impl FnOnce() -> Code) -> Code {
    let of = |place: &Place| place.context == context as usize;
    leave(of, real, |code| code == SUCCESS)
}

/// A device's primary context is about to be released or reset, by `real`; whether it goes shows afterwards.
pub fn release(device: c_int, real: impl FnOnce() -> Code) -> Code {
    leave(|place| place.device == device, real, |_| !driver::primary_is_there(device))
}

/// Contexts may go, by `real`: the maps of their places are shown before, and where `has_gone` says that they went, the
/// places are forgotten, with memory and stream.
fn leave(
    of: impl Fn(&Place) -> bool,
    real: impl FnOnce() -> Code,
    has_gone: impl FnOnce(Code) -> bool,
) -> Code {
    if CHANGES.load(Relaxed) == 0 {
        return real();
    }
    IMAGES.with(|images| {
        guarded((), || {
            for image in images.iter_mut() {
                let places = image.places.iter_mut().filter(|place| of(place));
                places.for_each(|place| place.within(|place| place.show(&image.plan)));
            }
        });
        let code = real();
        if has_gone(code) {
            for image in images {
                image
                    .places
                    .extract_if(.., |place| of(place))
                    .for_each(|place| place.state.close());
            }
        }
        code
    })
}

/// In a forked child: images and places are the parent's.
pub fn forget_after_fork() {
    IMAGES.forget_after_fork(Vec::new());
    CHANGES.store(0, SeqCst);
}
