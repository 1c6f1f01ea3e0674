//! The file that HAMi's library maps into each process of a container: what they may have of each GPU.
//!
//! Its layout is that of `shared_region_t` in `src/multiprocess/multiprocess_memory_limit.h` of HAMi-core, version 1, on a
//! 64-bit machine. The container can write to it, so nothing in it is believed but numbers of the container's own.

use std::io;

/// `MULTIPROCESS_SHARED_REGION_MAGIC_FLAG`, once the file was set up.
const MAGIC: u32 = 19_920_718;
/// `MAJOR_VERSION`.
const VERSION: u32 = 1;
/// `CUDA_DEVICE_MAX_COUNT`.
const DEVICES: usize = 16;
/// `SHARED_REGION_MAX_PROCESS_NUM`.
const PROCESSES: usize = 1024;

// Where things are, bytes.
const DEVICE_COUNT: usize = 56;
const UUIDS: usize = 64;
const UUID: usize = 96;
const MEMORY_LIMITS: usize = 1600;
const SM_LIMITS: usize = 1728;
const SLOTS: usize = 1856;
/// Of one process; its number on the host is the second of 4 bytes.
const SLOT: usize = 1960;
/// `proc_num`, `utilization_switch`, `recent_kernel`, 4 bytes each.
const AFTER: usize = SLOTS + PROCESSES * SLOT;

/// What a container may have of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The GPU, as NVML names it.
    pub uuid: String,
    /// Bytes of memory; 0 is no limit.
    pub memory: u64,
    /// Its multiprocessors, %; 0 is no limit, nor is 100.
    pub sm: u64,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    /// By GPU.
    pub limits: Vec<Limit>,
    /// Numbers of the container's processes on the host, as the container has them.
    pub processes: Vec<u32>,
    /// Whether the limit of multiprocessors is in force now (`utilization_switch`).
    pub in_force: bool,
    /// Whether launches wait for a container that goes first (`recent_kernel` below 0).
    pub held_back: bool,
}

/// Why a file is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is not set up yet, too short, or none of HAMi's.
    Other,
    /// It has a version whose layout is not known.
    Version(u32, u32),
}

impl Region {
    /// Reads a file by its bytes at a place.
    ///
    /// # Errors
    /// It is none, or of another version.
    pub fn read(at: impl Fn(&mut [u8], u64) -> io::Result<()>) -> Result<Region, Unread> {
        let other = |_| Unread::Other;
        let mut head = [0; SLOTS];
        at(&mut head, 0).map_err(other)?;
        let small = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
        };
        let large = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
        if small(&head, 0) != MAGIC {
            return Err(Unread::Other);
        }
        if small(&head, 4) != VERSION {
            return Err(Unread::Version(small(&head, 4), small(&head, 8)));
        }
        let mut after = [0; 12];
        at(&mut after, AFTER as u64).map_err(other)?;
        let limit = |device: usize| {
            let from = UUIDS + device * UUID;
            let uuid = head[from..from + UUID].split(|byte| *byte == 0).next().unwrap_or_default();
            let uuid = std::str::from_utf8(uuid).ok().filter(|uuid| is_uuid(uuid))?.to_owned();
            let (memory, sm) = (large(MEMORY_LIMITS + 8 * device), large(SM_LIMITS + 8 * device));
            Some(Limit { uuid, memory, sm })
        };
        let devices = usize::try_from(large(DEVICE_COUNT)).unwrap_or(usize::MAX).min(DEVICES);
        let processes = (small(&after, 0) as usize).min(PROCESSES);
        let on_host = |slot: usize| {
            let mut pids = [0; 8];
            at(&mut pids, (SLOTS + slot * SLOT) as u64).ok()?;
            Some(small(&pids, 4)).filter(|pid| *pid != 0)
        };
        Ok(Region {
            limits: (0..devices).filter_map(limit).collect(),
            processes: (0..processes).filter_map(on_host).collect(),
            in_force: small(&after, 4) != 0,
            held_back: (small(&after, 8) as i32) < 0,
        })
    }
}

/// `GPU-6b2c…` or `MIG-…`, and nothing else that a container would like to have written into a trace.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'/')
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with these limits, of the container's processes.
    pub(in super::super) fn file(region: &Region) -> Vec<u8> {
        let mut out = vec![0; AFTER + 72];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &VERSION.to_le_bytes());
        put(8, &2_u32.to_le_bytes());
        put(DEVICE_COUNT, &(region.limits.len() as u64).to_le_bytes());
        for (device, limit) in region.limits.iter().enumerate() {
            put(UUIDS + device * UUID, limit.uuid.as_bytes());
            put(MEMORY_LIMITS + 8 * device, &limit.memory.to_le_bytes());
            put(SM_LIMITS + 8 * device, &limit.sm.to_le_bytes());
        }
        for (slot, pid) in region.processes.iter().enumerate() {
            put(SLOTS + slot * SLOT, &7_u32.to_le_bytes());
            put(SLOTS + slot * SLOT + 4, &pid.to_le_bytes());
        }
        put(AFTER, &(region.processes.len() as u32).to_le_bytes());
        put(AFTER + 4, &u32::from(region.in_force).to_le_bytes());
        put(AFTER + 8, &(if region.held_back { -1_i32 } else { 2 }).to_le_bytes());
        out
    }

    fn read(bytes: &[u8]) -> Result<Region, Unread> {
        Region::read(|to, at| {
            let from = bytes.get(at as usize..).and_then(|rest| rest.get(..to.len()));
            to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    pub(in super::super) fn limit(uuid: &str, memory: u64, sm: u64) -> Limit {
        Limit { uuid: uuid.into(), memory, sm }
    }

    #[test]
    fn the_structure_has_the_size_that_a_compiler_gives_it() {
        // `sizeof(shared_region_t)`: `last_kernel_time` and a semaphore of 32 bytes lie behind four numbers of 4 bytes.
        assert_eq!(AFTER + 16 + 8 + 32, 2_008_952);
        assert_eq!(SLOT, 8 + 16 * 64 + 16 * 8 + 16 * 48 + 8 + 8 + 16);
        assert_eq!(SLOTS, UUIDS + 16 * UUID + 16 * 8 + 16 * 8);
    }

    #[test]
    fn limits_and_processes_are_read_and_what_is_odd_is_left_out() {
        let region = Region {
            limits: vec![limit("GPU-6b2c-1", 8 << 30, 50), limit("MIG-7", 0, 0)],
            processes: vec![4242, 4243],
            in_force: true,
            held_back: true,
        };
        let mut bytes = file(&region);
        assert_eq!(read(&bytes), Ok(region.clone()));
        // More devices and processes than there can be; a name that is none; a process that is not known yet.
        bytes[DEVICE_COUNT] = 200;
        bytes[AFTER + 1] = 200;
        bytes[UUIDS + UUID + 2] = b'\n';
        bytes[SLOTS + 4..SLOTS + 8].fill(0);
        let odd = read(&bytes).unwrap();
        assert_eq!((odd.limits, odd.processes), (region.limits[..1].to_vec(), vec![4243]));
        for length in [0, 4, SLOTS - 1, AFTER + 11] {
            assert_eq!(read(&bytes[..length]), Err(Unread::Other), "{length} bytes");
        }
        bytes[4] = 2;
        assert_eq!(read(&bytes), Err(Unread::Version(2, 2)));
        bytes[0] ^= 1;
        assert_eq!(read(&bytes), Err(Unread::Other));
    }
}
