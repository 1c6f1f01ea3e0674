"""Tells gpuwhy what a Python program does: its steps, their parts, and points in time.

    with gpuwhy.step(size=64):          # one step; size is in the program's own unit
        with gpuwhy.span("load"):       # a part of it
            ...
        gpuwhy.mark("loss", 0.25)       # a point, with a number

`step` and `span` are decorators too, also of coroutine functions. While nobody records each is a branch.
"""

from . import _native
from ._native import mark, span, step
from ._start import begin as _begin

__all__ = ["mark", "span", "step"]

_begin(_native)
