"""Compilations by Numba and Triton, and what is written of them. Where a library is installed it compiles for real;
without it, a stand-in calls our hooks as its version 0.65 (Numba) and 3.5 (Triton) do."""

import sys
import threading
import types
from pathlib import Path

clock, written, marks = iter(range(0, 10**12, 1_000_000)), [], []
native = types.ModuleType("gpuwhy._native")
native.current_step = lambda: 7
native.next_number = lambda: 0
native.now = lambda: next(clock)
native.step = types.SimpleNamespace(marked=lambda: 0)
native.write_phase = lambda name, start, end, step: written.append((name, end - start, step))
native.write_step = lambda *what: written.append(what)
native.mark = lambda name, value: marks.append(name)
native.notice = lambda name, value=None: marks.append(name)
package = types.ModuleType("gpuwhy")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "python/gpuwhy")]
sys.modules.update({"gpuwhy": package, "gpuwhy._native": native})

from gpuwhy import _compiling  # noqa: E402

MS = 1_000_000


def taken():
    """What was written since this was last asked, and the marks."""
    out = ([(name, step) for name, _, step in written], list(marks))
    written.clear()
    marks.clear()
    return out


def stand_in_numba():
    """As `numba.core.event`: listeners of a kind, and a context that calls them."""
    listeners = []

    class Listener:
        pass

    def register(kind, listener):
        assert kind == "numba:compile"
        listeners.append(listener)

    module = types.SimpleNamespace(Listener=Listener, register=register)

    def compiles(function, calls=(), fails=False):
        event = types.SimpleNamespace(data={"dispatcher": function})
        for listener in listeners:
            listener.on_start(event)
        for one in calls:
            compiles(one)
        for listener in listeners:
            listener.on_end(event)
        if not fails:
            function.overloads[len(function.overloads)] = "code"

    return module, compiles


def function(name):
    return types.SimpleNamespace(overloads={}, py_func=types.SimpleNamespace(__qualname__=name))


def numba():
    module, compiles = stand_in_numba()
    _compiling.numba(module)
    draft, inner = function("draft"), function("inner")
    compiles(draft, calls=[inner])
    assert taken() == ([("compile", 7)], []), "one for what is compiled within it"
    compiles(draft)
    assert taken() == ([("recompilation", 7)], ["recompiled: draft with other types of arguments"])
    compiles(inner, fails=True)
    assert taken()[0] == [("recompilation", 7)], "also one that fails takes its time"

    # Of another thread at the same time.
    thread = threading.Thread(target=compiles, args=(function("theirs"),), kwargs={"calls": [function("own")]})
    thread.start()
    thread.join()
    assert taken() == ([("compile", 7)], [])

    # Within `torch.compile` it is a part of that.
    mine = _compiling._torch.thread()
    mine.compiling = True
    compiles(function("within"))
    mine.compiling = False
    assert taken() == ([], [])
    compiles(function("after"))
    assert taken() == ([("compile", 7)], [])


def triton():
    def compile(source, ms):
        for _ in range(ms):
            next(clock)
        if source == "fails":
            raise ValueError(source)
        return source.upper()

    module = types.SimpleNamespace(compile=compile)
    _compiling.triton(module)
    assert module.compile("kernel", ms=20) == "KERNEL"
    name, took, step = written[-1]
    assert (name, step) == ("compile", 7) and took >= 20 * MS
    taken()
    try:
        module.compile("fails", ms=3)
    except ValueError:
        assert taken() == ([("compile", 7)], [])
    else:
        raise AssertionError("the error is the program's")
    native_now, _compiling.now = _compiling.now, lambda: 5
    assert module.compile("cached", ms=0) == "CACHED"
    _compiling.now = native_now
    assert taken() == ([], []), "it lay in the cache"


def real_numba():
    """The library itself, where it is installed."""
    try:
        import numba
    except ImportError:
        print("skipped: no Numba here")
        return
    from numba.core import event

    _compiling.numba(event)
    called = numba.njit(lambda a: a + 1)
    outer = numba.njit(lambda a: called(a) * 2)
    assert outer(1) == 4
    assert taken() == ([("compile", 7)], [])
    assert outer(1) == 4
    assert taken() == ([], []), "compiled before"
    assert outer(1.5) == 5.0
    spans, told = taken()
    assert spans == [("recompilation", 7)] and told[0].endswith("other types of arguments"), (spans, told)


numba()
triton()
real_numba()
