//! The metadata of CTF 2: a JSON text sequence (RFC 7464) of fragments (CTF2-SPEC-2.0).
//!
//! # What fools it
//! Tracers and test collections wrote metadata before the format was finished: enumerations with types of their own,
//! clocks that are called by name instead of by id, locations of fields as arrays. These are read, too.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::ast::{Choice, Clock, Event, Fault, Integer, Length, Metadata, Order, Ranges, Role};
use super::ast::{Stream, Type, uuid};
use super::build::UP;

/// What records of a JSON text sequence begin with.
const SEPARATOR: u8 = 0x1e;

type Object = Map<String, Value>;
type Result<T> = std::result::Result<T, String>;

/// Reads metadata.
///
/// # Errors
/// The text is not such a sequence, or a fragment lacks something or says what cannot be.
pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Metadata, Fault> {
    let mut reader = Reader {
        metadata: Metadata { version: 2, ..Metadata::default() },
        aliases: HashMap::new(),
    };
    let mut at = 0;
    for text in bytes.split(|b| *b == SEPARATOR) {
        if !text.trim_ascii().is_empty() {
            let fault = |what: String| Fault { at, what };
            let fragment: Value = serde_json::from_slice(text).map_err(|e| {
                fault(format!(
                    "no JSON, at line {} column {} of this fragment",
                    e.line(),
                    e.column()
                ))
            })?;
            let fragment =
                fragment.as_object().ok_or_else(|| fault("a fragment that is no object".into()))?;
            reader.fragment(fragment).map_err(fault)?;
        }
        at += text.len() + 1;
    }
    let metadata = reader.metadata;
    if metadata.streams.is_empty() {
        return Err(Fault { at: bytes.len(), what: "there is no class of streams".into() });
    }
    Ok(metadata)
}

struct Reader {
    metadata: Metadata,
    /// Field classes that have names.
    aliases: HashMap<String, Arc<Type>>,
}

/// The number of a property that has to be one.
fn number(object: &Object, name: &str) -> Result<Option<u64>> {
    match object.get(name) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| format!("`{name}` is no number")),
    }
}

fn needed(object: &Object, name: &str) -> Result<u64> {
    number(object, name)?.ok_or_else(|| format!("`{name}` is missing"))
}

fn text<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str)
}

fn power(object: &Object, name: &str) -> Result<Option<u64>> {
    match number(object, name)? {
        Some(n) if !n.is_power_of_two() || n > 1 << 20 => Err(format!("an alignment of {n} bits")),
        align => Ok(align),
    }
}

/// A UUID as 16 numbers or as text.
fn uuid_of(value: Option<&Value>) -> Option<[u8; 16]> {
    match value? {
        Value::Array(bytes) => {
            let bytes: Option<Vec<u8>> =
                bytes.iter().map(|b| b.as_u64().and_then(|b| u8::try_from(b).ok())).collect();
            bytes?.try_into().ok()
        }
        Value::String(text) => uuid(text),
        _ => None,
    }
}

impl Reader {
    fn fragment(&mut self, fragment: &Object) -> Result<()> {
        match text(fragment, "type") {
            Some("preamble") => {
                if needed(fragment, "version")? != 2 {
                    return Err("metadata of another version than 2".into());
                }
                self.metadata.uuid = uuid_of(fragment.get("uuid"));
            }
            Some("field-class-alias") => {
                let name = text(fragment, "name").ok_or("`name` is missing")?.to_owned();
                let class =
                    self.member(fragment, "field-class")?.ok_or("`field-class` is missing")?;
                self.aliases.insert(name, class);
            }
            Some("trace-class") => {
                self.metadata.packet_header = self.member(fragment, "packet-header-field-class")?;
                if let Some(Value::Object(facts)) = fragment.get("environment") {
                    let shown = |value: &Value| match value {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    };
                    let facts = facts.iter().map(|(name, value)| (name.clone(), shown(value)));
                    self.metadata.environment.extend(facts);
                }
            }
            Some("clock-class") => self.clock(fragment)?,
            Some("data-stream-class") => {
                let id = number(fragment, "id")?.unwrap_or(0);
                let clock = text(fragment, "default-clock-class-id")
                    .or(text(fragment, "default-clock-class-name"));
                let stream = Stream {
                    id,
                    packet_context: self.member(fragment, "packet-context-field-class")?,
                    event_header: self.member(fragment, "event-record-header-field-class")?,
                    event_context: self
                        .member(fragment, "event-record-common-context-field-class")?,
                    clock: clock.map(str::to_owned),
                };
                if self.metadata.streams.iter().any(|known| known.id == id) {
                    return Err(format!("the class of streams {id} is declared twice"));
                }
                self.metadata.streams.push(stream);
            }
            Some("event-record-class") => {
                let event = Event {
                    id: number(fragment, "id")?.unwrap_or(0),
                    stream: number(fragment, "data-stream-class-id")?.unwrap_or(0),
                    name: text(fragment, "name").unwrap_or_default().to_owned(),
                    context: self.member(fragment, "specific-context-field-class")?,
                    fields: self.member(fragment, "payload-field-class")?,
                };
                self.metadata.events.push(event);
            }
            Some(other) => return Err(format!("a fragment of the unknown type `{other}`")),
            None => return Err("a fragment without `type`".into()),
        }
        Ok(())
    }

    fn clock(&mut self, fragment: &Object) -> Result<()> {
        let name = text(fragment, "id").or(text(fragment, "name")).unwrap_or_default().to_owned();
        let frequency = needed(fragment, "frequency")?;
        if frequency == 0 {
            return Err("a clock of frequency 0".into());
        }
        let offset = |name: &str| {
            let offset = fragment.get("offset-from-origin").and_then(|offset| offset.get(name));
            offset.and_then(Value::as_i64).unwrap_or(0)
        };
        self.metadata.clocks.push(Clock {
            name,
            frequency,
            offset_seconds: offset("seconds"),
            offset_cycles: offset("cycles"),
            uuid: uuid_of(fragment.get("uuid").or(fragment.get("uid"))),
        });
        Ok(())
    }

    /// The field class of a property, if it is there.
    fn member(&self, object: &Object, name: &str) -> Result<Option<Arc<Type>>> {
        match object.get(name) {
            None => Ok(None),
            Some(Value::String(alias)) => {
                let class = self.aliases.get(alias).cloned();
                class.map(Some).ok_or_else(|| format!("the field class `{alias}` is not declared"))
            }
            Some(Value::Object(class)) => Ok(Some(Arc::new(self.class(class)?))),
            Some(_) => Err(format!("`{name}` is no field class")),
        }
    }

    fn inner(&self, object: &Object, name: &str) -> Result<Arc<Type>> {
        self.member(object, name)?.ok_or_else(|| format!("`{name}` is missing"))
    }

    fn class(&self, class: &Object) -> Result<Type> {
        let kind = text(class, "type").ok_or("a field class without `type`")?;
        let encoding = text(class, "encoding").unwrap_or("utf-8");
        if kind.ends_with("string") && encoding != "utf-8" {
            return Err(format!("a text in `{encoding}`; utf-8 is read"));
        }
        Ok(match kind {
            "null-terminated-string" => Type::Text(Length::Terminated),
            "static-length-string" => Type::Text(Length::Fixed(needed(class, "length")?)),
            "dynamic-length-string" => Type::Text(length_of(class)?),
            "static-length-blob" => {
                Type::Blob(Length::Fixed(needed(class, "length")?), roles(class))
            }
            "dynamic-length-blob" => Type::Blob(length_of(class)?, roles(class)),
            "structure" => {
                let mut fields = Vec::new();
                for member in array(class, "member-classes") {
                    let member = member.as_object().ok_or("a member that is no object")?;
                    let name = text(member, "name").ok_or("a member without `name`")?;
                    fields.push((name.to_owned(), self.inner(member, "field-class")?));
                }
                let align = power(class, "minimum-alignment")?.unwrap_or(1);
                Type::Struct { fields, align }
            }
            "static-length-array" | "dynamic-length-array" => {
                let length = match kind {
                    "static-length-array" => Length::Fixed(needed(class, "length")?),
                    _ => length_of(class)?,
                };
                let align = power(class, "minimum-alignment")?.unwrap_or(1);
                Type::Array { element: self.inner(class, "element-field-class")?, length, align }
            }
            "optional" => Type::Optional {
                selector: location(class, "selector-field-location")?,
                ranges: ranges(class.get("selector-field-ranges"))?,
                class: self.inner(class, "field-class")?,
            },
            "variant" => {
                let mut choices = Vec::new();
                for option in array(class, "options") {
                    let option = option.as_object().ok_or("an option that is no object")?;
                    let found = ranges(option.get("selector-field-ranges"))?;
                    choices.push(Choice {
                        name: text(option, "name").unwrap_or_default().to_owned(),
                        ranges: Some(found.ok_or("an option without `selector-field-ranges`")?),
                        class: self.inner(option, "field-class")?,
                    });
                }
                let selector = Some(location(class, "selector-field-location")?);
                Type::Variant { selector, choices }
            }
            "fixed-length-floating-point-number" => {
                let size = needed(class, "length")?;
                if size != 32 && size != 64 {
                    return Err(format!(
                        "a floating-point number of {size} bits; 32 and 64 are read"
                    ));
                }
                let align = Some(power(class, "alignment")?.unwrap_or(1));
                Type::Float { size, align, order: Some(order(class)?) }
            }
            _ => Type::Integer(integer(kind, class)?),
        })
    }
}

fn integer(kind: &str, class: &Object) -> Result<Integer> {
    let is_variable = kind.starts_with("variable-length-");
    let kind_of = kind.strip_prefix("fixed-length-").or(kind.strip_prefix("variable-length-"));
    let (signed, base) = match kind_of {
        Some("unsigned-integer" | "unsigned-enumeration") => (false, 10),
        Some("signed-integer" | "signed-enumeration") => (true, 10),
        Some("boolean") if !is_variable => (false, 10),
        Some("bit-array" | "bit-map") if !is_variable => (false, 16),
        _ => return Err(format!("a field class of the unknown type `{kind}`")),
    };
    let size = if is_variable { 64 } else { needed(class, "length")? };
    if !(1..=64).contains(&size) {
        return Err(format!("an integer of {size} bits; 1 to 64 are read"));
    }
    let names = match class.get("mappings") {
        Some(Value::Object(mappings)) => {
            let mut names = Vec::new();
            for (name, found) in mappings {
                names.push((name.clone(), ranges(Some(found))?.unwrap_or_default()));
            }
            Some(names)
        }
        _ => kind.ends_with("enumeration").then(Vec::new),
    };
    let align = if is_variable { 8 } else { power(class, "alignment")?.unwrap_or(1) };
    Ok(Integer {
        size,
        align: Some(align),
        signed,
        base: number(class, "preferred-display-base")?.unwrap_or(base) as u32,
        order: if is_variable { Some(Order::Little) } else { Some(order(class)?) },
        roles: roles(class),
        names,
        is_variable,
        ..Integer::default()
    })
}

fn array<'a>(object: &'a Object, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn order(class: &Object) -> Result<Order> {
    match text(class, "byte-order") {
        Some("little-endian") => Ok(Order::Little),
        Some("big-endian") => Ok(Order::Big),
        Some(other) => Err(format!("`{other}` is no byte order")),
        None => Err("`byte-order` is missing".into()),
    }
}

fn length_of(class: &Object) -> Result<Length> {
    location(class, "length-field-location").map(Length::Of)
}

/// Where another field is: `{"origin": "event-record-payload", "path": ["a", "b"]}`, or the same as one array.
fn location(class: &Object, name: &str) -> Result<Vec<String>> {
    let value = class.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
    let (origin, path) = match value {
        Value::Array(path) => (None, Some(path)),
        Value::Object(location) => {
            (text(location, "origin"), location.get("path").and_then(Value::as_array))
        }
        _ => (None, None),
    };
    let path = path.ok_or_else(|| format!("`{name}` is no location"))?;
    let parts = path.iter().map(|part| match part {
        Value::Null => Some(UP.to_owned()),
        Value::String(part) => Some(part.clone()),
        _ => None,
    });
    let found: Option<Vec<String>> =
        origin.map(|o| Some(o.to_owned())).into_iter().chain(parts).collect();
    found.filter(|path| !path.is_empty()).ok_or_else(|| format!("`{name}` is no location"))
}

/// Ranges of values: pairs of a first and a last one, or single values.
fn ranges(value: Option<&Value>) -> Result<Option<Ranges>> {
    let Some(value) = value else { return Ok(None) };
    let wide =
        |value: &Value| value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let range = |value: &Value| match value {
        Value::Array(ends) => match ends.as_slice() {
            [from, to] => Some((wide(from)?, wide(to)?)),
            _ => None,
        },
        single => wide(single).map(|n| (n, n)),
    };
    let found: Option<Ranges> = value.as_array().and_then(|all| all.iter().map(range).collect());
    found.map(Some).ok_or_else(|| "ranges that are no pairs of numbers".into())
}

fn roles(class: &Object) -> Vec<Role> {
    let role = |role: &Value| {
        Some(match role.as_str()? {
            "packet-magic-number" => Role::Magic,
            "metadata-stream-uuid" | "trace-class-uuid" => Role::Uuid,
            "data-stream-class-id" => Role::StreamClass,
            "data-stream-id" => Role::StreamInstance,
            "packet-total-length" => Role::PacketSize,
            "packet-content-length" => Role::ContentSize,
            "packet-end-default-clock-timestamp" => Role::End,
            "discarded-event-record-counter-snapshot" => Role::Discarded,
            "packet-sequence-number" => Role::Sequence,
            "event-record-class-id" => Role::EventClass,
            "default-clock-timestamp" => Role::Timestamp,
            _ => return None,
        })
    };
    array(class, "roles").iter().filter_map(role).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_say_whose_they_are_and_how_integers_are_laid_out_and_shown() {
        let text = r#"
{"type": "preamble", "version": 2, "uuid": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]}
{"type": "trace-class", "environment": {"hostname": "box", "cpus": 4}}
{"type": "clock-class", "id": "c", "frequency": 1000, "offset-from-origin": {"seconds": 2, "cycles": 5},
    "uuid": "00010203-0405-0607-0809-0a0b0c0d0eff"}
{"type": "data-stream-class", "id": 3, "default-clock-class-id": "c", "packet-context-field-class":
    {"type": "structure", "member-classes": [
        {"name": "a", "field-class": {"type": "fixed-length-signed-integer", "length": 12, "byte-order": "big-endian",
            "alignment": 16, "preferred-display-base": 8}},
        {"name": "b", "field-class": {"type": "fixed-length-bit-array", "length": 7, "byte-order": "little-endian"}},
        {"name": "c", "field-class": {"type": "variable-length-unsigned-integer"}}]}}
{"type": "event-record-class", "id": 9, "data-stream-class-id": 3, "name": "e"}"#;
        let metadata = parse(text.replace("\n{", "\n\u{1e}{").as_bytes()).unwrap();
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!((metadata.version, metadata.uuid), (2, Some(uuid)));
        assert_eq!(metadata.environment["hostname"], "box");
        assert_eq!(metadata.environment["cpus"], "4");
        let clock = &metadata.clocks[0];
        assert_eq!((&*clock.name, clock.frequency, clock.uuid), ("c", 1000, Some(uuid)));
        assert_eq!((clock.offset_seconds, clock.offset_cycles), (2, 5));
        let stream = &metadata.streams[0];
        assert_eq!((stream.id, stream.clock.as_deref()), (3, Some("c")));
        let event = &metadata.events[0];
        assert_eq!((event.id, event.stream, &*event.name), (9, 3, "e"));
        let Some(Type::Struct { fields, .. }) = stream.packet_context.as_deref() else { panic!() };
        let integers = fields.iter().map(|(_, class)| match &**class {
            Type::Integer(of) => (of.size, of.align, of.signed, of.base, of.order, of.is_variable),
            other => panic!("{other:?}"),
        });
        let expected = [
            (12, Some(16), true, 8, Some(Order::Big), false),
            (7, Some(1), false, 16, Some(Order::Little), false),
            (64, Some(8), false, 10, Some(Order::Little), true),
        ];
        assert_eq!(integers.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn metadata_of_another_version_and_a_class_of_streams_that_comes_twice_are_refused() {
        let refused = |text: &str| parse(text.as_bytes()).err().map(|fault| fault.what);
        let other = refused("\u{1e}{\"type\": \"preamble\", \"version\": 3}");
        assert_eq!(other.as_deref(), Some("metadata of another version than 2"));
        let stream = "\u{1e}{\"type\": \"data-stream-class\", \"id\": 3}";
        let twice = refused(&[stream, stream].concat());
        assert_eq!(twice.as_deref(), Some("the class of streams 3 is declared twice"));
        assert_eq!(refused("").as_deref(), Some("there is no class of streams"));
    }
}
