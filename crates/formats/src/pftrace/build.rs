//! Messages for tests: from the text form of protocol buffers, with the numbers of `events.txt`, and by hand.

use std::iter::Peekable;

use super::types::{Kind, known};

/// Adds a number of variable length.
pub(super) fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Adds a field that is a number.
pub(super) fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field) << 3);
    varint(out, value);
}

/// Adds a field with a length: a text, a message.
pub(super) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    varint(out, u64::from(field) << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Which message the text is in.
#[derive(Clone, Copy)]
enum Place<'a> {
    Trace,
    Packet,
    Bundle,
    Event,
    Fields(&'a Kind),
}

/// A trace from its text form.
///
/// # Panics
/// It has a field that is not known here.
pub(super) fn from_text(text: &str) -> Vec<u8> {
    let known = known();
    let kinds: Vec<(&u32, &Kind)> = known.iter().collect();
    let text = text.replace(':', " : ").replace('{', " { ").replace('}', " } ");
    let mut out = Vec::new();
    message(&mut words(&text).into_iter().peekable(), Place::Trace, &kinds, &mut out);
    out
}

/// Words and quoted texts, in which a colon was put apart as well.
fn words(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or("")) {
        match line.split_once('"') {
            Some((before, rest)) => {
                out.extend(before.split_whitespace().map(str::to_owned));
                let text = rest.rsplit_once('"').map_or(rest, |parts| parts.0);
                out.push(format!("\"{}", text.replace(" : ", ":")));
            }
            None => out.extend(line.split_whitespace().map(str::to_owned)),
        }
    }
    out
}

fn message(
    words: &mut Peekable<impl Iterator<Item = String>>,
    place: Place<'_>,
    kinds: &[(&u32, &Kind)],
    out: &mut Vec<u8>,
) {
    while let Some(name) = words.next().filter(|word| word != "}") {
        let (field, inner) = field(place, &name, kinds);
        if words.peek().is_some_and(|word| word == "{") {
            words.next();
            let mut body = Vec::new();
            message(words, inner, kinds, &mut body);
            bytes(out, field, &body);
        } else {
            assert_eq!(words.next().as_deref(), Some(":"), "after {name}");
            let value = words.next().unwrap();
            match value.strip_prefix('"') {
                Some(text) => bytes(out, field, text.as_bytes()),
                None => number(out, field, value.parse::<i128>().unwrap() as u64),
            }
        }
    }
}

fn field<'a>(place: Place<'a>, name: &str, kinds: &[(&u32, &'a Kind)]) -> (u32, Place<'a>) {
    match (place, name) {
        (Place::Trace, "packet") => (1, Place::Packet),
        (Place::Packet, "ftrace_events") => (1, Place::Bundle),
        (Place::Packet, "trusted_uid") => (3, place),
        (Place::Packet, "trusted_packet_sequence_id") => (10, place),
        (Place::Packet, "trusted_pid") => (79, place),
        (Place::Bundle, "cpu") => (1, place),
        (Place::Bundle, "event") => (2, Place::Event),
        (Place::Bundle, "previous_bundle_end_timestamp") => (10, place),
        (Place::Event, "timestamp") => (1, place),
        (Place::Event, "pid") => (2, place),
        (Place::Event, name) => {
            let of = |kind: &&(&u32, &Kind)| kind.1.name.rsplit(':').next() == Some(name);
            let (number, kind) = kinds.iter().find(of).unwrap_or_else(|| panic!("event {name}"));
            (**number, Place::Fields(kind))
        }
        (Place::Fields(kind), name) => {
            let field = kind.fields.iter().find(|field| &*field.1 == name);
            (field.unwrap_or_else(|| panic!("{name} of {}", kind.name)).0, place)
        }
        _ => panic!("the field {name}"),
    }
}
