//! The dynamic linker: the C library's `dlsym`, and the driver that the program has loaded.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::types::Handle;

/// The C library's `dlsym`, by which ours goes on.
pub fn c_library() -> *mut c_void {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let known = KNOWN.load(Acquire);
    if !known.is_null() {
        return known;
    }
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
        // SAFETY: C strings.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            KNOWN.store(found, Release);
            return found;
        }
    }
    // There is a C library, and it has the function, or nothing here would run.
    std::process::abort()
}

/// Looks up a name as the C library does.
pub fn real_dlsym(handle: Handle, name: &CStr) -> *mut c_void {
    // SAFETY: the type of the C library's function of this name.
    let real = unsafe {
        core::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *const c_char) -> Handle>(
            c_library(),
        )
    };
    // SAFETY: a handle of the dynamic linker and a C string.
    unsafe { real(handle, name.as_ptr()) }
}

/// Looks up a function of the driver that the program has loaded; null if there is none.
pub fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; nothing is loaded that is not loaded already.
    let driver =
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if driver.is_null() { null_mut() } else { real_dlsym(driver, name) }
}
