//! System calls that the standard library does not have.
//!
//! Unsafe code of this crate lies in this folder and in [`crate::bpf`]'s, each piece with its
//! argument.

mod amdsmi;
mod clock;
mod descriptor;
mod files;
mod mapped;
mod memory;
mod nvidia;
mod perf_event;
mod priority;
mod privilege;
mod signal;

pub(crate) use amdsmi::AmdSmi;
pub use clock::{cpu_time, now, thread_time};
pub(crate) use clock::{monotonic, ns, sleep_until, suspended, wall};
pub use descriptor::inherited;
pub(crate) use files::{open_behind, open_in, open_of_process, path_of};
pub(crate) use mapped::Mapped;
pub use memory::release_free_memory;
pub(crate) use memory::{Spare, page_size, share_free_memory};
pub(crate) use nvidia::{Client, Command, Handle, Refused, put, word};
pub(crate) use perf_event::{counter, cpu_timer};
pub use priority::{IdlePriority, hurry, idle_priority, nice};
pub(crate) use privilege::{drop_capabilities, library_from_env};
pub use signal::{set_ignored, signal, sigpipe_was_ignored};
