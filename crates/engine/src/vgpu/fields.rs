//! The fields of marks that the model asks for, in a compact form: a trace may have millions of marks with a dozen fields
//! each, and texts by their names would take many times the room.

use foldhash::{HashMap, HashMapExt as _};
use gpuwhy_derive::vgpu::event::number;
use gpuwhy_derive::vgpu::rules::fields;
use gpuwhy_derive::vgpu::{Event, Field};
use gpuwhy_schema::{Attr, Id, Mark, Name};
use gpuwhy_store::Trace;

use crate::error::Result;
use crate::source::EVER;

/// The value of a field.
#[derive(Clone, Debug)]
enum Value {
    Number(i64),
    Text(Name),
}

/// The fields of marks.
#[derive(Debug)]
pub(super) struct Fields {
    /// The place of the mark, that of the key in [`fields::ALL`], and the value; by the place of the mark.
    all: Vec<(u32, u8, Value)>,
}

/// A field as it is kept: a number where the model takes none of its words.
fn kept(key: u8, value: Name) -> Value {
    let is_text = fields::TIMELINE.contains(&fields::ALL[usize::from(key)]);
    match number(&value).filter(|_| !is_text) {
        Some(number) => Value::Number(number),
        None => Value::Text(value),
    }
}

impl Fields {
    /// Of these marks, of which there are 2³² at most.
    pub(super) fn read(trace: &Trace, marks: &[Mark]) -> Result<Fields> {
        let mut places: HashMap<Id, u32> = HashMap::with_capacity(marks.len());
        places.extend(marks.iter().zip(0..).map(|(mark, place)| (mark.id, place)));
        let keys = fields::ALL.iter().zip(0..);
        let keys: HashMap<&str, u8> = keys.map(|(key, place)| (*key, place)).collect();
        let mut all = Vec::new();
        for rows in trace.read::<Attr>(EVER) {
            for row in rows? {
                if let (Some(place), Some(key)) = (places.get(&row.id), keys.get(&*row.key)) {
                    all.push((*place, *key, kept(*key, row.value)));
                }
            }
        }
        // Fields of one mark stay in their order.
        all.sort_by_key(|one| one.0);
        Ok(Fields { all })
    }

    /// Those of the mark at a place, as the model takes them.
    pub(super) fn of(&self, place: usize) -> Vec<(&str, Field<'_>)> {
        let from = self.all.partition_point(|one| (one.0 as usize) < place);
        let own = self.all[from..].iter().take_while(|one| one.0 as usize == place);
        own.map(|(_, key, value)| {
            let value = match value {
                Value::Number(number) => Field::Integer(*number),
                Value::Text(text) => Field::Text(text),
            };
            (fields::ALL[usize::from(*key)], value)
        })
        .collect()
    }
}

/// A mark with its fields as the model takes it.
pub(super) fn event<'a>(
    mark: &'a Mark,
    fields: &'a [(&'a str, Field<'a>)],
    thread: Option<(Option<i64>, &'a str)>,
) -> Event<'a> {
    let (tid, comm) = thread.map_or((None, None), |(tid, comm)| (tid, Some(comm)));
    Event { time: mark.ts.0, tid, comm, name: &mark.name, fields }
}
