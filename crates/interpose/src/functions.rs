//! Which handles of functions are kernels of which image.

use std::collections::BTreeMap;

use gpuwhy_wire::images::{Plan, name_hash};

use crate::lock::Lock;

/// By handle: the image's number, and which of its kernels.
static FUNCTIONS: Lock<BTreeMap<u64, (u64, usize)>> = Lock::new(BTreeMap::new());

/// The program got a function of an image.
pub fn got(plan: &Plan, name: &[u8], handle: u64) {
    let hash = name_hash(name);
    if let Some(kernel) = plan.kernels.iter().position(|(known, _)| *known == hash) {
        FUNCTIONS.with(|all| all.insert(handle, (plan.image, kernel)));
    }
}

/// A launch of this handle is one of an image's kernel.
pub fn know(handle: u64, image: u64, kernel: usize) {
    FUNCTIONS.with(|all| all.insert(handle, (image, kernel)));
}

/// A function has another handle as well.
pub fn also(handle: u64, other: u64) {
    FUNCTIONS.with(|all| {
        if let Some(known) = all.get(&handle).copied() {
            all.insert(other, known);
        }
    });
}

/// The image and kernel of a handle.
pub fn kernel(handle: u64) -> Option<(u64, usize)> {
    FUNCTIONS.with(|all| all.get(&handle).copied())
}

/// An image was unloaded: its handles may be given again.
pub fn forget(image: u64) {
    FUNCTIONS.with(|all| all.retain(|_, (of, _)| *of != image));
}

/// In a forked child: they are the parent's.
pub fn forget_after_fork() {
    FUNCTIONS.forget_after_fork(BTreeMap::new());
}
