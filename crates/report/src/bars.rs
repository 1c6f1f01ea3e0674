//! The parts of a step as stacked bars: usually, in the anomaly, and the difference.
//!
//! Parts differ in colour (Okabe-Ito, which survives the common kinds of colour blindness) and
//! in hatching, and the table below the bars says the same in numbers.

use std::fmt::Write;

use gpuwhy_schema::PartKind;

use crate::data::PartRow;
use crate::html::esc;

/// How a part looks and what it is called.
struct Look {
    label: &'static str,
    colour: &'static str,
    hatch: Hatch,
}

/// Lines over the colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Hatch {
    None,
    Up,
    Down,
    Across,
    Upright,
    Dots,
    Cross,
}

pub(crate) const GREEN: &str = "#009E73";
pub(crate) const BLUE: &str = "#0072B2";
pub(crate) const SKY: &str = "#56B4E9";
pub(crate) const VERMILLION: &str = "#D55E00";
pub(crate) const ORANGE: &str = "#E69F00";
pub(crate) const YELLOW: &str = "#F0E442";
pub(crate) const PURPLE: &str = "#CC79A7";
pub(crate) const GREY: &str = "#999999";

/// What the step itself does is green; what others do to it is not.
fn look(kind: &str) -> Look {
    let of = |label, colour, hatch| Look { label, colour, hatch };
    match kind.parse::<PartKind>() {
        Ok(PartKind::Run) => of("its own work on a CPU", GREEN, Hatch::None),
        Ok(PartKind::Gpu) => of("its own work on the GPU", GREEN, Hatch::Upright),
        Ok(PartKind::Runnable) => of("ready, but others had the CPU", VERMILLION, Hatch::None),
        Ok(PartKind::Throttled) => of("ready, but out of CPU quota", VERMILLION, Hatch::Cross),
        Ok(PartKind::Hardirq) => of("interrupt handlers", PURPLE, Hatch::Up),
        Ok(PartKind::Softirq) => of("softirqs", PURPLE, Hatch::None),
        Ok(PartKind::Steal) => of("taken by the hypervisor", PURPLE, Hatch::Dots),
        Ok(PartKind::BlockQueue) => of("disk: waiting in the queue", ORANGE, Hatch::Up),
        Ok(PartKind::BlockDevice) => of("disk: with the device", ORANGE, Hatch::None),
        Ok(PartKind::BlockCompletion) => of("disk: done, not yet woken", ORANGE, Hatch::Dots),
        Ok(PartKind::Reclaim) => of("freeing memory to get some", YELLOW, Hatch::None),
        Ok(PartKind::CacheMiss) => of("reading evicted pages again", YELLOW, Hatch::Up),
        Ok(PartKind::ColdRead) => of("reading data for the first time", YELLOW, Hatch::Down),
        Ok(PartKind::Network) => of("bytes on their way", SKY, Hatch::None),
        Ok(PartKind::Lock) => of("held up by somebody else's lock", BLUE, Hatch::Down),
        Ok(PartKind::Gil) => {
            of("another thread held Python's interpreter lock", BLUE, Hatch::Across)
        }
        Ok(PartKind::GpuQueue) => of("GPU busy for others", BLUE, Hatch::None),
        Ok(PartKind::GpuThrottled) => {
            of("its own work on the GPU, at a lowered clock", GREEN, Hatch::Cross)
        }
        Ok(PartKind::GpuFault) => of("GPU stood still after an error", BLUE, Hatch::Cross),
        Ok(PartKind::Copy) => of("copies from or to the GPU", BLUE, Hatch::Up),
        Ok(PartKind::PageFault) => of("pages of managed memory moved", BLUE, Hatch::Dots),
        Ok(PartKind::Allocate) => of("allocating or freeing GPU memory", YELLOW, Hatch::Dots),
        Ok(PartKind::Load) => of("loading code onto the GPU", YELLOW, Hatch::Cross),
        Ok(PartKind::Input) => of("a worker of the data loader computed", GREEN, Hatch::Across),
        Ok(PartKind::Timer) => of("slept because it asked to", GREY, Hatch::None),
        Ok(PartKind::Stopped) => of("stopped by a signal", GREY, Hatch::Cross),
        Ok(PartKind::Peer) => {
            of("waiting for a process not seen, or for one that was late", GREY, Hatch::Across)
        }
        Ok(PartKind::Unknown) => of("not seen", GREY, Hatch::Down),
        Err(_) => of("unexplained", "none", Hatch::Down),
    }
}

/// What people call a part: `ready, but others had the CPU`. Words that are no part's are
/// `unexplained`.
pub fn label(kind: &str) -> &'static str {
    look(kind).label
}

/// A little square in the look of part `index` of the bars.
pub fn swatch(index: usize) -> String {
    format!(
        "<svg class=\"swatch\" width=\"14\" height=\"14\" aria-hidden=\"true\">\
         <rect class=\"seg\" width=\"14\" height=\"14\" fill=\"url(#part{index})\"/></svg>"
    )
}

const LEFT: f64 = 110.0;
const WIDTH: f64 = 1180.0;
const BAR: f64 = 34.0;
const ROW: f64 = 54.0;

/// Bars for `rows`, in their order from the left, as inline SVG.
pub fn svg(rows: &[PartRow]) -> String {
    let bars: [(&str, Take); 3] = [
        ("usual step", |r| r.baseline_ms),
        ("slow step", |r| r.anomalous_ms),
        ("excess", PartRow::excess_ms),
    ];
    // One scale for all three, so that lengths compare.
    let longest = bars.iter().map(|(_, take)| extent(rows, *take)).map(|(b, a)| b + a);
    let longest = longest.fold(0.0_f64, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let scale = (WIDTH - LEFT - 90.0) / longest;
    let height = ROW * bars.len() as f64;
    let mut out = format!(
        "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Parts of a usual and of a slow step; the table below has the numbers\">\n<defs>"
    );
    for (i, row) in rows.iter().enumerate() {
        let Look { colour, hatch, .. } = look(&row.kind);
        out.push_str(&pattern(&format!("part{i}"), colour, hatch));
    }
    out.push_str("</defs>\n");
    for (at, (title, take)) in bars.into_iter().enumerate() {
        let top = at as f64 * ROW + (ROW - BAR) / 2.0;
        bar(&mut out, rows, &Bar { title, take, top, scale });
    }
    out.push_str("</svg>\n");
    out
}

/// Which ms of a part a bar shows.
type Take = fn(&PartRow) -> f64;

/// One bar: what it shows, where, and how many pixels a ms is wide.
struct Bar {
    title: &'static str,
    take: Take,
    top: f64,
    scale: f64,
}

/// How far a bar reaches below zero and above it, ms.
fn extent(rows: &[PartRow], take: Take) -> (f64, f64) {
    let (mut below, mut above) = (0.0, 0.0);
    for value in rows.iter().map(take).filter(|v| v.is_finite()) {
        if value < 0.0 { below -= value } else { above += value }
    }
    (below, above)
}

/// A bar with its name, its parts, its zero line if it has negative parts, and its sum.
fn bar(out: &mut String, rows: &[PartRow], bar: &Bar) {
    let &Bar { title, take, top, scale } = bar;
    let (below, above) = extent(rows, take);
    let zero = LEFT + below * scale;
    let text = top + BAR / 2.0;
    let _ = write!(
        out,
        "<text class=\"bar-name\" x=\"{}\" y=\"{text:.1}\">{title}</text>",
        LEFT - 10.0
    );
    let (mut left, mut right) = (zero, zero);
    for (i, row) in rows.iter().enumerate() {
        let value = take(row);
        let width = value.abs() * scale;
        if !width.is_finite() || width < 0.4 {
            continue;
        }
        let x = if value < 0.0 {
            left -= width;
            left
        } else {
            right += width;
            right - width
        };
        segment(out, i, row, value, (x, top, width));
    }
    if below > 0.0 {
        let _ = write!(
            out,
            "<line class=\"zero\" x1=\"{zero:.1}\" x2=\"{zero:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            top - 5.0,
            top + BAR + 5.0
        );
    }
    let _ = writeln!(
        out,
        "<text class=\"bar-sum\" x=\"{:.1}\" y=\"{text:.1}\">{:.1} ms</text>",
        right + 8.0,
        above - below
    );
}

/// One part of a bar, with its ms where there is room.
fn segment(
    out: &mut String,
    i: usize,
    row: &PartRow,
    value: f64,
    (x, top, width): (f64, f64, f64),
) {
    let _ = write!(
        out,
        "<g><title>{}: {value:+.2} ms</title><rect class=\"seg\" x=\"{x:.1}\" y=\"{top:.1}\" \
         width=\"{width:.1}\" height=\"{BAR}\" fill=\"url(#part{i})\"/>",
        esc(label(&row.kind))
    );
    let words = format!("{value:.1}");
    if width > 9.0 * words.len() as f64 + 8.0 {
        let (middle, text) = (x + width / 2.0, top + BAR / 2.0);
        let _ = write!(
            out,
            "<text class=\"seg-name\" x=\"{middle:.1}\" y=\"{text:.1}\">{words}</text>"
        );
    }
    out.push_str("</g>");
}

/// What fills a part: a colour, or `none`, with lines over it.
pub(crate) fn pattern(id: &str, colour: &str, hatch: Hatch) -> String {
    // On no colour the lines have the colour of text.
    let class = if colour == "none" { "hatch hatch-ink" } else { "hatch" };
    let line = |d: &str| format!("<path class=\"{class}\" d=\"{d}\"/>");
    let lines = match hatch {
        Hatch::None => String::new(),
        Hatch::Up => line("M-2 10L10 -2M-2 2L2 -2M6 10L10 6"),
        Hatch::Down => line("M-2 -2L10 10M-2 6L2 10M6 -2L10 2"),
        Hatch::Across => line("M0 4H8"),
        Hatch::Upright => line("M4 0V8"),
        Hatch::Cross => line("M0 0L8 8M0 8L8 0"),
        Hatch::Dots => "<circle class=\"hatch-dot\" cx=\"4\" cy=\"4\" r=\"1.4\"/>".to_owned(),
    };
    format!(
        "<pattern id=\"{id}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\">\
         <rect width=\"8\" height=\"8\" fill=\"{colour}\"/>{lines}</pattern>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_and_no_two_look_alike() {
        let looks: Vec<Look> = PartKind::ALL.iter().map(|k| look(k.as_str())).collect();
        for (i, a) in looks.iter().enumerate() {
            assert_ne!(a.label, "unexplained");
            for b in &looks[i + 1..] {
                assert!(a.colour != b.colour || a.hatch != b.hatch, "{} and {}", a.label, b.label);
            }
        }
        assert_eq!(label("unexplained"), "unexplained");
    }

    #[test]
    fn a_part_that_shrank_lies_left_of_zero() {
        let row = |kind: &str, baseline_ms, anomalous_ms| PartRow {
            kind: kind.into(),
            baseline_ms,
            anomalous_ms,
            blame: None,
        };
        let svg = svg(&[row("run", 10.0, 8.0), row("runnable", 0.0, 12.0)]);
        assert!(svg.contains("class=\"zero\""), "{svg}");
        assert!(svg.contains(">10.0 ms<"), "the excess is what is left: {svg}");
        assert_eq!(super::svg(&[row("run", f64::NAN, 0.0)]), "");
    }
}
