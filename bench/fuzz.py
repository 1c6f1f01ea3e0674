"""Adds one run of a fuzz target to bench/results/fuzz.json:
fuzz.py TARGET LOG TIMES "USER SYSTEM" FAILED, called by scripts/fuzz.sh.

Executions and CPU hours are summed over all runs; coverage is that of the latest run, since edges of different
commits cannot be compared; time and memory are the worst that was ever seen."""

import datetime
import fcntl
import json
import os
import re
import subprocess
import sys

target, log, times, cpu, failed = sys.argv[1:]
ledger = "bench/results/fuzz.json"
log = open(log, errors="replace").read()
cpu_s = sum(map(float, cpu.split()))


def stat(name):
    found = re.findall(rf"^stat::{name}: *(\d+)$", log, re.M)
    return int(found[-1]) if found else 0


def last(name):
    found = re.findall(rf"\b{name}: (\d+)", log)
    return int(found[-1]) if found else 0


# Single inputs are timed by the millisecond, what was slow on the way by the second.
slowest = [int(ms) for ms in re.findall(r"^Executed .* in (\d+) ms$", open(times, errors="replace").read(), re.M)]
slowest.append(1000 * stat("slowest_unit_time_sec"))
commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")

# Targets run side by side.
os.makedirs(os.path.dirname(ledger), exist_ok=True)
with open(__file__) as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        old = json.load(open(ledger))
    except FileNotFoundError:
        old = {}
    rows = {row["target"]: row for row in old.get("targets", [])}
    row = rows.setdefault(target, {"target": target, "runs": 0, "failures": 0, "executions": 0, "cpu_hours": 0.0,
                                   "slowest_ms": 0, "rss_mib": 0})
    row["runs"] += 1
    row["failures"] += int(failed)
    row["executions"] += stat("number_of_executed_units")
    row["cpu_hours"] = round(row["cpu_hours"] + cpu_s / 3600, 5)
    row["edges"], row["features"] = last("cov"), last("ft")
    row["slowest_ms"] = max(row["slowest_ms"], *slowest)
    row["rss_mib"] = max(row["rss_mib"], stat("peak_rss_mb"))
    row["commit"], row["date"] = commit, date
    rows = [rows[name] for name in sorted(rows)]

    def total(key):
        value = sum(row[key] for row in rows)
        return {"value": value, "spread": [min(row[key] for row in rows), max(row[key] for row in rows)], "n": len(rows)}

    new = {
        "made": {"machine": "over several sittings", "date": date, "commit": commit,
                 "command": "FUZZ_LEDGER=1 scripts/fuzz.sh"},
        "figures": {"fuzz_executions": total("executions"), "fuzz_cpu_hours": total("cpu_hours")},
        "targets": rows,
    }
    with open(ledger + ".tmp", "w") as out:
        json.dump(new, out, indent=2)
        out.write("\n")
    os.replace(ledger + ".tmp", ledger)
