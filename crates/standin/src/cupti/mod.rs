//! `libcupti`: activity records in the real layouts, and its known defects.
//!
//! The driver [reports](report) what it has scheduled. It is kept until its scripted end; then a
//! thread of this library writes it into the buffer that the client's callback returned, as a
//! record of the CUPTI version that `GPUWHY_STANDIN_CUPTI` sets. That thread completes full buffers
//! at once; the buffer in use is completed only by `cuptiActivityFlushAll`. If the client returns
//! no buffer, records are dropped and counted. Sizes and offsets are those of the headers of CUPTI
//! 13.0.85; of later versions only the sizes are known, and the fields that they append are 0.
//!
//! The timestamp callback is called while records are written, not when the work ran, and the times
//! of the work are shifted by the difference of the clocks, as the real library interpolates.
//!
//! The defects are those of [`gpuwhy_testkit::gpu::Defect`], checked at each record or call, so
//! that they can be switched on and off while a program runs.
//!
//! At the end of the process it is taken apart by an exit handler that it registered when it was first
//! used, as the real one; a flush after that ends the process with SIGABRT.
//!
//! What fools a reader: with KERNEL (3) instead of CONCURRENT_KERNEL (10) each launch waits for its
//! kernel; while GRAPH_TRACE (51) is on, the kernels of graphs are not reported.
//!
//! | file | what it holds |
//! |---|---|
//! | `activity` | what the driver reports |
//! | `settings` | what the client has enabled, and its callbacks |
//! | `pending` | activities that have not ended or are not delivered yet |
//! | `delivery` | the client's buffers, and what defects do to records |
//! | `records`, `encode` | the layouts of records by version, and filling them |
//! | `subscriber`, `activities` | the exported functions |
#![allow(non_snake_case)]

mod activities;
mod activity;
mod delivery;
mod encode;
mod pending;
mod records;
mod settings;
mod subscriber;

pub use activity::{Activity, CopyKind, MemoryKind, Operation, cbid};
pub use pending::{report, report_call, report_wait};
pub use settings::{serialises, traces_graphs};
pub use subscriber::has_subscriber;

codes! {
    /// `CUptiResult`, the codes that are returned here.
    null: InvalidParameter,
    InvalidParameter = 1,
    InvalidOperation = 7,
    ParameterSizeNotSufficient = 10,
    MaxLimitReached = 12,
    NotCompatible = 14,
    InvalidKind = 21,
    NotSupported = 27,
    MultipleSubscribers = 39,
}
