//! Several reports as one job: whether they can belong together, and which rank each is of.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::identity::{FILE_NAME, SLURM};
use super::report::Report;
use crate::align::Alignment;
use crate::{Error, Result};

/// Clocks of hosts of one job differ by less than this: captures further apart were not taken of one run.
const APART: i64 = 10_000_000_000;
/// Bytes that are compared at once.
const COMPARED: usize = 1 << 20;

/// Opens the reports of one job.
///
/// # Errors
/// A report cannot be read or is damaged, or they cannot be of one job.
pub(super) fn open(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let mut reports: Vec<Report> = paths.iter().map(Report::open).collect::<Result<_>>()?;
    for (i, a) in reports.iter().enumerate() {
        for b in &reports[i + 1..] {
            if is_same(a, b)? {
                return Err(unrelated(a, b, "they are the same report, given twice".into()));
            }
        }
    }
    check_overlap(&reports)?;
    check_jobs(&reports)?;
    settle(&mut reports)?;
    Ok(reports)
}

fn unrelated(a: &Report, b: &Report, why: String) -> Error {
    Error::Unrelated { first: a.path().into(), other: b.path().into(), why }
}

/// Whether two reports are the same: one file, a copy, or another export of one capture.
fn is_same(a: &Report, b: &Report) -> Result<bool> {
    let real = |report: &Report| std::fs::canonicalize(report.path()).ok();
    if real(a).is_some() && real(a) == real(b) {
        return Ok(true);
    }
    // No two captures begin at the same nanosecond and last equally long.
    let same_capture = a.epoch.is_some()
        && a.epoch == b.epoch
        && a.length == b.length
        && a.session == b.session
        && a.host == b.host
        && a.identity.rank == b.identity.rank;
    Ok(same_capture || has_same_bytes(a.path(), b.path())?)
}

/// Whether two files are equal, byte by byte.
fn has_same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let measure = |path: &Path| std::fs::metadata(path).map_err(Error::io("measure", path));
    let (of_a, of_b) = (measure(a)?, measure(b)?);
    if !of_a.is_file() || !of_b.is_file() || of_a.len() != of_b.len() {
        return Ok(false);
    }
    let open = |path: &Path| File::open(path).map_err(Error::io("open", path));
    let (mut file_a, mut file_b) = (open(a)?, open(b)?);
    let (mut part_a, mut part_b) = (Vec::new(), Vec::new());
    loop {
        let next = |file: &mut File, part: &mut Vec<u8>, path: &Path| {
            part.clear();
            file.take(COMPARED as u64).read_to_end(part).map_err(Error::io("read", path))
        };
        next(&mut file_a, &mut part_a, a)?;
        next(&mut file_b, &mut part_b, b)?;
        if part_a != part_b {
            return Ok(false);
        }
        if part_a.is_empty() {
            return Ok(true);
        }
    }
}

/// Refuses captures that were not taken at the same time.
fn check_overlap(reports: &[Report]) -> Result<()> {
    let times = |r: &Report| {
        let begin = r.epoch?;
        Some((begin, begin.saturating_add(r.length.unwrap_or(0).max(0))))
    };
    let known: Vec<(&Report, (i64, i64))> =
        reports.iter().filter_map(|r| Some((r, times(r)?))).collect();
    for (i, (a, (begin_a, end_a))) in known.iter().enumerate() {
        for (b, (begin_b, end_b)) in &known[i + 1..] {
            let apart = begin_b.saturating_sub(*end_a).max(begin_a.saturating_sub(*end_b));
            if apart > APART {
                let seconds = apart / 1_000_000_000;
                let long = match seconds {
                    0..=7199 => format!("{seconds} s"),
                    7200..=172_799 => format!("{} hours", seconds / 3600),
                    _ => format!("{} days", seconds / 86_400),
                };
                let why =
                    format!("{long} lie between the end of one capture and the begin of the other");
                return Err(unrelated(a, b, why));
            }
        }
    }
    Ok(())
}

/// Refuses reports that say that they are of different jobs. What only one of two says is no difference.
fn check_jobs(reports: &[Report]) -> Result<()> {
    let kind = |id: &str| id.split(' ').next().unwrap_or_default().to_owned();
    for (i, a) in reports.iter().enumerate() {
        for b in &reports[i + 1..] {
            let (of_a, of_b) = (&a.identity, &b.identity);
            for (what, a_id, b_id) in
                [("job", &of_a.job, &of_b.job), ("launch", &of_a.launch, &of_b.launch)]
            {
                if let (Some(a_id), Some(b_id)) = (a_id, b_id)
                    && a_id != b_id
                    && kind(a_id) == kind(b_id)
                {
                    let why = format!("the one is of {what} {a_id}, the other of {what} {b_id}");
                    return Err(unrelated(a, b, why));
                }
            }
            if let (Some(a_ranks), Some(b_ranks)) = (of_a.world, of_b.world)
                && a_ranks != b_ranks
            {
                let why = format!("their jobs have {a_ranks} and {b_ranks} ranks");
                return Err(unrelated(a, b, why));
            }
        }
    }
    Ok(())
}

/// Decides about ranks that depend on the other reports.
fn settle(reports: &mut [Report]) -> Result<()> {
    // SLURM_PROCID=0 is a rank if there is a task 1 of the same job, and a mere shell otherwise.
    let tasks: Vec<Option<String>> = reports
        .iter()
        .filter(|r| r.identity.by == Some(SLURM))
        .map(|r| r.identity.job.clone())
        .collect();
    for report in reports.iter_mut() {
        let of = &mut report.identity;
        if of.perhaps.is_some() && tasks.contains(&of.job) {
            (of.rank, of.by) = (of.perhaps, Some(SLURM));
        }
    }
    for i in 0..reports.len() {
        let same = |r: &Report| {
            r.identity.rank.is_some()
                && r.identity.rank == reports[i].identity.rank
                && r.identity.job == reports[i].identity.job
        };
        let Some(j) = (0..i).find(|&j| same(&reports[j])) else { continue };
        let (a, b) = (&reports[j], &reports[i]);
        let weak = [Some(SLURM), Some("RANK"), Some(FILE_NAME)];
        if !weak.contains(&a.identity.by) && !weak.contains(&b.identity.by) {
            let rank = a.identity.rank.unwrap_or_default();
            let why = format!(
                "both are of rank {rank} (by {} and by {}), and a job has one of each",
                a.identity.by.unwrap_or("?"),
                b.identity.by.unwrap_or("?")
            );
            return Err(unrelated(a, b, why));
        }
        // What says so is not to be trusted: the names of files and of what started them repeat.
        for k in [i, j] {
            let of = &mut reports[k].identity;
            if let (Some(rank), Some(by)) = (of.rank, of.by.filter(|by| weak.contains(&Some(by)))) {
                of.remark = Some(format!("rank {rank} by {by} is also another report's: no rank"));
                (of.rank, of.by) = (None, None);
            }
        }
    }
    Ok(())
}

/// The name of a report without its ending, by which its processes are called where it has no rank.
pub(super) fn file_name(report: &Report) -> String {
    let name = report.path().file_stem().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// How many ranks the job has, if all reports that know agree.
pub(super) fn world(reports: &[Report]) -> Option<u32> {
    let mut worlds = reports.iter().filter_map(|r| r.identity.world);
    let first = worlds.next()?;
    worlds.all(|world| world == first).then_some(first)
}

/// For the terminal: by what the reports are one trace, of which ranks, and how they were aligned.
pub(super) fn lines(reports: &[Report], alignment: &Alignment) -> Vec<String> {
    let mut lines = Vec::new();
    let several = reports.len() > 1;
    let of = world(reports).map_or_else(String::new, |world| format!(" of {world}"));
    let mut ranks: Vec<u32> = reports.iter().filter_map(|r| r.identity.rank).collect();
    ranks.sort_unstable();
    let mut by: Vec<&str> = reports.iter().filter_map(|r| r.identity.by).collect();
    by.sort_unstable();
    by.dedup();
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    if !ranks.is_empty() {
        lines.push(format!("{word} {}{of}, by {}", list(&ranks), by.join(" and ")));
    }
    for report in reports.iter().filter(|r| r.identity.rank.is_none()) {
        let name = file_name(report);
        let mut of: Vec<u32> = report.identity.ranks.values().copied().collect();
        of.sort_unstable();
        of.dedup();
        if of.len() > 1 {
            let by = report.identity.by.unwrap_or("?");
            lines.push(format!("file {name} holds ranks {}, by {by}", list(&of)));
        } else if several {
            lines.push(format!("file {name} names no rank: it is called by its name"));
        }
    }
    for report in reports {
        if let Some(remark) = &report.identity.remark {
            lines.push(format!("file {}: {remark}", file_name(report)));
        }
    }
    if several {
        lines.push(merged(reports));
        lines.extend(alignment.line());
    }
    lines
}

/// By what several reports are one trace.
fn merged(reports: &[Report]) -> String {
    let all = |of: &dyn Fn(&Report) -> Option<String>| {
        let mut all: Vec<String> = reports.iter().map(|r| of(r).unwrap_or("?".into())).collect();
        all.sort();
        all.dedup();
        all
    };
    let jobs = all(&|r| r.identity.job.clone());
    let hosts = all(&|r| r.host.clone());
    let job = match &*jobs {
        [one] if one == "?" => "no report names its job".into(),
        [one] => format!("of job {one}"),
        several => format!("of different jobs: {}", several.join(", ")),
    };
    let hosts = match &*hosts {
        [one] if one == "?" => "no report names its host".into(),
        [one] => format!("of host {one}"),
        several => format!("of {} hosts: {}", several.len(), several.join(", ")),
    };
    let containers = all(&|r| r.identity.container.clone());
    let containers = match &*containers {
        [one] if one == "?" => String::new(),
        [one] => format!("; in container {one}"),
        several => format!("; in {} containers: {}", several.len(), several.join(", ")),
    };
    let why = match reports.iter().all(|r| r.epoch.is_some()) {
        true => "because they were captured at the same time",
        false => "although not all say when they were captured",
    };
    format!("{} reports merged {why}; {job}; {hosts}{containers}", reports.len())
}
