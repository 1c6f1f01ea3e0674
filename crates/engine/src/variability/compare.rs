//! Two recordings of the same work: which kernels and which kinds of copies took longer, are new, are gone,
//! and which kernels were built with other template arguments.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use super::kernel_names::{Replaced, base_name, differences, readable};
use super::sums::Sums;
use super::{CopySummary, KernelSummary, copies_of, kernels_of};

/// A change is worth mentioning from this share of all device time on.
const NOTABLE: f64 = 0.01;

/// What of a recording is compared.
pub struct Recording {
    kernels: Vec<KernelSummary>,
    copies: Vec<CopySummary>,
}

impl Recording {
    /// That of these sums.
    pub fn of(sums: &Sums) -> Recording {
        Recording { kernels: kernels_of(sums), copies: copies_of(sums) }
    }

    /// All kernels and copies, ms.
    fn total_ms(&self) -> f64 {
        let kernels = self.kernels.iter().map(|k| k.total_ms);
        kernels.chain(self.copies.iter().map(|c| c.total_ms)).sum()
    }
}

/// A kernel, or the copies of one kind, in one of the recordings.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Calls.
    pub count: u64,
    /// All of them, ms.
    pub total_ms: f64,
    /// One of them, µs.
    pub mean_us: f64,
    /// Of copies: how many bytes.
    pub bytes: Option<u64>,
}

/// How a kernel, or the copies of one kind, differ.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// `kernel` or `copy`.
    pub what: &'static str,
    /// Its name; of copies their kind: `h2d`, `d2h`, `p2p`.
    pub name: String,
    /// Before.
    pub before: Option<Side>,
    /// After.
    pub after: Option<Side>,
    /// What that comes to, ms.
    pub delta_ms: f64,
    /// Of that, because there are more or fewer calls, ms.
    pub by_count_ms: f64,
    /// Of that, because a call takes longer or shorter, ms.
    pub by_duration_ms: f64,
    /// The name of the kernel before, if it had the same but for its template arguments: the same kernel, built otherwise.
    pub built_as: Option<String>,
    /// What of these arguments became what.
    pub arguments: Vec<Replaced>,
    /// Whether it is at least a hundredth of the time of all kernels and copies.
    pub notable: bool,
}

impl Change {
    /// As one line: the time, of that by the number of calls and by how long a call takes, and what.
    pub fn text(&self) -> String {
        let name: String = self.name.chars().take(90).collect();
        let how = self.how();
        let how = if how.is_empty() { how } else { format!(" ({how})") };
        let what = if self.what == "copy" { "copies " } else { "" };
        let Change { delta_ms, by_count_ms, by_duration_ms, .. } = self;
        format!("{delta_ms:>+10.3} ({by_count_ms:+.3}, {by_duration_ms:+.3})  {what}{name}{how}")
    }

    /// What became of it, in words: `new`; nothing if it is in both.
    pub fn how(&self) -> String {
        match (&self.before, &self.after, &self.built_as) {
            (None, ..) => "new".into(),
            (_, None, _) => "gone".into(),
            (.., Some(_)) if self.arguments.is_empty() => "built otherwise".into(),
            (.., Some(_)) => {
                let told: Vec<String> = self.arguments.iter().map(Replaced::to_string).collect();
                format!("built otherwise: {}", told.join(", "))
            }
            _ => String::new(),
        }
    }
}

/// How many of these are worth mentioning, in words.
pub fn notable_in_words(changes: &[Change]) -> String {
    match changes.iter().filter(|change| change.notable).count() {
        0 => "nothing changed by 1 % of the time of all kernels and copies".to_owned(),
        1 => "1 of them changed by at least 1 % of the time of all kernels and copies".to_owned(),
        n => format!("{n} of them changed by at least 1 % of the time of all kernels and copies"),
    }
}

/// A kernel's name, and the same as a programmer writes it.
type Named<'a> = (&'a str, Cow<'a, str>);

/// Kernels that are gone and kernels that are new, by their base names.
type Alone<'a> = BTreeMap<String, (Vec<Named<'a>>, Vec<Named<'a>>)>;

/// So many pairs of kernels of one base name are compared at most.
const PAIRS: usize = 4096;

/// What changed from `before` to `after`, the greatest difference first.
pub fn changes(before: &Recording, after: &Recording) -> Vec<Change> {
    let mut changes = changed_kernels(&before.kernels, &after.kernels);
    changes.extend(changed_copies(&before.copies, &after.copies));
    let least = NOTABLE * before.total_ms().max(after.total_ms());
    for change in &mut changes {
        change.notable = change.delta_ms != 0.0 && change.delta_ms.abs() >= least;
    }
    changes.sort_by(|a, b| {
        b.delta_ms.abs().total_cmp(&a.delta_ms.abs()).then_with(|| a.name.cmp(&b.name))
    });
    changes
}

fn changed_copies(before: &[CopySummary], after: &[CopySummary]) -> Vec<Change> {
    let side = |c: &CopySummary| Side {
        count: c.count,
        total_ms: c.total_ms,
        mean_us: c.mean_us,
        bytes: Some(c.bytes),
    };
    let mut all: BTreeMap<&str, (Option<Side>, Option<Side>)> = BTreeMap::new();
    before.iter().for_each(|copies| all.entry(copies.kind).or_default().0 = Some(side(copies)));
    after.iter().for_each(|copies| all.entry(copies.kind).or_default().1 = Some(side(copies)));
    all.into_iter().map(|(kind, (b, a))| change("copy", kind, b, a)).collect()
}

fn changed_kernels(before: &[KernelSummary], after: &[KernelSummary]) -> Vec<Change> {
    let side = |k: &KernelSummary| Side {
        count: k.count,
        total_ms: k.total_ms,
        mean_us: k.mean_us,
        bytes: None,
    };
    let mut all: BTreeMap<&str, (Option<Side>, Option<Side>)> = BTreeMap::new();
    before.iter().for_each(|kernel| all.entry(&kernel.name).or_default().0 = Some(side(kernel)));
    after.iter().for_each(|kernel| all.entry(&kernel.name).or_default().1 = Some(side(kernel)));
    let mut alone = Alone::new();
    for (&name, sides) in &all {
        let of_base = |readable: &str| base_name(readable).to_owned();
        let readable = readable(name);
        match sides {
            (Some(_), None) => {
                alone.entry(of_base(&readable)).or_default().0.push((name, readable));
            }
            (None, Some(_)) => {
                alone.entry(of_base(&readable)).or_default().1.push((name, readable));
            }
            _ => {}
        }
    }
    let mut built: Vec<Change> = Vec::new();
    for (gone, new) in alone.into_values() {
        for (old, name, arguments) in pairs(&gone, &new) {
            let before = all.remove(old).and_then(|sides| sides.0);
            let after = all.remove(name).and_then(|sides| sides.1);
            let change = change("kernel", name, before, after);
            built.push(Change { built_as: Some(old.to_owned()), arguments, ..change });
        }
    }
    let others = all.into_iter().map(|(name, (b, a))| change("kernel", name, b, a));
    others.chain(built).collect()
}

/// Which of the kernels that are gone and of those that are new are the same, built otherwise: those that differ least.
/// Their names, and how they differ.
fn pairs<'a>(gone: &[Named<'a>], new: &[Named<'a>]) -> Vec<(&'a str, &'a str, Vec<Replaced>)> {
    // Of very many kernels of one wrapper nobody can tell which became which.
    if gone.len().saturating_mul(new.len()) > PAIRS {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (i, (_, old)) in gone.iter().enumerate() {
        for (j, (_, name)) in new.iter().enumerate() {
            all.extend(differences(old, name).map(|(words, list)| (words, i, j, list)));
        }
    }
    all.sort_by_key(|(words, i, j, _)| (*words, *i, *j));
    let (mut of_old, mut of_new) = (vec![false; gone.len()], vec![false; new.len()]);
    let mut out = Vec::new();
    for (_, i, j, list) in all {
        if !of_old[i] && !of_new[j] {
            (of_old[i], of_new[j]) = (true, true);
            out.push((gone[i].0, new[j].0, list));
        }
    }
    out
}

fn change(what: &'static str, name: &str, before: Option<Side>, after: Option<Side>) -> Change {
    let total = |side: &Option<Side>| side.as_ref().map_or(0.0, |s| s.total_ms);
    let delta_ms = total(&after) - total(&before);
    let by_count_ms = match (&before, &after) {
        // More calls, each as long as it took before.
        (Some(b), Some(a)) => (a.count as f64 - b.count as f64) * b.mean_us / 1e3,
        _ => delta_ms,
    };
    let by_duration_ms = delta_ms - by_count_ms;
    Change {
        what,
        name: name.to_string(),
        before,
        after,
        delta_ms,
        by_count_ms,
        by_duration_ms,
        built_as: None,
        arguments: Vec::new(),
        notable: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, count: u64, mean_us: f64) -> KernelSummary {
        KernelSummary {
            name: name.into(),
            count,
            total_ms: count as f64 * mean_us / 1e3,
            mean_us,
            p50_us: mean_us,
            p99_us: mean_us,
            max_us: mean_us,
            std_us: 0.0,
            exact: true,
        }
    }

    #[test]
    fn a_change_is_split_into_its_causes() {
        let before = [
            kernel("a", 100, 10.0),
            kernel("void g<64, int>(int)", 10, 140.0),
            kernel("gone", 1, 5.0),
        ];
        let after = [kernel("a", 150, 12.0), kernel("void g<128, int>(int)", 10, 210.0)];
        let of =
            |kernels: &[KernelSummary]| Recording { kernels: kernels.to_vec(), copies: Vec::new() };
        let found = changes(&of(&before), &of(&after));
        let a = found.iter().find(|c| c.name == "a").unwrap();
        assert!((a.delta_ms - 0.8).abs() < 1e-9);
        assert!((a.by_count_ms - 0.5).abs() < 1e-9 && (a.by_duration_ms - 0.3).abs() < 1e-9);
        let built = found.iter().find(|c| c.name == "void g<128, int>(int)").unwrap();
        assert_eq!(built.built_as.as_deref(), Some("void g<64, int>(int)"));
        assert_eq!(built.how(), "built otherwise: 64 -> 128");
        assert!((built.by_duration_ms - 0.7).abs() < 1e-9 && built.by_count_ms == 0.0, "{built:?}");
        let gone = found.iter().find(|c| c.name == "gone").unwrap();
        assert!(gone.after.is_none() && gone.built_as.is_none());
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].name, "a", "the greatest difference first");
    }

    /// Three instances of one wrapper, of which two were built otherwise and one gave way to another kernel.
    #[test]
    fn of_several_instances_of_one_wrapper_those_that_differ_least_are_the_same() {
        let before =
            ["w<A<64, x, y, z>>", "w<A<32, u, y, z>>", "w<B<1, q, r>>"].map(|n| kernel(n, 1, 1.0));
        let after =
            ["w<A<16, u, y, z>>", "w<A<128, x, y, z>>", "w<C<2, s, t>>"].map(|n| kernel(n, 1, 1.0));
        let of =
            |kernels: &[KernelSummary]| Recording { kernels: kernels.to_vec(), copies: Vec::new() };
        let mut told: Vec<String> = changes(&of(&before), &of(&after))
            .iter()
            .map(|c| format!("{} {}", c.name, c.how()))
            .collect();
        told.sort();
        assert_eq!(
            told,
            [
                "w<A<128, x, y, z>> built otherwise: 64 -> 128",
                "w<A<16, u, y, z>> built otherwise: 32 -> 16",
                "w<B<1, q, r>> gone",
                "w<C<2, s, t>> new",
            ]
        );
    }

    #[test]
    fn copies_are_compared_by_kind_and_small_changes_are_not_worth_mentioning() {
        let copies = |kind, count, bytes, mean_us| CopySummary {
            kind,
            count,
            bytes,
            total_ms: count as f64 * mean_us / 1e3,
            mean_us,
        };
        let kernels = vec![kernel("a", 1000, 10.0)];
        let before = Recording {
            kernels: kernels.clone(),
            copies: vec![copies("h2d", 10, 4096, 100.0), copies("d2h", 1, 8, 1.0)],
        };
        let after = Recording { kernels, copies: vec![copies("h2d", 40, 16384, 100.0)] };
        let found = changes(&before, &after);
        assert_eq!((found[0].what, &*found[0].name, found[0].notable), ("copy", "h2d", true));
        assert!((found[0].by_count_ms - 3.0).abs() < 1e-9);
        assert_eq!(found[0].after.as_ref().unwrap().bytes, Some(16384));
        let gone = found.iter().find(|c| c.name == "d2h").unwrap();
        assert!(gone.after.is_none() && !gone.notable, "a microsecond of ten milliseconds");
        assert!(!found.iter().any(|c| c.what == "kernel" && c.notable));
    }
}
