"""What is done to the programs, and what would be right to say of it.

A disturbance lasts so many seconds and returns who did it: a set of pids, and of commands where processes are too
short-lived to be listed."""

import os
import subprocess
import sys
import time

import engine
import later
import newer
import others
import runtimes
import servers
import torch_loop
from beside import COMPUTES, ask, beside, busy_loop, busy_loops, compiler, serves, short_processes, syncs, told, until
from programs import Evaluates, Files, Lengths, Locked, OpenMp, Postgres, Saves, Service, Shards, Steploop, Torch, Unsized, Walker


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
    return {pid, *program.others()}, set()


def does(what, who):
    """A process of the loop is told to do something."""
    return told(what, lambda program: {program.pid(who)})


def streams(program, seconds, rng):
    """A process that copies through more memory than caches hold, on the CPU that the program does not use."""
    return beside(seconds, [program.streamer, "1"])


def on_one_cpu(program, seconds, rng):
    """A process that computes on the CPU of a helper of the program."""
    return beside(seconds, ["taskset", "-c", "1", *COMPUTES])


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


def beside_one_that_syncs(program, seconds, rng):
    """The server of the program's files sleeps while somebody else keeps a disk busy, which none of them is on."""
    program.server.told(1)
    syncs(program, seconds, rng)
    program.server.told(0)
    return {program.server.pid}, set()


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


# Name, program, what is done, classes that are right (none: nothing is to be decided; `None` among them: nothing need
# be), whether the culprit must be named.
ALL = [
    ("row lock of another session", Postgres, row_locks, {"lock_contention"}, True),
    ("two busy loops", Postgres, busy_loops, {"cpu_contention"}, True),
    ("many short processes", Postgres, short_processes, {"cpu_contention"}, True),
    ("CHECKPOINT in a loop", Postgres, checkpoints, {"block_io", "lock_contention", "cpu_contention"}, False),
    ("one busy loop", Torch, busy_loop, {"cpu_contention"}, True),
    ("a compiler", Torch, compiler, {"cpu_contention"}, True),
    ("a rank sleeps", Torch, does(torch_loop.SLEEPS, "rank1"), {"own_sleep"}, True),
    ("a thread holds the GIL", Torch, does(torch_loop.HOLDS_GIL, "rank1"), {"gil_contention"}, True),
    ("a loader sleeps", Torch, does(torch_loop.LOADER_SLEEPS, "loader1"), {"own_sleep"}, True),
    ("a loader computes", Torch, does(torch_loop.LOADER_COMPUTES, "loader1"), {"input_starvation"}, True),
    ("a large heap is collected", Torch, does(torch_loop.COLLECTS, "rank1"), {"gc_pause", "engine_software"}, False),
    *[("two busy loops", loop, busy_loops, {"cpu_contention"}, True) for loop in (Saves, Evaluates, Lengths, Unsized)],
    ("many short processes", Steploop, short_processes, {"cpu_contention"}, True),
    ("two busy loops", Steploop, busy_loops, {"cpu_contention"}, True),
    ("a process streams through memory", Walker, streams, set(), False),
    ("it looks up three times as often", Walker, told(2, lambda walker: set()), {"engine_software"}, False),
    ("a busy loop on a helper's CPU", OpenMp, on_one_cpu, {"cpu_contention"}, True),
    ("the service computes more", Service, told(5, lambda service: {service.pid()}), {"engine_software"}, True),
    ("another process holds the file", Locked, holds_the_file, {"lock_contention"}, True),
    ("a new shard beside an innocent", Shards, new_shard, {"input_load", "block_io"}, False),
    ("its server sleeps", Files, serves(1), {"own_sleep"}, True),
    ("its server computes", Files, serves(2), {"engine_software"}, True),
    ("its server sleeps beside one that syncs", Files, beside_one_that_syncs, {"own_sleep"}, True),
    *servers.ALL,
    *runtimes.ALL,
    *others.ALL,
    *later.ALL,
    *newer.ALL,
    *engine.ALL,
]
