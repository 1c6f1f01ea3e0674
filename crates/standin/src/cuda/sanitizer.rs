//! `libsanitizer-public`, as far as a program needs it that puts calls into machine code: it tells of modules and launches, and
//! patches modules. Only where kernels are executed.
//!
//! Machine code cannot be executed here. Of an image that has nothing else, what runs are the kernels of the same names in
//! the PTX that `GPUWHY_STANDIN_SOURCE` names, while callbacks are shown the machine code; and patches have to be PTX. The
//! calls are put into that text (`gpuwhy_gpubpf::splice::called`).
//!
//! One subscriber at a time, and none beside one of CUPTI.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{CString, c_void};
use std::sync::LazyLock;

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::splice::{Spot, called};

use super::code::Function;
use super::driver::{Driver, Handle, Node, driver};
use super::execute::{executes, memory, text_of};
use crate::c::{Out, Text};
use crate::cupti;
use crate::lock::Mutex;

codes! {
    /// `SanitizerResult`, the codes that are returned here.
    null: InvalidParameter,
    InvalidParameter = 1,
    InvalidContext = 3,
    InvalidOperation = 6,
    MaxLimitReached = 10,
    NotCompatible = 12,
}

impl From<super::Code> for Code {
    fn from(_: super::Code) -> Code {
        Code::InvalidContext
    }
}

/// `Sanitizer_CallbackDomain`, and callbacks of each.
const RESOURCE: (u32, u32, u32) = (3, 9, 10);
const LAUNCH: (u32, u32) = (5, 1);
const GRAPHS: (u32, u32) = (10, 4);

type Callback = extern "C" fn(*mut c_void, u32, u32, *const c_void);

#[derive(Default)]
struct State {
    subscriber: Option<(Callback, usize)>,
    enabled: BTreeSet<(u32, u32)>,
    /// The functions of each context.
    patches: HashMap<Handle, String>,
    /// Where they are to be called, module by module.
    wanted: HashMap<Handle, BTreeSet<Spot>>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

thread_local! {
    /// What the launch that begins is given.
    static GIVEN: Cell<u64> = const { Cell::new(0) };
}

/// `Sanitizer_ResourceModuleData`
#[repr(C)]
struct ModuleData {
    context: Handle,
    module: Handle,
    bytes: usize,
    cubin: *const u8,
    library: Handle,
}

/// `Sanitizer_LaunchData`
#[repr(C)]
struct LaunchData {
    context: Handle,
    stream: Handle,
    stream_handle: Handle,
    module: Handle,
    function: Handle,
    name: *const std::ffi::c_char,
    shape: [u32; 9],
    grid: u64,
    launch: Handle,
    device: i32,
    graph: [Handle; 3],
}

/// `Sanitizer_GraphNodeLaunchData`
#[repr(C)]
struct NodeData {
    graph: Handle,
    number: u32,
    node: Handle,
    kind: i32,
    launch: LaunchData,
    upload: u32,
}

/// Calls the subscriber, if there is one that asked for this.
fn call<T>(domain: u32, id: u32, data: &T) {
    let subscriber = {
        let state = STATE.lock();
        state.subscriber.filter(|_| state.enabled.contains(&(domain, id)))
    };
    if let Some((callback, user)) = subscriber {
        callback(user as *mut c_void, domain, id, std::ptr::from_ref(data).cast());
    }
}

fn is_subscribed() -> bool {
    STATE.lock().subscriber.is_some()
}

/// Tells of the modules that were loaded since. With no lock held.
pub(super) fn tell_loaded() {
    loop {
        let Ok(mut driver) = driver() else { return };
        let Some(module) = driver.code.fresh.pop() else { return };
        let Some(loaded) = driver.code.images.get(&module) else { continue };
        let (context, library, code) = (loaded.context, loaded.library, loaded.code.clone());
        drop(driver);
        let (bytes, cubin) = (code.len(), code.as_ptr());
        let data = ModuleData { context, module, bytes, cubin, library };
        call(RESOURCE.0, RESOURCE.1, &data);
    }
}

/// Tells that modules are about to be unloaded. With no lock held.
pub(super) fn tell_unloading(modules: &[Handle]) {
    for module in modules {
        STATE.lock().wanted.remove(module);
        let data = ModuleData {
            context: 0,
            module: *module,
            bytes: 0,
            cubin: std::ptr::null(),
            library: 0,
        };
        call(RESOURCE.0, RESOURCE.2, &data);
    }
}

/// What is known of a launch before it begins.
struct Begins {
    context: Handle,
    module: Handle,
    name: CString,
}

fn known(driver: &mut Driver, function: Function) -> Option<Begins> {
    let module = driver.module_with(function.of).ok()?;
    let (context, _) = driver.current().ok()?;
    Some(Begins { context, module, name: CString::new(function.name).ok()? })
}

impl Begins {
    fn data(&self, function: Handle, stream: Handle, [grid, block]: [[u32; 3]; 2]) -> LaunchData {
        let mut shape = [1; 9];
        shape[..3].copy_from_slice(&grid);
        shape[3..6].copy_from_slice(&block);
        LaunchData {
            context: self.context,
            stream,
            stream_handle: stream,
            module: self.module,
            function,
            name: self.name.as_ptr(),
            shape,
            grid: 0,
            launch: function,
            device: 0,
            graph: [0; 3],
        }
    }
}

/// A launch begins: what it is given. With no lock held.
pub(super) fn begins(function: Handle, stream: Handle, shape: [[u32; 3]; 2]) -> u64 {
    if !executes() || !is_subscribed() {
        return 0;
    }
    let known = driver().ok().and_then(|mut driver| {
        let captured = driver.is_capturing(stream).unwrap_or(false);
        let of = driver.code.functions.get(&function).filter(|_| !captured).cloned()?;
        known(&mut driver, of)
    });
    let Some(known) = known else { return 0 };
    tell_loaded();
    GIVEN.set(0);
    call(LAUNCH.0, LAUNCH.1, &known.data(function, stream, shape));
    GIVEN.take()
}

/// The launches of a graph begin: each is given something. With no lock held.
pub(super) fn graph_begins(graph: Handle, stream: Handle) {
    if !executes() || !is_subscribed() {
        return;
    }
    let runs = {
        let Ok(mut driver) = driver() else { return };
        let nodes = driver.executables.get(&graph).map(|graph| graph.nodes.clone());
        let mut runs = Vec::new();
        for node in nodes.unwrap_or_default() {
            let Node::Kernel { run: Some(run), .. } = node else { continue };
            let Some(captured) = driver.code.captured.get(run).cloned() else { continue };
            let shape = [captured.grid, captured.block];
            let begins = known(&mut driver, captured.function);
            runs.extend(begins.map(|begins| (run, begins, shape)));
        }
        runs
    };
    tell_loaded();
    for (run, begins, shape) in runs {
        GIVEN.set(0);
        let launch = begins.data(0, stream, shape);
        let data = NodeData { graph, number: 0, node: run + 1, kind: 0, launch, upload: 0 };
        call(GRAPHS.0, GRAPHS.1, &data);
        if let Ok(mut driver) = driver()
            && let Some(captured) = driver.code.captured.get_mut(run)
        {
            captured.given = GIVEN.take();
        }
    }
}

/// Puts the calls that are wanted into a module; without any it becomes what it was.
fn patch(module: Handle, spots: &BTreeSet<Spot>) -> Status {
    let mut driver = driver()?;
    let loaded = driver.code.images.get(&module).ok_or(Code::InvalidParameter)?;
    let functions = STATE.lock().patches.get(&loaded.context).cloned();
    let text = match functions.filter(|_| !spots.is_empty()) {
        None => loaded.text.clone(),
        Some(functions) => {
            let module = Module::read(&loaded.text).map_err(|_| Code::InvalidOperation)?;
            let functions = Module::read(&functions).map_err(|_| Code::InvalidOperation)?;
            called(&module, &functions, spots).map_err(|_| Code::InvalidOperation)?
        }
    };
    Ok(driver.replace(module, &text)?)
}

exported! {
    fn sanitizerSubscribe(to: Out<Handle>, callback: Out<u8>, user: usize) {
        if callback.is_null() {
            return Err(Code::InvalidParameter);
        }
        if cupti::has_subscriber() {
            return Err(Code::NotCompatible);
        }
        let mut state = STATE.lock();
        if state.subscriber.is_some() {
            return Err(Code::MaxLimitReached);
        }
        // SAFETY: not null, so by the documentation it is a function of this type.
        let callback = unsafe { std::mem::transmute::<usize, Callback>(callback.address()) };
        state.subscriber = Some((callback, user));
        Ok(to.put(1)?)
    }

    fn sanitizerUnsubscribe(_subscriber: Handle) {
        STATE.lock().subscriber.take().map(drop).ok_or(Code::InvalidParameter)
    }

    fn sanitizerEnableCallback(enable: u32, _subscriber: Handle, domain: u32, id: u32) {
        let mut state = STATE.lock();
        if enable == 0 {
            state.enabled.remove(&(domain, id));
        } else {
            state.enabled.insert((domain, id));
        }
        Ok(())
    }

    fn sanitizerAddPatches(image: Out<u8>, context: Handle) {
        let text = text_of(memory(image)?)?;
        let functions = Module::read(&text).map_err(|_| Code::InvalidParameter)?;
        if functions.functions().is_empty() || STATE.lock().patches.contains_key(&context) {
            return Err(Code::InvalidParameter);
        }
        STATE.lock().patches.insert(context, text);
        Ok(())
    }

    fn sanitizerPatchInstructions(instruction: u32, module: Handle, function: Text) {
        let spot = Spot::ALL.into_iter().find(|spot| spot.instruction() == instruction);
        let spot = spot.ok_or(Code::InvalidParameter)?;
        let context = driver()?.code.images.get(&module).ok_or(Code::InvalidParameter)?.context;
        let mut state = STATE.lock();
        let functions = state.patches.get(&context).ok_or(Code::InvalidParameter)?;
        // One name for each kind is all that is put in here.
        if function.get()? != spot.function() || !functions.contains(spot.function()) {
            return Err(Code::InvalidParameter);
        }
        state.wanted.entry(module).or_default().insert(spot);
        Ok(())
    }

    fn sanitizerPatchModule(module: Handle) {
        let spots = STATE.lock().wanted.get(&module).cloned().unwrap_or_default();
        patch(module, &spots)
    }

    fn sanitizerUnpatchModule(module: Handle) { patch(module, &BTreeSet::new()) }

    fn sanitizerSetLaunchCallbackData(
        _launch: Handle, _function: Handle, _stream: Handle, given: usize,
    ) {
        GIVEN.set(given as u64);
        Ok(())
    }
}
