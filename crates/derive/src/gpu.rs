//! What GPUs did for a process while it waited, and why that took as long.
//!
//! # What it sees
//! Kernels, copies and stages of collectives, each with its process; clocks, users and errors of
//! GPUs as their driver tells them. A time in which a kernel of the process ran is split:
//!
//! - in a collective, the first wait for the other ranks (`initial_sync`) beyond that of the rank
//!   that waited least is time spent waiting for that one, who came last;
//! - from an error of the GPU (Xid) until it got on again, it stood still;
//! - while another process had kernels on the same GPU, or its driver says that another had a
//!   share of its multiprocessors, that share went there;
//! - at a clock below its highest, a part as large as the clock is lower is what that cost;
//! - the rest is the process's own work.
//!
//! Copies are told where no kernel ran.
//!
//! # Why it matters
//! A GPU that is slower, shared or waiting for a rank looks the same from the host: a longer wait.
//!
//! # What fools it
//! Kernels that memory holds up do not get slower as their clock does, so that the clock's part is
//! an upper limit; since the usual steps are split in the same way, it is blamed only where the
//! waits did get longer. A driver's word about users is up to a second old, and at times forgets a
//! busy one. Processes that share by MPS run side by side and not in turns. An Xid is told up to a
//! tenth of a second late.

use std::collections::{HashMap, HashSet};

use gpuwhy_schema::{EntityId, Id, Ns, Rows, Track, TrackId, names};

use crate::intervals::{Interval, clip, subtract, union};

/// How far a reading may be from what it is about: the driver's word about users is an average
/// over up to a second.
const USERS_WITHIN: Ns = Ns::secs(1);
/// The same of clocks, which are polled ten times a second.
const CLOCK_WITHIN: Ns = Ns::millis(400);
/// How far the word of an error may be from the error.
const FAULT_WITHIN: Ns = Ns::millis(200);
/// Shares of users below this are noise.
const LEAST_SHARE: f64 = 0.05;

/// What a piece of a wait was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its own work.
    Work,
    /// Its own work at a lowered clock.
    Throttled(EntityId),
    /// Somebody else's work.
    Others(EntityId),
    /// Nothing, after an error.
    Fault(EntityId),
    /// A rank's process came late.
    Late(EntityId),
    /// A copy: beside another process's, or over the link of this GPU.
    Copy(EntityId),
}

/// What lasts longer is not looked for among what began before a window.
const LONGEST: Ns = Ns::secs(60);

/// A piece of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub from: Ns,
    pub to: Ns,
    pub doing: Doing,
}

/// Work of a GPU.
#[derive(Clone, Copy, Debug)]
struct Busy {
    from: Ns,
    to: Ns,
    gpu: EntityId,
}

/// What one process had done.
#[derive(Debug, Default)]
struct Work {
    kernels: Vec<Busy>,
    copies: Vec<Busy>,
    /// Waits for a rank that came late.
    late: Vec<(Ns, Ns, EntityId)>,
    /// While it waited for its devices.
    waits: Vec<Interval>,
    queued: Vec<Interval>,
}

/// What one GPU was like.
#[derive(Debug, Default)]
struct Gpu {
    clock: Vec<(Ns, f64)>,
    best: f64,
    users: HashMap<EntityId, Vec<(Ns, f64)>>,
    faults: Vec<Ns>,
    kernels: Vec<(Ns, Ns, EntityId)>,
    copies: Vec<(Ns, Ns, EntityId)>,
    /// Whose kernels are told.
    seen: HashSet<EntityId>,
}

impl Gpu {
    /// Kernels of others than `process` that reach into the window, as they begin.
    fn others_kernels(
        &self,
        process: EntityId,
        window: Interval,
    ) -> impl Iterator<Item = (Ns, Ns, EntityId)> {
        let first = self.kernels.partition_point(|k| k.0 < window.0.saturating_sub(LONGEST));
        let near = self.kernels[first..].iter().take_while(move |k| k.0 < window.1);
        near.filter(move |k| k.2 != process && k.1 > window.0).copied()
    }

    /// Who of these used it most around the window, and how much, percent, by the driver's word.
    fn most_using(
        &self,
        window: Interval,
        of: impl Fn(EntityId) -> bool,
    ) -> Option<(EntityId, f64)> {
        let users = self.users.iter().filter(|(who, _)| of(**who));
        users
            .filter_map(|(who, list)| Some((*who, mean(list, told_around(window))?)))
            .max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
    }
}

/// All of it, by process and by GPU.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    processes: HashMap<EntityId, Work>,
    gpus: HashMap<EntityId, Gpu>,
}

/// The launch of a piece of work, and whose.
type Launched = HashMap<Id, (Ns, EntityId)>;

impl Gpus {
    /// Indexes `rows`; `above` says what an entity belongs to, `launched` who launched what.
    pub fn new(
        rows: &Rows,
        tracks: &HashMap<TrackId, &Track>,
        above: impl Fn(EntityId) -> Option<EntityId>,
        launched: &Launched,
    ) -> Gpus {
        let mut all = Gpus::default();
        let of_kernel = rows.kernel.iter().filter_map(|k| Some((k.id, k.process?)));
        let of_copy = rows.copy.iter().filter_map(|c| Some((c.id, c.process?)));
        let owners: HashMap<Id, EntityId> = of_kernel.chain(of_copy).collect();
        let copies: HashSet<Id> = rows.copy.iter().map(|c| c.id).collect();
        for span in &rows.span {
            let Some(track) = tracks.get(&span.track) else { continue };
            let to = span.dur.map_or(Ns::MAX, |dur| span.ts.saturating_add(dur));
            match &*track.name {
                names::STREAM => {
                    let launch = launched.get(&span.id).copied();
                    let owner = owners.get(&span.id).copied().or(launch.map(|l| l.1));
                    let (Some(owner), Some(gpu)) = (owner, above(track.entity)) else { continue };
                    let work = all.processes.entry(owner).or_default();
                    let device = all.gpus.entry(gpu).or_default();
                    let busy = Busy { from: span.ts, to, gpu };
                    if copies.contains(&span.id) {
                        work.copies.push(busy);
                        device.copies.push((span.ts, to, owner));
                    } else {
                        work.kernels.push(busy);
                        device.kernels.push((span.ts, to, owner));
                        if let Some((at, _)) = launch {
                            work.queued.push((at, span.ts));
                        }
                    }
                }
                names::SYNCHRONIZATION => {
                    let work = all.processes.entry(track.entity).or_default();
                    work.waits.push((span.ts, to));
                }
                _ => {}
            }
        }
        all.collectives(rows, tracks, &above);
        all.readings(rows, tracks);
        all.sort();
        all
    }

    /// Stages of collectives: work of their process's device, and who was waited for.
    fn collectives(
        &mut self,
        rows: &Rows,
        tracks: &HashMap<TrackId, &Track>,
        above: impl Fn(EntityId) -> Option<EntityId>,
    ) {
        let of: HashMap<Id, (u64, u64, &str)> =
            rows.collective.iter().map(|c| (c.id, (c.communicator, c.seq, &*c.op))).collect();
        /// A rank's wait for the others.
        struct First {
            process: EntityId,
            from: Ns,
            waited: Ns,
        }
        let mut firsts: HashMap<(u64, u64, &str), Vec<First>> = HashMap::new();
        for span in &rows.span {
            let Some(track) = tracks.get(&span.track) else { continue };
            let (Some(process), Some(dur)) = (above(track.entity), span.dur) else { continue };
            if &*track.name != names::COLLECTIVE_STAGES || span.name.starts_with("net:") {
                continue;
            }
            let to = span.ts.saturating_add(dur);
            // Which GPU that is, the collective's own kernel would say.
            let gpu = EntityId(0);
            let work = self.processes.entry(process).or_default();
            work.kernels.push(Busy { from: span.ts, to, gpu });
            if &*span.name == "initial_sync"
                && let Some(&call) = span.parent.and_then(|parent| of.get(&parent))
            {
                let first = First { process, from: span.ts, waited: dur };
                firsts.entry(call).or_default().push(first);
            }
        }
        for ranks in firsts.into_values() {
            let Some(last) = ranks.iter().min_by_key(|r| (r.waited, r.process)) else { continue };
            for rank in ranks.iter().filter(|r| r.process != last.process) {
                let to = rank.from + (rank.waited - last.waited);
                let work = self.processes.entry(rank.process).or_default();
                work.late.push((rank.from, to, last.process));
            }
        }
    }

    /// What the driver tells.
    fn readings(&mut self, rows: &Rows, tracks: &HashMap<TrackId, &Track>) {
        for row in &rows.counter {
            let Some(track) = tracks.get(&row.track) else { continue };
            match &*track.name {
                names::SM_CLOCK => {
                    let gpu = self.gpus.entry(track.entity).or_default();
                    gpu.clock.push((row.ts, row.value));
                    gpu.best = gpu.best.max(row.value);
                }
                names::SM_CLOCK_MAX => {
                    let gpu = self.gpus.entry(track.entity).or_default();
                    gpu.best = gpu.best.max(row.value);
                }
                names::PROCESS_SM_UTILIZATION => {
                    // Its parent lane is the GPU's.
                    let on = track.parent.and_then(|p| tracks.get(&p)).map(|t| t.entity);
                    if let Some(on) = on {
                        let users = &mut self.gpus.entry(on).or_default().users;
                        users.entry(track.entity).or_default().push((row.ts, row.value));
                    }
                }
                _ => {}
            }
        }
        for mark in &rows.mark {
            let Some(track) = tracks.get(&mark.track) else { continue };
            if &*track.name == names::GPU_EVENTS && matches!(&*mark.name, "xid" | "gpu lost") {
                self.gpus.entry(track.entity).or_default().faults.push(mark.ts);
            }
        }
    }

    fn sort(&mut self) {
        for work in self.processes.values_mut() {
            work.kernels.sort_unstable_by_key(|b| (b.from, b.to));
            work.copies.sort_unstable_by_key(|b| (b.from, b.to));
            work.late.sort_unstable();
            work.waits = union(std::mem::take(&mut work.waits));
            work.queued = union(std::mem::take(&mut work.queued));
        }
        for gpu in self.gpus.values_mut() {
            gpu.clock.sort_unstable_by_key(|c| c.0);
            gpu.users.values_mut().for_each(|u| u.sort_unstable_by_key(|c| c.0));
            gpu.faults.sort_unstable();
            gpu.kernels.sort_unstable();
            gpu.seen = gpu.kernels.iter().map(|k| k.2).collect();
            gpu.copies.sort_unstable();
        }
    }

    /// While `process` waited for its devices, as its library tells: a thread of it that runs then
    /// spins.
    pub fn waits(&self, process: EntityId) -> &[Interval] {
        self.processes.get(&process).map_or(&[], |work| &work.waits)
    }

    /// What GPUs did for `process` in the window: disjoint pieces by their time. Where there is
    /// none, they did nothing for it that was seen.
    pub fn pieces(&self, process: EntityId, window: Interval) -> Vec<Piece> {
        let Some(work) = self.processes.get(&process) else { return Vec::new() };
        let mut out = Vec::new();
        let stalls = self.stalls(work, window);
        let mut at = window.0;
        let mut busy = Vec::new();
        for kernel in near(&work.kernels, window) {
            let (from, to) = (kernel.from.max(at), kernel.to.min(window.1));
            if from < to {
                busy.push((from, to));
                self.split(process, work, &stalls, (from, to), kernel.gpu, &mut out);
                at = to;
            }
        }
        let busy = union(busy);
        let mut taken = self.queued_in(process, work, window, &busy, &mut out);
        // After an error there may be no kernel at all until the device gets on.
        let before = taken.clone();
        for &(stall, gpu) in &stalls {
            let within = (stall.0.max(window.0), stall.1.min(window.1));
            for (from, to) in subtract(within, &before) {
                out.push(Piece { from, to, doing: Doing::Fault(gpu) });
                taken.push((from, to));
            }
        }
        let taken = union(taken);
        let mut at = window.0;
        for copy in near(&work.copies, window) {
            let piece = (copy.from.max(at), copy.to.min(window.1));
            if piece.0 >= piece.1 {
                continue;
            }
            at = piece.1;
            for (from, to) in subtract(piece, &taken) {
                let beside = self.beside(copy.gpu, process, (from, to)).unwrap_or(copy.gpu);
                out.push(Piece { from, to, doing: Doing::Copy(beside) });
            }
        }
        out.sort_unstable_by_key(|p| p.from);
        out
    }

    /// A thread that waits all the time launches nothing, so that a kernel that begins meanwhile had
    /// been launched before: the time until then it was queued, behind somebody if anybody else
    /// used the device. Says what is taken, the kernels' own time included.
    fn queued_in(
        &self,
        process: EntityId,
        work: &Work,
        window: Interval,
        busy: &[Interval],
        out: &mut Vec<Piece>,
    ) -> Vec<Interval> {
        let mut taken = busy.to_vec();
        let mut at = window.0;
        for &(from, to) in busy {
            let gap = (at, from);
            at = to;
            if gap.0 >= gap.1 {
                continue;
            }
            let Some(gpu) = near(&work.kernels, (from, to)).next().map(|k| k.gpu) else { continue };
            // Its own copies may be what it waited for; they are told as that.
            let copies = union(near(&work.copies, gap).map(|c| (c.from, c.to)).collect());
            for (from, to, who) in self.ahead(gpu, process, gap) {
                for (from, to) in subtract((from, to), &copies) {
                    out.push(Piece { from, to, doing: Doing::Others(who) });
                    taken.push((from, to));
                }
            }
        }
        union(taken)
    }

    /// A time in which a kernel of the process ran.
    fn split(
        &self,
        process: EntityId,
        work: &Work,
        stalls: &[(Interval, EntityId)],
        window: Interval,
        gpu: EntityId,
        out: &mut Vec<Piece>,
    ) {
        let late = work.late.iter().map(|&(from, to, who)| ((from, to), Doing::Late(who)));
        let stalled = stalls.iter().map(|&(window, gpu)| (window, Doing::Fault(gpu)));
        let mut rest = Vec::new();
        for left in cut_out(window, late, out) {
            rest.extend(cut_out(left, stalled.clone(), out));
        }
        for (from, to) in rest {
            let others = self.others(gpu, process, (from, to));
            let theirs = others.map_or(Ns::ZERO, |(_, ns)| ns.min(to - from));
            let ours = to - theirs;
            let lost = self.slowed(gpu, (from, ours));
            put(out, from, ours - lost, Doing::Work);
            put(out, ours - lost, ours, Doing::Throttled(gpu));
            if let Some((who, _)) = others {
                put(out, ours, to, Doing::Others(who));
            }
        }
    }

    /// Of a kernel's time, what went to whom.
    fn others(&self, gpu: EntityId, process: EntityId, window: Interval) -> Option<(EntityId, Ns)> {
        let gpu = self.gpus.get(&gpu)?;
        let mut seen: HashMap<EntityId, Vec<Interval>> = HashMap::new();
        for (from, to, who) in gpu.others_kernels(process, window) {
            seen.entry(who).or_default().push((from, to));
        }
        if !seen.is_empty() {
            // They take turns, so that each of n gets a share of one in n.
            let most = seen.into_iter().map(|(who, list)| {
                let both: Ns =
                    clip(&union(list), window).iter().map(|(from, to)| *to - *from).sum();
                (who, Ns(both.0 / 2))
            });
            return most.max_by_key(|(who, ns)| (*ns, *who)).filter(|(_, ns)| *ns > Ns::ZERO);
        }
        // Of whom kernels are told, nothing else is: none ran here.
        let (who, theirs) =
            gpu.most_using(window, |who| who != process && !gpu.seen.contains(&who))?;
        let own = gpu.users.get(&process).and_then(|u| mean(u, told_around(window)));
        let own = own.unwrap_or(0.0);
        let share = if own > 0.0 { theirs / (own + theirs) } else { theirs / 100.0 };
        let share = share.clamp(0.0, 1.0);
        let ns = Ns(((window.1 - window.0).0 as f64 * share) as i64);
        (share >= LEAST_SHARE).then_some((who, ns))
    }

    /// Of a kernel's time, what a lowered clock cost.
    fn slowed(&self, gpu: EntityId, (from, to): Interval) -> Ns {
        let Some(gpu) = self.gpus.get(&gpu).filter(|g| g.best > 0.0) else { return Ns::ZERO };
        let mid = Ns(from.0 + (to - from).0 / 2);
        let after = gpu.clock.partition_point(|c| c.0 < mid);
        let both = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let nearest = both.filter_map(|i| gpu.clock.get(i)).min_by_key(|c| (c.0 - mid).0.abs());
        let Some(&(at, clock)) = nearest else { return Ns::ZERO };
        if (at - mid).0.abs() > CLOCK_WITHIN.0.max((to - from).0) {
            return Ns::ZERO;
        }
        let lost = 1.0 - (clock / gpu.best).clamp(0.0, 1.0);
        Ns(((to - from).0 as f64 * lost) as i64)
    }

    /// Who used the GPU while work of `process` was queued, and when: by their kernels, else as much
    /// of the time as the driver says, at its end.
    fn ahead(&self, gpu: EntityId, process: EntityId, window: Interval) -> Vec<(Ns, Ns, EntityId)> {
        let Some(gpu) = self.gpus.get(&gpu) else { return Vec::new() };
        let mut out = Vec::new();
        let mut at = window.0;
        for (from, to, who) in gpu.others_kernels(process, window) {
            let (from, to) = (from.max(at), to.min(window.1));
            if from < to {
                out.push((from, to, who));
                at = to;
            }
        }
        if !out.is_empty() {
            return out;
        }
        let most = gpu.most_using(window, |who| who != process);
        let most = most.map(|(who, percent)| (who, (percent / 100.0).clamp(0.0, 1.0)));
        if let Some((who, share)) = most.filter(|(_, share)| *share >= LEAST_SHARE) {
            let ns = Ns(((window.1 - window.0).0 as f64 * share) as i64);
            out.push((window.1 - ns, window.1, who));
        }
        out
    }

    /// From an error to when the device got on: the longest time around it, of a kernel or of
    /// none.
    fn stalls(&self, work: &Work, window: Interval) -> Vec<(Interval, EntityId)> {
        let used: HashSet<EntityId> = work.kernels.iter().map(|k| k.gpu).collect();
        let mut out = Vec::new();
        for id in used {
            let Some(gpu) = self.gpus.get(&id) else { continue };
            for &at in &gpu.faults {
                let around = (at.saturating_sub(FAULT_WITHIN), at.saturating_add(FAULT_WITHIN));
                if around.0 >= window.1 {
                    continue;
                }
                let ours: Vec<Interval> =
                    work.kernels.iter().filter(|k| k.gpu == id).map(|k| (k.from, k.to)).collect();
                let running = ours.iter().filter(|k| k.0 < around.1 && k.1 > around.0).copied();
                let before = ours.iter().filter(|k| k.0 < at).map(|k| k.1).max();
                let next = ours.iter().map(|k| k.0).find(|from| *from >= at).unwrap_or(Ns::MAX);
                let idle = before.filter(|end| *end < around.1);
                let idle = idle.map(|end| (end.max(around.0), next));
                let longest = running.chain(idle).max_by_key(|(from, to)| to.saturating_sub(*from));
                if let Some((from, to)) = longest.filter(|(from, to)| from < to) {
                    out.push(((from.max(around.0), to), id));
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Who else copied on that GPU, most.
    fn beside(&self, gpu: EntityId, process: EntityId, window: Interval) -> Option<EntityId> {
        let gpu = self.gpus.get(&gpu)?;
        let mut weight: HashMap<EntityId, Ns> = HashMap::new();
        for &(from, to, who) in gpu.copies.iter().take_while(|c| c.0 < window.1) {
            let both = Ns::overlap(from, to, window.0, window.1);
            if who != process && both > Ns::ZERO {
                *weight.entry(who).or_default() += both;
            }
        }
        weight.into_iter().max_by_key(|(who, ns)| (*ns, *who)).map(|(who, _)| who)
    }

    /// When work of `process` had been launched but had not begun, behind kernels of others on the
    /// same GPUs, in the window.
    pub fn behind(&self, process: EntityId, window: Interval) -> Vec<(Ns, Ns, EntityId)> {
        let Some(work) = self.processes.get(&process) else { return Vec::new() };
        let mut out = Vec::new();
        for gpu in self.gpus.values().filter(|g| g.seen.contains(&process)) {
            for (from, to, who) in gpu.others_kernels(process, window) {
                let both = (from.max(window.0), to.min(window.1));
                let queued = clip(&work.queued, both);
                out.extend(queued.into_iter().map(|(from, to)| (from, to, who)));
            }
        }
        out.sort_unstable();
        out
    }
}

fn put(out: &mut Vec<Piece>, from: Ns, to: Ns, doing: Doing) {
    if from < to {
        out.push(Piece { from, to, doing });
    }
}

/// Takes each of `parts`, as they begin, out of the window, and returns what is left.
fn cut_out(
    window: Interval,
    parts: impl Iterator<Item = (Interval, Doing)>,
    out: &mut Vec<Piece>,
) -> Vec<Interval> {
    let (mut left, mut at) = (Vec::new(), window.0);
    for ((from, to), doing) in parts {
        let (from, to) = (from.max(at), to.min(window.1));
        if from < to {
            left.push((at, from));
            out.push(Piece { from, to, doing });
            at = to;
        }
    }
    left.push((at, window.1));
    left.retain(|(from, to)| from < to);
    left
}

/// When the driver's word on a window counts.
fn told_around(window: Interval) -> Interval {
    (window.0.saturating_sub(USERS_WITHIN), window.1.saturating_add(USERS_WITHIN))
}

/// Those that may lie in the window; the list is sorted by their begins.
fn near(list: &[Busy], window: Interval) -> impl Iterator<Item = &Busy> {
    let first = list.partition_point(|b| b.from < window.0.saturating_sub(LONGEST));
    list[first..].iter().take_while(move |b| b.from < window.1).filter(move |b| b.to > window.0)
}

/// Mean of the readings in a stretch of time.
fn mean(readings: &[(Ns, f64)], (from, to): Interval) -> Option<f64> {
    let first = readings.partition_point(|r| r.0 < from);
    let within: Vec<f64> =
        readings[first..].iter().take_while(|r| r.0 <= to).map(|r| r.1).collect();
    (!within.is_empty()).then(|| within.iter().sum::<f64>() / within.len() as f64)
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{
        Collective, Copy, CopyKind, Counter, Discipline, EntityKind, Kernel, Lane, Lanes, Mark,
        Measure, SourceId, Span,
    };

    use super::*;

    /// A host with two GPUs and three processes; times in ms.
    struct Scene {
        lanes: Lanes,
        rows: Rows,
        source: SourceId,
        gpus: Vec<EntityId>,
        processes: Vec<EntityId>,
        spans: u64,
    }

    fn ms(n: i64) -> Ns {
        Ns::millis(n)
    }

    impl Scene {
        fn new() -> Scene {
            let mut lanes = Lanes::default();
            let source = lanes.source("test", "test", "0", "");
            let host = lanes.entity(EntityKind::Host, "host", |_| {});
            let mut many = |kind, name: &str, n| -> Vec<EntityId> {
                let one = |i| lanes.entity(kind, &format!("{name}{i}"), |e| e.parent = Some(host));
                (0..n).map(one).collect()
            };
            let gpus = many(EntityKind::Gpu, "gpu", 2);
            let processes = many(EntityKind::Process, "process", 3);
            Scene { lanes, rows: Rows::default(), source, gpus, processes, spans: 0 }
        }

        fn span(&mut self, track: TrackId, name: &str, from: i64, to: i64) -> Id {
            self.spans += 1;
            let id = Id(self.spans);
            let (ts, dur, parent) = (ms(from), Some(ms(to - from)), None);
            self.rows.span.push(Span { id, ts, dur, track, parent, name: name.into() });
            id
        }

        fn stream(&mut self, process: usize, gpu: usize) -> TrackId {
            let on = self.gpus[gpu];
            let key = format!("{process}:{gpu}");
            let stream = self.lanes.entity(EntityKind::Stream, &key, |e| e.parent = Some(on));
            let lane = Lane::spans(names::STREAM, Discipline::Overlap);
            self.lanes.track(stream, None, lane, self.source)
        }

        fn kernel(mut self, process: usize, from: i64, to: i64) -> Scene {
            let track = self.stream(process, 0);
            let id = self.span(track, "gemm", from, to);
            self.rows.kernel.push(Kernel {
                id,
                ts: ms(from),
                gpu: self.gpus[0],
                process: Some(self.processes[process]),
                correlation: None,
                grid_x: 1,
                grid_y: 1,
                grid_z: 1,
                block_x: 1,
                block_y: 1,
                block_z: 1,
                registers: None,
                shared_bytes: None,
                graph_node: None,
            });
            self
        }

        fn copy(mut self, process: usize, from: i64, to: i64) -> Scene {
            let track = self.stream(process, 0);
            let id = self.span(track, "copy", from, to);
            self.rows.copy.push(Copy {
                id,
                ts: ms(from),
                kind: CopyKind::HostToDevice,
                bytes: 1,
                from: None,
                to: Some(self.gpus[0]),
                pinned: None,
                process: Some(self.processes[process]),
                correlation: None,
            });
            self
        }

        fn counter(mut self, name: &str, readings: &[(i64, f64)]) -> Scene {
            let lane = Lane::counter(name, "MHz", Measure::Gauge);
            let track = self.lanes.track(self.gpus[0], None, lane, self.source);
            let rows = readings.iter().map(|&(at, value)| Counter { ts: ms(at), track, value });
            self.rows.counter.extend(rows);
            self
        }

        fn user(mut self, process: usize, readings: &[(i64, f64)]) -> Scene {
            let lane = Lane::counter(names::GPU_UTILIZATION, "%", Measure::Gauge);
            let gpu = self.lanes.track(self.gpus[0], None, lane, self.source);
            let lane = Lane::counter(names::PROCESS_SM_UTILIZATION, "%", Measure::Gauge);
            let track = self.lanes.track(self.processes[process], Some(gpu), lane, self.source);
            let rows = readings.iter().map(|&(at, value)| Counter { ts: ms(at), track, value });
            self.rows.counter.extend(rows);
            self
        }

        fn xid(mut self, at: i64) -> Scene {
            let lane = Lane::marks(names::GPU_EVENTS);
            let track = self.lanes.track(self.gpus[0], None, lane, self.source);
            let (id, value) = (Id(1_000_000), Some(79.0));
            self.rows.mark.push(Mark { id, ts: ms(at), track, name: "xid".into(), value });
            self
        }

        /// An all-reduce: when each rank came, how long it waited, and how long it computed.
        fn all_reduce(mut self, seq: u64, ranks: &[(i64, i64, i64)]) -> Scene {
            for (rank, &(from, waited, computed)) in ranks.iter().enumerate() {
                let process = self.processes[rank];
                let key = format!("rank{rank}");
                let entity =
                    self.lanes.entity(EntityKind::Rank, &key, |e| e.parent = Some(process));
                let lane = Lane::spans(names::COLLECTIVES, Discipline::Overlap);
                let whole = self.lanes.track(entity, None, lane, self.source);
                let lane = Lane::spans(names::COLLECTIVE_STAGES, Discipline::Overlap);
                let stages = self.lanes.track(entity, Some(whole), lane, self.source);
                let id = self.span(whole, "AllReduce", from, from + waited + computed);
                self.span(stages, "initial_sync", from, from + waited);
                self.span(stages, "compute", from + waited, from + waited + computed);
                let n = self.rows.span.len();
                self.rows.span[n - 2].parent = Some(id);
                self.rows.span[n - 1].parent = Some(id);
                self.rows.collective.push(Collective {
                    id,
                    ts: ms(from),
                    communicator: 7,
                    seq,
                    op: "AllReduce".into(),
                    bytes: 1,
                    rank: rank as u32,
                    ranks: ranks.len() as u32,
                    peer: None,
                    algorithm: None,
                    protocol: None,
                    channels: None,
                });
            }
            self
        }

        /// What is said of a process's wait, ms.
        fn check(mut self, process: usize, window: (i64, i64), expected: &[&str]) {
            self.lanes.drain(&mut self.rows);
            let tracks: HashMap<TrackId, &Track> =
                self.rows.track.iter().map(|t| (t.id, t)).collect();
            let entities: HashMap<EntityId, &gpuwhy_schema::Entity> =
                self.rows.entity.iter().map(|e| (e.id, e)).collect();
            let above = |id: EntityId| entities.get(&id).and_then(|e| e.parent);
            let gpus = Gpus::new(&self.rows, &tracks, above, &HashMap::new());
            let pieces = gpus.pieces(self.processes[process], (ms(window.0), ms(window.1)));
            let name = |id: EntityId| &*entities[&id].key;
            let said: Vec<String> = pieces
                .iter()
                .map(|p| {
                    let what = match p.doing {
                        Doing::Work => "work".to_string(),
                        Doing::Throttled(gpu) => format!("throttled {}", name(gpu)),
                        Doing::Others(who) => format!("others {}", name(who)),
                        Doing::Fault(gpu) => format!("fault {}", name(gpu)),
                        Doing::Late(who) => format!("late {}", name(who)),
                        Doing::Copy(who) => format!("copy {}", name(who)),
                    };
                    format!("{}..{} {what}", p.from.0 as f64 / 1e6, p.to.0 as f64 / 1e6)
                })
                .collect();
            assert_eq!(said, expected);
            assert!(pieces.windows(2).all(|w| w[0].to <= w[1].from), "{said:?}");
        }
    }

    #[test]
    fn kernels_and_copies_of_the_process_itself() {
        Scene::new().kernel(0, 10, 20).kernel(0, 15, 30).copy(0, 25, 40).kernel(0, 50, 60).check(
            0,
            (12, 55),
            &["12..20 work", "20..30 work", "30..40 copy gpu0", "50..55 work"],
        );
    }

    #[test]
    fn a_clock_at_three_quarters_costs_a_quarter() {
        Scene::new()
            .counter(names::SM_CLOCK_MAX, &[(0, 2000.0)])
            .counter(names::SM_CLOCK, &[(0, 2000.0), (500, 1500.0), (2000, 2000.0)])
            .kernel(0, 450, 550)
            .kernel(0, 2000, 2010)
            .check(0, (0, 3000), &["450..525 work", "525..550 throttled gpu0", "2000..2010 work"]);
    }

    #[test]
    fn a_clock_that_nobody_read_says_nothing() {
        Scene::new()
            .counter(names::SM_CLOCK, &[(0, 2000.0), (10, 1000.0)])
            .kernel(0, 5000, 5010)
            .check(0, (0, 6000), &["5000..5010 work"]);
    }

    #[test]
    fn kernels_of_another_on_the_same_gpu_take_turns_with_ours() {
        Scene::new().kernel(0, 10, 30).kernel(1, 20, 40).check(
            0,
            (0, 100),
            &["10..25 work", "25..30 others process1"],
        );
    }

    #[test]
    fn another_that_only_the_driver_knows_of_has_its_share() {
        let s = 1000;
        Scene::new()
            .user(0, &[(s, 60.0), (2 * s, 60.0)])
            .user(1, &[(s, 20.0), (2 * s, 20.0)])
            .kernel(0, 1400, 1500)
            .check(
                0,
                (1390, 3000),
                &["1398..1400 others process1", "1400..1475 work", "1475..1500 others process1"],
            );
    }

    #[test]
    fn who_sleeps_until_a_later_kernel_ends_has_had_it_queued_behind_others() {
        Scene::new().kernel(0, 10, 12).kernel(1, 12, 20).kernel(0, 20, 22).check(
            0,
            (0, 100),
            &["10..12 work", "12..20 others process1", "20..22 work"],
        );
        // Nobody else was there: that is for others to explain.
        Scene::new().kernel(0, 10, 12).kernel(0, 20, 22).check(
            0,
            (0, 100),
            &["10..12 work", "20..22 work"],
        );
    }

    #[test]
    fn from_an_error_until_the_device_gets_on_it_stands_still() {
        // In the middle of a kernel: the word of it comes a little late.
        Scene::new().kernel(0, 1000, 3000).xid(1300).check(
            0,
            (0, 4000),
            &["1000..1100 work", "1100..3000 fault gpu0"],
        );
        // Between kernels.
        Scene::new().kernel(0, 1000, 1010).xid(1200).kernel(0, 3000, 3010).check(
            0,
            (0, 4000),
            &["1000..1010 work", "1010..3000 fault gpu0", "3000..3010 work"],
        );
    }

    #[test]
    fn the_rank_that_waited_least_is_the_one_that_was_late() {
        let scene = || Scene::new().all_reduce(1, &[(10, 90, 20), (98, 2, 20), (60, 40, 20)]);
        scene().check(0, (0, 200), &["10..98 late process1", "98..100 work", "100..120 work"]);
        scene().check(1, (0, 200), &["98..100 work", "100..120 work"]);
        scene().check(2, (0, 200), &["60..98 late process1", "98..100 work", "100..120 work"]);
    }
}
