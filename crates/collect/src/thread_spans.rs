//! Span tracks of threads, whose spans contain or follow each other.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{Discipline, EntityId, Lane, SourceId, TrackId};

use crate::context::Context;
use crate::span_nesting::SpanNesting;

/// One span track for each thread.
pub(crate) struct ThreadSpans<T> {
    source: SourceId,
    name: &'static str,
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
    /// Its spans so far.
    pub nesting: SpanNesting,
    /// What else the probe keeps of the thread.
    pub more: T,
}

impl<T: Default> ThreadSpans<T> {
    /// Tracks of this name, with no threads yet.
    pub fn new(source: SourceId, name: &'static str, most: usize) -> ThreadSpans<T> {
        ThreadSpans { source, name, most, threads: HashMap::new() }
    }

    /// The track of thread `tid` of process `tgid`.
    pub fn of(&mut self, tid: u32, tgid: u32, cx: &mut Context) -> &mut ThreadTrack<T> {
        if self.threads.len() >= self.most {
            self.threads.clear();
        }
        let entity = cx.thread(tid, tgid, None);
        let mut new = || {
            let kind = Lane::spans(self.name, Discipline::Nested);
            let track = cx.catalog.track(entity, None, kind, self.source);
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
