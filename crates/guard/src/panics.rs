//! Keeps a panic of a decoder on hostile bytes from becoming ours.
//!
//! The Arrow and Parquet readers check most of what they read, but not all: some malformed files
//! still end in a failed slice or an overflow inside them (our fuzz targets find such files in
//! minutes). They hold no state of ours, and what they were building is thrown away, so a caught
//! panic is as good as an error.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder; a panic inside it comes back as its message, and is not printed.
///
/// # Errors
/// It panicked.
pub fn guarded<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !GUARDED.get() {
                previous(info);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    GUARDED.set(outer);
    result.map_err(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        format!("the decoder gave up: {said}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_becomes_its_message() {
        let empty: &[u8] = &[];
        let message = guarded(|| empty[std::hint::black_box(3)]).unwrap_err();
        assert!(message.contains("index out of bounds"), "{message}");
        assert_eq!(guarded(|| 7), Ok(7));
    }
}
