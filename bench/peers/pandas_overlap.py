"""Overlap of kernels and copies per second and kind, and statistics by kernel, with pandas: shard by
shard, as the published pipeline does it."""

import sqlite3
import sys

import numpy as np
import pandas as pd

source = sqlite3.connect(sys.argv[1])
k = pd.read_sql('select start s, "end" e, deviceId d, demangledName n from CUPTI_ACTIVITY_KIND_KERNEL', source)
m = pd.read_sql('select start s, "end" e, deviceId d, copyKind kind from CUPTI_ACTIVITY_KIND_MEMCPY', source)
SECOND = 1_000_000_000
k["b"], m["b"] = k.s // SECOND, m.s // SECOND
pairs, ns = 0, 0
copies = dict(tuple(m.groupby("b")))
for b, kernels in k.groupby("b"):
    # What began in the second before may reach into this one.
    near = [copies[x] for x in (b - 1, b, b + 1) if x in copies]
    if not near:
        continue
    both = kernels.merge(pd.concat(near), on="d", suffixes=("", "_m"))
    overlap = np.minimum(both.e, both.e_m) - np.maximum(both.s, both.s_m)
    pairs += int((overlap > 0).sum())
    ns += int(overlap[overlap > 0].sum())
dur = (k.e - k.s).groupby(k.n)
names = dur.agg(["count", "sum", "mean", "std", lambda x: x.quantile(0.5), lambda x: x.quantile(0.99)])
print(pairs, ns, len(names))
