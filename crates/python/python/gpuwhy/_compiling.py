"""Compilation by `torch.compile`: as a part of the step in which it happens, and whether it was done before."""

import contextlib

from . import _torch
from ._native import mark
from ._training import now

# Reasons differ in their text without end, and a ring keeps its names.
_REASONS = 32
_told = set()


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
