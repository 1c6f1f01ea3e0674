"""Hooks of PyTorch: a training loop's events, for `_training.Loop`. Nothing of a tensor is read but its length."""

import atexit
import functools
import os
import threading

from ._native import mark
from ._training import Loop, now


class _Thread(threading.local):
    def __init__(self):
        rank = os.environ.get("RANK", "")
        self.loop = Loop(int(rank) if rank.isdigit() else None)
        self.backwards = 0  # calls of autograd that have not returned
        self.optimizers = []  # steps of optimizers that have not returned
        self.piece = 0  # where the optimizer's own work began; 0 while it runs the program's closure


_thread = _Thread()


def _around(owner, name, make):
    """Replaces `owner.name` by `make(it)`; a version of PyTorch that lacks it has one hook less."""
    function = getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, functools.wraps(function)(make(function)))
    return function is not None


def _length(batch, depth=3):
    """The length of the first tensor of a batch; `None` if there is none near."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth and isinstance(batch, dict):
        batch = list(batch.values())
    if depth and isinstance(batch, (list, tuple)):
        for part in batch[:4]:
            length = _length(part, depth - 1)
            if length is not None:
                return length
    return None


def _data(is_training):
    def make(function):
        def __next__(self):
            start, size = now(), None
            try:
                batch = function(self)
                size = _length(batch)
                return batch
            finally:
                _thread.loop.fetch(start, now(), size, is_training())

        return __next__

    return make


def _backward(function):
    def run(*args, **kwargs):
        mine = _thread
        if mine.backwards:
            return function(*args, **kwargs)
        mine.backwards, start = 1, now()
        try:
            return function(*args, **kwargs)
        finally:
            mine.backwards = 0
            mine.loop.backward(start, now())

    return run


def _checkpoint(function):
    def save(*args, **kwargs):
        start = now()
        try:
            return function(*args, **kwargs)
        finally:
            _thread.loop.part("checkpoint", start, now())

    return save


def _closure(function):
    """The program's own closure runs inside of the optimizer's step, and is no part of the optimizer's work."""

    @functools.wraps(function)
    def closure(*args, **kwargs):
        mine = _thread
        start = now()
        if mine.piece:
            mine.loop.part("optimizer", mine.piece, start)
        mine.piece = 0
        mine.loop.last = start
        try:
            return function(*args, **kwargs)
        finally:
            mine.piece = mine.loop.last = now()

    return closure


def _before(optimizer, args, kwargs):
    mine = _thread
    mine.optimizers.append(id(optimizer))
    if len(mine.optimizers) > 1:
        return None
    at = now()
    mine.loop.before_optimizer(id(optimizer), at)
    mine.piece = at
    # The optimizer itself is the first of `args` where the hook comes around the step.
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _closure(kwargs["closure"])}
    place = 1 if args and args[0] is optimizer else 0
    if len(args) > place and callable(args[place]):
        return (*args[:place], _closure(args[place]), *args[place + 1 :]), kwargs
    return None


def _after(optimizer, args=(), kwargs=None):
    mine = _thread
    # Where a step raised an exception its end was never told, and what it had begun is dropped here.
    if id(optimizer) not in mine.optimizers:
        return
    if mine.optimizers[0] != id(optimizer) or len(mine.optimizers) > 1:
        mine.optimizers.pop()
        return
    mine.optimizers.clear()
    end = now()
    if mine.piece:
        mine.loop.part("optimizer", mine.piece, end)
    mine.piece = 0
    mine.loop.after_optimizer(id(optimizer), end)


def _wrap_steps(optimizer_class):
    """For versions before 2.1, which have no global hooks: classes are wrapped when an object is made."""

    def wrap(step):
        @functools.wraps(step)
        def run(self, *args, **kwargs):
            changed = _before(self, args, kwargs)
            if changed is not None:
                args, kwargs = changed
            done = False
            try:
                result = step(self, *args, **kwargs)
                done = True
                return result
            finally:
                if done:
                    _after(self)
                else:
                    _thread.optimizers.clear()

        run.gpuwhy = True
        return run

    def make(function):
        def _hook_for_profile(self):
            result = function(self)
            kind = type(self)
            if not getattr(kind.__dict__.get("step"), "gpuwhy", False):
                kind.step = wrap(kind.step)
            return result

        return _hook_for_profile

    _around(optimizer_class, "_hook_for_profile", make)


def _scaler(function):
    def step(self, optimizer, *args, **kwargs):
        mine, before = _thread, _thread.loop.taken
        result = function(self, optimizer, *args, **kwargs)
        if mine.loop.taken == before and not mine.optimizers:
            # Gradients that are not finite: the optimizer was not called, and the iteration is over.
            mark("optimizer step left out", None)
            at = now()
            mine.loop.before_optimizer(id(optimizer), at)
            mine.loop.after_optimizer(id(optimizer), at)
        return result

    return step


def install(torch):
    """Puts the hooks in; `torch` has been imported."""
    from torch.optim import optimizer

    if hasattr(optimizer, "register_optimizer_step_pre_hook"):
        optimizer.register_optimizer_step_pre_hook(_before)
        optimizer.register_optimizer_step_post_hook(_after)
    else:
        _wrap_steps(optimizer.Optimizer)
    if not _around(torch.autograd, "_engine_run_backward", _backward):
        _around(torch.autograd, "backward", _backward)
    from torch.utils.data import dataloader

    _around(dataloader._BaseDataLoaderIter, "__next__", _data(torch.is_grad_enabled))
    _around(torch, "save", _checkpoint)
    for place in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
        scaler = getattr(place, "GradScaler", None)
        if scaler is not None and "step" in vars(scaler):
            _around(scaler, "step", _scaler)
    atexit.register(_thread.loop.finish)
