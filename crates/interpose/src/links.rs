//! Images that the driver links from parts (`cuLinkAddData`), as Numba and older bindings for Python have it do: a part with
//! kernels in text is replaced before it is linked, and the maps get memory when what was linked is loaded.
//!
//! What was linked is known again by its bytes: programs copy it, and end the link before they load it. Of one link one part
//! gets probes, the first that can have some, since the table of their maps has one name; and of what is loaded several
//! times, the first.

use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::SeqCst;
use std::fs::File;
use std::os::unix::fs::FileExt;

use gpuwhy_wire::images::{Outcome, Plan, name_hash};

use crate::load::{Source, plan, say};
use crate::lock::Lock;
use crate::types::{Code, Handle, SUCCESS};
use crate::{guarded, image};

/// `CUjitInputType`: text, and a fat binary, which may hold text.
const PTX: c_int = 1;
const FATBINARY: c_int = 2;
/// `CUresult` where what was linked cannot be known again.
const NOT_KNOWN: Code = 999;
/// Images that were linked and wait to be loaded; of more the oldest are forgotten, and their probes are off.
const MOST: usize = 64;

/// Links under way, by the driver's handle.
static LINKS: Lock<Vec<(usize, Plan)>> = Lock::new(Vec::new());
/// What was linked and not loaded yet, by the hash of its bytes.
static LINKED: Lock<Vec<(u64, Plan)>> = Lock::new(Vec::new());
/// How many.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A part is added to a link: the program's `own`, or another text of so many bytes instead.
pub fn add(
    link: Handle,
    kind: c_int,
    source: Source,
    own: impl FnOnce() -> Code,
    other: impl FnOnce(c_int, *const c_void, usize) -> Code,
) -> Code {
    let link = link as usize;
    let made = guarded(None, || {
        let has_probes = LINKS.with(|all| all.iter().any(|(of, _)| *of == link));
        let may = matches!(kind, PTX | FATBINARY) && !has_probes;
        may.then(|| plan(source)).flatten()
    });
    let Some((_, plan)) = made else { return own() };
    match other(PTX, plan.text.as_ptr().cast(), plan.text.len()) {
        SUCCESS => {
            guarded((), || LINKS.with(|all| all.push((link, plan))));
            SUCCESS
        }
        refused => {
            guarded((), || say(plan.image, Outcome::Refused(refused)));
            own()
        }
    }
}

/// A link was completed; where its result lies, if the driver gave one.
pub fn completed(link: Handle, code: Code, to: *mut *mut c_void) {
    guarded((), || {
        let Some(plan) = taken(link) else { return };
        if code != SUCCESS || to.is_null() {
            say(plan.image, Outcome::Refused(code));
            return;
        }
        // SAFETY: the driver has just written it there.
        let linked = unsafe { to.read() };
        let Some(hash) = image::at_address(linked).as_ref().and_then(hash_of) else {
            say(plan.image, Outcome::Unfilled(NOT_KNOWN));
            return;
        };
        let forgotten = LINKED.with(|all| {
            all.push((hash, plan));
            let forgotten = (all.len() > MOST).then(|| all.remove(0));
            WAITING.store(all.len(), SeqCst);
            forgotten
        });
        if let Some((_, plan)) = forgotten {
            say(plan.image, Outcome::Unfilled(NOT_KNOWN));
        }
    });
}

/// A link is ended. If it was not completed, nothing is said of what became of its image.
pub fn ended(link: Handle) {
    guarded((), || drop(taken(link)));
}

/// The plan of what was linked, if an image that is about to be loaded is that.
pub fn linked(source: Source) -> Option<Plan> {
    let Source::Memory(address) = source else { return None };
    if WAITING.load(SeqCst) == 0 {
        return None;
    }
    let hash = hash_of(&image::at_address(address)?)?;
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

/// The plan of a link, which has none any more.
fn taken(link: Handle) -> Option<Plan> {
    LINKS.with(|all| {
        let at = all.iter().position(|(of, _)| *of == link as usize)?;
        Some(all.remove(at).1)
    })
}

fn hash_of(image: &File) -> Option<u64> {
    let mut bytes = vec![0; image.metadata().ok()?.len() as usize];
    image.read_exact_at(&mut bytes, 0).ok()?;
    Some(name_hash(&bytes))
}
