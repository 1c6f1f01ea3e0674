//! Steps of engines, from the calls of their functions: which step a thread is in, and what is summed in it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_wire::{Event, NameId, now};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::marks::{name, next_step, ring};

/// What calls of a wrapped function are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A part of the step around it.
    Phase,
    /// A step, if anything was recorded in it.
    Step,
    /// A step that goes on after the call where that returned nothing.
    Begins,
    /// The end of such a step, and a part of it.
    Ends,
    /// Nothing but what its hooks make of it.
    Hook,
    /// Summed over a step: see [`allocated`].
    Summed,
}

impl Kind {
    /// By its name.
    pub fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "phase" => Kind::Phase,
            "step" => Kind::Step,
            "begins" => Kind::Begins,
            "ends" => Kind::Ends,
            "hook" => Kind::Hook,
            "summed" => Kind::Summed,
            _ => return None,
        })
    }
}

/// The step that a thread is in.
#[derive(Clone, Copy)]
struct Current {
    /// Calls of steps inside each other; 0 between the two halves of one as well.
    depth: u32,
    /// Its number, once anything was recorded in it.
    seq: Option<u64>,
    name: NameId,
    size: Option<i64>,
    start: u64,
    /// Whether it began in a call that is over.
    goes_on: bool,
    /// When its last part ended.
    last: u64,
}

const NONE: Current =
    Current { depth: 0, seq: None, name: NameId(0), size: None, start: 0, goes_on: false, last: 0 };

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(NONE) };
}

/// Time that went into giving out memory since it was last asked for, ns.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
/// The rank that steps are of, plus one.
static RANK: AtomicU64 = AtomicU64::new(0);

fn with<T: Default>(f: impl FnOnce(&mut Current) -> T) -> T {
    // A thread that is being torn down is in no step.
    CURRENT
        .try_with(|cell| {
            let mut current = cell.get();
            let result = f(&mut current);
            cell.set(current);
            result
        })
        .unwrap_or_default()
}

/// A wrapped function is called.
#[inline]
pub fn begin(kind: Kind) {
    if matches!(kind, Kind::Step | Kind::Begins) {
        with(|current| {
            if current.goes_on && current.depth == 0 {
                // Its second half never came.
                write_step(current, current.last);
            }
            current.depth += 1;
        });
    }
}

/// It has returned.
#[inline]
pub fn end(kind: Kind, name: NameId, start: u64, end: u64, is_none: bool) {
    match kind {
        Kind::Phase => phase(name, start, end),
        Kind::Hook => {}
        Kind::Summed => _ = ALLOCATED.fetch_add(end.saturating_sub(start), Relaxed),
        Kind::Step | Kind::Begins => with(|current| {
            current.depth = current.depth.saturating_sub(1);
            if current.depth > 0 {
                let dur = end.saturating_sub(start);
                ring().write(Event::Phase { name, step: current.seq, start, dur });
                return;
            }
            if current.seq.is_none() {
                // Nothing was to be done.
                *current = NONE;
                return;
            }
            (current.name, current.start, current.last) = (name, start, end);
            if kind == Kind::Begins && is_none {
                current.goes_on = true;
            } else {
                write_step(current, end);
            }
        }),
        Kind::Ends => {
            phase(name, start, end);
            with(|current| {
                if current.goes_on && current.depth == 0 {
                    write_step(current, end);
                }
            });
        }
    }
}

fn write_step(current: &mut Current, end: u64) {
    if let Current { seq: Some(seq), name, size, start, .. } = *current {
        let rank = RANK.load(Relaxed).checked_sub(1).map(|rank| rank as u32);
        let dur = end.saturating_sub(start);
        ring().write(Event::Step { name, seq, size, rank, start, dur });
    }
    *current = NONE;
}

#[inline]
fn phase(name: NameId, start: u64, end: u64) {
    let step = with(|current| {
        if current.depth == 0 && !current.goes_on {
            return None;
        }
        current.last = end;
        Some(*current.seq.get_or_insert_with(next_step))
    });
    ring().write(Event::Phase { name, step, start, dur: end.saturating_sub(start) });
}

/// The number of the step that the caller is in, which has this size; `None` outside of steps, and inside of a
/// step that has a size already.
pub fn sized(size: i64) -> Option<u64> {
    with(|current| {
        if current.depth == 0 || current.size.is_some() {
            return None;
        }
        current.size = Some(size);
        Some(*current.seq.get_or_insert_with(next_step))
    })
}

/// Whether the caller is in a step inside of another.
pub fn is_inner() -> bool {
    with(|current| current.depth > 1)
}

/// Time that went into giving out memory since the last call, ns.
pub fn allocated() -> u64 {
    ALLOCATED.swap(0, Relaxed)
}

/// The rank that steps of this process are of.
#[pyfunction]
pub fn set_rank(rank: u32) {
    RANK.store(u64::from(rank) + 1, Relaxed);
}

/// A hook failed too often and is not called any more. Of the error only its kind is told: its text may say
/// anything.
pub fn gave_up(py: Python<'_>, error: Option<PyErr>) {
    let kind = error.and_then(|error| error.get_type(py).name().ok());
    let kind = kind.map_or_else(|| "nothing".to_owned(), |kind| kind.to_string());
    ring().mark(&*format!("gpuwhy: a hook is given up: {kind}"), None);
}

/// A part of the step around it, of a name that an engine gave it.
#[pyclass(frozen, freelist = 64)]
pub struct Scope {
    /// `None` is summed.
    name: Option<NameId>,
    start: AtomicU64,
}

#[pymethods]
impl Scope {
    fn __enter__(&self) {
        self.start.store(now(), Relaxed);
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _place: &Bound<'_, PyAny>,
    ) {
        let (start, end) = (self.start.swap(0, Relaxed), now());
        match self.name {
            _ if start == 0 => {}
            Some(name) => phase(name, start, end),
            None => _ = ALLOCATED.fetch_add(end.saturating_sub(start), Relaxed),
        }
    }
}

/// What an engine calls to name parts of its work.
#[pyclass(frozen)]
pub struct Scopes {
    names: Py<PyDict>,
}

#[pymethods]
impl Scopes {
    /// `names` are the spans by the engine's own names; `None` is summed, others keep their own.
    #[new]
    fn new(names: Bound<'_, PyDict>) -> Scopes {
        Scopes { names: names.unbind() }
    }

    fn __call__(&self, py: Python<'_>, own: &Bound<'_, PyString>) -> PyResult<Scope> {
        let known = self.names.bind(py).get_item(own)?;
        let name = match known {
            Some(known) if known.is_none() => None,
            // The number that it was given the first time.
            Some(known) => match known.extract::<u32>() {
                Ok(number) => Some(NameId(number)),
                Err(_) => {
                    let number = name(known.extract()?);
                    self.names.bind(py).set_item(own, number.0)?;
                    Some(number)
                }
            },
            None => {
                // Names that an engine makes up without end share one.
                let is_many = self.names.bind(py).len() > 256;
                let number = name(if is_many { "scope" } else { own.to_str()? });
                if is_many {
                    return Ok(Scope { name: Some(number), start: AtomicU64::new(0) });
                }
                self.names.bind(py).set_item(own, number.0)?;
                Some(number)
            }
        };
        Ok(Scope { name, start: AtomicU64::new(0) })
    }
}
