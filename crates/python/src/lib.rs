//! Steps, spans and marks of Python programs, written natively into the ring.
//!
//! This is the module `gpuwhy._native`; what users call is in `python/gpuwhy`. Nothing here raises an exception in a
//! program that is recorded: without a ring every call is a branch, and arguments that make no sense are left out.
//!
//! A step is known to the spans inside it through a context variable, as Python's own asyncio does it: tasks that
//! take turns on one thread have steps of their own.

#![deny(unsafe_op_in_unsafe_fn)]

mod batch;
mod collectives;
mod late;
mod marks;
mod steps;
mod wrap;

/// The module.
#[pyo3::pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::batch::{
        batch_made, batch_output, batch_received, forked, front_finished, front_outputs,
        request_arrived, request_finished, request_preempted, worker_output,
    };
    #[pymodule_export]
    use crate::collectives::{write_collective, write_communicator};
    #[pymodule_export]
    use crate::late::{listen, notice, open};
    #[pymodule_export]
    use crate::marks::{
        Span, Step, current_step, is_on, mark, next_number, now, write_phase, write_step,
    };
    #[pymodule_export]
    use crate::steps::{Scopes, set_rank};
    #[pymodule_export]
    use crate::wrap::wrap;
}
