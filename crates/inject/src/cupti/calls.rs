//! The driver's calls that launch work: their names, and records of them switched on one by one.

use core::ffi::{CStr, c_char};

use gpuwhy_wire::NameId;

use super::{abi, library};
use crate::ring::Ring;

/// `cuptiGetCallbackName`.
type CallName = unsafe extern "C" fn(u32, u32, *mut *const c_char) -> abi::Status;

/// Calls have numbers below this (`CUpti_driver_api_trace_cbid`).
const CALLS: usize = 1024;

/// Switches the records of calls that launch on or off. The status of the last one that was switched.
pub fn switch(
    enable: unsafe extern "C" fn(u32, u8) -> abi::Status,
    name: CallName,
    on: bool,
) -> abi::Status {
    let mut failed = 0;
    for call in 1..CALLS as u32 {
        if call_name(name, call).is_some_and(launches) {
            // SAFETY: a function of CUPTI, called as its header says, from no callback.
            failed = unsafe { enable(call, on.into()) };
        }
    }
    failed
}

fn launches(call: &str) -> bool {
    ["cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"].iter().any(|p| call.starts_with(p))
}

fn call_name(name: CallName, call: u32) -> Option<&'static str> {
    let mut text = core::ptr::null();
    // SAFETY: the pointer is to our stack.
    if unsafe { name(abi::DOMAIN_DRIVER, call, &raw mut text) } != 0 || text.is_null() {
        return None;
    }
    // SAFETY: CUPTI gives a C string of its own, which stays.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Names of driver calls in the ring, by the calls' numbers.
pub struct CallNames {
    ids: [NameId; CALLS],
    generation: u64,
}

impl CallNames {
    /// No names yet.
    pub const fn new() -> CallNames {
        CallNames { ids: [NameId(0); CALLS], generation: 0 }
    }

    /// The name of a call; 0 for numbers that no call has.
    pub fn name(&mut self, call: u32, ring: &Ring) -> NameId {
        if self.generation != ring.generation {
            *self = CallNames { generation: ring.generation, ..CallNames::new() };
        }
        let Some(id) = self.ids.get_mut(call as usize) else { return NameId(0) };
        if *id == NameId(0) {
            let text = library::loaded().and_then(|cupti| call_name(cupti.call_name?, call));
            *id = ring.name(text.unwrap_or("launch"));
        }
        *id
    }
}
