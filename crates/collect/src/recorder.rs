//! Starts the probes, wakes up at every tick, and hands out the rows that they gathered.
//!
//! [`Recorder::start`] starts every probe that is selected and that the host can run; a probe that
//! cannot run is a `source` row that says why. Then each [`Recorder::poll`] sleeps to the next tick,
//! drains the kernel's ring, passes each record to the probe that owns it, and lets every probe read
//! its aggregates. Once a second it counts what each source recorded and lost, looks for steps that
//! hang, and ends threads that have exited unseen.

use std::rc::Rc;
use std::time::Duration;

use gpuwhy_schema::{
    Clock, Entity, EntityId, Id, Lane, Lanes, Ns, Rows, SourceId, SourceState, State, TrackId,
    sources::RECORDER,
};

use crate::bpf::{self, Bpf, Head, Knobs, from_bytes};
use crate::config::{Config, Target};
use crate::context::Context;
use crate::error::{CollectError, error_chain};
use crate::probe::{How, OpenStep, Probe, ProbeSpec, Shedding, Start};
use crate::shed::Shed;
use crate::status::Status;
use crate::{groups, probes, procfs, sys};

/// With more entities than this, the recorder searches for threads and processes that have ended
/// unseen.
const MANY: usize = 2048;
/// Entities that are checked in a second: half a millisecond.
const SWEPT: usize = 64;
/// How long an entity is remembered after its end.
const REMEMBERED: Ns = Ns::secs(300);
/// If a tick finds one part in so many of the ring full, the next one comes as soon as it may.
const FILLING: usize = 8;
/// How often it is looked whether memory that is free is to go back to the system, since after a burst it would stay
/// with the allocator, and whether groups have ended.
const RELEASE: Ns = Ns::secs(10);

/// A running recording. Lives on the thread that started it.
pub struct Recorder {
    bpf: Rc<Bpf>,
    probes: Vec<Running>,
    cx: Context,
    /// Records of the present tick, kept for its memory.
    staged: Vec<u8>,
    tick: Ns,
    /// The least time between two ticks while the ring stays well below full.
    calm_tick: Ns,
    ring_bytes: usize,
    cpu_records: u32,
    next: Ns,
    next_second: Ns,
    next_forget: Ns,
    next_release: Ns,
    spare: sys::Spare,
    events: u64,
    hz: u32,
    /// How many of [`Shed::ORDER`] are left out.
    shed: usize,
    /// Whether detail was asked for; `Shed` may still leave it out.
    detailed: bool,
    /// When threads were recorded again after they had been left out.
    resumed: Ns,
}

/// A probe that runs, and its source.
struct Running {
    spec: &'static ProbeSpec,
    probe: Box<dyn Probe>,
    source: SourceId,
    /// By which its ring records are known.
    number: Option<usize>,
    /// Its ring records so far that were read.
    read: u64,
}

impl Recorder {
    /// Starts everything that this host offers. A probe that cannot run is a `source` row that
    /// says why, not an error.
    ///
    /// # Errors
    /// A target, step, ring or socket that the user asked for by name is not available.
    pub fn start(config: Config) -> Result<Recorder, CollectError> {
        config.targets.iter().try_for_each(|target| target.check())?;
        sys::share_free_memory();
        let mut cx = Context::new();
        let mut running = Vec::new();
        let Config { hz, hops, ring_bytes, .. } = &config;
        let pid = std::process::id();
        let settings = format!("hz={hz} hops={hops} ring_bytes={ring_bytes} pid={pid}");
        let bpf = Rc::new(Bpf::new(config.ring_bytes));
        bpf.set_knobs(&knobs(config.cpu_records, 0, Ns::ZERO))?;
        for spec in probes::ALL.iter().copied().filter(|spec| (spec.wanted_if)(&config)) {
            let (kind, version) = (spec.source.kind, env!("CARGO_PKG_VERSION"));
            let source = cx.catalog.source(kind, RECORDER, version, &settings);
            if config.off.iter().any(|off| off == spec.name) {
                set_unavailable(&mut cx.catalog, source, "switched off");
                continue;
            }
            match (spec.start)(Start { bpf: &bpf, config: &config, cx: &mut cx, source }) {
                Ok(probe) => {
                    let number = bpf::probe_number(spec.name);
                    running.push(Running { spec, probe, source, number, read: 0 });
                }
                Err(error) if (spec.required_if)(&config) => return Err(error),
                Err(error) => set_unavailable(&mut cx.catalog, source, &error_chain(&error)),
            }
        }
        bpf.forget_kernel_types();
        let now = sys::monotonic();
        cx.rows.clock.push(wall_clock(cx.host));
        let hz = config.hz.clamp(1, 1000);
        let tick = tick_of(hz);
        Ok(Recorder {
            bpf,
            probes: running,
            cx,
            staged: Vec::new(),
            tick,
            calm_tick: config.calm_hz.map_or(Ns::ZERO, tick_of),
            ring_bytes: config.ring_bytes as usize,
            cpu_records: config.cpu_records,
            next: now + tick,
            next_second: now + Ns::secs(1),
            next_forget: now + REMEMBERED,
            next_release: now + RELEASE,
            spare: sys::Spare::default(),
            events: 0,
            hz,
            shed: 0,
            resumed: Ns::ZERO,
            detailed: false,
        })
    }

    /// Sleeps to the next tick, but no longer than `timeout`; then drains the ring and ticks the
    /// probes. Returns the rows gathered since the last call, declarations before the rows that
    /// refer to them.
    ///
    /// # Errors
    /// A failure without which no recording can go on.
    pub fn poll(&mut self, timeout: Duration) -> Result<Rows, CollectError> {
        let now = sys::monotonic();
        let latest = now.saturating_add(Ns(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX)));
        sys::sleep_until(self.next.min(latest));
        let now = sys::monotonic();
        self.gather(now);
        if now >= self.next {
            // A recorder that was stopped for a while does not catch up tick by tick.
            self.next = (self.next + self.period()).max(now);
        }
        Ok(self.cx.take_rows())
    }

    /// The last rows: the ring's rest, states that are still open, and what each source lost.
    pub fn finish(mut self) -> Rows {
        let now = sys::monotonic();
        self.gather(now);
        for running in &mut self.probes {
            running.probe.finish(now, &mut self.cx);
        }
        self.cx.attribution.end_groups(&mut self.cx.catalog, now, Ns::ZERO);
        self.count_losses();
        self.cx.rows.clock.push(wall_clock(self.cx.host));
        self.cx.take_rows()
    }

    /// Records `target` exactly from now on, with all its threads and descendants.
    ///
    /// # Errors
    /// There is no such process, or the kernel refuses.
    pub fn add_target(&mut self, target: Target) -> Result<(), CollectError> {
        target.check()?;
        for running in &mut self.probes {
            running.probe.add_target(target, &mut self.cx)?;
        }
        Ok(())
    }

    /// Records more closely, stacks for example, until called again: during an incident.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detail(&mut self, on: bool) -> Result<(), CollectError> {
        self.detailed = on;
        let is_shed = self.probes.iter().flat_map(|running| running.spec.sheds).any(|shedding| {
            matches!(shedding.how, How::NoDetail) && self.shedding().contains(&shedding.shed)
        });
        let on = on && !is_shed;
        self.probes.iter_mut().try_for_each(|running| running.probe.detail(on))
    }

    /// Leaves out the first `count` of [`Shed::ORDER`], and nothing else; the sources say so.
    ///
    /// # Errors
    /// The kernel refuses to attach again what was left out.
    pub fn shed(&mut self, count: usize) -> Result<(), CollectError> {
        let count = count.min(Shed::ORDER.len());
        let left_out = &Shed::ORDER[..count];
        if self.shedding().contains(&Shed::Threads) && !left_out.contains(&Shed::Threads) {
            self.resumed = sys::monotonic();
        }
        self.bpf.set_knobs(&knobs(self.cpu_records, count, self.resumed))?;
        let mut hz = self.hz;
        for running in &mut self.probes {
            for shedding in running.spec.sheds {
                let is_shed = left_out.contains(&shedding.shed);
                match shedding.how {
                    How::Pause => running.probe.pause(is_shed)?,
                    How::FewerTicks if is_shed => hz = self.hz.div_ceil(10),
                    // Set with all others, and below.
                    How::Knob(_) | How::NoDetail | How::FewerTicks => {}
                }
            }
        }
        self.tick = tick_of(hz);
        self.shed = count;
        self.detail(self.detailed)?;
        self.note_what_is_shed();
        Ok(())
    }

    /// Looks this often from now on, as long as the ring stays well below full.
    pub fn set_calm_hz(&mut self, hz: u32) {
        self.calm_tick = tick_of(hz);
    }

    /// What is left out now.
    pub fn shedding(&self) -> &'static [Shed] {
        &Shed::ORDER[..self.shed]
    }

    /// Steps that have begun before `before` and not ended, of threads that live.
    pub fn open_steps(&self, before: Ns) -> Vec<OpenStep> {
        let mut open = Vec::new();
        self.probes.iter().for_each(|running| running.probe.open_steps(before, &mut open));
        open
    }

    /// What threads do since their last row: states without an end.
    pub fn open_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        self.probes.iter().for_each(|running| running.probe.open_states(&mut states));
        states
    }

    /// What the recording has cost and lost so far.
    pub fn status(&self) -> Status {
        let (bpf, bpf_runs) = self.bpf.run_time();
        let dropped = self.probes.iter().map(|r| self.dropped(r)).sum();
        Status {
            events: self.events,
            dropped,
            bpf: (bpf_runs > 0).then_some(bpf),
            bpf_runs,
            cpu: sys::cpu_time(),
            rss: procfs::resident_bytes(),
        }
    }

    /// From this tick to the next.
    fn period(&self) -> Ns {
        let is_filling = self.staged.len() >= self.ring_bytes / FILLING;
        if is_filling { self.tick } else { self.tick.max(self.calm_tick) }
    }

    fn gather(&mut self, now: Ns) {
        self.cx.attribution.tick(now);
        self.bpf.drain(&mut self.staged);
        for record in bpf::records(&self.staged) {
            let Some(head) = from_bytes::<Head>(record) else { continue };
            self.events += 1;
            let owner = self.probes.iter_mut().find(|r| r.number == Some(usize::from(head.probe)));
            if let Some(running) = owner {
                running.read += 1;
                running.probe.event(head.kind, record, &mut self.cx);
            }
        }
        for running in &mut self.probes {
            if let Err(error) = running.probe.tick(now, &mut self.cx) {
                self.cx.degraded(running.source, &error_chain(&error));
            }
        }
        for target in self.cx.new_targets.take() {
            // A process that has ended meanwhile is no loss: its rows have no states.
            let _ = self.add_target(target);
        }
        if now >= self.next_second {
            self.next_second = now + Ns::secs(1);
            self.count_losses();
            self.look_for_hangs(now);
            if self.cx.catalog.len() > MANY {
                self.cx.attribution.sweep(&mut self.cx.catalog, now, SWEPT);
            }
        }
        if now >= self.next_release {
            self.next_release = now + RELEASE;
            if self.spare.is_due(procfs::resident_bytes()) {
                sys::release_free_memory();
                self.spare.given_back(procfs::resident_bytes());
            }
            self.cx.attribution.end_groups(&mut self.cx.catalog, now, groups::PATIENCE);
        }
        if now >= self.next_forget {
            self.next_forget = now + REMEMBERED;
            self.cx.catalog.forget(now - REMEMBERED);
        }
    }

    /// Tells the probes that asked for it whether a step has been open for long.
    fn look_for_hangs(&mut self, now: Ns) {
        for i in 0..self.probes.len() {
            let Some(age) = self.probes[i].spec.hang_after else { continue };
            let hangs = !self.open_steps(now.saturating_sub(age)).is_empty();
            self.probes[i].probe.step_hangs(hangs);
        }
    }

    /// Brings `source.recorded` and `source.dropped` up to date.
    fn count_losses(&mut self) {
        for i in 0..self.probes.len() {
            let running = &self.probes[i];
            let (recorded, dropped) =
                (running.read + running.probe.recorded(), self.dropped(running));
            self.cx.catalog.update_source(running.source, |s| {
                s.recorded = recorded;
                s.dropped = dropped;
            });
        }
    }

    fn dropped(&self, running: &Running) -> u64 {
        let by_ring = |number| {
            (0..self.bpf.cpu_count()).map(|i| self.bpf.cpu(i).dropped[number]).sum::<u64>()
        };
        running.number.map_or(0, by_ring)
            + running.probe.dropped()
            + self.bpf.missed(running.spec.name)
    }

    /// Writes into the notes of the sources what is left out of them.
    fn note_what_is_shed(&mut self) {
        for running in &self.probes {
            let missing: Vec<&str> = Shed::ORDER[..self.shed]
                .iter()
                .filter_map(|shed| running.spec.sheds.iter().find(|s| s.shed == *shed))
                .map(|shedding| shedding.missing)
                .collect();
            let note = format!("shed to stay within the limits: {}", missing.join("; "));
            self.cx.catalog.update_source(running.source, |s| {
                let ours = s.note.as_ref().is_none_or(|n| n.starts_with("shed"));
                if !missing.is_empty() {
                    s.state = SourceState::Degraded;
                    s.note = Some(note.as_str().into());
                } else if ours && s.state == SourceState::Degraded {
                    s.state = SourceState::Ok;
                    s.note = None;
                }
            });
        }
    }
}

/// For callers that add rows of their own.
impl Recorder {
    /// This host.
    pub fn host(&self) -> EntityId {
        self.cx.host
    }

    /// The entity as last declared.
    pub fn entity(&self, id: EntityId) -> Option<&Entity> {
        self.cx.catalog.get(id)
    }

    /// Whether a process is a target or descends from one, and not only recorded since it woke such a one.
    pub fn is_watched(&self, process: EntityId) -> bool {
        let pid = self.entity(process).and_then(|process| u32::try_from(process.number?).ok());
        pid.is_some_and(|pid| self.cx.watched.contains(&pid))
    }

    /// The first thread of a process.
    pub fn main_thread(&mut self, pid: u32) -> EntityId {
        self.cx.thread(pid, pid, None)
    }

    /// A source of the caller's own rows.
    pub fn add_source(&mut self, kind: &str, config: &str) -> SourceId {
        self.cx.catalog.source(kind, RECORDER, env!("CARGO_PKG_VERSION"), config)
    }

    /// Writes a note into a source.
    pub fn set_note(&mut self, source: SourceId, note: &str) {
        self.cx.catalog.update_source(source, |s| s.note = Some(note.into()));
    }

    /// Says how a source is, and why.
    pub fn set_state(&mut self, source: SourceId, state: SourceState, note: &str) {
        self.cx.catalog.update_source(source, |s| {
            s.state = state;
            s.note = Some(note.into());
        });
    }

    /// The track of this kind of an entity, whose rows are `source`'s.
    pub fn track(&mut self, entity: EntityId, kind: Lane<'_>, source: SourceId) -> TrackId {
        self.track_below(entity, None, kind, source)
    }

    /// The same, shown under another track: `entity` may have a track of this name beside it.
    pub fn track_below(
        &mut self,
        entity: EntityId,
        parent: Option<TrackId>,
        kind: Lane<'_>,
        source: SourceId,
    ) -> TrackId {
        self.cx.catalog.track(entity, parent, kind, source)
    }

    /// An id that no span or mark has.
    pub fn next_id(&mut self) -> Id {
        self.cx.ids.next_id()
    }
}

/// Between two of so many ticks a second.
fn tick_of(hz: u32) -> Ns {
    Ns(1_000_000_000 / i64::from(hz.clamp(1, 1000)))
}

/// The programs' knobs when the first `count` of [`Shed::ORDER`] are left out.
fn knobs(cpu_records: u32, count: usize, resumed: Ns) -> Knobs {
    let mut knobs = Knobs {
        record_ns: 1_000_000_000 / cpu_records.clamp(1, 1_000_000_000),
        resumed: resumed.0 as u64,
        ..Knobs::default()
    };
    for Shedding { shed, how, .. } in probes::ALL.iter().flat_map(|spec| spec.sheds) {
        if let How::Knob(turn) = how
            && Shed::ORDER[..count].contains(shed)
        {
            turn(&mut knobs);
        }
    }
    knobs
}

/// What the wall clock shows now, so that times of the trace can be shown as dates.
fn wall_clock(host: EntityId) -> Clock {
    let before = sys::monotonic();
    let ts_source = sys::wall();
    let after = sys::monotonic();
    let error_ns = Ns((after - before).0 / 2 + 1);
    Clock { host, clock: "CLOCK_REALTIME".into(), ts_source, ts_trace: before + error_ns, error_ns }
}

fn set_unavailable(catalog: &mut Lanes, source: SourceId, why: &str) {
    catalog.update_source(source, |s| {
        s.state = SourceState::Unavailable;
        s.note = Some(why.into());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_may_write_ten_times_as_many_records_and_a_tenth_when_it_is_too_slow() {
        assert_eq!(knobs(20_000, 0, Ns::ZERO).record_ns, 50_000);
        assert_eq!(knobs(200_000, 0, Ns::ZERO).record_ns, 5_000);
        assert_eq!(knobs(200_000, Shed::ORDER.len(), Ns::ZERO).record_ns, 50_000);
    }

    #[test]
    fn it_is_read_seldom_and_as_often_as_asked_while_the_ring_fills() {
        let config = Config { hz: 100, calm_hz: Some(20), ..Config::only(&[]) };
        let mut recorder = Recorder::start(config).unwrap();
        let step = |recorder: &mut Recorder| {
            let before = recorder.next;
            recorder.poll(Duration::from_secs(1)).unwrap();
            recorder.next - before
        };
        step(&mut recorder);
        assert!(step(&mut recorder) >= Ns::millis(50));
        recorder.detail(true).unwrap();
        assert_eq!(recorder.period(), Ns::millis(50), "an incident alone fills no ring");
        recorder.staged = vec![0; recorder.ring_bytes / 4];
        assert_eq!(recorder.period(), Ns::millis(10));
        recorder.staged = vec![0; recorder.ring_bytes / 16];
        assert_eq!(recorder.period(), Ns::millis(50));
        // Whoever asks for less gets less.
        let config = Config { hz: 5, calm_hz: Some(20), ..Config::only(&[]) };
        assert_eq!(Recorder::start(config).unwrap().period(), Ns::millis(200));
        assert_eq!(Recorder::start(Config::only(&[])).unwrap().period(), Ns::millis(10));
    }
}
