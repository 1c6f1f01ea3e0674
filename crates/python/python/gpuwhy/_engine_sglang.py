"""What the hooks of SGLang read: counts, and names of requests."""

from . import _native


def running(scheduler, batch, *_, **__):
    """Before `Scheduler.run_batch`."""
    requests = batch.reqs
    names = [request.rid for request in requests]
    if batch.forward_mode.is_decode():
        tokens = [1] * len(requests)
        computed = [len(r.origin_input_ids) + len(r.output_ids) - 1 for r in requests]
    else:
        tokens, computed = list(batch.extend_lens), list(batch.prefix_lens)
    outputs = [len(request.output_ids) for request in requests]
    running = getattr(scheduler, "running_batch", None)
    waiting = getattr(scheduler, "waiting_queue", ())
    _native.batch_made(
        "sglang engine",
        batch,
        dict(zip(names, tokens)),
        names,
        computed,
        outputs,
        ([], 0, len(running.reqs) if running is not None else 0, len(waiting), 0.0),
    )
