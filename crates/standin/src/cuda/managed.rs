//! Managed memory ([`super::paging`]), where kernels are executed: its exported functions.

use std::ffi::{c_int, c_uint};

use super::driver::{Driver, Handle, driver};
use super::execute::executes;
use super::ledger::note;
use super::paging::{Advice, PAGE, Paging};
use super::{Code, Status, status};
use crate::c::Out;
use crate::machine::{cuda_version, env_number, now};

/// `CU_DEVICE_CPU`.
const HOST: c_int = -1;

/// `CUmemLocation`: what it is (1: a device, 2: the host), and its number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: c_int,
    number: c_int,
}

impl Location {
    /// The device's ordinal, or the host.
    fn place(self) -> Result<c_int, Code> {
        match self.kind {
            1 if self.number >= 0 => Ok(self.number),
            2 => Ok(HOST),
            _ => Err(Code::InvalidValue),
        }
    }
}

impl Driver {
    /// The managed memory of the current context's device, and the device.
    fn managed(&mut self) -> Result<(&mut Paging, usize), Code> {
        let device = self.current()?.1.device;
        let room = || match env_number("GPUWHY_STANDIN_MANAGED_MIB") {
            Some(mib) => ((u64::from(mib) << 20) / PAGE) as usize,
            None => usize::MAX,
        };
        Ok((self.code.paging.entry(device).or_insert_with(|| Paging::new(room())), device))
    }

    /// The managed memory in which a range lies, of a device that it is moved to or advised about.
    fn range(&mut self, at: u64, bytes: usize, place: c_int) -> Result<&mut Paging, Code> {
        let (paging, device) = self.managed()?;
        if !paging.holds(at, bytes as u64) {
            return Err(Code::InvalidValue);
        }
        // Other devices would map it, which nothing here does.
        let is = place == HOST || usize::try_from(place) == Ok(device);
        if is { Ok(paging) } else { Err(Code::InvalidDevice) }
    }
}

fn prefetch(at: u64, bytes: usize, place: c_int, stream: Handle) -> Status {
    let mut driver = driver()?;
    driver.stream(stream)?;
    let paging = driver.range(at, bytes, place)?;
    let (moved_in, moved_out) = match place {
        HOST => (0, paging.prefetch_to_host(at, bytes as u64, now())),
        _ => paging.prefetch(at, bytes as u64, now()),
    };
    note(&format_args!("prefetch {bytes} {moved_in} {moved_out}"));
    Ok(())
}

fn advise(at: u64, bytes: usize, advice: c_uint, place: c_int) -> Status {
    let what = match (advice, place) {
        (1 | 2, _) => Advice::ReadMostly(advice == 1),
        (3, HOST) => Advice::PreferHost,
        (3, _) => Advice::PreferDevice,
        (4, _) => Advice::NoPreference,
        (5 | 6, _) => Advice::Accessed(advice == 5),
        _ => return Err(Code::InvalidValue),
    };
    driver()?.range(at, bytes, place)?.advise(at, bytes as u64, what);
    note(&format_args!("advise {advice} {bytes}"));
    Ok(())
}

/// The functions with a place came with CUDA 12.2.
fn has_places() -> Status {
    if cuda_version() >= 12020 { Ok(()) } else { Err(Code::NotSupported) }
}

exported! {
    /// Attached to all streams, or to the host's (`CU_MEM_ATTACH_…`): not looked at.
    fn cuMemAllocManaged(to: Out<u64>, bytes: usize, _flags: c_uint) {
        if !executes() {
            return Err(Code::NotSupported);
        }
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        let mut driver = driver()?;
        let (_, context) = driver.current()?;
        let device = driver.device(context.device);
        let at = device.allocate_pages(bytes as u64, PAGE).ok_or(Code::OutOfMemory)?;
        driver.managed()?.0.add(at, bytes as u64);
        Ok(to.put(at)?)
    }

    fn cuMemPrefetchAsync(at: u64, bytes: usize, device: c_int, stream: Handle) {
        prefetch(at, bytes, device, stream)
    }

    fn cuMemPrefetchAsync_v2(
        at: u64, bytes: usize, place: Location, _flags: c_uint, stream: Handle,
    ) {
        has_places()?;
        prefetch(at, bytes, place.place()?, stream)
    }

    fn cuMemAdvise(at: u64, bytes: usize, advice: c_uint, device: c_int) {
        advise(at, bytes, advice, device)
    }

    fn cuMemAdvise_v2(at: u64, bytes: usize, advice: c_uint, place: Location) {
        has_places()?;
        advise(at, bytes, advice, place.place()?)
    }
}
