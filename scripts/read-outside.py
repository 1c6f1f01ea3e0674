#!/usr/bin/env python3
"""Reads a trace as those do who do not have gpuwhy: with DuckDB, pandas and pyarrow.

    read-outside.py run.trace

Checks that what they see is what trace.toml says: the rows of each table, their range, their order,
and the schema version in the metadata. Needs `pip install duckdb pandas pyarrow`; what is missing is
said and skipped, and the exit status is 77 if nothing could be checked.
"""

import sys
import tomllib
from collections import defaultdict
from pathlib import Path

START = {"bin": "t", "clock": "ts_trace"}
NO_TIME = {"entity", "track", "source", "stack", "frame", "attr", "cause"}


def fail(what):
    sys.exit(f"read-outside: {what}")


def with_duckdb(trace, tables):
    import duckdb

    for table, files in tables.items():
        rows = sum(f["rows"] for f in files)
        pattern = f"{trace}/{table}/*.parquet"
        (found,) = duckdb.execute(f"select count(*) from read_parquet('{pattern}')").fetchone()
        if found != rows:
            fail(f"DuckDB sees {found} rows of {table}, trace.toml says {rows}")
        if table in NO_TIME:
            continue
        ts = START.get(table, "ts")
        (start,) = duckdb.execute(f"select min({ts}) from read_parquet('{pattern}')").fetchone()
        expected = min(f["min_start"] for f in files)
        if start != expected:
            fail(f"DuckDB sees {table} begin at {start}, trace.toml says {expected}")
    if {"span", "track"} <= tables.keys():
        query = f"""
            select t.name, count(*), sum(s.dur) / 1e6
            from '{trace}/span/*.parquet' s
            join (select distinct id, name from '{trace}/track/*.parquet') t on t.id = s.track
            group by t.name order by t.name"""
        for name, count, ms in duckdb.execute(query).fetchall():
            print(f"  {name}: {count} spans, {ms or 0:.3f} ms")
    return f"DuckDB {duckdb.__version__}"


def with_pandas(trace, tables):
    import pandas

    for table, files in tables.items():
        frame = pandas.read_parquet(trace / table)
        rows = sum(f["rows"] for f in files)
        if len(frame) != rows:
            fail(f"pandas sees {len(frame)} rows of {table}, trace.toml says {rows}")
    return f"pandas {pandas.__version__}"


def with_pyarrow(trace, tables):
    import pyarrow
    import pyarrow.parquet as parquet

    for table, files in tables.items():
        for file in files:
            found = parquet.read_table(trace / file["path"])
            metadata = found.schema.metadata or {}
            if metadata.get(b"gpuwhy.table") != table.encode():
                fail(f"{file['path']} does not say that it is {table}: {metadata}")
            if metadata.get(b"gpuwhy.schema_version") != b"1":
                fail(f"{file['path']} does not say its schema version: {metadata}")
            if table not in NO_TIME:
                starts = found.column(START.get(table, "ts")).to_pylist()
                if starts != sorted(starts):
                    fail(f"{file['path']} is not sorted by start")
    return f"pyarrow {pyarrow.__version__}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    trace = Path(sys.argv[1])
    manifest = tomllib.loads((trace / "trace.toml").read_text())
    tables = defaultdict(list)
    for file in manifest.get("file", []):
        if "repeats_from" not in file:
            tables[file["table"]].append(file)
    done = []
    for check in (with_duckdb, with_pandas, with_pyarrow):
        try:
            done.append(check(trace, tables))
        except ModuleNotFoundError as e:
            print(f"skipped: {check.__name__[5:]}: {e}")
    if not done:
        return 77
    rows = sum(f["rows"] for files in tables.values() for f in files)
    print(f"{trace}: {rows} rows of {len(tables)} tables, read by {', '.join(done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
