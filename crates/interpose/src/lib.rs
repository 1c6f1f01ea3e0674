//! The object between a program and its GPU driver, which `LD_PRELOAD` names: images of kernels are handed to a
//! controller as they are loaded, and what it gives back, the same kernels with device probes in them, is loaded
//! instead.
//!
//! *How it stands between.* It has the driver's functions under their own names, for programs that are linked to
//! `libcuda`; it has `dlsym`, for those that look it up; and it wraps `cuGetProcAddress`, which is how CUDA's run time,
//! also a statically linked one, asks for all of them ([`symbols`]). Everything that is not one of
//! [`symbols::HOOKS`] passes through unseen: `dlsym` jumps on to the C library's with the caller's own return address.
//!
//! *What it does.* When an image is loaded, it sends it to the controller's socket and waits for the answer for a
//! bounded time (`load`). An image with probes is loaded in the place of the program's own, so that globals, graphs
//! and launch attributes are right; if the driver refuses it, the program's own is loaded. Before the first launch in
//! a context, the maps of the probes get memory on its device (`places`). A thread copies them to memory that the
//! controller has mapped, ten times a second while kernels are launched, and the last time when the image is
//! unloaded, its context is destroyed or the program exits (`drain`). Images that are linked from parts get theirs on the
//! way (`links`). Where a map tells when launches begin, each call is
//! written down before the driver is asked (`calls`) and matched with what the map says (`late`). Where the image has a kernel
//! that steals work beside the program's own, it is launched in that one's place (`steal`). Where
//! the user names NVIDIA's Sanitizer, kernels of machine code call functions of ours (`sanitizer`). Where the controller has policies,
//! allocations and launches are told to it, and what it asks for is carried out (`policy`).
//!
//! *Invariants.* Without [`gpuwhy_wire::images::PROBES_ENV`] every call goes to the driver as it came. Nothing here
//! prints or fails, and no panic leaves it: what goes wrong loads the program's own image. Calls of the program are
//! never repeated and never left out. It is a second object beside `inject`: that one is loaded by the driver and by
//! NCCL, and must not have the driver's names.
//!
//! *What it does not reach.* Functions that are not in the table; images that are loaded before it is there; programs without a dynamic linker; and programs that clear `LD_PRELOAD` for their children.

mod ask;
mod book;
mod calls;
mod delays;
mod drain;
mod driver;
mod followed;
mod functions;
mod image;
mod late;
mod linked;
mod linker;
mod links;
mod load;
mod lock;
mod ours;
mod patched;
mod places;
mod policy;
mod ring;
mod rings;
pub mod sanitizer;
mod steal;
mod streams;
pub mod symbols;
mod tail;
mod types;

/// Runs `f`; if it panics, `otherwise`, so that nothing unwinds into C code.
fn guarded<R>(otherwise: R, f: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(otherwise)
}
