//! Modules of machine code whose kernels call functions of ours, and what their launches are given.
//!
//! *Invariant.* No lock here is held while the driver is called: callbacks of Sanitizer take them ([`crate::sanitizer`]).

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_wire::images::Plan;

use crate::lock::Lock;
use crate::types::Handle;
use crate::{driver, functions};

/// A module.
struct Patched {
    context: usize,
    image: u64,
    /// Its kernels, by the hashes of their names.
    kernels: BTreeMap<u64, usize>,
    /// What a launch of each is given; nothing while the maps have no place.
    given: Vec<u64>,
    /// The kernels whose launches are followed, by the hashes of their names.
    followed: Vec<u64>,
}

/// By module.
static PATCHED: Lock<BTreeMap<usize, Patched>> = Lock::new(BTreeMap::new());
/// Modules whose maps have no place yet: context, module and plan.
static NEW: Lock<Vec<(usize, usize, Plan)>> = Lock::new(Vec::new());
/// Modules that were unloaded.
static GONE: Lock<Vec<usize>> = Lock::new(Vec::new());
/// The functions that a context has, by their text's hash: one image of them in each.
static FUNCTIONS: Lock<BTreeMap<usize, u64>> = Lock::new(BTreeMap::new());
/// Kernels of libraries, and those that were launched in a context before.
static KERNELS: Lock<BTreeSet<usize>> = Lock::new(BTreeSet::new());
static LAUNCHED: Lock<BTreeSet<(usize, usize)>> = Lock::new(BTreeSet::new());
/// Whether Sanitizer tells of modules and launches.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// Counts modules that came and went.
static CHANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What this thread is about to launch, by the handle that the program has.
    static LAUNCHING: Cell<usize> = const { Cell::new(0) };
}

/// Sanitizer tells of modules and launches from now on.
pub fn begin() {
    ACTIVE.store(true, SeqCst);
}

/// Whether it does.
#[inline]
pub fn is_active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Whether a context has functions of this text.
pub fn has_functions(context: usize, text: u64) -> bool {
    FUNCTIONS.with(|all| all.get(&context) == Some(&text))
}

/// It got them.
pub fn got_functions(context: usize, text: u64) {
    FUNCTIONS.with(|all| all.insert(context, text));
}

/// A module of a context calls the functions of a plan.
pub fn take(context: usize, module: usize, plan: Plan) {
    let kernels = plan.patch.iter().flat_map(|patch| &patch.kernels);
    let patched = Patched {
        context,
        image: plan.image,
        kernels: kernels.enumerate().map(|(n, (name, _))| (*name, n)).collect(),
        given: Vec::new(),
        followed: plan.kernels.iter().map(|(name, _)| *name).collect(),
    };
    PATCHED.with(|all| all.insert(module, patched));
    NEW.with(|new| new.push((context, module, plan)));
    CHANGES.fetch_add(1, SeqCst);
}

/// A module is about to be unloaded. Its maps are read after it: their memory is none of its own.
pub fn unloading(module: usize) {
    if PATCHED.with(|all| all.remove(&module)).is_some() {
        NEW.with(|new| new.retain(|(_, of, _)| *of != module));
        GONE.with(|gone| gone.push(module));
        CHANGES.fetch_add(1, SeqCst);
    }
}

/// What a launch of a module's kernel is given, by the hash of its name: 0 where no program is meant or the maps have no place;
/// `None` if the module calls nothing.
pub fn given(module: usize, hash: u64) -> Option<u64> {
    PATCHED.with(|all| {
        let patched = all.get(&module)?;
        if let Some(kernel) = patched.followed.iter().position(|name| *name == hash) {
            let launching = LAUNCHING.try_with(Cell::get).unwrap_or(0);
            functions::know(launching as u64, patched.image, kernel);
        }
        let kernel = patched.kernels.get(&hash);
        Some(kernel.and_then(|kernel| patched.given.get(*kernel)).copied().unwrap_or(0))
    })
}

/// A kernel of a library: its module is loaded, in each context, before it is launched there.
pub fn got_kernel(kernel: Handle) {
    KERNELS.with(|all| all.insert(kernel as usize));
}

/// Something is about to be launched: if it is a kernel whose module is not in the context yet, that is loaded now, so that
/// its maps have a place when the launch begins.
pub fn launching(function: Handle, context: Handle) {
    let _ = LAUNCHING.try_with(|launching| launching.set(function as usize));
    let (kernel, at) = (function as usize, context as usize);
    if KERNELS.with(|all| all.contains(&kernel)) && LAUNCHED.with(|all| all.insert((at, kernel))) {
        let _ = driver::function_of_kernel(function);
    }
}

/// Modules that came since this was asked, with their context and plan.
pub fn new() -> Vec<(usize, usize, Plan)> {
    NEW.with(core::mem::take)
}

/// Modules that went since this was asked.
pub fn gone() -> Vec<usize> {
    GONE.with(core::mem::take)
}

/// How many came and went.
#[inline]
pub fn changes() -> u64 {
    CHANGES.load(Relaxed)
}

/// The words of a module's kernels lie at these addresses.
pub fn filled(module: usize, given: Vec<u64>) {
    PATCHED.with(|all| {
        if let Some(patched) = all.get_mut(&module) {
            patched.given = given;
        }
    });
}

/// A context has gone, with all in it.
pub fn forget(context: usize) {
    PATCHED.with(|all| all.retain(|_, patched| patched.context != context));
    FUNCTIONS.with(|all| all.remove(&context));
    LAUNCHED.with(|all| all.retain(|(at, _)| *at != context));
}

/// In a forked child: the driver's state is the parent's.
pub fn forget_after_fork() {
    PATCHED.forget_after_fork(BTreeMap::new());
    NEW.forget_after_fork(Vec::new());
    GONE.forget_after_fork(Vec::new());
    FUNCTIONS.forget_after_fork(BTreeMap::new());
    KERNELS.forget_after_fork(BTreeSet::new());
    LAUNCHED.forget_after_fork(BTreeSet::new());
}

#[cfg(test)]
mod tests {
    use gpuwhy_wire::images::Patch;

    use super::*;

    #[test]
    fn a_launch_is_given_its_kernels_words_once_the_maps_have_a_place_and_until_the_module_goes() {
        let patch = Patch { spots: 2, programs: 1, kernels: vec![(70, vec![1]), (80, vec![2])] };
        let plan = Plan { image: 9, patch: Some(patch), kernels: vec![(80, 5)], ..Plan::default() };
        assert_eq!(given(0x10, 70), None);
        take(1, 0x10, plan.clone());
        assert_eq!((given(0x10, 70), given(0x10, 99)), (Some(0), Some(0)));
        filled(0x10, vec![0x700, 0x710]);
        let at = [70, 80, 99].map(|hash| given(0x10, hash));
        assert_eq!(at, [Some(0x700), Some(0x710), Some(0)]);
        assert_eq!((new().len(), new().len(), gone()), (1, 0, vec![]));
        // Unloaded before anybody took it: nothing is left of it but that it went.
        take(1, 0x20, plan);
        unloading(0x20);
        assert_eq!((new().len(), gone(), given(0x20, 70)), (0, vec![0x20], None));
        unloading(0x30);
        assert_eq!(gone(), [0; 0], "one that called nothing");
        forget(1);
        assert_eq!((given(0x10, 70), changes()), (None, 3));
    }
}
