//! The resource manager of NVIDIA's driver: the calls that a log of context switches takes.
//!
//! Objects are made, asked and mapped by `ioctl` on `/dev/nvidiactl`, each call a structure of the driver's that begins with
//! the handles it is about (open-gpu-kernel-modules: `nvos.h`, `nv_escape.h`, `nv-unix-nvos-params-wrappers.h`). The layouts
//! here are those of drivers 535 to 595, in which they are the same; of a class whose structure grew meanwhile, more room is
//! handed over than any of them takes. Nothing that is handed over holds an address but the ones that these calls write.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::Mapped;

/// What a handle names within a client; 0 is none.
pub(crate) type Handle = u32;

/// `NV_ESC_RM_CONTROL`, `NV_ESC_RM_ALLOC`, `NV_ESC_RM_MAP_MEMORY` (nv_escape.h).
const CONTROL: u8 = 0x2a;
const ALLOC: u8 = 0x2b;
const MAP: u8 = 0x4e;
/// `NV01_ROOT_CLIENT`, `NV01_DEVICE_0`, `NV20_SUBDEVICE_0`, `NV01_MEMORY_DEVICELESS`, `NV_EVENT_BUFFER`.
const CLIENT: u32 = 0x41;
const DEVICE: u32 = 0x80;
const SUBDEVICE: u32 = 0x2080;
const MEMORY: u32 = 0x90ce;
const EVENT_BUFFER: u32 = 0x90cd;
/// More than the structure of any of these classes takes; the driver reads as many bytes as it knows of.
const CLASS_BYTES: usize = 512;
/// `NVOS32_ATTR_COHERENCY_CACHED` in bits 31:29 of `attr`, `NVOS32_ATTR2_PROTECTION_USER_READ_ONLY` in bit 22 of `attr2`.
const CACHED: u32 = 1 << 29;
const READ_ONLY: u32 = 1 << 22;
/// `NVOS33_FLAGS_ACCESS_READ_ONLY`.
const MAP_READ_ONLY: u32 = 1;

/// What is asked of an object, by the numbers of `ctrl0000gpu.h`, `ctrl2080gr.h`, `ctrl2080tmr.h` and `ctrl90cd.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Command {
    /// `NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS`.
    AttachedGpus = 0x201,
    /// `NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2`.
    GpuInfo = 0x205,
    /// `NV0000_CTRL_CMD_GPU_GET_UUID_FROM_GPU_ID`.
    GpuUuid = 0x275,
    /// `NV2080_CTRL_CMD_TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO`.
    Time = 0x2080_0406,
    /// `NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2`.
    BindSwitches = 0x2080_1238,
    /// `NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS`.
    Enable = 0x90cd_0101,
    /// `NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET`.
    Taken = 0x90cd_0102,
}

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// By the system.
    #[error(transparent)]
    System(#[from] io::Error),
    /// By the driver: its `NV_STATUS` (nvstatuscodes.h).
    #[error("the driver's status {0:#x}{words}", words = in_words(*.0))]
    Status(u32),
}

fn in_words(status: u32) -> &'static str {
    match status {
        0x1b => " (insufficient permissions)",
        0x1f => " (invalid argument)",
        0x22 => " (invalid class)",
        0x24 => " (invalid command)",
        0x3a => " (a structure of another size: another version of the driver)",
        0x51 => " (no memory)",
        0x56 => " (not supported)",
        _ => "",
    }
}

/// A client of the resource manager. What it made goes with it, when the file is closed.
#[derive(Debug)]
pub(crate) struct Client {
    control: File,
    handle: Handle,
}

impl Client {
    /// Of `/dev/nvidiactl`, opened for reading and writing.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(control: File) -> Result<Client, Refused> {
        let handle = alloc(&control, 0, 0, CLIENT, None)?;
        Ok(Client { control, handle })
    }

    /// A device by its instance, and its only subdevice's handle.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn device(&self, instance: u32, subdevice: u32) -> Result<Handle, Refused> {
        let mut room = [0; CLASS_BYTES];
        put(&mut room, 0, instance);
        let device = alloc(&self.control, self.handle, self.handle, DEVICE, Some(&mut room))?;
        let mut room = [0; CLASS_BYTES];
        put(&mut room, 0, subdevice);
        alloc(&self.control, self.handle, device, SUBDEVICE, Some(&mut room))
    }

    /// Memory of the host that the driver writes and this process reads.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory(&self, bytes: u64) -> Result<Handle, Refused> {
        let mut room = [0; CLASS_BYTES];
        put(&mut room, 24, CACHED);
        put(&mut room, 28, READ_ONLY);
        room[64..72].copy_from_slice(&bytes.to_ne_bytes());
        alloc(&self.control, self.handle, self.handle, MEMORY, Some(&mut room))
    }

    /// Maps such memory; `file` is `/dev/nvidiactl` opened once more, since each file has one mapping.
    ///
    /// # Errors
    /// The driver or the system refuses.
    pub fn map(&self, memory: Handle, bytes: u64, file: &File) -> Result<Mapped, Refused> {
        // NVOS33_PARAMETERS and the file. Memory that is of no device is mapped for the client.
        let mut head = [0; 56];
        for (at, word) in [(0, self.handle), (4, self.handle), (8, memory), (44, MAP_READ_ONLY)] {
            put(&mut head, at, word);
        }
        head[24..32].copy_from_slice(&bytes.to_ne_bytes());
        put(&mut head, 48, file.as_raw_fd() as u32);
        ioctl(&self.control, MAP, &mut head)?;
        status(word(&head, 40))?;
        Ok(Mapped::new(file, bytes as usize)?)
    }

    /// A buffer for events of a subdevice: so many records of so many bytes in `records`, and where they begin and end in
    /// `header`. Nobody is woken when it fills.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn event_buffer(
        &self,
        subdevice: Handle,
        header: Handle,
        records: Handle,
        (bytes, count): (u32, u32),
    ) -> Result<Handle, Refused> {
        let mut room = [0; CLASS_BYTES];
        let words = [(16, bytes), (20, count), (52, subdevice), (60, header), (64, records)];
        for (at, word) in words {
            put(&mut room, at, word);
        }
        alloc(&self.control, self.handle, self.handle, EVENT_BUFFER, Some(&mut room))
    }

    /// Asks an object, the client itself if it is 0; `params` is the command's structure, which the answer is written to.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn ask(&self, of: Handle, what: Command, params: &mut [u8]) -> Result<(), Refused> {
        // NVOS54_PARAMETERS.
        let mut head = [0; 32];
        let of = if of == 0 { self.handle } else { of };
        let size = params.len() as u32;
        for (at, word) in [(0, self.handle), (4, of), (8, what as u32), (24, size)] {
            put(&mut head, at, word);
        }
        head[16..24].copy_from_slice(&(params.as_mut_ptr() as u64).to_ne_bytes());
        ioctl(&self.control, CONTROL, &mut head)?;
        status(word(&head, 28))
    }
}

/// Makes an object; `room` is its class's structure.
fn alloc(
    control: &File,
    client: Handle,
    parent: Handle,
    class: u32,
    room: Option<&mut [u8; CLASS_BYTES]>,
) -> Result<Handle, Refused> {
    // NVOS64_PARAMETERS.
    let mut head = [0; 48];
    for (at, word) in [(0, client), (4, parent), (12, class)] {
        put(&mut head, at, word);
    }
    let room = room.map_or(0, |room| room.as_mut_ptr() as u64);
    head[16..24].copy_from_slice(&room.to_ne_bytes());
    ioctl(control, ALLOC, &mut head)?;
    status(word(&head, 40))?;
    Ok(word(&head, 8))
}

/// Writes a word into a structure of the driver's.
pub(crate) fn put(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

/// A word of a structure of the driver's; 0 beyond its end.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |four| u32::from_ne_bytes(*four))
}

fn status(status: u32) -> Result<(), Refused> {
    if status == 0 { Ok(()) } else { Err(Refused::Status(status)) }
}

/// One call: a structure of the driver's, which it reads and writes.
fn ioctl(control: &File, number: u8, head: &mut [u8]) -> io::Result<()> {
    // _IOWR('F', number, head) of asm-generic/ioctl.h.
    let size = head.len() as libc::c_ulong;
    let request =
        3 << 30 | size << 16 | libc::c_ulong::from(b'F') << 8 | libc::c_ulong::from(number);
    // SAFETY: the descriptor is open; the driver copies as many bytes from and to `head` as the request says, which are its
    // own. The only address in it is that of a structure which the caller of the functions above owns and which lives through
    // the call: `room`, of more bytes than the class has, or `params`, whose size is beside it and must be the command's.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), request as _, head.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
