//! Whose a file is: its rank, and what tells it from the job's other files.
//!
//! A rank is what `distributedInfo` says, else what the file's name says in so many words (`rank3`). It never
//! comes from the order of arguments: without a rank, devices and processes are called by their file.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::survey::Survey;
use crate::{Error, Result};

/// Whose a file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// Tells its entities from those of the job's other files.
    pub key: String,
    /// The name of the file.
    pub file_name: String,
    /// What its devices are called by where it has no rank; `None` if there is no other file.
    pub label: Option<String>,
    /// The rank in the file's name.
    pub rank: Option<u32>,
}

impl Identity {
    /// Of the only file of an import.
    pub fn alone(path: &Path) -> Identity {
        let file_name = name_of(path);
        let tag = file_name.split('.').next().unwrap_or_default().to_owned();
        Identity { key: tag, label: None, rank: rank_in(&file_name), file_name }
    }

    /// Of the files of one job.
    ///
    /// # Errors
    /// They cannot be of one job: two have the same contents or the same rank, or they say that the job has
    /// different numbers of ranks.
    pub fn of_job(paths: &[PathBuf], surveys: &[Survey]) -> Result<Vec<Identity>> {
        let mut all: Vec<Identity> = Vec::new();
        for path in paths {
            let file_name = name_of(path);
            let same = paths.iter().filter(|other| name_of(other) == file_name).count();
            let label = if same == 1 { file_name.clone() } else { path.display().to_string() };
            let rank = rank_in(&file_name);
            all.push(Identity { key: label.clone(), label: Some(label), rank, file_name });
        }
        for b in 1..paths.len() {
            for a in 0..b {
                let why =
                    differ(&paths[a], &paths[b], &surveys[a], &surveys[b], [&all[a], &all[b]])?;
                if let Some(why) = why {
                    let (first, other) = (paths[a].clone(), paths[b].clone());
                    return Err(Error::Unrelated { first, other, why });
                }
            }
        }
        Ok(all)
    }
}

/// Why two files cannot be of one job.
fn differ(
    a: &Path,
    b: &Path,
    of_a: &Survey,
    of_b: &Survey,
    named: [&Identity; 2],
) -> Result<Option<String>> {
    let (about_a, about_b) = (&of_a.about, &of_b.about);
    if of_a == of_b && same_contents(a, b)? {
        return Ok(Some("they hold the same".into()));
    }
    if let (Some(a), Some(b)) = (about_a.world, about_b.world)
        && a != b
    {
        return Ok(Some(format!("their jobs have {a} and {b} ranks (distributedInfo)")));
    }
    let ranks = [about_a.rank.or(named[0].rank), about_b.rank.or(named[1].rank)];
    if let [Some(a), Some(b)] = ranks
        && a == b
    {
        let by = match (about_a.rank, about_b.rank) {
            (Some(_), Some(_)) => "distributedInfo",
            _ => "distributedInfo, or the file's name",
        };
        return Ok(Some(format!("both are of rank {a} ({by})")));
    }
    Ok(None)
}

/// What a file is called.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether two files have the same bytes.
fn same_contents(a: &Path, b: &Path) -> Result<bool> {
    let open = |path: &Path| -> Result<(u64, BufReader<File>)> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("measure", path))?.len();
        Ok((length, BufReader::new(file)))
    };
    let ((length, mut of_a), (other, mut of_b)) = (open(a)?, open(b)?);
    if length != other {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut rest = length;
    while rest > 0 {
        let n = rest.min(left.len() as u64) as usize;
        of_a.read_exact(&mut left[..n]).map_err(Error::io("read", a))?;
        of_b.read_exact(&mut right[..n]).map_err(Error::io("read", b))?;
        if left[..n] != right[..n] {
            return Ok(false);
        }
        rest -= n as u64;
    }
    Ok(true)
}

/// The rank that the name of a file states: `rank3.json`, `rank-12.pt.trace.json.gz`, `job_rank_0.json`. None
/// where `rank` is part of another word, or two ranks are named.
fn rank_in(name: &str) -> Option<u32> {
    let name = name.to_ascii_lowercase();
    let mut found = None;
    for (at, word) in name.match_indices("rank") {
        if name[..at].ends_with(|c: char| c.is_ascii_alphanumeric()) {
            continue;
        }
        let after = name[at + word.len()..].trim_start_matches(['-', '_']);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let Ok(rank) = after[..end].parse() else { continue };
        if after[end..].starts_with(|c: char| c.is_ascii_alphabetic()) || found.is_some() {
            return None;
        }
        found = Some(rank);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_read_from_a_name_only_where_the_name_says_so() {
        assert_eq!(rank_in("rank3.json"), Some(3));
        assert_eq!(rank_in("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz"), Some(34));
        assert_eq!(rank_in("job_rank_0.json"), Some(0));
        assert_eq!(rank_in("Rank12"), Some(12));
        for name in [
            "trace1.json",
            "report2.json",
            "frank3.json",
            "rank.json",
            "rank3x.json",
            "rank1_rank2.json",
        ] {
            assert_eq!(rank_in(name), None, "{name}");
        }
    }
}
