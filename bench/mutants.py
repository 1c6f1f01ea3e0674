"""A sample of the mutants of each crate, drawn by a seed, and whether the crate's own tests catch them.

All mutants are dealt out into shards of about ten, each of which holds some of every file, and shards are tried in an order
that the seed says until they hold as many as are wanted. A shard that was tried is not tried again while its crate is the
same, so that a run can be cut short at any time; one that was cut short counts nothing. A mutant that never ends counts as
caught, one that does not compile not at all.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

from measure import made, share, write

CRATES = [word for word in os.environ.get("ONLY", "").split(",") if word] or [
    "derive", "diagnose", "engine", "formats", "wire", "store",
]
PER_CRATE = int(os.environ.get("PER_CRATE", "60"))
SEED = int(os.environ.get("SEED", "1"))
SECONDS = float(os.environ.get("SECONDS_A_CRATE", "3600"))
IN_A_SHARD = 10
RESULT = "bench/results/mutants.json"
OUTCOMES = {
    "CaughtMutant": "caught", "MissedMutant": "missed", "Timeout": "timeout", "Unviable": "unviable",
}
# Each shard is tried in a copy of the tree; what is built of it is kept for the next.
BUILT = os.environ.get("CARGO_TARGET_DIR") or os.path.abspath("target/mutants")
# The copy lies elsewhere, and some tests read the traces beside the tree.
TRACES = os.path.abspath(os.environ.get("GPUWHY_TRACES", "../shared/data"))
# That it is interrupted when the time is up needs no backtrace.
ENVIRONMENT = {**os.environ, "CARGO_TARGET_DIR": BUILT, "RUST_BACKTRACE": "0"}
if os.path.isdir(TRACES):
    ENVIRONMENT["GPUWHY_TRACES"] = TRACES


def shard(crate, at, of):
    """What says which mutants are meant. A pattern of names would not do: cargo-mutants 27.1.0 tries those that delete a
    field whatever the pattern."""
    return ["--package", f"gpuwhy-{crate}", "--shard", f"{at}/{of}", "--sharding", "round-robin"]


def mutants_of(crate):
    """How many mutants a crate has."""
    command = ["cargo", "mutants", "--list", "--json", "--package", f"gpuwhy-{crate}"]
    return len(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def outcomes(folder):
    """What became of each mutant that was tried: its name and the outcome."""
    try:
        with open(os.path.join(folder, "mutants.out", "outcomes.json")) as file:
            tried = json.load(file)["outcomes"]
    except FileNotFoundError:
        return {}
    of_mutants = (one for one in tried if isinstance(one["scenario"], dict))
    return {one["scenario"]["Mutant"]["name"]: OUTCOMES[one["summary"]] for one in of_mutants
            if one["summary"] in OUTCOMES}


def try_out(which, seconds):
    """Tries the mutants of a shard; `None` if they took longer."""
    folder = tempfile.mkdtemp(prefix="gpuwhy-mutants-", dir="/var/tmp")
    # Tests of the library and of the crate alone, and a minute for what takes seconds.
    command = ["cargo", "mutants", *which, "--output", folder, "--no-shuffle", "--minimum-test-timeout", "60",
               "--colors", "never", "--cap-lints", "true"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=ENVIRONMENT)
    is_whole = True
    try:
        child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        is_whole = False
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGINT)
            child.wait()
    done = outcomes(folder)
    if is_whole and not done:
        raise SystemExit(f"cargo mutants ended with {child.returncode}; see {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    return done if is_whole else None


def tree(crate):
    """The crate's content, by git."""
    command = ["git", "rev-parse", "--short=12", f"HEAD:crates/{crate}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def summed(row):
    """A crate's row, with how many of each outcome, and the survivors."""
    of = lambda outcome: sum(1 for said in row["tried"].values() if said == outcome)  # noqa: E731
    caught, missed = of("caught") + of("timeout"), of("missed")
    low_high = share(caught, caught + missed) if caught + missed else None
    return {
        **row, "viable": caught + missed, "caught": caught, "timeout": of("timeout"), "missed": missed,
        "unviable": of("unviable"), "caught_share": low_high and round(low_high["value"], 3),
        "interval": low_high and [round(edge, 3) for edge in low_high["spread"]],
        "survivors": sorted(name for name, said in row["tried"].items() if said == "missed"),
    }


def keep(rows):
    """Writes what is known so far."""
    listed = [rows[name] for name in sorted(rows)]
    caught, viable = sum(one["caught"] for one in listed), sum(one["viable"] for one in listed)
    figures = {f"caught_share_{one['crate']}": share(one["caught"], one["viable"]) for one in listed if one["viable"]}
    command = f"make bench-mutants PER_CRATE={PER_CRATE} SEED={SEED}"
    write("mutants", {"made": made(command), "figures": {"caught_share": share(caught, max(viable, 1)), **figures},
                      "crates": listed})


def main():
    try:
        with open(RESULT) as file:
            rows = {row["crate"]: row for row in json.load(file)["crates"]}
    except FileNotFoundError:
        rows = {}
    for crate in CRATES:
        mutants = mutants_of(crate)
        of = max(1, mutants // IN_A_SHARD)
        row = rows.get(crate, {})
        is_same = row.get("tree") == tree(crate) and row.get("shards_of") == of
        tried, shards = (row["tried"], row["shards"]) if is_same else ({}, [])
        until = time.monotonic() + SECONDS
        for at in random.Random(f"{SEED} {crate}").sample(range(of), of):
            left = until - time.monotonic()
            if len(tried) >= PER_CRATE or at in shards:
                continue
            print(f"{crate}: {len(tried)} of {PER_CRATE} mutants tried, of {mutants}", flush=True)
            done = try_out(shard(crate, at, of), left) if left > 0 else None
            if done is None:
                print(f"{crate}: the time is up")
                break
            tried, shards = {**tried, **done}, [*shards, at]
            rows[crate] = summed({
                "crate": crate, "tree": tree(crate), "mutants": mutants, "shards_of": of, "shards": shards,
                "tried": tried,
            })
            keep(rows)
            print(f"{crate}: {rows[crate]['caught']} of {rows[crate]['viable']} caught", flush=True)


main()
