"""Overlap of kernels and copies per second and kind, and statistics by kernel, with DuckDB.

The database is read through Python's sqlite3, as DuckDB's own SQLite scanner has to be downloaded at run
time. Intervals are joined on bins of 10 ms, the fastest plan that DuckDB has for it.
"""

import sqlite3
import sys

import duckdb
import pyarrow as pa

source = sqlite3.connect(sys.argv[1])


def table(sql, names):
    rows = source.execute(sql)
    columns = [[] for _ in names]
    while chunk := rows.fetchmany(100_000):
        for row in chunk:
            for column, value in zip(columns, row):
                column.append(value)
    return pa.table(dict(zip(names, (pa.array(c, pa.int64()) for c in columns))))


k = table('select start, "end", deviceId, demangledName from CUPTI_ACTIVITY_KIND_KERNEL', ["s", "e", "d", "n"])
m = table('select start, "end", deviceId, copyKind from CUPTI_ACTIVITY_KIND_MEMCPY', ["s", "e", "d", "kind"])
db = duckdb.connect()
db.execute("create table kb as select *, unnest(range(s // 10000000, (e - 1) // 10000000 + 1)) b from k")
db.execute("create table mb as select *, unnest(range(s // 10000000, (e - 1) // 10000000 + 1)) b from m")
pairs = db.execute(
    """select count(*), sum(least(kb.e, mb.e) - greatest(kb.s, mb.s)) from kb join mb using (b, d)
       where kb.s < mb.e and mb.s < kb.e and b = greatest(kb.s, mb.s) // 10000000"""
).fetchall()
names = db.execute(
    """select n, count(*), sum(e - s), avg(e - s), stddev(e - s), quantile_cont(e - s, 0.5),
       quantile_cont(e - s, 0.99) from k group by n order by 3 desc"""
).fetchall()
print(pairs, len(names))
