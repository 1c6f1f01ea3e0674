"""Which functions of which engine are which spans, by version: data, and nothing else.

A row is (since, until, module, name, span, kind, before, after): the versions that have it (`until` is the first that
has it not; `None` is open), where it lies, what its calls are called, what they are (see `steps.rs`: `phase`, `step`,
`begins`, `ends`, `hook`, `summed`; `concrete` is the same function of whatever class of that base is made at run time; `scopes` is
a place for a function that names scopes), and hooks of `_engine_ENGINE.py`.
"""

# What every version of an engine should show, and what a missing one costs; the seed's Table 5 and its like.
TABLE_5 = (
    "LLMEngine::Request",
    "EngineCore::Step",
    "EngineCore::Schedule",
    "EngineCore::Execute",
    "EngineCore::Output",
    "EngineCore::CollectiveRpc",
    "Worker::Response",
    "ModelRunner::Preprocess",
    "ModelRunner::Forward",
    "ModelRunner::Postprocess",
    "ModelRunner::Sample",
    "ModelRunner::Draft",
    "ModelRunner::Bookkeep",
    "ModelRunner::EpLB",
    "ModelRunner::Output",
    "CacheEngine::Load",
    "CacheEngine::Save",
)

_CORE = "vllm.v1.engine.core"
_SCHED = "vllm.v1.core.sched.scheduler"
_MP = "vllm.v1.executor.multiproc_executor"
_UNI = "vllm.v1.executor.uniproc_executor"
_ABSTRACT = "vllm.v1.executor.abstract"
_WORKER = "vllm.v1.worker.gpu_worker"
_V1 = "vllm.v1.worker.gpu_model_runner"
_V2 = "vllm.v1.worker.gpu.model_runner"
_EPLB = "vllm.v1.worker.gpu.eplb_utils"
_SPEC = "vllm.v1.worker.gpu.spec_decode"
_KV = "vllm.distributed.kv_transfer.kv_connector"
_OUT = "vllm.v1.engine.output_processor"

VLLM = (
    # The side that talks to users.
    ("0.11", None, _OUT, "OutputProcessor.add_request", "LLMEngine::Request", "hook", None, "asked"),
    ("0.11", None, _OUT, "OutputProcessor.process_outputs", "LLMEngine::Output", "phase", None, "answered"),
    ("0.11", None, _OUT, "OutputProcessor.abort_requests", "LLMEngine::Abort", "hook", None, "aborted"),
    # The engine.
    ("0.11", None, _CORE, "EngineCore.step", "EngineCore::Step", "step", None, None),
    ("0.11", None, _CORE, "EngineCore.step_with_batch_queue", "EngineCore::Step", "step", None, None),
    ("0.11", None, _CORE, "EngineCoreProc._process_input_queue", "EngineCore::InputQueue", "phase", None, None),
    ("0.11", None, _SCHED, "Scheduler.schedule", "EngineCore::Schedule", "phase", None, "scheduled"),
    ("0.11", None, _SCHED, "Scheduler.update_from_output", "EngineCore::Output", "phase", None, "updated"),
    ("0.11", None, _SCHED, "Scheduler.get_grammar_bitmask", "EngineCore::Grammar", "phase", None, None),
    ("0.11", None, _SCHED, "Scheduler.add_request", "EngineCore::Request", "hook", None, "arrived"),
    ("0.11", None, _SCHED, "Scheduler._free_request", "EngineCore::Request", "hook", "finished", None),
    ("0.14", None, _SCHED, "Scheduler._preempt_request", "EngineCore::Preempt", "hook", "preempted", None),
    ("0.11", None, _SCHED, "Scheduler.update_draft_token_ids", "EngineCore::Draft", "phase", "drafted", None),
    ("0.11", None, "vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots", "EngineCore::AllocateSlots", "summed", None, None),
    ("0.11", None, _ABSTRACT, "Executor.execute_model", "EngineCore::Execute", "phase", None, None),
    ("0.14", None, _ABSTRACT, "Executor.sample_tokens", "EngineCore::Sample", "phase", None, None),
    ("0.11", None, _MP, "MultiprocExecutor.execute_model", "EngineCore::Execute", "phase", None, None),
    ("0.14", None, _MP, "MultiprocExecutor.sample_tokens", "EngineCore::Sample", "phase", None, None),
    ("0.11", None, _MP, "MultiprocExecutor.collective_rpc", "EngineCore::CollectiveRpc", "phase", None, None),
    ("0.14", None, _MP, "FutureWrapper.result", "EngineCore::CollectiveRpcWait", "phase", None, None),
    ("0.14", None, _UNI, "UniProcExecutor.execute_model", "EngineCore::Execute", "phase", None, None),
    ("0.14", None, _UNI, "UniProcExecutor.sample_tokens", "EngineCore::Sample", "phase", None, None),
    ("0.14", None, _UNI, "UniProcExecutor.collective_rpc", "EngineCore::CollectiveRpc", "phase", None, None),
    # The worker.
    ("0.11", "0.14", _WORKER, "Worker.execute_model", "Worker::Step", "step", "received", None),
    ("0.14", None, _WORKER, "Worker.execute_model", "Worker::Step", "begins", "received", None),
    ("0.14", None, _WORKER, "Worker.sample_tokens", "Worker::Sample", "ends", None, None),
    ("0.11", None, _MP, "WorkerProc.enqueue_output", "Worker::Response", "phase", None, None),
    ("0.14", None, _V1, "GPUModelRunner._determine_batch_execution_and_padding", "ModelRunner::Padding", "hook", None, "padded"),
    # Model Runner V2 has no scopes.
    ("0.19", None, _V2, "GPUModelRunner.update_requests", "ModelRunner::Preprocess", "phase", None, None),
    ("0.14", None, _V2, "GPUModelRunner.prepare_inputs", "ModelRunner::Preprocess", "phase", None, None),
    ("0.19", None, _V2, "GPUModelRunner.prepare_attn", "ModelRunner::Preprocess", "phase", None, None),
    ("0.14", None, _V2, "GPUModelRunner.execute_model", "ModelRunner::Forward", "phase", None, None),
    ("0.14", None, _V2, "GPUModelRunner.sample", "ModelRunner::Sample", "phase", None, None),
    ("0.14", "0.26", _V2, "GPUModelRunner.postprocess", "ModelRunner::Postprocess", "phase", None, None),
    ("0.26", None, _V2, "GPUModelRunner.postprocess_sampled", "ModelRunner::Postprocess", "phase", None, None),
    ("0.19", None, _EPLB, "EPLBController.step", "ModelRunner::EpLB", "phase", None, None),
    ("0.26", None, _EPLB, "EPLBController.prepare_forward", "ModelRunner::EpLB", "phase", None, None),
    ("0.14", None, "vllm.v1.worker.gpu.async_utils", "AsyncOutput.get_output", "ModelRunner::Output", "phase", None, None),
    ("0.14", "0.19", _SPEC + ".eagle", "EagleSpeculator.propose", "ModelRunner::Draft", "phase", None, None),
    ("0.19", "0.26", _SPEC + ".eagle.speculator", "EagleSpeculator.propose", "ModelRunner::Draft", "phase", None, None),
    ("0.26", None, _V2, "GPUModelRunner.load_model", "ModelRunner::Load", "always", None, "loaded"),
    ("0.26", None, _SPEC + ".speculator", "BaseSpeculator.propose", "ModelRunner::Draft", "concrete", None, None),
    # The cache of a connector: functions of the class that is made at run time.
    ("0.11", None, _KV + ".factory", "KVConnectorFactory.create_connector", "CacheEngine::Create", "always", None, "connected"),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.start_load_kv", "CacheEngine::Load", "concrete", None, None),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.wait_for_layer_load", "CacheEngine::Load", "concrete", None, None),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.save_kv_layer", "CacheEngine::Save", "concrete", None, None),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.wait_for_save", "CacheEngine::Save", "concrete", None, None),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.get_finished", "CacheEngine::Finished", "concrete", None, None),
    ("0.11", None, _KV + ".v1.base", "KVConnectorBase_V1.get_num_new_matched_tokens", "EngineCore::ConnectorLookup", "concrete", None, None),
    # Where scopes are named.
    ("0.11", None, "vllm.v1.utils", "_PROFILER_FUNC", None, "scopes", None, None),
)

# (since, until, the engine's own name, the span); `None` is summed.
VLLM_SCOPES = tuple(
    ("0.11", "0.14", own, "ModelRunner::" + span)
    for own, span in (
        ("Preprocess", "Preprocess"),
        ("Forward", "Forward"),
        ("Postprocess", "Postprocess"),
        ("Sample", "Sample"),
        ("Draft", "Draft"),
        ("Bookkeep", "Bookkeep"),
        ("EPLB", "EpLB"),
    )
) + tuple(
    ("0.14", None, "gpu_model_runner: " + own, "ModelRunner::" + span)
    for own, span in (
        ("preprocess", "Preprocess"),
        ("forward", "Forward"),
        ("postprocess", "Postprocess"),
        ("sample", "Sample"),
        ("draft", "Draft"),
        ("bookkeep", "Bookkeep"),
        ("eplb", "EpLB"),
        ("ModelRunnerOutput", "Output"),
    )
) + (
    ("0.14", "0.33", "gpu_model_runner: AsyncGPUModelRunnerOutput", "ModelRunner::Output"),
    ("0.14", "0.33", "gpu_model_runner: set_async_sampled_token_ids", "ModelRunner::Bookkeep"),
)

# Scopes that vLLM opens once a request, and that a span of ours around the same function sums.
VLLM_QUIET = ("schedule: allocate_slots",)

_LOOP = "sglang.srt.managers.scheduler"
_PARTS = "sglang.srt.managers.scheduler_components"

SGLANG = (
    ("0.5.20", None, _PARTS + ".request_receiver", "SchedulerRequestReceiver.recv_requests", "EngineCore::InputQueue", "phase", None, None),
    ("0.5.20", None, _LOOP, "Scheduler.process_input_requests", "EngineCore::InputQueue", "phase", None, None),
    ("0.5.20", None, _LOOP, "Scheduler.get_next_batch_to_run", "EngineCore::Schedule", "phase", None, None),
    ("0.5.20", None, _LOOP, "Scheduler.update_running_batch", "EngineCore::UpdateRunning", "phase", None, None),
    ("0.5.20", None, _LOOP, "Scheduler.run_batch", "EngineCore::Step", "step", "running", None),
    ("0.5.20", None, _LOOP, "Scheduler.launch_batch_sample_if_needed", "EngineCore::Sample", "phase", None, None),
    ("0.5.20", None, _LOOP, "Scheduler.process_batch_result", "EngineCore::Output", "phase", None, None),
    ("0.5.20", None, _PARTS + ".output_streamer", "SchedulerOutputStreamer.stream_output", "Worker::Response", "phase", None, None),
    ("0.5.20", None, "sglang.srt.managers.tp_worker", "TpModelWorker.forward_batch_generation", "EngineCore::Execute", "phase", None, None),
    ("0.5.20", None, "sglang.srt.model_executor.forward_batch_info", "ForwardBatch.init_new", "ModelRunner::Preprocess", "phase", None, None),
    ("0.5.20", None, "sglang.srt.model_executor.model_runner", "ModelRunner.forward", "ModelRunner::Forward", "phase", None, None),
    ("0.5.20", None, "sglang.srt.model_executor.model_runner", "ModelRunner.sample", "ModelRunner::Sample", "phase", None, None),
)

_CB = "transformers.generation.continuous_batching"

TRANSFORMERS = (
    ("5.17", None, _CB + ".continuous_api", "ContinuousBatchingManager._generation_loop_body", "EngineCore::Step", "step", None, None),
    ("5.17", None, _CB + ".continuous_api", "ContinuousBatchProcessor.prepare_next_batch", "EngineCore::Schedule", "phase", None, None),
    ("5.17", None, _CB + ".continuous_api", "ContinuousBatchProcessor._generation_step", "EngineCore::Execute", "phase", None, None),
    ("5.17", None, _CB + ".continuous_api", "ContinuousBatchProcessor.update_batch", "EngineCore::Output", "phase", "updating", None),
    ("5.17", None, _CB + ".continuous_api", "OutputRouter.deliver_batch", "Worker::Response", "phase", None, None),
    ("5.17", None, _CB + ".scheduler", "FIFOScheduler.schedule_batch", "EngineCore::ScheduleBatch", "phase", None, "scheduled"),
    ("5.17", None, _CB + ".scheduler", "PrefillFirstScheduler.schedule_batch", "EngineCore::ScheduleBatch", "phase", None, "scheduled"),
    ("5.17", None, _CB + ".scheduler", "Scheduler.add_waiting_request", "EngineCore::Request", "hook", None, "arrived"),
    ("5.17", None, _CB + ".scheduler", "Scheduler.finish_request", "EngineCore::Request", "hook", "finished", None),
    ("5.17", None, _CB + ".model_runner", "ModelRunner.maybe_pad_inputs", "ModelRunner::Padding", "hook", None, "padded"),
    ("5.17", None, _CB + ".model_runner", "ModelRunner.compute_batch", "ModelRunner::Forward", "phase", None, None),
    ("5.17", None, _CB + ".model_runner", "ModelRunner._sample", "ModelRunner::Sample", "phase", None, None),
    ("5.17", None, _CB + ".input_outputs", "ContinuousBatchingIOs.prepare_batch_tensors", "ModelRunner::Preprocess", "phase", None, None),
    ("5.17", None, _CB + ".input_outputs", "ContinuousBatchingIOs.prepare_batch_update", "ModelRunner::Bookkeep", "phase", None, None),
)

ENGINES = {"vllm": VLLM, "sglang": SGLANG, "transformers": TRANSFORMERS}
SCOPES = {"vllm": VLLM_SCOPES, "sglang": (), "transformers": ()}


def number(version):
    """A version as numbers: what is no number ends it."""
    parts = []
    for part in version.split("."):
        digits = ""
        for letter in part:
            if not letter.isdigit():
                break
            digits += letter
        if not digits:
            break
        parts.append(int(digits))
        if digits != part:
            break
    return tuple(parts)


def holds(version, since, until):
    """Whether a version is in a range. One that is not known is taken to be the newest."""
    mine = number(version)
    return not mine or (mine >= number(since) and (until is None or mine < number(until)))


def rows(engine, version):
    """The rows of a version."""
    return [row for row in ENGINES[engine] if holds(version, row[0], row[1])]


def scopes(engine, version):
    """The spans of a version by the engine's own names."""
    return {row[2]: row[3] for row in SCOPES[engine] if holds(version, row[0], row[1])}


def modules(engine):
    """Every module in which some version has something."""
    return {row[2] for row in ENGINES[engine]}
