//! Records a process for some seconds and prints sums of its rows: `watch PID [SECONDS [STEP...]]`.
//! PID 0 records no process; the environment variable OFF names probes to switch off.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Target};
use gpuwhy_schema::{EntityId, Rows, ThreadState, TrackId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let pid: i32 = args.next().ok_or("usage: watch PID [SECONDS]")?.parse()?;
    let seconds: u64 = args.next().map_or(Ok(3), |s| s.parse())?;
    let mut config = Config::default();
    if pid > 0 {
        config.targets.push(Target::Pid(pid));
    }
    for step in args {
        config.steps.push(step.parse()?);
    }
    config.off.extend(std::env::var("OFF").iter().flat_map(|s| s.split(',')).map(String::from));
    let mut recorder = Recorder::start(config)?;
    let mut rows = Rows::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        rows.append(&mut recorder.poll(Duration::from_secs(1))?);
    }
    let status = recorder.status();
    rows.append(&mut recorder.finish());

    let names: BTreeMap<EntityId, String> = rows
        .entity
        .iter()
        .map(|e| (e.id, format!("{} {}", e.name, e.number.unwrap_or(-1))))
        .collect();
    let tracks: BTreeMap<TrackId, (EntityId, String)> =
        rows.track.iter().map(|t| (t.id, (t.entity, t.name.to_string()))).collect();
    let mut sums: BTreeMap<(String, String, String), (u64, f64)> = BTreeMap::new();
    let mut add = |track: TrackId, value: String, n: f64| {
        let (entity, name) = &tracks[&track];
        let entity = names.get(entity).cloned().unwrap_or_default();
        let sum = sums.entry((entity, name.clone(), value)).or_default();
        sum.0 += 1;
        sum.1 += n;
    };
    for row in &rows.state {
        let value = match tracks[&row.track].1.as_str() {
            "thread_state" => ThreadState::from_code(row.value).map_or("?", |s| s.as_str()).into(),
            _ => names.get(&EntityId(row.value as u32)).cloned().unwrap_or_else(|| "idle".into()),
        };
        add(row.track, value, row.dur.map_or(0.0, |d| d.as_millis_f64()));
    }
    for row in &rows.counter {
        add(row.track, String::new(), row.value);
    }
    for row in &rows.wakeup {
        let waker = row.waker.and_then(|w| names.get(&w)).cloned().unwrap_or_default();
        println!("{:>16} {:8} {:?} <- {waker}", row.ts.0, names[&row.woken], row.context);
    }
    for ((entity, track, value), (n, sum)) in sums {
        println!("{entity:30} {track:20} {value:24} {n:8} {sum:14.3}");
    }
    for source in &rows.source {
        println!("{source:?}");
    }
    println!("{status:?}");
    Ok(())
}
