//! Metadata with all references resolved: what the decoder goes by.
//!
//! # How
//! Lengths of arrays and selectors of variants are fields that were decoded before. Each integer has a slot that its
//! value is kept in while an event is decoded, and whoever refers to it knows the number of the slot. Roles that
//! CTF 1.8 gives by the names of fields (CTF 1.8.3, sections 5.1 to 6.1) are noted here, so that the decoder looks
//! at no names.
//!
//! # What fools it
//! A type may be used in many places, and each use is a class of its own here: a hostile text of a kilobyte could
//! ask for more of them than memory holds, so their number is bounded ([`CLASSES`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use gpuwhy_schema::Name;

use super::ast::{self, Clock, Integer, Length, Metadata, Order, Ranges, Role, Type};

/// Classes that metadata may ask for.
const CLASSES: usize = 1 << 20;
/// The slot of integers that nobody refers to.
pub(super) const NO_SLOT: u32 = u32::MAX;

/// The names of the values of an enumeration.
pub(super) type ValueNames = Arc<Vec<(Name, Ranges)>>;

/// An integer.
#[derive(Clone, Debug)]
pub(super) struct Int {
    pub size: u32,
    pub align: u32,
    pub signed: bool,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "shown by the tests that compare with babeltrace2")
    )]
    pub base: u32,
    pub is_big: bool,
    pub is_variable: bool,
    /// Where its value is kept, or [`NO_SLOT`].
    pub slot: u32,
    /// Whether it is of use besides its value: it has a role or moves the clock.
    pub is_special: bool,
    pub role: Option<Role>,
    /// Whether its value is one of the stream's clock.
    pub is_time: bool,
    pub names: Option<ValueNames>,
}

/// How many elements or bytes there are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Len {
    Fixed(u64),
    /// As many as the integer of this slot says.
    Slot(u32),
    /// Up to a zero byte.
    Terminated,
}

/// A member of a structure.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// Without the underscore that keeps it apart from keywords.
    pub name: Name,
    pub class: Class,
}

/// The class of a field.
#[derive(Clone, Debug)]
pub(super) enum Class {
    Int(Int),
    Float { is_double: bool, align: u32, is_big: bool },
    Text(Len),
    Blob(Len, Option<Role>),
    Struct { fields: Vec<Field>, align: u32 },
    Array { element: Box<Class>, len: Len, align: u32 },
    Variant { slot: u32, choices: Vec<(Name, Ranges, Class)> },
    Optional { slot: u32, ranges: Ranges, class: Box<Class> },
}

impl Class {
    /// What its first bit is aligned to, in bits.
    pub fn align(&self) -> u32 {
        match self {
            Class::Int(int) => int.align,
            Class::Float { align, .. }
            | Class::Struct { align, .. }
            | Class::Array { align, .. } => *align,
            Class::Text(_) | Class::Blob(..) => 8,
            Class::Variant { .. } | Class::Optional { .. } => 1,
        }
    }
}

/// A class of events.
#[derive(Clone, Debug)]
pub(super) struct EventClass {
    pub name: Name,
    pub context: Option<Class>,
    pub fields: Option<Class>,
}

/// A class of streams.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamClass {
    /// Its number in the metadata.
    pub id: u64,
    pub packet_context: Option<Class>,
    pub event_header: Option<Class>,
    pub event_context: Option<Class>,
    /// The index of its clock.
    pub clock: Option<usize>,
    /// The events by their ids: indices of [`Model::events`].
    events: HashMap<u64, usize>,
    /// The same of small ids, which nearly all are.
    small: Vec<Option<usize>>,
}

impl StreamClass {
    /// The event of this id: an index of [`Model::events`].
    pub fn event(&self, id: u64) -> Option<usize> {
        match usize::try_from(id).ok().and_then(|id| self.small.get(id)) {
            Some(event) => *event,
            None => self.events.get(&id).copied(),
        }
    }

    /// Makes the table of small ids, which has few more places than there are events.
    fn note_small(&mut self) {
        self.small = vec![None; 4 * self.events.len() + 64];
        for (id, event) in &self.events {
            let place = usize::try_from(*id).ok().and_then(|id| self.small.get_mut(id));
            if let Some(place) = place {
                *place = Some(*event);
            }
        }
    }
}

/// What the decoder goes by.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub uuid: Option<[u8; 16]>,
    pub environment: BTreeMap<String, String>,
    pub packet_header: Option<Class>,
    pub clocks: Vec<Clock>,
    /// In the order of their ids.
    pub streams: Vec<StreamClass>,
    pub events: Vec<EventClass>,
    /// How many slots the decoder needs.
    pub slots: usize,
}

/// Resolves all references.
///
/// # Errors
/// A reference leads nowhere or to something that cannot be a length or a selector, or there is too much.
pub(super) fn build(metadata: &Metadata) -> Result<Model, String> {
    let mut builder = Builder {
        order: metadata.order.unwrap_or(Order::Little),
        version: metadata.version,
        clocks: metadata.clocks.clone(),
        clock: None,
        slots: 0,
        classes: 0,
        used: HashSet::default(),
        roots: Vec::new(),
        frames: Vec::new(),
        scope: Scope::PacketHeader,
    };
    let mut packet_header =
        builder.root(Scope::PacketHeader, metadata.packet_header.as_ref(), "the packet header")?;
    let outer = builder.roots.clone();
    let mut streams = Vec::with_capacity(metadata.streams.len());
    let mut events = Vec::new();
    for stream in &metadata.streams {
        builder.roots.clone_from(&outer);
        let mut class = builder.stream(stream)?;
        let within = builder.roots.clone();
        for event in metadata.events.iter().filter(|event| event.stream == stream.id) {
            builder.roots.clone_from(&within);
            let of = format!("the event `{}`", event.name);
            let context = builder.root(Scope::EventContext, event.context.as_ref(), &of)?;
            let fields = builder.root(Scope::Fields, event.fields.as_ref(), &of)?;
            if class.events.insert(event.id, events.len()).is_some() {
                return Err(format!(
                    "two events of the stream {} have the id {}",
                    stream.id, event.id
                ));
            }
            events.push(EventClass { name: event.name.as_str().into(), context, fields });
        }
        class.clock = builder.clock;
        class.note_small();
        streams.push(class);
    }
    streams.sort_by_key(|stream| stream.id);
    let is_known = |id| streams.binary_search_by_key(&id, |stream: &StreamClass| stream.id).is_ok();
    if let Some(event) = metadata.events.iter().find(|event| !is_known(event.stream)) {
        return Err(format!(
            "the event `{}` is of the stream {}, which is not declared",
            event.name, event.stream
        ));
    }
    let classes = streams.iter_mut().flat_map(|stream| {
        [&mut stream.packet_context, &mut stream.event_header, &mut stream.event_context]
    });
    let classes =
        classes.chain(events.iter_mut().flat_map(|event| [&mut event.context, &mut event.fields]));
    let slots = builder.number_slots(classes.chain([&mut packet_header]).flatten());
    Ok(Model {
        uuid: metadata.uuid,
        environment: metadata.environment.clone(),
        packet_header,
        clocks: builder.clocks,
        streams,
        events,
        slots,
    })
}

/// Numbers the slots that somebody refers to, and takes the others away.
fn renumber(class: &mut Class, numbers: &HashMap<u32, u32>) {
    let number = |slot: &mut u32| *slot = numbers.get(slot).copied().unwrap_or(NO_SLOT);
    match class {
        Class::Int(int) => number(&mut int.slot),
        Class::Float { .. } => {}
        Class::Text(len) | Class::Blob(len, _) => {
            if let Len::Slot(slot) = len {
                number(slot);
            }
        }
        Class::Struct { fields, .. } => {
            fields.iter_mut().for_each(|field| renumber(&mut field.class, numbers));
        }
        Class::Array { element, len, .. } => {
            if let Len::Slot(slot) = len {
                number(slot);
            }
            renumber(element, numbers);
        }
        Class::Optional { class, slot, .. } => {
            number(slot);
            renumber(class, numbers);
        }
        Class::Variant { slot, choices } => {
            number(slot);
            choices.iter_mut().for_each(|choice| renumber(&mut choice.2, numbers));
        }
    }
}

/// The parts of a packet and of an event, in the order in which they are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    PacketHeader,
    PacketContext,
    EventHeader,
    StreamContext,
    EventContext,
    Fields,
}

/// How metadata of CTF 1.8 and 2 call the parts.
const SCOPES: &[(&[&str], Scope)] = &[
    (&["trace", "packet", "header"], Scope::PacketHeader),
    (&["stream", "packet", "context"], Scope::PacketContext),
    (&["stream", "event", "header"], Scope::EventHeader),
    (&["stream", "event", "context"], Scope::StreamContext),
    (&["event", "context"], Scope::EventContext),
    (&["event", "fields"], Scope::Fields),
    (&["packet-header"], Scope::PacketHeader),
    (&["packet-context"], Scope::PacketContext),
    (&["event-record-header"], Scope::EventHeader),
    (&["event-record-common-context"], Scope::StreamContext),
    (&["event-record-specific-context"], Scope::EventContext),
    (&["event-record-payload"], Scope::Fields),
];

/// What a path of CTF 2 calls the structure around the one that it begins in.
pub(super) const UP: &str = "^";

/// What may be referred to.
#[derive(Clone, Debug)]
enum Symbol {
    Int { slot: u32, names: Option<ValueNames> },
    Struct(Arc<Vec<(String, Symbol)>>),
    Other,
}

struct Builder {
    order: Order,
    version: u32,
    clocks: Vec<Clock>,
    /// The clock of the stream that is being built.
    clock: Option<usize>,
    slots: u32,
    classes: usize,
    used: HashSet<u32>,
    /// The parts that have been built.
    roots: Vec<(Scope, Symbol)>,
    /// The structures that are being built, the innermost last.
    frames: Vec<Vec<(String, Symbol)>>,
    scope: Scope,
}

impl Builder {
    fn root(
        &mut self,
        scope: Scope,
        class: Option<&Arc<Type>>,
        of: &str,
    ) -> Result<Option<Class>, String> {
        let Some(class) = class else { return Ok(None) };
        self.scope = scope;
        self.frames.clear();
        let (class, symbol) = self.class(class, "").map_err(|what| format!("{of}: {what}"))?;
        self.roots.push((scope, symbol));
        Ok(Some(class))
    }

    /// A class of streams without its events.
    fn stream(&mut self, stream: &ast::Stream) -> Result<StreamClass, String> {
        self.clock = stream.clock.as_ref().map(|name| self.clock_named(name)).transpose()?;
        let mut part = |scope, class: &Option<Arc<Type>>, what: &str| {
            self.root(scope, class.as_ref(), &format!("{what} of the stream {}", stream.id))
        };
        Ok(StreamClass {
            id: stream.id,
            packet_context: part(
                Scope::PacketContext,
                &stream.packet_context,
                "the packet context",
            )?,
            event_header: part(Scope::EventHeader, &stream.event_header, "the event header")?,
            event_context: part(Scope::StreamContext, &stream.event_context, "the event context")?,
            ..StreamClass::default()
        })
    }

    /// Numbers the slots that somebody refers to; how many there are.
    fn number_slots<'a>(&mut self, classes: impl Iterator<Item = &'a mut Class>) -> usize {
        let mut used: Vec<u32> = self.used.drain().collect();
        used.sort_unstable();
        let numbers = (0..).zip(&used).map(|(new, old)| (*old, new)).collect();
        classes.for_each(|class| renumber(class, &numbers));
        used.len()
    }

    fn clock_named(&self, name: &str) -> Result<usize, String> {
        let found = self.clocks.iter().position(|clock| clock.name == name);
        found.ok_or_else(|| format!("the clock `{name}` is not declared"))
    }

    fn class(&mut self, class: &Type, name: &str) -> Result<(Class, Symbol), String> {
        self.classes += 1;
        if self.classes > CLASSES {
            return Err(format!("more than {CLASSES} fields"));
        }
        match class {
            Type::Integer(integer) => {
                let int = self.integer(integer, name)?;
                let symbol = Symbol::Int { slot: int.slot, names: int.names.clone() };
                Ok((Class::Int(int), symbol))
            }
            Type::Float { size, align, order } => {
                let align = align.unwrap_or(1).max(1) as u32;
                let is_big = order.unwrap_or(self.order) == Order::Big;
                Ok((Class::Float { is_double: *size == 64, align, is_big }, Symbol::Other))
            }
            Type::Text(length) => Ok((Class::Text(self.length(length)?), Symbol::Other)),
            Type::Blob(length, roles) => {
                let role = roles.first().copied();
                Ok((Class::Blob(self.length(length)?, role), Symbol::Other))
            }
            Type::Struct { fields, align } => self.structure(fields, *align),
            Type::Array { element, length, align } => self.array(element, length, *align, name),
            Type::Variant { selector, choices } => self.variant(selector.as_deref(), choices, name),
            Type::Optional { selector, ranges, class } => {
                let (slot, _) = self.selector(selector)?;
                let (class, _) = self.class(class, name)?;
                let ranges = match ranges {
                    Some(ranges) => ranges.clone(),
                    // A boolean that is true.
                    None => vec![(i128::MIN, -1), (1, i128::MAX)],
                };
                Ok((Class::Optional { slot, ranges, class: Box::new(class) }, Symbol::Other))
            }
        }
    }

    fn structure(
        &mut self,
        fields: &[(String, Arc<Type>)],
        align: u64,
    ) -> Result<(Class, Symbol), String> {
        self.frames.push(Vec::new());
        let mut align = align.max(1) as u32;
        let mut built = Vec::with_capacity(fields.len());
        for (name, class) in fields {
            let (class, symbol) = self.class(class, name)?;
            align = align.max(class.align());
            let shown = if self.version == 1 { shown_name(name) } else { name };
            built.push(Field { name: shown.into(), class });
            if let Some(frame) = self.frames.last_mut() {
                frame.push((name.clone(), symbol));
            }
        }
        let symbols = self.frames.pop().unwrap_or_default();
        Ok((Class::Struct { fields: built, align }, Symbol::Struct(Arc::new(symbols))))
    }

    fn array(
        &mut self,
        element: &Type,
        length: &Length,
        align: u64,
        name: &str,
    ) -> Result<(Class, Symbol), String> {
        let len = self.length(length)?;
        if let Type::Integer(int) = element
            && self.version == 1
            && int.size == 8
            && int.is_text
            && int.align.unwrap_or(8) == 8
            && int.names.is_none()
        {
            return Ok((Class::Text(len), Symbol::Other));
        }
        if name == "uuid" && self.scope == Scope::PacketHeader && matches!(len, Len::Fixed(16)) {
            return Ok((Class::Blob(len, Some(Role::Uuid)), Symbol::Other));
        }
        let (element, _) = self.class(element, "")?;
        let align = element.align().max(align as u32).max(1);
        Ok((Class::Array { element: Box::new(element), len, align }, Symbol::Other))
    }

    fn variant(
        &mut self,
        selector: Option<&[String]>,
        choices: &[ast::Choice],
        name: &str,
    ) -> Result<(Class, Symbol), String> {
        let selector = selector.ok_or("a variant without a selector")?;
        let (slot, names) = self.selector(selector)?;
        let mut built = Vec::with_capacity(choices.len());
        let mut symbols = Vec::new();
        for choice in choices {
            let ranges = match &choice.ranges {
                Some(ranges) => ranges.clone(),
                None => {
                    let names = names.as_ref().ok_or_else(|| {
                        format!(
                            "`{}`, which selects a variant, is no enumeration",
                            selector.join(".")
                        )
                    })?;
                    let same = |a: &str| shown_name(a) == shown_name(&choice.name);
                    let exact = names.iter().find(|(name, _)| **name == *choice.name);
                    let found = exact.or_else(|| names.iter().find(|(name, _)| same(name)));
                    found.map(|(_, ranges)| ranges.clone()).unwrap_or_default()
                }
            };
            let (class, symbol) = self.class(&choice.class, name)?;
            let shown = if self.version == 1 { shown_name(&choice.name) } else { &choice.name };
            built.push((shown.into(), ranges, class));
            symbols.push((choice.name.clone(), symbol));
        }
        let symbol = Symbol::Struct(Arc::new(symbols));
        Ok((Class::Variant { slot, choices: built }, symbol))
    }

    fn length(&mut self, length: &Length) -> Result<Len, String> {
        Ok(match length {
            Length::Fixed(n) => Len::Fixed(*n),
            Length::Of(path) => Len::Slot(self.selector(path)?.0),
            Length::Terminated => Len::Terminated,
        })
    }

    fn integer(&mut self, integer: &Integer, name: &str) -> Result<Int, String> {
        let by_name = || match self.scope {
            Scope::PacketHeader => match name {
                "magic" => Some(Role::Magic),
                "stream_id" => Some(Role::StreamClass),
                "stream_instance_id" => Some(Role::StreamInstance),
                _ => None,
            },
            Scope::PacketContext => match name {
                "packet_size" => Some(Role::PacketSize),
                "content_size" => Some(Role::ContentSize),
                "timestamp_begin" => Some(Role::Begin),
                "timestamp_end" => Some(Role::End),
                "events_discarded" => Some(Role::Discarded),
                "packet_seq_num" => Some(Role::Sequence),
                _ => None,
            },
            Scope::EventHeader => match name {
                "id" => Some(Role::EventClass),
                "timestamp" => Some(Role::Timestamp),
                _ => None,
            },
            Scope::StreamContext | Scope::EventContext | Scope::Fields => None,
        };
        let is_outermost = self.frames.len() == 1 || self.scope == Scope::EventHeader;
        let mut role = match self.version {
            1 if is_outermost => by_name(),
            1 => None,
            _ => integer.roles.first().copied(),
        };
        if role == Some(Role::Timestamp) && self.scope == Scope::PacketContext {
            role = Some(Role::Begin);
        }
        if role.is_none() && name == "cpu_id" && self.scope == Scope::PacketContext {
            role = Some(Role::Cpu);
        }
        let is_timed = matches!(role, Some(Role::Begin | Role::End | Role::Timestamp));
        let mut is_time = false;
        if let Some(clock) = &integer.clock {
            let clock = self.clock_named(clock)?;
            is_time = *self.clock.get_or_insert(clock) == clock;
        } else if is_timed {
            is_time = self.some_clock();
        }
        // When a packet ended is no time of an event.
        is_time &= role != Some(Role::End);
        let names = integer.names.as_ref().map(|names| {
            Arc::new(
                names.iter().map(|(name, ranges)| (name.as_str().into(), ranges.clone())).collect(),
            )
        });
        self.slots += 1;
        let whole = integer.size.is_multiple_of(8);
        Ok(Int {
            size: integer.size as u32,
            align: integer.align.unwrap_or(if whole { 8 } else { 1 }).max(1) as u32,
            signed: integer.signed,
            base: integer.base,
            is_big: integer.order.unwrap_or(self.order) == Order::Big,
            is_variable: integer.is_variable,
            slot: self.slots - 1,
            is_special: role.is_some() || is_time,
            role,
            is_time,
            names,
        })
    }

    /// The clock of a time that names none: that of its stream, else the only one; without any, cycles are
    /// nanoseconds.
    fn some_clock(&mut self) -> bool {
        if self.clock.is_none() && self.version == 1 {
            if self.clocks.is_empty() {
                let frequency = 1_000_000_000;
                self.clocks.push(Clock { name: "default".into(), frequency, ..Clock::default() });
            }
            if self.clocks.len() == 1 {
                self.clock = Some(0);
            }
        }
        self.clock.is_some()
    }

    /// The slot of the integer that a path leads to, and the names of its values.
    fn selector(&mut self, path: &[String]) -> Result<(u32, Option<ValueNames>), String> {
        let shown = || path.join(".").replace(UP, "..");
        match self.find(path) {
            Some(Symbol::Int { slot, names }) => {
                self.used.insert(slot);
                Ok((slot, names))
            }
            Some(_) => Err(format!("`{}` is referred to, and is no integer", shown())),
            None => Err(format!("`{}` is referred to, and does not come before", shown())),
        }
    }

    fn find(&self, path: &[String]) -> Option<Symbol> {
        for (prefix, scope) in SCOPES {
            let is_it = path.len() > prefix.len() && path.iter().zip(*prefix).all(|(a, b)| a == b);
            if is_it {
                let rest = &path[prefix.len()..];
                if *scope == self.scope
                    && let Some(frame) = self.frames.first()
                    && let Some(found) = self.descend(frame, rest, 1)
                {
                    return Some(found);
                }
                let root = self.roots.iter().rev().find(|(root, _)| root == scope);
                if let Some((_, Symbol::Struct(fields))) = root {
                    return self.descend(fields, rest, usize::MAX);
                }
            }
        }
        let ups = path.iter().take_while(|part| *part == UP).count();
        let depth = self.frames.len().checked_sub(ups)?;
        let path = &path[ups..];
        for (depth, frame) in self.frames[..depth].iter().enumerate().rev() {
            if let Some(found) = self.descend(frame, path, depth + 1) {
                return Some(found);
            }
        }
        self.roots.iter().rev().find_map(|(_, root)| match root {
            Symbol::Struct(fields) => self.descend(fields, path, usize::MAX),
            _ => None,
        })
    }

    /// What a path leads to from within a structure. One that is still being built holds that of the frame `inner`
    /// as its next field, which has no name yet: CTF 2 gives paths from the outermost structure.
    fn descend(
        &self,
        fields: &[(String, Symbol)],
        path: &[String],
        inner: usize,
    ) -> Option<Symbol> {
        let (first, rest) = path.split_first()?;
        let Some((_, symbol)) = fields.iter().rev().find(|(name, _)| name == first) else {
            if rest.is_empty() {
                return None;
            }
            return self.descend(self.frames.get(inner)?, rest, inner + 1);
        };
        match symbol {
            symbol if rest.is_empty() => Some(symbol.clone()),
            Symbol::Struct(fields) => self.descend(fields, rest, usize::MAX),
            _ => None,
        }
    }
}

/// A name without the underscore that tracers put before names so that they are no keywords.
fn shown_name(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}
