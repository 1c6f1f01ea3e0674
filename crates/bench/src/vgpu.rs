//! `bench vgpu`: random hosts that share a GPU by GVT-g, simulated, written as CTF, imported and judged; compared with
//! the simulator's ledger, which the judgement never sees.
//!
//! # How
//! Three kinds of hosts, as many of each: a tenant whose neighbours are idle, tenants beside one with long requests, and
//! healthy ones, whose tenants ask for less than their slices. The truth of an idle neighbour is the same host
//! without it; that of a blocked tenant is the ledger's time behind another; that of another policy is the same host
//! under it, with the same requests. Besides, hosts whose guests are traced as well are joined with them (`guests`).

mod guests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use gpuwhy_diagnose::stats::Random;
use gpuwhy_engine::vgpu::{
    Options, Report, Weights, WhatIf, WhatIfReport, WhatIfTenant, replay, vgpu,
};
use gpuwhy_formats::importer;
use gpuwhy_formats::importers;
use gpuwhy_schema::terminal;
use gpuwhy_store::Bulk;
use gpuwhy_testkit::gvt::{self, Load, Policy, Setup, Trace, Vgpu};
use serde::Serialize;

use crate::result::{self, Figure, Made};

/// Arguments of `bench vgpu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hosts of each kind.
    #[arg(long, default_value_t = 200)]
    hosts: u64,
    /// What everything follows from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the results go.
    #[arg(long, default_value = "bench/results/vgpu.json")]
    output: PathBuf,
}

const CONSERVING: &str = "work-conserving";
const NO_DEBTS: &str = "no-debts";
const WEIGHTS: &str = "weights";
const MS: i64 = 1_000_000;
/// Memory for rows of an import, bytes.
const MEMORY: usize = 64 << 20;

/// A kind of host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    IdleNeighbour,
    LongNeighbour,
    Healthy,
}

/// What came of a host.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    kind: Kind,
    seed: u64,
    tenants: usize,
    requests: usize,
    /// Whether the cause was found, of the right tenant; of a healthy host, whether nothing was.
    right: bool,
    /// What else was found, which is wrong.
    wrong: Vec<String>,
    /// How far the foretold time is from the true one, share.
    error: Option<f64>,
    /// The most that a use of a tenant differs from the ledger's, share.
    use_error: f64,
    /// By policy, how far the foretold time of a tenant is from that of the same host under it, share: the worst tenant.
    what_if: BTreeMap<&'static str, f64>,
    /// The same of a replay of the policy that was in force, which users see.
    replay: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    made: Made,
    figures: BTreeMap<&'static str, Figure>,
    missed: Vec<Outcome>,
}

/// Simulates, judges and compares.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut outcomes = Vec::new();
    for kind in [Kind::IdleNeighbour, Kind::LongNeighbour, Kind::Healthy] {
        for at in 0..args.hosts {
            let seed = args.seed.wrapping_mul(1_000_003) ^ at << 2 ^ kind as u64;
            outcomes.push(one(kind, seed).with_context(|| format!("host {at} of {kind:?}"))?);
            terminal::status(format_args!("{kind:?}: {} of {}", at + 1, args.hosts));
        }
    }
    terminal::status("");
    let mut figures = figures(&outcomes);
    figures.extend(guests::figures(args.hosts / 4, args.seed)?);
    terminal::status("");
    for (name, figure) in &figures {
        let [least, most] = figure.spread;
        terminal::say(format_args!(
            "{name:<26} {:.4} ({least:.4} to {most:.4}, n {})",
            figure.value, figure.n
        ))?;
    }
    let bad = |one: &Outcome| !one.right || !one.wrong.is_empty();
    let missed: Vec<Outcome> = outcomes.into_iter().filter(bad).collect();
    result::write(&args.output, &Results { made: Made::now(), figures, missed })?;
    Ok(ExitCode::SUCCESS)
}

fn figures(all: &[Outcome]) -> BTreeMap<&'static str, Figure> {
    let of = |kind: Kind| all.iter().filter(move |one| one.kind == kind);
    let right = |kind| Figure::share(of(kind).filter(|one| one.right).count(), of(kind).count());
    let errors: Vec<f64> = of(Kind::IdleNeighbour).filter_map(|one| one.error).collect();
    let healthy = of(Kind::Healthy);
    let alarms = healthy.filter(|one| !one.right).count();
    let wrong = all.iter().filter(|one| !one.wrong.is_empty()).count();
    let uses: Vec<f64> = all.iter().map(|one| one.use_error).collect();
    let replays: Vec<f64> = all.iter().map(|one| one.replay).collect();
    let under = |policy: &str| -> Vec<f64> {
        all.iter().filter_map(|one| one.what_if.get(policy).copied()).collect()
    };
    BTreeMap::from([
        ("what_if_conserving_error", Figure::of(&under(CONSERVING))),
        ("what_if_no_debts_error", Figure::of(&under(NO_DEBTS))),
        ("what_if_weights_error", Figure::of(&under(WEIGHTS))),
        ("what_if_replay_error", Figure::of(&replays)),
        ("idle_neighbour_recall", right(Kind::IdleNeighbour)),
        ("long_neighbour_recall", right(Kind::LongNeighbour)),
        ("false_alarms", Figure::share(alarms, of(Kind::Healthy).count())),
        ("wrong_besides", Figure::share(wrong, all.len())),
        ("counterfactual_error", Figure::of(&errors)),
        ("use_error", Figure::of(&uses)),
    ])
}

/// A number between two.
fn between(random: &mut Random, from: i64, to: i64) -> i64 {
    from + random.below((to - from).max(1) as usize) as i64
}

fn load(random: &mut Random, runs_us: (i64, i64), thinks_us: (i64, i64), lasts: i64) -> Load {
    let runs = between(random, runs_us.0, runs_us.1) * 1000;
    let thinks = between(random, thinks_us.0, thinks_us.1) * 1000;
    let requests = (lasts / (runs + thinks)).max(6) as u32;
    Load {
        engine: 0,
        runs,
        spread: 0.1,
        thinks,
        requests,
        depth: 1,
        from: between(random, 1, 50) * MS,
    }
}

/// A host of a kind; the first tenant is the one that suffers.
fn setup(kind: Kind, random: &mut Random, seed: u64) -> Setup {
    let tenants = between(random, 2, 9) as usize;
    let mut weight = || [1, 2, 4, 8][random.below(4)];
    let weights: Vec<u32> = (0..tenants).map(|_| weight()).collect();
    let total: u32 = weights.iter().sum();
    let lasts = 6_000 * MS;
    let mut vgpus = Vec::new();
    for (at, &weight) in weights.iter().enumerate() {
        let loads = match (kind, at) {
            // It wants much more than its slice.
            (Kind::IdleNeighbour, 0) => vec![load(random, (2_000, 25_000), (100, 3_000), lasts)],
            (Kind::LongNeighbour, 0) => {
                vec![load(random, (2_000, 25_000), (100, 5_000), lasts / 2)]
            }
            (Kind::LongNeighbour, 1) => {
                vec![load(random, (300_000, 1_000_000), (1_000, 8_000), 3 * lasts)]
            }
            (Kind::IdleNeighbour | Kind::LongNeighbour, _) => Vec::new(),
            // It wants half of its slice, and all together half of the device.
            (Kind::Healthy, _) => {
                let share = 0.5 * f64::from(weight) / f64::from(total);
                let runs = between(random, 1_000, 6_000);
                let thinks = (runs as f64 * (1.0 / share - 1.0)) as i64;
                vec![load(random, (runs, runs + 1), (thinks, thinks + 1), lasts)]
            }
        };
        vgpus.push(Vgpu { loads, ..Vgpu::idle(weight) });
    }
    Setup::kernel(vgpus, seed)
}

fn one(kind: Kind, seed: u64) -> Result<Outcome> {
    let mut random = Random::new(seed);
    let setup = setup(kind, &mut random, seed);
    let trace = gvt::run(&setup);
    let policies = policies(&setup);
    let report = analysed(&trace, &setup, &policies)?;
    let suffers = "vGPU 1";
    let wanted = match kind {
        Kind::IdleNeighbour => Some("unused_reservation"),
        Kind::LongNeighbour => Some("blocked_by_tenant"),
        Kind::Healthy => None,
    };
    // Beside the one with long requests others are idle, but for hosts of two: their reservations are unused as well.
    let others_idle = kind == Kind::LongNeighbour && setup.vgpus.len() > 2;
    let costly = report.findings.iter().filter(|one| one.cost_ms.is_some());
    let costly = costly.filter(|one| !(others_idle && one.rule == "unused_reservation"));
    let (hits, others): (Vec<_>, Vec<_>) =
        costly.partition(|one| Some(one.rule) == wanted && one.tenant == suffers);
    let right = match kind {
        Kind::Healthy => others.is_empty(),
        _ => !hits.is_empty(),
    };
    let error = match (kind, hits.first().and_then(|one| one.counterfactual_ms)) {
        (Kind::IdleNeighbour, Some(foretold)) => {
            let alone = Setup { vgpus: setup.vgpus[..1].to_vec(), ..setup.clone() };
            let from = setup.vgpus[0].loads[0].from;
            let truth = (gvt::run(&alone).accounts[0].finished - from) as f64 / MS as f64;
            Some((foretold / truth - 1.0).abs())
        }
        _ => None,
    };
    let wrong = match kind {
        Kind::Healthy => Vec::new(),
        _ => others.iter().map(|one| format!("{} of {}", one.rule, one.tenant)).collect(),
    };
    Ok(Outcome {
        kind,
        seed,
        tenants: setup.vgpus.len(),
        requests: trace.requests.len(),
        right,
        wrong,
        error,
        use_error: use_error(&trace, &report),
        what_if: policies
            .iter()
            .zip(&report.what_if)
            .map(|((name, _, other), told)| (*name, what_if_error(other, told)))
            .collect(),
        replay: report.what_if.first().map_or(0.0, |one| one.model_error_percent / 100.0),
    })
}

/// Policies that are foretold: the name, as it is asked for, and the host that has it.
fn policies(setup: &Setup) -> Vec<(&'static str, WhatIf, Setup)> {
    let asked = |policy: Policy| {
        let Policy { work_conserving, debts } = policy;
        WhatIf { policy: replay::Policy { work_conserving, debts }, weights: Vec::new() }
    };
    let conserving = Policy { work_conserving: true, ..Policy::KERNEL };
    let forgiving = Policy { debts: false, ..Policy::KERNEL };
    let mut heavier = setup.clone();
    heavier.vgpus[0].weight *= 2;
    let weights = vec![("1".to_owned(), heavier.vgpus[0].weight)];
    vec![
        (CONSERVING, asked(conserving), Setup { policy: conserving, ..setup.clone() }),
        (NO_DEBTS, asked(forgiving), Setup { policy: forgiving, ..setup.clone() }),
        (WEIGHTS, WhatIf { weights, ..asked(Policy::KERNEL) }, heavier),
    ]
}

/// How far foretold times of tenants are from those of the host that has the policy: the worst.
fn what_if_error(other: &Setup, told: &WhatIfReport) -> f64 {
    let truth = gvt::run(other);
    let error = |one: &WhatIfTenant| {
        let at = one.name.strip_prefix("vGPU ")?.parse::<usize>().ok()? - 1;
        let own = truth.requests.iter().filter(|request| request.vgpu == at);
        let begun = own.map(|request| request.queued).min()?;
        let truly = (truth.accounts.get(at)?.finished - begun) as f64 / 1e9;
        Some((one.foretold.active_s / truly - 1.0).abs())
    };
    // A tenant of which nothing is foretold is all wrong.
    told.tenants.iter().map(|one| error(one).unwrap_or(1.0)).reduce(f64::max).unwrap_or(1.0)
}

/// The most that a tenant's time on engines differs from the ledger's.
fn use_error(trace: &Trace, report: &Report) -> f64 {
    let seconds = report.to_s - report.from_s;
    let errors = report.tenants.iter().filter_map(|one| {
        let at: usize = one.name.strip_prefix("vGPU ")?.parse().ok()?;
        let truth = trace.accounts.get(at - 1)?.busy as f64 / 1e9;
        let told: f64 = one.utilisation.values().sum::<f64>() / 100.0 * seconds;
        Some((told - truth).abs() / truth.max(1e-9))
    });
    errors.fold(0.0, f64::max)
}

/// Through CTF and a trace, as users do it.
fn analysed(
    trace: &Trace,
    setup: &Setup,
    policies: &[(&'static str, WhatIf, Setup)],
) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let out = imported(&trace.events, folder.path(), "host")?;
    let what_if = policies.iter().map(|(_, asked, _)| asked.clone()).collect();
    // Whoever runs the host knows the weights.
    let numbered = setup.vgpus.iter().enumerate();
    let weights = Weights(numbered.map(|(at, one)| ((at + 1).to_string(), one.weight)).collect());
    Ok(vgpu(&out, &Options { what_if, weights, ..Options::default() })?.report)
}

/// The trace of simulated events, through CTF.
fn imported(events: &[gvt::Event], folder: &Path, name: &str) -> Result<PathBuf> {
    let (ctf, out) = (folder.join(name), folder.join(format!("{name}.trace")));
    gvt::ctf::write(events, &ctf)?;
    import(&ctf, &out)?;
    Ok(out)
}

fn import(from: &Path, to: &Path) -> Result<()> {
    let files = [from.to_path_buf()];
    let importer = importers::find(&files)?;
    let mut import = importer.open(&files, &importer::Options { threads: 1 })?;
    let mut writer = Bulk::create(to, &gpuwhy_store::Options::default(), MEMORY)?;
    while let Some(mut batch) = import.next()? {
        writer.append_attrs(batch.attrs.take())?;
        writer.append(&mut batch.rows)?;
    }
    writer.finish()?;
    Ok(())
}
