"""What the hooks of vLLM read: counts, and names of requests. Never a prompt, never a token."""

import os

from . import _native
from ._engine_table import VLLM_QUIET

_ENGINE, _WORKER = "vllm engine", "vllm worker"


class _Last:
    proposed = 0  # drafts that were made for the next batch
    step = None  # of the worker, as long as its padding is not known
    rank = None  # of the worker


def _parent(headers):
    return headers.get("traceparent") if headers else None


def _outputs(scheduler, cached):
    """How many tokens each request has got; versions before 0.14 do not say it in the batch."""
    counts = getattr(cached, "num_output_tokens", None)
    if counts is None:
        requests = scheduler.requests
        counts = [requests[name].num_output_tokens for name in cached.req_ids]
    return counts


def scheduled(batch, scheduler, *_, **__):
    """After `Scheduler.schedule`."""
    new, cached = batch.scheduled_new_reqs, batch.scheduled_cached_reqs
    drafts = batch.scheduled_spec_decode_tokens
    _native.batch_made(
        _ENGINE,
        batch,
        batch.num_scheduled_tokens,
        cached.req_ids,
        cached.num_computed_tokens,
        _outputs(scheduler, cached),
        (
            [(r.req_id, r.num_computed_tokens, len(r.prompt_token_ids or ())) for r in new],
            sum(map(len, drafts.values())) if drafts else 0,
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.kv_cache_manager.usage,
        ),
    )


def updated(_result, _scheduler, batch, output, *_, **__):
    """After `Scheduler.update_from_output`."""
    sampled = output.sampled_token_ids
    accepted, stats = 0, getattr(output, "cudagraph_stats", None)
    for name in batch.scheduled_spec_decode_tokens:
        place = output.req_id_to_index.get(name)
        if place is not None and place < len(sampled):
            accepted += max(len(sampled[place]) - 1, 0)
    proposed, _Last.proposed = _Last.proposed, 0
    padded = getattr(stats, "num_padded_tokens", 0) if stats is not None else 0
    _native.batch_output(batch, sum(map(len, sampled)), accepted, proposed, padded)


def drafted(_scheduler, drafts, *_, **__):
    """Before `Scheduler.update_draft_token_ids`."""
    _Last.proposed = sum(map(len, drafts.draft_token_ids))


def arrived(_result, _scheduler, request, *_, **__):
    """After `Scheduler.add_request`."""
    headers = getattr(request, "trace_headers", None)
    _native.request_arrived(request.request_id, request.num_prompt_tokens, False, _parent(headers))


def finished(_scheduler, request, *_, **__):
    """Before `Scheduler._free_request`."""
    reason = request.get_finished_reason()
    _native.request_finished(request.request_id, request.num_output_tokens, str(reason))


def preempted(_scheduler, request, *_, **__):
    """Before `Scheduler._preempt_request`."""
    _native.request_preempted(request.request_id)


def asked(_result, _processor, request, *_, **__):
    """After `OutputProcessor.add_request`."""
    tokens = len(request.prompt_token_ids or ())
    headers = getattr(request, "trace_headers", None)
    _native.request_arrived(request.request_id, tokens, True, _parent(headers))


def answered(result, _processor, outputs, *_, **__):
    """After `OutputProcessor.process_outputs`."""
    _native.front_outputs(outputs)
    # Those that a text has stopped: the engine knows nothing of texts.
    for name in result.reqs_to_abort:
        _native.front_finished(name, "stop")


def aborted(names, *_, **__):
    """After `OutputProcessor.abort_requests`."""
    for name in names:
        _native.front_finished(name, "abort")


def received(worker, batch, *_, **__):
    """Before `Worker.execute_model`."""
    if _Last.rank is None:
        _Last.rank = worker.rank
        _native.set_rank(worker.rank)
    new, cached = batch.scheduled_new_reqs, batch.scheduled_cached_reqs
    names, computed = cached.req_ids, cached.num_computed_tokens
    outputs = getattr(cached, "num_output_tokens", None)
    if new:
        names = [r.req_id for r in new] + names
        computed = [r.num_computed_tokens for r in new] + computed
        if outputs is not None:
            outputs = [0] * len(new) + outputs
    _Last.step = _native.batch_received(
        _WORKER, batch.num_scheduled_tokens, names, computed, outputs
    )


def padded(result, *_, **__):
    """After `GPUModelRunner._determine_batch_execution_and_padding`."""
    step, _Last.step = _Last.step, None
    if step is not None:
        _native.worker_output(step, result[1].num_tokens, 0)


def connected(connector, *_, **__):
    """After `KVConnectorFactory.create_connector`."""
    from .engine import concrete

    concrete("vllm", "KVConnectorBase_V1", connector)


def loaded(_result, runner, *_, **__):
    """After `GPUModelRunner.load_model` of Model Runner V2."""
    from .engine import concrete

    if getattr(runner, "speculator", None) is not None:
        concrete("vllm", "BaseSpeculator", runner.speculator)


def scopes(names):
    """What is put where vLLM looks for a function that names scopes; `None` where the user wants another."""
    if any(
        os.environ.get(name, "0") not in ("", "0")
        for name in ("VLLM_CUSTOM_SCOPES_FOR_PROFILING", "VLLM_NVTX_SCOPES_FOR_PROFILING")
    ):
        return None
    # What is summed by a wrapper is not summed twice.
    return _native.Scopes({**names, **dict.fromkeys(VLLM_QUIET, "")})
