"""What a stack of a Python program costs: of gpuwhy in an incident, by the kernel's own counters, and of py-spy.

The program has a thread that answers a client, one that holds the interpreter lock from some time on, which is the
incident, and six that sleep, each twenty calls deep. gpuwhy samples what runs 99 times a second on each CPU and notes where
threads went to sleep; py-spy reads all threads 100 times a second.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time

from measure import GPUWHY, bpf_programs, bpf_statistics, children, cpu_seconds, figure, made, write

ROUNDS = int(os.environ.get("ROUNDS", "3"))
# How long each measurement lasts.
LASTS = 10.0
PROGRAM = r"""
import os, socket, sys, threading, time
here, there = socket.socketpair()
if os.fork() == 0:
    while True:
        here.send(b"?")
        if not here.recv(1):
            os._exit(0)
        time.sleep(0.005)
here.close()

def deep(calls):
    if calls:
        return deep(calls - 1)
    while True:
        time.sleep(0.05)

def sums_up_numbers():
    total = 0
    for n in range(1_000_000):
        total += n

def computes():
    while True:
        sums_up_numbers() if os.path.exists(sys.argv[1]) else time.sleep(0.02)

for _ in range(6):
    threading.Thread(target=deep, args=(20,), daemon=True).start()
threading.Thread(target=computes, daemon=True).start()
while there.recv(1):
    begun = time.monotonic()
    while time.monotonic() < begun + 0.001:
        pass
    there.send(b"!")
"""


def programs():
    """Run time in ns and runs of the programs that take stacks."""
    return {"sample": bpf_programs("sample"), "sleeps": bpf_programs("sleeps_and_wake")}


def began(events):
    with open(events) as file:
        return any('"event":"verdict"' in line for line in file)


def one_round(folder):
    flag, events = os.path.join(folder, "computes"), os.path.join(folder, "events")
    program = [sys.executable, "-c", PROGRAM, flag]
    watch = subprocess.Popen(
        [GPUWHY, "watch", "--json", "--events", events, "--force", "-o", os.path.join(folder, "trace"), "--", *program],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(22)
        calm = cpu_seconds(watch.pid)
        time.sleep(LASTS)
        calm = (cpu_seconds(watch.pid) - calm) / LASTS
        open(flag, "w").close()
        until = time.monotonic() + 20
        while not began(events):
            if time.monotonic() > until:
                raise RuntimeError("no incident was told")
            time.sleep(0.1)
        before, agent, at = programs(), cpu_seconds(watch.pid), time.monotonic()
        time.sleep(LASTS)
        lasted, after = time.monotonic() - at, programs()
        agent = (cpu_seconds(watch.pid) - agent) / lasted
        target = children(watch.pid)[0]
        os.unlink(flag)
        spent = {key: (after[key][0] - before[key][0], after[key][1] - before[key][1]) for key in after}
        spy = [os.environ["PY_SPY"], "record", "-r", "100", "-d", str(int(LASTS)), "--nonblocking", "-f", "raw"]
        child = subprocess.Popen(
            [*spy, "-o", os.devnull, "-p", str(target)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
        return {
            "sample_ns": spent["sample"][0] / max(spent["sample"][1], 1),
            "switch_ns": spent["sleeps"][0] / max(spent["sleeps"][1], 1),
            "stacks_core_share": (spent["sample"][0] + spent["sleeps"][0]) / 1e9 / lasted,
            "agent_core_share": agent,
            "agent_core_share_calm": calm,
            "py_spy_core_share": (usage.ru_utime + usage.ru_stime) / LASTS,
        }
    finally:
        # The watch ends with its command.
        for child in children(watch.pid):
            os.kill(child, signal.SIGKILL)
        watch.wait(timeout=30)


def main():
    rounds = []
    with bpf_statistics():
        for number in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="gpuwhy-stacks-", dir="/var/tmp") as folder:
                rounds.append(one_round(folder))
            print({key: round(value, 5) for key, value in rounds[-1].items()}, flush=True)
    figures = {key: figure([one[key] for one in rounds]) for key in rounds[0]}
    write("stacks", {"made": made("make bench-stacks"), "figures": figures})


main()
