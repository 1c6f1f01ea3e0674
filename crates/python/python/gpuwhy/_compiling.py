"""Compilation by `torch.compile`, Numba and Triton: as a part of the step in which it happens, and whether it was done
before."""

import contextlib

from . import _torch
from ._native import mark
from ._training import now

# Reasons differ in their text without end, and a ring keeps its names.
_REASONS = 32
_told = set()
# Triton is asked for a kernel that lies in its cache by the same function, which takes less.
_LEAST = 1_000_000


def install(module):
    """After the import of `torch._dynamo.callback`. Its own callbacks are lost with `torch._dynamo.reset()`."""

    def make(function):
        @contextlib.contextmanager
        def install_callbacks(self, *args, **kwargs):
            mine = _torch.thread()
            if mine.compiling or not _torch.is_on():
                with function(self, *args, **kwargs):
                    yield
                return
            mine.compiling, start = True, now()
            try:
                with function(self, *args, **kwargs):
                    yield
            finally:
                mine.compiling = False
                reason = _reason()
                mine.loop.inner("compile" if reason is None else "recompilation", start, now())
                if reason is not None:
                    _tell(reason)

        return install_callbacks

    _torch.around(module.CompilationCallbackHandler, "install_callbacks", make)


def numba(module):
    """After the import of `numba.core.event`. A function that is compiled may have others compiled that it calls."""

    class Compiles(module.Listener):
        def on_start(self, event):
            mine = _torch.thread()
            mine.nested += 1
            if mine.nested == 1 and not mine.compiling and _torch.is_on():
                again = bool(event.data["dispatcher"].overloads)
                mine.compiling, mine.begun = True, (now(), again)

        def on_end(self, event):
            mine = _torch.thread()
            mine.nested = max(0, mine.nested - 1)
            if mine.nested or mine.begun is None:
                return
            (start, again), mine.begun, mine.compiling = mine.begun, None, False
            mine.loop.inner("recompilation" if again else "compile", start, now())
            if again:
                function = event.data["dispatcher"].py_func
                _tell(f"{function.__qualname__} with other types of arguments")

    module.register("numba:compile", Compiles())


def triton(module):
    """After the import of `triton.compiler.compiler`."""

    def make(function):
        def compile(*args, **kwargs):
            mine = _torch.thread()
            if mine.compiling or not _torch.is_on():
                return function(*args, **kwargs)
            mine.compiling, start = True, now()
            try:
                return function(*args, **kwargs)
            finally:
                mine.compiling, end = False, now()
                if end - start >= _LEAST:
                    mine.loop.inner("compile", start, end)

        return compile

    _torch.around(module, "compile", make)


def _reason():
    """Why the code that is being compiled had to be compiled again; `None` for the first time, and empty if nobody
    says."""
    try:
        from torch._dynamo.utils import get_metrics_context
        from torch._guards import CompileContext

        current = CompileContext.current_compile_id()
        if not getattr(current, "frame_compile_id", 0):
            return None
        return str(get_metrics_context()._metrics.get("recompile_reason") or "")
    except Exception:
        return None


def _tell(reason):
    # `0/0: tensor 'x' size mismatch at index 0. expected 8, actual 5`: the first of several, without its number.
    text = reason.strip().splitlines()[0].split(": ", 1)[-1][:160] if reason.strip() else "unknown reason"
    if text not in _told and len(_told) >= _REASONS:
        text = "another reason"
    _told.add(text)
    mark(f"recompiled: {text}", None)


_torch.hide()
