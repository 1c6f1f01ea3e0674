"""An engine that has the modules, functions and shapes of two versions of vLLM, 0.11 and 0.32, and computes nothing.

    engine.py VERSION [FILE]

It serves five requests with an engine process, a forked worker and a connector (again and again until FILE is there, beside one
that lasts), and prints what it did itself:

    step DIGIT…   engine's step: tokens, prompt tokens, requests, computed before, drafts, running, waiting, kept drafts
    work N        worker's step: tokens
    in STEP REQUEST TOKENS COMPUTED
    request NAME PROMPT CACHED OUTPUT OUTCOME
"""

import importlib.abc
import importlib.machinery
import os
import pickle
import sys
import time

VERSION = sys.argv[1]
NEW = VERSION != "0.11.0"
UNTIL = sys.argv[2] if len(sys.argv) > 2 else None

SOURCES = {
    "vllm": "",
    "vllm.plugins": """
def load_general_plugins():
    from importlib.metadata import entry_points
    for entry in entry_points(group="vllm.general_plugins"):
        entry.load()()
""",
    "vllm.v1.utils": """
import contextlib
_PROFILER_FUNC = None
def record_function_or_nullcontext(name):
    global _PROFILER_FUNC
    if _PROFILER_FUNC is None:
        _PROFILER_FUNC = contextlib.nullcontext
    return _PROFILER_FUNC(name)
""",
    "vllm.v1.core.kv_cache_manager": """
class KVCacheManager:
    usage = 0.25
    def allocate_slots(self, request, n, *args, **kwargs):
        return sum(range(2000))
""",
    "vllm.v1.core.sched.scheduler": """
from types import SimpleNamespace as Made
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.utils import record_function_or_nullcontext
BUDGET = 24
class Scheduler:
    def __init__(self):
        self.requests, self.running, self.waiting = {}, [], []
        self.kv_cache_manager, self.connector, self.steps = KVCacheManager(), None, 0
        self.free = set()
    def has_requests(self):
        return bool(self.requests)
    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.append(request)
    def _take(self, request, budget):
        n = min(request.total() + len(request.drafts) - request.num_computed_tokens, budget)
        with record_function_or_nullcontext("schedule: allocate_slots"):
            self.kv_cache_manager.allocate_slots(request, n)
        return n
    def schedule(self, throttle=False):
        self.steps += 1
        if self.steps == 6 and hasattr(self, "_preempt_request") and len(self.running) > 1:
            self._preempt_request(self.running[-1], 0.0)
        tokens, drafts, new, old, budget = {}, {}, [], [], BUDGET
        for request in self.running:
            n = self._take(request, budget)
            if n > 0:
                tokens[request.request_id], budget = n, budget - n
                old.append(request)
                if request.drafts:
                    drafts[request.request_id] = list(request.drafts)
        while self.waiting and budget > 0 and len(self.running) < 3:
            request = self.waiting.pop(0)
            if request.preempted:
                request.preempted = False
                old.append(request)
            else:
                if self.connector:
                    found = self.connector.get_num_new_matched_tokens(request, 0)[0]
                    request.num_computed_tokens = max(request.num_computed_tokens, found)
                request.cached = request.num_computed_tokens
                new.append(request)
            n = self._take(request, budget)
            tokens[request.request_id], budget = n, budget - n
            self.running.append(request)
        finished, self.free = self.free, set()
        cached = Made(req_ids=[r.request_id for r in old], num_computed_tokens=[r.num_computed_tokens for r in old])
        if NEW:
            cached.num_output_tokens = [r.num_output_tokens for r in old]
        batch = Made(
            scheduled_new_reqs=[Made(req_id=r.request_id, num_computed_tokens=r.num_computed_tokens,
                                     prompt_token_ids=r.prompt_token_ids) for r in new],
            scheduled_cached_reqs=cached, num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()), scheduled_spec_decode_tokens=drafts,
            finished_req_ids=finished, preempted_req_ids=None)
        LEDGER.scheduled(self, new + old, tokens, drafts)
        for request in new + old:
            request.num_computed_tokens += tokens[request.request_id]
        return batch
    def update_from_output(self, batch, output):
        for name, n in batch.num_scheduled_tokens.items():
            request, got = self.requests[name], output.sampled_token_ids[output.req_id_to_index[name]]
            if request.drafts:
                request.num_computed_tokens -= len(request.drafts) + 1 - len(got)
                request.drafts = []
            request.output += got
            if request.num_output_tokens >= request.limit:
                self._free_request(request)
        return {0: output}
    def update_draft_token_ids(self, drafts):
        for name, tokens in zip(drafts.req_ids, drafts.draft_token_ids):
            if name in self.requests and not self.requests[name].preempted:
                self.requests[name].drafts = tokens[:2]
    def get_grammar_bitmask(self, *args):
        return None
    def _free_request(self, request, delay_free_blocks=False):
        LEDGER.freed(request)
        self.running.remove(request)
        del self.requests[request.request_id]
        self.free.add(request.request_id)
    if NEW:
        def _preempt_request(self, request, timestamp):
            self.running.remove(request)
            request.num_computed_tokens, request.preempted, request.drafts = 0, True, []
            self.waiting.insert(0, request)
""",
    "vllm.v1.executor.abstract": """
class Executor:
    def execute_model(self, batch, non_block=False):
        raise NotImplementedError
    def collective_rpc(self, method, args=()):
        raise NotImplementedError
    if NEW:
        def sample_tokens(self, grammar, non_block=False):
            raise NotImplementedError
""",
    "vllm.v1.executor.multiproc_executor": """
import pickle
from vllm.v1.executor.abstract import Executor
class FutureWrapper:
    def __init__(self, pipe):
        self.pipe = pipe
    if NEW:
        def result(self, timeout=None):
            return pickle.load(self.pipe)
    else:
        def now(self):
            return pickle.load(self.pipe)
class MultiprocExecutor(Executor):
    def __init__(self, to, back):
        self.to, self.back = to, back
    def collective_rpc(self, method, args=(), non_block=False):
        pickle.dump((method, args), self.to)
        self.to.flush()
        future = FutureWrapper(self.back)
        return future if non_block else future.result() if NEW else future.now()
    def execute_model(self, batch, non_block=False):
        return self.collective_rpc("execute_model", (batch,), non_block)
    if NEW:
        def sample_tokens(self, grammar, non_block=False):
            return self.collective_rpc("sample_tokens", (grammar,))
class WorkerProc:
    def __init__(self, worker, pipe, back):
        self.worker, self.pipe, self.back = worker, pipe, back
    def enqueue_output(self, output):
        pickle.dump(output, self.back)
        self.back.flush()
    def worker_busy_loop(self):
        while True:
            try:
                method, args = pickle.load(self.pipe)
            except EOFError:
                return
            self.enqueue_output(getattr(self.worker, method)(*args))
""",
    "vllm.v1.worker.gpu_worker": """
from types import SimpleNamespace as Made
class Worker:
    def __init__(self, rank, runner):
        self.rank, self.runner = rank, runner
    def init_device(self):
        pass
    def execute_model(self, batch):
        LEDGER.worked(batch)
        self.batch = batch
        return self.runner.execute_model(batch)
    if NEW:
        def sample_tokens(self, grammar):
            return self.runner.sample_tokens(grammar)
""",
    "vllm.v1.worker.gpu_model_runner": """
from types import SimpleNamespace as Made
from vllm.v1.utils import record_function_or_nullcontext as scope
def own(name):
    return scope(("gpu_model_runner: " + name) if NEW else {"eplb": "EPLB"}.get(name, name.capitalize()))
class GPUModelRunner:
    def __init__(self, connector):
        self.connector, self.known = connector, {}
    def execute_model(self, batch):
        with own("preprocess"):
            for new in batch.scheduled_new_reqs:
                self.known[new.req_id] = len(new.prompt_token_ids)
            if NEW:
                self._determine_batch_execution_and_padding(batch.total_num_scheduled_tokens)
        self.connector.start_load_kv(None)
        with own("forward"):
            self.connector.wait_for_layer_load("0")
            sum(range(20000))
            self.connector.save_kv_layer("0", None, None)
        self.connector.wait_for_save()
        with own("postprocess"):
            pass
        self.batch = batch
        return None if NEW else self.sample()
    if NEW:
        def sample_tokens(self, grammar):
            return self.sample()
        def _determine_batch_execution_and_padding(self, n, **kwargs):
            return 1, Made(num_tokens=-(-n // 8) * 8), False, None, None
    def eplb_step(self):
        pass
    def sample(self):
        batch = self.batch
        with own("sample"):
            computed = dict(zip(batch.scheduled_cached_reqs.req_ids, batch.scheduled_cached_reqs.num_computed_tokens))
            computed.update((r.req_id, r.num_computed_tokens) for r in batch.scheduled_new_reqs)
            got = []
            for name, n in batch.num_scheduled_tokens.items():
                drafts = batch.scheduled_spec_decode_tokens.get(name, ())
                done = computed[name] + n >= self.known[name]
                got.append([7] * (1 + len(drafts) // 2) if done else [])
        with own("bookkeep"):
            pass
        with own("draft"):
            pass
        with own("eplb"):
            self.eplb_step()
        names = list(batch.num_scheduled_tokens)
        if NEW:
            with own("ModelRunnerOutput"):
                return Made(sampled_token_ids=got, req_id_to_index={n: i for i, n in enumerate(names)})
        return Made(sampled_token_ids=got, req_id_to_index={n: i for i, n in enumerate(names)})
""",
    "vllm.distributed.kv_transfer.kv_connector.v1.base": """
class KVConnectorBase_V1:
    def start_load_kv(self, context, **kwargs): raise NotImplementedError
    def wait_for_layer_load(self, name): raise NotImplementedError
    def save_kv_layer(self, name, layer, metadata, **kwargs): raise NotImplementedError
    def wait_for_save(self): raise NotImplementedError
    def get_finished(self, names): return None, None
    def get_num_new_matched_tokens(self, request, computed): raise NotImplementedError
""",
    "vllm.distributed.kv_transfer.kv_connector.factory": """
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
class StandInConnector(KVConnectorBase_V1):
    def start_load_kv(self, context, **kwargs): pass
    def wait_for_layer_load(self, name): pass
    def save_kv_layer(self, name, layer, metadata, **kwargs): pass
    def wait_for_save(self): pass
    def get_num_new_matched_tokens(self, request, computed): return request.on_disk, False
class KVConnectorFactory:
    @classmethod
    def create_connector(cls, config, role, kv_cache_config=None):
        return StandInConnector()
""",
    "vllm.v1.engine.core": """
from types import SimpleNamespace as Made
class EngineCore:
    def __init__(self, scheduler, executor):
        self.scheduler, self.model_executor = scheduler, executor
    def step(self):
        if not self.scheduler.has_requests():
            return {}, False
        batch = self.scheduler.schedule()
        if NEW:
            future = self.model_executor.execute_model(batch, non_block=True)
            self.scheduler.get_grammar_bitmask(batch)
            output = future.result()
            if output is None:
                output = self.model_executor.sample_tokens(None)
        else:
            output = self.model_executor.execute_model(batch)
        names = batch.num_scheduled_tokens
        result = self.scheduler.update_from_output(batch, output)
        return result, batch.total_num_scheduled_tokens > 0
    def step_with_batch_queue(self):
        raise NotImplementedError
    def post_step(self, drafted):
        self.scheduler.update_draft_token_ids(drafted)
class EngineCoreProc(EngineCore):
    def _process_input_queue(self):
        pass
""",
    "vllm.v1.engine.output_processor": """
from types import SimpleNamespace as Made
class OutputProcessor:
    def add_request(self, request, prompt, parent_req=None, request_index=0, queue=None):
        pass
    def process_outputs(self, outputs, timestamp=None, stats=None):
        return Made(request_outputs=[], reqs_to_abort=[])
    def abort_requests(self, names, internal=False):
        return list(names)
""",
}
if NEW:
    SOURCES["vllm.v1.executor.uniproc_executor"] = "class UniProcExecutor: pass\n"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """The modules above, which lie nowhere."""

    def find_spec(self, name, path=None, target=None):
        inside = any(module.startswith(name + ".") for module in SOURCES)
        if name not in SOURCES and not inside:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=inside)

    def get_source(self, name):
        return SOURCES.get(name, "")

    def exec_module(self, module):
        module.NEW, module.LEDGER = NEW, LEDGER
        if module.__name__ == "vllm":
            module.__version__ = VERSION
        exec(compile(self.get_source(module.__name__), module.__name__, "exec"), module.__dict__)


class Ledger:
    """What the engine did, as it knows itself."""

    def __init__(self):
        self.lines, self.kept = [], 0

    def scheduled(self, scheduler, requests, tokens, drafts):
        step = sum(line.startswith("step") for line in self.lines)
        prompt = sum(tokens[r.request_id] for r in requests if not r.num_output_tokens)
        before = sum(r.num_computed_tokens for r in requests)
        numbers = (sum(tokens.values()), prompt, len(tokens), before, sum(map(len, drafts.values())),
                   len(scheduler.running), len(scheduler.waiting))
        self.kept = sum(len(d) // 2 for d in drafts.values())
        self.lines.append("step " + " ".join(map(str, numbers + (self.kept,))))
        for r in requests:
            self.lines.append(f"in {step} {r.request_id} {tokens[r.request_id]} {r.num_computed_tokens}")

    def freed(self, r):
        self.lines.append(
            f"request {r.request_id} {r.num_prompt_tokens} {r.cached} {r.num_output_tokens} length")

    def worked(self, batch):
        self.lines.append(f"work {batch.total_num_scheduled_tokens}")


LEDGER = Ledger()
sys.meta_path.append(Finder())


class Request:
    """A request with a prompt of so many tokens, of which the connector has some."""

    def __init__(self, name, prompt, limit, on_disk=0, trace=None):
        self.request_id, self.prompt_token_ids, self.limit = name, [5] * prompt, limit
        self.num_prompt_tokens, self.on_disk, self.cached = prompt, on_disk, 0
        self.num_computed_tokens, self.output, self.drafts, self.preempted = 0, [], [], False
        self.trace_headers = trace

    def total(self):
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_output_tokens(self):
        return len(self.output)

    def get_finished_reason(self):
        return "length"


def worker(pipe, back):
    """The worker's process."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.executor.multiproc_executor import WorkerProc
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    mine = Worker(3, GPUModelRunner(KVConnectorFactory.create_connector(None, None)))
    mine.init_device()
    WorkerProc(mine, pipe, back).worker_busy_loop()


def serve(to, back):
    """The engine's process."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    load_general_plugins()
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    engine, front = EngineCoreProc(Scheduler(), MultiprocExecutor(to, back)), OutputProcessor()
    engine.scheduler.connector = KVConnectorFactory.create_connector(None, None)
    if not UNTIL:
        all_of("", engine, front)
    else:
        lasts = Request("lasts", 8, 10**9)
        front.add_request(lasts, None, queue=None)
        engine.scheduler.add_request(lasts)
    number = 0
    while UNTIL and not os.path.exists(UNTIL):
        number += 1
        all_of(f"{number}-", engine, front)


def all_of(prefix, engine, front):
    """Five requests, from their beginning to their end."""
    from types import SimpleNamespace as Made

    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    all_requests = [
        Request(prefix + "cmpl-a-of-more-than-sixteen-letters", 20, 6),
        Request(prefix + "b", 5, 9, trace=trace),
        Request(prefix + "c", 40, 4, on_disk=16),
        Request(prefix + "d", 3, 2),
        Request(prefix + "e", 30, 3),
    ]
    engine.step()
    for i in range(200):
        if UNTIL:
            time.sleep(0.002)
        if i in (0, 1, 2, 9, 12):
            request = all_requests.pop(0)
            front.add_request(request, None, queue=None)
            engine.scheduler.add_request(request)
        engine._process_input_queue()
        results, computed = engine.step()
        for output in results.values():
            got = zip(output.req_id_to_index, output.sampled_token_ids)
            outputs = [
                Made(request_id=name, new_token_ids=tokens, finish_reason=None if name in
                     engine.scheduler.requests else "length")
                for name, tokens in got
            ]
            front.process_outputs(outputs, timestamp=0.0)
        if computed and i % 3 == 2:
            names = [r.request_id for r in engine.scheduler.running if r.num_output_tokens]
            engine.post_step(Made(req_ids=names, draft_token_ids=[[1, 2, 3] for _ in names]))
        if len(engine.scheduler.requests) <= bool(UNTIL) and not all_requests:
            break


def main():
    """Forks the worker and serves."""
    ours, theirs = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours[1])
        os.close(theirs[0])
        worker(os.fdopen(ours[0], "rb"), os.fdopen(theirs[1], "wb"))
        print("\n".join(LEDGER.lines), flush=True)
        os._exit(0)
    os.close(ours[0])
    os.close(theirs[1])
    to = os.fdopen(ours[1], "wb")
    serve(to, os.fdopen(theirs[0], "rb"))
    to.close()
    os.waitpid(child, 0)
    print("\n".join(LEDGER.lines))


main()
