"""Trials of bench/probe-verdicts.sh: probe_verdicts.py GPUWHY FOLDER, where the folder holds what was built."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

from measure import GPUWHY, children, figure, made, share, write

BUILT = os.path.abspath(sys.argv[2])
TRIALS, SEED = int(os.environ.get("TRIALS", "10")), int(os.environ.get("SEED", "1"))
chance = random.Random(SEED)


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done


def judged(trace):
    """What is found in a recording, which is removed."""
    done = subprocess.run([GPUWHY, "diagnose", "--json", trace], capture_output=True, text=True)
    shutil.rmtree(trace, ignore_errors=True)
    return json.loads(done.stdout)["findings"]


def trial(folder, environment, how, n):
    """One recording, judged."""
    usual = chance.randint(3, 6)
    slow = usual + chance.randint(5, 14)
    # With many more, the simulator takes longer than the kernel is said to.
    blocks = chance.choice([6, 8, 12, 16])
    # A step takes some milliseconds more than its kernel here.
    begins = int(chance.uniform(4, 6) * 1e3 / (usual + 3))
    steps = begins + int(chance.uniform(1.5, 3) * 1e3 / (slow + 3))
    trace = os.path.join(folder, f"{how}{n}.trace")
    done = run(
        GPUWHY, "record", "-o", trace, "--inject-library", os.path.join(BUILT, "libgpuwhy_inject.so"), "--",
        os.path.join(BUILT, "gpuwhy-probe"), "run", "--no-cache", "--object", os.path.join(folder, "tail/probe.bpf.o"),
        "--", os.path.join(folder, "uneven"), how, str(steps), str(begins), str(usual), str(slow), str(blocks),
        env=environment,
    )
    from_ns = next((int(l.split()[-1]) for l in done.stdout.splitlines() if l.startswith("slow from")), None)
    findings = judged(trace)
    first = findings[0] if findings else {}
    of_class = [f for f in findings if f["class"] == "kernel_imbalance"]
    row = {
        "how": how, "usual_ms": usual, "slow_ms": slow, "blocks": blocks, "class": first.get("class"),
        "kernel_imbalance": len(of_class), "summary": first.get("summary"),
    }
    if of_class and how == "uneven":
        cause = next(c for c in of_class[0]["causes"] if c["class"] == "kernel_imbalance")
        row["excess_ms"] = cause["excess_ms"]
        row["onset_s"] = (of_class[0]["from_ns"] - from_ns) / 1e9
    print(f"{how}: {usual} ms to {slow} ms, {blocks} blocks: {row['summary']}", flush=True)
    return row


# The seed's 9.5: rank 1 of two is slow, since a task of its control group takes page faults and uses up the group's quota.
FAULTS = """
import mmap
while True:
    memory = mmap.mmap(-1, 64 << 20)
    for at in range(0, 64 << 20, 4096):
        memory[at] = 1
    memory.close()
"""
GROUP = "/sys/fs/cgroup/cpu/gpuwhy-probe-verdicts"


def put(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def joins():
    put(os.path.join(GROUP, "cgroup.procs"), os.getpid())


def ranks_of(pid):
    """The two programs below a process, in the order in which they were started."""
    found = []
    for child in children(pid):
        with open(f"/proc/{child}/comm") as file:
            found += [child] if file.read().strip() == "uneven" else ranks_of(child)
    return sorted(found)


def host_trial(folder, environment, n):
    """Two ranks with probes in their kernels; from some moment on the host is what makes the second one slow."""
    usual, begins, lasts = chance.randint(3, 6), chance.uniform(5, 8), chance.uniform(2, 4)
    # As many as would take longer than that if nothing were slow.
    steps = int((begins + lasts + 2) * 1e3 / usual)
    trace = os.path.join(folder, f"host{n}.trace")
    rank = " ".join([
        os.path.join(BUILT, "gpuwhy-probe"), "run --no-cache --object", os.path.join(folder, "tail/probe.bpf.o"), "--",
        os.path.join(folder, "uneven"), "none", str(steps), "0", str(usual), str(usual), "8",
    ])  # fmt: skip
    command = f"CUDA_VISIBLE_DEVICES=0 {rank} & sleep 0.2; CUDA_VISIBLE_DEVICES=1 {rank}; wait"
    recorder = subprocess.Popen(
        [GPUWHY, "record", "-o", trace, "--inject-library", os.path.join(BUILT, "libgpuwhy_inject.so"), "--", "sh", "-c", command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**environment, "GPUWHY_STANDIN_GPUS": "2"},
    )
    time.sleep(begins)
    both = ranks_of(recorder.pid)
    os.makedirs(GROUP, exist_ok=True)
    put(os.path.join(GROUP, "cpu.cfs_period_us"), 100_000)
    put(os.path.join(GROUP, "cpu.cfs_quota_us"), chance.randint(35, 55) * 1000)
    from_ns = time.monotonic_ns()
    put(os.path.join(GROUP, "cgroup.procs"), both[-1])
    task = subprocess.Popen([sys.executable, "-c", FAULTS], preexec_fn=joins)
    time.sleep(lasts)
    task.kill()
    task.wait()
    put("/sys/fs/cgroup/cpu/cgroup.procs", both[-1])
    said = recorder.communicate()[1]
    os.rmdir(GROUP)
    if recorder.returncode:
        sys.exit(f"two ranks: {said}")
    findings = judged(trace)
    first = findings[0] if findings else {}
    culprit = (first.get("culprit") or {}).get("cgroup")
    print(f"host: {usual} ms: {first.get('summary')}", flush=True)
    row = {
        "how": "host", "usual_ms": usual, "class": first.get("class"), "culprit": culprit, "task": task.pid,
        "kernel_imbalance": sum(f["class"] == "kernel_imbalance" for f in findings), "summary": first.get("summary"),
    }  # fmt: skip
    if first:
        row["onset_s"] = (first["from_ns"] - from_ns) / 1e9
    return row


def main():
    with tempfile.TemporaryDirectory(prefix="gpuwhy-", dir="/var/tmp") as folder:
        run(os.path.join(BUILT, "gpuwhy-testkit"), "gpu-links", os.path.join(folder, "lib"),
            os.path.join(BUILT, "libgpuwhy_standin.so"))
        run(os.path.join(BUILT, "gpuwhy-probe"), "new", "--tool", "tail", os.path.join(folder, "tail"))
        run("make", "-C", os.path.join(folder, "tail"))
        run("cc", "-O1", "-Icrates/wire/include", "bench/probes/uneven.c", "-o", os.path.join(folder, "uneven"), "-ldl")
        os.mkdir(os.path.join(folder, "machine"))
        environment = {
            **os.environ,
            "GPUWHY_STANDIN": os.path.join(folder, "machine"),
            "GPUWHY_STANDIN_EXECUTES": "1",
            "GPUWHY_INTERPOSE": os.path.join(BUILT, "libgpuwhy_interpose.so"),
            "GPUWHY_NVML": os.path.join(folder, "lib/libnvidia-ml.so.1"),
            "LD_LIBRARY_PATH": os.path.join(folder, "lib"),
        }
        rows = []
        for n in range(TRIALS):
            rows += [trial(folder, environment, how, n) for how in ("uneven", "more", "none")]
            rows.append(host_trial(folder, environment, n))
    of = {how: [row for row in rows if row["how"] == how] for how in ("uneven", "more", "none", "host")}
    right = [row for row in of["uneven"] if row["class"] == "kernel_imbalance"]
    told = [row for row in of["uneven"] if "excess_ms" in row]
    figures = {
        "imbalance_class_right": share(len(right), len(of["uneven"])),
        "imbalance_blamed_on_more_work": share(sum(row["kernel_imbalance"] > 0 for row in of["more"]), len(of["more"])),
        "imbalance_false_alarms": share(sum(row["kernel_imbalance"] > 0 for row in of["none"]), len(of["none"])),
    }
    throttled = [row for row in of["host"] if row["class"] == "cpu_throttling"]
    figures["host_class_right"] = share(len(throttled), len(of["host"]))
    figures["host_blamed_on_kernels"] = share(sum(row["kernel_imbalance"] > 0 for row in of["host"]), len(of["host"]))
    if told:
        off = [row["excess_ms"] / (row["slow_ms"] - row["usual_ms"]) for row in told]
        figures["imbalance_excess_of_true"] = figure(off)
        figures["imbalance_onset_s"] = figure([abs(row["onset_s"]) for row in told])
    write("probe-verdicts", {
        "made": made(f"TRIALS={TRIALS} SEED={SEED} make bench-probe-verdicts"), "figures": figures, "trials": rows,
    })
    for name, found in figures.items():
        print(f"{name}: {found['value']:.3f} {[round(x, 3) for x in found['spread']]} of {found['n']}")


main()
