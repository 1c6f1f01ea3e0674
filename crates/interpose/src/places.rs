//! Where the maps of each image lie, on each device.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::collections::BTreeMap;

use gpuwhy_wire::images::{Answer, Ask, Memory, Outcome, Plan, Records, State};
use gpuwhy_wire::now;

use crate::ask::{connect, say};
use crate::calls::{Call, Calls, Kind};
use crate::driver::{self, Mapped, Stream};
use crate::followed::Followed;
use crate::lock::Lock;
use crate::rings::Rings;
use crate::streams::{PER_THREAD, stream_of};
use crate::types::{Code, Handle, Of, SUCCESS};
use crate::{functions, guarded, linked, patched, steal};

/// The name of the table that spliced modules declare.
const TABLE: &core::ffi::CStr = c"gpuwhy_probe";
/// `CUresult` for what is not as it should be, and for what the controller did not give.
const UNKNOWN: Code = 999;

/// An image with probes.
struct Image {
    of: Of,
    /// With its text: a library's may have to stay where it is.
    plan: Plan,
    /// A library's, once something was asked of it: before, its globals would be loaded for nothing. And one of machine code.
    used: bool,
    /// The only context that it is in, if it is no library.
    only: Option<usize>,
    places: Vec<Place>,
}

/// Its maps in one context.
struct Place {
    context: usize,
    device: c_int,
    /// Where the maps would begin in device memory if all of them lay there, and what of it there is.
    maps: u64,
    memory: u64,
    /// What lies in memory of the host.
    reached: Vec<Reached>,
    table: u64,
    stream: Stream,
    state: State,
    /// When the maps were copied to it, ns.
    copied: u64,
    /// The switches as the device has them.
    on: Vec<bool>,
    /// Where maps tell of launches.
    followed: Option<Followed>,
    /// Rings of records among the maps.
    rings: Option<Rings>,
}

// SAFETY: handles of the driver, which any thread may use.
unsafe impl Send for Place {}

static IMAGES: Lock<Vec<Image>> = Lock::new(Vec::new());
/// Counts what may need a new place: images that are loaded, libraries that are used. 0 while there is none.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// Launches, where images tell when theirs begin ([`FOLLOWS`]).
static CALLS: Calls = Calls::new();
/// Whether there is such an image.
static FOLLOWS: AtomicBool = AtomicBool::new(false);
/// Whether there is an image with kernels that can steal.
static STEALS: AtomicBool = AtomicBool::new(false);
/// Whether kernels were launched, or records came, since [`launched`] was asked.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Context and changes of this thread's last launch.
    static SEEN: Cell<(usize, u64)> = const { Cell::new((0, 0)) };
}

/// An image with probes was loaded.
pub fn take(of: Of, plan: Plan) -> Outcome {
    if plan.launches.is_some() {
        FOLLOWS.store(true, SeqCst);
    }
    if plan.stealing.is_some() {
        STEALS.store(true, SeqCst);
    }
    let mut image = Image { of, plan, used: false, only: None, places: Vec::new() };
    let outcome = match of {
        Of::Module(_) => match place(&image, driver::current()) {
            Ok(place) => {
                image.places.push(place);
                Outcome::Taken
            }
            // Its table stays zero, and its programs off.
            Err(code) => Outcome::Unfilled(code),
        },
        Of::Library(_) | Of::Code(_) => Outcome::Taken,
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
    let changes = CHANGES.load(Relaxed) + patched::changes();
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
            take_machine_code(images);
            let here = |image: &&mut Image| {
                image.used && image.only.is_none_or(|only| only == context as usize)
            };
            for image in images.iter_mut().filter(here) {
                if image.places.iter().all(|place| place.context != context as usize) {
                    match place(image, context) {
                        Ok(place) => image.places.push(place),
                        Err(code) => {
                            // Once: it does not get better, and costs each launch.
                            image.used = false;
                            say(image.plan.image, Outcome::Unfilled(code));
                        }
                    }
                }
            }
        });
    });
}

/// Takes modules of machine code that were patched, and forgets those that were unloaded, after a last look at their maps.
fn take_machine_code(images: &mut Vec<Image>) {
    let gone = patched::gone();
    let is = |of: Of| matches!(of, Of::Code(module) if gone.contains(&module));
    if images.iter().any(|image| is(image.of)) {
        drain(images, |of, _| is(of));
    }
    for mut image in images.extract_if(.., |image| is(image.of)).collect::<Vec<_>>() {
        image.places.iter_mut().for_each(|place| place.close(&image.plan));
        functions::forget(image.plan.image);
        image.places.into_iter().for_each(Place::end);
    }
    for (context, module, plan) in patched::new() {
        if plan.launches.is_some() {
            FOLLOWS.store(true, SeqCst);
        }
        let (of, only, places) = (Of::Code(module), Some(context), Vec::new());
        images.push(Image { of, plan, used: true, only, places });
    }
}

/// A kernel is about to be launched on a stream, by `real`. `per_thread`: its default stream is the thread's own.
#[inline]
pub fn launch(
    function: Handle,
    stream: Handle,
    per_thread: bool,
    real: impl FnOnce() -> Code,
) -> Code {
    if patched::is_active() {
        guarded((), || patched::launching(function, driver::current()));
    }
    before_launch();
    if !FOLLOWS.load(Relaxed) {
        return real();
    }
    let call = guarded(None, || Some(called(function, stream, per_thread)));
    let code = real();
    if let Some(call) = call.filter(|call| code != SUCCESS && call.kind == Kind::Launch) {
        guarded((), || CALLS.push(Call { kind: Kind::Refused, ..call }));
    }
    code
}

/// What tells streams apart; `own` is a number that each thread has for itself, as each has a default stream of its own.
fn stream_key(stream: usize, own: usize) -> u64 {
    (if stream == PER_THREAD { own } else { stream }) as u64
}

/// Writes a launch down.
fn called(function: Handle, handle: Handle, per_thread: bool) -> Call {
    let stream = stream_of(handle as usize, per_thread);
    let captured = driver::is_capturing(stream as Handle);
    let own = SEEN.try_with(|seen| core::ptr::from_ref(seen) as usize);
    let stream = stream_key(stream, own.unwrap_or(PER_THREAD));
    let kind = if captured { Kind::Captured } else { Kind::Launch };
    let (context, function) = (driver::current() as u64, function as u64);
    let call = Call { context, function, stream, at: now(), kind };
    CALLS.push(call);
    call
}

/// The program got a function of a module, or a kernel of a library.
pub fn got(of: Of, name: &[u8], handle: u64) {
    if !FOLLOWS.load(Relaxed) && !STEALS.load(Relaxed) {
        return;
    }
    guarded((), || {
        IMAGES.with(|images| {
            if let Some(image) = images.iter().find(|image| image.of == of) {
                functions::got(&image.plan, name, handle);
                steal::got(&image.plan, of, name, handle);
            }
        });
    });
}

/// The program got the function of a kernel.
pub fn also(kernel: Handle, function: u64) {
    if FOLLOWS.load(Relaxed) {
        guarded((), || functions::also(kernel as u64, function));
    }
    if STEALS.load(Relaxed) {
        guarded((), || steal::also(kernel as u64, function));
    }
}

/// Gives launches to the places that they were made in. Whether all that were made are among them.
fn hand_out(images: &mut [Image]) -> bool {
    if !FOLLOWS.load(Relaxed) {
        return true;
    }
    let mut of_images: BTreeMap<u64, Vec<(usize, Call)>> = BTreeMap::new();
    let taken = CALLS.take(|call| {
        if let Some((image, kernel)) = functions::kernel(call.function) {
            of_images.entry(image).or_default().push((kernel, call));
        }
    });
    for image in images {
        let calls = of_images.remove(&image.plan.image).unwrap_or_default();
        for place in &mut image.places {
            let Some(followed) = &mut place.followed else { continue };
            if taken.lost {
                followed.calls_lost();
            }
            let here = calls.iter().filter(|(_, call)| call.context == place.context as u64);
            here.for_each(|(kernel, call)| followed.call(*kernel, *call));
        }
    }
    taken.whole
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
    let state = State::of(fd, plan.shown_bytes()).map_err(|_| UNKNOWN)?;
    driver::relaxed(|| {
        let global = match image.of {
            Of::Module(module) => Some(driver::global_of_module(module as Handle, TABLE)?),
            Of::Library(library) => Some(driver::global_of_library(library as Handle, TABLE)?),
            // Its table lies behind the maps.
            Of::Code(_) => None,
        };
        let table_bytes = size_of_val(plan.words.as_slice());
        if global.is_some_and(|(_, room)| room < table_bytes) {
            return Err(UNKNOWN);
        }
        let stream = Stream::new()?;
        // Records of launches lie behind the maps.
        let (host, records) = (plan.host_bytes, plan.state_bytes.next_multiple_of(256));
        let behind = records + steal::bytes(plan);
        let own = plan.patch.as_ref().map_or(0, |patch| table_bytes as u64 + patch.bytes());
        let memory = stream.zeros((behind + own - host).max(8) as usize)?;
        let maps = memory.wrapping_sub(host);
        let table = global.map_or(maps.wrapping_add(behind), |(at, _)| at);
        let mut words = plan.words.clone();
        for (word, at) in &plan.places {
            words[*word as usize] = maps.wrapping_add(*at);
        }
        words[0] = caller();
        let mut reached = Vec::new();
        let filled = reach(plan, &state, &mut words, &mut reached)
            .and_then(|()| stream.put(table, &words))
            .and_then(|()| give(image, table, table + table_bytes as u64, &stream));
        if let Err(code) = filled {
            reached.into_iter().for_each(Reached::end);
            stream.end(memory);
            return Err(code);
        }
        steal::place(plan, context as usize, maps.wrapping_add(records), &state);
        let on = plan.switches.iter().map(|word| words[*word as usize] != 0).collect();
        // Without a clock of the device nothing is told of its launches.
        let followed = Followed::new(plan, &stream).ok().flatten();
        // Without a kernel to give places back, rings keep their first records.
        let rings = Rings::new(&plan.rings).ok().flatten();
        let (context, copied) = (context as usize, 0);
        Ok(Place {
            context,
            device,
            maps,
            memory,
            reached,
            table,
            stream,
            state,
            copied,
            on,
            followed,
            rings,
        })
    })
}

/// Writes what launches of kernels of machine code are given, behind the table.
fn give(image: &Image, table: u64, at: u64, stream: &Stream) -> Result<(), Code> {
    let (Some(patch), Of::Code(module)) = (&image.plan.patch, image.of) else { return Ok(()) };
    let words: Vec<u64> =
        (0..patch.kernels.len()).flat_map(|kernel| patch.given(table, kernel)).collect();
    stream.put(at, &words)?;
    let places = (0..).take(patch.kernels.len()).map(|kernel| at + patch.kernel_bytes() * kernel);
    patched::filled(module, places.collect());
    Ok(())
}

/// Memory outside the device that kernels reach; what is somebody else's is mapped here.
struct Reached {
    mapped: Mapped,
    _memory: Option<Memory>,
}

impl Reached {
    fn end(self) {
        self.mapped.end();
    }
}

/// Lets kernels reach the maps that do not lie in the device's memory, and says where in the table.
fn reach(
    plan: &Plan,
    state: &State,
    words: &mut [u64],
    reached: &mut Vec<Reached>,
) -> Result<(), Code> {
    if plan.host_bytes > 0 {
        let mapped = Mapped::new(state.address(), plan.host_bytes as usize)?;
        for (word, at) in plan.places.iter().filter(|(_, at)| *at < plan.host_bytes) {
            words[*word as usize] = mapped.device() + at;
        }
        reached.push(Reached { mapped, _memory: None });
    }
    for (word, bytes) in &plan.shared {
        let (asker, wait) = connect().ok_or(UNKNOWN)?;
        let ask = Ask::Shared { image: plan.image, word: *word };
        asker.say(ask, None).map_err(|_| UNKNOWN)?;
        let (Answer::Shared, Some(fd)) = asker.answer(wait).map_err(|_| UNKNOWN)? else {
            return Err(UNKNOWN);
        };
        let memory = Memory::of_kernel_map(fd, *bytes).map_err(|_| UNKNOWN)?;
        let mapped = Mapped::new(memory.address(), memory.len())?;
        words[*word as usize] = mapped.device();
        reached.push(Reached { mapped, _memory: Some(memory) });
    }
    Ok(())
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

    /// Copies the maps for the controller, in the place's context.
    fn show(&mut self, plan: &Plan) {
        let Place { context, maps, stream, state, copied, rings, .. } = self;
        *copied = now();
        steal::show(plan, *context, state);
        // What lies in the host's memory is there.
        let (host, bytes) = (plan.host_bytes, plan.state_bytes - plan.host_bytes);
        state.drain(*copied, |to| {
            let (from, to) = (maps.wrapping_add(host), to.wrapping_add(host as usize));
            stream.get(from, to, bytes as usize).is_ok()
        });
        if let Some(rings) = rings {
            if rings.take(state, &Records::new(state, plan.records_at()), false) {
                // More may come, although nothing is launched.
                LAUNCHED.store(true, Relaxed);
            }
            rings.give_back(*maps);
        }
    }

    /// Tells what the copy says of launches, in the place's context. `whole`: every call that was made before it was told.
    fn follow(&mut self, plan: &Plan, whole: bool) {
        if let Some(followed) = &mut self.followed {
            followed.read(self.copied, plan, &self.state, whole);
            followed.compare(self.copied, &self.stream);
        }
    }

    /// Nothing more comes.
    fn close(&mut self, plan: &Plan) {
        if let Some(followed) = &mut self.followed {
            followed.finish(plan, &self.state);
        }
        if let Some(rings) = &mut self.rings {
            rings.take(&self.state, &Records::new(&self.state, plan.records_at()), true);
        }
        self.state.close();
    }

    /// Gives back what it has on the device: kernels that use it are over.
    fn end(self) {
        let _ = driver::within(self.context as Handle, || {
            driver::relaxed(|| {
                if let Some(rings) = self.rings {
                    rings.end();
                }
                self.reached.into_iter().for_each(Reached::end);
                self.stream.end(self.memory);
            });
            Ok(())
        });
    }

    /// Turns programs on and off as the controller wants them.
    fn switch(&mut self, switches: &[u32]) {
        for (program, word) in switches.iter().enumerate() {
            let wanted = self.state.is_on(program);
            let at = self.table + 8 * u64::from(*word);
            if self.on[program] != wanted && self.stream.put(at, &[wanted.into()]).is_ok() {
                self.on[program] = wanted;
                if let Some(followed) = &mut self.followed {
                    followed.switched();
                }
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
        for image in images.iter_mut() {
            let switches = &image.plan.switches;
            image.places.iter_mut().for_each(|place| place.within(|place| place.switch(switches)));
        }
        drain(images, |_, _| true);
        if last {
            for image in images {
                image.places.iter_mut().for_each(|place| place.close(&image.plan));
            }
        }
    });
}

/// Shows the maps of places, and tells what is known of launches: calls are taken after the copies, so that whatever has
/// begun in a copy is among them. They are those of all images, so all images have to be here.
fn drain(images: &mut [Image], of: impl Fn(Of, &Place) -> bool) {
    each_place(images, &of, Place::show);
    let whole = hand_out(images);
    each_place(images, &of, |place, plan| place.follow(plan, whole));
}

/// Calls `f` for places, in the context of each.
fn each_place(
    images: &mut [Image],
    of: impl Fn(Of, &Place) -> bool,
    f: impl Fn(&mut Place, &Plan),
) {
    for image in images {
        let places = image.places.iter_mut().filter(|place| of(image.of, place));
        places.for_each(|place| place.within(|place| f(place, &image.plan)));
    }
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
            drain(images, |of, _| is(of));
            let mut image = images.swap_remove(at);
            image.places.iter_mut().for_each(|place| place.close(&image.plan));
            functions::forget(image.plan.image);
            steal::forget(image.plan.image, None);
            Some(image)
        })
    });
    let code = real();
    guarded((), || {
        // Kernels of it are over now, and their maps are nobody's.
        gone.into_iter().flat_map(|image| image.places).for_each(Place::end);
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
        guarded((), || drain(images, |_, place| of(place)));
        let code = real();
        if has_gone(code) {
            for image in images {
                image.places.extract_if(.., |place| of(place)).for_each(|mut place| {
                    place.close(&image.plan);
                    // Its driver's part of it went with the context.
                    place.reached.drain(..).for_each(Reached::end);
                    steal::forget(image.plan.image, Some(place.context));
                    patched::forget(place.context);
                });
            }
        }
        code
    })
}

/// In a forked child: images and places are the parent's.
pub fn forget_after_fork() {
    IMAGES.forget_after_fork(Vec::new());
    functions::forget_after_fork();
    steal::forget_after_fork();
    linked::forget_after_fork();
    CALLS.forget_after_fork();
    CHANGES.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart_as_the_driver_does() {
        let key = |handle, per_thread, thread| stream_key(stream_of(handle, per_thread), thread);
        assert_eq!(key(0, false, 70), key(1, false, 80), "the legacy default stream");
        assert_eq!(key(0, true, 70), key(2, false, 70), "a thread's own");
        assert_ne!(key(0, true, 70), key(0, true, 80), "two threads' own");
        assert_ne!(key(0, true, 70), key(0, false, 70));
        assert_eq!(key(0x500, true, 70), key(0x500, false, 80));
        assert_ne!(key(0x500, true, 70), key(0x600, true, 70));
    }
}
