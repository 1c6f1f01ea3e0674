"""A real engine that serves a language model (vLLM on CPUs, `make llm-env`), and what is done to it."""

import glob
import http.client
import json
import os
import signal
import subprocess
import sys
import time

from beside import busy_loops, compiler, quota, serves, told, until
from programs import FileServer, HERE, Program, logged

ENV = os.environ.get("GPUWHY_LLM_ENV") or os.path.expanduser("~/.cache/gpuwhy/llm-env")
NOTHING, COMPUTES, COLLECTS, COMPILES = range(4)


class Vllm(Program):
    """A server with a worker, under a client of a steady rate whose prompts and answers are of any length."""

    name, figure = "vLLM under a client", "vllm"
    has_batches = True
    # Of a CPU, under a quota.
    allowed = 0.5
    # Which of its processes does what it is told.
    does_in = "VLLM::EngineCore"
    # How often its client asks, and for what, as words of asks_engine.py.
    asks_a_second, asked = 6, ()

    def __init__(self, folder, gpuwhy):
        os.chmod(folder, 0o755)
        self.folder, self.steps = folder, os.path.join(folder, "steps")
        self.does = os.path.join(folder, "does")
        self.port = 9000 + os.getpid() % 800
        with open(self.does, "wb") as file:
            file.write(bytes(3))
        hook = os.path.join(folder, "hook")
        os.makedirs(hook)
        with open(os.path.join(HERE, "engine_does.py")) as source, open(os.path.join(hook, "sitecustomize.py"), "w") as out:
            out.write(source.read())
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", OMP_NUM_THREADS="1", PYTHONPATH=hook, ENGINE_DOES=self.does,
            ENGINE_DOES_IN=self.does_in,
        )
        self.client = None

    def watched(self):
        python = os.path.join(ENV, "venv/bin/python")
        options = "--load-format dummy --host 127.0.0.1 --max-model-len 2048 --max-num-seqs 32 --dtype bfloat16 --enforce-eager"
        model = os.path.join(ENV, "model/tiny")
        return [
            "--", python, os.path.join(ENV, "venv/bin/vllm"), "serve", model, "--served-model-name", "tiny",
            *options.split(), "--port", str(self.port), *self.options(),
        ]

    def options(self):
        return []

    def wait_for(self, what):
        until_then = time.monotonic() + 300
        while not what():
            if time.monotonic() > until_then:
                raise RuntimeError("the engine did not start")
            time.sleep(1)

    def answers(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def pid_of(self, name):
        """The process that calls itself so."""
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(path, "rb") as file:
                    if file.read().startswith(name.encode()):
                        return int(path.split("/")[2])
            except OSError:
                pass
        return 0

    def ready(self):
        self.wait_for(self.answers)
        self.wait_for(lambda: os.path.exists(self.does + ".pid"))
        self.client = self.asks(self.folder, self.asks_a_second, *self.asked)
        self.pid = self.pid_of("VLLM::EngineCore")
        time.sleep(float(os.environ.get("ENGINE_LEARNS", "60")))

    def asks(self, folder, per_second, *words):
        """A client that asks so often."""
        script = os.path.join(HERE, "asks_engine.py")
        return subprocess.Popen(["/usr/bin/python3", script, folder, str(self.port), str(per_second), *words])

    def told(self, what, thousandths=0):
        """What it is to do, and by how many thousandths a step is to take longer."""
        with open(self.does, "r+b") as file:
            file.write(bytes([what, thousandths >> 8, thousandths & 255]))

    def took(self, begin, end):
        return logged(self.steps, begin, end)

    def end(self):
        if self.client:
            self.client.kill()
            self.client.wait()


class VllmStore(Vllm):
    """The same with a store of keys and values, whose files a process of somebody else serves, which asks another one over a
    link; prompts come again and are loaded from there."""

    name, figure = "vLLM with a store", "vllm_store"
    does_in = "VLLM::Worker"
    asked = ("prompts=60",)

    def __init__(self, folder, gpuwhy):
        super().__init__(folder, gpuwhy)
        self.served = os.path.join(folder, "store")
        os.makedirs(self.served)
        self.server = FileServer(self.served, linked=True)
        self.wait_for(self.server.is_there)

    def options(self):
        store = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                 "kv_connector_extra_config": {"shared_storage_path": self.server.mount}}
        return ["--kv-transfer-config", json.dumps(store), "--no-enable-prefix-caching"]

    def end(self):
        super().end()
        self.server.end()


class VllmSmall(Vllm):
    """The same with little memory for keys and values."""

    name, figure = "vLLM with little memory", "vllm_small"

    def options(self):
        return ["--num-gpu-blocks-override", "40"]


class VllmTwo(Vllm):
    """The same with two ranks, of which the second does what it is told."""

    name, figure = "vLLM with two ranks", "vllm_two"
    does_in = "VLLM::Worker_TP1"
    asks_a_second = 3

    def options(self):
        return ["--tensor-parallel-size", "2"]


def does(what, by, *how):
    """A process of the engine does something, a thread of its own or its steps, which may take so much longer."""
    return told(what, lambda program: {program.pid_of(by)}, lambda program: program, *how)


def stops(name):
    """A worker is stopped for a tenth to half a second, again and again."""

    def disturb(program, seconds, rng):
        pid = program.pid_of(name)
        for _ in until(seconds):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1 + 0.4 * rng.random())
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.2 + 0.3 * rng.random())
        return {pid}, set()

    return disturb


def link_is_down(program, seconds, rng):
    """The link of the store goes down, for 300 ms at a time."""
    for _ in until(seconds):
        program.server.is_up(False)
        time.sleep(0.3)
        program.server.is_up(True)
        time.sleep(0.3 + 0.4 * rng.random())
    return set(), set()


def asked_for(per_second, *words):
    """More clients ask, and for something else. On two CPUs they, and the engine that has more to do, are also in each
    other's way."""

    def disturb(program, seconds, rng):
        client = program.asks(os.devnull, per_second, *words)
        time.sleep(seconds)
        client.kill()
        client.wait()
        engine = {program.pid_of(name) for name in ("VLLM::EngineCore", "VLLM::Worker")}
        return {client.pid, program.client.pid, *engine}, set()

    return disturb


def nothing(program, seconds, rng):
    """Nothing."""
    time.sleep(seconds)
    return set(), set()


ALL = [
    ("two busy loops", Vllm, busy_loops, {"cpu_contention"}, True),
    ("a compiler", Vllm, compiler, {"cpu_contention"}, True),
    ("the worker is stopped", Vllm, stops("VLLM::Worker"), {"collective_straggler"}, True),
    ("a thread of the engine computes", Vllm, does(COMPUTES, "VLLM::EngineCore"), {"gil_contention"}, True),
    ("the engine's heap is collected", Vllm, does(COLLECTS, "VLLM::EngineCore"), {"gc_pause"}, False),
    ("a quota", Vllm, quota, {"cpu_throttling"}, False),
    ("long prompts", Vllm, asked_for(2, "tokens=1900"), {None, "cpu_contention"}, False),
    ("nothing", Vllm, nothing, set(), False),
    ("the store sleeps", VllmStore, serves(3), {"own_sleep"}, True),
    ("the store computes", VllmStore, serves(2), {"engine_software", "cpu_contention"}, True),
    ("the store's link goes down", VllmStore, link_is_down, {"network"}, False),
    ("the worker compiles", VllmStore, does(COMPILES, "VLLM::Worker"), {"recompilation", "engine_software"}, False),
    ("a thread of the worker computes", VllmStore, does(COMPUTES, "VLLM::Worker"), {"gil_contention"}, True),
    # Requests that lose their memory to others are computed again: more to do, as the steps say themselves.
    ("too little memory", VllmSmall, asked_for(6, "tokens=600", "answers=300"),
     {None, "cpu_contention"}, False),
    ("penalties", VllmSmall, asked_for(6, "answers=200", "penalties=1"),
     {"engine_software", "cpu_contention"}, False),
    ("nothing", VllmStore, nothing, set(), False),
    ("a rank is slow", VllmTwo, does(NOTHING, "VLLM::Worker_TP1", 1000), {"collective_straggler"}, True),
    ("a rank is stopped", VllmTwo, stops("VLLM::Worker_TP1"), {"collective_straggler"}, True),
    ("two busy loops", VllmTwo, busy_loops, {"cpu_contention"}, True),
    ("nothing", VllmTwo, nothing, set(), False),
]
if not os.path.exists(os.path.join(ENV, "ready")):
    print(f"vLLM is left out: there is no {ENV} (make llm-env)", file=sys.stderr)
    ALL = []
