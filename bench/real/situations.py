"""What is done to the programs, and what would be right to say of it.

A disturbance lasts so many seconds and returns who did it: a set of pids, and of commands where processes are too
short-lived to be listed."""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch_loop
from programs import Evaluates, Lengths, Locked, OpenMp, Postgres, Saves, Service, Shards, Steploop, Torch, Unsized, Walker


def until(seconds):
    """True again and again, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield True


def ask(session, text):
    session.stdin.write(text + "\n")
    session.stdin.flush()


def in_a_session(program, seconds, each):
    """A session of its own that does something again and again; its backend's pid."""
    session = program.session()
    ask(session, "SELECT pg_backend_pid();")
    pid = int(session.stdout.readline())
    for _ in until(seconds):
        each(session)
    session.stdin.close()
    session.wait()
    return pid


def row_locks(program, seconds, rng):
    """A session of its own holds rows 300 ms at a time."""

    def hold(session):
        ask(session, "BEGIN; UPDATE pgbench_accounts SET filler = filler WHERE aid <= 20;")
        time.sleep(0.3)
        ask(session, "COMMIT;")
        time.sleep(0.1 + 0.1 * rng.random())

    return {in_a_session(program, seconds, hold)}, set()


def checkpoints(program, seconds, rng):
    """CHECKPOINT in a loop."""

    def checkpoint(session):
        ask(session, "CHECKPOINT; SELECT 1;")
        session.stdout.readline()

    pid = in_a_session(program, seconds, checkpoint)
    names = subprocess.run(["pgrep", "-P", str(program.pid)], capture_output=True, text=True).stdout.split()
    return {pid, *map(int, names)}, set()


COMPUTES = [sys.executable, "-c", "while True: pass"]


def beside(seconds, command, many=1):
    """Processes that run for so long."""
    running = [subprocess.Popen(command) for _ in range(many)]
    time.sleep(seconds)
    for one in running:
        one.kill()
        one.wait()
    return {one.pid for one in running}, set()


def busy_loop(program, seconds, rng):
    """A process that only computes."""
    return beside(seconds, COMPUTES)


def busy_loops(program, seconds, rng):
    """Two of them."""
    return beside(seconds, COMPUTES, many=2)


def short_processes(program, seconds, rng):
    """Processes of a tenth to three tenths of a second, two at a time, one after the other."""
    pids, running = set(), []
    for _ in until(seconds):
        running = [one for one in running if one.poll() is None]
        while len(running) < 2:
            count = int((0.1 + 0.2 * rng.random()) * 400_000)
            running.append(subprocess.Popen(["bash", "-c", f"for ((i=0;i<{count};i++)); do :; done"]))
            pids.add(running[-1].pid)
        time.sleep(0.005)
    for one in running:
        one.kill()
        one.wait()
    return pids, {"bash"}


def compiler(program, seconds, rng):
    """A compiler that is started again and again, two at a time."""
    folder = tempfile.mkdtemp()
    source = os.path.join(folder, "many.c")
    with open(source, "w") as out:
        for number in range(3000):
            out.write(f"int f{number}(int a, int b) {{ return a * {number} + b / (a + {number + 1}); }}\n")
    make = f"while :; do cc -O2 -c {source} -o $0; done"
    loops = [
        subprocess.Popen(["sh", "-c", make, os.path.join(folder, f"{n}.o")], start_new_session=True) for n in range(2)
    ]
    time.sleep(seconds)
    for loop in loops:
        os.killpg(loop.pid, 9)
        loop.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return {loop.pid for loop in loops}, {"cc1", "as", "cc", "gcc", "sh"}


def told(what, who):
    """Rank 1 of the loop is told to do something."""

    def disturb(program, seconds, rng):
        program.told(what)
        time.sleep(seconds)
        program.told(torch_loop.NOTHING)
        return {program.pid(who)}, set()

    return disturb


def streams(program, seconds, rng):
    """A process that copies through more memory than caches hold, on the CPU that the program does not use."""
    return beside(seconds, [program.streamer, "1"])


def more_often(program, seconds, rng):
    """The program does a part of its steps three times."""
    program.told(2)
    time.sleep(seconds)
    program.told(0)
    return set(), set()


def on_one_cpu(program, seconds, rng):
    """A process that computes on the CPU of a helper of the program."""
    return beside(seconds, ["taskset", "-c", "1", *COMPUTES])


def slow_service(program, seconds, rng):
    """The service computes for longer."""
    program.told(5)
    time.sleep(seconds)
    program.told(0)
    return {program.pid()}, set()


# Empties a file of its own from memory again and again: pages that were never written to a disk.
INNOCENT = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
while True:
    os.pwrite(file, bytes(4 << 20), 0)
    os.ftruncate(file, 0)
    time.sleep(0.05)
"""


def new_shard(program, seconds, rng):
    """The program goes on to a shard that is not in memory, while somebody empties a file of its own from there."""
    own = os.path.join(program.folder, "own")
    innocent = subprocess.Popen([sys.executable, "-c", INNOCENT, own])
    program.told(program.next)
    program.next += 1
    time.sleep(seconds)
    program.told(0)
    innocent.kill()
    innocent.wait()
    return set(), set()


# Holds the lock for 30 ms at a time, asleep, and leaves it alone for as long.
HOLDS_THE_FILE = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
while True:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(0.03)
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(0.03)
"""


def holds_the_file(program, seconds, rng):
    """Another process holds the lock on the file for longer."""
    return beside(seconds, [sys.executable, "-c", HOLDS_THE_FILE, os.path.join(program.folder, "shared")])


# Name, program, what is done, classes that are right (none: nothing is to be decided), whether the culprit must be
# named.
ALL = [
    ("row lock of another session", Postgres, row_locks, {"lock_contention"}, True),
    ("two busy loops", Postgres, busy_loops, {"cpu_contention"}, True),
    ("many short processes", Postgres, short_processes, {"cpu_contention"}, True),
    ("CHECKPOINT in a loop", Postgres, checkpoints, {"block_io", "lock_contention", "cpu_contention"}, False),
    ("one busy loop", Torch, busy_loop, {"cpu_contention"}, True),
    ("a compiler", Torch, compiler, {"cpu_contention"}, True),
    ("a rank sleeps", Torch, told(torch_loop.SLEEPS, "rank1"), {"own_sleep"}, True),
    ("a thread holds the GIL", Torch, told(torch_loop.HOLDS_GIL, "rank1"),
     {"lock_contention", "engine_software"}, True),
    ("a loader sleeps", Torch, told(torch_loop.LOADER_SLEEPS, "loader1"), {"own_sleep"}, True),
    ("a large heap is collected", Torch, told(torch_loop.COLLECTS, "rank1"), {"gc_pause", "engine_software"}, False),
    *[("two busy loops", loop, busy_loops, {"cpu_contention"}, True) for loop in (Saves, Evaluates, Lengths, Unsized)],
    ("many short processes", Steploop, short_processes, {"cpu_contention"}, True),
    ("two busy loops", Steploop, busy_loops, {"cpu_contention"}, True),
    ("a process streams through memory", Walker, streams, set(), False),
    ("it looks up three times as often", Walker, more_often, {"engine_software"}, False),
    ("a busy loop on a helper's CPU", OpenMp, on_one_cpu, {"cpu_contention"}, True),
    ("the service computes more", Service, slow_service, {"engine_software"}, True),
    ("another process holds the file", Locked, holds_the_file, {"lock_contention"}, True),
    ("a new shard beside an innocent", Shards, new_shard, {"input_load", "block_io"}, False),
]
