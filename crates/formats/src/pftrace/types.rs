//! Which event and which field a number stands for.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_schema::Name;

use super::wire::fields;

/// The events that Perfetto has types for.
const KNOWN: &str = include_str!("events.txt");
/// Fields of an event at most.
const FIELDS: usize = 256;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// A text.
    Text,
    /// A number without a sign.
    Unsigned,
    /// A number with a sign.
    Signed,
}

/// A type of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// `system:name`, or the name alone.
    pub name: Name,
    /// The number, name and content of each field.
    pub fields: Vec<(u32, Name, Holds)>,
}

/// The events that Perfetto has types for, by their numbers.
pub(super) fn known() -> HashMap<u32, Kind> {
    let mut all = HashMap::new();
    for line in KNOWN.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split(' ');
        let number = words.next().and_then(|word| word.parse().ok());
        let (Some(number), Some(name)) = (number, words.next()) else { continue };
        let fields = words.filter_map(|word| {
            let mut parts = word.split(':');
            let (number, name) = (parts.next()?.parse().ok()?, parts.next()?);
            let holds = match parts.next()? {
                "s" => Holds::Text,
                "u" => Holds::Unsigned,
                _ => Holds::Signed,
            };
            Some((number, name.into(), holds))
        });
        all.insert(number, Kind { name: name.into(), fields: fields.collect() });
    }
    all
}

/// A type of event that a trace describes itself: a `DescriptorProto` (google/protobuf/descriptor.proto).
pub(super) fn described(descriptor: &[u8]) -> Option<Kind> {
    let text = |bytes: &[u8]| Name::from(&*String::from_utf8_lossy(bytes));
    let (mut name, mut all) = (None, Vec::new());
    for field in fields(descriptor) {
        match field.ok()? {
            (1, value) => name = value.bytes().map(text),
            (2, value) if all.len() < FIELDS => {
                let (mut number, mut called, mut holds) = (None, None, Holds::Unsigned);
                for part in fields(value.bytes()?) {
                    match part.ok()? {
                        (1, value) => called = value.bytes().map(text),
                        (3, value) => number = value.number().and_then(|n| u32::try_from(n).ok()),
                        // FieldDescriptorProto.Type.
                        (5, value) => {
                            holds = match value.number()? {
                                9 | 12 => Holds::Text,
                                3 | 5 | 15 | 16 | 17 | 18 => Holds::Signed,
                                _ => Holds::Unsigned,
                            }
                        }
                        _ => {}
                    }
                }
                all.push((number?, called?, holds));
            }
            _ => {}
        }
    }
    Some(Kind { name: name?, fields: all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_is_an_event_with_fields() {
        let lines = KNOWN.lines().filter(|line| !line.starts_with('#')).count();
        let known = known();
        assert_eq!(known.len(), lines);
        for kind in known.values() {
            assert!(kind.name.contains(':'), "{kind:?}");
            let mut numbers: Vec<u32> = kind.fields.iter().map(|field| field.0).collect();
            numbers.dedup();
            assert_eq!(numbers.len(), kind.fields.len(), "{kind:?}");
        }
        let switch = &known[&4];
        assert_eq!(&*switch.name, "sched:sched_switch");
        assert_eq!(switch.fields[3], (4, "prev_state".into(), Holds::Signed));
    }
}
