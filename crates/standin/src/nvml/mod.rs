//! `libnvidia-ml`, as far as `nvml-wrapper` 0.13 and a sampler use it.
//!
//! Handles are numbers: of a GPU, or of one of its MIG instances. The lags are those of the real
//! library: utilisation is that of the last whole 167 ms, that of processes covers whole seconds,
//! and PCIe throughput is measured over 20 ms while the caller waits. Timestamps are µs of
//! CLOCK_REALTIME.
//!
//! What fools a reader of the real library is here too: with MIG on, the GPU itself has no
//! utilisation; for a GPU off the bus every call fails with 15, and so does the wait for events, at
//! once and each time, so that a client that does not pause spins.
//!
//! | file | what it holds |
//! |---|---|
//! | `handle` | sessions, device handles, passing values to the caller |
//! | `system`, `devices`, `mig` | versions; which devices there are and what they are |
//! | `clocks`, `utilisation`, `processes`, `memory` | what they do |
//! | `links`, `memory_errors`, `events` | PCIe and NVLink; ECC; Xids |
//! | `fields` | the same by field id |
//! | `virtual_gpus` | virtual GPUs of a host, and the log of their scheduler |
//! | `unsupported` | functions that exist and return NOT_SUPPORTED |
#![allow(non_snake_case, clippy::too_many_arguments)]

mod clocks;
mod devices;
mod events;
mod fields;
mod handle;
mod links;
mod memory;
mod memory_errors;
mod mig;
mod processes;
mod system;
mod unsupported;
mod utilisation;
mod virtual_gpus;

codes! {
    /// `nvmlReturn_t`, the codes that are returned here.
    null: InvalidArgument,
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    GpuIsLost = 15,
    VersionMismatch = 25,
}
