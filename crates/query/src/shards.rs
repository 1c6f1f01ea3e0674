//! The sums from which `gpuwhy variability` is computed, as queries: intervals by device, durations by
//! kernel, links, waits and copies. They are written as parts that `gpuwhy variability` merges, so that
//! the same code compares them, with the same digits as a result, wherever the rows were read.
//!
//! The output has one JSON object in each line: `plan` first, `end` last; without `end` it was cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use futures::TryStreamExt as _;
use gpuwhy_derive::devices::Device;
use gpuwhy_derive::sweep::Cut;
use gpuwhy_schema::{ClockError, EntityKind, SourceId};
use serde_json::{Value, json};

use crate::session::Session;

/// Which parts to write.
#[derive(Clone, Debug)]
pub struct Request {
    /// The most intervals.
    pub most: usize,
    /// The most copies that are listed one by one.
    pub moved: usize,
    /// Names of collectives whose duration is mostly waiting for the last rank.
    pub waits: Vec<String>,
}

/// Cuts the time from the first device work to the end of the trace into intervals.
fn cut_of(session: &Session, most: usize) -> Result<Cut> {
    let (opened, interval) = (&session.opened, session.interval);
    if opened.devices.devices.is_empty() {
        bail!("`{}` contains no GPU", opened.location.named);
    }
    let (first, Some(last)) = (opened.origin(), opened.manifest.end) else {
        bail!("`{}` contains neither kernels nor copies", opened.location.named);
    };
    // A length that was chosen suits the work of devices, and need not suit all that the host did later.
    let all = interval.saturating_mul(i64::try_from(most).unwrap_or(i64::MAX));
    let last = if session.interval_chosen { last.min(first.saturating_add(all)) } else { last };
    Cut::of(first..last.max(first + 1), interval, most).with_context(|| {
        format!(
            "the trace of {:.3} s has more than {most} intervals of {:.6} s; choose a longer --interval",
            (last - first) as f64 / 1e9,
            interval as f64 / 1e9
        )
    })
}

/// Writes the parts of a trace's variability, each line when it is known.
///
/// # Errors
/// A query fails, or `out` does.
pub async fn write(session: &Session, request: &Request, out: &mut impl Write) -> Result<()> {
    let cut = cut_of(session, request.most)?;
    let mut parts = Parts { session, request, cut, out };
    parts.plan()?;
    parts.intervals().await?;
    parts.kernels().await?;
    parts.links().await?;
    parts.waits().await?;
    parts.copies().await?;
    parts.end().await
}

/// The parts of a trace's variability, on their way to `out`.
struct Parts<'a, W> {
    session: &'a Session,
    request: &'a Request,
    cut: Cut,
    out: &'a mut W,
}

impl<W: Write> Parts<'_, W> {
    /// The condition that a row begins within the intervals.
    fn begins_within(&self) -> String {
        let (from, to) = (self.cut.origin, self.cut.all().end);
        format!("ts >= ({from}) and ts < ({to})")
    }

    /// Runs a query, and writes a line with this key for each of its rows.
    async fn lines(
        &mut self,
        key: &str,
        sql: &str,
        part: impl Fn(&Columns, usize) -> Value,
    ) -> Result<()> {
        let out = &mut *self.out;
        each(self.session, sql, |columns, row| {
            Ok(writeln!(out, "{}", json!({ key: part(columns, row) }))?)
        })
        .await
    }

    /// The devices, the names of GPUs, the clocks that devices have, and how time is cut.
    fn plan(&mut self) -> Result<()> {
        let (opened, cut) = (&self.session.opened, &self.cut);
        let device = |d: &Device| json!({"entity": d.entity.0, "name": *d.name, "place": *d.place, "rank": d.rank});
        let devices: Vec<Value> = opened.devices.devices.iter().map(device).collect();
        let gpus = opened.lanes.entity.iter().filter(|e| e.kind == EntityKind::Gpu);
        let names: Vec<Value> = gpus.map(|e| json!([e.id.0, *e.name])).collect();
        let errors: BTreeMap<SourceId, ClockError> =
            opened.lanes.source.iter().map(|s| (s.id, ClockError::of(s))).collect();
        let mut clocks: BTreeSet<(u32, u32, Option<i64>)> = BTreeSet::new();
        for track in &opened.lanes.track {
            if let Some(device) = opened.devices.streams.get(&track.id) {
                let error = errors.get(&track.source).copied().unwrap_or_default();
                clocks.insert((*device, track.source.0, error.ns()));
            }
        }
        let plan = json!({
            "devices": devices, "names": names, "clocks": clocks,
            "origin": cut.origin, "width": cut.width, "count": cut.count,
        });
        Ok(writeln!(self.out, "{}", json!({ "plan": plan }))?)
    }

    /// What each device did in each interval.
    async fn intervals(&mut self) -> Result<()> {
        let sql = format!(
            "select device, shard, stat['part'] as part from device_intervals \
             where shard >= 0 and shard < {}",
            self.cut.count
        );
        let part =
            |c: &Columns, row| json!([u32_at(c, 0, row), i64_at(c, 1, row), bytes_at(c, 2, row)]);
        self.lines("interval", &sql, part).await
    }

    /// The durations of kernels, by name.
    async fn kernels(&mut self) -> Result<()> {
        let sql = format!(
            "select name, t['sum_part'] as s, t['quantiles_part'] as q, o from ( \
             select name, duration_stats(dur) as t, \
             duration_stretches(time_shard(ts, ({}), {}), dur) as o from gpu_work \
             where copy_kind is null and {} group by name)",
            self.cut.origin,
            self.cut.width,
            self.begins_within()
        );
        let part = |c: &Columns, row| {
            let [sum, quantiles, over_time] = [1, 2, 3].map(|i| bytes_at(c, i, row));
            json!([text_at(c, 0, row), sum, quantiles, over_time])
        };
        self.lines("kernel", &sql, part).await
    }

    /// The durations of copies between devices, by link.
    async fn links(&mut self) -> Result<()> {
        let sql = format!(
            "select a, b, t['sum_part'] as s, bytes from ( \
             select c.\"from\" as a, c.\"to\" as b, duration_stats(w.dur) as t, sum(c.bytes) as bytes \
             from gpu_work w join \"copy\" c on c.id = w.id \
             where w.copy_kind = 'p2p' and c.\"from\" is not null and c.\"to\" is not null and {} \
             group by c.\"from\", c.\"to\")",
            self.begins_within().replace("ts ", "w.ts ")
        );
        let part = |c: &Columns, row| {
            let (a, b) = (u32_at(c, 0, row), u32_at(c, 1, row));
            json!([a, b, bytes_at(c, 2, row), u64_at(c, 3, row)])
        };
        self.lines("link", &sql, part).await
    }

    /// The durations of collectives in which ranks wait, by name and rank.
    async fn waits(&mut self) -> Result<()> {
        if self.request.waits.is_empty() {
            return Ok(());
        }
        let quoted = |name: &String| format!("'{}'", name.replace('\'', "''"));
        let names = self.request.waits.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "select name, rank, t['sum_part'] as s, first_ts, first_dur from ( \
             select name, rank, duration_stats(dur) as t, min(ts) as first_ts, \
             first_value(dur order by ts, dur) as first_dur from mpi \
             where rank is not null and dur is not null and name in ({names}) and {} \
             group by name, rank)",
            self.begins_within()
        );
        let part = |c: &Columns, row| {
            let (ts, dur) = (i64_at(c, 3, row), i64_at(c, 4, row));
            json!([text_at(c, 0, row), i64_at(c, 1, row), bytes_at(c, 2, row), ts, dur])
        };
        self.lines("wait", &sql, part).await
    }

    /// The first copies, one line each.
    async fn copies(&mut self) -> Result<()> {
        let sql = format!(
            "select device, copy_kind, bytes, ts, ts + dur as e, id from gpu_work \
             where copy_kind in ('h2d', 'd2h', 'p2p') and {} \
             order by ts, dur desc, id limit {}",
            self.begins_within(),
            self.request.moved
        );
        let part = |c: &Columns, row| {
            let [bytes, from, to] = [2, 3, 4].map(|i| i64_at(c, i, row));
            json!([u32_at(c, 0, row), text_at(c, 1, row), bytes, from, to])
        };
        self.lines("moved", &sql, part).await
    }

    /// The end of the last work, and the number of rows.
    async fn end(&mut self) -> Result<()> {
        let to = self.cut.all().end;
        let sql =
            format!("select max(least(ts + dur, ({to}))) as e from gpu_work where ts < ({to})");
        let mut last_end = None;
        each(self.session, &sql, |c, row| {
            last_end = c[0].is_valid(row).then(|| i64_at(c, 0, row));
            Ok(())
        })
        .await?;
        let rows: u64 = self.session.opened.manifest.files_of("span").map(|f| f.rows).sum();
        let end = json!({ "last_end": last_end, "rows": rows });
        writeln!(self.out, "{}", json!({ "end": end }))?;
        Ok(self.out.flush()?)
    }
}

type Columns = [std::sync::Arc<dyn Array>];

fn i64_at(columns: &Columns, column: usize, row: usize) -> i64 {
    columns[column].as_primitive::<Int64Type>().value(row)
}

fn u64_at(columns: &Columns, column: usize, row: usize) -> u64 {
    columns[column].as_primitive::<UInt64Type>().value(row)
}

fn u32_at(columns: &Columns, column: usize, row: usize) -> u32 {
    columns[column].as_primitive::<UInt32Type>().value(row)
}

fn text_at(columns: &Columns, column: usize, row: usize) -> String {
    columns[column].as_string::<i32>().value(row).to_owned()
}

/// Bytes as text.
fn bytes_at(columns: &Columns, column: usize, row: usize) -> String {
    BASE64.encode(columns[column].as_binary::<i32>().value(row))
}

/// Runs a query, and calls `take` for each row.
async fn each(
    session: &Session,
    sql: &str,
    mut take: impl FnMut(&Columns, usize) -> Result<()>,
) -> Result<()> {
    let (_, mut rows) = session.query(sql).await?;
    while let Some(batch) = rows.try_next().await? {
        let batch: RecordBatch = batch;
        for row in 0..batch.num_rows() {
            take(batch.columns(), row)?;
        }
    }
    Ok(())
}
