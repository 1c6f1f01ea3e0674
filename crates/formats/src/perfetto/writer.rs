//! Writes rows in pieces: the order of events, flows, clocks, and what is kept between pieces.

use std::collections::HashMap;
use std::io::Write;

use gpuwhy_schema::{
    Cause, EntityId, Frame, Id, Ns, Rows, Source, SourceId, Stack, State, Table, TrackId,
};

use super::args::Details;
use super::packets::Packets;
use super::track_tree::Tree;
use super::{Error, Options, Stats, proto};

/// Sync points that are written; readers interpolate between them.
const CLOCKS: usize = 4096;

/// Writes a trace in pieces, so that it never has to be in memory as a whole.
///
/// Pieces must be in the order of time, and details in the piece of their span or mark. Entities, tracks
/// and sources come with or before the first row that refers to them. A link whose ends are in different
/// pieces must be announced before both ([`Writer::links`]).
pub struct Writer<W: Write> {
    pub(super) packets: Packets<W>,
    begun: bool,
    pub(super) tree: Tree,
    options: Options,
    pub(super) stats: Stats,
    /// The flows that a row not written yet is an end of.
    pub(super) flows: HashMap<Id, Vec<u64>>,
    pub(super) next_flow: u64,
    /// How many ends of each unfinished flow were not written yet.
    pub(super) open_flows: HashMap<u64, u8>,
    pub(super) states: HashMap<TrackId, State>,
    pub(super) deltas: HashMap<TrackId, Delta>,
    pub(super) ticks: HashMap<SourceId, Ns>,
    pub(super) sources: HashMap<SourceId, Source>,
    pub(super) stacks: HashMap<u32, Stack>,
    pub(super) frames: HashMap<u32, Frame>,
    clocks: usize,
    pub(super) earliest: Option<Ns>,
}

/// The last row of a delta counter.
#[derive(Clone, Copy)]
pub(super) struct Delta {
    /// When it was measured.
    pub ts: Ns,
    /// By how much the counter had grown.
    pub value: f64,
}

/// The rows in order of their begin, those that contain others first.
fn in_order<T: Table>(rows: &[T]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by_key(|&i| {
        let row = &rows[i as usize];
        (row.start(), std::cmp::Reverse(row.end()))
    });
    order
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(out: W, options: Options) -> Writer<W> {
        Writer {
            packets: Packets::new(out),
            begun: false,
            tree: Tree::new(options.max_parallel),
            options,
            stats: Stats::default(),
            flows: HashMap::new(),
            next_flow: 0,
            open_flows: HashMap::new(),
            states: HashMap::new(),
            deltas: HashMap::new(),
            ticks: HashMap::new(),
            sources: HashMap::new(),
            stacks: HashMap::new(),
            frames: HashMap::new(),
            clocks: 0,
            earliest: None,
        }
    }

    /// Writes the head of the file with a time near the first row: viewers show all time from there on.
    fn begin(&mut self, near: Option<Ns>) -> Result<(), Error> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let from = self.options.range.as_ref().map_or(Ns::ZERO, |r| r.start);
        self.packets.begin(near.map_or(from, |near| near.max(from)))
    }

    /// Announces links before the rows that they connect.
    pub fn links(&mut self, links: &[gpuwhy_schema::Link]) {
        for link in links {
            if self.open_flows.len() >= self.options.max_flows {
                self.stats.loose_flows += 1;
                continue;
            }
            self.next_flow += 1;
            self.open_flows.insert(self.next_flow, 2);
            for end in [link.from, link.to] {
                self.flows.entry(end).or_default().push(self.next_flow);
            }
        }
    }

    /// Writes the next piece.
    ///
    /// # Errors
    /// Writing fails.
    pub fn rows(&mut self, rows: &Rows) -> Result<(), Error> {
        fn first<T: Table>(rows: &[T]) -> Option<Ns> {
            rows.iter().filter_map(T::start).min()
        }
        let starts = [
            first(&rows.span),
            first(&rows.state),
            first(&rows.counter),
            first(&rows.mark),
            first(&rows.sample),
            first(&rows.finding),
        ];
        self.begin(starts.into_iter().flatten().min())?;
        self.declarations(rows);
        self.clocks(rows)?;
        self.links(&rows.link);
        let details = Details::of(rows);
        // Marks before spans: readers keep the order of events at one time, and a launch precedes its
        // kernel.
        for i in in_order(&rows.mark) {
            self.mark(&rows.mark[i as usize], &details)?;
        }
        for i in in_order(&rows.span) {
            self.span(&rows.span[i as usize], &details)?;
        }
        for i in in_order(&rows.state) {
            self.state(&rows.state[i as usize])?;
        }
        for i in in_order(&rows.counter) {
            self.counter(&rows.counter[i as usize])?;
        }
        for sample in &rows.sample {
            self.sample(sample)?;
        }
        let thread_of: HashMap<Id, EntityId> =
            rows.step.iter().map(|step| (step.id, step.thread)).collect();
        for i in in_order(&rows.part) {
            let part = &rows.part[i as usize];
            self.part(part, thread_of.get(&part.step).copied().unwrap_or(part.thread))?;
        }
        let mut causes: HashMap<Id, Vec<&Cause>> = HashMap::new();
        for cause in &rows.cause {
            causes.entry(cause.finding).or_default().push(cause);
        }
        for i in in_order(&rows.finding) {
            let finding = &rows.finding[i as usize];
            let mut of = causes.remove(&finding.id).unwrap_or_default();
            of.sort_by_key(|c| c.rank);
            self.finding(finding, &of)?;
        }
        Ok(())
    }

    /// Ends the file, and returns the output and what was written.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(mut self) -> Result<(W, Stats), Error> {
        self.begin(None)?;
        let mut pending: Vec<State> = self.states.drain().map(|(_, state)| state).collect();
        pending.sort_by_key(|s| (s.ts, s.track));
        for state in pending {
            self.write_state(&state)?;
        }
        self.write_sources()?;
        self.stats.loose_flows += self.open_flows.len() as u64;
        self.stats.tracks = self.tree.declared();
        self.stats.bytes = self.packets.bytes;
        let stats = self.stats;
        Ok((self.packets.finish()?, stats))
    }

    /// Entities, tracks, sources and stacks, to which other rows refer.
    fn declarations(&mut self, rows: &Rows) {
        self.tree.entities.extend(rows.entity.iter().map(|e| (e.id, e.clone())));
        self.tree.tracks.extend(rows.track.iter().map(|t| (t.id, t.clone())));
        self.sources.extend(rows.source.iter().map(|s| (s.id, s.clone())));
        self.stacks.extend(rows.stack.iter().map(|s| (s.id, s.clone())));
        self.frames.extend(rows.frame.iter().map(|f| (f.id, f.clone())));
    }

    /// Writes sync points of the first host that has any: Perfetto's clocks belong to one machine.
    fn clocks(&mut self, rows: &Rows) -> Result<(), Error> {
        let Some(host) = rows.clock.first().map(|c| c.host) else { return Ok(()) };
        for row in rows.clock.iter().filter(|c| c.host == host) {
            let name = row.clock.to_ascii_lowercase();
            let id = match name.strip_prefix("clock_").unwrap_or(&name) {
                "realtime" => proto::clock::REALTIME,
                "boottime" => proto::clock::BOOTTIME,
                "monotonic_raw" => proto::clock::MONOTONIC_RAW,
                _ => continue,
            };
            let (Ok(ours), Ok(theirs)) =
                (u64::try_from(row.ts_trace.0), u64::try_from(row.ts_source))
            else {
                continue;
            };
            if self.clocks < CLOCKS {
                self.clocks += 1;
                self.packets.clocks(&[(proto::clock::MONOTONIC, ours), (id, theirs)])?;
            }
        }
        Ok(())
    }

    /// Whether a row is written; counts it where it is not.
    pub(super) fn wanted(&mut self, start: Ns, end: Ns) -> bool {
        if let Some(range) = &self.options.range
            && (start >= range.end || end.max(start.saturating_add(Ns(1))) <= range.start)
        {
            self.stats.outside += 1;
            return false;
        }
        if start < Ns::ZERO {
            self.stats.misplaced += 1;
            return false;
        }
        self.earliest = Some(self.earliest.map_or(start, |e| e.min(start)));
        true
    }

    /// Whether a track is declared; counts the row where it is not.
    pub(super) fn known(&mut self, track: TrackId) -> bool {
        let known = self.tree.tracks.contains_key(&track);
        self.stats.misplaced += u64::from(!known);
        known
    }

    /// The flows with an end at this row; each is returned once for each end.
    pub(super) fn flows_of(&mut self, id: Id) -> Vec<u64> {
        let flows = self.flows.remove(&id).unwrap_or_default();
        for flow in &flows {
            if let Some(left) = self.open_flows.get_mut(flow) {
                *left -= 1;
                if *left == 0 {
                    self.open_flows.remove(flow);
                    self.stats.flows += 1;
                }
            }
        }
        flows
    }
}
