//! The sums of a trace from `gpuwhy-query`, which reads its rows with a query engine: on a cluster or
//! in its own process, and from object stores.
//!
//! It prints one JSON object a line, each with one field: first `plan` (devices, and how time is cut),
//! then `interval`, `kernel`, `link`, `wait` and `moved`, and `end` when all is there. Sums travel as
//! bytes in base64, so that what is added up here is the same to the last digit.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use gpuwhy_derive::devices::Waiter;
use gpuwhy_derive::sweep::{Cut, Interval};
use gpuwhy_derive::{Quantiles, Stretches, Sum};
use gpuwhy_schema::{ClockError, CopyKind, Entity, EntityId, EntityKind, Ns, Rows};
use serde_json::Value;

use super::clocks::Clocks;
use super::sums::{KernelSum, LinkSum, MOVED, Sums, WaitSum, moved};
use super::{Device, Gathered, INTERVALS, Options, WAITS, interval_ns};
use crate::error::{Error, Result};
use crate::query;

/// The name of the engine in a process of this machine.
const LOCAL: &str = "local";
/// More devices than this are a broken plan.
const DEVICES: u64 = 1 << 20;

/// Runs the engine over a trace, and takes the sums that it prints.
///
/// # Errors
/// The engine is not installed, fails, or prints what makes no sense.
pub fn gather(trace: &str, cluster: &str, options: &Options) -> Result<Gathered> {
    let mut command = Command::new(query::program());
    command.args(["shards", trace]);
    if let Some(interval) = options.interval {
        command.args(["--interval-ns", &interval_ns(interval).to_string()]);
    }
    command.args(["--most", &INTERVALS.to_string(), "--moved", &MOVED.to_string()]);
    command.args(["--waits", &WAITS.join(",")]);
    if let Some(threads) = options.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if cluster != LOCAL {
        command.args(["--cluster", cluster]);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(query::cannot_run)?;
    let mut received = Received::default();
    if let Some(out) = child.stdout.take() {
        for (number, line) in BufReader::new(out).lines().enumerate() {
            let taken = match line {
                Ok(line) => received.take(&line),
                Err(error) => Err(error.to_string()),
            };
            taken.map_err(|why| Error::QueryOutput { line: number + 1, why })?;
        }
    }
    let status = child.wait().map_err(query::cannot_run)?;
    if !status.success() {
        return Err(Error::QueryFailed { status });
    }
    received.finish().map_err(|why| Error::QueryOutput { line: 0, why })
}

/// A line that makes no sense, and why.
type Parsed<T> = Result<T, String>;

/// What was received so far.
#[derive(Default)]
struct Received {
    gathered: Option<Gathered>,
    complete: bool,
}

fn whole(value: &Value) -> Parsed<i64> {
    value.as_i64().ok_or_else(|| format!("{value} is not a whole number"))
}

fn count(value: &Value) -> Parsed<u64> {
    value.as_u64().ok_or_else(|| format!("{value} is not a count"))
}

fn id(value: &Value) -> Parsed<u32> {
    u32::try_from(count(value)?).map_err(|_| format!("{value} is too large for an id"))
}

fn text(value: &Value) -> Parsed<&str> {
    value.as_str().ok_or_else(|| format!("{value} is not a string"))
}

fn part<P: gpuwhy_derive::Partial>(value: &Value) -> Parsed<P> {
    let bytes = BASE64.decode(text(value)?).map_err(|error| error.to_string())?;
    P::from_bytes(&bytes).map_err(|error| error.to_string())
}

impl Received {
    fn take(&mut self, line: &str) -> Parsed<()> {
        let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let field = line.as_object().and_then(|object| object.iter().next());
        let (kind, value) = field.ok_or("it is not an object with one field")?;
        if kind == "plan" {
            self.gathered = Some(plan(value)?);
            return Ok(());
        }
        let gathered = self.gathered.as_mut().ok_or("`plan` must come first")?;
        if kind == "end" {
            gathered.sums.last_end =
                whole(&value["last_end"]).map_err(|_| "no device did anything")?;
            gathered.sums.rows = count(&value["rows"])?;
            self.complete = true;
            return Ok(());
        }
        add(gathered, kind, value)
    }

    fn finish(self) -> Parsed<Gathered> {
        self.gathered.filter(|_| self.complete).ok_or_else(|| "it is cut off".into())
    }
}

/// Adds one sum.
fn add(gathered: &mut Gathered, kind: &str, value: &Value) -> Parsed<()> {
    let Gathered { devices, sums, .. } = gathered;
    match kind {
        "interval" => {
            let device = id(&value[0])?;
            if device as usize >= devices.len() {
                return Err(format!("there is no device {device}"));
            }
            let index = usize::try_from(whole(&value[1])?)
                .map_err(|_| "an interval has a negative number")?;
            let interval: Interval = part(&value[2])?;
            sums.intervals.add(device, index, &interval);
        }
        "kernel" => {
            let stat = KernelSum {
                sum: part::<Sum>(&value[1])?,
                quantiles: part::<Quantiles>(&value[2])?,
                stretches: part::<Stretches>(&value[3])?,
            };
            sums.kernels.insert(text(&value[0])?.into(), stat);
        }
        "link" => {
            let link = LinkSum { durations: part(&value[2])?, bytes: count(&value[3])? };
            sums.links.insert((id(&value[0])?, id(&value[1])?), link);
        }
        "wait" => {
            let first = Some((whole(&value[3])?, whole(&value[4])?));
            let waits = WaitSum { sum: part(&value[2])?, first };
            let waiter = Waiter::Rank(whole(&value[1])?);
            sums.waits.insert((text(&value[0])?.into(), waiter), waits);
        }
        "moved" => {
            let word = text(&value[1])?;
            let kind = CopyKind::ALL.iter().find(|kind| kind.as_str() == word);
            let kind = kind.ok_or_else(|| format!("no copy is of kind {word:?}"))?;
            let (from, to) = (whole(&value[3])?, whole(&value[4])?);
            sums.moved.extend(moved(id(&value[0])?, *kind, count(&value[2])?, from, to));
        }
        other => {
            let why =
                format!("`{other}` is unknown; gpuwhy and gpuwhy-query must be of one version");
            return Err(why);
        }
    }
    Ok(())
}

fn plan(value: &Value) -> Parsed<Gathered> {
    let list =
        |name: &str| value[name].as_array().ok_or_else(|| format!("the plan has no list `{name}`"));
    let devices = list("devices")?;
    if devices.len() as u64 > DEVICES {
        return Err(format!("the plan lists {} devices, more than {DEVICES}", devices.len()));
    }
    let device = |d: &Value| {
        Ok(Device {
            entity: id(&d["entity"])?,
            name: text(&d["name"])?.into(),
            place: text(&d["place"])?.into(),
            rank: d["rank"].as_i64(),
        })
    };
    let devices = devices.iter().map(device).collect::<Parsed<Vec<_>>>()?;
    let entity = |of: &Value| {
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
    };
    let entity = list("names")?.iter().map(entity).collect::<Parsed<Vec<_>>>()?;
    let origin = whole(&value["origin"])?;
    let (width, intervals) = (whole(&value["width"])?, count(&value["count"])?);
    let length = i64::try_from(intervals).ok().and_then(|n| n.checked_mul(width));
    let end = length.and_then(|length| origin.checked_add(length));
    let cut = end.and_then(|end| Cut::of(origin..end, width, INTERVALS));
    let cut = cut.ok_or_else(|| {
        format!("the plan cuts time into {intervals} intervals of {width} ns, which cannot be")
    })?;
    let names = Rows { entity, ..Rows::default() };
    // A trace on this machine says itself which of its sources lost rows; see `gather`.
    let (whole, incomplete) = (None, Vec::new());
    let (source, clocks, sums) = (None, clocks(value)?, Sums::new(cut));
    let reports = Vec::new();
    Ok(Gathered { source, reports, devices, clocks, sums, cut, names, whole, incomplete })
}

/// The clock of each device: its number, a file that its work is of, and the error of that file's clock.
fn clocks(plan: &Value) -> Parsed<Clocks> {
    let mut clocks = Clocks::default();
    for of in plan["clocks"].as_array().into_iter().flatten() {
        let error = match &of[2] {
            Value::Null => ClockError::Unknown,
            ns => ClockError::Within(Ns(whole(ns)?)),
        };
        clocks.add(id(&of[0])?, id(&of[1])?, error);
    }
    Ok(clocks)
}

#[cfg(test)]
mod tests {
    use gpuwhy_derive::Partial as _;

    use super::*;

    const PLAN: &str = r#"{"plan":{"devices":[{"entity":3,"name":"GPU 0","place":"p","rank":1}],"names":[[3,"GPU 0"]],"clocks":[[0,1,null]],"origin":0,"width":10,"count":2}}"#;

    fn received(lines: &[&str]) -> Parsed<Gathered> {
        let mut received = Received::default();
        lines.iter().try_for_each(|line| received.take(line))?;
        received.finish()
    }

    #[test]
    fn parts_become_the_whole() {
        let mut interval = Interval { kernel_ns: 7, ..Interval::default() };
        interval.kernels.add(7);
        let interval = format!(r#"{{"interval":[0,1,"{}"]}}"#, BASE64.encode(interval.to_bytes()));
        let moved = r#"{"moved":[0,"h2d",4096,1,2]}"#;
        let end = r#"{"end":{"last_end":17,"rows":5}}"#;
        let whole = received(&[PLAN, &interval, moved, end]).unwrap();
        assert_eq!(whole.sums.intervals.devices[0][1].kernel_ns, 7);
        assert_eq!(whole.clocks.between(0, 0), ClockError::NONE);
        assert_eq!((whole.sums.last_end, whole.sums.rows, whole.sums.moved.len()), (17, 5, 1));
    }

    #[test]
    fn output_that_is_cut_off_or_not_understood_is_refused() {
        let why = |lines: &[&str]| received(lines).err().expect("refused");
        assert!(why(&[PLAN]).contains("cut off"));
        assert!(why(&[r#"{"end":{}}"#]).contains("`plan` must come first"));
        assert!(why(&[PLAN, r#"{"interval":[7,0,""]}"#]).contains("no device 7"));
        assert!(why(&[PLAN, r#"{"interval":[0,0,"AA"]}"#]).contains("byte 1"));
        assert!(why(&[PLAN, r#"{"new":[]}"#]).contains("one version"));
        let absurd = PLAN.replace("\"count\":2", "\"count\":999999999999");
        assert!(why(&[&absurd]).contains("999999999999 intervals"));
    }
}
