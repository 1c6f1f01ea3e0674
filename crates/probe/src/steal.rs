//! Which kernels stole work, how often, and why others did not.

use gpuwhy_schema::text::Screen;
use gpuwhy_wire::images::Stolen;
use serde_json::{Value, json};

use crate::desk::Loaded;

/// Launches that did not steal, by why not.
fn others(stolen: &Stolen) -> [(&'static str, u64); 5] {
    let Stolen { fits, captured, unsuitable, no_record, refused, .. } = *stolen;
    [
        ("whose blocks all run at once", fits),
        ("in graphs", captured),
        ("with a shape or attributes that forbid it", unsuitable),
        ("on streams beyond those that have records", no_record),
        ("that the driver refused so", refused),
    ]
}

/// The kernels of an image that can steal.
pub(crate) fn show(screen: &mut Screen, loaded: &Loaded) {
    for (steals, stolen) in loaded.stolen() {
        let order = match &steals.order {
            Some(order) => format!("in the order of `{order}`"),
            None if steals.by_hardware => "by the hardware".to_owned(),
            None => "in order".to_owned(),
        };
        let mut line =
            format!("  {} steals {order}: {} launches did", steals.readable, stolen.stolen);
        for (why, count) in others(&stolen).into_iter().filter(|(_, count)| *count > 0) {
            line += &format!("; {count} {why} did not");
        }
        screen.line(line);
    }
    show_refused(screen, loaded);
}

/// Kernels that were named, and why they do not.
pub(crate) fn show_refused(screen: &mut Screen, loaded: &Loaded) {
    for (readable, reasons) in &loaded.made.not_stealing {
        for reason in reasons {
            screen.line(format_args!("  {readable} does not steal: {reason}"));
        }
    }
}

pub(crate) fn document(loaded: &Loaded) -> Value {
    let stolen = loaded.stolen();
    let kernels: Vec<Value> = stolen
        .iter()
        .map(|(steals, stolen)| {
            json!({
                "kernel": steals.kernel,
                "readable": steals.readable,
                "order": steals.order,
                "by_hardware": steals.by_hardware,
                "launches": {
                    "stolen": stolen.stolen,
                    "all_blocks_at_once": stolen.fits,
                    "in_graphs": stolen.captured,
                    "unsuitable": stolen.unsuitable,
                    "no_record": stolen.no_record,
                    "refused": stolen.refused,
                },
            })
        })
        .collect();
    let not: Vec<Value> = loaded
        .made
        .not_stealing
        .iter()
        .map(|(readable, reasons)| json!({ "readable": readable, "reasons": reasons }))
        .collect();
    json!({ "kernels": kernels, "refused": not })
}
