//! Rows of GPUs, by process and by device.

use foldhash::{HashMap, HashMapExt as _, HashSet};
use gpuwhy_schema::{EntityId, Id, Ns, Rows, Track, TrackId, names};

use super::{Busy, Gpus, Launched};
use crate::intervals::union;

impl Gpus {
    /// Indexes `rows`; `above` says what an entity belongs to, `launched` when work was launched, and by
    /// which process.
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
        for row in &rows.state {
            let Some(track) = tracks.get(&row.track) else { continue };
            if &*track.name != names::ENGINE_OWNER {
                continue;
            }
            let Some(gpu) = above(track.entity) else { continue };
            let to = row.dur.map_or(Ns::MAX, |dur| row.ts.saturating_add(dur));
            let who = EntityId(u32::try_from(row.value).unwrap_or(0));
            all.gpus.entry(gpu).or_default().owners.push((row.ts, to, who));
        }
        all.collectives(rows, tracks, &above);
        all.readings(rows, tracks);
        all.sort();
        all
    }

    /// Stages of collectives: work of their process's device, and for which rank they waited.
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
            // The collective's own kernel would say which GPU this is.
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

    /// Readings of the driver.
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
                    // Its parent track is the GPU's.
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
            gpu.owners.sort_unstable();
        }
    }
}
