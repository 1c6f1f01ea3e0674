//! From an event to its rows.

use std::path::Path;

use gpuwhy_schema::{
    Call, Clock, Copy, CopyKind, Counter, EntityKind, Id, Kernel, Mark, Ns, Rows, Span,
};

use super::event::Event;
use super::job::Job;
use super::tracks::{Kind, Tracks};

/// Makes rows of the events of one file.
pub(super) struct Converter {
    /// The entities and tracks of the file.
    pub tracks: Tracks,
    /// What is added to its times, ns.
    shift: i64,
    flows: u64,
    skipped: u64,
}

impl Converter {
    /// For the file at `path`, whose times are moved by `shift` ns.
    pub fn new(path: &Path, shift: i64) -> Converter {
        Converter { tracks: Tracks::new(path), shift, flows: 0, skipped: 0 }
    }

    /// Adds the rows of an event.
    pub fn event(&mut self, event: &Event, job: &mut Job, rows: &mut Rows) {
        match event.phase {
            b'M' => self.metadata(event, job),
            b's' | b't' | b'f' => self.flows += 1,
            b'X' | b'i' | b'I' | b'C' => {
                let ts = event.ts.map(|ts| ts.saturating_add(self.shift));
                let dur = event.dur.unwrap_or(0);
                match ts {
                    Some(ts) if dur >= 0 && ts.checked_add(dur).is_some() => {
                        self.timed_event(event, ts, dur, job, rows);
                    }
                    _ => self.skipped += 1,
                }
            }
            _ => self.skipped += 1,
        }
    }

    fn timed_event(&mut self, event: &Event, ts: i64, dur: i64, job: &mut Job, rows: &mut Rows) {
        let kind = match event.phase {
            b'X' => self.tracks.kind(&event.category),
            b'C' => Kind::Counter(self.tracks.name(&event.name)),
            _ => Kind::Mark,
        };
        let track = self.tracks.track(event, &kind, job);
        if let Kind::Counter(_) = kind {
            if let Some(value) = event.args.value {
                rows.counter.push(Counter { ts: Ns(ts), track, value });
            }
            return;
        }
        let (id, name) = (job.id(), self.tracks.name(&event.name));
        let at = Ns(ts);
        if kind == Kind::Mark {
            rows.mark.push(Mark { id, ts: at, track, name, value: event.args.value });
            return;
        }
        rows.span.push(Span { id, ts: at, dur: Some(Ns(dur)), track, parent: None, name });
        match kind {
            Kind::Kernel => self.kernel(event, id, at, job, rows),
            Kind::Copy => self.copy(event, id, at, copy_kind(&event.name), job, rows),
            Kind::Memset => self.copy(event, id, at, CopyKind::Memset, job, rows),
            Kind::Call => {
                let correlation = event.args.correlation;
                rows.call.push(Call { id, ts: at, correlation, result: None });
                job.nested_span(track, ts, ts + dur);
            }
            Kind::GpuAnnotation | Kind::Other(_) => {}
            _ => job.nested_span(track, ts, ts + dur),
        }
    }

    fn kernel(&mut self, event: &Event, id: Id, ts: Ns, job: &mut Job, rows: &mut Rows) {
        let args = &event.args;
        rows.kernel.push(Kernel {
            id,
            ts,
            gpu: self.tracks.gpu(self.tracks.device_of(event), job),
            process: None,
            correlation: args.correlation,
            grid_x: args.grid[0],
            grid_y: args.grid[1],
            grid_z: args.grid[2],
            block_x: args.block[0],
            block_y: args.block[1],
            block_z: args.block[2],
            registers: args.registers,
            shared_bytes: args.shared,
            graph_node: args.graph_node.filter(|node| *node != 0),
        });
    }

    fn copy(
        &mut self,
        event: &Event,
        id: Id,
        ts: Ns,
        kind: CopyKind,
        job: &mut Job,
        rows: &mut Rows,
    ) {
        let gpu = self.tracks.gpu(self.tracks.device_of(event), job);
        let (from, to) = match kind {
            CopyKind::HostToDevice | CopyKind::Memset => (None, Some(gpu)),
            CopyKind::DeviceToHost => (Some(gpu), None),
            CopyKind::DeviceToDevice => (Some(gpu), Some(gpu)),
            _ => (None, None),
        };
        let pinned = match () {
            () if contains(&event.name, b"Pinned") => Some("pinned"),
            () if contains(&event.name, b"Pageable") => Some("pageable"),
            () => None,
        };
        rows.copy.push(Copy {
            id,
            ts,
            kind,
            bytes: event.args.bytes.unwrap_or(0),
            from,
            to,
            pinned: pinned.map(|word| self.tracks.name(word.as_bytes())),
            process: None,
            correlation: event.args.correlation,
        });
    }

    /// The name of a process or thread.
    fn metadata(&mut self, event: &Event, job: &mut Job) {
        if event.args.name.is_empty() {
            return;
        }
        let pid = self.tracks.task_id(event.pid, &event.pid_text);
        let entity = match &*event.name {
            b"process_name" => self.tracks.process(&pid, job),
            b"thread_name" => {
                let tid = self.tracks.task_id(event.tid, &event.tid_text);
                self.tracks.thread(&pid, &tid, job)
            }
            _ => return,
        };
        let name = self.tracks.name(&event.args.name);
        job.lanes.update(entity, |e| e.name = name);
    }

    /// At the end of the file: how many of its `events` were recorded, and its clock.
    pub fn finish(&mut self, events: u64, job: &mut Job, rows: &mut Rows) {
        let Some(source) = self.tracks.known_source() else { return };
        let (flows, skipped) = (self.flows, self.skipped);
        job.lanes.update_source(source, |s| {
            (s.recorded, s.dropped) = (events - skipped, skipped);
            if flows > 0 {
                let note =
                    format!("{flows} flow events say what correlations say, and are not kept");
                s.note = Some(note.as_str().into());
            }
        });
        if let Some(base) = self.tracks.about.base {
            let owner = self.tracks.owner();
            let host = job.lanes.entity(EntityKind::Host, &format!("kineto:{owner}"), |e| {
                e.name = format!("host of {owner}").as_str().into();
            });
            rows.clock.push(Clock {
                host,
                clock: "utc".into(),
                ts_source: base,
                ts_trace: Ns(self.shift),
                error_ns: Ns::ZERO,
            });
        }
    }
}

fn contains(name: &[u8], word: &[u8]) -> bool {
    name.windows(word.len()).any(|w| w == word)
}

/// What a copy connects, by its name: `Memcpy HtoD (Pageable -> Device)`.
fn copy_kind(name: &[u8]) -> CopyKind {
    let has = |word| contains(name, word);
    match () {
        () if has(b"HtoD") => CopyKind::HostToDevice,
        () if has(b"DtoH") => CopyKind::DeviceToHost,
        () if has(b"DtoD") => CopyKind::DeviceToDevice,
        () if has(b"PtoP") => CopyKind::PeerToPeer,
        () if has(b"HtoH") => CopyKind::HostToHost,
        () => CopyKind::Other,
    }
}
