"""Ranks, and the collectives of DDP and FSDP on the CPU where PyTorch has hooks for them (since 2.15).

DDP's calls come from C++, so that no wrapper in Python sees them. Work on a GPU is left to what sees it there.
"""

import hashlib
import itertools
import os
import sys

from . import _torch
from ._native import notice, write_collective, write_communicator
from ._training import now

_OURS = 0x677775  # of hooks; others choose theirs
_numbers = itertools.count()
_NAMES = {
    "ALLREDUCE": "AllReduce",
    "BROADCAST": "Broadcast",
    "REDUCE": "Reduce",
    "ALLGATHER": "AllGather",
    "REDUCE_SCATTER": "ReduceScatter",
    "ALLTOALL": "AllToAll",
    "GATHER": "Gather",
    "SCATTER": "Scatter",
    "BARRIER": "Barrier",
}
_without_end = set()


def install(torch):
    """Puts the hooks in."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    if module is not None:
        _torch.around(module, "_new_process_group_helper", _helper)


def _helper(function):
    def _new_process_group_helper(size, rank, members, *args, **kwargs):
        made = function(size, rank, members, *args, **kwargs)
        try:
            if not members:
                # All ranks of the job.
                _torch.thread().loop.rank = rank
                notice("world size", float(size))
            _attach(made[0] if isinstance(made, tuple) else made)
        except Exception as error:
            notice(f"gpuwhy: no hooks of a process group: {type(error).__name__}")
        return made

    return _new_process_group_helper


def _attach(group):
    if not hasattr(group, "rank"):
        return  # This rank is no member.
    if not hasattr(group, "register_pre_hook"):
        notice("gpuwhy: no collectives in this version")
        return
    name, number = str(group.group_name), next(_numbers)
    job = f"{os.environ.get('MASTER_PORT')}/{os.environ.get('TORCHELASTIC_RUN_ID')}/{name}"
    identity = int.from_bytes(hashlib.sha1(job.encode(), usedforsecurity=False).digest()[:8], "little")
    group.register_pre_hook(_OURS, _Before(number).called)
    group.register_post_hook(_OURS, _Before.of[number].posted)
    write_communicator(name, number, identity, group.rank(), group.size())


class _Before:
    """The calls of one group that have begun."""

    of = {}

    def __init__(self, number):
        self.number = number
        self.calls = {}
        self.counts = {}
        _Before.of[number] = self

    def called(self, call):
        """A collective is about to be enqueued."""
        try:
            name = call.name.name.replace("_COALESCED", "").replace("_BASE", "").lstrip("_")
            tensors = [*_flat(call.input_tensors), *_flat(call.output_tensors)]
            if not _torch.is_on() or name not in _NAMES or any(not tensor.is_cpu for tensor in tensors):
                return
            # What each rank puts in; it gets as much, or more from more ranks.
            size = sum(tensor.nbytes for tensor in _flat(call.input_tensors)) or sum(tensor.nbytes for tensor in tensors)
            seq = self.counts[name] = self.counts.get(name, -1) + 1
            if len(self.calls) < 1024:
                self.calls[call.op_id] = (_NAMES[name], seq, size, now())
        except Exception:
            pass

    def posted(self, call):
        """It has been enqueued."""
        begun = self.calls.pop(call.op_id, None)
        if begun is None:
            return
        name, seq, size, start = begun

        def done(_):
            write_collective(name, self.number, seq, size, start, now())

        try:
            call.work.get_future().add_done_callback(done)
        except Exception:
            # Gloo has none for `reduce_scatter`.
            if name not in _without_end:
                _without_end.add(name)
                notice(f"gpuwhy: nobody says when {name} ends")


def _flat(tensors):
    for one in tensors or ():
        yield from _flat(one) if isinstance(one, (list, tuple)) else (one,)
