//! NCCL without a GPU: the real library's own loader and adapters, driven by the addresses of
//! functions that it does not export.
//!
//! `getNcclProfiler_vN(handle)` looks the plug-in's table up and gives the library's own table,
//! which is always of its newest version; what is called through that goes through the adapter,
//! if the plug-in is of an older one. So what a plug-in is given here is what NCCL would give it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use gpuwhy_inject::nccl::abi::*;
use object::{Object, ObjectSymbol};

/// A handle of the plug-in.
pub type Handle = *mut c_void;

/// The GPU's clock is so far ahead of CLOCK_MONOTONIC here.
pub const AHEAD: u64 = 1_700_000_000_000_000_000;

/// Where libraries are looked for: `$GPUWHY_NCCL_LIBS`, or what `scripts/nccl.sh` fills.
pub fn libraries() -> PathBuf {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    home("GPUWHY_NCCL_LIBS").unwrap_or_else(|| {
        home("XDG_CACHE_HOME")
            .or_else(|| Some(home("HOME")?.join(".cache")))
            .unwrap_or_default()
            .join("gpuwhy/nccl")
    })
}

/// The plug-in that was built with this program: beside it, or one or two folders up.
pub fn plugin() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let name = "libgpuwhy_inject.so";
    let places = program.ancestors().skip(1).take(3);
    places.flat_map(|dir| [dir.join("deps").join(name), dir.join(name)]).find(|p| p.is_file())
}

/// The real library.
pub struct Library {
    /// Addresses of `getNcclProfiler_v1` on.
    loaders: Vec<Option<usize>>,
    mask: Option<usize>,
    version: c_int,
}

/// A plug-in as the library sees it.
pub struct Nccl {
    table: *const Table<InitV5>,
    /// The version that the library speaks, and of all descriptors.
    pub speaks: Version,
    /// The version that it took of the plug-in's.
    pub took: u8,
    /// As `ncclGetVersion` says: 23203.
    pub version: c_int,
    mask: *mut c_int,
}

impl Library {
    /// Opens the library at `path` and finds what it does not export.
    pub fn open(path: &Path) -> Result<Library, String> {
        let handle = dlopen(path)?;
        // SAFETY: an open library and a C string.
        let exported = unsafe { libc::dlsym(handle, c"ncclGetVersion".as_ptr()) };
        let symbols = symbols(path)?;
        let find = |name: &str| symbols.iter().find(|(n, _)| n == name).map(|(_, at)| *at);
        let base = exported as usize - find("ncclGetVersion").ok_or("no ncclGetVersion")?;
        let loaders = (1..=9)
            .map(|n| find(&format!("_Z18getNcclProfiler_v{n}Pv")).map(|at| base + at))
            .collect();
        let mask = find("ncclProfilerEventMask").map(|at| base + at);
        let mut version = 0;
        // SAFETY: `ncclResult_t ncclGetVersion(int*)`.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(exported);
            get(&mut version);
        }
        Ok(Library { loaders, mask, version })
    }

    /// Loads a plug-in as NCCL does: the newest version that both have.
    pub fn load(&self, plugin: &Path) -> Result<Nccl, String> {
        let handle = dlopen(plugin)?;
        let newest = self.loaders.iter().rposition(Option::is_some).ok_or("no loaders")? + 1;
        let speaks = match newest {
            4 => Version::V4,
            5 => Version::V5,
            6 => Version::V6,
            7 => Version::V7,
            n => return Err(format!("this NCCL speaks version {n}")),
        };
        for (index, loader) in self.loaders.iter().enumerate().rev() {
            let Some(address) = *loader else { continue };
            // SAFETY: `ncclProfiler_t* getNcclProfiler_vN(void*)` is at that address.
            let table = unsafe {
                let get: unsafe extern "C" fn(*mut c_void) -> *const Table<InitV5> =
                    std::mem::transmute(address);
                get(handle)
            };
            if !table.is_null() {
                let own = Box::leak(Box::new(0));
                let mask = self.mask.map_or(std::ptr::from_mut(own), |at| at as *mut c_int);
                let (took, version) = (index as u8 + 1, self.version);
                return Ok(Nccl { table, speaks, took, version, mask });
            }
        }
        Err(format!("{} has no version that this NCCL takes", plugin.display()))
    }
}

fn dlopen(path: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a C string.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: after a failure `dlerror` gives a C string.
    Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned())
}

/// Names and values of the symbols that matter, also local ones.
fn symbols(path: &Path) -> Result<Vec<(String, usize)>, String> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let bytes = file.metadata().map_err(|e| e.to_string())?.len() as usize;
    // SAFETY: a new mapping; half a gigabyte, of which the symbol table is read. Nobody writes
    // the file.
    let map = unsafe {
        let at =
            libc::mmap(null_mut(), bytes, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        if at == libc::MAP_FAILED {
            return Err(format!("cannot map {}", path.display()));
        }
        std::slice::from_raw_parts(at.cast::<u8>(), bytes)
    };
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(map)
        .map_err(|e| e.to_string())?;
    let wanted = |name: &str| {
        name == "ncclGetVersion"
            || name == "ncclProfilerEventMask"
            || name.starts_with("_Z18getNcclProfiler_v")
    };
    let found = elf
        .symbols()
        .filter_map(|s| Some((s.name().ok()?, s.address() as usize)))
        .filter(|(name, _)| wanted(name))
        .map(|(name, at)| (name.to_owned(), at))
        .collect();
    // SAFETY: the mapping above, of which nothing is used any more.
    unsafe { libc::munmap(map.as_ptr().cast_mut().cast(), bytes) };
    Ok(found)
}

unsafe extern "C" fn no_log() {}

/// A communicator of the plug-in.
pub struct Communicator<'a> {
    nccl: &'a Nccl,
    context: Handle,
    rank: c_int,
}

impl Nccl {
    fn table(&self) -> Table<InitV5> {
        // Read anew each time: adapters fill it in `init`.
        // SAFETY: the library's own table.
        unsafe { self.table.read_volatile() }
    }

    /// NCCL's mask now.
    pub fn mask(&self) -> u64 {
        // SAFETY: the library's own int, or ours.
        unsafe { AtomicI32::from_ptr(self.mask) }.load(Relaxed) as u32 as u64
    }

    /// Makes a communicator.
    pub fn init(
        &self,
        name: &'static CStr,
        id: u64,
        rank: c_int,
        ranks: c_int,
    ) -> Communicator<'_> {
        let mut context = null_mut();
        let init = self.table().init.expect("a table has init");
        let log = no_log as *const c_void;
        // SAFETY: as NCCL calls it; before version 5 the arguments have another order.
        let result = unsafe {
            if self.speaks == Version::V4 {
                let init = std::mem::transmute::<InitV5, InitV4>(init);
                init(&mut context, self.mask, name.as_ptr(), id, 1, ranks, rank, log)
            } else {
                init(&mut context, id, self.mask, name.as_ptr(), 1, ranks, rank, log)
            }
        };
        assert_eq!(result, SUCCESS);
        assert!(!context.is_null());
        Communicator { nccl: self, context, rank }
    }

    /// Ends an event, if there is one, as NCCL does.
    pub fn stop(&self, handle: Handle) {
        if !handle.is_null() {
            // SAFETY: any handle may be stopped.
            assert_eq!(unsafe { self.table().stop.expect("has stop")(handle) }, SUCCESS);
        }
    }

    /// Reports a state.
    pub fn state(&self, handle: Handle, state: c_int, p_timer: u64) {
        if !handle.is_null() {
            let mut args = StateArgs { p_timer };
            let record = self.table().record_state.expect("has recordEventState");
            // SAFETY: 8 bytes of arguments for any state.
            assert_eq!(unsafe { record(handle, state, &mut args) }, SUCCESS);
        }
    }
}

fn text(text: &'static CStr) -> *const c_char {
    text.as_ptr()
}

impl Communicator<'_> {
    /// An event of any kind; null if the plug-in wants none.
    pub fn start(&self, kind: u64, parent_obj: Handle, fill: impl FnOnce(&mut OfV7)) -> Handle {
        // The layout of version 7 is that of all, for what they have: see `abi`. `kind` is below
        // 256 where it is one byte, whose hole is zero.
        // SAFETY: all zero is a descriptor.
        let mut event: EventV7 = unsafe { std::mem::zeroed() };
        (event.kind, event.parent_obj, event.rank) = (kind, parent_obj, self.rank);
        fill(&mut event.of);
        let mut handle = null_mut();
        let start = self.nccl.table().start.expect("has startEvent");
        let descr = std::ptr::from_mut(&mut event).cast();
        // SAFETY: as NCCL calls it.
        assert_eq!(unsafe { start(self.context, &mut handle, descr) }, SUCCESS);
        handle
    }

    /// As [`Communicator::start`], if the mask has one of `bits`.
    pub fn start_if(
        &self,
        bits: u64,
        kind: u64,
        parent: Handle,
        fill: impl FnOnce(&mut OfV7),
    ) -> Handle {
        if self.nccl.mask() & bits == 0 { null_mut() } else { self.start(kind, parent, fill) }
    }

    /// The group of a call.
    pub fn group(&self, group_depth: c_int) -> Handle {
        if self.nccl.speaks < Version::V5 {
            return null_mut();
        }
        let group_api = GroupApi { graph_captured: 0, group_depth };
        self.start_if(u64::MAX, bit::GROUP_API, null_mut(), |of| of.group_api = group_api)
    }

    /// The append of an all-reduce of floats.
    pub fn api(&self, group: Handle, count: usize) -> Handle {
        if self.nccl.speaks < Version::V5 {
            return null_mut();
        }
        let coll_api = CollApi {
            func: text(c"AllReduce"),
            count,
            datatype: text(c"ncclFloat32"),
            root: 0,
            stream: null_mut(),
            graph_captured: 0,
            user_tag: 0,
        };
        let bits = bit::COLL_API | bit::COLL | bit::KERNEL_CH;
        self.start_if(bits, bit::COLL_API, group, |of| of.coll_api = coll_api)
    }

    /// The launch of a group's kernel.
    pub fn launch(&self, group: Handle) -> Handle {
        let kernel_launch = KernelLaunch { stream: null_mut() };
        self.start_if(bit::KERNEL_LAUNCH, bit::KERNEL_LAUNCH, group, |of| {
            of.kernel_launch = kernel_launch;
        })
    }

    /// An all-reduce of floats.
    pub fn all_reduce(&self, api: Handle, seq_number: u64, count: usize, n_channels: u8) -> Handle {
        let coll = Coll {
            seq_number,
            func: text(c"AllReduce"),
            send_buff: null(),
            recv_buff: null_mut(),
            count,
            root: 0,
            datatype: text(c"ncclFloat32"),
            n_channels,
            n_warps: 16,
            algo: text(c"RING"),
            proto: text(c"SIMPLE"),
            parent_group: null_mut(),
            kernel_variant: null(),
            is_sym_coll: 0,
            user_tag: 0,
        };
        self.start_if(bit::COLL | bit::KERNEL_CH, bit::COLL, api, |of| of.coll = coll)
    }

    /// A send or receive of bytes.
    pub fn p2p(&self, func: &'static CStr, peer: c_int, count: usize, n_channels: u8) -> Handle {
        let p2p = P2p {
            func: text(func),
            buff: null_mut(),
            datatype: text(c"ncclInt8"),
            count,
            peer,
            n_channels,
            parent_group: null_mut(),
            user_tag: 0,
        };
        self.start_if(bit::P2P | bit::KERNEL_CH, bit::P2P, null_mut(), |of| of.p2p = p2p)
    }

    /// What the thread that feeds the network does for a task.
    pub fn proxy_op(&self, task: Handle, pid: c_int, channel_id: u8) -> Handle {
        let proxy_op =
            ProxyOp { pid, channel_id, peer: 1, n_steps: 1, chunk_size: 1 << 17, is_send: 1 };
        self.start_if(bit::PROXY_OP | bit::PROXY_STEP, bit::PROXY_OP, task, |of| {
            of.proxy_op = proxy_op;
        })
    }

    /// One transfer.
    pub fn proxy_step(&self, op: Handle, step: c_int) -> Handle {
        self.start_if(bit::PROXY_STEP, bit::PROXY_STEP, op, |of| of.proxy_step = ProxyStep { step })
    }

    /// A task's kernel on a channel.
    pub fn channel(&self, task: Handle, channel_id: u8, p_timer: u64) -> Handle {
        let kernel_ch = KernelCh { channel_id, p_timer };
        self.start_if(bit::KERNEL_CH, bit::KERNEL_CH, task, |of| of.kernel_ch = kernel_ch)
    }

    /// A phase of it, which has passed.
    pub fn phase(&self, channel: Handle, channel_id: u8, phase_id: u8, first: u64, last: u64) {
        if self.nccl.speaks < Version::V7 || first == last {
            return;
        }
        let name = [c"initial_sync", c"compute", c"final_sync"][phase_id as usize];
        let phase_name = text(name);
        let kernel_phase = KernelPhase { channel_id, phase_id, phase_name, p_timer: first };
        let handle = self.start_if(bit::KERNEL_PHASE, bit::KERNEL_PHASE, channel, |of| {
            of.kernel_phase = kernel_phase;
        });
        self.nccl.state(handle, state::KERNEL_PHASE_STOP, last);
        self.nccl.stop(handle);
    }

    /// The end of a channel.
    pub fn channel_ends(&self, channel: Handle, p_timer: u64) {
        self.nccl.state(channel, state::KERNEL_CH_STOP, p_timer);
        self.nccl.stop(channel);
    }

    /// Ends the communicator.
    pub fn finalize(&self) {
        let finalize = self.nccl.table().finalize.expect("has finalize");
        // SAFETY: as NCCL calls it.
        assert_eq!(unsafe { finalize(self.context) }, SUCCESS);
    }
}

/// The GPU's clock now.
pub fn gpu_now() -> u64 {
    AHEAD + gpuwhy_wire::now()
}
