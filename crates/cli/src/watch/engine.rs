//! Rows in, news out.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuwhy_collect::{Config, OpenStep, Recorder, Shed};
use gpuwhy_derive::Accounting;
use gpuwhy_diagnose::detect::{self, Detection, Incident, Step};
use gpuwhy_diagnose::gpu::Readings;
use gpuwhy_diagnose::live::{Live, Look};
use gpuwhy_diagnose::verdict::{self, Court, Finding, Judgement, Outcome};
use gpuwhy_schema::{Discipline, EntityId, Id, Lane, Name, Ns, Part, Rows, SourceId, Span};
use gpuwhy_schema::{ThreadState, TrackId, names};
use gpuwhy_store::{Keep, Options, Ring, Writer};
use serde::Serialize;

use super::governor::{Governor, Limits, Order};
use super::rhythm::Rhythm;
use crate::analysis::{self, Around};

/// What to watch and how.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What to record.
    pub config: Config,
    /// When something is slower.
    pub detection: Detection,
    /// Where the time went.
    pub accounting: Accounting,
    /// What that means.
    pub judgement: Judgement,
    /// How much of the past is held in full.
    pub recent: Ns,
    /// How much of the trace is kept on disk; all if not said.
    pub keep: Option<Duration>,
    /// What recording may cost.
    pub limits: Limits,
    /// Whether every row is written, and not only what lies around findings.
    pub everything: bool,
    /// Whether steps are kept for [`Engine::ended`].
    pub summed: bool,
}

impl Setup {
    /// The usual, for a recording.
    pub fn new(config: Config) -> Setup {
        Setup {
            config,
            detection: Detection::default(),
            accounting: Accounting::default(),
            judgement: Judgement::default(),
            recent: Ns::secs(30),
            keep: None,
            limits: Limits::default(),
            everything: false,
            summed: false,
        }
    }
}

/// Something became slower.
#[derive(Clone, Debug, Serialize)]
pub struct Slow {
    /// When it was noticed, trace clock.
    pub at_ns: i64,
    /// When the first slow step began.
    pub since_ns: i64,
    /// Which steps, and by how much.
    pub what: String,
    /// Whose.
    pub series: Vec<String>,
}

/// A judgement.
#[derive(Clone, Debug, Serialize)]
pub struct Told {
    /// When it was passed, trace clock.
    pub at_ns: i64,
    /// What it is.
    pub finding: Finding,
    /// What would have been without the culprit.
    pub counterfactual: Option<String>,
    /// Where the culprit was when it was sampled: its callers and itself, and the share of its
    /// samples; most first.
    pub culprit_was_in: Vec<(String, f64)>,
}

/// Less, or more, is recorded from now on.
#[derive(Clone, Debug, Serialize)]
pub struct Shedding {
    /// Since when, trace clock.
    pub at_ns: i64,
    /// Why and what.
    pub says: String,
    /// What is left out now.
    pub left_out: Vec<&'static str>,
}

/// How it goes.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Since the beginning.
    pub seconds: f64,
    /// Steps so far.
    pub steps: u64,
    /// `calm`, `slow` or a class.
    pub state: String,
    /// Share of the machine that our BPF programs took in the last second.
    pub bpf_share: f64,
    /// Share of the machine that this process took in the last second.
    pub cpu_share: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Events lost so far.
    pub dropped: u64,
    /// What is left out.
    pub shedding: Vec<&'static str>,
}

/// What it was, at the end.
#[derive(Clone, Debug, Serialize)]
pub struct Ended {
    /// Where the trace is.
    pub trace: String,
    /// How long it was watched.
    pub seconds: f64,
    /// Steps seen.
    pub steps: u64,
    /// Findings told.
    pub findings: u64,
    /// Slowdowns that began and ended with our own work on what was over, and are not told.
    pub own_doing: u64,
    /// Events received.
    pub events: u64,
    /// Events lost.
    pub dropped: u64,
    /// CPU seconds of this process after its start.
    pub cpu_seconds: f64,
    /// Of these, judging.
    pub judging_seconds: f64,
    /// Of these, writing what lies around findings.
    pub keeping_seconds: f64,
    /// CPU seconds of its BPF programs, where the kernel measures them.
    pub bpf_seconds: Option<f64>,
    /// Both, of all CPUs' time.
    pub machine_share: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum News {
    /// Something became slower.
    Slow(Slow),
    /// Why; may be told again when it is seen better.
    Verdict(Box<Told>),
    /// It is over; the judgement of all of it.
    Over(Box<Told>),
    /// Less, or more, is recorded from now on.
    Shed(Shedding),
    /// How it goes, every ten seconds.
    Status(Status),
    /// The end.
    Ended(Ended),
}

/// How nice we are while we record: a tick takes microseconds, and what it misses is lost.
const RECORDING: i32 = -10;
/// How nice we are while we judge what goes on: the verdict is waited for, by whoever disturbs too.
const JUDGING: i32 = 0;
/// How nice threads are that do what nobody waits for.
const AFTERWARDS: i32 = 19;
/// The step in which our work begins has begun before it.
const OWN_BEFORE: Ns = Ns::millis(100);
/// Steps are as usual again so soon after it.
const OWN_AFTER: Ns = Ns::millis(300);
/// How long the recording waits for such work to be done on CPUs that others want; the kernel's ring
/// holds as much of 60,000 events a second.
const PATIENCE: Duration = Duration::from_millis(500);

/// Steps of a series that are looked into, on each side, while it lasts, and at its end.
const LOOKED_INTO: [usize; 2] = [40, 80];
/// How far back usual steps are looked into: rows are walked by stretches of time, so that old
/// steps cost as much again; a series with longer steps reaches further, up to [`USUAL_STEPS`].
const USUAL: Ns = Ns::millis(1500);
/// Usual steps of a series that are looked into however far back they lie.
const USUAL_STEPS: usize = 4;
/// Rows of a step arrive so long after it: the ring is drained every tick, aggregates are read at
/// 10 Hz.
const SETTLED: Ns = Ns::millis(150);
/// How often suspicious series are looked at.
const LOOK: Ns = Ns::millis(50);
/// How soon a judgement that was not decided is tried again; twice as long after each try.
const TRY: Ns = Ns::millis(250);
/// A judgement is not tried again before so many times of what the last one cost have passed.
const SHARE: i64 = 20;
/// What of an incident is looked at for where the culprit was.
const WHERE_IT_WAS: Ns = Ns::secs(4);
/// How often a decided one is looked at again while it lasts.
const REVISE: Ns = Ns::secs(10);
/// And how soon, at first, while a step hangs.
const HANG_REVISE: Ns = Ns::secs(1);
/// What was told is told again if the loss is so many times as large.
const GROWN: f64 = 4.0;
/// What is written of the time before the first slow step.
const BEFORE: Ns = Ns::secs(5);
/// What may not be lost when we are killed.
const COMMIT_EVERY: Duration = Duration::from_millis(500);
/// How often status is news.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// What was told and is not over.
struct Present {
    tried: Ns,
    tries: u32,
    /// Since when a step has hung, if one did when it was tried last.
    hung: Option<Ns>,
    class: Option<String>,
    /// The last verdict that was news.
    told: Option<Box<Told>>,
    parts: Parts,
    retained: Ns,
}

/// Parts of steps that were accounted for.
#[derive(Default)]
struct Parts {
    known: HashMap<Id, Vec<Part>>,
}

/// The recent past.
struct Recent {
    exact: Ring,
    sums: Ring,
    keep: Keep,
}

impl Recent {
    fn new(keep: Keep) -> Recent {
        let sums = Keep { bytes: keep.bytes / 4, ..keep };
        Recent { exact: Ring::new(keep), sums: Ring::new(sums), keep }
    }
}

/// The recent past, with the steps that have not ended and what threads do at present.
struct WithOpen<'a> {
    recent: &'a Recent,
    open: Rows,
}

impl Around for WithOpen<'_> {
    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let mut rows = self.recent.rows(range)?;
        rows.append(&mut self.open.clone());
        Ok(rows)
    }
}

impl Around for Recent {
    fn rows(&self, range: Range<Ns>) -> Result<Rows> {
        let mut rows = self.exact.rows(range.clone());
        let Rows { mut span, mut counter, mut step, .. } = self.sums.rows(range);
        rows.span.append(&mut span);
        rows.counter.append(&mut counter);
        rows.step.append(&mut step);
        Ok(rows)
    }
}

/// Watches.
pub struct Engine {
    setup: Setup,
    recorder: Recorder,
    writer: Writer,
    path: PathBuf,
    recent: Recent,
    step_tracks: HashSet<TrackId>,
    live: Live,
    rhythm: Rhythm,
    /// Steps that have not ended, as long as they took so far, if they hang.
    open: Vec<(OpenStep, Ns)>,
    present: Option<Present>,
    governor: Governor,
    source: SourceId,
    findings_track: TrackId,
    began: Instant,
    committed: Instant,
    told_status: Instant,
    looked: Ns,
    start: gpuwhy_collect::Status,
    judging: Ns,
    /// Of the last judgement.
    cost: Ns,
    /// When we last worked on something that was over: what is slow then and only then is slow
    /// because of us.
    own_work: (Ns, Ns),
    own_doing: u64,
    /// Steps whose parts have been written.
    accounted: HashSet<Id>,
    keeping: Ns,
    steps: u64,
    findings: u64,
    /// Steps that ended, for who sums them up; nobody may want them.
    ended: Vec<Summed>,
    sleeps: Sleeps,
    /// Which step a rank's number is, for who asks by number; the latest ones.
    numbered: VecDeque<(Option<u32>, u64, Id)>,
}

/// A step that ended, with its phases.
#[derive(Clone, Debug)]
pub struct Summed {
    /// The step.
    pub step: Step,
    /// Its number.
    pub seq: u64,
    /// Its phases: name, begin and length.
    pub phases: Vec<(Name, Ns, Ns)>,
}

/// When threads that have steps were asleep, lately.
#[derive(Default)]
struct Sleeps {
    tracks: HashMap<TrackId, EntityId>,
    lately: HashMap<EntityId, VecDeque<(Ns, Ns)>>,
}

impl Sleeps {
    /// Sleeps of one thread that are remembered.
    const REMEMBERED: usize = 1024;

    fn take(&mut self, rows: &Rows) {
        let states = rows.track.iter().filter(|t| &*t.name == names::THREAD_STATE);
        self.tracks.extend(states.map(|t| (t.id, t.entity)));
        for state in rows.state.iter().filter(|s| s.value == ThreadState::Sleep as i64) {
            let Some(dur) = state.dur else { continue };
            let Some(list) = self.tracks.get(&state.track).and_then(|t| self.lately.get_mut(t))
            else {
                continue;
            };
            if list.len() >= Sleeps::REMEMBERED {
                list.pop_front();
            }
            list.push_back((state.ts, state.ts.saturating_add(dur)));
        }
    }

    /// How long `thread` slept of `[from, to)`, if its states are recorded.
    fn within(&mut self, thread: EntityId, from: Ns, to: Ns) -> Option<Ns> {
        let list = self.lately.entry(thread).or_default();
        let slept = list
            .iter()
            .rev()
            .take_while(|s| s.1 > from)
            .map(|s| s.1.min(to).saturating_sub(s.0.max(from)).0.max(0));
        let seen = list.front().is_some_and(|first| first.0 <= from);
        let slept = slept.sum();
        seen.then_some(Ns(slept))
    }
}

/// Steps that can be asked for by their number.
const NUMBERED: usize = 1 << 14;

/// A time of the trace clock as the wall clock has it, to the tenth of a second, UTC.
pub fn wall_clock(at_ns: i64) -> String {
    let ago = gpuwhy_collect::now().0 - at_ns;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let at = now.map_or(0, |d| d.as_nanos() as i64) - ago;
    let s = at.div_euclid(1_000_000_000);
    let tenth = at.rem_euclid(1_000_000_000) / 100_000_000;
    format!("{:02}:{:02}:{:02}.{tenth}", s / 3600 % 24, s / 60 % 60, s % 60)
}

impl Engine {
    /// Starts to watch, into a new trace.
    pub fn start(path: &Path, setup: Setup) -> Result<Engine> {
        // What slows everybody should not keep us from telling of it.
        gpuwhy_collect::nice(RECORDING);
        let mut recorder = Recorder::start(setup.config.clone())
            .context("cannot record; `gpuwhy doctor` says what this host allows")?;
        let keep_recent = setup.keep.map(|k| Ns(k.as_nanos() as i64));
        let writer = Writer::create(
            path,
            Options {
                keep_recent,
                thread_begins: Some(|| gpuwhy_collect::nice(AFTERWARDS)),
                ..Default::default()
            },
        )
        .with_context(|| format!("cannot make the trace `{}`", path.display()))?;
        let cx = recorder.context();
        let source = cx.lanes.source("diagnose", "gpuwhy", env!("CARGO_PKG_VERSION"), "live");
        let lane = Lane::spans(names::FINDINGS, Discipline::Overlap);
        let findings_track = cx.lanes.track(cx.host, None, lane, source);
        let start = recorder.status();
        let now = Instant::now();
        // A third of the memory for the past leaves room for looking into it.
        let keep = Keep { bytes: setup.limits.rss as usize / 3, duration: setup.recent };
        Ok(Engine {
            recorder,
            writer,
            path: path.into(),
            recent: Recent::new(keep),
            step_tracks: HashSet::new(),
            live: Live::new(setup.detection),
            rhythm: Rhythm::default(),
            open: Vec::new(),
            present: None,
            governor: Governor::new(setup.limits, start),
            source,
            findings_track,
            began: now,
            committed: now,
            told_status: now,
            looked: Ns::ZERO,
            start,
            judging: Ns::ZERO,
            cost: Ns::ZERO,
            own_work: (Ns::MIN, Ns::MIN),
            own_doing: 0,
            accounted: HashSet::new(),
            keeping: Ns::ZERO,
            steps: 0,
            findings: 0,
            ended: Vec::new(),
            sleeps: Sleeps::default(),
            numbered: VecDeque::new(),
            setup,
        })
    }

    /// Watches for about a tick.
    pub fn turn(&mut self) -> Result<Vec<News>> {
        let rows = self.recorder.poll(Duration::from_millis(200))?;
        self.take(rows)?;
        let mut news = Vec::new();
        let now = gpuwhy_collect::now();
        if now >= self.looked.saturating_add(LOOK) {
            self.looked = now;
            self.look(now, &mut news)?;
        }
        if self.governor.is_due() {
            self.govern(now, &mut news)?;
        }
        if self.committed.elapsed() >= COMMIT_EVERY {
            self.writer.flush_journal()?;
            self.committed = Instant::now();
        }
        if self.told_status.elapsed() >= STATUS_EVERY {
            self.told_status = Instant::now();
            news.push(News::Status(self.status()));
        }
        Ok(news)
    }

    /// Whether nothing is the matter.
    pub fn is_calm(&self) -> bool {
        self.present.is_none()
    }

    /// CPU seconds so far of our BPF programs, and of this process without judging.
    pub fn cost(&self) -> (f64, f64) {
        let status = self.recorder.status();
        let bpf = status.bpf.map_or(0.0, |b| b.as_secs_f64());
        (bpf, status.cpu.saturating_sub(self.judging).as_secs_f64())
    }

    /// How it goes.
    pub fn status(&self) -> Status {
        let status = self.recorder.status();
        let state = match &self.present {
            None => "calm".to_string(),
            Some(present) => present.class.clone().unwrap_or_else(|| "slow".into()),
        };
        Status {
            seconds: self.began.elapsed().as_secs_f64(),
            steps: self.steps,
            state,
            bpf_share: self.governor.bpf_share,
            cpu_share: self.governor.cpu_share,
            rss_bytes: status.rss,
            dropped: status.dropped,
            shedding: self.recorder.shedding().iter().map(|s| s.says().1).collect(),
        }
    }

    /// Stops watching: what is not over is judged as it stands.
    pub fn finish(mut self) -> Result<(Vec<News>, Ended)> {
        let mut news = Vec::new();
        let now = gpuwhy_collect::now();
        // Nothing more will come that could touch what has ended.
        let calm = self.setup.detection.merge_within.saturating_add(Ns::secs(1));
        self.look(now, &mut news)?;
        if self.present.is_some() {
            match self.live.look(now.saturating_add(calm)) {
                Look::Over(incident) | Look::Present(incident) => {
                    self.over(&incident, now, &mut news)?;
                }
                Look::Calm => {}
            }
        }
        let status = self.recorder.status();
        let rows = self.recorder.finish();
        let (mut sums, mut exact, _) = sort(rows, &mut self.step_tracks);
        self.writer.append(&mut sums)?;
        if self.setup.everything {
            self.writer.append(&mut exact)?;
        }
        self.writer.finish()?;
        let seconds = self.began.elapsed().as_secs_f64();
        let cpu = status.cpu.saturating_sub(self.start.cpu);
        let bpf = status.bpf.map(|b| b.saturating_sub(self.start.bpf.unwrap_or(Ns::ZERO)));
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64);
        let all = cpu.as_secs_f64() + bpf.map_or(0.0, |b| b.as_secs_f64());
        let ended = Ended {
            trace: self.path.display().to_string(),
            seconds,
            steps: self.steps,
            findings: self.findings,
            own_doing: self.own_doing,
            events: status.events,
            dropped: status.dropped,
            cpu_seconds: cpu.as_secs_f64(),
            judging_seconds: self.judging.as_secs_f64(),
            keeping_seconds: self.keeping.as_secs_f64(),
            bpf_seconds: bpf.map(|b| b.as_secs_f64()),
            machine_share: all / seconds / cpus,
            rss_bytes: status.rss,
        };
        Ok((news, ended))
    }

    fn take(&mut self, mut rows: Rows) -> Result<()> {
        let lanes = self.rhythm.take(&mut rows, self.source, self.recorder.context());
        self.step_tracks.extend(lanes);
        let (mut sums, mut exact, steps) = sort(rows, &mut self.step_tracks);
        self.writer.append(&mut sums.clone())?;
        if self.setup.everything {
            // The lanes went with the sums.
            let mut all = exact.clone();
            all.entity.clear();
            all.track.clear();
            all.source.clear();
            all.clock.clear();
            self.writer.append(&mut all)?;
        }
        if self.setup.summed {
            self.sleeps.take(&exact);
        }
        self.recent.sums.push(&mut sums);
        self.recent.exact.push(&mut exact);
        self.steps += steps.len() as u64;
        for summed in steps {
            self.live.push(summed.step.clone());
            self.numbered.push_back((summed.step.rank, summed.seq, summed.step.id));
            if self.numbered.len() > NUMBERED {
                self.numbered.pop_front();
            }
            if self.setup.summed {
                self.sleeps.within(summed.step.thread, summed.step.ts, summed.step.ts);
                self.ended.push(summed);
            }
        }
        Ok(())
    }

    /// How long the thread of a step was asleep in one of its phases: in a collective that is what
    /// it waited for others, and not what it was held up itself.
    pub fn asleep(&mut self, summed: &Summed, phase: &str) -> Ns {
        let mut all = Ns::ZERO;
        for (_, from, long) in summed.phases.iter().filter(|p| *p.0 == *phase) {
            let slept = self.sleeps.within(summed.step.thread, *from, from.saturating_add(*long));
            all += slept.unwrap_or(*long);
        }
        all
    }

    /// The steps that ended since this was last asked, if [`Setup::summed`].
    pub fn ended(&mut self) -> Vec<Summed> {
        std::mem::take(&mut self.ended)
    }

    /// What this host knows of why a rank's steps of these numbers took as long as they did, whether
    /// they were found slow here or not.
    pub fn explain(&mut self, rank: u32, seqs: (u64, u64)) -> Result<Option<Finding>> {
        let wanted: HashSet<Id> = self
            .numbered
            .iter()
            .filter(|(r, seq, _)| *r == Some(rank) && (seqs.0..=seqs.1).contains(seq))
            .map(|n| n.2)
            .collect();
        let steps = self.live.steps();
        let slow: Vec<usize> =
            (0..steps.len()).filter(|&i| wanted.contains(&steps[i].id)).collect();
        let Some(incident) = detect::incident_of(steps, &slow) else { return Ok(None) };
        let told = self.judge(&incident, gpuwhy_collect::now(), LOOKED_INTO[0])?;
        Ok(Some(told.finding))
    }

    /// Looks for steps that hang.
    fn set_open(&mut self, now: Ns) {
        // What was recorded until then has arrived.
        let until = now.saturating_sub(SETTLED);
        let old = until.saturating_sub(self.setup.detection.hang);
        let mut steps = self.recorder.open_steps(old);
        steps.extend(self.rhythm.open(old, self.recorder.context()));
        if steps.is_empty() && self.open.is_empty() {
            return;
        }
        let so_far = |s: &OpenStep| Step {
            id: s.id,
            ts: s.ts,
            dur: until.saturating_sub(s.ts),
            thread: s.thread,
            rank: s.rank,
            name: s.name.clone(),
            size: s.size,
        };
        let hang: HashSet<Id> =
            self.live.set_open(steps.iter().map(so_far).collect()).iter().map(|s| s.id).collect();
        self.open = steps
            .into_iter()
            .filter(|s| hang.contains(&s.id))
            .map(|s| (s.clone(), until.saturating_sub(s.ts)))
            .collect();
    }

    /// What the drivers of GPUs said around an incident.
    fn readings(&self, lanes: &Rows, incident: &Incident) -> Readings {
        let tracks: HashSet<TrackId> =
            lanes.track.iter().filter(|t| Readings::wants(t)).map(|t| t.id).collect();
        if tracks.is_empty() {
            return Readings::default();
        }
        let range = Readings::around(incident.from, incident.to);
        // An error is told within a second of it, and exact rows are many.
        let near = incident.from.saturating_sub(Ns::secs(1))..range.end;
        let counters = self.recent.sums.rows(range).counter;
        let mut marks = self.recent.exact.rows(near).mark;
        marks.retain(|mark| tracks.contains(&mark.track));
        Readings::new(&lanes.entity, &lanes.track, &counters, &marks)
    }

    /// Rows for the steps that hang, as if they had ended now, and what threads do at present.
    fn open_rows(&self) -> Rows {
        let mut rows = Rows::default();
        for (step, dur) in &self.open {
            let OpenStep { id, ts, thread, track, seq, name, size, rank } = step.clone();
            rows.span.push(Span { id, ts, dur: Some(*dur), track, parent: None, name });
            rows.step.push(gpuwhy_schema::Step { id, ts, thread, seq, size, rank });
        }
        if !self.open.is_empty() {
            rows.state = self.recorder.going_on();
        }
        rows
    }

    fn look(&mut self, now: Ns, news: &mut Vec<News>) -> Result<()> {
        self.set_open(now);
        let look = self.live.look(now);
        if let Look::Present(incident) | Look::Over(incident) = &look
            && self.present.is_none()
            && self.is_our_doing(incident, now)
        {
            self.own_doing += u64::from(matches!(look, Look::Over(_)));
            return Ok(());
        }
        match look {
            Look::Calm => {
                // What was noticed turned out to be nothing, seen as a whole; but a verdict that was
                // told is not taken back in silence.
                let present = self.present.take();
                if present.is_some() {
                    let _ = self.recorder.detail(false);
                }
                if let Some(present) = present
                    && let Some(told) = present.told
                {
                    self.tell_end(*told, present.parts, news)?;
                }
            }
            Look::Present(incident) => self.present(&incident, now, news)?,
            Look::Over(incident) => {
                if self.present.is_none() {
                    self.present(&incident, now, news)?;
                }
                self.over(&incident, now, news)?;
            }
        }
        Ok(())
    }

    /// Whether it began and ended with work of our own, as far as can be said so soon after it.
    fn is_our_doing(&self, incident: &Incident, now: Ns) -> bool {
        let (from, to) = self.own_work;
        let begins_with_it = incident.from >= from.saturating_sub(OWN_BEFORE)
            && incident.from <= to.saturating_add(OWN_BEFORE);
        let ends_with_it = incident.to <= to.saturating_add(OWN_AFTER);
        begins_with_it && (ends_with_it || now < to.saturating_add(Ns(2 * OWN_AFTER.0)))
    }

    fn present(&mut self, incident: &Incident, now: Ns, news: &mut Vec<News>) -> Result<()> {
        if self.present.is_none() {
            let from = incident.from.saturating_sub(BEFORE);
            self.present = Some(Present {
                tried: Ns::ZERO,
                tries: 0,
                hung: None,
                class: None,
                told: None,
                parts: Parts::default(),
                retained: from,
            });
            news.push(News::Slow(self.slow(incident, now)));
            // What cannot be seen more closely is judged all the same.
            let _ = self.recorder.detail(true);
        }
        self.retain(now)?;
        let Some(present) = &self.present else { return Ok(()) };
        let hangs = !self.open.is_empty();
        let hung = present.hung.filter(|_| hangs);
        let patience = match present.class {
            // Something else has begun, and matters the more the longer it lasts.
            Some(_) if hangs => {
                hung.map_or(Ns::ZERO, |since| present.tried.saturating_sub(since).max(HANG_REVISE))
            }
            Some(_) => REVISE,
            None => {
                Ns(TRY.0 << present.tries.saturating_sub(1).min(5)).max(Ns(SHARE * self.cost.0))
            }
        };
        if present.tries > 0 && now < present.tried.saturating_add(patience) {
            return Ok(());
        }
        let told = self.judge(incident, now, LOOKED_INTO[0])?;
        let Some(present) = &mut self.present else { return Ok(()) };
        present.tried = now;
        present.tries += 1;
        present.hung = hangs.then_some(hung.unwrap_or(now));
        let class = told.finding.class.to_string();
        let decided = told.finding.outcome == Outcome::Decided;
        let told_ms = present.told.as_ref().map_or(0.0, |t| t.finding.excess_ms);
        let grown = told.finding.excess_ms >= GROWN * told_ms;
        if decided && (grown || present.class.as_ref() != Some(&class)) {
            present.class = Some(class);
            present.told = Some(Box::new(told.clone()));
            news.push(News::Verdict(Box::new(told)));
        }
        Ok(())
    }

    fn over(&mut self, incident: &Incident, now: Ns, news: &mut Vec<News>) -> Result<()> {
        // Nobody waits for it, and it would be the next disturbance.
        let _way = gpuwhy_collect::give_way(RECORDING, PATIENCE);
        let began = gpuwhy_collect::now();
        let told = self.judge(incident, now, LOOKED_INTO[1])?;
        if let Some(present) = &mut self.present {
            present.retained = present.retained.min(incident.to);
        }
        self.retain(now)?;
        let present = self.present.take();
        let _ = self.recorder.detail(false);
        self.tell_end(told, present.map(|p| p.parts).unwrap_or_default(), news)?;
        gpuwhy_collect::give_back_memory();
        self.own_work = (began, gpuwhy_collect::now());
        Ok(())
    }

    /// Tells the last of an incident, and writes it.
    fn tell_end(&mut self, told: Told, parts: Parts, news: &mut Vec<News>) -> Result<()> {
        self.findings += 1;
        let id = self.recorder.context().ids.next_id();
        let mut rows = verdict::rows(&told.finding, id, self.findings_track);
        // What was usual for one incident may have been so for the one before.
        let alive: HashSet<Id> = self.live.steps().iter().map(|s| s.id).collect();
        self.accounted.retain(|step| alive.contains(step));
        let new = parts.known.into_iter().filter(|(step, _)| self.accounted.insert(*step));
        rows.part = new.flat_map(|(_, parts)| parts).collect();
        rows.part.sort_by_key(|p| (p.ts, p.step));
        self.writer.append(&mut rows)?;
        news.push(News::Over(Box::new(told)));
        Ok(())
    }

    /// Writes what has come since the last time; not every tick, as lanes come with it.
    fn retain(&mut self, now: Ns) -> Result<()> {
        if self.setup.everything {
            return Ok(());
        }
        let Some(present) = &mut self.present else { return Ok(()) };
        let upto = now.saturating_sub(SETTLED);
        if upto.saturating_sub(present.retained) < Ns::secs(1) {
            return Ok(());
        }
        let began = gpuwhy_collect::thread_time();
        gpuwhy_collect::nice(JUDGING);
        let retained = self.recent.exact.retain(present.retained..upto, &mut self.writer);
        gpuwhy_collect::nice(RECORDING);
        retained?;
        present.retained = upto;
        self.keeping += gpuwhy_collect::thread_time() - began;
        Ok(())
    }

    fn judge(&mut self, incident: &Incident, now: Ns, most: usize) -> Result<Told> {
        let began = gpuwhy_collect::thread_time();
        let is_over = most == LOOKED_INTO[1];
        gpuwhy_collect::nice(JUDGING);
        let steps = self.live.steps();
        let mut parts =
            self.present.as_mut().map(|p| std::mem::take(&mut p.parts)).unwrap_or_default();
        let (oldest, settled) = (self.recent.exact.extent().start, now.saturating_sub(SETTLED));
        let seen = |step: &Step| step.ts >= oldest && step.end() <= settled;
        let within = |list: &[usize]| -> Vec<usize> {
            let good = |i: &&usize| parts.known.contains_key(&steps[**i].id) || seen(&steps[**i]);
            list.iter().filter(good).copied().collect()
        };
        let incident = &incident.where_it_hung(steps);
        let mut looked_into = incident.clone();
        for slowed in &mut looked_into.slowed {
            slowed.usual = within(&slowed.usual);
            let since = incident.from.saturating_sub(USUAL);
            let near = slowed.usual.iter().rev().take_while(|i| steps[**i].ts >= since).count();
            let far = slowed.usual.len() - near.max(USUAL_STEPS).min(slowed.usual.len());
            slowed.usual.drain(..far);
            slowed.slow = within(&slowed.slow);
        }
        let wanted = verdict::wanted(steps, &looked_into, most);
        let new: Vec<usize> =
            wanted.iter().filter(|i| !parts.known.contains_key(&steps[**i].id)).copied().collect();
        let around = WithOpen { recent: &self.recent, open: self.open_rows() };
        let found = analysis::account(&around, steps, &new, &self.setup.accounting)?;
        for part in found {
            parts.known.entry(part.step).or_default().push(part);
        }
        let of_wanted: Vec<Part> = wanted
            .iter()
            .filter_map(|i| parts.known.get(&steps[*i].id))
            .flatten()
            .cloned()
            .collect();
        let lanes = self.recent.sums.rows(Ns::MIN..Ns::MIN);
        let court = Court::new(&lanes).with_readings(self.readings(&lanes, incident));
        let finding = verdict::judge(steps, incident, &of_wanted, &court, &self.setup.judgement);
        let counterfactual = finding.counterfactual.as_ref().map(ToString::to_string);
        // Looked up once, at the end: it walks over all rows of some seconds.
        let culprit = finding.culprit.as_ref().filter(|_| is_over);
        let culprit_was_in = culprit.map_or(vec![], |culprit| {
            let until = incident.to.min(incident.from.saturating_add(WHERE_IT_WAS));
            where_it_was(&self.recent.exact.rows(incident.from..until), EntityId(culprit.entity))
        });
        // What has not ended has other parts when it is looked at again.
        self.open.iter().for_each(|(step, _)| _ = parts.known.remove(&step.id));
        if let Some(present) = &mut self.present {
            present.parts = parts;
        }
        gpuwhy_collect::nice(RECORDING);
        self.cost = gpuwhy_collect::thread_time() - began;
        self.judging += self.cost;
        Ok(Told { at_ns: gpuwhy_collect::now().0, finding, counterfactual, culprit_was_in })
    }

    fn slow(&self, incident: &Incident, now: Ns) -> Slow {
        let steps = self.live.steps();
        let lanes = self.recent.sums.rows(Ns::MIN..Ns::MIN);
        let mean = |list: &[usize]| {
            list.iter().map(|&i| steps[i].dur.as_millis_f64()).sum::<f64>()
                / list.len().max(1) as f64
        };
        let first = &incident.slowed[0];
        let hangs = |i: &usize| self.open.iter().any(|(step, _)| step.id == steps[*i].id);
        let what = match first.slow.iter().find(|i| hangs(i)) {
            Some(&open) => format!(
                "{} has not ended after {:.1} ms; it takes {:.1} ms usually",
                first.signature.name,
                steps[open].dur.as_millis_f64(),
                mean(&first.usual),
            ),
            None => format!(
                "{} takes {:.1} ms instead of {:.1} ms (+{:.1})",
                first.signature.name,
                mean(&first.slow),
                mean(&first.usual),
                detect::mean_excess(steps, first) / 1e6
            ),
        };
        let name = |s: &detect::Slowed| {
            let thread = lanes.entity.iter().find(|e| e.id == s.signature.thread);
            thread.map_or(String::new(), |e| format!("{} {}", e.name, e.number.unwrap_or_default()))
        };
        let mut series: Vec<String> = incident.slowed.iter().map(name).collect();
        series.sort();
        series.dedup();
        Slow { at_ns: now.0, since_ns: incident.from.0, what, series }
    }

    fn govern(&mut self, now: Ns, news: &mut Vec<News>) -> Result<()> {
        let status = self.recorder.status();
        let says = match self
            .governor
            .second(status, gpuwhy_collect::thread_time() - self.judging - self.keeping)
        {
            None => return Ok(()),
            Some(Order::GiveBack) => {
                gpuwhy_collect::give_back_memory();
                return Ok(());
            }
            Some(order @ (Order::Forget | Order::Remember)) => {
                let more = order == Order::Remember;
                let keep = &mut self.recent.keep;
                keep.bytes = if more { keep.bytes * 2 } else { keep.bytes / 2 };
                let keep = *keep;
                self.recent.exact.set_keep(keep);
                self.recent.sums.set_keep(Keep { bytes: keep.bytes / 4, ..keep });
                gpuwhy_collect::give_back_memory();
                let (rss, held) = (status.rss >> 20, keep.bytes >> 20);
                match more {
                    true => format!("{rss} MiB: at most {held} MiB of the past are held again"),
                    false => format!(
                        "{rss} MiB are more than the limit: at most {held} MiB of the past are held \
                         from now on"
                    ),
                }
            }
            Some(Order::Shed(count)) => {
                let before = self.recorder.shedding().len();
                self.recorder.shed(count)?;
                let share = 100.0 * (self.governor.bpf_share + self.governor.cpu_share);
                match count > before {
                    true => format!(
                        "recording takes {share:.2} % of the machine, beyond the limit: from now on {}",
                        Shed::ORDER[count - 1].says().1
                    ),
                    false => format!(
                        "recording takes {share:.2} % of the machine: no longer so that {}",
                        Shed::ORDER[before - 1].says().1
                    ),
                }
            }
        };
        let source = self.source;
        self.recorder.context().lanes.update_source(source, |s| {
            s.note = Some(says.as_str().into());
        });
        let left_out = self.recorder.shedding().iter().map(|s| s.says().1).collect();
        news.push(News::Shed(Shedding { at_ns: now.0, says, left_out }));
        Ok(())
    }
}

/// Where a process was when its threads were sampled: the last three functions, and the share of
/// its samples; the five most frequent.
fn where_it_was(rows: &Rows, process: EntityId) -> Vec<(String, f64)> {
    let parents: HashMap<EntityId, Option<EntityId>> =
        rows.entity.iter().map(|e| (e.id, e.parent)).collect();
    let tracks: HashSet<TrackId> = rows
        .track
        .iter()
        .filter(|t| &*t.name == names::CPU_SAMPLES)
        .filter(|t| t.entity == process || parents.get(&t.entity) == Some(&Some(process)))
        .map(|t| t.id)
        .collect();
    let nodes: HashMap<u32, (Option<u32>, u32)> =
        rows.stack.iter().map(|s| (s.id, (s.parent, s.frame))).collect();
    let frames: HashMap<u32, String> = rows
        .frame
        .iter()
        .map(|f| {
            let name = match (&*f.name, &f.module) {
                ("?", Some(module)) => format!("? of {module}"),
                (name, _) => name.to_string(),
            };
            (f.id, name)
        })
        .collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut all = 0;
    for sample in rows.sample.iter().filter(|s| tracks.contains(&s.track)) {
        let mut named = Vec::new();
        let mut at = sample.stack;
        while let Some((parent, frame)) =
            at.and_then(|id| nodes.get(&id)).filter(|_| named.len() < 3)
        {
            named.push(frames.get(frame).map_or("?", String::as_str));
            at = *parent;
        }
        named.reverse();
        *counts.entry(named.join(" > ")).or_default() += 1;
        all += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    counts.truncate(5);
    counts.into_iter().map(|(name, n)| (name, n as f64 / f64::from(all))).collect()
}

/// Parts rows into those that are written at once, those that are held, and the steps that ended.
/// Lanes go both ways.
fn sort(mut rows: Rows, step_tracks: &mut HashSet<TrackId>) -> (Rows, Rows, Vec<Summed>) {
    for track in rows.track.iter().filter(|t| &*t.name == names::STEPS) {
        step_tracks.insert(track.id);
    }
    let (of_steps, span) =
        std::mem::take(&mut rows.span).into_iter().partition(|s| step_tracks.contains(&s.track));
    rows.span = span;
    let sums = Rows {
        entity: rows.entity.clone(),
        track: rows.track.clone(),
        source: rows.source.clone(),
        clock: rows.clock.clone(),
        counter: std::mem::take(&mut rows.counter),
        step: std::mem::take(&mut rows.step),
        span: of_steps,
        ..Rows::default()
    };
    let mut steps = Vec::new();
    if !sums.step.is_empty() {
        let spans: HashMap<Id, &Span> = sums.span.iter().map(|s| (s.id, s)).collect();
        let mut phases: HashMap<Id, Vec<(Name, Ns, Ns)>> = HashMap::new();
        for span in &sums.span {
            if let (Some(parent), Some(dur)) = (span.parent, span.dur) {
                phases.entry(parent).or_default().push((span.name.clone(), span.ts, dur));
            }
        }
        for detail in &sums.step {
            let Some(span) = spans.get(&detail.id) else { continue };
            let Some(dur) = span.dur else { continue };
            let step = Step {
                id: detail.id,
                ts: span.ts,
                dur,
                thread: detail.thread,
                rank: detail.rank,
                name: span.name.clone(),
                size: detail.size,
            };
            let phases = phases.remove(&detail.id).unwrap_or_default();
            steps.push(Summed { step, seq: detail.seq, phases });
        }
        steps.sort_by_key(|s| (s.step.end(), s.step.ts, s.step.id));
    }
    (sums, rows, steps)
}
