//! NVIDIA's Sanitizer, which calls our functions from machine code: kernels of which there is no PTX.
//!
//! *How it begins.* The driver loads this object a second time by `CUDA_INJECTION64_PATH`, which is the same object, and calls
//! [`InitializeInjection`] in `cuInit`. There Sanitizer's library is opened and asked to tell of modules that are loaded and
//! unloaded, and of launches (`sanitizer_callbacks.h`, CUDA 13.0). It has one subscriber, and CUPTI's and Sanitizer's exclude
//! each other.
//!
//! *Modules.* Of each module that the driver has loaded, however the program came to it, the machine code goes to the
//! controller, which answers with functions and where they are called. They are loaded once in a context; then the module is
//! patched. Modules that have our table already, since probes were put into their PTX, are none for it; the controller knows.
//!
//! *Launches.* A launch is given the address of its kernel's words, or 0, with which the functions do nothing. Maps get their memory as
//! others do, before a launch (`places`), and not in a callback of Sanitizer. What both share lies in `patched`.
//!
//! *Invariant.* A callback takes no lock that is held while the driver is called, but for the one by which one thread at a time
//! patches, so that it cannot wait for its own thread.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use gpuwhy_wire::images::{Ask, Outcome, Plan, SANITIZER_ENV, name_hash};

use crate::ask::{connect, say};
use crate::linker::real_dlsym;
use crate::lock::Lock;
use crate::ours::{is_ours, ours};
use crate::types::{Code, Handle, SUCCESS};
use crate::{ask, drain, driver, guarded, image, patched};

/// `Sanitizer_CallbackDomain`, with the callbacks of each that are asked for.
const RESOURCE: u32 = 3;
const MODULE_LOADED: u32 = 9;
const MODULE_UNLOADING: u32 = 10;
const LAUNCH: u32 = 5;
const LAUNCH_BEGINS: u32 = 1;
const GRAPHS: u32 = 10;
const NODE_BEGINS: u32 = 4;
const ASKED: [(u32, u32); 4] = [
    (RESOURCE, MODULE_LOADED),
    (RESOURCE, MODULE_UNLOADING),
    (LAUNCH, LAUNCH_BEGINS),
    (GRAPHS, NODE_BEGINS),
];
/// The library cannot be opened, or lacks a function: no `SanitizerResult`.
const NO_LIBRARY: Code = 1000;

/// `Sanitizer_ResourceModuleData`, as far as all versions since CUDA 11.2 have it.
#[repr(C)]
struct ModuleData {
    context: Handle,
    module: Handle,
    bytes: usize,
    cubin: *const c_void,
}

/// The beginning of `Sanitizer_LaunchData`.
#[repr(C)]
struct LaunchData {
    context: Handle,
    stream: Handle,
    stream_handle: Handle,
    module: Handle,
    function: Handle,
    name: *const c_char,
    /// Grid, block and cluster.
    shape: [u32; 9],
    grid: u64,
    launch: Handle,
}

/// The beginning of `Sanitizer_GraphNodeLaunchData`.
#[repr(C)]
struct NodeData {
    graph: Handle,
    number: u32,
    node: Handle,
    /// `CUgraphNodeType`: 0 is a kernel.
    kind: c_int,
    launch: LaunchData,
}

type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);

/// Declares the functions of Sanitizer's library.
macro_rules! library {
    ($(fn $field:ident = $name:literal ($($type:ty),*);)*) => {
        struct Library { $($field: unsafe extern "C" fn($($type),*) -> Code,)* }

        impl Library {
            /// All of them, of a library that is open.
            fn of(object: Handle) -> Option<Library> {
                Some(Library { $($field: {
                    let found = real_dlsym(object, $name);
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: `sanitizer_patching.h` and `sanitizer_callbacks.h` give the function of this name this type.
                    unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> Code>(found) }
                },)* })
            }
        }
    };
}

library! {
    fn subscribe = c"sanitizerSubscribe" (*mut Handle, Callback, *mut c_void);
    fn enable = c"sanitizerEnableCallback" (u32, Handle, u32, u32);
    fn add_patches = c"sanitizerAddPatches" (*const c_void, Handle);
    fn patch_instructions = c"sanitizerPatchInstructions" (u32, Handle, *const c_char);
    fn patch_module = c"sanitizerPatchModule" (Handle);
    fn give = c"sanitizerSetLaunchCallbackData" (Handle, Handle, Handle, *const c_void);
}

static LIBRARY: OnceLock<Library> = OnceLock::new();
/// One thread at a time patches, as the library asks for; nothing else waits for it.
static SERIAL: Lock<()> = Lock::new(());

/// The driver is being initialised (`CUDA_INJECTION64_PATH`). What it returns is not looked at.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case, missing_docs)]
pub extern "C" fn InitializeInjection() -> c_int {
    guarded((), || {
        let Some(path) = std::env::var_os(SANITIZER_ENV).filter(|path| !path.is_empty()) else {
            return;
        };
        let Some((asker, wait)) = connect() else { return };
        let code = begin(path.as_bytes());
        // Before the first image: it is treated otherwise.
        if asker.say(Ask::Sanitizer { code }, None).is_ok() {
            let _ = asker.answer(wait);
        }
    });
    1
}

/// Opens the library and subscribes; a `SanitizerResult`, or [`NO_LIBRARY`].
fn begin(path: &[u8]) -> Code {
    let Ok(path) = CString::new(path) else { return NO_LIBRARY };
    // SAFETY: a C string; the user has named this library.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if object.is_null() {
        return NO_LIBRARY;
    }
    let Some(library) = Library::of(object) else { return NO_LIBRARY };
    let library = LIBRARY.get_or_init(|| library);
    let mut subscriber = null_mut();
    // SAFETY: the callback is a function of this object, which is never unloaded.
    let code = unsafe { (library.subscribe)(&raw mut subscriber, told, null_mut()) };
    if code != SUCCESS {
        return code;
    }
    for (domain, callback) in ASKED {
        // SAFETY: the subscriber that was just given.
        let code = unsafe { (library.enable)(1, subscriber, domain, callback) };
        // Without launches of graphs the others are told.
        if code != SUCCESS && domain != GRAPHS {
            return code;
        }
    }
    // SAFETY: a function of this object, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    patched::begin();
    SUCCESS
}

/// What Sanitizer calls.
extern "C" fn told(_: *mut c_void, domain: u32, callback: u32, data: *const c_void) {
    if data.is_null() || !patched::is_active() {
        return;
    }
    guarded((), || match (domain, callback) {
        (RESOURCE, MODULE_LOADED) if !is_ours() => {
            // SAFETY: the documentation gives this callback this data, which lives while it runs.
            let data = unsafe { &*data.cast::<ModuleData>() };
            ours(|| loaded(data));
        }
        (RESOURCE, MODULE_UNLOADING) => {
            // SAFETY: as above.
            patched::unloading(unsafe { (*data.cast::<ModuleData>()).module } as usize);
        }
        // SAFETY: as above.
        (LAUNCH, LAUNCH_BEGINS) => begins(unsafe { &*data.cast::<LaunchData>() }),
        (GRAPHS, NODE_BEGINS) => {
            // SAFETY: as above; what the launch is lies there for kernels alone.
            let node = unsafe { &*data.cast::<NodeData>() };
            if node.kind == 0 {
                begins(&node.launch);
            }
        }
        _ => {}
    });
}

/// A module was loaded: what the controller makes of its machine code is put into it.
fn loaded(data: &ModuleData) {
    let Some(plan) = plan(data) else { return };
    drain::start();
    let image = plan.image;
    let outcome = match patch(data, &plan) {
        Ok(()) => {
            patched::take(data.context as usize, data.module as usize, plan);
            Outcome::Taken
        }
        Err(code) => Outcome::Refused(code),
    };
    say(image, outcome);
}

fn plan(data: &ModuleData) -> Option<Plan> {
    let (asker, wait) = connect()?;
    let (_, sms) = driver::devices()?;
    let file = image::of_size(data.cubin, data.bytes as u64)?;
    ask::plan(&asker, wait, Ask::Code { sms }, &file).filter(|plan| plan.patch.is_some())
}

/// Loads the functions into the module's context, and puts calls of them into the module.
fn patch(data: &ModuleData, plan: &Plan) -> Result<(), Code> {
    let (Some(library), Some(patch)) = (LIBRARY.get(), &plan.patch) else { return Err(NO_LIBRARY) };
    let done = |code| if code == SUCCESS { Ok(()) } else { Err(code) };
    let (context, text) = (data.context as usize, name_hash(&plan.text));
    SERIAL.with(|()| {
        if !patched::has_functions(context, text) {
            // SAFETY: an image, which ends with a zero if it is text; the driver has given the context.
            done(unsafe { (library.add_patches)(plan.text.as_ptr().cast(), data.context) })?;
            patched::got_functions(context, text);
        }
        for (spot, function) in patch.places() {
            // SAFETY: the module that was just loaded, and a C string.
            done(unsafe { (library.patch_instructions)(spot, data.module, function.as_ptr()) })?;
        }
        // SAFETY: the module that was just loaded.
        done(unsafe { (library.patch_module)(data.module) })
    })
}

/// A launch begins: it is given its kernel's words.
fn begins(data: &LaunchData) {
    let Some(library) = LIBRARY.get() else { return };
    if data.name.is_null() {
        return;
    }
    // SAFETY: a C string, says the documentation.
    let name = unsafe { CStr::from_ptr(data.name) };
    if let Some(given) = patched::given(data.module as usize, name_hash(name.to_bytes())) {
        let given = given as *const c_void;
        // SAFETY: handles of this launch; the address is one of the device's, or none.
        unsafe { (library.give)(data.launch, data.function, data.stream_handle, given) };
    }
}

unsafe extern "C" fn in_the_child() {
    // Its other thread may have been patching.
    SERIAL.forget_after_fork(());
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// The types of `cuda.h` that Sanitizer's headers speak of: pointers and numbers.
    const CUDA_H: &str = "#pragma once\n#include <stddef.h>\n#include <stdint.h>\n\
        typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUlibrary, *CUgraph, *CUgraphExec, *CUgraphNode, \
        *CUevent, *CUmemoryPool, *CUarray, *CUexternalMemory, *CUkernel;\n\
        typedef int CUdevice, CUgraphNodeType, CUmemAllocationType, CUresult;\n\
        typedef unsigned long long CUdeviceptr;\ntypedef struct { char bytes[16]; } CUuuid;\n\
        typedef struct { int is; } CUstreamBatchMemOpParams;\n";

    /// A part of NVIDIA's package, where this machine has it.
    fn nvidias(part: &str) -> Option<PathBuf> {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let found = cache.or_else(home).unwrap_or_default().join("gpuwhy/sanitizer").join(part);
        let is_there = found.exists();
        if !is_there {
            println!("skipped: no Sanitizer of NVIDIA's; scripts/sanitizer.sh brings it");
        }
        is_there.then_some(found)
    }

    /// Offsets as NVIDIA's own headers have them, with the numbers of the callbacks.
    #[test]
    fn data_of_callbacks_lies_where_nvidias_headers_say() {
        let Some(include) = nvidias("include") else { return };
        let of = |data: &str, fields: &[&str]| -> String {
            let print = |field: &&str| format!("printf(\"%zu \", offsetof({data}, {field}));\n");
            fields.iter().map(print).collect()
        };
        let program = [
            "#include <sanitizer_callbacks.h>\n#include <stdio.h>\nint main(void) {\n".into(),
            of("Sanitizer_ResourceModuleData", &["context", "module", "cubinSize", "pCubin"]),
            of("Sanitizer_LaunchData", &["hStream", "module", "function", "functionName", "hLaunch"]),
            of("Sanitizer_GraphNodeLaunchData", &["nodeType", "launchData"]),
            "printf(\"%d %d %d %d %d %d %d\", SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, \
             SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING, SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, \
             SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN);\nreturn 0; }\n"
                .into(),
        ];
        let folder = std::env::temp_dir().join(format!("gpuwhy-sanitizer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cuda.h"), CUDA_H).unwrap();
        std::fs::write(folder.join("layout.c"), program.concat()).unwrap();
        let mut cc = Command::new("cc");
        cc.current_dir(&folder).args(["-I.", "-o", "layout", "layout.c", "-I"]).arg(include);
        let compiled = cc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let printed = Command::new(folder.join("layout")).output().unwrap().stdout;
        std::fs::remove_dir_all(&folder).unwrap();
        let ours = [
            offset_of!(ModuleData, context),
            offset_of!(ModuleData, module),
            offset_of!(ModuleData, bytes),
            offset_of!(ModuleData, cubin),
            offset_of!(LaunchData, stream_handle),
            offset_of!(LaunchData, module),
            offset_of!(LaunchData, function),
            offset_of!(LaunchData, name),
            offset_of!(LaunchData, launch),
            offset_of!(NodeData, kind),
            offset_of!(NodeData, launch),
        ];
        let numbers =
            [RESOURCE, MODULE_LOADED, MODULE_UNLOADING, LAUNCH, LAUNCH_BEGINS, GRAPHS, NODE_BEGINS];
        let ours = ours.into_iter().chain(numbers.map(|number| number as usize));
        let ours: Vec<String> = ours.map(|number| number.to_string()).collect();
        assert_eq!(String::from_utf8_lossy(&printed), ours.join(" "));
    }

    /// NVIDIA's own library, without a driver: it has the functions, and takes a subscriber.
    #[test]
    fn nvidias_library_takes_the_subscription() {
        let Some(library) = nvidias("lib/libsanitizer-public.so") else { return };
        assert_eq!(begin(b"/nowhere/libsanitizer-public.so"), NO_LIBRARY);
        assert_eq!(begin(library.as_os_str().as_bytes()), SUCCESS);
        // One subscriber at a time: SANITIZER_ERROR_MAX_LIMIT_REACHED.
        assert_eq!(begin(library.as_os_str().as_bytes()), 10);
    }
}
