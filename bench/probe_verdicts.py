"""Trials of bench/probe-verdicts.sh: probe_verdicts.py GPUWHY FOLDER, where the folder holds what was built."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

from measure import GPUWHY, figure, made, share, write

BUILT = os.path.abspath(sys.argv[2])
TRIALS, SEED = int(os.environ.get("TRIALS", "10")), int(os.environ.get("SEED", "1"))
chance = random.Random(SEED)


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done


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
    judged = subprocess.run([GPUWHY, "diagnose", "--json", trace], capture_output=True, text=True)
    findings = json.loads(judged.stdout)["findings"]
    shutil.rmtree(trace, ignore_errors=True)
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
        rows = [trial(folder, environment, how, n) for n in range(TRIALS) for how in ("uneven", "more", "none")]
    of = {how: [row for row in rows if row["how"] == how] for how in ("uneven", "more", "none")}
    right = [row for row in of["uneven"] if row["class"] == "kernel_imbalance"]
    told = [row for row in of["uneven"] if "excess_ms" in row]
    figures = {
        "imbalance_class_right": share(len(right), len(of["uneven"])),
        "imbalance_blamed_on_more_work": share(sum(row["kernel_imbalance"] > 0 for row in of["more"]), len(of["more"])),
        "imbalance_false_alarms": share(sum(row["kernel_imbalance"] > 0 for row in of["none"]), len(of["none"])),
    }
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
