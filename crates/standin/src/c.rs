//! Arguments of a C interface: pointers to results, arrays and text.
//!
//! The types here are pointers and come only from C callers, which keep to the documentation of the
//! real libraries: a pointer is null, or points to what its type says. So the unsafe code of the
//! interfaces is here, and the interfaces themselves are safe code.

use std::ffi::{CStr, c_char};

/// A pointer was null where it must not be.
#[derive(Clone, Copy, Debug)]
pub struct Null;

/// Runs `f` and turns a panic into `otherwise`: nothing unwinds into C code.
pub fn guarded<R>(otherwise: R, f: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(otherwise)
}

/// Defines `Code`, the codes that a library returns: the one for a null pointer, and the others by
/// name and number; all libraries have `Unknown`. With it `Status`, the result of an exported
/// function, and `status`, which turns that into a number.
macro_rules! codes {
    ($(#[$about:meta])* null: $null:ident, $($name:ident = $number:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        enum Code {
            $($name = $number,)*
            Unknown = 999,
        }

        impl From<crate::c::Null> for Code {
            fn from(_: crate::c::Null) -> Code {
                Code::$null
            }
        }

        /// What an exported function returns.
        type Status = Result<(), Code>;

        /// The number of a result; 0 is success, a panic is `Unknown`.
        fn status(body: impl FnOnce() -> Status) -> u32 {
            crate::c::guarded(Code::Unknown as u32, || body().map_or_else(|code| code as u32, |()| 0))
        }
    };
}

/// Defines exported functions that return a code, by the `status` in scope where it is used.
macro_rules! exported {
    ($($(#[$about:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> u32 {
            status(|| $body)
        }
    )*};
}

/// Where the caller wants a value, or an array of values; may be null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    /// Whether the pointer is null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the value.
    pub fn put(self, value: T) -> Result<(), Null> {
        self.put_at(0, value)
    }

    /// Writes an item of an array that, by the caller, is long enough.
    pub fn put_at(self, index: usize, value: T) -> Result<(), Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: not null, so by the documentation it points to a `T`, or to an array longer
        // than `index`. No alignment is assumed, since some clients pack their structures.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads the value.
    pub fn get(self) -> Result<T, Null> {
        self.get_at(0)
    }

    /// Reads an item of an array.
    pub fn get_at(self, index: usize) -> Result<T, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: as in `put_at`; the caller has set the value, and `T` is plain numbers.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// A pointer to something else, `bytes` further on.
    pub fn cast<U>(self, bytes: usize) -> Out<U> {
        Out(self.0.wrapping_byte_add(bytes).cast())
    }

    /// The address as a number.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// What is at an address that the caller gave as a number.
    pub fn at(address: usize) -> Out<T> {
        Out(address as *mut T)
    }
}

impl Out<u64> {
    /// Adds to a number at a multiple of 8, which others may change at the same time.
    pub fn add(self, more: u64) -> Result<(), Null> {
        if self.0.is_null() || !self.0.is_aligned() {
            return Err(Null);
        }
        // SAFETY: as in `put_at`, and aligned; others change it atomically too.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.0) }
            .fetch_add(more, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }
}

impl Out<u8> {
    /// A copy of an array that, by the caller, is long enough.
    pub fn bytes(self, bytes: usize) -> Result<Vec<u8>, Null> {
        (0..bytes).map(|i| self.get_at(i)).collect()
    }

    /// Fills such an array.
    pub fn put_bytes(self, bytes: &[u8]) -> Result<(), Null> {
        bytes.iter().enumerate().try_for_each(|(i, byte)| self.put_at(i, *byte))
    }
}

/// Text from the caller; may be null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// A copy of the text.
    pub fn get(self) -> Result<String, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: not null, so by the documentation it points to text that ends with a zero.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Text for the caller that lives as long as the program.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Static(*const c_char);

impl From<&'static CStr> for Static {
    fn from(text: &'static CStr) -> Static {
        Static(text.as_ptr())
    }
}

impl Static {
    /// A null pointer.
    pub const NULL: Static = Static(std::ptr::null());

    /// A copy of a text, kept for the rest of the program.
    pub fn leak(text: &str) -> Static {
        let text = std::ffi::CString::new(text.replace('\0', "?")).unwrap_or_default();
        Static(text.into_raw())
    }

    /// The address as a number.
    pub fn address(self) -> u64 {
        self.0 as u64
    }
}

// SAFETY: the text is never changed or freed.
unsafe impl Send for Static {}
// SAFETY: as above.
unsafe impl Sync for Static {}

/// Copies text and a zero into a buffer of `room` bytes; false if it does not fit.
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

/// Text in an array of characters, cut where it does not fit and padded with zeros.
pub fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (char, byte) in chars.iter_mut().zip(text.bytes().take(N - 1)) {
        *char = byte as c_char;
    }
    chars
}
