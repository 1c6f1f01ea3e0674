"""A real engine beside a reference: usual, held back from its first step on, and slower by one per cent a minute."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from measure import GPUWHY, figure, made, share, write

import beside
import engine

TRIALS = int(os.environ.get("TRIALS", "3"))
# How long a usual and a held-back engine are watched, and at most one that drifts, s.
USUAL, DRIFTS = 150.0, 900.0
# Of a CPU that a held-back engine has.
ALLOWED = 0.45
# What is told of an engine that drifts within so much of its growth, is told in time.
IN_TIME = 0.10
CLASSES = {"cpu_throttling"}


class Engine(engine.Vllm):
    does_in = "VLLM::Worker"
    allowed = ALLOWED


class Watch:
    """`gpuwhy watch --reference` over an engine that is under a client's load from then on."""

    def __init__(self, reference):
        self.folder = tempfile.mkdtemp(prefix="gpuwhy-reference-", dir="/var/tmp")
        self.program = Engine(self.folder, GPUWHY)
        self.events = os.path.join(self.folder, "events")
        trace = os.path.join(self.folder, "watch.trace")
        own = ["--json", "--force", "-o", trace, "--events", self.events, "--reference", reference]
        self.child = subprocess.Popen(
            [GPUWHY, "watch", *own, *self.program.watched()],
            stdout=subprocess.DEVNULL, stderr=open(os.path.join(self.folder, "complaints"), "w"),
        )

    def serves(self):
        """Returns when it has begun to serve, and when that was."""
        self.program.ready()
        return time.monotonic_ns()

    def read(self):
        try:
            with open(self.events) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def end(self):
        self.program.end()
        self.child.send_signal(signal.SIGINT)
        self.child.wait(timeout=120)
        events = self.read()
        if not os.environ.get("KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)
        return events


def beside_reference(events):
    """What was told of steps that are slower than in the reference."""
    over = [event["finding"] for event in events if event["event"] == "over"]
    return [finding for finding in over if any(one.get("reference") for one in finding["series"])]


def usual(reference):
    """An engine that is left alone: what is told beside the reference is wrong."""
    watch = Watch(reference)
    watch.serves()
    time.sleep(USUAL)
    told = beside_reference(watch.end())
    for finding in told:
        print("FALSE ALARM:", finding["summary"], flush=True)
    return len(told)


def held_back(reference):
    """An engine that is given less of the CPUs than it takes, before it has anything to do."""
    watch = Watch(reference)
    watch.program.wait_for(watch.program.answers)
    watch.program.pid = watch.program.pid_of("VLLM::EngineCore")
    quota = threading.Thread(target=beside.quota, args=(watch.program, USUAL + 90.0, random.Random(1)))
    quota.start()
    began = watch.serves() - int(float(os.environ["ENGINE_LEARNS"]) * 1e9)
    time.sleep(USUAL)
    quota.join()
    told = beside_reference(watch.end())
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
    watch = Watch(reference)
    began = watch.serves()
    told = None
    while told is None and time.monotonic_ns() - began < DRIFTS * 1e9:
        minutes = (time.monotonic_ns() - began) / 60e9
        watch.program.told(0, int(1000 * (1.01**minutes - 1)))
        time.sleep(1)
        over = [event["finding"] for event in watch.read() if event["event"] == "over"]
        of_drifts = (finding for finding in over if any(one.get("drift") for one in finding["series"]))
        told = next(of_drifts, None)
    watch.end()
    grown = told and 1.01 ** ((told["to_ns"] - began) / 60e9) - 1
    says = told["summary"] if told else "nothing"
    print(f"drifts: {says}; it had grown by {grown and round(100 * grown, 1)} %", flush=True)
    of = told and next(one["drift"] for one in told["series"] if one.get("drift"))
    return {"grown": grown, "per_minute": of and of["per_minute"], "says": says}


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["ENGINE_LEARNS"] = "5"
    if not engine.ALL:
        sys.exit("no engine: make llm-env")
    folder = tempfile.mkdtemp(prefix="gpuwhy-reference-")
    reference = os.path.join(folder, "engine.json")
    false = [usual(reference) for _ in range(TRIALS)]
    slow = [held_back(reference) for _ in range(TRIALS)]
    ramps = [drifts(reference) for _ in range(TRIALS)]
    shutil.rmtree(folder, ignore_errors=True)
    after = [one["after_s"] for one in slow if one["after_s"] is not None]
    grown = [one["grown"] for one in ramps if one["grown"] is not None]
    rates = [one["per_minute"] for one in ramps if one["per_minute"] is not None]
    figures = {
        # The first recording has nothing to be compared with.
        "usual_told": share(sum(false[1:]), max(1, len(false) - 1)),
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
