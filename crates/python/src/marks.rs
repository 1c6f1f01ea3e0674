//! What Python calls.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_wire::Event;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::late::{self, Name, write};

/// How many steps the program has marked itself.
static OWN_STEPS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of this thread's next step.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

/// The number of this thread's next step.
pub(crate) fn next_step() -> u64 {
    // A thread that is being torn down counts from 0.
    NEXT.try_with(|next| next.replace(next.get().wrapping_add(1))).unwrap_or(0)
}

/// Whether there is a ring.
#[pyfunction]
pub fn is_on() -> bool {
    late::is_on()
}

/// CLOCK_MONOTONIC, ns.
#[pyfunction]
pub fn now() -> u64 {
    gpuwhy_wire::now()
}

/// Reports that something happened now, with a number that belongs to it.
#[pyfunction]
#[pyo3(signature = (name, value=None))]
pub fn mark(name: &str, value: Option<f64>) {
    let value = value.filter(|value| value.is_finite());
    write(|ring| Event::Mark { name: ring.name(name), at: now(), value });
}

/// The number of this thread's next step, which is given away by that.
#[pyfunction]
pub fn next_number() -> u64 {
    next_step()
}

/// The number of the step around the caller, if the program has marked one.
#[pyfunction]
pub fn current_step(py: Python<'_>) -> PyResult<Option<u64>> {
    current(py)?.call_method0("get")?.extract()
}

/// Writes a step from `start` to `end`, CLOCK_MONOTONIC ns; `seq` is its number on its thread, by default the next.
/// Gives the number.
#[pyfunction]
#[pyo3(signature = (name, start, end, size=None, rank=None, seq=None))]
pub fn write_step(
    name: &str,
    start: u64,
    end: u64,
    size: Option<i64>,
    rank: Option<u32>,
    seq: Option<u64>,
) -> u64 {
    let seq = seq.unwrap_or_else(next_step);
    let dur = end.saturating_sub(start);
    write(|ring| Event::Step { name: ring.name(name), seq, size, rank, start, dur });
    seq
}

/// Writes a phase from `start` to `end`, CLOCK_MONOTONIC ns, of step `step` of this thread or of none.
#[pyfunction]
#[pyo3(signature = (name, start, end, step=None))]
pub fn write_phase(name: &str, start: u64, end: u64, step: Option<u64>) {
    let dur = end.saturating_sub(start);
    write(|ring| Event::Phase { name: ring.name(name), step, start, dur });
}

/// The context variable that holds the number of the step that surrounds the caller, and which it resets to.
fn current(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = || {
        let options = PyDict::new(py);
        options.set_item("default", py.None())?;
        // The C module itself: `contextvars` would be one more import at start-up.
        let class = py.import("_contextvars")?.getattr("ContextVar")?;
        PyResult::Ok(class.call(("gpuwhy_step",), Some(&options))?.unbind())
    };
    Ok(CURRENT.get_or_try_init(py, make)?.bind(py))
}

/// A function with `scope` around each of its calls.
fn decorate<'py>(
    scope: &Bound<'py, PyAny>,
    function: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let wrap = scope.py().import("gpuwhy._decorate")?.getattr("wrap")?;
    wrap.call1((scope, function))
}

/// A part of a step, as a context manager or a decorator.
#[pyclass(name = "span", module = "gpuwhy", frozen)]
pub struct Span {
    name: Arc<Name>,
    start: AtomicU64,
    /// The step around it plus one; 0 for none.
    step: AtomicU64,
}

#[pymethods]
impl Span {
    #[new]
    fn new(name: &str) -> Span {
        let (start, step) = (AtomicU64::new(0), AtomicU64::new(0));
        Span { name: Name::new(name).into(), start, step }
    }

    fn __enter__<'a>(this: &'a Bound<'a, Span>) -> PyResult<&'a Bound<'a, Span>> {
        if is_on() {
            let step: Option<u64> = current(this.py())?.call_method0("get")?.extract()?;
            this.get().step.store(step.map_or(0, |step| step + 1), Relaxed);
            this.get().start.store(now(), Relaxed);
        }
        Ok(this)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyTuple>) {
        let start = self.start.swap(0, Relaxed);
        if start != 0 {
            let (step, dur) = (self.step.load(Relaxed), now().saturating_sub(start));
            let step = step.checked_sub(1);
            write(|ring| Event::Phase { name: self.name.of(ring), step, start, dur });
        }
    }

    /// Another of the same name, for the next call of a decorated function.
    fn again(&self) -> Span {
        let (start, step) = (AtomicU64::new(0), AtomicU64::new(0));
        Span { name: self.name.clone(), start, step }
    }

    fn __call__<'py>(
        this: &Bound<'py, Span>,
        function: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        decorate(this.as_any(), function)
    }
}

/// A step, as a context manager or a decorator.
#[pyclass(name = "step", module = "gpuwhy", frozen)]
pub struct Step {
    name: Arc<Name>,
    size: Option<i64>,
    rank: Option<u32>,
    start: AtomicU64,
    seq: AtomicU64,
    token: std::sync::Mutex<Option<Py<PyAny>>>,
}

impl Step {
    fn of(name: Arc<Name>, size: Option<i64>, rank: Option<u32>) -> Step {
        let (start, seq, token) = Default::default();
        Step { name, size, rank, start, seq, token }
    }
}

#[pymethods]
impl Step {
    #[new]
    #[pyo3(signature = (name="step", size=None, rank=None))]
    fn new(name: &str, size: Option<i64>, rank: Option<u32>) -> Step {
        Step::of(Name::new(name).into(), size, rank)
    }

    /// How many steps the program has marked itself.
    #[staticmethod]
    fn marked() -> u64 {
        OWN_STEPS.load(Relaxed)
    }

    fn __enter__<'a>(this: &'a Bound<'a, Step>) -> PyResult<&'a Bound<'a, Step>> {
        if is_on() {
            OWN_STEPS.fetch_add(1, Relaxed);
            let step = this.get();
            let seq = next_step();
            let token = current(this.py())?.call_method1("set", (seq,))?.unbind();
            *step.token.lock().unwrap_or_else(|e| e.into_inner()) = Some(token);
            step.seq.store(seq, Relaxed);
            let start = now();
            step.start.store(start, Relaxed);
            let Step { name, size, rank, .. } = step;
            let (size, rank) = (*size, *rank);
            write(|ring| Event::StepOpen { name: name.of(ring), seq, size, rank, start });
        }
        Ok(this)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(this: &Bound<'_, Step>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let step = this.get();
        let start = step.start.swap(0, Relaxed);
        if start != 0 {
            let (seq, dur) = (step.seq.load(Relaxed), now().saturating_sub(start));
            let Step { name, size, rank, .. } = step;
            let (size, rank) = (*size, *rank);
            write(|ring| Event::Step { name: name.of(ring), seq, size, rank, start, dur });
            let token = step.token.lock().unwrap_or_else(|e| e.into_inner()).take();
            // A context manager that ends in another context than it began in has nothing to reset.
            if let Some(token) = token {
                let _ = current(this.py())?.call_method1("reset", (token,));
            }
        }
        Ok(())
    }

    /// Another of the same name, for the next call of a decorated function.
    fn again(&self) -> Step {
        Step::of(self.name.clone(), self.size, self.rank)
    }

    fn __call__<'py>(
        this: &Bound<'py, Step>,
        function: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        decorate(this.as_any(), function)
    }
}
