//! The one device of this process, and the clocks that the libraries tell their times in.

use std::sync::OnceLock;

use gpuwhy_testkit::gpu::Machine;
use gpuwhy_testkit::sys;

/// The device, or none if there is no driver.
pub fn machine() -> Option<&'static Machine> {
    static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| match Machine::from_env() {
        Ok(machine) => Some(machine),
        Err(error) => {
            // A real library is silent here, but whoever runs a test wants to know.
            eprintln!("gpuwhy-standin: {error:#}");
            None
        }
    });
    machine.as_ref()
}

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    sys::now()
}

/// CLOCK_REALTIME, ns.
pub fn realtime() -> u64 {
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as u64,
        Err(_) => 0,
    }
}

/// CLOCK_REALTIME - CLOCK_MONOTONIC, asked once, so that the same time is always told the same.
pub fn epoch() -> u64 {
    static EPOCH: OnceLock<u64> = OnceLock::new();
    *EPOCH.get_or_init(|| realtime() - now())
}

/// This process.
pub fn pid() -> u32 {
    std::process::id()
}

/// A number from the environment.
pub fn env_number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Version of the driver, as `cuDriverGetVersion` has it.
pub fn cuda_version() -> u32 {
    env_number("GPUWHY_STANDIN_CUDA").unwrap_or(13000)
}
