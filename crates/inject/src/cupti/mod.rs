//! CUDA: kernels and copies, from CUPTI's activity records.
//!
//! *What it does.* The driver loads this object in `cuInit` (`CUDA_INJECTION64_PATH`) and calls
//! [`InitializeInjection`]. If the agent asks for kernels, activity records are switched on: kernels,
//! copies, memsets, waits for them, and launches of CUDA graphs as a whole; no callbacks of API calls,
//! which cost more than everything else (a throughput lower by 64 % was reported:
//! parca-dev/parca-agent #3213). The nodes of graphs, and the calls that launch, are recorded on
//! demand, and nodes for a part of the time if so asked. All of it is switched while the process runs.
//!
//! *What it watches*, since CUPTI in production fails in known ways:
//!
//! | what is seen | what it means | what is done |
//! |---|---|---|
//! | many records without times | the device's buffers have run out (parcagpu #23) | graphs are recorded as a whole; if they were already, recording ends |
//! | no buffer is free | records come faster than they are read, or CUPTI keeps what it got | noted, with CUPTI's own count of what it dropped |
//! | `cuptiSubscribe` returns 39 | another profiler is here, and CUPTI (before 13.2) serves one | it is left alone, and looked for again every 5 s |
//! | our own CPU time | | reported each second, beside the number of records |
//!
//! *What fools it.* Work that was launched before an agent asked is not seen. A profiler that registers
//! its callbacks in the place of ours without subscribing is not seen from here: the process looks
//! idle. The agent sees it, where the driver says that the process uses the device.
//!
//! | file | what it knows |
//! |---|---|
//! | `entry` | what the driver calls, and the end of the process |
//! | `session` | when CUPTI is opened, switched and given up |
//! | `callbacks` | buffers that CUPTI asks for and gives back, and the records in them |
//! | `records` | an activity record as an event |
//! | `calls`, `devices`, `names` | driver calls, GPUs and kernels by name |
//! | `buffers` | the memory that CUPTI fills |
//! | `library`, `abi` | CUPTI's functions, numbers and layouts |

mod abi;
mod buffers;
mod callbacks;
mod calls;
mod devices;
mod entry;
mod library;
mod names;
mod records;
mod session;

pub use entry::InitializeInjection;

use gpuwhy_wire::Settings;

use crate::tenant::Tenant;

/// CUPTI, as the connection to the agent sees it.
pub(crate) struct CuptiTenant;

impl Tenant for CuptiTenant {
    fn ask(&self, settings: Settings) {
        session::ask(settings);
    }

    fn tick(&self) {
        session::tick();
    }

    fn forget(&self) {
        session::forget_after_fork();
        callbacks::forget_after_fork();
    }
}
