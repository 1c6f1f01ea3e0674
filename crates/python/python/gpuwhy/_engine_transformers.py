"""What the hooks of transformers' continuous batching read: counts, and names of requests."""

from . import _native

_ENGINE = "transformers engine"


class _Last:
    padded = 0  # tokens of the batch with padding


def scheduled(result, scheduler, *_, **__):
    """After `schedule_batch`: the requests, whether all decode, tokens, and what is read of the cache."""
    requests = result[0]
    if not requests:
        return
    states = [request.state for request in requests]
    names = [state.request_id for state in states]
    cache, used = scheduler.cache, 0.0
    try:
        blocks = cache.num_blocks
        used = 1.0 - cache.get_num_free_blocks() / blocks if blocks else 0.0
    except (AttributeError, TypeError):  # Versions differ in what they count.
        pass
    _Last.padded = 0
    _native.batch_made(
        _ENGINE,
        scheduler,
        {name: request.query_length for name, request in zip(names, requests)},
        names,
        [state.position_offset for state in states],
        [len(state.generated_tokens) for state in states],
        ([], 0, len(scheduler.active_requests), len(scheduler.waiting_requests), used),
    )


def padded(result, *_, **__):
    """After `ModelRunner.maybe_pad_inputs`: tokens, and what is read of the cache."""
    _Last.padded = result[0]


def updating(processor, *_, **__):
    """Before `update_batch`."""
    requests = getattr(processor.inputs_and_outputs, "requests_in_batch", None) or ()
    got = sum(1 for request in requests if request.has_new_token)
    _native.batch_output(processor.scheduler, got, 0, 0, _Last.padded)


def arrived(_result, _scheduler, state, *_, **__):
    """After `Scheduler.add_waiting_request`."""
    _native.request_arrived(state.request_id, len(state.initial_tokens), False, None)


def finished(scheduler, name, *_, **__):
    """Before `Scheduler.finish_request`."""
    state = scheduler.active_requests.get(name)
    if state is None:
        return
    tokens, most = state.generated_len(), state.max_new_tokens
    outcome = "length" if most is not None and tokens >= most else "stop"
    _native.request_finished(name, tokens, outcome)
