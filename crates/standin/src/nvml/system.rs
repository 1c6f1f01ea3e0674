//! Sessions and versions.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::Ordering::Relaxed;

use super::handle::{SESSIONS, initialized, text};
use super::{Code, Status, status};
use crate::c::{Out, Static};
use crate::machine::{cuda_version, machine};

/// Opens a session.
fn begin() -> Status {
    machine().ok_or(Code::DriverNotLoaded)?;
    SESSIONS.fetch_add(1, Relaxed);
    Ok(())
}

exported! {
    fn nvmlInit_v2() { begin() }
    fn nvmlInit() { begin() }
    fn nvmlInitWithFlags(_flags: c_uint) { begin() }

    fn nvmlShutdown() {
        match SESSIONS.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Code::Uninitialized),
        }
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        initialized()?;
        text(version, length, if cuda_version() >= 13000 { "580.126.09" } else { "570.86.10" })
    }

    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        initialized()?;
        text(version, length, if cuda_version() >= 13000 { "13.580.126.09" } else { "12.570.86.10" })
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        Ok(version.put(cuda_version() as c_int)?)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        Ok(version.put(cuda_version() as c_int)?)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) {
        initialized()?;
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let comm = comm.map_err(|_| Code::NotFound)?;
        // Cut to the buffer, as the real library does.
        let kept: String = comm.trim_end().chars().take((length as usize).saturating_sub(1)).collect();
        text(name, length, &kept)
    }
}

/// The message of a code. Returns text and no code, so it is not `exported!`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: u32) -> Static {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        25 => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    }
    .into()
}
