//! References as they are kept in a file: JSON, made by one recording and added to by later ones.

use std::collections::{BTreeMap, BTreeSet};

use gpuwhy_schema::PartKind;
use serde::{Deserialize, Serialize};

use super::Level;
use crate::roofline::Fit;

/// What a file of references calls itself.
pub const FORMAT: &str = "gpuwhy reference 1";
/// A file is no longer than this.
pub const LONGEST: u64 = 16 << 20;
/// Series of a file at most,
pub const SERIES: usize = 256;
/// recordings whose levels are kept,
pub const RECORDINGS: usize = 16;
/// steps of a series,
pub const STEPS: usize = 24;
/// parts of a step,
const PARTS: usize = 64;
/// settings of a series,
const SETTINGS: usize = 128;
/// and bytes of a word.
const WORD: usize = 256;

/// A file of references.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// [`FORMAT`].
    pub format: String,
    /// When the latest recording in it was made: seconds since 1970.
    pub latest_s: u64,
    /// The series.
    pub series: Vec<Stored>,
}

/// Which series it is, by what stays the same from one recording to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The process.
    pub process: String,
    /// The thread.
    pub thread: String,
    /// The steps.
    pub name: String,
    /// The rank.
    pub rank: Option<u32>,
    /// The class of their size.
    pub size_class: Option<i64>,
    /// The kind of batch.
    pub mix: Option<String>,
    /// Of several threads that are alike, which.
    pub nth: u32,
}

/// What is kept of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// Which it is.
    pub key: Key,
    /// Levels of the latest recordings, the oldest first, on the log scale: of ns, or of the times of what steps should take.
    pub levels: Vec<f64>,
    /// How far the levels of one recording's minutes lie apart.
    pub within: f64,
    /// Where steps are measured by what there is to do in them: ns for each term, as [`Fit::prices`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Vec<f64>>,
    /// And the most of each term that they were learned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest: Option<Vec<f64>>,
    /// Steps of the latest recording.
    pub steps: Vec<StoredStep>,
    /// The settings of their host and process then.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// A step, and where its time went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredStep {
    /// How long it took, ns.
    pub ns: i64,
    /// What it should have taken, ns, where steps are measured by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ns: Option<f64>,
    /// Its parts.
    pub parts: Vec<StoredPart>,
}

/// Where a part of a step's time went.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoredPart {
    /// The kind of part.
    pub kind: String,
    /// Whether it is what another series' thread did while this one waited for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaited: bool,
    /// How long, ns.
    pub ns: i64,
}

impl Stored {
    /// Its level.
    pub fn level(&self) -> Option<Level> {
        Level::of(&self.levels, self.within)
    }

    /// Its prices.
    pub fn fit(&self) -> Option<Fit> {
        Fit::of_prices(self.prices.as_deref()?, self.largest.as_deref()?)
    }

    fn check(&self) -> Result<(), String> {
        let Key { process, thread, name, mix, .. } = &self.key;
        let of = || format!("the series `{name}` of `{process}`");
        let words = [Some(process), Some(thread), Some(name), mix.as_ref()];
        if words.into_iter().flatten().any(|word| word.len() > WORD) {
            return Err(format!("a name is longer than {WORD} bytes"));
        }
        let parts = self.steps.iter().map(|step| step.parts.len()).max().unwrap_or(0);
        let too_many = [
            (self.levels.len(), RECORDINGS, "levels"),
            (self.steps.len(), STEPS, "steps"),
            (parts, PARTS, "parts of a step"),
            (self.settings.len(), SETTINGS, "settings"),
        ];
        if let Some((n, most, what)) = too_many.into_iter().find(|(n, most, _)| n > most) {
            return Err(format!("{} has {n} {what}; {most} is the most", of()));
        }
        // Ns of 30 years, so that sums of them are numbers.
        let sound = |ns: i64| (0..1 << 60).contains(&ns);
        let steps = self.steps.iter().all(|step| {
            sound(step.ns)
                && step.expected_ns.is_none_or(|ns| ns.is_finite() && ns >= 1.0)
                && step.parts.iter().all(|part| sound(part.ns))
        });
        let levels = self.levels.iter().all(|level| level.abs() <= 60.0);
        if !steps || !levels || !(0.0..=60.0).contains(&self.within) {
            return Err(format!("{} has a number that cannot be", of()));
        }
        if self.prices.is_some() && self.fit().is_none() {
            return Err(format!("{} has prices that cannot be", of()));
        }
        let kind = |part: &StoredPart| part.kind.parse::<PartKind>().is_err();
        let mut parts = self.steps.iter().flat_map(|step| &step.parts);
        match parts.find(|part| kind(part)) {
            Some(part) => Err(format!("{} has a part of an unknown kind: `{}`", of(), part.kind)),
            None => Ok(()),
        }
    }
}

impl File {
    /// Nothing yet.
    pub fn empty() -> File {
        File { format: FORMAT.to_owned(), ..File::default() }
    }

    /// Of its text.
    ///
    /// # Errors
    /// It is no file of references; what is wrong with it, and where.
    pub fn parse(text: &str) -> Result<File, String> {
        let file: File = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if file.format != FORMAT {
            let is: String = file.format.chars().take(40).collect();
            return Err(format!("its format is `{is}`, and `{FORMAT}` is what can be read"));
        }
        if file.series.len() > SERIES {
            let n = file.series.len();
            return Err(format!("it has {n} series; {SERIES} is the most"));
        }
        let mut keys = BTreeSet::new();
        for stored in &file.series {
            stored.check()?;
            if !keys.insert(&stored.key) {
                return Err(format!("it has the series `{}` twice", stored.key.name));
            }
        }
        Ok(file)
    }

    /// Its text.
    pub fn text(&self) -> String {
        // Numbers of a checked file, and strings: they have a form in JSON.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What is stored of a series.
    pub fn of(&self, key: &Key) -> Option<&Stored> {
        self.series.iter().find(|stored| stored.key == *key)
    }

    /// Adds a recording's level of a series, with its latest steps.
    pub fn add(&mut self, key: Key, level: f64, fresh: Stored) {
        let fresh = Stored { key, ..fresh };
        let Some(old) = self.series.iter_mut().find(|stored| stored.key == fresh.key) else {
            if self.series.len() < SERIES {
                self.series.push(Stored { levels: vec![level], ..fresh });
            }
            return;
        };
        old.levels.push(level);
        let forgotten = old.levels.len().saturating_sub(RECORDINGS);
        old.levels.drain(..forgotten);
        old.within = fresh.within;
        (old.steps, old.settings) = (fresh.steps, fresh.settings);
        // Prices stay: levels are measured by them.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &str) -> Stored {
        let parts = vec![StoredPart { kind: "run".into(), awaited: false, ns: 20_000_000 }];
        let step = StoredStep { ns: 20_000_000, expected_ns: None, parts };
        let key = Key { process: "python3".into(), name: name.into(), ..Key::default() };
        Stored { key, within: 0.01, steps: vec![step], ..Stored::default() }
    }

    fn file() -> File {
        let mut file = File::empty();
        for n in 0..20 {
            file.add(stored("step").key, 16.8 + 0.01 * f64::from(n), stored("step"));
        }
        file.add(stored("other").key, 10.0, stored("other"));
        file
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_keeps_the_latest_recordings() {
        let file = file();
        assert_eq!(File::parse(&file.text()).unwrap(), file);
        let of = file.of(&stored("step").key).unwrap();
        assert_eq!((of.levels.len(), of.levels[0]), (RECORDINGS, 16.84));
        let level = of.level().unwrap();
        assert!((level.center - 16.915).abs() < 1e-9 && level.scale > 0.05, "{level:?}");
    }

    #[test]
    fn what_is_no_reference_is_refused_with_its_reason() {
        let refused = |change: &dyn Fn(&mut File)| {
            let mut file = file();
            change(&mut file);
            File::parse(&file.text()).unwrap_err()
        };
        assert!(File::parse("{").unwrap_err().contains("line 1"));
        assert!(
            refused(&|f| f.format = "gpuwhy reference 9".into()).contains("gpuwhy reference 9")
        );
        assert!(refused(&|f| f.series.push(stored("other"))).contains("twice"));
        assert!(refused(&|f| f.series[0].steps[0].parts[0].kind = "luck".into()).contains("luck"));
        assert!(refused(&|f| f.series[0].steps[0].ns = -1).contains("cannot be"));
        assert!(refused(&|f| f.series[0].levels = vec![1.0; 17]).contains("17 levels"));
        assert!(refused(&|f| f.series[1].prices = Some(vec![-1.0; 6])).contains("prices"));
        assert!(refused(&|f| f.series[1].key.thread = "x".repeat(999)).contains("longer"));
        let many = |f: &mut File| {
            f.series = (0..300).map(|n| stored(&format!("{n}"))).collect();
        };
        assert!(refused(&many).contains("300 series"));
    }
}
