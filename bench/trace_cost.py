"""Measures what recording costs a workload, and what an event takes on disk.

Each round runs every way to record once, in an order that moves on from round to round, so that noise hits all alike. Two of
the ways are no recorder at all: what they differ by is the noise. A cost is that of a round's run beside the mean of
the round's two runs without a recorder.
"""

import json
import os
import re
import shutil
import subprocess

from measure import DATA, GPUWHY, figure, made, write

ROUNDS = int(os.environ.get("ROUNDS", "9"))
SECONDS = int(os.environ.get("SECONDS_EACH", "3"))
LOOPS = int(os.environ.get("LOOPS", "60000"))
BENCH = os.path.join(os.path.dirname(GPUWHY), "gpuwhy-bench")
EVENTS = "sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new,sched:sched_process_fork,sched:sched_process_exit"


def machines():
    """Virtual machines that take CPUs from each other; how long a round of a guest's code takes, ns."""
    tasks = ["0:spins", "0:spins", "0:halts", "0:hog"]
    return [BENCH, "__machines", "--for", f"{SECONDS}s", *tasks], lambda said: 1e9 * SECONDS / sum(
        one["rounds"] for one in json.loads(said[said.index("[") : said.rindex("]") + 1]) if one["kind"] == "spins"
    )


def pipes():
    """Two threads that wake each other by pipes, which is nothing but context switches; a round trip, ns."""
    return ["perf", "bench", "sched", "pipe", "--threaded", "-l", str(LOOPS)], lambda said: 1e3 * float(
        re.search(r"([\d.]+) usecs/op", said)[1]
    )


def disk(path):
    """The bytes of a file, or of all files of a trace."""
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)


def alone(command, _):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout, {}


def by_gpuwhy(command, trace):
    summary = trace + ".json"
    record = [GPUWHY, "record", "--force", "--json", "--summary", summary, "-o", trace, "--"]
    done = subprocess.run(record + command, check=True, capture_output=True, text=True)
    with open(summary) as file:
        told = json.load(file)
    return done.stdout, {"events": told["events"], "lost": told["dropped"], "bytes": disk(trace), "cpu_s": told["cpu_seconds"]}


def by_perf(command, trace):
    record = ["perf", "record", "-q", "-e", EVENTS, "-o", trace, "--"]
    done = subprocess.run(record + command, check=True, capture_output=True, text=True)
    said = subprocess.run(["perf", "report", "--stats", "-i", trace], capture_output=True, text=True).stdout
    count = lambda name: sum(int(n) for n in re.findall(rf"^\s+{name} events:\s+(\d+)", said, re.M))
    return done.stdout, {"events": count("SAMPLE"), "lost": count("LOST"), "bytes": disk(trace)}


WAYS = {"nothing": alone, "nothing, again": alone, "gpuwhy record": by_gpuwhy, "perf record": by_perf}


def main():
    os.makedirs(DATA, exist_ok=True)
    results = {"made": made("make bench-trace-cost"), "figures": {}, "rows": []}
    ways = dict(WAYS)
    loads = {"machines": machines, "pipes": pipes}
    if not shutil.which("perf"):
        print("skipped: there is no perf")
        del ways["perf record"], loads["pipes"]
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        print("skipped: there is no /dev/kvm")
        del loads["machines"]
    for load, describe in loads.items():
        command, value = describe()
        rounds = []
        for at in range(ROUNDS):
            names = list(ways)
            names = names[at % len(names) :] + names[: at % len(names)]
            one = {}
            for way in names:
                said, told = ways[way](command, f"{DATA}/cost.trace" if "gpuwhy" in way else f"{DATA}/cost.data")
                one[way] = {"ns": value(said), **told}
            rounds.append(one)
        for way in ways:
            base = lambda one: (one["nothing"]["ns"] + one["nothing, again"]["ns"]) / 2
            of = (lambda one: 100 * (one[way]["ns"] / base(one) - 1)) if "nothing" not in way else (
                lambda one: 100 * (one["nothing, again"]["ns"] / one["nothing"]["ns"] - 1)
            )
            row = {"workload": load, "recorder": way, "ns": figure([one[way]["ns"] for one in rounds])}
            if way != "nothing":
                row["cost_pct"] = figure([of(one) for one in rounds])
            if "events" in rounds[0][way]:
                for key in ("events", "lost"):
                    row[key] = figure([one[way][key] for one in rounds])
                row["bytes_per_event"] = figure([one[way]["bytes"] / max(one[way]["events"], 1) for one in rounds])
            results["rows"].append(row)
            name = {"nothing": None, "nothing, again": "aa", "gpuwhy record": "gpuwhy", "perf record": "perf"}[way]
            for key in ("cost_pct", "events", "lost", "bytes_per_event"):
                if name and key in row:
                    results["figures"][f"{load}_{name}_{key}"] = row[key]
            shown = {key: round(row[key]["value"], 2) for key in row if isinstance(row[key], dict)}
            print(f"{load:<10} {way:<16} {shown}", flush=True)
    write("trace-cost", results)
    for name in ("cost.trace", "cost.trace.json", "cost.data", "cost.data.old"):
        path = f"{DATA}/{name}"
        shutil.rmtree(path, ignore_errors=True)
        if os.path.isfile(path):
            os.remove(path)


main()
