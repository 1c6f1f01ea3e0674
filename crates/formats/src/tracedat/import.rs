//! Files as they are imported: the events of all their CPUs by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::PathBuf;

use gpuwhy_schema::{ClockError, SourceId};
use serde_json::json;

use super::cpu::CpuStream;
use super::file::DatFile;
use crate::Result;
use crate::kernel::feed::{About, Feed};
use crate::kernel::rows::KernelRows;
use crate::left_out::{FileLeftOut, LeftOut, OUT_OF_RANGE};
use gpuwhy_tracepoint::{EventType, Field, Format, RawEvent};

/// How many types of events there can be: their numbers have 16 bits.
const TYPES: usize = 1 << 16;

/// A type of event.
struct Kind {
    number: usize,
    format: Format,
    tid: Option<Field>,
}

/// A file and what was counted of it.
struct OneFile {
    dat: DatFile,
    host: usize,
    source: SourceId,
    /// Places in `kinds`, by the numbers of types.
    by_id: Vec<Option<u32>>,
    kinds: Vec<Kind>,
    events: u64,
    unknown: u64,
    out_of_range: u64,
    /// Fields that lie outside of their events.
    outside: u64,
}

/// Files that are being imported.
pub(super) struct DatFeed {
    files: Vec<OneFile>,
    streams: Vec<CpuStream>,
    /// When the next event of each CPU happened; the first was handed out.
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    is_begun: bool,
    event: RawEvent,
    bytes: u64,
}

impl DatFeed {
    /// Opens files, and declares their hosts and types of events.
    ///
    /// # Errors
    /// One cannot be read or is damaged.
    pub fn open(paths: &[PathBuf], kernel: &mut KernelRows) -> Result<DatFeed> {
        let dats: Vec<DatFile> =
            paths.iter().map(|path| DatFile::open(path)).collect::<Result<_>>()?;
        let of = |dat: &DatFile| dat.buffers.iter().map(|buffer| buffer.cpus.len()).sum::<usize>();
        let count: usize = dats.iter().map(of).sum();
        let mut streams = Vec::new();
        for (number, dat) in dats.iter().enumerate() {
            for buffer in &dat.buffers {
                let of_cpus = buffer.cpus.iter().filter(|data| data.size > 0);
                streams.extend(
                    of_cpus.filter_map(|data| CpuStream::new(number, dat, buffer, *data, count)),
                );
            }
        }
        let hosts: Vec<String> = dats.iter().map(host).collect();
        let is_many = hosts.iter().any(|host| *host != hosts[0]);
        let files = dats.into_iter().map(|dat| OneFile::new(dat, is_many, kernel)).collect();
        let bytes = streams.iter().map(CpuStream::left).sum();
        let (heap, event) = (BinaryHeap::with_capacity(streams.len()), RawEvent::default());
        Ok(DatFeed { files, streams, heap, is_begun: false, event, bytes })
    }

    /// Goes on to a CPU's next event whose time is known.
    fn advance(&mut self, number: usize) -> Result<Option<i64>> {
        let stream = &mut self.streams[number];
        let file = &mut self.files[stream.file];
        while stream.advance(&file.dat)? {
            match file.dat.scale.ns(stream.time()) {
                Some(time) => return Ok(Some(time)),
                None => file.out_of_range += 1,
            }
        }
        Ok(None)
    }

    /// Brings the CPU whose event is the next one to the top; false at the end.
    fn bring(&mut self) -> Result<bool> {
        if self.is_begun {
            if let Some(Reverse((_, number))) = self.heap.peek().copied() {
                let time = self.advance(number)?;
                if let Some(mut first) = self.heap.peek_mut() {
                    match time {
                        Some(time) => first.0.0 = time,
                        None => drop(PeekMut::pop(first)),
                    }
                }
            }
        } else {
            self.is_begun = true;
            for number in 0..self.streams.len() {
                if let Some(time) = self.advance(number)? {
                    self.heap.push(Reverse((time, number)));
                }
            }
        }
        Ok(!self.heap.is_empty())
    }

    /// The next event, and what type of event it is.
    fn read(&mut self) -> Result<Option<&RawEvent>> {
        while self.bring()? {
            let Some(Reverse((time, number))) = self.heap.peek().copied() else { break };
            let stream = &self.streams[number];
            let file = &mut self.files[stream.file];
            let record = stream.record();
            let machine = file.dat.machine;
            let id = record.get(..2).map_or(0, |bytes| machine.unsigned(bytes));
            let Some(kind) = file.by_id.get(id as usize).copied().flatten() else {
                file.unknown += 1;
                continue;
            };
            let kind = &file.kinds[kind as usize];
            let event = &mut self.event;
            event.clear();
            file.outside += kind.format.values(record, machine, event);
            let tid = kind.tid.as_ref().and_then(|tid| tid.unsigned(record, machine));
            event.tid = tid.map(|tid| i64::from(tid as i32));
            (event.time, event.kind, event.cpu) = (time, kind.number, Some(stream.cpu));
            file.events += 1;
            return Ok(Some(&self.event));
        }
        Ok(None)
    }

    /// The events with their types' formats and CPUs, for tests.
    #[cfg(test)]
    pub fn each(&mut self, mut see: impl FnMut(&RawEvent, &str, &Format)) -> Result<()> {
        while self.read()?.is_some() {
            let kinds = self.files.iter().flat_map(|file| &file.kinds);
            let kind = kinds.into_iter().find(|kind| kind.number == self.event.kind);
            if let Some(kind) = kind {
                see(&self.event, &kind.format.name, &kind.format);
            }
        }
        Ok(())
    }
}

/// The name of the machine that was traced.
fn host(dat: &DatFile) -> String {
    dat.uname.split_whitespace().nth(1).unwrap_or("the traced host").to_owned()
}

impl OneFile {
    fn new(dat: DatFile, is_many: bool, kernel: &mut KernelRows) -> OneFile {
        let name = host(&dat);
        // Clocks of several hosts count from when each began.
        let error = if is_many { ClockError::Unknown } else { ClockError::NONE };
        let file = dat.path.display().to_string().replace(' ', "_");
        let clock = if dat.clock.is_empty() { "local" } else { &dat.clock };
        let config = format!("file={file} kernel_clock={clock} {}", error.word());
        let source = kernel.lanes.source("trace.dat", "trace-cmd", &dat.recorder, &config);
        let host = kernel.host(&format!("trace.dat:{name}"), &name, source);
        let (mut by_id, mut kinds) = (vec![None; TYPES], Vec::new());
        for (id, known) in &dat.tracing.formats {
            let Some(place) = by_id.get_mut(*id as usize) else { continue };
            let format = known.format.clone();
            let fields = format.fields.iter().map(|field| field.name.clone()).collect();
            let name = format!("{}:{}", known.system, format.name);
            let number = kernel.declare(EventType { name: name.as_str().into(), fields }, host);
            let tid = format.common("common_pid").cloned();
            *place = Some(kinds.len() as u32);
            kinds.push(Kind { number, format, tid });
        }
        for (tid, name) in &dat.tracing.commands {
            kernel.learn(host, *tid, None, Some(name.as_bytes()));
        }
        for (tid, pid) in &dat.processes {
            kernel.learn(host, *tid, Some(*pid), None);
        }
        let (events, unknown, out_of_range, outside) = (0, 0, 0, 0);
        OneFile { dat, host, source, by_id, kinds, events, unknown, out_of_range, outside }
    }

    /// What was left out, and what is to be said.
    fn finish(&self, streams: &[&CpuStream], about: &mut About, kernel: &mut KernelRows) {
        let file = self.dat.path.display().to_string();
        let mut left_out = LeftOut::default();
        let missed = streams.iter().fold(0u64, |sum, one| sum.saturating_add(one.missed));
        // The kernel's counts include what pages say.
        left_out.lose("events that the kernel says it lost", missed.max(self.dat.overrun));
        left_out.lose("events of a type that the file does not describe", self.unknown);
        left_out.lose(OUT_OF_RANGE, self.out_of_range);
        for (id, bytes) in &self.dat.passed_over {
            left_out.not_imported(&format!("option {id} of {bytes} bytes"), None);
        }
        for what in &self.dat.tracing.unreadable {
            left_out.not_imported(&format!("a type of event: {what}"), None);
        }
        let recorded = self.events;
        kernel.lanes.update_source(self.source, |source| left_out.write(source, recorded));
        let mut say = |line: String| about.lines.push(format!("{file}: {line}"));
        let unknown: u64 = streams.iter().map(|one| one.missed_unknown).sum();
        if unknown > 0 {
            say(format!("{unknown} pages follow lost events without saying how many"));
        }
        if self.outside > 0 {
            say(format!("{} fields lie outside of their events and are absent", self.outside));
        }
        let clock = &*self.dat.clock;
        if matches!(clock, "counter" | "uptime")
            || clock.ends_with("-tsc") && self.dat.scale.cycles.is_none()
        {
            say(format!("its clock {clock:?} does not count ns; its ticks are taken as ns"));
        }
        if !left_out.is_empty() {
            about.left_out.push(FileLeftOut { file, recorded, left_out });
        }
    }
}

impl Feed for DatFeed {
    fn next(&mut self, kernel: &mut KernelRows) -> Result<bool> {
        let event = self.read()?;
        if let Some(event) = event {
            kernel.event(event);
        }
        Ok(event.is_some())
    }

    fn done(&self) -> f64 {
        let left: u64 = self.streams.iter().map(CpuStream::left).sum();
        1.0 - left as f64 / self.bytes.max(1) as f64
    }

    fn finish(&mut self, kernel: &mut KernelRows) -> About {
        let mut about = About::default();
        let mut files = Vec::new();
        for (number, one) in self.files.iter().enumerate() {
            let of = |stream: &&CpuStream| stream.file == number;
            let streams: Vec<&CpuStream> = self.streams.iter().filter(of).collect();
            one.finish(&streams, &mut about, kernel);
            files.push(json!({
                "file": one.dat.path.display().to_string(),
                "version": one.dat.version,
                "host": kernel.host_name(one.host),
                "clock": one.dat.clock,
                "cpus": streams.len(),
                "pages": streams.iter().map(|one| one.pages).sum::<u64>(),
                "buffers": one.dat.buffers.iter().map(|one| &*one.name).collect::<Vec<_>>(),
                "events": one.events,
            }));
        }
        about.about.insert("files".into(), files.into());
        about
    }
}
