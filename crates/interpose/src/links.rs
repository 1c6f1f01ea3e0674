//! Images that the driver links from parts (`cuLinkAddData`), as Numba and older bindings for Python have it do: a part with
//! kernels in text is replaced before it is linked, and the maps get memory when what was linked is loaded.
//!
//! What was linked is known again by its bytes: programs copy it, and end the link before they load it. Of one link one part
//! gets probes, the first that can have some, since the table of their maps has one name; and of what is loaded several
//! times, the first.

use core::ffi::{c_int, c_void};

use gpuwhy_wire::images::Outcome;

use crate::ask::say;
use crate::load::{Source, plan};
use crate::types::{Code, Handle, SUCCESS};
use crate::{guarded, linked};

/// `CUjitInputType`: text, and a fat binary, which may hold text.
const PTX: c_int = 1;
const FATBINARY: c_int = 2;
/// `CUresult` where what was linked cannot be known again.
const NOT_KNOWN: Code = 999;

/// A part is added to a link: the program's `own`, or another text of so many bytes instead.
pub fn add(
    link: Handle,
    kind: c_int,
    source: Source,
    own: impl FnOnce() -> Code,
    other: impl FnOnce(c_int, *const c_void, usize) -> Code,
) -> Code {
    let made = guarded(None, || {
        let may = matches!(kind, PTX | FATBINARY) && !linked::has_probes(link);
        may.then(|| plan(source)).flatten()
    });
    let Some((_, plan)) = made else { return own() };
    match other(PTX, plan.text.as_ptr().cast(), plan.text.len()) {
        SUCCESS => {
            guarded((), || linked::begin(link, plan));
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
        let Some(plan) = linked::end(link) else { return };
        if code != SUCCESS || to.is_null() {
            say(plan.image, Outcome::Refused(code));
            return;
        }
        // SAFETY: the driver has just written it there.
        if let Some(lost) = linked::keep(unsafe { to.read() }, plan) {
            say(lost.image, Outcome::Unfilled(NOT_KNOWN));
        }
    });
}

/// A link is ended. If it was not completed, nothing is said of what became of its image.
pub fn ended(link: Handle) {
    guarded((), || drop(linked::end(link)));
}
