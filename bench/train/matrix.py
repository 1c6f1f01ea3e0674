"""Records training loops that know nothing of gpuwhy, and compares what was recorded with their own ledgers; then what
the hooks cost: matrix.py GPUWHY. See bench/train.sh."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measure import GPUWHY, made, share  # noqa: E402

HERE = Path(__file__).resolve().parent
PYTHON = os.environ["TRAIN_PYTHON"]
PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "evaluation")
# Loops, the modules that they need, and how many ranks they have.
LOOPS = {
    "plain": ([], 1), "accumulate": ([], 1), "evaluation": ([], 1), "gan": ([], 1), "critics": ([], 1),
    "overflow": ([], 1), "lbfgs": ([], 1), "iterable": ([], 1), "forkserver": ([], 1), "compiled": ([], 1),
    "trainer": (["transformers", "accelerate"], 1), "lightning_automatic": (["lightning"], 1),
    "lightning_manual": (["lightning"], 1), "ddp": ([], 2), "fsdp2": ([], 2),
}


def table(trace, name):
    folder = trace / name
    return pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist() if folder.exists() else []


def recorded(trace):
    """Spans of each rank: name, begin and end, and how many bare marks of each name there were."""
    spans, steps = table(trace, "span"), {row["id"]: row for row in table(trace, "step")}
    tracks = {row["id"]: row for row in table(trace, "track")}
    owner = {}
    for row in steps.values():
        owner[row["thread"]] = row["rank"] or 0
    ranks = {}
    for span in spans:
        track = tracks[span["track"]]
        rank = owner.get(track["entity"])
        if rank is not None and span["dur"] is not None:
            ranks.setdefault(rank, []).append((span["name"], span["ts"], span["ts"] + span["dur"]))
    marks = {}
    for mark in table(trace, "mark"):
        marks[mark["name"]] = marks.get(mark["name"], 0) + 1
    collectives = table(trace, "collective")
    return ranks, marks, collectives


def overlap(a, b):
    return min(a[1], b[1]) - max(a[0], b[0])


def errors(own, seen):
    """For each entry of a ledger, how far the duration of the recorded one is off that lies most upon it, ns; and how
    many entries have none."""
    off, missing, first = [], 0, 0
    seen = sorted(seen)
    for start, end in sorted(own):
        while first < len(seen) and seen[first][1] < start:
            first += 1
        near = [span for span in seen[first : first + 8] if overlap(span, (start, end)) > 0]
        if not near:
            missing += 1
            continue
        span = max(near, key=lambda span: overlap(span, (start, end)))
        off.append(abs((span[1] - span[0]) - (end - start)))
    return off, missing


def one(loop, folder, hooks=True):
    """Records one loop; what it and we say of each rank."""
    trace, ledger = folder / "run.trace", folder / "ledger"
    ranks = LOOPS[loop][1]
    script = [str(HERE / "loops.py"), loop]
    command = [PYTHON, *script]
    if ranks > 1:
        command = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "29513", *script]
    shutil.rmtree(trace, ignore_errors=True)
    environment = {**os.environ, "LEDGER": str(ledger), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([GPUWHY, "record", "-o", str(trace), "--", *command],
                          env=environment, capture_output=True, text=True, timeout=420)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    seen, marks, collectives = recorded(trace)
    result = {"ranks": [], "marks": marks, "collectives": len(collectives)}
    for rank in range(ranks):
        lines = [line.split() for line in open(f"{ledger}.{rank}")]
        spans = seen.get(rank, [])
        row = {"rank": rank, "steps": sum(line[0] == "train" for line in lines),
               "recorded": sum(span[0] == "train" for span in spans), "phases": {}}
        for phase in PHASES:
            own = [(int(start), int(end)) for name, start, end in lines if name == phase]
            if own:
                off, missing = errors(own, [span[1:] for span in spans if span[0] == phase])
                row["phases"][phase] = {"n": len(own), "missing": missing, "recorded": sum(s[0] == phase for s in spans),
                                        "off_us": statistics.median(off) / 1e3 if off else None}
        result["ranks"].append(row)
    return result


def lacks(modules):
    code = "import importlib.util,sys; print(*[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None])"
    return subprocess.run([PYTHON, "-c", code, *modules], capture_output=True, text=True).stdout.split()


def loops(results):
    wanted = os.environ.get("LOOPS", " ".join(LOOPS)).split()
    exact = phases = within = 0
    total = 0
    for loop in wanted:
        missing = lacks(LOOPS[loop][0])
        if missing:
            print(f"{loop}: skipped: {' and '.join(missing)} missing")
            results["rows"].append({"loop": loop, "note": f"skipped: no {' and '.join(missing)}"})
            continue
        with tempfile.TemporaryDirectory() as folder:
            said = one(loop, Path(folder))
        if "error" in said:
            print(f"{loop}: failed: {said['error']}")
            results["rows"].append({"loop": loop, "note": f"failed: {said['error'][:120]}"})
            total += 1
            continue
        for rank in said["ranks"]:
            total += 1
            exact += rank["steps"] == rank["recorded"]
            row = {"loop": loop + (f", rank {rank['rank']}" if len(said["ranks"]) > 1 else ""),
                   "steps": rank["steps"], "recorded": rank["recorded"], "note": ""}
            for phase, of in rank["phases"].items():
                phases += 1
                good = not of["missing"] and of["off_us"] is not None and of["off_us"] < 100
                within += good
                row[phase + "_us"] = of["off_us"]
                if of["missing"]:
                    row["note"] += f"{of['missing']} of {of['n']} {phase} not seen; "
            results["rows"].append(row)
            print(loop, json.dumps(rank), "marks", json.dumps({k: v for k, v in said["marks"].items()}), "collectives", said["collectives"], flush=True)
    if total:
        results["figures"]["loops_steps_exact"] = share(exact, total)
    if phases:
        results["figures"]["phases_within_100us"] = share(within, phases)


COST = r"""
import json, os, sys, time, torch
sys.path.insert(0, os.environ["HERE"])
import loops
try:
    from gpuwhy import _torch
except ImportError:
    sys.exit("gpuwhy is not in this process")
torch.set_num_threads(1)
model = loops.net()
optimizer = torch.optim.Adam(model.parameters())
rows = loops.DataLoader(loops.Rows(64), batch_size=loops.BATCH)
def forever():
    while True:
        yield from rows
batches = forever()
def block(steps):
    began = time.perf_counter_ns()
    for _ in range(steps):
        x, y = next(batches)
        loss = loops.loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter_ns() - began) / steps
block(200)
rounds = []
for n in range(int(os.environ.get("ROUNDS", 40))):
    order = [("on", True), ("off", False), ("off_again", False)]
    row = {}
    for name, on in order[n % 3:] + order[:n % 3]:
        _torch.switch(on)
        row[name] = block(50)
    rounds.append(row)
json.dump(rounds, open(os.environ["OUT"], "w"))
"""


def spread(values):
    """Median with the 5 % and 95 % of medians of resampled rounds."""
    import random

    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return {"value": statistics.median(values), "spread": [medians[25], medians[974]], "n": len(values)}


def cost(results):
    """A step with the hooks and without, in blocks that take turns in one process, and without against without."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/rounds.json"
        done = subprocess.run([GPUWHY, "record", "-o", f"{folder}/run.trace", "--", PYTHON, "-c", COST],
                              env={**os.environ, "HERE": str(HERE), "OUT": out}, capture_output=True, text=True)
        if done.returncode:
            print("cost: failed:", done.stderr.strip()[-300:])
            return
        rounds = json.load(open(out))
    figures = results["figures"]
    figures["train_step_ratio"] = spread([row["on"] / row["off"] for row in rounds])
    figures["train_step_ratio_a_a"] = spread([row["off_again"] / row["off"] for row in rounds])
    figures["train_step_added_us"] = spread([(row["on"] - row["off"]) / 1e3 for row in rounds])
    figures["train_step_us"] = spread([row["off"] / 1e3 for row in rounds])
    for key in ("train_step_ratio", "train_step_ratio_a_a", "train_step_added_us", "train_step_us"):
        print(key, json.dumps(figures[key]))


def startup(results):
    """CPU time of `python -c pass`, with the wheel installed and no recording, and with neither, taking turns."""
    import resource
    import venv

    with tempfile.TemporaryDirectory() as folder:
        pythons = {}
        for name in ("without", "without_again", "with"):
            venv.create(f"{folder}/{name}", symlinks=True)
            pythons[name] = f"{folder}/{name}/bin/python"
        packages = next(Path(f"{folder}/with/lib").glob("python3*")) / "site-packages"
        wheel = next(Path(GPUWHY).parent.glob("gpuwhy-*.whl"))
        shutil.unpack_archive(str(wheel), packages, "zip")
        modules = {}
        times = {name: [] for name in pythons}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWHY")}
        for n in range(int(os.environ.get("STARTS", 200))):
            names = list(pythons)
            for name in names[n % 3:] + names[:n % 3]:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([pythons[name], "-c", "pass"], env=environment, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times[name].append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
        for name in pythons:
            modules[name] = subprocess.run([pythons[name], "-c", "import sys; print(len(sys.modules))"],
                                           env=environment, capture_output=True, text=True).stdout.strip()
    figures = results["figures"]
    less = lambda a, b: spread([x - y for x, y in zip(times[a], times[b])])
    figures["python_startup_ms"] = less("with", "without")
    figures["python_startup_ms_a_a"] = less("without_again", "without")
    figures["python_startup_modules"] = {"value": int(modules["with"]) - int(modules["without"]), "n": 1}
    for key in ("python_startup_ms", "python_startup_ms_a_a", "python_startup_modules"):
        print(key, json.dumps(figures[key]))


def main():
    os.makedirs("target/traces", exist_ok=True)
    results = {"made": made("make bench-train"), "figures": {}, "rows": []}
    version = "import torch, platform; print(f'torch {torch.__version__}, Python {platform.python_version()}')"
    results["made"]["software"] = subprocess.run([PYTHON, "-c", version], capture_output=True, text=True).stdout.strip()
    sections = os.environ.get("SECTIONS", "loops cost startup").split()
    for section in sections:
        {"loops": loops, "cost": cost, "startup": startup}[section](results)
    path = os.environ.get("RESULT", "bench/results/train.json")
    with open(path + ".tmp", "w") as out:
        json.dump(results, out, indent=2)
        out.write("\n")
    os.replace(path + ".tmp", path)


main()
