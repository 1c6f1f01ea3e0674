//! Tracks of threads, one of a kind for each.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{EntityId, Lane, SourceId, TrackId};

use crate::context::Context;
use crate::span_nesting::SpanNesting;

/// One track of a kind for each thread.
pub(crate) struct ThreadTracks<T> {
    source: SourceId,
    kind: Lane<'static>,
    /// Threads that are kept; beyond this number all are forgotten and start again.
    most: usize,
    threads: HashMap<u32, ThreadTrack<T>>,
}

/// The track of one thread.
pub(crate) struct ThreadTrack<T> {
    /// The thread.
    pub entity: EntityId,
    /// Its track.
    pub track: TrackId,
    /// Its spans so far, if it has spans, which contain or follow each other.
    pub nesting: SpanNesting,
    /// What else the probe keeps of the thread.
    pub more: T,
}

impl<T: Default> ThreadTracks<T> {
    /// Tracks of this kind, with no threads yet.
    pub fn new(source: SourceId, kind: Lane<'static>, most: usize) -> ThreadTracks<T> {
        ThreadTracks { source, kind, most, threads: HashMap::new() }
    }

    /// The track of thread `tid` of process `tgid`.
    pub fn of(&mut self, tid: u32, tgid: u32, cx: &mut Context) -> &mut ThreadTrack<T> {
        if self.threads.len() >= self.most {
            self.threads.clear();
        }
        let entity = cx.thread(tid, tgid, None);
        let mut new = || {
            let track = cx.catalog.track(entity, None, self.kind, self.source);
            ThreadTrack { entity, track, nesting: SpanNesting::default(), more: T::default() }
        };
        let thread = self.threads.entry(tid).or_insert_with(&mut new);
        if thread.entity != entity {
            // The number was given to another thread.
            *thread = new();
        }
        thread
    }
}
