"""Situations on real programs: what is said while they last and at their end, against what was done.

A situation is a program, a disturbance of it, and what would be a right answer. A trial is one disturbance of a
running program. What is said counts as right (class and, where somebody did it, culprit), as unknown (nothing, or
"insufficient evidence"), or as wrong (something else, decided). Calm time in between counts false alarms.
"""

import glob
import json
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from measure import GPUWHY, figure, made, share, write

TRIALS = int(os.environ.get("TRIALS", "10"))
ONLY = [word for word in os.environ.get("ONLY", "").split(",") if word]
SEED = int(os.environ.get("SEED", "1"))
# So long a program runs before the first trial, and between two.
WARM_UP, CALM, LASTS = 40.0, 14.0, 8.0


class Postgres:
    """A server under pgbench: short transactions of an update, a select and a commit on few rows."""

    name = "PostgreSQL under pgbench"

    def __init__(self, folder):
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        self.binary = os.path.join(binaries, "postgres")
        self.tool = lambda name: os.path.join(binaries, name)
        self.folder = os.path.join(folder, "pg")
        user = pwd.getpwnam("postgres")
        os.makedirs(self.folder)
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        os.chmod(folder, 0o755)
        data = os.path.join(self.folder, "data")
        self.run(self.tool("initdb"), "-D", data, "-A", "trust")
        self.run(
            self.tool("pg_ctl"), "-D", data, "-w", "-l", os.path.join(self.folder, "log"),
            "-o", f"-c listen_addresses='' -k {self.folder} -c fsync=on", "start",
        )
        self.data = data
        self.run(self.tool("createdb"), "-h", self.folder, "bench")
        self.run(self.tool("pgbench"), "-h", self.folder, "-i", "-q", "-s", "5", "bench")
        script = os.path.join(self.folder, "script.sql")
        with open(script, "w") as out:
            out.write(
                "\\set aid random(1, 20)\n"
                "BEGIN;\n"
                "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
                "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
                "COMMIT;\n"
            )
        os.chmod(script, 0o644)
        with open(os.path.join(data, "postmaster.pid")) as file:
            self.pid = int(file.readline())
        self.clients = self.start(
            self.tool("pgbench"), "-h", self.folder, "-n", "-f", script, "-c", "2", "-j", "1", "-R", "150",
            "-T", "100000", "bench",
        )

    def command(self, *command):
        return ["runuser", "-u", "postgres", "--", *command]

    def run(self, *command):
        subprocess.run(self.command(*command), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self, *command, **how):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self.command(*command), cwd="/", **{**quiet, **how})

    def watched(self):
        return ["-p", str(self.pid), "--step", f"uprobe:{self.binary}:PortalRun"]

    def session(self):
        return self.start(
            self.tool("psql"), "-h", self.folder, "-qAt", "bench",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )

    def end(self):
        self.clients.terminate()
        self.clients.wait()
        self.run(self.tool("pg_ctl"), "-D", self.data, "-m", "immediate", "stop")


def ask(session, text):
    session.stdin.write(text + "\n")
    session.stdin.flush()


def row_locks(program, seconds, rng):
    """A session of its own holds rows 300 ms at a time."""
    session = program.session()
    ask(session, "SELECT pg_backend_pid();")
    pid = int(session.stdout.readline())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ask(session, "BEGIN; UPDATE pgbench_accounts SET filler = filler WHERE aid <= 20;")
        time.sleep(0.3)
        ask(session, "COMMIT;")
        time.sleep(0.1 + 0.1 * rng.random())
    session.stdin.close()
    session.wait()
    return [pid]


def busy_loops(program, seconds, rng):
    """Two processes that only compute."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    time.sleep(seconds)
    for loop in loops:
        loop.kill()
        loop.wait()
    return [loop.pid for loop in loops]


def short_processes(program, seconds, rng):
    """Processes of a tenth to three tenths of a second, two at a time, one after the other."""
    until, pids, running = time.monotonic() + seconds, [], []
    while time.monotonic() < until:
        running = [one for one in running if one.poll() is None]
        while len(running) < 2:
            last = 0.1 + 0.2 * rng.random()
            count = int(last * 400_000)
            running.append(subprocess.Popen(["bash", "-c", f"for ((i=0;i<{count};i++)); do :; done"]))
            pids.append(running[-1].pid)
        time.sleep(0.005)
    for one in running:
        one.kill()
        one.wait()
    return pids


def checkpoints(program, seconds, rng):
    """CHECKPOINT in a loop."""
    session = program.session()
    ask(session, "SELECT pg_backend_pid();")
    pids = [int(session.stdout.readline())]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ask(session, "CHECKPOINT; SELECT 1;")
        session.stdout.readline()
    session.stdin.close()
    session.wait()
    names = subprocess.run(["pgrep", "-P", str(program.pid)], capture_output=True, text=True).stdout.split()
    return pids + [int(pid) for pid in names]


# Name, program, what is done, classes that are right, whether the culprit must be named.
SITUATIONS = [
    ("row lock of another session", Postgres, row_locks, {"lock_contention"}, True),
    ("two busy loops", Postgres, busy_loops, {"cpu_contention"}, True),
    ("many short processes", Postgres, short_processes, {"cpu_contention"}, True),
    ("CHECKPOINT in a loop", Postgres, checkpoints, {"block_io", "lock_contention", "cpu_contention"}, False),
]


class Watch:
    """`gpuwhy watch` over a program; its events with the time of the trace's clock, which is the monotonic one."""

    def __init__(self, program, folder):
        self.events = os.path.join(folder, "events")
        self.trace = os.path.join(folder, "watch.trace")
        self.child = subprocess.Popen(
            [GPUWHY, "watch", *program.watched(), "--json", "--force", "-o", self.trace, "--events", self.events],
            stdout=subprocess.DEVNULL, stderr=open(os.path.join(folder, "complaints"), "w"),
        )

    def read(self):
        try:
            with open(self.events) as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def end(self):
        self.child.send_signal(signal.SIGINT)
        self.child.wait(timeout=60)
        return self.read()


def said(finding):
    """Class, pid, command and number of processes of a finding; none if it was not decided."""
    if not finding or finding["outcome"] != "decided":
        return None
    culprit = finding.get("culprit") or {}
    return {
        "class": finding["class"],
        "pid": culprit.get("pid"),
        "comm": culprit.get("comm"),
        "processes": culprit.get("processes"),
        "confidence": round(finding["confidence"], 3),
    }


def judged(one, classes, pids, must_name):
    """Whether what was said is right, unknown or wrong."""
    if one is None:
        return "unknown"
    if one["class"] not in classes:
        return "wrong"
    if one["pid"] is not None and one["pid"] not in pids:
        return "wrong"
    return "right" if one["pid"] is not None or not must_name else "unknown"


def trial(watch, program, disturb, rng):
    """Disturbs once; what was said 2 s after the onset, and at the end."""
    before = len(watch.read())
    begun = time.monotonic_ns()
    pids = disturb(program, LASTS, rng)
    ended = time.monotonic_ns()
    time.sleep(CALM)
    early = late = None
    for event in watch.read()[before:]:
        if event["event"] not in ("verdict", "over"):
            continue
        finding = event["finding"]
        if finding["to_ns"] < begun or finding["from_ns"] > ended:
            continue
        if event["at_ns"] <= begun + 2_500_000_000:
            early = finding
        late = finding
    return {"pids": pids, "begun": begun, "ended": ended, "early": said(early), "late": said(late),
            "summary": late["summary"] if late else "nothing"}


def main():
    rng = random.Random(SEED)
    rows, calm, alarms, shares = [], 0.0, [], []
    by_program = {}
    for situation in SITUATIONS:
        if not ONLY or any(word in situation[0] for word in ONLY):
            by_program.setdefault(situation[1], []).append(situation)
    for program_of, situations in by_program.items():
        folder = tempfile.mkdtemp(prefix="gpuwhy-real-", dir="/var/tmp")
        program = program_of(folder)
        watch = None
        try:
            watch = Watch(program, folder)
            time.sleep(WARM_UP)
            began = time.monotonic()
            disturbed = []
            plan = [situation for situation in situations for _ in range(TRIALS)]
            rng.shuffle(plan)
            for name, _, disturb, classes, must_name in plan:
                one = trial(watch, program, disturb, rng)
                disturbed.append((one["begun"], one["ended"]))
                row = {
                    "program": program.name,
                    "situation": name,
                    "at_2_s": judged(one["early"], classes, one["pids"], must_name),
                    "at_end": judged(one["late"], classes, one["pids"], must_name),
                    "said": one["summary"],
                    "early": one["early"],
                    "late": one["late"],
                }
                rows.append(row)
                print(f"{name:<30} 2 s: {row['at_2_s']:<8} end: {row['at_end']:<8} {row['said']}", flush=True)
            lasted = time.monotonic() - began
            events = watch.end()
            watch = None
            calm += lasted - sum(to - begin for begin, to in disturbed) / 1e9
            for event in events:
                if event["event"] == "ended":
                    shares.append(event["machine_share"])
                if event["event"] != "over" or event["finding"]["outcome"] != "decided":
                    continue
                finding = event["finding"]
                near = any(finding["to_ns"] >= begin - 1e9 and finding["from_ns"] <= to + 3e9 for begin, to in disturbed)
                if not near:
                    alarms.append(finding["summary"])
                    print("FALSE ALARM:", finding["summary"], flush=True)
        finally:
            if watch:
                watch.end()
            program.end()
            if not os.environ.get("KEEP"):
                shutil.rmtree(folder, ignore_errors=True)
    ends = [row["at_end"] for row in rows]
    named = [row for row in rows if row["late"] and row["late"]["pid"] is not None]
    figures = {
        "situations": figure([len({(row["program"], row["situation"]) for row in rows})]),
        "situations_right": share(ends.count("right"), len(ends)),
        "situations_unknown": share(ends.count("unknown"), len(ends)),
        "situations_wrong": share(ends.count("wrong"), len(ends)),
        "wrong_at_2_s": share([row["at_2_s"] for row in rows].count("wrong"), len(ends)),
        "false_alarms_per_hour": {"value": len(alarms) / (calm / 3600), "spread": [0, 0], "n": 1},
        "calm_hours": figure([calm / 3600]),
    }
    if named:
        figures["culprit_precision"] = share(sum(row["at_end"] == "right" for row in named), len(named))
    if shares:
        figures["machine_share_real"] = figure(shares)
    summary = []
    for key in sorted({(row["program"], row["situation"]) for row in rows}):
        of = [row for row in rows if (row["program"], row["situation"]) == key]
        count = lambda field, word: sum(row[field] == word for row in of)
        summary.append({
            "program": key[0], "situation": key[1], "trials": len(of),
            **{f"{word}_at_2_s": count("at_2_s", word) for word in ("right", "unknown", "wrong")},
            **{f"{word}_at_end": count("at_end", word) for word in ("right", "unknown", "wrong")},
        })
    write("real", {"made": made(f"make bench-real, TRIALS={TRIALS} SEED={SEED}"), "figures": figures,
                   "situations": summary, "trials": rows, "alarms": alarms})


main()
