//! How late launches began, for people and as JSON.

use gpuwhy_gpubpf::splice::Names;
use gpuwhy_schema::Ns;
use gpuwhy_schema::text::Screen;
use gpuwhy_wire::images::Late;
use serde_json::{Value, json};

use crate::desk::{Loaded, Shown};

/// The kernels whose launches were followed, with what is known of them.
fn all<'a>(
    loaded: &'a Loaded,
    shown: &'a Shown,
) -> impl Iterator<Item = (&'a str, Late)> + use<'a> {
    let maps = loaded.layout.as_ref().map_or(0, |layout| layout.bytes);
    let kernels = loaded.followed().iter().enumerate();
    let late = kernels.map(move |(n, (_, name))| (name.as_str(), shown.state.late(maps, n)));
    late.filter(|(_, late)| late.known > 0 || late.unknown > 0)
}

/// How often launches were lost before they were read: on the device, and on the host.
fn lost(loaded: &Loaded, shown: &Shown) -> [u64; 2] {
    let maps = loaded.layout.as_ref().map_or(0, |layout| layout.bytes);
    if loaded.followed().is_empty() { [0; 2] } else { shown.state.lost_launches(maps) }
}

/// A time with its unit.
fn time(ns: u64) -> Ns {
    Ns(i64::try_from(ns).unwrap_or(i64::MAX))
}

/// Launches of each kernel, the latest ones first.
pub(crate) fn show(screen: &mut Screen, loaded: &Loaded, shown: &Shown) {
    let mut kernels: Vec<(&str, Late)> = all(loaded, shown).collect();
    kernels.sort_by_key(|(_, late)| std::cmp::Reverse(late.longest));
    if loaded.followed().is_empty() {
        return;
    }
    screen.end().bold("launches, from the call to the first block").end();
    for (name, late) in &kernels {
        screen.line(format_args!("  {}: {}", Names::new(name).readable(), late.known));
        if let Some(mean) = late.total.checked_div(late.known) {
            screen.line(format_args!(
                "    half within {}, 99 % within {}, mean {}, longest {} (launch {})",
                time(late.quantile(0.5)),
                time(late.quantile(0.99)),
                time(mean),
                time(late.longest),
                late.longest_number
            ));
        }
        if late.unknown > 0 {
            screen.line(format_args!(
                "    {} more whose call is not known (launches of graphs, and those around a loss) or that did not begin",
                late.unknown
            ));
        }
    }
    if kernels.is_empty() {
        screen.line("  none");
    }
    let [device, host] = lost(loaded, shown);
    if device > 0 || host > 0 {
        screen.line(format_args!(
            "  launches came faster than they were read: {device} times on the device, {host} times on the host"
        ));
    }
}

/// The same as JSON; `null` where no map tells of launches.
pub(crate) fn document(loaded: &Loaded, shown: &Shown) -> Value {
    if loaded.followed().is_empty() {
        return Value::Null;
    }
    let kernels: Vec<Value> = all(loaded, shown)
        .map(|(name, late)| {
            let bins = late.bins.iter().enumerate().filter(|(_, count)| **count > 0);
            let histogram: Vec<Value> = bins
                .map(|(bin, count)| json!({ "least_ns": 1_u64 << bin, "launches": count }))
                .collect();
            json!({
                "kernel": name,
                "readable": Names::new(name).readable(),
                "launches": late.known,
                "not_known": late.unknown,
                "total_ns": late.total,
                "longest_ns": late.longest,
                "longest": late.longest_number,
                "histogram": histogram,
            })
        })
        .collect();
    let [device, host] = lost(loaded, shown);
    json!({ "kernels": kernels, "lost_on_device": device, "lost_on_host": host })
}
