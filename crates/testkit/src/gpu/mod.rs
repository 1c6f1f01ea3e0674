//! The scripted machine: GPUs that live in a page of shared memory, so that everything that uses
//! a GPU can be tested where there is none.
//!
//! The file `device` in the directory that [`ENV`] names is mapped by every process that takes
//! part: the stand-ins for `libnvidia-ml`, `libcuda` and `libcupti` (crate `gpuwhy-standin`), and
//! the processes that script what happens (tests, `gpu-fault`). It holds only atomics of 64 bits,
//! so any bytes in it are valid and a process that dies cannot corrupt it for the others. The first
//! process that opens the directory creates the file, under a lock of the file; a file of another
//! size, magic or version is refused, never repaired. Times are CLOCK_MONOTONIC ns.
//!
//! | file | what it holds |
//! |---|---|
//! | `machine` | opening a machine, its GPUs and CUPTI's defects |
//! | `layout` | what lies where in the shared page |
//! | `quantity` | the values and counters of a GPU |
//! | `engine` | when kernels and copies run: how processes share a GPU |
//! | `readings` | what a GPU is and reports, as NVML would |
//! | `faults` | throttling, bad links, Xids, falling off the bus |
//! | `libraries` | NVIDIA's library names as links to the stand-in, and the environment of its users |

mod defect;
mod engine;
mod faults;
mod layout;
mod libraries;
mod machine;
mod quantity;
mod readings;
#[cfg(test)]
mod tests;
mod windows;

pub use defect::Defect;
pub use engine::{Direction, Run, SLICE_NS, Turn, Turns};
pub use layout::{GPUS, Gpu, MIGS, PROCESSES, RESERVED_BYTES, XIDS, uuid_text};
pub use libraries::{Environment, LIBRARY_NAMES, find_standin, link_libraries};
pub use machine::{ENV, ENV_DEFECTS, ENV_GPUS, FILE, Machine};
pub use quantity::{Quantity, ThrottleTime, reason};
pub use readings::{Process, Xid};
pub use windows::{PROCESS_UTILISATION_NS, UTILISATION_NS};
