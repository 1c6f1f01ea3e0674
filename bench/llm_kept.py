"""What `watch` keeps of a longer time in which nothing is done to a real engine, beside what `record` keeps; and how many of
the engine's steps it tells of: llm_kept.py GPUWHY LIBRARY.
"""

import json
import os
import signal
import subprocess
import sys
import time

from measure import GPUWHY, cpu_seconds, figure, made, rate, share, write

from llm_engine import asked, bytes_of, engines, say, serving

# How long `watch` is left with the engine, and `record` after it, s.
WATCHED, RECORDED = 60 * float(os.environ.get("KEPT_MINUTES", "10")), 60.0
# Tokens of a prompt and of an answer: work that is nearly all decoding, and nearly all prefill.
CLIENTS, LOADS = 4, {"decode": (16, 256), "prefill": (1024, 1)}


def recorded(server, seconds, *what):
    """What a recorder took while it ran for so long: bytes that it kept, and its CPU time, by the s."""
    trace = os.path.join(server.folder, "kept.trace")
    command = [GPUWHY, *what, "--json", "--socket", server.socket, "--force", "-o", trace, "-p", str(server.child.pid)]
    recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    began = time.monotonic()
    time.sleep(5)
    spent, since = cpu_seconds(recorder.pid), time.monotonic()
    time.sleep(seconds - 5)
    spent = (cpu_seconds(recorder.pid) - spent) / (time.monotonic() - since)
    recorder.send_signal(signal.SIGTERM)
    recorder.wait(timeout=120)
    kept = bytes_of(trace) / (time.monotonic() - began)
    return {"bytes_a_s": kept, "core_share": spent}


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
    return {"watch": watched, "record": recorded(server, RECORDED, "record"), **told(events)}


def figures(kept):
    out = {
        "retained_bytes_share": figure([one["watch"]["bytes_a_s"] / one["record"]["bytes_a_s"] for one in kept]),
        "collector_core_share_calm": figure([one["watch"]["core_share"] for one in kept]),
        "false_alert_rate": share(sum(one["decided"] for one in kept), sum(one["steps"] for one in kept)),
        "false_flag_rate": share(sum(one["flagged"] for one in kept), sum(one["steps"] for one in kept)),
        "false_alerts_per_hour": rate(sum(len(one["findings"]) for one in kept), len(kept) * WATCHED / 3600),
    }
    for one in kept:
        for name, of in (("kept", "watch"), ("recorded", "record")):
            out[f"mib_an_hour_{name}_{one['load']}"] = figure([one[of]["bytes_a_s"] * 3600 / 2**20])
    return out


def main():
    if not engines.ALL:
        sys.exit("no engine: make llm-env")
    kept = []
    with serving(sys.argv[2]) as server:
        for kind, tokens in LOADS.items():
            with asked(server, CLIENTS, *tokens):
                kept.append({"load": kind, **of_load(server)})
                say(kept[-1])
    write("llm-kept", {"made": made(f"make bench-llm-kept, KEPT_MINUTES={WATCHED / 60:g}"), "figures": figures(kept), "loads": kept})


main()
