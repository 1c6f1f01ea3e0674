//! What a trace's variability is computed from, as plans: intervals by device, durations by kernel,
//! links, waits and copies. Each comes as the parts that `gpuwhy variability` merges, so that the
//! judgement is the same code, and the answer the same digits, wherever the rows were read.
//!
//! One JSON object a line: `plan` first, `end` last; without `end` it was cut off.

use std::io::Write;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use futures::TryStreamExt as _;
use gpuwhy_derive::sweep::Cut;
use gpuwhy_schema::EntityKind;
use serde_json::{Value, json};

use crate::session::Session;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Intervals at most.
    pub most: usize,
    /// Copies at most that are told one by one.
    pub moved: usize,
    /// Collectives whose length is waiting for the last rank.
    pub waits: Vec<String>,
    /// How the names of calls begin that ask for managed memory ahead of its use.
    pub prefetch: Vec<String>,
}

/// How time is cut: from the first device work to the end of the trace.
fn cut_of(session: &Session, interval: i64, most: usize) -> Result<Cut> {
    let opened = &session.opened;
    if opened.devices.devices.is_empty() {
        bail!("`{}` holds no work of a GPU", opened.location.named);
    }
    let (first, Some(last)) = (opened.origin(), opened.manifest.end) else {
        bail!("`{}` holds neither kernels nor copies", opened.location.named);
    };
    Cut::of(first..last.max(first + 1), interval, most).with_context(|| {
        format!(
            "{:.3} s in intervals of {:.6} s are more than {most} intervals; choose longer ones",
            (last - first) as f64 / 1e9,
            interval as f64 / 1e9
        )
    })
}

/// Tells the parts of a trace.
///
/// # Errors
/// A query fails, or `out` does.
pub async fn tell(
    session: &Session,
    interval: i64,
    asked: &Asked,
    out: &mut impl Write,
) -> Result<()> {
    let cut = cut_of(session, interval, asked.most)?;
    let opened = &session.opened;
    let devices: Vec<Value> = opened
        .devices
        .devices
        .iter()
        .map(|d| json!({"entity": d.entity.0, "name": *d.name, "place": *d.place, "rank": d.rank}))
        .collect();
    let gpus = opened.lanes.entity.iter().filter(|e| e.kind == EntityKind::Gpu);
    let names: Vec<Value> = gpus.map(|e| json!([e.id.0, *e.name])).collect();
    let plan = json!({
        "devices": devices, "names": names,
        "origin": cut.origin, "width": cut.width, "count": cut.count,
    });
    writeln!(out, "{}", json!({ "plan": plan }))?;

    let (from, to) = (cut.origin, cut.all().end);
    let here = format!("ts >= ({from}) and ts < ({to})");
    let bytes =
        |column: &dyn Array, row: usize| BASE64.encode(column.as_binary::<i32>().value(row));
    let whole = |column: &dyn Array, row: usize| column.as_primitive::<Int64Type>().value(row);
    let count = |column: &dyn Array, row: usize| column.as_primitive::<UInt64Type>().value(row);
    let small = |column: &dyn Array, row: usize| column.as_primitive::<UInt32Type>().value(row);
    let text = |column: &dyn Array, row: usize| column.as_string::<i32>().value(row).to_owned();

    let sql = format!(
        "select device, shard, stat['part'] as part from device_intervals \
         where shard >= 0 and shard < {}",
        cut.count
    );
    each(session, &sql, |c, row| {
        let part = json!([small(&c[0], row), whole(&c[1], row), bytes(&c[2], row)]);
        Ok(writeln!(out, "{}", json!({ "interval": part }))?)
    })
    .await?;

    let sql = format!(
        "select name, t['sum_part'] as s, t['quantiles_part'] as q, o from ( \
         select name, duration_stats(dur) as t, \
         duration_stretches(time_shard(ts, ({from}), {}), dur) as o from gpu_work \
         where copy_kind is null and {here} group by name)",
        cut.width
    );
    each(session, &sql, |c, row| {
        let [sum, quantiles, over_time] = [1, 2, 3].map(|i| bytes(&c[i], row));
        let part = json!([text(&c[0], row), sum, quantiles, over_time]);
        Ok(writeln!(out, "{}", json!({ "kernel": part }))?)
    })
    .await?;

    let sql = format!(
        "select a, b, t['sum_part'] as s, bytes from ( \
         select c.\"from\" as a, c.\"to\" as b, duration_stats(w.dur) as t, sum(c.bytes) as bytes \
         from gpu_work w join \"copy\" c on c.id = w.id \
         where w.copy_kind = 'p2p' and c.\"from\" is not null and c.\"to\" is not null and {} \
         group by c.\"from\", c.\"to\")",
        here.replace("ts ", "w.ts ")
    );
    each(session, &sql, |c, row| {
        let (a, b) = (small(&c[0], row), small(&c[1], row));
        let part = json!([a, b, bytes(&c[2], row), count(&c[3], row)]);
        Ok(writeln!(out, "{}", json!({ "link": part }))?)
    })
    .await?;

    if !asked.waits.is_empty() {
        let quoted = |name: &String| format!("'{}'", name.replace('\'', "''"));
        let names = asked.waits.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "select name, rank, t['sum_part'] as s, first_ts, first_dur from ( \
             select name, rank, duration_stats(dur) as t, min(ts) as first_ts, \
             first_value(dur order by ts, dur) as first_dur from mpi \
             where rank is not null and dur is not null and name in ({names}) and {here} \
             group by name, rank)"
        );
        each(session, &sql, |c, row| {
            let (ts, dur) = (whole(&c[3], row), whole(&c[4], row));
            let part = json!([text(&c[0], row), whole(&c[1], row), bytes(&c[2], row), ts, dur]);
            Ok(writeln!(out, "{}", json!({ "wait": part }))?)
        })
        .await?;
    }

    let sql = format!(
        "select device, copy_kind, bytes, ts, ts + dur as e, id from gpu_work \
         where copy_kind in ('h2d', 'd2h', 'p2p') and {here} \
         order by ts, dur desc, id limit {}",
        asked.moved
    );
    each(session, &sql, |c, row| {
        let (bytes, from, to) = (whole(&c[2], row), whole(&c[3], row), whole(&c[4], row));
        let part = json!([small(&c[0], row), text(&c[1], row), bytes, from, to]);
        Ok(writeln!(out, "{}", json!({ "moved": part }))?)
    })
    .await?;

    let sql = format!("select max(least(ts + dur, ({to}))) as e from gpu_work where ts < ({to})");
    let mut last_end = None;
    each(session, &sql, |c, row| {
        last_end = c[0].is_valid(row).then(|| whole(&c[0], row));
        Ok(())
    })
    .await?;
    let mut prefetches = 0;
    let likes = asked.prefetch.iter().map(|name| format!("name like '{name}%'"));
    let likes = likes.collect::<Vec<_>>().join(" or ");
    if !likes.is_empty() {
        let sql =
            format!("select count(*) as n from api where dur is not null and ({likes}) and {here}");
        each(session, &sql, |c, row| {
            prefetches = whole(&c[0], row);
            Ok(())
        })
        .await?;
    }
    let rows: u64 = opened.manifest.files_of("span").map(|f| f.rows).sum();
    writeln!(
        out,
        "{}",
        json!({ "end": { "last_end": last_end, "rows": rows, "prefetches": prefetches } })
    )?;
    Ok(out.flush()?)
}

type Columns = [std::sync::Arc<dyn Array>];

/// Asks, and takes the rows one by one.
async fn each(
    session: &Session,
    sql: &str,
    mut take: impl FnMut(&Columns, usize) -> Result<()>,
) -> Result<()> {
    let (_, mut rows) = session.ask(sql).await?;
    while let Some(batch) = rows.try_next().await? {
        let batch: RecordBatch = batch;
        for row in 0..batch.num_rows() {
            take(batch.columns(), row)?;
        }
    }
    Ok(())
}
