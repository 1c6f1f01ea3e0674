//! A stand-in for the resource manager of NVIDIA's driver behind `/dev/nvidiactl`, for a program that reads its log of
//! context switches: a shared object for `LD_PRELOAD`, which answers that program's `open` and `ioctl`.
//!
//! It answers as the published source of the driver does (open-gpu-kernel-modules 595.45.04: `escape.c`, `event_buffer.c`,
//! `fecs_event_list.c`, `eventbufferproducer.c`), with its checks of sizes, classes and handles, over the machine of
//! [`gpuwhy_testkit::gpu`], whose processes take turns. What is not asked for here is refused as not supported; other files
//! and calls go to the kernel.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `GPUWHY_STANDIN` | directory of the machine; without it there is no driver |
//! | `GPUWHY_STANDIN_DRIVER` | version of the driver; 595.45.04 |
//! | `GPUWHY_STANDIN_REASON` | the log is refused for this reason (`NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*`) |

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuwhy_testkit::gpu::{Gpu, Machine, Turns};
use gpuwhy_testkit::sys;

const CONTROL: &str = "nvidiactl";
/// What a GPU's clock is ahead of CLOCK_MONOTONIC.
const CLOCK: u64 = 987_654_321_000;
/// The driver hands records on this often.
const EVERY: Duration = Duration::from_millis(33);
/// `NV_OK`, `NV_ERR_INVALID_ARGUMENT`, `_CLASS`, `_OBJECT_HANDLE`, `_PARAM_STRUCT`, `NV_ERR_NOT_SUPPORTED`.
const OK: u32 = 0;
const ARGUMENT: u32 = 0x1f;
const CLASS: u32 = 0x22;
const HANDLE: u32 = 0x33;
const PARAMS: u32 = 0x3a;
const NOT_SUPPORTED: u32 = 0x56;

/// An object of a client.
enum Object {
    Device(usize),
    Subdevice(usize),
    Memory { bytes: usize, is_read_only: bool, mapped: Option<Memory> },
    Buffer(Buffer),
}

/// Memory of the driver that a program has mapped.
#[derive(Clone, Copy)]
struct Memory(*mut u8, usize);

// SAFETY: written by the one thread that holds the lock of `STATE`.
unsafe impl Send for Memory {}

/// A buffer for events.
struct Buffer {
    header: u32,
    records: u32,
    size: usize,
    count: u32,
    subdevice: u32,
    is_bound: bool,
    is_enabled: bool,
    number: u16,
    put: u32,
    get: u32,
    /// Turns that are not over, and whose context has the GPU.
    turns: Turns,
    owner: Option<u32>,
}

#[derive(Default)]
struct State {
    /// By client and handle.
    objects: BTreeMap<(u32, u32), Object>,
    last: u32,
    writes: bool,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static MACHINE: LazyLock<Option<Machine>> = LazyLock::new(|| Machine::from_env().ok());

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file in memory of this name.
fn file(name: &CStr, text: &str) -> c_int {
    // SAFETY: the name ends with a zero byte; the descriptor that is returned is nobody else's.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 || text.is_empty() {
        return fd;
    }
    // SAFETY: as above.
    let mut file = unsafe { File::from_raw_fd(fd) };
    if file.write_all(text.as_bytes()).and_then(|()| file.rewind()).is_err() {
        return -1;
    }
    file.into_raw_fd()
}

/// A descriptor for a file of the driver's; none for other files.
fn of_driver(path: *const c_char) -> Option<c_int> {
    // SAFETY: whoever opens a file gives a path that ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
    let name = path.strip_prefix("/dev/nvidia");
    if name.is_none() && path != "/proc/driver/nvidia/version" {
        return None;
    }
    let machine = MACHINE.as_ref()?;
    let Some(name) = name else {
        let version = std::env::var("GPUWHY_STANDIN_DRIVER");
        let version = version.unwrap_or_else(|_| "595.45.04".into());
        let text = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        );
        return Some(file(c"version", &text));
    };
    match name.parse::<usize>() {
        _ if name == "ctl" => Some(file(c"nvidiactl", "")),
        Ok(number) if number < machine.count() => Some(file(c"nvidia", "")),
        _ => None,
    }
}

/// `open64` of the C library.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    if let Some(fd) = of_driver(path) {
        return fd;
    }
    // SAFETY: the caller's arguments, which are those of the call.
    unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode)
            as c_int
    }
}

/// `ioctl` of the C library.
///
/// # Safety
/// As that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, head: *mut c_void) -> c_int {
    let (direction, size) = (request >> 30 & 3, request as usize >> 16 & 0x3fff);
    let (kind, number) = (request >> 8 & 0xff, request & 0xff);
    let is_ours = direction == 3 && kind == c_ulong::from(b'F') && is_control(fd);
    if !is_ours {
        // SAFETY: the caller's arguments, which are those of the call.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request as c_long, head) as c_int };
    }
    // SAFETY: the request says how many bytes there are at `head`, which the caller lends for the call.
    let head = unsafe { std::slice::from_raw_parts_mut(head.cast::<u8>(), size) };
    let done = match (number, size) {
        (0x2b, 48) => alloc(head),
        (0x2a, 32) => control(head),
        (0x4e, 56) => map(head),
        _ => None,
    };
    if done.is_some() { 0 } else { -1 }
}

/// Whether a descriptor is of `/dev/nvidiactl`.
fn is_control(fd: c_int) -> bool {
    let behind = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    behind.to_str().is_some_and(|path| path.starts_with(&format!("/memfd:{CONTROL}")))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

/// What an address in a head points to, of so many bytes.
fn behind(head: &[u8], at: usize, bytes: usize) -> &'static mut [u8] {
    let address = u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default());
    if address == 0 {
        return &mut [];
    }
    // SAFETY: the caller says that there are as many bytes of its own, which it lends for the call.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

/// NV_ESC_RM_ALLOC with NVOS64_PARAMETERS.
fn alloc(head: &mut [u8]) -> Option<()> {
    let mut state = state();
    let (client, parent, class) = (word(head, 0), word(head, 4), word(head, 12));
    let made = state.make(client, parent, class, head);
    let (handle, status) = made.map_or_else(|status| (0, status), |handle| (handle, OK));
    put(head, 8, handle);
    put(head, 40, status);
    Some(())
}

impl State {
    fn handle(&mut self) -> u32 {
        self.last += 1;
        0xc1d0_0000 + self.last
    }

    fn make(&mut self, client: u32, parent: u32, class: u32, head: &[u8]) -> Result<u32, u32> {
        let machine = MACHINE.as_ref().ok_or(NOT_SUPPORTED)?;
        let object = match class {
            0 | 1 | 0x41 => return Ok(self.handle()),
            0x80 if parent == client => {
                let instance = word(behind(head, 16, 56), 0) as usize;
                if instance >= machine.count() {
                    return Err(ARGUMENT);
                }
                Object::Device(instance)
            }
            0x2080 => match self.objects.get(&(client, parent)) {
                Some(Object::Device(gpu)) if word(behind(head, 16, 4), 0) == 0 => {
                    Object::Subdevice(*gpu)
                }
                _ => return Err(HANDLE),
            },
            0x90ce if parent == client => {
                let params = behind(head, 16, 128);
                let bytes = u64::from_ne_bytes(params[64..72].try_into().unwrap_or_default());
                let is_read_only = word(params, 28) >> 22 & 1 == 1;
                if bytes == 0 {
                    return Err(ARGUMENT);
                }
                Object::Memory {
                    bytes: (bytes as usize).next_multiple_of(4096),
                    is_read_only,
                    mapped: None,
                }
            }
            0x90cd if parent == client => {
                Object::Buffer(self.buffer(client, behind(head, 16, 72))?)
            }
            _ => return Err(CLASS),
        };
        let handle = self.handle();
        self.objects.insert((client, handle), object);
        Ok(handle)
    }

    /// NV_EVENT_BUFFER_ALLOC_PARAMETERS, as `eventbufferConstruct_IMPL` checks them.
    fn buffer(&self, client: u32, params: &[u8]) -> Result<Buffer, u32> {
        let [size, count, subdevice, header, records] =
            [16, 20, 52, 60, 64].map(|at| word(params, at));
        let memory = |handle| match self.objects.get(&(client, handle)) {
            Some(Object::Memory { bytes, is_read_only: true, .. }) => Ok(*bytes),
            Some(Object::Memory { .. }) => Err(ARGUMENT),
            _ => Err(HANDLE),
        };
        if !matches!(self.objects.get(&(client, subdevice)), Some(Object::Subdevice(_))) {
            return Err(HANDLE);
        }
        let fits = memory(header)? >= 32 && memory(records)? >= size as usize * count as usize;
        // Neither data of variable length nor thresholds.
        let plain = [24, 28, 32, 36, 48, 56, 68].iter().all(|at| word(params, *at) == 0);
        if size == 0 || count == 0 || !fits || !plain {
            return Err(ARGUMENT);
        }
        Ok(Buffer {
            header,
            records,
            size: size as usize,
            count,
            subdevice,
            is_bound: false,
            is_enabled: false,
            number: 0,
            put: 0,
            get: 0,
            turns: Turns::default(),
            owner: None,
        })
    }
}

/// NV_ESC_RM_MAP_MEMORY with NVOS33_PARAMETERS and a descriptor.
fn map(head: &mut [u8]) -> Option<()> {
    let mut state = state();
    let (client, device, memory) = (word(head, 0), word(head, 4), word(head, 8));
    let length = u64::from_ne_bytes(head[24..32].try_into().unwrap_or_default());
    let (access, fd) = (word(head, 44) & 3, word(head, 48) as c_int);
    let status = match state.objects.get_mut(&(client, memory)) {
        // Memory that is of no device is mapped for its client; what users may only read, only so.
        Some(Object::Memory { bytes, is_read_only, mapped })
            if device == client && length as usize <= *bytes && (!*is_read_only || access == 1) =>
        {
            // SAFETY: the descriptor is one that this object has handed out, of a file in memory.
            let sized =
                is_control(fd) && unsafe { libc::ftruncate(fd, *bytes as libc::off_t) } == 0;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new shared mapping at an address of the kernel's choice.
            let here =
                unsafe { libc::mmap(std::ptr::null_mut(), *bytes, both, libc::MAP_SHARED, fd, 0) };
            if sized && here != libc::MAP_FAILED {
                *mapped = Some(Memory(here.cast(), *bytes));
                OK
            } else {
                ARGUMENT
            }
        }
        Some(_) => ARGUMENT,
        None => HANDLE,
    };
    put(head, 40, status);
    Some(())
}

/// NV_ESC_RM_CONTROL with NVOS54_PARAMETERS.
fn control(head: &mut [u8]) -> Option<()> {
    let mut state = state();
    let (client, object, command, size) =
        (word(head, 0), word(head, 4), word(head, 8), word(head, 24) as usize);
    let known = match command {
        0x201 => 128,
        0x205 => 32,
        0x275 => 268,
        0x2080_0406 => 264,
        0x2080_1238 => 24,
        0x90cd_0101 | 0x90cd_0102 => 8,
        _ => 0,
    };
    let status = match known {
        0 => NOT_SUPPORTED,
        // rmControl: of the size that the command has.
        _ if size != known => PARAMS,
        _ => state.answer(client, object, command, behind(head, 16, size)).err().unwrap_or(OK),
    };
    put(head, 28, status);
    Some(())
}

/// The number of a GPU by the driver's.
fn gpu_of(id: u32) -> Result<(usize, &'static Gpu), u32> {
    let number = (id / 256).checked_sub(1).ok_or(ARGUMENT)? as usize;
    MACHINE
        .as_ref()
        .and_then(|machine| machine.gpu(number))
        .map(|gpu| (number, gpu))
        .ok_or(ARGUMENT)
}

impl State {
    fn answer(
        &mut self,
        client: u32,
        object: u32,
        command: u32,
        params: &mut [u8],
    ) -> Result<(), u32> {
        let machine = MACHINE.as_ref().ok_or(NOT_SUPPORTED)?;
        match command {
            0x201 if object == client => {
                for (number, id) in params.chunks_exact_mut(4).enumerate() {
                    let of =
                        if number < machine.count() { 256 * (number as u32 + 1) } else { u32::MAX };
                    put(id, 0, of);
                }
            }
            0x205 if object == client => {
                let (number, _) = gpu_of(word(params, 0))?;
                put(params, 8, number as u32);
                put(params, 12, 0);
            }
            0x275 if object == client => {
                let (_, gpu) = gpu_of(word(params, 0))?;
                let uuid = gpu.uuid_text();
                params[8..8 + uuid.len()].copy_from_slice(uuid.as_bytes());
                put(params, 264, uuid.len() as u32 + 1);
            }
            0x2080_0406 => {
                self.subdevice(client, object)?;
                if params[0] != 1 || params[1] > 16 {
                    return Err(ARGUMENT);
                }
                params[16..24].copy_from_slice(&(sys::now() + CLOCK).to_ne_bytes());
            }
            0x2080_1238 => {
                let gpu = self.subdevice(client, object)?;
                let reason =
                    std::env::var("GPUWHY_STANDIN_REASON").ok().and_then(|text| text.parse().ok());
                if let Some(reason) = reason {
                    put(params, 20, reason);
                    return Err(NOT_SUPPORTED);
                }
                let Some(Object::Buffer(buffer)) = self.objects.get_mut(&(client, word(params, 0)))
                else {
                    return Err(HANDLE);
                };
                (buffer.is_bound, buffer.subdevice) = (true, object);
                // Of what was before, nothing is told.
                buffer.turns = machine.gpu(gpu).map(Turns::from_now).unwrap_or_default();
                put(params, 20, 0);
            }
            0x90cd_0101 => {
                let Some(Object::Buffer(buffer)) = self.objects.get_mut(&(client, object)) else {
                    return Err(HANDLE);
                };
                buffer.is_enabled = params[0] != 0;
                if !std::mem::replace(&mut self.writes, true) {
                    std::thread::spawn(write_on);
                }
            }
            0x90cd_0102 => {
                let Some(Object::Buffer(buffer)) = self.objects.get_mut(&(client, object)) else {
                    return Err(HANDLE);
                };
                if word(params, 0) >= buffer.count || word(params, 4) > 0 {
                    return Err(ARGUMENT);
                }
                buffer.get = word(params, 0);
            }
            _ => return Err(HANDLE),
        }
        Ok(())
    }

    fn subdevice(&self, client: u32, handle: u32) -> Result<usize, u32> {
        match self.objects.get(&(client, handle)) {
            Some(Object::Subdevice(gpu)) => Ok(*gpu),
            _ => Err(HANDLE),
        }
    }

    /// Writes what has happened since into all buffers.
    fn write(&mut self, now: u64) {
        let buffers = self.objects.iter().filter(|(_, object)| matches!(object, Object::Buffer(_)));
        let buffers: Vec<(u32, u32)> = buffers.map(|(key, _)| *key).collect();
        for key in buffers {
            let Some(Object::Buffer(mut buffer)) = self.objects.remove(&key) else { continue };
            let memory = |handle| match self.objects.get(&(key.0, handle)) {
                Some(Object::Memory { mapped: Some(memory), .. }) => Some(*memory),
                _ => None,
            };
            let both = memory(buffer.header).zip(memory(buffer.records));
            let gpu = self.subdevice(key.0, buffer.subdevice).ok();
            let gpu = gpu.and_then(|number| MACHINE.as_ref()?.gpu(number));
            if let (Some((header, records)), Some(gpu), true) =
                (both, gpu, buffer.is_bound && buffer.is_enabled)
            {
                buffer.follow(gpu, now, header, records);
            }
            self.objects.insert(key, Object::Buffer(buffer));
        }
    }
}

impl Buffer {
    /// Tells of what is settled: a turn that has begun.
    fn follow(&mut self, gpu: &Gpu, now: u64, header: Memory, records: Memory) {
        self.turns.follow(gpu);
        for turn in std::mem::take(&mut self.turns.ahead) {
            if turn.start > now {
                self.turns.ahead.push(turn);
                continue;
            }
            if self.owner != Some(turn.pid) {
                if let Some(before) = self.owner.replace(turn.pid) {
                    self.record(7, before, turn.start, header, records);
                }
                self.record(6, turn.pid, turn.start, header, records);
            }
            if turn.end > now {
                self.turns.ahead.push(turn);
            }
        }
    }

    /// `NV_EVENT_BUFFER_FECS_RECORD_V2` behind `NV_EVENT_BUFFER_RECORD_HEADER`; a full buffer keeps what is in it.
    fn record(&mut self, tag: u8, pid: u32, at: u64, header: Memory, records: Memory) {
        let number = self.number;
        self.number = number.wrapping_add(1);
        let next = (self.put + 1) % self.count;
        let place = self.put as usize * self.size;
        if next == self.get || place + 32 > records.1 || self.size < 32 || header.1 < 32 {
            return;
        }
        let mut record = [0; 32];
        record[..2].copy_from_slice(&2_u16.to_ne_bytes());
        record[8] = tag;
        record[10..12].copy_from_slice(&number.to_ne_bytes());
        record[12..16].copy_from_slice(&(0x9000 + pid).to_ne_bytes());
        record[16..20].copy_from_slice(&pid.to_ne_bytes());
        (record[22], record[23]) = (0xff, 0xff);
        record[24..].copy_from_slice(&(at + CLOCK).to_ne_bytes());
        // SAFETY: within the mapping, as was just checked; whoever reads it reads up to what the header says, which is written
        // after it.
        unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), records.0.add(place), 32) };
        self.put = next;
        // SAFETY: `recordPut` of the header, which is mapped, is aligned and is read as an atomic.
        let end = unsafe { std::sync::atomic::AtomicU32::from_ptr(header.0.add(4).cast()) };
        end.store(next, std::sync::atomic::Ordering::Release);
    }
}

/// The driver's timer.
fn write_on() {
    loop {
        std::thread::sleep(EVERY);
        state().write(sys::now());
    }
}
