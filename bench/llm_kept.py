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

from llm_engine import SELECTED, asked, bytes_of, engines, say, serving

# How long `watch` is left with the engine, and `record` after it, s.
WATCHED, RECORDED = 60 * float(os.environ.get("KEPT_MINUTES", "10")), 60.0
# Tokens of a prompt and of an answer, of models of each size: work that is nearly all decoding, and nearly all prefill.
CLIENTS = 4
LOADS = {"tiny": {"decode": (16, 256), "prefill": (1024, 1)}, "small": {"decode": (16, 256), "prefill": (256, 1)}}


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
    ended = next(event for event in events if event["event"] == "ended")
    return {"steps": ended["steps"], "as_before": ended["as_before"], "flagged": steps(over), "decided": steps(decided),
            "findings": [one["summary"] for one in over]}


def of_load(server):
    """All of one kind of load."""
    events = os.path.join(server.folder, "kept.events")
    watched = recorded(server, WATCHED, "watch", "--events", events)
    return {"watch": watched, "record": recorded(server, RECORDED, "record"), **told(events)}


def figures(kept):
    out = {}
    for size in SELECTED:
        of = [one for one in kept if one["model"] == size]
        steps = sum(one["steps"] for one in of)
        out.update({
            f"retained_bytes_share_{size}": figure([one["watch"]["bytes_a_s"] / one["record"]["bytes_a_s"] for one in of]),
            f"collector_core_share_calm_{size}": figure([one["watch"]["core_share"] for one in of]),
            f"false_alert_rate_{size}": share(sum(one["decided"] for one in of), steps),
            f"false_flag_rate_{size}": share(sum(one["flagged"] for one in of), steps),
            f"false_alerts_per_hour_{size}": rate(sum(len(one["findings"]) for one in of), len(of) * WATCHED / 3600),
        })
    for one in kept:
        for name, of in (("kept", "watch"), ("recorded", "record")):
            out[f"mib_an_hour_{name}_{one['load']}_{one['model']}"] = figure([one[of]["bytes_a_s"] * 3600 / 2**20])
    return out


def main():
    if not engines.ALL:
        sys.exit("no engine: make llm-env")
    kept = []
    for size in SELECTED:
        with serving(sys.argv[2], size) as server:
            for kind, tokens in LOADS[size].items():
                with asked(server, CLIENTS, *tokens):
                    kept.append({"model": size, "load": kind, **of_load(server)})
                    say(kept[-1])
    write("llm-kept", {"made": made(f"make bench-llm-kept, KEPT_MINUTES={WATCHED / 60:g}"), "figures": figures(kept), "loads": kept})


main()
