//! The scripted machine of this process, and the clocks of the libraries' timestamps.

use std::sync::OnceLock;

use gpuwhy_testkit::gpu::Machine;
use gpuwhy_testkit::sys;

/// The machine; without one there is no driver.
pub fn machine() -> Option<&'static Machine> {
    static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| match Machine::from_env() {
        Ok(machine) => Some(machine),
        Err(error) => {
            // A real library prints nothing here, but a test should say why it has no GPU.
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

/// CLOCK_REALTIME - CLOCK_MONOTONIC, read once, so that the same time always has the same
/// timestamp.
pub fn epoch() -> u64 {
    static EPOCH: OnceLock<u64> = OnceLock::new();
    *EPOCH.get_or_init(|| realtime() - now())
}

/// The id of this process.
pub fn pid() -> u32 {
    std::process::id()
}

/// A number from an environment variable; `None` if it is unset or no number.
pub fn env_number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Version of the driver, as `cuDriverGetVersion` returns it.
pub fn cuda_version() -> u32 {
    env_number("GPUWHY_STANDIN_CUDA").unwrap_or(13000)
}
