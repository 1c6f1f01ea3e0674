"""What `watch` keeps of a longer time in which nothing is done to a real engine, beside what `record` keeps; how many of the
engine's steps it tells of; and what sampling stacks takes.
"""

import json
import os
import signal
import subprocess
import time

from measure import GPUWHY, bpf_programs, bpf_statistics, cpu_seconds, figure, rate, share

# How long `watch` is left with the engine, and `record` after it, s.
WATCHED, RECORDED = 60 * float(os.environ.get("KEPT_MINUTES", "10")), 60.0
# Tokens of a prompt and of an answer: work that is nearly all decoding, and nearly all prefill.
CLIENTS, LOADS = 4, {"decode": (16, 256), "prefill": (1024, 1)}


def bytes_of(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def recorded(server, seconds, *what):
    """What a recorder took while it ran for so long: bytes that it kept, its CPU time, and sampling's, by the s."""
    trace = os.path.join(server.folder, "kept.trace")
    command = [GPUWHY, *what, "--socket", server.socket, "--force", "-o", trace, "-p", str(server.child.pid)]
    recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    time.sleep(5)
    spent, sampled, since = cpu_seconds(recorder.pid), bpf_programs("sample")[0], time.monotonic()
    time.sleep(seconds - 5)
    lasted = time.monotonic() - since
    spent, sampled = cpu_seconds(recorder.pid) - spent, bpf_programs("sample")[0] - sampled
    recorder.send_signal(signal.SIGTERM)
    recorder.wait(timeout=120)
    kept = bytes_of(trace) / (time.monotonic() - began)
    return {"bytes_a_s": kept, "core_share": spent / lasted, "sampler_core_share": sampled / 1e9 / lasted}


def told(events):
    """Of how many steps something was told, of how many of these it was decided, and how many steps there were."""
    with open(events) as file:
        events = [json.loads(line) for line in file]
    over = [event["finding"] for event in events if event["event"] == "over"]
    steps = lambda findings: sum(of["steps"] for one in findings for of in one["series"])
    decided = [one for one in over if one["outcome"] == "decided"]
    of_all = next(event["steps"] for event in events if event["event"] == "ended")
    return {"steps": of_all, "flagged": steps(over), "decided": steps(decided),
            "findings": [one["summary"] for one in over]}


def of_load(server):
    """All of one kind of load."""
    events = os.path.join(server.folder, "kept.events")
    watched = recorded(server, WATCHED, "watch", "--events", events)
    with bpf_statistics():
        all_kept = recorded(server, RECORDED, "record")
    return {"watch": watched, "record": all_kept, **told(events)}


def figures(kept):
    out = {
        "retained_bytes_share": figure([one["watch"]["bytes_a_s"] / one["record"]["bytes_a_s"] for one in kept]),
        "sampler_core_share": figure([one["record"]["sampler_core_share"] for one in kept]),
        "collector_core_share_calm": figure([one["watch"]["core_share"] for one in kept]),
        "false_alert_rate": share(sum(one["decided"] for one in kept), sum(one["steps"] for one in kept)),
        "false_flag_rate": share(sum(one["flagged"] for one in kept), sum(one["steps"] for one in kept)),
        "false_alerts_per_hour": rate(sum(len(one["findings"]) for one in kept), len(kept) * WATCHED / 3600),
    }
    for one in kept:
        for name, of in (("kept", "watch"), ("recorded", "record")):
            out[f"mib_an_hour_{name}_{one['load']}"] = figure([one[of]["bytes_a_s"] * 3600 / 2**20])
    return out
