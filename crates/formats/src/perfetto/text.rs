//! The bytes of a `.pftrace` as lines of text: for golden tests, and to debug what a viewer shows.

use std::collections::HashMap;
use std::fmt::Write;

use prost::Message;

use super::proto::{DebugAnnotation, InternedName, Trace, TrackEvent, event};

/// The bytes are not a Perfetto trace.
#[derive(Debug, thiserror::Error)]
#[error("not a Perfetto trace")]
pub struct TextError(#[from] prost::DecodeError);

#[derive(Default)]
struct Names(HashMap<u64, String>);

impl Names {
    fn add(&mut self, fresh: &[InternedName]) {
        for name in fresh {
            self.0.insert(name.iid.unwrap_or(0), name.name.clone().unwrap_or_default());
        }
    }

    fn get(&self, iid: Option<u64>, inline: Option<&String>) -> String {
        match (iid, inline) {
            (Some(iid), _) => self.0.get(&iid).cloned().unwrap_or_else(|| format!("?{iid}")),
            (None, Some(name)) => name.clone(),
            (None, None) => String::new(),
        }
    }
}

fn value(note: &DebugAnnotation) -> String {
    note.int_value
        .map(|v| v.to_string())
        .or(note.uint_value.map(|v| v.to_string()))
        .or(note.double_value.map(|v| v.to_string()))
        .or(note.bool_value.map(|v| v.to_string()))
        .or(note.string_value.as_ref().map(|v| format!("{v:?}")))
        .unwrap_or_default()
}

/// One line for each packet, with names in place of their interned numbers.
///
/// # Errors
/// The bytes are not a Perfetto trace.
pub fn text(bytes: &[u8]) -> Result<String, TextError> {
    let trace = Trace::decode(bytes)?;
    let mut out = String::new();
    let (mut names, mut categories, mut keys) =
        (Names::default(), Names::default(), Names::default());
    for packet in &trace.packet {
        if let Some(fresh) = &packet.interned_data {
            names.add(&fresh.event_names);
            categories.add(&fresh.event_categories);
            keys.add(&fresh.debug_annotation_names);
        }
        if let Some(snapshot) = &packet.clock_snapshot {
            let _ = write!(out, "clocks primary={}", snapshot.primary_trace_clock.unwrap_or(0));
            for clock in &snapshot.clocks {
                let (id, ts) = (clock.clock_id.unwrap_or(0), clock.timestamp.unwrap_or(0));
                let _ = write!(out, " {id}@{ts}");
            }
            out.push('\n');
        }
        if let Some(defaults) = &packet.trace_packet_defaults {
            let _ = writeln!(out, "defaults clock={}", defaults.timestamp_clock_id.unwrap_or(0));
        }
        if let Some(track) = &packet.track_descriptor {
            let _ = write!(out, "track {}", track.uuid.unwrap_or(0));
            if let Some(parent) = track.parent_uuid {
                let _ = write!(out, " in {parent}");
            }
            if let Some(process) = &track.process {
                let _ = write!(out, " process {}", process.pid.unwrap_or(0));
                let _ = write!(out, " {:?}", process.process_name.as_deref().unwrap_or(""));
            }
            if let Some(thread) = &track.thread {
                let (pid, tid) = (thread.pid.unwrap_or(0), thread.tid.unwrap_or(0));
                let name = thread.thread_name.as_deref().unwrap_or("");
                let _ = write!(out, " thread {pid}/{tid} {name:?}");
            }
            if let Some(name) = &track.name {
                let _ = write!(out, " {name:?}");
            }
            if let Some(counter) = &track.counter {
                let unit = counter.unit.map(|u| ["", "ns", "count", "bytes"][u.min(3) as usize]);
                let name = unit.or(counter.unit_name.as_deref()).unwrap_or("");
                let _ = write!(out, " counter[{name}]");
            }
            out.push('\n');
        }
        if let Some(event) = &packet.track_event {
            let ts = packet.timestamp.unwrap_or(0);
            event_line(&mut out, ts, event, &names, &categories, &keys);
        }
    }
    Ok(out)
}

fn event_line(
    out: &mut String,
    ts: u64,
    event: &TrackEvent,
    names: &Names,
    categories: &Names,
    keys: &Names,
) {
    let kind = match event.r#type.unwrap_or(0) {
        event::SLICE_BEGIN => "begin",
        event::SLICE_END => "end",
        event::INSTANT => "instant",
        event::COUNTER => "counter",
        _ => "?",
    };
    let _ = write!(out, "{ts} {kind} on {}", event.track_uuid.unwrap_or(0));
    if let Some(value) = event.double_counter_value {
        let _ = write!(out, " {value}");
    }
    for category in &event.category_iids {
        let _ = write!(out, " {}", categories.get(Some(*category), None));
    }
    if event.name_iid.is_some() || event.name.is_some() {
        let _ = write!(out, " {:?}", names.get(event.name_iid, event.name.as_ref()));
    }
    for note in &event.debug_annotations {
        let _ = write!(out, " {}={}", keys.get(note.name_iid, note.name.as_ref()), value(note));
    }
    for flow in &event.flow_ids {
        let _ = write!(out, " flow {flow}");
    }
    out.push('\n');
}
