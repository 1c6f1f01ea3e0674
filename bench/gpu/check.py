"""The parts of gpu-check: what a machine with a GPU can prove; see scripts/gpu-check.sh.

Each part is a process of its own with its own limit, prints one line, and leaves what it found in the result. A
part ends as `ran`, `skipped` (with the reason: something that it needs is not here) or `failed`.
"""

import argparse
import bisect
import ctypes
import glob
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import probes
from parts import Skip, figure

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BIN = os.environ["GPUWHY_CHECK_BIN"]
STANDIN = os.environ.get("GPUWHY_CHECK_STANDIN") == "1"
GPUWHY = os.path.join(BIN, "gpuwhy")
LIBRARY = os.path.join(BIN, "libgpuwhy_inject.so")
TESTKIT = os.path.join(BIN, "gpuwhy-testkit")
WORK = [sys.executable, os.path.join(HERE, "work.py")]
ROUNDS = int(os.environ.get("ROUNDS", "7"))
# CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT of cupti_activity.h; its value is a size_t.
POOL_LIMIT = 2


def found(pattern):
    return sorted(p for path in sys.path for p in glob.glob(os.path.join(path, pattern)))


def run(command, timeout=60, **how):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **how)


def last(text):
    lines = [line for line in (text or "").strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def environment(**more):
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_INJECTION64_PATH", "NCCL_PROFILER_PLUGIN", "GPUWHY_SOCKET")}
    return {**env, **more}


class Worker:
    """A process that takes orders (work.py serve)."""

    def __init__(self, **env):
        self.process = subprocess.Popen(
            [*WORK, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(**env)
        )

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"work.py ended ({self.process.wait()})")
        return json.loads(line)

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        told = self.read()
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Host:
    """A collector that can be told to ask for something else (crates/wire/examples/agent.rs)."""

    def __init__(self, socket, *words):
        self.process = subprocess.Popen(
            [os.path.join(BIN, "agent"), socket, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.process.stdout.readline()

    def ask(self, words=""):
        """What was told until now; from now on `words` is asked."""
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)


# Parts.


def part_environment(folder):
    """What is here."""
    data = {"python": sys.version.split()[0], "root": os.geteuid() == 0}
    doctor = run([GPUWHY, "doctor", "--json"])
    try:
        data["doctor"] = json.loads(doctor.stdout)
    except ValueError:
        data["doctor"] = {"error": last(doctor.stderr)}
    smi = shutil.which("nvidia-smi")
    if smi and not STANDIN:
        fields = "name,driver_version,memory.total,mig.mode.current,clocks.max.sm,power.limit"
        data["nvidia_smi"] = run([smi, f"--query-gpu={fields}", "--format=csv,noheader"]).stdout.strip().splitlines()
    if not STANDIN:
        says = run(
            [
                sys.executable,
                "-c",
                "import json, torch; print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda,"
                " 'gpu': torch.cuda.get_device_name(0), 'nccl': torch.cuda.nccl.version()}))",
            ],
            timeout=90,
        )
        if says.returncode:
            raise Skip(f"PyTorch sees no GPU: {last(says.stderr)}")
        data.update(json.loads(says.stdout.splitlines()[-1]))
    cupti = cupti_library()
    if cupti:
        version = ctypes.c_uint32()
        ctypes.CDLL(cupti).cuptiGetVersion(ctypes.byref(version))
        data["cupti"] = version.value
    line = ", ".join(
        f"{key} {data[key]}" for key in ("gpu", "torch", "cuda", "nccl", "cupti") if key in data
    )
    return line or "the stand-in", data


def cupti_library():
    """The libcupti that PyTorch brings, or the stand-in's."""
    if STANDIN:
        return "libcupti.so.13"
    near = found("nvidia/cu13/lib/libcupti.so*") + found("nvidia/cuda_cupti/lib/libcupti.so*")
    return near[0] if near else None


def part_bpf(folder):
    """Whether eBPF works here: a short recording of the CPU workload, and what it says of itself."""
    trace = os.path.join(folder, "bpf.trace")
    ran = run([GPUWHY, "record", "--json", "--summary", "-", "-o", trace, "--kernels", "off", "--collectives", "off", "--",
               TESTKIT, "steploop", "--loopback", "--for", "4"], timeout=60)  # fmt: skip
    if ran.returncode and "{\n" not in ran.stdout:
        reason = last(ran.stderr) or last(ran.stdout)
        # A refusal of the machine and no failure of ours.
        raise Skip(f"gpuwhy record may not record here: {(ran.stderr or ran.stdout).strip()[:300] or reason}")
    told = json.loads(ran.stdout[ran.stdout.index("{\n") :])
    valid = run([GPUWHY, "validate", trace])
    if valid.returncode:
        raise RuntimeError(f"the trace is not valid: {last(valid.stdout)}")
    if not told["events"]:
        raise RuntimeError("the kernel handed over no event")
    return f"{told['events']} events, {told['dropped']} lost; {len(told['degraded'])} sources degraded", told


def part_cupti(folder):
    """What CUPTI does that the library relies on: times on our clock, kinds switched late, graphs that are captured
    while they are told as a whole, the last records of a process that ends, another profiler in the process."""
    socket = os.path.join(folder, "agent.sock")
    host = Host(socket)
    worker = Worker(CUDA_INJECTION64_PATH=LIBRARY, GPUWHY_SOCKET=socket)
    worker.read()
    data, wrong = {}, []

    def seen(words, order):
        host.ask(words)
        time.sleep(0.3)
        did = worker.ask(order)
        time.sleep(0.6)
        return did, host.ask("")

    # Kernels lie between the host's readings around them; each pair bounds the clocks' difference.
    early, late = [], []
    for _ in range(5):
        did, told = seen("nodes", "eager 10")
        if not told["kernels"]:
            wrong.append("nothing is told when it is asked for late")
            break
        early.append((told["from_ns"] - did["from_ns"]) / 1e3)
        late.append((did["to_ns"] - told["to_ns"]) / 1e3)
    if early:
        data["first_kernel_after_call_us"], data["last_kernel_before_return_us"] = figure(early), figure(late)
        if min(early + late) < -20:
            wrong.append(f"kernels lie {-min(early + late):.0f} us outside of the calls")
    host.ask("graphs")
    time.sleep(0.3)
    worker.ask("capture")
    _, told = seen("graphs", "graph 20")
    data["replays_told_of_20"] = told["graphs"]
    if told["graphs"] != 20:
        wrong.append(f"{told['graphs']} of 20 replays are told")
    _, told = seen("graphs", "profiler 8")
    data["beside_another_profiler"] = {"did": _, "kernels": told["kernels"], "notices": told["notices"]}
    _, told = seen("graphs", "graph 20")
    data["replays_told_of_20_after_the_other_profiler"] = told["graphs"]
    host.ask("graphs")
    time.sleep(6 if "missing" not in data["beside_another_profiler"]["did"] else 0.3)
    worker.ask("graph 3")
    worker.end()
    time.sleep(0.3)
    told = host.ask("")
    data["replays_told_of_3_at_the_end"] = told["graphs"]
    if told["graphs"] < 3:
        wrong.append(f"{told['graphs']} of the last 3 replays are told")
    data["notices_at_the_end"] = told["notices"]
    host.end()
    data["wrong"] = wrong
    least = f"kernels lie within their calls by {min(early + late):.0f} us" if early else "no kernels"
    return f"{least}; " + ("; ".join(wrong) or "all as expected"), data


ENDINGS = ("return", "exit", "_exit", "abort", "exec", "fork", "term", "int", "kill", "segv")
AGENTS = ("none", "early", "late", "restarted")


def part_exits(folder):
    """Whether programs end as they would without us: ten endings, with an agent that is there from the beginning,
    comes late, is restarted, or never comes. Each is compared with the same ending without the library."""
    statuses = {how: status for how, status in endings(folder, None).items()}
    data, wrong = {"bare": statuses}, []
    for agent in AGENTS:
        data[agent] = endings(folder, agent)
        for how, status in data[agent].items():
            if status != statuses[how]:
                wrong.append(f"{how} with agent {agent}: {status} instead of {statuses[how]}")
    tried = len(AGENTS) * len(ENDINGS)
    data["wrong"], data["as_without_us"] = wrong, (tried - len(wrong)) / tried
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {tried} programs ended otherwise: {'; '.join(wrong)}")
    return f"{tried} programs ended as without us", data


def endings(folder, agent):
    """How programs end, one for each ending, all at once; what ran late, or died of a signal, as a number."""
    socket = os.path.join(folder, f"exits-{agent}.sock")
    loaded = {"CUDA_INJECTION64_PATH": LIBRARY, "GPUWHY_SOCKET": socket} if agent else {}
    host = Host(socket, "nodes") if agent in ("early", "restarted") else None
    workers = {how: Worker(**loaded) for how in ENDINGS}
    for worker in workers.values():
        worker.read()
        worker.ask("eager 5")
    if agent == "restarted":
        host.end()
        host = None
        time.sleep(0.5)
    if agent in ("late", "restarted"):
        host = Host(socket, "nodes")
        # A library looks for its agent every two seconds.
        time.sleep(2.5)
        for worker in workers.values():
            worker.ask("eager 5")
    for how, worker in workers.items():
        worker.process.stdin.write(f"end {how}\n")
        worker.process.stdin.flush()
    ended = {}
    for how, worker in workers.items():
        try:
            ended[how] = worker.process.wait(30)
        except subprocess.TimeoutExpired:
            ended[how] = "it hangs"
            worker.process.kill()
            worker.process.wait()
    if host:
        host.end()
    return ended


ORDERS = ("eager", "graph")
# What is asked, of which process.
MODES = {
    "bare": ("plain", None),
    "bare again": ("plain", None),
    "NVML": ("plain", None),
    "loaded, nothing asked": ("loaded", None),
    "off again": ("asked", ""),
    "graphs": ("asked", "graphs"),
    "nodes": ("asked", "nodes"),
    "launches": ("asked", "nodes launches"),
}


def part_cost(folder):
    """How much slower steps are, and what a kernel costs, for each thing that can be asked.

    Three processes stay: one without us, one that has loaded the library and is asked nothing, and one that is
    asked for one thing after the other. They take turns, one works at a time, in an order that is shuffled.
    """
    socket = os.path.join(folder, "agent.sock")
    host = Host(socket)
    loaded = {"CUDA_INJECTION64_PATH": LIBRARY, "GPUWHY_SOCKET": os.path.join(folder, "nobody")}
    workers = {"plain": Worker(), "loaded": Worker(**loaded), "asked": Worker(**{**loaded, "GPUWHY_SOCKET": socket})}
    for worker in workers.values():
        worker.read()
    # As many steps as take a third of a second.
    steps = {}
    for order in ORDERS:
        workers["plain"].ask(f"{order} 20")
        usual = workers["plain"].ask(f"{order} 20")["median_us"]
        steps[order] = int(min(max(3e5 / usual, 10), 2000))
    kernels, told = count_kernels(workers["asked"], host)
    took = {order: {mode: [] for mode in MODES} for order in ORDERS}
    turn = random.Random(1)
    for _ in range(ROUNDS):
        modes = list(MODES)
        turn.shuffle(modes)
        for mode in modes:
            who, words = MODES[mode]
            if words is not None:
                host.ask(words)
                time.sleep(0.15)
            with nvml() if mode == "NVML" else nothing():
                for order in ORDERS:
                    took[order][mode].append(workers[who].ask(f"{order} {steps[order]}"))
            if words:
                lost = host.ask("")
                told["lost"] = told.get("lost", 0) + lost["lost"]
    for worker in workers.values():
        worker.end()
    told["at the end"] = host.ask("")
    host.end()
    rows = []
    for order in ORDERS:
        bare = took[order]["bare"]
        for mode in MODES:
            these = took[order][mode]
            ratio = figure([x["median_us"] / b["median_us"] for x, b in zip(these, bare)])
            rows.append(
                {
                    "work": order,
                    "asked": mode,
                    "step_us": figure([x["median_us"] for x in these]),
                    "slowdown": ratio,
                    "us_a_kernel": figure(
                        [(x["median_us"] - b["median_us"]) / max(kernels[order], 1) for x, b in zip(these, bare)]
                    ),
                    "caller_cpu_us_a_kernel": figure(
                        [(x["cpu_us"] - b["cpu_us"]) / max(kernels[order], 1) for x, b in zip(these, bare)]
                    ),
                }
            )
    line = "; ".join(
        f"{row['work']} {row['asked']} x{row['slowdown']['value']:.3f}"
        for row in rows
        if row["asked"] in ("bare again", "graphs", "nodes")
    )
    return line, {"kernels_a_step": kernels, "told": told, "rows": rows}


def count_kernels(worker, host):
    """Kernels a step, as we are told of them; and whether nodes of graphs that were captured before anybody asked
    are told, and of those that were captured after."""
    told, kernels = {}, {}

    def counted(order, n):
        host.ask("nodes")
        time.sleep(0.3)
        worker.ask(f"{order} {n}")
        time.sleep(0.6)
        seen = host.ask("")
        return seen["kernels"] / n, seen

    kernels["eager"], told["eager"] = counted("eager", 20)
    before, told["graph captured before"] = counted("graph", 20)
    host.ask("nodes")
    time.sleep(0.3)
    worker.ask("capture")
    after, told["graph captured while asked"] = counted("graph", 20)
    kernels["graph"] = max(before, after)
    told["nodes of a graph captured before"] = before
    told["nodes of a graph captured while asked"] = after
    return kernels, told


@contextmanager
def nothing():
    yield


@contextmanager
def nvml():
    """NVML read as a recorder reads it, and nothing else."""
    process = subprocess.Popen([os.path.join(BIN, "nvml_cost"), "600"], stdout=subprocess.DEVNULL, env=environment())
    time.sleep(0.5)
    try:
        if process.poll() is not None:
            raise RuntimeError("nvml_cost does not run")
        yield
    finally:
        process.kill()
        process.wait()


def part_growth(folder):
    """Device memory that grows with the nodes of graphs, and records without times (parcagpu #23): with a pool of
    8 buffers of CUPTI it shows within a million records, if this CUPTI has it."""
    socket = os.path.join(folder, "agent.sock")
    host = Host(socket, "nodes")
    env = {"CUDA_INJECTION64_PATH": LIBRARY, "GPUWHY_SOCKET": socket}
    if STANDIN:
        # Records become wrong after 100,000 of them, so that the watchdog has something to say.
        env.update(GPUWHY_STANDIN_DEFECTS="graph-growth")
    else:
        # The library sets it in cuInit, before CUDA has started.
        env.update(GPUWHY_CUPTI_POOL_LIMIT="8")
    try:
        worker = Worker(**env)
        worker.read()
        worker.ask("capture")
        per = 64
        before, seen = worker.ask("memory")["free"], []
        total, kernels, notices, growth = 0, 0, {}, []
        began = time.monotonic()
        while total < 1_200_000 and time.monotonic() - began < 60:
            n = 500
            worker.ask(f"flood {n}")
            time.sleep(0.25)
            told = host.ask("nodes")
            kernels += told["kernels"] - told["graphs"]
            notices.update(told["notices"])
            if told["kernels"]:
                per = max(per, told["kernels"] / n)
            total += n * per
            growth.append([int(total), int(kernels), round((before - worker.ask("memory")["free"]) / 2**20, 1)])
            if any("times" in text for text in notices) and len(growth) > 3:
                break
        worker.end()
    finally:
        host.end()
    grown = growth[-1][2]
    spoke = [text for text in notices if "times" in text]
    shows = grown > 64 or bool(spoke)
    line = (
        f"{'reproduced' if shows else 'not seen'}: {grown:.0f} MiB of device memory more after {growth[-1][0]:,} nodes; "
        f"the watchdog {'spoke: ' + spoke[0] if spoke else 'was silent'}"
    )
    return line, {
        "reproduced": shows,
        "watchdog_spoke": bool(spoke),
        "notices": notices,
        "nodes_kernels_mib": growth,
    }


def part_nccl_loads(folder):
    """The real NCCL of this machine takes the plug-in and goes on."""
    if STANDIN:
        raise Skip("without a GPU, NCCL makes no communicator")
    env = environment(NCCL_PROFILER_PLUGIN=LIBRARY, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,PROFILE")
    ran = run([sys.executable, os.path.join(HERE, "ranks.py"), "one"], timeout=70, env=env)
    says = [l for l in (ran.stdout + ran.stderr).splitlines() if "PROFILER" in l.upper()]
    if ran.returncode:
        raise RuntimeError(f"one rank failed: {last(ran.stderr)}")
    if not any("gpuwhy" in line.lower() for line in says):
        raise RuntimeError(f"NCCL does not say that it took the plug-in: {says[:2]}")
    return last("\n".join(l for l in says if "gpuwhy" in l.lower())), {"says": says[:20]}


def nccl_version():
    ran = run([sys.executable, "-c", "import torch; print(*torch.cuda.nccl.version())"], timeout=90)
    return tuple(int(n) for n in ran.stdout.split())


def part_nccl(folder):
    """Two ranks, one of which is late for a while: what is seen, and what is said of it."""
    trace = os.path.join(folder, "nccl.trace")
    record = [GPUWHY, "record", "--json", "--summary", "-", "--force", "-o", trace, "--collectives", "phases", "--kernels", "off", "--"]
    if STANDIN:
        libraries = sorted(glob.glob(os.path.expanduser("~/.cache/gpuwhy/nccl/2.3*/libnccl.so.2")))
        if not libraries:
            raise Skip("there is no libnccl; scripts/nccl.sh fetches it")
        barrier = os.path.join(folder, "barrier")
        driver = [os.path.join(BIN, "nccl_driver"), libraries[-1], LIBRARY, "straggler", "--ranks", "2", "--steps", "1100",
                  "--barrier", barrier, "--compute-us", "8000"]  # fmt: skip
        late = ["--late-us", "8000", "--late-from", "750", "--late-until", "1000"]
        both = " ".join(driver + ["--rank", "0"]) + " & " + " ".join(driver + ["--rank", "1", *late]) + "; wait"
        # NCCL's mask is what the plug-in asks for; the driver follows it.
        command, env = ["sh", "-c", both], environment(GPUWHY_NCCL_MASK="0x8e46")
    else:
        version = nccl_version()
        if version < (2, 30):
            text = ".".join(map(str, version))
            raise Skip(f"PyTorch's NCCL is {text}; several ranks on one GPU need 2.30")
        command = [sys.executable, os.path.join(HERE, "ranks.py"), "22", "10"]
        env = environment(NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_MAX_CTAS="4", NCCL_NVLS_ENABLE="0")
    told = recorded([*record, *command], env, 75)
    tables = table_rows(trace)
    verdict = diagnosed(trace)
    data = {"rows": tables, "recorder": told, "findings": verdict, "injected": {"class": "collective_straggler", "rank": 1}}
    classes = [cause["class"] for cause in verdict]
    right = any(cause.get("rank") == 1 or cause["class"] == "collective_straggler" for cause in verdict[:1])
    data["right"] = right
    return f"rank 1 late: {classes[:2] or 'nothing found'} ({'right' if right else 'NOT as injected'})", data


def recorded(command, env, timeout):
    ran = run(command, timeout=timeout, env=env)
    # The status is the workload's; without a summary gpuwhy has not begun.
    if ran.returncode and "{\n" not in ran.stdout:
        raise Skip(f"gpuwhy record did not record: {(ran.stderr or ran.stdout).strip()[:300]}")
    told = json.loads(ran.stdout[ran.stdout.index("{\n") :])
    if told["command_status"] not in (0, None):
        raise RuntimeError(f"the workload failed ({told['command_status']}): {last(ran.stderr)}")
    return told


def table_rows(trace):
    valid = run([GPUWHY, "validate", "--json", trace])
    if valid.returncode:
        raise RuntimeError(f"the trace is not valid: {valid.stdout[:300]}")
    return json.loads(valid.stdout)


def diagnosed(trace):
    """First causes of all findings, the worst finding first."""
    says = run([GPUWHY, "diagnose", "--json", trace], timeout=40)
    told = json.loads(says.stdout)
    findings = told.get("findings", [])
    causes = []
    for finding in findings:
        for cause in finding.get("causes", [])[:3]:
            culprit = cause.get("culprit") or {}
            causes.append(
                {
                    "class": cause["class"],
                    "pid": culprit.get("pid"),
                    "comm": culprit.get("comm"),
                    "confidence": cause["confidence"],
                    "excess_ms": cause["excess_ms"],
                    "outcome": finding.get("outcome"),
                    "for": [e["says"] for e in cause.get("evidence_for", [])][:6],
                }
            )
    return causes


# What is done to the workload, and which classes are right.
FAULTS = {
    "none": (),
    "competitor": ("gpu_contention",),
    "copies": ("pcie", "gpu_contention"),
    "power": ("gpu_contention", "gpu_throttling"),
}


def disturbed(recorded, files, env, disturber, gated, signs, after):
    """Runs a recording, which is disturbed so many s after its workload has begun; what the disturber said, None without one.
    One that is gated starts with the recording, says when it is ready, and waits for a sign; `signs` are the files that say that
    the workload and the disturber are ready, and that the disturber is to begin. `files` take what the recording prints."""
    ready, hog_ready, go = signs
    begin = lambda: subprocess.Popen(disturber, stdout=subprocess.PIPE, text=True, env=environment())
    recorder = subprocess.Popen(recorded, stdout=files[0], stderr=files[1], env=env)
    hog, label = None, None
    try:
        if disturber and gated:
            hog = begin()
        by = time.monotonic() + 40
        while not (os.path.exists(ready) and (hog is None or os.path.exists(hog_ready))):
            if recorder.poll() is not None:
                files[1].seek(0)
                raise Skip(f"gpuwhy record did not record: {files[1].read().strip()[:300]}")
            if time.monotonic() > by:
                raise RuntimeError("the workload did not begin")
            time.sleep(0.05)
        time.sleep(after)
        if hog:
            open(go, "w").close()
        elif disturber:
            hog = begin()
        if hog:
            label = json.loads(hog.communicate(timeout=25)[0].strip().splitlines()[-1])
        recorder.wait(40)
    finally:
        for process in (hog, recorder):
            if process and process.poll() is None:
                process.kill()
    return label


def part_verdict(folder, kind):
    """A workload is disturbed for 7 s after 9 s; what we say it was."""
    right = FAULTS[kind]
    trace = os.path.join(folder, "t.trace")
    ready, hog_ready, go = (os.path.join(folder, name) for name in ("ready", "hog", "go"))
    env = environment(PYTHONUNBUFFERED="1")
    record = [GPUWHY, "record", "--json", "--summary", "-", "--force", "-o", trace, "--kernels", "nodes", "--"]
    workload = [*WORK, "steps", "18", ready]
    disturber = [*WORK, "hog", kind, hog_ready, go, "7"]
    gated = True
    if STANDIN:
        workload = ["sh", "-c", f"touch {ready}; exec {TESTKIT} gpuloop --for 18 --graph --batch-mib 64"]
        gated = False
        disturber = {
            "competitor": [TESTKIT, "gpuhog", "--for", "7"],
            "copies": [TESTKIT, "gpu-fault", "pcie-replay", "--for", "7"],
            "power": [TESTKIT, "gpu-fault", "throttle", "--for", "7"],
        }.get(kind)
        right = {"copies": ("pcie",), "power": ("gpu_throttling",)}.get(kind, right)
    out = open(os.path.join(folder, "record.json"), "w+")
    err = open(os.path.join(folder, "record.err"), "w+")
    label = disturbed([*record, *workload], (out, err), env, disturber if kind != "none" else None, gated, (ready, hog_ready, go), 9)
    out.seek(0)
    text = out.read()
    told = json.loads(text[text.index("{\n") :]) if "{\n" in text else {}
    table_rows(trace)
    verdict = diagnosed(trace)
    first = verdict[0] if verdict else None
    pid = label and label.get("pid")
    data = {"injected": label, "right_classes": right, "recorder": told, "findings": verdict}
    data["readings"] = readings(trace, label) if label else None
    data["class_right"] = (first is None) if kind == "none" else bool(first and first["class"] in right)
    blamed = kind != "none" and pid and not (STANDIN and kind != "competitor")
    data["culprit_right"] = bool(first and first["pid"] == pid) if blamed else None
    said = "nothing found" if first is None else f"{first['class']} by {first['comm'] or 'nobody'} (pid {first['pid']}), confidence {first['confidence']:.2f}"
    words = ["class right" if data["class_right"] else "class NOT as injected"]
    if blamed:
        words.append("culprit right" if data["culprit_right"] else "culprit NOT as injected")
    return f"{said}: {', '.join(words)}", data


def part_switches(folder):
    """A competitor of which nothing but the driver's log of context switches tells: whose turn it was, and what is made of it."""
    trace = os.path.join(folder, "t.trace")
    ready, hog_ready, go = (os.path.join(folder, name) for name in ("ready", "hog", "go"))
    env = environment(PYTHONUNBUFFERED="1")
    workload = [*WORK, "steps", "12", ready]
    disturber = [*WORK, "hog", "competitor", hog_ready, go, "4"]
    if STANDIN:
        env["LD_PRELOAD"] = os.path.join(BIN, "libnvidiactl.so")
        workload = ["sh", "-c", f"touch {ready}; exec {TESTKIT} gpuloop --for 12"]
        disturber = [TESTKIT, "gpuhog", "--for", "4"]
    record = [GPUWHY, "record", "--json", "--summary", "-", "--off", "nvml", "--gpu-switches", "--kernels", "nodes", "-o", trace, "--"]
    with open(os.path.join(folder, "record.err"), "w+") as err:
        files = (subprocess.DEVNULL, err)
        label = disturbed([*record, *workload], files, env, disturber, not STANDIN, (ready, hog_ready, go), 6)
    rows = table_rows(trace)
    report = json.loads(run([GPUWHY, "vgpu", "--json", trace], timeout=40).stdout)
    verdict = diagnosed(trace)
    first = verdict[0] if verdict else None
    lasted = (label["to_ns"] - label["from_ns"]) / 1e6
    had = {one["process"]: one["busy_ms"] for one in report["counted"]}
    theirs = sum(ms for process, ms in had.items() if f"({label['pid']})" in process)
    data = {"injected": label, "rows": rows, "findings": verdict, "had_ms": had, "busy_share": theirs / lasted}
    data["class_right"] = bool(first and first["class"] == "gpu_contention")
    data["culprit_right"] = bool(first and first["pid"] == label["pid"])
    data |= turns(trace) or {}
    named = "right" if data["class_right"] and data["culprit_right"] else "NOT right"
    return f"the competitor had the GPU for {theirs:.0f} of {lasted:.0f} ms; verdict {named}", data


def tables_of(trace):
    """What reads columns of a table of a trace, as rows; None without pyarrow."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        return None
    return lambda name, *columns: [
        row for part in sorted(glob.glob(os.path.join(trace, name, "*.parquet")))
        for row in parquet.read_table(part, columns=list(columns)).to_pylist()
    ]  # fmt: skip


def turns(trace):
    """How often turns on the GPU changed, which share of them overlaps, and which share of the time of kernels lies within turns of
    their process: by the log all of it that is no other one's. None without pyarrow."""
    table = tables_of(trace)
    if table is None:
        return None
    tracks = {row["id"]: row for row in table("track", "id", "entity", "name")}
    states = [row for row in table("state", "track", "ts", "dur", "value") if tracks[row["track"]]["name"] == "owner"]
    owned = sorted((int(row["ts"]), int(row["ts"]) + int(row["dur"] or 0), int(row["value"])) for row in states)
    overlap = sum(max(0, before[1] - after[0]) for before, after in zip(owned, owned[1:]))
    all_of = sum(to - begin for begin, to, _ in owned)
    process = {row["id"]: row["process"] for row in table("kernel", "id", "process")}
    spans = [row for row in table("span", "id", "ts", "dur") if row["id"] in process]
    # Turns do not overlap, so that their ends are in order too.
    ends = [to for _, to, _ in owned]
    within, total, known = 0, 0, 0
    for row in spans:
        begin, to = int(row["ts"]), int(row["ts"]) + int(row["dur"] or 0)
        total += to - begin
        for number in range(bisect.bisect_right(ends, begin), len(owned)):
            of_begin, of_to, who = owned[number]
            if of_begin >= to:
                break
            shared = min(to, of_to) - max(begin, of_begin)
            known += shared
            within += shared if who == process[row["id"]] else 0
    share = lambda part, whole: part / whole if whole else None
    return {"turns": len(owned), "overlap_share": share(overlap, all_of), "kernel_ms": total / 1e6, "kernels_within_turns": share(within, known)}


def readings(trace, label):
    """What NVML said from 1 s before the disturbance to its end, and how late it said it; None without pyarrow."""
    table = tables_of(trace)
    if table is None:
        return None
    begin, end = label["from_ns"], label["to_ns"]
    entities = {row["id"]: row for row in table("entity", "id", "kind", "name", "number")}
    tracks = {row["id"]: row for row in table("track", "id", "entity", "name")}
    of = {}
    for row in table("counter", "track", "ts", "value"):
        track = tracks[row["track"]]
        if int(row["ts"]) <= end:
            of.setdefault((track["name"], track["entity"]), []).append((int(row["ts"]), row["value"]))
    told = {}
    for (name, entity), rows in of.items():
        rows.sort()
        before = [value for ts, value in rows if ts < begin]
        during = [(ts, value) for ts, value in rows if ts >= begin]
        if name in ("sm_clock", "gpu_power", "gpu_utilization") and before and during:
            values = [value for _, value in during]
            told[name] = {"before": statistics.median(before), "during": statistics.median(values), "least": min(values)}
        elif name.startswith("throttled.") and during:
            told[name] = {"added_ms": (during[-1][1] - (before or [during[0][1]])[-1]) / 1e6}
        elif name == "gpu.sm_utilization" and (entities[entity]["number"] == label.get("pid")):
            first = next((ts for ts, value in rows if ts >= begin and value > 0), None)
            told["user_seen_after_ms"] = first and (first - begin) / 1e6
        elif name == "nvml.uncertainty" and rows:
            told["call_ms_at_most"] = 2 * max(value for _, value in rows) / 1e6
    return told


# Name, limit in s, what it does.
PARTS = {
    "environment": (100, part_environment),
    "bpf": (45, part_bpf),
    "cupti": (90, part_cupti),
    "exits": (100, part_exits),
    "cost": (170, part_cost),
    "growth": (100, part_growth),
    "nccl-loads": (75, part_nccl_loads),
    "nccl": (90, part_nccl),
    **{f"verdict-{kind}": (75, lambda folder, kind=kind: part_verdict(folder, kind)) for kind in FAULTS},
    "switches": (70, part_switches),
}


# Those of gpu-probe-check are run by their names.
ALL = {**PARTS, **probes.PARTS}


def one(name, into):
    folder = tempfile.mkdtemp(prefix="gpuwhy-check-")
    if STANDIN:
        os.environ["GPUWHY_STANDIN"] = os.path.join(folder, "machine")
        os.mkdir(os.environ["GPUWHY_STANDIN"])
    try:
        line, data = ALL[name][1](folder)
        result = {"state": "ran", "line": line, "data": data}
    except Skip as reason:
        result = {"state": "skipped", "line": str(reason), "data": None}
    except Exception as error:
        import traceback

        traceback.print_exc()
        says = last(getattr(error, "stderr", None) or "")
        result = {"state": "failed", "line": f"{type(error).__name__}: {error} {says}"[:400], "data": None}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    with open(into, "w") as file:
        json.dump(result, file)


def write(path, results):
    with open(path + ".tmp", "w") as out:
        json.dump(results, out, indent=2)
        out.write("\n")
    os.replace(path + ".tmp", path)


def made():
    sys.argv = ["", GPUWHY, BIN]
    sys.path.insert(0, os.path.join(ROOT, "bench"))
    from measure import made

    what = made("make gpu-check" + (" STANDIN=1" if STANDIN else ""))
    # The machine that runs this may lack git; who packed the programs says from what.
    commit = os.path.join(BIN, "commit")
    if os.path.exists(commit):
        with open(commit) as file:
            what["commit"] = file.read().strip()
    return what


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--output", required=True)
    options.add_argument("--only", default="")
    options.add_argument("--part")
    options.add_argument("--seconds", type=float, default=570)
    options = options.parse_args()
    if options.part:
        return one(options.part, options.output)
    began = time.monotonic()
    only = options.only.split(",") if options.only else PARTS
    wanted = [name for name in ALL if name in only]
    results = {"made": made(), "standin": STANDIN, "parts": {}}
    bad = 0
    for name in wanted:
        limit = min(ALL[name][0], options.seconds - (time.monotonic() - began))
        at = time.monotonic()
        if limit < 20:
            result = {"state": "failed", "line": "no time was left for it", "data": None}
        else:
            result = bounded(name, limit)
        result["seconds"] = round(time.monotonic() - at, 1)
        results["parts"][name] = result
        bad += result["state"] == "failed"
        write(options.output, results)
        print(f"{name:<20} {result['state']:<8} {result['seconds']:5.0f} s  {result['line']}", flush=True)
    print(f"{'all':<20} {len(wanted) - bad} of {len(wanted)} ran or had a reason not to, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def bounded(name, limit):
    """Runs a part; when its time is over, all of its processes end."""
    with tempfile.NamedTemporaryFile(suffix=".json") as into:
        process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--part", name, "--output", into.name], start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"state": "failed", "line": f"it did not end within {limit:.0f} s", "data": None}
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            return json.load(into)
        except ValueError:
            return {"state": "failed", "line": f"it left no result ({process.returncode})", "data": None}


sys.exit(main())
