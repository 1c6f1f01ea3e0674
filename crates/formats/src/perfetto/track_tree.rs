//! Which Perfetto track a row belongs on, and the descriptors that say so.
//!
//! Perfetto knows processes and threads by their numbers and everything else by a tree of named
//! tracks. A descriptor is written when its track is first needed, so that an entity without rows
//! costs nothing and names are those known by then.

use std::collections::HashMap;
use std::io::Write;

use gpuwhy_schema::{Discipline, Entity, EntityId, EntityKind, Ns, Shape, Track, TrackId, names};

use super::Error;
use super::packets::Packets;
use super::proto::{CounterDescriptor, EXPLICIT_ORDER, ProcessDescriptor, ThreadDescriptor};
use super::proto::{TrackDescriptor, unit};

/// Readers give up at ten ancestors; rows that claim more, or a circle, are cut here.
const DEPTH: u32 = 6;

/// One of the Perfetto tracks that share the spans of a track.
struct SliceTrack {
    uuid: u64,
    /// Ends of the slices that are still open, outermost first.
    open: Vec<Ns>,
    last_start: Ns,
}

/// The entities and tracks of a trace, and the Perfetto tracks that stand for them.
pub struct Tree {
    /// The last row of each entity.
    pub entities: HashMap<EntityId, Entity>,
    /// The last row of each track.
    pub tracks: HashMap<TrackId, Track>,
    entity_uuid: HashMap<EntityId, u64>,
    group_uuid: HashMap<&'static str, u64>,
    own_uuid: HashMap<(EntityId, &'static str), Vec<SliceTrack>>,
    slice_tracks: HashMap<TrackId, Vec<SliceTrack>>,
    pids: HashMap<i64, EntityId>,
    threads_by_number: HashMap<(i64, i64), EntityId>,
    steps_of: HashMap<EntityId, TrackId>,
    max_parallel: usize,
    next: u64,
}

/// The groups at the top level, in the order in which they are shown. Viewers show processes at the top
/// level without a group.
const GROUPS: &[&str] = &[
    "gpuwhy findings",
    "gpuwhy sources",
    "Ranks and models",
    "GPUs",
    "CPUs",
    "Disks",
    "Network",
    "Control groups",
    "Hosts",
    "Virtual machines",
    "Other processes",
    "Other",
];

fn group_of(kind: EntityKind) -> &'static str {
    match kind {
        EntityKind::Rank | EntityKind::Model => "Ranks and models",
        EntityKind::Gpu | EntityKind::Engine | EntityKind::Stream | EntityKind::Vgpu => "GPUs",
        EntityKind::Cpu => "CPUs",
        EntityKind::Disk => "Disks",
        EntityKind::Nic => "Network",
        EntityKind::Cgroup | EntityKind::Container | EntityKind::Job => "Control groups",
        EntityKind::Host | EntityKind::Setting => "Hosts",
        EntityKind::Vm => "Virtual machines",
        EntityKind::Process | EntityKind::Thread => "Other processes",
    }
}

impl Tree {
    /// An empty tree, in which a track of overlapping spans has at most `max_parallel` Perfetto tracks.
    pub fn new(max_parallel: usize) -> Tree {
        Tree {
            entities: HashMap::new(),
            tracks: HashMap::new(),
            entity_uuid: HashMap::new(),
            group_uuid: HashMap::new(),
            own_uuid: HashMap::new(),
            slice_tracks: HashMap::new(),
            pids: HashMap::new(),
            threads_by_number: HashMap::new(),
            steps_of: HashMap::new(),
            max_parallel: max_parallel.max(1),
            next: 0,
        }
    }

    /// How many tracks were declared.
    pub fn declared(&self) -> u64 {
        self.next
    }

    fn uuid(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The name of an entity as users know it: `fio (4242)`, `cpu 3`, `eth0`.
    pub fn label(&self, id: EntityId) -> String {
        let Some(e) = self.entities.get(&id) else {
            return format!("entity {id}");
        };
        let name = visible(&e.name);
        match (e.kind, e.number) {
            (EntityKind::Process | EntityKind::Thread, Some(n)) => format!("{name} ({n})"),
            (EntityKind::Cpu, Some(n)) => format!("cpu {n}"),
            (EntityKind::Rank, Some(n)) => format!("rank {n}"),
            _ => name,
        }
    }

    fn group<W: Write>(
        &mut self,
        name: &'static str,
        packets: &mut Packets<W>,
    ) -> Result<u64, Error> {
        if let Some(&uuid) = self.group_uuid.get(name) {
            return Ok(uuid);
        }
        let uuid = self.uuid();
        self.group_uuid.insert(name, uuid);
        let rank = GROUPS.iter().position(|&g| g == name).unwrap_or(GROUPS.len());
        packets.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.into()),
            sibling_order_rank: Some(rank as i32),
            ..Default::default()
        })?;
        Ok(uuid)
    }

    /// The Perfetto track of an entity itself.
    fn entity<W: Write>(
        &mut self,
        id: EntityId,
        packets: &mut Packets<W>,
        depth: u32,
    ) -> Result<u64, Error> {
        if let Some(&uuid) = self.entity_uuid.get(&id) {
            return Ok(uuid);
        }
        let Some(entity) = self.entities.get(&id).cloned() else {
            return self.group("Other", packets);
        };
        let mut descriptor = TrackDescriptor::default();
        if self.numbers(&entity) {
            let number = entity.number.unwrap_or(0);
            let name = Some(visible(&entity.name));
            if entity.kind == EntityKind::Process {
                descriptor.process =
                    Some(ProcessDescriptor { pid: Some(number as i32), process_name: name });
            } else {
                let process = entity.parent.filter(|_| depth < DEPTH);
                if let Some(process) = process {
                    self.entity(process, packets, depth + 1)?;
                }
                let pid = process.and_then(|p| self.entities.get(&p)).and_then(|p| p.number);
                descriptor.thread = Some(ThreadDescriptor {
                    pid: Some(pid.unwrap_or(number) as i32),
                    tid: Some(number),
                    thread_name: name,
                });
            }
        } else {
            descriptor.name = Some(self.label(id));
            let nested = matches!(
                entity.kind,
                EntityKind::Thread | EntityKind::Engine | EntityKind::Stream | EntityKind::Vgpu
            );
            descriptor.parent_uuid = Some(match entity.parent {
                Some(parent) if nested && depth < DEPTH => {
                    self.entity(parent, packets, depth + 1)?
                }
                _ => self.group(group_of(entity.kind), packets)?,
            });
            descriptor.sibling_order_rank = entity.number.and_then(|n| i32::try_from(n).ok());
        }
        descriptor.child_ordering = Some(EXPLICIT_ORDER);
        // In a circle of parents, declaring a parent has declared this entity.
        if let Some(&uuid) = self.entity_uuid.get(&id) {
            return Ok(uuid);
        }
        let uuid = self.uuid();
        self.entity_uuid.insert(id, uuid);
        descriptor.uuid = Some(uuid);
        packets.descriptor(descriptor)?;
        Ok(uuid)
    }

    /// Whether an entity can be a process or thread descriptor: readers identify those by number, so an
    /// entity whose number another one has already gets a plain named track.
    fn numbers(&mut self, entity: &Entity) -> bool {
        let small = |n: &i64| (1..=i64::from(i32::MAX)).contains(n);
        let Some(number) = entity.number.filter(small) else { return false };
        match entity.kind {
            EntityKind::Process => *self.pids.entry(number).or_insert(entity.id) == entity.id,
            EntityKind::Thread => {
                let Some(process) = entity.parent.and_then(|p| self.entities.get(&p)).cloned()
                else {
                    return false;
                };
                let Some(pid) = process.number.filter(small) else { return false };
                process.kind == EntityKind::Process
                    && *self.pids.entry(pid).or_insert(process.id) == process.id
                    && *self.threads_by_number.entry((pid, number)).or_insert(entity.id)
                        == entity.id
            }
            _ => false,
        }
    }

    /// Name and parent of a track's descriptor.
    fn place<W: Write>(
        &mut self,
        track: &Track,
        packets: &mut Packets<W>,
        depth: u32,
    ) -> Result<(String, u64), Error> {
        let kind = self.entities.get(&track.entity).map(|e| e.kind);
        let own = matches!(kind, Some(EntityKind::Process | EntityKind::Thread));
        // Most views and all queries show the name without its parents, so it names the entity, too.
        let name = if own && track.parent.is_none() {
            track.name.to_string()
        } else {
            format!("{} {}", self.label(track.entity), track.name)
        };
        let parent = match track.parent.filter(|_| depth < DEPTH) {
            Some(parent) if self.tracks.contains_key(&parent) => {
                self.track_depth(parent, packets, depth + 1)?
            }
            _ => self.entity(track.entity, packets, 0)?,
        };
        Ok((name, parent))
    }

    /// The Perfetto track of a track of states, counters, marks or samples; of a track of spans, the
    /// first of its Perfetto tracks.
    pub fn track<W: Write>(&mut self, id: TrackId, packets: &mut Packets<W>) -> Result<u64, Error> {
        self.track_depth(id, packets, 0)
    }

    fn track_depth<W: Write>(
        &mut self,
        id: TrackId,
        packets: &mut Packets<W>,
        depth: u32,
    ) -> Result<u64, Error> {
        if let Some(track) = self.slice_tracks.get(&id).and_then(|l| l.first()) {
            return Ok(track.uuid);
        }
        let uuid = self.declare(id, packets, depth)?;
        let track = SliceTrack { uuid, open: Vec::new(), last_start: Ns::MIN };
        self.slice_tracks.entry(id).or_insert_with(|| vec![track]);
        Ok(uuid)
    }

    fn declare<W: Write>(
        &mut self,
        id: TrackId,
        packets: &mut Packets<W>,
        depth: u32,
    ) -> Result<u64, Error> {
        let Some(track) = self.tracks.get(&id).cloned() else {
            return self.group("Other", packets);
        };
        let first = self.slice_tracks.get(&id).is_none_or(Vec::is_empty);
        let thread = self.entities.get(&track.entity).is_some_and(|e| e.kind == EntityKind::Thread);
        // Steps lie on the thread's own track, where users look for slices first.
        if first
            && thread
            && track.parent.is_none()
            && &*track.name == names::STEPS
            && *self.steps_of.entry(track.entity).or_insert(id) == id
        {
            return self.entity(track.entity, packets, depth);
        }
        let (name, parent) = self.place(&track, packets, depth)?;
        let counter = (track.shape == Shape::Counter).then(|| match track.unit.as_deref() {
            Some("ns") => CounterDescriptor { unit: Some(unit::TIME_NS), unit_name: None },
            Some("By") => CounterDescriptor { unit: Some(unit::SIZE_BYTES), unit_name: None },
            Some("1") => CounterDescriptor { unit: Some(unit::COUNT), unit_name: None },
            other => CounterDescriptor { unit: None, unit_name: other.map(str::to_owned) },
        });
        let uuid = self.uuid();
        packets.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: Some(parent),
            counter,
            sibling_order_rank: Some(sibling_rank(&track.name)),
            ..Default::default()
        })?;
        Ok(uuid)
    }

    /// The Perfetto track for a span: slices of one track must nest, so spans that would cross are spread
    /// over several tracks of the same name. `None` when too many overlap.
    pub fn span<W: Write>(
        &mut self,
        id: TrackId,
        start: Ns,
        end: Ns,
        packets: &mut Packets<W>,
    ) -> Result<Option<u64>, Error> {
        self.track(id, packets)?;
        let nests = self.tracks.get(&id).and_then(|t| t.discipline) == Some(Discipline::Nested);
        let tracks = self.slice_tracks.entry(id).or_default();
        if let Some(uuid) = take(tracks, nests, start, end) {
            return Ok(Some(uuid));
        }
        if tracks.len() >= self.max_parallel {
            return Ok(None);
        }
        let uuid = self.declare(id, packets, 0)?;
        self.slice_tracks.entry(id).or_default().push(SliceTrack {
            uuid,
            open: vec![end],
            last_start: start,
        });
        Ok(Some(uuid))
    }

    /// The first track of this name that is no track of the trace, for instants, which may overlap.
    pub fn own_points<W: Write>(
        &mut self,
        entity: EntityId,
        name: &'static str,
        packets: &mut Packets<W>,
    ) -> Result<u64, Error> {
        if let Some(track) = self.own_uuid.get(&(entity, name)).and_then(|l| l.first()) {
            return Ok(track.uuid);
        }
        let made = self.own(entity, name, (Ns::MIN, Ns::MIN), packets)?;
        made.map_or_else(|| self.group("Other", packets), Ok)
    }

    /// A track below an entity (at the top level for entity 0) that is no track of the trace, for slices
    /// that are no spans: parts of steps, findings.
    pub fn own<W: Write>(
        &mut self,
        entity: EntityId,
        name: &'static str,
        (start, end): (Ns, Ns),
        packets: &mut Packets<W>,
    ) -> Result<Option<u64>, Error> {
        if let Some(tracks) = self.own_uuid.get_mut(&(entity, name)) {
            if let Some(uuid) = take(tracks, false, start, end) {
                return Ok(Some(uuid));
            }
            if tracks.len() >= self.max_parallel {
                return Ok(None);
            }
        }
        let uuid = if entity.0 == 0 && !self.group_uuid.contains_key(name) {
            self.group(name, packets)?
        } else {
            let parent = match entity.0 {
                0 => None,
                _ => Some(self.entity(entity, packets, 0)?),
            };
            let uuid = self.uuid();
            packets.descriptor(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(name.into()),
                parent_uuid: parent,
                sibling_order_rank: Some(0),
                ..Default::default()
            })?;
            uuid
        };
        let track = SliceTrack { uuid, open: vec![end], last_start: start };
        self.own_uuid.entry((entity, name)).or_default().push(track);
        Ok(Some(uuid))
    }
}

/// A name with invisible characters escaped: a process chooses its own name, and one that reverses the
/// direction of the text would show its pid backwards.
fn visible(name: &str) -> String {
    let unseen = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    if !name.contains(unseen) {
        return name.to_owned();
    }
    name.chars().fold(String::new(), |mut out, c| {
        if unseen(c) {
            out.extend(c.escape_unicode())
        } else {
            out.push(c)
        }
        out
    })
}

/// The position of a track among its siblings: those that explain a finding come first.
fn sibling_rank(name: &str) -> i32 {
    let order = [names::STEPS, names::THREAD_STATE, names::STREAM, names::OCCUPANT, names::IO];
    order.iter().position(|&n| n == name).unwrap_or(order.len()) as i32
}

/// The first of some tracks on which a span from `start` to `end` fits, occupied until `end`.
fn take(tracks: &mut [SliceTrack], nests: bool, start: Ns, end: Ns) -> Option<u64> {
    for track in tracks {
        if start < track.last_start {
            // Not sorted by time: what was open then is no longer known.
            continue;
        }
        while track.open.last().is_some_and(|&e| e <= start) {
            track.open.pop();
        }
        if track.open.last().is_none_or(|&top| nests && end <= top) {
            track.last_start = start;
            track.open.push(end);
            return Some(track.uuid);
        }
    }
    None
}
