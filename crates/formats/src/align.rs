//! How the clocks of the files of one job are aligned, by what, and how well.
//!
//! Times of a file count from a base that the clock of its host gave. Files of one host share that clock.
//! Clocks of several hosts differ; but no rank leaves a collective with a barrier before the last one has
//! entered it, so it ends at nearly the same moment on all ranks. The median difference of many such ends
//! corrects the clocks, and what is left of the differences says how well.
//!
//! What fools it: collectives that are not the same ones, because a capture began one call later. Their ends
//! lie apart after the correction as well, unless calls come as regularly as a clock; then only the bases
//! can tell, which is why the summary says how far apart the ends lay by them.

use std::collections::BTreeMap;

use gpuwhy_schema::{ClockError, Ns};
use serde_json::{Value, json};

/// With fewer collectives than this, the files' own clocks are kept.
pub(crate) const ENOUGH: usize = 8;
/// The clocks of hosts that use NTP agree to about a millisecond (RFC 5905). Collectives whose ends lie
/// farther apart after a correction are not the same ones, and correct nothing.
const UNCORRECTED: Ns = Ns::millis(1);
/// Kernels of communication libraries that end together on all ranks, as NCCL and RCCL name them. Others need
/// not: of a broadcast the root leaves first, and a send and its receive are of two ranks.
const TOGETHER: &[&[u8]] = &[b"AllReduce", b"AllGather", b"ReduceScatter"];

/// Whether kernels of this name end together on all ranks.
pub(crate) fn end_together(kernel: &[u8]) -> bool {
    let has = |word: &[u8]| kernel.windows(word.len()).any(|w| w == word);
    has(b"nccl") && TOGETHER.iter().any(|word| has(word))
}

/// By what the times of files are comparable before any collective is looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Base {
    /// There is one file.
    #[default]
    Alone,
    /// The clock of this host, which all share.
    OneHost(String),
    /// Each file says when it began, by the clock of its host.
    Hosts,
    /// These files do not say when they began, and are placed at the begin of the first.
    Missing(Vec<String>),
}

/// The ends of a collective on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ends {
    /// The collective: the name of a call or of a kernel.
    what: String,
    /// Of each file, sorted, ns on its own clock; equally many.
    ends: Vec<Vec<i64>>,
}

/// The ends of a collective, compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Compared {
    /// The collective.
    pub what: String,
    /// How many were compared.
    pub count: usize,
    /// How far apart their ends lie by the files' own clocks: median, ns.
    pub before_p50_ns: i64,
    /// After the times were moved: median, ns.
    pub p50_ns: i64,
    /// The same at the 95th percentile.
    pub p95_ns: i64,
    /// How far apart they would lie after a correction that was not made, since they are not the same ones.
    pub refused_p95_ns: Option<i64>,
}

/// How the times of files are moved to one clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Alignment {
    /// What to add to the times of each file, ns.
    pub shifts: Vec<i64>,
    /// What there is without collectives.
    pub base: Base,
    /// The ends of collectives, if they could be compared.
    pub compared: Option<Compared>,
    /// Whether these ends corrected the clocks.
    pub is_corrected: bool,
    /// By how much times of two files may differ.
    pub error: ClockError,
}

impl Ends {
    /// Of the collective that ran most often, among those that ran equally often, and often enough, in all
    /// files. `of` are the ends in each file by what ended.
    pub fn common<K: Ord>(of: &[&BTreeMap<K, Vec<i64>>], name: fn(&K) -> String) -> Option<Ends> {
        let (first, others) = of.split_first()?;
        let equal = |(what, ends): &(&K, &Vec<i64>)| {
            ends.len() >= ENOUGH
                && others.iter().all(|file| file.get(*what).map(Vec::len) == Some(ends.len()))
        };
        let (what, _) = first.iter().filter(equal).max_by_key(|(_, ends)| ends.len())?;
        let sorted = |file: &&BTreeMap<K, Vec<i64>>| {
            let mut ends = file[what].clone();
            ends.sort_unstable();
            ends
        };
        Some(Ends { what: name(what), ends: of.iter().map(sorted).collect() })
    }

    fn count(&self) -> usize {
        self.ends.first().map_or(0, Vec::len)
    }

    fn at(&self, shifts: &[i64], file: usize, k: usize) -> i64 {
        self.ends[file][k].saturating_add(shifts[file])
    }

    /// How far apart they lie, moved by `shifts`.
    fn measure(&self, shifts: &[i64]) -> Compared {
        let count = self.count();
        let apart = |k: usize| {
            let times = (0..self.ends.len()).map(|file| self.at(shifts, file, k));
            let (min, max) = (times.clone().min(), times.max());
            max.unwrap_or(0).saturating_sub(min.unwrap_or(0))
        };
        let mut apart: Vec<i64> = (0..count).map(apart).collect();
        apart.sort_unstable();
        let (p50_ns, p95_ns) = (apart[count / 2], apart[(count * 95 / 100).min(count - 1)]);
        let what = self.what.clone();
        Compared { what, count, before_p50_ns: p50_ns, p50_ns, p95_ns, refused_p95_ns: None }
    }

    /// The shifts with which they lie where they lie in the first file, at the median.
    fn corrected(&self, shifts: &[i64]) -> Vec<i64> {
        let count = self.count();
        let of = |file: usize| {
            let late = |k: usize| self.at(shifts, file, k).saturating_sub(self.at(shifts, 0, k));
            let mut late: Vec<i64> = (0..count).map(late).collect();
            late.sort_unstable();
            shifts[file].saturating_sub(late[count / 2])
        };
        (0..self.ends.len()).map(of).collect()
    }
}

impl Alignment {
    /// Of files that are placed by `shifts`, which `base` gave, and of the collectives that all have.
    pub fn of(base: Base, shifts: Vec<i64>, ends: Option<&Ends>) -> Alignment {
        let own = ends.map(|ends| ends.measure(&shifts));
        let error = match (&base, &own) {
            (Base::Alone | Base::OneHost(_), _) => ClockError::NONE,
            (Base::Missing(_), _) => ClockError::Unknown,
            (Base::Hosts, own) => {
                let seen = own.as_ref().map_or(Ns::ZERO, |own| Ns(own.p95_ns));
                ClockError::Within(seen.max(UNCORRECTED))
            }
        };
        let mut kept =
            Alignment { shifts, base, compared: own.clone(), is_corrected: false, error };
        let may_correct = matches!(kept.base, Base::Hosts | Base::Missing(_));
        let (Some(ends), Some(own), true) = (ends, own, may_correct) else { return kept };
        let moved = ends.corrected(&kept.shifts);
        let after = ends.measure(&moved);
        if after.p95_ns > UNCORRECTED.0 {
            let refused_p95_ns = Some(after.p95_ns);
            kept.compared = Some(Compared { refused_p95_ns, ..own });
            return kept;
        }
        Alignment {
            shifts: moved,
            error: ClockError::Within(Ns(after.p95_ns.max(1))),
            compared: Some(Compared { before_p50_ns: own.p50_ns, ..after }),
            is_corrected: true,
            ..kept
        }
    }

    /// By what the files are aligned, in words; empty for a single file.
    fn by(&self) -> String {
        let files = self.shifts.len();
        if self.is_corrected {
            return "the ends of collectives".into();
        }
        match &self.base {
            Base::Alone => String::new(),
            Base::OneHost(host) => format!("the clock of host {host}, which all {files} share"),
            Base::Hosts => {
                "the times at which they say that they began, by the clocks of their hosts".into()
            }
            Base::Missing(without) => format!(
                "nothing: {} {} not say when {} began",
                without.join(", "),
                if without.len() == 1 { "does" } else { "do" },
                if without.len() == 1 { "it" } else { "they" }
            ),
        }
    }

    /// For the terminal; `None` for a single file.
    pub fn line(&self) -> Option<String> {
        let by = self.by();
        if by.is_empty() {
            return None;
        }
        let us = |ns: i64| ns as f64 / 1e3;
        let mut line = format!("{} files aligned by {by}: ", self.shifts.len());
        line += &match &self.compared {
            Some(c) => format!(
                "{} x {} end {:.3} us apart at the median, {:.3} us at p95 ({:.3} us by the files' own \
                 clocks)",
                c.count,
                c.what,
                us(c.p50_ns),
                us(c.p95_ns),
                us(c.before_p50_ns)
            ),
            None => {
                format!("fewer than {ENOUGH} collectives are common to all, by which to check it")
            }
        };
        if let Some(ns) = self.compared.as_ref().and_then(|c| c.refused_p95_ns) {
            line += &format!(
                ", and {:.3} us at p95 if these were to correct the clocks: they are not the same ones",
                us(ns)
            );
        }
        line += &match self.error {
            ClockError::NONE => String::new(),
            ClockError::Within(ns) => {
                format!("; times of two files may differ by {:.3} us", us(ns.0))
            }
            ClockError::Unknown => {
                "; what happened in different files cannot be compared in time".into()
            }
        };
        Some(line)
    }

    /// For `import --json`; null for a single file.
    pub fn json(&self) -> Value {
        if self.base == Base::Alone {
            return Value::Null;
        }
        let compared = self.compared.as_ref();
        json!({
            "shifts_ns": self.shifts,
            "by": self.by(),
            "error_ns": self.error.ns(),
            "corrected": self.is_corrected,
            "collective": compared.map(|c| &c.what),
            "collectives": compared.map_or(0, |c| c.count),
            "residual_p50_ns": compared.map(|c| c.p50_ns),
            "residual_p95_ns": compared.map(|c| c.p95_ns),
            "before_p50_ns": compared.map(|c| c.before_p50_ns),
            "refused_p95_ns": compared.and_then(|c| c.refused_p95_ns),
        })
    }

    /// For a file's source, as `key=value` words; empty for a single file.
    pub fn words(&self) -> String {
        let by = match (&self.base, self.compared.as_ref().filter(|_| self.is_corrected)) {
            (Base::Alone, _) => return String::new(),
            (_, Some(compared)) => compared.what.replace(' ', "_"),
            (Base::OneHost(_), None) => "one_host".into(),
            (Base::Hosts, None) => "own_clocks".into(),
            (Base::Missing(_), None) => "nothing".into(),
        };
        format!("aligned_by={by} {}", self.error.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends of ten collectives a millisecond apart, in files whose clocks are off by these.
    fn ends(off: &[i64]) -> Ends {
        let of = |off: &i64| (0..10).map(|k| 1_000_000 * k + off).collect();
        Ends { what: "MPI_Allreduce".into(), ends: off.iter().map(of).collect() }
    }

    fn of(base: Base, off: &[i64]) -> Alignment {
        Alignment::of(base, vec![0; off.len()], Some(&ends(off)))
    }

    #[test]
    fn clocks_of_several_hosts_are_corrected_by_the_median_of_the_ends() {
        let found = of(Base::Hosts, &[0, 5_000_000_000]);
        assert_eq!(found.shifts, [0, -5_000_000_000]);
        assert_eq!(found.error, ClockError::Within(Ns(1)));
        assert_eq!(found.words(), "aligned_by=MPI_Allreduce error_ns=1");
        assert_eq!(
            found.line().unwrap(),
            "2 files aligned by the ends of collectives: 10 x MPI_Allreduce end 0.000 us apart at the median, \
             0.000 us at p95 (5000000.000 us by the files' own clocks); times of two files may differ by \
             0.001 us"
        );
    }

    #[test]
    fn files_that_do_not_say_when_they_began_are_aligned_by_collectives_or_not_at_all() {
        let missing = || Base::Missing(vec!["a".into(), "b".into()]);
        assert_eq!(of(missing(), &[0, 700_000]).error, ClockError::Within(Ns(1)));
        let alone = Alignment::of(missing(), vec![0, 0], None);
        assert_eq!(
            (alone.error, &*alone.words()),
            (ClockError::Unknown, "aligned_by=nothing error_ns=unknown")
        );
        assert_eq!(
            alone.line().unwrap(),
            "2 files aligned by nothing: a, b do not say when they began: fewer than 8 collectives are common \
             to all, by which to check it; what happened in different files cannot be compared in time"
        );
        assert_eq!(alone.json()["error_ns"], Value::Null);
    }

    #[test]
    fn collectives_that_end_far_apart_after_a_correction_correct_nothing() {
        // From the third one on it is another call that is counted.
        let mut far = ends(&[0, 200_000]);
        let spread = [0, 9, 1, 8, 2, 7, 3, 6, 4, 5];
        far.ends[1] =
            far.ends[1].iter().zip(spread).map(|(end, far)| end + far * 2_000_000).collect();
        far.ends[1].sort_unstable();
        let found = Alignment::of(Base::Hosts, vec![0, 0], Some(&far));
        assert!(!found.is_corrected);
        assert_eq!(found.shifts, [0, 0]);
        let compared = found.compared.as_ref().unwrap();
        assert!(compared.refused_p95_ns.unwrap() > 1_000_000);
        // The error is what is seen, and not what clocks of hosts usually have.
        assert_eq!(found.error, ClockError::Within(Ns(compared.p95_ns)));
        assert!(found.line().unwrap().contains("they are not the same ones"), "{found:?}");
        // Where nothing says when files began, nothing bounds the error.
        let found = Alignment::of(Base::Missing(vec!["a".into()]), vec![0, 0], Some(&far));
        assert_eq!(found.error, ClockError::Unknown);
    }

    #[test]
    fn ranks_of_one_host_share_its_clock_and_a_single_file_has_none_to_share() {
        let found = of(Base::OneHost("node7".into()), &[0, 7_000]);
        assert_eq!((found.error, found.shifts.len()), (ClockError::NONE, 2));
        assert!(!found.is_corrected && found.compared.unwrap().p50_ns == 7_000);
        let alone = Alignment::of(Base::Alone, vec![0], None);
        assert_eq!((alone.line(), &*alone.words(), alone.json()), (None, "", Value::Null));
    }

    #[test]
    fn the_collective_that_ran_most_often_in_all_files_is_compared() {
        let file = |often: usize, seldom: usize| {
            let ends = |n: usize| (0..n as i64).rev().collect::<Vec<i64>>();
            BTreeMap::from([("often", ends(often)), ("seldom", ends(seldom)), ("few", ends(7))])
        };
        let name = |name: &&str| (*name).to_owned();
        let (a, b, c) = (file(20, 9), file(20, 9), file(21, 9));
        let found = Ends::common(&[&a, &b], name).unwrap();
        assert_eq!((&*found.what, found.ends[1][0]), ("often", 0));
        assert_eq!(Ends::common(&[&a, &c], name).unwrap().what, "seldom");
        assert_eq!(Ends::common(&[&a, &BTreeMap::new()], name), None);
    }

    #[test]
    fn of_nccl_kernels_those_with_a_barrier_end_together() {
        assert!(end_together(b"ncclDevKernel_AllReduce_Sum_f32_RING_LL"));
        assert!(end_together(b"ncclKernel_AllGather_RING_LL_Sum_int8_t"));
        assert!(!end_together(b"ncclDevKernel_SendRecv") && !end_together(b"ncclKernel_Broadcast"));
        assert!(!end_together(b"MyAllReduce"));
    }
}
