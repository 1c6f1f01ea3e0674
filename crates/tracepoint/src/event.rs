//! One event of a kernel's tracer as every reader hands it out: when, where, by whom, which, and with which
//! fields.
//!
//! # How
//! A reader declares each type of event once ([`EventType`]: its name and the names of its fields) and then
//! fills one [`RawEvent`] again and again: the values in the order of the declared fields, texts in a buffer that
//! the event owns. Nothing is allocated for an event, and who looks for a field looks once a type and not once an
//! event.
//!
//! *Invariant:* an event has one value for each declared field; a field that this event lacks is
//! [`Value::Absent`].

use std::fmt::Write as _;
use std::ops::Range;

use gpuwhy_schema::Name;

/// A type of event, as a reader declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventType {
    /// As the tracer names it: `sched_switch`, or with its system before it, `sched:sched_switch`.
    pub name: Name,
    /// The names of its fields, in the order of [`RawEvent::values`].
    pub fields: Vec<Name>,
}

impl EventType {
    /// The name without the system before it: `sched_switch` of `sched:sched_switch`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit(':').next().unwrap_or(&self.name)
    }

    /// The place of the first of these fields that it has; tracers spell some differently (`next_tid`, `next_pid`).
    pub fn field(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.fields.iter().position(|field| &**field == *name))
    }
}

/// The value of a field.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// This event does not have the field.
    #[default]
    Absent,
    /// An unsigned integer, a pointer, a flag.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A number with a fraction.
    Float(f64),
    /// Bytes that are to be read as text, at this place of [`RawEvent::text`]. Values of several parts (arrays,
    /// structures) are written out as text, too.
    Text(Range<usize>),
}

/// One event. Readers fill it anew for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawEvent {
    /// When, in ns on the clock of the trace that is being made.
    pub time: i64,
    /// The number of its [`EventType`], as the one who was given the type numbered it.
    pub kind: usize,
    /// The CPU that it happened on, if the tracer says so.
    pub cpu: Option<u32>,
    /// The thread that ran there, if the tracer says so; 0 is the idle task.
    pub tid: Option<i64>,
    /// The process of that thread, if the tracer says so.
    pub pid: Option<i64>,
    /// The field that names that thread, if the tracer says so.
    pub comm: Option<usize>,
    /// One value for each field of the type.
    pub values: Vec<Value>,
    /// The bytes of the texts.
    pub text: Vec<u8>,
}

impl Value {
    /// Adds the value as it is shown to `out`; its text may lie in `bytes`. A field that an event lacks adds nothing.
    pub fn show(&self, bytes: &[u8], out: &mut String) {
        // Writing to a string does not fail.
        let _ = match self {
            Value::Absent => Ok(()),
            Value::Unsigned(value) => write!(out, "{value}"),
            Value::Signed(value) => write!(out, "{value}"),
            Value::Float(value) => write!(out, "{value}"),
            Value::Text(range) => {
                let text = bytes.get(range.clone()).unwrap_or_default();
                out.write_str(&String::from_utf8_lossy(text))
            }
        };
    }
}

impl RawEvent {
    /// Forgets values and texts, and keeps their memory.
    #[inline]
    pub fn clear(&mut self) {
        self.values.clear();
        self.text.clear();
        (self.cpu, self.tid, self.pid, self.comm) = (None, None, None, None);
    }

    /// Adds the value of the next field: a text.
    #[inline]
    pub fn push_text(&mut self, text: &[u8]) {
        let from = self.text.len();
        self.text.extend_from_slice(text);
        self.values.push(Value::Text(from..self.text.len()));
    }

    /// The value of a field, if the event has it as an integer. One of 64 bits without a sign is taken as its bits.
    #[inline]
    pub fn integer(&self, field: Option<usize>) -> Option<i64> {
        match self.values.get(field?)? {
            Value::Unsigned(value) => Some(*value as i64),
            Value::Signed(value) => Some(*value),
            _ => None,
        }
    }

    /// The bytes of a field, if it is a text.
    #[inline]
    pub fn bytes(&self, field: Option<usize>) -> Option<&[u8]> {
        match self.values.get(field?)? {
            Value::Text(range) => self.text.get(range.clone()),
            _ => None,
        }
    }

    /// The value of a field as it is shown; `None` where the event lacks it.
    pub fn shown(&self, field: usize) -> Option<String> {
        let value = self.values.get(field).filter(|value| **value != Value::Absent)?;
        let mut out = String::new();
        value.show(&self.text, &mut out);
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_any_of_its_spellings_and_has_its_value() {
        let kind = EventType {
            name: "sched:sched_wakeup".into(),
            fields: ["comm", "pid", "load"].map(Name::from).to_vec(),
        };
        assert_eq!(kind.short_name(), "sched_wakeup");
        let (pid, comm) = (kind.field(&["tid", "pid"]), kind.field(&["comm"]));
        assert_eq!((pid, comm, kind.field(&["cpu"])), (Some(1), Some(0), None));
        let mut event = RawEvent::default();
        for number in [7u64, u64::MAX] {
            event.clear();
            event.push_text(b"python3");
            event.values.extend([Value::Unsigned(number), Value::Float(0.5)]);
            assert_eq!(event.integer(pid), Some(number as i64));
            assert_eq!(event.bytes(comm), Some(&b"python3"[..]));
            assert_eq!((event.integer(comm), event.bytes(pid)), (None, None));
            assert_eq!(event.shown(2).as_deref(), Some("0.5"));
        }
        event.clear();
        event.values.push(Value::Absent);
        assert_eq!((event.shown(0), event.shown(1), event.integer(None)), (None, None, None));
    }
}
