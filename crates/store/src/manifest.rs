//! `trace.toml`: what a trace directory holds, and the one file whose replacement is a commit.
//!
//! A file that is not named here does not belong to the trace, whatever its name: a segment comes
//! into being by the rename of the manifest that names its files, and goes in the same way.

use std::collections::HashSet;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use gpuwhy_schema::{Ns, TABLES, VERSION};
use serde::{Deserialize, Serialize};

use crate::dir::Dir;
use crate::{Error, Result};

/// The manifest's name in the directory.
pub const MANIFEST: &str = "trace.toml";
/// What `format` says.
const FORMAT: &str = "gpuwhy-trace";
/// A manifest longer than this is refused unread. A day of segments of all tables is below 1 MiB.
const MAX_BYTES: u64 = 64 << 20;
/// More files than this are refused.
const MAX_FILES: usize = 1 << 20;
/// A file with more rows than this is refused: at one bit a row it would not fit its own size.
const MAX_ROWS: u64 = 1 << 40;

/// One Parquet file of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The table whose rows it holds.
    pub table: String,
    /// Where it lies, relative to the directory.
    pub path: String,
    /// The segment that it belongs to; segments are numbered in the order of their writing.
    pub segment: u32,
    /// How many rows it holds.
    pub rows: u64,
    /// Its length.
    pub bytes: u64,
    /// The earliest start of a row, in ns; absent for tables without time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_start: Option<i64>,
    /// The latest end of a row that has ended, in ns; absent for tables without time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_end: Option<i64>,
    /// How many rows had not ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub open: u64,
    /// Set on a head: a file of states that began in earlier segments and hold at or after this
    /// time, in ns. They are repeated there so that "what held at t" needs no earlier file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats_from: Option<i64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl File {
    /// Whether it only repeats rows of earlier segments.
    pub fn is_head(&self) -> bool {
        self.repeats_from.is_some()
    }

    /// When the last of its rows ends; [`Ns::MAX`] while one has not.
    pub(crate) fn end(&self) -> Ns {
        match self.open {
            0 => Ns(self.max_end.unwrap_or(i64::MAX)),
            _ => Ns::MAX,
        }
    }

    /// Whether a row of it may overlap `range`.
    pub(crate) fn meets(&self, range: &Range<Ns>) -> bool {
        match self.min_start {
            None => true,
            Some(start) => {
                Ns(start) < range.end
                    && (self.end() > range.start || Ns(start) >= range.start
                    // Points at the very end of the file.
                    || self.end() == range.start)
            }
        }
    }
}

/// The whole of `trace.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `gpuwhy-trace`.
    pub format: String,
    /// The schema of all its tables.
    pub schema_version: u32,
    /// The program that wrote it, with its version.
    pub tool: String,
    /// Whether the writer came to its end.
    pub complete: bool,
    /// The number of the first segment that is not sealed; its journal may hold more rows.
    pub next_segment: u32,
    /// When the first row begins, in ns on the trace clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<i64>,
    /// When the last row that has ended ends, in ns on the trace clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<i64>,
    /// Set when old segments were dropped: rows that ended before this time, in ns, may be gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_since: Option<i64>,
    /// The keys of the hosts in it.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The shards whose ids it holds.
    #[serde(default)]
    pub shards: Vec<u16>,
    /// Rows that were dropped because they could not be written.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_rows: u64,
    /// Bytes of journals that were torn by a crash and set aside in `quarantine/`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quarantined_bytes: u64,
    /// Its files, in the order of their writing.
    #[serde(default)]
    pub file: Vec<File>,
}

impl Manifest {
    /// A trace without rows.
    pub fn new(tool: &str) -> Manifest {
        Manifest {
            format: FORMAT.into(),
            schema_version: VERSION,
            tool: tool.into(),
            complete: false,
            next_segment: 0,
            start: None,
            end: None,
            kept_since: None,
            hosts: Vec::new(),
            shards: Vec::new(),
            lost_rows: 0,
            quarantined_bytes: 0,
            file: Vec::new(),
        }
    }

    /// The manifest of the trace in `dir`.
    pub fn read(dir: &Path) -> Result<Manifest> {
        Manifest::read_in(&Dir::open(dir)?)
    }

    /// The manifest of an open trace.
    pub(crate) fn read_in(dir: &Dir) -> Result<Manifest> {
        let path = dir.at(MANIFEST);
        let file = match dir.file(MANIFEST) {
            Ok(file) => file,
            Err(e) if e.is_not_found() => {
                return Err(Error::NotATrace {
                    path: dir.path.clone(),
                    why: format!("there is no {MANIFEST} in it"),
                });
            }
            Err(e) => return Err(e),
        };
        let mut text = Vec::new();
        let mut all = file.take(MAX_BYTES + 1);
        all.read_to_end(&mut text).map_err(Error::io("read", &path))?;
        if text.len() as u64 > MAX_BYTES {
            let what = format!("more than {MAX_BYTES} bytes are absurd for a manifest");
            return Err(Error::damaged(&path, what));
        }
        let text = String::from_utf8(text).map_err(|e| {
            Error::damaged(&path, format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()))
        })?;
        Manifest::parse(&text, &path)
    }

    /// Makes this the truth about the trace.
    pub(crate) fn commit(&self, dir: &Dir) -> Result<()> {
        dir.commit(MANIFEST, |file, path| {
            file.write_at(self.to_toml().as_bytes(), 0).map_err(Error::io("write", path))
        })?;
        Ok(())
    }

    /// Reads `text`, which stands in `path`, and believes none of it unchecked.
    pub fn parse(text: &str, path: &Path) -> Result<Manifest> {
        // The version first: what another version says in the rest is not ours to judge.
        #[derive(Deserialize)]
        struct Version {
            format: Option<String>,
            schema_version: Option<toml::Value>,
        }
        let manifest_error = |e| Error::Manifest { path: path.into(), source: Box::new(e) };
        let version: Version = toml::from_str(text).map_err(manifest_error)?;
        if version.format.as_deref() != Some(FORMAT) {
            return Err(Error::NotATrace {
                path: path.into(),
                why: format!("it does not say format = \"{FORMAT}\""),
            });
        }
        match version.schema_version {
            Some(toml::Value::Integer(v)) if v == i64::from(VERSION) => {}
            found => {
                let found = found.map_or("none".into(), |v| v.to_string());
                return Err(Error::Version { path: path.into(), found });
            }
        }
        let manifest: Manifest = toml::from_str(text).map_err(manifest_error)?;
        manifest.check(path)?;
        Ok(manifest)
    }

    fn check(&self, path: &Path) -> Result<()> {
        if self.file.len() > MAX_FILES {
            return Err(Error::damaged(path, format!("it names {} files", self.file.len())));
        }
        let mut paths = HashSet::new();
        for (i, file) in self.file.iter().enumerate() {
            let bad = |what: String| Err(Error::damaged(path, format!("file {}: {what}", i + 1)));
            if !TABLES.contains(&file.table.as_str()) {
                return bad(format!("no table is called {:?}", file.table));
            }
            if let Err(why) = inside(&file.path) {
                return bad(format!("path {:?} {why}", file.path));
            }
            if !paths.insert(&file.path) {
                return bad(format!("path {:?} is named twice", file.path));
            }
            if file.rows > MAX_ROWS {
                return bad(format!("{} rows are absurd", file.rows));
            }
            if file.segment >= self.next_segment {
                return bad(format!(
                    "its segment {} is not below next_segment {}",
                    file.segment, self.next_segment
                ));
            }
            match (file.min_start, file.max_end) {
                (Some(start), Some(end)) if start > end => {
                    return bad(format!("min_start {start} is after max_end {end}"));
                }
                (Some(_), None) | (None, Some(_)) => {
                    return bad("min_start and max_end stand alone".into());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The files of a table, in the order of their writing; heads, which repeat rows, are left out.
    pub fn files_of(&self, table: &str) -> impl Iterator<Item = &File> {
        self.file.iter().filter(move |f| f.table == table && !f.is_head())
    }

    /// When the first row of these tables begins, in ns.
    pub fn first_start(&self, tables: &[&str]) -> Option<i64> {
        tables.iter().flat_map(|table| self.files_of(table)).filter_map(|f| f.min_start).min()
    }

    /// When the last row of these tables that has ended does so, in ns; of rows that are points, when the
    /// last one is.
    pub fn last_end(&self, tables: &[&str]) -> Option<i64> {
        tables.iter().flat_map(|table| self.files_of(table)).filter_map(|f| f.max_end).max()
    }

    /// As it stands in the file.
    pub fn to_toml(&self) -> String {
        // Every field is a string, a number or a flag, and tables come last: this cannot fail.
        toml::to_string(self).expect("the manifest is plain data")
    }

    /// Takes the extent of a new file into the trace's own.
    pub(crate) fn add(&mut self, file: File) {
        if !file.is_head() {
            self.start = self.start.into_iter().chain(file.min_start).min();
            self.end = self.end.max(file.max_end);
        }
        self.file.push(file);
    }

    /// The start and end of the rows, as the files that are named say it.
    pub(crate) fn remeasure(&mut self) {
        let files = || self.file.iter().filter(|f| !f.is_head());
        let start = files().filter_map(|f| f.min_start).min();
        let end = files().filter_map(|f| f.max_end).max();
        (self.start, self.end) = (start, end);
    }
}

/// Why `path` could lead out of the directory, if it could.
fn inside(path: &str) -> Result<(), &'static str> {
    let parts: Vec<Component> = Path::new(path).components().collect();
    if path.contains('\0') || path.contains('\\') {
        return Err("holds a character that no file of a trace has");
    }
    match parts.as_slice() {
        [Component::Normal(folder), Component::Normal(file)]
            if Path::new(file).extension().is_some_and(|e| e == "parquet")
                && PathBuf::from(folder).join(file).as_os_str() == path =>
        {
            Ok(())
        }
        _ => Err("is not of the form table/file.parquet, so it could lead out of the trace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
format = "gpuwhy-trace"
schema_version = 1
tool = "gpuwhy 0.1.0"
complete = true
next_segment = 1
start = 5
end = 9
hosts = ["m"]

[[file]]
table = "span"
path = "span/00000.parquet"
segment = 0
rows = 3
bytes = 400
min_start = 5
max_end = 9
"#;

    /// What we say about the good manifest with one thing changed.
    fn verdict(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        match Manifest::parse(&GOOD.replacen(from, to, 1), Path::new("x.trace/trace.toml")) {
            Ok(_) => "fine".into(),
            Err(e) => {
                let source = std::error::Error::source(&e);
                format!("{e}{}", source.map(|s| format!(": {s}")).unwrap_or_default())
            }
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was_written() {
        let manifest = Manifest::parse(GOOD, Path::new("t")).unwrap();
        assert_eq!(Manifest::parse(&manifest.to_toml(), Path::new("t")).unwrap(), manifest);
    }

    #[test]
    fn what_cannot_be_believed_is_refused_by_name_and_place() {
        let cases = [
            ("\"gpuwhy-trace\"", "\"cookbook\""),
            ("schema_version = 1", "schema_version = 2"),
            ("schema_version = 1", ""),
            ("schema_version = 1", "schema_version = \"new\""),
            ("rows = 3", "rows = -3"),
            ("rows = 3", "rows = 9000000000000000000"),
            ("rows = 3", "rows = ["),
            ("\"span\"", "\"toaster\""),
            ("span/00000.parquet", "/etc/shadow"),
            ("span/00000.parquet", "../span/00000.parquet"),
            ("span/00000.parquet", "span/../../x.parquet"),
            ("span/00000.parquet", "./span/x.parquet"),
            ("span/00000.parquet", "span//x.parquet"),
            ("span/00000.parquet", "span/x.txt"),
            ("span/00000.parquet", "x.parquet"),
            ("segment = 0", "segment = 1"),
            ("min_start = 5", "min_start = 50"),
            ("min_start = 5", ""),
        ];
        let said: Vec<String> = cases.iter().map(|(from, to)| verdict(from, to)).collect();
        insta::assert_snapshot!(said.join("\n"));
    }
}
