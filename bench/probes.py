"""The result of crates/gpubpf/tests/it/corpus.rs in the form of results: probes.py GPUWHY RAW COMMAND."""

import json
import os
import sys

from measure import made, write

PATH = "bench/results/probes.json"
raw = json.load(open(sys.argv[2]))
# What other measurements of the same file found is kept.
old = json.load(open(PATH)) if os.path.exists(PATH) else {"figures": {}}
LOADS = ("entry_count", "return_stamp", "load_count")
rows = sorted(raw.values(), key=lambda row: (row["module"], row["native"]["registers"]))
big = [row for row in rows if row["native"]["registers"] >= 30]


def count(value, n):
    return {"value": value, "spread": [value, value], "n": n}


def more(row, probe, key="registers"):
    return row[probe][key] - row["native"][key]


def spilled(row, probe):
    return more(row, probe, "spill_stores") + more(row, probe, "spill_loads")


figures = {
    "kernels": count(len(rows), len(rows)),
    "kernels_ge30": count(len(big), len(rows)),
    "kernels_ge128": count(sum(row["native"]["registers"] >= 128 for row in rows), len(rows)),
    "kernels_wgmma": count(sum(row["wgmma"] for row in rows), len(rows)),
    "unchanged_registers": count(sum(more(row, "entry_count") == 0 for row in big), len(big)),
    "new_spills": count(sum(spilled(row, p) > 0 for row in rows for p in ("entry_count", "return_stamp")), 2 * len(rows)),
    "empty_identical_sass": count(sum(row["nothing"]["identical"] for row in rows), len(rows)),
    "serialised_by_a_probe": count(
        sum(row[p]["serialised"] != row["native"]["serialised"] for row in rows for p in LOADS), 3 * len(rows)),
}
figures = {**old["figures"], **figures}

probes = []
for probe in LOADS:
    grown = [more(row, probe) for row in big]
    probes.append({
        "probe": probe,
        "kernels": len(big),
        "unchanged": sum(g <= 0 for g in grown),
        "mean_more": round(sum(grown) / len(grown), 2),
        "max_more": max(grown),
        "spills": sum(spilled(row, probe) > 0 for row in rows),
        "waits": sum(row[probe]["waits"] != row["native"]["waits"] for row in rows),
        "instructions": round(sum(more(row, probe, "instructions") / max(row[probe]["sites"], 1) for row in rows) / len(rows), 1),
    })
exceptions = [
    {
        "kernel": name.split("/", 1)[1][:70],
        "module": row["module"],
        "registers": row["native"]["registers"],
        **{probe: more(row, probe) for probe in LOADS},
        "load_spill_bytes": spilled(row, "load_count"),
    }
    for name, row in sorted(raw.items())
    if row["native"]["registers"] >= 30 and (more(row, "entry_count") or spilled(row, "load_count") > 0)
]
write("probes", {
    **{key: value for key, value in old.items() if key == "conformance_made"},
    "made": made(sys.argv[3]),
    "figures": figures,
    "probes": probes,
    "exceptions": exceptions,
    # Registers of every kernel: as it is, then with each probe in the order above.
    "seen": {
        name[:120]: [row["native"]["registers"], *(row[probe]["registers"] for probe in LOADS)]
        for name, row in sorted(raw.items())
    },
})
for name, figure in figures.items():
    print(f"{name}: {figure['value']} of {figure['n']}")
