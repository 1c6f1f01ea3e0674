//! What was linked with probes in it, until it is loaded: see [`links`](crate::links).

use core::ffi::c_void;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;
use std::fs::File;
use std::os::unix::fs::FileExt;

use gpuwhy_wire::images::{Plan, name_hash};

use crate::image;
use crate::lock::Lock;
use crate::types::Handle;

/// Images that were linked and wait to be loaded; of more the oldest are forgotten, and their probes are off.
const MOST: usize = 64;

/// Links under way, by the driver's handle.
static LINKS: Lock<Vec<(usize, Plan)>> = Lock::new(Vec::new());
/// What was linked and not loaded yet, by the hash of its bytes.
static LINKED: Lock<Vec<(u64, Plan)>> = Lock::new(Vec::new());
/// How many.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether a link has a part with probes.
pub fn has_probes(link: Handle) -> bool {
    LINKS.with(|all| all.iter().any(|(of, _)| *of == link as usize))
}

/// A link has got a part with probes.
pub fn begin(link: Handle, plan: Plan) {
    LINKS.with(|all| all.push((link as usize, plan)));
}

/// The plan of a link, which has none any more.
pub fn end(link: Handle) -> Option<Plan> {
    LINKS.with(|all| {
        let at = all.iter().position(|(of, _)| *of == link as usize)?;
        Some(all.remove(at).1)
    })
}

/// What a link has come to, at an address; the plan that is forgotten for it, or its own if it cannot be known again.
pub fn keep(linked: *const c_void, plan: Plan) -> Option<Plan> {
    let Some(hash) = image::at_address(linked).as_ref().and_then(hash_of) else {
        return Some(plan);
    };
    LINKED.with(|all| {
        all.push((hash, plan));
        let forgotten = (all.len() > MOST).then(|| all.remove(0).1);
        WAITING.store(all.len(), SeqCst);
        forgotten
    })
}

/// The plan of what was linked, if the image at an address, which is about to be loaded, is that.
pub fn take(image: *const c_void) -> Option<Plan> {
    if WAITING.load(SeqCst) == 0 {
        return None;
    }
    let hash = hash_of(&image::at_address(image)?)?;
    LINKED.with(|all| {
        let at = all.iter().position(|(known, _)| *known == hash)?;
        let (_, plan) = all.remove(at);
        WAITING.store(all.len(), SeqCst);
        Some(plan)
    })
}

/// In a forked child: links are the parent's.
pub fn forget_after_fork() {
    LINKS.forget_after_fork(Vec::new());
    LINKED.forget_after_fork(Vec::new());
    WAITING.store(0, SeqCst);
}

fn hash_of(image: &File) -> Option<u64> {
    let mut bytes = vec![0; image.metadata().ok()?.len() as usize];
    image.read_exact_at(&mut bytes, 0).ok()?;
    Some(name_hash(&bytes))
}
