"""Measures `gpuwhy variability` and `gpuwhy import` on generated traces, and peers on the same.

Each command is a process of its own; CPU seconds (user and system) and peak memory are what the kernel
says of it when it has ended. Rounds of all commands take turns, so that noise hits them alike.
"""

import os
import shutil
import sys

from measure import DATA, GPUWHY, check_stalls, figure, generate, made, run, write

ROUNDS = int(os.environ.get("ROUNDS", "3"))
PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
BIG = int(os.environ.get("BIG_KERNELS", "28000000"))
HUGE = int(os.environ.get("HUGE_KERNELS", "50000000"))
OVERLAP = ("duckdb", "polars", "pandas")


def measured(rounds):
    """Figures of the rounds of one command; the first complaint if one failed."""
    for one in rounds:
        if "error" in one:
            return {"wall_s": None, "cpu_s": None, "rss_mib": None, "note": one["error"]}
    return {"note": "", **{key: figure([one[key] for one in rounds]) for key in ("wall_s", "cpu_s", "rss_mib")}}


def overlap(peer, path):
    """The same question, asked of a peer."""
    return [sys.executable, os.path.join(PEERS, f"{peer}_overlap.py"), path]


def main():
    os.makedirs(DATA, exist_ok=True)
    os.makedirs("target/traces", exist_ok=True)
    results = {"made": made("make bench-traces"), "figures": {}, "rows": []}

    def put(task, tool, rounds, note=""):
        row = {"task": task, "tool": tool, **measured(rounds)}
        row["note"] = ", ".join(filter(None, (note, row["note"])))
        results["rows"].append(row)
        took = row["cpu_s"] and f"{row['cpu_s']['value']:8.2f} CPU s {row['rss_mib']['value']:8.0f} MiB"
        print(f"{task:<28} {tool:<26} {took or ''} {row['note']}", flush=True)
        return row

    def headline(name, row, key):
        if row[key]:
            results["figures"][name] = row[key]

    # One million kernels: ours from the database as it is, and the import; peers on the same question.
    path, label = generate("1m.sqlite", "--kernels", "1000000", "--copies", "100000")
    commands = {
        ("analyse 1 M", "gpuwhy variability"): [GPUWHY, "variability", path, "--interval", "1s", "--json"],
        ("analyse 1 M", "gpuwhy, 1 thread"): [GPUWHY, "variability", path, "--interval", "1s", "--json", "--threads", "1"],
        ("import 1 M", "gpuwhy import"): [GPUWHY, "import", path, "-o", f"{DATA}/1m.trace", "--force"],
    }
    for peer in OVERLAP:
        commands[("analyse 1 M", peer)] = overlap(peer, path)
    rounds = {key: [] for key in commands}
    for _ in range(ROUNDS):
        for key, command in commands.items():
            rounds[key].append(run(command))
    for (task, tool), all_of in rounds.items():
        note = ""
        if tool.startswith("gpuwhy") and task.startswith("analyse") and "says" in all_of[0]:
            note = "stalls: " + check_stalls(all_of[0]["says"], label)
        row = put(task, tool, all_of, note)
        key = {"gpuwhy variability": "analyse_1m", "gpuwhy import": "import_1m"}.get(tool)
        if key:
            headline(f"{key}_cpu_s", row, "cpu_s")
            headline(f"{key}_rss_mib", row, "rss_mib")
        elif "gpuwhy" not in tool:
            headline(f"analyse_1m_cpu_s_{tool}", row, "cpu_s")
            headline(f"analyse_1m_rss_mib_{tool}", row, "rss_mib")

    # The notebook of examples/ on a trace of ours, with the same tools.
    os.environ["TRACE"] = f"{DATA}/1m.trace"
    one = run([sys.executable, "bench/notebook.py", "examples/trace.ipynb"])
    put("examples/trace.ipynb", "pyarrow, duckdb, polars", [one])

    # The published pipeline's size, over shards and workers: the same answer every time.
    path, label = generate("paper.sqlite", "--kernels", "842054", "--copies", "107045")
    trace = f"{DATA}/paper.trace"
    run([GPUWHY, "import", path, "-o", trace, "--force"])
    answers = set()
    for shards in ("1", "7", "64"):
        for threads in ("1", "2"):
            one = run([GPUWHY, "variability", trace, "--interval", "1s", "--json", "--shards", shards, "--threads", threads])
            note = ""
            if "says" in one:
                answers.add(one["says"])
                note = "stalls: " + check_stalls(one["says"], label)
            put(f"shards {shards}, workers {threads}", "gpuwhy variability T.trace", [one], note)
    results["figures"]["answers_over_shards_and_workers"] = figure([len(answers)])

    # The curve over sizes.
    for millions in (1, 3, 10):
        path, _ = generate(f"{millions}m.sqlite", "--kernels", f"{millions}000000", "--copies", f"{millions}00000")
        for threads in ("1", "2"):
            one = run([GPUWHY, "variability", path, "--interval", "1s", "--json", "--threads", threads])
            put(f"analyse {millions} M, {threads} threads", "gpuwhy variability", [one])
    path, label = generate("big.sqlite", "--kernels", str(BIG), "--copies", str(BIG // 10))
    one = run([GPUWHY, "variability", path, "--interval", "1s", "--json"])
    note = f"{label['bytes'] / 1e9:.2f} GB; stalls: " + (check_stalls(one["says"], label) if "says" in one else "")
    row = put("analyse big", "gpuwhy variability", [one], note)
    headline("report_3g5_wall_s", row, "wall_s")
    headline("report_3g5_rss_mib", row, "rss_mib")
    for peer in OVERLAP:
        row = put("analyse big", peer, [run(overlap(peer, path), memory_gib=18)], f"{label['bytes'] / 1e9:.2f} GB")
        headline(f"report_3g5_wall_s_{peer}", row, "wall_s")
        headline(f"report_3g5_rss_mib_{peer}", row, "rss_mib")
    os.unlink(path)
    path, label = generate("huge.sqlite", "--kernels", str(HUGE), "--copies", str(HUGE // 10))
    one = run([GPUWHY, "variability", path, "--interval", "1s", "--json"])
    note = f"{label['bytes'] / 1e9:.2f} GB; stalls: " + (check_stalls(one["says"], label) if "says" in one else "")
    put(f"analyse {HUGE // 10**6} M, 2 threads", "gpuwhy variability", [one], note)
    os.unlink(path)

    # The PyTorch profiler's JSON.
    path, label = generate("kineto.json", "--kineto", "--kernels", "390000", "--copies", "39000")
    rounds = {"gpuwhy import": [], "HTA": []}
    for _ in range(ROUNDS):
        rounds["gpuwhy import"].append(run([GPUWHY, "import", path, "-o", f"{DATA}/kineto.trace", "--force"]))
    rounds["HTA"].append(run([sys.executable, os.path.join(PEERS, "hta_load.py"), path]))
    for tool, all_of in rounds.items():
        row = put("kineto JSON", tool, all_of, f"{label['bytes'] / 1e6:.0f} MB")
        suffix = "" if tool == "gpuwhy import" else "_hta"
        headline(f"kineto_377mb_cpu_s{suffix}", row, "cpu_s")
        headline(f"kineto_377mb_rss_mib{suffix}", row, "rss_mib")

    write("traces", results)
    for name in ("1m.trace", "paper.trace", "kineto.trace"):
        shutil.rmtree(os.path.join(DATA, name), ignore_errors=True)


main()
