//! Files as they are imported, one after the other.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::align::align;
use super::file::File;
use super::identity::Identity;
use super::job::Job;
use super::survey::Survey;
use crate::Result;
use crate::align::Alignment;
use crate::importer::{Batch, Import, Summary};
use crate::left_out::FileLeftOut;

/// How many times longer the text of a gzipped trace is than its file, for estimates of progress.
const GZIPPED: u64 = 12;
/// Kinds of spans that are listed of a file without work of a device.
const KINDS: usize = 6;

/// Files that are being imported.
pub(super) struct KinetoImport {
    paths: Vec<PathBuf>,
    identities: Vec<Identity>,
    alignment: Alignment,
    job: Job,
    /// The index of the file that is being read.
    current: usize,
    file: Option<File>,
    /// The length of that file's text, estimated.
    length: u64,
    /// What was read of each file.
    read: Vec<Value>,
    lines: Vec<String>,
    left_out: Vec<FileLeftOut>,
    is_finished: bool,
}

impl KinetoImport {
    /// Opens files of one job.
    ///
    /// # Errors
    /// One of several files cannot be read or is damaged, or they cannot be of one job.
    pub fn open(paths: &[PathBuf]) -> Result<KinetoImport> {
        let (identities, alignment) = match paths {
            [path] => {
                let alone = Alignment { shifts: vec![0], ..Alignment::default() };
                (vec![Identity::alone(path)], alone)
            }
            _ => {
                let surveys: Vec<Survey> =
                    paths.iter().map(|path| Survey::of(path)).collect::<Result<_>>()?;
                (Identity::of_job(paths, &surveys)?, align(paths, &surveys)?)
            }
        };
        Ok(KinetoImport {
            paths: paths.to_vec(),
            identities,
            lines: alignment.line().into_iter().collect(),
            alignment,
            job: Job::default(),
            current: 0,
            file: None,
            length: 1,
            read: Vec::new(),
            left_out: Vec::new(),
            is_finished: false,
        })
    }

    fn open_current(&mut self) -> Result<File> {
        let path = &self.paths[self.current];
        let length = std::fs::metadata(path).map_or(1, |m| m.len().max(1));
        let is_gzipped = path.extension().is_some_and(|e| e == "gz");
        self.length = length * if is_gzipped { GZIPPED } else { 1 };
        let identity = self.identities[self.current].clone();
        File::open(path, identity, self.alignment.shifts[self.current], &self.alignment)
    }

    /// Takes down what was read of the file that ended.
    fn note(&mut self, file: &File) {
        let (name, about) = (self.paths[self.current].display().to_string(), file.about());
        let by_name = self.identities[self.current].rank.filter(|_| about.rank.is_none());
        self.read.push(json!({
            "file": name,
            "events": file.events(),
            "rank": about.rank.or(by_name),
            "rank_from": match (about.rank, by_name) {
                (Some(_), _) => Some("distributedInfo"),
                (None, Some(_)) => Some("file name"),
                (None, None) => None,
            },
            "world_size": about.world,
            "host": about.host,
            "base_ns": about.base,
            "device_spans": file.device_spans(),
            "spans": file.spans(),
        }));
        if let Some(rank) = by_name {
            self.lines
                .push(format!("{name}: rank {rank}, by its name (it has no distributedInfo)"));
        } else if about.rank.is_none() && self.paths.len() > 1 {
            self.lines.push(format!("{name}: names no rank; its devices are called by the file"));
        }
        if file.device_spans() == 0 {
            self.lines.push(format!("{name}: {}", without_devices(file)));
        }
        let (recorded, left_out) = file.left_out();
        if !left_out.is_empty() {
            self.left_out.push(FileLeftOut { file: name, recorded, left_out });
        }
    }
}

/// What a file holds that has no work of a device.
fn without_devices(file: &File) -> String {
    let mut spans: Vec<_> = file.spans().into_iter().collect();
    spans.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    if spans.is_empty() {
        return format!("no work of a device, and no spans in its {} events", file.events());
    }
    let more = spans.len().saturating_sub(KINDS);
    let listed: Vec<String> =
        spans.iter().take(KINDS).map(|(kind, count)| format!("{kind} {count}")).collect();
    let more = if more > 0 { format!(" and {more} more kinds") } else { String::new() };
    format!("no kernels and no copies of a device; its spans: {}{more}", listed.join(", "))
}

impl Import for KinetoImport {
    fn next(&mut self) -> Result<Option<Batch>> {
        while self.current < self.paths.len() {
            let mut file = match self.file.take() {
                Some(file) => file,
                None => self.open_current()?,
            };
            if let Some(rows) = file.next(&mut self.job)? {
                let of_file = (file.offset() as f64 / self.length as f64).min(1.0);
                let done = (self.current as f64 + of_file) / self.paths.len() as f64;
                self.file = Some(file);
                return Ok(Some(Batch::new(rows, done)));
            }
            self.note(&file);
            self.current += 1;
        }
        if std::mem::replace(&mut self.is_finished, true) {
            return Ok(None);
        }
        Ok(Some(Batch::new(self.job.finish(), 1.0)))
    }

    fn summary(&self) -> Summary {
        Summary {
            about: json!({ "files": self.read, "alignment": self.alignment.json() }),
            lines: self.lines.clone(),
            left_out: self.left_out.clone(),
        }
    }
}
