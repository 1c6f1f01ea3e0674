//! `libcuda`, as far as a workload of kernels, copies and graphs needs it.
//!
//! A kernel only takes time: its first parameter is a `u64`, the ns that it takes at the nominal
//! clock. That is a convention of this stand-in; everything else is the driver's interface. Copies
//! move no bytes, device addresses point to nothing, and module images are not read. A call that
//! waits for work sleeps until the end that was scheduled for it.
//!
//! With `GPUWHY_STANDIN_EXECUTES` ([`execute`]) kernels are executed: images are read (PTX, fat
//! binaries, cubins that carry their PTX), memory holds bytes, and a launch runs the kernel in the
//! simulator of `gpuwhy-gpubpf` before it returns.
//!
//! As the real driver does, `cuInit` loads the object that `CUDA_INJECTION64_PATH` names and calls
//! its `InitializeInjection`, once; `CUDA_VISIBLE_DEVICES` hides devices; a stream queues
//! [`QUEUE`](driver::QUEUE) launches, and then a launch waits.
//!
//! What it does not model: the null stream, which waits for all others; events; cooperative and
//! dependent launches. While a GPU is off the bus, calls fail with `CUDA_ERROR_LAUNCH_FAILED`;
//! after an Xid in this process's work they fail for good.
//!
//! | file | what it holds |
//! |---|---|
//! | `driver` | the state of this process |
//! | `submit` | scheduling work, and calls that wait and are reported to CUPTI |
//! | `code` | what is loaded where kernels are executed |
//! | `execute` | kernels that are executed, and memory that holds bytes |
//! | `paging` | which pages of managed memory lie on a device, and what that costs |
//! | `managed` | managed memory: its exported functions |
//! | `ledger` | what managed memory cost, for tests |
//! | `device`, `context`, `stream`, `graph`, `kernel`, `library`, `link`, `memory`, `error` | the exported functions |
//! | `sanitizer` | NVIDIA's Sanitizer, which tells of modules and launches and patches modules |
//! | `names` | `cuGetProcAddress` |
#![allow(non_snake_case, clippy::too_many_arguments)]

mod code;
mod context;
mod device;
mod driver;
mod error;
mod execute;
mod graph;
mod kernel;
mod ledger;
mod library;
mod link;
mod managed;
mod memory;
mod names;
mod paging;
mod sanitizer;
mod stream;
mod submit;

codes! {
    /// `CUresult`, the codes that are returned here.
    null: InvalidValue,
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    InvalidPtx = 218,
    InvalidHandle = 400,
    NotFound = 500,
    NotReady = 600,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
}
