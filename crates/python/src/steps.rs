//! Steps of engines, from the calls of their functions: which step a thread is in, and what is summed in it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use gpuwhy_wire::{Event, NameId, now};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::late::{self, Name, write};
use crate::marks::next_step;

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
    /// The same, whether somebody listens or not.
    Always,
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
            "always" => Kind::Always,
            "summed" => Kind::Summed,
            _ => return None,
        })
    }
}

/// The step that a thread is in.
#[derive(Clone, Copy)]
struct Current {
    /// The ring's that this is written to: a step that began in another one is none here.
    generation: u64,
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

const NONE: Current = Current {
    generation: 0,
    depth: 0,
    seq: None,
    name: NameId(0),
    size: None,
    start: 0,
    goes_on: false,
    last: 0,
};

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
            let generation = late::generation();
            if current.generation != generation {
                current = Current { generation, ..NONE };
            }
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
pub fn end(kind: Kind, name: &Name, start: u64, end: u64, is_none: bool) {
    match kind {
        Kind::Phase => phase(name, start, end),
        Kind::Hook | Kind::Always => {}
        Kind::Summed => _ = ALLOCATED.fetch_add(end.saturating_sub(start), Relaxed),
        Kind::Step | Kind::Begins => with(|current| {
            current.depth = current.depth.saturating_sub(1);
            if current.depth > 0 {
                let (step, dur) = (current.seq, end.saturating_sub(start));
                write(|ring| Event::Phase { name: name.of(ring), step, start, dur });
                return;
            }
            if current.seq.is_none() {
                // Nothing was to be done.
                *current = NONE;
                return;
            }
            current.name = late::with(|ring| name.of(ring)).unwrap_or(NameId(0));
            (current.start, current.last) = (start, end);
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
    if let Current { seq: Some(seq), name, size, start, generation, .. } = *current {
        let rank = RANK.load(Relaxed).checked_sub(1).map(|rank| rank as u32);
        let dur = end.saturating_sub(start);
        late::with(|ring| {
            if ring.generation == generation {
                ring.write(Event::Step { name, seq, size, rank, start, dur });
            }
        });
    }
    *current = NONE;
}

#[inline]
fn phase(name: &Name, start: u64, end: u64) {
    let step = with(|current| {
        if current.depth == 0 && !current.goes_on {
            return None;
        }
        current.last = end;
        Some(*current.seq.get_or_insert_with(next_step))
    });
    let dur = end.saturating_sub(start);
    write(|ring| Event::Phase { name: name.of(ring), step, start, dur });
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
    late::say(late::Said::Notice(format!("gpuwhy: a hook is given up: {kind}"), None));
}

/// What a part of an engine's work is called here.
#[pyclass(frozen)]
struct Label(Name);

/// A part of the step around it, of a name that an engine gave it.
#[pyclass(frozen, freelist = 64)]
pub struct Scope {
    /// `None` is summed.
    label: Option<Py<Label>>,
    /// 0 where nobody listens.
    start: AtomicU64,
    listens: bool,
}

#[pymethods]
impl Scope {
    fn __enter__(&self) {
        if self.listens {
            self.start.store(now(), Relaxed);
        }
    }

    fn __exit__(
        &self,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _place: &Bound<'_, PyAny>,
    ) {
        let start = self.start.swap(0, Relaxed);
        if start == 0 {
            return;
        }
        match &self.label {
            Some(label) => phase(&label.get().0, start, now()),
            None => _ = ALLOCATED.fetch_add(now().saturating_sub(start), Relaxed),
        }
    }
}

/// What an engine calls to name parts of its work.
#[pyclass(frozen)]
pub struct Scopes {
    /// The labels by the engine's own names; `None` is summed.
    labels: Py<PyDict>,
}

/// How many names of an engine are told apart.
const LABELS: usize = 256;

#[pymethods]
impl Scopes {
    /// `names` are the spans by the engine's own names; `None` is summed, others keep their own.
    #[new]
    fn new(names: Bound<'_, PyDict>) -> PyResult<Scopes> {
        let labels = PyDict::new(names.py());
        for (own, span) in names {
            match span.is_none() {
                true => labels.set_item(own, span)?,
                false => labels
                    .set_item(own, Label(Name::new(span.extract()?)).into_pyobject(labels.py())?)?,
            }
        }
        Ok(Scopes { labels: labels.unbind() })
    }

    fn __call__(&self, py: Python<'_>, own: &Bound<'_, PyString>) -> PyResult<Scope> {
        let start = AtomicU64::new(0);
        if !late::is_on() {
            return Ok(Scope { label: None, start, listens: false });
        }
        let labels = self.labels.bind(py);
        let label = match labels.get_item(own)? {
            Some(known) if known.is_none() => None,
            Some(known) => Some(known.cast_into::<Label>()?.unbind()),
            // Names that an engine makes up without end share one.
            None => {
                let is_many = labels.len() > LABELS;
                let made = Label(Name::new(if is_many { "scope" } else { own.to_str()? }));
                let made = Py::new(py, made)?;
                if !is_many {
                    labels.set_item(own, &made)?;
                }
                Some(made)
            }
        };
        Ok(Scope { label, start, listens: true })
    }
}
