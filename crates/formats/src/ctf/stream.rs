//! A stream: packets of events in one file or several, read through a window.
//!
//! # How
//! The file is opened whenever the window moves, so that thousands of streams need no descriptor each. A packet says
//! in its context how long it is; the index that LTTng writes beside the streams is not needed.
//!
//! # What fools it
//! LTTng rotates files: those of one stream follow each other by the times of their packets, not by their names.
//! What a tracer lost is a running total in each packet, which runs over.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ast::Clock;
use super::build::{Class, EventClass, Model, StreamClass};
use super::decode::{Bits, Found, Nothing, Sink, State, Stop};
use crate::{Error, Result};

/// The magic number of packets of events.
pub(super) const PACKET: u64 = 0xc1fc_1fc1;
/// Bytes that a window holds; more if one event is larger.
const WINDOW: u64 = 256 << 10;
/// Bytes that it holds at least, and those that all windows together may hold beyond that.
const SMALL_WINDOW: u64 = 16 << 10;
const WINDOWS: u64 = 64 << 20;
/// Bytes of one event, or of what a packet begins with.
const LARGEST: u64 = 256 << 20;

/// A file of a stream.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// What its trace's metadata say.
    pub model: Arc<Model>,
    /// The number of its trace.
    pub trace: usize,
    pub path: PathBuf,
    /// In bytes.
    pub length: u64,
}

/// What was counted of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub packets: u64,
    pub events: u64,
    /// Events that the tracer says it lost.
    pub discarded: u64,
    /// Packets that are missing by their numbers.
    pub lost_packets: u64,
    /// Packets whose UUID is not that of the metadata.
    pub other_uuid: u64,
    /// Bytes of packets that have been read.
    pub bytes: u64,
}

/// How cycles become nanoseconds since the clock's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    frequency: u64,
    base: i64,
    /// The offset is beyond 64 bits of nanoseconds: times count from 0 instead.
    pub is_out_of_range: bool,
}

impl Scale {
    /// Of a clock, or of cycles that are nanoseconds.
    pub fn of(clock: Option<&Clock>) -> Scale {
        let Some(clock) = clock else {
            return Scale { frequency: 1_000_000_000, base: 0, is_out_of_range: false };
        };
        let frequency = i128::from(clock.frequency);
        let offset = i128::from(clock.offset_seconds) * 1_000_000_000
            + (i128::from(clock.offset_cycles) * 1_000_000_000).div_euclid(frequency);
        let base = i64::try_from(offset);
        Scale {
            frequency: clock.frequency,
            base: base.unwrap_or(0),
            is_out_of_range: base.is_err(),
        }
    }

    /// The time of a clock's value; `None` beyond 64 bits of nanoseconds.
    pub fn ns(self, cycles: u64) -> Option<i64> {
        const SECOND: u64 = 1_000_000_000;
        let since = match self.frequency {
            SECOND => i128::from(cycles),
            frequency => {
                let (seconds, rest) = (cycles / frequency, cycles % frequency);
                // Of clocks of less than 18 GHz the rest of a second fits, and 128 bits are not divided.
                let rest = match rest.checked_mul(SECOND) {
                    Some(rest) => i128::from(rest / frequency),
                    None => i128::from(rest) * i128::from(SECOND) / i128::from(frequency),
                };
                i128::from(seconds) * i128::from(SECOND) + rest
            }
        };
        i64::try_from(since + i128::from(self.base)).ok()
    }
}

/// A stream as it is read, one event after the other.
#[derive(Debug)]
pub(super) struct Stream {
    /// The files to come.
    rest: VecDeque<Part>,
    part: Part,
    /// The class that the packet is of: an index of [`Model::streams`].
    class: usize,
    state: State,
    scale: Scale,
    window: Vec<u8>,
    /// How many bytes it is given.
    width: u64,
    /// The byte of the file that the window begins with.
    window_at: u64,
    /// The byte of the file that the packet begins at, and the one after it.
    packet: (u64, u64),
    /// The next bit of the packet, and the one after its content.
    at: u64,
    end: u64,
    /// Where the packet's header and context were, for those who want to see them.
    head: Vec<u8>,
    /// The class of the event that was begun: an index of [`Model::events`].
    event: usize,
    /// When it happened, in ns.
    pub time: i64,
    /// The CPU that the packet is from.
    pub cpu: Option<u32>,
    discarded: Option<u64>,
    sequence: Option<u64>,
    pub counts: Counts,
}

/// What tells streams apart, and when a file's first packet began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub class: u64,
    pub instance: Option<u64>,
    pub begin: i64,
}

/// Whether decoding is to go on with a larger or later window.
enum Outcome<T> {
    Done(T),
    More,
}

impl Stream {
    /// The stream of these files, which are not empty and in order.
    pub fn new(mut parts: VecDeque<Part>) -> Option<Stream> {
        let part = parts.pop_front()?;
        Some(Stream {
            rest: parts,
            state: State::new(part.model.slots),
            scale: Scale::of(None),
            part,
            class: 0,
            window: Vec::new(),
            width: SMALL_WINDOW,
            window_at: 0,
            packet: (0, 0),
            at: 0,
            end: 0,
            head: Vec::new(),
            event: 0,
            time: i64::MIN,
            cpu: None,
            discarded: None,
            sequence: None,
            counts: Counts::default(),
        })
    }

    /// There are so many streams that windows are read for.
    pub fn share_memory(&mut self, streams: usize) {
        self.width = (WINDOWS / streams.max(1) as u64).clamp(SMALL_WINDOW, WINDOW);
    }

    /// What a file's first packet says; `None` of an empty file.
    ///
    /// # Errors
    /// The packet is damaged.
    pub fn identify(part: &Part) -> Result<Option<Identity>> {
        let Some(mut stream) = Stream::new(VecDeque::from([part.clone()])) else { return Ok(None) };
        if !stream.next_packet()? {
            return Ok(None);
        }
        let Found { instance, begin, .. } = stream.state.found;
        let begin = begin.and_then(|begin| stream.scale.ns(begin)).unwrap_or(0);
        let class = stream.class().map_or(0, |class| class.id);
        Ok(Some(Identity { class, instance, begin }))
    }

    /// The number of the trace that is being read.
    pub fn trace(&self) -> usize {
        self.part.trace
    }

    /// Whether its events have times.
    pub fn has_clock(&self) -> bool {
        self.class().is_some_and(|class| class.clock.is_some())
    }

    /// The time of the event as babeltrace2 2.0 computes it: with doubles, which hold 53 bits.
    #[cfg(test)]
    pub fn time_by_doubles(&self) -> i64 {
        if self.scale.frequency == 1_000_000_000 {
            return self.time;
        }
        let since = 1e9 * self.state.clock as f64 / self.scale.frequency as f64;
        self.scale.base + since as i64
    }

    /// Whether its clock's offset is too large to be used.
    pub fn is_out_of_range(&self) -> bool {
        self.scale.is_out_of_range
    }

    /// The class of the event that was begun.
    pub fn event(&self) -> (usize, &EventClass) {
        (self.event, &self.part.model.events[self.event])
    }

    /// The class of the stream.
    pub fn stream_class(&self) -> Option<&StreamClass> {
        self.class()
    }

    fn class(&self) -> Option<&StreamClass> {
        self.part.model.streams.get(self.class)
    }

    fn damaged(&self, what: impl Into<String>) -> Error {
        let byte = self.packet.0 + self.at / 8;
        Error::damaged(&self.part.path, format!("at byte {byte}"), what)
    }

    /// Goes on to the next event and reads its header; false at the end of the stream.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn advance(&mut self) -> Result<bool> {
        while self.at >= self.end {
            if !self.next_packet()? {
                return Ok(false);
            }
        }
        let start = self.at;
        self.state.found.event = None;
        self.decode(|stream, _, state, bits| {
            match stream.and_then(|class| class.event_header.as_ref()) {
                Some(header) => state.decode(header, bits, &mut Nothing),
                None => Ok(()),
            }
        })?;
        let id = self.state.found.event.unwrap_or(0);
        let Some(event) = self.class().and_then(|class| class.event(id)) else {
            self.at = start;
            return Err(self.damaged(format!("an event of the unknown id {id}")));
        };
        self.event = event;
        self.counts.events += 1;
        self.time = match self.scale.ns(self.state.clock) {
            Some(time) => time,
            None => return Err(self.damaged("a time beyond 64 bits of nanoseconds")),
        };
        Ok(true)
    }

    /// Reads the event that was begun: the context that all events of the stream have, its own, and its fields. Each
    /// goes to the sink, after `part` has said which it is.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn body<S: Sink>(&mut self, sink: &mut S, part: impl Fn(&mut S, Body)) -> Result<()> {
        let from = self.at;
        let event = self.event;
        self.decode(|stream, events, state, bits| {
            let event = &events[event];
            part(sink, Body::Anew);
            let of_stream = stream.and_then(|class| class.event_context.as_ref());
            let parts = [
                (Body::StreamContext, of_stream),
                (Body::Context, event.context.as_ref()),
                (Body::Fields, event.fields.as_ref()),
            ];
            for (name, class) in parts {
                if let Some(class) = class {
                    part(sink, name);
                    state.decode(class, bits, sink)?;
                }
            }
            Ok(())
        })?;
        if self.at == from && self.class().is_none_or(|class| class.event_header.is_none()) {
            return Err(self.damaged("an event that takes no bits"));
        }
        Ok(())
    }

    /// Decodes a part of an event by the classes of its stream and of all events. Nearly always the window holds it, and
    /// nothing of the stream is moved or counted for it; else `decode` is called again.
    fn decode(
        &mut self,
        mut decode: impl FnMut(
            Option<&StreamClass>,
            &[EventClass],
            &mut State,
            &mut Bits<'_>,
        ) -> Result<(), Stop>,
    ) -> Result<()> {
        let clock = self.state.clock;
        self.state.begin();
        let mut bits = self.bits(&self.window);
        let model = &*self.part.model;
        let class = model.streams.get(self.class);
        if decode(class, &model.events, &mut self.state, &mut bits).is_ok() {
            self.at = bits.at;
            return Ok(());
        }
        let model = self.part.model.clone();
        let class = model.streams.get(self.class);
        self.attempt(|stream, bits| {
            stream.state.clock = clock;
            decode(class, &model.events, &mut stream.state, bits)
        })
    }

    /// Decodes from the present place, with as large a window as it takes, and goes on behind it.
    fn attempt(
        &mut self,
        mut decode: impl FnMut(&mut Stream, &mut Bits<'_>) -> Result<(), Stop>,
    ) -> Result<()> {
        let mut wanted = 0;
        loop {
            if wanted > 0 {
                self.refill(wanted)?;
            }
            self.state.begin();
            let window = std::mem::take(&mut self.window);
            let mut bits = self.bits(&window);
            let outcome = match decode(self, &mut bits) {
                Ok(()) => Ok(Outcome::Done(bits.at)),
                Err(Stop::More) => Ok(Outcome::More),
                Err(Stop::End) => {
                    Err((bits.at, "a field that ends after its packet's content".to_owned()))
                }
                Err(Stop::Bad(what)) => Err((bits.at, what)),
            };
            self.window = window;
            match outcome {
                Ok(Outcome::Done(at)) => {
                    self.at = at;
                    return Ok(());
                }
                Ok(Outcome::More) => {
                    let held = self.window.len() as u64;
                    let has_all = wanted > 0 && self.window_at + held >= self.packet.1;
                    if has_all {
                        return Err(self.damaged("a field that ends after its packet"));
                    }
                    wanted = if wanted == 0 { self.width } else { wanted * 4 };
                    if wanted > LARGEST {
                        return Err(self.damaged(format!("an event of more than {LARGEST} bytes")));
                    }
                }
                Err((at, what)) => {
                    self.at = at;
                    return Err(self.damaged(what));
                }
            }
        }
    }

    /// The packet's part of a window, from the present place on.
    fn bits<'a>(&self, window: &'a [u8]) -> Bits<'a> {
        // The packet before may lie in the same window.
        let before = self.packet.0.saturating_sub(self.window_at).min(window.len() as u64);
        let from = (self.window_at + before).saturating_sub(self.packet.0);
        Bits { window: &window[before as usize..], from, at: self.at, end: self.end }
    }

    /// Reads so many bytes from the present place, or as many as the packet has.
    fn refill(&mut self, bytes: u64) -> Result<()> {
        let from = self.packet.0 + self.at / 8;
        let most = self.packet.1.saturating_sub(from);
        self.read(from, bytes.min(most))
    }

    fn read(&mut self, from: u64, bytes: u64) -> Result<()> {
        let path: &Path = &self.part.path;
        let file = File::open(path).map_err(Error::io("open", path))?;
        self.window.resize(bytes as usize, 0);
        file.read_exact_at(&mut self.window, from).map_err(Error::io("read", path))?;
        self.window_at = from;
        Ok(())
    }

    /// Begins the next packet; false at the end of the stream.
    fn next_packet(&mut self) -> Result<bool> {
        let start = self.packet.1;
        if start >= self.part.length {
            let Some(part) = self.rest.pop_front() else { return Ok(false) };
            let clock = self.state.clock;
            self.state = State::new(part.model.slots);
            self.state.clock = clock;
            self.part = part;
            self.packet = (0, 0);
            self.window.clear();
            self.window_at = 0;
            (self.at, self.end) = (0, 0);
            return self.next_packet();
        }
        // How long it is stands in its context: until then it may have the rest of the file.
        self.packet = (start, self.part.length);
        (self.at, self.end) = (0, (self.part.length - start).saturating_mul(8));
        if self.window_at > start || self.window_at + (self.window.len() as u64) <= start {
            self.refill(self.width)?;
        }
        self.state.found = Found::default();
        self.state.begin();
        let model = self.part.model.clone();
        if let Some(header) = &model.packet_header {
            self.part_of_head(header)?;
            self.check_header(&model)?;
        }
        let first = model.streams.first().map_or(0, |class| class.id);
        let id = self.state.found.stream.unwrap_or(first);
        let place = model.streams.binary_search_by_key(&id, |class| class.id);
        let Some(class) = place.ok().and_then(|place| model.streams.get(place)) else {
            self.at = 0;
            return Err(self.damaged(format!("a packet of the unknown stream {id}")));
        };
        self.class = place.unwrap_or(0);
        self.scale = Scale::of(class.clock.and_then(|clock| model.clocks.get(clock)));
        if let Some(context) = &class.packet_context {
            self.part_of_head(context)?;
        }
        let bytes = self.at.div_ceil(8) as usize;
        let from = (start - self.window_at.min(start)) as usize;
        self.head.clear();
        self.head.extend_from_slice(self.window.get(from..from + bytes).unwrap_or_default());
        self.measure(start)?;
        self.count();
        Ok(true)
    }

    fn part_of_head(&mut self, class: &Class) -> Result<()> {
        let clock = self.state.clock;
        // The head of a packet is kept as a whole: the window is not moved within it.
        let (at, mut bytes) = (self.at, self.width);
        loop {
            self.at = at;
            let window = std::mem::take(&mut self.window);
            let mut bits = self.bits(&window);
            self.state.clock = clock;
            let outcome = self.state.decode(class, &mut bits, &mut Nothing);
            let reached = bits.at;
            self.window = window;
            let what = match outcome {
                Ok(()) => {
                    self.at = reached;
                    return Ok(());
                }
                Err(Stop::More) if bytes <= LARGEST => {
                    let from = self.packet.0;
                    self.read(from, bytes.min(self.packet.1 - from))?;
                    bytes *= 4;
                    continue;
                }
                Err(Stop::More | Stop::End) => {
                    "a packet that ends within its header or context".into()
                }
                Err(Stop::Bad(what)) => what,
            };
            self.at = reached;
            return Err(self.damaged(what));
        }
    }

    fn check_header(&mut self, model: &Model) -> Result<()> {
        let found = &self.state.found;
        let what = match (found.magic, found.uuid, model.uuid) {
            (Some(magic), ..) if magic != PACKET => {
                format!("no packet where one should begin: its magic number is 0x{magic:08x}")
            }
            // babeltrace2 takes these, too: collections of traces have them.
            (_, Some(uuid), Some(expected)) if uuid != expected => {
                self.counts.other_uuid += 1;
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.at = 0;
        Err(self.damaged(what))
    }

    /// How long the packet is.
    fn measure(&mut self, start: u64) -> Result<()> {
        let rest = self.part.length - start;
        let found = &self.state.found;
        let (mut content, size) = (found.content_size, found.packet_size);
        let bits = size.or(content).unwrap_or(rest.saturating_mul(8));
        let bytes = bits / 8;
        content = content.or(Some(bits));
        let what = if !bits.is_multiple_of(8) || bytes == 0 {
            format!("a packet of {bits} bits")
        } else if bytes > rest {
            format!("a packet of {bytes} bytes where the file has {rest} more: it was cut off")
        } else if content.is_some_and(|content| content > bits) {
            format!("a packet of {bits} bits with {} bits of content", content.unwrap_or(0))
        } else if content.is_some_and(|content| content < self.at) {
            format!(
                "a packet whose context ends after its {} bits of content",
                content.unwrap_or(0)
            )
        } else {
            self.packet = (start, start + bytes);
            self.end = content.unwrap_or(bits);
            return Ok(());
        };
        self.at = 0;
        Err(self.damaged(what))
    }

    /// Counts the packet, and what is missing before it.
    fn count(&mut self) {
        let found = &self.state.found;
        self.cpu = found.cpu.and_then(|cpu| u32::try_from(cpu).ok());
        self.counts.packets += 1;
        self.counts.bytes += self.packet.1 - self.packet.0;
        let since = |now: u64, before: u64, size: u32| {
            let mask = if size >= 64 { u64::MAX } else { (1 << size) - 1 };
            now.wrapping_sub(before) & mask
        };
        if let Some((total, size)) = found.discarded {
            let lost = since(total, self.discarded.unwrap_or(0), size);
            self.counts.discarded = self.counts.discarded.saturating_add(lost);
            self.discarded = Some(total);
        }
        if let Some((number, size)) = found.sequence {
            if let Some(before) = self.sequence {
                let lost = since(number, before.wrapping_add(1), size);
                self.counts.lost_packets = self.counts.lost_packets.saturating_add(lost);
            }
            self.sequence = Some(number);
        }
    }

    /// Decodes the header and the context of the packet once more, for a sink.
    ///
    /// # Errors
    /// They are damaged.
    #[cfg(test)]
    pub fn packet_context<S: Sink>(&mut self, sink: &mut S) -> Result<()> {
        let model = self.part.model.clone();
        let context = self.class().and_then(|class| class.packet_context.as_ref());
        let Some(context) = context.cloned() else { return Ok(()) };
        let head = self.head.clone();
        let mut bits = Bits { window: &head, from: 0, at: 0, end: 8 * head.len() as u64 };
        let mut state = State::new(model.slots);
        let mut decode = || {
            if let Some(header) = &model.packet_header {
                state.decode(header, &mut bits, &mut Nothing)?;
            }
            state.decode(&context, &mut bits, sink)
        };
        decode().map_err(|stop| self.damaged(format!("{stop:?}")))
    }
}

/// Which part of an event comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// All that was decoded of it is to be forgotten: it is decoded anew, from a larger window.
    Anew,
    /// The context that all events of its stream have.
    StreamContext,
    /// Its own context.
    Context,
    /// Its fields.
    Fields,
}
