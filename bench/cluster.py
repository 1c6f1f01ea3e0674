"""The analysis of a trace of the published pipeline's size by threads, by the query engine in one process,
and by a scheduler and two executors as processes: the same answer to the digit, also when an executor is
killed in the middle.

CPU seconds of a cluster are those of its processes together, from /proc.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from measure import DATA, GPUWHY, check_stalls, figure, generate, made, run, share, write

ROUNDS = int(os.environ.get("ROUNDS", "3"))
QUERY = os.environ.get("GPUWHY_QUERY", os.path.join(os.path.dirname(GPUWHY), "gpuwhy-query"))
TIMEOUT_S = 10


def free_port():
    """A port whose successor is free too."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        try:
            with socket.socket() as a, socket.socket() as b:
                a.bind(("127.0.0.1", port))
                b.bind(("127.0.0.1", port + 1))
            return port
        except OSError:
            continue


def wait_for(port):
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"cluster: nobody listens at {port}")


class Cluster:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="gpuwhy-cluster.")
        port = free_port()
        self.url = f"df://localhost:{port}"
        self.processes = [self.start("scheduler", "--bind", f"127.0.0.1:{port}", "--executor-timeout", str(TIMEOUT_S), "--traces", DATA)]
        wait_for(port)
        for number in range(2):
            at = free_port()
            work = os.path.join(self.dir, f"work-{number}")
            self.processes.append(
                self.start("executor", "--scheduler", f"localhost:{port}", "--bind", f"127.0.0.1:{at}",
                           "--threads", "1", "--work-dir", work, "--traces", DATA)
            )
            wait_for(at)

    def start(self, *args):
        log = open(os.path.join(self.dir, f"{args[0]}-{time.monotonic_ns()}.log"), "w")
        return subprocess.Popen([QUERY, *args], stdout=log, stderr=log)

    def spent(self):
        """CPU seconds so far, and the greatest memory of one process, MiB."""
        cpu, peak = 0.0, 0.0
        for process in self.processes:
            try:
                stat = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
                status = open(f"/proc/{process.pid}/status").read()
            except OSError:
                continue
            cpu += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            high = next((l.split()[1] for l in status.splitlines() if l.startswith("VmHWM")), "0")
            peak = max(peak, int(high) / 1024)
        return cpu, peak

    def has_work(self, number):
        work = os.path.join(self.dir, f"work-{number}")
        return any(files for _, _, files in os.walk(work))

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def main():
    os.makedirs("target/traces", exist_ok=True)
    os.environ["GPUWHY_QUERY"] = QUERY
    results = {"made": made("make bench-cluster"), "figures": {}, "rows": []}
    path, label = generate("paper.sqlite", "--kernels", "842054", "--copies", "107045")
    trace = f"{DATA}/paper.trace"
    imported = run([GPUWHY, "import", path, "-o", trace, "--force"])
    if "error" in imported:
        sys.exit(f"cluster: import: {imported['error']}")
    ask = [GPUWHY, "variability", trace, "--interval", "1s", "--json"]
    wanted = run(ask)["says"]
    stalls = check_stalls(wanted, label)
    print("stalls:", stalls)

    ways = {
        "threads, 1": [*ask, "--threads", "1"],
        "threads, 2": [*ask, "--threads", "2"],
        "engine in one process": [*ask, "--cluster", "local"],
    }
    rounds = {way: [] for way in [*ways, "scheduler and 2 executors"]}
    cluster = Cluster()
    try:
        # The first query of a cluster connects and loads; it is not counted.
        run([*ask, "--cluster", cluster.url])
        for _ in range(ROUNDS):
            for way, command in ways.items():
                rounds[way].append(run(command))
            before, _ = cluster.spent()
            one = run([*ask, "--cluster", cluster.url])
            after, peak = cluster.spent()
            if "error" not in one:
                one["cpu_s"] += after - before
                one["rss_mib"] = max(one["rss_mib"], peak)
            rounds["scheduler and 2 executors"].append(one)
    finally:
        cluster.stop()

    equal = True
    for way, all_of in rounds.items():
        bad = next((one["error"] for one in all_of if "error" in one), None)
        row = {"way": way, "same_to_the_digit": False, "wall_s": None, "cpu_s": None, "rss_mib": None, "note": bad or ""}
        if bad:
            equal = False
        else:
            same = all(one["says"] == wanted for one in all_of)
            equal &= same
            row["same_to_the_digit"] = same
            for key in ("wall_s", "cpu_s", "rss_mib"):
                row[key] = figure([one[key] for one in all_of])
        results["rows"].append(row)
        print(way, {k: v["value"] if isinstance(v, dict) else v for k, v in row.items()})

    # One executor is killed as soon as it has left something that later tasks need.
    for _ in range(ROUNDS):
        cluster = Cluster()
        try:
            began = time.monotonic()
            with open("target/traces/killed", "w+") as out:
                child = subprocess.Popen([*ask, "--cluster", cluster.url], stdout=out, stderr=subprocess.PIPE, text=True)
                while not cluster.has_work(0) and child.poll() is None:
                    time.sleep(0.005)
                in_the_middle = child.poll() is None
                cluster.processes[1].send_signal(signal.SIGKILL)
                complaint = child.communicate(timeout=600)[1]
                out.seek(0)
                says = out.read()
            row = {
                "way": "executor killed in the middle",
                "in_the_middle": in_the_middle,
                "wall_s": figure([time.monotonic() - began]),
                "same_to_the_digit": says == wanted,
                "cpu_s": None,
                "rss_mib": None,
                "note": complaint.strip().splitlines()[-1] if child.returncode != 0 else "",
            }
            results["rows"].append(row)
            print(row)
        finally:
            cluster.stop()
    killed = [row for row in results["rows"] if "in_the_middle" in row]
    right = sum(row["in_the_middle"] and (row["same_to_the_digit"] or row["note"] != "") for row in killed)

    def figure_of(way, key):
        return next((row[key] for row in results["rows"] if row["way"] == way), None)

    figures = {
        "same_to_the_digit": figure([float(equal)]),
        "stalls_equal_injected": figure([float(stalls == "equal")]),
        "killed_same_or_told": share(right, len(killed)),
        "cluster_cpu_s": figure_of("scheduler and 2 executors", "cpu_s"),
        "cluster_wall_s": figure_of("scheduler and 2 executors", "wall_s"),
        "threads_2_wall_s": figure_of("threads, 2", "wall_s"),
        "threads_1_cpu_s": figure_of("threads, 1", "cpu_s"),
    }
    results["figures"] = {name: value for name, value in figures.items() if value}
    write("cluster", results)
    shutil.rmtree(trace, ignore_errors=True)


main()
