//! The kernel's own descriptions of its events: the `format` files below `events/` in tracefs, which trace-cmd and perf
//! keep in their files; and the values of an event by them.
//!
//! # How
//! A line of a field says its declaration in C, where it lies, how many bytes it takes and whether it has a sign. What
//! is an array, a text, or bytes elsewhere in the event (`__data_loc`, `__rel_loc`) is told by the declaration. The
//! `print fmt` is not read: values are those of the fields.
//!
//! # What fools it
//! A pointer to a text is the address that it had in the kernel. Arrays of `char` are texts up to their first zero
//! byte; all others are lists of numbers.

use std::io::Write as _;

use gpuwhy_schema::Name;

use crate::event::{RawEvent, Value};

/// Fields of one event at most.
const FIELDS: usize = 4096;

/// What a field's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Integer {
        signed: bool,
    },
    /// Up to the first zero byte; of size 0, up to the end of the event.
    Text,
    /// Of size 0, up to the end of the event.
    Numbers {
        element: usize,
        signed: bool,
    },
    /// Four bytes that say where and how many.
    Elsewhere {
        is_text: bool,
        element: usize,
        signed: bool,
        is_relative: bool,
    },
}

/// A field of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// As the kernel calls it.
    pub name: Name,
    /// The byte of the event that it begins at.
    pub offset: usize,
    /// In bytes.
    pub size: usize,
    shape: Shape,
}

/// How numbers are written on the machine that was traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The most significant byte comes first.
    pub is_big: bool,
    /// Bytes of a `long`, and of a pointer.
    pub long: usize,
}

/// A type of event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// The number that its events begin with.
    pub id: u64,
    /// Without its system.
    pub name: String,
    /// Those that all events have.
    pub common: Vec<Field>,
    /// Its own.
    pub fields: Vec<Field>,
}

impl Machine {
    /// An unsigned integer of up to eight bytes.
    #[inline]
    pub fn unsigned(self, bytes: &[u8]) -> u64 {
        // Nearly all are of these sizes, which need no copy.
        match *bytes {
            [byte] => u64::from(byte),
            [a, b] if self.is_big => u64::from(u16::from_be_bytes([a, b])),
            [a, b] => u64::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] if self.is_big => u64::from(u32::from_be_bytes([a, b, c, d])),
            [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] if self.is_big => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => self.odd(bytes),
        }
    }

    /// The same of another number of bytes.
    fn odd(self, bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        let count = bytes.len().min(8);
        if self.is_big {
            word[8 - count..].copy_from_slice(&bytes[..count]);
            u64::from_be_bytes(word)
        } else {
            word[..count].copy_from_slice(&bytes[..count]);
            u64::from_le_bytes(word)
        }
    }

    fn value(self, bytes: &[u8], signed: bool) -> Value {
        let bits = self.unsigned(bytes);
        let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
        match signed {
            true => Value::Signed((bits << unused) as i64 >> unused),
            false => Value::Unsigned(bits),
        }
    }
}

impl Format {
    /// Reads the text of a `format` file.
    ///
    /// # Errors
    /// What is wrong, with the line.
    pub fn parse(text: &str, machine: Machine) -> Result<Format, String> {
        let mut format = Format::default();
        let mut id = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("name:") {
                name.trim().clone_into(&mut format.name);
            } else if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if line.starts_with("print fmt:") {
                break;
            } else if line.starts_with("field") {
                let field = Field::parse(line, machine)?;
                let is_common = field.name.starts_with("common_");
                let fields = if is_common { &mut format.common } else { &mut format.fields };
                fields.push(field);
                if fields.len() > FIELDS {
                    return Err(format!("an event of more than {FIELDS} fields"));
                }
            }
        }
        format.id = id.ok_or("a format without an ID")?;
        if format.name.is_empty() {
            return Err("a format without a name".into());
        }
        Ok(format)
    }

    /// The field of this name that all events have.
    pub fn common(&self, name: &str) -> Option<&Field> {
        self.common.iter().find(|field| &*field.name == name)
    }

    /// How many bytes its events take; `None` where that is not the same for all.
    pub fn length(&self) -> Option<usize> {
        let all = self.common.iter().chain(&self.fields);
        all.map(|field| match field.shape {
            Shape::Elsewhere { .. } => None,
            _ if field.size == 0 => None,
            _ => Some(field.offset + field.size),
        })
        .try_fold(0, |length, end| Some(length.max(end?)))
    }

    /// Adds the values of an event's fields. One that does not lie within the event is absent; how many there are
    /// such is returned.
    pub fn values(&self, record: &[u8], machine: Machine, event: &mut RawEvent) -> u64 {
        let mut outside = 0;
        for field in &self.fields {
            if !field.add(record, machine, event) {
                event.values.push(Value::Absent);
                outside += 1;
            }
        }
        outside
    }
}

impl Field {
    /// Reads `field:char comm[16]; offset:8; size:16; signed:0;`.
    ///
    /// # Errors
    /// The line is not of this form.
    pub fn parse(line: &str, machine: Machine) -> Result<Field, String> {
        let bad = || format!("a field that cannot be read: {:?}", shortened(line));
        let mut parts = line.split(';').map(str::trim);
        let declaration = parts.next().and_then(|part| part.split_once(':')).ok_or_else(bad)?.1;
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.split_once(':') {
                Some(("offset", number)) => offset = number.trim().parse::<u32>().ok(),
                Some(("size", number)) => size = number.trim().parse::<u32>().ok(),
                Some(("signed", number)) => signed = number.trim() == "1",
                _ => {}
            }
        }
        let (offset, size) = offset.zip(size).ok_or_else(bad)?;
        let (kind, name, count) = declared(declaration).ok_or_else(bad)?;
        let (offset, size) = (offset as usize, size as usize);
        let shape = shape(kind, count, size, signed, machine);
        Ok(Field { name: name.into(), offset, size, shape })
    }

    /// Its value as an unsigned integer, if it lies within the event.
    pub fn unsigned(&self, record: &[u8], machine: Machine) -> Option<u64> {
        record.get(self.offset..self.offset + self.size).map(|bytes| machine.unsigned(bytes))
    }

    /// Adds its value to an event; false if it lies outside.
    fn add(&self, record: &[u8], machine: Machine, event: &mut RawEvent) -> bool {
        let end = if self.size == 0 { record.len() } else { self.offset + self.size };
        let Some(bytes) = record.get(self.offset..end) else { return false };
        match self.shape {
            Shape::Integer { signed } => event.values.push(machine.value(bytes, signed)),
            Shape::Text => event.push_text(until_zero(bytes)),
            Shape::Numbers { element, signed } => numbers(bytes, element, signed, machine, event),
            Shape::Elsewhere { is_text, element, signed, is_relative } => {
                let word = machine.unsigned(bytes) as u32;
                let base = if is_relative { end } else { 0 };
                let from = base + (word & 0xffff) as usize;
                let Some(bytes) = record.get(from..from + (word >> 16) as usize) else {
                    return false;
                };
                match is_text {
                    true => event.push_text(until_zero(bytes)),
                    false => numbers(bytes, element, signed, machine, event),
                }
            }
        }
        true
    }
}

/// The type, the name and, in brackets, the number of elements of a declaration.
fn declared(declaration: &str) -> Option<(&str, &str, Option<&str>)> {
    let declaration = declaration.trim();
    let (rest, count) = match declaration.strip_suffix(']') {
        Some(rest) => {
            let (rest, count) = rest.rsplit_once('[')?;
            (rest.trim_end(), Some(count))
        }
        None => (declaration, None),
    };
    let name = rest.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    let kind = &rest[..rest.len() - name.len()];
    (!name.is_empty()).then_some((kind.trim(), name, count))
}

fn shape(kind: &str, count: Option<&str>, size: usize, signed: bool, machine: Machine) -> Shape {
    let is_relative = kind.starts_with("__rel_loc");
    if is_relative || kind.starts_with("__data_loc") {
        let of = kind.split_once(' ').map_or("", |(_, of)| of);
        let of = of.split('[').next().unwrap_or_default().trim();
        let element = size_of(of, machine).unwrap_or(1);
        let signed = !(of.starts_with(['u', '_']) || of.contains("unsigned")) && of != "bool";
        return Shape::Elsewhere { is_text: is_char(of), element, signed, is_relative };
    }
    if count.is_none() && (1..=8).contains(&size) {
        return Shape::Integer { signed };
    }
    if is_char(kind) {
        return Shape::Text;
    }
    let counted = count.and_then(|count| count.parse::<usize>().ok()).filter(|n| *n > 0);
    let element = counted.filter(|n| size.is_multiple_of(*n)).map(|n| size / n);
    let element = element.or_else(|| size_of(kind, machine)).filter(|n| (1..=8).contains(n));
    Shape::Numbers { element: element.unwrap_or(1), signed }
}

fn is_char(kind: &str) -> bool {
    matches!(kind, "char" | "const char")
}

/// Bytes of a type of C or of the kernel; `None` of another.
fn size_of(kind: &str, machine: Machine) -> Option<usize> {
    if kind.ends_with('*') {
        return Some(machine.long);
    }
    let has = |names: &[&str]| kind.split_whitespace().any(|word| names.contains(&word));
    if has(&["char", "u8", "s8", "__u8", "__s8", "uint8_t", "int8_t", "bool", "_Bool"]) {
        return Some(1);
    }
    if has(&["short", "u16", "s16", "__u16", "__s16", "uint16_t", "int16_t", "__be16", "__le16"]) {
        return Some(2);
    }
    if has(&["u64", "s64", "__u64", "__s64", "uint64_t", "int64_t"]) || kind.contains("long long") {
        return Some(8);
    }
    if has(&["long", "size_t", "ssize_t"]) {
        return Some(machine.long);
    }
    let words = ["int", "unsigned", "u32", "s32", "__u32", "__s32", "uint32_t", "int32_t", "pid_t"];
    has(&words).then_some(4)
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}

/// Adds a list: `[1, 2]`.
fn numbers(bytes: &[u8], element: usize, signed: bool, machine: Machine, event: &mut RawEvent) {
    let from = event.text.len();
    event.text.push(b'[');
    for (place, bytes) in bytes.chunks_exact(element.max(1)).enumerate() {
        if place > 0 {
            event.text.extend_from_slice(b", ");
        }
        let _ = match machine.value(bytes, signed) {
            Value::Signed(number) => write!(event.text, "{number}"),
            Value::Unsigned(number) => write!(event.text, "{number}"),
            _ => Ok(()),
        };
    }
    event.text.push(b']');
    event.values.push(Value::Text(from..event.text.len()));
}

/// The beginning of a line, for an error.
fn shortened(line: &str) -> String {
    line.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Machine = Machine { is_big: false, long: 8 };
    const BIG: Machine = Machine { is_big: true, long: 4 };

    const FORMAT: &str = "name: all_kinds\nID: 77\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char comm[4];\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:s16 pair[2];\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] name;\toffset:16;\tsize:4;\tsigned:1;\n\
        \tfield:__rel_loc u16[] list;\toffset:20;\tsize:4;\tsigned:0;\n\
        \tfield:struct x * p;\toffset:24;\tsize:4;\tsigned:0;\n\
        \tfield:pid_t n;\toffset:28;\tsize:4;\tsigned:1;\n\
        \tfield:u8 mac[A_NAME];\toffset:32;\tsize:3;\tsigned:0;\n\
        \tfield:bool late;\toffset:200;\tsize:1;\tsigned:0;\n\
        \tfield:char rest[];\toffset:42;\tsize:0;\tsigned:1;\n\n\
        print fmt: \"field:%s\", REC->comm\n";

    fn record(machine: Machine) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        let four = |n: u32| if machine.is_big { n.to_be_bytes() } else { n.to_le_bytes() };
        let two = |n: u16| if machine.is_big { n.to_be_bytes() } else { n.to_le_bytes() };
        bytes.extend(b"ab\0z");
        bytes.extend([two(0xffff), two(5)].concat());
        bytes.extend(four(3 << 16 | 35));
        bytes.extend(four(4 << 16 | 14));
        bytes.extend(four(0xfedc_ba98));
        bytes.extend(four(-7i32 as u32));
        bytes.extend([1, 2, 3]);
        bytes.extend(b"hi\0");
        bytes.extend([two(7), two(8)].concat());
        bytes.extend(b"tail\0x");
        bytes
    }

    #[test]
    fn fields_of_all_kinds_are_read_in_both_byte_orders() {
        for machine in [LITTLE, BIG] {
            let format = Format::parse(FORMAT, machine).unwrap();
            assert_eq!((format.id, &*format.name, format.common.len()), (77, "all_kinds", 2));
            assert_eq!(format.length(), None, "texts elsewhere, and one to the end");
            let mut event = RawEvent::default();
            assert_eq!(format.values(&record(machine), machine, &mut event), 1);
            let shown: Vec<String> = (0..format.fields.len())
                .map(|i| {
                    let value = event.shown(i).unwrap_or_else(|| "absent".into());
                    format!("{}={value}", format.fields[i].name)
                })
                .collect();
            let expected = "comm=ab pair=[-1, 5] name=hi list=[7, 8] p=4275878552 n=-7 mac=[1, 2, 3] \
                            late=absent rest=tail";
            assert_eq!(shown.join(" "), expected);
        }
    }

    #[test]
    fn a_format_of_plain_fields_says_how_long_its_events_are() {
        let fields = "\tfield:int a;\toffset:8;\tsize:4;\tsigned:1;\n\
                      \tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:1;\n";
        let of = |more: &str| Format::parse(&format!("name: x\nID: 1\n{fields}{more}"), LITTLE);
        assert_eq!(of("").unwrap().length(), Some(28));
        let elsewhere = "field:__data_loc char[] t; offset:28; size:4; signed:0;";
        assert_eq!(of(elsewhere).unwrap().length(), None);
        let to_the_end = "field:char t[]; offset:28; size:0; signed:0;";
        assert_eq!(of(to_the_end).unwrap().length(), None);
    }

    #[test]
    fn what_lies_elsewhere_and_outside_of_the_event_is_absent() {
        let format = Format::parse(FORMAT, LITTLE).unwrap();
        let mut bytes = record(LITTLE);
        bytes[18] = 200;
        let mut event = RawEvent::default();
        assert_eq!(format.values(&bytes, LITTLE, &mut event), 2);
        assert_eq!(format.values(&[], LITTLE, &mut event), 9);
    }

    #[test]
    fn lines_that_cannot_be_are_refused_and_shown() {
        let refused = |line: &str| Format::parse(&format!("name: x\nID: 1\n{line}"), LITTLE);
        for line in ["field:int", "field:int x; size:4;", "field: ; offset:0; size:4;"] {
            let error = refused(line).unwrap_err();
            assert!(error.contains("cannot be read"), "{error}");
        }
        assert!(Format::parse("ID: 1", LITTLE).unwrap_err().contains("name"));
        assert!(Format::parse("name: x", LITTLE).unwrap_err().contains("ID"));
    }
}
