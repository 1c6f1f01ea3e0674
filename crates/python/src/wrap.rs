//! Functions with a record around each of their calls, and no frame of Python.
//!
//! A wrapper is an object of a type that Python calls as it calls a function of C: the arguments are handed on as
//! they lie. It binds as a method where the function did, and has the function's other attributes. What it does
//! is told by [`Kind`]; hooks of Python may look at arguments and result.
//!
//! The type is made by hand, as the stable interface of Python 3.10 has no such types. Two of the functions that it
//! lacks are there, with these arguments, in every CPython from 3.8 on; the third is from 3.11 on, and is replaced
//! by a slower way before.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{addr_of_mut, null_mut};
use std::sync::OnceLock;

use gpuwhy_wire::now;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::late::{self, Name};
use crate::steps::{self, Kind};

/// Hooks that fail so often are not called any more.
const PATIENCE: u32 = 3;
/// The bit of the number of arguments that is no number.
const OFFSET_BIT: usize = 1 << (usize::BITS - 1);

type Vectorcall = unsafe extern "C" fn(
    *mut PyObject,
    *const *mut PyObject,
    usize,
    *mut PyObject,
) -> *mut PyObject;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn PyVectorcall_Call(
        callable: *mut PyObject,
        args: *mut PyObject,
        kwargs: *mut PyObject,
    ) -> *mut PyObject;
    fn PyMethod_New(function: *mut PyObject, of: *mut PyObject) -> *mut PyObject;
}

/// `PyObject_Vectorcall`, or what does the same.
static VECTORCALL: OnceLock<Vectorcall> = OnceLock::new();

/// # Safety
/// As `PyObject_Vectorcall`: with the GIL, and arguments that live until it returns.
#[inline]
#[expect(non_snake_case, reason = "it is called as Python calls it")]
unsafe fn PyObject_Vectorcall(
    callable: *mut PyObject,
    args: *const *mut PyObject,
    nargsf: usize,
    kwnames: *mut PyObject,
) -> *mut PyObject {
    let way = VECTORCALL.get().copied().unwrap_or(by_tuple);
    // SAFETY: both ways take the same arguments.
    unsafe { way(callable, args, nargsf, kwnames) }
}

/// The call as Python 3.10 lets one make it: by a tuple and a dictionary.
unsafe extern "C" fn by_tuple(
    callable: *mut PyObject,
    args: *const *mut PyObject,
    nargsf: usize,
    kwnames: *mut PyObject,
) -> *mut PyObject {
    let nargs = nargsf & !OFFSET_BIT;
    // SAFETY: the arguments are as `PyObject_Vectorcall` takes them: so many by position, and behind them one for
    // each name. `PyTuple_SetItem` takes a reference, which is made for it; the other calls take none.
    unsafe {
        let tuple = ffi::PyTuple_New(nargs as Py_ssize_t);
        if tuple.is_null() {
            return null_mut();
        }
        for i in 0..nargs {
            let argument = *args.add(i);
            ffi::Py_INCREF(argument);
            ffi::PyTuple_SetItem(tuple, i as Py_ssize_t, argument);
        }
        let mut named = null_mut();
        if !kwnames.is_null() {
            named = ffi::PyDict_New();
            for i in 0..ffi::PyTuple_Size(kwnames) {
                let name = ffi::PyTuple_GetItem(kwnames, i);
                if named.is_null()
                    || ffi::PyDict_SetItem(named, name, *args.add(nargs + i as usize)) != 0
                {
                    ffi::Py_XDECREF(named);
                    ffi::Py_DECREF(tuple);
                    return null_mut();
                }
            }
        }
        let result = ffi::PyObject_Call(callable, tuple, named);
        ffi::Py_XDECREF(named);
        ffi::Py_DECREF(tuple);
        result
    }
}

/// Finds the way to call that this Python has.
fn find_vectorcall() {
    // SAFETY: a name that ends in a zero, looked for in all that is loaded; what is found is a function of these
    // arguments, in every Python that has it.
    let found = unsafe { dlsym(null_mut(), c"PyObject_Vectorcall".as_ptr()) };
    let way = match found.is_null() {
        true => by_tuple as Vectorcall,
        // SAFETY: as above.
        false => unsafe { std::mem::transmute::<*mut c_void, Vectorcall>(found) },
    };
    let _ = VECTORCALL.set(way);
}

/// A wrapper as it lies in memory, behind what every object has.
#[repr(C)]
struct Wrapper {
    head: PyObject,
    vectorcall: Option<Vectorcall>,
    function: *mut PyObject,
    before: *mut PyObject,
    after: *mut PyObject,
    /// A box of the wrapper's own.
    name: *mut Name,
    kind: Kind,
    failures: u32,
}

/// Where the type's members begin: `PyMemberDef` of the stable interface.
#[repr(C)]
struct Member {
    name: *const c_char,
    kind: c_int,
    offset: Py_ssize_t,
    flags: c_int,
    doc: *const c_char,
}

/// `Py_T_PYSSIZET`, `Py_T_OBJECT_EX` is 16; `Py_READONLY`.
const SSIZE: c_int = 19;
const OBJECT: c_int = 16;
const READ_ONLY: c_int = 1;
const HAVE_VECTORCALL: c_uint = 1 << 11;
const METHOD_DESCRIPTOR: c_uint = 1 << 17;

unsafe extern "C" fn call(
    this: *mut PyObject,
    args: *const *mut PyObject,
    nargsf: usize,
    kwnames: *mut PyObject,
) -> *mut PyObject {
    let wrapper = this.cast::<Wrapper>();
    // SAFETY: Python calls this with an object of our type only, which it keeps alive meanwhile, and with the GIL
    // held; the fields that are read here never change once it is made, but for `failures`, under the GIL.
    let (function, before, after, name, kind) = unsafe {
        (
            (*wrapper).function,
            (*wrapper).before,
            (*wrapper).after,
            &*(*wrapper).name,
            (*wrapper).kind,
        )
    };
    if !late::is_on() && kind != Kind::Always {
        // SAFETY: the arguments are those that we were given, in the array that we were given.
        return unsafe { PyObject_Vectorcall(function, args, nargsf, kwnames) };
    }
    steps::begin(kind);
    let mut start = now();
    if !before.is_null() {
        // The callee may only write to the place before the arguments if that bit is set: not for our hook.
        // SAFETY: the arguments are those that we were given, and the callee does not keep them.
        let result = unsafe { PyObject_Vectorcall(before, args, nargsf & !OFFSET_BIT, kwnames) };
        // SAFETY: `wrapper` as above; the result is ours to give back.
        unsafe { hook_returned(wrapper, result, true) };
        if kind == Kind::Phase {
            start = now();
        }
    }
    // SAFETY: as for `before`; the bit is Python's own and handed on with the same array.
    let result = unsafe { PyObject_Vectorcall(function, args, nargsf, kwnames) };
    // SAFETY: `Py_None` gives the object that there is as long as Python runs.
    let is_none = result == unsafe { ffi::Py_None() };
    if !after.is_null() && !result.is_null() {
        let end = now();
        // SAFETY: `result` and the arguments live until this returns.
        unsafe { call_after(wrapper, result, args, nargsf & !OFFSET_BIT, kwnames) };
        steps::end(kind, name, start, end, is_none);
    } else {
        steps::end(kind, name, start, now(), is_none);
    }
    result
}

/// Calls the hook with the result before the arguments.
///
/// # Safety
/// As [`call`], with a result and a hook that are there.
unsafe fn call_after(
    wrapper: *mut Wrapper,
    result: *mut PyObject,
    args: *const *mut PyObject,
    nargs: usize,
    kwnames: *mut PyObject,
) {
    let named = if kwnames.is_null() {
        0
    } else {
        // SAFETY: where it is no null, it is a tuple of the names.
        usize::try_from(unsafe { ffi::PyTuple_Size(kwnames) }).unwrap_or(0)
    };
    // An empty array may be null, of which no slice can be made.
    let given = match nargs + named {
        0 => &[][..],
        // SAFETY: Python's convention: the positional arguments, and behind them those that have names.
        n => unsafe { std::slice::from_raw_parts(args, n) },
    };
    let mut all = Vec::with_capacity(given.len() + 1);
    all.push(result);
    all.extend_from_slice(given);
    // SAFETY: all of them live until this returns.
    let returned =
        unsafe { PyObject_Vectorcall((*wrapper).after, all.as_ptr(), nargs + 1, kwnames) };
    // SAFETY: the result is ours to give back.
    unsafe { hook_returned(wrapper, returned, false) };
}

/// A hook has returned; one that raises an exception is nobody's business but ours.
///
/// # Safety
/// With the GIL, the wrapper that is being called, and what its hook returned.
unsafe fn hook_returned(wrapper: *mut Wrapper, returned: *mut PyObject, was_before: bool) {
    if !returned.is_null() {
        // SAFETY: it was given to us.
        unsafe { ffi::Py_DECREF(returned) };
        return;
    }
    // SAFETY: we are called with the GIL.
    let py = unsafe { Python::assume_attached() };
    let error = PyErr::take(py);
    // SAFETY: with the GIL; the wrapper is alive, and nobody else writes to it.
    unsafe {
        (*wrapper).failures += 1;
        if (*wrapper).failures == PATIENCE {
            steps::gave_up(py, error);
            // The references are kept: the hook may be what is being called.
            let hook = if was_before {
                addr_of_mut!((*wrapper).before)
            } else {
                addr_of_mut!((*wrapper).after)
            };
            hook.write(null_mut());
        }
    }
}

unsafe extern "C" fn get(
    this: *mut PyObject,
    of: *mut PyObject,
    _class: *mut PyObject,
) -> *mut PyObject {
    // SAFETY: `this` is alive, and `of` as well where it is an object: Python's convention of `__get__`.
    unsafe {
        if of.is_null() || of == ffi::Py_None() {
            ffi::Py_INCREF(this);
            return this;
        }
        PyMethod_New(this, of)
    }
}

unsafe extern "C" fn attribute(this: *mut PyObject, name: *mut PyObject) -> *mut PyObject {
    // SAFETY: Python's convention of `__getattribute__`: two objects, which live; ours is of our type.
    unsafe {
        // These two the type has as well, and it is the function's that are meant.
        for of_function in [c"__module__", c"__doc__"] {
            if ffi::PyUnicode_CompareWithASCIIString(name, of_function.as_ptr()) == 0 {
                return ffi::PyObject_GetAttr((*this.cast::<Wrapper>()).function, name);
            }
        }
        let own = ffi::PyObject_GenericGetAttr(this, name);
        if !own.is_null() || ffi::PyErr_ExceptionMatches(ffi::PyExc_AttributeError) == 0 {
            return own;
        }
        ffi::PyErr_Clear();
        ffi::PyObject_GetAttr((*this.cast::<Wrapper>()).function, name)
    }
}

/// Pickled by its name, as functions are.
unsafe extern "C" fn reduce(this: *mut PyObject, _none: *mut PyObject) -> *mut PyObject {
    // SAFETY: the function of a wrapper lives as long as the wrapper.
    unsafe {
        ffi::PyObject_GetAttrString((*this.cast::<Wrapper>()).function, c"__qualname__".as_ptr())
    }
}

unsafe extern "C" fn free(this: *mut PyObject) {
    // SAFETY: the last reference is gone; the fields hold references of ours or nothing, the name is a box of its own,
    // and an object of a type made at run time holds one of its type.
    unsafe {
        let wrapper = this.cast::<Wrapper>();
        let class = ffi::Py_TYPE(this);
        for field in [(*wrapper).function, (*wrapper).before, (*wrapper).after] {
            ffi::Py_XDECREF(field);
        }
        drop(Box::from_raw((*wrapper).name));
        ffi::PyObject_Free(this.cast());
        ffi::Py_DECREF(class.cast());
    }
}

/// The type, made once.
fn class(py: Python<'_>) -> PyResult<&Py<PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.get_or_try_init(py, || {
        find_vectorcall();
        let member = |name: &'static CStr, kind, offset: usize| Member {
            name: name.as_ptr(),
            kind,
            offset: offset as Py_ssize_t,
            flags: READ_ONLY,
            doc: std::ptr::null(),
        };
        let (vectorcall, function) =
            (std::mem::offset_of!(Wrapper, vectorcall), std::mem::offset_of!(Wrapper, function));
        let end = Member { name: std::ptr::null(), ..member(c"", 0, 0) };
        // Both are used by the type as long as it lives: for ever.
        let members: &'static mut [Member] = Vec::leak(vec![
            member(c"__vectorcalloffset__", SSIZE, vectorcall),
            member(c"__wrapped__", OBJECT, function),
            end,
        ]);
        let methods: &'static mut [ffi::PyMethodDef] = Vec::leak(vec![
            ffi::PyMethodDef {
                ml_name: c"__reduce__".as_ptr(),
                ml_meth: ffi::PyMethodDefPointer { PyCFunction: reduce },
                ml_flags: ffi::METH_NOARGS,
                ml_doc: std::ptr::null(),
            },
            ffi::PyMethodDef::zeroed(),
        ]);
        let slot = |slot, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
        let mut slots = [
            slot(ffi::Py_tp_call, PyVectorcall_Call as *mut c_void),
            slot(ffi::Py_tp_descr_get, get as *mut c_void),
            slot(ffi::Py_tp_getattro, attribute as *mut c_void),
            slot(ffi::Py_tp_dealloc, free as *mut c_void),
            slot(ffi::Py_tp_members, members.as_mut_ptr().cast()),
            slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
            slot(0, null_mut()),
        ];
        let mut spec = ffi::PyType_Spec {
            name: c"gpuwhy._native.wrapper".as_ptr(),
            basicsize: size_of::<Wrapper>() as c_int,
            itemsize: 0,
            flags: ffi::Py_TPFLAGS_DEFAULT as c_uint | HAVE_VECTORCALL | METHOD_DESCRIPTOR,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: the specification is copied, but for the members and methods, which live for ever.
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec)) }
            .map(Bound::unbind)
    })
}

/// `function` with a record around each of its calls; see [`Kind::of`] for `kind`. `before` is called with the
/// arguments, `after` with the result and the arguments.
#[pyfunction]
#[pyo3(signature = (function, name, kind, before=None, after=None))]
pub fn wrap<'py>(
    py: Python<'py>,
    function: Bound<'py, PyAny>,
    name: &str,
    kind: &str,
    before: Option<Bound<'py, PyAny>>,
    after: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let kind = Kind::of(kind).ok_or_else(|| PyRuntimeError::new_err("no such kind"))?;
    let class = class(py)?.as_ptr();
    let name = Box::into_raw(Box::new(Name::new(name)));
    // SAFETY: memory for one object of our type, whose head `PyObject_Init` fills, taking a reference of the
    // type; all its fields are written before anybody sees it.
    unsafe {
        let memory = ffi::PyObject_Malloc(size_of::<Wrapper>()).cast::<Wrapper>();
        if memory.is_null() {
            drop(Box::from_raw(name));
            return Err(pyo3::exceptions::PyMemoryError::new_err(()));
        }
        let hook = |hook: Option<Bound<'_, PyAny>>| hook.map_or(null_mut(), Bound::into_ptr);
        addr_of_mut!((*memory).vectorcall).write(Some(call));
        addr_of_mut!((*memory).function).write(function.into_ptr());
        addr_of_mut!((*memory).before).write(hook(before));
        addr_of_mut!((*memory).after).write(hook(after));
        addr_of_mut!((*memory).name).write(name);
        addr_of_mut!((*memory).kind).write(kind);
        addr_of_mut!((*memory).failures).write(0);
        let object = ffi::PyObject_Init(memory.cast(), class.cast());
        Ok(Bound::from_owned_ptr(py, object))
    }
}
