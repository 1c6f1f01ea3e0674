//! The traces in directories, their streams merged by time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::build::Model;
use super::metadata;
use super::stream::{Part, Stream};
use crate::{Error, Result};

/// Directories in each other that are looked into.
const DEPTH: usize = 12;
/// Files and directories that are looked at.
const ENTRIES: usize = 1 << 20;

/// One trace: a directory with metadata.
#[derive(Clone, Debug)]
pub(super) struct OneTrace {
    pub path: PathBuf,
    pub model: Arc<Model>,
}

/// Traces that are read as one.
#[derive(Debug)]
pub(super) struct Traces {
    pub all: Vec<OneTrace>,
    pub streams: Vec<Stream>,
    /// When the next event of each stream happened; the stream of the first is the one that was handed out.
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    is_begun: bool,
    /// Bytes of all streams.
    pub bytes: u64,
}

/// The directories below `path` that hold a trace, in the order of their names.
///
/// # Errors
/// A directory cannot be read, or there is too much.
pub(super) fn find(path: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut seen) = (Vec::new(), 0);
    look(path, DEPTH, &mut found, &mut seen)?;
    Ok(found)
}

fn look(path: &Path, depth: usize, found: &mut Vec<PathBuf>, seen: &mut usize) -> Result<()> {
    if path.join("metadata").is_file() {
        found.push(path.into());
        return Ok(());
    }
    let mut below = Vec::new();
    for entry in path.read_dir().map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        *seen += 1;
        if *seen > ENTRIES {
            let why = format!("more than {ENTRIES} files and directories");
            return Err(Error::Unreadable { path: path.into(), why });
        }
        // What is a link may lead back here.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below.push(entry.path());
        }
    }
    below.sort();
    if depth > 0 {
        below.iter().try_for_each(|path| look(path, depth - 1, found, seen))?;
    }
    Ok(())
}

/// The files of streams in a directory, in the order of their names.
fn stream_files(path: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(Error::io("list", path))? {
        let entry = entry.map_err(Error::io("list", path))?;
        let name = entry.file_name();
        let is_other = name == "metadata" || name.to_string_lossy().starts_with('.');
        let file = entry.path();
        let about = std::fs::metadata(&file).map_err(Error::io("measure", &file))?;
        if about.is_file() && !is_other && about.len() > 0 {
            files.push((file, about.len()));
        }
    }
    files.sort();
    Ok(files)
}

impl Traces {
    /// Opens the traces below these directories.
    ///
    /// # Errors
    /// One has none, or metadata or the first packet of a stream are damaged.
    pub fn open(paths: &[PathBuf]) -> Result<Traces> {
        let mut all = Vec::new();
        for path in paths {
            let found = find(path)?;
            if found.is_empty() {
                let why = "there is no file `metadata` in it or below it".into();
                return Err(Error::NotThis { path: path.clone(), format: "a CTF trace", why });
            }
            for path in found {
                let model = Arc::new(metadata::read(&path.join("metadata"))?);
                all.push(OneTrace { path, model });
            }
        }
        let (mut streams, bytes) = streams(&all)?;
        let count = streams.len();
        streams.iter_mut().for_each(|stream| stream.share_memory(count));
        let heap = BinaryHeap::with_capacity(streams.len());
        Ok(Traces { all, streams, heap, is_begun: false, bytes })
    }

    /// The number of the stream whose event is the next one; `None` at the end.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub fn next(&mut self) -> Result<Option<usize>> {
        if self.is_begun {
            if let Some(mut first) = self.heap.peek_mut() {
                let stream = first.0.1;
                if self.streams[stream].advance()? {
                    first.0.0 = self.streams[stream].time;
                } else {
                    std::collections::binary_heap::PeekMut::pop(first);
                }
            }
        } else {
            self.is_begun = true;
            for (number, stream) in self.streams.iter_mut().enumerate() {
                if stream.advance()? {
                    self.heap.push(Reverse((stream.time, number)));
                }
            }
        }
        Ok(self.heap.peek().map(|first| first.0.1))
    }
}

/// What files of one stream have in common: the trace, by its UUID if it has one, the class and the instance.
type Key = (Option<[u8; 16]>, usize, u64, u64);

/// The streams of traces, and their bytes.
fn streams(all: &[OneTrace]) -> Result<(Vec<Stream>, u64)> {
    let mut groups: BTreeMap<Key, Vec<(i64, usize, Part)>> = BTreeMap::new();
    let mut alone = Vec::new();
    let (mut bytes, mut order) = (0, 0);
    for (trace, one) in all.iter().enumerate() {
        for (path, length) in stream_files(&one.path)? {
            let part = Part { model: one.model.clone(), trace, path, length };
            let Some(identity) = Stream::identify(&part)? else { continue };
            bytes += length;
            order += 1;
            let Some(instance) = identity.instance else {
                alone.push((order, VecDeque::from([part])));
                continue;
            };
            let uuid = one.model.uuid;
            let number = if uuid.is_some() { 0 } else { trace };
            let key = (uuid, number, identity.class, instance);
            groups.entry(key).or_default().push((identity.begin, order, part));
        }
    }
    let grouped = groups.into_values().map(|mut parts| {
        parts.sort_by_key(|(begin, order, _)| (*begin, *order));
        let order = parts.first().map_or(0, |part| part.1);
        (order, parts.into_iter().map(|(.., part)| part).collect())
    });
    alone.extend(grouped);
    alone.sort_by_key(|(order, _)| *order);
    Ok((alone.into_iter().filter_map(|(_, parts)| Stream::new(parts)).collect(), bytes))
}
