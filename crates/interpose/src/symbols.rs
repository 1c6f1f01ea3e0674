//! The functions that are hooked, and the three ways in which a program comes to them.
//!
//! A statically linked run time of CUDA opens `libcuda.so.1`, looks up `cuGetProcAddress_v2` by `dlsym`, and asks that
//! for everything else; Triton and most bindings use `dlsym` alone; programs in C++ are linked to the driver. The first
//! two get our function where the driver gave theirs, which is kept; the third finds ours by its name, and theirs is
//! looked up in the driver when it is first called.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::linker::{c_library, look_up, real_dlsym};
use crate::types::{Code, Handle, Of, SUCCESS};
use crate::{driver, guarded, links, load, patched, places, policy, steal};

/// The driver has no such function.
const NOT_FOUND: Code = 500;

/// A function of the driver that is hooked.
#[derive(Debug)]
pub struct Hook {
    /// The name of its symbol.
    pub name: &'static CStr,
    /// The name by which `cuGetProcAddress` is asked for it.
    asked: &'static CStr,
    /// The version of CUDA that brought it.
    since: c_int,
    /// Whether it is the one for default streams of threads.
    per_thread: bool,
    ours: *const c_void,
    /// The driver's; null until it was seen.
    real: AtomicPtr<c_void>,
}

// SAFETY: `ours` is the address of a function.
unsafe impl Sync for Hook {}

impl Hook {
    /// The driver's function; null if it has none.
    fn real(&self) -> *mut c_void {
        let known = self.real.load(Acquire);
        if !known.is_null() {
            return known;
        }
        let found = look_up(self.name);
        if !found.is_null() && found.cast_const() != self.ours {
            self.real.store(found, Release);
            return found;
        }
        null_mut()
    }

    /// Keeps the driver's function that somebody was about to get, and returns what he gets. Where he would get
    /// ours, by our name for it, there must be a driver behind it.
    fn replace(&self, found: *mut c_void) -> *mut c_void {
        if found.is_null() {
            return found;
        }
        if found.cast_const() != self.ours {
            self.real.store(found, Release);
        } else if self.real().is_null() {
            return null_mut();
        }
        self.ours.cast_mut()
    }
}

/// Defines functions of the driver that are hooked, and [`HOOKS`], the table of them. In the body, `$real` calls the
/// driver's function.
macro_rules! hooks {
    ($(
        $asked:literal since $since:literal $(per thread $yes:literal)?:
        fn $name:ident($($arg:ident: $type:ty),*) |$real:ident| $body:expr;
    )*) => {
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[allow(non_snake_case, clippy::too_many_arguments, missing_docs)]
            pub extern "C" fn $name($($arg: $type),*) -> Code {
                let real = HOOKS[Number::$name as usize].real();
                if real.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: CUDA's documentation gives the function of this name this type.
                let real = unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(real)
                };
                let $real = |$($arg: $type),*| {
                    // SAFETY: the program's own arguments, or an image in the place of its own.
                    unsafe { real($($arg),*) }
                };
                $body
            }
        )*

        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Number { $($name,)* }

        /// All of them.
        pub static HOOKS: [Hook; [$(stringify!($name)),*].len()] = [$(Hook {
            name: {
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without zeros"),
                };
                NAME
            },
            asked: $asked,
            since: $since,
            per_thread: false $(|| $yes)?,
            ours: $name as *const c_void,
            real: AtomicPtr::new(null_mut()),
        },)*];
    };
}

hooks! {
    c"cuGetProcAddress" since 11030:
    fn cuGetProcAddress(name: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64) |real| {
        given(name, to, version, flags, real(name, to, version, flags))
    };
    c"cuGetProcAddress" since 12000:
    fn cuGetProcAddress_v2(
        name: *const c_char, to: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int
    ) |real| given(name, to, version, flags, real(name, to, version, flags, status));

    c"cuModuleLoad" since 2000:
    fn cuModuleLoad(to: *mut Handle, path: *const c_char) |real| {
        load::module(to, load::Source::File(path), || real(to, path), None)
    };
    c"cuModuleLoadData" since 2000:
    fn cuModuleLoadData(to: *mut Handle, image: *const c_void) |real| {
        load::module(to, load::Source::Memory(image), || real(to, image), None)
    };
    c"cuModuleLoadDataEx" since 2010:
    fn cuModuleLoadDataEx(
        to: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void
    ) |real| {
        let source = load::Source::Memory(image);
        load::module(to, source, || real(to, image, count, options, values), Some((count, options, values)))
    };
    c"cuModuleLoadFatBinary" since 2000:
    fn cuModuleLoadFatBinary(to: *mut Handle, image: *const c_void) |real| {
        load::module(to, load::Source::Memory(image), || real(to, image), None)
    };
    c"cuModuleGetFunction" since 2000:
    fn cuModuleGetFunction(to: *mut Handle, module: Handle, name: *const c_char) |real| {
        let code = real(to, module, name);
        got(code, Of::Module(module as usize), to, name);
        code
    };
    c"cuModuleUnload" since 2000:
    fn cuModuleUnload(module: Handle) |real| places::unload(module, || real(module));

    c"cuLibraryLoadData" since 12000:
    fn cuLibraryLoadData(
        to: *mut Handle, image: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
        more: *mut c_int, more_values: *mut *mut c_void, more_count: c_uint
    ) |real| {
        load::library(to, load::Source::Memory(image), |other| {
            real(to, other.unwrap_or(image), options, values, count, more, more_values, more_count)
        })
    };
    c"cuLibraryLoadFromFile" since 12000:
    fn cuLibraryLoadFromFile(
        to: *mut Handle, path: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
        more: *mut c_int, more_values: *mut *mut c_void, more_count: c_uint
    ) |real| {
        load::library(to, load::Source::File(path), |other| match other {
            None => real(to, path, options, values, count, more, more_values, more_count),
            Some(text) => crate::driver::load_library(
                to, text, options, values, count, more, more_values, more_count,
            ),
        })
    };
    c"cuLibraryUnload" since 12000:
    fn cuLibraryUnload(library: Handle) |real| places::unload(library, || real(library));
    c"cuLibraryGetKernel" since 12000:
    fn cuLibraryGetKernel(to: *mut Handle, library: Handle, name: *const c_char) |real| {
        places::used(library);
        let code = real(to, library, name);
        got(code, Of::Library(library as usize), to, name);
        got_kernel(code, to);
        code
    };
    c"cuKernelGetFunction" since 12000:
    fn cuKernelGetFunction(to: *mut Handle, kernel: Handle) |real| {
        let code = real(to, kernel);
        also(code, kernel, to);
        code
    };
    c"cuLibraryGetModule" since 12000:
    fn cuLibraryGetModule(to: *mut Handle, library: Handle) |real| {
        places::used(library);
        real(to, library)
    };
    c"cuLibraryEnumerateKernels" since 12040:
    fn cuLibraryEnumerateKernels(to: *mut Handle, count: c_uint, library: Handle) |real| {
        places::used(library);
        real(to, count, library)
    };

    c"cuLinkAddData" since 6050:
    fn cuLinkAddData_v2(
        link: Handle, kind: c_int, data: *mut c_void, bytes: usize, name: *const c_char, count: c_uint,
        options: *mut c_int, values: *mut *mut c_void
    ) |real| {
        let own = || real(link, kind, data, bytes, name, count, options, values);
        links::add(link, kind, load::Source::Memory(data), own, |kind, text, bytes| {
            crate::driver::link_text(link, kind, text, bytes, name, count, options, values)
        })
    };
    c"cuLinkAddFile" since 6050:
    fn cuLinkAddFile_v2(
        link: Handle, kind: c_int, path: *const c_char, count: c_uint, options: *mut c_int, values: *mut *mut c_void
    ) |real| {
        let own = || real(link, kind, path, count, options, values);
        links::add(link, kind, load::Source::File(path), own, |kind, text, bytes| {
            crate::driver::link_text(link, kind, text, bytes, path, count, options, values)
        })
    };
    c"cuLinkComplete" since 5050:
    fn cuLinkComplete(link: Handle, to: *mut *mut c_void, bytes: *mut usize) |real| {
        let code = real(link, to, bytes);
        links::completed(link, code, to);
        code
    };
    c"cuLinkDestroy" since 5050:
    fn cuLinkDestroy(link: Handle) |real| {
        links::ended(link);
        real(link)
    };

    c"cuLaunchKernel" since 4000:
    fn cuLaunchKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    ) |real| {
        let shape = steal::Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        policy::launch(function, stream, false, [shape.grid, shape.block], params);
        places::launch(function, stream, false, || {
            steal::launch(function, &shape, stream, false, true, params, extra, |function, [gx, gy, gz], params, extra| {
                real(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
            })
        })
    };
    c"cuLaunchKernel" since 7000 per thread true:
    fn cuLaunchKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    ) |real| {
        let shape = steal::Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        policy::launch(function, stream, true, [shape.grid, shape.block], params);
        places::launch(function, stream, true, || {
            steal::launch(function, &shape, stream, true, true, params, extra, |function, [gx, gy, gz], params, extra| {
                real(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
            })
        })
    };
    c"cuLaunchKernelEx" since 11060:
    fn cuLaunchKernelEx(how: *const c_void, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void) |real| {
        policy::launch_config(how, function, false, params);
        places::launch(function, stream_of(how), false, || {
            steal::launch_config(how, function, false, params, extra, real)
        })
    };
    c"cuLaunchKernelEx" since 11060 per thread true:
    fn cuLaunchKernelEx_ptsz(
        how: *const c_void, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void
    ) |real| {
        policy::launch_config(how, function, true, params);
        places::launch(function, stream_of(how), true, || {
            steal::launch_config(how, function, true, params, extra, real)
        })
    };
    c"cuLaunchCooperativeKernel" since 9000:
    fn cuLaunchCooperativeKernel(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, params: *mut *mut c_void
    ) |real| {
        policy::launch(function, stream, false, [[gx, gy, gz], [bx, by, bz]], params);
        places::launch(function, stream, false, || {
            real(function, gx, gy, gz, bx, by, bz, shared, stream, params)
        })
    };
    c"cuLaunchCooperativeKernel" since 9000 per thread true:
    fn cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, params: *mut *mut c_void
    ) |real| {
        policy::launch(function, stream, true, [[gx, gy, gz], [bx, by, bz]], params);
        places::launch(function, stream, true, || {
            real(function, gx, gy, gz, bx, by, bz, shared, stream, params)
        })
    };
    c"cuGraphLaunch" since 10000:
    fn cuGraphLaunch(graph: Handle, stream: Handle) |real| {
        places::before_launch();
        real(graph, stream)
    };
    c"cuGraphLaunch" since 10000 per thread true:
    fn cuGraphLaunch_ptsz(graph: Handle, stream: Handle) |real| {
        places::before_launch();
        real(graph, stream)
    };

    c"cuStreamCreate" since 2000:
    fn cuStreamCreate(to: *mut Handle, flags: c_uint) |real| {
        policy::stream(to, |priority| match priority {
            None => real(to, flags),
            Some(priority) => driver::stream_with_priority(to, flags, priority),
        })
    };
    c"cuStreamCreateWithPriority" since 5050:
    fn cuStreamCreateWithPriority(to: *mut Handle, flags: c_uint, priority: c_int) |real| {
        policy::stream(to, |other| real(to, flags, other.unwrap_or(priority)))
    };
    c"cuStreamDestroy" since 4000:
    fn cuStreamDestroy_v2(stream: Handle) |real| {
        steal::stream_ends(stream);
        policy::stream_ends(stream);
        real(stream)
    };
    c"cuStreamDestroy" since 2000:
    fn cuStreamDestroy(stream: Handle) |real| {
        steal::stream_ends(stream);
        policy::stream_ends(stream);
        real(stream)
    };

    c"cuMemAlloc" since 3020:
    fn cuMemAlloc_v2(to: *mut u64, bytes: usize) |real| {
        let code = real(to, bytes);
        policy::allocated(code, to, bytes, false);
        code
    };
    c"cuMemAllocManaged" since 6000:
    fn cuMemAllocManaged(to: *mut u64, bytes: usize, flags: c_uint) |real| {
        let code = real(to, bytes, flags);
        policy::allocated(code, to, bytes, true);
        code
    };
    c"cuMemFree" since 3020:
    fn cuMemFree_v2(at: u64) |real| policy::free(at, || real(at));

    c"cuCtxDestroy" since 4000:
    fn cuCtxDestroy_v2(context: Handle) |real| places::destroy(context, || real(context));
    c"cuDevicePrimaryCtxRelease" since 11000:
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |real| places::release(device, || real(device));
    c"cuDevicePrimaryCtxReset" since 11000:
    fn cuDevicePrimaryCtxReset_v2(device: c_int) |real| places::release(device, || real(device));
}

/// The program got a kernel of a library.
fn got_kernel(code: Code, to: *mut Handle) {
    if patched::is_active() && code == SUCCESS && !to.is_null() {
        // SAFETY: the driver has just written the kernel there.
        guarded((), || patched::got_kernel(unsafe { to.read() }));
    }
}

/// The stream of a `CUlaunchConfig`: behind seven numbers of 32 bits, and four bytes of padding.
fn stream_of(how: *const c_void) -> Handle {
    if how.is_null() {
        return null_mut();
    }
    // SAFETY: the driver is about to read it there as well; no alignment is assumed.
    unsafe { how.byte_add(32).cast::<Handle>().read_unaligned() }
}

/// The driver has given a function of a module or library by its name.
fn got(code: Code, of: Of, to: *mut Handle, name: *const c_char) {
    if code == SUCCESS && !to.is_null() && !name.is_null() {
        // SAFETY: the driver took it as a C string, and has written the function to `to`.
        let (name, handle) = unsafe { (CStr::from_ptr(name), to.read()) };
        places::got(of, name.to_bytes(), handle as u64);
        policy::named(of, name.to_bytes(), handle as u64);
    }
}

/// The driver has given the function of a kernel.
fn also(code: Code, kernel: Handle, to: *mut Handle) {
    if code == SUCCESS && !to.is_null() {
        // SAFETY: the driver has just written the function there.
        let function = unsafe { to.read() } as u64;
        places::also(kernel, function);
        policy::also(kernel, function);
    }
}

/// What `cuGetProcAddress` has given, with ours in its place.
fn given(
    name: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
    code: Code,
) -> Code {
    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
    const PER_THREAD: u64 = 2;
    if code != SUCCESS || name.is_null() || to.is_null() {
        return code;
    }
    // SAFETY: the driver took it as a C string just now.
    let name = unsafe { CStr::from_ptr(name) };
    let known = HOOKS.iter().filter(|hook| hook.asked == name && hook.since <= version);
    let newest = |per_thread| {
        let kind = known.clone().filter(move |hook| hook.per_thread == per_thread);
        kind.max_by_key(|hook| hook.since)
    };
    // Functions without a stream have no second kind.
    let hook = (flags & PER_THREAD != 0).then(|| newest(true)).flatten().or_else(|| newest(false));
    if let Some(hook) = hook {
        // SAFETY: the driver wrote to it just now.
        unsafe { to.write(hook.replace(to.read())) };
    }
    code
}

fn hook_named(name: &CStr) -> Option<&'static Hook> {
    HOOKS.iter().find(|hook| hook.name == name)
}

/// Which function is to answer a call of `dlsym`: the C library's, or [`substituted`].
unsafe extern "C" fn target(handle: Handle, name: *const c_char) -> *const c_void {
    if handle == libc::RTLD_NEXT || name.is_null() {
        return c_library();
    }
    // SAFETY: whoever calls `dlsym` gives a C string.
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        [b'c', b'u', ..] if hook_named(name).is_some() => substituted as *const c_void,
        _ => c_library(),
    }
}

/// `dlsym` of a function that is hooked.
unsafe extern "C" fn substituted(handle: Handle, name: *const c_char) -> *mut c_void {
    // SAFETY: `target` has read it.
    let name = unsafe { CStr::from_ptr(name) };
    let found = real_dlsym(handle, name);
    hook_named(name).map_or(found, |hook| hook.replace(found))
}

/// The program's `dlsym`. What is not hooked is answered by the C library's own, which is jumped to: it looks at the
/// address that it returns to, to know who asks.
///
/// # Safety
/// As the C library's.
#[cfg(all(target_arch = "x86_64", not(test)))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: Handle, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {target}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        target = sym target,
    )
}

/// As the other one. It was compiled for this processor and never run on one.
///
/// # Safety
/// As the C library's.
#[cfg(all(target_arch = "aarch64", not(test)))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: Handle, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "str x30, [sp, #16]",
        "bl {target}",
        "mov x16, x0",
        "ldr x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "br x16",
        target = sym target,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_is_asked_for_by_its_beginning() {
        for (number, hook) in HOOKS.iter().enumerate() {
            assert!(HOOKS[..number].iter().all(|other| other.name != hook.name), "{:?}", hook.name);
            assert!(hook.name.to_bytes().starts_with(hook.asked.to_bytes()), "{:?}", hook.name);
            assert_eq!(
                hook.per_thread,
                hook.name.to_bytes().ends_with(b"_ptsz"),
                "{:?}",
                hook.name
            );
        }
    }

    #[test]
    fn what_is_not_hooked_is_the_c_librarys_to_answer() {
        // SAFETY: C strings.
        let answers = |handle, name: &CStr| unsafe { target(handle, name.as_ptr()) };
        let theirs = c_library().cast_const();
        assert_eq!(answers(null_mut(), c"cuLaunchKernel"), substituted as *const c_void);
        assert_eq!(answers(libc::RTLD_NEXT, c"cuLaunchKernel"), theirs);
        for name in [c"cuMemAllocHost_v2", c"cuLaunchKernel_", c"malloc", c"cu", c""] {
            assert_eq!(answers(null_mut(), name), theirs, "{name:?}");
        }
        let malloc = real_dlsym(null_mut(), c"malloc");
        assert!(!malloc.is_null() && real_dlsym(null_mut(), c"cuInit").is_null());
    }

    #[test]
    fn without_a_driver_there_is_no_such_function() {
        assert_eq!(cuModuleUnload(null_mut()), NOT_FOUND);
        let hook = hook_named(c"cuModuleUnload").unwrap();
        // Somebody asks by our name for it, and there is no driver behind it.
        assert!(hook.replace(hook.ours.cast_mut()).is_null());
    }
}
