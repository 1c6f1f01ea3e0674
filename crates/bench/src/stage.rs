//! The watched workload: a steploop under a [`Watcher`] in this process, and disturbances beside it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use gpuwhy_engine::launch;
use gpuwhy_engine::live::Event;
use gpuwhy_engine::watch::{WatchOptions, Watcher};
use gpuwhy_testkit::inject::{Injector, Kind, Label, Placement, Spec};
use gpuwhy_testkit::steploop::Ready;

use crate::stolen::Stolen;
use crate::trial::Workload;

/// An event of the watcher, and when it came.
pub struct Timed {
    /// When, trace clock.
    pub at: i64,
    /// The event.
    pub event: Event,
}

/// The watched workload.
pub struct Stage {
    /// The watcher.
    pub watcher: Watcher,
    /// Its events so far.
    pub events: Vec<Timed>,
    /// What the hypervisor took meanwhile.
    pub stolen: Stolen,
    /// The workload, ready.
    pub ready: Ready,
    _workload: Workload,
}

impl Stage {
    /// Starts the workload and watches it into `path`, with the options that `change` makes of the
    /// defaults.
    pub fn open(path: &Path, change: impl FnOnce(&mut WatchOptions)) -> Result<Stage> {
        launch::make_room(path, true)?;
        let mut workload = Workload::spawn()?;
        let mut options = WatchOptions::new(workload.config());
        change(&mut options);
        let mut watcher = Watcher::start(path, options)?;
        workload.go()?;
        let (mut events, mut stolen) = (Vec::new(), Stolen::default());
        loop {
            tick(&mut watcher, &mut events, &mut stolen)?;
            if let Some(ready) = workload.ready()? {
                return Ok(Stage { watcher, events, stolen, ready, _workload: workload });
            }
        }
    }

    /// A disturbance of the workload at normal strength.
    pub fn spec(&self, kind: Kind, seconds: f64) -> Spec {
        let (after, intensity, placement) = (0.0, 1.0, Placement::Other);
        Spec { kind, after, seconds, intensity, placement, target: self.ready.clone() }
    }

    fn tick(&mut self) -> Result<()> {
        tick(&mut self.watcher, &mut self.events, &mut self.stolen)
    }

    /// Watches for this long.
    pub fn run_for(&mut self, long: Duration) -> Result<()> {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.tick()?;
        }
        Ok(())
    }

    /// Watches until nothing is slower than usual, but no longer than `at_most`; whether it is calm.
    pub fn calm(&mut self, at_most: Duration) -> Result<bool> {
        let end = Instant::now() + at_most;
        while !self.watcher.is_calm() && Instant::now() < end {
            self.run_for(Duration::from_millis(200))?;
        }
        Ok(self.watcher.is_calm())
    }

    /// Disturbs the workload, and watches meanwhile.
    pub fn inject(&mut self, specs: Vec<Spec>) -> Result<Vec<Label>> {
        let end = Instant::now() + Duration::from_secs(60);
        let running: Vec<_> = specs
            .into_iter()
            .map(|spec| {
                std::thread::spawn(move || {
                    // We record at a high priority, which our children would inherit.
                    gpuwhy_collect::nice(0);
                    Injector::start(spec)?.finish()
                })
            })
            .collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            if Instant::now() > end {
                bail!("an injector did not end in time");
            }
            self.tick()?;
        }
        let label = |thread: std::thread::JoinHandle<Result<Label>>| {
            thread.join().map_err(|_| anyhow!("the injector's thread panicked"))?
        };
        running.into_iter().map(label).collect()
    }
}

fn tick(watcher: &mut Watcher, events: &mut Vec<Timed>, stolen: &mut Stolen) -> Result<()> {
    let new = watcher.tick()?;
    let at = gpuwhy_collect::now().0;
    stolen.look(at);
    events.extend(new.into_iter().map(|event| Timed { at, event }));
    Ok(())
}
