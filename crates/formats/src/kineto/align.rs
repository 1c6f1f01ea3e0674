//! By what the times of several files are one: their base times, their hosts, and collectives that all have.

use std::path::PathBuf;

use super::identity::name_of;
use super::survey::Survey;
use crate::align::{Alignment, Base, Ends};
use crate::{Error, Result};

/// Aligns files that were recorded at the same time.
///
/// # Errors
/// They were not.
pub(super) fn align(paths: &[PathBuf], surveys: &[Survey]) -> Result<Alignment> {
    let bases: Vec<Option<i64>> = surveys.iter().map(|s| s.about.base).collect();
    let first = bases.iter().flatten().min().copied().unwrap_or(0);
    let shift = |base: &Option<i64>| base.map_or(0, |base| base.saturating_sub(first));
    let shifts: Vec<i64> = bases.iter().map(shift).collect();
    check_overlap(paths, surveys, &shifts)?;
    let ends: Vec<_> = surveys.iter().map(|s| &s.collectives).collect();
    let ends = Ends::common(&ends, |name| String::from_utf8_lossy(name).into_owned());
    Ok(Alignment::of(base(paths, surveys), shifts, ends.as_ref()))
}

/// What makes the times of files comparable before any collective is looked at.
fn base(paths: &[PathBuf], surveys: &[Survey]) -> Base {
    let without = paths.iter().zip(surveys).filter(|(_, s)| s.about.base.is_none());
    let without: Vec<String> = without.map(|(path, _)| name_of(path)).collect();
    if !without.is_empty() {
        return Base::Missing(without);
    }
    match surveys.first().and_then(|s| s.about.host.clone()) {
        Some(first) if surveys.iter().all(|s| s.about.host.as_ref() == Some(&first)) => {
            Base::OneHost(first)
        }
        _ => Base::Hosts,
    }
}

/// Files of one job were recorded at the same time.
fn check_overlap(paths: &[PathBuf], surveys: &[Survey], shifts: &[i64]) -> Result<()> {
    let range = |i: usize| {
        let at = |time: Option<i64>| time.map(|time| time.saturating_add(shifts[i]));
        Some((at(surveys[i].first)?, at(surveys[i].last)?, i))
    };
    let mut ranges: Vec<(i64, i64, usize)> = (0..surveys.len()).filter_map(range).collect();
    ranges.sort_unstable();
    let mut last: Option<(i64, usize)> = None;
    for (from, to, i) in ranges {
        if let Some((until, before)) = last
            && from > until
        {
            let apart = from.saturating_sub(until) as f64 / 1e9;
            let why = format!(
                "they were not recorded at the same time: the first ends {apart:.3} s before the other \
                 begins"
            );
            return Err(Error::Unrelated {
                first: paths[before].clone(),
                other: paths[i].clone(),
                why,
            });
        }
        last = last.max(Some((to, i)));
    }
    Ok(())
}
