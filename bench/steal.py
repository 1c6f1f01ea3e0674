"""The sweep of bench/steal.sh: steal.py GPUWHY FOLDER, where the folder holds what was built."""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from measure import made, write

PROBE = os.path.join(os.path.abspath(sys.argv[2]), "gpuwhy-probe")
BLOCKS, THREADS, SMS, AT_ONCE = 120, 64, 4, 2
# Bytes of shared memory of a block, so that so many are on an SM at once.
SHARED = 227 * 1024 // AT_ONCE - 1024
WORK = 300
PROLOGUES = [0, 10, 30, 100, 300, 1000]


def weights_of(where):
    """How often each block has the prologue."""
    if where == "all":
        return [1] * BLOCKS
    if where == "last":
        return [0] * (BLOCKS - 1) + [8]
    # A tenth of the blocks, some of them several times.
    weights, chance = [0] * BLOCKS, random.Random(7)
    for block in chance.sample(range(BLOCKS), BLOCKS // 10):
        weights[block] = chance.choice([1, 1, 2, 4, 8])
    return weights


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def simulated(weights, prologue, kernel, grid, *how):
    numbers = [f"file:{weights}", f"zeros:{BLOCKS * THREADS * 4}", f"u32:{prologue}", f"u32:{WORK}", f"u32:{BLOCKS}"]
    params = [word for number in numbers for word in ("--param", number)]
    return json.loads(run(
        PROBE, "simulate", "bench/probes/steal.ptx", "--kernel", kernel, "--grid", str(grid), "--block", str(THREADS),
        "--sms", str(SMS), "--shared", str(SHARED), "--launches", "2", "--json", *params, *how,
    ))


def main():
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpuwhy-") as folder:
        for tool in ("reversed", "longest"):
            run(PROBE, "new", "--tool", tool, os.path.join(folder, tool))
            run("make", "-C", os.path.join(folder, tool))
        object_of = lambda tool: ("--budget", "100000", "--object", os.path.join(folder, tool, "probe.bpf.o"))
        for where in ("last", "scattered", "all"):
            weights = os.path.join(folder, "weights")
            with open(weights, "wb") as out:
                out.write(struct.pack(f"<{BLOCKS}I", *weights_of(where)))
            for prologue in PROLOGUES:
                of = lambda kernel, grid, *how: simulated(weights, prologue, kernel, grid, *how)
                plain = of("uneven", BLOCKS, "--steal")
                row = {
                    "heavy": where, "prologue": prologue, "native": plain["as_it_is"]["cycles"],
                    "in_order": plain["stealing"]["cycles"],
                    "reversed": of("uneven", BLOCKS, "--steal", *object_of("reversed"))["stealing"]["cycles"],
                    "static": of("uneven_static", SMS * AT_ONCE)["as_it_is"]["cycles"],
                }
                longest = of("uneven", BLOCKS, "--steal", *object_of("longest"))
                # What measures the blocks costs cycles of its own: the same without stealing.
                row["longest"] = longest["stealing"]["cycles"]
                row["measured"] = longest["with_programs"]["cycles"]
                rows.append(row)
                print(row, flush=True)
    last = [row for row in rows if row["prologue"] == 1000]
    gain = lambda row, column: row["native"] / row[column] - 1
    number = lambda value: {"value": value, "spread": [value, value], "n": 1}
    figures = {
        f"{column}_{row['heavy']}": number(gain(row, column)) for row in last for column in ("in_order", "longest")
    }
    figures["reversed_last"] = number(next(gain(r, "reversed") for r in last if r["heavy"] == "last"))
    figures["in_order_worst"] = number(min(gain(row, "in_order") for row in rows))
    figures["over_static_last"] = number(next(r["static"] / r["in_order"] - 1 for r in last if r["heavy"] == "last"))
    figures["over_static_scattered"] = number(next(
        r["static"] / r["in_order"] - 1 for r in last if r["heavy"] == "scattered"
    ))
    write("steal", {"made": made("make bench-steal"), "figures": figures, "sweep": rows})
    for name, found in figures.items():
        print(f"{name}: {found['value']:.3f}")


main()
