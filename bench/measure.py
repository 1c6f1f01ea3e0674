"""What benchmarks in Python share: running a command for its CPU seconds and memory, generated traces, and
the form of results."""

import contextlib
import datetime
import glob
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

GPUWHY = os.path.abspath(sys.argv[1])
DATA = os.environ.get("TRACE_DATA", "target/traces")
# Bytes of an output that is not read.
LONG = 1 << 20


def run(command, timeout=900, memory_gib=None):
    """What a command took: wall s, CPU s, peak MiB, and what it printed. `memory_gib` bounds its memory, so
    that one that wants more than there is fails, and not the machine."""
    limit = memory_gib and (lambda: resource.setrlimit(resource.RLIMIT_DATA, (memory_gib << 30,) * 2))
    began = time.monotonic()
    with open("target/traces/out", "w+b") as out, open("target/traces/err", "w+b") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, preexec_fn=limit or None)
        try:
            while True:
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() - began > timeout:
                    child.kill()
                    os.wait4(child.pid, 0)
                    return {"error": f"no answer in {timeout} s"}
                time.sleep(0.005)
        finally:
            child.returncode = 0
        # What this process has held at most counts as its children's peak (`exec` takes it over), so that what is long is
        # not read: no text of ours is, and nobody looks at what a peer prints.
        long = os.fstat(out.fileno()).st_size > LONG
        out.seek(0)
        err.seek(0)
        text, complaint = "" if long else out.read().decode(), err.read(LONG).decode(errors="replace")
    if status != 0:
        return {"error": complaint.strip().splitlines()[-1] if complaint.strip() else f"status {status}"}
    return {
        "wall_s": time.monotonic() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "rss_mib": usage.ru_maxrss / 1024,
        "says": text,
    }


def children(pid):
    """The children of a process, whichever of its threads started them."""
    found = []
    for of_thread in glob.glob(f"/proc/{pid}/task/*/children"):
        with open(of_thread) as file:
            found.extend(map(int, file.read().split()))
    return found


def cpu_seconds(pid):
    """CPU time of a process so far, without that of children that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def bpf_statistics():
    """While the kernel counts what BPF programs take."""
    with open("/proc/sys/kernel/bpf_stats_enabled", "r+") as file:
        before = file.read().strip()
        file.seek(0)
        file.write("1")
    try:
        yield
    finally:
        with open("/proc/sys/kernel/bpf_stats_enabled", "w") as file:
            file.write(before)


def bpf_programs(beginning):
    """Run time in ns, and runs, of the BPF programs whose name begins so, so far."""
    told = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True, check=True).stdout
    of = [one for one in json.loads(told) if one.get("name", "").startswith(beginning)]
    return sum(one.get("run_time_ns", 0) for one in of), sum(one.get("run_cnt", 0) for one in of)


def made(command):
    def out(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""

    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    memory = int(next(l.split()[1] for l in open("/proc/meminfo") if l.startswith("MemTotal")))
    # Results that were written meanwhile, and the pages that hold them, are not what is measured.
    others = (":!bench/results", ":!docs")
    changed = "+" if out("git", "status", "--porcelain", "-uno", "--", ".", *others) else ""
    return {
        "machine": f"{os.cpu_count()} x {cpu}, {memory >> 20} GiB, Linux {platform.release()}",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
        "commit": out("git", "rev-parse", "--short=12", "HEAD") + changed,
        "command": command,
    }


def generate(name, *args):
    path = os.path.join(DATA, name)
    label = path + ".json"
    if not (os.path.exists(path) and os.path.exists(label)):
        told = subprocess.run(
            [GPUWHY, "bench", "trace-data", "-o", path, *args], check=True, capture_output=True, text=True
        ).stdout
        with open(label, "w") as out:
            out.write(told)
    with open(label) as file:
        return path, json.load(file)


def figure(values):
    return {"value": statistics.median(values), "spread": [min(values), max(values)], "n": len(values)}


def share(hits, n):
    """A share with its 95 % Wilson interval."""
    z, p = 1.959964, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return {"value": p, "spread": [max(low, 0.0), min(high, 1.0)], "n": n}


def rate(count, hours):
    """Events an hour, with Byar's 95 % bounds."""
    def bound(count, z):
        return count * (1 - 1 / (9 * count) + z / (3 * math.sqrt(count))) ** 3 if count else 0.0

    return {"value": count / hours, "spread": [bound(count, -1.96) / hours, bound(count + 1, 1.96) / hours], "n": count}


def check_stalls(says, label):
    """The five worst intervals of each GPU are those in which stalls were injected, in their order."""
    report = json.loads(says)
    for of in report["devices"]:
        gpu = int(of["device"]["name"].split()[1])
        found = [worst["interval"] for worst in of["worst"]]
        injected = [s["interval"] for s in label["stalls"] if s["gpu"] == gpu]
        if found != injected:
            return f"GPU {gpu}: found {found}, injected {injected}"
    return "equal"


def write(name, results):
    """Writes bench/results/NAME.json; a killed run leaves the old one whole."""
    path = f"bench/results/{name}.json"
    with open(path + ".tmp", "w") as out:
        json.dump(results, out, indent=2)
        out.write("\n")
    os.replace(path + ".tmp", path)
