//! What comes over a C interface: pointers to results, arrays, text, and callbacks.
//!
//! The types here have the shape of pointers and are only ever made by C callers, who promise what
//! the documentation of the real libraries asks of them: a pointer is null, or points to what its
//! type says. So the unsafe code of the interfaces is here, and the interfaces read as what they do.

use std::ffi::{CStr, c_char};

/// A pointer was null that must not be.
#[derive(Clone, Copy, Debug)]
pub struct Null;

/// Runs `f` and turns a panic into `otherwise`: nothing unwinds into C code.
pub fn guarded<R>(otherwise: R, f: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(otherwise)
}

/// Defines exported functions that answer with a code, by the `answer` of the module that uses it.
macro_rules! exported {
    ($($(#[$about:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> u32 {
            answer(|| $body)
        }
    )*};
}

/// Where a caller wants a value, or an array of them; may be null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub fn put(self, value: T) -> Result<(), Null> {
        self.put_at(0, value)
    }

    /// Puts a value into an array that the caller has said to be long enough.
    pub fn put_at(self, index: usize, value: T) -> Result<(), Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: not null, so it points to what the caller promised: a `T`, or an array longer
        // than `index`. No alignment is asked for, since some clients pack their structures.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    pub fn get(self) -> Result<T, Null> {
        self.get_at(0)
    }

    pub fn get_at(self, index: usize) -> Result<T, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: as in `put_at`; the caller has set what it wants read, and `T` is plain numbers.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// So many bytes on, as a pointer to something else.
    pub fn cast<U>(self, bytes: usize) -> Out<U> {
        Out(self.0.wrapping_byte_add(bytes).cast())
    }

    pub fn address(self) -> usize {
        self.0 as usize
    }
}

/// Text of the caller; may be null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    pub fn get(self) -> Result<String, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: not null, so it points to text that ends with a zero, as the caller promised.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Text of ours that lives as long as the program.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Static(*const c_char);

impl From<&'static CStr> for Static {
    fn from(text: &'static CStr) -> Static {
        Static(text.as_ptr())
    }
}

impl Static {
    pub const NULL: Static = Static(std::ptr::null());

    /// Keeps this text for the rest of the program.
    pub fn leak(text: &str) -> Static {
        let text = std::ffi::CString::new(text.replace('\0', "?")).unwrap_or_default();
        Static(text.into_raw())
    }

    pub fn address(self) -> u64 {
        self.0 as u64
    }
}

// SAFETY: it points to text that nobody changes or frees.
unsafe impl Send for Static {}
// SAFETY: as above.
unsafe impl Sync for Static {}

/// Copies text with its zero into a buffer of so many bytes; false if it is too long.
pub fn put_text(to: Out<c_char>, room: usize, text: &str) -> Result<bool, Null> {
    if to.is_null() {
        return Err(Null);
    }
    if text.len() + 1 > room {
        return Ok(false);
    }
    for (i, byte) in text.bytes().chain([0]).enumerate() {
        to.put_at(i, byte as c_char)?;
    }
    Ok(true)
}

/// Text in an array of characters, cut where it does not fit, zeros behind it.
pub fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (char, byte) in chars.iter_mut().zip(text.bytes().take(N - 1)) {
        *char = byte as c_char;
    }
    chars
}
