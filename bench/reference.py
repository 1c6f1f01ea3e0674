"""A real engine beside a reference: usual, held back from its first step on, and slower by one per cent a minute."""

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time

from measure import GPUWHY, figure, made, share, write

import beside
import engine as engines
from watch import Watch

TRIALS = int(os.environ.get("TRIALS", "3"))
# How long a usual and a held-back engine are watched, and at most one that drifts, s.
USUAL, DRIFTS = 150.0, 900.0
# Of a CPU that a held-back engine has.
ALLOWED = 0.25
# What is told of an engine that drifts within so much of its growth, is told in time.
IN_TIME = 0.10
CLASSES = {"cpu_throttling"}


class Engine(engines.Vllm):
    does_in = "VLLM::Worker"
    allowed = ALLOWED


class Watched:
    """An engine under `gpuwhy watch --reference`, and under a client's load from when it serves."""

    def __init__(self, reference):
        self.folder = tempfile.mkdtemp(prefix="gpuwhy-reference-", dir="/var/tmp")
        self.program = Engine(self.folder, GPUWHY)
        self.watch = Watch(self.program, self.folder, "--reference", reference)

    def serves(self):
        """Returns when it has begun to serve, and when that was."""
        self.program.ready()
        return time.monotonic_ns()

    def end(self):
        """Ends both; the events."""
        self.program.end()
        events = self.watch.end()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)
        return events


def beside_reference(events):
    """What was told of steps that are slower than in the reference."""
    over = [event["finding"] for event in events if event["event"] == "over"]
    return [finding for finding in over if any(one.get("reference") for one in finding["series"])]


def usual(reference):
    """An engine that is left alone: what is told beside the reference is wrong."""
    engine = Watched(reference)
    engine.serves()
    time.sleep(USUAL)
    told = beside_reference(engine.end())
    for finding in told:
        print("FALSE ALARM:", finding["summary"], flush=True)
    return len(told)


def held_back(reference):
    """An engine that is given less of the CPUs than it takes, before it has anything to do."""
    engine = Watched(reference)
    engine.program.wait_for(engine.program.answers)
    engine.program.pid = engine.program.pid_of("VLLM::EngineCore")
    quota = threading.Thread(target=beside.quota, args=(engine.program, USUAL + 90.0, random.Random(1)))
    quota.start()
    began = engine.serves() - int(float(os.environ["ENGINE_LEARNS"]) * 1e9)
    time.sleep(USUAL)
    quota.join()
    told = beside_reference(engine.end())
    first = told[0] if told else None
    says = first["summary"] if first else "nothing"
    print(f"held back: {says}", flush=True)
    return {
        "told": bool(first),
        "right": bool(first) and first["class"] in CLASSES and first["outcome"] == "decided",
        "after_s": first and round((first["to_ns"] - began) / 1e9, 1),
        "says": says,
    }


def drifts(reference):
    """An engine whose model runner takes one per cent longer each minute; told when, and at how much."""
    engine = Watched(reference)
    began = engine.serves()
    told = None
    while told is None and time.monotonic_ns() - began < DRIFTS * 1e9:
        minutes = (time.monotonic_ns() - began) / 60e9
        engine.program.told(0, int(1000 * (1.01**minutes - 1)))
        time.sleep(1)
        over = [event["finding"] for event in engine.watch.read() if event["event"] == "over"]
        of_drifts = (finding for finding in over if any(one.get("drift") for one in finding["series"]))
        told = next(of_drifts, None)
    engine.end()
    grown = told and 1.01 ** ((told["to_ns"] - began) / 60e9) - 1
    says = told["summary"] if told else "nothing"
    print(f"drifts: {says}; it had grown by {grown and round(100 * grown, 1)} %", flush=True)
    of = told and next(one["drift"] for one in told["series"] if one.get("drift"))
    return {"grown": grown, "per_minute": of and of["per_minute"], "says": says}


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["ENGINE_LEARNS"] = "5"
    if not engines.ALL:
        sys.exit("no engine: make llm-env")
    folder = tempfile.mkdtemp(prefix="gpuwhy-reference-")
    reference = os.path.join(folder, "engine.json")
    # The first recording has nothing to be compared with.
    false = [usual(reference) for _ in range(TRIALS + 1)]
    slow = [held_back(reference) for _ in range(TRIALS)]
    ramps = [drifts(reference) for _ in range(TRIALS)]
    shutil.rmtree(folder, ignore_errors=True)
    after = [one["after_s"] for one in slow if one["after_s"] is not None]
    grown = [one["grown"] for one in ramps if one["grown"] is not None]
    rates = [one["per_minute"] for one in ramps if one["per_minute"] is not None]
    figures = {
        "usual_told": share(sum(map(bool, false[1:])), TRIALS),
        "held_back_told": share(sum(one["told"] for one in slow), len(slow)),
        "held_back_right": share(sum(one["right"] for one in slow), len(slow)),
        "drift_in_time": share(sum(one <= IN_TIME for one in grown), len(ramps)),
    }
    if after:
        figures["held_back_after_s"] = figure(after)
    if grown:
        figures["drift_told_at"] = figure(grown)
        figures["drift_per_minute"] = figure(rates)
    write("reference", {"made": made(f"make bench-reference, TRIALS={TRIALS}"), "figures": figures, "held_back": slow, "drifts": ramps})


main()
