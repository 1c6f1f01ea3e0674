//! From an event to its rows.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::{
    Call, Clock, ClockError, Copy, CopyKind, Counter, Id, Kernel, Mark, Ns, Rows, Span, TrackId,
};

use super::event::Event;
use super::identity::Identity;
use super::job::Job;
use super::tracks::{Kind, Tracks};
use crate::left_out::LeftOut;

/// Makes rows of the events of one file.
pub(super) struct Converter {
    /// The entities and tracks of the file.
    pub tracks: Tracks,
    /// What is added to its times, ns.
    shift: i64,
    flows: u64,
    /// Events that say how a viewer is to show a process or thread.
    for_viewers: u64,
    /// Spans by their tracks.
    spans: HashMap<TrackId, u64>,
    /// Kernels, copies and memsets.
    device_spans: u64,
    /// Events that became rows, or names of entities.
    recorded: u64,
    left_out: LeftOut,
}

impl Converter {
    /// For a file of this identity, whose times are moved by `shift` ns; `aligned` says how, in words for its
    /// source.
    pub fn new(identity: Identity, shift: i64, aligned: String) -> Converter {
        Converter {
            tracks: Tracks::new(identity, aligned),
            shift,
            flows: 0,
            for_viewers: 0,
            spans: HashMap::new(),
            device_spans: 0,
            recorded: 0,
            left_out: LeftOut::default(),
        }
    }

    /// Adds the rows of an event.
    pub fn event(&mut self, event: &Event, job: &mut Job, rows: &mut Rows) {
        match event.phase {
            b'M' => match self.metadata(event, job) {
                true => self.recorded += 1,
                false => self.for_viewers += 1,
            },
            b's' | b't' | b'f' => self.flows += 1,
            b'X' | b'i' | b'I' | b'C' => {
                // A mark and a value of a counter have no duration.
                let dur = if event.phase == b'X' { event.dur.duration() } else { Ok(0) };
                let made = event.ts.moved(self.shift).and_then(|ts| {
                    let dur = dur?;
                    // Neither is beyond 2^62.
                    self.timed_event(event, ts, dur, job, rows)
                });
                match made {
                    Ok(()) => self.recorded += 1,
                    Err(why) => self.left_out.lose(why, 1),
                }
            }
            b'B' | b'E' => self.left_out.lose("begin or end of a span, not paired (ph B, E)", 1),
            b'b' | b'n' | b'e' => self.left_out.lose("asynchronous event (ph b, n, e)", 1),
            _ => self.left_out.lose("event of an unknown phase", 1),
        }
    }

    fn timed_event(
        &mut self,
        event: &Event,
        ts: i64,
        dur: i64,
        job: &mut Job,
        rows: &mut Rows,
    ) -> Result<(), &'static str> {
        let kind = match event.phase {
            b'X' => self.tracks.kind(&event.category, &event.name),
            b'C' => return self.counters(event, ts, job, rows),
            _ => Kind::Mark,
        };
        let track = self.tracks.track(event, &kind, job);
        let (id, name) = (job.id(), self.tracks.name(&event.name));
        let at = Ns(ts);
        if kind == Kind::Mark {
            rows.mark.push(Mark { id, ts: at, track, name, value: event.args.value });
            return Ok(());
        }
        *self.spans.entry(track).or_default() += 1;
        let on_device = matches!(kind, Kind::Kernel | Kind::Copy | Kind::Memset);
        self.device_spans += u64::from(on_device);
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
        Ok(())
    }

    /// The values of a counter event, each on a track of its own.
    fn counters(
        &mut self,
        event: &Event,
        ts: i64,
        job: &mut Job,
        rows: &mut Rows,
    ) -> Result<(), &'static str> {
        let args = &event.args;
        // Arguments that stood before the phase were read as those of any event.
        let only = args.value.iter().map(|value| (&b"value"[..], *value));
        let values = args.values.iter().map(|(name, value)| (&**name, *value)).chain(only);
        let mut any = false;
        for (key, value) in values {
            // `{"memory": {"value": 7}}`, but `{"HBM": {"read": 1, "write": 2}}`.
            let mut name = event.name.clone();
            if !matches!(key, b"" | b"value") {
                name.push(b'.');
                name.extend_from_slice(key);
            }
            let kind = Kind::Counter(self.tracks.name(&name));
            let track = self.tracks.track(event, &kind, job);
            rows.counter.push(Counter { ts: Ns(ts), track, value });
            any = true;
        }
        if any { Ok(()) } else { Err("counter without a number") }
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
    /// Takes the name of a process or thread; whether the event is one.
    fn metadata(&mut self, event: &Event, job: &mut Job) -> bool {
        if event.args.name.is_empty() {
            return false;
        }
        let pid = self.tracks.task_id(event.pid, &event.pid_text);
        let entity = match &*event.name {
            b"process_name" => self.tracks.process(&pid, job),
            b"thread_name" => {
                let tid = self.tracks.task_id(event.tid, &event.tid_text);
                self.tracks.thread(&pid, &tid, job)
            }
            _ => return false,
        };
        let name = self.tracks.name(&event.args.name);
        let name = self.tracks.called(name);
        job.lanes.update(entity, |e| e.name = name);
        true
    }

    /// What was left out of the file.
    pub fn left_out(&self) -> (u64, LeftOut) {
        let mut left_out = self.left_out.clone();
        if self.flows > 0 {
            left_out.not_imported("flow events, which repeat correlations", Some(self.flows));
        }
        if self.for_viewers > 0 {
            left_out.not_imported("labels and order of tracks in viewers", Some(self.for_viewers));
        }
        (self.recorded, left_out)
    }

    /// Spans by the names of their tracks: `operators`, `stream`.
    pub fn spans(&self) -> BTreeMap<String, u64> {
        let mut spans = BTreeMap::new();
        for (track, count) in &self.spans {
            let name = self.tracks.track_name(*track).unwrap_or_default().to_owned();
            *spans.entry(name).or_default() += count;
        }
        spans
    }

    /// Kernels, copies and memsets.
    pub fn device_spans(&self) -> u64 {
        self.device_spans
    }

    /// At the end of the file: what was learned late, what was left out, and its clock with its error.
    pub fn finish(&mut self, error: ClockError, job: &mut Job, rows: &mut Rows) {
        self.tracks.settle(job);
        let (recorded, left_out) = self.left_out();
        let source = self.tracks.source(job);
        job.lanes.update_source(source, |s| left_out.write(s, recorded));
        // A clock without a bound to its error says nothing about time.
        if let (Some(base), Some(error)) = (self.tracks.about.base, error.ns()) {
            rows.clock.push(Clock {
                host: self.tracks.host(job),
                clock: "utc".into(),
                ts_source: base,
                ts_trace: Ns(self.shift),
                error_ns: Ns(error),
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
