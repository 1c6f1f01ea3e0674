"""Measures what being seen from inside costs a process, and what peers cost, in CPU time; see inject.sh.

Each command is a process of its own. In each round each runs twice, in an order that is shuffled: the first of
the two is the figure, the ratio of the second to the first is the A/A control.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager

from measure import GPUWHY, made, write

BUILT = os.path.abspath(sys.argv[2])
ROUNDS = int(os.environ.get("ROUNDS", "15"))
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inject")
LIBRARY = os.path.join(BUILT, "libgpuwhy_inject.so")
STANDIN = os.path.join(BUILT, "libgpuwhy_standin.so")
EXAMPLES = os.path.join(BUILT, "examples")
TESTKIT = os.path.join(BUILT, "gpuwhy-testkit")
# Nearly all of it launches, three of four as graphs.
LOOP = [TESTKIT, "gpuloop", "--for", "1", "--kernels", "512", "--kernel-us", "1", "--batch-mib", "1", "--graph"]


def answer(command, **how):
    """The one line of JSON that a command prints."""
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **how).stdout
    return json.loads(out.splitlines()[0])


def compiled(name, to, *more):
    source = os.path.join(SOURCES, name)
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", source, "-o", to, *more], check=True)


class Bench:
    def __init__(self, folder):
        self.folder = folder
        at = lambda *path: os.path.join(folder, *path)
        os.makedirs(at("libs"))
        os.makedirs(at("metered"))
        subprocess.run([TESTKIT, "gpu-links", at("libs"), STANDIN], check=True)
        os.symlink(STANDIN, at("metered", "libcuda.so.1"))
        shared = ["-shared", "-fPIC"]
        compiled("hook.c", at("hook.so"), *shared, "-ldl")
        compiled("meter.c", at("metered", "libcupti.so.13"), *shared, "-Wl,--no-as-needed", STANDIN, "-ldl")
        compiled("launch.c", at("launch"), "-L" + at("libs"), "-l:libcuda.so.1")
        compiled("uprobe.c", at("uprobe"))
        self.at = at
        self.socket = at("agent.sock")
        with open(os.path.join(SOURCES, "kernels.txt")) as file:
            self.kernels = file.read()

    def environment(self, libraries="libs", **more):
        machine = tempfile.mkdtemp(dir=self.folder)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUWHY_")}
        return {**clean, "GPUWHY_STANDIN": machine, "LD_LIBRARY_PATH": self.at(libraries), **more}

    @contextmanager
    def host(self, *asked):
        """A collector that asks for something; yields the environment for whoever is to be seen, and what was
        told lies in it afterwards."""
        told = {}
        process = subprocess.Popen(
            [os.path.join(EXAMPLES, "agent"), self.socket, *asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        try:
            yield {"CUDA_INJECTION64_PATH": LIBRARY, "GPUWHY_SOCKET": self.socket}, told
        finally:
            told.update(json.loads(process.communicate("", timeout=20)[0].splitlines()[-1]))
        if told["lost"]:
            raise RuntimeError(f"{told['lost']} of {told['records']} records were lost: this is no measurement")

    # Commands. Each gives its figures by name.

    def spans(self):
        told = answer([os.path.join(EXAMPLES, "ring_cost")])
        names = {
            "span": "span_ns",
            "step": "step_ns",
            "mark": "mark_ns",
            "span_without_ring": "span_without_ring_ns",
            "clock": "clock_ns",
            "clock_call": "clock_gettime_ns",
            "empty": "empty_loop_ns",
        }
        # In a tight loop the record is written while the clock is read; a span after other work finds the
        # processor's first-level cache full of that.
        after = told["work_and_span"]["ns"] - told["work"]["ns"]
        return {"span_after_work_ns": after, **{name: told[key]["ns"] for key, name in names.items()}}

    def nccl(self):
        told = answer([os.path.join(EXAMPLES, "plugin_cost")])
        return {
            "nccl_event_ns": told["ring-low"]["ns_per_event"],
            "nccl_event_with_phases_ns": told["ring-phases"]["ns_per_event"],
            "nccl_event_full_ring_ns": told["full-low"]["ns_per_event"],
            "nccl_event_without_collector_ns": told["none-low"]["ns_per_event"],
        }

    def cupti(self):
        with self.host("graphs") as (environment, told):
            ran = subprocess.run(
                [self.at("launch"), "real", "300"],
                input=self.kernels,
                env=self.environment("metered", **environment),
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            )
        meter = json.loads(ran.stderr.splitlines()[-1])
        if meter["records"] < 50_000:
            raise RuntimeError(f"the stand-in's buffers held only {meter}")
        if told["records"] < meter["records"]:
            raise RuntimeError(f"{meter} was measured, and only {told} came out of the ring")
        return {"cupti_record_ns": meter["ns"] / meter["records"]}

    def launch(self, what, **more):
        return answer([self.at("launch"), what, "300"], input=self.kernels, env=self.environment(**more))["ns"]

    def bare(self):
        return {"launch_bare_ns": self.launch("real"), "call_bare_ns": self.launch("refused")}

    def preload(self):
        hook = self.at("hook.so")
        return {
            "launch_preload_ns": self.launch("real", LD_PRELOAD=hook),
            "call_preload_ns": self.launch("refused", LD_PRELOAD=hook),
        }

    def uprobe(self):
        told = answer([self.at("uprobe")])
        figures = {}
        for name, ns in told.items():
            figures[f"uprobe_{name}_entry_ns"] = ns["entry"] - ns["bare"]
            figures[f"uprobe_{name}_entry_return_ns"] = ns["both"] - ns["bare"]
        figures["function_bare_ns"] = told["push"]["bare"]
        return figures

    def record_step(self):
        """The same functions, as steps of `gpuwhy record`."""
        figures = {}
        binary = self.at("uprobe")
        for name in ("push", "nop5", "endbr64"):
            command = [GPUWHY, "record", "--json", "--force", "-o", self.at("steps.trace")]
            command += ["--kernels", "off", "--collectives", "off", "--step", f"uprobe:{binary}:probed_{name}"]
            ran = subprocess.run(
                [*command, "--", binary, "call", name], check=True, capture_output=True, text=True, timeout=120
            )
            figures[f"record_step_{name}_ns"] = json.loads(ran.stdout.splitlines()[0])["ns"]
        return figures

    def loop(self, name, *asked, load=True):
        def figures(told):
            launches = told["launches"]
            return {
                f"launch_{name}_caller_ns": told["driver_cpu_ns"] / launches,
                f"launch_{name}_process_ns": told["process_cpu_ns"] / launches,
            }

        if not asked:
            # Nobody is there: the library looks for a collector from time to time.
            more = {"CUDA_INJECTION64_PATH": LIBRARY, "GPUWHY_SOCKET": self.socket} if load else {}
            return figures(answer(LOOP, env=self.environment(**more)))
        with self.host(*asked) as (environment, _):
            return figures(answer(LOOP, env=self.environment(**environment)))


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"value": middle, "spread": [min(values), max(values)], "quartiles": [low, high], "n": len(values)}


def main():
    folder = tempfile.mkdtemp(prefix="gpuwhy-bench-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        measure(Bench(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(bench):
    settings = {
        "not loaded": lambda: bench.loop("not_loaded", load=False),
        "nothing asked": lambda: bench.loop("nothing_asked"),
        "kernels": lambda: bench.loop("kernels", "graphs"),
        "nodes": lambda: bench.loop("nodes", "nodes"),
        "launches": lambda: bench.loop("launches", "nodes", "launches"),
    }
    commands = {
        "spans": bench.spans,
        "nccl": bench.nccl,
        "cupti": bench.cupti,
        "bare": bench.bare,
        "preload": bench.preload,
        "uprobe": bench.uprobe,
        "record --step": bench.record_step,
        **settings,
    }
    first, second, missing = {}, {}, {}
    turn = random.Random(1)
    for round in range(ROUNDS):
        order = list(commands) * 2
        turn.shuffle(order)
        seen = set()
        for name in order:
            if name in missing:
                continue
            try:
                figures = commands[name]()
            except (subprocess.SubprocessError, OSError, RuntimeError, ValueError) as error:
                says = (getattr(error, "stderr", None) or "").strip().splitlines()
                missing[name] = f"{error}; {says[-1]}" if says else str(error)
                print(f"inject: {name}: {missing[name]}", file=sys.stderr)
                continue
            into = second if name in seen else first
            seen.add(name)
            for figure, value in figures.items():
                into.setdefault(figure, []).append(value)
        print(f"round {round + 1} of {ROUNDS}", file=sys.stderr, flush=True)

    whole = {name for name in first if len(first[name]) == ROUNDS == len(second.get(name, []))}
    of = {name: quartiles(first[name]) for name in first if name in whole}
    control = {name: quartiles([b / a for a, b in zip(first[name], second[name])]) for name in of if min(first[name]) > 0}
    results = {"made": made("make bench-inject"), "figures": of, "goals": [], "rows": [], "settings": [], "missing": missing}

    def minus(a, b):
        """What `a` adds to `b`, round by round."""
        if a in of and b in of:
            return quartiles([x - y for x, y in zip(first[a], first[b])])
        return None

    for name, base in (("launch_preload", "launch_bare"), ("call_preload", "call_bare")):
        added = minus(name + "_ns", base + "_ns")
        if added:
            of[name + "_added_ns"] = added
    for what, name, goal in (
        ("a span marked through gpuwhy-wire", "span_ns", 40),
        ("an event of NCCL's plug-in", "nccl_event_ns", 100),
        ("an activity record of CUPTI", "cupti_record_ns", None),
    ):
        if name in of:
            met = "" if goal is None else "met" if of[name]["value"] < goal else "not met"
            results["goals"].append(
                {"what": what, "ns": of[name], "goal_ns": goal, "met": met, "a_a": control[name]}
            )

    def row(way, name, note=""):
        if name in of:
            results["rows"].append({"way": way, "ns": of[name], "a_a": control.get(name), "note": note})

    row("span through gpuwhy-wire", "span_ns", "begin and end")
    row("span through gpuwhy-wire", "span_after_work_ns", "the same, after other work in 64 KiB")
    row("step through gpuwhy-wire", "step_ns", "with size and rank")
    row("span, nobody listens", "span_without_ring_ns")
    row("wire's clock, once", "clock_ns")
    row("clock_gettime, once", "clock_gettime_ns")
    row("NCCL event", "nccl_event_ns", "start, stop and state; default mask")
    row("NCCL event with phases", "nccl_event_with_phases_ns", "mask 0x8e46")
    row("NCCL event, nobody listens", "nccl_event_without_collector_ns")
    row("CUPTI record", "cupti_record_ns", "on CUPTI's thread")
    row("LD_PRELOAD of cuLaunchKernel", "call_preload_added_ns", "added to a refused call")
    row("LD_PRELOAD of cuLaunchKernel", "launch_preload_added_ns", "added to a launch of the stand-in")
    row("cuLaunchKernel, refused", "call_bare_ns", "the stand-in's own time")
    row("cuLaunchKernel", "launch_bare_ns", "the stand-in's own time")
    for name, first_instruction in (("nop5", "5-byte nop"), ("push", "push %rbp"), ("endbr64", "endbr64")):
        row(f"uprobe on {first_instruction}", f"uprobe_{name}_entry_ns", "entry")
        row(f"uprobe on {first_instruction}", f"uprobe_{name}_entry_return_ns", "entry and return")
        row(f"gpuwhy record --step on {first_instruction}", f"record_step_{name}_ns", "as many calls as go")
    for name in settings:
        key = f"launch_{name.replace(' ', '_')}"
        if key + "_caller_ns" not in of:
            continue
        results["settings"].append(
            {
                "asked": name,
                "caller_ns": of[key + "_caller_ns"],
                "caller_added_ns": minus(key + "_caller_ns", "launch_not_loaded_caller_ns"),
                "process_ns": of[key + "_process_ns"],
                "process_added_ns": minus(key + "_process_ns", "launch_not_loaded_process_ns"),
                "a_a": control[key + "_process_ns"],
            }
        )
    write("inject", results)
    for goal in results["goals"]:
        says = f": goal < {goal['goal_ns']} ns {goal['met']}" if goal["goal_ns"] else ""
        print(f"{goal['what']:<36} {goal['ns']['value']:7.1f} ns{says}")
    for row in results["rows"]:
        print(f"{row['way']:<36} {row['ns']['value']:9.1f} ns  {row['note']}")
    for row in results["settings"]:
        print(f"{row['asked']:<16} caller {row['caller_ns']['value']:8.1f}  process {row['process_ns']['value']:8.1f} ns a launch")
    if missing:
        print("not measured: " + "; ".join(f"{name} ({why})" for name, why in missing.items()))


main()
