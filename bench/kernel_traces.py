"""Measures how fast kernel traces are imported, and how fast the reference readers print them.

Each command is a process of its own; CPU seconds (user and system) and peak memory are what the kernel says of it when
it has ended, so events/s are those of one core. Rounds of all commands take turns, so that noise hits them alike.
"""

import gzip
import json
import os
import shutil
import subprocess

from measure import DATA, GPUWHY, figure, made, run, write

# Events of the generated trace, up to how many peers read it too, and how long windows are looked at.
LARGE = int(os.environ.get("LARGE", "10000000"))
PEERS = int(os.environ.get("PEERS", "1000000"))
WINDOWS_FOR = os.environ.get("WINDOWS_FOR", "2m")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TRACES = os.path.join(os.environ.get("GPUWHY_TRACES", "../shared/data"), "kernel")
# Traces of each format, and what reads them besides us: the command, before the path.
FORMATS = {
    "ctf": (
        ["ctf/many-threads", "ctf/dpdk_service_cores", "ctf/bug446190"],
        {
            "babeltrace2, text": ["babeltrace2"],
            "babeltrace2, no output": ["babeltrace2", "--output-format=dummy"],
        },
    ),
    # One that is packed with gzip is unpacked first, outside of what is measured.
    "dat": (
        ["tracecmd/amdgpu_patched.dat.gz", "tracecmd/sched_load_trace.dat"],
        {"trace-cmd report": ["trace-cmd", "report", "-i"], "trace-cmd report, raw": ["trace-cmd", "report", "-R", "-i"]},
    ),
    "perf": (
        ["perf/perf.data", "perf/before.data"],
        {"perf script": ["perf", "script", "--ns", "-i"]},
    ),
    # No peer reads the text of a tracer into a table.
    "text": (["tracecmd/amdgpu_report.txt.gz"], {}),
}


def unpacked(path):
    """The path of a trace, unpacked where it is gzipped."""
    if not path.endswith(".gz"):
        return path
    plain = f"{DATA}/{os.path.basename(path)[:-3]}"
    with gzip.open(path) as source, open(plain, "wb") as target:
        shutil.copyfileobj(source, target)
    return plain


def large(results):
    """A generated trace: how long its import takes, with how much memory and disk, and how long it takes to see a window of it."""
    ctf, trace = f"{DATA}/large.ctf", f"{DATA}/large.trace"
    shutil.rmtree(ctf, ignore_errors=True)
    told = subprocess.run(
        [GPUWHY, "bench", "trace-data", "--ctf", str(LARGE), "-o", ctf], check=True, capture_output=True, text=True
    ).stdout
    label = json.loads(told)
    shutil.rmtree(trace, ignore_errors=True)
    taken = run([GPUWHY, "import", ctf, "-o", trace, "--force", "--json"], timeout=3600)
    if "error" in taken:
        raise SystemExit(taken["error"])
    size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(trace) for name in names)
    figures = results["figures"]
    events = label["events"]
    figures["large_events"] = figure([events])
    figures["large_import_s"] = figure([taken["wall_s"]])
    figures["large_events_per_s"] = figure([events / taken["cpu_s"]])
    figures["rss_mib"] = figure([taken["rss_mib"]])
    figures["large_bytes_per_event"] = figure([size / events])
    figures["large_ctf_bytes_per_event"] = figure([label["bytes"] / events])
    # Processes of their own, which open the trace anew: as many columns as pages draw, and twice as many.
    for columns, more in ((1000, ""), (2000, "_2000")):
        seen = run([GPUWHY, "bench", "windows", trace, "--for", WINDOWS_FOR, "--columns", str(columns)], timeout=3600)
        if "error" in seen:
            raise SystemExit(seen["error"])
        windows = json.loads(seen["says"])
        figures["window_p50_ms" + more] = windows["ms"]
        figures["window_ms" + more] = {"value": windows["p99_ms"], "spread": windows["ms"]["spread"], "n": windows["windows"]}
    print({name: one["value"] for name, one in figures.items() if "large" in name or "window" in name or name == "rss_mib"})
    if shutil.which("babeltrace2") and events <= PEERS:
        for tool, command in FORMATS["ctf"][1].items():
            peer = run([*command, ctf], timeout=3600)
            row = {"trace": "large.ctf", "tool": tool, "events": events, "events_per_s": None, "note": peer.get("error", "")}
            if "error" not in peer:
                row |= {"events_per_s": figure([events / peer["cpu_s"]]), "rss_mib": figure([peer["rss_mib"]])}
            results["rows"].append(row)
    shutil.rmtree(ctf, ignore_errors=True)
    shutil.rmtree(trace, ignore_errors=True)


def main():
    os.makedirs(DATA, exist_ok=True)
    os.makedirs("target/traces", exist_ok=True)
    results = {"made": made("make bench-kernel-traces"), "figures": {}, "rows": []}
    trace = f"{DATA}/kernel.trace"
    for name, (paths, peers) in FORMATS.items():
        for path in (os.path.join(TRACES, path) for path in paths):
            if not os.path.exists(path):
                print(f"skipped: there is no {path}")
                continue
            is_first, path = path.endswith(paths[0]), unpacked(path)
            commands = {"gpuwhy import": [GPUWHY, "import", path, "-o", trace, "--force", "--json"]}
            for peer, command in peers.items():
                if shutil.which(command[0]):
                    commands[peer] = [*command, path]
                else:
                    print(f"skipped: there is no {command[0]}")
            rounds = {tool: [] for tool in commands}
            for _ in range(ROUNDS):
                for tool, command in commands.items():
                    # To remove what the round before has left is no part of an import.
                    shutil.rmtree(trace, ignore_errors=True)
                    rounds[tool].append(run(command))
            events = json.loads(rounds["gpuwhy import"][0]["says"])["about"]["events"]
            for tool, all_of in rounds.items():
                row = {"trace": os.path.basename(path), "tool": tool, "events": events, "events_per_s": None}
                complaint = next((one["error"] for one in all_of if "error" in one), "")
                if not complaint:
                    row["events_per_s"] = figure([events / one["cpu_s"] for one in all_of])
                    row["rss_mib"] = figure([one["rss_mib"] for one in all_of])
                row["note"] = complaint
                results["rows"].append(row)
                speed = row["events_per_s"] and f"{row['events_per_s']['value'] / 1e6:6.2f} M events/s/core"
                print(f"{row['trace']:<22} {tool:<24} {events:>9} {speed or complaint}", flush=True)
                # The headline is that of the first trace, the largest.
                if is_first and not complaint:
                    key = f"{name}_events_per_s" + ("" if tool == "gpuwhy import" else "_" + tool.replace(", ", "_").replace(" ", "_"))
                    results["figures"][key] = row["events_per_s"]
                    if tool == "gpuwhy import":
                        results["figures"][f"{name}_rss_mib"] = row["rss_mib"]
    large(results)
    write("kernel-traces", results)
    shutil.rmtree(trace, ignore_errors=True)


main()
