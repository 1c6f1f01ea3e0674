//! The rank that the others wait for: it spends least in the collective that all call equally often.
//! Where the recording gives no ranks, processes are called by their names and files.

use std::collections::BTreeMap;

use gpuwhy_derive::devices::{Above, Waiter};
use gpuwhy_diagnose::variability::straggler;
use gpuwhy_schema::{EntityId, EntityKind, Name, Rows, names};

use super::Statement;
use crate::variability::sums::{Sums, WaitSum};

/// A difference of waits that is worth reporting, ns.
const LEAST_WAIT: f64 = 1000.0;

/// Whether a rank is waited for, in the collective that was called most often by all ranks.
pub fn statements(sums: &Sums, catalog: &Rows) -> Option<Statement> {
    let mut by_name: BTreeMap<&Name, Vec<(Waiter, &WaitSum)>> = BTreeMap::new();
    for ((name, waiter), waits) in &sums.waits {
        by_name.entry(name).or_default().push((*waiter, waits));
    }
    let (name, ranks) = by_name
        .into_iter()
        .filter(|(_, ranks)| ranks.len() > 1)
        .max_by_key(|(_, ranks)| ranks.iter().map(|(_, waits)| waits.sum.count).min())?;
    let means: Vec<f64> = ranks.iter().map(|(_, waits)| mean(waits)).collect();
    let of_ranks: Vec<String> = ranks
        .iter()
        .zip(&means)
        .map(|((waiter, _), mean)| format!("{} {:.1} us", label(*waiter, catalog), mean / 1e3))
        .collect();
    let of_ranks = of_ranks.join(", ");
    Some(match straggler(&means, LEAST_WAIT) {
        Some(found) => {
            let who = label(ranks[found.index].0, catalog);
            let says = format!(
                "{who} is waited for: it spends least in {name} (mean without the first call: \
                 {of_ranks})"
            );
            Statement::new("straggler", says)
        }
        None => {
            let all_ranks = ranks.iter().all(|(waiter, _)| matches!(waiter, Waiter::Rank(_)));
            let what = if all_ranks { "rank" } else { "process" };
            let says =
                format!("no {what} is waited for more than the others in {name}: {of_ranks}");
            Statement::no_finding("no_straggler", says)
        }
    })
}

/// What somebody who waits is called: a process by its name, pid and file.
fn label(waiter: Waiter, catalog: &Rows) -> String {
    let process = match waiter {
        Waiter::Rank(rank) => return format!("rank {rank}"),
        Waiter::Process(process) => process,
    };
    let Some(entity) = catalog.entity.iter().find(|e| e.id == process) else {
        return format!("process {}", process.0);
    };
    let pid = entity.number.map_or(String::new(), |pid| format!(" (pid {pid})"));
    let file = file_of(process, catalog).map_or(String::new(), |file| format!(" in {file}"));
    format!("{}{pid}{file}", entity.name)
}

/// The file that a process's calls were read from.
fn file_of(process: EntityId, catalog: &Rows) -> Option<String> {
    let above = Above::new(&catalog.entity);
    let is_its = |track: &&gpuwhy_schema::Track| {
        let of = above.find(track.entity, EntityKind::Process);
        &*track.name == names::MPI_CALLS && of.is_some_and(|e| e.id == process)
    };
    let track = catalog.track.iter().find(is_its)?;
    let source = catalog.source.iter().find(|source| source.id == track.source)?;
    source.word("file").map(str::to_owned)
}

/// The mean wait without the first call, which waits for programs to start.
fn mean(waits: &WaitSum) -> f64 {
    let first = waits.first.map_or(0, |(_, dur)| dur);
    (waits.sum.sum - first) as f64 / (waits.sum.count.saturating_sub(1)).max(1) as f64
}

#[cfg(test)]
mod tests {
    use gpuwhy_derive::devices::Devices;
    use gpuwhy_derive::sweep::Cut;
    use gpuwhy_schema::{Discipline, Lane, Lanes};

    use super::*;

    /// A process of each of these reports, with a track of MPI calls; ranks where they are known.
    fn catalog(ranks: [Option<i64>; 2]) -> Rows {
        let (mut rows, mut lanes) = (Rows::default(), Lanes::default());
        for (file, rank) in ["report4.sqlite", "report1.sqlite"].into_iter().zip(ranks) {
            let config = format!("file={file} schema=3.7.2");
            let source = lanes.source("nsys", "Nsight Systems", "1", &config);
            let owner = rank.map(|rank| {
                let key = format!("rank:{rank}");
                lanes.entity(EntityKind::Rank, &key, |e| e.number = Some(rank))
            });
            let process = lanes.entity(EntityKind::Process, file, |e| {
                (e.name, e.number, e.parent) = ("jacobi".into(), Some(4242), owner);
            });
            let thread = lanes.entity(EntityKind::Thread, file, |e| e.parent = Some(process));
            let lane = Lane::spans(names::MPI_CALLS, Discipline::Nested);
            lanes.track(thread, None, lane, source);
        }
        lanes.drain(&mut rows);
        rows
    }

    fn said(ranks: [Option<i64>; 2]) -> String {
        let catalog = catalog(ranks);
        let devices = Devices::of(&catalog.entity, &catalog.track);
        let mut tracks: Vec<_> = devices.waits.into_iter().collect();
        tracks.sort();
        let mut sums = Sums::new(Cut::of(0..100, 10, 10).unwrap());
        for ((_, waiter), wait) in tracks.into_iter().zip([240_000, 5_000]) {
            let waits = sums.waits.entry(("MPI_Allreduce".into(), waiter)).or_default();
            waits.first = Some((0, wait));
            (0..3).for_each(|_| waits.sum.add(wait));
        }
        statements(&sums, &catalog).unwrap().says
    }

    #[test]
    fn who_is_waited_for_is_a_rank_only_where_the_recording_gives_ranks() {
        let of = said([Some(7), Some(3)]);
        assert!(of.starts_with("rank 3 is waited for"), "{of}");
        let of = said([None, None]);
        let process =
            "jacobi (pid 4242) in report1.sqlite is waited for: it spends least in MPI_Allreduce";
        assert!(of.starts_with(process) && !of.contains("rank"), "{of}");
    }
}
