//! The CUPTI that this process has, found at run time.
//!
//! Two copies of CUPTI in one process would each take the device for their own, so one that is loaded
//! already is used (PyTorch links it); else the one that `GPUWHY_CUPTI` names; else one of the driver's
//! major version on the loader's path or in the toolkit's folder.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute_copy;
use std::ffi::{CString, OsString};

use super::abi::{Callback, Completed, Requested, Status, Timestamp};

/// Declares the functions of a library: those that it must have, and after the semicolon those that it
/// may have.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident {
        $($field:ident = $symbol:literal: $type:ty,)*
        ; $($maybe:ident = $maybe_symbol:literal: $maybe_type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $field: $type,)*
            $(pub $maybe: Option<$maybe_type>,)*
        }

        impl $name {
            /// The functions of the library behind a handle of `dlopen`.
            fn of(handle: *mut c_void) -> Option<$name> {
                $(
                    let found = symbol(handle, $symbol)?;
                    // SAFETY: the header declares this symbol as a function of this type; a
                    // function pointer has the size of a data pointer on this system.
                    let $field = unsafe { transmute_copy::<*mut c_void, $type>(&found) };
                )*
                $(
                    let $maybe = symbol(handle, $maybe_symbol).map(|found| {
                        // SAFETY: as above.
                        unsafe { transmute_copy::<*mut c_void, $maybe_type>(&found) }
                    });
                )*
                Some($name { $($field,)* $($maybe,)* })
            }
        }
    };
}

functions! {
    /// `libcupti.so`.
    Cupti {
        version = c"cuptiGetVersion": unsafe extern "C" fn(*mut u32) -> Status,
        register = c"cuptiActivityRegisterCallbacks": unsafe extern "C" fn(Requested, Completed) -> Status,
        enable = c"cuptiActivityEnable": unsafe extern "C" fn(u32) -> Status,
        disable = c"cuptiActivityDisable": unsafe extern "C" fn(u32) -> Status,
        flush = c"cuptiActivityFlushAll": unsafe extern "C" fn(u32) -> Status,
        next = c"cuptiActivityGetNextRecord": unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> Status,
        dropped = c"cuptiActivityGetNumDroppedRecords": unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> Status,
        subscribe = c"cuptiSubscribe": unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> Status,
        unsubscribe = c"cuptiUnsubscribe": unsafe extern "C" fn(*mut c_void) -> Status,
        ;
        timestamps = c"cuptiActivityRegisterTimestampCallback": unsafe extern "C" fn(Timestamp) -> Status,
        set_attribute = c"cuptiActivitySetAttribute": unsafe extern "C" fn(u32, *mut usize, *mut c_void) -> Status,
        enable_call = c"cuptiActivityEnableDriverApi": unsafe extern "C" fn(u32, u8) -> Status,
        call_name = c"cuptiGetCallbackName": unsafe extern "C" fn(u32, u32, *mut *const c_char) -> Status,
    }
}

functions! {
    /// `libcuda.so.1`.
    Cuda {
        count = c"cuDeviceGetCount": unsafe extern "C" fn(*mut i32) -> Status,
        device = c"cuDeviceGet": unsafe extern "C" fn(*mut i32, i32) -> Status,
        uuid = c"cuDeviceGetUuid": unsafe extern "C" fn(*mut [u8; 16], i32) -> Status,
        ;
        uuid_v2 = c"cuDeviceGetUuid_v2": unsafe extern "C" fn(*mut [u8; 16], i32) -> Status,
        driver_version = c"cuDriverGetVersion": unsafe extern "C" fn(*mut i32) -> Status,
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the handle came from `dlopen` and is never closed; the name is a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A handle that is never closed.
fn open(name: &CStr, flags: i32) -> Option<*mut c_void> {
    // SAFETY: the name is a C string. Loading runs the library's own initialisers, which is what
    // its user asked for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    (!handle.is_null()).then_some(handle)
}

const LOADED: i32 = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
const LOAD: i32 = libc::RTLD_LAZY | libc::RTLD_LOCAL;
const NAMES: [&CStr; 3] = [c"libcupti.so.13", c"libcupti.so.12", c"libcupti.so"];

/// The driver, if this process has loaded it.
pub fn cuda() -> Option<Cuda> {
    Cuda::of(open(c"libcuda.so.1", LOADED).or_else(|| open(c"libcuda.so", LOADED))?)
}

/// What the program's environment says about CUPTI. Read once, on a thread of the program.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The library to load, `GPUWHY_CUPTI`.
    library: Option<CString>,
    /// Where toolkits are installed.
    toolkits: Vec<OsString>,
    /// How many buffers CUPTI may have on a device, if not its usual 250, `GPUWHY_CUPTI_POOL_LIMIT`: with
    /// few of them the defect of parcagpu #23 shows within a million records, and `make gpu-check` need not
    /// wait for 25 million.
    pub pool_limit: Option<usize>,
}

impl Environment {
    /// As it is now.
    pub fn read() -> Environment {
        let get = |name: &str| std::env::var_os(name);
        let library =
            get("GPUWHY_CUPTI").and_then(|path| CString::new(path.into_encoded_bytes()).ok());
        let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| get(name));
        let limit = get("GPUWHY_CUPTI_POOL_LIMIT");
        Environment {
            library,
            toolkits: homes.chain(["/usr/local/cuda".into()]).collect(),
            pool_limit: limit.and_then(|limit| limit.to_str()?.parse().ok()),
        }
    }
}

/// The CUPTI that this process has loaded.
pub fn loaded() -> Option<Cupti> {
    Cupti::of(NAMES.iter().find_map(|name| open(name, LOADED))?)
}

/// The CUPTI of this process, loaded if necessary.
pub fn cupti(environment: &Environment) -> Option<Cupti> {
    if let Some(cupti) = loaded() {
        return Some(cupti);
    }
    if let Some(path) = &environment.library {
        return Cupti::of(open(path, LOAD)?);
    }
    let major = cuda().and_then(|cuda| {
        let mut version = 0;
        // SAFETY: the pointer is to our stack.
        let failed = unsafe { cuda.driver_version?(&raw mut version) };
        (failed == 0).then_some(version / 1000)
    });
    // A driver runs the toolkits of its own major version and of earlier ones.
    let fits = |name: &&&CStr| match major {
        Some(major) if major < 13 => **name != NAMES[0],
        _ => true,
    };
    let by_name = NAMES.iter().filter(fits).find_map(|name| open(name, LOAD));
    let handle = by_name.or_else(|| {
        let mut paths = environment.toolkits.iter().cloned().filter_map(|mut home| {
            home.push("/extras/CUPTI/lib64/libcupti.so");
            CString::new(home.into_encoded_bytes()).ok()
        });
        paths.find_map(|path| open(&path, LOAD))
    })?;
    Cupti::of(handle)
}
