"""Hooks of PyTorch: a training loop's events, for `_training.Loop`. Nothing of a tensor is read but its length."""

import atexit
import functools
import gc
import itertools
import os
import sys
import threading
import weakref

from ._native import mark, notice, write_phase
from ._training import Loop, now

# A fetch that waited this long names the worker that it waited for.
_WAITED = 100_000
# Between making an iterator and its first batch, in a `for`.
_AT_ONCE = 1_000_000
# Collections that are shorter are not told.
_LEAST_COLLECTION = 200_000

_iterators = itertools.count(1)
_live = weakref.WeakSet()  # optimizers
_replaced = []  # (owner, name, function, ours)
_is_on = True


class _Thread(threading.local):
    def __init__(self):
        rank = os.environ.get("RANK", "")
        self.loop = Loop(int(rank) if rank.isdigit() else None)
        self.backwards = 0  # calls of autograd that have not returned
        self.optimizers = []  # steps of optimizers that have not returned
        self.in_backward = False  # an optimizer has stepped while gradients were computed
        self.called = 0  # when the outermost of them began
        self.stepped = None  # the optimizer that has stepped, until that call returns
        self.piece = 0  # where the optimizer's own work began; 0 while it runs the program's closure
        self.prefetching = 0  # a library fetches batches ahead, and gives them to the program later
        self.made = (0, 0, 0)  # when an iterator was last made, and which
        self.within = False  # a call that is a part of the step and has not returned
        self.compiling = False  # code is being compiled
        self.nested = 0  # compilations by Numba that have not ended, and
        self.begun = None  # when the outermost of them began, and whether there is a version of that function already
        self.collecting = 0  # when the collection of garbage began that goes on


_thread = _Thread()


class _Compiled:
    """What compiled code did. A compiler of Python code reads our hooks of optimizers as a part of the program, where
    all they may do without breaking its graph is to set this."""

    stepped = False


_compiled = _Compiled()


def _is_compiling():
    return False


def _caught_up(mine, at):
    """An optimizer that was compiled has stepped since the last event."""
    if _compiled.stepped:
        _compiled.stepped = False
        mine.loop.before_optimizer("compiled", at)
        mine.loop.after_optimizer("compiled", at)


def thread():
    """What is known of the calling thread."""
    return _thread


def around(owner, name, make):
    """Replaces `owner.name` by `make(it)`; a version of PyTorch that lacks it has one hook less."""
    function = getattr(owner, name, None)
    if function is None:
        notice(f"gpuwhy: no {name} in this version")
        return False
    ours = functools.wraps(function)(make(function))
    _replaced.append((owner, name, function, ours))
    setattr(owner, name, ours)
    return True


def switch(on):
    """Takes all hooks out of the libraries, or puts them back in, while the program runs. What somebody else has
    replaced since stays, and does nothing."""
    global _is_on
    _is_on = bool(on)
    for owner, name, function, ours in _replaced:
        if getattr(owner, name, None) is (function if on else ours):
            setattr(owner, name, ours if on else function)
    if (_collected in gc.callbacks) != _is_on:
        (gc.callbacks.append if on else gc.callbacks.remove)(_collected)
    _step_hooks(_is_on)


def is_on():
    """Whether the hooks are in."""
    return _is_on


def length(batch, depth=3):
    """The length of the first tensor of a batch; `None` if there is none near."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth:
        # Not only `dict`: transformers has a class of its own.
        values = getattr(batch, "values", None)
        if callable(values) and hasattr(batch, "keys"):
            batch = list(itertools.islice(values(), 4))
        if isinstance(batch, (list, tuple)):
            for part in batch[:4]:
                found = length(part, depth - 1)
                if found is not None:
                    return found
    return None


def _awaited(iterator):
    """The pid of the worker whose batch comes next, if it has not come yet."""
    try:
        task = iterator._task_info[iterator._rcvd_idx]
        return iterator._workers[task[0]].pid if len(task) == 1 else None
    except (AttributeError, KeyError, IndexError):
        return None


def _number(iterator):
    """A number that no other iterator has had; addresses are used again."""
    space = iterator.__dict__
    return space.get("_gpuwhy") or space.setdefault("_gpuwhy", next(_iterators))


def _iter(function):
    def __iter__(self):
        start = now()
        iterator = function(self)
        if hasattr(iterator, "__dict__"):
            _thread.made = (start, now(), _number(iterator))
        return iterator

    return __iter__


def _data(is_training):
    def make(function):
        def __next__(self):
            if not _is_on:
                return function(self)
            mine = _thread
            # Whatever optimizer is still thought to be stepping raised an exception.
            if mine.optimizers and mine.piece:
                mine.optimizers.clear()
            number = _number(self)
            start, size, ended, made = now(), None, True, mine.made
            if made[2] == number:
                mine.made = (0, 0, 0)
                if start - made[1] < _AT_ONCE:
                    start = made[0]
            _caught_up(mine, start)
            worker = _awaited(self)
            try:
                batch = function(self)
                size, ended = length(batch), False
                return batch
            finally:
                end = now()
                mine.loop.fetch(number, start, end, ended, is_training())
                if not mine.prefetching:
                    mine.loop.given(end, size)
                if worker is not None and end - start >= _WAITED:
                    mark("loader worker awaited", float(worker))
                # The forward pass begins when the program has its batch, and not with our own work.
                mine.loop.last = now()

        return __next__

    return make


def _load(function):
    """In a loader's worker, where one batch is loaded; without workers it is all of `data`."""
    from torch.utils.data import _utils

    def fetch(self, *args, **kwargs):
        if _utils.worker._worker_info is None:
            return function(self, *args, **kwargs)
        start = now()
        try:
            return function(self, *args, **kwargs)
        finally:
            write_phase("load", start, now(), None)

    return fetch


def backward(function):
    """A call that computes gradients; of calls inside each other the outermost."""

    def run(*args, **kwargs):
        if _is_compiling():
            return function(*args, **kwargs)
        mine = _thread
        # `torch.autograd.grad` gives gradients to the program, as a part of its forward pass.
        if mine.backwards or not _is_on or kwargs.get("accumulate_grad") is False:
            return function(*args, **kwargs)
        if mine.optimizers and mine.piece:
            mine.optimizers.clear()
        start = now()
        _caught_up(mine, start)
        mine.loop.backward_begins(start)
        mine.backwards, mine.in_backward = 1, False
        try:
            return function(*args, **kwargs)
        finally:
            mine.backwards, end = 0, now()
            mine.loop.backward_ends(start, end)
            if mine.in_backward:
                # One optimizer a parameter, each when its gradient is there: one step in all.
                mine.loop.before_optimizer(0, end)
                mine.loop.after_optimizer(0, end)
            mine.loop.last = now()

    return run


def part(name):
    """Each call is a part of the step; those inside another one are not."""

    def make(function):
        def run(*args, **kwargs):
            mine = _thread
            if mine.within or not _is_on:
                return function(*args, **kwargs)
            mine.within, start = True, now()
            try:
                return function(*args, **kwargs)
            finally:
                mine.within = False
                mine.loop.part(name, start, now())

        return run

    return make


def _zero(function):
    def zero_grad(self, *args, **kwargs):
        # Where a compiler reads this, it reads the program's own function.
        if _is_compiling():
            return function(self, *args, **kwargs)
        start = now()
        try:
            return function(self, *args, **kwargs)
        finally:
            _thread.loop.zero(start, now())

    return zero_grad


def _closure(function):
    """The program's own closure runs inside of the optimizer's step, and is no part of the optimizer's work. Until it
    is first called there are no gradients, so that what came before was no work either."""
    first = True

    @functools.wraps(function)
    def closure(*args, **kwargs):
        nonlocal first
        mine = _thread
        start = now()
        if mine.piece and not first:
            mine.loop.part("optimizer", mine.piece, start)
        mine.piece, first = 0, False
        mine.loop.last = start
        try:
            return function(*args, **kwargs)
        finally:
            mine.piece = mine.loop.last = now()

    return closure


def _before(optimizer, args, kwargs):
    if _is_compiling():
        return None
    mine = _thread
    at = mine.called or now()
    _caught_up(mine, at)
    if mine.backwards:
        mine.in_backward = True
        return None
    mine.optimizers.append(id(optimizer))
    if len(mine.optimizers) > 1:
        return None
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
    if _is_compiling():
        _compiled.stepped = True
        return
    mine = _thread
    # Where a step raised an exception its end was never told, and what it had begun is dropped here.
    if mine.backwards or id(optimizer) not in mine.optimizers:
        return
    if mine.optimizers[0] != id(optimizer) or len(mine.optimizers) > 1:
        mine.optimizers.pop()
        return
    mine.optimizers.clear()
    mine.stepped = id(optimizer)
    if not mine.called:
        _stepped(mine)


def _stepped(mine):
    """An optimizer's step has ended."""
    optimizer, mine.stepped, end = mine.stepped, None, now()
    if mine.piece:
        mine.loop.part("optimizer", mine.piece, end)
    mine.piece = 0
    mine.loop.after_optimizer(optimizer, end, len(_live))


def _called(step):
    """Around all of a step: PyTorch's own work before and after its hooks takes as long as a small optimizer."""

    @functools.wraps(step)
    def run(self, *args, **kwargs):
        if _is_compiling():
            return step(self, *args, **kwargs)
        mine = _thread
        if mine.called or not _is_on:
            return step(self, *args, **kwargs)
        mine.called = now()
        try:
            return step(self, *args, **kwargs)
        finally:
            mine.called = 0
            if mine.stepped is not None:
                _stepped(mine)
            elif not mine.backwards:
                mine.optimizers.clear()

    run.gpuwhy = True
    return run


def _wrap_steps(optimizer_class):
    """For versions before 2.1, which have no global hooks: classes are wrapped when an object is made."""

    def wrap(step):
        @functools.wraps(step)
        def run(self, *args, **kwargs):
            if not _is_on:
                return step(self, *args, **kwargs)
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

    around(optimizer_class, "_hook_for_profile", make)


_handles = []  # of the global hooks


def _step_hooks(on):
    from torch.optim import optimizer

    if not hasattr(optimizer, "register_optimizer_step_pre_hook"):
        return False
    if on and not _handles:
        _handles.append(optimizer.register_optimizer_step_pre_hook(_before))
        _handles.append(optimizer.register_optimizer_step_post_hook(_after))
    elif not on:
        while _handles:
            _handles.pop().remove()
        _thread.optimizers.clear()
    return True


def _made(function):
    def __init__(self, *args, **kwargs):
        function(self, *args, **kwargs)
        _live.add(self)
        kind = next((kind for kind in type(self).__mro__ if "step" in vars(kind)), None)
        if _handles and kind is not None and not getattr(kind.step, "gpuwhy", False):
            kind.step = _called(kind.step)

    return __init__


def _scaler(function):
    def step(self, optimizer, *args, **kwargs):
        mine, before = _thread, _thread.loop.steps
        result = function(self, optimizer, *args, **kwargs)
        if _is_on and mine.loop.steps == before and not mine.optimizers:
            # Gradients that are not finite: the optimizer was not called, and the iteration is over.
            mark("optimizer step left out", None)
            at = now()
            # Accelerate has an optimizer around the program's own.
            inner = id(getattr(optimizer, "optimizer", optimizer))
            mine.loop.before_optimizer(inner, at)
            mine.loop.after_optimizer(inner, at, len(_live))
        return result

    return step


def _collected(phase, info):
    """A callback of the garbage collector."""
    mine = _thread
    if phase == "start":
        mine.collecting = now()
    elif mine.collecting:
        start, end, mine.collecting = mine.collecting, now(), 0
        if end - start >= _LEAST_COLLECTION:
            mine.loop.collected("gc", start, end)


def _forked():
    """A child made by fork takes no part in its parent's loop."""
    global _thread
    _thread = _Thread()


def _finish():
    _caught_up(_thread, now())
    _thread.loop.finish()


def sharded_checkpoints(module):
    """After the import of `torch.distributed.checkpoint.state_dict_saver`."""
    package = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save"):
        if hasattr(module, name):
            around(module, name, part("checkpoint"))
            if package is not None and hasattr(package, name):
                setattr(package, name, getattr(module, name))


def safetensors(module):
    """After the import of `safetensors.torch`."""
    around(module, "save_file", part("checkpoint"))


def hide(dynamo=None):
    """A compiler of Python code passes over ours: it would compile it anew and again. After the import of
    `torch._dynamo.eval_frame`, and after that of each module of ours."""
    dynamo = dynamo or sys.modules.get("torch._dynamo.eval_frame")
    skip = getattr(dynamo, "skip_code", None)
    if skip is None:
        return
    kind = type(hide.__code__)

    def one(code):
        skip(code)
        for inner in code.co_consts:
            if isinstance(inner, kind):
                one(inner)

    ours = [module for name, module in list(sys.modules.items()) if name.startswith("gpuwhy._")]
    for module in ours:
        file = getattr(module, "__file__", None)
        classes = [vars(value) for value in vars(module).values() if isinstance(value, type)]
        for space in (vars(module), *classes):
            for value in list(space.values()):
                code = getattr(value, "__code__", None)
                if isinstance(code, kind) and code.co_filename == file:
                    one(code)


def install(torch):
    """Puts the hooks in; `torch` has been imported."""
    from torch.optim import optimizer
    from torch.utils.data import _utils, dataloader

    global _is_compiling
    # Its own function, which compilers know.
    _is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _is_compiling)
    around(optimizer.Optimizer, "__init__", _made)
    if not _step_hooks(True):
        _wrap_steps(optimizer.Optimizer)
    around(optimizer.Optimizer, "zero_grad", _zero)
    around(torch.nn.Module, "zero_grad", _zero)
    if not hasattr(torch.autograd, "_engine_run_backward"):
        around(torch.autograd, "backward", backward)
    else:
        around(torch.autograd, "_engine_run_backward", backward)
    # PyTorch's own work before the engine is as long as a small model's forward pass.
    around(torch.Tensor, "backward", backward)
    around(dataloader.DataLoader, "__iter__", _iter)
    around(dataloader._BaseDataLoaderIter, "__next__", _data(torch.is_grad_enabled))
    for kind in (_utils.fetch._MapDatasetFetcher, _utils.fetch._IterableDatasetFetcher):
        around(kind, "fetch", _load)
    around(torch, "save", part("checkpoint"))
    for place in (getattr(torch, "amp", None), getattr(torch.cuda, "amp", None)):
        scaler = getattr(place, "GradScaler", None)
        if scaler is not None and "step" in vars(scaler):
            around(scaler, "step", _scaler)
    hide()
    gc.callbacks.append(_collected)
    os.register_at_fork(after_in_child=_forked)
    atexit.register(_finish)
    if torch.distributed.is_available():
        from . import _distributed

        _distributed.install(torch)
