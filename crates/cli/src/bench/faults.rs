//! The labelled benchmark of host interference: sessions of the watched workload in which faults
//! of random kind, strength, place and time are injected, and every judge is asked about each.
//!
//! A session is one run of the workload under `gpuwhy watch`'s engine; faults follow each other
//! with calm between them. What is chosen follows from the seed, and what has fewest accepted
//! trials comes first. A trial is accepted if all was calm before it and its steps took at least a
//! tenth longer during it; trials without effect are kept and told, but not scored.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use gpuwhy_diagnose::baselines::{self, Window};
use gpuwhy_diagnose::darzi::HZ;
use gpuwhy_diagnose::detect::Step;
use gpuwhy_diagnose::stats::{Random, quantile, sorted};
use gpuwhy_diagnose::verdict::{Finding, Outcome};
use gpuwhy_store::Trace;
use gpuwhy_testkit::inject::{Injector, Kind, Label, Placement, Spec};
use gpuwhy_testkit::steploop::Ready;
use serde::{Deserialize, Serialize};

use super::faults_score as score;
use super::result::{self, Made};
use super::trial::{self, Effect, Workload};
use crate::analysis;
use crate::args::BenchFaults;
use crate::watch::{Engine, News, Setup};

/// The least change of a mean that counts as an effect.
const EFFECT: f64 = 0.10;
/// A fault and its judgement have nothing to do with what was more than this before it.
const BEFORE: Duration = Duration::from_secs(5);
/// How long after its end an injection may still show.
const AFTER: Duration = Duration::from_secs(3);
/// One trial in so many is of two faults at once.
const PAIRS: usize = 10;
/// One trial in so many is of no fault.
const BENIGN: usize = 12;

/// What a judge said of a trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Its class, `unexplained` if it is not decided.
    pub class: String,
    /// Whether it is decided.
    pub decided: bool,
    /// How sure it is.
    pub confidence: f64,
    /// The same before it was calibrated.
    pub raw_confidence: f64,
    /// Its classes, best first, at most three.
    pub classes: Vec<String>,
    /// The processes that it names, best first, at most three: pid and comm.
    pub named: Vec<(i64, String)>,
    /// Ms a step.
    pub excess_ms: f64,
    /// Ms a step.
    pub unexplained_ms: f64,
}

/// What a verdict says of the culprit's share, and what the calm steps before say.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counterfactual {
    /// Mean of the slow steps, ms.
    pub mean_ms: f64,
    /// What it would be without the culprit, ms.
    pub without_ms: f64,
    /// What it was without the culprit, before it came, ms.
    pub truth_ms: f64,
    /// p99 of the slow steps, ms.
    pub p99_ms: f64,
    /// What it would be without the culprit, ms.
    pub p99_without_ms: f64,
    /// What it was without the culprit, before it came, ms.
    pub p99_truth_ms: f64,
}

/// One trial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The session, by its seed.
    pub session: u64,
    /// Its number in the session.
    pub number: u32,
    /// What was injected.
    pub kind: String,
    /// What was injected with it.
    pub second: Option<String>,
    /// The right class; none if there should be no finding.
    pub class: Option<String>,
    /// The second's class.
    pub second_class: Option<String>,
    /// Whom to blame.
    pub culprit_pid: Option<i64>,
    /// How strong it was.
    pub intensity: f64,
    /// `other` or `same` container.
    pub placement: String,
    /// When it began, ns on the clock of the session's trace.
    pub onset_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// Since the session's beginning.
    pub onset_s: f64,
    /// How long it lasted.
    pub seconds: f64,
    /// What it did to the steps.
    pub effects: Vec<Effect>,
    /// Whether that is enough.
    pub slowed: bool,
    /// Whether nothing was the matter when it began.
    pub calm_before: bool,
    /// From the onset to the first word of it.
    pub detected_s: Option<f64>,
    /// From the onset to the first verdict.
    pub verdict_s: Option<f64>,
    /// The first verdict.
    pub first: Option<Answer>,
    /// The judgement at its end.
    pub last: Option<Answer>,
    /// When it is said to have begun, less when it did.
    pub onset_error_s: Option<f64>,
    /// Without the culprit.
    pub counterfactual: Option<Counterfactual>,
    /// What the others said: their classes, best first, at most three.
    pub baselines: BTreeMap<String, Vec<String>>,
    /// What the published method said without a group of probes.
    pub ablated: BTreeMap<String, Option<String>>,
    /// The class that the stored trace tells this program later: with all probes, and without a
    /// group; none if it tells of nothing.
    #[serde(default)]
    pub again: BTreeMap<String, Option<String>>,
}

impl Row {
    /// Whether it counts.
    pub fn accepted(&self) -> bool {
        self.calm_before && (self.slowed || self.class.is_none())
    }
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Session {
    /// What everything in it follows from.
    pub seed: u64,
    /// When and by which program.
    pub made: Made,
    /// How long it was.
    pub seconds: f64,
    /// Of that, without any fault, benign changes included.
    pub calm_seconds: f64,
    /// Steps taken.
    pub steps: u64,
    /// Incidents told while there was no fault: what each said.
    pub false_alarms: Vec<String>,
    /// Slowdowns that the watcher takes for its own doing and does not tell.
    #[serde(default)]
    pub own_doing: u64,
    /// Share of the machine that watching took.
    pub machine_share: f64,
    /// Resident memory at the end.
    pub rss_bytes: u64,
    /// The same once a minute, MiB.
    #[serde(default)]
    pub rss_mib: Vec<f64>,
    /// CPU seconds of judging.
    pub judging_seconds: f64,
    /// What was left out to stay within the limits, and when, s.
    pub shed: Vec<(f64, String)>,
}

/// The file.
#[derive(Serialize, Deserialize)]
pub struct Results {
    made: Made,
    figures: BTreeMap<String, result::Figure>,
    /// The same for every judge.
    judges: Vec<score::Judge>,
    classes: Vec<score::OfClass>,
    confusion: Vec<score::Confused>,
    ablation: Vec<score::Ablated>,
    reliability: Vec<score::Bin>,
    sessions: Vec<Session>,
    trials: Vec<Row>,
}

/// Runs sessions until the time is over, and scores all that there are.
pub fn run(args: &BenchFaults) -> Result<ExitCode> {
    let (mut sessions, mut trials): (Vec<Session>, Vec<Row>) = Default::default();
    if !args.fresh
        && let Ok(text) = std::fs::read_to_string(&args.output)
    {
        let old: Results = serde_json::from_str(&text).with_context(|| {
            format!("`{}` is not a result; --fresh replaces it", args.output.display())
        })?;
        (sessions, trials) = (old.sessions, old.trials);
    }
    if args.rejudge {
        super::faults_again::judge(&args.traces, &mut trials)?;
        save(&args.output, &sessions, &trials)?;
        print!("{}", score::table(&sessions, &trials));
        return Ok(ExitCode::SUCCESS);
    }
    std::fs::create_dir_all(&args.traces)?;
    let end = Instant::now() + Duration::from_secs(60 * args.minutes);
    while Instant::now() < end {
        let seed = sessions.iter().map(|s| s.seed + 1).max().unwrap_or(0).max(args.seed);
        let left = end.saturating_duration_since(Instant::now());
        let long = left.min(Duration::from_secs(60 * args.session_minutes));
        if long < Duration::from_secs(45) {
            break;
        }
        let path = stored(&args.traces, seed);
        match session(&path, seed, long, args, &trials) {
            Ok((session, rows)) => {
                for row in &rows {
                    eprintln!("{}", score::line(row));
                }
                for (at, says) in &session.shed {
                    eprintln!("SHED at {at:.0} s: {says}");
                }
                for alarm in &session.false_alarms {
                    eprintln!("FALSE ALARM: {alarm}");
                }
                trials.extend(rows);
                sessions.push(session);
            }
            Err(error) => eprintln!("session {seed}: not run: {error:#}"),
        }
        save(&args.output, &sessions, &trials)?;
        if args.drop_traces {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
    save(&args.output, &sessions, &trials)?;
    print!("{}", score::table(&sessions, &trials));
    Ok(ExitCode::SUCCESS)
}

/// Where a session's trace is.
pub fn stored(traces: &Path, seed: u64) -> std::path::PathBuf {
    traces.join(format!("session-{seed}.trace"))
}

fn save(path: &Path, sessions: &[Session], trials: &[Row]) -> Result<()> {
    let results = Results {
        made: Made::now(),
        figures: score::figures(sessions, trials),
        judges: score::judges(trials),
        classes: score::classes(trials),
        confusion: score::confusion(trials),
        ablation: score::ablation(trials),
        reliability: score::reliability(trials),
        sessions: sessions.to_vec(),
        trials: Vec::new(),
    };
    // One line a trial: it is read by programs, and hundreds of them lie in the repository.
    let rows: Vec<String> = trials.iter().map(line).collect::<Result<_, _>>()?;
    let rows = format!("\"trials\": [\n{}\n]", rows.join(",\n"));
    let text = serde_json::to_string_pretty(&results)?.replace("\"trials\": []", &rows);
    result::write_text(path, &(text + "\n"))
}

/// A trial as a short line: no field that says nothing, and six digits of what was measured.
fn line(row: &Row) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(row)?;
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    shorten(&mut value);
    serde_json::to_string(&value)
}

fn shorten(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Number(number) if number.is_f64() => {
            let short = number.as_f64().and_then(|f| format!("{f:.5e}").parse().ok());
            if let Some(short) = short.and_then(serde_json::Number::from_f64) {
                *number = short;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        _ => {}
    }
}

/// What is to be injected next.
struct Choice {
    kind: Kind,
    second: Option<Kind>,
    intensity: f64,
    placement: Placement,
    gap: Duration,
    long: Duration,
}

/// Whether a fault can be made from within the workload's container.
fn can_be_inside(kind: Kind) -> bool {
    use Kind::*;
    matches!(
        kind,
        CpuHog | CpuHogMany | OdirectWriter | FsyncStorm | CacheEvict | UdpBurst | LockHolder
    )
}

fn choose(random: &mut Random, args: &BenchFaults, trials: &[Row], now: &[Row]) -> Choice {
    let of_class = |class: &str| {
        let all = trials.iter().chain(now);
        // Those of this session have not been accepted yet; most of them will be.
        all.filter(|r| r.class.as_deref() == Some(class) && r.second.is_none()).count()
    };
    let kinds: Vec<Kind> = Kind::ALL
        .into_iter()
        .filter(|kind| args.only.is_empty() || args.only.contains(kind))
        .collect();
    let benign: Vec<Kind> = kinds.iter().copied().filter(|k| k.class().is_none()).collect();
    let faults: Vec<Kind> = kinds.iter().copied().filter(|k| k.class().is_some()).collect();
    let pick = |random: &mut Random, list: &[Kind]| list[random.below(list.len())];
    let mut choice = Choice {
        kind: Kind::None,
        second: None,
        intensity: [0.7, 1.0, 1.0, 1.5][random.below(4)],
        placement: Placement::Other,
        gap: Duration::from_millis(2000 + random.below(2000) as u64),
        long: Duration::from_millis(2500 + random.below(2000) as u64),
    };
    if faults.is_empty() || (!benign.is_empty() && random.below(BENIGN) == 0) {
        choice.kind = pick(random, &benign);
        return choice;
    }
    let mut classes: Vec<&str> = faults.iter().filter_map(|k| k.class()).collect();
    classes.sort_unstable();
    classes.dedup();
    let fewest = classes.iter().map(|c| of_class(c)).min().unwrap_or(0);
    classes.retain(|c| of_class(c) <= fewest + 1);
    let class = classes[random.below(classes.len())];
    let of: Vec<Kind> = faults.iter().copied().filter(|k| k.class() == Some(class)).collect();
    choice.kind = pick(random, &of);
    if can_be_inside(choice.kind) && random.below(2) == 0 {
        choice.placement = Placement::Same;
    }
    if random.below(PAIRS) == 0 {
        let others: Vec<Kind> =
            faults.iter().copied().filter(|k| k.class() != Some(class)).collect();
        choice.second = (!others.is_empty()).then(|| pick(random, &others));
    }
    choice
}

/// Something that the engine said, and when we heard it.
pub struct Heard {
    /// When, trace clock.
    pub at: i64,
    /// What.
    pub news: News,
}

/// A trial that was made but not scored yet.
struct Made1 {
    label: Label,
    second: Option<Label>,
    choice: Choice,
    calm_before: bool,
    /// From when the injector was started to when it had ended: it prepares, and cleans up.
    busy: (i64, i64),
}

/// The watched workload.
pub struct Stage {
    /// Who watches.
    pub engine: Engine,
    /// What it said.
    pub heard: Vec<Heard>,
    /// The workload, ready.
    pub ready: Ready,
    _workload: Workload,
}

impl Stage {
    /// Starts the workload and watches it into `path`, as `change` of the usual says.
    pub fn open(path: &Path, change: impl FnOnce(&mut Setup)) -> Result<Stage> {
        crate::record::make_room(path, true)?;
        let mut workload = Workload::spawn()?;
        let mut setup = Setup::new(workload.config());
        change(&mut setup);
        let mut engine = Engine::start(path, setup)?;
        workload.go()?;
        let mut heard = Vec::new();
        loop {
            let news = engine.turn()?;
            let at = gpuwhy_collect::now().0;
            heard.extend(news.into_iter().map(|news| Heard { at, news }));
            if let Some(ready) = workload.ready()? {
                return Ok(Stage { engine, heard, ready, _workload: workload });
            }
        }
    }

    /// A disturbance of the workload, as strong as usual.
    pub fn spec(&self, kind: Kind, seconds: f64) -> Spec {
        let (after, intensity, placement) = (0.0, 1.0, Placement::Other);
        Spec { kind, after, seconds, intensity, placement, target: self.ready.clone() }
    }

    fn turn(&mut self) -> Result<()> {
        let news = self.engine.turn()?;
        let at = gpuwhy_collect::now().0;
        self.heard.extend(news.into_iter().map(|news| Heard { at, news }));
        Ok(())
    }

    /// Watches for so long.
    pub fn run_for(&mut self, long: Duration) -> Result<()> {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.turn()?;
        }
        Ok(())
    }

    /// Until nothing is the matter, but no longer than `at_most`; whether it is so.
    pub fn calm(&mut self, at_most: Duration) -> Result<bool> {
        let end = Instant::now() + at_most;
        while !self.engine.is_calm() && Instant::now() < end {
            self.run_for(Duration::from_millis(200))?;
        }
        Ok(self.engine.is_calm())
    }

    /// Disturbs, and watches meanwhile.
    pub fn inject(&mut self, spec: Vec<Spec>) -> Result<Vec<Label>> {
        let end = Instant::now() + Duration::from_secs(60);
        let running: Vec<_> = spec
            .into_iter()
            .map(|spec| {
                std::thread::spawn(move || {
                    // We record at a high priority, which children of ours would inherit.
                    gpuwhy_collect::nice(0);
                    Injector::start(spec)?.finish()
                })
            })
            .collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            if Instant::now() > end {
                bail!("an injector did not end in time");
            }
            self.turn()?;
        }
        let label = |thread: std::thread::JoinHandle<Result<Label>>| {
            thread.join().map_err(|_| anyhow!("the injector's thread panicked"))?
        };
        running.into_iter().map(label).collect()
    }
}

fn session(
    path: &Path,
    seed: u64,
    long: Duration,
    args: &BenchFaults,
    before: &[Row],
) -> Result<(Session, Vec<Row>)> {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(1));
    let mut stage = Stage::open(path, |setup| setup.everything = args.everything)?;
    let began = Instant::now();
    let zero = gpuwhy_collect::now().0;
    stage.run_for(Duration::from_secs(12))?;
    let mut made: Vec<Made1> = Vec::new();
    let mut chosen: Vec<Row> = Vec::new();
    let mut rss_mib: Vec<f64> = Vec::new();
    while began.elapsed() + Duration::from_secs(18) < long {
        if rss_mib.len() as u64 <= began.elapsed().as_secs() / 60 {
            rss_mib.push((stage.engine.status().rss_bytes as f64 / 1048576.0).round());
        }
        let choice = choose(&mut random, args, before, &chosen);
        stage.run_for(choice.gap)?;
        let calm_before = stage.calm(Duration::from_secs(10))?;
        let spec = |kind| Spec {
            intensity: choice.intensity,
            placement: choice.placement,
            ..stage.spec(kind, choice.long.as_secs_f64())
        };
        let specs = [Some(choice.kind), choice.second].into_iter().flatten().map(spec).collect();
        let since = gpuwhy_collect::now().0;
        match stage.inject(specs) {
            Ok(mut labels) => {
                let label = labels.remove(0);
                chosen.push(blank(seed, made.len() as u32, &choice));
                let (second, busy) = (labels.pop(), (since, gpuwhy_collect::now().0));
                made.push(Made1 { label, second, choice, calm_before, busy });
            }
            Err(error) => eprintln!("{}: not injected: {error:#}", choice.kind.name()),
        }
        stage.run_for(AFTER)?;
    }
    stage.calm(Duration::from_secs(10))?;
    let Stage { engine, mut heard, .. } = stage;
    let (last, told) = engine.finish()?;
    let at = gpuwhy_collect::now().0;
    heard.extend(last.into_iter().map(|news| Heard { at, news }));

    let trace = Trace::open(path)?;
    let steps = analysis::steps(&trace, &analysis::lanes(&trace)?)?;
    let series = crate::darzi::series(&trace)?;
    let windows: Vec<(i64, i64)> =
        made.iter().map(|m| (m.label.onset_ns as i64, end_of(m))).collect();
    let mut rows = Vec::new();
    for (number, one) in made.iter().enumerate() {
        let mut row = blank(seed, number as u32, &one.choice);
        fill(&mut row, one, zero, &steps, &heard);
        if let Some(series) = &series {
            ask_others(&mut row, one, series, &windows);
        }
        rows.push(row);
    }
    let faulty = |m: &&Made1| m.label.class.is_some();
    let disturbed: f64 = made
        .iter()
        .filter(faulty)
        .map(|m| (m.busy.1 - m.busy.0) as f64 / 1e9 + AFTER.as_secs_f64())
        .sum();
    let touches = |from: i64, to: i64| {
        let near = AFTER.as_nanos() as i64;
        made.iter().filter(faulty).any(|m| from < m.busy.1 + near && to > m.busy.0)
    };
    let false_alarms = heard
        .iter()
        .filter_map(|h| match &h.news {
            News::Over(told) if !touches(told.finding.from_ns, told.finding.to_ns) => {
                Some(told.finding.summary.clone())
            }
            _ => None,
        })
        .collect();
    let seconds = told.seconds;
    let session = Session {
        seed,
        made: Made::now(),
        seconds,
        calm_seconds: (seconds - disturbed).max(0.0),
        steps: told.steps,
        false_alarms,
        own_doing: told.own_doing,
        machine_share: told.machine_share,
        rss_bytes: told.rss_bytes,
        rss_mib,
        judging_seconds: told.judging_seconds,
        shed: heard
            .iter()
            .filter_map(|h| match &h.news {
                News::Shed(shed) => Some(((h.at - zero) as f64 / 1e9, shed.says.clone())),
                _ => None,
            })
            .collect(),
    };
    Ok((session, rows))
}

fn end_of(made: &Made1) -> i64 {
    let second = made.second.as_ref().map_or(0, |l| l.end_ns);
    made.label.end_ns.max(second) as i64
}

fn blank(session: u64, number: u32, choice: &Choice) -> Row {
    Row {
        session,
        number,
        kind: choice.kind.name().into(),
        second: choice.second.map(|k| k.name().into()),
        class: choice.kind.class().map(str::to_owned),
        second_class: choice.second.and_then(Kind::class).map(str::to_owned),
        culprit_pid: None,
        intensity: choice.intensity,
        placement: match choice.placement {
            Placement::Other => "other".into(),
            Placement::Same => "same".into(),
        },
        onset_ns: 0,
        end_ns: 0,
        onset_s: 0.0,
        seconds: choice.long.as_secs_f64(),
        effects: Vec::new(),
        slowed: false,
        calm_before: false,
        detected_s: None,
        verdict_s: None,
        first: None,
        last: None,
        onset_error_s: None,
        counterfactual: None,
        baselines: BTreeMap::new(),
        ablated: BTreeMap::new(),
        again: BTreeMap::new(),
    }
}

fn answer(finding: &Finding) -> Answer {
    let decided = finding.outcome == Outcome::Decided;
    Answer {
        class: finding.class.into(),
        decided,
        confidence: finding.confidence,
        raw_confidence: finding.raw_confidence,
        classes: finding.causes.iter().take(3).map(|c| c.class.to_string()).collect(),
        named: super::injectors::named(finding).into_iter().take(3).collect(),
        excess_ms: finding.excess_ms,
        unexplained_ms: finding.unexplained_ms,
    }
}

/// What the watcher said of a trial.
fn fill(row: &mut Row, made: &Made1, zero: i64, steps: &[Step], heard: &[Heard]) {
    let (onset, end) = (made.label.onset_ns as i64, end_of(made));
    let since = onset - BEFORE.as_nanos() as i64;
    (row.onset_ns, row.end_ns) = (onset, end);
    row.onset_s = (onset - zero) as f64 / 1e9;
    row.seconds = (end - onset) as f64 / 1e9;
    row.culprit_pid = made.label.culprit_pid.map(i64::from);
    row.calm_before = made.calm_before;
    row.effects = trial::effects(steps, since, onset, end);
    row.slowed = row.effects.iter().any(|e| e.during_ms > e.before_ms * (1.0 + EFFECT));
    let until = end + AFTER.as_nanos() as i64;
    let after = |at: i64| (at - onset) as f64 / 1e9;
    for one in heard.iter().filter(|h| h.at >= onset) {
        match &one.news {
            News::Slow(_) if one.at < until => {
                row.detected_s.get_or_insert(after(one.at));
            }
            News::Verdict(told) if one.at < until && row.first.is_none() => {
                row.verdict_s = Some(after(one.at));
                row.first = Some(answer(&told.finding));
            }
            News::Over(told) if told.finding.from_ns < end && told.finding.to_ns > onset => {
                let more = row.last.as_ref().is_none_or(|l| told.finding.excess_ms > l.excess_ms);
                if !more {
                    continue;
                }
                row.last = Some(answer(&told.finding));
                row.onset_error_s = Some(after(told.finding.from_ns));
                let usual: Vec<f64> = steps
                    .iter()
                    .filter(|s| s.ts.0 >= since && s.end().0 <= onset)
                    .map(|s| s.dur.as_millis_f64())
                    .collect();
                row.counterfactual = told.finding.counterfactual.as_ref().map(|c| Counterfactual {
                    mean_ms: c.mean_ms,
                    without_ms: c.mean_without_ms,
                    truth_ms: gpuwhy_diagnose::stats::mean(&usual),
                    p99_ms: c.p99_ms,
                    p99_without_ms: c.p99_without_ms,
                    p99_truth_ms: quantile(&sorted(usual.iter().copied()), 0.99),
                });
            }
            _ => {}
        }
    }
}

/// What the others say of a trial: they are given its onset, a window of up to 5 s from there on,
/// and the last 30 s without any fault as their baseline.
fn ask_others(row: &mut Row, made: &Made1, series: &crate::darzi::Series, windows: &[(i64, i64)]) {
    let sample = |ns: i64| ((ns - series.from.0).max(0) as usize) * HZ / 1_000_000_000;
    let n = series.latency.len();
    let (onset, end) = (sample(made.label.onset_ns as i64).min(n), sample(end_of(made)).min(n));
    let settled = (AFTER.as_secs_f64() * HZ as f64) as usize;
    let calm = |i: &usize| {
        windows.iter().all(|(from, to)| *i < sample(*from) || *i > sample(*to) + settled)
    };
    let mut base: Vec<usize> = (0..onset).rev().filter(calm).take(crate::darzi::BASE).collect();
    base.reverse();
    if base.len() < 5 * HZ || end <= onset {
        return;
    }
    let picked: Vec<usize> = base.iter().copied().chain(onset..end.min(onset + 500)).collect();
    let take = |values: &[f64]| -> Vec<f64> { picked.iter().map(|i| values[*i]).collect() };
    let metrics: Vec<baselines::Metric> = series
        .metrics
        .iter()
        .map(|m| baselines::Metric {
            name: m.name.clone(),
            class: m.class,
            values: take(&m.values),
        })
        .collect();
    let latency = take(&series.latency);
    let (base, at) = ((0, base.len()), (base.len(), picked.len()));
    let window = Window { latency: &latency, metrics: &metrics, base, at };
    let classes = |ranked: Vec<baselines::Scored>| {
        let mut out: Vec<String> = Vec::new();
        for (metric, _) in ranked {
            let class = metrics[metric].class.to_string();
            if out.len() < 3 && !out.contains(&class) {
                out.push(class);
            }
        }
        out
    };
    for (name, method) in baselines::ALL {
        row.baselines.insert(name.to_string(), classes(method(&window)));
    }
    for (group, within) in baselines::GROUPS {
        let ranked = baselines::darzi_with(&window, |name| !within(name));
        row.ablated.insert(group.to_string(), classes(ranked).into_iter().next());
    }
}
