//! The parts of a trace's variability from `gpuwhy-query`, which reads its rows with a query engine,
//! on a cluster or in its own process, and from object stores.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use gpuwhy_derive::sweep::{Cut, Interval};
use gpuwhy_derive::{Quantiles, Stretches, Sum};
use gpuwhy_schema::{CopyKind, Entity, EntityId, EntityKind, Rows};
use serde_json::Value;

use super::{Device, Gathered, Link, MOST, MOVED, PREFETCH, Part, Stat, WAITS, Waits, moved};
use crate::args::Variability;
use crate::query;

/// The word for the engine in a process of this machine.
const LOCAL: &str = "local";
/// A plan of more devices than this was not meant.
const MOST_DEVICES: u64 = 1 << 20;

/// Runs the engine over a trace, and takes what it tells.
pub fn gather(trace: &str, cluster: &str, args: &Variability) -> Result<Gathered> {
    let mut command = Command::new(query::program());
    command.args(["shards", trace]);
    command.args(["--interval-ns", &args.interval.as_nanos().max(1).to_string()]);
    command.args(["--most", &MOST.to_string(), "--moved", &MOVED.to_string()]);
    command.args(["--waits", &WAITS.join(","), "--prefetch", &PREFETCH.join(",")]);
    if let Some(threads) = args.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if cluster != LOCAL {
        command.args(["--cluster", cluster]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(query::cannot_run)?;
    let out = BufReader::new(child.stdout.take().context("its output")?);
    let mut told = Told::default();
    for (number, line) in out.lines().enumerate() {
        let line = line.context("the engine's output")?;
        told.take(&line).with_context(|| format!("line {} of the engine's output", number + 1))?;
    }
    if !child.wait()?.success() {
        bail!("the engine failed; what it says stands above");
    }
    told.finish()
}

#[derive(Default)]
struct Told {
    gathered: Option<Gathered>,
    complete: bool,
}

fn whole(value: &Value) -> Result<i64> {
    value.as_i64().with_context(|| format!("{value} is no whole number"))
}

fn count(value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("{value} is no number of things"))
}

fn id(value: &Value) -> Result<u32> {
    u32::try_from(count(value)?).with_context(|| format!("{value} is too great"))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("{value} is no text"))
}

fn part<P: gpuwhy_derive::Part>(value: &Value) -> Result<P> {
    Ok(P::from_bytes(&BASE64.decode(text(value)?)?)?)
}

impl Told {
    fn take(&mut self, line: &str) -> Result<()> {
        let line: Value = serde_json::from_str(line)?;
        let (kind, value) = line
            .as_object()
            .and_then(|object| object.iter().next())
            .context("an object with one field is due")?;
        if kind == "plan" {
            self.gathered = Some(plan(value)?);
            return Ok(());
        }
        let Gathered { devices, part: whole_part, .. } =
            self.gathered.as_mut().context("what comes first is the plan")?;
        match kind.as_str() {
            "interval" => {
                let device = id(&value[0])?;
                if device as usize >= devices.len() {
                    bail!("there is no device {device}");
                }
                let index = usize::try_from(whole(&value[1])?).context("an interval's number")?;
                let interval: Interval = part(&value[2])?;
                whole_part.intervals.add(device, index, &interval);
            }
            "kernel" => {
                let stat = Stat {
                    sum: part::<Sum>(&value[1])?,
                    quantiles: part::<Quantiles>(&value[2])?,
                    stretches: part::<Stretches>(&value[3])?,
                };
                whole_part.kernels.insert(text(&value[0])?.into(), stat);
            }
            "link" => {
                let link = Link { durations: part(&value[2])?, bytes: count(&value[3])? };
                whole_part.links.insert((id(&value[0])?, id(&value[1])?), link);
            }
            "wait" => {
                let first = Some((whole(&value[3])?, whole(&value[4])?));
                let waits = Waits { sum: part(&value[2])?, first };
                whole_part.waits.insert((text(&value[0])?.into(), whole(&value[1])?), waits);
            }
            "moved" => {
                let word = text(&value[1])?;
                let kind = CopyKind::ALL.iter().find(|kind| kind.as_str() == word);
                let kind = kind.ok_or_else(|| anyhow!("no copy is of kind {word:?}"))?;
                let (from, to) = (whole(&value[3])?, whole(&value[4])?);
                whole_part.moved.extend(moved(id(&value[0])?, *kind, count(&value[2])?, from, to));
            }
            "end" => {
                whole_part.last_end =
                    whole(&value["last_end"]).context("no device did anything")?;
                whole_part.rows = count(&value["rows"])?;
                whole_part.prefetches = Some(count(&value["prefetches"])?);
                self.complete = true;
            }
            other => bail!("`{other}` is not known here; both programs must be of one version"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Gathered> {
        self.gathered.filter(|_| self.complete).context("the engine's output is cut off")
    }
}

fn plan(value: &Value) -> Result<Gathered> {
    let list = |name: &str| value[name].as_array().with_context(|| format!("`{name}` is due"));
    let devices = list("devices")?;
    if devices.len() as u64 > MOST_DEVICES {
        bail!("{} devices are absurd", devices.len());
    }
    let devices = devices.iter().map(|d| {
        Ok(Device {
            entity: id(&d["entity"])?,
            name: text(&d["name"])?.into(),
            place: text(&d["place"])?.into(),
            rank: d["rank"].as_i64(),
        })
    });
    let devices = devices.collect::<Result<Vec<_>>>()?;
    let entities = list("names")?.iter().map(|of| {
        Ok(Entity {
            id: EntityId(id(&of[0])?),
            kind: EntityKind::Gpu,
            parent: None,
            key: "".into(),
            name: text(&of[1])?.into(),
            number: None,
            from: None,
            to: None,
        })
    });
    let entity = entities.collect::<Result<Vec<_>>>()?;
    let origin = whole(&value["origin"])?;
    let (width, intervals) = (whole(&value["width"])?, count(&value["count"])?);
    let length = i64::try_from(intervals).ok().and_then(|n| n.checked_mul(width));
    let end = length.and_then(|length| origin.checked_add(length)).context("how time is cut")?;
    let cut = Cut::of(origin..end, width, MOST).context("how time is cut")?;
    let lanes = Rows { entity, ..Rows::default() };
    Ok(Gathered { trace: None, devices, part: Part::new(cut), cut, lanes })
}

#[cfg(test)]
mod tests {
    use gpuwhy_derive::Part as _;

    use super::*;

    const PLAN: &str = r#"{"plan":{"devices":[{"entity":3,"name":"GPU 0","place":"p","rank":1}],"names":[[3,"GPU 0"]],"origin":0,"width":10,"count":2}}"#;

    fn told(lines: &[&str]) -> Result<Gathered> {
        let mut told = Told::default();
        lines.iter().try_for_each(|line| told.take(line))?;
        told.finish()
    }

    #[test]
    fn parts_become_the_whole() {
        let mut interval = Interval { kernel_ns: 7, ..Interval::default() };
        interval.kernels.add(7);
        let interval = format!(r#"{{"interval":[0,1,"{}"]}}"#, BASE64.encode(interval.to_bytes()));
        let moved = r#"{"moved":[0,"h2d",4096,1,2]}"#;
        let end = r#"{"end":{"last_end":17,"rows":5,"prefetches":0}}"#;
        let whole = told(&[PLAN, &interval, moved, end]).unwrap();
        assert_eq!(whole.part.intervals.devices[0][1].kernel_ns, 7);
        assert_eq!((whole.part.last_end, whole.part.rows, whole.part.moved.len()), (17, 5, 1));
    }

    #[test]
    fn output_that_is_cut_off_or_not_understood_is_refused() {
        let why = |lines: &[&str]| format!("{:#}", told(lines).err().expect("refused"));
        assert!(why(&[PLAN]).contains("cut off"));
        assert!(why(&[r#"{"end":{}}"#]).contains("first is the plan"));
        assert!(why(&[PLAN, r#"{"interval":[7,0,""]}"#]).contains("no device 7"));
        assert!(why(&[PLAN, r#"{"interval":[0,0,"AA"]}"#]).contains("byte 1"));
        assert!(why(&[PLAN, r#"{"new":[]}"#]).contains("one version"));
        let absurd = PLAN.replace("\"count\":2", "\"count\":999999999999");
        assert!(why(&[&absurd]).contains("how time is cut"));
    }
}
