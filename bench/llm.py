"""What a span and a batch's records cost the engine that is recorded: llm.py GPUWHY LIBRARY LISTEN.

CPU time of the calling thread, in processes that take turns; a control calls the same function unwrapped a
second time. A reader drains the ring meanwhile. What a real engine loses: llm_engine.py.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

LIBRARY, LISTEN = sys.argv[2], sys.argv[3]
ROUNDS = int(os.environ.get("ROUNDS", "15"))

CHILD = r"""
import json, sys, time
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace as Made
from gpuwhy import _native
assert _native.is_on()
cpu, wall = time.thread_time_ns, time.perf_counter_ns
class Engine:
    def step(self, a, b=None):
        return a
plain = Engine()
class Wrapped(Engine):
    step = _native.wrap(Engine.step, "EngineCore::Schedule", "phase")
wrapped, scopes = Wrapped(), _native.Scopes({"gpu_model_runner: forward": "ModelRunner::Forward"})
def calls(of, n=1000):
    began = cpu()
    for _ in range(n):
        of.step(1, b=2)
    return (cpu() - began) / n
def scope(n=1000):
    began = cpu()
    for _ in range(n):
        with scopes("gpu_model_runner: forward"):
            pass
    return (cpu() - began) / n
def batches(requests, n=60):
    names = ["cmpl-%032x-0" % i for i in range(requests)]
    tokens = dict.fromkeys(names, 1)
    class Core:
        def __init__(self):
            self.computed = [100] * requests
        def step(self, write):
            if write:
                batch = Made()
                _native.batch_made("vllm engine", batch, tokens, names, self.computed, ones,
                                   ([], 0, requests, 0, 0.5))
                _native.batch_output(batch, requests, 0, 0, 0)
    Core.step = _native.wrap(Core.step, "EngineCore::Step", "step")
    core, ones, took = Core(), [1] * requests, {True: 0, False: 0}
    for i in range(n + 3):
        for write in (True, False):
            began = cpu()
            core.step(write)
            if i >= 3:
                took[write] += cpu() - began
        core.computed = [c + 1 for c in core.computed]
        if i % 10 == 9:
            time.sleep(0.002)
    return (took[True] - took[False]) / n
told = {"plain": [], "wrapped": [], "control": [], "scope": []}
for _ in range(100):
    told["plain"].append(calls(plain))
    told["wrapped"].append(calls(wrapped))
    told["control"].append(calls(plain))
    time.sleep(0.02)
    told["scope"].append(scope())
    time.sleep(0.02)
each = []
for i in range(100000):
    a = wall(); wrapped.step(1, b=2); b = wall()
    each.append(b - a)
    if i % 1000 == 999:
        time.sleep(0.02)
each.sort()
bare = []
for i in range(100000):
    a = wall(); plain.step(1, b=2); b = wall()
    bare.append(b - a)
bare.sort()
median = lambda values: sorted(values)[len(values) // 2]
print(json.dumps({
    "python_span_ns": median(told["wrapped"]) - median(told["plain"]),
    "python_span_a_a_ns": median(told["control"]) - median(told["plain"]),
    "python_call_ns": median(told["plain"]),
    "python_scope_ns": median(told["scope"]),
    "span_p9999_ns": each[int(len(each) * 0.9999)],
    "call_p9999_ns": bare[int(len(bare) * 0.9999)],
    "schedule_record_ns": batches(1),
    "schedule_record_32_ns": batches(32),
    "schedule_record_256_ns": batches(256),
}))
"""


def main():
    from measure import figure, made, write
    from llm_engine import measured

    rounds = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for n in range(ROUNDS):
            ring = f"{folder}/ring{n}"
            with open(os.devnull, "w") as nowhere:
                listener = subprocess.Popen([LISTEN, ring, "60"], stdout=nowhere, stderr=subprocess.PIPE)
            while not os.path.exists(ring):
                time.sleep(0.01)
            time.sleep(0.1)
            told = subprocess.run(
                [sys.executable, "-c", CHILD, LIBRARY],
                env={**os.environ, "GPUWHY_RING": ring},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            listener.kill()
            said = listener.communicate()[1].decode()
            lost = sum(int(n) for n in re.findall(r"lost: (\d+)", said))
            rounds.append(json.loads(told) | {"lost": lost})
    results = {"made": made("make bench-llm"), "figures": {}}
    for name in rounds[0]:
        results["figures"][name] = figure([one[name] for one in rounds])
        value = results["figures"][name]
        print(f"{name:<24} {value['value']:12.1f}  {value['spread']}")
    results["python"] = sys.version.split()[0]
    of_engine, results["engine"] = measured(LIBRARY)
    for name, value in of_engine.items():
        print(f"{name:<32} {value['value']:10.4f}  {value['spread']}")
    results["figures"].update(of_engine)
    write("llm", results)


main()
