"""A sample of the mutants of each crate, drawn by a seed, and whether the crate's own tests catch them.

A mutant that was tried is not tried again while its crate is the same, so that a run can be cut short at any time. A
mutant that never ends counts as caught, one that does not compile not at all.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile

from measure import made, share, write

CRATES = [word for word in os.environ.get("ONLY", "").split(",") if word] or [
    "derive", "diagnose", "engine", "formats", "wire", "store",
]
PER_CRATE = int(os.environ.get("PER_CRATE", "60"))
SEED = int(os.environ.get("SEED", "1"))
SECONDS = float(os.environ.get("SECONDS_A_CRATE", "3600"))
RESULT = "bench/results/mutants.json"
OUTCOMES = {
    "CaughtMutant": "caught", "MissedMutant": "missed", "Timeout": "timeout", "Unviable": "unviable",
}


def mutants_of(crate):
    """The names of all mutants of a crate."""
    command = ["cargo", "mutants", "--list", "--json", "--package", f"gpuwhy-{crate}"]
    return [one["name"] for one in json.loads(subprocess.run(command, check=True, capture_output=True).stdout)]


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


def try_out(crate, names):
    """Tries mutants until all are done or the time is up."""
    folder = tempfile.mkdtemp(prefix="gpuwhy-mutants-", dir="/var/tmp")
    # Tests of the library and of the crate alone, and a minute for what takes seconds.
    command = ["cargo", "mutants", "--package", f"gpuwhy-{crate}", "--output", folder, "--no-shuffle",
               "--minimum-test-timeout", "60", "--colors", "never", "--cap-lints", "true"]
    command += ["--re", "|".join(f"^{re.escape(name)}$" for name in names)]
    # That it is interrupted when the time is up needs no backtrace.
    quiet = {**os.environ, "RUST_BACKTRACE": "0"}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=quiet)
    try:
        child.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{crate}: the time is up")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGINT)
            child.wait()
    done = outcomes(folder)
    if not done and child.returncode not in (0, None):
        raise SystemExit(f"{crate}: cargo mutants ended with {child.returncode}; see {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    return done


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


def main():
    try:
        with open(RESULT) as file:
            rows = {row["crate"]: row for row in json.load(file)["crates"]}
    except FileNotFoundError:
        rows = {}
    for crate in CRATES:
        names = mutants_of(crate)
        sample = random.Random(f"{SEED} {crate}").sample(sorted(names), min(PER_CRATE, len(names)))
        row = rows.get(crate, {})
        tried = row["tried"] if row.get("tree") == tree(crate) else {}
        left = [name for name in sample if name not in tried]
        print(f"{crate}: {len(names)} mutants, {len(left)} of a sample of {len(sample)} to be tried", flush=True)
        if left:
            tried = {**tried, **try_out(crate, left)}
        rows[crate] = summed({"crate": crate, "tree": tree(crate), "mutants": len(names), "tried": tried})
        print(f"{crate}: {rows[crate]['caught']} of {rows[crate]['viable']} caught", flush=True)
        listed = [rows[name] for name in sorted(rows)]
        caught, viable = sum(one["caught"] for one in listed), sum(one["viable"] for one in listed)
        figures = {f"caught_share_{one['crate']}": share(one["caught"], one["viable"]) for one in listed if one["viable"]}
        command = f"make bench-mutants PER_CRATE={PER_CRATE} SEED={SEED}"
        write("mutants", {"made": made(command), "figures": {"caught_share": share(caught, max(viable, 1)), **figures},
                          "crates": listed})


main()
