//! Steps, spans and marks of Python programs, written natively into the ring.
//!
//! This is the module `gpuwhy._native`; what users call is in `python/gpuwhy`. Nothing here raises an exception in a
//! program that is recorded: without a ring every call is a branch, and arguments that make no sense are left out.
//!
//! A step is known to the spans inside it through a context variable, as Python's own asyncio does it: tasks that
//! take turns on one thread have steps of their own.

#![forbid(unsafe_code)]

mod collectives;
mod marks;

/// The module.
#[pyo3::pymodule]
#[pyo3(name = "_native")]
mod native {
    #[pymodule_export]
    use crate::collectives::{write_collective, write_communicator};
    #[pymodule_export]
    use crate::marks::{
        Span, Step, current_step, is_on, mark, next_number, now, open, write_phase, write_step,
    };
}
