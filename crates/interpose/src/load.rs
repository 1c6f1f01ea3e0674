//! Images as they are loaded: handed to the controller, and replaced by what it answers.

use core::ffi::{c_char, c_int, c_uint, c_void};

use gpuwhy_wire::images::{Ask, Asker, Outcome, Plan};

use crate::ask::{connect, say};
use crate::ours::is_ours;
use crate::places;
use crate::types::{Code, Handle, Of, SUCCESS};
use crate::{ask, drain, driver, guarded, image, linked};

/// Where an image comes from.
#[derive(Clone, Copy)]
pub enum Source {
    Memory(*const c_void),
    File(*const c_char),
}

/// What the controller makes of an image; the connection takes what became of it.
pub fn plan(source: Source) -> Option<(Asker, Plan)> {
    let (asker, wait) = connect()?;
    let (arch, sms) = driver::devices()?;
    let file = match source {
        Source::Memory(address) => image::at_address(address)?,
        Source::File(path) => image::in_file(path)?,
    };
    let plan = ask::plan(&asker, wait, Ask::Image { arch, sms }, &file)?;
    // The driver looks for the zero that ends a text.
    (plan.text.last() == Some(&0)).then_some((asker, plan))
}

/// Loads another image in the place of the program's own; if it is refused, the program's own.
fn load(
    source: Source,
    own: impl FnOnce() -> Code,
    other: impl FnOnce(*const c_void) -> Code,
    take: impl FnOnce(Plan) -> Outcome,
) -> Code {
    let was_linked = |source| match source {
        Source::Memory(address) => linked::take(address),
        Source::File(_) => None,
    };
    if let Some(plan) = guarded(None, || was_linked(source)) {
        // It has its probes already.
        guarded((), drain::start);
        let (code, image) = (own(), plan.image);
        guarded((), || match code {
            SUCCESS => say(image, take(plan)),
            refused => say(image, Outcome::Refused(refused)),
        });
        return code;
    }
    // Sanitizer loads modules of its own, too.
    if is_ours() {
        return own();
    }
    let Some((asker, plan)) = guarded(None, || plan(source)) else { return own() };
    let image = plan.image;
    guarded((), drain::start);
    let code = other(plan.text.as_ptr().cast());
    let outcome = match code {
        SUCCESS => guarded(Outcome::Unfilled(0), || take(plan)),
        refused => Outcome::Refused(refused),
    };
    // If the controller has gone, nobody asks what became of it.
    let _ = asker.say(Ask::Loaded { image, outcome }, None);
    if code == SUCCESS { code } else { own() }
}

/// A module, which belongs to the calling thread's context.
pub fn module(
    to: *mut Handle,
    source: Source,
    own: impl FnOnce() -> Code,
    options: Option<(c_uint, *mut c_int, *mut *mut c_void)>,
) -> Code {
    load(
        source,
        own,
        |text| driver::load_module(to, text, options),
        |plan| {
            // SAFETY: the driver has just written the module there.
            places::take(Of::Module(unsafe { to.read() } as usize), plan)
        },
    )
}

/// A library, which is loaded into each context in which it is used. `real` loads the program's own image, or a text.
pub fn library(
    to: *mut Handle,
    source: Source,
    real: impl Fn(Option<*const c_void>) -> Code,
) -> Code {
    load(
        source,
        || real(None),
        |text| real(Some(text)),
        |plan| {
            // SAFETY: the driver has just written the library there.
            places::take(Of::Library(unsafe { to.read() } as usize), plan)
        },
    )
}
