//! The system calls that the workload and the injectors need and that std does not have.
//!
//! Apart from the calls of `libcuda` (`cuda.rs`) and the declarations of what lies in shared
//! memory, all unsafe code of this crate is here.

mod clock;
mod file;
#[cfg(target_arch = "x86_64")]
pub mod kvm;
mod memory;
mod perf_event;
mod process;
mod pty;
mod random;
mod scheduling;
mod shared;
mod wait;

use std::io;

pub use clock::{now, process_cpu, set_exact_timers, sleep_until, thread_cpu};
pub use file::{allocate, drop_cache};
pub use memory::{Aligned, Memory};
pub use perf_event::sample_cpu;
pub use process::{
    become_user, die_with_parent, duplicate, enter_netns, kill, new_netns, new_pidns,
};
pub(crate) use process::{has_ended, is_alive};
pub use pty::{Modes, Pty};
pub use random::{Random, fill};
pub use scheduling::{
    Switches, cpus, interrupt, pin, raise_weight, run_when_idle, set_comm, set_fifo,
    survive_interrupts, switches, thread_id,
};

pub use shared::{InSharedMemory, Shared, SharedMutex, SharedMutexGuard};
pub use wait::{Ended, Waiter, unblock_signals, wait_for_sockets};

/// The error of a call that returns 0 for success and sets `errno` otherwise.
fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The error of a call that returns 0 or an `errno`.
fn check_errno(errno: libc::c_int) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
