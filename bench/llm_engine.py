"""What being recorded costs a real engine (vLLM on CPUs, `make llm-env`): one server, whose plug-in is always on, and a
recorder that comes for a block of time and goes.

Blocks take turns: nobody listens, twice (the second one is the A/A control); the engine's spans alone; the host and stacks
alone; both, by `watch`; everything kept, by `record`; and, at one number of clients, py-spy. Between a block and what is
measured of it lies the time that connecting takes.
"""

import contextlib
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

from measure import GPUWHY, children, cpu_seconds, figure

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "real"))
import engine as engines  # noqa: E402

ROUNDS = int(os.environ.get("ENGINE_ROUNDS", "3"))
BLOCK, SETTLES = float(os.environ.get("ENGINE_BLOCK", "20")), 5.0
CLIENTS = [int(n) for n in os.environ.get("ENGINE_CLIENTS", "1,8,32").split(",")]
# The probes that look at the host and at stacks; without them the engine's own records are left.
OF_HOST = "block_io cgroup drm_clients file_locks interrupts memory nccl_calls network nvml psi python python_gc run_queue settings stacks steal tcp"
MODES = {
    "off": None,
    "control": None,
    "spans": ["record", *(word for probe in OF_HOST.split() for word in ("--off", probe))],
    "stacks": ["watch", "--kernels", "off", "--collectives", "off"],
    "both": ["watch"],
    "all": ["record"],
}
PY_SPY = os.environ.get("PY_SPY")
PEERS = ["py_spy"] if PY_SPY else []
# At which number of clients they are measured.
PEERS_AT = CLIENTS[len(CLIENTS) // 2]
# Sizes of model: the tiny one of `make llm-env`, nearly all of whose step is Python, and one of 85 million parameters, whose
# step takes as long as those of a model that is served.
SIZES = {"tiny": {}, "small": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
                               "num_key_value_heads": 12}}
SELECTED = os.environ.get("ENGINE_SIZES", " ".join(SIZES)).split()


def tree(pid):
    """A process and all that came of it."""
    found, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(children(pid))
    return found


def of_all(pids):
    """CPU time of processes so far, of which some may have ended."""
    return sum(cpu_seconds(pid) for pid in pids if os.path.exists(f"/proc/{pid}/stat"))


def bytes_of(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


class Server(engines.Vllm):
    """A server that was started by itself, with our package before its own."""

    def __init__(self, folder, library, size):
        super().__init__(folder, GPUWHY)
        self.size = size
        self.socket = os.path.join(folder, "agent.sock")
        os.environ["PYTHONPATH"] = library + ":" + os.environ["PYTHONPATH"]
        os.environ["GPUWHY_SOCKET"] = self.socket
        self.child = subprocess.Popen(
            self.watched()[1:], stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "said"), "w"))
        self.wait_for(self.answers)

    def options(self):
        return ["--hf-overrides", json.dumps(SIZES[self.size])] if SIZES[self.size] else []

    def end(self):
        for pid in reversed(tree(self.child.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.child.wait()


def answers(folder, begin, to):
    """What was asked for and answered within a time: ms to the first token, and ms a token after it, of each; tokens."""
    first, each, tokens = [], [], 0
    with open(os.path.join(folder, "answers")) as file:
        for line in file:
            if not line.endswith("\n"):
                continue
            asked, came, last, count = map(int, line.split())
            if begin <= asked and last <= to:
                first.append((came - asked) / 1e6)
                each.append((last - came) / 1e6 / max(1, count - 1))
                tokens += count
    return first, each, tokens


def recorder_of(server, mode, trace):
    """The command that records in a block."""
    pid = str(server.child.pid)
    if mode == "py_spy":
        return [PY_SPY, "record", "--rate", "100", "--subprocesses", "--format", "raw", "--duration", "unlimited", "-o", trace,
                "--pid", pid]
    what = MODES[mode]
    socket = [] if what and "--kernels" in what else ["--socket", server.socket]
    return what and [GPUWHY, *what, *socket, "--force", "-o", trace, "--json", "-p", pid]


def block(server, mode):
    """One block: what the server and the recorder took."""
    recorder, trace = None, os.path.join(server.folder, f"block.{mode}")
    if command := recorder_of(server, mode, trace):
        recorder = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=open(os.path.join(server.folder, "complaints"), "w"))
    time.sleep(SETTLES)
    pids = tree(server.child.pid)
    begin, served, ours = time.monotonic_ns(), of_all(pids), recorder and cpu_seconds(recorder.pid)
    time.sleep(BLOCK)
    to, served = time.monotonic_ns(), of_all(pids) - served
    ours = recorder and cpu_seconds(recorder.pid) - ours
    if recorder:
        recorder.send_signal(signal.SIGINT if mode == "py_spy" else signal.SIGTERM)
        recorder.wait(timeout=120)
    time.sleep(1)
    first, each, tokens = answers(server.folder, begin, to)
    if not tokens:
        raise RuntimeError(f"nothing was answered in a block ({mode})")
    return {
        "mode": mode, "answers": len(first), "tokens": tokens, "ttft_ms": statistics.median(first),
        "ttft_p99_ms": percentile(first, 0.99), "tpot_ms": statistics.median(each), "tpot_p99_ms": percentile(each, 0.99),
        "cpu_us_a_token": 1e6 * served / tokens, "collector_share": ours and ours / (to - begin) * 1e9,
        "bytes": bytes_of(trace) if recorder else None,
    }


@contextlib.contextmanager
def asked(server, clients, *tokens):
    """While so many clients ask a server."""
    words = [server.folder, str(server.port), str(clients), *map(str, tokens)]
    client = subprocess.Popen([sys.executable, os.path.join(HERE, "llm_client.py"), *words])
    time.sleep(SETTLES)
    try:
        yield
    finally:
        client.kill()
        client.wait()


def say(one):
    print(" ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in one.items()), flush=True)


@contextlib.contextmanager
def serving(library, size):
    """A server of a model of such a size, while it is needed."""
    folder = tempfile.mkdtemp(prefix="gpuwhy-llm-", dir="/var/tmp")
    server = Server(folder, library, size)
    try:
        yield server
    finally:
        server.end()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


def blocks(server):
    """All blocks, in rounds of each mode in any order."""
    for clients in CLIENTS:
        with asked(server, clients):
            for number in range(ROUNDS):
                modes = [*MODES, *(PEERS if clients == PEERS_AT else [])]
                for mode in random.sample(modes, len(modes)):
                    one = {"clients": clients, "round": number, **block(server, mode)}
                    say(one)
                    yield one


def figures(done):
    """Each mode beside the blocks of its round in which nobody listened; spread: of the rounds."""
    blocks = {(one["clients"], one["round"], one["mode"]): one for one in done}
    pairs = sorted({key[:2] for key in blocks})

    def ratio(mode, what):
        of = [pair for pair in pairs if (*pair, mode) in blocks]
        return figure([blocks[(*pair, mode)][what] / blocks[(*pair, "off")][what] for pair in of])

    out = {}
    names = {"": "both", "_a_a": "control", **{f"_{mode}": mode for mode in ("spans", "stacks", "all", *PEERS)}}
    for name, mode in names.items():
        out[f"cpu_per_token_ratio{name}"] = ratio(mode, "cpu_us_a_token")
        for what in ("tpot", "ttft"):
            out[f"{what}_ratio{name}"] = ratio(mode, f"{what}_ms")
            out[f"{what}_p99_ratio{name}"] = ratio(mode, f"{what}_p99_ms")
    of = lambda mode, what: [one[what] for one in done if one["mode"] == mode]
    for mode in ("spans", "stacks", "both", "all", *PEERS):
        out[f"collector_core_share_{mode}"] = figure(of(mode, "collector_share"))
    out["tokens_a_block"] = figure(of("off", "tokens"))
    return out


def measured(library):
    """The figures and blocks; none without an engine."""
    out, done = {}, []
    for size in SELECTED if engines.ALL else []:
        with serving(library, size) as server:
            of_size = [{"model": size, **one} for one in blocks(server)]
        out.update({name if size == "tiny" else f"{size}_{name}": value for name, value in figures(of_size).items()})
        done += of_size
    return out, done
