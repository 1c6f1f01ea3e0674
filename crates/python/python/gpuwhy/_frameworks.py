"""What the libraries around training loops know better than PyTorch: when the loss is computed, and what is an
evaluation. Each function here is called with a module that has been imported."""

import contextlib

from . import _torch
from ._training import now


def accelerator(module):
    """What programs call in place of `loss.backward()`."""
    _torch.around(module.Accelerator, "backward", _torch.backward)


def accelerate(module):
    """Its loaders fetch a batch ahead of the one that they give to the program."""

    def make(function):
        def __iter__(self):
            batches = iter(function(self))
            while True:
                mine = _torch.thread()
                mine.prefetching += 1
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    mine.prefetching -= 1
                mine.loop.given(now(), _torch.length(batch))
                yield batch

        return __iter__

    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        kind = getattr(module, name, None)
        if kind is not None:
            _torch.around(kind, "__iter__", make)


def _evaluation(function):
    def run(*args, **kwargs):
        if not _torch.is_on():
            return function(*args, **kwargs)
        loop = _torch.thread().loop
        loop.evaluation_begins(now())
        try:
            return function(*args, **kwargs)
        finally:
            loop.evaluation_ends(now())

    return run


class _Loss(contextlib.AbstractContextManager):
    """Around the computation of a loss; with the library's own context inside."""

    def __init__(self, inner):
        self.inner = inner

    def __enter__(self):
        result = self.inner.__enter__()
        _torch.thread().loop.forward_begins(now())
        return result

    def __exit__(self, *error):
        _torch.thread().loop.forward_ends(now())
        return self.inner.__exit__(*error)


def transformers(module):
    """`transformers.Trainer`: evaluation, and the forward pass, also where a program computes the loss itself."""

    def make(function):
        def compute_loss_context_manager(self):
            inner = function(self)
            # The same context is around predictions.
            return _Loss(inner) if _torch.is_on() and _grad() else inner

        return compute_loss_context_manager

    import torch

    _grad = torch.is_grad_enabled
    trainer = module.Trainer
    _torch.around(trainer, "compute_loss_context_manager", make)
    _torch.around(trainer, "evaluate", _evaluation)
    _torch.around(trainer, "predict", _evaluation)
    # A checkpoint is more than the files that `torch.save` writes.
    _torch.around(trainer, "_save_checkpoint", _torch.part("checkpoint"))


def lightning_strategy(module):
    """Lightning's training step: the forward pass, or with manual optimisation all of it."""

    def make(function):
        def training_step(self, *args, **kwargs):
            if not _torch.is_on():
                return function(self, *args, **kwargs)
            loop = _torch.thread().loop
            loop.forward_begins(now())
            try:
                return function(self, *args, **kwargs)
            finally:
                loop.forward_ends(now())

        return training_step

    _torch.around(module.Strategy, "training_step", make)
    _torch.around(module.Strategy, "save_checkpoint", _torch.part("checkpoint"))


def lightning_module(module):
    """What a program calls itself with manual optimisation."""
    _torch.around(module.LightningModule, "manual_backward", _torch.backward)


def lightning_precision(module):
    """Between what Lightning tells a program before and after it computes gradients."""
    _torch.around(module.Precision, "backward", _torch.backward)


def lightning_evaluation(module):
    """Lightning's validation and test loops, from when a program is told that they start until it is told their end."""

    def starts(function):
        def _on_evaluation_start(*args, **kwargs):
            loop = _torch.thread().loop
            if loop.inside == 1:
                loop.evaluation = now()
            return function(*args, **kwargs)

        return _on_evaluation_start

    def ends(function):
        def _on_evaluation_end(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            finally:
                loop = _torch.thread().loop
                if loop.inside == 1:
                    loop.evaluated = now()

        return _on_evaluation_end

    _torch.around(module._EvaluationLoop, "run", _evaluation)
    _torch.around(module._EvaluationLoop, "_on_evaluation_start", starts)
    _torch.around(module._EvaluationLoop, "_on_evaluation_end", ends)


_torch.hide()
