"""What is done beside a program, whatever it is. Each lasts so many seconds and returns who did it, as in situations.py."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def until(seconds):
    """True again and again, for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield True


def ask(session, text):
    session.stdin.write(text + "\n")
    session.stdin.flush()


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


def pauses(program, seconds, rng):
    """The operator stops the program and lets it go on, again and again."""
    for _ in until(seconds):
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(0.1)
        os.kill(program.pid, signal.SIGCONT)
        time.sleep(0.2)
    return {program.pid, os.getpid()}, set()


# Writes over a file of its own and waits until that is on the disk, again and again.
SYNCS = """
import os, sys
file, some = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), os.urandom(8 << 20)
while True:
    os.pwrite(file, some, 0)
    os.fsync(file)
"""


def syncs(program, seconds, rng):
    """A process that writes and syncs."""
    return beside(seconds, [sys.executable, "-c", SYNCS, os.path.join(program.folder, "own")])


def told(what, who, whom=lambda program: program, *how):
    """Somebody, the program if nobody else, is told to do something for so long, which is these processes' doing."""

    def disturb(program, seconds, rng):
        whom(program).told(what, *how)
        time.sleep(seconds)
        whom(program).told(0)
        return who(program), set()

    return disturb


def serves(what):
    """The process that serves the program's files does something with each read and write."""
    return told(what, lambda program: {program.server.pid}, lambda program: program.server)


def cpus_of(pids):
    """How many CPUs processes have taken, on average since each began."""
    with open("/proc/uptime") as file:
        now = float(file.read().split()[0])
    total = 0.0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks = os.sysconf("SC_CLK_TCK")
        total += (int(words[11]) + int(words[12])) / ticks / max(1.0, now - int(words[19]) / ticks)
    return total


def quota(program, seconds, rng):
    """The operator allows the program less of a CPU than it takes."""
    group = "/sys/fs/cgroup/cpu/gpuwhy-bench"
    os.makedirs(group, exist_ok=True)
    pids = [program.pid, *program.others()]
    allowed = program.allowed or cpus_of(pids) / 2
    for name, value in (("cpu.cfs_period_us", 100_000), ("cpu.cfs_quota_us", max(1_000, int(100_000 * allowed)))):
        put(os.path.join(group, name), value)
    for pid in pids:
        put(os.path.join(group, "cgroup.procs"), pid)
    time.sleep(seconds)
    for pid in pids:
        put("/sys/fs/cgroup/cpu/cgroup.procs", pid)
    os.rmdir(group)
    return set(), set()


def put(path, value):
    with open(path, "w") as file:
        file.write(str(value))
