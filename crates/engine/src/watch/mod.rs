//! `gpuwhy watch`: a recorder whose rows are judged as they arrive, into a trace of bounded size.
//!
//! [`Watcher`] drives a [`LiveJudge`]: it polls the recorder, writes aggregates and steps at once and
//! exact rows around findings, and keeps the whole within its limits ([`governor`]). Everything runs
//! on one thread, so what a judgement may cost is decided here: the kernel's ring holds some 100 ms
//! of events of a busy machine while a judgement runs, and longer work gives way to everybody else.

mod allowance;
pub mod governor;
mod promises;
mod standby;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpuwhy_collect::{Config, Recorder, Shed};
use gpuwhy_diagnose::detect::Incident;
use gpuwhy_diagnose::verdict::{Finding, Outcome};
use gpuwhy_schema::{Discipline, Lane, Ns, Rows, SourceId, State, TrackId, names};
use gpuwhy_store::{Keep, Options, Writer};

use crate::error::{Error, Result};
use crate::live::{
    self, Broken, Conclusion, Ended, Event, LiveJudge, Phase, References, SETTLED, Shedding, Slow,
    Sorted, Status, Trouble, seconds_since_1970,
};
use crate::trace_output::{TraceOutput, why};
use crate::units::live_rounds::LiveRounds;
use crate::units::steps::FinishedStep;
use allowance::Allowance;
use governor::{Governor, Limits, Order};
use promises::Promises;
pub use promises::promised;
use standby::Standby;

/// What to watch and how.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// What to record.
    pub config: Config,
    /// How to judge.
    pub judge: live::Options,
    /// How much of the past is held in full.
    pub recent: Ns,
    /// How much of the trace is kept on disk; all of it if `None`.
    pub keep: Option<Duration>,
    /// What recording may cost.
    pub limits: Limits,
    /// Whether every row is written, and not only what lies around findings.
    pub everything: bool,
    /// By which share of the time the allowance for rows around findings grows.
    pub all_rows: f64,
    /// The file of what steps took in recordings before.
    pub reference: Option<PathBuf>,
}

impl WatchOptions {
    /// The defaults, for a recording.
    pub fn new(config: Config) -> WatchOptions {
        WatchOptions {
            config,
            judge: live::Options::default(),
            recent: Ns::secs(30),
            keep: None,
            limits: Limits::default(),
            everything: false,
            all_rows: 0.01,
            reference: None,
        }
    }
}

/// What a watch came to.
pub struct Closed {
    /// The last events.
    pub events: Vec<Event>,
    /// The summary.
    pub ended: Ended,
    /// What could not be judged or completed.
    pub error: Option<Error>,
}

/// Niceness while recording: a tick takes microseconds, and what it misses is lost.
const RECORDING: i32 = -10;
/// Niceness while a current incident is judged: the verdict is waited for, but so is the workload.
const JUDGING: i32 = 0;
/// Niceness of threads whose work nobody waits for.
const BACKGROUND: i32 = 19;
/// How long the recording waits for background work to be done on CPUs that others use; the kernel's
/// ring holds as much of 60,000 events a second.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a judgement that is waited for gives way to everybody else: where a CPU has time to spare it takes
/// none from anybody, and where none has, it is not late by more than this.
const GIVES_WAY: Duration = Duration::from_millis(100);
/// How long the recording gives way while it takes what has gathered during a judgement.
const CATCHES_UP: Duration = Duration::from_millis(50);
/// Niceness of a judgement that nobody waits for once it gave way for [`PATIENCE`]: on CPUs that are never idle it takes a tenth
/// of one from then on.
const PATIENT: i32 = 10;
/// How long a tick is at most.
const TICK: Duration = Duration::from_millis(200);
/// How often suspicious series are looked at,
const LOOK: Ns = Ns::millis(50);
/// where a look takes no more CPU time than one part in so many of that: the steps of an incident that lasts are many,
const LOOK_COST: i64 = 50;
/// and no less often than this.
const LOOK_AT_LEAST: Ns = Ns::millis(500);
/// How often the recorder looks while nothing is slow or why was told, unless the kernel's ring fills: half of what it costs
/// is by the look and not by the event.
const CALM_HZ: u32 = 10;
/// The same while a verdict is awaited: before each look at the series.
const SLOW_HZ: u32 = 20;
/// Exact rows are written from this long before the first slow step on.
const BEFORE: Ns = Ns::secs(5);
/// How often the reference is written while the watch lasts: what is killed has lost no more of it.
const REFERENCE_EVERY: Duration = Duration::from_secs(600);
/// How often the status is an event.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// How long threads whose work nobody waits for give way to everybody else before they take a nice thread's share: the
/// journals that they seal wait on disk.
const BACKGROUND_GIVES_WAY: Duration = Duration::from_secs(5);

fn is_decided(verdict: &live::Verdict) -> bool {
    verdict.finding.outcome == Outcome::Decided
}

/// Called by each thread whose work nobody waits for.
fn in_background() -> Box<dyn std::any::Any> {
    Box::new(gives_way(BACKGROUND, BACKGROUND_GIVES_WAY))
}

/// A thread gives way to everybody else for so long, and is as nice as this from then on.
fn gives_way(niceness: i32, at_most: Duration) -> gpuwhy_collect::IdlePriority {
    let guard = gpuwhy_collect::idle_priority(niceness, at_most);
    // Also what it has if that is over before its work is.
    gpuwhy_collect::nice(niceness);
    guard
}

/// A running watch.
pub struct Watcher {
    options: WatchOptions,
    recorder: Recorder,
    output: TraceOutput,
    path: PathBuf,
    judge: LiveJudge,
    promises: Promises,
    standby: Standby,
    rounds: LiveRounds,
    governor: Governor,
    source: SourceId,
    findings_track: TrackId,
    began: Instant,
    status_sent: Instant,
    reference_written: Instant,
    looked: Ns,
    look_every: Ns,
    start: gpuwhy_collect::Status,
    /// Up to when exact rows of the current incident were written,
    retained: Option<Ns>,
    /// whether its cause was told,
    told: bool,
    /// and how much may still be written of it.
    allowance: Allowance,
    /// What was recorded while something was judged aside.
    gathered: Vec<Rows>,
    /// Whether something was judged since the last tick.
    judged: bool,
    /// CPU time of judging, in all,
    judging: Ns,
    /// and what of this thread's own went to judging and to writing exact rows.
    judging_here: Ns,
    keeping: Ns,
}

impl Watcher {
    /// Starts to watch, into a new trace.
    ///
    /// # Errors
    /// The host cannot be recorded, or the trace cannot be made.
    pub fn start(path: &Path, options: WatchOptions) -> Result<Watcher> {
        let references = options.reference.as_deref().map(References::open).transpose()?;
        // What slows everybody must not keep us from reporting it.
        gpuwhy_collect::nice(RECORDING);
        let config = Config { calm_hz: Some(CALM_HZ), ..options.config.clone() };
        let mut recorder = Recorder::start(config).map_err(Error::Start)?;
        let store = Options {
            keep_recent: options.keep.map(|k| Ns(k.as_nanos() as i64)),
            thread_begins: Some(in_background),
            ..Default::default()
        };
        let socket = options.config.agent_socket.as_ref();
        let standby = Standby::new(socket.and_then(|s| s.socket.parent()).map(Path::to_path_buf));
        let writer = Writer::create(path, store)?;
        let source = recorder.add_source("diagnose", "live");
        let track = Lane::spans(names::FINDINGS, Discipline::Overlap);
        let findings_track = recorder.track(recorder.host(), track, source);
        let start = recorder.status();
        let now = Instant::now();
        // A third of the memory for the past leaves room for judging it.
        let keep = Keep { bytes: options.limits.rss as usize / 3, duration: options.recent };
        let mut judge = LiveJudge::new(options.judge, keep);
        references.into_iter().for_each(|references| judge.set_references(references));
        Ok(Watcher {
            output: TraceOutput::new(writer, &mut recorder),
            recorder,
            path: path.into(),
            judge,
            promises: Promises::default(),
            standby,
            rounds: LiveRounds::default(),
            governor: Governor::new(options.limits, start),
            source,
            findings_track,
            began: now,
            status_sent: now,
            reference_written: now,
            looked: Ns::ZERO,
            look_every: LOOK,
            start,
            retained: None,
            told: false,
            allowance: Allowance::new(options.all_rows),
            gathered: Vec::new(),
            judged: false,
            judging: Ns::ZERO,
            judging_here: Ns::ZERO,
            keeping: Ns::ZERO,
            options,
        })
    }

    /// Records for about one tick, and judges what arrived. That rows cannot be written is an event
    /// and no error.
    ///
    /// # Errors
    /// The host or the recent past cannot be read; another tick may succeed.
    pub fn tick(&mut self) -> Result<Vec<Event>> {
        // What has gathered during a judgement is much at once, and no more urgent than that was.
        let catches_up = std::mem::take(&mut self.judged)
            .then(|| gpuwhy_collect::idle_priority(RECORDING, CATCHES_UP));
        let latest = self.recorder.poll(TICK)?;
        let mut broken = Vec::new();
        for rows in std::mem::take(&mut self.gathered).into_iter().chain([latest]) {
            broken.extend(self.promises.broken(&rows));
            self.take(rows);
        }
        drop(catches_up);
        let mut events = Vec::new();
        let now = gpuwhy_collect::now();
        for broken in broken {
            events.push(Event::Broken(self.explained(broken)?));
        }
        // A tick is as long as this, and comes some microseconds early or late.
        if now >= self.looked.saturating_add(Ns(self.look_every.0 / 10 * 9)) {
            self.looked = now;
            self.look(now, &mut events)?;
            self.standby.hear(self.judge.lost_on_gpu());
            self.recorder.set_calm_hz(if self.judge.is_awaited() { SLOW_HZ } else { CALM_HZ });
        }
        if self.governor.is_due() {
            events.extend(self.govern(now)?);
        }
        self.output.commit(&mut self.recorder);
        let trouble = |says| Event::Trouble(Trouble { at_ns: now.0, says });
        events.extend(self.output.take_news().into_iter().map(trouble));
        if self.reference_written.elapsed() >= REFERENCE_EVERY && self.judge.is_calm() {
            self.reference_written = Instant::now();
            let _low_priority = gpuwhy_collect::idle_priority(RECORDING, PATIENCE);
            let written = self.judge.write_reference(seconds_since_1970());
            events.extend(written.err().map(|error| trouble(why(&error))));
        }
        if self.status_sent.elapsed() >= STATUS_EVERY {
            self.status_sent = Instant::now();
            events.push(Event::Status(self.status()));
        }
        Ok(events)
    }

    /// Whether nothing is slower than usual.
    pub fn is_calm(&self) -> bool {
        self.judge.is_calm()
    }

    /// CPU seconds so far of our BPF programs, and of this process without judging.
    pub fn cost(&self) -> (f64, f64) {
        let status = self.recorder.status();
        let bpf = status.bpf.map_or(0.0, |b| b.as_secs_f64());
        (bpf, status.cpu.saturating_sub(self.judging).as_secs_f64())
    }

    /// State and cost now.
    pub fn status(&self) -> Status {
        let status = self.recorder.status();
        Status {
            seconds: self.began.elapsed().as_secs_f64(),
            steps: self.judge.steps(),
            units: self.rounds.units(),
            state: self.judge.state(),
            bpf_share: self.governor.bpf_share,
            cpu_share: self.governor.cpu_share,
            rss_bytes: status.rss,
            dropped: status.dropped,
            shedding: self.recorder.shedding().iter().map(|s| s.missing()).collect(),
        }
    }

    /// Stops watching: what is not over is judged as it stands.
    ///
    /// # Errors
    /// The trace cannot be completed.
    pub fn finish(self) -> Result<(Vec<Event>, Ended)> {
        let Closed { events, ended, error } = self.close();
        error.map_or(Ok((events, ended)), Err)
    }

    /// As [`Watcher::finish`], but says what was seen also if the trace cannot be completed.
    pub fn close(mut self) -> Closed {
        let mut events = Vec::new();
        let judged = self.last_look(&mut events);
        let reference = self.judge.write_reference(seconds_since_1970());
        let status = self.recorder.status();
        let (in_full, left_out) = self.allowance.used();
        if left_out > Ns::ZERO {
            let seconds = left_out.as_secs_f64();
            let says = format!("of {seconds:.0} s of incidents not all rows are kept: --all-rows");
            self.recorder.set_note(self.source, &says);
        }
        let rows = self.recorder.finish();
        let Sorted { aggregates: mut last, mut exact } = self.judge.recent().sort(rows);
        if self.options.everything {
            last.append(&mut exact);
        }
        let closed = self.output.close(last);
        let now = gpuwhy_collect::now().0;
        let trouble = |says| Event::Trouble(Trouble { at_ns: now, says });
        events.extend(closed.news.into_iter().map(trouble));
        events.extend(reference.err().map(|error| trouble(why(&error))));
        let seconds = self.began.elapsed().as_secs_f64();
        let cpu = status.cpu.saturating_sub(self.start.cpu);
        let bpf = status.bpf.map(|b| b.saturating_sub(self.start.bpf.unwrap_or(Ns::ZERO)));
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
        let all = cpu.as_secs_f64() + bpf.map_or(0.0, |b| b.as_secs_f64());
        let ended = Ended {
            trace: self.path.display().to_string(),
            seconds,
            steps: self.judge.steps(),
            units: self.rounds.units(),
            findings: self.judge.findings(),
            own_doing: self.judge.own_doing(),
            as_before: self.judge.as_before(),
            events: status.events,
            dropped: status.dropped,
            lost_rows: closed.written.lost,
            exact_seconds: in_full.as_secs_f64(),
            exact_left_out_seconds: left_out.as_secs_f64(),
            complete: closed.error.is_none(),
            command_status: None,
            cpu_seconds: cpu.as_secs_f64(),
            judging_seconds: self.judging.as_secs_f64(),
            keeping_seconds: self.keeping.as_secs_f64(),
            bpf_seconds: bpf.map(|b| b.as_secs_f64()),
            machine_share: all / seconds / cpus,
            rss_bytes: status.rss,
        };
        Closed { events, ended, error: closed.error.or(judged.err()) }
    }

    /// Judges what is not over.
    fn last_look(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let now = gpuwhy_collect::now();
        self.look(now, events)?;
        if let Some(incident) = self.judge.last_look(now) {
            self.over(&incident, now, events)?;
        }
        Ok(())
    }

    /// The steps that ended since the last call, each with how long its thread slept in the phase
    /// `collective`, if [`live::Options::collect_steps`].
    pub fn ended_steps(&mut self, collective: &str) -> Vec<(FinishedStep, Ns)> {
        let steps = self.judge.ended_steps();
        let off_cpu = self.judge.off_cpu();
        steps
            .into_iter()
            .map(|step| {
                let slept = off_cpu.slept_in_phase(&step, collective);
                (step, slept)
            })
            .collect()
    }

    /// A source for what becomes of reports to others, such as a correlator; [`Watcher::note`] says it.
    pub fn add_source(&mut self, kind: &str, config: &str) -> SourceId {
        self.recorder.add_source(kind, config)
    }

    /// Writes a note into a source of [`Watcher::add_source`].
    pub fn note(&mut self, source: SourceId, note: &str) {
        self.recorder.set_note(source, note);
    }

    /// What this host knows of why a rank's steps of these numbers took as long as they did, whether
    /// they were found slow here or not.
    ///
    /// # Errors
    /// Their rows cannot be read.
    pub fn explain(&mut self, rank: u32, seqs: (u64, u64)) -> Result<Option<Finding>> {
        let states = self.open_states();
        self.judging(|judge, now| judge.explain(rank, seqs, now, states))
    }

    /// With what was slow since the requests began that took too long.
    fn explained(&mut self, broken: Broken) -> Result<Broken> {
        let _low_priority = gpuwhy_collect::idle_priority(RECORDING, GIVES_WAY);
        let (from, to) = (promises::began(&broken), Ns(broken.at_ns));
        let because = self.judging(|judge, now| judge.slow_between(from, to, now))?;
        Ok(Broken { because, ..broken })
    }

    fn take(&mut self, mut rows: Rows) {
        let tracks = self.rounds.take(&mut rows, self.source, &mut self.recorder);
        self.judge.recent().add_step_tracks(tracks);
        let rows = self.judge.recent().sort(rows);
        self.output.append(&mut rows.aggregates.clone());
        if self.options.everything {
            // Entities and tracks went with the aggregates.
            let mut exact = rows.exact.clone();
            exact.entity.clear();
            exact.track.clear();
            exact.source.clear();
            exact.clock.clear();
            self.output.append(&mut exact);
        }
        self.judge.push(rows);
    }

    fn look(&mut self, now: Ns, events: &mut Vec<Event>) -> Result<()> {
        let since = self.judge.hanging_since(now);
        let mut open = self.recorder.open_steps(since);
        open.extend(self.rounds.open(since, &self.recorder));
        self.judge.set_open(open, now);
        let began = gpuwhy_collect::thread_time();
        let phase = self.judge.look(now);
        let took = gpuwhy_collect::thread_time() - began;
        self.look_every = Ns(took.0 * LOOK_COST).clamp(LOOK, LOOK_AT_LEAST);
        match phase {
            Phase::Calm => self.sample(now)?,
            Phase::Withdrawn(conclusion) => {
                self.retains_no_more(now);
                let _ = self.recorder.detail(false);
                if let Some(conclusion) = conclusion {
                    self.write(conclusion, events);
                }
            }
            Phase::Lasts(incident) => self.lasts(&incident, now, events)?,
            Phase::Over(incident) => {
                if self.judge.is_calm() {
                    self.lasts(&incident, now, events)?;
                }
                self.over(&incident, now, events)?;
            }
        }
        Ok(())
    }

    /// Takes a sample of what is usual, for the reference: nobody waits for it.
    fn sample(&mut self, now: Ns) -> Result<()> {
        if !self.judge.is_sample_due(now) {
            return Ok(());
        }
        let began = gpuwhy_collect::now();
        self.judging_aside(|judge, _| judge.sample(now))?;
        self.judge.set_own_work(began, gpuwhy_collect::now());
        Ok(())
    }

    /// Tells that an incident has begun.
    fn tell(&mut self, slow: Slow, incident: &Incident, now: Ns, events: &mut Vec<Event>) {
        events.push(Event::Slow(slow));
        self.retained = Some(incident.from.saturating_sub(BEFORE));
        self.told = false;
        self.allowance.begins(now);
    }

    /// Tells that an incident has begun if that is to be told now, and looks closely from then on.
    fn begin(&mut self, incident: &Incident, now: Ns, events: &mut Vec<Event>) {
        if let Some(slow) = self.judge.begin(incident, now) {
            self.tell(slow, incident, now, events);
            // What cannot be seen more closely is judged all the same.
            let _ = self.recorder.detail(true);
        }
    }

    /// An incident that has not ended: reported once, and examined when that is due.
    fn lasts(&mut self, incident: &Incident, now: Ns, events: &mut Vec<Event>) -> Result<()> {
        self.begin(incident, now, events);
        let is_due = self.judge.is_due(now);
        if !is_due && !self.retains(now) {
            return Ok(());
        }
        let idle = gpuwhy_collect::idle_priority(RECORDING, GIVES_WAY);
        let verdict = if is_due {
            let states = self.open_states();
            self.judging(|judge, _| judge.examine(incident, now, states))
        } else {
            Ok(None)
        };
        // Why it is slow may be known before it was told that it is.
        if matches!(verdict, Ok(Some(_))) {
            self.begin(incident, now, events);
        }
        self.told |= matches!(&verdict, Ok(Some(verdict)) if is_decided(verdict));
        // The verdict is waited for, and the rows are not.
        self.retain(now);
        drop(idle);
        if let Some(mut verdict) = verdict? {
            verdict.at_ns = gpuwhy_collect::now().0;
            events.push(Event::Verdict(verdict));
        }
        Ok(())
    }

    /// An incident that has ended. Nobody waits for its last judgement, and at full speed that would
    /// be the next disturbance.
    fn over(&mut self, incident: &Incident, now: Ns, events: &mut Vec<Event>) -> Result<()> {
        let began = gpuwhy_collect::now();
        let states = self.open_states();
        let mut conclusion =
            self.judging_aside(|judge, _| judge.conclude(incident, now, states))?;
        let _low_priority = gpuwhy_collect::idle_priority(RECORDING, PATIENCE);
        if let Some(slow) = conclusion.as_mut().and_then(|one| one.began.take()) {
            self.tell(slow, incident, now, events);
        }
        self.told |= conclusion.as_ref().is_some_and(|one| is_decided(&one.verdict));
        self.retained = self.retained.map(|retained| retained.min(incident.to));
        self.retain(now);
        self.retains_no_more(incident.to);
        let _ = self.recorder.detail(false);
        if let Some(mut conclusion) = conclusion {
            conclusion.verdict.at_ns = gpuwhy_collect::now().0;
            self.write(conclusion, events);
        }
        gpuwhy_collect::release_free_memory();
        self.judge.set_own_work(began, gpuwhy_collect::now());
        Ok(())
    }

    /// Writes the end of an incident, and reports it.
    fn write(&mut self, conclusion: Conclusion, events: &mut Vec<Event>) {
        let id = self.recorder.next_id();
        self.output.append(&mut conclusion.rows(id, self.findings_track));
        events.push(Event::Over(conclusion.verdict));
    }

    /// Whether exact rows that have arrived since the last time are to be written; not every tick, as entities and
    /// tracks come with them.
    fn retains(&self, now: Ns) -> bool {
        let retained = self.retained.filter(|_| !self.options.everything);
        let is_late = |since| now.saturating_sub(SETTLED + since) >= Ns::secs(1);
        retained.is_some_and(is_late) && self.allowance.has(self.told)
    }

    /// The rows of an incident that ended then are written, as far as they may be.
    fn retains_no_more(&mut self, until: Ns) {
        if let Some(retained) = self.retained.take().filter(|_| !self.options.everything) {
            self.allowance.refuse(&(retained..until));
        }
    }

    /// Writes exact rows that have arrived since the last time, if that is due.
    fn retain(&mut self, now: Ns) {
        let Some(retained) = self.retained.filter(|_| self.retains(now)) else { return };
        let range = self.allowance.take(retained..now.saturating_sub(SETTLED), self.told);
        self.judged = true;
        let began = gpuwhy_collect::thread_time();
        gpuwhy_collect::nice(JUDGING);
        self.retained = Some(range.end);
        self.output.with(|writer| self.judge.retain(range, writer));
        gpuwhy_collect::nice(RECORDING);
        self.keeping += gpuwhy_collect::thread_time() - began;
    }

    /// The states that threads are in, if a step hangs.
    fn open_states(&self) -> Vec<State> {
        if self.judge.hangs() { self.recorder.open_states() } else { Vec::new() }
    }

    /// Runs a judgement at the priority of one, and accounts for its CPU time.
    fn judging<T>(&mut self, work: impl FnOnce(&mut LiveJudge, Ns) -> Result<T>) -> Result<T> {
        let began = gpuwhy_collect::thread_time();
        gpuwhy_collect::nice(JUDGING);
        let result = work(&mut self.judge, gpuwhy_collect::now());
        gpuwhy_collect::nice(RECORDING);
        let cost = gpuwhy_collect::thread_time() - began;
        self.judging_here += cost;
        self.has_judged(cost);
        result
    }

    /// Accounts for the CPU time of a judgement.
    fn has_judged(&mut self, cost: Ns) {
        self.judge.note_own_cpu(gpuwhy_collect::now(), cost);
        self.judged = true;
        self.judging += cost;
    }

    /// Runs a judgement that nobody waits for on a thread of its own, and records meanwhile: it gives way to everybody else
    /// without that an event is lost, however long that takes.
    fn judging_aside<T: Send>(
        &mut self,
        work: impl FnOnce(&mut LiveJudge, Ns) -> Result<T> + Send,
    ) -> Result<T> {
        let judge = &mut self.judge;
        let judges = move || {
            let _gives_way = gives_way(PATIENT, PATIENCE);
            let result = work(judge, gpuwhy_collect::now());
            (result, gpuwhy_collect::thread_time())
        };
        let (recorder, gathered) = (&mut self.recorder, &mut self.gathered);
        let (result, cost) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("gpuwhy-judge".into());
            let judging = thread.spawn_scoped(scope, judges).map_err(|source| Error::Run {
                program: "gpuwhy-judge".to_owned(),
                hint: "",
                source,
            })?;
            while !judging.is_finished() {
                // What fails will fail again in the next tick, which says it: the judgement is not lost for that.
                let Ok(rows) = recorder.poll(TICK) else { break };
                gathered.push(rows);
            }
            Ok::<_, Error>(judging.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        self.has_judged(cost);
        result
    }

    /// Keeps the last second's cost within the limits.
    fn govern(&mut self, now: Ns) -> Result<Option<Event>> {
        let status = self.recorder.status();
        let recording = gpuwhy_collect::thread_time() - self.judging_here - self.keeping;
        let Some(order) = self.governor.second(status, recording) else { return Ok(None) };
        let says = match order {
            Order::GiveBack => {
                gpuwhy_collect::release_free_memory();
                return Ok(None);
            }
            Order::Forget | Order::Remember => {
                let more = order == Order::Remember;
                let held = self.judge.recent().resize(more) >> 20;
                gpuwhy_collect::release_free_memory();
                let rss = status.rss >> 20;
                match more {
                    true => format!("{rss} MiB: at most {held} MiB of the past are held again"),
                    false => format!(
                        "{rss} MiB are more than the limit: at most {held} MiB of the past are held \
                         from now on"
                    ),
                }
            }
            Order::Shed(count) => {
                let before = self.recorder.shedding().len();
                self.recorder.shed(count)?;
                let share = 100.0 * (self.governor.bpf_share + self.governor.cpu_share);
                match count > before {
                    true => format!(
                        "recording takes {share:.2} % of the machine, beyond the limit: from now on {}",
                        Shed::ORDER[count - 1].missing()
                    ),
                    false => format!(
                        "recording takes {share:.2} % of the machine; this no longer holds: {}",
                        Shed::ORDER[before - 1].missing()
                    ),
                }
            }
        };
        let source = self.source;
        self.recorder.set_note(source, &says);
        let left_out = self.recorder.shedding().iter().map(|s| s.missing()).collect();
        Ok(Some(Event::Shed(Shedding { at_ns: now.0, says, left_out })))
    }
}
