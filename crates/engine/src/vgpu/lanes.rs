//! What the page draws, on one time axis: engines by tenant, queues, requests, slices, virtual CPUs.

use std::collections::BTreeMap;

use gpuwhy_derive::vgpu::vcpu::{self, Party};
use gpuwhy_derive::vgpu::{Request, Stage};
use gpuwhy_report::detail::{Detail, Pyramid, band_pyramid, line_pyramid, share_pyramid};
use gpuwhy_report::vgpu::Arrows;
use gpuwhy_report::{Band, Lane, Piece, TimeTrack};

use super::turns::Owned;
use super::{Vgpu, order};

/// Rows of requests of a tenant that are drawn.
const ROWS: usize = 4;
/// Arrows that a page holds at most; a window with more has none.
const ARROWS: usize = 50_000;
/// What a request goes through, as [`stages`] numbers it.
pub(super) const STAGES: [&str; 5] =
    ["queued in vGPU", "queued in host", "ready", "on an engine", "in the guest"];
/// What a virtual CPU does, in the order of [`vcpu::Phase`].
pub(super) const PHASES: [&str; 4] = ["running", "preempted", "runnable", "halted"];

/// The lanes of a page.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    pub tracks: Vec<TimeTrack>,
    /// From requests to the engines that begin them.
    pub arrows: Vec<Arrows>,
    /// What the legend explains.
    pub legend: Vec<String>,
    /// The longest column of a finest level that leaves something out, ns.
    pub finest: Option<i64>,
    /// Requests for which there was no row.
    pub not_drawn: usize,
}

/// Draws everything, with as much detail.
pub(super) fn lanes(of: &Vgpu, detail: Detail) -> Lanes {
    let lanes = Lanes::default();
    let engines = BTreeMap::new();
    let mut out = Draw { window: of.window, detail, lanes, engines, arrows: 0 };
    for engine in order::engines(&of.model) {
        let known = &of.model.engines[engine];
        let group = format!("device {}", known.device);
        out.engine(of, engine, &group, &known.name);
    }
    for owned in &of.owned {
        out.owned(owned);
    }
    for tenant in order::tenants(&of.model) {
        out.tenant(of, tenant);
    }
    out.machines(of);
    if out.arrows > ARROWS {
        out.lanes.arrows.clear();
    }
    out.lanes
}

struct Draw {
    window: (i64, i64),
    detail: Detail,
    lanes: Lanes,
    /// The lane in which it is seen who has an engine.
    engines: BTreeMap<usize, usize>,
    /// Arrows so far; no more are gathered than a page holds and one request has.
    arrows: usize,
}

/// A row of requests.
struct Row {
    /// When the last one ends, ns.
    until: i64,
    bands: Vec<Band>,
    /// When an engine begins one, in page time, and the lane of the engine.
    begins: Vec<(i64, usize)>,
}

/// The number of a name in a list, which gets it if it has it not yet.
fn place(names: &mut Vec<String>, name: &str) -> u32 {
    let known = names.iter().position(|one| one == name);
    known.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    }) as u32
}

impl Draw {
    fn length(&self) -> i64 {
        (self.window.1 - self.window.0).max(1)
    }

    /// A stretch as a band in page time; `None` outside of the window.
    fn band(&self, from: i64, to: i64, value: u32) -> Option<Band> {
        let (from, to) = (from.max(self.window.0), to.min(self.window.1));
        (from < to).then(|| Band(from - self.window.0, to - self.window.0, value))
    }

    fn track<T>(
        &mut self,
        (group, label): (&str, &str),
        pyramid: Pyramid<T>,
        lane: impl FnOnce(Pyramid<T>) -> Lane,
    ) {
        let finest = pyramid.finest;
        self.lanes.finest = self.lanes.finest.max(finest);
        let lane = lane(pyramid);
        let names = match &lane {
            Lane::Bands { values, .. } | Lane::Stack { values, .. } => values.as_slice(),
            Lane::Line { .. } => &[],
        };
        for name in names {
            place(&mut self.lanes.legend, name);
        }
        self.lanes.tracks.push(TimeTrack { group: group.into(), label: label.into(), lane });
    }

    fn bands(&mut self, at: (&str, &str), values: Vec<String>, bands: &[Band]) {
        let pyramid = band_pyramid(bands, self.length(), self.detail);
        self.track(at, pyramid, |p| Lane::Bands { values, levels: p.levels });
    }

    fn line(&mut self, at: (&str, &str), unit: &str, pieces: &[Piece]) {
        let pyramid = line_pyramid(pieces, self.length(), self.detail);
        self.track(at, pyramid, |p| Lane::Line { unit: unit.into(), levels: p.levels });
    }

    /// An engine: its use by tenant, and who has it when.
    fn engine(&mut self, of: &Vgpu, engine: usize, group: &str, name: &str) {
        let own = of.requests.iter().filter(|one| one.engine == engine);
        let mut runs: Vec<(i64, i64, usize)> =
            own.flat_map(|one| one.executions.iter().map(|e| (e.from, e.to, one.tenant))).collect();
        runs.sort_unstable();
        let mut values = Vec::new();
        let mut bands = Vec::with_capacity(runs.len());
        for (from, to, tenant) in runs {
            let value = place(&mut values, &of.model.tenants[tenant].name);
            bands.extend(self.band(from, to, value));
        }
        if bands.is_empty() {
            return;
        }
        self.had((group, name), "use by tenant", values, &bands);
        self.engines.insert(engine, self.lanes.tracks.len() - 1);
    }

    /// An engine of which each turn of a context is known.
    fn owned(&mut self, owned: &Owned) {
        let bands = owned.turns.iter().map(|&(from, to, who)| self.band(from, to, who as u32));
        let bands: Vec<Band> = bands.flatten().collect();
        if !bands.is_empty() {
            self.had((&owned.gpu, &owned.name), "turns by process", owned.names.clone(), &bands);
        }
    }

    /// Who had an engine: the share of each, and when.
    fn had(
        &mut self,
        (group, name): (&str, &str),
        what: &str,
        values: Vec<String>,
        bands: &[Band],
    ) {
        let shares = share_pyramid(bands, values.len(), self.length(), self.detail);
        let stacked = values.clone();
        let label = format!("{name}, {what}");
        self.track((group, &label), shares, |p| Lane::Stack { values: stacked, levels: p.levels });
        self.bands((group, &format!("{name}, who has it")), values, bands);
    }

    /// A tenant: how many of its requests wait, its slice, and its requests.
    fn tenant(&mut self, of: &Vgpu, tenant: usize) {
        let name = of.model.tenants[tenant].name.clone();
        let own: Vec<&Request> = of.requests.iter().filter(|one| one.tenant == tenant).collect();
        let queue = self.queue(&own);
        if !queue.is_empty() {
            self.line((&name, "requests that wait"), "requests", &queue);
        }
        let slices = of.model.slices.iter().filter(|slice| slice.tenant == tenant);
        let slices: Vec<(i64, i64)> = slices.map(|slice| (slice.at, slice.left)).collect();
        let mut pieces = Vec::with_capacity(slices.len());
        for (at, &(from, left)) in slices.iter().enumerate() {
            let to = slices.get(at + 1).map_or(self.window.1, |next| next.0);
            let left = left as f64 / 1e6;
            pieces.extend(self.band(from, to, 0).map(|band| Piece(band.0, band.1, left, left)));
        }
        if !pieces.is_empty() {
            self.line((&name, "slice left (below 0: debt)"), "ms", &pieces);
        }
        self.requests(&name, of, &own);
    }

    /// How many requests wait.
    fn queue(&self, own: &[&Request]) -> Vec<Piece> {
        let steps = waiting(own.iter().copied(), self.window);
        let mut out: Vec<Piece> = Vec::with_capacity(steps.len());
        for (at, &(from, waiting)) in steps.iter().enumerate() {
            let to = steps.get(at + 1).map_or(self.window.1, |next| next.0);
            let (from, to) = (from - self.window.0, to - self.window.0);
            if from < to {
                out.push(Piece(from, to, waiting as f64, waiting as f64));
            }
        }
        out
    }

    /// The requests of a tenant, in as many rows as there are at once.
    fn requests(&mut self, name: &str, of: &Vgpu, own: &[&Request]) {
        let mut rows: Vec<Row> = Vec::new();
        let in_guest = own.iter().any(|one| one.in_guest().is_some());
        let known = if in_guest { &STAGES[..] } else { &STAGES[..STAGES.len() - 1] };
        let values: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        let mut sorted: Vec<&&Request> = own.iter().collect();
        sorted.sort_by_key(|one| one.queued().or(one.began()));
        for request in sorted {
            let Some(from) = request.queued().or(request.began()) else { continue };
            let to = request.ended().unwrap_or(of.window.1);
            if self.band(from, to, 0).is_none() {
                continue;
            }
            let at = rows.iter().position(|row| row.until <= from).unwrap_or(rows.len());
            if at >= ROWS {
                self.lanes.not_drawn += 1;
                continue;
            }
            if at == rows.len() {
                rows.push(Row { until: i64::MIN, bands: Vec::new(), begins: Vec::new() });
            }
            rows[at].until = to;
            let bands = stages(request, to);
            let bands = bands.into_iter().filter_map(|(a, b, value)| self.band(a, b, value));
            rows[at].bands.extend(bands);
            if let Some(&engine) =
                self.engines.get(&request.engine).filter(|_| self.arrows <= ARROWS)
            {
                let before = rows[at].begins.len();
                let begins = request.executions.iter().map(|one| one.from);
                let begins = begins.filter(|at| (self.window.0..self.window.1).contains(at));
                rows[at].begins.extend(begins.map(|at| (at - self.window.0, engine)));
                self.arrows += rows[at].begins.len() - before;
            }
        }
        for (at, row) in rows.into_iter().enumerate().filter(|(_, row)| !row.bands.is_empty()) {
            self.bands((name, &format!("requests, row {}", at + 1)), values.clone(), &row.bands);
            let track = self.lanes.tracks.len() - 1;
            self.lanes.arrows.push(Arrows { track, at: row.begins });
        }
    }

    /// What a machine uses much of.
    fn uses(&mut self, of: &Vgpu, group: &str, machine: &str) {
        let Some(placement) = &of.report.placement else { return };
        let Some(known) = placement.machines.iter().find(|one| one.name == machine) else { return };
        let ns = |seconds: f64| (seconds * 1e9).round() as i64;
        let mut values = Vec::new();
        let mut bands = Vec::new();
        for one in &known.phases {
            let value = place(&mut values, one.uses);
            bands.extend(self.band(ns(one.from_s), ns(one.to_s), value));
        }
        self.bands((group, "uses much of"), values, &bands);
    }

    /// Virtual CPUs: what they do, and who has their CPU while they wait.
    fn machines(&mut self, of: &Vgpu) {
        let Some(on_cpus) = &of.on_cpus else { return };
        for (machine, number, states) in on_cpus.vcpus() {
            let machine = on_cpus.name(Party::Machine(machine)).to_owned();
            let group = format!("{machine} on the host's CPUs");
            let names = PHASES.map(str::to_owned).to_vec();
            let (mut phases, mut others, mut parties) = (Vec::new(), Vec::new(), Vec::new());
            for (phase, one) in vcpu::phases(states) {
                phases.extend(self.band(one.from, one.to, phase as u32));
                for (from, to, by) in on_cpus.meanwhile(phase, &one) {
                    let value = place(&mut parties, by);
                    others.extend(self.band(from, to, value));
                }
            }
            if number == 0 {
                self.uses(of, &group, &machine);
            }
            if !phases.is_empty() {
                let label = format!("virtual CPU {number}");
                self.bands((&group, &label), names, &phases);
            }
            if !others.is_empty() {
                let label = format!("who has the CPU of {number}");
                self.bands((&group, &label), parties, &others);
            }
        }
    }
}

/// How many of these requests wait: times and the numbers from then on, beginning with the window; nothing if none waits.
pub(super) fn waiting<'a>(
    own: impl Iterator<Item = &'a Request>,
    window: (i64, i64),
) -> Vec<(i64, i64)> {
    let mut steps: BTreeMap<i64, i64> = BTreeMap::new();
    for request in own {
        let Some(queued) = request.queued() else { continue };
        let until = request.began().or(request.ended()).unwrap_or(window.1);
        let (from, to) = (queued.max(window.0), until.min(window.1));
        if from < to {
            *steps.entry(from).or_default() += 1;
            *steps.entry(to).or_default() -= 1;
        }
    }
    if !steps.is_empty() {
        steps.entry(window.0).or_default();
    }
    let mut sum = 0;
    let count = |(at, change)| {
        sum += change;
        (at, sum)
    };
    steps.into_iter().map(count).collect()
}

/// The stretches of a request until `to`, with the places of their names in [`STAGES`].
pub(super) fn stages(request: &Request, to: i64) -> Vec<(i64, i64, u32)> {
    let handed = request.when(Stage::VgpuSubmitted).or(request.when(Stage::HostQueued));
    let begun = request.began();
    let marks = [
        (request.in_guest(), 4),
        (request.when(Stage::VgpuQueued), 0),
        (handed, 1),
        (request.when(Stage::Ready), 2),
        (begun, 3),
    ];
    let mut out = Vec::new();
    let known: Vec<(i64, u32)> =
        marks.into_iter().filter_map(|(at, value)| at.map(|at| (at, value))).collect();
    for (place, &(from, value)) in known.iter().enumerate() {
        let until = known.get(place + 1).map_or(to, |next| next.0);
        if value == 3 {
            // Between executions it was taken off its engine and is ready again.
            let mut at = from;
            for one in &request.executions {
                out.push((at, one.from, 2));
                out.push((one.from, one.to, 3));
                at = one.to;
            }
        } else {
            out.push((from, until, value));
        }
    }
    out.retain(|(from, to, _)| from < to);
    out
}
