"""Overlap of kernels and copies per second and kind, and statistics by kernel, with Polars."""

import sqlite3
import sys

import polars as pl

source = sqlite3.connect(sys.argv[1])


def table(sql, names):
    return pl.DataFrame(source.execute(sql).fetchall(), schema=names, orient="row")


BIN = 10_000_000
k = table('select start, "end", deviceId, demangledName from CUPTI_ACTIVITY_KIND_KERNEL', ["s", "e", "d", "n"])
m = table('select start, "end", deviceId, copyKind from CUPTI_ACTIVITY_KIND_MEMCPY', ["s", "e", "d", "kind"])


def binned(frame):
    return frame.with_columns(
        b=pl.int_ranges(pl.col("s") // BIN, (pl.col("e") - 1) // BIN + 1)
    ).explode("b")


both = binned(k).join(binned(m), on=["b", "d"], suffix="_m")
both = both.filter((pl.col("s") < pl.col("e_m")) & (pl.col("s_m") < pl.col("e"))).with_columns(
    at=pl.max_horizontal("s", "s_m")
)
both = both.filter(pl.col("b") == pl.col("at") // BIN)
overlap = both.select(
    pl.len(), (pl.min_horizontal("e", "e_m") - pl.col("at")).sum().alias("ns")
)
d = pl.col("e") - pl.col("s")
names = k.group_by("n").agg(
    pl.len(), d.sum().alias("sum"), d.mean().alias("mean"), d.std().alias("std"),
    d.quantile(0.5).alias("p50"), d.quantile(0.99).alias("p99"),
)
print(overlap.rows(), names.height)
